// The literature's schedules: closed forms of their papers, and that they are legal for any number of
// devices, chunks and micro-batches.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/planners/orders/named_orders.h"
#include "espalier/schedule/dual_pipe_v.h"
#include "espalier/schedule/interleaved.h"
#include "espalier/schedule/order_file.h"
#include "espalier/schedule/schedule.h"
#include "espalier/schedule/v_schedules.h"
#include "espalier/schedule/zero_bubble.h"
#include "espalier/sim/order_judge.h"
#include "espalier/sim/simulate.h"
#include "testing/stage_line_case.h"

namespace espalier {
namespace {

using espalier::testing::longest_span;
using espalier::testing::staged_line;
using espalier::testing::StagedLine;
using espalier::testing::StageLineCase;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Layout = StageLine::Layout;

constexpr double kExact = 1e-9;

// Simulated in full; legal, a trace that check_trace accepts, and equal to the order judge.
Trace run(const StagedLine& line, const OrderLists& lists) {
  const StagedModel model = with_orders(line.model, Orders(lists));
  const Schedule schedule = make_schedule(model, line.cluster.devices().size());
  EXPECT_THAT(check_schedule(model, schedule), IsEmpty());
  Trace trace = simulate(model, line.cluster, schedule);
  OrderJudge judge(line.model, line.cluster);
  const Evaluation evaluation = judge.judge(lists);
  EXPECT_EQ(evaluation.iteration, trace.iteration);
  EXPECT_EQ(evaluation.peak, peak_memory(trace));
  return trace;
}

Trace run(const StagedLine& line, const char* name) {
  const GeneratedOrders orders = make_orders(*parse_named_orders(name), line.model, line.cluster);
  EXPECT_EQ(orders.why_not, "");
  return run(line, orders.lists.value());
}

// F = I = W, free messages.
StageLineCase equal(std::size_t places, std::uint32_t micro_batches, std::size_t chunks = 1,
                    Layout layout = Layout::kLoop) {
  const Duration unit = microseconds(10);
  return {.places = places,
          .chunks = chunks,
          .layout = layout,
          .micro_batches = micro_batches,
          .times = {{unit, unit, unit}}};
}

double bubble(const StageLineCase& of, const char* name) {
  return longest_span(run(staged_line(of), name)).bubble;
}

TEST(Schedules, ClosedFormsOfEqualStages) {
  // p = 8, m = 24: 72 units of work a device in one chunk, 144 half as long in two.
  EXPECT_NEAR(bubble(equal(8, 24), "zb-h1"), 7.0 / 79, kExact);              // (p-1)·(F + I - W)
  EXPECT_NEAR(bubble(equal(8, 24), "zb-h2"), 0, kExact);                     // (p-1)·(F + I - 2W)
  EXPECT_NEAR(bubble(equal(8, 24), "zb-greedy,limit=8"), 7.0 / 79, kExact);  // ZB-1p: 0.0886
  EXPECT_NEAR(bubble(equal(8, 24), "zb-greedy,limit=16"), 0, kExact);        // ZB-2p
  EXPECT_NEAR(bubble(equal(8, 24, 2, Layout::kV), "zbv,limit=8"), 0, kExact);
  EXPECT_NEAR(bubble(equal(8, 24, 2, Layout::kV), "v-half"), 17.0 / 161, kExact);  // 0.1056
  EXPECT_NEAR(bubble(equal(8, 24, 2, Layout::kV), "v-min"), 27.0 / 171, kExact);   // 0.1579
}

TEST(Schedules, OneForwardOneBackwardIdlesForTheOthersOfOneMicroBatch) {
  // (p-1) / (m + p-1)
  const StagedLine line = staged_line(equal(8, 24));
  const Trace trace = run(line, lists_of(line.model, make_schedule(line.model, 8)));
  EXPECT_NEAR(longest_span(trace).bubble, 7.0 / 31, kExact);
}

TEST(Schedules, InterleavingDividesTheBubbleByTheChunks) {
  for (const std::size_t p : {2, 4, 8}) {
    for (const std::size_t v : {1, 2, 4}) {
      for (const std::uint32_t rounds : {1U, 3U}) {
        const auto m = rounds * static_cast<std::uint32_t>(p);
        const Trace trace = run(staged_line(equal(p, m, v)), "interleaved");
        const double expected =
            static_cast<double>(p - 1) / (static_cast<double>(v * m) + static_cast<double>(p - 1));
        EXPECT_NEAR(longest_span(trace).bubble, expected, kExact) << p << " " << v << " " << m;
      }
    }
  }
}

TEST(Schedules, HandmadeZeroBubbleIdlesAsItsFormulasSay) {
  // F = 3, I = 4, W = 2 units: H1 (p-1)·(3 + 4 - 2), H2 (p-1)·(3 + 4 - 4); work 9·m.
  for (const std::size_t p : {2, 3, 5, 8}) {
    StageLineCase of = equal(p, static_cast<std::uint32_t>(4 * p));
    of.times = {{microseconds(3), microseconds(4), microseconds(2)}};
    const auto idle = [&](const char* name) {
      return longest_span(run(staged_line(of), name)).span - microseconds(9 * 4 * static_cast<int>(p));
    };
    const int others = static_cast<int>(p) - 1;
    EXPECT_EQ(idle("zb-h1"), microseconds(5 * others)) << p;
    EXPECT_EQ(idle("zb-h2"), microseconds(3 * others)) << p;
  }
}

TEST(Schedules, DualPipeVIdlesNoLongerThanItsFormulaSays) {
  // One after the other, F&B = F + B = 3 units and B = 2: at most (p-1)·(3 + 2 - 3). Half of it, because a
  // tensor leaves at the end of its F, not at that of the pair.
  for (const std::size_t p : {2, 4, 8}) {
    const auto m = static_cast<std::uint32_t>(3 * p);
    const Trace trace = run(staged_line(equal(p, m, 2, Layout::kV)), "dualpipev");
    const auto unit = microseconds(10);
    EXPECT_EQ(longest_span(trace).span, unit * (6 * m + static_cast<std::int64_t>(p) - 1)) << p;
  }
}

std::uint32_t most_held(const OrderLists& lists) {
  std::uint32_t most = 0;
  for (const std::vector<Step>& list : lists) {
    std::uint32_t now = 0;
    for (const Step& step : list) {
      if (step.kind == ActionKind::kForward) most = std::max(most, ++now);
      if (step.kind == ActionKind::kWeightGradient || step.kind == ActionKind::kBackward) --now;
    }
  }
  return most;
}
std::uint32_t most_held(const StageLineCase& of, const char* name) {
  const StagedLine line = staged_line(of);
  return most_held(make_orders(*parse_named_orders(name), line.model, line.cluster).lists.value());
}

TEST(Schedules, HoldNoMoreMicroBatchesThanTheirPapersSay) {
  // Of half-stages in a V, 1F1B's fullest device would hold 2p = 16.
  EXPECT_EQ(most_held(equal(8, 24), "zb-h1"), 8);
  EXPECT_EQ(most_held(equal(8, 24), "zb-h2"), 15);
  EXPECT_EQ(most_held(equal(8, 24), "zb-greedy,limit=8"), 8);
  EXPECT_EQ(most_held(equal(8, 24, 2, Layout::kV), "zbv,limit=8"), 16);
  EXPECT_LE(most_held(equal(8, 24, 2, Layout::kV), "v-half"), 10);
  EXPECT_LE(most_held(equal(8, 24, 2, Layout::kV), "v-min"), 8);
}

TEST(Schedules, AreLegalForAnyNumbers) {
  for (std::size_t p = 1; p <= 6; ++p) {
    for (std::uint32_t m = 1; m <= 14; ++m) {
      for (const char* name : {"zb-h1", "zb-h2", "zb-greedy", "zb-greedy,limit=2"}) {
        SCOPED_TRACE(std::string(name) + " p" + std::to_string(p) + " m" + std::to_string(m));
        run(staged_line(equal(p, m)), name);
      }
      for (const char* name : {"zbv", "v-half", "v-min", "dualpipev"}) {
        const StagedLine line = staged_line(equal(p, m, 2, Layout::kV));
        const GeneratedOrders orders = make_orders(*parse_named_orders(name), line.model, line.cluster);
        SCOPED_TRACE(std::string(name) + " p" + std::to_string(p) + " m" + std::to_string(m));
        const bool needs_more = std::string_view(name) == "dualpipev" && m < 2 * p;
        EXPECT_EQ(orders.lists.has_value(), !needs_more) << orders.why_not;
        if (orders.lists) run(line, *orders.lists);
      }
      for (const std::size_t v : {1, 2, 3}) {
        for (const char* name : {"interleaved", "interleaved,split"}) {
          const StagedLine line = staged_line(equal(p, m, v));
          const GeneratedOrders orders = make_orders(*parse_named_orders(name), line.model, line.cluster);
          SCOPED_TRACE(std::string(name) + " p" + std::to_string(p) + " m" + std::to_string(m));
          if (orders.lists) run(line, *orders.lists);
        }
      }
    }
  }
}

TEST(Schedules, SayInOneLineWhereTheyDoNotApply) {
  const auto why = [](const StageLineCase& of, const char* name) {
    const StagedLine line = staged_line(of);
    return make_orders(*parse_named_orders(name), line.model, line.cluster).why_not;
  };
  EXPECT_THAT(why(equal(4, 8, 2), "zbv"), HasSubstr("laid in a V"));
  EXPECT_THAT(why(equal(4, 8, 2, Layout::kV), "interleaved"), HasSubstr("laid in a loop"));
  EXPECT_THAT(why(equal(4, 8), "v-half"), HasSubstr("each device has 1 stage; it is made for 2"));
  EXPECT_THAT(why(equal(4, 8, 2), "interleaved,chunks=4"),
              HasSubstr("each device has 2 stages; it is made for 4"));
  EXPECT_THAT(why(equal(4, 9, 2), "interleaved"), HasSubstr("9 micro-batches do not make 2 equal rounds"));
  EXPECT_THAT(why(equal(4, 7, 2, Layout::kV), "dualpipev"),
              HasSubstr("7 micro-batches; it needs two for each device, 8"));
}

TEST(Schedules, AStageWithoutWeightsHasWholeBackwards) {
  StageLineCase of = equal(3, 6);
  of.times = {{microseconds(10), microseconds(10), microseconds(10)},
              {microseconds(10), microseconds(10), Duration()},
              {microseconds(10), microseconds(10), microseconds(10)}};
  const StagedLine line = staged_line(of);
  for (const char* name : {"zb-h1", "zb-h2", "zb-greedy", "zb-greedy,limit=3"}) {
    const GeneratedOrders orders = make_orders(*parse_named_orders(name), line.model, line.cluster);
    run(line, orders.lists.value());
    for (const Step& step : (*orders.lists)[1]) {
      EXPECT_TRUE(step.kind == ActionKind::kForward || step.kind == ActionKind::kBackward);
    }
  }
}

// Clocks that the device with the longest span idles, by micro-batches of one stage that a device may hold.
std::vector<std::int64_t> idle_clocks(std::size_t p, std::uint32_t least, std::uint32_t most) {
  std::vector<std::int64_t> idle;
  const StagedLine line = staged_line(equal(p, 24, 2, Layout::kV));
  for (std::uint32_t halves = least; halves <= most; ++halves) {
    const GeneratedOrders orders = v_flex(line.model, p, halves);
    const Trace trace = run(line, orders.lists.value());
    const Duration beyond_work = longest_span(trace).span - microseconds(10 * 6 * 24);
    idle.push_back(beyond_work.count() / microseconds(10).count());
    EXPECT_LE(most_held(*orders.lists), halves);
  }
  return idle;
}

TEST(LongSchedules, VFlexHasTheBubblesOfItsMemory) {
  // The authors' program for p = 4: 11, 8, 5, 3, 0; for p = 8: 23, 20, 17, 14, 11, 8, 5, 3, 0 with 8 … 16.
  // Ours is one more with 9, 11 and 13.
  EXPECT_THAT(idle_clocks(4, 4, 8), ElementsAre(11, 8, 5, 3, 0));
  EXPECT_THAT(idle_clocks(8, 8, 10), ElementsAre(23, 21, 17));
  EXPECT_THAT(idle_clocks(8, 14, 16), ElementsAre(5, 3, 0));
}

TEST(NamedOrders, ReadBack) {
  for (const char* text :
       {"interleaved", "interleaved,split", "interleaved,chunks=4", "interleaved,split,chunks=2", "zb-h1",
        "zb-h2", "zb-greedy", "zb-greedy,limit=8", "zbv", "zbv,limit=4", "v-half", "v-min", "v-flex,halves=9",
        "dualpipev", "search"}) {
    EXPECT_EQ(to_text(parse_named_orders(text).value()), text);
  }
  EXPECT_FALSE(parse_named_orders("1f1b,split"));
  EXPECT_FALSE(parse_named_orders("zb"));
}

}  // namespace
}  // namespace espalier
