#include "espalier/runtime/gradient_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace espalier {
namespace {

using ::testing::ElementsAre;

TEST(GradientNorm, ItsBitsDoNotDependOnWhoOwnsWhichParameter) {
  // 2^54 + 1 + 1 is 2^54 from the left; (1 + 1) + 2^54 is 2 more.
  const double large = std::ldexp(1.0, 54);
  const SquaresOfParameters all{{ParameterId(0), large}, {ParameterId(1), 1}, {ParameterId(2), 1}};
  const std::vector<double> alone = by_parameter(3, all);
  const std::vector<double> first = by_parameter(3, {all[0]}), others = by_parameter(3, {all[2], all[1]});
  EXPECT_THAT(others, ElementsAre(0, 1, 1));
  EXPECT_EQ(norm_of_all(std::vector<std::vector<double>>{alone}), std::sqrt(large));
  EXPECT_EQ(norm_of_all(std::vector{first, others}), std::sqrt(large));
  EXPECT_EQ(norm_of_all(std::vector{others, first}), std::sqrt(large));
}

TEST(GradientNorm, ClippingScalesDownOnlyAndAsTorchDoesIt) {
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_EQ(clip_factor(4, 1), 1 / (4 + 1e-6));
  EXPECT_EQ(clip_factor(0, 0), 0);
  EXPECT_EQ(clip_factor(std::numeric_limits<double>::infinity(), 1), 0);
  EXPECT_TRUE(std::isnan(clip_factor(std::numeric_limits<double>::quiet_NaN(), 1)));
}

}  // namespace
}  // namespace espalier
