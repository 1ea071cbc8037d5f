#include "espalier/bound/spread.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace espalier::internal {
namespace {

constexpr double kNever = std::numeric_limits<double>::max();

}  // namespace

double Window::of(double pass, double head, double tail) const {
  return std::min(pass, std::max(0.0, before - head)) + std::min(pass, std::max(0.0, after - tail));
}

Spread::Spread(const Known& known) : known_(known), costs_(known.costs) {
  one_kind_ = std::count(costs_.used.begin(), costs_.used.end(), 1) == 1;
  weigh();
}

double Spread::between(Window window) const {
  double sum = 0;
  for (std::size_t i = 0; i < costs_.least.size(); ++i) sum += of_operator(i, window);
  for (const double bytes : costs_.updated) sum += of_update(bytes, window);
  if (window.before == 0 && window.after == 0) sum += once_;
  return all_ > 0 ? sum / all_ : 0;
}

double Spread::load(const Way& way, std::size_t op) const {
  const OperatorTimes& times = *way.times[op];
  return static_cast<double>(way.count) * way.degree *
         nanoseconds_of(times.forward + times.input + times.weight);
}

void Spread::weigh() {
  const std::size_t kinds = costs_.used.size();
  std::vector<double> total(kinds, 0);
  for (std::size_t i = 0; i < costs_.least.size(); ++i) {
    std::vector<double> least(kinds, kNever);
    for (const Way& way : costs_.ways) {
      if (way.times[i]) least[way.kind] = std::min(least[way.kind], load(way, i));
    }
    for (std::size_t k = 0; k < kinds; ++k) total[k] += least[k] == kNever ? 0 : least[k];
  }
  for (const double bytes : costs_.updated) {
    for (std::size_t k = 0; k < kinds; ++k) {
      total[k] += update_of(costs_.update_rate[k], 0, bytes);
    }
  }
  weight_.assign(kinds, 0);
  for (std::size_t k = 0; k < kinds; ++k) {
    if (!costs_.used[k]) continue;
    if (total[k] <= 0) return;  // such a device does everything in no time
    weight_[k] = one_kind_ ? 1 : 1e9 / total[k];
  }
  for (const Device& device : known_.cluster.devices()) all_ += weight_[device.kind.index()];
  once_ = kNever;
  for (const Way& way : costs_.ways) {  // F and B of one stage, and its update, at least
    const double actions = 2 * static_cast<double>(way.count) * nanoseconds_of(way.overhead);
    const double update = costs_.updated.empty() ? 0 : costs_.update_fixed[way.kind];
    once_ = std::min(once_, weight_[way.kind] * way.degree * (actions + update));
  }
}

double Spread::of_operator(std::size_t op, Window window) const {
  double least = kNever;
  for (const Way& way : costs_.ways) {
    if (way.times[op]) least = std::min(least, weight_[way.kind] * way.degree * of_way(way, op, window));
  }
  return least == kNever ? 0 : least;
}

// All its replicas, r of them, take Σ passes; all but one have an update and a sum of gradients beside.
// Before x each is busy for at most x - head. In the last y each is busy for at most y, with passes or with
// what they have beside. The least over r ≥ 1 of what is left is convex and piecewise linear in r. With
// several kinds of devices, whose replicas mix, there are as many as micro-batches and for nothing.
double Spread::of_way(const Way& way, std::size_t op, Window window) const {
  const Chains& chains = known_.chains;
  const OperatorTimes& times = *way.times[op];
  const auto count = static_cast<double>(way.count);
  const double forward = nanoseconds_of(times.forward), input = nanoseconds_of(times.input),
               weight = nanoseconds_of(times.weight);
  const double all = count * (forward + input + weight);
  const double head = nanoseconds_of(chains.head[op]), ready = nanoseconds_of(chains.ready[op]);
  const double end = nanoseconds_of(chains.own_update[op]);
  const Window start{window.before, 0}, finish{0, window.after};
  const double early =
      count * (start.of(forward, head, 0) + start.of(input, ready, 0) + start.of(weight, ready, 0));
  const double late =
      count * (finish.of(forward, 0, nanoseconds_of(chains.tail_forward[op])) +
               finish.of(input, 0, nanoseconds_of(chains.tail_input[op])) + finish.of(weight, 0, end));
  if (!one_kind_) return std::max(0.0, all - early - late);
  const double bytes = costs_.own_bytes[op] / way.degree;
  const double another =
      update_of(costs_.update_rate[way.kind], 0, bytes) + 2 * bytes * known_.rings.per_byte();
  const double first = std::max(0.0, window.before - head), last = window.after;
  const double most =
      std::max(1.0, std::min(count, static_cast<double>(known_.cluster.devices().size()) / way.degree));
  const auto with = [&](double replicas) {
    const double r = std::clamp(replicas, 1.0, most), beside = (r - 1) * another;
    return all + beside - std::min(early, r * first) - std::min(late + beside, r * last);
  };
  double least = std::min(with(1), with(most));
  if (first > 0) least = std::min(least, with(early / first));
  if (last != another) least = std::min(least, with((late - another) / (last - another)));
  return std::max(0.0, least);
}

double Spread::of_update(double bytes, Window window) const {
  double least = kNever;
  for (std::size_t k = 0; k < weight_.size(); ++k) {
    if (!costs_.used[k]) continue;
    const double time = update_of(costs_.update_rate[k], 0, bytes);
    // A group's devices have a part each, rounded by itself.
    const double late = costs_.largest_degree * window.after + costs_.largest_degree - 1;
    least = std::min(least, weight_[k] * std::max(0.0, time - late));
  }
  return least;
}

namespace {

// No update begins before, whoever reads its parameter.
double first_update(const Known& known) {
  Duration first = known.chains.longest;
  for (std::size_t i = 0; i < known.costs.least.size(); ++i) {
    for (const TensorId input : known.graph.operators()[i].inputs) {
      const auto parameter = known.graph.tensor(input).parameter;
      if (!parameter || !known.graph.parameter(*parameter).trainable) continue;
      first = std::min(first, known.chains.head[i] + known.costs.least[i].forward);
    }
  }
  return nanoseconds_of(first);
}

}  // namespace

// Any x and y with x + y at most the longest chain will do; those of a grid are tried, x first.
SpreadTime spread_time(const Known& known, const Spread& work) {
  SpreadTime best{work.between({0, 0}), 0};
  const double plain = best.time;
  const double longest = nanoseconds_of(known.chains.longest);
  const std::size_t size = known.costs.least.size() * known.costs.ways.size();
  const auto steps = static_cast<int>(std::clamp<std::size_t>(600'000 / (size + 1), 6, 48));
  double x = 0;
  const auto consider = [&](Window window, double& kept, double candidate) {
    const double time = std::floor(window.before) + std::floor(window.after) + work.between(window);
    if (time <= best.time) return;
    best = {time, time - plain};
    kept = candidate;
  };
  const double latest = std::min(first_update(known), longest);
  for (int i = 1; i <= steps; ++i) {
    const double at = std::floor(latest * i / steps);
    consider({at, 0}, x, at);
  }
  double y = 0;
  for (int i = 1; i <= steps; ++i) {
    const double at = std::floor((longest - x) * i / steps);
    consider({x, at}, y, at);
  }
  // Rounding errors must not lift it above the truth; sums of whole numbers have none.
  best.time *= work.one_kind() && best.fill_drain == 0 ? 1 - 1e-12 : 1 - 1e-9;
  return best;
}

}  // namespace espalier::internal
