// Predicts a plan's step from a cost file, and measures its steps together with their replays.
//
//   bench_prediction predict PLAN.json COSTS.json
//   bench_prediction measure PLAN.json COSTS.json STEPS
//
// A replay is the simulator fed with a step's own measured action times: what is left of the error is the
// event model's, not the costs'. Links and endpoints are those of the cost file. `measure` starts one worker
// per device and prints a JSON line with every step.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "espalier/app/planning.h"
#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/runtime/launcher.h"
#include "espalier/runtime/runtime.h"
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
    Spent& entry =
        spent[std::string(1, letter(span.action.kind)) + " " + trace.stages[span.action.stage.index()]];
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
  const Json json{{"iteration_ns", judged.trace.iteration.count()},
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
    std::map<std::pair<DeviceId, Action>, Duration> time;
    for (const Span& span : measured.spans) {
      if (span.kind == SpanKind::kAction) time[{span.device, span.action}] = span.end - span.start;
    }
    TaskGraph tasks = compiled_.tasks;
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      const CompiledSchedule::Source& source = compiled_.sources[t];
      if (source.kind != CompiledSchedule::Source::Kind::kAction) continue;
      const auto found = time.find({source.device, schedule_.devices[source.device.index()][source.index]});
      ESP_CHECK(found != time.end(), source.device, source.index);
      tasks.duration[t] = found->second;
    }
    return run_tasks(tasks).makespan;
  }

 private:
  StagedModel staged_;
  Schedule schedule_;
  CompiledSchedule compiled_;
};

int start_workers(std::uint32_t workers, const std::vector<std::string>& arguments) {
  LaunchOptions options;
  options.workers = workers;
  options.command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  options.say = [](const std::string& line) { std::fputs((line + "\n").c_str(), stderr); };
  return launch(options);
}

int measure(const std::vector<std::string>& arguments) {
  const Opened opened = open(arguments.at(1), arguments.at(2));
  std::set<DeviceId> devices;
  for (const Stage& stage : opened.plan.stages) {
    for (const Replica& replica : stage.replicas) {
      devices.insert(replica.devices.begin(), replica.devices.end());
    }
  }
  if (devices.size() > 1 && std::getenv("RANK") == nullptr) {
    return start_workers(static_cast<std::uint32_t>(devices.size()), arguments);
  }
  const Replay replay(opened, judge(opened.job, opened.plan).staged);
  Json steps = Json::array();
  RunOptions options;
  options.world = world_from_environment();
  options.steps = std::stoull(arguments.at(3));
  options.trace = TraceSteps::kAll;
  options.on_trace = [&](const StepReport& report, const Trace& trace) {
    Duration busy;
    for (const Duration time : busy_time(trace)) busy += time;
    steps.push_back({{"time_ns", report.time.count()},
                     {"trace_ns", trace.iteration.count()},
                     {"replay_ns", replay.of(trace).count()},
                     {"busy_ns", busy.count()},
                     {"actions_ns", to_json(time_by_action(trace))}});
  };
  run_plan(opened.file, opened.model, options);
  if (options.world.rank == 0) std::fputs((Json{{"steps", steps}}.dump() + "\n").c_str(), stdout);
  return 0;
}

int call(const std::vector<std::string>& arguments) {
  if (arguments.size() == 3 && arguments[0] == "predict") {
    predict(arguments[1], arguments[2]);
    return 0;
  }
  if (arguments.size() == 4 && arguments[0] == "measure") return measure(arguments);
  std::fputs("usage: bench_prediction predict PLAN COSTS | measure PLAN COSTS STEPS\n", stderr);
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
