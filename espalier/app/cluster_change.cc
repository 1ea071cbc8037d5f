#include "espalier/app/cluster_change.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/spelling.h"
#include "espalier/plan/plan.h"

namespace espalier {
namespace {

constexpr std::string_view kLinks = "links";
constexpr double kMostFactor = 1000;

// "0.5x": 0.5.
std::optional<double> factor_of(std::string_view how) {
  if (how.empty() || how.back() != 'x') return std::nullopt;
  double factor = 0;
  const auto [end, error] = std::from_chars(how.data(), how.data() + how.size() - 1, factor);
  if (error != std::errc() || end != how.data() + how.size() - 1) return std::nullopt;
  if (!(factor >= 1 / kMostFactor && factor <= kMostFactor)) return std::nullopt;
  return factor;
}

// "+3": 3.
std::optional<std::size_t> count_of(std::string_view how) {
  if (how.size() < 2 || how.front() != '+') return std::nullopt;
  std::size_t count = 0;
  const auto [end, error] = std::from_chars(how.data() + 1, how.data() + how.size(), count);
  if (error != std::errc() || end != how.data() + how.size() || count < 1 || count > 4096)
    return std::nullopt;
  return count;
}

struct OneChange {
  std::string_view what, how;
};

class Changer {
 public:
  Changer(const PlanningJob& job, std::string_view text)
      : text_(text), job_(job), parts_(job.cluster.parts()), costs_(job.costs.parts()) {
    for (std::size_t d = 0; d < parts_.devices.size(); ++d) was_.push_back(DeviceId(d));
  }

  PlanningJob run() {
    for (std::size_t at = 0; at <= text_.size();) {
      const std::size_t end = std::min(text_.find(',', at), text_.size());
      apply(text_.substr(at, end - at));
      at = end + 1;
    }
    PlanningJob changed = job_;
    try {
      changed.cluster = Cluster(std::move(parts_));
    } catch (const InputError& error) {
      fail(error.what());
    }
    changed.costs = CostTable(std::move(costs_));
    changed.start = changed.start ? moved(*std::move(changed.start), changed.cluster) : std::nullopt;
    for (Pin& pin : changed.pins) pin.device = now(pin.device, "pinned");
    for (LockedStage& locked : changed.locked) {
      for (Replica& replica : locked.stage.replicas) {
        for (DeviceId& device : replica.devices) device = now(device, "locked");
      }
    }
    for (HandStage& stage : changed.stages) {
      for (DeviceId& device : stage.devices) device = now(device, "chosen by hand");
    }
    return changed;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw InputError("--what-if '" + std::string(text_.substr(0, 80)) + "': " + problem);
  }

  // The plan on the changed cluster; nothing where a device of it is gone or its orders are lists, one for
  // each device.
  std::optional<PipelinePlan> moved(PipelinePlan plan, const Cluster& changed) const {
    if (!plan.orders.rule() && changed.devices().size() != job_.cluster.devices().size()) return std::nullopt;
    for (Stage& stage : plan.stages) {
      for (Replica& replica : stage.replicas) {
        for (DeviceId& device : replica.devices) {
          const std::optional<DeviceId> there = now(device);
          if (!there) return std::nullopt;
          device = *there;
        }
      }
    }
    return check_plan(job_.graph, changed, plan).empty() ? std::optional(std::move(plan)) : std::nullopt;
  }

  // Where a device of the job stands in the changed cluster; nothing where it is gone.
  std::optional<DeviceId> now(DeviceId before) const {
    const auto at = std::find(was_.begin(), was_.end(), std::optional(before));
    return at == was_.end() ? std::nullopt
                            : std::optional(DeviceId(static_cast<std::size_t>(at - was_.begin())));
  }
  DeviceId now(DeviceId before, const std::string& why) const {
    const std::optional<DeviceId> there = now(before);
    if (!there) fail("'" + job_.cluster.device(before).name + "' is " + why + ", so it cannot go");
    return *there;
  }

