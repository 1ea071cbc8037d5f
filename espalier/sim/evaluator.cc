// The evaluator puts a plan together from stage profiles (stage_profile.h) and runs it (step_simulation.h).
// Profiles depend on a stage's operators, micro-batch, recomputation and device kinds only, and a planner's
// next plan shares most stages with its last, so the scratch keeps those it met in a table with two
// places for each hash, which grows with them to a few MiB: a collision costs a walk, never a wrong answer.

#include "espalier/sim/evaluator.h"

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/sim/run_profile.h"
#include "espalier/sim/simulate.h"
#include "espalier/sim/stage_profile.h"
#include "espalier/sim/step_simulation.h"

namespace espalier {
namespace {

using internal::ProfileTables;
using internal::RouteTable;
using internal::RunTables;
using internal::StageProfile;
using internal::StepCollective;
using internal::StepEdge;
using internal::StepInput;
using internal::StepSimulation;
using internal::Time;

constexpr std::uint32_t kNone = 0xffffffff;

// As Stager does (plan/staged_model.cc): costs per kind that belong to no operator.
Duration at_speed(Duration time, const DeviceKind& kind) {
  return kind.speed == 1 ? time : round_duration(static_cast<double>(time.count()) / kind.speed);
}
Time slowed(Duration time, std::int32_t per_mille) {
  return time.count() + (time.count() * per_mille + 500) / 1000;
}

constexpr std::size_t kFirstRemembered = 256, kMostRemembered = 16384;  // stages

}  // namespace

struct Evaluator::State {
  State(const Graph& g, const Cluster& c, const CostTable& t, const Training& tr)
      : graph(g),
        cluster(c),
        table(t),
        training(tr),
        tables(g, c, t, tr),
        runs(g, tables, tr.micro_batches.size(), c.kinds().size()),
        routes(c) {
    for (const DeviceKind& kind : c.kinds()) {
      overheads.push_back(t.overhead(kind.name));
      per_action.push_back(at_speed(overheads.back().per_action, kind).count());
    }
    for (const Group& group : c.groups()) {
      endpoints |= group.send != EndpointCost() || group.receive != EndpointCost();
    }
  }

  const Graph& graph;
  const Cluster& cluster;
  const CostTable table;
  const Training training;
  const ProfileTables tables;
  const RunTables runs;
  const RouteTable routes;
  std::vector<KindOverhead> overheads;  // by kind
  std::vector<Time> per_action;         // by kind
  bool endpoints = false;
};

class Evaluator::Scratch {
 public:
  void bind(const std::shared_ptr<const State>& state);

  // Fills `input`; false if the plan is not for the fast way.
  bool stage(const PipelinePlan& plan);
  Evaluation result();

  StepInput input;
  StepSimulation simulation;
  Counts counts;

 private:
  // A stage that was met, by what its profile depends on.
  struct StageKey {
    std::uint32_t first = kNone, last = 0;  // a run of operators
    std::uint32_t micro_batch = 0;
    bool recompute = false;  // all of them
    std::uint64_t kinds = 0;
    friend bool operator==(const StageKey&, const StageKey&) = default;

    std::uint64_t hash() const {
      return mix64((std::uint64_t{first} << 32 | last) ^
                   mix64(kinds << 20 ^ std::uint64_t{micro_batch} << 1 ^ (recompute ? 1 : 0)));
    }
  };
  struct Crossing {
    std::uint32_t tensor, stage;
    std::int64_t bytes;
    bool saved;
  };

  bool take_devices(const PipelinePlan& plan);
  bool add_stage(const PipelinePlan& plan, std::uint32_t index);
  bool shares_are_round_robin(const Stage& stage) const;
  bool collect_kinds(const Stage& stage);
  const StageProfile& profile_of(const Stage& stage);
  std::pair<StageKey, StageProfile>* places_of(const StageKey& key);
  void grow_memory();
  void add_units(const Stage& stage, const StageProfile& profile, std::uint32_t index);
  void add_edges(const PipelinePlan& plan);
  void number_crossings();
  bool limits_shrink(const PipelinePlan& plan) const;
  void add_all_reduces();
  void add_ties();
  void add_member_links(const Route& route);
  void end_collective(StepCollective collective);

