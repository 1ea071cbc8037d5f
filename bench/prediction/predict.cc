// Predicts a plan's step from a cost file, and measures its steps together with their replays.
//
//   bench_prediction predict PLAN.json COSTS.json
//   bench_prediction measure MODEL.pt2 COSTS.json ROUNDS STEPS PLAN.json…
//
// A replay is the simulator fed with a step's own measured action times, those of its collectives included:
// what is left of the error is the event model's, not the costs'. Links are those of the profile; endpoints
// are the calls alone, since what a message's threads take of an action is in the action's measured time.
// `measure` starts two workers, which profile the model for one round, run some steps of each plan, and
// so on: profile and steps meet the same states of the machine. It writes the profile to COSTS.json and
// prints a JSON line with every step.

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "bench/workers.h"
#include "espalier/app/planning.h"
#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/cost/json.h"
#include "espalier/cost/text.h"
#include "espalier/runtime/measured_trace.h"
#include "espalier/runtime/model_profiler.h"
#include "espalier/runtime/process_placement.h"
#include "espalier/runtime/runtime.h"
#include "espalier/runtime/trainer.h"
#include "espalier/runtime/workers.h"
#include "espalier/sim/simulate.h"

namespace espalier {
namespace {

struct Opened {
  PlanFile file;
  std::string model;
  PlanningJob job;
  PipelinePlan plan;
};

Opened open(const std::string& path, const std::string& costs) {
  PlanFile file = parse_plan_file(read_file(path), path);
  const std::string model = (std::filesystem::path(path).parent_path() / file.model).string();
  JobOptions options;
  options.model = model;
  options.cluster = "local:2";
  options.machine.local.devices = 2;
  options.machine.local.memory_each = Bytes(std::int64_t{16} << 30);
  options.machine.description = machine_description();
  options.batch = file.training.batch;
  options.micro_batches = file.training.micro_batches;
  options.costs = costs;
  options.optimizer = file.training.optimizer;
  PlanningJob job = prepare_job(options);
  PipelinePlan plan = resolve_plan(file, job.graph);
  return {std::move(file), model, std::move(job), std::move(plan)};
}

struct Spent {  // by all actions of one kind
  Duration total;
  std::int64_t count = 0;
};

// "F front": how often and how long altogether. Endpoints apart.
std::map<std::string, Spent> time_by_action(const Trace& trace) {
  std::map<std::string, Spent> spent;
  for (const Span& span : trace.spans) {
    if (span.kind != SpanKind::kAction) continue;
    Spent& entry = spent[std::string(1, letter(span.action.kind)) + " " + trace.stages[span.action.target()]];
    entry.total += span.end - span.start;
    ++entry.count;
  }
  return spent;
}

Json to_json(const std::map<std::string, Spent>& spent) {
  Json json = Json::object();
  for (const auto& [name, entry] : spent) json[name] = entry.total.count() / entry.count;
  return json;
}

void predict(const std::string& path, const std::string& costs) {
  const Opened opened = open(path, costs);
  const Judged judged = judge(opened.job, opened.plan);
  const Json json{{"iteration_ns", judged.expected.count()},
                  {"stages", judged.staged.stages.size()},
                  {"actions_ns", to_json(time_by_action(judged.trace))}};
  std::fputs((json.dump() + "\n").c_str(), stdout);
}

// The schedule's tasks with the measured time of each action in place of the modelled one.
class Replay {
 public:
  Replay(const Opened& opened, StagedModel staged)
      : staged_(std::move(staged)),
        schedule_(make_schedule(staged_, opened.job.cluster.devices().size())),
        compiled_(compile(staged_, opened.job.cluster, schedule_)) {}

  Duration of(const Trace& measured) const {
    using Kind = CompiledSchedule::Source::Kind;
    std::map<std::pair<DeviceId, Action>, Duration> time;
    std::map<Action, std::pair<Duration, Duration>> collective;  // from the last arrival to the last end
    for (const Span& span : measured.spans) {
      if (span.kind == SpanKind::kAction) time[{span.device, span.action}] = span.end - span.start;
      if (span.kind != SpanKind::kCollective) continue;
      auto& [arrived, ended] = collective[span.action];
      arrived = std::max(arrived, span.start);
      ended = std::max(ended, span.end);
    }
    TaskGraph tasks = compiled_.tasks;
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      const CompiledSchedule::Source& source = compiled_.sources[t];
      if (source.kind != Kind::kAction && source.kind != Kind::kCollective) continue;
      const Action& action = schedule_.devices[source.device.index()][source.index];
      if (source.kind == Kind::kAction) {
        const auto found = time.find({source.device, action});
        ESP_CHECK(found != time.end(), source.device, source.index);
        tasks.duration[t] = found->second;
      } else {
        const auto& [arrived, ended] = collective.at(action);
        tasks.duration[t] = ended - arrived;
        tasks.delay[t] = Duration();
      }
    }
    return run_tasks(tasks).makespan;
  }

