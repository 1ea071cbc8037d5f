#include "espalier/app/order_study.h"

#include <gmock/gmock.h>

#include "espalier/report/dot_plot.h"
#include "espalier/zoo/task_families.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

OrderCase family_case(const char* name, ZooValues values) {
  return order_case(build_task_family(*find_task_family(name), values));
}

TEST(OrderFeatures, OfCholeskyByHand) {
  // Two tiles: potrf → trsm → syrk → potrf, times 1/3 1 1 1/3 of a mean of 2/3: a chain.
  const OrderCase chain = family_case("cholesky", {{"tiles", 2}, {"communication", 300}});
  const OrderFeatures features = order_features(order_engine(chain, OrderSetUp::kLinks));
  EXPECT_EQ(features.of(OrderFeature::kUnits), 4);
  EXPECT_EQ(features.of(OrderFeature::kDepth), 4);
  EXPECT_EQ(features.of(OrderFeature::kWidth), 1);
  EXPECT_NEAR(features.of(OrderFeature::kCritical), 1, 1e-9);
  EXPECT_EQ(features.of(OrderFeature::kDegree), 0.75);
  EXPECT_EQ(features.of(OrderFeature::kBranching), 0);
  // 300 percent of three outputs that are read; the fourth counts as well.
  EXPECT_NEAR(features.of(OrderFeature::kCommunication), 4, 0.01);
  EXPECT_EQ(features.of(OrderFeature::kSlack), 100);
}

TEST(OrderAdvice, EveryTreeAnswersEveryGraph) {
  for (const OrderSetUp set_up : {OrderSetUp::kPlaceto, OrderSetUp::kLinks}) {
    for (const placement::OrderedPlacer placer : placement::ordered_placers()) {
      const auto tree = order_advice_tree(set_up, placer);
      ASSERT_TRUE(check_order_tree(tree)) << to_text(set_up) << ' ' << to_text(placer);
      for (const double value : {0.0, 0.5, 3.0, 1e6}) {
        OrderFeatures features;
        features.value.fill(value);
        const OrderAdviceNode& answer = order_advice(tree, features);
        EXPECT_FALSE(answer.feature);
        EXPECT_THAT(advice_text(answer), HasSubstr(answer.order ? to_text(*answer.order) : "any order"));
      }
    }
  }
}

TEST(OrderAdvice, ATreeThatLeadsBackIsNoTree) {
  const OrderAdviceNode answer, question{.feature = OrderFeature::kDepth, .below = 1, .above = 2};
  EXPECT_TRUE(check_order_tree(std::vector{question, answer, answer}));
  EXPECT_FALSE(check_order_tree(std::vector{question, answer}));
  EXPECT_FALSE(check_order_tree(std::vector{answer, question, answer}));
  EXPECT_FALSE(check_order_tree({}));
}

TEST(OrderReport, MeansRanksAndBlocksByHand) {
  // Two graphs, two orders, two seeds: fewer than five graphs, so each seed is a block.
  const auto ns = [](std::int64_t n) { return std::optional(Duration(n)); };
  const std::vector<OrderSteps> steps{{{ns(100), ns(100)}, {ns(110), ns(130)}},
                                      {{ns(300), ns(100)}, {ns(100), ns(100)}}};
  const OrderReport report = order_report("accept", {TraversalOrder::kAlpha, TraversalOrder::kBfs}, steps);
  EXPECT_FALSE(report.blocks_are_graphs);
  EXPECT_EQ(report.blocks, 4U);
  // Alpha: 1 and 2 times the best of the graph, ranks 1 1 2 1.5; bfs: 1.2 and 1, ranks 2 2 1 1.5.
  ASSERT_EQ(report.rows.front().order, TraversalOrder::kAlpha);
  EXPECT_NEAR(report.rows[0].mean, 1.5, 1e-9);
  EXPECT_NEAR(report.rows[1].mean, 1.1, 1e-9);
  EXPECT_EQ(report.rows[0].rank, 1.375);
  EXPECT_TRUE(report.rows[0].best);
  // bfs: deviation of 110 and 130 is 14.14, over 100; of 100 and 100 nothing.
  EXPECT_NEAR(report.rows[1].deviation, 0.1414 / 2, 1e-4);
  // Differences +10 +30 -200 0: ranks 1 2 3, sums 3 and 3: p = 1.
  EXPECT_EQ(report.rows[1].p, 1);
}

