#include "espalier/planners/orders/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/base/rng.h"
#include "espalier/planners/orders/best_order.h"
#include "espalier/planners/orders/order_moves.h"
#include "espalier/schedule/order_file.h"
#include "espalier/schedule/schedule.h"
#include "espalier/sim/simulate.h"
#include "testing/random_staged_model.h"
#include "testing/small_cases.h"
#include "testing/stage_line_case.h"
#include "testing/worked_example.h"

namespace espalier {
namespace {

using espalier::testing::kOneIn;
using espalier::testing::of_usual;
using espalier::testing::random_staged_model;
using espalier::testing::staged_line;
using espalier::testing::StagedLine;
using espalier::testing::StageLineCase;
using espalier::testing::worked_example;
using espalier::testing::WorkedExample;
using ::testing::IsEmpty;

// What was found is legal and takes what it says, by the full simulation.
Duration checked(const StagedModel& model, const Cluster& cluster, const SearchedOrder& found) {
  const StagedModel ordered = with_orders(model, Orders(found.lists.value()));
  const Schedule schedule = make_schedule(ordered, cluster.devices().size());
  EXPECT_THAT(check_schedule(ordered, schedule), IsEmpty());
  const Trace trace = simulate(ordered, cluster, schedule);
  EXPECT_THAT(check_trace(ordered, cluster, schedule, trace), IsEmpty());
  EXPECT_EQ(trace.iteration, found.evaluation.iteration);
  EXPECT_EQ(peak_memory(trace), found.evaluation.peak);
  EXPECT_LE(found.evaluation.iteration, found.beginning.iteration);
  return trace.iteration;
}

StageLineCase uneven(Rng& rng, std::size_t places, std::uint32_t micro_batches, std::int64_t held) {
  StageLineCase of{.places = places, .micro_batches = micro_batches, .hop = microseconds(50)};
  const auto draw = [&] { return microseconds(700 + static_cast<std::int64_t>(rng.below(601))); };
  for (std::size_t s = 0; s < places; ++s) of.times.push_back({draw(), draw(), draw()});
  of.saved = Bytes(1'000'000);
  of.memory = Bytes(1'000'000 * held + 100'000);
  return of;
}

void add_lists(std::vector<Step>& list, std::size_t m, const std::vector<std::size_t>& done,
               std::vector<std::vector<Step>>& all) {
  if (done[2] == m) all.push_back(list);
  constexpr ActionKind kKinds[] = {ActionKind::kForward, ActionKind::kInputGradient,
                                   ActionKind::kWeightGradient};
  for (std::size_t kind = 0; kind < 3; ++kind) {
    if (done[kind] == (kind == 0 ? m : done[kind - 1])) continue;
    std::vector<std::size_t> next = done;
    ++next[kind];
    list.emplace_back(kKinds[kind], StageId(0));
    add_lists(list, m, next, all);
    list.pop_back();
  }
}

TEST(OrderSearch, FindsTheBestOfAllOrdersOfTwoStages) {
  std::vector<std::vector<Step>> all;  // 42 lists of three micro-batches
  std::vector<Step> list;
  add_lists(list, 3, {0, 0, 0}, all);
  ASSERT_EQ(all.size(), 42U);
  Rng rng(1);
  for (const std::int64_t held : {2, 3, 3}) {
    const StagedLine line = staged_line(uneven(rng, 2, 3, held));
    OrderJudge judge(line.model, line.cluster);
    BestOrder best(judge, line.cluster);
    for (const std::vector<Step>& first : all) {
      for (std::size_t second = 0; second < all.size(); second += kOneIn) {
        OrderLists lists{first, {}};
        for (const Step& step : all[second]) lists[1].emplace_back(step.kind, StageId(1));
        best.consider(lists);
      }
    }
    const SearchedOrder found = search_order(line.model, line.cluster);
    EXPECT_FALSE(found.evaluation.overflow);
    // The search tries whole backwards, too, which are not among all of these.
    EXPECT_LE(checked(line.model, line.cluster, found), best.evaluation().iteration);
  }
}

TEST(OrderSearch, BeatsTheRuleOnTheWorkedExample) {
  // 1F1B takes 26 ms, and no order of these stages less than 24 (docs/semantics.md, values).
  const auto [model, cluster] = worked_example(WorkedExample::kGraphPipeline);
  const Duration step = checked(model, cluster, search_order(model, cluster));
  EXPECT_GE(step, milliseconds(24));
  EXPECT_LT(step, milliseconds(26));
}

TEST(OrderSearch, IsLegalForAnyPlanAndTheSameAgain) {
  Rng rng(3);
  int better = 0;
  for (int i = 0; i < of_usual(40); ++i) {
    const auto [model, cluster] = random_staged_model(rng);
    const OrderSearchOptions options{.max_steps = 20'000};
    const SearchedOrder found = search_order(model, cluster, options);
    checked(model, cluster, found);
    better += found.evaluation.iteration < found.beginning.iteration;
    EXPECT_EQ(search_order(model, cluster, options).lists, found.lists);
  }
  EXPECT_GT(better, 0);
}

TEST(OrderSearch, StaysWithinMemoryWhereAnythingDoes) {
  Rng rng(5);
  for (int i = 0; i < 5; ++i) {
    const StagedLine line = staged_line(uneven(rng, 3, 5, 3));
    const SearchedOrder found = search_order(line.model, line.cluster, {.max_steps = 100'000});
    EXPECT_FALSE(found.evaluation.overflow);
    checked(line.model, line.cluster, found);
  }
}

TEST(OrderMoves, KeepMicroBatchesInOrder) {
  const StagedLine line = staged_line(
      {.places = 1, .micro_batches = 4, .times = {{microseconds(1), microseconds(1), microseconds(1)}}});
  std::vector<Step> list = lists_of(line.model, make_schedule(line.model, 1)).front();
  Rng rng(2);
  std::size_t changes = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::optional<std::vector<Step>> next = moved(list, line.model, Halves::kMay, rng);
    if (!next) continue;
    ++changes;
    list = *next;
    ASSERT_TRUE(keeps_order(list, 1));
    const StagedModel model = with_orders(line.model, Orders(OrderLists{list}));
    ASSERT_THAT(check_schedule(model, make_schedule(model, 1)), IsEmpty());
  }
  EXPECT_GT(changes, 500U);
}

}  // namespace
}  // namespace espalier
