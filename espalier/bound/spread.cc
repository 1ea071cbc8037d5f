#include "espalier/bound/spread.h"

#include <algorithm>
#include <cmath>
#include <functional>
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
  kinds_ = static_cast<std::size_t>(std::count(costs_.used.begin(), costs_.used.end(), 1));
  one_kind_ = kinds_ == 1;
  weigh();
}

std::size_t Spread::groups() const {
  return kinds_ == 0 ? 0 : costs_.ways.size() / kinds_;
}

template <typename F>
Spread::Allowed Spread::allowed_by(F replicas) const {
  Allowed allowed;
  for (std::size_t op = 0; op < costs_.least.size(); ++op) {
    for (std::size_t group = 0; group < groups(); ++group) allowed.push_back(replicas(op, group));
  }
  return allowed;
}

Spread::Allowed Spread::allowed_within(double step) const {
  return allowed_by([&](std::size_t op, std::size_t group) -> std::optional<Replicas> {
    const std::optional<std::size_t> fewest = place_.fewest(op, step, group);
    if (!fewest) return std::nullopt;
    const std::size_t most = std::max(*fewest, place_.most(op, step, group));
    return Replicas{static_cast<double>(*fewest), static_cast<double>(most)};
  });
}

Spread::Allowed Spread::at_most_within(double step) const {
  return allowed_by([&](std::size_t op, std::size_t group) {
    return Replicas{1, static_cast<double>(place_.most(op, step, group))};
  });
}

