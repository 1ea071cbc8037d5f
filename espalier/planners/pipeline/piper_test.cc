#include "espalier/planners/pipeline/piper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "espalier/base/rng.h"
#include "espalier/base/thread_pool.h"
#include "espalier/planners/candidate.h"
#include "espalier/planners/toy_for_tests.h"
#include "testing/brute_force.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

std::string row_of_devices(std::size_t count, const std::string& memory = "1GiB") {
  std::string text =
      "kind gpu " + memory +
      " f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\ngroup network latency=0ns lanes=unlimited\n";
  for (std::size_t d = 0; d < count; ++d) text += "device dev" + std::to_string(d) + " gpu in network\n";
  return text;
}

// A graph of that many operators of 1 to 4 ms, each of which reads one or two before it, or an input; the
// last one reads all that nobody read.
struct RandomGraph {
  std::string text = "w = parameter(w) : f32[1]\nx = input() : f32[b]\n";
  std::vector<int> ms;
  std::vector<std::vector<std::size_t>> reads;
};
RandomGraph random_graph(Rng& rng, std::size_t operators) {
  RandomGraph graph;
  std::vector<bool> read(operators, false);
  for (std::size_t i = 0; i < operators; ++i) {
    const bool last = i + 1 == operators;
    std::vector<std::size_t> from;
    for (std::size_t j = 0; j < i; ++j) {
      if (last ? !read[j] : rng.below(3) == 0) from.push_back(j);
    }
    std::string names;
    for (const std::size_t j : from) {
      read[j] = true;
      names += "o" + std::to_string(j) + ", ";
    }
    if (from.empty()) names = "x, ";
    graph.ms.push_back(1 + static_cast<int>(rng.below(4)));
    graph.reads.push_back(from);
    graph.text += "o" + std::to_string(i) + " = f(" + names + "w) : f32[" + (last ? "" : "b") + "] @class=c" +
                  std::to_string(graph.ms.back()) + "\n";
  }
  graph.text += "return o" + std::to_string(operators - 1) + "\n";
  return graph;
}

// The least largest stage over all chains of downsets and all replicas on so many devices: a stage of r takes
// ⌈m/r⌉ times three times its operators' forward time. Free messages, memory for everything.
std::int64_t least_bottleneck_ms(const RandomGraph& graph, std::size_t devices, std::int64_t m) {
  const std::size_t all = (std::size_t{1} << graph.ms.size()) - 1;
  const std::function<std::int64_t(std::size_t, std::size_t)> best = [&](std::size_t done, std::size_t left) {
    if (done == all) return std::int64_t{0};
    std::int64_t least = std::int64_t{1} << 40;
    for (std::size_t stage = 1; stage <= all && left > 0; ++stage) {
      if ((stage & done) != 0) continue;
      std::int64_t work = 0;
      bool ready = true;
      for (std::size_t i = 0; i < graph.ms.size(); ++i) {
        if ((stage >> i & 1) == 0) continue;
        work += 3 * graph.ms[i];
        for (const std::size_t j : graph.reads[i]) ready = ready && ((done | stage) >> j & 1) != 0;
      }
      if (!ready) continue;
      for (std::size_t r = 1; r <= left; ++r) {
        const std::int64_t share = (m + static_cast<std::int64_t>(r) - 1) / static_cast<std::int64_t>(r);
        least = std::min(least, std::max(share * work, best(done | stage, left - r)));
      }
    }
    return least;
  };
  return best(0, devices);
}

TEST(Piper, FindsTheLeastBottleneckOverAllChainsOfDownsets) {
  Rng rng(5);
  for (int trial = 0; trial < 40; ++trial) {
    const RandomGraph graph = random_graph(rng, 2 + rng.below(4));
    const std::size_t devices = 1 + rng.below(3);
    const auto m = static_cast<std::int64_t>(1 + rng.below(5));
    const Toy toy(graph.text, row_of_devices(devices), m);
    Context context;
    const Outcome outcome = piper(toy.problem(), {.choice = PiperOptions::Choice::kBottleneck}, context);
    ASSERT_TRUE(outcome.plan && outcome.estimate) << graph.text;
    EXPECT_EQ(*outcome.estimate, milliseconds(least_bottleneck_ms(graph, devices, m)))
        << graph.text << devices << m;
    toy.simulated(outcome);
  }
}

