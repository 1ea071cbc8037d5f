#include "espalier/placement/engine.h"

#include <algorithm>
#include <utility>

#include "espalier/placement/step_time.h"

namespace espalier::placement {

Rules placeto_rules() {
  Rules rules;
  rules.order = Rules::Order::kFirstReady;
  rules.sends = Rules::Sends::kSenderBus;
  rules.copies = Rules::Copies::kOneForAll;
  rules.busy_after = nanoseconds(5'700);
  rules.bus_busy_after = microseconds(25);
  rules.bandwidth = 7'600'000'000;
  return rules;
}

Scratch::Scratch() : state_(std::make_unique<State>()) {}
Scratch::~Scratch() = default;
Scratch::Scratch(Scratch&&) noexcept = default;

Engine::Engine(const Instance& instance, const Rules& rules, DeviceOrders orders)
    : prepared_(std::make_unique<Prepared>(instance, rules, std::move(orders))) {}
Engine::Engine(const Engine& other, DeviceOrders orders)
    : prepared_(std::make_unique<Prepared>(std::as_const(*other.prepared_))) {
  prepared_->set_orders(std::move(orders));
}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

const Instance& Engine::instance() const {
  return prepared_->instance;
}
const Rules& Engine::rules() const {
  return prepared_->rules;
}

Evaluated Engine::evaluate(std::span<const DeviceId> assignment, Scratch& scratch, Duration limit) const {
  if (instance().trained.empty()) return evaluate_tasks(assignment, scratch, limit);
  const Duration ending = prepared_->end.time(assignment, scratch.state_->copies);
  const std::optional<Duration> left = internal::before_ending(limit, ending);
  if (!left) return {.cut_off = true};
  return internal::with_ending(evaluate_tasks(assignment, scratch, *left), ending);
}

Evaluated Engine::evaluate_tasks(std::span<const DeviceId> assignment, Scratch& scratch,
                                 Duration limit) const {
  // Where memory was short, it will be for a while: the time alone is worth having where it may say enough.
  constexpr std::uint32_t kWhile = 16;
  std::uint32_t& short_for = scratch.state_->short_for;
  if (prepared_->step.usable && (short_for == 0 || limit != Duration::max())) {
    internal::StepState& room = scratch.state_->step;
    const internal::StepTime step =
        internal::step_time(*prepared_, prepared_->step, assignment, room, limit.count());
    if (step.cut_off) return {.cut_off = true};
    if (internal::holds_all(instance(), room.held)) return {.time = Duration(step.time)};
    short_for = kWhile;
  }
  if (short_for > 0) --short_for;
  internal::NoRecord nobody;
  return internal::simulate(*prepared_, assignment, *scratch.state_, limit.count(), nobody);
}

std::vector<Evaluated> Engine::evaluate_all(std::span<const Assignment> assignments, ThreadPool* pool) const {
  std::vector<Evaluated> results(assignments.size());
  const std::size_t shares = std::min(pool ? 4 * pool->threads() : 1, assignments.size());
  const auto work = [&](std::size_t share) {
    Scratch scratch;
    for (std::size_t i = share; i < assignments.size(); i += shares) {
      results[i] = evaluate(assignments[i], scratch);
    }
  };
  on_threads(pool, shares, work);
  return results;
}

Timeline timeline(const Engine& engine, std::span<const DeviceId> assignment) {
  const std::size_t tasks = engine.instance().tasks();
  internal::FullRecord record;
  record.start.resize(tasks);
  record.end.resize(tasks);
  record.lists.resize(engine.instance().devices());
  Scratch scratch;
  Timeline result;
  result.evaluated =
      internal::simulate(*engine.prepared_, assignment, *scratch.state_, internal::kNever, record);
  result.ending = engine.prepared_->end.time(assignment, scratch.state_->copies);
  result.evaluated = internal::with_ending(result.evaluated, result.ending);
  for (std::size_t task = 0; task < tasks; ++task) {
    result.start.emplace_back(record.start[task]);
    result.end.emplace_back(record.end[task]);
  }
  for (const std::vector<TaskId>& list : record.lists) {
    result.lists.items.insert(result.lists.items.end(), list.begin(), list.end());
    result.lists.close();
  }
  const Instance& instance = engine.instance();
  for (const internal::Sent& sent : record.messages) {
    const auto add = [&](DeviceId to) {
      result.messages.push_back(
          {ValueId(sent.value), DeviceId(sent.from), to, Duration(sent.start), Duration(sent.arrival)});
    };
    if (sent.to != internal::Sent::kAll) {
      add(DeviceId(sent.to));
      continue;
    }
    std::vector<DeviceId> targets;
    for (const TaskId reader : instance.readers[sent.value]) {
      targets.push_back(assignment[instance.unit[reader.index()].index()]);
    }
    std::sort(targets.begin(), targets.end());
    targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
    for (const DeviceId to : targets) {
      if (to != DeviceId(sent.from)) add(to);
    }
  }
  std::sort(result.messages.begin(), result.messages.end(),
            [](const Timeline::Message& a, const Timeline::Message& b) {
              if (a.start != b.start) return a.start < b.start;
              return a.value != b.value ? a.value < b.value : a.to < b.to;
            });
  result.peak.assign(scratch.state_->peak.begin(), scratch.state_->peak.end());
  return result;
}

}  // namespace espalier::placement
