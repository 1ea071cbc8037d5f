#include <algorithm>
#include <map>
#include <tuple>

#include "espalier/base/check.h"
#include "espalier/placement/simulation.h"

namespace espalier::placement::internal {

Tables::Tables(const Instance& given, const Rules& given_rules, DeviceOrders given_orders)
    : instance(given),
      rules(given_rules),
      orders(std::move(given_orders)),
      tasks(given.tasks()),
      values(given.values()),
      devices(given.devices()),
      kinds(given.kinds) {
  waits.resize(tasks);
  for (std::size_t task = 0; task < tasks; ++task) waits[task] = narrow(given.reads[task].size());
  add_ways();
  add_values();
  add_orders();
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
      const Way& way = instance.way(DeviceId(from), DeviceId(to));
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
          const Way& other = instance.way(DeviceId(from), DeviceId(from == 0 ? devices - 1 : 0));
          bus_in_order = bus_in_order && way.latency == other.latency;
          endpoints = endpoints || way.send != EndpointCost() || way.receive != EndpointCost();
        }
      }
      passages.push_back(passage);
    }
  }
  speeds = std::max<std::size_t>(1, speed_of.size());
  hold.assign(values * speeds, 0);
  for (const auto& [bandwidth, speed] : speed_of) {
    for (std::size_t value = 0; bandwidth && value < values; ++value) {
      hold[value * speeds + speed] = transfer_time(instance.bytes[value], *bandwidth).count();
    }
  }
}

void Tables::add_values() {
  std::vector<std::vector<std::uint32_t>> inside(values);
  for (std::size_t value = 0; value < values; ++value) {
    bytes.push_back(instance.bytes[value].count());
    own_bytes.push_back((instance.own_bytes.empty() ? instance.bytes : instance.own_bytes)[value].count());
    within.push_back(narrow(instance.within.empty() ? value : instance.within[value].index()));
    if (within.back() != value) {
      shared = true;
      inside[within.back()].push_back(narrow(value));
    }
    if (is_here_only(narrow(value))) here_only.push_back(narrow(value));
  }
  for (const std::vector<std::uint32_t>& all : inside) {
    kept_by.items.insert(kept_by.items.end(), all.begin(), all.end());
    kept_by.close();
  }
}

void Tables::add_orders() {
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
  bottom.assign(tasks, 0);
  for (std::size_t task = tasks; task-- > 0;) {
    Time behind = 0, own = kNever;
    for (const ValueId value : instance.produces[task]) {
      if (is_here_only(narrow(value.index()))) continue;
      for (const TaskId reader : instance.readers[value.index()]) {
        behind = std::max(behind, bottom[reader.index()]);
      }
    }
    for (const DeviceId device : instance.allowed[instance.unit[task].index()]) {
      own = std::min(own, instance.time_on(TaskId(task), device).count());
    }
    bottom[task] = own + behind;
  }
}

void Slots::reset(std::size_t slots) {
  leaves_ = 1;
  while (leaves_ < slots) leaves_ *= 2;
  if (leaves_ < 2) leaves_ = 2;
  time_.assign(2 * std::size_t{leaves_}, kNever);
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
