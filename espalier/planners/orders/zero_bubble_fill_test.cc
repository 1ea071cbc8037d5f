#include "espalier/planners/orders/zero_bubble_fill.h"

#include <gtest/gtest.h>

#include <array>

#include "espalier/base/rng.h"

namespace espalier {
namespace {

// Whether each place can do its list in that order, F after the F before it and I after the I behind it; and
// never holds more than it has room for.
bool can_run(const LineCosts& costs, const LineOrder& order, std::size_t m) {
  const std::size_t places = order.size();
  std::vector<std::array<std::size_t, 3>> done(places, {0, 0, 0});
  std::vector<std::size_t> at(places, 0);
  std::vector<Bytes> held(places);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t j = 0; j < places; ++j) {
      for (; at[j] < order[j].size(); ++at[j], moved = true) {
        const ActionKind kind = order[j][at[j]].kind;
        auto& [f, i, w] = done[j];
        if (kind == ActionKind::kForward) {
          if (j > 0 && done[j - 1][0] == f) break;
          ++f;
          held[j] += costs.taken[j];
        } else if (kind == ActionKind::kInputGradient) {
          if (i == f || (j + 1 < places && done[j + 1][1] == i)) break;
          ++i;
          held[j] -= costs.freed[j];
        } else {
          if (w == i) return false;
          ++w;
          held[j] -= costs.taken[j] - costs.freed[j];
        }
        if (held[j] > costs.room[j]) return false;
      }
    }
  }
  for (std::size_t j = 0; j < places; ++j) {
    if (at[j] < order[j].size() || done[j] != std::array{m, m, m}) return false;
  }
  return true;
}

TEST(ZeroBubbleFill, OrdersOfPlacesWithAnyRoomCanRun) {
  Rng rng(11);
  std::size_t made = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::size_t places = 2 + rng.below(4);
    StageLine line;
    line.micro_batches = 1 + static_cast<std::uint32_t>(rng.below(6));
    LineCosts costs;
    const auto draw = [&] { return microseconds(static_cast<std::int64_t>(rng.below(900))); };
    for (std::size_t j = 0; j < places; ++j) {
      line.devices.push_back(DeviceId(j));
      for (auto* times : {&costs.forward, &costs.input, &costs.weights, &costs.arrives, &costs.returns}) {
        times->push_back(draw());
      }
      costs.taken.emplace_back(100);
      costs.freed.emplace_back(static_cast<std::int64_t>(rng.below(101)));
      costs.room.emplace_back(100 * static_cast<std::int64_t>(1 + rng.below(7)));
    }
    for (const FilledOrder& fill : zero_bubble_fills(line, costs)) {
      ASSERT_TRUE(can_run(costs, fill.order, line.micro_batches)) << round;
      ++made;
    }
  }
  EXPECT_GT(made, 3000U);
}

}  // namespace
}  // namespace espalier
