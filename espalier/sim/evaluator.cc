// The evaluator reads a plan as shape and figures (flat_plan.h), takes the structure of its shape
// (list_structure.h) and runs it (list_engine.h). A planner's next plan mostly has a shape that was met
// before, so the scratch keeps structures, by exact shape; one that is new is made by list_builder.h from
// what the rules of orders say.

#include "espalier/sim/evaluator.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/schedule/keeps_rules.h"
#include "espalier/schedule/rules.h"
#include "espalier/sim/evaluated_memory.h"
#include "espalier/sim/flat_plan.h"
#include "espalier/sim/list_builder.h"
#include "espalier/sim/list_engine.h"
#include "espalier/sim/simulate.h"
#include "espalier/sim/word_hash.h"

namespace espalier {

using internal::DeviceFacts;
using internal::FlatPlan;
using internal::ListBuilder;
using internal::ListEngine;
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
  Evaluation evaluate(const PipelinePlan& plan, std::span<const StageRuns> runs);

  Counts counts;

 private:
  struct Known {
    std::vector<std::uint32_t> shape;
    ListStructure structure;
    std::size_t bytes = 0;
  };
  static constexpr std::size_t kMostBytes = std::size_t{32} << 20;  // of structures

  const ListStructure& structure_of(const PipelinePlan& plan);
  void forget();
  void make_structure(const PipelinePlan& plan, ListStructure& structure);
  void add_up(const PipelinePlan& plan, const ListStructure& structure, Evaluation& evaluation);

  std::shared_ptr<const State> state_;
  std::optional<RouteTable> routes_;
  std::optional<FlatPlan> flat_;
  StagedModel model_;  // of the last plan whose structure was made
  std::optional<ListBuilder> builder_;
  ListEngine engine_;
  std::unordered_map<std::uint64_t, Known> known_;  // by hash of the shape: the last with that hash
  std::size_t known_bytes_ = 0;
  const ListStructure* last_ = nullptr;  // the one used last
  std::vector<ListStructure> spare_;     // of plans forgotten, for their room
};

void Evaluator::Scratch::bind(const std::shared_ptr<const State>& state) {
  if (state_ == state) return;
  flat_.reset();
  forget();
  state_ = state;
  routes_ = state->routes;
  builder_.emplace(*routes_, state->cluster.devices().size(), state->cluster.link_count());
  flat_.emplace(state->graph, state->facts, state->prices);
}

namespace {

// Of many structures the one at hand is in no near cache: this fetches its tables at once.
void fetch(const ListStructure& structure) {
  const auto all = [](const auto& vector) {
    const char* const data = reinterpret_cast<const char*>(vector.data());
    for (std::size_t at = 0; at < vector.size() * sizeof(vector[0]); at += 64) {
      __builtin_prefetch(data + at, 0, 2);
    }
  };
  all(structure.entries);
  all(structure.waits);
  all(structure.sends_begin);
  all(structure.posts_begin);
  all(structure.sends);
  all(structure.posts);
  all(structure.messages);
}

}  // namespace

void Evaluator::Scratch::forget() {
  for (auto& [hash, known] : known_) spare_.push_back(std::move(known.structure));
  known_.clear();
  known_bytes_ = 0;
  last_ = nullptr;
}

const ListStructure& Evaluator::Scratch::structure_of(const PipelinePlan& plan) {
  const std::vector<std::uint32_t>& shape = flat_->shape();
  const std::uint64_t hash = internal::hash_of(shape);
  const auto at = known_.find(hash);
  if (at != known_.end() && at->second.shape == shape) {
    if (last_ != &at->second.structure) fetch(at->second.structure);
    last_ = &at->second.structure;
    return at->second.structure;
  }
  ++counts.structures;
  if (known_bytes_ > kMostBytes) forget();
  auto [place, fresh] = known_.try_emplace(hash);
  Known& known = place->second;
  if (fresh && !spare_.empty()) {
    known.structure = std::move(spare_.back());
    spare_.pop_back();
  }
  known_bytes_ -= known.bytes;
  known.shape.clear();  // of no plan, until its structure is there
  make_structure(plan, known.structure);
  known.shape = shape;
  known_bytes_ += known.bytes = internal::bytes_of(known.structure);
  last_ = &known.structure;
  return known.structure;
}

// Rules make schedules that at worst deadlock; lists may break any rule.
void Evaluator::Scratch::make_structure(const PipelinePlan& plan, ListStructure& structure) {
  flat_->write_model(plan, model_);
  if (model_.orders.rule()) return builder_->build(model_, structure);
  const std::vector<std::vector<Action>> lists = make_lists(model_, state_->cluster.devices().size());
  structure.possible = keeps_rules(model_, lists);
  if (structure.possible) builder_->build(model_, lists, structure);
}

Evaluation Evaluator::Scratch::evaluate(const PipelinePlan& plan, std::span<const StageRuns> runs) {
  ++counts.plans;
  Evaluation evaluation;
  if (!flat_->read(plan, runs)) {
    evaluation.forbidden = flat_->forbidden();
    return evaluation;
  }
  const ListStructure& structure = structure_of(plan);
  if (!engine_.run(structure, flat_->costs())) {
    evaluation.deadlock = true;
    return evaluation;
  }
  evaluation.iteration = Duration(engine_.iteration());
  evaluation.messages = structure.sends.size();
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
        internal::add_held_always(memory, evaluation.peak[device.index()]);
      }
    }
  }
  internal::set_peaks(structure, engine_.measure_memory(), evaluation.peak);
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

Evaluation Evaluator::evaluate(const PipelinePlan& plan, Scratch& scratch) const {
  return evaluate(plan, {}, scratch);
}

const StagePrices& Evaluator::prices() const {
  return state_->prices;
}

Evaluation Evaluator::evaluate(const PipelinePlan& plan, std::span<const StageRuns> runs,
                               Scratch& scratch) const {
  scratch.bind(state_);
  Evaluation evaluation = scratch.evaluate(plan, runs);
  internal::find_overflow(state_->cluster, evaluation);
  return evaluation;
}

namespace {

Evaluation summary(const Trace& trace, const Cluster& cluster) {
  Evaluation evaluation;
  evaluation.iteration = trace.iteration;
  evaluation.peak = peak_memory(trace);
  evaluation.messages =
      static_cast<std::uint64_t>(std::ranges::count(trace.spans, SpanKind::kTransfer, &Span::kind));
  internal::find_overflow(cluster, evaluation);
  return evaluation;
}

}  // namespace

Evaluation Evaluator::simulate_in_full(const PipelinePlan& plan) const {
  const StagedModel model =
      stage_model(state_->graph, state_->cluster, state_->table, state_->training, plan);
  return summary(simulate(model, state_->cluster), state_->cluster);
}

}  // namespace espalier
