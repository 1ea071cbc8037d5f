#include <algorithm>

#include "espalier/placement/step_time.h"

namespace espalier::placement::internal {
namespace {

// All events of any assignment come within the times that an event can say, and no sum of bytes overflows.
bool numbers_are_small(const Tables& t) {
  constexpr double kMost = static_cast<double>(NextEvents::kMostTime) / 4, kMostBytes = 1e18;
  double all = 0, bytes = 0;
  const Instance& instance = t.instance;
  for (std::size_t task = 0; task < t.tasks; ++task) {
    Time most = 0;
    for (std::size_t k = 0; k < t.kinds; ++k)
      most = std::max(most, instance.time[task * t.kinds + k].count());
    all += static_cast<double>(most) + static_cast<double>(t.rules.busy_after.count());
  }
  for (const Duration time : instance.duplicate_time) {
    all += static_cast<double>(time.count()) * static_cast<double>(t.devices);
  }
  Time latency = 0;
  for (const Passage& way : t.passages) latency = std::max(latency, way.latency);
  const double messages = t.rules.copies == Rules::Copies::kOneForAll ? 1 : static_cast<double>(t.devices);
  for (std::size_t value = 0; value < t.values; ++value) {
    bytes +=
        static_cast<double>(t.value_rows[value].bytes) + static_cast<double>(t.value_rows[value].own_bytes);
    Time hold = 0;
    for (std::size_t k = 0; k < t.speeds; ++k) hold = std::max(hold, t.hold[value * t.speeds + k]);
    all += messages * (static_cast<double>(hold) + static_cast<double>(latency) +
                       static_cast<double>(t.rules.bus_busy_after.count()));
  }
  for (const Bytes held : instance.resident_bytes) bytes += static_cast<double>(held.count());
  for (const Bytes workspace : instance.workspace) bytes += static_cast<double>(workspace.count());
  return all < kMost && bytes < kMostBytes;
}

}  // namespace

void NextEvents::reset(std::size_t slots) {
  constexpr std::size_t kFew = 16;
  leaves_ = 0;
  count_ = static_cast<std::uint32_t>((slots + 1) / 2 * 2);
  if (slots > kFew) {
    for (leaves_ = 1; leaves_ < slots;) leaves_ *= 2;
  }
  keys_.assign(leaves_ == 0 ? count_ : 2 * std::size_t{leaves_}, kNever);
}

void NextEvents::play(std::uint32_t node) {
  while (node > 1) {
    node /= 2;
    keys_[node] = std::min(keys_[2 * node], keys_[2 * node + 1]);
  }
}

StepTables::StepTables(const Tables& t) {
  const Instance& instance = t.instance;
  constexpr std::size_t kMostDevices = 64;
  usable = t.rules.order != Rules::Order::kListed && !t.endpoints && t.devices > 0 &&
           t.devices <= kMostDevices && numbers_are_small(t);
  for (std::size_t task = 0; task < t.tasks; ++task) usable = usable && t.waits[task] < kOneWait / 2;
  if (!usable) return;
  out_begin.push_back(0);
  in_begin.push_back(0);
  for (std::size_t task = 0; task < t.tasks; ++task) {
    bool source = true;
    for (const ValueId value : instance.reads[task]) source = source && t.value_rows[value.index()].here_only;
    if (source) sources.push_back(narrow(task));
    wait_words.push_back(t.waits[task] * kOneWait);
    for (const ValueId value : instance.produces[task]) {
      for (const TaskId reader : instance.readers[value.index()]) outs.push_back(narrow(reader.index()));
    }
    for (const ValueId value : instance.reads[task]) {
      const ValueRow& row = t.value_rows[value.index()];
      (row.here_only ? order_ins.items : ins).push_back(row.producer);
    }
    in_begin.push_back(narrow(ins.size()));
    order_ins.close();
    out_begin.push_back(narrow(outs.size()));
    most_workspace = std::max(most_workspace, t.task_rows[task].workspace);
  }
  unit_bytes.assign(instance.units(), 0);
  for (std::size_t value = 0; value < t.values; ++value) {
    unit_bytes[t.task_rows[t.value_rows[value].producer].unit] += t.value_rows[value].own_bytes;
  }
}

void StepState::begin_times(const Tables& t) {
  stretches.clear();
  start.resize(t.tasks);
  end.resize(t.tasks);
  started.resize(t.tasks);
  ended.resize(t.tasks);
  messages.resize(t.instance.readers.items.size());
  if (++look_of_times == 0) {
    std::fill(started.begin(), started.end(), 0);
    std::fill(ended.begin(), ended.end(), 0);
    look_of_times = 1;
  }
}

void StepState::clear(const Tables& t) {
  next.resize(t.tasks);
  came.resize(64);
  devices.assign(t.devices, {});
  buses.resize(t.devices);
  for (StepBus& bus : buses) {
    bus.queue.clear();
    bus.head = 0;
    bus.free = 0;
  }
  flights.clear();
  link_free.assign(t.link_count, 0);
  copied.assign(t.kinds == 0 ? 0 : t.instance.duplicate_time.size() / t.kinds * t.devices, 0);
  events.reset(t.devices + 1);
  bus_events.reset(t.devices);
}

bool holds_all(const Instance& instance, std::span<const std::int64_t> held) {
  for (std::size_t d = 0; d < held.size(); ++d) {
    if (held[d] > instance.memory[d].count()) return false;
  }
  return true;
}

}  // namespace espalier::placement::internal
