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
  EXPECT_EQ(piper(toy.problem({{"img", DeviceId(1)}}), {}, context).status, Status::kUnsupported);
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
