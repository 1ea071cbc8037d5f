#pragma once

// Counts what a thread allocates and frees on the CPU. Includes libtorch; runtime/ only.

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "espalier/base/units.h"

namespace espalier {

// Memory allocated by one thread and freed by another stays in the count of the first.
class MemoryMeter final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  bool memoryProfilingEnabled() const override { return true; }

  Bytes live() const { return Bytes(std::max<std::int64_t>(live_, 0)); }
  // The largest since the last call.
  Bytes take_peak() {
    const std::int64_t peak = std::max<std::int64_t>(peak_, 0);
    peak_ = live_;
    return Bytes(peak);
  }

 private:
  std::int64_t live_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace espalier
