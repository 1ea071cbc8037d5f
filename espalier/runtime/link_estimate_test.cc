#include "espalier/runtime/link_estimate.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

// Nanoseconds of a message of each size: a fixed part and a part for each KiB.
std::array<double, 2> line(double fixed, double per_kibibyte) {
  return {fixed + 4 * per_kibibyte, fixed + 1024 * per_kibibyte};
}

TEST(LinkEstimate, WhatTheEndpointsTakeIsNotOnTheWire) {
  // A way of 50 µs + 1024 ns/KiB; of that the sender takes 10 µs + 102.4, the receiver 5 µs + 409.6.
  const MeasuredLink link = estimate_link(
      {.one_way = line(50'000, 1024), .send = line(10'000, 102.4), .receive = line(5'000, 409.6)});
  EXPECT_EQ(link.latency, microseconds(35));
  EXPECT_EQ(link.send.fixed, microseconds(10));
  EXPECT_EQ(link.send.picoseconds_per_byte, 100);
  EXPECT_EQ(link.receive.fixed, microseconds(5));
  EXPECT_EQ(link.receive.picoseconds_per_byte, 400);
  EXPECT_EQ(link.bandwidth, 2'000'000'000);  // 0.5 ns a byte are left
}

TEST(LinkEstimate, NoiseMakesNothingNegative) {
  const MeasuredLink link =
      estimate_link({.one_way = {9'000, 8'000}, .send = {9'500, 9'000}, .receive = {0, 0}});
  EXPECT_EQ(link.latency, microseconds(1));
  EXPECT_EQ(link.send.picoseconds_per_byte, 0);
  EXPECT_GT(link.bandwidth, 0);
}

TEST(LinkEstimate, AWorkerWithoutSamplesCountsNothing) {
  EXPECT_EQ(mean_of_messages({}), 0);
  EXPECT_EQ(usual_of_messages({}), 0);
  EXPECT_EQ(usual_of_messages({3, 1, 900}), 3);
}

}  // namespace
}  // namespace espalier
