#include "espalier/runtime/link_estimate.h"

#include <algorithm>
#include <cmath>

#include "espalier/runtime/statistics.h"

namespace espalier {
namespace {

struct Line {  // through what was measured at the two sizes
  double fixed = 0, per_byte = 0;
};

Line through(const std::array<double, 2>& at) {
  constexpr double kSpan = static_cast<double>(kMessageSizes[1] - kMessageSizes[0]);
  const double per_byte = std::max(0.0, (at[1] - at[0]) / kSpan);
  return {std::max(0.0, at[0] - per_byte * static_cast<double>(kMessageSizes[0])), per_byte};
}

EndpointCost endpoint(const Line& line) {
  EndpointCost cost;
  cost.fixed = round_duration(line.fixed);
  cost.picoseconds_per_byte = std::llround(1000 * line.per_byte);
  return cost;
}

}  // namespace

double mean_of_messages(const std::vector<double>& samples) {
  return samples.empty() ? 0 : trimmed_mean(samples, 0.1);
}

double usual_of_messages(const std::vector<double>& samples) {
  return samples.empty() ? 0 : median(samples);
}

MeasuredLink estimate_link(const MessageTimes& times) {
  const Line whole = through(times.one_way), sender = through(times.send), receiver = through(times.receive);
  MeasuredLink link;
  link.send = endpoint(sender);
  link.receive = endpoint(receiver);
  // On the wire is what is left of a message's way when both ends have had their part.
  constexpr double kLeast = 1e9 / static_cast<double>(kUnseenBandwidth);
  const double per_byte = std::max(whole.per_byte - sender.per_byte - receiver.per_byte, kLeast);
  link.bandwidth = std::llround(1e9 / per_byte);
  link.latency = round_duration(std::max(whole.fixed - sender.fixed - receiver.fixed, 1000.0));
  return link;
}

}  // namespace espalier
