#include "espalier/placement/step_snapshot.h"

#include <algorithm>

namespace espalier::placement::internal {
namespace {

using Order = Rules::Order;

bool earlier(const Flight& a, const Flight& b) {
  if (a.arrival != b.arrival) return a.arrival < b.arrival;
  return a.value != b.value ? a.value < b.value : a.to < b.to;
}

Time from_now(Time time, Time now) {
  return std::max<Time>(0, time - now);
}

bool same_ready(const Tables& t, const StepSnapshot& other, StepState& s) {
  std::size_t i = 0;
  for (std::uint32_t d = 0; d < t.devices; ++d) {
    const std::size_t end = other.ready_end[d];
    if (t.rules.order == Order::kFirstReady) {
      for (std::uint32_t task = s.devices[d].head; task != StepDevice::kNone; task = s.next[task], ++i) {
        if (i == end || other.ready[i] != task) return false;
      }
      if (i != end) return false;
    } else {
      if (s.ranks[d].size() != end - i) return false;
      s.scratch = s.ranks[d];
      std::sort(s.scratch.begin(), s.scratch.end());
      if (!std::equal(s.scratch.begin(), s.scratch.end(),
                      other.ready.begin() + static_cast<std::ptrdiff_t>(i))) {
        return false;
      }
      i = end;
    }
  }
  return true;
}

bool same_flights(const Tables& t, const StepSnapshot& other, const StepChange& change, Time now,
                  StepState& s) {
  std::size_t i = 0;
  const auto equal = [&](const Flight& flight) {
    if (i == other.flights.size()) return false;
    const Flight& there = other.flights[i++];
    return flight.value == there.value && flight.to == there.to && flight.from == there.from &&
           flight.arrival - now == there.arrival && change.critical[flight.value] != change.mark;
  };
  if (t.bus_in_order) {
    for (std::size_t d = 0; d < t.devices; ++d) {
      const StepBus& bus = s.buses[d];
      if (from_now(bus.free, now) != other.free[d]) return false;
      for (std::size_t k = bus.head; k < bus.queue.size(); ++k) {
        if (!equal(bus.queue[k])) return false;
      }
    }
    return i == other.flights.size();
  }
  for (std::size_t link = 0; link < s.link_free.size(); ++link) {
    if (from_now(s.link_free[link], now) != other.free[link]) return false;
  }
  if (s.flights.size() != other.flights.size()) return false;
  s.scratch_flights = s.flights;
  std::sort(s.scratch_flights.begin(), s.scratch_flights.end(), earlier);
  return std::all_of(s.scratch_flights.begin(), s.scratch_flights.end(), equal);
}

void save_messages(const Tables& t, const StepState& s, Time now, StepSnapshot& made) {
  if (t.bus_in_order) {
    for (const StepBus& bus : s.buses) {
      made.flights.insert(made.flights.end(), bus.queue.begin() + static_cast<std::ptrdiff_t>(bus.head),
                          bus.queue.end());
      made.free.push_back(from_now(bus.free, now));
    }
  } else {
    made.flights = s.flights;
    std::sort(made.flights.begin(), made.flights.end(), earlier);
    for (const Time free : s.link_free) made.free.push_back(from_now(free, now));
  }
  for (Flight& flight : made.flights) flight.arrival -= now;
}

void restore_messages(const Tables& t, const StepSnapshot& from, Time now, StepState& s) {
  for (std::size_t i = 0; i < from.free.size(); ++i) {
    (t.bus_in_order ? s.buses[i].free : s.link_free[i]) = now + from.free[i];
  }
  for (Flight flight : from.flights) {
    flight.arrival += now;
    (t.bus_in_order ? s.buses[flight.from].queue : s.flights).push_back(flight);  // ascending: a heap
  }
  if (t.bus_in_order) {
    for (std::uint32_t d = 0; d < t.devices; ++d) s.note_bus(t, d);
  } else if (!s.flights.empty()) {
    s.events.set(narrow(t.devices), s.flights.front().arrival);
  }
}

}  // namespace

StepSnapshot snapshot(const Tables& t, const StepState& s, Time now, std::size_t done) {
  StepSnapshot made;
  made.now = now;
  made.done = narrow(done);
  made.copied = s.copied;
  made.devices = s.devices;
  for (std::uint32_t d = 0; d < t.devices; ++d) {
    made.devices[d].free = from_now(s.devices[d].free, now);
    const std::size_t begin = made.ready.size();
    if (t.rules.order == Order::kFirstReady) {
      for (std::uint32_t task = s.devices[d].head; task != StepDevice::kNone; task = s.next[task])
        made.ready.push_back(task);
    } else {
      made.ready.insert(made.ready.end(), s.ranks[d].begin(), s.ranks[d].end());
      std::sort(made.ready.begin() + static_cast<std::ptrdiff_t>(begin), made.ready.end());
    }
    made.ready_end.push_back(narrow(made.ready.size()));
  }
  save_messages(t, s, now, made);
  return made;
}

void restore(const Tables& t, const StepSnapshot& from, Time now, StepState& s) {
  s.clear(t);
  s.ranks.resize(t.devices);
  s.copied = from.copied;
  std::size_t i = 0;
  for (std::uint32_t d = 0; d < t.devices; ++d) {
    StepDevice& device = s.devices[d];
    device.task = from.devices[d].task;
    device.worked = from.devices[d].worked;
    device.left = from.devices[d].left;
    device.free = now + from.devices[d].free;
    if (t.rules.order == Order::kFirstReady) {
      for (; i < from.ready_end[d]; ++i) {
        const std::uint32_t task = from.ready[i];
        (device.head == StepDevice::kNone ? device.head : s.next[device.tail]) = task;
        device.tail = task;
        s.next[task] = StepDevice::kNone;
      }
    } else {
      s.ranks[d].assign(from.ready.begin() + static_cast<std::ptrdiff_t>(i),
                        from.ready.begin() + from.ready_end[d]);
      i = from.ready_end[d];
    }
    // A device that rests has an event where its next task takes no time, or priorities choose then.
    const bool chooses = t.rules.order == Order::kPriority || device.head != StepDevice::kNone;
    if (device.task != StepDevice::kNone || (device.free > now && chooses)) {
      s.events.set(d, device.free);
    }
  }
  restore_messages(t, from, now, s);
}

bool same(const Tables& t, const StepSnapshot& snapshot, const StepChange& change, Time now, StepState& s) {
  for (std::uint32_t d = 0; d < t.devices; ++d) {
    const StepDevice &here = s.devices[d], &there = snapshot.devices[d];
    if (here.task != there.task || from_now(here.free, now) != there.free) return false;
    if (here.task != StepDevice::kNone && here.worked != there.worked) return false;
  }
  return same_ready(t, snapshot, s) && same_flights(t, snapshot, change, now, s) &&
         s.copied == snapshot.copied;
}

}  // namespace espalier::placement::internal
