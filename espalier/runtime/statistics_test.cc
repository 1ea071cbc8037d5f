#include "espalier/runtime/statistics.h"

#include <gtest/gtest.h>

#include <vector>

#include "espalier/base/rng.h"

namespace espalier {
namespace {

// Mean 0, deviation 1.
double normal(Rng& rng) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += rng.unit();
  return sum;
}

TEST(Statistics, TrimmedMeansLeaveOutBothEnds) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 3);
  EXPECT_EQ(trimmed_mean({1000, 1, 2, 3, -1000}, 0.2), 2);
  EXPECT_EQ(trimmed_mean({1, 2, 6}, 0.0), 3);
}

// Groups of three whose level goes from 50 to 150, each value 8 % beside it, one in fifty twice as large.
TEST(Statistics, DeviationWithinGroupsKnowsNeitherDriftNorOutliers) {
  Rng rng(1);
  std::vector<double> values;
  for (int group = 0; group < 2000; ++group) {
    const double level = 50 + group / 20.0;
    for (int i = 0; i < 3; ++i) {
      values.push_back(level * (1 + 0.08 * normal(rng)) * (rng.below(50) == 0 ? 2 : 1));
    }
  }
  EXPECT_NEAR(deviation_within(values, 3), 0.08, 0.01);
  EXPECT_EQ(deviation_within({5, 5, 5, 7, 7, 7}, 3), 0);
}

// Two workers share the host's speed, which doubles; each has 10 % of its own. One that is always a tenth
// slower than the other strays by 5 % from their mean.
TEST(Statistics, VarianceBetweenWorkersIsOfWhatTheyDoNotShare) {
  Rng rng(2);
  std::vector<std::vector<double>> times(2);
  for (int round = 0; round < 4000; ++round) {
    const double host = round < 2000 ? 10 : 20;
    for (auto& worker : times) worker.push_back(host * (1 + 0.1 * normal(rng)));
  }
  EXPECT_NEAR(variance_between(times, 0.0), 0.01, 0.001);
  EXPECT_NEAR(variance_between({{95, 95}, {105, 105}}, 0.0), 2 * 0.05 * 0.05, 1e-12);
  EXPECT_EQ(variance_between({{1, 2, 3}, {1, 2, 3}, {1, 2, 3}}, 0.0), 0);
}

}  // namespace
}  // namespace espalier
