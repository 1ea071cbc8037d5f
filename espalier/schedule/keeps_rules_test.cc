#include "espalier/schedule/keeps_rules.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "espalier/base/rng.h"
#include "espalier/schedule/order_file.h"
#include "espalier/schedule/schedule.h"
#include "testing/random_orders.h"
#include "testing/random_staged_model.h"

namespace espalier {
namespace {

using espalier::testing::add_halves_and_slots;
using espalier::testing::random_orders;
using espalier::testing::random_staged_model;
using espalier::testing::RandomModel;
using Lists = std::vector<std::vector<Action>>;

// Something that a planner gets wrong: an action too many, too few, elsewhere, of another kind or number.
void spoil(Lists& lists, Rng& rng) {
  std::vector<Action>& list = lists[rng.below(lists.size())];
  if (list.empty()) return;
  const std::size_t at = rng.below(list.size()), other = rng.below(list.size());
  const auto place = list.begin() + static_cast<std::ptrdiff_t>(at);
  switch (rng.below(6)) {
    case 0:
      std::swap(list[at], list[other]);
      return;
    case 1:
      list.erase(place);
      return;
    case 2:
      list.insert(place, list[other]);
      return;
    case 3: {
      std::vector<Action>& target = lists[rng.below(lists.size())];
      target.push_back(*place);
      if (rng.below(2) == 0) list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
      return;
    }
    case 4:
      list[at].micro_batch += rng.below(2) == 0 ? 1 : 0xffffffff;
      return;
    default:
      if (list[at].kind != ActionKind::kTieSum && list[other].kind != ActionKind::kTieSum) {
        list[at].kind = list[other].kind;
      }
      return;
  }
}

// Without what says that lists wait in a circle.
bool is_accepted(const StagedModel& model, const Lists& lists) {
  const std::vector<std::string> problems = check_schedule(model, with_channels(model, lists));
  return problems.empty() || problems[0].rfind("deadlock", 0) == 0;
}

TEST(KeepsRules, SaysWhatTheCheckerSays) {
  std::size_t kept = 0, broken = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    RandomModel random = random_staged_model(rng, {.unequal_sizes = rng.below(3) == 0});
    const std::size_t devices = random.cluster.devices().size();
    add_halves_and_slots(rng, random.model);
    if (rng.below(2) == 0) {
      OrderLists orders = random_orders(
          rng, random.model, devices,
          {.split = rng.below(2) == 0, .early_ends = rng.below(2) == 0, .depth_first = rng.below(3) > 0});
      random.model = with_orders(std::move(random.model), Orders(std::move(orders)));
    }
    const Lists lists = make_schedule(random.model, devices).devices;
    ASSERT_TRUE(keeps_rules(random.model, lists));
    for (int i = 0; i < 12; ++i) {
      Lists spoilt = lists;
      for (std::uint64_t times = 1 + rng.below(2); times > 0; --times) spoil(spoilt, rng);
      const bool accepted = is_accepted(random.model, spoilt);
      ASSERT_EQ(keeps_rules(random.model, spoilt), accepted)
          << print_schedule(random.model, random.cluster, {spoilt, {}});
      ++(accepted ? kept : broken);
    }
  }
  EXPECT_GT(kept, 300u);
  EXPECT_GT(broken, 3'000u);
}

}  // namespace
}  // namespace espalier