  std::shared_ptr<const State> state_;
  std::optional<RouteTable> routes_;
  std::size_t micro_batch_ = 0;               // index among the allowed
  std::vector<std::uint8_t> taken_;           // by device
  std::vector<std::uint32_t> busy_in_group_;  // by group
  std::vector<std::size_t> kinds_;            // of the stage at hand
  std::uint64_t kind_mask_ = 0;
  std::vector<StageMemory> memory_;           // by stage
  std::vector<Crossing> outputs_;             // ascending (stage, tensor)
  std::vector<std::uint32_t> outputs_begin_;  // by stage
  std::vector<StageProfile::Received> received_;
  std::vector<std::uint32_t> received_begin_;  // by stage
  std::vector<std::uint32_t> crossing_of_;     // by tensor: index into outputs_, of this plan's crossings
  std::vector<std::uint8_t> sends_token_;      // by stage
  std::vector<std::uint32_t> fed_by_;          // by stage: the last reader that gets a tensor from it
  std::vector<std::uint32_t> tokens_before_;   // by stage
  std::vector<StepEdge> unsorted_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> held_;  // (shared parameter, stage)
  ProfileTables::Scratch walk_;
  RunTables::Scratch run_;
  StageProfile odd_profile_;
  std::vector<std::pair<StageKey, StageProfile>> remembered_;  // two places for each hash
  std::size_t kept_ = 0;                                       // stages put there so far
};

// --- from a plan to StepInput

void Evaluator::Scratch::bind(const std::shared_ptr<const State>& state) {
  if (state_ == state) return;
  state_ = state;
  routes_ = state->routes;
  walk_ = {};
  remembered_.clear();
  remembered_.resize(kFirstRemembered);
  kept_ = 0;
  crossing_of_.assign(state->tables.tensors(), kNone);
}

bool Evaluator::Scratch::stage(const PipelinePlan& plan) {
  if (plan.stages.empty() || !plan.orders.rule() || !plan.orders.rule()->is_plain()) return false;
  const BatchSize size = plan.stages[0].micro_batch;
  const auto micro_batch = state_->tables.micro_batch_index(size);
  if (!micro_batch || !take_devices(plan)) return false;
  micro_batch_ = *micro_batch;
  input.micro_batches = plan.micro_batches(StageId(0));
  input.stages.clear();
  input.units.clear();
  input.edges.clear();
  input.crossings.clear();
  input.collectives.clear();
  input.collective_links.clear();
  input.collective_members.clear();
  input.link_count = state_->cluster.link_count();
  input.endpoints = state_->endpoints;
  input.routes = &*routes_;
  memory_.clear();
  outputs_.clear();
  received_.clear();
  held_.clear();
  outputs_begin_.assign(1, 0);
  received_begin_.assign(1, 0);
  for (std::uint32_t s = 0; s < plan.stages.size(); ++s) {
    if (!add_stage(plan, s)) return false;
  }
  add_edges(plan);
  if (!limits_shrink(plan)) return false;
  add_all_reduces();
  add_ties();
  return true;
}

// One stage per device, one device per replica; counts the busy devices of each group.
bool Evaluator::Scratch::take_devices(const PipelinePlan& plan) {
  const std::size_t devices = state_->cluster.devices().size();
  taken_.assign(devices, 0);
  busy_in_group_.assign(state_->cluster.groups().size(), 0);
  // A fresh plan is in no cache: this fetches all its lists at once, not one after the other.
  for (const Stage& stage : plan.stages) {
    __builtin_prefetch(stage.replicas.data());
    __builtin_prefetch(stage.operators.data());
    __builtin_prefetch(stage.operators.data() + stage.operators.size() - 1);
  }
  for (const Stage& stage : plan.stages) {
    for (const Replica& replica : stage.replicas) {
      if (replica.devices.size() != 1) return false;
      const std::size_t device = replica.devices[0].index();
      if (taken_[device]) return false;
      taken_[device] = 1;
      ++busy_in_group_[state_->cluster.devices()[device].group.index()];
    }
  }
  return true;
}

bool Evaluator::Scratch::add_stage(const PipelinePlan& plan, std::uint32_t index) {
  const Stage& stage = plan.stages[index];
  if (stage.micro_batch != plan.stages[0].micro_batch || stage.slots) return false;
  if (!shares_are_round_robin(stage) || !collect_kinds(stage)) return false;
  const StageProfile& profile = profile_of(stage);
  for (const StageProfile::Output& output : profile.outputs) {
    crossing_of_[output.tensor] = static_cast<std::uint32_t>(outputs_.size());
    outputs_.push_back({output.tensor, index, output.bytes.count(), output.saved});
  }
  received_.insert(received_.end(), profile.received.begin(), profile.received.end());
  for (const std::uint32_t parameter : profile.shared_parameters) held_.push_back({parameter, index});
  outputs_begin_.push_back(static_cast<std::uint32_t>(outputs_.size()));
  received_begin_.push_back(static_cast<std::uint32_t>(received_.size()));

  memory_.push_back(profile.memory);
  internal::StepStage step;
  step.first_unit = static_cast<std::uint32_t>(input.units.size());
  step.replicas = static_cast<std::uint32_t>(stage.replicas.size());
  step.limit = plan.orders.has_kind(ScheduleKind::kGPipe) ? input.micro_batches : stage.in_flight;
  step.slots = stage.in_flight + 1;
  step.saved = profile.memory.saved.count();
  step.recomputed = profile.memory.recomputed.count();
  step.forward_workspace = profile.memory.forward_workspace.count();
  step.backward_workspace = profile.memory.backward_workspace.count();
  step.buffers = profile.memory.buffers.count();
  step.recomputes = step.recomputed > 0;
  input.stages.push_back(step);
  add_units(stage, profile, index);
  return true;
}

bool Evaluator::Scratch::shares_are_round_robin(const Stage& stage) const {
  const std::size_t replicas = stage.replicas.size();
  if (replicas == 1) return stage.replicas[0].micro_batches.size() == input.micro_batches;
  for (std::size_t r = 0; r < replicas; ++r) {
    const std::vector<std::uint32_t>& share = stage.replicas[r].micro_batches;
    if (share.size() != (input.micro_batches + replicas - 1 - r) / replicas) return false;
    for (std::size_t i = 0; i < share.size(); ++i) {
      if (share[i] != i * replicas + r) return false;
    }
  }
  return true;
}

bool Evaluator::Scratch::collect_kinds(const Stage& stage) {
  kinds_.clear();
  kind_mask_ = 0;
  for (const Replica& replica : stage.replicas) {
    const std::size_t kind = state_->cluster.device(replica.devices[0]).kind.index();
    if (kind >= 64) return false;
    kind_mask_ |= std::uint64_t{1} << kind;
  }
  for (std::size_t kind = 0; kind < state_->per_action.size(); ++kind) {
    if (kind_mask_ >> kind & 1) kinds_.push_back(kind);
  }
  return true;
}

const StageProfile& Evaluator::Scratch::profile_of(const Stage& stage) {
  const std::size_t size = stage.operators.size();
  const std::size_t first = stage.operators.front().index(), last = stage.operators.back().index();
  const bool plain = stage.recompute.empty() || stage.recompute.size() == size;
  const auto walk = [&](StageProfile& profile) {
    ++counts.stages_walked;
    state_->tables.profile(stage.operators, stage.recompute, micro_batch_, kinds_, walk_, profile);
  };
  if (last - first + 1 != size || !plain) {
    walk(odd_profile_);
    return odd_profile_;
  }
  if (kinds_.size() == 1) {
    const RunTables::Run run{
        static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(last),
        stage.recompute.empty() ? RunTables::Recompute::kNone : RunTables::Recompute::kAll, micro_batch_,
        kinds_[0]};
    if (state_->runs.profile(run, run_, odd_profile_)) return odd_profile_;
  }
  const StageKey key{static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(last),
                     static_cast<std::uint32_t>(micro_batch_), !stage.recompute.empty(), kind_mask_};
  auto* const places = places_of(key);
  for (int i = 0; i < 2; ++i) {
    if (places[i].first == key) return places[i].second;
  }
  if (++kept_ > remembered_.size() / 2 && remembered_.size() < kMostRemembered) grow_memory();
  auto& [known, profile] = places_of(key)[counts.stages_walked % 2];  // either will do
  known = StageKey();                                                 // should the walk throw
  walk(profile);
  known = key;
  return profile;
}

auto Evaluator::Scratch::places_of(const StageKey& key) -> std::pair<StageKey, StageProfile>* {
  return &remembered_[key.hash() % (remembered_.size() / 2) * 2];
}

void Evaluator::Scratch::grow_memory() {
  std::vector<std::pair<StageKey, StageProfile>> old(4 * remembered_.size());
  old.swap(remembered_);
  for (auto& each : old) {
    if (each.first == StageKey()) continue;
    auto* const places = places_of(each.first);
    places[places[0].first == StageKey() ? 0 : 1] = std::move(each);
  }
}

void Evaluator::Scratch::add_units(const Stage& stage, const StageProfile& profile, std::uint32_t index) {
  const std::size_t first = stage.operators.front().index(), last = stage.operators.back().index();
  const bool run = last - first + 1 == stage.operators.size();
  for (const Replica& replica : stage.replicas) {
    const Device& device = state_->cluster.device(replica.devices[0]);
    const std::size_t kind = device.kind.index();
    const ProfileTables::Costs& costs = state_->tables.costs(micro_batch_, kind);
    Duration forward, input_gradient, weight_gradient, recompute;
    const auto add = [&](std::size_t begin, std::size_t end) {
      forward += costs.before[end].forward - costs.before[begin].forward;
      input_gradient += costs.before[end].input_gradient - costs.before[begin].input_gradient;
      weight_gradient += costs.before[end].weight_gradient - costs.before[begin].weight_gradient;
    };
    if (run) {
      add(first, last + 1);
    } else {
      for (const OperatorId op : stage.operators) add(op.index(), op.index() + 1);
    }
    for (const OperatorId op : stage.recompute) {
      recompute += costs.before[op.index() + 1].forward - costs.before[op.index()].forward;
    }
    const std::int32_t neighbour =
        busy_in_group_[device.group.index()] > 1 ? state_->overheads[kind].neighbour_per_mille : 0;
    internal::StepUnit unit;
    unit.stage = index;
    unit.device = static_cast<std::uint32_t>(replica.devices[0].index());
    unit.forward = slowed(forward, neighbour) + state_->per_action[kind];
    unit.backward =
        slowed(input_gradient, neighbour) + state_->per_action[kind] + slowed(weight_gradient, neighbour);
    if (!stage.recompute.empty()) unit.recompute = slowed(recompute, neighbour) + state_->per_action[kind];
    unit.update = at_speed(update_time(state_->overheads[kind], state_->training.optimizer.kind,
                                       profile.memory.parameters),
                           state_->cluster.kind(device.kind))
                      .count();
    input.stages[index].recomputes |= unit.recompute > 0;
    input.units.push_back(unit);
  }
}

// Edges by reader, then sorted by crossing; the tokens of a stage come after its tensors.
void Evaluator::Scratch::add_edges(const PipelinePlan& plan) {
  const std::size_t stages = plan.stages.size();
  unsorted_.clear();
  sends_token_.assign(stages, 0);
  fed_by_.assign(stages, kNone);
  for (std::uint32_t y = 0; y < stages; ++y) {
    for (std::uint32_t i = received_begin_[y]; i < received_begin_[y + 1]; ++i) {
      const StageProfile::Received& received = received_[i];
      const std::uint32_t crossing = crossing_of_[received.tensor];
      const std::uint32_t from = outputs_[crossing].stage;
      const std::int64_t bytes = state_->tables.tensor_bytes(micro_batch_, received.tensor).count();
      fed_by_[from] = y;
      unsorted_.push_back({crossing, from, y, bytes, received.gradient ? bytes : 0, received.saved,
                           received.gradient && bytes > 0, false});
    }
    if (plan.tokens == TokenRule::kNone) continue;
    for (const StageId from : plan.stages[y].after) {
      if (fed_by_[from.index()] == y) continue;
      sends_token_[from.index()] = 1;
      unsorted_.push_back({kNone, static_cast<std::uint32_t>(from.index()), y, 0, 0, false,
                           plan.tokens != TokenRule::kForwardOnly, plan.tokens == TokenRule::kFree});
    }
  }
  number_crossings();
}

void Evaluator::Scratch::number_crossings() {
  const std::size_t stages = sends_token_.size();
  tokens_before_.assign(stages + 1, 0);
  for (std::size_t x = 0; x < stages; ++x) {
    tokens_before_[x + 1] = tokens_before_[x] + sends_token_[x];
    for (std::uint32_t i = outputs_begin_[x]; i < outputs_begin_[x + 1]; ++i) {
      input.crossings.push_back({0, 0, outputs_[i].bytes, outputs_[i].saved});
    }
    if (sends_token_[x]) input.crossings.push_back({});
  }
  for (StepEdge& edge : unsorted_) {
    const std::uint32_t number = edge.crossing == kNone ? outputs_begin_[edge.from + 1] : edge.crossing;
    edge.crossing = number + tokens_before_[edge.from];
    ++input.crossings[edge.crossing].edges;
  }
  std::uint32_t first = 0;
  for (internal::StepCrossing& crossing : input.crossings) {
    crossing.first_edge = first;
    first += crossing.edges;
    crossing.edges = 0;
  }
  input.edges.resize(unsorted_.size());
  for (const StepEdge& edge : unsorted_) {
    internal::StepCrossing& crossing = input.crossings[edge.crossing];
    input.edges[crossing.first_edge + crossing.edges++] = edge;
  }
}

// make_schedule's condition for plain patterns.
bool Evaluator::Scratch::limits_shrink(const PipelinePlan& plan) const {
  for (const StepEdge& edge : input.edges) {
    const Stage& x = plan.stages[edge.from];
    const Stage& y = plan.stages[edge.to];
    const std::size_t supplied = std::size_t{x.in_flight} * x.replicas.size();
    if (supplied < input.micro_batches && supplied < std::size_t{y.in_flight} * y.replicas.size())
      return false;
  }
  return true;
}

// --- collectives, as collective_of (schedule.h) has them

void Evaluator::Scratch::add_member_links(const Route& route) {
  input.collective_links.insert(input.collective_links.end(), route.links.begin(), route.links.end());
}

// Takes what was added to the lists since the collective began.
void Evaluator::Scratch::end_collective(StepCollective collective) {
  const auto links = input.collective_links.begin() + collective.first_link;
  std::sort(links, input.collective_links.end());
  input.collective_links.erase(std::unique(links, input.collective_links.end()),
                               input.collective_links.end());
  collective.links = static_cast<std::uint32_t>(input.collective_links.size()) - collective.first_link;
  collective.members = static_cast<std::uint32_t>(input.collective_members.size()) - collective.first_member;
  collective.lowest_device = kNone;
  for (std::uint32_t i = 0; i < collective.members; ++i) {
    const std::uint32_t unit = input.collective_members[collective.first_member + i];
    collective.lowest_device = std::min(collective.lowest_device, input.units[unit].device);
  }
  input.collectives.push_back(collective);
}

void Evaluator::Scratch::add_all_reduces() {
  for (std::size_t s = 0; s < input.stages.size(); ++s) {
    const std::uint32_t n = input.stages[s].replicas, first = input.stages[s].first_unit;
    const Bytes reduced = memory_[s].gradients;
    if (n < 2 || reduced == Bytes()) continue;
    StepCollective collective;
    collective.first_link = static_cast<std::uint32_t>(input.collective_links.size());
    collective.first_member = static_cast<std::uint32_t>(input.collective_members.size());
    const Bytes chunk((reduced.count() + n - 1) / n);
    Time slowest = 0, latency = 0;
    for (std::uint32_t i = 0; i < n; ++i) {
      const Route& route =
          routes_->of(input.units[first + i].device, input.units[first + (i + 1) % n].device);
      slowest = std::max(slowest, route.hold(chunk).count());
      latency = std::max(latency, (route.latency + route.send.of(chunk) + route.receive.of(chunk)).count());
      add_member_links(route);
      input.collective_members.push_back(first + i);
    }
    const std::int64_t steps = 2 * (std::int64_t{n} - 1), limit = (std::int64_t{1} << 62) / steps;
    collective.hold = std::min(slowest, limit) * steps;
    collective.latency = std::min(latency, limit) * steps;
    end_collective(collective);
  }
}

void Evaluator::Scratch::add_ties() {
  if (held_.size() < 2) return;
  std::sort(held_.begin(), held_.end());
  for (std::size_t begin = 0, end = 0; begin < held_.size(); begin = end) {
    while (end < held_.size() && held_[end].first == held_[begin].first) ++end;
    if (end - begin < 2) continue;
    StepCollective collective;
    collective.first_link = static_cast<std::uint32_t>(input.collective_links.size());
    collective.first_member = static_cast<std::uint32_t>(input.collective_members.size());
    const Bytes bytes = state_->graph.parameter(ParameterId(held_[begin].first)).bytes();
    const auto first_unit = [&](std::size_t i) { return input.stages[held_[i].second].first_unit; };
    const std::uint32_t root = input.units[first_unit(begin)].device;
    Time gather = 0, back = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const internal::StepStage& stage = input.stages[held_[i].second];
      if (i > begin) {
        const Route& route = routes_->of(input.units[first_unit(i)].device, root);
        collective.hold += route.hold(bytes).count();
        gather = std::max(gather, (route.send.of(bytes) + route.latency).count());
        collective.latency += route.receive.of(bytes).count();
        add_member_links(route);
      }
      for (std::uint32_t r = 0; r < stage.replicas; ++r) {
        const std::uint32_t device = input.units[stage.first_unit + r].device;
        input.collective_members.push_back(stage.first_unit + r);
        if (device == root) continue;
        const Route& route = routes_->of(root, device);
        collective.hold += route.hold(bytes).count();
        back = std::max(back, (route.latency + route.receive.of(bytes)).count());
        collective.latency += route.send.of(bytes).count();
        add_member_links(route);
      }
    }
    collective.latency += gather + back;
    end_collective(collective);
  }
}

