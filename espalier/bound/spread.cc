#include "espalier/bound/spread.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace espalier::internal {
namespace {

constexpr double kNever = std::numeric_limits<double>::max();
constexpr double kFarthest = 1.5;  // times the known bound: the longest step that is looked at

}  // namespace

double Window::of(double pass, double head, double tail) const {
  return std::min(pass, std::max(0.0, before - head)) + std::min(pass, std::max(0.0, after - tail));
}

Spread::Spread(const Known& known) : known_(known), costs_(known.costs), place_(known) {
  one_kind_ = std::count(costs_.used.begin(), costs_.used.end(), 1) == 1;
  weigh();
}

double Spread::between(Window window, std::optional<double> step) const {
  double sum = 0;
  for (std::size_t i = 0; i < costs_.least.size(); ++i) {
    const double least = of_operator(i, window, step);
    if (least == kNever && step) return kNever;
    sum += least == kNever ? 0 : least;
  }
  for (const double bytes : costs_.shared) sum += of_update(bytes, window);
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
  if (!one_kind_) improve_weights();
  all_ = sum_of_weights();
  once_ = kNever;
  for (const Way& way : costs_.ways) {  // F and B of one stage, and its update, at least
    const double actions = 2 * static_cast<double>(way.count) * nanoseconds_of(way.overhead);
    const double update = costs_.updated.empty() ? 0 : costs_.update_fixed[way.kind];
    once_ = std::min(once_, weight_[way.kind] * way.degree * (actions + update));
  }
}

double Spread::sum_of_weights() const {
  double sum = 0;
  for (const Device& device : known_.cluster.devices()) sum += weight_[device.kind.index()];
  return sum;
}

// Any weights hold; the bound is concave in them. From those by speed, each kind's is tried in steps of 1/64
// and then of 1/1024 of it, on both sides.
void Spread::improve_weights() {
  const auto bound = [&] {
    double sum = 0;
    for (std::size_t i = 0; i < costs_.least.size(); ++i) {
      double least = kNever;
      for (const Way& way : costs_.ways) {
        if (!way.times[i]) continue;
        const double update = update_of(costs_.update_rate[way.kind], 0, costs_.own_bytes[i] / way.degree);
        least = std::min(least, weight_[way.kind] * (load(way, i) + way.degree * update));
      }
      sum += least == kNever ? 0 : least;
    }
    return sum / sum_of_weights();
  };
  double best = bound();
  for (const int parts : {64, 1024}) {
    for (std::size_t k = 0; k < weight_.size(); ++k) {
      if (!costs_.used[k]) continue;
      const double base = weight_[k];
      double kept = base;
      for (int step = -32; step <= 32; ++step) {
        weight_[k] = base * (parts + step) / parts;
        const double found = bound();
        if (found <= best * (1 + 1e-9)) continue;
        best = found;
        kept = weight_[k];
      }
      weight_[k] = kept;
    }
  }
}

// Ways of one micro-batch and degree stand together, one for each kind: a stage's replicas are all of these.
double Spread::of_operator(std::size_t op, Window window, std::optional<double> step) const {
  const auto kinds = static_cast<std::size_t>(std::count(costs_.used.begin(), costs_.used.end(), 1));
  double least = kNever;
  for (std::size_t group = 0; group * kinds < costs_.ways.size(); ++group) {
    const std::span<const Way> ways = std::span(costs_.ways).subspan(group * kinds, kinds);
    if (std::none_of(ways.begin(), ways.end(), [&](const Way& way) { return way.times[op].has_value(); })) {
      continue;
    }
    const Way& any = ways.front();
    const auto devices = static_cast<double>(known_.cluster.devices().size());
    Replicas replicas;
    replicas.most = std::max(1.0, std::min(static_cast<double>(any.count), std::floor(devices / any.degree)));
    if (step) {
      const std::optional<std::size_t> fewest = place_.fewest(op, *step, group);
      if (!fewest) continue;
      replicas.fewest = static_cast<double>(*fewest);
    }
    least = std::min(least, one_kind_ ? weight_[any.kind] * any.degree * of_way(any, op, window, replicas)
                                      : of_kinds(ways, op, window, replicas));
  }
  return least;
}

