#include "espalier/bound/one_place.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace espalier::internal {

OnePlace::OnePlace(const Known& known) : known_(known), costs_(known.costs) {
  devices_.assign(costs_.used.size(), 0);
  for (const Device& device : known.cluster.devices()) ++devices_[device.kind.index()];
  kinds_ = static_cast<std::size_t>(std::count(costs_.used.begin(), costs_.used.end(), 1));
}

bool OnePlace::fits(std::size_t op, double time) const {
  for (std::size_t ways = 0; ways * kinds_ < costs_.ways.size(); ++ways) {
    if (fewest(op, time, ways)) return true;
  }
  return false;
}

double OnePlace::least(std::size_t op, double time) const {
  double low = time, high = std::max(1.0, time);
  while (!fits(op, high)) low = high, high *= 2;
  while (high - low > 1) {
    const double middle = std::floor((low + high) / 2);
    (fits(op, middle) ? high : low) = middle;
  }
  return high;
}

std::optional<std::size_t> OnePlace::fewest(std::size_t op, double time, std::size_t ways) const {
  const std::size_t first = ways * kinds_;
  const Way& any = costs_.ways[first];
  const std::size_t most = largest_number(any);
  for (std::size_t replicas = 1; replicas <= most; ++replicas) {
    const double sum = sum_of(op, any, replicas);
    std::vector<std::pair<double, std::size_t>> shares;
    for (std::size_t k = first; k < first + kinds_; ++k) {
      const Way& way = costs_.ways[k];
      if (way.times[op]) shares.push_back({share(way, op, time, sum), devices_[way.kind]});
    }
    std::sort(shares.begin(), shares.end(), std::greater<>());
    double done = 0;
    std::size_t left = replicas;
    for (const auto& [each, devices] : shares) {
      const std::size_t taken = std::min(left, devices);
      done += each * static_cast<double>(taken);
      left -= taken;
    }
    if (done >= static_cast<double>(any.count)) return replicas;
  }
  return std::nullopt;
}

std::size_t OnePlace::most(std::size_t op, double time, std::size_t ways) const {
  const std::size_t first = ways * kinds_;
  const Way& any = costs_.ways[first];
  const auto may_be = [&](std::size_t replicas) {
    const double sum = sum_of(op, any, replicas);
    std::size_t devices = 0;
    for (std::size_t k = first; k < first + kinds_; ++k) {
      const Way& way = costs_.ways[k];
      if (way.times[op] && share(way, op, time, sum) >= 1) devices += devices_[way.kind];
    }
    return devices >= replicas;
  };
  std::size_t low = 1, high = std::max<std::size_t>(largest_number(any), 1);
  if (may_be(high)) return high;
  while (high - low > 1) {  // a sum over more takes no less
    const std::size_t middle = (low + high) / 2;
    (may_be(middle) ? low : high) = middle;
  }
  return low;
}

std::size_t OnePlace::largest_number(const Way& way) const {
  const auto groups = static_cast<std::int64_t>(known_.cluster.devices().size() / way.degree);
  return static_cast<std::size_t>(std::min<std::int64_t>(way.count, groups));
}

double OnePlace::sum_of(std::size_t op, const Way& way, std::size_t replicas) const {
  const auto bytes = static_cast<std::int64_t>(std::min(costs_.own_bytes[op] / way.degree, 0x1p61));
  return replicas > 1 && bytes > 0 ? known_.rings.time(replicas, bytes) : 0;
}

double OnePlace::share(const Way& way, std::size_t op, double time, double sum) const {
  const Chains& chains = known_.chains;
  const OperatorTimes& times = *way.times[op];
  const double overhead = nanoseconds_of(way.overhead);
  const double forward = nanoseconds_of(times.forward) + overhead,
               input = nanoseconds_of(times.input) + overhead;
  const double weight = nanoseconds_of(times.weight);
  const double bytes = costs_.own_bytes[op] / way.degree;
  const double own =
      sum + (bytes > 0 ? update_of(costs_.update_rate[way.kind], costs_.update_fixed[way.kind], bytes) : 0);
  const double head = nanoseconds_of(chains.head[op]), ready = nanoseconds_of(chains.ready[op]);
  const double tail = nanoseconds_of(chains.tail_input[op]);
  double share = static_cast<double>(way.count);
  const auto limit = [&](double room, double each) {
    if (room < 0) {
      share = 0;
    } else if (each > 0) {
      share = std::min(share, std::floor(room / each * (1 + 1e-12)));
    }
  };
  limit(time - head - own, forward + input + weight);
  limit(time - ready - own, input + weight);
  limit(time - head - tail, forward + input);
  limit(time - ready - tail, input);
  return share;
}

}  // namespace espalier::internal
