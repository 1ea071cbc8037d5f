#include "espalier/runtime_cli/run_log.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/json.h"

namespace espalier::cli {

nlohmann::ordered_json outputs_json(const EvaluationReport& evaluation) {
  Json outputs = Json::object();
  for (const auto& [name, value] : evaluation.outputs) outputs[name] = value;
  return outputs;
}

RunLog::RunLog(const std::string& path, Mode mode)
    : path_(path),
      began_(std::chrono::steady_clock::now()),
      file_(path, mode == Mode::kAppend ? std::ios::app : std::ios::trunc) {
  if (!file_) throw InputError("--log " + path + ": cannot write: " + std::strerror(errno));
}

void RunLog::line(Json json) {
  const std::chrono::nanoseconds elapsed = std::chrono::steady_clock::now() - began_;
  json["elapsed_ns"] = elapsed.count();
  file_ << json.dump() << std::endl;
  if (!file_) throw InputError("--log " + path_ + ": cannot write: " + std::strerror(errno));
}

void RunLog::note(const std::string& text) {
  line({{"event", "note"}, {"text", text}});
}

void RunLog::step(const StepReport& step) {
  Json json{{"event", "step"}, {"step", step.step + 1}};
  if (step.epoch) json["epoch"] = *step.epoch;
  json["loss"] = step.loss;
  json["gradient_norm"] = step.gradient_norm;
  json["learning_rate"] = step.learning_rate;
  json["samples"] = step.samples.count();
  json["time_ns"] = step.time.count();
  json["samples_per_second"] =
      static_cast<double>(step.samples.count()) / std::max(to_seconds(step.time), 1e-9);
  line(std::move(json));
}

void RunLog::evaluation(const EvaluationReport& evaluation) {
  line({{"event", "evaluation"},
        {"step", evaluation.step},
        {"loss", evaluation.loss},
        {"outputs", outputs_json(evaluation)},
        {"samples", evaluation.samples.count()},
        {"left_out", evaluation.left_out},
        {"time_ns", evaluation.time.count()}});
}

void RunLog::checkpoint(const CheckpointReport& checkpoint) {
  line({{"event", "checkpoint"},
        {"step", checkpoint.step},
        {"path", checkpoint.path},
        {"bytes", checkpoint.bytes.count()},
        {"time_ns", checkpoint.time.count()}});
}

}  // namespace espalier::cli