// --- the answer

Evaluation Evaluator::Scratch::result() {
  Evaluation evaluation;
  evaluation.iteration = Duration(simulation.iteration());
  evaluation.peak.resize(state_->cluster.devices().size());
  for (std::size_t u = 0; u < input.units.size(); ++u) {
    const internal::StepUnit& unit = input.units[u];
    const internal::StepPeak& peak = simulation.peaks()[u];
    const StageMemory& memory = memory_[unit.stage];
    Bytes* bytes = evaluation.peak[unit.device].bytes;
    bytes[static_cast<std::size_t>(MemoryCategory::kParameters)] = memory.parameters;
    bytes[static_cast<std::size_t>(MemoryCategory::kGradients)] = memory.gradients;
    bytes[static_cast<std::size_t>(MemoryCategory::kOptimizer)] =
        optimizer_state(state_->training.optimizer, memory.parameters);
    bytes[static_cast<std::size_t>(MemoryCategory::kBuffers)] = Bytes(peak.buffers);
    bytes[static_cast<std::size_t>(MemoryCategory::kActivations)] = Bytes(peak.activations);
  }
  return evaluation;
}

Evaluator::Evaluator(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                     const Training& training)
    : state_(std::make_shared<const State>(graph, cluster, costs, training)) {}
Evaluator::~Evaluator() = default;
Evaluator::Evaluator(Evaluator&&) noexcept = default;