TEST(Piper, NeverBeatsTheOptimumAndPassesEveryChecker) {
  Rng rng(9);
  for (int trial = 0; trial < 25; ++trial) {
    const RandomGraph graph = random_graph(rng, 2 + rng.below(3));
    const Toy toy(graph.text, row_of_devices(1 + rng.below(3), std::to_string(8 + rng.below(40)) + "B"),
                  static_cast<std::int64_t>(1 + rng.below(4)));
    const Problem problem = toy.problem();
    Context context;
    const Outcome outcome = piper(problem, {}, context);
    const testing::BruteForceResult best = testing::brute_force(problem);
    if (!outcome.plan) continue;
    ASSERT_TRUE(best.plan) << graph.text;
    EXPECT_GE(toy.simulated(outcome), best.iteration) << graph.text;
  }
}

TEST(Piper, TheWorkedExampleIsNoChain) {
  // docs/semantics.md: towers and head on a device each take 34 ms as a chain.
  const Toy toy(kTowers, kThreeDevices, 4);
  Context context;
  EXPECT_LT(toy.simulated(piper(toy.problem(), {}, context)), milliseconds(34));
}

// Branches of two operators each, joined by the loss.
std::string many_branches(std::size_t count) {
  std::string text = "w = parameter(w) : f32[1]\n", ends;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string number = std::to_string(i);
    text += "x" + number + " = input() : f32[b]\na" + number + " = f(x" + number +
            ", w) : f32[b] @class=c1\nt" + number + " = f(a" + number + ", w) : f32[b] @class=c2\n";
    ends += (i == 0 ? "t" : ", t") + number;
  }
  return text + "loss = head(" + ends + ") : f32[] @class=c1\nreturn loss\n";
}

TEST(Piper, SaysWhyItDoesNotPlan) {
  Context context;
  // Eleven branches: 2¹¹ sets of them and the loss.
  const Toy wide(many_branches(11), kThreeDevices, 2);
  const Outcome refused = piper(wide.problem(), {}, context);
  EXPECT_EQ(refused.status, Status::kUnsupported);
  EXPECT_THAT(refused.why, HasSubstr("more than 1200 downsets"));
  const Toy toy(kTowers, kThreeDevices, 4);
  Context poor;
  poor.budget.max_states = 1;
  EXPECT_EQ(piper(toy.problem(), {}, poor).status, Status::kBudgetSpent);
}

TEST(Piper, CoarsePiecesServeWhereFineOnesHaveTooManyDownsets) {
  // Five branches of two operators: 3⁵ + 1 downsets in full, 2⁵ + 1 with a piece for each.
  const Toy toy(many_branches(5), kThreeDevices, 4);
  Context fine, coarse;
  const Outcome best = piper(toy.problem(), {}, fine),
                other = piper(toy.problem(), {.max_downsets = 100}, coarse);
  EXPECT_LE(toy.simulated(best), toy.simulated(other));
  EXPECT_GT(fine.states, coarse.states);
}

// A plan of a space, with what it says: the largest stage.
struct InSpace {
  std::vector<StageDraft> stages;
  std::int64_t bottleneck_ms = 0;
};

// Every chain of downsets of a small graph with every number of replicas, degree and choice of stages to
// compute again, on devices one after the other. `degree_ms(op, degree)`: forward time, none where there is
// no cell.
struct Space {
  const RandomGraph& graph;
  const Toy& toy;
  std::int64_t m = 1;
  std::vector<std::uint32_t> degrees = {1};
  bool recompute = false;
  std::function<std::optional<int>(std::size_t, std::uint32_t)> degree_ms;
  std::vector<std::optional<DeviceId>> pins = {};  // by operator
  std::function<void(const InSpace&)> visit;

