#pragma once

// Counts what a thread allocates and frees on the CPU. Includes libtorch; runtime/ only.
//
// torch can report allocations to an observer, but then keeps all blocks in one table behind a lock. Here
// every block carries its size and its meter, at its end.

#include <algorithm>
#include <cstdint>

#include "espalier/base/units.h"

namespace espalier {

// What is freed by another thread than the one that allocated it, or outside of its scopes, stays in the
// count.
class MemoryMeter {
 public:
  // The first one puts an allocator of its own in place of torch's.
  MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  class Scope {  // while it lives, what its thread allocates counts; scopes nest
   public:
    explicit Scope(MemoryMeter& meter);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    MemoryMeter* before_;
  };

  Bytes live() const { return Bytes(std::max<std::int64_t>(live_, 0)); }
  // The largest since the last call.
  Bytes take_peak() {
    const std::int64_t peak = std::max<std::int64_t>(peak_, 0);
    peak_ = live_;
    return Bytes(peak);
  }

  // For the allocator.
  std::uint64_t number() const { return number_; }
  void add(std::int64_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }

 private:
  std::uint64_t number_;  // no other meter of the process has it; not 0
  std::int64_t live_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace espalier
