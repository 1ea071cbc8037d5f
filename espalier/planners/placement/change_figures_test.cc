#include "espalier/planners/placement/change_figures.h"

#include <gmock/gmock.h>

#include <cmath>

#include "espalier/planners/placement/guided.h"
#include "espalier/planners/placement/instance_for_tests.h"
#include "espalier/planners/placement/search_cases_for_tests.h"

namespace espalier::placement {
namespace {

using ::testing::ElementsAre;

// Two devices of one kind of speed. a and b on the first, c and d on the second:
//
//   0   a a b b b b . . . .
//   1   d d d d d d . c c .        message b → c: 6 from 30 on; c from 36 to 46
Instance two_lanes() {
  InstanceForTests text;
  text.tasks = {
      {{10, 10}, {}, 0, 0}, {{20, 20}, {{0, 4}}, 1, 50}, {{10, 10}, {{1, 6}}, 2, 0}, {{30, 30}, {}, 3, 0}};
  text.memory = {1'000, 1'000};
  return text.build();
}

const Assignment kTwoLanes = {DeviceId(0), DeviceId(0), DeviceId(1), DeviceId(1)};

float root_of(double part) {
  return static_cast<float>(part < 0 ? -std::sqrt(-part) : std::sqrt(part));
}

TEST(ChangeFigures, SayWhatAMoveChangesOnThePath) {
  const Instance instance = two_lanes();
  const Engine engine(instance, {});
  const Neighbourhood around(instance);
  StepView view(around, engine, kTwoLanes);
  EXPECT_THAT(view.path(), ElementsAre(TaskId(0), TaskId(1), TaskId(2)));
  using F = ChangeFigures;
  const Incremental::Move move{UnitId(1), DeviceId(1)};
  const F figures = view.of(kTwoLanes, std::span(&move, 1), 2);
  const auto at = [&](F::Figure figure) { return figures.values[figure]; };
  EXPECT_FLOAT_EQ(at(F::kMovedUnits), root_of(0.25));
  EXPECT_FLOAT_EQ(at(F::kMovedWork), root_of(20 / 46.0));
  EXPECT_FLOAT_EQ(at(F::kMoreWork), 0);
  EXPECT_FLOAT_EQ(at(F::kPathWork), root_of(20 / 46.0));
  EXPECT_FLOAT_EQ(at(F::kPathQueued), 0);  // c waits for what b gives
  EXPECT_FLOAT_EQ(at(F::kPathWaits), 0);
  EXPECT_FLOAT_EQ(at(F::kPathMessages), root_of(6 / 46.0));
  EXPECT_FLOAT_EQ(at(F::kNewPathMessages), root_of(4 / 46.0));
  EXPECT_FLOAT_EQ(at(F::kLate), root_of(4 / 46.0));         // 10 + 4 + 20, and no slack
  EXPECT_FLOAT_EQ(at(F::kReaderLate), root_of(-6 / 46.0));  // c's first instant is 36
  EXPECT_FLOAT_EQ(at(F::kMessages), root_of(6 / 46.0));
  EXPECT_FLOAT_EQ(at(F::kNewMessages), root_of(4 / 46.0));
  EXPECT_FLOAT_EQ(at(F::kLeastSlack), 0);
  EXPECT_NEAR(at(F::kBusyThere), 1, 1 / 64.0);  // in 64 parts of the step
  EXPECT_NEAR(at(F::kBusyHere), 1, 1 / 64.0);
  EXPECT_FLOAT_EQ(at(F::kFromLoad), 30.0F / 46);
  EXPECT_FLOAT_EQ(at(F::kToLoad), 40.0F / 46);
  EXPECT_FLOAT_EQ(at(F::kToLoadThen), 60.0F / 46);
  EXPECT_FLOAT_EQ(at(F::kBusiest), 40.0F / 46);
  EXPECT_FLOAT_EQ(at(F::kBusiestThen), 60.0F / 46);
  EXPECT_FLOAT_EQ(at(F::kTooFull), 0);
  EXPECT_NEAR(at(F::kNearThere), 6 / 11.0, 1e-6);  // one byte beside them, against none at all
  EXPECT_NEAR(at(F::kNearHere), 4 / 11.0, 1e-6);
  EXPECT_FLOAT_EQ(at(F::kStart), 10.0F / 46);
  EXPECT_FLOAT_EQ(at(F::kEnd), 30.0F / 46);
  EXPECT_FLOAT_EQ(at(F::kPathShare), 40.0F / 46);
  EXPECT_FLOAT_EQ(at(F::kPathSent), 6.0F / 46);
  EXPECT_FLOAT_EQ(at(F::kFewDevices), 0.5);
  for (std::size_t kind = 0; kind < ChangeSource::kKinds; ++kind)
    EXPECT_EQ(figures.values[F::kFirstKind + kind], kind == 2 ? 1 : 0);
}

// c and d stand on one device, and c has waited for it: of the two d is on the path.
TEST(ChangeFigures, SayWhoWaitsForADevice) {
  InstanceForTests text;
  text.tasks = {{{30, 30}, {}, 0, 0}, {{10, 10}, {}, 1, 0}};
  text.memory = {1'000, 1'000};
  const Instance instance = text.build();
  const Engine engine(instance, {});
  const Neighbourhood around(instance);
  const Assignment at = {DeviceId(0), DeviceId(0)};
  StepView view(around, engine, at);
  ASSERT_THAT(view.path(), ElementsAre(TaskId(0), TaskId(1)));
  const Incremental::Move first{UnitId(0), DeviceId(1)}, second{UnitId(1), DeviceId(1)};
  using F = ChangeFigures;
  const F of_first = view.of(at, std::span(&first, 1), 0), of_second = view.of(at, std::span(&second, 1), 0);
  EXPECT_FLOAT_EQ(of_first.values[F::kPathQueued], root_of(30 / 40.0));
  EXPECT_FLOAT_EQ(of_second.values[F::kPathQueued], 0);
  EXPECT_FLOAT_EQ(of_second.values[F::kPathWaits], root_of(30 / 40.0));
  EXPECT_FLOAT_EQ(of_second.values[F::kBusyThere], 0);
}

TEST(ChangeFigures, AreFiniteAndTheSameWhenAskedAgain) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Rng rng(seed);
    const Instance instance =
        random_case({.tasks = 40, .devices = 2 + rng.below(3), .kinds = 2, .memory = 300}, rng);
    const Engine engine(instance, some_rules(seed));
    const Neighbourhood around(instance);
    Assignment at;
    for (std::size_t u = 0; u < instance.units(); ++u) {
      const std::span<const DeviceId> allowed = instance.allowed[u];
      at.push_back(allowed[rng.below(allowed.size())]);
    }
    StepView view(around, engine, at);
    ChangeSource source(around);
    source.see(view.path(), at);
    for (int i = 0; i < 40; ++i) {
      const std::size_t kind = rng.below(ChangeSource::kKinds);
      const Change change = source.draw(at, kind, rng);
      if (change.empty()) continue;
      const ChangeFigures figures = view.of(at, change, kind);
      for (const float value : figures.values) {
        ASSERT_TRUE(std::isfinite(value));
        ASSERT_LE(std::abs(value), 10);
      }
      EXPECT_EQ(view.of(at, change, kind).values, figures.values);
    }
  }
}

}  // namespace
}  // namespace espalier::placement
