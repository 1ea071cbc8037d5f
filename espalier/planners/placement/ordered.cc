#include "espalier/planners/placement/ordered.h"

#include <algorithm>
#include <array>

#include "espalier/base/rng.h"
#include "espalier/planners/placement/list_state.h"
#include "espalier/planners/placement/local_search.h"
#include "espalier/planners/placement/ranks.h"

namespace espalier::placement {
namespace {

constexpr std::array<std::string_view, 4> kOrderedNames{"uniform-walk", "accept", "list", "descent"};
constexpr std::size_t kKickOneIn = 20;  // units that a kick moves, at least two

// The order of an episode: of operators, and of the units that may move.
class OrderSource {
 public:
  OrderSource(const Graph& graph, const Instance& instance, const OrderedOptions& options)
      : graph_(graph), instance_(instance), options_(options) {}

  const std::vector<OperatorId>& operators(std::uint64_t episode) {
    if (!made_ || changes()) {
      operators_ = traversal_order(graph_, options_.order, {.seed = options_.seed, .episode = episode});
      units_ = units_in_order(instance_, operators_);
      made_ = true;
    }
    return operators_;
  }
  const std::vector<UnitId>& units(std::uint64_t episode) {
    operators(episode);
    return units_;
  }
  bool changes() const { return changes_by_episode(options_.order); }