std::unique_ptr<Evaluator::Scratch, void (*)(Evaluator::Scratch*)> Evaluator::make_scratch() {
  return {new Scratch, [](Scratch* scratch) { delete scratch; }};
}

Evaluator::Counts Evaluator::counts(const Scratch& scratch) {
  return scratch.counts;
}

namespace {

void find_overflow(const Cluster& cluster, Evaluation& evaluation) {
  for (std::size_t device = 0; device < evaluation.peak.size(); ++device) {
    Bytes total;
    for (const Bytes bytes : evaluation.peak[device].bytes) total += bytes;
    if (total > cluster.devices()[device].memory) {
      evaluation.overflow = DeviceId(device);
      return;
    }
  }
}

}  // namespace

Evaluation Evaluator::evaluate(const PipelinePlan& plan, Scratch& scratch) const {
  scratch.bind(state_);
  if (!scratch.stage(plan) || !scratch.simulation.run(scratch.input)) {
    ++scratch.counts.full;
    return simulate_in_full(plan);
  }
  ++scratch.counts.fast;
  Evaluation evaluation = scratch.result();
  find_overflow(state_->cluster, evaluation);
  return evaluation;
}

Evaluation Evaluator::simulate_in_full(const PipelinePlan& plan) const {
  const StagedModel model =
      stage_model(state_->graph, state_->cluster, state_->table, state_->training, plan);
  const Trace trace = simulate(model, state_->cluster);
  Evaluation evaluation;
  evaluation.iteration = trace.iteration;
  evaluation.peak.resize(state_->cluster.devices().size());
  std::vector<Bytes> most(evaluation.peak.size(), Bytes(-1));
  for (const MemorySample& sample : trace.memory) {
    Bytes total;
    for (const Bytes bytes : sample.held.bytes) total += bytes;
    if (total > most[sample.device.index()]) {
      most[sample.device.index()] = total;
      evaluation.peak[sample.device.index()] = sample.held;
    }
  }
  find_overflow(state_->cluster, evaluation);
  return evaluation;
}

}  // namespace espalier