  void apply(std::string_view change) {
    const std::size_t equals = change.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      fail("expected such as gpu:3=gone, gpu:3=+1, gpu:3=0.5x, *=+1GiB or links=2x");
    }
    const OneChange one{change.substr(0, equals), change.substr(equals + 1)};
    if (one.what == kLinks || one.what.substr(0, kLinks.size() + 1) == "links:") {
      change_links(one);
      return;
    }
    const std::vector<std::size_t> devices = devices_of(one.what);
    if (one.how == "gone") {
      remove(devices);
    } else if (const auto more = count_of(one.how)) {
      add(one.what, devices, *more);
    } else if (const auto factor = factor_of(one.how)) {
      change_speed(devices, *factor);
    } else if (!one.how.empty() && (one.how.front() == '+' || one.how.front() == '-')) {
      change_memory(devices, one.how);
    } else {
      fail("'" + std::string(one.how) + "' is no change; expected gone, +1, 0.5x, +1GiB or -1GiB");
    }
  }

  std::optional<std::size_t> group_named(std::string_view name) const {
    for (std::size_t g = 0; g < parts_.groups.size(); ++g) {
      if (parts_.groups[g].name == name) return g;
    }
    return std::nullopt;
  }

  // Whether the group is `outer` or inside it.
  bool is_inside(std::size_t group, std::size_t outer) const {
    while (group != outer) {
      if (!parts_.groups[group].parent) return false;
      group = parts_.groups[group].parent->index();
    }
    return true;
  }

  // Of a device, a group, a kind or `*`: indices, ascending.
  std::vector<std::size_t> devices_of(std::string_view what) const {
    const std::optional<std::size_t> group = group_named(what);
    std::vector<std::size_t> devices;
    for (std::size_t d = 0; d < parts_.devices.size(); ++d) {
      const Device& device = parts_.devices[d];
      if (what == "*" || device.name == what || parts_.kinds[device.kind.index()].name == what ||
          (group && is_inside(device.group.index(), *group))) {
        devices.push_back(d);
      }
    }
    if (devices.empty()) {
      std::vector<std::string_view> names;
      for (const Device& device : parts_.devices) names.push_back(device.name);
      for (const Group& each : parts_.groups) names.push_back(each.name);
      for (const DeviceKind& kind : parts_.kinds) names.push_back(kind.name);
      fail("there is no device, group or kind '" + std::string(what) + "'; did you mean '" +
           std::string(*nearest_word(std::string(what), names)) + "'?");
    }
    return devices;
  }

  void remove(const std::vector<std::size_t>& devices) {
    if (devices.size() == parts_.devices.size()) fail("no device is left");
    for (const NamedLink& link : parts_.links) {
      for (const Member& end : {link.from, link.to}) {
        const auto* device = std::get_if<DeviceId>(&end);
        if (device && std::find(devices.begin(), devices.end(), device->index()) != devices.end()) {
          fail("'" + parts_.devices[device->index()].name +
               "' has a link of its own; a cluster file says what is left");
        }
      }
    }
    for (auto d = devices.rbegin(); d != devices.rend(); ++d) {
      parts_.devices.erase(parts_.devices.begin() + static_cast<std::ptrdiff_t>(*d));
      was_.erase(was_.begin() + static_cast<std::ptrdiff_t>(*d));
      for (NamedLink& link : parts_.links) {
        for (Member* end : {&link.from, &link.to}) {
          auto* device = std::get_if<DeviceId>(end);
          if (device && device->index() > *d) *device = DeviceId(device->index() - 1);
        }
      }
    }
  }

  // A name that nobody has: "gpu:3 again", "gpu:3 again 2".
  std::string fresh_name(const std::string& name) const {
    const auto taken = [&](const std::string& text) {
      return group_named(text) || std::any_of(parts_.devices.begin(), parts_.devices.end(),
                                              [&](const Device& device) { return device.name == text; });
    };
    std::string fresh = name + " again";
    for (int n = 2; taken(fresh); ++n) fresh = name + " again " + std::to_string(n);
    return fresh;
  }

  // More of a device in its group; of a group another one beside it with copies of its devices.
  void add(std::string_view what, const std::vector<std::size_t>& devices, std::size_t count) {
    const std::optional<std::size_t> group = group_named(what);
    if (!group && (devices.size() > 1 || parts_.devices[devices.front()].name != what)) {
      fail("which device shall there be more of? expected one device or a group");
    }
    for (std::size_t i = 0; i < count; ++i) {
      GroupId home = parts_.devices[devices.front()].group;
      if (group) {
        if (!parts_.groups[*group].parent)
          fail("'" + std::string(what) + "' holds all; name a group or a device in it");
        for (const std::size_t d : devices) {
          if (parts_.devices[d].group.index() != *group) {
            fail("'" + std::string(what) + "' has groups inside; name one of those");
          }
        }
        home = GroupId(parts_.groups.size());
        parts_.groups.push_back(parts_.groups[*group]);
        parts_.groups.back().name = fresh_name(parts_.groups[*group].name);
      }
      for (const std::size_t d : devices) {
        Device device = parts_.devices[d];
        device.name = fresh_name(device.name);
        device.group = home;
        parts_.devices.push_back(std::move(device));
        was_.push_back(std::nullopt);
      }
    }
  }