  void run() {
    std::vector<DeviceId> row;
    for (std::size_t d = 0; d < toy.cluster.devices().size(); ++d) {
      if (std::find(pins.begin(), pins.end(), std::optional(DeviceId(d))) == pins.end())
        row.push_back(DeviceId(d));
    }
    InSpace plan;
    extend(plan, 0, row);
  }

 private:
  void extend(InSpace& plan, std::size_t done, const std::vector<DeviceId>& row) {
    const std::size_t all = (std::size_t{1} << graph.ms.size()) - 1;
    if (done == all) return visit(plan);
    for (std::size_t stage = 1; stage <= all; ++stage) {
      if ((stage & done) == 0 && ready(stage | done)) choose(plan, done, stage, row);
    }
  }

  bool ready(std::size_t set) const {
    for (std::size_t i = 0; i < graph.ms.size(); ++i) {
      if ((set >> i & 1) == 0) continue;
      for (const std::size_t j : graph.reads[i]) {
        if ((set >> j & 1) == 0) return false;
      }
    }
    return true;
  }

  void choose(InSpace& plan, std::size_t done, std::size_t stage, const std::vector<DeviceId>& row) {
    std::optional<DeviceId> pin;
    for (std::size_t i = 0; i < pins.size(); ++i) {
      if ((stage >> i & 1) == 0 || !pins[i]) continue;
      if (pin && *pin != *pins[i]) return;
      pin = pins[i];
    }
    if (pin && !plan.stages.empty() && plan.stages.back().devices == std::vector{*pin}) return;
    for (const std::uint32_t degree : pin ? std::vector<std::uint32_t>{1} : degrees) {
      const std::size_t most = pin ? 1 : row.size() / degree;
      for (std::size_t r = 1; r <= most; ++r) {
        for (int again = 0; again <= (recompute ? 1 : 0); ++again) {
          add(plan, done, stage, row, degree, r, again != 0, pin);
        }
      }
    }
  }

  void add(InSpace& plan, std::size_t done, std::size_t stage, const std::vector<DeviceId>& row,
           std::uint32_t degree, std::size_t r, bool again, std::optional<DeviceId> pin) {
    std::int64_t work = 0;
    std::vector<OperatorId> operators;
    for (std::size_t i = 0; i < graph.ms.size(); ++i) {
      const bool mine = (stage >> i & 1) != 0;
      if (mine) operators.push_back(OperatorId(i));
      const auto ms = degree_ms(i, degree);
      if (mine && !ms) return;
      // What is pinned to the device elsewhere counts as well.
      if (mine || (pin && !pins.empty() && pins[i] == pin)) work += (again && mine ? 4 : 3) * *ms;
    }
    StageDraft draft;
    draft.operators = operators;
    draft.degree = degree;
    if (again) draft.recompute = draft.operators;
    const std::size_t devices = pin ? 0 : r * degree;
    draft.devices.assign(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(devices));
    if (pin) draft.devices = {*pin};
    const auto count = static_cast<std::int64_t>(r);
    const std::int64_t before = plan.bottleneck_ms;
    plan.bottleneck_ms = std::max(before, (m + count - 1) / count * work);
    plan.stages.push_back(draft);
    extend(plan, done | stage, {row.begin() + static_cast<std::ptrdiff_t>(devices), row.end()});
    plan.stages.pop_back();
    plan.bottleneck_ms = before;
  }
};

std::function<std::optional<int>(std::size_t, std::uint32_t)> plain_ms(const RandomGraph& graph) {
  return [&graph](std::size_t op, std::uint32_t) { return std::optional(graph.ms[op]); };
}

