#include "espalier/placement/step_memory.h"

#include <algorithm>
#include <functional>

namespace espalier::placement::internal {

std::int64_t StepMemory::peak(const FinishedTimes& times, const std::vector<std::uint16_t>& where,
                              std::uint32_t device) {
  find_values(where, device);
  if (t_.rules.memory == Rules::Memory::kAllHeld) return all_held(times, where, device);
  changes_.clear();
  const auto hold = [&](Time from, Time to, std::int64_t bytes) {
    if (bytes == 0 || from == to) return;
    changes_.push_back({from, bytes});
    changes_.push_back({to, -bytes});
  };
  for (std::uint32_t task = 0; task < t_.tasks; ++task) {
    const std::int64_t workspace = t_.task_rows[task].workspace;
    if (where[task] == device && workspace != 0) hold(times.start(task), times.end(task), workspace);
  }
  kept_until_.assign(t_.shared ? t_.values : 0, 0);
  for (const std::uint32_t value : values_) {
    const ValueRow& row = t_.value_rows[value];
    const bool made_here = where[row.producer] == device;
    const Held held = held_of(times, where, value, device);
    if (made_here && row.within != value) {
      kept_until_[row.within] = std::max(kept_until_[row.within], held.until);
    }
    hold(held.from, held.until, made_here ? row.own_bytes : row.bytes);
  }
  std::sort(changes_.begin(), changes_.end(),
            [](const Change& a, const Change& b) { return a.time < b.time; });
  std::int64_t held = 0, most = 0;
  for (std::size_t i = 0; i < changes_.size(); ++i) {
    held += changes_[i].bytes;
    if (i + 1 == changes_.size() || changes_[i + 1].time != changes_[i].time) most = std::max(most, held);
  }
  return most;
}

std::int64_t StepMemory::all_held(const FinishedTimes& times, const std::vector<std::uint16_t>& where,
                                  std::uint32_t device) {
  std::int64_t held = 0, workspace = 0;
  for (const std::uint32_t value : values_) {
    const ValueRow& row = t_.value_rows[value];
    held += where[row.producer] == device ? row.own_bytes : row.bytes;
  }
  for (std::uint32_t task = 0; task < t_.tasks; ++task) {
    const std::int64_t bytes = t_.task_rows[task].workspace;
    if (where[task] == device && bytes > workspace && times.start(task) < times.end(task)) workspace = bytes;
  }
  return held + workspace;
}

void StepMemory::find_values(const std::vector<std::uint16_t>& where, std::uint32_t device) {
  values_.clear();
  found_.assign(t_.values, 0);
  const auto find = [&](std::uint32_t value) {
    if (found_[value] == 0) values_.push_back(value);
    found_[value] = 1;
  };
  for (std::uint32_t task = 0; task < t_.tasks; ++task) {
    if (where[task] != device) continue;
    for (const ValueId value : t_.instance.produces[task]) find(narrow(value.index()));
    for (const ValueId value : t_.instance.reads[task]) {
      const ValueRow& row = t_.value_rows[value.index()];
      if (!row.here_only && where[row.producer] != device) find(narrow(value.index()));
    }
  }
  if (t_.shared) std::sort(values_.begin(), values_.end(), std::greater<>());  // those within come first
}

StepMemory::Held StepMemory::held_of(const FinishedTimes& times, const std::vector<std::uint16_t>& where,
                                     std::uint32_t value, std::uint32_t device) const {
  const ValueRow& row = t_.value_rows[value];
  const bool made_here = where[row.producer] == device;
  Held held;
  if (made_here) held = {times.start(row.producer), times.end(row.producer)};
  if (t_.shared) held.until = std::max(held.until, kept_until_[value]);
  std::uint64_t seen = std::uint64_t{1} << where[row.producer];
  for (std::size_t i = row.readers; i < t_.value_rows[value + 1].readers; ++i) {
    const std::uint32_t reader = narrow(t_.instance.readers.items[i].index()), at = where[reader];
    const bool first = (seen >> at & 1) == 0 && !row.here_only;  // to whom a message goes
    seen |= std::uint64_t{1} << at;
    if (first && at == device) held.from = times.message(row.producer, i).start;
    if (first && made_here) held.until = std::max(held.until, times.message(row.producer, i).arrival);
    if (at == device) held.until = std::max(held.until, times.end(reader));
  }
  return held;
}

void take_times(const Tables& t, const StepState& state, StepBase& base) {
  base.times.start.resize(t.tasks);
  base.times.end.resize(t.tasks);
  base.times.messages.resize(t.instance.readers.items.size());
  const FinishedTimes times(state, base);
  for (std::size_t value = 0; value < t.values; ++value) {
    const ValueRow& row = t.value_rows[value];
    for (std::size_t i = row.readers; i < t.value_rows[value + 1].readers; ++i) {
      base.times.messages[i] = times.message(row.producer, i);
    }
  }
  for (std::uint32_t task = 0; task < t.tasks; ++task) {
    base.times.start[task] = times.start(task);
    base.times.end[task] = times.end(task);
  }
}

}  // namespace espalier::placement::internal
