// Lower bounds on the step of any assignment.
//
//   literature              here
//   earliest start + time   Reach::end, forwards
//   time + tail             Reach::end, backwards
//   L(t, kind)              the least start over what may stand beside t or elsewhere
//
// A task t on a kind k. Its producers p are split into those on t's device, S, and the others. An other one's
// value arrives no earlier than a_p = least over kinds k' of end(p, k') + message(k' → k). Those of S ran on
// t's device before t, one after the other, so t starts no earlier than the makespan of S on one machine with
// releases end(p, k) − time(p, k). Least over S of the larger of both: only the S matter that hold the
// producers of the largest a_p, since another one in S only adds work where max a_p stays. Backwards in time
// the same holds for readers.
//
// How we deviate: the classic bound knows equal processors and a delay for each edge; here end times are by
// kind and delays by pair of kinds. Fan-in beyond 32 is not serialised further.
//
// Bad cases: equal devices and fan-in of one everywhere; then messages never count, as one device has them
// all.

#include "espalier/planners/placement/placement_bounds.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>

#include "espalier/base/check.h"

namespace espalier::placement {
namespace {

constexpr std::int64_t kNoWay = std::int64_t{1} << 62;
constexpr std::size_t kMostSerialised = 32;
constexpr double kRounding = 1e-9;

std::int64_t busy_of(const Rules& rules, Duration time) {
  return time.count() > 0 ? rules.busy_after.count() : 0;
}

// What a message takes at least, between kinds.
class LeastMessages {
 public:
  LeastMessages(const Instance& instance, const Rules& rules)
      : kinds_(instance.kinds), ways_(kinds_ * kinds_) {
    for (std::size_t from = 0; from < instance.devices(); ++from) {
      for (std::size_t to = 0; to < instance.devices(); ++to) {
        if (from == to) continue;
        const Route& way = instance.way(DeviceId(from), DeviceId(to));
        const Simple simple =
            rules.bandwidth ? Simple{rules.bandwidth, Duration()} : Simple{way.bandwidth, way.latency};
        std::vector<Simple>& list = ways_[instance.kind[from].index() * kinds_ + instance.kind[to].index()];
        if (std::find(list.begin(), list.end(), simple) == list.end()) list.push_back(simple);
      }
    }
  }
  // kNoWay where no two devices are of these kinds.
  std::int64_t of(std::size_t from, std::size_t to, Bytes bytes) const {
    std::int64_t least = kNoWay;
    for (const Simple& way : ways_[from * kinds_ + to]) {
      const Duration hold = way.bandwidth ? transfer_time(bytes, *way.bandwidth) : Duration();
      least = std::min(least, (hold + way.latency).count());
    }
    return least;
  }

 private:
  struct Simple {
    std::optional<std::int64_t> bandwidth;
    Duration latency;
    friend bool operator==(const Simple&, const Simple&) = default;
  };
  std::size_t kinds_;
  std::vector<std::vector<Simple>> ways_;
};

// What passes between two tasks: the largest value. Nothing where only readers on the producer's device wait.
struct Edge {
  std::uint32_t task;
  std::optional<Bytes> bytes;
};

bool here_only(const Instance& instance, ValueId value) {
  return !instance.here_only.empty() && instance.here_only[value.index()] != 0;
}

// Of a value where it is produced, and at least, wherever it is.
Bytes made_bytes(const Instance& instance, ValueId value) {
  return instance.own_bytes.empty() ? instance.bytes[value.index()] : instance.own_bytes[value.index()];
}
Bytes least_bytes(const Instance& instance, ValueId value) {
  return std::min(made_bytes(instance, value), instance.bytes[value.index()]);
}

Lists<Edge> edges_in(const Instance& instance) {
  Lists<Edge> edges;
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    const std::size_t first = edges.items.size();
    for (const ValueId value : instance.reads[t]) {
      const std::uint32_t from = narrow(instance.producer[value.index()].index());
      const std::optional<Bytes> bytes =
          here_only(instance, value) ? std::nullopt : std::optional(instance.bytes[value.index()]);
      const auto same = std::find_if(edges.items.begin() + static_cast<std::ptrdiff_t>(first),
                                     edges.items.end(), [&](const Edge& edge) { return edge.task == from; });
      if (same == edges.items.end()) {
        edges.items.push_back({from, bytes});
      } else {
        same->bytes = std::max(same->bytes, bytes);
      }
    }
    edges.close();
  }
  return edges;
}

Lists<Edge> turned(const Lists<Edge>& edges) {
  std::vector<std::vector<Edge>> lists(edges.size());
  for (std::size_t t = 0; t < edges.size(); ++t) {
    for (const Edge& edge : edges[t]) lists[edge.task].push_back({narrow(t), edge.bytes});
  }
  Lists<Edge> result;
  for (const std::vector<Edge>& list : lists) {
    result.items.insert(result.items.end(), list.begin(), list.end());
    result.close();
  }
  return result;
}

// Least times from one end of the step up to and with each task, by task and kind.
class Reach {
 public:
  enum class Direction : std::uint8_t { kForwards, kBackwards };

