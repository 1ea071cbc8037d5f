#include "espalier/sim/flat_plan.h"

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/cost/training_times.h"

namespace espalier::internal {
namespace {

Duration slowed(Duration time, std::int32_t per_mille) {
  return time + Duration((time.count() * per_mille + 500) / 1000);
}

}  // namespace

DeviceFacts::DeviceFacts(const Cluster& c, const CostTable& costs, const Training& training)
    : cluster(c), optimizer(training.optimizer) {
  for (const DeviceKind& kind : c.kinds()) {
    overheads.push_back(costs.overhead(kind.name));
    per_action.push_back(at_speed(overheads.back().per_action, kind));
  }
}

FlatPlan::FlatPlan(const Graph& graph, const DeviceFacts& facts, const StagePrices& prices)
    : graph_(graph),
      facts_(facts),
      prices_(prices),
      scratch_(StagePrices::make_scratch()),
      hosting_(facts.cluster.devices().size(), 0),
      output_of_(graph.tensors().size(), kNone) {}

bool FlatPlan::read(const PipelinePlan& plan, std::span<const StageRuns> runs) {
  forbidden_.reset();
  tokens_ = plan.tokens;
  memory_.clear();
  replicas_.clear();
  times_.clear();
  outputs_.clear();
  received_.clear();
  held_.clear();
  outputs_begin_.assign(1, 0);
  received_begin_.assign(1, 0);
  if (runs.empty()) prefetch(plan);
  find_hosts(plan);
  ask_ahead(plan, runs);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    if (!add_stage(plan, s)) return false;
  }
  add_edges(plan);
  number_crossings();
  add_ties();
  fill_costs();
  fill_shape(plan);
  return true;
}

// A fresh plan is in no cache: this fetches all its lists at once, not one after the other.
void FlatPlan::prefetch(const PipelinePlan& plan) const {
  for (const Stage& stage : plan.stages) {
    __builtin_prefetch(stage.replicas.data());
    __builtin_prefetch(stage.operators.data());
    __builtin_prefetch(stage.operators.data() + stage.operators.size() - 1);
  }
}

// How many devices of each group host a stage: more than one, and they slow each other down.
void FlatPlan::find_hosts(const PipelinePlan& plan) {
  busy_in_group_.assign(facts_.cluster.groups().size(), 0);
  if (++plan_ == 0) {  // counted once around
    std::fill(hosting_.begin(), hosting_.end(), 0);
    plan_ = 1;
  }
  for (const Stage& stage : plan.stages) {
    for (const Replica& replica : stage.replicas) {
      for (const DeviceId device : replica.devices) {
        if (hosting_[device.index()] == plan_) continue;
        hosting_[device.index()] = plan_;
        ++busy_in_group_[facts_.cluster.device(device).group.index()];
      }
    }
  }
}

void FlatPlan::collect_kinds(const Stage& stage) {
  kinds_.clear();
  for (const Replica& replica : stage.replicas) {
    for (const DeviceId device : replica.devices) {
      const KindId kind = facts_.cluster.device(device).kind;
      if (kinds_.empty() || kinds_.back() != kind) kinds_.push_back(kind);
    }
  }
  if (kinds_.size() == 1) return;
  std::sort(kinds_.begin(), kinds_.end());
  kinds_.erase(std::unique(kinds_.begin(), kinds_.end()), kinds_.end());
}

void FlatPlan::list_runs(const Stage& stage) {
  Asked asked;
  asked.first = asked.first_again = narrow(runs_.size());
  append_runs(stage.operators, runs_);
  asked.count = narrow(runs_.size()) - asked.first;
  if (stage.recompute.size() == stage.operators.size()) {
    asked.count_again = asked.count;
  } else if (!stage.recompute.empty()) {
    asked.first_again = narrow(runs_.size());
    append_runs(stage.recompute, runs_);
    asked.count_again = narrow(runs_.size()) - asked.first_again;
  }
  asked_.push_back(asked);
}

