#include "espalier/app/catalog.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/spelling.h"
#include "espalier/planners/joint/joint.h"
#include "espalier/planners/pipeline/autopipe.h"
#include "espalier/planners/pipeline/bapipe.h"
#include "espalier/planners/pipeline/branches.h"
#include "espalier/planners/pipeline/checkpointed.h"
#include "espalier/planners/pipeline/even.h"
#include "espalier/planners/pipeline/graphpipe.h"
#include "espalier/planners/pipeline/looped.h"
#include "espalier/planners/pipeline/pipedream.h"
#include "espalier/planners/pipeline/piper.h"
#include "espalier/planners/pipeline/single.h"
#include "espalier/planners/placement/placement_planner.h"

namespace espalier {
namespace {

// NamedPlanner::early: the simplest plan, and planners that are soon there where that does not fit.
constexpr std::array<std::string_view, 3> kEarly{"single", "piper", "checkpointed"};

// Placers (planners/placement/placers.cc), by name only: they plan no pipeline.
std::vector<PlannerEntry> with_placers(std::vector<PlannerEntry> planners) {
  std::vector<PlannerEntry> placers;
  for (const placement::Placer& placer : placement::placement_placers()) {
    placers.push_back({placer.name, placer.source, placer.decides, "placement",
                       [&placer](const Problem& problem, const OrderRule&, Context& context) {
                         return placement::plan_by_placer(problem, placer, {.order = problem.order}, context);
                       },
                       placer.shares, false});
  }
  planners.insert(planners.end() - 1, placers.begin(), placers.end());
  return planners;
}

// A planner that needs libtorch: refuses where nobody passes one on.
PlannerEntry of_policy(std::string_view name, std::string source, std::string decides) {
  return {std::string(name),
          std::move(source),
          std::move(decides),
          "placement",
          [name](const Problem&, const OrderRule&, Context&) -> Outcome {
            return {.status = Status::kUnsupported,
                    .why = std::string(name) + " needs libtorch, and this program has none"};
          },
          1,
          false,
          true};
}

}  // namespace

const std::vector<PlannerEntry>& planner_catalog() {
  using Balance = EvenOptions::Balance;
  using Choice = PipeDreamOptions::Choice;
  const std::string gdp = "GDP, arXiv 1910.01578; GO, NeurIPS'20";
  static const std::vector<PlannerEntry> kPlanners = with_placers({
      {"single", "the baseline", "the device and the micro-batch size; no pipeline", "one device",
       [](const Problem& problem, const OrderRule& schedule, Context& context) {
         return single(problem, {.schedule = schedule}, context);
       }},
      {"even", "GPipe users' habit", "cuts into stages of equal time, devices in order", "chain",
       [](const Problem& problem, const OrderRule& schedule, Context& context) {
         return even(problem, {.balance = Balance::kTime, .schedule = schedule}, context);
       }},
      {"even-parameters", "DeepSpeed's 'parameters'",
       "cuts into stages of equal parameters, devices in order", "chain",
       [](const Problem& problem, const OrderRule& schedule, Context& context) {
         return even(problem, {.balance = Balance::kParameters, .schedule = schedule}, context);
       }},
      {"pipedream", "PipeDream, SOSP'19 §3.1",
       "cuts, replicas, order of branches, micro-batch; by simulation", "chain",
       [](const Problem& problem, const OrderRule& schedule, Context& context) {
         return pipedream(problem, {.schedule = schedule}, context);
       },
       1},
      {"pipedream-bottleneck", "PipeDream, SOSP'19 §3.1",
       "the same, choosing the least bottleneck as published", "chain",
       [](const Problem& problem, const OrderRule& schedule, Context& context) {
         return pipedream(problem, {.choice = Choice::kBottleneck, .schedule = schedule}, context);
       },
       1},
      {"autopipe", "AutoPipe, CLUSTER'22", "cuts around the stage that never waits; asked for by name only",
       "chain",
       [](const Problem& problem, const OrderRule& schedule, Context& context) {
         return autopipe(problem, {.schedule = schedule}, context);
       },
       1, false},
      {"bapipe", "BaPipe, arXiv 2012.12544",
       "even cuts under memory and bandwidth, micro-batches in flight; asked for by name only", "chain",
       [](const Problem& problem, const OrderRule& schedule, Context& context) {
         return bapipe(problem, {.schedule = schedule}, context);
       },
       1, false},
      {"branches", "GraphPipe's stage graphs, arXiv 2406.17145",
       "parallel branches as parallel stages, cuts within them, replicas, micro-batch", "graph",
       [](const Problem& problem, const OrderRule& schedule, Context& context) {
         return branches(problem, {.schedule = schedule}, context);
       },
       1},
      {"graphpipe", "GraphPipe, ASPLOS'25 §4-5",
       "series and parallel stages of any nesting, replicas, micro-batch; by simulation", "graph",
       [](const Problem& problem, const OrderRule& schedule, Context& context) {
         return graphpipe(problem, {.schedule = schedule}, context);
       },
       1},
      {"graphpipe-literal", "GraphPipe, ASPLOS'25 §4-5",
       "the same, choosing the least bottleneck as published", "graph",
       [](const Problem& problem, const OrderRule& schedule, Context& context) {
         return graphpipe(problem, {.choice = GraphPipeOptions::Choice::kLiteral, .schedule = schedule},
                          context);
       },
       1},
      {"piper", "Piper, NeurIPS'21 §4",
       "stages of any downsets, replicas, tensor parallelism, recomputation, micro-batch; by simulation",
       "graph",
       [](const Problem& problem, const OrderRule& schedule, Context& context) {
         return piper(problem, {.schedule = schedule}, context);
       },
       1},
      {"checkpointed", "Chen et al., arXiv 1604.06174; AdaPipe, ASPLOS'24",
       "segments, many a device, computed again where memory is short, in rounds or a V", "chain",
       [](const Problem& problem, const OrderRule& schedule, Context& context) {
         return checkpointed(problem, {.schedule = schedule}, context);
       },
       1},
      {std::string(kLooped), "Megatron, SC'21; Zero Bubble, ICLR'24",
       "several stages a device, in a loop or a V, with a schedule made for that; asked for by name only",
       "chain",
       [](const Problem& problem, const OrderRule&, Context& context) {
         return looped(problem, {}, context);
       },
       1, false},
      of_policy(kGdp, gdp,
                "a trained policy places clusters of operators at once; --fine-tune N: it learns the model "
                "first, in N updates; asked for by name only"),
      of_policy(kGdpSearch, gdp,
                "local-search, which begins with the policy's answer too; asked for by name only"),
      of_policy(kGdpOne, gdp,
                "a fresh policy learns the model, with groups and priorities; asked for by name only"),
      of_policy(kHdp, "HDP, ICLR'18",
                "a grouper and a sequence-to-sequence placer learn the model; asked for by name only"),
      of_policy(kCrossEntropy, "Rubinstein, MCAP'99",
                "a table of probabilities moves towards its best samples; asked for by name only"),
      of_policy(kPlacetoPlanner, "Placeto, NeurIPS'19",
                "a policy visits operators one by one and learns the model; --embedding graphsage or p-gnn: "
                "another net; asked for by name only"),
      of_policy(kGiph, "GiPH, MLSys'23",
                "a trained policy moves operators of what placers find; asked for by name only"),
      {std::string(kAutomatic), "all above that plan pipelines, improved together",
       "the planner: runs every one, then moves operators, devices, replicas and sizes; by simulation", "any",
       [](const Problem& problem, const OrderRule& schedule, Context& context) {
         return joint_search(problem, named_planners(schedule), {}, context);
       },
       10, false},
  });
  return kPlanners;
}

const PlannerEntry& find_planner(std::string_view name) {
  std::vector<std::string_view> names;
  for (const PlannerEntry& entry : planner_catalog()) {
    if (entry.name == name) return entry;
    names.push_back(entry.name);
  }
  throw InputError("there is no planner '" + std::string(name) + "'; did you mean '" +
                   std::string(*nearest_word(name, names)) + "'? (`espalier planners` lists all)");
}

std::vector<NamedPlanner> named_planners(const OrderRule& schedule) {
  std::vector<NamedPlanner> result;
  for (const PlannerEntry& entry : planner_catalog()) {
    if (!entry.asked_by_auto) continue;
    result.push_back({entry.name,
                      [plan = entry.plan, schedule](const Problem& problem, Context& context) {
                        return plan(problem, schedule, context);
                      },
                      entry.shares, std::ranges::find(kEarly, entry.name) != kEarly.end()});
  }
  return result;
}

const std::vector<ScheduleEntry>& schedule_catalog() {
  static const std::vector<ScheduleEntry> kSchedules{
      {"1f1b", "PipeDream-Flush, ICML'21; on a DAG: GraphPipe §5",
       "one forward, one backward in turn: few micro-batches in flight"},
      {"1f1b,k=N", "kFkB: Ada-Grouper, arXiv 2303.01675",
       "N forwards, N backwards in turn; k=N/N/… for each stage: more in flight, messages less urgent"},
      {"1f1b,split", "ZB-H1: Zero Bubble, ICLR'24",
       "backward in two halves, that of the weights when nothing else can run"},
      {"gpipe", "GPipe, NeurIPS'19", "all forwards, then all backwards: all micro-batches in flight"},
      {"gpipe,split", "", "the same with backward in two halves"},
      {"interleaved", "Megatron, SC'21 §2.2", "several stages a device in a loop; ,split ,chunks=N"},
      {"zb-h1", "Zero Bubble, ICLR'24 §2", "by hand: halves, as many micro-batches as 1f1b"},
      {"zb-h2", "Zero Bubble, ICLR'24 §2", "the same with twice as many, less idle"},
      {"zb-greedy", "Zero Bubble, ICLR'24 §3",
       "fills times under the devices' memory; ,limit=N micro-batches"},
      {"zbv", "Zero Bubble, ICLR'24 §6", "two stages a device in a V, filled like that; ,limit=N"},
      {"v-half", "V-Half, NeurIPS'24", "the same with half of 1f1b's activations"},
      {"v-min", "V-Min, NeurIPS'24", "the same with a third"},
      {"v-flex,halves=N", "arXiv 2405.15362, NeurIPS'24",
       "the same with N micro-batches of one of the stages"},
      {"dualpipev", "DualPipe, DeepSeek 2025", "the same, forward and backward side by side"},
      {"search", "", "improves the best of all by simulation, for any plan"},
      {"FILE", "",
       "an order for each device, such as 'gpu0 3F 29(B F) 3B', or PyTorch's .csv (docs/formats.md)"},
  };
  return kSchedules;
}

const std::vector<OrderEntry>& order_catalog() {
  static const std::vector<OrderEntry> kOrders{
      {TraversalOrder::kAlpha, "by name"},
      {TraversalOrder::kTopoLifo, "topological; what became ready last comes first"},
      {TraversalOrder::kTopoGenerations, "topological, by depth; what became ready first comes first"},
      {TraversalOrder::kReversedTopo, "topo_lifo backwards"},
      {TraversalOrder::kDfsPreorder, "depth first, on entry; not topological"},
      {TraversalOrder::kDfsPostorder, "depth first, on exit; topological backwards"},
      {TraversalOrder::kBfs, "a breadth-first search from each source, by name; not topological"},
      {TraversalOrder::kLexicoTopo, "topological; of what is ready the smallest name"},
      {TraversalOrder::kRandom, "one shuffle for a seed"},
      {TraversalOrder::kRandomPerEpisode, "another shuffle for each episode"},
      {TraversalOrder::kInTurn, "another of the orders above in each episode, topo_generations first"},
  };
  return kOrders;
}

TraversalOrder find_order(std::string_view name) {
  std::vector<std::string_view> names;
  for (const TraversalOrder order : traversal_orders()) names.push_back(to_text(order));
  if (const auto order = parse_traversal_order(name)) return *order;
  throw InputError("there is no order '" + std::string(name.substr(0, 40)) + "'; did you mean '" +
                   std::string(*nearest_word(name, names)) + "'? (`espalier planners` lists all)");
}

}  // namespace espalier
