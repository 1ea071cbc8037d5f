#include "espalier/sim/waiting_queue.h"

#include <set>

#include "espalier/base/rng.h"
#include "gtest/gtest.h"

namespace espalier::internal {
namespace {

// Against a set, with phases of growth far beyond what is sorted, and of decay down to nothing.
TEST(WaitingQueue, TakesTheSmallestOfAll) {
  Rng rng(7);
  WaitingQueue<std::uint64_t> queue;
  for (int round = 0; round < 20; ++round) {
    constexpr std::size_t kMost = 4000;
    queue.clear();
    std::multiset<std::uint64_t> expected;
    std::uint64_t now = 0;
    for (std::size_t pushed = 0; pushed < kMost || !expected.empty();) {
      const bool grows = pushed / 500 % 2 == 0;
      const bool push = pushed < kMost && (expected.empty() || rng.below(grows ? 4 : 3) != (grows ? 0 : 1));
      if (push && (grows || rng.below(2) == 0)) {
        const std::uint64_t key = now + rng.below(round % 2 == 0 ? 50 : 1'000'000) * kMost + pushed++;
        queue.push(key);
        expected.insert(key);
      } else if (!expected.empty()) {
        ASSERT_FALSE(queue.empty());
        now = queue.pop();
        ASSERT_EQ(now, *expected.begin());
        expected.erase(expected.begin());
      }
    }
    ASSERT_TRUE(queue.empty());
  }
}

}  // namespace
}  // namespace espalier::internal
