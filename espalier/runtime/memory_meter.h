#pragma once

// Counts what a device's thread allocates, until it is freed. Includes libtorch; runtime/ only.
//
// On a CPU every block carries its size and its meter's count, at its end: whoever frees it, and whenever, it
// leaves that count. torch can report allocations to an observer instead, but whoever observes needs a table
// of all blocks behind a lock: it would cost a CPU too much. A GPU has no room in its blocks and far fewer of
// them, so there torch reports, to whoever is inside any scope; a block that another thread frees leaves its
// count when its address is used again.

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "espalier/base/units.h"

namespace espalier {

class MemoryMeter {
 public:
  // Counts blocks of this device's type. The first one of a CPU puts an allocator of its own in place of
  // torch's.
  explicit MemoryMeter(c10::Device device = c10::Device(c10::DeviceType::CPU));
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;
  ~MemoryMeter();

  struct Count;

  class Scope {  // while it lives, what its thread allocates counts; scopes nest
   public:
    explicit Scope(MemoryMeter& meter);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    Count* before_;
    bool observes_;
  };

  // Any thread may ask.
  Bytes live() const;
  // The largest live() since the last call.
  Bytes restart_peak();

 private:
  class GpuObserver;

  Count* count_;                           // lives until the meter and its last block are gone
  std::shared_ptr<GpuObserver> observer_;  // of a GPU's meter
};

}  // namespace espalier