  Reach(const Instance& instance, const Rules& rules, const std::vector<bool>& kind_possible)
      : instance_(instance), rules_(rules), possible_(kind_possible), messages_(instance, rules) {}

  std::vector<std::int64_t> ends(const Lists<Edge>& edges, Direction direction) {
    direction_ = direction;
    const std::size_t tasks = instance_.tasks(), kinds = instance_.kinds;
    ends_.assign(tasks * kinds, kNoWay);
    for (std::size_t i = 0; i < tasks; ++i) {
      const std::size_t t = direction == Direction::kForwards ? i : tasks - 1 - i;
      for (std::size_t k = 0; k < kinds; ++k) {
        if (!possible_[instance_.unit[t].index() * kinds + k]) continue;
        const std::int64_t start = std::max(duplicates(t, k), least_start(t, k, edges[t]));
        ends_[t * kinds + k] = std::min(kNoWay, start + time(t, k));
      }
    }
    return std::move(ends_);
  }

 private:
  struct Neighbour {
    std::int64_t arrival;  // from elsewhere
    std::int64_t release;  // here
    std::int64_t time, busy;
    std::uint32_t task;
  };

  std::int64_t time(std::size_t task, std::size_t kind) const {
    return instance_.time[task * instance_.kinds + kind].count();
  }
  std::int64_t duplicates(std::size_t task, std::size_t kind) const {
    if (direction_ == Direction::kBackwards) return 0;
    std::int64_t sum = 0;
    for (const std::uint32_t copy : instance_.duplicates[task])
      sum += instance_.duplicate_time[copy * instance_.kinds + kind].count();
    return sum;
  }

  Neighbour neighbour(std::size_t t, std::size_t k, const Edge& edge) const {
    const std::size_t kinds = instance_.kinds;
    Neighbour result{kNoWay, kNoWay, time(edge.task, k), 0, edge.task};
    result.busy = busy_of(rules_, Duration(result.time));
    if (ends_[edge.task * kinds + k] < kNoWay) result.release = ends_[edge.task * kinds + k] - result.time;
    if (instance_.unit[edge.task] == instance_.unit[t]) return result;
    if (!edge.bytes) result.arrival = 0;
    for (std::size_t other = 0; edge.bytes && other < kinds; ++other) {
      const std::int64_t message = direction_ == Direction::kForwards ? messages_.of(other, k, *edge.bytes)
                                                                      : messages_.of(k, other, *edge.bytes);
      if (message < kNoWay)
        result.arrival = std::min(result.arrival, ends_[edge.task * kinds + other] + message);
    }
    result.arrival = std::min(result.arrival, kNoWay);
    return result;
  }

  std::int64_t least_start(std::size_t t, std::size_t k, std::span<const Edge> edges) {
    near_.clear();
    for (const Edge& edge : edges) near_.push_back(neighbour(t, k, edge));
    std::sort(near_.begin(), near_.end(), [](const Neighbour& a, const Neighbour& b) {
      return std::tie(b.arrival, a.task) < std::tie(a.arrival, b.task);
    });
    here_.clear();
    std::int64_t least = kNoWay, local = 0;
    for (std::size_t i = 0;; ++i) {
      const bool ends = i == near_.size() || i == kMostSerialised;
      const std::int64_t elsewhere = ends ? 0 : near_[i].arrival;
      least = std::min(least, std::max(local, elsewhere));
      if (ends || local >= least) return least;
      if (near_[i].release == kNoWay) return least;
      local = with(near_[i]);
    }
  }