void FlatPlan::list_runs(const StageRuns& runs) {
  Asked asked;
  asked.first = narrow(runs_.size());
  runs_.insert(runs_.end(), runs.operators.begin(), runs.operators.end());
  asked.count = narrow(runs.operators.size());
  asked.first_again = narrow(runs_.size());
  runs_.insert(runs_.end(), runs.recompute.begin(), runs.recompute.end());
  asked.count_again = narrow(runs.recompute.size());
  asked_.push_back(asked);
}

// All questions first, so that the memory works on several at once.
void FlatPlan::ask_ahead(const PipelinePlan& plan, std::span<const StageRuns> runs) {
  runs_.clear();
  asked_.clear();
  all_kinds_.clear();
  kinds_begin_.assign(1, 0);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    collect_kinds(plan.stages[s]);
    all_kinds_.insert(all_kinds_.end(), kinds_.begin(), kinds_.end());
    kinds_begin_.push_back(narrow(all_kinds_.size()));
    if (runs.empty()) {
      list_runs(plan.stages[s]);
    } else {
      list_runs(runs[s]);
    }
  }
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    prices_.prefetch(question_of(plan.stages[s], s), *scratch_);
  }
}

StageQuestion FlatPlan::question_of(const Stage& stage, std::size_t index) const {
  const std::span<const OperatorRun> runs(runs_);
  const Asked& asked = asked_[index];
  return {runs.subspan(asked.first, asked.count), runs.subspan(asked.first_again, asked.count_again),
          stage.micro_batch, narrow(stage.replicas[0].devices.size()),
          std::span<const KindId>(all_kinds_)
              .subspan(kinds_begin_[index], kinds_begin_[index + 1] - kinds_begin_[index])};
}

bool FlatPlan::add_stage(const PipelinePlan& plan, std::size_t index) {
  const Stage& stage = plan.stages[index];
  const StageQuestion question = question_of(stage, index);
  const StagePrice& price = prices_.price(question, *scratch_);
  if (price.forbidden) {
    forbidden_ = price.forbidden;
    return false;
  }
  for (const StagePrice::Output& output : price.outputs) {
    output_of_[output.tensor.index()] = narrow(outputs_.size());
    outputs_.push_back({output.tensor, narrow(index), output.bytes, output.saved, output.for_input_only});
  }
  received_.insert(received_.end(), price.received.begin(), price.received.end());
  for (const ParameterId parameter : price.shared_parameters) held_.push_back({parameter, narrow(index)});
  outputs_begin_.push_back(narrow(outputs_.size()));
  received_begin_.push_back(narrow(received_.size()));
  memory_.push_back(price.memory);
  replicas_.push_back(stage.replicas.size());
  for (const Replica& replica : stage.replicas) times_.push_back(times_of(replica, question, price));
  return true;
}

// The slowest device of the replica in each.
StageTimes FlatPlan::times_of(const Replica& replica, const StageQuestion& question,
                              const StagePrice& price) {
  StageTimes slowest;
  for (const DeviceId id : replica.devices) {
    const Device& device = facts_.cluster.device(id);
    const std::size_t kind = device.kind.index();
    const StagePrice::Times& sums = price.times[static_cast<std::size_t>(
        std::find(question.kinds.begin(), question.kinds.end(), device.kind) - question.kinds.begin())];
    const std::int32_t neighbour =
        busy_in_group_[device.group.index()] > 1 ? facts_.overheads[kind].neighbour_per_mille : 0;
    StageTimes own;
    own.forward = slowed(sums.forward, neighbour) + facts_.per_action[kind];
    own.input_gradient = slowed(sums.input_gradient, neighbour);
    own.weight_gradient = slowed(sums.weight_gradient, neighbour);
    own.overhead = facts_.per_action[kind];
    if (!question.recompute.empty())
      own.recompute = slowed(sums.recompute, neighbour) + facts_.per_action[kind];
    if (replica.devices.size() > 1) {
      const StagePrice::Times reduced =
          prices_.collectives(question, device.kind, replica.devices, *scratch_);
      own.forward += reduced.forward;
      own.input_gradient += reduced.input_gradient;
      own.recompute += reduced.recompute;
    }
    own.update = at_speed(update_time(facts_.overheads[kind], facts_.optimizer.kind, price.memory.parameters),
                          facts_.cluster.kind(device.kind));
    for (const auto field : {&StageTimes::forward, &StageTimes::input_gradient, &StageTimes::weight_gradient,
                             &StageTimes::recompute, &StageTimes::update, &StageTimes::overhead}) {
      slowest.*field = std::max(slowest.*field, own.*field);
    }
  }
  return slowest;
}

