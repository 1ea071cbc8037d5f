// Constructive placers: the literature's worked examples, brute force, memory.

#include <gmock/gmock.h>

#include <array>

#include "espalier/planners/linear_program.h"
#include "espalier/planners/placement/baechi.h"
#include "espalier/planners/placement/coarsening.h"
#include "espalier/planners/placement/heft.h"
#include "espalier/planners/placement/instance_for_tests.h"
#include "espalier/planners/placement/list_state.h"
#include "espalier/planners/placement/partitioners.h"
#include "espalier/planners/placement/ranks.h"
#include "espalier/planners/placement/repair.h"
#include "espalier/planners/placement/simple.h"
#include "testing/small_cases.h"

namespace espalier::placement {
namespace {

using espalier::testing::of_usual;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ListOptions kNoContention{.sends = Rules::Sends::kUnlimited};

std::vector<UnitId> units_by_number(const Instance& instance) {
  std::vector<UnitId> order;
  for (std::size_t u = 0; u < instance.units(); ++u) order.emplace_back(u);
  return order;
}

// All that look at an instance alone, by name.
using InstancePlacer = std::pair<const char*, Placed (*)(const Instance&)>;
std::vector<InstancePlacer> instance_placers() {
  return {{"m_topo", [](const Instance& i) { return m_topo(i, units_by_number(i)); }},
          {"m_etf", [](const Instance& i) { return m_etf(i); }},
          {"m_sct", [](const Instance& i) { return m_sct(i); }},
          {"m_sct greedy", [](const Instance& i) { return m_sct(i, {.max_edges = 0}); }},
          {"heft", [](const Instance& i) { return heft(i); }},
          {"cpop", [](const Instance& i) { return cpop(i); }},
          {"peft", [](const Instance& i) { return peft(i); }},
          {"heft_lookahead", [](const Instance& i) { return heft_lookahead(i); }},
          {"dpos", [](const Instance& i) { return dpos(i); }},
          {"metis", [](const Instance& i) { return metis(i); }},
          {"scotch", [](const Instance& i) { return scotch(i); }},
          {"round_robin", [](const Instance& i) { return round_robin_units(i, units_by_number(i)); }},
          {"human_expert", [](const Instance& i) {
             std::vector<std::uint32_t> layer;
             for (std::size_t u = 0; u < i.units(); ++u) layer.push_back(narrow(u));
             return human_expert(i, layer);
           }}};
}

// ---- Topcuoglu, Hariri, Wu, TPDS'02

TEST(Heft, RanksTheWorkedExampleAsPublished) {
  // Table 3 of the paper: 108.000 77.000 80.000 80.000 69.000 63.333 42.667 35.667 44.333 14.667; in
  // thousandths.
  const Instance example = topcuoglu_example(3000);
  std::vector<double> ranks;
  for (const Duration rank : upward_ranks(example, MeanCosts(example))) {
    ranks.push_back(static_cast<double>(rank.count()) / 3000);
  }
  const std::array published{108.000, 77.000, 80.000, 80.000, 69.000, 63.333, 42.667, 35.667, 44.333, 14.667};
  for (std::size_t t = 0; t < published.size(); ++t) EXPECT_NEAR(ranks[t], published[t], 0.001) << t;
}

TEST(Heft, SchedulesTheWorkedExampleIn80) {
  EXPECT_EQ(heft(topcuoglu_example(), kNoContention).estimate, nanoseconds(80));
}

TEST(Cpop, SchedulesTheWorkedExampleIn86) {
  EXPECT_EQ(cpop(topcuoglu_example(3000), kNoContention).estimate, nanoseconds(86 * 3000));
}

TEST(Heft, FillsTheGapThatAMessageLeaves) {
  // a (4) on its device, then c waits for b's message; d (1, no input) comes last by rank and stands before.
  //   dev0  a 0-4          c 14-24      b: 8 on device 1 alone, its message takes 6
  //   dev1  b 0-8          d: 3, in dev0's gap 4-14 or behind b; ends first in the gap, at 7
  InstanceForTests text{
      {{{4, 40}, {}, 0, 0}, {{80, 8}, {}, 1, 0}, {{10, 100}, {{0, 50}, {1, 6}}, 2, 0}, {{3, 3}, {}, 3, 0}},
      {kPlenty, kPlenty}};
  const Placed placed = heft(text.build(), kNoContention);
  EXPECT_EQ(placed.estimate, nanoseconds(24));
  EXPECT_EQ((*placed.assignment)[3], DeviceId(0));
  EXPECT_EQ(std::vector<TaskId>(placed.orders.lists[0].begin(), placed.orders.lists[0].end()),
            (std::vector{TaskId(0), TaskId(3), TaskId(2)}));
}

TEST(Heft, MessagesOfOneLinkWaitForEachOther) {
  // Two messages of 10 leave device 0 for readers that may stand on device 1 alone: the second arrives at 21.
  InstanceForTests text{{{{1, 1}, {}, 0, 0}, {{1, 1}, {{0, 10}}, 1, 0}, {{1, 1}, {{0, 10}}, 2, 0}},
                        {kPlenty, kPlenty},
                        {{0}, {1}, {1}}};
  const Instance instance = text.build();
  EXPECT_EQ(heft(instance, kNoContention).estimate, nanoseconds(13));  // 1 + 10, then two tasks of 1
  EXPECT_EQ(heft(instance).estimate, nanoseconds(22));                 // 1 + 10 + 10 + 1
}

// ---- PEFT

TEST(Peft, TheOptimisticTableIsTheLeastRestOnEveryPath) {
  // a → b → c, messages of 4; b takes 2 on device 0 and 7 on device 1, c 9 and 1.
  //   c: nothing behind it           OCT(c) = 0 0
  //   b: on 0: c there 9, or on 1: 1 + 4 = 5 → 5;  on 1: c there → 1
  //   a: on 0: b there 5 + 2 = 7, or on 1: 1 + 7 + 4 = 12 → 7;  on 1: b on 0 5 + 2 + 4 = 11, there 8 → 8
  InstanceForTests text{{{{3, 3}, {}, 0, 0}, {{2, 7}, {{0, 4}}, 1, 0}, {{9, 1}, {{1, 4}}, 2, 0}},
                        {kPlenty, kPlenty}};
  const auto ns = [](std::int64_t n) { return nanoseconds(n); };
  EXPECT_THAT(optimistic_costs(text.build()), ElementsAre(ns(7), ns(8), ns(5), ns(1), ns(0), ns(0)));
  // a: 3 + 7 against 3 + 8; b on 0: 5 + 5 against (3 + 4 + 7) + 1; c on 1: 5 + 4 + 1.
  const Placed placed = peft(text.build(), kNoContention);
  EXPECT_THAT(*placed.assignment, ElementsAre(DeviceId(0), DeviceId(0), DeviceId(1)));
  EXPECT_EQ(placed.estimate, nanoseconds(10));
}

TEST(HeftLookahead, LooksAtWhereReadersWouldEnd) {
  // a ends first on device 0 (2 against 3), but its reader runs on device 1 alone and the message takes 10.
  InstanceForTests text{{{{2, 3}, {}, 0, 0}, {{1, 1}, {{0, 10}}, 1, 0}}, {kPlenty, kPlenty}, {{}, {1}}};
  EXPECT_EQ(heft(text.build(), kNoContention).estimate, nanoseconds(13));
  EXPECT_EQ(heft_lookahead(text.build(), kNoContention).estimate, nanoseconds(4));
}

// ---- Baechi

TEST(MTopo, FillsDevicesInTurnUpToTheirShare) {
  // Four units of 10 bytes in all 40: a share of 20 and one unit more; the third fills the first device.
  InstanceForTests text{{{{1, 1}, {}, 0, 10}, {{1, 1}, {}, 1, 10}, {{1, 1}, {}, 2, 10}, {{1, 1}, {}, 3, 10}},
                        {1000, 1000}};
  const Instance instance = text.build();
  EXPECT_THAT(*m_topo(instance, units_by_number(instance)).assignment,
              ElementsAre(DeviceId(0), DeviceId(0), DeviceId(0), DeviceId(1)));
}

TEST(MEtf, TakesThePairThatStartsFirst) {
  // a 0-5 on dev0. b, c read it: b starts at 5 where a ran, c at 5 + 3 elsewhere or at 5 + 6 behind b.
  InstanceForTests text{{{{5, 5}, {}, 0, 0}, {{6, 6}, {{0, 3}}, 1, 0}, {{6, 6}, {{0, 3}}, 2, 0}},
                        {kPlenty, kPlenty}};
  const Placed placed = m_etf(text.build());
  EXPECT_THAT(*placed.assignment, ElementsAre(DeviceId(0), DeviceId(0), DeviceId(1)));
  EXPECT_EQ(placed.estimate, nanoseconds(14));
}

TEST(MSct, ADeviceWaitsForTheFavouriteChild) {
  // a (10) is read by f (5, message 20) and x (10, message 3); f reads g (12) as well.
  //   m_etf   dev0  a 0-10  x 10-20  f 20-25      m_sct   dev0  a 0-10  wait  f 12-17
  //           dev1  g 0-12                                dev1  g 0-12  x 13-23
  InstanceForTests text{{{{10, 10}, {}, 0, 0},
                         {{12, 12}, {}, 1, 0},
                         {{5, 5}, {{0, 20}, {1, 0}}, 2, 0},
                         {{10, 10}, {{0, 3}}, 3, 0}},
                        {kPlenty, kPlenty}};
  const Instance instance = text.build();
  for (const FavouriteRule rule : {FavouriteRule::kLinearProgram, FavouriteRule::kGreedy}) {
    EXPECT_EQ(favourite_children(instance, rule)[0], TaskId(2)) << "f, not x: the longer way";
  }
  EXPECT_EQ(m_etf(instance).estimate, nanoseconds(25));
  EXPECT_EQ(m_sct(instance).estimate, nanoseconds(23));
  EXPECT_EQ(m_sct(instance, {.max_edges = 0}).estimate, nanoseconds(23));
}

TEST(FavouriteChildren, NobodyHasTwoParents) {
  Rng rng(2);
  const Instance instance = layered_instance(rng, {.tasks = 100});
  for (const FavouriteRule rule : {FavouriteRule::kLinearProgram, FavouriteRule::kGreedy}) {
    std::vector<TaskId> children;
    for (const std::optional<TaskId>& child : favourite_children(instance, rule)) {
      if (child) children.push_back(*child);
    }
    EXPECT_GT(children.size(), 20U);
    std::sort(children.begin(), children.end());
    EXPECT_EQ(std::unique(children.begin(), children.end()), children.end());
  }
}

TEST(FavouriteChildren, AChainIsItsOwnFavourite) {
  InstanceForTests text{{{{5, 5}, {}, 0, 0}, {{5, 5}, {{0, 5}}, 1, 0}, {{5, 5}, {{1, 5}}, 2, 0}},
                        {kPlenty, kPlenty}};
  for (const FavouriteRule rule : {FavouriteRule::kLinearProgram, FavouriteRule::kGreedy}) {
    EXPECT_THAT(favourite_children(text.build(), rule),
                ElementsAre(std::optional(TaskId(1)), std::optional(TaskId(2)), std::optional<TaskId>()));
  }
}

TEST(LinearProgram, FindsTheCornerThatIsLeast) {
  // max x + y, x + 2y ≤ 4, 3x + y ≤ 6: x = 8/5, y = 6/5.
  LinearProgram program;
  program.add_column({.cost = -1});
  program.add_column({.cost = -1});
  program.add_row({.upper = 4});
  program.add_row({.upper = 6});
  program.entries = {{0, 0, 1}, {0, 1, 2}, {1, 0, 3}, {1, 1, 1}};
  const auto solution = solve(program);
  ASSERT_TRUE(solution.has_value());
  EXPECT_NEAR(solution->x[0], 1.6, 1e-9);
  EXPECT_NEAR(solution->x[1], 1.2, 1e-9);
  EXPECT_NEAR(solution->cost, -2.8, 1e-9);
  program.add_row({.lower = 100});
  program.entries.push_back({2, 0, 1});
  EXPECT_FALSE(solve(program).has_value());
}

// ---- Memory

// Whether any assignment fits.
bool any_fits(const Instance& instance) {
  Assignment assignment(instance.units());
  const auto search = [&](const auto& self, std::size_t unit) -> bool {
    if (unit == instance.units()) return check_memory(instance, assignment).empty();
    for (const DeviceId device : instance.allowed[unit]) {
      assignment[unit] = device;
      if (self(self, unit + 1)) return true;
    }
    return false;
  };
  return search(search, 0);
}

// All graphs of up to five tasks: bit i + j (j - 1) / 2 says whether task j reads from i < j. All else from
// the seed: sizes so that about half of the cases fit.
Instance small_instance(std::size_t tasks, unsigned edges, std::uint64_t seed) {
  Rng rng(stream_key(seed, {tasks, edges}));
  const std::size_t devices = 2 + rng.below(2);
  InstanceForTests text;
  std::int64_t all = 0;
  for (std::size_t j = 0; j < tasks; ++j) {
    TaskForTests task{{}, {}, j, static_cast<std::int64_t>(rng.below(6))};
    if (j > 0 && rng.below(6) == 0) task.unit = text.tasks[j - 1].unit;
    for (std::size_t d = 0; d < devices; ++d) task.time.push_back(static_cast<std::int64_t>(rng.below(5)));
    for (std::size_t i = 0; i < j; ++i) {
      if (edges >> (i + j * (j - 1) / 2) & 1) {
        task.reads.emplace_back(i, static_cast<std::int64_t>(rng.below(4)));
        all += task.reads.back().second;
      }
    }
    all += task.resident;
    text.tasks.push_back(std::move(task));
  }
  // Units are numbered without a gap.
  std::vector<std::size_t> number(tasks, tasks);
  std::size_t units = 0;
  for (TaskForTests& task : text.tasks) {
    if (number[task.unit] == tasks) number[task.unit] = units++;
    task.unit = number[task.unit];
  }
  for (std::size_t d = 0; d < devices; ++d) {
    text.memory.push_back(all / static_cast<std::int64_t>(devices) + static_cast<std::int64_t>(rng.below(6)) -
                          1);
    text.memory.back() = std::max<std::int64_t>(text.memory.back(), 0);
  }
  text.allowed.resize(units);
  if (rng.below(3) == 0) text.allowed[rng.below(units)] = {rng.below(devices)};
  return text.build();
}

template <class Visit>
void for_each_small_instance(Visit visit) {
  for (std::size_t tasks = 1; tasks <= 5; ++tasks) {
    for (unsigned edges = 0; edges < 1U << (tasks * (tasks - 1) / 2); ++edges) {
      for (int seed = 0; seed < of_usual(3); ++seed) {
        SCOPED_TRACE("tasks " + std::to_string(tasks) + " edges " + std::to_string(edges) + " seed " +
                     std::to_string(seed));
        visit(small_instance(tasks, edges, static_cast<std::uint64_t>(seed)));
      }
    }
  }
}

TEST(Repair, FindsWhatFitsWhereverThereIsAnything) {
  std::size_t fitting = 0, all = 0;
  for_each_small_instance([&](const Instance& instance) {
    Assignment start;
    for (std::size_t u = 0; u < instance.units(); ++u) start.push_back(instance.allowed[u].front());
    const Repaired repaired = repair(instance, start);
    const bool fits = any_fits(instance);
    EXPECT_EQ(repaired.assignment.has_value(), fits) << repaired.why;
    EXPECT_EQ(repaired.proved, !fits);
    EXPECT_NE(repaired.why.empty(), !fits);
    if (repaired.assignment) {
      EXPECT_THAT(check_memory(instance, *repaired.assignment), IsEmpty());
    }
    fitting += fits ? 1 : 0;
    ++all;
  });
  EXPECT_GT(fitting, all / 4);
  EXPECT_LT(fitting, all - all / 4);
}

TEST(Repair, SaysWhatLacks) {
  InstanceForTests text{{{{1, 1}, {}, 0, 8}, {{1, 1}, {}, 1, 8}, {{1, 1}, {}, 2, 8}}, {10, 10}};
  const Repaired repaired = repair(text.build(), {DeviceId(0), DeviceId(0), DeviceId(1)});
  EXPECT_FALSE(repaired.assignment.has_value());
  EXPECT_TRUE(repaired.proved);
  EXPECT_EQ(repaired.why, "no assignment fits: device 0 lacks 6 B");
  EXPECT_THAT(repaired.lacks, ElementsAre(DeviceLack{DeviceId(0), Bytes(6)}));
  text.tasks[1].resident = 11;
  EXPECT_EQ(repair(text.build(), Assignment(3)).why,
            "task 1 with those that must stand beside it needs 11 B, and no device where it may stand has "
            "more than "
            "10 B");
}

TEST(InstancePlacers, FitWhereverAnythingFits) {
  for_each_small_instance([&](const Instance& instance) {
    const bool fits = any_fits(instance);
    for (const auto& [name, place] : instance_placers()) {
      SCOPED_TRACE(name);
      const Placed placed = place(instance);
      EXPECT_EQ(placed.assignment.has_value(), fits) << placed.why;
      if (fits && placed.assignment) expect_fits(instance, placed);
    }
  });
}

TEST(InstancePlacers, EightDevicesWithThreeTenthsOfSlackAreEnough) {
  // Where Baechi's own m-ETF and m-SCT end out of memory, since they leave received tensors out.
  Rng rng(5);
  for (int i = 0; i < 6; ++i) {
    const Instance instance =
        layered_instance(rng, {.tasks = 300, .width = 12, .devices = 8, .slack_percent = 30});
    for (const auto& [name, place] : instance_placers()) {
      SCOPED_TRACE(name);
      expect_fits(instance, place(instance));
    }
  }
}

TEST(InstancePlacers, AreTheSameTwice) {
  Rng rng(9);
  const Instance instance = layered_instance(rng, {});
  for (const auto& [name, place] : instance_placers()) {
    const Placed once = place(instance), again = place(instance);
    EXPECT_EQ(once.assignment, again.assignment) << name;
    EXPECT_EQ(once.estimate, again.estimate) << name;
  }
}

// ---- By hand

TEST(HumanExpert, CutsLayersWhereTheBusiestDeviceHasLeast) {
  // Work 5 1 1 5 4 on two devices: 5 1 1 | 5 4 (9) beats 5 1 1 5 | 4 (12).
  InstanceForTests text{{}, {kPlenty, kPlenty}};
  std::size_t unit = 0;
  for (const std::int64_t time : {5, 1, 1, 5, 4}) text.tasks.push_back({{time, time}, {}, unit++, 10});
  const std::vector<std::uint32_t> layer{0, 1, 2, 3, 4};
  const DeviceId a(0), b(1);
  EXPECT_THAT(*human_expert(text.build(), layer).assignment, ElementsAre(a, a, a, b, b));
  // The second holds one layer only.
  text.memory = {50, 10};
  EXPECT_THAT(*human_expert(text.build(), layer).assignment, ElementsAre(a, a, a, a, b));
}

TEST(OneDevice, TakesTheFastestThatHoldsAll) {
  InstanceForTests text{{{{5, 3, 1}, {}, 0, 10}, {{5, 3, 1}, {}, 1, 10}}, {30, 30, 10}};
  EXPECT_THAT(*one_device(text.build()).assignment, Each(DeviceId(1)));
  text.memory = {19, 18, 10};
  const Placed none = one_device(text.build());
  EXPECT_FALSE(none.assignment.has_value());
  EXPECT_THAT(none.lacks, ElementsAre(DeviceLack{DeviceId(0), Bytes(1)}, DeviceLack{DeviceId(1), Bytes(2)},
                                      DeviceLack{DeviceId(2), Bytes(10)}));
}

// ---- Coarsening

// Time and bytes stay what they were.
void expect_coarse_of(const Instance& fine, const Coarse& coarse) {
  ASSERT_THAT(check_instance(fine), IsEmpty());
  EXPECT_THAT(check_instance(coarse.instance), IsEmpty());
  Duration before, after;
  for (const Duration time : fine.time) before += time;
  for (const Duration time : coarse.instance.time) after += time;
  EXPECT_EQ(before, after);
  Bytes held_before, held_after;
  for (const Bytes bytes : fine.bytes) held_before += bytes;
  for (const Bytes bytes : fine.resident_bytes) held_before += bytes;
  for (const Bytes bytes : coarse.instance.bytes) held_after += bytes;
  for (const Bytes bytes : coarse.instance.resident_bytes) held_after += bytes;
  EXPECT_EQ(held_before, held_after);
  for (std::size_t t = 0; t < fine.tasks(); ++t) {
    EXPECT_EQ(coarse.unit_of[fine.unit[t].index()], coarse.instance.unit[coarse.task_of[t].index()]);
  }
}

TEST(Coarsening, KeepsEveryInvariantOnAllSmallGraphs) {
  for_each_small_instance([&](const Instance& fine) { expect_coarse_of(fine, coarsen(fine, {})); });
}

TEST(Coarsening, HalvesLayeredGraphsAndWhatFitsThereFitsHere) {
  Rng rng(3);
  for (int i = 0; i < 20; ++i) {
    const Instance fine =
        layered_instance(rng, {.tasks = 400, .width = 10, .devices = 4, .slack_percent = 40});
    const Coarse coarse = coarsen(fine, {});
    expect_coarse_of(fine, coarse);
    EXPECT_LT(coarse.instance.tasks(), 300U);
    const Placed placed = m_etf(coarse.instance);
    expect_fits(coarse.instance, placed);
    EXPECT_THAT(check_memory(fine, refined(coarse, *placed.assignment)), IsEmpty());
  }
}

}  // namespace
}  // namespace espalier::placement
