#include "espalier/placement/objectives.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/base/spelling.h"

namespace espalier::placement {
namespace {

constexpr double kNanosecondsOfHour = 3.6e12;

std::size_t device_of(const Instance& instance, std::span<const DeviceId> assignment, TaskId task) {
  return assignment[instance.unit[task.index()].index()].index();
}

// The devices that a value is sent to: those of its readers, but for its producer's, ascending.
std::vector<std::size_t> receivers(const Instance& instance, std::span<const DeviceId> assignment,
                                   std::size_t value) {
  std::vector<std::size_t> to;
  if (!instance.here_only.empty() && instance.here_only[value] != 0) return to;
  const std::size_t from = device_of(instance, assignment, instance.producer[value]);
  for (const TaskId reader : instance.readers[value]) {
    const std::size_t device = device_of(instance, assignment, reader);
    if (device != from) to.push_back(device);
  }
  std::sort(to.begin(), to.end());
  to.erase(std::unique(to.begin(), to.end()), to.end());
  return to;
}

// What a message takes of its links.
Duration hold_of(const Rules& rules, const Route& way, Bytes bytes) {
  return (rules.bandwidth ? transfer_time(bytes, *rules.bandwidth) : way.hold(bytes)) + rules.bus_busy_after;
}

void add_work(const Instance& instance, std::span<const DeviceId> assignment, std::vector<Duration>& load) {
  std::vector<std::vector<std::uint32_t>> copies(instance.devices());
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    const std::size_t d = device_of(instance, assignment, TaskId(t));
    load[d] += instance.time_on(TaskId(t), DeviceId(d));
    for (const std::uint32_t copy : instance.duplicates[t]) copies[d].push_back(copy);
  }
  for (std::size_t d = 0; d < copies.size(); ++d) {
    std::sort(copies[d].begin(), copies[d].end());
    copies[d].erase(std::unique(copies[d].begin(), copies[d].end()), copies[d].end());
    for (const std::uint32_t copy : copies[d])
      load[d] += instance.duplicate_time[copy * instance.kinds + instance.kind[d].index()];
  }
}

}  // namespace

std::string_view to_text(Objective objective) {
  switch (objective) {
    case Objective::kMaxLoad:
      return "max-load";
    case Objective::kContiguousMaxLoad:
      return "contiguous-max-load";
    case Objective::kPrice:
      return "price";
    case Objective::kExpected:
      return "expected";
    case Objective::kTail:
      return "p95";
    case Objective::kLatency:
      break;
  }
  return "latency";
}

const std::vector<Objective>& objectives() {
  static const std::vector<Objective> kAll = {Objective::kLatency,           Objective::kMaxLoad,
                                              Objective::kContiguousMaxLoad, Objective::kPrice,
                                              Objective::kExpected,          Objective::kTail};
  return kAll;
}

Objective parse_objective(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Objective objective : objectives()) {
    if (to_text(objective) == name) return objective;
    names.push_back(to_text(objective));
  }
  throw InputError("there is no objective '" + std::string(name) + "'; did you mean '" +
                   std::string(*nearest_word(name, names)) + "'?");
}

Duration PipelineLoads::largest() const {
  Duration most;
  for (const Duration load : device) most = std::max(most, load);
  for (const Duration load : link) most = std::max(most, load);
  return most;
}

