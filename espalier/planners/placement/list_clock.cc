#include "espalier/planners/placement/list_clock.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "espalier/base/check.h"

namespace espalier::placement {
namespace {

constexpr Duration kNotSent = Duration::max();
constexpr std::size_t kGapsLookedAt = 64;

}  // namespace

Duration message_time(const Route& way, Bytes bytes) {
  return way.send.of(bytes) + way.hold(bytes) + way.latency + way.receive.of(bytes);
}

ListClock::ListClock(const Instance& instance, Rules::Sends sends, Gaps gaps)
    : instance_(instance),
      sends_(sends),
      gaps_(gaps),
      devices_(instance.devices()),
      start_(instance.tasks()),
      end_(instance.tasks()),
      device_(instance.tasks()),
      set_(instance.tasks()),
      arrival_(instance.values() * devices_, kNotSent),
      link_free_(sends == Rules::Sends::kSenderBus ? devices_ : instance.links),
      has_copy_(instance.kinds == 0 ? 0 : instance.duplicate_time.size() / instance.kinds * devices_),
      blocks_(devices_) {}

// The links that a message holds, as the rules see them.
template <class Visit>
void ListClock::for_each_link(DeviceId from, const Route& way, Visit visit) const {
  if (sends_ == Rules::Sends::kSenderBus) visit(from.index());
  if (sends_ != Rules::Sends::kRoutes) return;
  for (const LinkIndex link : way.links) visit(std::size_t{link});
}

// When a value is there if it is sent now; remembers in taken_ which links that takes.
Duration ListClock::arrival(ValueId value, DeviceId device) const {
  const TaskId producer = instance_.producer[value.index()];
  const DeviceId from = device_[producer.index()];
  const Route& way = instance_.way(from, device);
  const Bytes bytes = instance_.bytes[value.index()];
  Duration start = end_[producer.index()] + way.send.of(bytes);
  if (sends_ == Rules::Sends::kUnlimited)
    return start + way.hold(bytes) + way.latency + way.receive.of(bytes);
  for_each_link(from, way, [&](std::size_t link) { start = std::max(start, link_free_[link]); });
  for (const Taken& taken : taken_) {
    for_each_link(from, way, [&](std::size_t link) {
      if (taken.link == link) start = std::max(start, taken.until);
    });
  }
  const Duration until = start + way.hold(bytes);
  for_each_link(from, way, [&](std::size_t link) { taken_.push_back({link, until}); });
  return until + way.latency + way.receive.of(bytes);
}

Duration ListClock::ready(TaskId task, DeviceId device) const {
  Duration ready;
  taken_.clear();
  for (const ValueId value : instance_.reads[task.index()]) {
    const TaskId producer = instance_.producer[value.index()];
    if (!set_[producer.index()]) continue;
    const Duration sent = arrival_[value.index() * devices_ + device.index()];
    ready = std::max(ready, device_[producer.index()] == device ? end_[producer.index()]
                            : sent != kNotSent                  ? sent
                                                                : arrival(value, device));
  }
  return ready;
}

void ListClock::send(ValueId value, DeviceId device) {
  const TaskId producer = instance_.producer[value.index()];
  const DeviceId from = device_[producer.index()];
  Duration& sent = arrival_[value.index() * devices_ + device.index()];
  if (!set_[producer.index()] || from == device || sent != kNotSent) return;
  taken_.clear();
  remember({Change::Kind::kArrival, value.index() * devices_ + device.index(), sent});
  sent = arrival(value, device);
  for (const Taken& taken : taken_) {
    remember({Change::Kind::kLink, taken.link, link_free_[taken.link]});
    link_free_[taken.link] = taken.until;
  }
}

Duration ListClock::time_of(TaskId task, DeviceId device) const {
  Duration time = instance_.time_on(task, device);
  const std::size_t kind = instance_.kind[device.index()].index();
  for (const std::uint32_t copy : instance_.duplicates[task.index()]) {
    if (!has_copy_[copy * devices_ + device.index()]) {
      time += instance_.duplicate_time[copy * instance_.kinds + kind];
    }
  }
  return time;
}

Duration ListClock::gap(DeviceId device, Duration ready, Duration time) const {
  const std::vector<Block>& blocks = blocks_[device.index()];
  if (blocks.empty() || blocks.back().end <= ready) return ready;
  if (gaps_ == Gaps::kLeft) return blocks.back().end;
  auto block = std::partition_point(blocks.begin(), blocks.end(),
                                    [&](const Block& each) { return each.end <= ready; });
  for (std::size_t looked = 0; block != blocks.end() && looked < kGapsLookedAt; ++block, ++looked) {
    if (ready + time <= block->start) return ready;
    ready = std::max(ready, block->end);
  }
  return block == blocks.end() ? ready : blocks.back().end;
}

void ListClock::occupy(DeviceId device, Duration start, Duration end) {
  if (start == end) return;
  std::vector<Block>& blocks = blocks_[device.index()];
  auto at =
      std::partition_point(blocks.begin(), blocks.end(), [&](const Block& each) { return each.end < start; });
  Block joined{start, end};
  auto last = at;
  for (; last != blocks.end() && last->start <= end; ++last) {
    joined = {std::min(joined.start, last->start), std::max(joined.end, last->end)};
  }
  const std::size_t place = static_cast<std::size_t>(at - blocks.begin());
  if (remembers_) {
    changes_.push_back({Change::Kind::kBlock, place, {}, device.index(), std::vector<Block>(at, last)});
  }
  if (at == last) {
    blocks.insert(at, joined);
  } else {
    *at = joined;
    blocks.erase(at + 1, last);
  }
}

ListClock::Slot ListClock::slot(TaskId task, DeviceId device) const {
  Slot slot;
  slot.ready = ready(task, device);
  const Duration time = time_of(task, device);
  slot.start = gap(device, slot.ready, time);
  slot.end = slot.start + time;
  return slot;
}

ListClock::Slot ListClock::set(TaskId task, DeviceId device) {
  ESP_CHECK(!set_[task.index()], task);
  const Slot slot = this->slot(task, device);
  for (const ValueId value : instance_.reads[task.index()]) send(value, device);
  for (const std::uint32_t copy : instance_.duplicates[task.index()]) {
    const std::size_t at = copy * devices_ + device.index();
    if (has_copy_[at]) continue;
    has_copy_[at] = true;
    remember({Change::Kind::kCopy, at});
  }
  occupy(device, slot.start, slot.end);
  remember({Change::Kind::kTask, task.index()});
  set_[task.index()] = true;
  device_[task.index()] = device;
  start_[task.index()] = slot.start;
  end_[task.index()] = slot.end;
  return slot;
}

ListClock::Mark ListClock::mark() {
  remembers_ = true;
  return {changes_.size()};
}

void ListClock::forget() {
  remembers_ = false;
  changes_.clear();
}

void ListClock::back_to(Mark mark) {
  while (changes_.size() > mark.changes) {
    const Change& change = changes_.back();
    switch (change.kind) {
      case Change::Kind::kArrival:
        arrival_[change.index] = change.before;
        break;
      case Change::Kind::kLink:
        link_free_[change.index] = change.before;
        break;
      case Change::Kind::kTask:
        set_[change.index] = false;
        break;
      case Change::Kind::kCopy:
        has_copy_[change.index] = false;
        break;
      case Change::Kind::kBlock: {
        std::vector<Block>& blocks = blocks_[change.device];
        const auto at = blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(change.index));
        blocks.insert(at, change.blocks.begin(), change.blocks.end());
        break;
      }
    }
    changes_.pop_back();
  }
}

