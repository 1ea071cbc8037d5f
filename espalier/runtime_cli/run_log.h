#pragma once

// Every figure of a run as JSON lines, for plots and for scripts:
//
//   {"event": "step", "step": 41, "epoch": 0, "loss": 2.31, "gradient_norm": 1.7, "learning_rate": 0.0005,
//    "samples": 128, "time_ns": 11865000, "samples_per_second": 10788.03, "elapsed_ns": 522000000}
//   {"event": "evaluation", "step": 44, "loss": 2.1, "outputs": {"accuracy": 0.31}, "samples": 389,
//   "left_out": 0, …}
//   {"event": "checkpoint", "step": 50, "path": "checkpoints/step-00000050", "bytes": 40960, "time_ns": …}
//
// A step is counted from 1, as it is printed; elapsed_ns from the beginning of the log. Each line is flushed,
// so a run that is killed has logged what it did; a run that is resumed appends.

#include <chrono>
#include <cstdint>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "espalier/runtime/runtime.h"

namespace espalier::cli {

nlohmann::ordered_json outputs_json(const EvaluationReport& evaluation);  // by name

class RunLog {
 public:
  enum class Mode : std::uint8_t { kNew, kAppend };
  RunLog(const std::string& path, Mode mode);  // throws InputError

  void note(const std::string& text);
  void step(const StepReport& step);
  void evaluation(const EvaluationReport& evaluation);
  void checkpoint(const CheckpointReport& checkpoint);

 private:
  void line(nlohmann::ordered_json json);

  std::string path_;
  std::chrono::steady_clock::time_point began_;
  std::ofstream file_;
};

}  // namespace espalier::cli