PipelineLoads pipeline_loads(const Instance& instance, const Rules& rules, Communication communication,
                             std::span<const DeviceId> assignment) {
  PipelineLoads loads;
  loads.device.resize(instance.devices());
  const bool overlapped = communication == Communication::kOverlapped;
  if (overlapped && rules.sends == Rules::Sends::kRoutes) loads.link.resize(instance.links);
  if (overlapped && rules.sends == Rules::Sends::kSenderBus) loads.link.resize(instance.devices());
  add_work(instance, assignment, loads.device);
  const bool for_all = rules.copies == Rules::Copies::kOneForAll;
  for (std::size_t v = 0; v < instance.values(); ++v) {
    const std::vector<std::size_t> to = receivers(instance, assignment, v);
    if (to.empty()) continue;
    const std::size_t from = device_of(instance, assignment, instance.producer[v]);
    Duration slowest, sent;
    for (const std::size_t device : to) {
      const Route& way = instance.way(DeviceId(from), DeviceId(device));
      const Duration hold = hold_of(rules, way, instance.bytes[v]);
      slowest = std::max(slowest, hold);
      sent += hold;
      if (!rules.bandwidth) loads.device[device] += way.receive.of(instance.bytes[v]);
      if (!rules.bandwidth && !for_all) loads.device[from] += way.send.of(instance.bytes[v]);
      if (!overlapped) {
        loads.device[device] += hold;
      } else if (rules.sends == Rules::Sends::kRoutes) {
        for (const LinkIndex link : way.links) loads.link[link] += hold;
      }
    }
    if (!overlapped) loads.device[from] += slowest;
    if (overlapped && rules.sends == Rules::Sends::kSenderBus) loads.link[from] += for_all ? slowest : sent;
  }
  return loads;
}

std::vector<char> forward_tasks(const Instance& instance) {
  std::vector<char> forward;
  for (const Pass pass : instance.pass) forward.push_back(pass == Pass::kForward ? 1 : 0);
  return forward;
}

bool is_contiguous(const Instance& instance, std::span<const char> marked,
                   std::span<const DeviceId> assignment) {
  const std::size_t devices = instance.devices();
  std::vector<bool> edge(devices * devices);
  std::vector<std::size_t> before(devices);  // devices that must come first
  for (std::size_t v = 0; v < instance.values(); ++v) {
    const TaskId producer = instance.producer[v];
    if (marked[producer.index()] == 0) continue;
    const std::size_t from = device_of(instance, assignment, producer);
    for (const TaskId reader : instance.readers[v]) {
      const std::size_t to = device_of(instance, assignment, reader);
      if (marked[reader.index()] == 0 || to == from || edge[from * devices + to]) continue;
      edge[from * devices + to] = true;
      ++before[to];
    }
  }
  std::vector<std::size_t> ready;
  for (std::size_t d = 0; d < devices; ++d) {
    if (before[d] == 0) ready.push_back(d);
  }
  for (std::size_t i = 0; i < ready.size(); ++i) {
    for (std::size_t to = 0; to < devices; ++to) {
      if (edge[ready[i] * devices + to] && --before[to] == 0) ready.push_back(to);
    }
  }
  return ready.size() == devices;
}

// ---- The judge

struct ObjectiveJudge::State {
  State(const Instance& of, const Rules& by, const DeviceOrders& orders, ObjectiveOptions chosen)
      : instance(of), rules(by), options(std::move(chosen)), engine(of, by, orders) {
    if (options.objective == Objective::kExpected || options.objective == Objective::kTail)
      add_samples(orders);
    if (options.forward.empty()) options.forward = forward_tasks(of);
  }

  void add_samples(const DeviceOrders& orders) {
    noisy.reserve(options.noise.samples);  // engines refer to them
    for (std::uint32_t s = 0; s < options.noise.samples; ++s) {
      noisy.push_back(instance);
      for (std::size_t t = 0; t < instance.tasks(); ++t) {
        const double factor = factor_of(s, t);
        for (std::size_t k = 0; k < instance.kinds; ++k) {
          Duration& time = noisy.back().time[t * instance.kinds + k];
          time = Duration(std::llround(static_cast<double>(time.count()) * factor));
        }
      }
      engines.emplace_back(noisy.back(), rules, orders);
    }
  }

  double factor_of(std::uint32_t sample, std::size_t task) const {
    Rng rng(stream_key(options.noise.seed, {sample, task}));
    double z = -6;
    for (int i = 0; i < 12; ++i) z += rng.unit();
    return std::clamp(1 + options.noise.deviation * z, 0.0, 100.0);
  }

