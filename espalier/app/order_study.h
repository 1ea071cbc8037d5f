#pragma once

// Which traversal order suits a placer: orders × placers × seeds on some graphs, with equal budgets, means,
// ranks and significance. (The traversal-order study, arXiv 2201.09676, asked it of one placer.)

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "espalier/app/order_advice.h"
#include "espalier/app/planning_job.h"
#include "espalier/app/rank_statistics.h"
#include "espalier/placement/engine.h"
#include "espalier/planners/placement/ordered.h"
#include "espalier/report/table.h"

namespace espalier {

// A graph to ask, with what engines ask of it.
struct OrderCase {
  std::string name;
  Graph graph;
  placement::Instance instance;
};

// One micro-batch of the whole batch, or the largest that the job allows, as placers see it.
OrderCase order_case(const PlanningJob& job);
// The same of a model that carries costs and a cluster. Throws InputError where it lacks one.
OrderCase order_case(const Imported& model);

struct OrderStudyOptions {
  OrderSetUp set_up = OrderSetUp::kLinks;
  std::vector<TraversalOrder> orders = {};             // empty: all
  std::vector<placement::OrderedPlacer> placers = {};  // empty: all
  std::uint64_t seeds = 5, first_seed = 1;
  std::uint64_t episodes = 10;           // looks for each unit that is placed
  std::uint64_t most_looks = 1'000'000;  // of a run
};

// The rules that a set-up judges by: Placeto's simulator, or links and the priorities of upward ranks.
placement::Engine order_engine(const OrderCase& asked, OrderSetUp set_up);

// steps[order][seed]: of the best placement that the run found; none where nothing fitted.
using OrderSteps = std::vector<std::vector<std::optional<Duration>>>;
OrderSteps run_orders(const OrderCase& asked, placement::OrderedPlacer placer,
                      const OrderStudyOptions& options, ThreadPool* pool);

// A placer that learns while it walks, and needs libtorch: whoever has it passes it on. Called from several
// threads at once.
struct LearnedWalk {
  placement::Placed placed;
  double entropy = 1;  // of the policy in its last episode over that of a uniform one
};
using LearnedOrdered = std::function<LearnedWalk(const Graph&, const placement::Engine&,
                                                 const placement::OrderedOptions&, Context&)>;
struct LearnedOrderRuns {
  OrderSteps steps;
  double entropy = 1;  // mean over all runs
};
LearnedOrderRuns run_learned_orders(const OrderCase& asked, const LearnedOrdered& placer,
                                    const OrderStudyOptions& options, ThreadPool* pool);

struct OrderRow {
  TraversalOrder order;
  double mean = 0;       // step ÷ the mean step of the best order of the same graph, mean over graphs
  double deviation = 0;  // over seeds, mean over graphs
  double rank = 0;       // mean rank over blocks
  double p = 1;          // against the order of the best mean rank, Wilcoxon with Holm; that one itself: 1
  bool best = false;
};
struct OrderReport {
  std::string placer;
  std::vector<OrderRow> rows = {};  // by mean rank, then as listed
  double chi_square = 0, p = 1;     // Friedman
  std::size_t blocks = 0;           // of the tests
  bool blocks_are_graphs = true;    // at least five; else each seed of each graph, for these graphs alone
  std::size_t left_out = 0;         // graphs where some run found nothing that fits
  // Of a learned placer's policies in their last episodes, over uniform ones', mean over graphs.
  std::optional<double> entropy = {};
};
// steps[graph]: run_orders of that graph with these orders. At least two orders.
OrderReport order_report(const std::string& placer, const std::vector<TraversalOrder>& orders,
                         const std::vector<OrderSteps>& steps);

Table order_table(const OrderReport& report);

}  // namespace espalier