  // The least makespan of all here and one more, and the gap behind it.
  std::int64_t with(const Neighbour& more) {
    here_.insert(
        std::upper_bound(here_.begin(), here_.end(), more,
                         [](const Neighbour& a, const Neighbour& b) { return a.release < b.release; }),
        more);
    std::int64_t work = 0, latest = 0, most = 0;
    for (std::size_t i = here_.size(); i-- > 0;) {
      work += here_[i].time + here_[i].busy;
      latest = std::max(latest, here_[i].busy);
      const std::int64_t unpaid = direction_ == Direction::kBackwards ? latest : 0;  // behind the last one
      most = std::max(most, here_[i].release + work - unpaid);
    }
    return most;
  }

  const Instance& instance_;
  const Rules& rules_;
  const std::vector<bool>& possible_;
  LeastMessages messages_;
  Direction direction_ = Direction::kForwards;
  std::vector<std::int64_t> ends_;
  std::vector<Neighbour> near_, here_;
};

std::vector<bool> possible_kinds(const Instance& instance, const std::vector<bool>& places) {
  std::vector<bool> result(instance.units() * instance.kinds);
  for (std::size_t u = 0; u < instance.units(); ++u) {
    for (std::size_t d = 0; d < instance.devices(); ++d) {
      if (places[u * instance.devices() + d]) result[u * instance.kinds + instance.kind[d].index()] = true;
    }
  }
  return result;
}

// Of each task, over the kinds that it may stand on.
struct HeadsAndTails {
  std::vector<std::int64_t> head, tail;  // before its start, behind its end
  std::int64_t longest = 0;              // head, task and tail on one kind
  std::size_t at = 0;
};

HeadsAndTails heads_and_tails(const Instance& instance, const Rules& rules, const std::vector<bool>& places) {
  const std::vector<bool> kinds = possible_kinds(instance, places);
  Reach reach(instance, rules, kinds);
  const Lists<Edge> in = edges_in(instance);
  const std::vector<std::int64_t> before = reach.ends(in, Reach::Direction::kForwards);
  const std::vector<std::int64_t> behind = reach.ends(turned(in), Reach::Direction::kBackwards);
  HeadsAndTails result;
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    std::int64_t head = kNoWay, tail = kNoWay, through = kNoWay;
    for (std::size_t k = 0; k < instance.kinds; ++k) {
      const std::size_t i = t * instance.kinds + k;
      if (before[i] >= kNoWay || behind[i] >= kNoWay) continue;
      const std::int64_t time = instance.time[i].count();
      head = std::min(head, before[i] - time);
      tail = std::min(tail, behind[i] - time);
      through = std::min(through, before[i] + behind[i] - time);
    }
    result.head.push_back(head == kNoWay ? 0 : head);
    result.tail.push_back(tail == kNoWay ? 0 : tail);
    if (through < kNoWay && through > result.longest) result.longest = through, result.at = t;
  }
  return result;
}

// Devices that are the same to work and memory.
struct DeviceClass {
  KindId kind;
  Bytes memory;
  std::vector<bool> possible;  // by unit
  std::size_t count = 0;
  friend bool same(const DeviceClass& a, const DeviceClass& b) {
    return a.kind == b.kind && a.memory == b.memory && a.possible == b.possible;
  }
};

std::vector<DeviceClass> device_classes(const Instance& instance, const std::vector<bool>& places) {
  std::vector<DeviceClass> classes;
  for (std::size_t d = 0; d < instance.devices(); ++d) {
    DeviceClass device{instance.kind[d], instance.memory[d], std::vector<bool>(instance.units()), 1};
    for (std::size_t u = 0; u < instance.units(); ++u)
      device.possible[u] = places[u * instance.devices() + d];
    const auto found = std::find_if(classes.begin(), classes.end(),
                                    [&](const DeviceClass& other) { return same(other, device); });
    if (found == classes.end()) {
      classes.push_back(std::move(device));
    } else {
      ++found->count;
    }
  }
  return classes;
}

