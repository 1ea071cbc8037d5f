#include "espalier/cli/runtime_verbs.h"

#include <set>

#include "espalier/base/check.h"
#include "espalier/frontend/zip.h"

#if ESPALIER_TORCH
#include "espalier/runtime/planned_job.h"
#include "espalier/runtime/runtime.h"
#endif

namespace espalier::cli {

void needs_runtime(const std::string& verb) {
  throw InputError(
      "this build of espalier has no runtime, which `" + verb +
      "` needs. Build one: scripts/setup, then cmake --preset release && cmake --build build/release "
      "--target espalier");
}

void ExecutionFlags::add_inputs(CLI::App* verb) {
  verb->add_option("plan", plan, "a plan file")->required()->type_name("FILE");
  verb->add_option("-s,--schedule", schedule, "with these orders instead: a rule or name, or a schedule file")
      ->type_name("RULE|FILE");
  verb->add_option("--data", data, "one tensor per input, safetensors; default: made up from the seed")
      ->type_name("FILE");
}

void ExecutionFlags::add_workers(CLI::App* verb) {
  verb->add_option("--workers", workers, "processes on this host; default: one per device in use")
      ->type_name("N")
      ->check(worker_count());
  verb->add_option("--device", device, "cpu, cuda or cuda:1; default: cuda where there is one")
      ->type_name("NAME");
  verb->add_option("--threads", threads, "threads of each device")->type_name("N")->check(positive());
}

OpenedPlan ExecutionFlags::open_without_model() const {
  OpenedPlan opened = open_plan(plan);
  if (!schedule.empty()) opened = with_orders(opened, choose_orders(schedule));
#if ESPALIER_TORCH
  require_runnable(opened.file.staged);
#endif
  return opened;
}

namespace {

// A graph in JSON or text, training graphs among them, has no operators to call.
void require_program(const std::string& plan, const std::string& model) {
  if (is_archive(MappedFile(model).bytes())) return;
  throw InputError(
      plan + ": its model, " + model +
      ", is no exported program (.pt2), so nothing can execute it; `espalier simulate` judges the "
      "plan");
}

}  // namespace

OpenedPlan ExecutionFlags::open() const {
  OpenedPlan opened = open_without_model();
  if (opened.model.empty()) throw InputError(plan + ": names no model; plan a .pt2 file to execute");
  require_program(plan, opened.model);
  if (const Precision planned = opened.file.training.precision; planned != Precision::kF32) {
    throw InputError(plan + ": was planned for " + std::string(to_text(planned)) +
                     ", but a run computes in the model's own types; plan it without --precision to execute "
                     "it, or export the model in bf16");
  }
  return opened;
}

int ExecutionFlags::workers_for(const PlanFile& file) const {
  if (workers > 0) return workers;
  std::set<DeviceId> devices;
  for (const StagedStage& stage : file.staged.stages) {
    for (const StagedReplica& replica : stage.replicas) {
      devices.insert(replica.devices.begin(), replica.devices.end());
    }
  }
  return static_cast<int>(devices.size());
}

#if ESPALIER_TORCH
std::vector<std::string> device_warnings(const Program& program, const OpenedPlan& opened,
                                         const ExecutionFlags& flags) {
  Machine machine = program.machine;
  machine.runs_on = kind_of_device(flags.device);
  return device_kind_warnings(opened, machine);
}
#endif

}  // namespace espalier::cli
