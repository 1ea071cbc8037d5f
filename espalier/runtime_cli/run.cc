#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/cli/workers.h"
#include "espalier/runtime/process_placement.h"
#include "espalier/runtime/runtime.h"
#include "espalier/runtime_cli/execution.h"
#include "espalier/runtime_cli/run_log.h"
#include "espalier/runtime_cli/step_watch.h"
#include "espalier/runtime_cli/verbs.h"

namespace espalier::cli {
namespace {

// "step 44: loss 0.4321 on 389 samples, accuracy 0.91"
std::string evaluation_text(const EvaluationReport& evaluation) {
  std::string text = fmt::format("step {}: loss {:.4f} on {} samples", evaluation.step, evaluation.loss,
                                 evaluation.samples.count());
  for (const auto& [name, value] : evaluation.outputs) text += fmt::format(", {} {:.4g}", name, value);
  if (evaluation.left_out > 0)
    text +=
        fmt::format(" ({} more fill no micro-batch that the model was exported for)", evaluation.left_out);
  return text;
}

// What rank 0 tells of a run while it goes on: one line per step while somebody watches, some twenty lines of
// a long run else; every figure into the log.
class Progress {
 public:
  Progress(Console& console, const RunFlags& flags)
      : console_(console),
        steps_(flags.steps),
        watch_(console.draws_progress() ? std::chrono::seconds(10) : std::chrono::seconds(30),
               [this](const std::string& line) { console_.notes({line}); }) {
    if (flags.log.empty()) return;
    log_.emplace(flags.log, flags.resume.empty() ? RunLog::Mode::kNew : RunLog::Mode::kAppend);
  }

  void attach(RunOptions& options) {
    options.on_note = [this](const std::string& text) {
      console_.notes({text});
      if (log_) log_->note(text);
    };
    options.on_start = [this](std::uint64_t done) { watch_.starts(done + 1); };
    options.on_step = [this](const StepReport& step) { tell(step); };
    options.on_evaluation = [this](const EvaluationReport& evaluation) { tell(evaluation); };
    if (options.checkpoints) {
      options.checkpoints->on_checkpoint = [this](const CheckpointReport& checkpoint) {
        if (log_) log_->checkpoint(checkpoint);
        last_checkpoint_ = checkpoint.path;
      };
    }
  }

  void finish() {
    watch_.stop();
    console_.finish();
  }
  const std::string& last_checkpoint() const { return last_checkpoint_; }

 private:
  void tell(const StepReport& step) {
    watch_.starts(step.step + 2);
    if (log_) log_->step(step);
    const double seconds = std::max(to_seconds(step.time), 1e-9);
    const std::string epoch = step.epoch ? fmt::format("  epoch {}", *step.epoch + 1) : "";
    const std::string line =
        fmt::format("step {}/{}{}  loss {:.4f}  {:.0f} samples/s", step.step + 1, steps_, epoch, step.loss,
                    static_cast<double>(step.samples.count()) / seconds);
    if (console_.draws_progress()) {
      console_.progress(static_cast<double>(step.step + 1) / static_cast<double>(steps_), line);
    } else if (!console_.json && due(step.step)) {
      console_.out() << line << std::endl;
    }
  }
  void tell(const EvaluationReport& evaluation) {
    if (log_) log_->evaluation(evaluation);
    if (console_.json) return;
    console_.finish();
    console_.out() << evaluation_text(evaluation) << std::endl;
  }
  bool due(std::uint64_t step) const {
    const std::uint64_t every = std::max<std::uint64_t>(steps_ / 20, 1);
    return step == 0 || (step + 1) % every == 0 || step + 1 == steps_;
  }

