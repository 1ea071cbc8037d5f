// What would do where nothing fits (shortage.h).
//
// Each change makes a problem of its own: cluster, costs, graph or training differ, all else is as it was.
// Where the closest plan can be changed likewise, it is judged first: that takes no search, and tells which
// of several changes is worth one.

#include <algorithm>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/cost/cpu_kernels.h"
#include "espalier/planners/shortage.h"

namespace espalier {
namespace {

constexpr std::size_t kMostNamed = 4;  // devices, stages

// A changed problem with what it refers to.
struct Changed {
  Graph graph;
  Cluster cluster;
  CostTable costs;
  Training training;
};

std::optional<Duration> iteration_if_it_fits(const Changed& changed, const Plan& plan) {
  const auto* pipeline = std::get_if<PipelinePlan>(&plan);
  if (pipeline && !check_plan(changed.graph, changed.cluster, *pipeline).empty()) return std::nullopt;
  const Evaluation evaluation =
      evaluation_of(changed.graph, changed.cluster, changed.costs, changed.training, plan);
  if (!evaluation.can_run() || evaluation.overflow) return std::nullopt;
  return evaluation.iteration;
}

class Remedies {
 public:
  Remedies(const Problem& problem, const Plan& closest, const Shortage& shortage, const PlanAgain& again)
      : problem_(problem),
        closest_(std::get_if<PipelinePlan>(&closest)),
        shortage_(shortage),
        again_(again) {}

  std::vector<Remedy> run() {
    const bool hopeless = shortage_.state > shortage_.memory;  // unless there is less state or more memory
    if (!hopeless) {
      if (closest_) micro_batch();
      memory();
      if (closest_) recompute();
    }
    precision();
    optimizer();
    devices();
    return std::move(found_);
  }

 private:
  Changed unchanged() const { return {problem_.graph, problem_.cluster, problem_.costs, problem_.training}; }

  // What is known of costs goes on; sizes that are new are filled in.
  void complete(Changed& changed) const {
    changed.costs = complete_costs(changed.graph, changed.cluster, std::move(changed.costs),
                                   changed.training.micro_batches, changed.training.precision);
  }

  std::optional<Duration> plan_again(const Changed& changed) const {
    const Problem problem{.graph = changed.graph,
                          .cluster = changed.cluster,
                          .costs = changed.costs,
                          .training = changed.training,
                          .pins = problem_.pins,
                          .start = std::nullopt,
                          .written_buffers = problem_.written_buffers,
                          .locked = problem_.locked};
    const Outcome outcome = again_(problem);
    return outcome.plan ? iteration_if_it_fits(changed, *outcome.plan) : std::nullopt;
  }

  bool keep(Remedy::Kind kind, std::string text, std::optional<Duration> iteration) {
    if (iteration) found_.push_back({kind, std::move(text), *iteration});
    return iteration.has_value();
  }

  // --- a smaller micro-batch

  std::vector<BatchSize> smaller_sizes() const {  // that were not to choose from, largest first
    const Training& training = problem_.training;
    const BatchRange range = problem_.graph.batch();
    const BatchSize least = *std::min_element(training.micro_batches.begin(), training.micro_batches.end());
    std::vector<BatchSize> sizes;
    for (std::int64_t size = std::min(least.count() - 1, range.max.count()); size >= range.min.count();
         --size) {
      const bool legal =
          training.batch.count() % size == 0 && training.batch.count() / size <= kMaxMicroBatches;
      if (legal) sizes.push_back(BatchSize(size));
    }
    return sizes;
  }

  PipelinePlan with_size(BatchSize size) const {
    PipelinePlan plan = *closest_;
    const auto micro_batches = static_cast<std::uint32_t>(plan.batch.count() / size.count());
    for (Stage& stage : plan.stages) {
      stage.micro_batch = size;
      stage.replicas.resize(std::min<std::size_t>(stage.replicas.size(), micro_batches));
      for (std::size_t r = 0; r < stage.replicas.size(); ++r) {
        stage.replicas[r].micro_batches = round_robin(micro_batches, r, stage.replicas.size());
      }
    }
    const std::vector<std::uint32_t> limits = in_flight_limits(plan);
    const auto devices = static_cast<std::uint32_t>(shortage_.devices.size());  // more in flight gain nothing
    for (std::size_t s = 0; s < limits.size(); ++s) plan.stages[s].in_flight = std::min(limits[s], devices);
    return plan;
  }

