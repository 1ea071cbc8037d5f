#include "espalier/base/check.h"
#include "espalier/base/spelling.h"
#include "espalier/planners/placement/baechi.h"
#include "espalier/planners/placement/heft.h"
#include "espalier/planners/placement/multilevel.h"
#include "espalier/planners/placement/partitioners.h"
#include "espalier/planners/placement/placer.h"
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
      {"local-search", "accept if not worse, descents on the critical path; by the operator engine",
       "the best of these, then moves of operators, clusters and runs as long as the budget lasts",
       [](const PlacerInput& input, Context& context) { return search_placer(input, {}, context); }, 1},
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
