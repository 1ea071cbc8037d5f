#include "espalier/planners/placement/exact.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "espalier/base/check.h"
#include "espalier/planners/placement/placement_bounds.h"

namespace espalier::placement {
namespace {

constexpr std::int64_t kNoEnd = std::int64_t{1} << 62;

class BranchAndBound {
 public:
  BranchAndBound(const Engine& engine, Context& context)
      : engine_(engine),
        instance_(engine.instance()),
        context_(context),
        places_(possible_places(instance_, engine.rules())),
        own_(own_bytes(instance_, engine.rules())),
        twin_(interchangeable(instance_, engine.rules())),
        floor_(placement_bound(instance_, engine.rules()).time) {
    const std::size_t units = instance_.units(), devices = instance_.devices();
    work_.resize(units * devices);
    std::vector<std::int64_t> least(units, kNoEnd);
    for (std::size_t u = 0; u < units; ++u) {
      for (std::size_t d = 0; d < devices; ++d) {
        for (const TaskId task : instance_.tasks_of[u])
          work_[u * devices + d] += instance_.time_on(task, DeviceId(d)).count();
        if (places_[u * devices + d]) least[u] = std::min(least[u], work_[u * devices + d]);
      }
    }
    order_.resize(units);
    std::iota(order_.begin(), order_.end(), 0U);
    std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return std::tie(least[b], a) < std::tie(least[a], b);
    });
    left_.assign(units + 1, 0);
    for (std::size_t i = units; i-- > 0;)
      left_[i] = left_[i + 1] + (least[order_[i]] == kNoEnd ? 0 : least[order_[i]]);
    candidates_.resize(units);
    for (std::size_t u = 0; u < units; ++u) candidates_[u] = possible(u);
    at_.resize(units);
    load_.resize(devices), held_.resize(devices), users_.resize(devices);
    end_.resize(instance_.tasks() * devices);
  }

  void start(const Assignment& assignment) {
    if (context_.take_state()) judge(assignment);
  }

  // Whether all was looked at.
  bool search() {
    place(0);
    return !ended_;
  }

  const std::optional<Assignment>& best() const { return best_; }
  Duration time() const { return time_; }

 private:
  std::vector<DeviceId> possible(std::size_t unit) const {
    std::vector<DeviceId> result;
    for (const DeviceId device : instance_.allowed[unit]) {
      if (places_[unit * instance_.devices() + device.index()]) result.push_back(device);
    }
    return result;
  }

  void judge(const Assignment& assignment) {
    const Evaluated seen = engine_.evaluate(assignment, scratch_, time_);
    if (seen.cut_off || seen.deadlock || !seen.fits || seen.time >= time_) return;
    time_ = seen.time;
    best_ = assignment;
    if (context_.watch) context_.watch->found(time_);
  }

  void place(std::size_t depth) {
    if (best_ && time_ <= floor_) return;
    if (depth == order_.size()) return judge(at_);
    const std::size_t unit = order_[depth], devices = instance_.devices();
    for (const DeviceId device : possible(unit)) {
      const std::size_t d = device.index();
      if (a_twin_is_free(device)) continue;
      if (ended_ || context_.stop() || !context_.take_state()) {
        ended_ = true;
        return;
      }
      at_[unit] = device;
      load_[d] += work_[unit * devices + d];
      held_[d] += own_[unit];
      ++users_[d];
      candidates_[unit] = {device};
      if (held_[d] <= instance_.memory[d] && may_be_better(depth + 1)) place(depth + 1);
      candidates_[unit] = possible(unit);
      --users_[d];
      held_[d] -= own_[unit];
      load_[d] -= work_[unit * devices + d];
    }
  }

  // Of devices that may be exchanged, those without units come into use by number.
  bool a_twin_is_free(DeviceId device) const {
    if (users_[device.index()] > 0) return false;
    for (std::size_t d = 0; d < device.index(); ++d) {
      if (users_[d] == 0 && twin_[d] == twin_[device.index()]) return true;
    }
    return false;
  }

  bool may_be_better(std::size_t placed) {
    const std::int64_t bar = best_ ? time_.count() : kNoEnd;
    std::int64_t sum = left_[placed];
    for (const std::int64_t load : load_) {
      if (load >= bar) return false;
      sum += load;
    }
    const auto devices = static_cast<std::int64_t>(instance_.devices());
    if ((sum + devices - 1) / devices >= bar) return false;
    return path() < bar;
  }

  bool here_only(ValueId value) const {
    return !instance_.here_only.empty() && instance_.here_only[value.index()] != 0;
  }

  std::int64_t message(DeviceId from, DeviceId to, Bytes bytes) const {
    if (engine_.rules().bandwidth) return transfer_time(bytes, *engine_.rules().bandwidth).count();
    const Route& way = instance_.way(from, to);
    return (way.latency + way.hold(bytes)).count();
  }

  // The least end of the last task over devices that are left to each unit.
  std::int64_t path() {
    const std::size_t devices = instance_.devices();
    std::int64_t last = 0;
    for (std::size_t t = 0; t < instance_.tasks(); ++t) {
      const UnitId unit = instance_.unit[t];
      std::int64_t least = kNoEnd;
      for (const DeviceId device : candidates_[unit.index()]) {
        const std::int64_t end = ready(t, device) + instance_.time_on(TaskId(t), device).count();
        end_[t * devices + device.index()] = end;
        least = std::min(least, end);
      }
      last = std::max(last, least);
    }
    return last;
  }

