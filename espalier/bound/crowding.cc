#include "espalier/bound/crowding.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace espalier::internal {
namespace {

constexpr std::size_t kWork =
    4'000'000;                    // operators · ways · intervals that are looked at for one T, at most
constexpr double kLongest = 1.5;  // times the known bound: farther it does not look

class Crowding {
 public:
  Crowding(const Known& known, const Spread& work) : known_(known), work_(work) {
    const std::size_t passes = known.costs.least.size() * known.costs.ways.size() * 3;
    points_ =
        static_cast<std::size_t>(std::sqrt(static_cast<double>(kWork) / static_cast<double>(passes + 1)));
    points_ = std::min<std::size_t>(points_, 24);
  }

  bool worth_it() const { return points_ >= 3 && work_.all() > 0; }

  // Whether no step is as short as `time`.
  bool too_short(double time) const {
    const auto at = [&](std::size_t i) {
      return std::floor(time * static_cast<double>(i) / static_cast<double>(points_));
    };
    for (std::size_t length = points_; length > 0; --length) {
      for (std::size_t i = 0; i + length <= points_; ++i) {
        const double from = at(i), to = at(i + length);
        // Sums of rounded products: what is too much by less than a billionth is no proof.
        if (inside(time, from, to) > (to - from) * work_.all() * (1 + 1e-9)) return true;
      }
    }
    return false;
  }

 private:
  double inside(double time, double from, double to) const {
    const Chains& chains = known_.chains;
    double sum = 0;
    for (std::size_t i = 0; i < known_.costs.least.size(); ++i) {
      double least = std::numeric_limits<double>::max();
      for (const Way& way : known_.costs.ways) {
        if (!way.times[i]) continue;
        const auto part = [&](Duration pass, Duration before, Duration behind) {
          const double all = nanoseconds_of(pass);
          const double early = all - std::max(0.0, from - nanoseconds_of(before));
          const double late = all - std::max(0.0, time - nanoseconds_of(behind) - to);
          return std::max(0.0, std::min({early, late, to - from}));
        };
        const OperatorTimes& times = *way.times[i];
        const double parts = part(times.forward, chains.head[i], chains.tail_forward[i]) +
                             part(times.input, chains.ready[i], chains.tail_input[i]) +
                             part(times.weight, chains.ready[i], chains.own_update[i]);
        least = std::min(least, work_.weight(way.kind) * way.degree * static_cast<double>(way.count) * parts);
      }
      if (least < std::numeric_limits<double>::max()) sum += least;
    }
    return sum;
  }

  const Known& known_;
  const Spread& work_;
  std::size_t points_ = 0;
};

}  // namespace

Duration crowded_time(const Known& known, const Spread& work, Duration time) {
  const Crowding crowding(known, work);
  double low = nanoseconds_of(time);
  if (!crowding.worth_it() || low < 1 || !crowding.too_short(low)) return time;
  double high = std::ceil(low * kLongest);
  for (int step = 0; step < 12 && high - low > 1; ++step) {
    const double middle = std::floor((low + high) / 2);
    (crowding.too_short(middle) ? low : high) = middle;
  }
  return Duration(static_cast<std::int64_t>(low) + 1);
}

}  // namespace espalier::internal