  void change_memory(const std::vector<std::size_t>& devices, std::string_view how) {
    Bytes bytes;
    try {
      bytes = parse_bytes(std::string(how.substr(1)));
    } catch (const InputError& error) {
      fail(error.what());
    }
    for (const std::size_t d : devices) {
      Bytes& memory = parts_.devices[d].memory;
      if (how.front() == '-' && memory <= bytes)
        fail("'" + parts_.devices[d].name + "' has no more than that");
      memory = how.front() == '+' ? memory + bytes : memory - bytes;
    }
  }

  // The devices get kinds of their own, whose costs are copies of the old kinds'.
  void change_speed(const std::vector<std::size_t>& devices, double factor) {
    std::vector<std::pair<std::size_t, std::size_t>> copies;  // of kinds: old, new
    for (const std::size_t d : devices) {
      const std::size_t old = parts_.devices[d].kind.index();
      auto copy =
          std::find_if(copies.begin(), copies.end(), [&](const auto& each) { return each.first == old; });
      if (copy == copies.end()) {
        copies.emplace_back(old, copy_kind(old, factor));
        copy = copies.end() - 1;
      }
      parts_.devices[d].kind = KindId(copy->second);
    }
  }

  std::size_t copy_kind(std::size_t old, double factor) {
    DeviceKind kind = parts_.kinds[old];
    const std::string before = kind.name;
    std::string times = std::to_string(factor);
    times.erase(times.find_last_not_of('0') + 1);
    if (times.back() == '.') times.pop_back();
    kind.name = before + " at " + times + "x";
    while (std::any_of(parts_.kinds.begin(), parts_.kinds.end(),
                       [&](const DeviceKind& each) { return each.name == kind.name; })) {
      kind.name += "'";
    }
    kind.speed *= factor;
    const std::size_t rows = costs_.rows.size(), overheads = costs_.overheads.size();
    for (std::size_t i = 0; i < rows; ++i) {
      if (costs_.rows[i].kind != before) continue;
      costs_.rows.push_back(costs_.rows[i]);
      costs_.rows.back().kind = kind.name;
    }
    for (std::size_t i = 0; i < overheads; ++i) {
      if (costs_.overheads[i].kind != before) continue;
      costs_.overheads.push_back(costs_.overheads[i]);
      costs_.overheads.back().kind = kind.name;
    }
    parts_.kinds.push_back(std::move(kind));
    return parts_.kinds.size() - 1;
  }

  void change_links(const OneChange& one) {
    const std::optional<double> factor = factor_of(one.how);
    if (!factor) fail("'" + std::string(one.how) + "' is no rate for links; expected such as 2x or 0.5x");
    const auto times = [&](std::int64_t rate) {
      return std::max<std::int64_t>(1, std::llround(static_cast<double>(rate) * *factor));
    };
    std::optional<std::size_t> only;
    if (one.what != kLinks) {
      const std::string_view name = one.what.substr(kLinks.size() + 1);
      only = group_named(name);
      if (!only) {
        std::vector<std::string_view> names;
        for (const Group& group : parts_.groups) names.push_back(group.name);
        fail("there is no group '" + std::string(name) + "'; did you mean '" +
             std::string(*nearest_word(std::string(name), names)) + "'?");
      }
    }
    for (std::size_t g = 0; g < parts_.groups.size(); ++g) {
      Group& group = parts_.groups[g];
      if ((!only || g == *only) && group.bandwidth) group.bandwidth = times(*group.bandwidth);
    }
    for (NamedLink& link : parts_.links) {
      if (!only) link.bandwidth = times(link.bandwidth);
    }
  }

  std::string_view text_;
  const PlanningJob& job_;
  ClusterParts parts_;
  CostTableParts costs_;
  std::vector<std::optional<DeviceId>> was_;  // by device of the changed cluster; none: new
};

}  // namespace

PlanningJob with_change(const PlanningJob& job, std::string_view change) {
  return Changer(job, change).run();
}

}  // namespace espalier
