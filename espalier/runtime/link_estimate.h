#pragma once

// From times of messages of two sizes to a link's latency, bandwidth and endpoints: a line through the two
// sizes for each, and what the endpoints take off the way.

#include <array>
#include <cstdint>
#include <vector>

#include "espalier/cost/cost_table.h"

namespace espalier {

// Bytes of the messages that are measured.
constexpr std::array<std::int64_t, 2> kMessageSizes{std::int64_t{4} << 10, std::int64_t{1} << 20};

// What a message of each size takes, in nanoseconds.
struct MessageTimes {
  std::array<double, 2> one_way{};  // from the call that sends to the end of the receiver's wait
  std::array<double, 2> send{};     // of that, the sender's part
  std::array<double, 2> receive{};  // the receiver's part
};

MeasuredLink estimate_link(const MessageTimes& times);

// The bandwidth of a link on whose way bytes take no time that could be seen: both ends take all of it.
inline constexpr std::int64_t kUnseenBandwidth = 1'000'000'000'000;

// One figure for many samples; 0 for none, as a worker has that takes no part. A message is slow now and
// then, and by much: the mean counts that. It leaves out the slowest and the fastest tenth, so that a few
// stalls of the host do not decide.
double mean_of_messages(const std::vector<double>& samples);
// Where some samples measured something else, such as the wait for a message that came late.
double usual_of_messages(const std::vector<double>& samples);

}  // namespace espalier