TEST(OrderReport, AGraphOnWhichNothingFitsIsLeftOut) {
  const std::vector<OrderSteps> steps{{{Duration(5)}, {Duration(6)}}, {{Duration(5)}, {std::nullopt}}};
  const OrderReport report = order_report("list", {TraversalOrder::kAlpha, TraversalOrder::kBfs}, steps);
  EXPECT_EQ(report.left_out, 1U);
  EXPECT_EQ(report.blocks, 1U);
}

TEST(OrderStudy, AnyNumberOfThreadsFindsTheSame) {
  const OrderCase asked = family_case("fork-join", {{"sections", 2}});
  OrderStudyOptions options{
      .orders = {TraversalOrder::kAlpha, TraversalOrder::kRandomPerEpisode}, .seeds = 2, .episodes = 2};
  for (const placement::OrderedPlacer placer : placement::ordered_placers()) {
    const OrderSteps alone = run_orders(asked, placer, options, nullptr);
    for (const std::size_t threads : {2U, 3U, 7U}) {
      ThreadPool pool(threads);
      EXPECT_EQ(run_orders(asked, placer, options, &pool), alone) << to_text(placer);
    }
  }
}

TEST(OrderStudy, LearnedPlacersAreAskedForEachOrderAndSeed) {
  const OrderCase asked = family_case("fork-join", {{"sections", 2}});
  const OrderStudyOptions options{
      .orders = {TraversalOrder::kAlpha, TraversalOrder::kBfs}, .seeds = 2, .first_seed = 7, .episodes = 3};
  // A run's step is its seed, in the second order ten more; its entropy a tenth of that.
  const LearnedOrdered placer = [&](const Graph&, const placement::Engine&,
                                    const placement::OrderedOptions& run, Context&) {
    EXPECT_EQ(run.looks, 3 * asked.instance.units() + 1);
    const std::uint64_t step = run.seed + (run.order == TraversalOrder::kBfs ? 10 : 0);
    return LearnedWalk{.placed = {.assignment = placement::Assignment(), .estimate = nanoseconds(step)},
                       .entropy = static_cast<double>(step) / 10};
  };
  ThreadPool pool(3);
  const LearnedOrderRuns runs = run_learned_orders(asked, placer, options, &pool);
  const auto ns = [](std::int64_t n) { return std::optional(Duration(n)); };
  EXPECT_THAT(runs.steps, ElementsAre(ElementsAre(ns(7), ns(8)), ElementsAre(ns(17), ns(18))));
  EXPECT_DOUBLE_EQ(runs.entropy, 1.25);  // (0.7 + 0.8 + 1.7 + 1.8) / 4
}

TEST(DotPlot, HasADotForEachRowAndNoForeignText) {
  const std::vector<DotPanel> panels{{"a < b", "why", {{"alpha", 1.0, 0.1, true}, {"bfs", 1.2, 0, false}}}};
  const std::string svg = svg_dot_plot(panels, "step & more");
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
  EXPECT_THAT(svg, HasSubstr("step &amp; more"));
  std::size_t dots = 0;
  for (std::size_t at = svg.find("<circle"); at != std::string::npos; at = svg.find("<circle", at + 1))
    ++dots;
  EXPECT_EQ(dots, 2U);
  EXPECT_EQ(svg, svg_dot_plot(panels, "step & more"));
}

}  // namespace
}  // namespace espalier