// Edges by reader; the tokens of a stage come after its tensors.
void FlatPlan::add_edges(const PipelinePlan& plan) {
  const std::size_t stages = plan.stages.size();
  unsorted_.clear();
  sends_token_.assign(stages, 0);
  fed_by_.assign(stages, kNone);
  for (std::uint32_t y = 0; y < stages; ++y) {
    for (std::uint32_t i = received_begin_[y]; i < received_begin_[y + 1]; ++i) {
      const StagePrice::Received& received = received_[i];
      const std::uint32_t output = output_of_[received.tensor.index()];
      const std::uint32_t from = outputs_[output].stage;
      const BatchSize piece = std::min(plan.stages[from].micro_batch, plan.stages[y].micro_batch);
      const Bytes bytes = prices_.tensor_bytes(received.tensor, piece, *scratch_);
      fed_by_[from] = y;
      unsorted_.push_back({output, from, y, bytes, received.gradient ? bytes : Bytes(), received.saved,
                           received.for_input_only});
    }
    if (plan.tokens == TokenRule::kNone) continue;
    for (const StageId from : plan.stages[y].after) {
      if (fed_by_[from.index()] == y) continue;
      sends_token_[from.index()] = 1;
      unsorted_.push_back({kNone, narrow(from.index()), y, Bytes(), Bytes(), false, false});
    }
  }
}

void FlatPlan::number_crossings() {
  const std::size_t stages = sends_token_.size();
  tokens_before_.assign(stages + 1, 0);
  crossings_.clear();
  for (std::uint32_t x = 0; x < stages; ++x) {
    tokens_before_[x + 1] = tokens_before_[x] + sends_token_[x];
    for (std::uint32_t i = outputs_begin_[x]; i < outputs_begin_[x + 1]; ++i) {
      crossings_.push_back(
          {x, 0, 0, outputs_[i].bytes, outputs_[i].saved, outputs_[i].for_input, false, false});
    }
    if (sends_token_[x]) {
      crossings_.push_back({x, 0, 0, Bytes(), false, false, true, tokens_ != TokenRule::kForwardOnly});
    }
  }
  for (Edge& edge : unsorted_) {
    const std::uint32_t number = edge.crossing == kNone ? outputs_begin_[edge.from + 1] : edge.crossing;
    edge.crossing = number + tokens_before_[edge.from];
    CrossingEdges& crossing = crossings_[edge.crossing];
    ++crossing.count;
    crossing.returns = crossing.returns || edge.gradient > Bytes();
  }
  std::uint32_t first = 0;
  for (CrossingEdges& crossing : crossings_) {
    crossing.first = first;
    first += crossing.count;
    crossing.count = 0;
  }
  edges_.resize(unsorted_.size());
  for (const Edge& edge : unsorted_) {
    CrossingEdges& crossing = crossings_[edge.crossing];
    edges_[crossing.first + crossing.count++] = edge;
  }
}

void FlatPlan::add_ties() {
  ties_.clear();
  if (held_.size() < 2) return;
  std::sort(held_.begin(), held_.end());
  for (std::uint32_t begin = 0, end = 0; begin < held_.size(); begin = end) {
    while (end < held_.size() && held_[end].first == held_[begin].first) ++end;
    if (end - begin > 1) ties_.push_back({held_[begin].first, begin, end - begin});
  }
}

