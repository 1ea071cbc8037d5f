#pragma once

// The device that computes for a worker, and the time on it. Includes libtorch; runtime/ only.

#include <ATen/ATen.h>

#include <cstdint>
#include <string>

#include "espalier/runtime/runtime.h"
#include "espalier/runtime/transport.h"

namespace espalier {

// "cpu", "cuda" or "cuda:1"; empty: cuda where there is one. The workers of a host take its GPUs in turn, by
// their local rank, unless one GPU is named. Throws InputError naming those there are.
at::Device device_of_worker(const std::string& text, const World& world);

// The same where this libtorch can use so many GPUs.
at::Device device_of_worker(const std::string& text, const World& world, int gpus);

inline double nanoseconds_between(Clock::time_point from, Clock::time_point to) {
  return static_cast<double>(std::chrono::duration_cast<std::chrono::nanoseconds>(to - from).count());
}

// Reads the clock once the device has done what it was given, so that no time is that of a launch.
class DeviceClock {
 public:
  explicit DeviceClock(at::Device device) : device_(device) {}
  Clock::time_point now() const;

 private:
  at::Device device_;
};

}  // namespace espalier