RandomGraph random_chain(Rng& rng, std::size_t operators) {
  RandomGraph graph;
  for (std::size_t i = 0; i < operators; ++i) {
    const bool last = i + 1 == operators;
    graph.ms.push_back(1 + static_cast<int>(rng.below(4)));
    graph.reads.push_back(i == 0 ? std::vector<std::size_t>{} : std::vector{i - 1});
    graph.text += "o" + std::to_string(i) + " = f(" + (i == 0 ? "x" : "o" + std::to_string(i - 1)) +
                  ", w) : f32[" + (last ? "" : "b,64") + "] @class=c" + std::to_string(graph.ms.back()) +
                  "\n";
  }
  graph.text.replace(graph.text.find("f32[b]"), 6, "f32[b,64]");
  graph.text += "return o" + std::to_string(operators - 1) + "\n";
  return graph;
}

CostTable with_private_bytes(const CostTable& costs, Bytes bytes) {
  CostTableParts parts = costs.parts();
  for (CostRow& row : parts.rows) {
    for (auto& point : row.points) point.cost.private_bytes = bytes;
  }
  return CostTable(std::move(parts));
}

TEST(Piper, ComputesAgainOnlyWhatItMustToFit) {
  Rng rng(31);
  int again = 0, none = 0;
  for (int trial = 0; trial < 40; ++trial) {
    const RandomGraph graph = random_chain(rng, 2 + rng.below(4));
    const std::size_t devices = 1 + rng.below(3);
    const auto m = static_cast<std::int64_t>(2 + rng.below(4));
    Toy toy(graph.text, row_of_devices(devices, std::to_string(1000 + 100 * rng.below(120)) + "B"), m);
    toy.costs = with_private_bytes(toy.costs, Bytes(1000));
    const Problem problem = toy.problem();
    Context context, judging, pieces;
    const PiperOptions whole{.choice = PiperOptions::Choice::kBottleneck,
                             .recompute = PiperOptions::Recompute::kStages};
    const Outcome outcome = piper(problem, whole, context);
    // The estimate's memory is what the simulator finds at least: no plan of the space that fits is better.
    Judge judge(problem, judging);
    std::optional<std::int64_t> least;
    Space{.graph = graph,
          .toy = toy,
          .m = m,
          .recompute = true,
          .degree_ms = plain_ms(graph),
          .visit =
              [&](const InSpace& plan) {
                if (least && plan.bottleneck_ms >= *least) return;
                if (judge.consider(plan.stages, BatchSize(1), ScheduleKind::kOneFOneB).fits())
                  least = plan.bottleneck_ms;
              }}
        .run();
    if (!outcome.plan) {
      EXPECT_FALSE(least) << graph.text;
      EXPECT_TRUE(outcome.closest) << outcome.why;
      ++none;
      continue;
    }
    ASSERT_TRUE(least) << graph.text;
    EXPECT_EQ(*outcome.estimate, milliseconds(*least)) << graph.text;
    toy.simulated(outcome);
    const auto& plan = std::get<PipelinePlan>(*outcome.plan);
    again += std::any_of(plan.stages.begin(), plan.stages.end(),
                         [](const Stage& stage) { return !stage.recompute.empty(); });
    const Outcome finer = piper(problem, {.choice = PiperOptions::Choice::kBottleneck}, pieces);
    ASSERT_TRUE(finer.plan);
    EXPECT_LE(*finer.estimate, *outcome.estimate) << graph.text;
    toy.simulated(finer);
  }
  EXPECT_GE(again, 3);
  EXPECT_GT(none, 2);
}

