#include "espalier/runtime/clock_offset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "espalier/base/rng.h"

namespace espalier {
namespace {

Duration ns(std::int64_t n) {
  return Duration(n);
}

TEST(ClockOffset, EqualWaysGiveTheOffsetItself) {
  // Their clock is 1,000 ahead; 10 there, 5 to answer, 10 back.
  const ClockQuestion question{
      .asked = ns(100), .returned = ns(125), .received = ns(1'110), .answered = ns(1'115)};
  EXPECT_EQ(estimate_offset(std::vector{question}), (ClockOffset{ns(1'000), ns(10)}));
}

TEST(ClockOffset, TheShortestWayDecides) {
  const ClockQuestion slow{.asked = ns(0), .returned = ns(200), .received = ns(-800), .answered = ns(-800)};
  const ClockQuestion quick{
      .asked = ns(300), .returned = ns(306), .received = ns(-697), .answered = ns(-697)};
  EXPECT_EQ(estimate_offset(std::vector{slow, quick, slow}), (ClockOffset{ns(-1'000), ns(3)}));
}

TEST(ClockOffset, TheTruthIsWithinTheUncertaintyHoweverUnequalTheWays) {
  Rng rng(11);
  for (int i = 0; i < 1000; ++i) {
    const auto offset = static_cast<std::int64_t>(rng.below(2'000'000'000)) - 1'000'000'000;
    std::vector<ClockQuestion> questions;
    std::int64_t now = 5'000'000;
    std::int64_t shortest = 1 << 30;
    for (std::uint64_t k = 0; k < 1 + rng.below(8); ++k) {
      const auto there = static_cast<std::int64_t>(rng.below(100'000)),
                 back = static_cast<std::int64_t>(rng.below(100'000)),
                 work = static_cast<std::int64_t>(rng.below(1'000));
      questions.push_back({.asked = ns(now),
                           .returned = ns(now + there + work + back),
                           .received = ns(now + there + offset),
                           .answered = ns(now + there + work + offset)});
      shortest = std::min(shortest, there + back);
      now += there + work + back + 1'000;
    }
    const ClockOffset estimate = estimate_offset(questions);
    EXPECT_LE(std::abs(estimate.offset.count() - offset), estimate.uncertainty.count());
    EXPECT_EQ(estimate.uncertainty.count(), (shortest + 1) / 2);
  }
}

TEST(ClockOffset, AProcessKnowsItsClock) {
  EXPECT_EQ(name_of_clock("a"), name_of_clock("a"));
  EXPECT_NE(name_of_clock("a"), "");
}

}  // namespace
}  // namespace espalier
