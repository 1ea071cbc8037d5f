#include <algorithm>

#include "espalier/placement/simulation.h"

namespace espalier::placement::internal {
namespace {

// Values that somebody still needs, and tasks that some of their values have come to.
void save_progress(const Tables& t, const State& s, Snapshot& made) {
  for (std::uint32_t task = 0; task < t.tasks; ++task) {
    if (s.waits[task] != State::kEnded) {
      const std::uint32_t came = s.waited[task] - s.waits[task];
      if (came != 0) made.came.push_back({task, came});
      continue;
    }
    made.ended.push_back(task);
    for (std::uint32_t i = t.task_rows[task].produces; i < t.task_rows[task + 1].produces; ++i) {
      const std::uint32_t value = narrow(t.instance.produces.items[i].index());
      const auto counts = s.uses.begin() + static_cast<std::ptrdiff_t>(std::size_t{value} * t.devices);
      const auto end = counts + static_cast<std::ptrdiff_t>(t.devices);
      if (std::all_of(counts, end, [](std::uint32_t count) { return count == 0; })) continue;
      made.live.push_back({value, narrow(made.counts.size())});
      made.counts.insert(made.counts.end(), counts, end);
    }
  }
}

// Messages keep their order, which breaks ties.
void save_pending(const State& s, Snapshot& made) {
  std::vector<std::uint32_t> kept;
  for (const Pending& event : s.pending) kept.push_back(event.message);
  std::sort(kept.begin(), kept.end());
  for (const std::uint32_t message : kept) made.messages.push_back(s.messages[message]);
  made.pending = s.pending;
  for (Pending& event : made.pending) {
    event.message = narrow(
        static_cast<std::size_t>(std::lower_bound(kept.begin(), kept.end(), event.message) - kept.begin()));
  }
}

}  // namespace

Snapshot save(const Tables& t, const State& s, const Clock& clock) {
  Snapshot made;
  made.clock = clock;
  made.devices = s.devices;
  if (t.rules.order == Rules::Order::kFirstReady) {
    for (const DeviceState& device : s.devices) {
      made.queued.emplace_back(s.queue.begin() + device.begin, s.queue.begin() + device.end);
    }
  }
  if (t.rules.order == Rules::Order::kPriority) made.ready = s.ready;
  made.copied = s.copied;
  made.slots = s.slots;
  for (const Bus& bus : s.buses) {
    made.buses.push_back({{bus.queue.begin() + static_cast<std::ptrdiff_t>(bus.to_arrive), bus.queue.end()},
                          bus.to_start - bus.to_arrive,
                          0,
                          bus.free});
  }
  made.link_free = s.link_free;
  save_pending(s, made);
  save_progress(t, s, made);
  return made;
}

void restore(const Tables& t, const Snapshot& snapshot, State& s) {
  for (std::size_t d = 0; d < t.devices; ++d) {
    const std::uint32_t begin = s.devices[d].begin;
    DeviceState& device = s.devices[d] = snapshot.devices[d];
    if (t.rules.order != Rules::Order::kFirstReady) continue;
    const std::vector<std::uint32_t>& queued = snapshot.queued[d];
    std::copy(queued.begin(), queued.end(), s.queue.begin() + begin);
    device.begin = begin;
    device.end = begin + narrow(queued.size());
    device.same = device.end;  // what comes next comes at a later instant
  }
  if (t.rules.order == Rules::Order::kPriority) s.ready = snapshot.ready;
  s.copied = snapshot.copied;
  s.slots = snapshot.slots;
  s.buses = snapshot.buses;
  s.link_free = snapshot.link_free;
  s.pending = snapshot.pending;
  s.messages = snapshot.messages;
  for (const Snapshot::Live& live : snapshot.live) {
    std::copy_n(snapshot.counts.begin() + live.uses, t.devices,
                s.uses.begin() + static_cast<std::ptrdiff_t>(std::size_t{live.value} * t.devices));
  }
  for (const std::uint32_t task : snapshot.ended) s.waits[task] = State::kEnded;
  for (const Snapshot::Came& came : snapshot.came) s.waits[came.task] -= came.values;
}

}  // namespace espalier::placement::internal