// The fractional assignment of units to classes of devices, and its dual.
class WorkDual {
 public:
  WorkDual(const Instance& instance, const Rules& rules, const std::vector<bool>& places)
      : classes_(device_classes(instance, places)),
        units_(instance.units()),
        work_(units_ * classes_.size()) {
    for (const Bytes bytes : own_bytes(instance, rules)) bytes_.push_back(static_cast<double>(bytes.count()));
    for (std::size_t u = 0; u < units_; ++u) {
      for (std::size_t c = 0; c < classes_.size(); ++c) {
        std::int64_t sum = 0;
        for (const TaskId task : instance.tasks_of[u]) {
          const Duration time = instance.time[task.index() * instance.kinds + classes_[c].kind.index()];
          sum += time.count() + busy_of(rules, time);
        }
        work_[u * classes_.size() + c] = static_cast<double>(sum);
      }
    }
    start();
    ascend();
  }

  double best() const { return best_; }
  const std::vector<DeviceClass>& classes() const { return classes_; }
  double weight(std::size_t c) const { return best_weight_[c]; }  // of one device of the class
  double work(std::size_t unit, std::size_t c) const { return work_[unit * classes_.size() + c]; }

 private:
  double size(std::size_t c) const { return static_cast<double>(classes_[c].count); }
  double memory(std::size_t c) const { return static_cast<double>(classes_[c].memory.count()); }

  void normalise() {
    double sum = 0;
    for (std::size_t c = 0; c < classes_.size(); ++c) sum += weight_[c] * size(c);
    for (double& weight : weight_) weight /= sum;
  }

  // Weights like speeds: the optimum where every unit gains the same by a quicker device.
  void start() {
    weight_.resize(classes_.size()), price_.resize(classes_.size());
    loads_.resize(classes_.size()), held_.resize(classes_.size());
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      double sum = 1;
      for (std::size_t u = 0; u < units_; ++u) sum += work(u, c);
      weight_[c] = 1 / sum;
    }
    normalise();
    best_weight_ = weight_;
    best_ = value();
  }

  // Fills loads and bytes by class, at the assignment that is least.
  double value() {
    std::fill(loads_.begin(), loads_.end(), 0.0);
    std::fill(held_.begin(), held_.end(), 0.0);
    double sum = 0;
    for (std::size_t u = 0; u < units_; ++u) {
      double least = 0;
      std::size_t at = classes_.size();
      for (std::size_t c = 0; c < classes_.size(); ++c) {
        if (!classes_[c].possible[u]) continue;
        const double cost = weight_[c] * work(u, c) + price_[c] * bytes_[u];
        if (at == classes_.size() || cost < least) least = cost, at = c;
      }
      if (at == classes_.size()) continue;
      sum += least;
      loads_[at] += work(u, at);
      held_[at] += bytes_[u];
    }
    for (std::size_t c = 0; c < classes_.size(); ++c) sum -= price_[c] * memory(c) * size(c);
    return sum;
  }

  void ascend() {
    if (classes_.size() < 2) return;
    constexpr int kSteps = 200;
    for (int step = 0; step < kSteps; ++step) {
      const double length = 1.0 / (2.0 + 0.25 * step);
      double total = 0;
      for (const double load : loads_) total += load;
      if (total <= 0) return;
      const double devices = std::accumulate(
          classes_.begin(), classes_.end(), 0.0,
          [](double sum, const DeviceClass& c) { return sum + static_cast<double>(c.count); });
      for (std::size_t c = 0; c < classes_.size(); ++c) {
        const double over = loads_[c] / size(c) / (total / devices) - 1;
        weight_[c] *= 1 + length * std::clamp(over, -0.9, 2.0);
        const double room = std::max(1.0, memory(c) * size(c));
        price_[c] =
            std::max(0.0, price_[c] + length * best_ / room * std::clamp(held_[c] / room - 1, -1.0, 2.0));
      }
      normalise();
      const double now = value();
      if (now > best_) best_ = now, best_weight_ = weight_;
    }
  }

  std::vector<DeviceClass> classes_;
  std::size_t units_;
  std::vector<double> work_, bytes_;  // by unit and class; by unit
  std::vector<double> weight_, price_, loads_, held_, best_weight_;
  double best_ = 0;
};

Duration rounded_down(double time) {
  return Duration(std::max<std::int64_t>(0, static_cast<std::int64_t>(time * (1 - kRounding))));
}

