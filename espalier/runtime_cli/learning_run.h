#pragma once

// What the actions of `learn` that train something have in common.

#include <cstdint>

#include "espalier/base/thread_pool.h"
#include "espalier/cli/runtime_verbs.h"
#include "espalier/planners/context.h"

namespace espalier::cli {

// Threads, and a context that ends where somebody interrupts the program, and for no budget.
struct LearningRun {
  explicit LearningRun(const SearchOptions& search) : pool(search.threads) {
    context.budget.max_states = ~std::uint64_t{0};
    context.pool = &pool;
    context.cancelled = search.cancelled;
  }
  LearningRun(const LearningRun&) = delete;
  LearningRun& operator=(const LearningRun&) = delete;

  ThreadPool pool;
  Context context;
};

// The mean of the last so many numbers, roughly: of all until there are as many, then each new one has an
// equal share.
class RunningMean {
 public:
  explicit RunningMean(std::uint64_t last) : last_(last) {}
  void add(double number) {
    if (counted_ < last_) ++counted_;
    value_ += (number - value_) / static_cast<double>(counted_);
  }
  double value() const { return value_; }
  bool empty() const { return counted_ == 0; }

 private:
  std::uint64_t last_, counted_ = 0;
  double value_ = 0;
};

}  // namespace espalier::cli
