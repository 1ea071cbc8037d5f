#include "espalier/planners/placement/memory_ledger.h"

#include <algorithm>

#include "espalier/base/check.h"

namespace espalier::placement {

MemoryLedger::MemoryLedger(const Instance& instance)
    : instance_(instance),
      devices_(instance.devices()),
      bytes_(instance.bytes),
      workspace_(instance.units()),
      alone_(instance.units()),
      place_in_list_(instance.units()),
      where_(instance.units()) {
  const auto values = narrow(instance.values());
  bytes_.insert(bytes_.end(), instance.resident_bytes.begin(), instance.resident_bytes.end());
  std::vector<std::uint32_t> seen(bytes_.size(), 0);  // unit + 1 that touched it last
  Bytes all, largest;
  for (const Bytes bytes : bytes_) all += bytes;
  touches_.begin.reserve(instance.units() + 1);
  for (std::size_t u = 0; u < instance.units(); ++u) {
    const auto touch = [&](std::uint32_t item) {
      if (bytes_[item].count() == 0 || seen[item] == u + 1) return;
      seen[item] = narrow(u + 1);
      touches_.items.push_back(item);
      alone_[u] += bytes_[item];
    };
    const std::size_t begin = touches_.items.size();
    for (const TaskId task : instance.tasks_of[u]) {
      for (const ValueId value : instance.produces[task.index()]) touch(narrow(value.index()));
      for (const ValueId value : instance.reads[task.index()]) touch(narrow(value.index()));
      workspace_[u] = std::max(workspace_[u], instance.workspace[task.index()]);
    }
    for (const std::uint32_t resident : instance.resident[u]) touch(values + resident);
    std::sort(touches_.items.begin() + static_cast<std::ptrdiff_t>(begin), touches_.items.end());
    touches_.close();
    alone_[u] += workspace_[u];
    largest = std::max(largest, workspace_[u]);
  }
  for (const Bytes memory : instance.memory) ample_.push_back(all + largest <= memory);
  count_.assign(bytes_.size() * devices_, 0);
  standing_.resize(devices_);
  held_.resize(devices_);
  largest_.resize(devices_);
}

void MemoryLedger::place(UnitId unit, DeviceId device) {
  const std::size_t u = unit.index(), d = device.index();
  ESP_CHECK(where_[u] == 0, u);
  where_[u] = narrow(d + 1);
  place_in_list_[u] = narrow(standing_[d].size());
  standing_[d].push_back(unit);
  for (const std::uint32_t item : touches_[u]) {
    if (count(item, d)++ == 0) held_[d] += bytes_[item];
  }
  largest_[d] = std::max(largest_[d], workspace_[u]);
}

void MemoryLedger::remove(UnitId unit) {
  const std::size_t u = unit.index();
  ESP_CHECK(where_[u] > 0, u);
  const std::size_t d = where_[u] - 1;
  where_[u] = 0;
  std::vector<UnitId>& there = standing_[d];
  there[place_in_list_[u]] = there.back();
  place_in_list_[there.back().index()] = place_in_list_[u];
  there.pop_back();
  for (const std::uint32_t item : touches_[u]) {
    if (--count(item, d) == 0) held_[d] -= bytes_[item];
  }
  if (workspace_[u] < largest_[d]) return;
  largest_[d] = {};
  for (const UnitId other : there) largest_[d] = std::max(largest_[d], workspace_[other.index()]);
}

Bytes MemoryLedger::needs(DeviceId device) const {
  return held_[device.index()] + largest_[device.index()];
}

Bytes MemoryLedger::lacks(DeviceId device) const {
  return std::max(Bytes(), needs(device) - instance_.memory[device.index()]);
}

Bytes MemoryLedger::lack() const {
  Bytes sum;
  for (std::size_t d = 0; d < devices_; ++d) sum += lacks(DeviceId(d));
  return sum;
}

Bytes MemoryLedger::needs_with(UnitId unit, DeviceId device) const {
  const std::size_t u = unit.index(), d = device.index();
  Bytes held = held_[d];
  for (const std::uint32_t item : touches_[u]) {
    if (count(item, d) == 0) held += bytes_[item];
  }
  return held + std::max(largest_[d], workspace_[u]);
}

bool MemoryLedger::fits(UnitId unit, DeviceId device) const {
  return ample_[device.index()] || needs_with(unit, device) <= instance_.memory[device.index()];
}

Bytes MemoryLedger::freed_by(UnitId unit) const {
  const std::size_t u = unit.index();
  Bytes freed;
  for (const std::uint32_t item : touches_[u]) {
    if (count(item, where_[u] - 1) == 1) freed += bytes_[item];
  }
  return freed;
}

std::vector<std::string> check_memory(const Instance& instance, std::span<const DeviceId> assignment) {
  std::vector<std::string> lines;
  for (std::size_t d = 0; d < instance.devices(); ++d) {
    std::vector<bool> value(instance.values()), resident(instance.resident_bytes.size());
    Bytes needs, workspace;
    for (std::size_t t = 0; t < instance.tasks(); ++t) {
      if (assignment[instance.unit[t].index()] != DeviceId(d)) continue;
      workspace = std::max(workspace, instance.workspace[t]);
      for (const ValueId v : instance.produces[t]) value[v.index()] = true;
      for (const ValueId v : instance.reads[t]) value[v.index()] = true;
      for (const std::uint32_t r : instance.resident[instance.unit[t].index()]) resident[r] = true;
    }
    for (std::size_t v = 0; v < value.size(); ++v) {
      if (value[v]) needs += instance.bytes[v];
    }
    for (std::size_t r = 0; r < resident.size(); ++r) {
      if (resident[r]) needs += instance.resident_bytes[r];
    }
    needs += workspace;
    if (instance.memory[d] < needs) {
      lines.push_back("device " + std::to_string(d) + " needs " + to_text(needs) + " and has " +
                      to_text(instance.memory[d]));
    }
  }
  return lines;
}

}  // namespace espalier::placement
