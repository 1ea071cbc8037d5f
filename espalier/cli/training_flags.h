#pragma once

// How a model is trained, on the command line: the same flags where a plan is made, which stores them, and
// where it is run, which may override some for that run.

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "espalier/plan/training.h"

namespace espalier::cli {

class TrainingFlags {
 public:
  void add_optimizer(CLI::App* verb);  // --optimizer, --momentum, --weight-decay, --no-decay
  void add_rate(CLI::App* verb);       // --lr, --clip-norm, --lr-schedule, --warm-up, --schedule-steps
  void add_frozen(CLI::App* verb);     // --freeze

  // `before` with what was given. Throws InputError naming the flag.
  Optimizer over(Optimizer before) const;
  const std::vector<std::string>& frozen() const { return frozen_; }

 private:
  std::optional<std::string> kind_, shape_;
  std::optional<double> learning_rate_, momentum_, weight_decay_, clip_norm_;
  std::optional<std::uint64_t> warm_up_, schedule_steps_;
  std::vector<std::string> no_decay_, frozen_;
};

}  // namespace espalier::cli
