#pragma once

// Counts what a device's thread allocates on the CPU, until it is freed. Includes libtorch; runtime/ only.
//
// torch can report allocations to an observer, but then keeps all blocks in one table behind a lock. Here
// every block carries its size and its meter's count, at its end: whoever frees it, and whenever, it leaves
// that count.

#include <cstdint>

#include "espalier/base/units.h"

namespace espalier {

class MemoryMeter {
 public:
  // The first one puts an allocator of its own in place of torch's.
  MemoryMeter();
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
  };

  // Any thread may ask.
  Bytes live() const;
  // The largest live() since the last call.
  Bytes restart_peak();

 private:
  Count* count_;  // lives until the meter and its last block are gone
};

}  // namespace espalier
