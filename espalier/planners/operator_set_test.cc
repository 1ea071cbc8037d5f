#include "espalier/planners/operator_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "espalier/base/rng.h"

namespace espalier {
namespace {

std::vector<OperatorId> drawn(Rng& rng) {
  std::vector<OperatorId> operators;
  for (std::size_t id = 0; id < 24; ++id) {
    if (rng.below(2) == 0) operators.push_back(OperatorId(id));
  }
  return operators;
}

TEST(OperatorSet, UnionsDifferencesAndIntersectionsAreThoseOfLists) {
  Rng rng(3);
  for (int trial = 0; trial < 200; ++trial) {
    const std::vector<OperatorId> a = drawn(rng), b = drawn(rng);
    std::vector<OperatorId> both, either, only;
    std::ranges::set_intersection(a, b, std::back_inserter(both));
    std::ranges::set_union(a, b, std::back_inserter(either));
    std::ranges::set_difference(a, b, std::back_inserter(only));
    EXPECT_EQ(common(OperatorSet(a), OperatorSet(b)), OperatorSet(both));
    EXPECT_EQ(united(OperatorSet(a), OperatorSet(b)), OperatorSet(either));
    EXPECT_EQ(without(OperatorSet(a), OperatorSet(b)), OperatorSet(only));
  }
}

}  // namespace
}  // namespace espalier