  // The largest with which the closest plan fits; or the smallest, with which another may.
  void micro_batch() {
    const std::vector<BatchSize> sizes = smaller_sizes();
    if (sizes.empty() || !problem_.locked.empty() || !closest_->orders.rule()) return;
    const auto with = [&](BatchSize size) {
      Changed changed = unchanged();
      changed.training.micro_batches = {size};
      complete(changed);
      return changed;
    };
    BatchSize chosen = sizes.back();
    for (const BatchSize size : sizes) {
      if (!iteration_if_it_fits(with(size), with_size(size))) continue;
      chosen = size;
      break;
    }
    const auto text = [&](BatchSize size) {
      std::string flag = "--micro-batch " + std::to_string(size.count());
      if (!operators_that_need_the_whole_batch(problem_.graph).empty())
        flag += ", which trains something else";
      return flag;
    };
    if (keep(Remedy::Kind::kMicroBatch, text(chosen), plan_again(with(chosen)))) return;
    if (chosen != sizes.back()) {
      keep(Remedy::Kind::kMicroBatch, text(sizes.back()), plan_again(with(sizes.back())));
    }
  }

  // --- more memory

  void memory() {
    Changed changed = unchanged();
    ClusterParts parts = changed.cluster.parts();
    std::vector<DeviceNeed> lacking = shortage_.devices;
    std::erase_if(lacking, [](const DeviceNeed& need) { return need.lacks() == Bytes(); });
    Bytes most, most_lack;
    for (const DeviceNeed& need : lacking) {
      most = std::max(most, enough(need.needs));
      most_lack = std::max(most_lack, need.lacks());
    }
    const bool is_named = lacking.size() <= kMostNamed;  // else all of them have as much more
    std::string text;
    for (const DeviceNeed& need : lacking) {
      const Bytes lack = is_named ? need.lacks() : most_lack;
      Device& device = parts.devices[need.device.index()];
      device.memory = need.has + enough(lack);
      text += (text.empty() ? "" : ", ") + enough_text(lack) + " more on " + device.name;
    }
    if (!is_named) {
      text = enough_text(most_lack) + " more on each of the " + std::to_string(lacking.size()) +
             " devices that lack some";
    }
    changed.cluster = Cluster(parts);
    if (keep(Remedy::Kind::kMemory, text, plan_again(changed))) return;
    for (Device& device : parts.devices) device.memory = std::max(device.memory, most);
    changed.cluster = Cluster(parts);
    keep(Remedy::Kind::kMemory, enough_text(most) + " on every device", plan_again(changed));
  }

  // --- recomputation

  // All of a stage's operators but those that write their inputs.
  std::vector<OperatorId> repeatable(const Stage& stage) const {
    std::vector<OperatorId> operators;
    for (const OperatorId op : stage.operators) {
      if (problem_.graph.op(op).mutates.empty()) operators.push_back(op);
    }
    return operators;
  }

  bool lacks(const Stage& stage) const {
    return std::any_of(stage.replicas.begin(), stage.replicas.end(), [&](const Replica& replica) {
      return std::any_of(replica.devices.begin(), replica.devices.end(), [&](DeviceId device) {
        const auto need = std::find_if(shortage_.devices.begin(), shortage_.devices.end(),
                                       [&](const DeviceNeed& each) { return each.device == device; });
        return need != shortage_.devices.end() && need->lacks() > Bytes();
      });
    });
  }

  void recompute() {
    PipelinePlan plan = *closest_;
    std::string names;
    std::size_t count = 0;
    for (Stage& stage : plan.stages) {
      if (!lacks(stage)) continue;
      stage.recompute = repeatable(stage);
      if (++count <= kMostNamed) names += (names.empty() ? "" : ", ") + stage.name;
    }
    if (count > kMostNamed) names += " and " + std::to_string(count - kMostNamed) + " more";
    keep(Remedy::Kind::kRecompute,
         "the closest plan with all of stage" + std::string(count == 1 ? " " : "s ") + names + " recomputed",
         iteration_if_it_fits(unchanged(), plan));
  }

