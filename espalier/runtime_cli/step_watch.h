#pragma once

// Says from time to time that a step still runs: a step of minutes without a line looks like a hang.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace espalier::cli {

class StepWatch {
 public:
  // `say` is called from a thread of its own: "step 3 runs since 30 s", each time that another `interval` has
  // passed in one step.
  StepWatch(std::chrono::nanoseconds interval, std::function<void(const std::string&)> say);
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;
  ~StepWatch();

  void starts(std::uint64_t step);  // counted from 1
  void stop();

 private:
  void watch();

  std::chrono::nanoseconds interval_;
  std::function<void(const std::string&)> say_;
  std::mutex lock_;  // of all below
  std::condition_variable changed_;
  std::uint64_t step_ = 0;
  std::uint64_t starts_ = 0;  // how often a step began
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace espalier::cli
