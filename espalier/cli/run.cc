#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/cli/runtime_verbs.h"
#include "espalier/cli/workers.h"

#if ESPALIER_TORCH
#include "espalier/runtime/runtime.h"
#endif

namespace espalier::cli {
namespace {

struct RunFlags {
  ExecutionFlags execution;
  std::string load, save, record;
  std::uint64_t steps = 10;
  double timeout = 300;
  TraceOutputs outputs;
};

#if ESPALIER_TORCH

// One line per step while somebody watches, some twenty lines of a long run else.
class StepPrinter {
 public:
  StepPrinter(Console& console, std::uint64_t steps) : console_(console), steps_(steps) {}

  void operator()(const StepReport& step) {
    const double seconds = std::max(to_seconds(step.time), 1e-9);
    const std::string line = fmt::format("step {}/{}  loss {:.4f}  {:.0f} samples/s", step.step + 1, steps_,
                                         step.loss, static_cast<double>(step.samples.count()) / seconds);
    if (console_.draws_progress()) {
      console_.progress(static_cast<double>(step.step + 1) / static_cast<double>(steps_), line);
    } else if (!console_.json && due(step.step)) {
      console_.out() << line << std::endl;
    }
  }

 private:
  bool due(std::uint64_t step) const {
    const std::uint64_t every = std::max<std::uint64_t>(steps_ / 20, 1);
    return step == 0 || (step + 1) % every == 0 || step + 1 == steps_;
  }

  Console& console_;
  std::uint64_t steps_;
};

// Of the steps after the first, which also allocates.
Duration median_time(const std::vector<StepReport>& steps) {
  std::vector<Duration> times;
  for (std::size_t i = steps.size() > 1 ? 1 : 0; i < steps.size(); ++i) times.push_back(steps[i].time);
  if (times.empty()) return {};
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

void print(Console& console, const OpenedPlan& opened, const RunFlags& flags, const RunResult& result,
           std::uint32_t workers) {
  const Duration measured = median_time(result.steps);
  const Duration predicted = opened.expected();
  const double error = relative_difference(predicted, measured);
  if (console.json) {
    Json steps = Json::array();
    for (const StepReport& step : result.steps) {
      steps.push_back({{"step", step.step},
                       {"loss", step.loss},
                       {"gradient_norm", step.gradient_norm},
                       {"time_ns", step.time.count()},
                       {"samples", step.samples.count()}});
    }
    print_json_line(console, {{"plan", flags.execution.plan},
                              {"workers", workers},
                              {"predicted_ns", predicted.count()},
                              {"median_ns", measured.count()},
                              {"error", error},
                              {"notes", result.notes},
                              {"steps", std::move(steps)}});
    return;
  }
  std::ostream& out = console.out();
  out << fmt::format("{} steps by {} worker{}: loss {:.4f} to {:.4f}\n", result.steps.size(), workers,
                     workers == 1 ? "" : "s", result.steps.front().loss, result.steps.back().loss);
  out << fmt::format("one step: predicted {}, measured {} (median): {:+.1f} %\n", to_text(predicted),
                     to_text(measured), 100 * error);
  if (!flags.save.empty()) out << "wrote " << flags.save << '\n';
  out.flush();
  console.notes(result.notes);
}

int run_worker(Program& program, const OpenedPlan& opened, const RunFlags& flags) {
  Console& console = program.console;
  RunOptions options;
  options.world = world_from_environment();
  options.on_stuck = end_stuck_worker;
  options.steps = flags.steps;
  options.data = flags.execution.data;
  options.load = flags.load;
  options.save = flags.save;
  options.record = flags.record;
  options.device = flags.execution.device;
  options.threads = flags.execution.threads;
  options.timeout = round_duration(flags.timeout * 1e9);
  options.stop = &watch_for_interrupts();
  if (options.world.rank == 0) warn_of_measurement(program, opened, options.threads);
  if (options.world.rank == 0) options.on_step = StepPrinter(console, flags.steps);
  const RunResult result = run_plan(opened.file, opened.model, options);
  console.finish();
  const int code = result.interrupted ? kInterrupted : kDone;
  if (options.world.rank != 0) return code;
  print(console, opened, flags, result, options.world.size);
  if (result.trace) flags.outputs.write(console, *result.trace, opened.file.planner + ", measured");
  return code;
}

#endif

int run(Program& program, const RunFlags& flags) {
#if ESPALIER_TORCH
  const OpenedPlan opened = flags.execution.open();
  const int workers = flags.execution.workers_for(opened.file);
  if (workers > 1 && !is_worker()) return start_workers(workers, program.arguments);
  return run_worker(program, opened, flags);
#else
  (void)program, (void)flags;
  needs_runtime("run");
#endif
}

}  // namespace

void add_run(Program& program) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* verb =
      add_verb(program, "run", "train by a plan, on workers that it starts itself (or torchrun did)",
               "espalier run plan.json --data train.safetensors --steps 100 --save trained.safetensors");
  flags->execution.add_inputs(verb);
  verb->add_option("--steps", flags->steps, "steps to train; default: 10")->type_name("N")->check(positive());
  verb->add_option("--load", flags->load, "parameters to start from, as --save wrote them")
      ->type_name("FILE");
  verb->add_option("--save", flags->save, "write the parameters after the last step")->type_name("FILE");
  verb->add_option("--record", flags->record,
                   "a folder for every step's batch, gradients and parameters: what espalier_parity.py reads")
      ->type_name("FOLDER");
  flags->execution.add_workers(verb);
  verb->add_option("--timeout", flags->timeout, "longest wait for a message, in seconds")
      ->type_name("S")
      ->check(positive());
  flags->outputs.add(verb, "--trace");
  verb->callback([&program, flags] { program.chosen = [&program, flags] { return run(program, *flags); }; });
}

}  // namespace espalier::cli