  Console& console_;
  std::uint64_t steps_;
  std::optional<RunLog> log_;
  std::string last_checkpoint_;
  StepWatch watch_;  // last: its thread uses the others
};

Duration median_of(std::vector<Duration> times) {
  if (times.empty()) return {};
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// Of the steps after the first, which also allocates.
Duration median_time(const std::vector<StepReport>& steps) {
  std::vector<Duration> times;
  for (std::size_t i = steps.size() > 1 ? 1 : 0; i < steps.size(); ++i) times.push_back(steps[i].time);
  return median_of(std::move(times));
}

Json steps_json(const std::vector<StepReport>& reports) {
  Json steps = Json::array();
  for (const StepReport& step : reports) {
    steps.push_back({{"step", step.step},
                     {"loss", step.loss},
                     {"gradient_norm", step.gradient_norm},
                     {"learning_rate", step.learning_rate},
                     {"time_ns", step.time.count()},
                     {"samples", step.samples.count()}});
    if (step.epoch) steps.back()["epoch"] = *step.epoch;
  }
  return steps;
}

// A step as it was predicted and as it was; a prediction for other devices says nothing about it.
std::string step_text(Duration predicted, Duration measured, bool foreign) {
  if (foreign) return fmt::format("one step: measured {} (median)\n", to_text(measured));
  return fmt::format("one step: predicted {}, measured {} (median): {:+.1f} %\n", to_text(predicted),
                     to_text(measured), 100 * relative_difference(predicted, measured));
}

void print(Program& program, const OpenedPlan& opened, const RunFlags& flags, const RunResult& result,
           std::uint32_t workers, const std::string& last_checkpoint, bool foreign) {
  Console& console = program.console;
  const Duration measured = median_time(result.steps);
  const Duration predicted = opened.expected();
  if (console.json) {
    Json json{{"plan", flags.execution.plan},
              {"workers", workers},
              {"predicted_ns", predicted.count()},
              {"median_ns", measured.count()},
              {"error", foreign ? Json() : Json(relative_difference(predicted, measured))},
              {"notes", result.notes},
              {"first_step", result.first_step},
              {"dropped_samples", result.dropped_samples},
              {"steps", steps_json(result.steps)}};
    for (const EvaluationReport& evaluation : result.evaluations) {
      json["evaluations"].push_back({{"step", evaluation.step},
                                     {"loss", evaluation.loss},
                                     {"outputs", outputs_json(evaluation)},
                                     {"samples", evaluation.samples.count()},
                                     {"left_out", evaluation.left_out}});
    }
    if (!last_checkpoint.empty()) json["checkpoint"] = last_checkpoint;
    print_json_line(console, json);
    return;
  }
  std::ostream& out = console.out();
  if (result.steps.empty()) {
    out << fmt::format("nothing to train: {} steps are done, --steps {}\n", result.first_step, flags.steps);
  } else {
    out << fmt::format("{} steps by {} worker{}: loss {:.4f} to {:.4f}\n", result.steps.size(), workers,
                       workers == 1 ? "" : "s", result.steps.front().loss, result.steps.back().loss);
    out << step_text(predicted, measured, foreign);
  }
  if (!last_checkpoint.empty()) out << "last checkpoint: " << last_checkpoint << '\n';
  if (!flags.save.empty()) out << "wrote " << flags.save << '\n';
  out.flush();
  console.notes(result.notes);
}

RunOptions options_of(const RunFlags& flags) {
  RunOptions options;
  options.world = world_from_environment();
  options.on_stuck = end_stuck_worker;
  options.steps = flags.steps;
  options.data = flags.execution.data;
  options.load = flags.load;
  options.missing = flags.load_partial ? MissingNames::kFromArchive : MissingNames::kRefused;
  options.resume = flags.resume;
  if (!flags.checkpoints.empty()) {
    options.checkpoints = {
        .folder = flags.checkpoints, .every = flags.save_every, .keep = static_cast<std::size_t>(flags.keep)};
  }
  options.evaluation_data = flags.evaluation_data;
  options.evaluate_every = flags.evaluate_every;
  options.save = flags.save;
  options.record = flags.record;
  options.device = flags.execution.device;
  options.threads = flags.execution.threads;
  options.timeout = round_duration(flags.timeout * 1e9);
  return options;
}

int run_worker(Program& program, const OpenedPlan& opened, const RunFlags& flags) {
  Console& console = program.console;
  RunOptions options = options_of(flags);
  prepare_process(options.world, options.threads);
  options.stop = &watch_for_interrupts();
  std::optional<Progress> progress;
  std::vector<std::string> foreign;
  if (options.world.rank == 0) {
    warn_of_measurement(program, opened, options.threads);
    foreign = device_warnings(program, opened, flags.execution);
    console.warnings(foreign);
    progress.emplace(console, flags).attach(options);
  }
  PlanFile file = opened.file;
  file.training.optimizer = flags.training.over(file.training.optimizer);
  const RunResult result = run_plan(file, opened.model, options);
  if (progress) progress->finish();
  const int code = result.interrupted ? kInterrupted : kDone;
  if (options.world.rank != 0) return code;
  print(program, opened, flags, result, options.world.size, progress->last_checkpoint(), !foreign.empty());
  if (result.trace) flags.outputs.write(console, *result.trace, opened.file.planner + ", measured");
  return code;
}

int run_paced_worker(Program& program, const OpenedPlan& opened, const RunFlags& flags) {
  Console& console = program.console;
  PacedOptions options;
  options.world = world_from_environment();
  options.on_stuck = end_stuck_worker;
  options.steps = flags.steps;
  options.slower = flags.slower;
  options.timeout = round_duration(flags.timeout * 1e9);
  prepare_process(options.world, 1);
  const PacedResult result = run_paced(opened.file, options);
  if (options.world.rank != 0) return kDone;
  const Duration simulated =
      round_duration(flags.slower * static_cast<double>(opened.trace.iteration.count()));
  const Duration measured = median_of(result.steps);
  if (console.json) {
    Json steps = Json::array();
    for (const Duration step : result.steps) steps.push_back(step.count());
    print_json_line(console, {{"plan", flags.execution.plan},
                              {"workers", options.world.size},
                              {"slower", flags.slower},
                              {"simulated_ns", simulated.count()},
                              {"median_ns", measured.count()},
                              {"error", relative_difference(simulated, measured)},
                              {"steps_ns", std::move(steps)}});
  } else {
    const std::string slower = flags.slower == 1 ? "" : fmt::format(", each time {:g} times", flags.slower);
    console.out() << fmt::format(
                         "{} steps by {} worker{} that computed nothing and kept the plan's times{}\n",
                         result.steps.size(), options.world.size, options.world.size == 1 ? "" : "s", slower)
                  << fmt::format("one step: simulated {}, measured {} (median): {:+.1f} %\n",
                                 to_text(simulated), to_text(measured),
                                 100 * relative_difference(simulated, measured));
    console.out().flush();
  }
  if (result.trace) flags.outputs.write(console, *result.trace, opened.file.planner + ", paced");
  return kDone;
}

// What a paced run does not do.
void check_paced_flags(const RunFlags& flags) {
  const std::pair<const char*, bool> others[] = {{"--data", !flags.execution.data.empty()},
                                                 {"--load", !flags.load.empty()},
                                                 {"--save", !flags.save.empty()},
                                                 {"--record", !flags.record.empty()},
                                                 {"--resume", !flags.resume.empty()},
                                                 {"--checkpoints", !flags.checkpoints.empty()},
                                                 {"--log", !flags.log.empty()},
                                                 {"--evaluation-data", !flags.evaluation_data.empty()}};
  for (const auto& [name, given] : others) {
    if (flags.paced && given)
      throw InputError(std::string(name) + " has no meaning with --paced, which trains nothing");
  }
  if (!flags.paced && flags.slower != 1) throw InputError("--slower needs --paced");
}

// Before any worker starts.
void check_flags(const RunFlags& flags) {
  flags.training.over({});
  check_paced_flags(flags);
  if ((flags.save_every > 0 || flags.keep > 0) && flags.checkpoints.empty())
    throw InputError("--save-every and --keep need --checkpoints FOLDER, where checkpoints go");
  if (!flags.resume.empty() && !flags.load.empty())
    throw InputError("--resume and --load are two beginnings: give one of them");
  if (flags.evaluate_every > 0 && flags.evaluation_data.empty())
    throw InputError("--evaluate-every needs --evaluation-data FILE, samples that are not trained on");
  if (flags.load_partial && flags.load.empty()) throw InputError("--load-partial needs --load FILE");
}

}  // namespace

int run(Program& program, const RunFlags& flags) {
  check_flags(flags);
  std::vector<NamedFile> outputs = flags.outputs.files();
  outputs.push_back({"--save", flags.save});
  check_outputs(outputs, {flags.execution.plan, flags.execution.data});
  const OpenedPlan opened =
      flags.paced ? open_without_model(flags.execution) : open_with_model(flags.execution);
  const int workers = workers_for(flags.execution, opened.file);
  if (workers > 1 && !is_worker()) return start_workers(program, workers, program.arguments);
  return flags.paced ? run_paced_worker(program, opened, flags) : run_worker(program, opened, flags);
}

}  // namespace espalier::cli
