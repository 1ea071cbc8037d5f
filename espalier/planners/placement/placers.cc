#include "espalier/base/check.h"
#include "espalier/base/spelling.h"
#include "espalier/planners/placement/baechi.h"
#include "espalier/planners/placement/heft.h"
#include "espalier/planners/placement/list_clock.h"
#include "espalier/planners/placement/max_load.h"
#include "espalier/planners/placement/multilevel.h"
#include "espalier/planners/placement/ordered.h"
#include "espalier/planners/placement/partitioners.h"
#include "espalier/planners/placement/placer.h"
#include "espalier/planners/placement/ranks.h"
#include "espalier/planners/placement/search_placer.h"
#include "espalier/planners/placement/simple.h"

namespace espalier::placement {
namespace {

std::vector<UnitId> units_of(const PlacerInput& input) {
  const std::vector<OperatorId> order = traversal_order(input.graph, input.order, {.seed = input.seed});
  return units_in_order(input.instance, order);
}

// A placer that looks at the instance alone.
std::function<Placed(const PlacerInput&, Context&)> of_instance(Placed (*place)(const Instance&,
                                                                                const ListOptions&)) {
  return [place](const PlacerInput& input, Context&) { return place(input.instance, {}); };
}

Placer of_objective(Objective objective, std::string source, std::string decides) {
  return {std::string(to_text(objective)), std::move(source), std::move(decides),
          [objective](const PlacerInput& input, Context& context) {
            return objective_placer(input, objective, context);
          },
          1};
}

constexpr std::uint64_t kEpisodes = 40;               // as the traversal-order study has them
constexpr std::uint64_t kMostTaskLooks = 60'000'000;  // looks times tasks: some seconds

// A placer that visits the operators in the input's order, judged as placers promise to fit.
std::function<Placed(const PlacerInput&, Context&)> in_order(OrderedPlacer placer) {
  return [placer](const PlacerInput& input, Context& context) {
    const Instance& instance = input.instance;
    const Engine engine(instance, {.memory = Rules::Memory::kAllHeld}, {upward_priorities(instance), {}});
    const std::uint64_t units = instance.units(), tasks = std::max<std::uint64_t>(1, instance.tasks());
    const std::uint64_t looks = std::max(units + 1, std::min(kEpisodes * units + 1, kMostTaskLooks / tasks));
    return place_in_order(input.graph, engine, placer, {input.order, input.seed, looks}, context);
  };
}

}  // namespace

const std::vector<Placer>& placement_placers() {
  static const std::vector<Placer> kPlacers{
      {"one-device", "the baseline", "the device that runs everything fastest",
       [](const PlacerInput& input, Context&) { return one_device(input.instance); }},
      {"round-robin", "the baseline", "operators dealt to the devices in turn",
       [](const PlacerInput& input, Context&) { return round_robin_units(input.instance, units_of(input)); }},
      {"random", "the baseline", "the best of 100 random placements, by the operator engine",
       [](const PlacerInput& input, Context& context) {
         return random_best(input.instance, {.seed = input.seed}, context);
       },
       1},
      {"expert", "what people do by hand", "whole layers in order, the same work on each device",
       [](const PlacerInput& input, Context&) {
         return human_expert(input.instance, layers_of(input.instance, input.graph));
       }},
      {"m-topo", "Baechi, SoCC'20", "fills the devices in topological order, by memory",
       [](const PlacerInput& input, Context&) { return m_topo(input.instance, units_of(input)); }},
      {"m-etf", "Baechi, SoCC'20; ETF, SIAM J. Comput.'89",
       "what can start first, where it can, under memory",
       [](const PlacerInput& input, Context&) { return m_etf(input.instance); }},
      {"m-sct", "Baechi, SoCC'20; Hanen, Munier, ETFA'95", "the same, devices wait for favourite children",
       [](const PlacerInput& input, Context&) { return m_sct(input.instance); }},
      {"heft", "Topcuoglu et al., TPDS'02", "longest way first, where it ends first, gaps filled",
       of_instance(heft)},
      {"cpop", "Topcuoglu et al., TPDS'02", "the critical path on one device, the rest where it ends first",
       of_instance(cpop)},
      {"peft", "Arabnejad, Barbosa, TPDS'14", "where its end and what is left at best are least",
       of_instance(peft)},
      {"heft-lookahead", "Bittencourt et al., PDP'10", "as heft, where the last of its readers ends first",
       of_instance(heft_lookahead)},
      {"dpos", "FastT, Middleware'20", "the critical path fills the fastest devices, the rest ends first",
       of_instance(dpos)},
      {"dp", "Tarnawski et al., NeurIPS'20 §5", "the least busiest device over all chains of downsets",
       [](const PlacerInput& input, Context&) {
         return max_load_placement(input.instance, literal::MaxLoadSpace::kDownsets);
       }},
      {"dpl", "Tarnawski et al., NeurIPS'20 §5", "the same along one depth-first order",
       [](const PlacerInput& input, Context&) {
         return max_load_placement(input.instance, literal::MaxLoadSpace::kLinear);
       }},
      {"metis", "Karypis, Kumar, SISC'98", "the least cut into parts even in time and memory",
       [](const PlacerInput& input, Context&) { return metis(input.instance); }},
      {"scotch", "Pellegrini, Roman, HPCN'96", "the least cut into parts even in time",
       [](const PlacerInput& input, Context&) { return scotch(input.instance); }},
      {"multilevel", "Karypis, Kumar, SISC'98, with the step's time as aim",
       "coarsens, places by every list method, refines by the operator engine",
       [](const PlacerInput& input, Context& context) {
         return multilevel(input.instance, {.seed = input.seed}, context);
       },
       1},
      {"list", "the traversal-order study, arXiv 2201.09676",
       "of what is ready the first in the order, where it ends first", in_order(OrderedPlacer::kList), 1},
      {"uniform-walk", "Placeto, NeurIPS'19, with a policy that knows nothing",
       "each operator in the order to a random device; the best placement visited",
       in_order(OrderedPlacer::kUniformWalk), 1},
      {"accept", "Placeto's draws, filtered",
       "each operator in the order to a random device, kept if the step is not longer",
       in_order(OrderedPlacer::kAccept), 1},
      {"descent", "coordinate descent", "each operator in the order where the step is shortest, with kicks",
       in_order(OrderedPlacer::kDescent), 1},
      {"local-search", "accept if not worse, by the operator engine",
       "the best of list methods, multilevel and the expert, then moves of operators, clusters and runs as "
       "long as the budget lasts; --learned: a net that has seen other graphs proposes them",
       [](const PlacerInput& input, Context& context) { return search_placer(input, {}, context); }, 1},
      of_objective(Objective::kMaxLoad, "Tarnawski et al., NeurIPS'20: throughput",
                   "the least load of the busiest device or link, for a full pipeline of steps"),
      of_objective(Objective::kContiguousMaxLoad, "Tarnawski et al., NeurIPS'20: throughput",
                   "the same, where no value of the forward pass comes back to a device"),
      of_objective(
          Objective::kPrice, "AutoDeep, ToN'24",
          "the least price of a step: its time, times the prices of the devices that have a part of it"),
      of_objective(Objective::kExpected, "READYS, CLUSTER'21",
                   "the least mean step of 40 samples with operators' times 20 % off"),
      of_objective(Objective::kTail, "READYS, CLUSTER'21",
                   "the least step that 95 % of such samples do not exceed"),
  };
  return kPlacers;
}

const Placer& find_placer(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Placer& placer : placement_placers()) {
    if (placer.name == name) return placer;
    names.push_back(placer.name);
  }
  throw InputError("there is no placer '" + std::string(name) + "'; did you mean '" +
                   std::string(*nearest_word(name, names)) + "'?");
}

std::vector<UnitId> units_in_order(const Instance& instance, std::span<const OperatorId> operators) {
  std::vector<std::optional<UnitId>> of_operator;
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    const std::size_t op = instance.op[t].index();
    if (of_operator.size() <= op) of_operator.resize(op + 1);
    of_operator[op] = instance.unit[t];
  }
  std::vector<UnitId> order;
  std::vector<bool> seen(instance.units());
  for (const OperatorId op : operators) {
    if (of_operator.size() <= op.index() || !of_operator[op.index()]) continue;
    const UnitId unit = *of_operator[op.index()];
    if (!seen[unit.index()]) order.push_back(unit);
    seen[unit.index()] = true;
  }
  return order;
}

}  // namespace espalier::placement