// Of the largest items, j · devices + 1 leave some device with j + 1 of them: what these weigh at least.
std::int64_t crowded(std::vector<std::int64_t> items, std::size_t devices) {
  std::sort(items.begin(), items.end(), std::greater<>());
  std::int64_t most = items.empty() ? 0 : items.front();
  for (std::size_t last = devices, together = 2; last < items.size(); last += devices, ++together) {
    std::int64_t sum = 0;
    for (std::size_t i = last + 1 - together; i <= last; ++i) sum += items[i];
    most = std::max(most, sum);
    if (together > 64) break;
  }
  return most;
}

Bytes alone(const Instance& instance, const Rules& rules, std::size_t unit) {
  Bytes held = {}, running = {};
  for (const std::uint32_t resident : instance.resident[unit]) held += instance.resident_bytes[resident];
  std::vector<bool> seen;
  if (rules.memory == Rules::Memory::kAllHeld) {
    std::vector<ValueId> values;
    for (const TaskId task : instance.tasks_of[unit]) {
      const auto made = instance.produces[task.index()], read = instance.reads[task.index()];
      values.insert(values.end(), made.begin(), made.end());
      values.insert(values.end(), read.begin(), read.end());
    }
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    for (const ValueId value : values) held += least_bytes(instance, value);
    return held;
  }
  for (const TaskId task : instance.tasks_of[unit]) {
    Bytes now = instance.workspace[task.index()];
    for (const ValueId value : instance.produces[task.index()]) now += made_bytes(instance, value);
    for (const ValueId value : instance.reads[task.index()]) now += least_bytes(instance, value);
    running = std::max(running, now);
  }
  return held + running;
}

PlacementBound larger(PlacementBound a, PlacementBound b) {
  return b.time > a.time ? std::move(b) : std::move(a);
}

}  // namespace

std::vector<bool> possible_places(const Instance& instance, const Rules& rules) {
  std::vector<bool> places(instance.units() * instance.devices());
  for (std::size_t u = 0; u < instance.units(); ++u) {
    const Bytes needs = alone(instance, rules, u);
    for (const DeviceId device : instance.allowed[u])
      places[u * instance.devices() + device.index()] = needs <= instance.memory[device.index()];
  }
  return places;
}

std::vector<Bytes> own_bytes(const Instance& instance, const Rules& rules) {
  std::vector<Bytes> bytes(instance.units());
  std::vector<bool> counted(instance.resident_bytes.size());
  for (std::size_t u = 0; u < instance.units(); ++u) {
    for (const std::uint32_t resident : instance.resident[u]) {
      if (!counted[resident]) bytes[u] += instance.resident_bytes[resident];
      counted[resident] = true;
    }
    if (rules.memory != Rules::Memory::kAllHeld) continue;
    for (const TaskId task : instance.tasks_of[u]) {
      for (const ValueId value : instance.produces[task.index()]) bytes[u] += made_bytes(instance, value);
    }
  }
  return bytes;
}

PlacementBound path_bound(const Instance& instance, const Rules& rules) {
  const std::vector<bool> kinds = possible_kinds(instance, possible_places(instance, rules));
  std::vector<std::int64_t> end(instance.tasks());
  std::size_t last = 0;
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    std::int64_t time = kNoWay;
    for (std::size_t k = 0; k < instance.kinds; ++k) {
      if (kinds[instance.unit[t].index() * instance.kinds + k])
        time = std::min(time, instance.time[t * instance.kinds + k].count());
    }
    if (time == kNoWay) time = 0;
    for (const ValueId value : instance.reads[t]) {
      const std::size_t from = instance.producer[value.index()].index();
      if (instance.unit[from] == instance.unit[t] || !here_only(instance, value))
        end[t] = std::max(end[t], end[from]);
    }
    end[t] += time;
    if (end[t] > end[last]) last = t;
  }
  const Duration longest(end.empty() ? 0 : end[last]);
  return {longest, "the path that ends with task " + std::to_string(last) + ": " + to_text(longest)};
}

PlacementBound message_path_bound(const Instance& instance, const Rules& rules) {
  const HeadsAndTails found = heads_and_tails(instance, rules, possible_places(instance, rules));
  const Duration longest(found.longest);
  return {longest, "the path through task " + std::to_string(found.at) +
                       ", on one device or with messages: " + to_text(longest)};
}