  std::int64_t ready(std::size_t task, DeviceId device) const {
    std::int64_t latest = 0;
    for (const ValueId value : instance_.reads[task]) {
      const std::size_t from = instance_.producer[value.index()].index();
      std::int64_t came = kNoEnd;
      for (const DeviceId other : candidates_[instance_.unit[from].index()]) {
        if (other != device && instance_.unit[from] == instance_.unit[task]) continue;
        if (other != device && here_only(value)) {
          came = 0;
          break;
        }
        const std::int64_t way = other == device ? 0 : message(other, device, instance_.bytes[value.index()]);
        came = std::min(came, end_[from * instance_.devices() + other.index()] + way);
      }
      latest = std::max(latest, came);
    }
    return latest;
  }

  const Engine& engine_;
  const Instance& instance_;
  Context& context_;
  std::vector<bool> places_;
  std::vector<Bytes> own_;
  std::vector<DeviceId> twin_;
  Duration floor_;                  // no assignment is shorter
  std::vector<std::int64_t> work_;  // by unit and device
  std::vector<std::uint32_t> order_;
  std::vector<std::int64_t> left_;                 // least work of the units from each place of the order on
  std::vector<std::vector<DeviceId>> candidates_;  // by unit: where it stands, or may stand
  Assignment at_;
  std::vector<std::int64_t> load_;
  std::vector<Bytes> held_;
  std::vector<std::uint32_t> users_;
  std::vector<std::int64_t> end_;  // by task and device
  Scratch scratch_;
  std::optional<Assignment> best_;
  Duration time_ = Duration::max();
  bool ended_ = false;
};

// Exchanging two devices in every way leaves all ways as they are.
bool same_ways(const Instance& instance, const Rules& rules, DeviceId a, DeviceId b) {
  const auto image = [&](std::size_t d) { return d == a.index() ? b : d == b.index() ? a : DeviceId(d); };
  for (std::size_t from = 0; from < instance.devices(); ++from) {
    for (std::size_t to = 0; to < instance.devices(); ++to) {
      if (from == to) continue;
      Route here = instance.way(DeviceId(from), DeviceId(to)), there = instance.way(image(from), image(to));
      if (rules.sends != Rules::Sends::kRoutes || instance.devices() == 2)
        here.links.clear(), there.links.clear();
      if (here != there) return false;
    }
  }
  return true;
}

// Whether exchanging equal devices can change in which order messages are sent.
bool numbers_matter(const Instance& instance, const Rules& rules) {
  const std::size_t devices = instance.devices();
  if (rules.sends == Rules::Sends::kUnlimited) return false;
  if (rules.sends == Rules::Sends::kSenderBus) return devices > 2 && rules.copies == Rules::Copies::kOneEach;
  if (devices > 2)
    return std::any_of(instance.ways.begin(), instance.ways.end(),
                       [](const Route& way) { return !way.links.empty(); });
  if (devices < 2) return false;
  const std::vector<LinkIndex>& back = instance.way(DeviceId(1), DeviceId(0)).links;
  const std::vector<LinkIndex>& there = instance.way(DeviceId(0), DeviceId(1)).links;
  return std::any_of(there.begin(), there.end(),
                     [&](LinkIndex link) { return std::find(back.begin(), back.end(), link) != back.end(); });
}

}  // namespace

std::vector<DeviceId> interchangeable(const Instance& instance, const Rules& rules) {
  const std::size_t devices = instance.devices();
  std::vector<DeviceId> twin;
  for (std::size_t d = 0; d < devices; ++d) twin.emplace_back(d);
  if (numbers_matter(instance, rules)) return twin;
  std::vector<bool> places(instance.units() * devices);
  for (std::size_t u = 0; u < instance.units(); ++u) {
    for (const DeviceId device : instance.allowed[u]) places[u * devices + device.index()] = true;
  }
  for (std::size_t d = 1; d < devices; ++d) {
    for (std::size_t other = 0; other < d && twin[d].index() == d; ++other) {
      bool same = twin[other].index() == other && instance.kind[d] == instance.kind[other] &&
                  instance.memory[d] == instance.memory[other];
      for (std::size_t u = 0; same && u < instance.units(); ++u)
        same = places[u * devices + d] == places[u * devices + other];
      if (same && same_ways(instance, rules, DeviceId(d), DeviceId(other))) twin[d] = DeviceId(other);
    }
  }
  return twin;
}

ExactPlacement exact_placement(const Engine& engine, const ExactOptions& options, Context& context) {
  ESP_CHECK(engine.rules().order != Rules::Order::kListed);
  BranchAndBound search(engine, context);
  for (const Assignment& start : options.starts) search.start(start);
  ExactPlacement result;
  result.complete = search.search();
  result.placed.assignment = search.best();
  result.placed.stats.states = result.placed.stats.evaluations = context.states;
  if (search.best()) {
    result.placed.estimate = search.time();
  } else {
    result.placed.why = result.complete ? nothing_fits(engine.instance(), engine.rules())
                                              .value_or("no assignment of all leaves every device room")
                                        : "the budget ended before anything that fits was found";
  }
  return result;
}

}  // namespace espalier::placement
