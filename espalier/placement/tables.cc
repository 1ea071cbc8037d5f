#include <algorithm>
#include <map>
#include <tuple>

#include "espalier/base/check.h"
#include "espalier/placement/simulation.h"

namespace espalier::placement::internal {

Tables::Tables(const Instance& given, const Rules& given_rules, DeviceOrders given_orders)
    : instance(given),
      rules(given_rules),
      tasks(given.tasks()),
      values(given.values()),
      devices(given.devices()),
      kinds(given.kinds) {
  waits.resize(tasks);
  for (std::size_t task = 0; task < tasks; ++task) waits[task] = narrow(given.reads[task].size());
  add_ways();
  add_rows();
  set_orders(std::move(given_orders));
  add_bottom_levels();
  std::vector<std::vector<std::uint32_t>> with(given.resident_bytes.size());
  for (std::size_t unit = 0; unit < given.units(); ++unit) {
    for (const std::uint32_t resident : given.resident[unit]) with[resident].push_back(narrow(unit));
  }
  for (const std::vector<std::uint32_t>& units : with) {
    units_with.items.insert(units_with.items.end(), units.begin(), units.end());
    units_with.close();
  }
}

// Ways of one bandwidth share the holds of all values.
void Tables::add_ways() {
  bus_in_order = rules.sends == Rules::Sends::kSenderBus;
  std::map<std::optional<std::int64_t>, std::uint32_t> speed_of;
  for (std::size_t from = 0; from < devices; ++from) {
    for (std::size_t to = 0; to < devices; ++to) {
      const Route& way = instance.way(DeviceId(from), DeviceId(to));
      Passage passage;
      passage.link_begin = passage.link_end = narrow(links.size());
      if (from != to) {
        const std::optional<std::int64_t> bandwidth = rules.bandwidth ? rules.bandwidth : way.bandwidth;
        passage.speed = speed_of.try_emplace(bandwidth, narrow(speed_of.size())).first->second;
        if (rules.sends == Rules::Sends::kRoutes) {
          links.insert(links.end(), way.links.begin(), way.links.end());
          link_count = instance.links;
        } else if (rules.sends == Rules::Sends::kSenderBus) {
          links.push_back(narrow(from));
          link_count = devices;
        }
        passage.link_end = narrow(links.size());
        if (!rules.bandwidth) {
          passage.latency = way.latency.count();
          const Route& other = instance.way(DeviceId(from), DeviceId(from == 0 ? devices - 1 : 0));
          bus_in_order = bus_in_order && way.latency == other.latency;
          equal_ways = equal_ways && way.latency == instance.way(DeviceId(0), DeviceId(devices - 1)).latency;
          endpoints = endpoints || way.send != EndpointCost() || way.receive != EndpointCost();
        }
      }
      passages.push_back(passage);
    }
  }
  speeds = std::max<std::size_t>(1, speed_of.size());
  equal_ways = equal_ways && speeds == 1 && !endpoints && rules.sends != Rules::Sends::kRoutes;
  hold.assign(values * speeds, 0);
  for (const auto& [bandwidth, speed] : speed_of) {
    for (std::size_t value = 0; bandwidth && value < values; ++value) {
      hold[value * speeds + speed] = transfer_time(instance.bytes[value], *bandwidth).count();
    }
  }
}

void Tables::add_rows() {
  task_rows.resize(tasks + 1);
  for (std::size_t task = 0; task <= tasks; ++task) {
    TaskRow& row = task_rows[task];
    row.reads = instance.reads.begin[task];
    row.produces = instance.produces.begin[task];
    row.copies = instance.duplicates.begin[task];
    if (task == tasks) break;
    row.unit = narrow(instance.unit[task].index());
    row.workspace = instance.workspace[task].count();
  }
  value_rows.resize(values + 1);
  std::vector<std::vector<std::uint32_t>> inside(values);
  for (std::size_t value = 0; value <= values; ++value) {
    ValueRow& row = value_rows[value];
    row.readers = instance.readers.begin[value];
    if (value == values) break;
    row.bytes = instance.bytes[value].count();
    row.own_bytes = (instance.own_bytes.empty() ? instance.bytes : instance.own_bytes)[value].count();
    row.producer = narrow(instance.producer[value].index());
    row.within = narrow(instance.within.empty() ? value : instance.within[value].index());
    row.here_only = !instance.here_only.empty() && instance.here_only[value] != 0;
    if (row.within != value) {
      shared = true;
      inside[row.within].push_back(narrow(value));
    }
    if (row.here_only) here_only.push_back(narrow(value));
  }
  for (const std::vector<std::uint32_t>& all : inside) {
    kept_by.items.insert(kept_by.items.end(), all.begin(), all.end());
    kept_by.close();
  }
}

void Tables::set_orders(DeviceOrders given) {
  orders = std::move(given);
  if (rules.order == Rules::Order::kPriority) {
    std::vector<std::uint32_t>& priority = orders.priority;
    ESP_CHECK(priority.empty() || priority.size() == tasks, priority.size(), tasks);
    of_rank.resize(tasks);
    for (std::size_t task = 0; task < tasks; ++task) of_rank[task] = narrow(task);
    if (!priority.empty()) {
      std::stable_sort(of_rank.begin(), of_rank.end(),
                       [&](std::uint32_t a, std::uint32_t b) { return priority[a] < priority[b]; });
    }
    rank.resize(tasks);
    for (std::size_t i = 0; i < tasks; ++i) rank[of_rank[i]] = narrow(i);
  }
  if (rules.order == Rules::Order::kListed) {
    ESP_CHECK(orders.lists.size() == devices, orders.lists.size(), devices);
    constexpr std::uint32_t kNowhere = 0xffffffff;
    listed_on.assign(tasks, kNowhere);
    for (std::size_t device = 0; device < devices; ++device) {
      for (const TaskId task : orders.lists[device]) {
        ESP_CHECK(listed_on[task.index()] == kNowhere, task.index(), device);
        listed_on[task.index()] = narrow(device);
      }
    }
    ESP_CHECK(orders.lists.items.size() == tasks, orders.lists.items.size(), tasks);
  }
}

// On the fastest kind, as if nothing were sent.
void Tables::add_bottom_levels() {
  for (std::size_t task = tasks; task-- > 0;) {
    Time behind = 0, own = kNever;
    for (const ValueId value : instance.produces[task]) {
      if (value_rows[value.index()].here_only) continue;
      for (const TaskId reader : instance.readers[value.index()]) {
        behind = std::max(behind, task_rows[reader.index()].bottom);
      }
    }
    for (const DeviceId device : instance.allowed[instance.unit[task].index()]) {
      own = std::min(own, instance.time_on(TaskId(task), device).count());
    }
    task_rows[task].bottom = own + behind;
  }
}

void Slots::reset(std::size_t slots) {
  constexpr std::size_t kFew = 24;
  count_ = static_cast<std::uint32_t>(slots);
  leaves_ = 0;
  if (slots > kFew) {
    for (leaves_ = 1; leaves_ < slots;) leaves_ *= 2;
  }
  time_.assign(leaves_ == 0 ? slots : 2 * std::size_t{leaves_}, kNever);
}

Slots::Event Slots::at_root() const {
  std::uint32_t node = 1;
  while (node < leaves_) node = 2 * node + (time_[2 * node] == time_[1] ? 0 : 1);
  return {time_[1], node - leaves_};
}

void Slots::play(std::uint32_t node) {
  while (node > 1) {
    node /= 2;
    const Time least = time_[2 * node] < time_[2 * node + 1] ? time_[2 * node] : time_[2 * node + 1];
    if (time_[node] == least) break;
    time_[node] = least;
  }
}

void RankSet::reset(std::size_t bound) {
  std::size_t levels = 0;
  do {
    bound = (bound + 63) / 64;
    if (levels_.size() <= levels) levels_.emplace_back();
    levels_[levels++].assign(std::max<std::size_t>(1, bound), 0);
  } while (bound > 1);
  levels_.resize(levels);
}

}  // namespace espalier::placement::internal
