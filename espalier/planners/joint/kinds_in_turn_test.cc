#include "espalier/planners/joint/kinds_in_turn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "espalier/planners/toy_for_tests.h"

namespace espalier::joint {
namespace {

// Two devices, and one that takes twice as long.
constexpr const char* kTwoKinds =
    "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
    "kind old 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1 speed=0.5\n"
    "group network latency=500us lanes=unlimited\n"
    "device dev0 gpu in network\ndevice dev1 old in network\ndevice dev2 gpu in network\n";

// A chain of layers that take so many ms in each of three parts.
std::string chain_text(const std::vector<int>& layers) {
  std::string text = "batch 1..64\nx = input() : f32[b]\nw = parameter(w) : f32[1]\n", below = "x";
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string name = "l" + std::to_string(i);
    text += name + " = f(" + below + ", w) : f32[b] @class=c" + std::to_string(layers[i]) + "\n";
    below = name;
  }
  return text + "loss = g(" + below + ") : f32[] @class=c1\nreturn loss\n";
}

std::vector<Proposal> in_turn(const Toy& toy, Pins pins = {}) {
  const Problem problem = toy.problem(std::move(pins));
  return kinds_in_turn(Space(problem), ScheduleKind::kOneFOneB);
}

// What a device of the stage takes for all micro-batches together, on average.
Duration time_of(const Space& space, const StageDraft& stage) {
  const KindId kind = space.problem().cluster.device(stage.devices.front()).kind;
  return Duration(space.work(stage.operators, kind, BatchSize(1)).count() /
                  static_cast<std::int64_t>(stage.devices.size()));
}

TEST(KindsInTurn, EachKindIsAStageInEveryOrder) {
  const Toy toy(chain_text({2, 2, 2, 2, 2, 2, 2}), kTwoKinds, 4);
  const std::vector<Proposal> plans = in_turn(toy);
  const std::vector<DeviceId> fast{DeviceId(0), DeviceId(2)}, slow{DeviceId(1)};
  // With k layers of 6 ms the two take 3k ms, the other 12 ms for each of its layers and 6 for the loss.
  ASSERT_EQ(plans.size(), 2U);
  EXPECT_EQ(plans[0].stages[0].devices, fast);
  EXPECT_EQ(plans[0].stages[0].operators.size(), 6U);
  EXPECT_EQ(plans[0].stages[1].devices, slow);
  EXPECT_EQ(plans[0].stages[1].operators.size(), 2U);
  EXPECT_EQ(plans[1].stages[0].devices, slow);
  EXPECT_EQ(plans[1].stages[0].operators.size(), 1U);
  EXPECT_EQ(plans[1].stages[1].devices, fast);
  Context context;
  const Problem problem = toy.problem();
  Judge judge(problem, context);
  for (const Proposal& plan : plans) EXPECT_TRUE(judge.consider(plan).fits());
}

TEST(KindsInTurn, NoCutMakesTheSlowestStageFaster) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Rng rng(seed);
    std::vector<int> layers;
    for (std::uint64_t i = 3 + rng.below(8); i > 0; --i) layers.push_back(static_cast<int>(1 + rng.below(9)));
    const Toy toy(chain_text(layers), kTwoKinds, 4);
    const Problem problem = toy.problem();
    const Space space(problem);
    for (const Proposal& plan : in_turn(toy)) {
      Duration least = Duration::max();
      for (std::size_t cut = 1; cut < space.operators(); ++cut) {
        StageDraft first = plan.stages[0], second = plan.stages[1];
        first.operators = OperatorSet({OperatorRun{0, narrow(cut - 1)}});
        second.operators = OperatorSet({OperatorRun{narrow(cut), narrow(space.operators() - 1)}});
        least = std::min(least, std::max(time_of(space, first), time_of(space, second)));
      }
      EXPECT_EQ(std::max(time_of(space, plan.stages[0]), time_of(space, plan.stages[1])), least) << seed;
    }
  }
}

TEST(KindsInTurn, ThreeKindsHaveSixOrdersAndOneKindHasNone) {
  const std::string three = std::string(kTwoKinds) +
                            "kind new 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1 speed=2\n"
                            "device dev3 new in network\n";
  EXPECT_EQ(in_turn(Toy(chain_text(std::vector<int>(12, 3)), three, 4)).size(), 6U);
  EXPECT_TRUE(in_turn(Toy(chain_text({1, 2, 3, 4, 5}), kThreeDevices, 4)).empty());
  const Toy toy(chain_text({1, 2, 3}), kTwoKinds, 4);
  EXPECT_TRUE(in_turn(toy, {{"l0", DeviceId(0)}}).empty());
}

}  // namespace
}  // namespace espalier::joint
