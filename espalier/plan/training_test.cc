#include "espalier/plan/training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier {
namespace {

using Shape = LearningRateSchedule::Shape;

std::vector<double> factors(const LearningRateSchedule& schedule, std::uint64_t steps) {
  std::vector<double> values;
  for (std::uint64_t step = 0; step < steps; ++step) values.push_back(learning_rate_factor(schedule, step));
  return values;
}

TEST(Optimizer, StateIsTwoMomentsOneOrNone) {
  Optimizer optimizer;
  EXPECT_EQ(optimizer_state(optimizer, Bytes(10)), Bytes(20));
  optimizer.kind = OptimizerKind::kAdamW;
  EXPECT_EQ(optimizer_state(optimizer, Bytes(10)), Bytes(20));
  optimizer.kind = OptimizerKind::kSgd;
  EXPECT_EQ(optimizer_state(optimizer, Bytes(10)), Bytes(0));
  optimizer.momentum = 0.9;
  EXPECT_EQ(optimizer_state(optimizer, Bytes(10)), Bytes(10));
}

TEST(Optimizer, AnUpdateNeedsRoomForTheNormOfItsGradient) {
  const DeviceKind& gpu = device_preset("T4");
  const DeviceKind& cpu = device_preset("cpu");
  const auto parameter = [](DType type) {
    return Parameter{.names = {"w"}, .dtype = type, .sizes = {10, 3}};
  };
  const Optimizer adam;
  Optimizer sgd{.kind = OptimizerKind::kSgd};
  EXPECT_EQ(update_workspace(adam, parameter(DType::kF32), gpu), Bytes(30 * 16));
  EXPECT_EQ(update_workspace(sgd, parameter(DType::kBF16), gpu), Bytes(30 * 16));
  EXPECT_EQ(update_workspace(adam, parameter(DType::kC64), gpu), Bytes(60 * 16)) << "two real numbers each";
  EXPECT_EQ(update_workspace(adam, parameter(DType::kOpaque), gpu), Bytes()) << "a profile";
  EXPECT_EQ(update_workspace(adam, parameter(DType::kF32), cpu), Bytes()) << "one pass";
  EXPECT_EQ(update_workspace(adam, parameter(DType::kF64), cpu), Bytes(30 * 16));
  EXPECT_EQ(update_workspace(sgd, parameter(DType::kF32), cpu), Bytes());
  sgd.weight_decay = 0.1;
  EXPECT_EQ(update_workspace(sgd, parameter(DType::kF32), cpu), Bytes(30 * 4));
}

TEST(LearningRateSchedule, ConstantIsOneAfterItsWarmUp) {
  EXPECT_THAT(factors({}, 3), ::testing::ElementsAre(1, 1, 1));
  EXPECT_THAT(factors({.shape = Shape::kConstant, .warm_up = 4}, 6),
              ::testing::ElementsAre(0, 0.25, 0.5, 0.75, 1, 1));
}

TEST(LearningRateSchedule, LinearFallsToZeroAtTheLastStep) {
  EXPECT_THAT(factors({.shape = Shape::kLinear, .warm_up = 2, .steps = 6}, 8),
              ::testing::ElementsAre(0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0));
}

TEST(LearningRateSchedule, CosineIsHalfInTheMiddle) {
  // (1 + cos(π · done)) / 2 with done = 0, 1/3, 2/3, 1.
  const auto values = factors({.shape = Shape::kCosine, .warm_up = 0, .steps = 3}, 5);
  EXPECT_THAT(values, ::testing::Pointwise(::testing::DoubleNear(1e-15), {1.0, 0.75, 0.25, 0.0, 0.0}));
}

TEST(LearningRateSchedule, AWarmUpLongerThanTheRunOnlyRises) {
  EXPECT_THAT(factors({.shape = Shape::kLinear, .warm_up = 4, .steps = 2}, 6),
              ::testing::ElementsAre(0, 0.25, 0.5, 0.75, 0, 0));
}

}  // namespace
}  // namespace espalier