  double price_of_hour(std::span<const DeviceId> assignment) const {
    std::vector<bool> used(instance.devices());
    for (const DeviceId device : assignment) used[device.index()] = true;
    double price = 0;
    for (std::size_t d = 0; d < used.size(); ++d) {
      if (used[d]) price += options.price_per_hour.empty() ? 1.0 : options.price_per_hour[d];
    }
    return price;
  }

  double noisy_value(std::span<const DeviceId> assignment) {
    std::vector<std::int64_t> steps;
    std::int64_t sum = 0;
    for (const Engine& each : engines) {
      steps.push_back(each.evaluate(assignment, scratch).time.count());
      sum += steps.back();
    }
    if (options.objective == Objective::kExpected)
      return static_cast<double>(sum) / static_cast<double>(steps.size());
    std::sort(steps.begin(), steps.end());
    return static_cast<double>(steps[(95 * steps.size() + 99) / 100 - 1]);
  }

  const Instance& instance;
  Rules rules;
  ObjectiveOptions options;
  Engine engine;
  std::vector<Instance> noisy;
  std::vector<Engine> engines;
  Scratch scratch;
};

ObjectiveJudge::ObjectiveJudge(const Instance& instance, const Rules& rules, const DeviceOrders& orders,
                               ObjectiveOptions options) {
  const auto refuse = [](bool wrong, const std::string& what) {
    if (wrong) throw InputError(what);
  };
  const std::vector<double>& prices = options.price_per_hour;
  refuse(!prices.empty() && prices.size() != instance.devices(),
         "there are " + std::to_string(prices.size()) + " prices for " + std::to_string(instance.devices()) +
             " devices; expected one for each");
  for (const double price : prices)
    refuse(!(price >= 0) || !(price <= kMaxRate), "a device's price per hour is not a number from 0 on");
  refuse(!(options.noise.deviation >= 0) || !(options.noise.deviation <= 10),
         "the deviation of a task's time is relative; expected a number from 0 to 10");
  refuse(options.noise.samples == 0 || options.noise.samples > 10'000, "expected from 1 to 10000 samples");
  ESP_CHECK(options.forward.empty() || options.forward.size() == instance.tasks());
  state_ = std::make_unique<State>(instance, rules, orders, std::move(options));
}
ObjectiveJudge::~ObjectiveJudge() = default;
ObjectiveJudge::ObjectiveJudge(ObjectiveJudge&&) noexcept = default;

const Instance& ObjectiveJudge::instance() const {
  return state_->instance;
}
const Rules& ObjectiveJudge::rules() const {
  return state_->rules;
}
const ObjectiveOptions& ObjectiveJudge::options() const {
  return state_->options;
}

ObjectiveValue ObjectiveJudge::judge(std::span<const DeviceId> assignment) {
  State& s = *state_;
  const Evaluated seen = s.engine.evaluate(assignment, s.scratch);
  ObjectiveValue value{.fits = seen.fits && !seen.deadlock, .lack = seen.lack};
  const double step = static_cast<double>(seen.time.count());
  switch (s.options.objective) {
    case Objective::kLatency:
      value.value = step;
      break;
    case Objective::kContiguousMaxLoad:
      value.contiguous = is_contiguous(s.instance, s.options.forward, assignment);
      [[fallthrough]];
    case Objective::kMaxLoad:
      value.value = static_cast<double>(
          pipeline_loads(s.instance, s.rules, s.options.communication, assignment).largest().count());
      break;
    case Objective::kPrice:
      value.value = step / kNanosecondsOfHour * s.price_of_hour(assignment);
      break;
    case Objective::kExpected:
    case Objective::kTail:
      value.value = s.noisy_value(assignment);
      break;
  }
  return value;
}

}  // namespace espalier::placement
