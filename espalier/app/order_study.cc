#include "espalier/app/order_study.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "espalier/base/check.h"
#include "espalier/planners/placement/list_clock.h"
#include "espalier/planners/placement/ranks.h"

namespace espalier {
namespace {

constexpr std::size_t kFewestGraphs = 5;  // that are blocks by themselves

double mean_of(const std::vector<std::optional<Duration>>& steps) {
  double sum = 0;
  for (const std::optional<Duration>& step : steps) sum += static_cast<double>(step->count());
  return sum / static_cast<double>(steps.size());
}

double deviation_of(const std::vector<std::optional<Duration>>& steps, double mean) {
  double sum = 0;
  for (const std::optional<Duration>& step : steps) {
    const double off = static_cast<double>(step->count()) - mean;
    sum += off * off;
  }
  return steps.size() < 2 ? 0 : std::sqrt(sum / static_cast<double>(steps.size() - 1));
}

bool complete(const OrderSteps& steps) {
  return std::all_of(steps.begin(), steps.end(), [](const auto& of) {
    return std::all_of(of.begin(), of.end(), [](const auto& step) { return step.has_value(); });
  });
}

// A value for each order: of a graph, or of one of its seeds.
void add_blocks(const OrderSteps& steps, const std::vector<double>& ratio, bool graphs,
                std::vector<std::vector<double>>& blocks) {
  if (graphs) {
    blocks.push_back(ratio);
    return;
  }
  for (std::size_t seed = 0; seed < steps.front().size(); ++seed) {
    std::vector<double> block;
    for (const auto& of : steps) block.push_back(static_cast<double>(of[seed]->count()));
    blocks.push_back(std::move(block));
  }
}

void add_significance(const std::vector<std::vector<double>>& blocks, OrderReport& report) {
  const Friedman friedman = friedman_test(blocks);
  report.chi_square = friedman.chi_square;
  report.p = friedman.p;
  report.blocks = blocks.size();
  const auto best = static_cast<std::size_t>(
      std::min_element(friedman.mean_rank.begin(), friedman.mean_rank.end()) - friedman.mean_rank.begin());
  std::vector<double> p;
  for (std::size_t o = 0; o < report.rows.size(); ++o) {
    report.rows[o].rank = friedman.mean_rank[o];
    report.rows[o].best = o == best;
    if (o == best) continue;
    std::vector<double> differences;
    for (const std::vector<double>& block : blocks) differences.push_back(block[o] - block[best]);
    p.push_back(signed_rank_test(differences).p);
  }
  const std::vector<double> corrected = holm(p);
  for (std::size_t o = 0, i = 0; o < report.rows.size(); ++o) {
    if (o != best) report.rows[o].p = corrected[i++];
  }
}

// run(order × seed, options of that run, its context), on all threads of the pool.
using OrderedRun = std::function<placement::Placed(std::size_t, const placement::OrderedOptions&, Context&)>;
OrderSteps run_all_orders(const OrderCase& asked, const OrderStudyOptions& options, ThreadPool* pool,
                          const OrderedRun& run) {
  const std::size_t seeds = options.seeds;
  OrderSteps steps(options.orders.size(), std::vector<std::optional<Duration>>(seeds));
  Context context;
  context.pool = pool;
  context.budget.max_states = std::uint64_t{1} << 60;
  const std::uint64_t looks = std::min(options.most_looks, options.episodes * asked.instance.units() + 1);
  context.for_each(options.orders.size() * seeds, [&](std::size_t i, Context& own) {
    const placement::Placed placed = run(
        i, {.order = options.orders[i / seeds], .seed = options.first_seed + i % seeds, .looks = looks}, own);
    if (placed.assignment) steps[i / seeds][i % seeds] = placed.estimate;
  });
  return steps;
}

}  // namespace

OrderCase order_case(const PlanningJob& job) {
  const Training& training = job.training;
  return {job.graph.name(), job.graph,
          placement::make_instance(job.graph, job.cluster, job.costs, training,
                                   {.micro_batch = training.largest_micro_batch()})};
}

OrderCase order_case(const Imported& model) {
  const std::string& name = model.graph.name();
  if (!model.costs || !model.cluster) throw InputError(name + ": expected a graph with costs and a cluster");
  Training training;
  training.batch = model.graph.batch().min;
  training.micro_batches = {training.batch};
  return {name, model.graph,
          placement::make_instance(model.graph, *model.cluster, *model.costs, training,
                                   {.micro_batch = training.batch})};
}

placement::Engine order_engine(const OrderCase& asked, OrderSetUp set_up) {
  if (set_up == OrderSetUp::kPlaceto) return {asked.instance, placement::placeto_rules()};
  return {asked.instance, {}, {placement::upward_priorities(asked.instance), {}}};
}

OrderSteps run_orders(const OrderCase& asked, placement::OrderedPlacer placer,
                      const OrderStudyOptions& options, ThreadPool* pool) {
  const placement::Engine engine = order_engine(asked, options.set_up);
  return run_all_orders(asked, options, pool,
                        [&](std::size_t, const placement::OrderedOptions& run, Context& context) {
                          return place_in_order(asked.graph, engine, placer, run, context);
                        });
}

LearnedOrderRuns run_learned_orders(const OrderCase& asked, const LearnedOrdered& placer,
                                    const OrderStudyOptions& options, ThreadPool* pool) {
  const placement::Engine engine = order_engine(asked, options.set_up);
  std::vector<double> entropy(options.orders.size() * options.seeds);
  LearnedOrderRuns runs;
  runs.steps = run_all_orders(asked, options, pool,
                              [&](std::size_t i, const placement::OrderedOptions& run, Context& context) {
                                LearnedWalk walk = placer(asked.graph, engine, run, context);
                                entropy[i] = walk.entropy;
                                return std::move(walk.placed);
                              });
  if (!entropy.empty())
    runs.entropy = std::accumulate(entropy.begin(), entropy.end(), 0.0) / static_cast<double>(entropy.size());
  return runs;
}

OrderReport order_report(const std::string& placer, const std::vector<TraversalOrder>& orders,
                         const std::vector<OrderSteps>& steps) {
  ESP_CHECK(orders.size() >= 2, orders.size());
  OrderReport report{.placer = placer};
  for (const TraversalOrder order : orders) report.rows.push_back({.order = order});
  const auto counted = static_cast<std::size_t>(std::count_if(steps.begin(), steps.end(), complete));
  report.left_out = steps.size() - counted;
  report.blocks_are_graphs = counted >= kFewestGraphs;
  std::vector<std::vector<double>> blocks;
  for (const OrderSteps& of : steps) {
    if (!complete(of)) continue;
    std::vector<double> ratio;
    for (const auto& each : of) ratio.push_back(mean_of(each));
    const double least = std::max(1.0, *std::min_element(ratio.begin(), ratio.end()));
    for (std::size_t o = 0; o < orders.size(); ++o) {
      report.rows[o].deviation += deviation_of(of[o], ratio[o]) / least / static_cast<double>(counted);
      ratio[o] /= least;
      report.rows[o].mean += ratio[o] / static_cast<double>(counted);
    }
    add_blocks(of, ratio, report.blocks_are_graphs, blocks);
  }
  if (blocks.empty()) return report;
  add_significance(blocks, report);
  std::stable_sort(report.rows.begin(), report.rows.end(),
                   [](const OrderRow& a, const OrderRow& b) { return a.rank < b.rank; });
  return report;
}

Table order_table(const OrderReport& report) {
  Table table{{{"order", "order"},
               {"mean", "to the best"},
               {"deviation", "deviation"},
               {"rank", "mean rank"},
               {"p", "p against the first"},
               {"differs", "differs"}},
              {}};
  for (const OrderRow& row : report.rows) {
    table.rows.push_back({std::string(to_text(row.order)), row.mean, row.deviation, row.rank,
                          row.best ? Cell() : Cell(row.p), !row.best && row.p < 0.05});
  }
  return table;
}

}  // namespace espalier