// In the places of ListLayout.
void FlatPlan::fill_costs() {
  costs_.durations.clear();
  costs_.bytes.clear();
  for (const StageTimes& t : times_) {
    for (const Duration time : works_of(t)) costs_.durations.push_back(time.count());
  }
  for (std::size_t s = 0; s < memory_.size(); ++s) {
    const StageMemory& m = memory_[s];
    for (const Bytes bytes : figures_of(m, m.gradients, replicas_[s])) costs_.bytes.push_back(bytes.count());
  }
  for (const CrossingEdges& crossing : crossings_) costs_.bytes.push_back(crossing.output.count());
  for (const Edge& edge : edges_) {
    costs_.bytes.push_back(edge.bytes.count());
    costs_.bytes.push_back(edge.gradient.count());
  }
  for (const Tie& tie : ties_) costs_.bytes.push_back(graph_.parameter(tie.parameter).bytes().count());
}

// A stage's micro-batches of each replica; the usual shares, j mod replicas, are said in one word.
void FlatPlan::add_share(const Stage& stage, std::uint32_t micro_batches) {
  const std::size_t count = stage.replicas.size();
  bool usual = true;
  for (std::size_t r = 0; r < count && usual; ++r) {
    const std::vector<std::uint32_t>& share = stage.replicas[r].micro_batches;
    usual = share.size() == (micro_batches + count - 1 - r) / count;
    for (std::size_t i = 0; i < share.size() && usual && count > 1; ++i) usual = share[i] == i * count + r;
  }
  shape_.push_back(usual ? 1 : 0);
  if (usual) return;
  for (const Replica& replica : stage.replicas) {
    shape_.push_back(narrow(replica.micro_batches.size()));
    shape_.insert(shape_.end(), replica.micro_batches.begin(), replica.micro_batches.end());
  }
}

// A rule in full or lists in full, never the one like the other.
void FlatPlan::add_orders(const Orders& orders) {
  if (const OrderRule* rule = orders.rule()) {
    shape_.push_back(static_cast<std::uint32_t>(rule->kind) << 1);
    shape_.push_back(static_cast<std::uint32_t>(rule->backward) << 8 |
                     static_cast<std::uint32_t>(rule->edition));
    shape_.push_back(narrow(rule->group.size()));
    shape_.insert(shape_.end(), rule->group.begin(), rule->group.end());
    return;
  }
  shape_.push_back(1 | narrow(orders.lists()->size()) << 1);
  for (const std::vector<Step>& list : *orders.lists()) {
    shape_.push_back(narrow(list.size()));
    for (const Step& step : list) {
      shape_.push_back(narrow(step.target()) << 3 | static_cast<std::uint32_t>(step.kind));
    }
  }
}