PlacementBound load_bound(const Instance& instance, const Rules& rules) {
  const std::vector<bool> places = possible_places(instance, rules);
  const WorkDual dual(instance, rules, places);
  const Duration share = std::max(Duration(), rounded_down(dual.best()) - rules.busy_after);
  std::vector<std::int64_t> least;
  for (std::size_t u = 0; u < instance.units(); ++u) {
    std::int64_t work = kNoWay;
    for (std::size_t c = 0; c < dual.classes().size(); ++c) {
      if (dual.classes()[c].possible[u]) work = std::min(work, static_cast<std::int64_t>(dual.work(u, c)));
    }
    least.push_back(work == kNoWay ? 0 : work);
  }
  const Duration together =
      std::max(Duration(), Duration(crowded(least, instance.devices())) - rules.busy_after);
  return larger(
      {share, "the work over " + std::to_string(instance.devices()) + " devices: " + to_text(share)},
      {together, "the largest units, some of which share a device: " + to_text(together)});
}

PlacementBound window_bound(const Instance& instance, const Rules& rules) {
  const std::vector<bool> places = possible_places(instance, rules);
  const HeadsAndTails ends = heads_and_tails(instance, rules, places);
  const WorkDual dual(instance, rules, places);
  std::vector<double> weighed(instance.tasks());
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    double least = -1;
    for (std::size_t c = 0; c < dual.classes().size(); ++c) {
      if (!dual.classes()[c].possible[instance.unit[t].index()]) continue;
      const Duration time = instance.time[t * instance.kinds + dual.classes()[c].kind.index()];
      const double cost = dual.weight(c) * static_cast<double>(time.count() + busy_of(rules, time));
      if (least < 0 || cost < least) least = cost;
    }
    weighed[t] = std::max(least, 0.0);
  }
  std::vector<std::uint32_t> by_tail(instance.tasks());
  std::iota(by_tail.begin(), by_tail.end(), 0U);
  std::sort(by_tail.begin(), by_tail.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::tie(ends.tail[b], a) < std::tie(ends.tail[a], b);
  });
  std::vector<std::int64_t> heads = ends.head;
  std::sort(heads.begin(), heads.end());
  constexpr std::size_t kWindows = 48;
  double most = 0;
  for (std::size_t i = 0; i < kWindows && !heads.empty(); ++i) {
    const std::int64_t head = heads[i * heads.size() / kWindows];
    double work = 0;
    for (const std::uint32_t task : by_tail) {
      if (ends.head[task] < head) continue;
      work += weighed[task];
      most = std::max(most, static_cast<double>(head + ends.tail[task]) + work);
    }
  }
  const Duration time = std::max(Duration(), rounded_down(most) - rules.busy_after);
  return {time, "the work that lies between others, over " + std::to_string(instance.devices()) +
                    " devices: " + to_text(time)};
}

PlacementBound placement_bound(const Instance& instance, const Rules& rules) {
  return larger(larger(path_bound(instance, rules), message_path_bound(instance, rules)),
                larger(load_bound(instance, rules), window_bound(instance, rules)));
}

std::optional<std::string> nothing_fits(const Instance& instance, const Rules& rules) {
  const std::vector<bool> places = possible_places(instance, rules);
  const std::size_t devices = instance.devices();
  for (std::size_t u = 0; u < instance.units(); ++u) {
    bool somewhere = false;
    for (std::size_t d = 0; d < devices; ++d) somewhere = somewhere || places[u * devices + d];
    if (!somewhere) {
      return "unit " + std::to_string(u) + " alone needs " + to_text(alone(instance, rules, u)) +
             ", more than any device has that it may stand on";
    }
  }
  std::vector<std::int64_t> items;
  Bytes sum = {}, memory = {}, most = {};
  for (const Bytes bytes : own_bytes(instance, rules)) sum += bytes, items.push_back(bytes.count());
  for (const Bytes bytes : instance.memory) memory += bytes, most = std::max(most, bytes);
  if (sum > memory)
    return "all units together hold " + to_text(sum) + ", the devices have " + to_text(memory);
  if (const Bytes together{crowded(items, devices)}; together > most) {
    return "the largest units leave some device with " + to_text(together) + " at least, the largest has " +
           to_text(most);
  }
  return std::nullopt;
}

}  // namespace espalier::placement
