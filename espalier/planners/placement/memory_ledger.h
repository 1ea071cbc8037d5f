#pragma once

// What devices hold if all that their units touch is held all step long (Rules::Memory::kAllHeld; Baechi's
// account, with received tensors counted): the values that the units produce or read, their residents, and
// the largest workspace of a task. Each value and resident counts once on a device.
//
//   needs(device) = Σ bytes of what any of its units touches + max workspace
//
// So it depends on which units stand there and on nothing else: not on orders, nor on other devices. It grows
// with each unit; what does not fit now does not fit with more.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "espalier/placement/instance.h"

namespace espalier::placement {

class MemoryLedger {
 public:
  // Refers to the instance. Nothing is placed yet. O(tasks + reads, times log; values · devices).
  explicit MemoryLedger(const Instance& instance);

  // A unit is placed once, and removed from where it was placed. O(what it touches); removing the unit of the
  // largest workspace O(units).
  void place(UnitId unit, DeviceId device);
  void remove(UnitId unit);

  Bytes needs(DeviceId device) const;                    // 0 without units
  Bytes lacks(DeviceId device) const;                    // 0 where it fits
  Bytes lack() const;                                    // of all devices
  Bytes needs_with(UnitId unit, DeviceId device) const;  // with a unit that is not there. O(what it touches)
  bool fits(UnitId unit, DeviceId device) const;
  Bytes freed_by(UnitId unit) const;  // what its device would hold less without it, workspace left out
  Bytes alone(UnitId unit) const { return alone_[unit.index()]; }  // what it needs on an empty device

  // What a unit touches: values, then residents behind them by number. Ascending, those without bytes left
  // out.
  std::span<const std::uint32_t> touches(UnitId unit) const { return touches_[unit.index()]; }
  // Units on the device that touch it.
  std::uint32_t holders(std::uint32_t item, DeviceId device) const { return count(item, device.index()); }
  bool empty(DeviceId device) const { return standing_[device.index()].empty(); }
  Bytes bytes_of(std::uint32_t item) const { return bytes_[item]; }
  std::size_t items() const { return bytes_.size(); }
  Bytes workspace_of(UnitId unit) const { return workspace_[unit.index()]; }

 private:
  std::uint32_t& count(std::uint32_t item, std::size_t device) { return count_[item * devices_ + device]; }
  std::uint32_t count(std::uint32_t item, std::size_t device) const {
    return count_[item * devices_ + device];
  }

  const Instance& instance_;
  std::size_t devices_;
  Lists<std::uint32_t> touches_;               // by unit
  std::vector<Bytes> bytes_;                   // by item
  std::vector<Bytes> workspace_;               // by unit
  std::vector<Bytes> alone_;                   // by unit
  std::vector<bool> ample_;                    // by device: it could hold everything
  std::vector<std::uint32_t> count_;           // by item and device: units there that touch it
  std::vector<std::vector<UnitId>> standing_;  // by device, in no order
  std::vector<std::uint32_t> place_in_list_;   // by unit
  std::vector<std::uint32_t> where_;           // by unit: device + 1, or 0
  std::vector<Bytes> held_, largest_;          // by device
};

// Of a whole assignment: one line for each device that lacks memory, "device 2 needs 3 GiB and has 2 GiB".
std::vector<std::string> check_memory(const Instance& instance, std::span<const DeviceId> assignment);

}  // namespace espalier::placement