void FlatPlan::fill_shape(const PipelinePlan& plan) {
  const std::size_t stages = plan.stages.size();
  shape_.clear();
  shape_.push_back(narrow(stages));
  shape_.push_back(static_cast<std::uint32_t>(plan.tokens));
  add_orders(plan.orders);
  std::size_t replica = 0;
  for (std::size_t s = 0; s < stages; ++s) {
    const Stage& stage = plan.stages[s];
    const std::uint32_t micro_batches = plan.micro_batches(StageId(s));
    const bool trained = memory_[s].gradients > Bytes();
    bool again = memory_[s].recomputed > Bytes(), update = trained, halves = trained;
    shape_.insert(shape_.end(), {micro_batches, stage.in_flight, stage.slots.value_or(0),
                                 narrow(stage.replicas.size()), narrow(stage.replicas[0].devices.size())});
    for (const Replica& each : stage.replicas) {
      for (const DeviceId device : each.devices) shape_.push_back(narrow(device.index()));
      const StageTimes& times = times_[replica++];
      again = again || times.recompute > Duration();
      halves = halves || times.weight_gradient > Duration();
      update = update || times.update > Duration();
    }
    const bool reduce = stage.replicas.size() > 1 && trained;
    shape_.push_back((again ? 1u : 0u) | (update ? 2u : 0u) | (reduce ? 4u : 0u) | (halves ? 8u : 0u));
    add_share(stage, micro_batches);
  }
  const OrderRule* const rule = plan.orders.rule();
  const bool splits =
      !rule || rule->backward == OrderRule::Backward::kSplit;  // else flags for I mean nothing
  shape_.push_back(narrow(crossings_.size()));
  for (const CrossingEdges& crossing : crossings_) {
    shape_.push_back(crossing.from << 4 | (crossing.saved ? 1u : 0u) | (crossing.token ? 2u : 0u) |
                     (crossing.returns ? 4u : 0u) | (crossing.for_input && splits ? 8u : 0u));
    shape_.push_back(crossing.count);
    for (std::uint32_t e = crossing.first; e < crossing.first + crossing.count; ++e) {
      shape_.push_back(edges_[e].to << 3 | (edges_[e].saved ? 1u : 0u) |
                       (edges_[e].gradient > Bytes() ? 2u : 0u) | (edges_[e].for_input && splits ? 4u : 0u));
    }
  }
  for (const Tie& tie : ties_) {
    shape_.push_back(tie.stages);
    for (std::uint32_t i = tie.first; i < tie.first + tie.stages; ++i) shape_.push_back(held_[i].second);
  }
}

void FlatPlan::write_model(const PipelinePlan& plan, StagedModel& model) const {
  model.orders = plan.orders;
  model.tokens = plan.tokens;
  std::vector<std::uint32_t> held;  // lists say themselves how much is in flight
  if (plan.orders.lists()) held = in_flight_limits(plan);
  std::size_t times = 0;
  model.stages.resize(plan.stages.size());
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    StagedStage& staged = model.stages[s];
    staged.after = stage.after;
    staged.micro_batches = plan.micro_batches(StageId(s));
    staged.in_flight = held.empty() ? stage.in_flight : held[s];
    staged.slots = stage.slots;
    staged.memory = memory_[s];
    staged.reduced = stage.replicas.size() > 1 ? staged.memory.gradients : Bytes();
    staged.replicas.resize(stage.replicas.size());
    for (std::size_t r = 0; r < stage.replicas.size(); ++r) {
      staged.replicas[r].devices = stage.replicas[r].devices;
      staged.replicas[r].micro_batches = stage.replicas[r].micro_batches;
      staged.replicas[r].times = times_[times++];
    }
  }
  model.crossings.resize(crossings_.size());
  for (std::size_t c = 0; c < crossings_.size(); ++c) {
    const CrossingEdges& from = crossings_[c];
    Crossing& crossing = model.crossings[c];
    crossing.from = StageId(from.from);
    crossing.output = from.output;
    crossing.saved_by_producer = from.saved;
    crossing.token = from.token;
    crossing.returns = from.returns;
    crossing.for_input_only = from.for_input;
    crossing.readers.resize(from.count);
    for (std::uint32_t i = 0; i < from.count; ++i) {
      const Edge& edge = edges_[from.first + i];
      crossing.readers[i] = {StageId(edge.to), edge.saved, edge.bytes, edge.gradient, edge.for_input};
    }
  }
  model.ties.resize(ties_.size());
  for (std::size_t t = 0; t < ties_.size(); ++t) {
    espalier::Tie& staged = model.ties[t];
    staged.bytes = graph_.parameter(ties_[t].parameter).bytes();
    staged.stages.clear();
    for (std::uint32_t i = ties_[t].first; i < ties_[t].first + ties_[t].stages; ++i) {
      staged.stages.push_back(StageId(held_[i].second));
    }
  }
}

}  // namespace espalier::internal
