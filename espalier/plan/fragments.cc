#include "espalier/plan/fragments.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "espalier/base/check.h"
#include "espalier/graph/part_names.h"

namespace espalier {
namespace {

class Fragmenter {
 public:
  Fragmenter(const Graph& graph, const Placement& placement) : graph_(graph), placement_(placement) {
    ESP_CHECK(placement.device.size() == graph.operators().size(), placement.device.size(),
              graph.operators().size());
  }

  PipelinePlan run(BatchSize batch, const FragmentOptions& options) {
    find_levels();
    number();
    stand_duplicables();
    PipelinePlan plan;
    plan.batch = batch;
    plan.orders = options.orders;
    add_stages(plan, options.micro_batch.value_or(batch));
    connect(plan);
    if (!placement_.level.empty() && options.orders == Orders() && plan.micro_batches(StageId(0)) == 1) {
      plan.orders =
          Orders(placement_.orders.empty() ? orders_by_level(plan, options.devices) : placement_.orders);
    }
    const std::vector<std::uint32_t> limits = in_flight_limits(plan);
    for (std::size_t x = 0; x < limits.size(); ++x) plan.stages[x].in_flight = limits[x];
    return plan;
  }

 private:
  const Operator& op(OperatorId id) const { return graph_.op(id); }
  DeviceId device(OperatorId id) const { return placement_.device[id.index()]; }
  // For a predecessor, which gives something or shares memory that one of the two writes.
  bool waits(OperatorId id, OperatorId before) const {
    return device(before) == device(id) || waits_across_devices(graph_, id, before);
  }
  std::uint32_t& level(OperatorId id) { return level_[id.index()]; }
  std::uint32_t fragment(OperatorId id) const { return fragment_[id.index()]; }

  void find_levels() {
    level_ = placement_.level;
    if (!level_.empty()) return;
    level_.assign(graph_.operators().size(), 0);
    for (std::size_t i = 0; i < level_.size(); ++i) {
      const OperatorId id(i);
      if (op(id).duplicable) continue;
      for (const OperatorId before : graph_.predecessors(id)) {
        if (op(before).duplicable || !waits(id, before)) continue;
        level(id) = std::max(level(id), level(before) + (device(before) != device(id) ? 1 : 0));
      }
    }
  }

  // Fragments by (level, device).
  void number() {
    for (std::size_t i = 0; i < level_.size(); ++i) {
      if (!op(OperatorId(i)).duplicable || !is_read(OperatorId(i))) keys_.push_back(key(OperatorId(i)));
    }
    std::sort(keys_.begin(), keys_.end());
    keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
    fragment_.assign(level_.size(), 0);
    operators_.resize(keys_.size());
    for (std::size_t i = 0; i < level_.size(); ++i) {
      if (op(OperatorId(i)).duplicable && is_read(OperatorId(i))) continue;
      const auto at = std::lower_bound(keys_.begin(), keys_.end(), key(OperatorId(i)));
      fragment_[i] = static_cast<std::uint32_t>(at - keys_.begin());
      operators_[fragment_[i]].push_back(OperatorId(i));
    }
  }

  std::pair<std::uint32_t, DeviceId> key(OperatorId id) { return {level(id), device(id)}; }
  bool is_read(OperatorId id) const {
    const std::vector<TensorId>& outputs = op(id).outputs;
    return std::any_of(outputs.begin(), outputs.end(),
                       [&](TensorId tensor) { return !graph_.readers(tensor).empty(); });
  }

  // Beside their readers; later ones first, because a duplicable one may read another.
  void stand_duplicables() {
    std::map<OperatorId, std::vector<std::uint32_t>> copies;
    for (std::size_t i = level_.size(); i-- > 0;) {
      const OperatorId id(i);
      if (!op(id).duplicable || !is_read(id)) continue;
      std::vector<std::uint32_t>& own = copies[id];
      for (const TensorId output : op(id).outputs) {
        for (const OperatorId reader : graph_.readers(output)) {
          if (const auto other = copies.find(reader); other != copies.end()) {
            own.insert(own.end(), other->second.begin(), other->second.end());
          } else {
            own.push_back(fragment(reader));
          }
        }
      }
      std::sort(own.begin(), own.end());
      own.erase(std::unique(own.begin(), own.end()), own.end());
      for (const std::uint32_t x : own) operators_[x].push_back(id);
    }
    for (std::vector<OperatorId>& operators : operators_) std::sort(operators.begin(), operators.end());
  }