TEST(Piper, TakesTensorParallelGroupsWhereThereAreCells) {
  Rng rng(37);
  int grouped = 0;
  for (int trial = 0; trial < 30; ++trial) {
    const RandomGraph graph = random_graph(rng, 2 + rng.below(3));
    const auto m = static_cast<std::int64_t>(1 + rng.below(4));
    Toy toy(graph.text, row_of_devices(2 + rng.below(3)), m);
    toy.costs = with_groups(toy.costs);
    const Problem problem = toy.problem();
    Context context;
    const Outcome outcome = piper(problem, {.choice = PiperOptions::Choice::kBottleneck}, context);
    ASSERT_TRUE(outcome.plan) << outcome.why;
    std::optional<std::int64_t> least;
    Space{
        .graph = graph,
        .toy = toy,
        .m = m,
        .degrees = {1, 2},
        .degree_ms = [&](std::size_t op, std::uint32_t degree) { return ms_in_groups(graph.ms[op], degree); },
        .visit =
            [&](const InSpace& plan) {
              if (!least || plan.bottleneck_ms < *least) least = plan.bottleneck_ms;
            }}
        .run();
    EXPECT_EQ(*outcome.estimate, milliseconds(*least)) << graph.text;
    toy.simulated(outcome);
    for (const Stage& stage : std::get<PipelinePlan>(*outcome.plan).stages) {
      if (stage.replicas.front().devices.size() == 1) continue;
      ++grouped;
      for (const OperatorId op : stage.operators)
        EXPECT_NE(graph.ms[op.index()], 3) << "a missing cell forbids";
    }
    Context single;
    const Outcome without =
        piper(problem, {.choice = PiperOptions::Choice::kBottleneck, .tensor_parallel = false}, single);
    EXPECT_GE(*without.estimate, *outcome.estimate);
  }
  EXPECT_GT(grouped, 5);
}

TEST(Piper, KeepsPinsAndIsBestAmongPlansThatDo) {
  Rng rng(41);
  int pinned_plans = 0;
  for (int trial = 0; trial < 40; ++trial) {
    const RandomGraph graph = random_graph(rng, 2 + rng.below(3));
    const std::size_t devices = 2 + rng.below(2);
    const auto m = static_cast<std::int64_t>(1 + rng.below(4));
    const Toy toy(graph.text, row_of_devices(devices), m);
    Pins pins;
    for (std::size_t i = 0; i < graph.ms.size(); ++i) {
      if (rng.below(3) == 0) pins.push_back({"o" + std::to_string(i), DeviceId(rng.below(devices))});
    }
    const Problem problem = toy.problem(pins);
    Context context;
    const Outcome outcome = piper(problem, {.choice = PiperOptions::Choice::kBottleneck}, context);
    std::optional<std::int64_t> least;
    Space{.graph = graph,
          .toy = toy,
          .m = m,
          .degree_ms = plain_ms(graph),
          .pins = resolve_pins(toy.graph, pins),
          .visit =
              [&](const InSpace& plan) {
                if (!least || plan.bottleneck_ms < *least) least = plan.bottleneck_ms;
              }}
        .run();
    ASSERT_EQ(outcome.plan.has_value(), least.has_value()) << graph.text << outcome.why;
    if (!least) continue;
    EXPECT_EQ(*outcome.estimate, milliseconds(*least)) << graph.text;
    toy.simulated(outcome);
    pinned_plans += pins.empty() ? 0 : 1;
    const auto pinned = resolve_pins(toy.graph, pins);
    for (const Stage& stage : std::get<PipelinePlan>(*outcome.plan).stages) {
      for (const OperatorId op : stage.operators) {
        if (!pinned[op.index()]) continue;
        EXPECT_EQ(stage.replicas.size(), 1U);
        EXPECT_EQ(stage.replicas[0].devices, std::vector{*pinned[op.index()]});
      }
    }
  }
  EXPECT_GT(pinned_plans, 15);
}

TEST(Piper, AnyNumberOfThreadsGivesTheSameOutcome) {
  const Toy toy(many_branches(4), kThreeDevices, 4);
  std::optional<Plan> first;
  for (const std::size_t threads : {1U, 2U, 3U, 7U}) {
    ThreadPool pool(threads);
    Context context;
    context.pool = &pool;
    const Outcome outcome = piper(toy.problem(), {}, context);
    ASSERT_TRUE(outcome.plan);
    if (!first) first = outcome.plan;
    EXPECT_EQ(*outcome.plan, *first);
  }
}

}  // namespace
}  // namespace espalier