Duration ListClock::free_from(DeviceId device) const {
  const std::vector<Block>& blocks = blocks_[device.index()];
  return blocks.empty() ? Duration() : blocks.back().end;
}

Duration ListClock::makespan() const {
  Duration last;
  for (std::size_t t = 0; t < set_.size(); ++t) {
    if (set_[t]) last = std::max(last, end_[t]);
  }
  return last;
}

DeviceOrders ListClock::orders() const {
  std::vector<std::uint32_t> tasks(start_.size());
  std::iota(tasks.begin(), tasks.end(), std::uint32_t{0});
  std::sort(tasks.begin(), tasks.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::tie(start_[a], end_[a], a) < std::tie(start_[b], end_[b], b);
  });
  DeviceOrders orders;
  orders.priority.resize(tasks.size());
  std::vector<std::vector<TaskId>> of(devices_);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    orders.priority[tasks[i]] = narrow(i);
    of[device_[tasks[i]].index()].push_back(TaskId(tasks[i]));
  }
  for (const std::vector<TaskId>& list : of) {
    orders.lists.items.insert(orders.lists.items.end(), list.begin(), list.end());
    orders.lists.close();
  }
  return orders;
}

MeanCosts::MeanCosts(const Instance& instance) {
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    const std::span<const DeviceId> allowed = instance.allowed[instance.unit[t].index()];
    Duration sum;
    for (const DeviceId device : allowed) sum += instance.time_on(TaskId(t), device);
    time.push_back(sum / static_cast<std::int64_t>(allowed.size()));
  }
  // Ways that take the same, and how many pairs have each.
  const auto key = [](const Route& way) {
    return std::tuple(way.bandwidth, way.latency, way.send.fixed, way.send.picoseconds_per_byte,
                      way.receive.fixed, way.receive.picoseconds_per_byte);
  };
  std::map<decltype(key(Route())), std::pair<const Route*, std::int64_t>> different;
  std::int64_t pairs = 0;
  for (std::size_t a = 0; a < instance.devices(); ++a) {
    for (std::size_t b = 0; b < instance.devices(); ++b) {
      if (a == b) continue;
      const Route& way = instance.way(DeviceId(a), DeviceId(b));
      auto& entry = different[key(way)];
      entry = {&way, entry.second + 1};
      ++pairs;
    }
  }
  for (const Bytes bytes : instance.bytes) {
    Duration sum;
    for (const auto& [unused, way] : different) sum += message_time(*way.first, bytes) * way.second;
    message.push_back(pairs == 0 ? Duration() : sum / pairs);
  }
}

}  // namespace espalier::placement
