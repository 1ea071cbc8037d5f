#include "espalier/app/rank_statistics.h"

#include <gmock/gmock.h>

namespace espalier {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

TEST(RankStatistics, EqualValuesShareTheMeanOfTheirRanks) {
  EXPECT_THAT(ranks_of(std::vector<double>{3, 1, 3, 2}), ElementsAre(3.5, 1, 3.5, 2));
}

TEST(RankStatistics, TailsOfChiSquareAreThoseOfTheTables) {
  EXPECT_NEAR(chi_square_tail(3.841, 1), 0.05, 1e-4);
  EXPECT_NEAR(chi_square_tail(5.991, 2), 0.05, 1e-4);  // e^-2.9955
  EXPECT_NEAR(chi_square_tail(7.815, 3), 0.05, 1e-4);
  EXPECT_NEAR(chi_square_tail(16.919, 9), 0.05, 1e-4);
  EXPECT_NEAR(chi_square_tail(13.362, 8), 0.10, 1e-4);
  EXPECT_EQ(chi_square_tail(0, 4), 1);
}

TEST(RankStatistics, FriedmanWithoutTies) {
  // Ranks 1 2 3, 1 2 3, 1 3 2, 1 2 3: means 1, 9/4, 11/4 about 2. Squares 1 + 1/16 + 9/16 = 13/8;
  // chi² = 12·4 / (3·4) · 13/8 = 6.5, p = e^-3.25.
  const Friedman test = friedman_test({{1, 2, 3}, {4, 5, 9}, {1, 3, 2}, {0, 7, 8}});
  EXPECT_THAT(test.mean_rank, ElementsAre(1, 2.25, 2.75));
  EXPECT_NEAR(test.chi_square, 6.5, 1e-12);
  EXPECT_NEAR(test.p, 0.0387742, 1e-6);
}

TEST(RankStatistics, FriedmanCountsTies) {
  // Ranks 1.5 1.5 3 and 1 2.5 2.5: means 1.25, 2, 2.75, squares 9/16 · 2 = 9/8, uncorrected 12·2/12 · 9/8 =
  // 9/4. Each case has a pair of equals, 2³ - 2 = 6: correction 1 - 12 / (2·24) = 3/4, so chi² = 3.
  const Friedman test = friedman_test({{1, 1, 2}, {1, 2, 2}});
  EXPECT_NEAR(test.chi_square, 3, 1e-12);
  EXPECT_NEAR(test.p, 0.2231302, 1e-6);  // e^-1.5
}

TEST(RankStatistics, WhereAllAreEqualNothingDiffers) {
  const Friedman test = friedman_test({{1, 1}, {2, 2}});
  EXPECT_EQ(test.chi_square, 0);
  EXPECT_EQ(test.p, 1);
}

TEST(RankStatistics, SignedRanksOfFewPairsAreCounted) {
  // Ranks 1 … 5, the smallest negative: of 32 signs two (none, {1}) have a sum of at most 1; two sides: 4/32.
  const SignedRank test = signed_rank_test(std::vector<double>{-1, 2, 3, 4, 5, 0});
  EXPECT_EQ(test.pairs, 5U);
  EXPECT_EQ(test.negative, 1);
  EXPECT_EQ(test.positive, 14);
  EXPECT_EQ(test.p, 0.125);
  // All six of one sign: 2/64.
  EXPECT_EQ(signed_rank_test(std::vector<double>{1, 2, 3, 4, 5, 6}).p, 2.0 / 64);
  // Equal sizes, ranks 1.5 1.5 3, the sum 1.5 below: of 8 signs {}, {a}, {b} have at most 1.5; two sides:
  // 6/8.
  EXPECT_EQ(signed_rank_test(std::vector<double>{-2, 2, 4}).p, 0.75);
  EXPECT_EQ(signed_rank_test(std::vector<double>{0, 0}).p, 1);
}

TEST(RankStatistics, SignedRanksOfManyPairsAreNormal) {
  // n = 30 ranks, 1 … 10 negative: the sum 55 about 232.5 with variance 30·31·61/24 = 2363.75:
  // z = (232.5 - 55 - 0.5) / 48.618 = 3.6406, p = 0.000272.
  std::vector<double> differences;
  for (int i = 1; i <= 30; ++i) differences.push_back(i <= 10 ? -i : i);
  EXPECT_NEAR(signed_rank_test(differences).p, 0.000272, 2e-6);
}

TEST(RankStatistics, HolmMultipliesBySmallerAndSmallerCounts) {
  // Sorted .01 .02 .03 .5: times 4, 3, 2, 1: .04 .06 .06 .5
  EXPECT_THAT(holm(std::vector<double>{.03, .01, .5, .02}),
              ElementsAre(DoubleNear(.06, 1e-12), DoubleNear(.04, 1e-12), DoubleNear(.5, 1e-12),
                          DoubleNear(.06, 1e-12)));
}

}  // namespace
}  // namespace espalier
