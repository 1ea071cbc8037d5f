#include "espalier/planners/pareto_set.h"

#include <gtest/gtest.h>

#include "espalier/base/rng.h"

namespace espalier {
namespace {

using Set = ParetoSet<int, int>;

std::vector<int> items(const Set& set) {
  std::vector<int> found;
  for (const Set::Entry* entry : set.front()) found.push_back(entry->item);
  return found;
}

PlanPrice random_price(Rng& rng) {
  return {microseconds(static_cast<std::int64_t>(1 + rng.below(5000))),
          Bytes(static_cast<std::int64_t>(1 + rng.below(100'000))), 1 + rng.below(4)};
}

TEST(ParetoSet, KeepsWhatNothingDominatesByTime) {
  Set set;
  const auto add = [&](int item, std::int64_t ms, std::int64_t bytes, std::size_t depth) {
    set.add({milliseconds(ms), Bytes(bytes), depth}, item, [&] { return item; });
  };
  add(1, 10, 500, 4);
  add(2, 20, 200, 4);  // slower, less memory
  add(3, 30, 300, 4);  // dominated by 2
  add(4, 40, 600, 1);  // slower still, but without depth
  add(5, 40, 600, 2);  // dominated by 4
  EXPECT_EQ(items(set), (std::vector{1, 2, 4}));
}

TEST(ParetoSet, HoldsTheSameInWhateverOrderItemsCome) {
  Rng rng(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::pair<PlanPrice, int>> all;
    for (int i = 0; i < 300; ++i) all.emplace_back(random_price(rng), i);
    std::vector<int> first;
    for (int order = 0; order < 3; ++order) {
      Set set;
      for (const auto& [price, number] : all) set.add(price, number, [number = number] { return number; });
      if (order == 0) first = items(set);
      EXPECT_EQ(items(set), first);
      std::reverse(all.begin(), all.end());
      std::swap(all[rng.below(all.size())], all[rng.below(all.size())]);
    }
  }
}

// Beside rounding: for each item the front has one that is at most 1/64 worse in time and memory.
TEST(ParetoSet, CoversEveryItemToASixtyFourth) {
  Rng rng(4);
  Set set;
  std::vector<PlanPrice> all;
  for (int i = 0; i < 3000; ++i) {
    all.push_back(random_price(rng));
    set.add(all.back(), i, [i] { return i; });
  }
  const auto front = set.front();
  for (const PlanPrice& price : all) {
    EXPECT_TRUE(std::any_of(front.begin(), front.end(), [&](const Set::Entry* entry) {
      return 64 * entry->price.iteration.count() <= 65 * price.iteration.count() &&
             64 * entry->price.peak.count() <= 65 * price.peak.count() && entry->price.depth <= price.depth;
    }));
  }
}

}  // namespace
}  // namespace espalier