Spread::Passes Spread::passes_of(const Way& way, std::size_t op, Window window) const {
  const Chains& chains = known_.chains;
  const OperatorTimes& times = *way.times[op];
  const double forward = nanoseconds_of(times.forward), input = nanoseconds_of(times.input),
               weight = nanoseconds_of(times.weight);
  const double head = nanoseconds_of(chains.head[op]), ready = nanoseconds_of(chains.ready[op]);
  const Window start{window.before, 0}, finish{0, window.after};
  Passes passes;
  passes.all = forward + input + weight;
  passes.early = start.of(forward, head, 0) + start.of(input, ready, 0) + start.of(weight, ready, 0);
  passes.late = finish.of(forward, 0, nanoseconds_of(chains.tail_forward[op])) +
                finish.of(input, 0, nanoseconds_of(chains.tail_input[op])) +
                finish.of(weight, 0, nanoseconds_of(chains.own_update[op]));
  passes.first = std::max(0.0, window.before - head);
  const double bytes = costs_.own_bytes[op] / way.degree;
  passes.update = bytes > 0 ? update_of(costs_.update_rate[way.kind], 0, bytes) : 0;
  passes.sum = 2 * bytes * known_.rings.per_byte();
  return passes;
}

// All its replicas, r of them, take Σ passes, r updates and r - 1 times the sum's time. Before x each is busy
// for at most x - head. In the last y each is busy for at most y. The least over r of what is left is convex
// and piecewise linear in r.
double Spread::of_way(const Way& way, std::size_t op, Window window, Replicas replicas) const {
  const auto count = static_cast<double>(way.count);
  const Passes each = passes_of(way, op, window);
  const double all = count * each.all, early = count * each.early, late = count * each.late;
  const double last = window.after;
  const auto with = [&](double number) {
    const double r = std::clamp(number, replicas.fewest, replicas.most);
    const double beside = r * each.update + (r - 1) * each.sum;
    return all + beside - std::min(early, r * each.first) - std::min(late + beside, r * last);
  };
  double least = std::min(with(replicas.fewest), with(replicas.most));
  if (each.first > 0) least = std::min(least, with(early / each.first));
  const double grows = last - each.update - each.sum;
  if (grows != 0) least = std::min(least, with((late - each.sum) / grows));
  return std::max(0.0, least);
}

namespace {

// What is left of n micro-batches on r replicas of one kind: linear in (n, r) but where one of two limits of
// the replicas is reached, so that for all micro-batches on this kind it is linear between these points.
struct Point {
  double replicas = 0, left = 0;
};

// The least of the convex hull of the points where there are `fewest` to `most` replicas.
double least_between(const std::vector<Point>& points, double fewest, double most) {
  double least = kNever;
  for (const Point& a : points) {
    if (a.replicas >= fewest && a.replicas <= most) least = std::min(least, a.left);
    for (const Point& b : points) {
      for (const double at : {fewest, most}) {
        if (a.replicas >= at || b.replicas <= at) continue;
        const double part = (at - a.replicas) / (b.replicas - a.replicas);
        least = std::min(least, a.left + part * (b.left - a.left));
      }
    }
  }
  return least;
}

}  // namespace

// With several kinds of devices r replicas take the micro-batches in any parts: n of them and q of the
// replicas, n ≥ q, on one kind. The sum's time of each grows with r; that of the least r of a range is taken.
double Spread::of_kinds(std::span<const Way> ways, std::size_t op, Window window, Replicas replicas) const {
  double least = kNever;
  for (double from = replicas.fewest; from <= replicas.most;) {
    const double to = std::min(replicas.most, from < 4 ? from : std::floor(from * 1.5));
    std::vector<Point> points;
    for (const Way& way : ways) {
      if (!way.times[op]) continue;
      const auto count = static_cast<double>(way.count);
      const Passes each = passes_of(way, op, window);
      const double beside = each.update + each.sum * (from - 1) / from, last = window.after;
      const auto add = [&](double share) {  // replicas for each micro-batch
        const double left = each.all + share * beside - std::min(each.early, share * each.first) -
                            std::min(each.late + share * beside, share * last);
        points.push_back({count * share, weight_[way.kind] * way.degree * count * left});
      };
      add(0);
      add(1);
      if (each.early < each.first) add(each.early / each.first);
      if (each.late < last - beside) add(each.late / (last - beside));
    }
    least = std::min(least, least_between(points, from, to));
    from = to + 1;
  }
  return least == kNever ? kNever : std::max(0.0, least);
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
  best.window = {x, y};
  return best;
}

double replicated_time(const Known& known, const Spread& work, Window window, double time) {
  const auto too_short = [&](double step) {
    const double least = work.between(window, step);
    const double outside = std::floor(window.before) + std::floor(window.after);
    return least == kNever || (outside + least) * (1 - 1e-9) >= step;
  };
  if (known.costs.least.empty() || time < 1 || !too_short(time)) return time;
  double low = time, high = std::ceil(time * kFarthest);
  for (int step = 0; step < 40 && high - low > 1; ++step) {
    const double middle = std::floor((low + high) / 2);
    (too_short(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace espalier::internal