double Spread::between(const Window& window, const Allowed* allowed) const {
  double sum = 0;
  Scratch scratch;
  for (std::size_t i = 0; i < costs_.least.size(); ++i) {
    const double least = of_operator(i, window, allowed, scratch);
    if (least == kNever && allowed) return kNever;
    sum += least == kNever ? 0 : least;
  }
  for (const double bytes : costs_.shared) sum += of_update(bytes, window);
  for (std::size_t k = 0; k < window.price.size(); ++k) sum -= window.price[k] * known_.room.bytes[k];
  if (window.before == 0 && window.after == 0) sum += once_;
  return all_ > 0 ? std::max(0.0, sum) / all_ : 0;
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
double Spread::of_operator(std::size_t op, const Window& window, const Allowed* allowed,
                           Scratch& scratch) const {
  double least = kNever;
  for (std::size_t group = 0; group < groups(); ++group) {
    const std::span<const Way> ways = std::span(costs_.ways).subspan(group * kinds_, kinds_);
    if (std::none_of(ways.begin(), ways.end(), [&](const Way& way) { return way.times[op].has_value(); })) {
      continue;
    }
    const Way& any = ways.front();
    const auto devices = static_cast<double>(known_.cluster.devices().size());
    Replicas replicas;
    replicas.most = std::max(1.0, std::min(static_cast<double>(any.count), std::floor(devices / any.degree)));
    if (allowed != nullptr) {
      const std::optional<Replicas>& here = (*allowed)[op * groups() + group];
      if (!here) continue;
      replicas = *here;
    }
    least = std::min(least, one_kind_ ? weight_[any.kind] * any.degree * of_way(any, op, window, replicas)
                                      : of_kinds(ways, op, window, replicas, scratch));
  }
  return least;
}

// Numbers of replicas whose sum of gradients has links of one width.
template <typename F>
void Spread::for_each_width(const Replicas& replicas, F f) const {
  for (const Rings::Range& range : known_.rings.ranges()) {
    const double fewest = std::max(replicas.fewest, range.fewest), most = std::min(replicas.most, range.most);
    if (fewest <= most) f(fewest, most, range.per_byte);
  }
}

Spread::Passes Spread::passes_of(const Way& way, std::size_t op, const Window& window) const {
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
  passes.summed = 2 * bytes;
  if (!window.price.empty()) price_memory(way, op, window, passes);
  return passes;
}

// Whose forward pass has begun before x, and whose backward pass has not ended by then, is held: what it can
// do before x counts less by the price of that. (Recomputed it holds nothing, and does once more all that it
// can do before x; whoever recomputes has the memory.)
void Spread::price_memory(const Way& way, std::size_t op, const Window& window, Passes& passes) const {
  const double price = window.price[way.kind], unit = weight_[way.kind];
  double held = 0;
  for (const Kept& kept : way.kept[op]) {
    if (nanoseconds_of(kept.until) > window.before) held += kept.bytes;
  }
  if (passes.early > 0) {
    const double worth = std::max(0.0, 1 - price * held / (unit * passes.early));
    passes.early *= worth;
    passes.first *= worth;
  }
  passes.state = price * known_.room.state[op] / (unit * way.degree);
}

// All its replicas, r of them, take Σ passes and r updates. Before x each is busy for at most x - head.
// Behind a replica's last pass come its part of the sum, (r - 1) / r of what is called so here, and its
// update: so in the last y it is busy with passes for at most y less these. What is left is piecewise linear
// in r.
double Spread::of_way(const Way& way, std::size_t op, const Window& window, const Replicas& replicas) const {
  const auto count = static_cast<double>(way.count);
  const Passes each = passes_of(way, op, window);
  const double all = count * each.all, early = count * each.early, late = count * each.late;
  const double last = window.after;
  double least = kNever;
  for_each_width(replicas, [&](double fewest, double most, double per_byte) {
    const double each_sum = each.summed * per_byte;
    const auto consider = [&](double number) {
      const double r = std::clamp(number, fewest, most);
      const double passes_in_last = std::max(0.0, r * (last - each.update) - (r - 1) * each_sum);
      least = std::min(least, all + r * (each.update - std::min(each.update, last)) + r * each.state -
                                  std::min(early, r * each.first) - std::min(late, passes_in_last));
    };
    const auto consider_beside = [&](double number) {
      consider(std::floor(number));
      consider(std::ceil(number));
    };
    consider(fewest);  // the least is at an end or where a piece begins
    consider(most);
    if (each.first > 0) consider_beside(early / each.first);
    const double grows = last - each.update - each_sum;
    if (grows != 0) consider_beside((late - each_sum) / grows);
    if (grows < 0) consider_beside(-each_sum / grows);
  });
  return window.price.empty() ? std::max(0.0, least) : least;
}

namespace {

using Point = Spread::Point;

// Leaves those of the points below which no line between two others passes, by replicas (Andrew, 1979).
void keep_lower_hull(std::vector<Point>& points) {
  std::sort(points.begin(), points.end(), [](const Point& a, const Point& b) {
    return a.replicas != b.replicas ? a.replicas < b.replicas : a.left < b.left;
  });
  std::size_t kept = 0;
  for (const Point& next : points) {
    if (kept > 0 && points[kept - 1].replicas == next.replicas) continue;
    const auto is_below = [&](const Point& a, const Point& b) {  // the line from a to the next, at b
      return (next.left - a.left) * (b.replicas - a.replicas) <=
             (b.left - a.left) * (next.replicas - a.replicas);
    };
    while (kept > 1 && is_below(points[kept - 2], points[kept - 1])) --kept;
    points[kept++] = next;
  }
  points.resize(kept);
}

// The least of a lower hull where there are `fewest` to `most` replicas, if it is below `least`.
double least_between(const std::vector<Point>& hull, double fewest, double most, double least) {
  for (std::size_t i = 0; i < hull.size(); ++i) {
    const Point& a = hull[i];
    if (a.replicas >= fewest && a.replicas <= most) least = std::min(least, a.left);
    if (i + 1 == hull.size()) break;
    const Point& b = hull[i + 1];
    for (const double at : {fewest, most}) {
      if (a.replicas >= at || b.replicas <= at) continue;
      const double part = (at - a.replicas) / (b.replicas - a.replicas);
      least = std::min(least, a.left + part * (b.left - a.left));
    }
  }
  return least;
}

}  // namespace

Spread::Scratch::Answer& Spread::Scratch::answer_for(const Replicas& replicas) {
  std::size_t hash = 0;
  for (const double each :
       {kinds.front().each.all, kinds.front().each.early, replicas.fewest, replicas.most}) {
    hash = hash * 31 + std::hash<double>()(each);
  }
  return answers[hash % answers.size()];
}

double Spread::of_kinds(std::span<const Way> ways, std::size_t op, const Window& window,
                        const Replicas& replicas, Scratch& scratch) const {
  scratch.kinds.clear();
  for (const Way& way : ways) {
    if (!way.times[op]) continue;
    const auto count = static_cast<double>(way.count);
    scratch.kinds.push_back({passes_of(way, op, window), count, weight_[way.kind] * way.degree * count});
  }
  if (scratch.kinds.empty()) return kNever;
  Scratch::Answer& answer = scratch.answer_for(replicas);
  if (answer.kinds != scratch.kinds || answer.replicas != replicas) {
    answer = {scratch.kinds, replicas, least_of_kinds(window, replicas, scratch)};
  }
  return answer.least;
}

// With several kinds of devices r replicas take the micro-batches in any parts: n of them and q of the
// replicas, n ≥ q, on one kind. The sum's time of each grows with r; that of the least r of a range is taken.
// Where the window has no last part, sums do not count, and the points are those of all r.
double Spread::least_of_kinds(const Window& window, const Replicas& replicas, Scratch& scratch) const {
  const double last = window.after;
  std::vector<Point>& points = scratch.points;
  const auto find_points = [&](double fewest, double per_byte) {
    points.clear();
    for (const Scratch::Kind& kind : scratch.kinds) {
      const Passes& each = kind.each;
      const double updated = std::min(each.update, last);
      const double sum = each.summed * per_byte * (fewest - 1) / fewest;
      const double for_passes = std::max(0.0, last - each.update - sum);
      const auto add = [&](double share) {  // replicas for each micro-batch
        const double left = each.all + share * (each.update - updated + each.state) -
                            std::min(each.early, share * each.first) -
                            std::min(each.late, share * for_passes);
        points.push_back({kind.count * share, kind.weight * left});
      };
      add(0);
      add(1);
      if (each.early < each.first) add(each.early / each.first);
      if (each.late < for_passes) add(each.late / for_passes);
    }
    keep_lower_hull(points);
  };
  if (last == 0) find_points(1, 0);
  double least = kNever;
  for_each_width(replicas, [&](double fewest, double most, double per_byte) {
    for (double from = fewest; from <= most;) {
      const double to = std::min(most, from < 4 ? from : std::floor(from * 1.5));
      if (last > 0) find_points(from, per_byte);
      least = least_between(points, from, to, least);
      from = to + 1;
    }
    least = std::max(0.0, least);
  });
  return least;
}

double Spread::of_update(double bytes, const Window& window) const {
  double least = kNever;
  for (std::size_t k = 0; k < weight_.size(); ++k) {
    if (!costs_.used[k]) continue;
    const double time = update_of(costs_.update_rate[k], 0, bytes);
    // A group's devices have a part each, rounded by itself.
    const double late = costs_.largest_degree * window.after + costs_.largest_degree - 1;
    const double memory = window.price.empty() ? 0 : window.price[k] * known_.room.per_parameter * bytes;
    least = std::min(least, weight_[k] * std::max(0.0, time - late) + memory);
  }
  return least;
}

namespace {

// No update begins before, whoever reads its parameter, nor a sum of gradients.
double first_update(const Known& known) {
  Duration first = known.chains.longest;
  for (std::size_t i = 0; i < known.costs.least.size(); ++i) {
    for (const TensorId input : known.graph.operators()[i].inputs) {
      const auto parameter = known.graph.tensor(input).parameter;
      if (!parameter || !known.graph.parameter(*parameter).trainable) continue;
      const OperatorTimes& own = known.costs.least[i];
      first = std::min(first, known.chains.ready[i] + own.input + own.weight);
    }
  }
  return nanoseconds_of(first);
}

// A price of memory with which the window says most. For each kind of devices alone and for all alike: what
// it says is concave in the price.
class Prices {
 public:
  Prices(const Known& known, const Spread& work) : known_(known), work_(work) {
    const std::size_t kinds = known.room.bytes.size();
    for (std::size_t k = 0; k < kinds; ++k) {
      if (!known.costs.used[k]) continue;
      directions_.emplace_back(kinds, 0).at(k) = work.weight(k);
    }
    if (directions_.size() < 2) return;
    std::vector<double> all(kinds, 0);
    for (std::size_t k = 0; k < kinds; ++k) all[k] = known.costs.used[k] ? work.weight(k) : 0;
    directions_.push_back(std::move(all));
  }

  // The window with another price if that says more; `allowed` as in Spread::between. Looks closely only
  // where it may come to say `wanted`.
  Window improved(const Window& window, double wanted, const Spread::Allowed* allowed) const {
    Window best = window;
    double most = work_.between(window, allowed);
    for (const std::vector<double>& direction : directions_) {
      // At this price all room is worth as much as all devices in a step, about.
      const double high = work_.between({}) * work_.all() / room_at(direction);
      double price = high * kLowest;
      const auto climb = [&](double factor) {
        for (double next = price * factor; next <= high / kLowest; next *= factor) {
          Window priced = at_price(window, direction, next);
          const double time = work_.between(priced, allowed);
          if (time <= most) return;
          most = time;
          price = next;
          best = std::move(priced);
        }
      };
      climb(1);
      if (best.price.empty()) continue;
      climb(8);
      if (most < kPromising * wanted) continue;
      for (const double factor : {1.0 / 2, 2.0, 1.2, 1.0 / 1.2}) climb(factor);
    }
    return best;
  }

 private:
  static constexpr double kLowest = 1e-4, kPromising = 0.8;

  double room_at(const std::vector<double>& prices) const {
    double sum = 0;
    for (std::size_t k = 0; k < prices.size(); ++k) sum += prices[k] * known_.room.bytes[k];
    return sum;
  }
  static Window at_price(Window window, std::vector<double> prices, double factor) {
    for (double& price : prices) price *= factor;
    window.price = std::move(prices);
    return window;
  }

  const Known& known_;
  const Spread& work_;
  std::vector<std::vector<double>> directions_;
};

constexpr int kNearby = 4, kFiner = 40;  // times that are looked at beside the best of the grid

}  // namespace

// Any x and y with x + y at most the longest chain will do; those of a grid are tried, x first. A step takes
// at least half as much again as all work or the longest chain, or no operator has more replicas than so
// short a step allows, in which each waits for the sum of them all.
SpreadTime spread_time(const Known& known, const Spread& work) {
  SpreadTime best{work.between({}), 0};
  const double plain = best.time, longest = nanoseconds_of(known.chains.longest);
  const double farthest = std::floor(kFarthest * std::max(plain, longest));
  const Spread::Allowed allowed = work.at_most_within(farthest);
  const std::size_t size = known.costs.least.size() * known.costs.ways.size();
  const auto steps = static_cast<int>(std::clamp<std::size_t>(600'000 / (size + 1), 6, 48));
  const auto consider = [&](const Window& window) {
    const double least = work.between(window, &allowed);
    const double time = std::min(farthest, std::floor(window.before) + std::floor(window.after) + least);
    if (time <= best.time) return;
    best.time = time;
    best.window = window;
  };
  const double latest = std::min(first_update(known), longest);
  for (int i = 1; i <= steps; ++i) consider({std::floor(latest * i / steps), 0, {}});
  for (double reach = latest / steps; reach > latest / steps / kFiner; reach /= kNearby) {
    const double around = best.window.before;
    for (int i = -kNearby; i <= kNearby; ++i) {
      const double at = std::floor(around + reach * i / kNearby);
      if (at > 0 && at <= latest) consider({at, 0, {}});
    }
  }
  const double without_memory = best.time;
  if (!known.room.bytes.empty() && work.all() > 0) {
    const Prices prices(known, work);
    const auto points =
        static_cast<int>(std::clamp<std::size_t>((work.one_kind() ? 16'000 : 8'000) / (size + 1), 2, 12));
    for (int i = 0; i <= points; ++i) {
      const double at = std::floor(latest * i / points);
      consider(prices.improved({at, 0, {}}, best.time - at, &allowed));
    }
  }
  best.memory = best.time - without_memory;
  Window window = best.window;
  for (int i = 1; i <= steps; ++i) {
    window.after = std::floor((longest - window.before) * i / steps);
    consider(window);
  }
  best.fill_drain = best.time - plain - best.memory;
  // Rounding errors must not lift it above the truth; sums of whole numbers have none.
  best.time *= work.one_kind() && best.time == plain ? 1 - 1e-12 : 1 - 1e-9;
  return best;
}

namespace {

// What a window says of steps that need replicas.
class Replicated {
 public:
  explicit Replicated(const Spread& work) : work_(work) {}

  bool too_short(const Window& window, double step) const {
    const Spread::Allowed allowed = work_.allowed_within(step);
    const double least = work_.between(window, &allowed);
    const double outside = std::floor(window.before) + std::floor(window.after);
    return least == kNever || (outside + least) * (1 - 1e-9) >= step;
  }

  // The longest step that is too short, if `time` is.
  double longest(const Window& window, double time) const {
    if (!too_short(window, time)) return time;
    double low = time, high = std::ceil(time * kFarthest);
    for (int step = 0; step < 40 && high - low > 1; ++step) {
      const double middle = std::floor((low + high) / 2);
      (too_short(window, middle) ? low : high) = middle;
    }
    return low;
  }

 private:
  const Spread& work_;
};

}  // namespace

double replicated_time(const Known& known, const Spread& work, const Window& window, double time) {
  if (known.costs.least.empty() || time < 1) return time;
  const Replicated replicated(work);
  Window best = window;
  const auto consider = [&](const Window& other) {
    const double found = replicated.longest(other, time);
    if (found <= time) return;
    time = found;
    best = other;
  };
  consider(window);
  const double longest = nanoseconds_of(known.chains.longest),
               latest = std::min(first_update(known), longest);
  constexpr int kPoints = 4;
  for (int i = 0; i <= kPoints; ++i) consider({std::floor(latest * i / kPoints), 0, best.price});
  if (!known.room.bytes.empty() && work.all() > 0) {
    const Spread::Allowed allowed = work.allowed_within(time);
    consider(Prices(known, work).improved(best, time - best.before, &allowed));
  }
  for (int i = 1; i <= kPoints; ++i) {
    consider({best.before, std::floor((longest - best.before) * i / kPoints), best.price});
  }
  return time;
}

}  // namespace espalier::internal