  // --- numbers of another kind

  bool is_analytic() const {
    return std::all_of(
        problem_.costs.parts().rows.begin(), problem_.costs.parts().rows.end(), [](const CostRow& row) {
          return std::all_of(row.points.begin(), row.points.end(),
                             [](const auto& point) { return point.cost.origin == Origin::kAnalytic; });
        });
  }

  void precision() {
    if (problem_.training.precision == Precision::kBF16 || !is_analytic() || !problem_.locked.empty()) return;
    try {
      Changed changed{with_precision(problem_.graph, Precision::kBF16), problem_.cluster,
                      CostTable(CostTableParts{}), problem_.training};
      changed.training.precision = Precision::kBF16;
      changed.training.optimizer.master_weights = true;
      complete(changed);
      keep(Remedy::Kind::kPrecision, "--precision bf16", plan_again(changed));
    } catch (const InputError&) {  // a profile of bytes has no numbers
    }
  }

  void optimizer() {
    const Optimizer& now = problem_.training.optimizer;
    if (optimizer_state(now, Bytes(1)) == Bytes()) return;
    Changed changed = unchanged();
    changed.training.optimizer.kind = OptimizerKind::kSgd;
    changed.training.optimizer.momentum = 0;
    keep(Remedy::Kind::kOptimizer, "--optimizer sgd, which trains otherwise", plan_again(changed));
  }

  // --- more devices

  // With `count` more devices in the only group, or `count` more hosts like the last device's.
  static Cluster with_more(const Cluster& cluster, std::size_t count) {
    ClusterParts parts = cluster.parts();
    const Device last = parts.devices.back();
    const bool hosts = parts.groups.size() > 1;
    std::vector<Device> of_host;
    for (const Device& device : parts.devices) {
      if (device.group == last.group) of_host.push_back(device);
    }
    const Group host = parts.groups[last.group.index()];
    for (std::size_t i = 0; i < count; ++i) {
      GroupId group = last.group;
      if (hosts) {
        group = GroupId(parts.groups.size());
        parts.groups.push_back(host);
        parts.groups.back().name = host.name + " again " + std::to_string(i + 1);
        if (!host.parent) parts.groups.back().parent = last.group;
      }
      for (const Device& device : hosts ? of_host : std::vector<Device>{last}) {
        parts.devices.push_back(device);
        parts.devices.back().group = group;
        parts.devices.back().name = device.name + " again " + std::to_string(i + 1);
      }
    }
    return Cluster(std::move(parts));
  }

  void devices() {
    const Cluster& cluster = problem_.cluster;
    const Device& last = cluster.devices().back();
    const std::string kind = cluster.kind(last.kind).name;
    if (is_cpu(cluster.kind(last.kind))) return;  // more workers share the same memory
    const bool hosts = cluster.groups().size() > 1 && cluster.group(last.group).parent;
    std::size_t now = 0;
    if (hosts) {
      for (const Group& group : cluster.groups()) now += group.parent ? 1 : 0;
    } else {
      now = cluster.devices().size();
    }
    constexpr std::size_t kMostDevices = 4096;
    if (2 * cluster.devices().size() > kMostDevices) return;
    const auto with = [&](std::size_t more) {
      Changed changed = unchanged();
      changed.cluster = with_more(cluster, more);
      return plan_again(changed);
    };
    const auto text = [&](std::size_t more) {
      return std::to_string(now + more) + " " + (hosts ? "hosts" : "devices") + " instead of " +
             std::to_string(now) + ", the new ones like " + (hosts ? "the last" : "the last, " + kind);
    };
    if (keep(Remedy::Kind::kDevices, text(1), with(1)) || now == 1) return;
    keep(Remedy::Kind::kDevices, text(now), with(now));
  }

  const Problem& problem_;
  const PipelinePlan* const closest_;  // null: a placement
  const Shortage& shortage_;
  const PlanAgain& again_;
  std::vector<Remedy> found_;
};

}  // namespace

std::vector<Remedy> find_remedies(const Problem& problem, const Plan& closest, const Shortage& shortage,
                                  const PlanAgain& again) {
  return Remedies(problem, closest, shortage, again).run();
}

}  // namespace espalier