 private:
  const Graph& graph_;
  const Instance& instance_;
  const OrderedOptions& options_;
  bool made_ = false;
  std::vector<OperatorId> operators_;
  std::vector<UnitId> units_;
};

Assignment on_the_first_device(const Instance& instance) {
  Assignment start;
  for (std::size_t u = 0; u < instance.units(); ++u) start.push_back(instance.allowed[u].front());
  return start;
}

// A device drawn uniformly; standing still takes a look like any step.
std::optional<Incremental::Move> drawn_move(const Walk& walk, UnitId unit, Rng& rng) {
  const std::span<const DeviceId> allowed = walk.around().instance().allowed[unit.index()];
  const DeviceId device = allowed[rng.below(allowed.size())];
  if (walk.at()[unit.index()] == device) return std::nullopt;
  return Incremental::Move{unit, device};
}

void uniform_walk(Walk& walk, OrderSource& order, Rng& rng) {
  for (std::uint64_t episode = 0; walk.goes_on(); ++episode) {
    if (episode > 0) walk.go_to(walk.nearest());
    for (const UnitId unit : order.units(episode)) {
      if (const auto move = drawn_move(walk, unit, rng)) {
        walk.offer(std::span(&*move, 1), Duration::max());
      } else if (!walk.count_one()) {
        return;
      }
    }
  }
}

void accepting_walk(Walk& walk, OrderSource& order, Rng& rng) {
  for (std::uint64_t episode = 0; walk.goes_on(); ++episode) {
    for (const UnitId unit : order.units(episode)) {
      if (const auto move = drawn_move(walk, unit, rng)) {
        walk.offer(std::span(&*move, 1), walk.score());
      } else if (!walk.count_one()) {
        return;
      }
    }
  }
}

void kick_from_the_best(Walk& walk, Rng& rng) {
  walk.go_to(walk.nearest());
  const std::span<const UnitId> movable = walk.around().movable();
  const std::size_t count = std::max<std::size_t>(2, movable.size() / kKickOneIn);
  Change change;
  for (std::size_t i = 0; i < count; ++i) {
    if (const auto move = drawn_move(walk, movable[rng.below(movable.size())], rng)) change.push_back(*move);
  }
  if (!walk.offer(change, Duration::max())) walk.count_one();
}

void descent_in_order(Walk& walk, OrderSource& order, Rng& rng) {
  if (walk.around().movable().empty()) return;
  for (std::uint64_t round = 0; walk.goes_on(); ++round) {
    bool gained = false;
    for (const UnitId unit : order.units(round)) {
      for (const DeviceId device : walk.around().instance().allowed[unit.index()]) {
        if (walk.at()[unit.index()] == device) continue;
        const Incremental::Move move{unit, device};
        gained = walk.offer(std::span(&move, 1), walk.score() - nanoseconds(1)) || gained;
      }
      if (!walk.goes_on()) return;
    }
    if (!gained) kick_from_the_best(walk, rng);
  }
}

Placed result_of(const Walk& walk, const Engine& engine) {
  if (walk.best()) return {.assignment = walk.best()->assignment, .estimate = walk.best()->time};
  // What came nearest, repaired by the placers' account of memory.
  Placed placed = placed_by(engine.instance(), walk.nearest());
  Scratch scratch;
  if (placed.assignment) placed.estimate = engine.evaluate(*placed.assignment, scratch).time;
  return placed;
}

Placed list_pass(const Instance& instance, Rules::Sends sends, std::span<const OperatorId> operators) {
  std::vector<std::uint32_t> place(operators.size());
  for (std::size_t i = 0; i < operators.size(); ++i) place[operators[i].index()] = narrow(i);
  std::vector<std::uint32_t> priority;
  for (std::size_t t = 0; t < instance.tasks(); ++t) priority.push_back(place[instance.op[t].index()]);
  ListState state(instance, sends, Gaps::kFilled);
  for_each_ready(instance, priority, [&](TaskId task) { state.put(task, state.where_it_ends_first(task)); });
  return state.finish();
}

Placed list_in_order(const Engine& engine, OrderSource& order, Context& context) {
  const Instance& instance = engine.instance();
  const std::uint64_t looks = instance.units() * instance.devices() + 1;
  Scratch scratch;
  Placed best;
  for (std::uint64_t pass = 0; pass == 0 || order.changes(); ++pass) {
    if (pass > 0 && (context.stop() || context.left() < looks)) break;
    context.take_states(std::min(looks, context.left()));
    Placed placed = list_pass(instance, engine.rules().sends, order.operators(pass));
    if (!placed.assignment) {
      if (!best.assignment) best = std::move(placed);
      continue;
    }
    placed.estimate = engine.evaluate(*placed.assignment, scratch).time;
    if (!best.assignment || *placed.estimate < *best.estimate) best = std::move(placed);
  }
  return best;
}

}  // namespace

const std::vector<OrderedPlacer>& ordered_placers() {
  static const std::vector<OrderedPlacer> kAll{OrderedPlacer::kUniformWalk, OrderedPlacer::kAccept,
                                               OrderedPlacer::kList, OrderedPlacer::kDescent};
  return kAll;
}

std::string_view to_text(OrderedPlacer placer) {
  return kOrderedNames[static_cast<std::size_t>(placer)];
}

std::optional<OrderedPlacer> parse_ordered_placer(std::string_view text) {
  for (const OrderedPlacer placer : ordered_placers()) {
    if (to_text(placer) == text) return placer;
  }
  return std::nullopt;
}

Placed place_in_order(const Graph& graph, const Engine& engine, OrderedPlacer placer,
                      const OrderedOptions& options, Context& context) {
  const Instance& instance = engine.instance();
  OrderSource order(graph, instance, options);
  Context own = context;
  own.states = 0;
  own.budget.max_states = std::min(options.looks, context.left());
  Placed placed;
  if (placer == OrderedPlacer::kList) {
    placed = list_in_order(engine, order, own);
  } else {
    const Neighbourhood around(instance);
    Walk walk(engine, around, on_the_first_device(instance), own);
    walk.allow(own.budget.max_states);
    Rng rng(stream_key(options.seed, {static_cast<std::uint64_t>(placer)}));
    if (placer == OrderedPlacer::kUniformWalk) uniform_walk(walk, order, rng);
    if (placer == OrderedPlacer::kAccept) accepting_walk(walk, order, rng);
    if (placer == OrderedPlacer::kDescent) descent_in_order(walk, order, rng);
    placed = result_of(walk, engine);
  }
  placed.stats = {.states = own.states, .evaluations = own.states};
  context.states += own.states;
  return placed;
}

}  // namespace espalier::placement
