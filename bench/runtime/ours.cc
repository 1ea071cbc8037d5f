// Our side of bench/runtime.
//
//   bench_runtime cut MODEL.pt2 K BATCH MICRO_BATCH 1f1b|gpipe PLAN.json
// writes a plan of two stages with a cut that was chosen by hand, so that another system can be given the
// same one: stage 0 is all before block K of a GPT, stage 1 the rest.
//
//   bench_runtime train PLAN.json MODEL.pt2 DATA.safetensors STEPS GATE
// starts two workers that train, as `espalier run` does, but each step waits for a line from the named pipe
// GATE. Each step prints a JSON line.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "bench/workers.h"
#include "espalier/app/planning.h"
#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/runtime/process_placement.h"
#include "espalier/runtime/runtime.h"

namespace espalier {
namespace {

// The first operator of a module; the graph's order is an execution order, so a chain can be cut there.
std::size_t first_operator(const Graph& graph, const std::string& module) {
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    const std::string& path = graph.operators()[i].module_path;
    if (path == module || path.rfind(module + ".", 0) == 0) return i;
  }
  throw InputError("the model has no module '" + module + "'");
}

PipelinePlan two_stages(const Graph& graph, std::size_t cut, BatchSize batch, BatchSize micro_batch,
                        ScheduleKind schedule) {
  PipelinePlan plan;
  plan.batch = batch;
  plan.orders = schedule;
  const auto count = static_cast<std::uint32_t>(batch.count() / micro_batch.count());
  for (std::size_t s = 0; s < 2; ++s) {
    Stage stage;
    stage.name = s == 0 ? "front" : "back";
    const std::size_t end = s == 0 ? cut : graph.operators().size();
    for (std::size_t i = s == 0 ? 0 : cut; i < end; ++i) stage.operators.push_back(OperatorId(i));
    stage.replicas = {{{DeviceId(s)}, round_robin(count, 0, 1)}};
    if (s == 1) stage.after = {StageId(0)};
    stage.micro_batch = micro_batch;
    plan.stages.push_back(std::move(stage));
  }
  const std::vector<std::uint32_t> limits = in_flight_limits(plan);
  for (std::size_t s = 0; s < 2; ++s) plan.stages[s].in_flight = limits[s];
  return plan;
}

void write_plan(const std::vector<std::string>& arguments) {
  JobOptions options;
  options.model = arguments.at(0);
  options.cluster = "local:2";
  options.machine.local.devices = 2;
  options.machine.local.memory_each = Bytes(std::int64_t{8} << 30);
  options.batch = BatchSize(std::stoll(arguments.at(2)));
  options.micro_batches = {BatchSize(std::stoll(arguments.at(3)))};
  const PlanningJob job = prepare_job(options);
  const auto schedule = parse_schedule_kind(arguments.at(4));
  if (!schedule) throw InputError("'" + arguments[4] + "': expected 1f1b or gpipe");
  const PipelinePlan plan = two_stages(job.graph, first_operator(job.graph, "blocks." + arguments.at(1)),
                                       *options.batch, options.micro_batches[0], *schedule);
  const std::vector<std::string> violations = check_plan(job.graph, job.cluster, plan);
  if (!violations.empty()) throw InputError("this cut is no plan: " + violations.front());
  Planned planned{
      .planner = "by hand", .outcome = {}, .judged = judge(job, plan), .shortage = {}, .warnings = {}};
  const std::string folder = std::filesystem::path(arguments.at(5)).parent_path().string();
  write_file_atomically(arguments[5], print_plan_file(plan_file(job, planned, folder)));
}

int train(const std::vector<std::string>& arguments) {
  if (std::getenv("RANK") == nullptr) {
    std::vector<std::string> again{"train"};
    again.insert(again.end(), arguments.begin(), arguments.end());
    return start_workers(2, again);
  }
  const PlanFile plan = parse_plan_file(read_file(arguments.at(0)), arguments.at(0));
  RunOptions options;
  options.world = world_from_environment();
  options.data = arguments.at(2);
  options.steps = std::stoull(arguments.at(3));
  options.trace = TraceSteps::kNone;
  std::ifstream gate;
  const auto wait_for_leave = [&] {
    std::string line;
    if (!std::getline(gate, line)) throw InputError(arguments.at(4) + " was closed");
  };
  if (options.world.rank == 0) {
    gate.open(arguments.at(4));
    wait_for_leave();
  }
  options.on_step = [&](const StepReport& report) {
    const Json json{{"loss", report.loss}, {"time_ns", report.time.count()}};
    std::fputs((json.dump() + "\n").c_str(), stdout);
    std::fflush(stdout);
    if (report.step + 1 < options.steps) wait_for_leave();
  };
  prepare_process(options.world, options.threads);
  run_plan(plan, arguments.at(1), options);
  return 0;
}

int call(const std::string& verb, const std::vector<std::string>& arguments) {
  if (verb == "train" && arguments.size() == 5) return train(arguments);
  if (verb == "cut" && arguments.size() == 6) {
    write_plan(arguments);
    return 0;
  }
  std::fputs(
      "usage: bench_runtime cut MODEL BLOCK BATCH MICRO_BATCH 1f1b|gpipe PLAN | train PLAN MODEL DATA STEPS "
      "GATE\n",
      stderr);
  return 2;
}

}  // namespace
}  // namespace espalier

int main(int count, char** values) {
  try {
    const std::vector<std::string> arguments(values + std::min(count, 2), values + count);
    return espalier::call(count > 1 ? values[1] : "", arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_runtime: %s\n", error.what());
    return 2;
  }
}