 private:
  StagedModel staged_;
  Schedule schedule_;
  CompiledSchedule compiled_;
};

// One plan, ready to run steps between other work of the same workers.
class Runner {
 public:
  Runner(const std::string& path, const LoadedModel& model, Workers& workers)
      : path_(path),
        file_(parse_plan_file(read_file(path), path)),
        workers_(workers),
        planned_(planned_job(file_, model.graph())),
        data_(synthetic_data(model.exported, file_.seed)),
        trainer_(model, planned_, *data_, *workers.transport,
                 {.optimizer = file_.training.optimizer, .seed = file_.seed}) {}

  // The first one after other work is not kept.
  void steps(std::uint32_t count) {
    for (std::uint32_t i = 0; i <= count; ++i) {
      TimedStep timed = timed_step(workers_, trainer_);
      auto trace = gather_trace(workers_, planned_, std::move(timed.outcome), timed.start);
      if (i > 0 && trace) taken_.push_back({timed.report.time, std::move(*trace)});
    }
  }

  // By the costs and the link of a cost file. On rank 0.
  Json report(const std::string& costs) const {
    const Opened opened = open(path_, costs);
    const Replay replay(opened, judge(opened.job, opened.plan).staged);
    Json steps = Json::array();
    for (const auto& [time, trace] : taken_) {
      Duration busy;
      for (const Duration each : busy_time(trace)) busy += each;
      steps.push_back({{"time_ns", time.count()},
                       {"trace_ns", trace.iteration.count()},
                       {"replay_ns", replay.of(trace).count()},
                       {"busy_ns", busy.count()},
                       {"actions_ns", to_json(time_by_action(trace))}});
    }
    return steps;
  }
  const std::string& path() const { return path_; }
  BatchSize micro_batch() const { return file_.stages.front().micro_batch; }

 private:
  std::string path_;
  PlanFile file_;
  Workers& workers_;
  PlannedJob planned_;
  std::unique_ptr<DataSource> data_;
  Trainer trainer_;
  std::vector<std::pair<Duration, Trace>> taken_;
};

// Rounds: first the profiler's, then some steps of each plan.
int measure(const std::vector<std::string>& arguments) {
  if (std::getenv("RANK") == nullptr) return start_workers(2, arguments);
  const std::string& costs = arguments.at(2);
  const auto rounds = static_cast<std::uint32_t>(std::stoul(arguments.at(3)));
  const auto steps = static_cast<std::uint32_t>(std::stoul(arguments.at(4)));
  prepare_process(world_from_environment(), 1);
  at::set_num_threads(1);
  const LoadedModel model(arguments.at(1));
  ProfileOptions options;
  options.world = world_from_environment();
  options.rounds = rounds;
  Workers workers = join_workers(options.world, {});
  std::vector<std::unique_ptr<Runner>> runners;
  for (std::size_t i = 5; i < arguments.size(); ++i) {
    runners.push_back(std::make_unique<Runner>(arguments[i], model, workers));
    const BatchSize size = runners.back()->micro_batch();
    auto& sizes = options.micro_batches;
    if (std::find(sizes.begin(), sizes.end(), size) == sizes.end()) sizes.push_back(size);
  }
  ModelProfiler profiler(model, options, workers);
  for (std::uint32_t round = 0; round < rounds; ++round) {
    profiler.round();
    for (const auto& runner : runners) runner->steps(steps);
  }
  const CostTable table = profiler.table();
  CostTableParts of_replays = table.parts();
  of_replays.link = profiler.link_of_calls();
  if (options.world.rank != 0) return 0;
  const std::string replay_costs = costs + ".replay";
  write_file_atomically(costs, costs_to_json(table).dump(1) + "\n");
  write_file_atomically(replay_costs, costs_to_json(CostTable(of_replays)).dump(1) + "\n");
  Json plans = Json::object();
  for (const auto& runner : runners) plans[runner->path()] = runner->report(replay_costs);
  std::fputs((plans.dump() + "\n").c_str(), stdout);
  return 0;
}

int call(const std::vector<std::string>& arguments) {
  if (arguments.size() == 3 && arguments[0] == "predict") {
    predict(arguments[1], arguments[2]);
    return 0;
  }
  if (arguments.size() > 5 && arguments[0] == "measure") return measure(arguments);
  std::fputs("usage: bench_prediction predict PLAN COSTS | measure MODEL COSTS ROUNDS STEPS PLAN…\n", stderr);
  return 2;
}

}  // namespace
}  // namespace espalier

int main(int count, char** values) {
  try {
    return espalier::call(std::vector<std::string>(values + 1, values + count));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_prediction: %s\n", error.what());
    return 2;
  }
}
