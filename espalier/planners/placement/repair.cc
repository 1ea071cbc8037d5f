#include "espalier/planners/placement/repair.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "espalier/planners/placement/list_clock.h"
#include "espalier/planners/placement/memory_ledger.h"

namespace espalier::placement {
namespace {

std::vector<DeviceLack> lacks_of(const MemoryLedger& ledger, std::size_t devices) {
  std::vector<DeviceLack> lacks;
  for (std::size_t d = 0; d < devices; ++d) {
    const Bytes lack = ledger.lacks(DeviceId(d));
    if (lack.count() > 0) lacks.push_back({DeviceId(d), lack});
  }
  return lacks;
}

// The first step: moves to where there is room.
class Relief {
 public:
  Relief(const Instance& instance, Assignment& assignment, MemoryLedger& ledger)
      : instance_(instance),
        assignment_(assignment),
        ledger_(ledger),
        mean_(instance),
        load_(instance.devices()) {
    for (std::size_t u = 0; u < instance.units(); ++u) {
      load_[assignment[u].index()] += time_on(UnitId(u), assignment[u]);
    }
  }

  // Whether everything fits in the end. What a device lacks never grows.
  bool run() {
    for (std::size_t d = 0; d < instance_.devices(); ++d) relieve(DeviceId(d));
    return ledger_.lack().count() == 0;
  }

 private:
  struct Move {
    UnitId unit;
    DeviceId to;
    std::int64_t harm, freed;
  };

  Duration time_on(UnitId unit, DeviceId device) const {
    Duration sum;
    for (const TaskId task : instance_.tasks_of[unit.index()]) sum += instance_.time_on(task, device);
    return sum;
  }

  std::int64_t harm(UnitId unit, DeviceId to) const {
    const DeviceId from = assignment_[unit.index()];
    const Duration busiest = *std::max_element(load_.begin(), load_.end());
    Duration harm = std::max(Duration(), load_[to.index()] + time_on(unit, to) - busiest);
    for (const std::uint32_t item : ledger_.touches(unit)) {
      if (item >= instance_.values()) break;
      if (ledger_.holders(item, from) > 1) harm += mean_.message[item];
      if (ledger_.holders(item, to) > 0) harm -= mean_.message[item];
    }
    return harm.count();
  }

  void relieve(DeviceId device) {
    if (ledger_.lacks(device).count() == 0) return;
    std::vector<Move> moves;
    for (std::size_t u = 0; u < instance_.units(); ++u) {
      if (assignment_[u] != device) continue;
      const std::int64_t freed = ledger_.freed_by(UnitId(u)).count() + 1;  // workspace may be what is freed
      for (const DeviceId to : instance_.allowed[u]) {
        if (to == device || !ledger_.fits(UnitId(u), to)) continue;
        moves.push_back({UnitId(u), to, harm(UnitId(u), to), freed});
      }
    }
    std::sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) {
      const double left = static_cast<double>(a.harm) / static_cast<double>(a.freed);
      const double right = static_cast<double>(b.harm) / static_cast<double>(b.freed);
      return left != right ? left < right : std::tie(a.unit, a.to) < std::tie(b.unit, b.to);
    });
    for (const Move& move : moves) {
      if (ledger_.lacks(device).count() == 0) return;
      if (assignment_[move.unit.index()] != device || !ledger_.fits(move.unit, move.to)) continue;
      ledger_.remove(move.unit);
      ledger_.place(move.unit, move.to);
      load_[device.index()] -= time_on(move.unit, device);
      load_[move.to.index()] += time_on(move.unit, move.to);
      assignment_[move.unit.index()] = move.to;
    }
  }

  const Instance& instance_;
  Assignment& assignment_;
  MemoryLedger& ledger_;
  const MeanCosts mean_;
  std::vector<Duration> load_;
};

// The second step: a packing, depth first.
class Packing {
 public:
  enum class First : std::uint8_t { kPresentDevice, kLeastGrowth };

