#include "espalier/learned/hdp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "espalier/learned/hdp_net.h"
#include "espalier/learned/towers_for_tests.h"
#include "espalier/learned/workload.h"
#include "espalier/planners/placement/memory_ledger.h"

namespace espalier::placement {
namespace {

TaskOptions so_many_clusters(std::size_t clusters) {
  return {.clusters = {.clusters = clusters}, .rules = {.memory = Rules::Memory::kAllHeld}};
}

HdpOptions small_hdp(std::uint64_t updates) {
  HdpOptions options;
  options.task = so_many_clusters(12);
  options.groups = 6;
  options.grouper_width = options.placer_width = 16;
  options.updates = updates;
  return options;
}

HdpOptions small_published_hdp(std::uint64_t updates) {
  HdpOptions options = published_hdp();
  options.grouper_width = options.placer_width = 16;
  options.updates = updates;
  return options;
}

bool fits_by_engine(const Instance& instance, const Assignment& assignment) {
  Scratch scratch;
  return Engine(instance, {.memory = Rules::Memory::kAllHeld}).evaluate(assignment, scratch).fits;
}

// The least step of all placements of so many clusters on two devices.
Duration exhausted(const Workload& workload, std::size_t clusters) {
  const PlacementTask task(workload.graph, workload.instance, so_many_clusters(clusters));
  Scratch scratch;
  Duration best = Duration::max();
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << task.clusters().count; ++bits) {
    NodeDevices devices;
    for (std::size_t n = 0; n < task.clusters().count; ++n) devices.emplace_back(bits >> n & 1);
    const Evaluated seen = task.engine().evaluate(assignment_of_clusters(task.clusters(), devices), scratch);
    if (seen.fits) best = std::min(best, seen.time);
  }
  return best;
}

TEST(Hdp, LearnsASmallCaseNearlyToTheOptimum) {
  const PlacerInput input{two_towers().graph, two_towers().instance};
  std::vector<LearningPoint> curve;
  HdpOptions options = small_hdp(100);
  options.told = [&](const LearningPoint& point) { curve.push_back(point); };
  Context context;
  const Placed placed = hdp(input, options, context);
  ASSERT_TRUE(placed.assignment.has_value()) << placed.why;
  const Duration least = exhausted(two_towers(), 12);
  EXPECT_GE(*placed.estimate, least);
  EXPECT_LE(ratio(*placed.estimate, least), 1.02);
  ASSERT_EQ(curve.size(), 100U);
  EXPECT_LT(curve.back().mean, 0.9 * curve.front().mean);  // not the best alone: samples get faster
  EXPECT_EQ(context.states, 100U * options.rollouts);
  EXPECT_TRUE(fits_by_engine(two_towers().instance, *placed.assignment));
}

TEST(Hdp, ThreadsDoNotChangeTheAnswer) {
  const PlacerInput input{two_towers().graph, two_towers().instance};
  for (const HdpOptions& how : {small_hdp(6), small_published_hdp(6)}) {
    const auto learnt = [&](ThreadPool* pool) {
      HdpOptions options = how;
      std::vector<LearningPoint> curve;
      options.told = [&](const LearningPoint& point) { curve.push_back(point); };
      Context context;
      context.pool = pool;
      const Placed placed = hdp(input, options, context);
      return std::pair(placed.assignment, curve);
    };
    ThreadPool three(3);
    EXPECT_EQ(learnt(nullptr), learnt(&three));
  }
}

TEST(Hdp, BudgetsAreKeptToTheLastState) {
  const PlacerInput input{two_towers().graph, two_towers().instance};
  for (const std::uint64_t most : {0U, 1U, 37U}) {
    Context context;
    context.budget.max_states = most;
    const Placed placed = hdp(input, small_hdp(400), context);
    EXPECT_EQ(context.states, most);
    EXPECT_EQ(placed.assignment.has_value(), most > 0);
    EXPECT_EQ(placed.why.empty(), most > 0);
  }
}

TEST(Hdp, TheBestTakesPartWhereItIsAskedTo) {
  const PlacerInput input{two_towers().graph, two_towers().instance};
  HdpOptions options = small_hdp(20);
  options.repeat_best = true;
  Context context;
  const Placed placed = hdp(input, options, context);
  EXPECT_TRUE(placed.assignment.has_value());
  EXPECT_EQ(context.states, 20U * options.rollouts);  // it is not judged again
}

TEST(Hdp, PublishedSettingsPlaceUnits) {
  const PlacerInput input{two_towers().graph, two_towers().instance};
  Context context;
  const Placed placed = hdp(input, small_published_hdp(10), context);
  ASSERT_TRUE(placed.assignment.has_value()) << placed.why;
  EXPECT_EQ(context.states, 10U * 4U);
  EXPECT_TRUE(fits_by_engine(two_towers().instance, *placed.assignment));
  EXPECT_EQ(usual_groups(2), 40U);
  EXPECT_EQ(usual_groups(16), 256U);
}

TEST(Hdp, SaysWhatLacksWhereNothingFits) {
  Instance instance = two_towers().instance;
  std::fill(instance.memory.begin(), instance.memory.end(), Bytes(1000));
  Context context;
  const Placed placed = hdp({two_towers().graph, instance}, small_hdp(2), context);
  EXPECT_FALSE(placed.assignment.has_value());
  EXPECT_FALSE(placed.why.empty());
  EXPECT_FALSE(placed.lacks.empty());
}

TEST(Hdp, RepairsTheNearestWhereNoSampleFits) {
  Instance instance = two_towers().instance;
  MemoryLedger ledger(instance);
  for (std::size_t u = 0; u < instance.units(); ++u) ledger.place(UnitId(u), DeviceId(0));
  std::fill(instance.memory.begin(), instance.memory.end(),
            Bytes(ledger.needs(DeviceId(0)).count() * 65 / 100));
  Context context;
  const Placed placed = hdp({two_towers().graph, instance}, small_hdp(1), context);
  ASSERT_TRUE(placed.assignment.has_value()) << placed.why;
  EXPECT_TRUE(placed.estimate.has_value());
  EXPECT_TRUE(fits_by_engine(instance, *placed.assignment));
}

TEST(Hdp, NodesStandWhereTheyMay) {
  Instance instance = two_towers().instance;
  instance.allowed = {};
  for (std::size_t u = 0; u < instance.units(); ++u) {
    for (std::size_t d = u % 3 == 0 ? 1 : 0; d < 2; ++d) instance.allowed.items.emplace_back(d);
    instance.allowed.close();
  }
  Context context;
  const Placed placed = hdp({two_towers().graph, instance}, small_hdp(3), context);
  ASSERT_TRUE(placed.assignment.has_value());
  for (std::size_t u = 0; u < instance.units(); u += 3) EXPECT_EQ((*placed.assignment)[u], DeviceId(1));
}

// ---- Groups

const PlacementTask& twelve_nodes() {
  static const PlacementTask kTask(two_towers().graph, two_towers().instance, so_many_clusters(12));
  return kTask;
}

TEST(Groups, PartsOfARowAreBelowOneAndValuesAreSeenFromBothSides) {
  const GroupDescriber describer(twelve_nodes(), 3, GroupFeatures::kPublished);
  Grouping grouping;
  for (std::uint32_t n = 0; n < twelve_nodes().input().nodes; ++n) grouping.push_back(n % 2);
  const std::vector<float> rows = describer.describe(grouping);
  ASSERT_EQ(rows.size(), 3 * describer.width());
  for (const float number : rows) EXPECT_TRUE(number >= 0 && number < 1) << number;
  const auto number = [&](std::size_t group, std::size_t column) {
    return rows[group * describer.width() + describer.width() - 6 + column];  // 3 to groups, 3 from groups
  };
  EXPECT_EQ(number(0, 1) > 0, number(1, 3) > 0);
  EXPECT_EQ(number(1, 0) > 0, number(0, 4) > 0);
  for (std::size_t i = 0; i < describer.width(); ++i) EXPECT_EQ(rows[2 * describer.width() + i], 0);  // empty
}

TEST(Groups, LayersLieInALine) {
  const PolicyInput& input = twelve_nodes().input();
  const std::vector<double> place = places_by_layer(input);
  for (std::size_t a = 0; a < input.nodes; ++a) {
    EXPECT_TRUE(place[a] >= 0 && place[a] < 1);
    for (std::size_t b = 0; b < input.nodes; ++b) {
      if (input.layer[a] < input.layer[b]) {
        EXPECT_LT(place[a], place[b]);
      }
    }
  }
}

// ---- The net

struct SmallNet {
  NetInput input{twelve_nodes().input(), PolicyShape{}, at::kCPU};
  HdpNet net;
  at::Tensor rows = at::linspace(-1, 1, 2 * 3 * 5, at::kFloat).view({2, 3, 5});
  explicit SmallNet(double bound = 0)
      : net(input,
            {.groups = 3,
             .group_numbers = 5,
             .grouper_width = 8,
             .placer_width = 8,
             .logit_bound = bound,
             .tables = true},
            {}, 4) {}
};

// Whatever is chosen, the probabilities of all eight placements of three groups add up to one.
TEST(HdpNet, ProbabilitiesOfAllPlacementsAddUpToOne) {
  const SmallNet small;
  std::vector<double> sum(2);
  for (std::size_t bits = 0; bits < 8; ++bits) {
    const auto given = [&](std::size_t, std::size_t group, std::span<const float>) {
      return bits >> group & 1;
    };
    const HdpNet::Placements placed = small.net.place(small.rows, given, nullptr);
    for (std::size_t r = 0; r < 2; ++r)
      sum[r] += std::exp(placed.log_probability[static_cast<std::int64_t>(r)].item<double>());
  }
  EXPECT_NEAR(sum[0], 1, 1e-5);
  EXPECT_NEAR(sum[1], 1, 1e-5);
}

TEST(HdpNet, EveryWeightHasAFiniteGradient) {
  for (const double bound : {0.0, 1.0}) {
    const SmallNet small(bound);
    LogitNoise noise(0.5, 3);
    const HdpNet::Placements placed = small.net.place(
        small.rows, [](std::size_t r, std::size_t g, std::span<const float>) { return (r + g) % 2; }, &noise);
    const at::Tensor loss =
        placed.log_probability.sum() + at::log_softmax(small.net.grouping_logits(), 1).select(1, 0).sum();
    std::vector<at::Tensor> leaves;
    for (const auto& [name, weight] : small.net.weights()) leaves.push_back(weight);
    const std::vector<at::Tensor> gradients = torch::autograd::grad({loss}, leaves);
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_TRUE(at::isfinite(gradients[i]).all().item<bool>()) << small.net.weights()[i].first;
      EXPECT_GT(gradients[i].abs().sum().item<double>(), 0) << small.net.weights()[i].first;
    }
  }
}

TEST(HdpNet, BoundedLogitsLeaveEveryDeviceAChance) {
  SmallNet small(1.0);
  at::NoGradGuard guard;
  for (const auto& [name, weight] : small.net.weights()) {
    if (name == "device.logits") weight.mul_(1000);
  }
  small.net.place(
      small.rows,
      [](std::size_t, std::size_t, std::span<const float> probability) -> std::size_t {
        EXPECT_GT(probability[0], 0.11F);  // 1 / (1 + e²) = 0.119
        EXPECT_GT(probability[1], 0.11F);
        return 0;
      },
      nullptr);
}

TEST(LogitNoise, IsAPartOfTheLogitsSizeAndTheSameForASeed) {
  const at::Tensor logits = at::full({100, 100}, 4.0);
  const at::Tensor first = LogitNoise(0.5, 7)(logits), second = LogitNoise(0.5, 7)(logits);
  EXPECT_TRUE(first.equal(second));
  EXPECT_NEAR((first - logits).std().item<double>(), 2, 0.1);
  EXPECT_EQ(LogitNoise(0.5, 7)(at::zeros({4, 4})).abs().sum().item<double>(), 0);
}

}  // namespace
}  // namespace espalier::placement
