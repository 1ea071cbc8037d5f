#include "espalier/sim/range_maximum.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "espalier/base/rng.h"

namespace espalier::internal {
namespace {

TEST(RangeMaximum, EqualsAScanOfEveryRange) {
  Rng rng(1);
  for (const std::size_t size : {1u, 7u, 8u, 9u, 64u, 100u}) {
    std::vector<std::int64_t> values;
    for (std::size_t i = 0; i < size; ++i) values.push_back(static_cast<std::int64_t>(rng.below(1000)) - 500);
    const RangeMaximum table(values);
    for (std::size_t first = 0; first < size; ++first) {
      std::int64_t most = values[first];
      for (std::size_t last = first; last < size; ++last) {
        most = std::max(most, values[last]);
        ASSERT_EQ(table.of(first, last), most) << size << ": " << first << " to " << last;
      }
    }
  }
}

}  // namespace
}  // namespace espalier::internal
