#pragma once

// One function per verb: declares its options and what to do when it is called. `chosen` is what main runs
// after parsing; it returns the exit code.

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "espalier/app/opened_plan.h"
#include "espalier/app/planning.h"
#include "espalier/app/step_price.h"
#include "espalier/cli/console.h"
#include "espalier/cli/training_flags.h"

namespace espalier::cli {

constexpr int kDone = 0;
constexpr int kDiffers = 1;  // verify: not equal
constexpr int kWrongInput = 2;
constexpr int kNoAnswer = 3;
constexpr int kOutOfMemory = 4;  // of this machine, while it computed
constexpr int kOurFault = 70;
constexpr int kRunFailed = 1;      // run: another worker died or stood still
constexpr int kInterrupted = 130;  // Ctrl-C; run: after the step was saved; plan, compare: before any plan

struct RuntimeVerbs;

struct Program {
  CLI::App& app;
  Console& console;
  std::function<int()>& chosen;
  std::vector<std::string> arguments;  // as given, without the program's name: what workers are started with
  Machine machine;
  const RuntimeVerbs* runtime;  // of espalier-runtime; null in espalier (runtime_program.h)
};

void add_inspect(Program& program);
void add_profile(Program& program);
void add_calibrate(Program& program);
void add_plan(Program& program);
void add_fit(Program& program);
void add_planners(Program& program);
void add_simulate(Program& program);
void add_compare(Program& program);
void add_run(Program& program);
void add_launch(Program& program);
void add_verify(Program& program);
void add_diff(Program& program);
void add_zoo(Program& program);
void add_literal(Program& program);
void add_orders(Program& program);
void add_learn(Program& program);

// A verb with --json, --no-color and an example under its help.
CLI::App* add_verb(Program& program, const std::string& name, const std::string& what,
                   const std::string& example);

// Checks that do not show in the help.
CLI::Validator positive();
CLI::Validator worker_count();

// Options that several verbs share, as text until `to_options` reads them.
struct JobFlags {
  JobOptions options;
  std::int64_t batch = 0;
  std::vector<std::int64_t> micro_batches;
  std::vector<std::string> dims;
  std::string precision;
  bool literal = false;
  bool replicate_buffers = false;
  std::string order;
  TrainingFlags training;

  void add_model(CLI::App* verb);                       // the one that it takes, and how it is read
  void add_reading(CLI::App* verb);                     // --loss, --literal, --freeze, --dim
  void add_planning(CLI::App* verb);                    // cluster, batch, micro-batch, costs, pins, threads
  void add_order(CLI::App* verb);                       // of placers
  void add_training(CLI::App* verb);                    // optimizer, lr, …, seed
  JobOptions to_options(const Machine& machine) const;  // throws InputError
  JobOptions to_options(Program& program) const;        // calibrates the machine where it is planned for
  std::vector<std::string> inputs() const;              // the files that they name, for check_outputs
};

// How a search runs: --budget, --jobs.
struct SearchFlags {
  Budget usual = {};  // where nobody asks for a budget
  std::optional<std::uint64_t> asked = {};
  std::size_t jobs = 0;  // 0: as many as the process may use cores

  void add(CLI::App* verb);
  void add(CLI::App* verb, const std::string& usual_text);
  Budget budget() const { return asked ? Budget{*asked} : usual; }
  // From now on Ctrl-C ends the search, which then answers with what it has; a second one ends the program.
  SearchOptions options(Console& console) const;
};

// On standard error, if the costs of a plan for this machine come from another, or from another number of
// threads than `threads` (empty: nothing will run).
void warn_of_measurement(Program& program, const OpenedPlan& opened, std::optional<std::uint32_t> threads);

// What every plan is summed up by: "12.3 ms per iteration …".
std::string verdict_text(const Trace& trace, BatchSize batch);
// A line where the cluster has prices; else empty.
std::string price_text(const std::optional<StepPrice>& price);
// "any plan with the micro-batches offered"
std::string scope_text(Bound::Scope scope);

std::string bound_text(Duration iteration, const Bound& bound);
// A line where the costs say how action times scatter; else empty.
std::string expected_text(Duration expected, const std::optional<MeasuredOn>& measured);

// A file that an option names.
struct NamedFile {
  std::string option;  // "--svg"
  std::string path;    // empty: not given
};
// What a verb will write, checked before its work begins. Throws InputError where a folder is missing or may
// not be written to, where the path is a folder, or where a file is also one of the inputs or another output.
void check_outputs(const std::vector<NamedFile>& outputs, const std::vector<std::string>& inputs);

// --svg, --chrome, -o of a trace.
struct TraceOutputs {
  std::string svg, chrome, trace;
  void add(CLI::App* verb, const std::string& trace_flag);
  std::vector<NamedFile> files() const;  // for check_outputs
  void write(Console& console, const Trace& value, const std::string& title) const;
};

nlohmann::ordered_json memory_json(const Trace& trace);
nlohmann::ordered_json bound_json(const Bound& bound);
nlohmann::ordered_json price_json(const StepPrice& price);
nlohmann::ordered_json judged_json(const Judged& judged, const Cluster& cluster);

void print_json_line(Console& console, const nlohmann::ordered_json& json);

}  // namespace espalier::cli
