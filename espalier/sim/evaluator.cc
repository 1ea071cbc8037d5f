// The evaluator reads a plan as shape and figures (flat_plan.h), takes the structure of its shape
// (list_structure.h) and runs it (list_engine.h). A planner's next plan mostly has a shape that was met
// before, so the scratch keeps structures, by exact shape; one that is new is made by way of make_schedule,
// the one place that knows what orders there are.

#include "espalier/sim/evaluator.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/sim/flat_plan.h"
#include "espalier/sim/list_engine.h"
#include "espalier/sim/simulate.h"

namespace espalier {

using internal::DeviceFacts;
using internal::FlatPlan;
using internal::ListEngine;
using internal::ListPeak;
using internal::ListStructure;
using internal::RouteTable;

struct Evaluator::State {
  State(const Graph& g, const Cluster& c, const CostTable& t, const Training& tr)
      : graph(g),
        cluster(c),
        table(t),
        training(tr),
        facts(c, table, tr),
        prices(g, c, table, tr),
        routes(c) {}

  const Graph& graph;
  const Cluster& cluster;
  const CostTable table;
  const Training training;
  const DeviceFacts facts;
  const StagePrices prices;
  const RouteTable routes;
};

class Evaluator::Scratch {
 public:
  void bind(const std::shared_ptr<const State>& state);
  Evaluation evaluate(const PipelinePlan& plan);

  Counts counts;

 private:
  struct Known {
    std::vector<std::uint32_t> shape;
    ListStructure structure;
  };
  static constexpr std::size_t kMostBytes = std::size_t{32} << 20;  // of structures

  const ListStructure& structure_of(const PipelinePlan& plan);
  ListStructure make_structure(const PipelinePlan& plan);
  void add_up(const PipelinePlan& plan, const ListStructure& structure, Evaluation& evaluation);

  std::shared_ptr<const State> state_;
  std::optional<RouteTable> routes_;
  std::optional<FlatPlan> flat_;
  ListEngine engine_;
  std::unordered_map<std::uint64_t, Known> known_;  // by hash of the shape: the last with that hash
  std::size_t known_bytes_ = 0;
};

void Evaluator::Scratch::bind(const std::shared_ptr<const State>& state) {
  if (state_ == state) return;
  flat_.reset();
  known_.clear();
  known_bytes_ = 0;
  state_ = state;
  routes_ = state->routes;
  flat_.emplace(state->graph, state->facts, state->prices);
}

namespace {

std::uint64_t hash_of(const std::vector<std::uint32_t>& words) {
  std::uint64_t hash = words.size();
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
    hash = mix64(hash ^ (std::uint64_t{words[i]} << 32 | words[i + 1]));
  }
  return words.size() % 2 == 1 ? mix64(hash ^ words.back()) : hash;
}

}  // namespace

const ListStructure& Evaluator::Scratch::structure_of(const PipelinePlan& plan) {
  const std::vector<std::uint32_t>& shape = flat_->shape();
  const std::uint64_t hash = hash_of(shape);
  const auto at = known_.find(hash);
  if (at != known_.end() && at->second.shape == shape) return at->second.structure;
  ++counts.structures;
  if (known_bytes_ > kMostBytes) {
    known_.clear();
    known_bytes_ = 0;
  }
  ListStructure made = make_structure(plan);
  Known& known = known_[hash];
  known.shape = shape;
  known.structure = std::move(made);
  known_bytes_ += internal::bytes_of(known.structure);
  return known.structure;
}

// Rules make schedules that at worst deadlock; lists may break any rule.
ListStructure Evaluator::Scratch::make_structure(const PipelinePlan& plan) {
  const StagedModel model = flat_->model(plan);
  const Schedule schedule = make_schedule(model, state_->cluster.devices().size());
  if (model.orders.lists() && !check_schedule(model, schedule).empty()) {
    ListStructure never;
    never.possible = false;
    return never;
  }
  return internal::make_list_structure(model, schedule, *routes_, state_->cluster.link_count());
}

Evaluation Evaluator::Scratch::evaluate(const PipelinePlan& plan) {
  ++counts.plans;
  Evaluation evaluation;
  if (!flat_->read(plan)) {
    evaluation.forbidden = flat_->forbidden();
    return evaluation;
  }
  const ListStructure& structure = structure_of(plan);
  if (!engine_.run(structure, flat_->costs())) {
    evaluation.deadlock = true;
    return evaluation;
  }
  evaluation.iteration = Duration(engine_.iteration());
  add_up(plan, structure, evaluation);
  return evaluation;
}

void Evaluator::Scratch::add_up(const PipelinePlan& plan, const ListStructure& structure,
                                Evaluation& evaluation) {
  evaluation.peak.resize(state_->cluster.devices().size());
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StageMemory& memory = flat_->memory()[s];
    for (const Replica& replica : plan.stages[s].replicas) {
      for (const DeviceId device : replica.devices) {
        Bytes* bytes = evaluation.peak[device.index()].bytes;
        bytes[static_cast<std::size_t>(MemoryCategory::kParameters)] += memory.parameters;
        bytes[static_cast<std::size_t>(MemoryCategory::kGradients)] += memory.gradients;
        bytes[static_cast<std::size_t>(MemoryCategory::kOptimizer)] += memory.optimizer_state;
      }
    }
  }
  const std::span<const ListPeak> peaks = engine_.measure_memory();
  for (std::size_t lane = 0; lane < peaks.size(); ++lane) {
    Bytes* bytes = evaluation.peak[structure.devices[lane].index()].bytes;
    bytes[static_cast<std::size_t>(MemoryCategory::kBuffers)] = Bytes(peaks[lane].buffers);
    bytes[static_cast<std::size_t>(MemoryCategory::kActivations)] = Bytes(peaks[lane].activations);
  }
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
  Evaluation evaluation = scratch.evaluate(plan);
  find_overflow(state_->cluster, evaluation);
  return evaluation;
}

namespace {

Evaluation summary(const Trace& trace, const Cluster& cluster) {
  Evaluation evaluation;
  evaluation.iteration = trace.iteration;
  evaluation.peak = peak_memory(trace);
  find_overflow(cluster, evaluation);
  return evaluation;
}

}  // namespace

Evaluation Evaluator::simulate_in_full(const PipelinePlan& plan) const {
  const StagedModel model =
      stage_model(state_->graph, state_->cluster, state_->table, state_->training, plan);
  return summary(simulate(model, state_->cluster), state_->cluster);
}

}  // namespace espalier