  void add_stages(PipelinePlan& plan, BatchSize micro_batch) {
    std::vector<std::string> names = part_names(graph_, operators_);
    const std::int64_t size = micro_batch.count();
    ESP_CHECK(size > 0 && plan.batch.count() % size == 0, size, plan.batch.count());
    const auto count = static_cast<std::uint32_t>(plan.batch.count() / size);
    for (std::size_t x = 0; x < keys_.size(); ++x) {
      Stage stage;
      stage.name = std::move(names[x]);
      stage.operators = std::move(operators_[x]);
      stage.replicas = {{{keys_[x].second}, round_robin(count, 0, 1)}};
      stage.micro_batch = micro_batch;
      if (count == 1) stage.slots = 1;
      plan.stages.push_back(std::move(stage));
    }
  }

  void connect(PipelinePlan& plan) {
    for (std::size_t i = 0; i < level_.size(); ++i) {
      const OperatorId id(i);
      if (op(id).duplicable) continue;
      std::vector<StageId>& after = plan.stages[fragment(id)].after;
      for (const OperatorId before : graph_.predecessors(id)) {
        if (op(before).duplicable || fragment(before) == fragment(id) || !waits(id, before)) continue;
        after.push_back(StageId(fragment(before)));
      }
    }
    for (Stage& stage : plan.stages) {
      std::sort(stage.after.begin(), stage.after.end());
      stage.after.erase(std::unique(stage.after.begin(), stage.after.end()), stage.after.end());
    }
  }

  const Graph& graph_;
  const Placement& placement_;
  std::vector<std::uint32_t> level_;                      // by operator
  std::vector<std::pair<std::uint32_t, DeviceId>> keys_;  // by fragment: level, device
  std::vector<std::uint32_t> fragment_;                   // by operator that is no copy
  std::vector<std::vector<OperatorId>> operators_;        // by fragment
};

}  // namespace

bool waits_across_devices(const Graph& graph, OperatorId v, OperatorId u) {
  const Operator& op = graph.op(v);
  if (op.role != OperatorRole::kUpdate) return true;
  return std::any_of(op.inputs.begin(), op.inputs.end(),
                     [&](TensorId input) { return graph.tensor(input).producer == u; });
}

OrderLists orders_by_level(const PipelinePlan& fragments, std::size_t devices) {
  OrderLists lists(devices);
  const auto list = [&](const Stage& stage) -> std::vector<Step>& {
    const std::size_t device = stage.replicas[0].devices[0].index();
    if (lists.size() <= device) lists.resize(device + 1);
    return lists[device];
  };
  const std::size_t count = fragments.stages.size();
  for (std::size_t x = 0; x < count; ++x) {
    list(fragments.stages[x]).push_back({ActionKind::kForward, StageId(x)});
  }
  for (std::size_t x = count; x-- > 0;) {
    list(fragments.stages[x]).push_back({ActionKind::kBackward, StageId(x)});
  }
  return lists;
}

PipelinePlan fragments_of(const Graph& graph, const Placement& placement, BatchSize batch,
                          const FragmentOptions& options) {
  return Fragmenter(graph, placement).run(batch, options);
}

StagedModel stage_placement(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                            const Training& training, const PipelinePlan& fragments) {
  StagedModel model = stage_model(graph, cluster, costs, training, fragments, StateCopies::kOfEachDevice);
  if (!is_training_graph(graph.operators())) return model;
  for (StagedStage& stage : model.stages) {
    for (StagedReplica& replica : stage.replicas) replica.times.overhead = Duration();
  }
  return model;
}

std::vector<std::string> check_fragment_orders(const StagedModel& model, const Cluster& cluster) {
  const OrderLists* lists = model.orders.lists();
  if (lists == nullptr) return {};
  for (std::size_t d = 0; d < lists->size(); ++d) {
    const Step* end_of_step = nullptr;
    for (const Step& step : (*lists)[d]) {
      if (step.kind == ActionKind::kTieSum || step.kind == ActionKind::kUpdate) end_of_step = &step;
      if (end_of_step == nullptr || step.kind >= ActionKind::kAllReduce) continue;
      return {"order on " + cluster.devices()[d].name + " " + letter(end_of_step->kind) + " stands before " +
              letter(step.kind) + " of '" + model.stages[step.stage().index()].name +
              "'; the fragments of a device share their parameters, so it belongs behind"};
    }
  }
  return {};
}

std::optional<MissingCell> missing_cell(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                                        const PipelinePlan& fragments) {
  std::map<KindId, KindCosts> known;
  for (const Stage& stage : fragments.stages) {
    const KindId kind = cluster.device(stage.replicas[0].devices[0]).kind;
    auto at = known.find(kind);
    if (at == known.end()) {
      at = known.emplace(kind, KindCosts(graph, cluster.kind(kind), costs, stage.micro_batch)).first;
    }
    for (const OperatorId op : stage.operators) {
      if (at->second.of(op) == nullptr) return MissingCell{op, kind};
    }
  }
  return std::nullopt;
}

}  // namespace espalier