  Packing(const Instance& instance, const Assignment& present, First first)
      : instance_(instance), present_(present), first_(first), ledger_(instance), holders_(ledger_.items()) {
    for (std::size_t i = 0; i < ledger_.items(); ++i) missing_ += ledger_.bytes_of(narrow(i));
    order_.resize(instance.units());
    std::iota(order_.begin(), order_.end(), std::uint32_t{0});
    std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
      // Who may stand on one device alone comes first.
      const bool fixed_a = instance.allowed[a].size() == 1, fixed_b = instance.allowed[b].size() == 1;
      if (fixed_a != fixed_b) return fixed_a;
      const Bytes alone_a = ledger_.alone(UnitId(a)), alone_b = ledger_.alone(UnitId(b));
      return alone_a != alone_b ? alone_b < alone_a : a < b;
    });
    alike_ = std::all_of(order_.begin(), order_.end(), [&](std::uint32_t unit) {
      return instance.allowed[unit].size() == instance.devices();
    });
    // Bytes of items that nobody touches are nobody's.
    std::vector<bool> touched(ledger_.items());
    for (const std::uint32_t unit : order_) {
      for (const std::uint32_t item : ledger_.touches(UnitId(unit))) touched[item] = true;
    }
    for (std::size_t i = 0; i < touched.size(); ++i) {
      if (!touched[i]) missing_ -= ledger_.bytes_of(narrow(i));
    }
  }

  enum class End : std::uint8_t { kFound, kProved, kBudget };
  struct Result {
    End end;
    Assignment assignment;
    std::uint64_t states;
  };

  Result run(std::uint64_t max_states) {
    Result result{End::kProved, Assignment(instance_.units()), 0};
    std::vector<std::vector<DeviceId>> left;  // by depth: devices not tried yet, the next last
    left.push_back(choices(order_.empty() ? 0 : order_[0]));
    while (!left.empty()) {
      const std::size_t depth = left.size() - 1;
      if (depth == order_.size()) {
        result.end = End::kFound;
        return result;
      }
      const UnitId unit(order_[depth]);
      if (placed_[depth]) take_back(unit, depth);
      if (left.back().empty()) {
        left.pop_back();
        continue;
      }
      if (result.states++ >= max_states) {
        result.end = End::kBudget;
        return result;
      }
      const DeviceId device = left.back().back();
      left.back().pop_back();
      put(unit, device, depth);
      result.assignment[unit.index()] = device;
      if (room() < missing_) continue;
      left.push_back(depth + 1 < order_.size() ? choices(order_[depth + 1]) : std::vector<DeviceId>());
    }
    return result;
  }

 private:
  Bytes room() const {
    Bytes sum;
    for (std::size_t d = 0; d < instance_.devices(); ++d)
      sum += instance_.memory[d] - ledger_.needs(DeviceId(d));
    return sum;
  }

  void put(UnitId unit, DeviceId device, std::size_t depth) {
    ledger_.place(unit, device);
    placed_[depth] = true;
    for (const std::uint32_t item : ledger_.touches(unit)) {
      if (holders_[item]++ == 0) missing_ -= ledger_.bytes_of(item);
    }
  }

  void take_back(UnitId unit, std::size_t depth) {
    ledger_.remove(unit);
    placed_[depth] = false;
    for (const std::uint32_t item : ledger_.touches(unit)) {
      if (--holders_[item] == 0) missing_ += ledger_.bytes_of(item);
    }
  }

  // Where a unit fits, the best last. Of empty devices that are alike one is enough.
  std::vector<DeviceId> choices(std::uint32_t u) const {
    const UnitId unit(u);
    std::vector<std::tuple<bool, Bytes, DeviceId>> fitting;
    std::vector<Bytes> empty;
    for (const DeviceId device : instance_.allowed[u]) {
      if (!ledger_.fits(unit, device)) continue;
      if (alike_ && ledger_.empty(device)) {
        const Bytes memory = instance_.memory[device.index()];
        const bool stays = device == present_[u];
        if (std::find(empty.begin(), empty.end(), memory) != empty.end()) {
          if (!stays) continue;
          // The present one stands for the others.
          std::erase_if(fitting, [&](const auto& each) {
            return ledger_.empty(std::get<2>(each)) && instance_.memory[std::get<2>(each).index()] == memory;
          });
        }
        empty.push_back(memory);
      }
      const bool elsewhere = first_ == First::kPresentDevice && device != present_[u];
      fitting.emplace_back(elsewhere, ledger_.needs_with(unit, device) - ledger_.needs(device), device);
    }
    std::sort(fitting.rbegin(), fitting.rend());
    std::vector<DeviceId> devices;
    for (const auto& each : fitting) devices.push_back(std::get<2>(each));
    return devices;
  }

  const Instance& instance_;
  const Assignment& present_;
  const First first_;
  MemoryLedger ledger_;
  std::vector<std::uint32_t> holders_;  // by item: placed units that touch it
  Bytes missing_;                       // of items that nobody holds
  std::vector<std::uint32_t> order_;
  std::vector<bool> placed_ = std::vector<bool>(instance_.units());  // by depth
  bool alike_ = false;
};

std::string lacks_text(const std::vector<DeviceLack>& lacks) {
  std::string text;
  for (const DeviceLack& lack : lacks) {
    text += (text.empty() ? "device " : ", device ") + std::to_string(lack.device.index()) + " lacks " +
            to_text(lack.bytes);
  }
  return text;
}

// A unit that no device could hold alone.
std::optional<std::string> too_large(const Instance& instance, const MemoryLedger& ledger) {
  for (std::size_t u = 0; u < instance.units(); ++u) {
    Bytes most;
    for (const DeviceId device : instance.allowed[u]) most = std::max(most, instance.memory[device.index()]);
    if (most < ledger.alone(UnitId(u))) {
      return "task " + std::to_string(instance.tasks_of[u][0].index()) +
             " with those that must stand beside it needs " + to_text(ledger.alone(UnitId(u))) +
             ", and no device where it may stand has more than " + to_text(most);
    }
  }
  return std::nullopt;
}

}  // namespace

Repaired repair(const Instance& instance, Assignment assignment, const RepairOptions& options) {
  Repaired result;
  MemoryLedger ledger(instance);
  for (std::size_t u = 0; u < instance.units(); ++u) ledger.place(UnitId(u), assignment[u]);
  if (ledger.lack().count() == 0) {
    result.assignment = std::move(assignment);
    return result;
  }
  const std::optional<std::string> large = too_large(instance, ledger);
  if (!large && Relief(instance, assignment, ledger).run()) {
    result.assignment = std::move(assignment);
    return result;
  }
  result.lacks = lacks_of(ledger, instance.devices());
  if (large) {
    result.proved = true;
    result.why = *large;
    return result;
  }
  const std::uint64_t budget = options.max_states + 2 * instance.units();
  for (const Packing::First first : {Packing::First::kPresentDevice, Packing::First::kLeastGrowth}) {
    Packing::Result packed = Packing(instance, assignment, first).run(budget);
    result.states += packed.states;
    if (packed.end == Packing::End::kFound) {
      result.assignment = std::move(packed.assignment);
      result.lacks.clear();
      return result;
    }
    result.proved = packed.end == Packing::End::kProved;
    if (result.proved) break;
  }
  result.why =
      (result.proved ? "no assignment fits: " : "none was found that fits: ") + lacks_text(result.lacks);
  return result;
}

}  // namespace espalier::placement
