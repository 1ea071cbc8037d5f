#include "espalier/runtime_cli/execution.h"

#include <set>

#include "espalier/base/check.h"
#include "espalier/frontend/zip.h"
#include "espalier/runtime/planned_job.h"
#include "espalier/runtime/runtime.h"

namespace espalier::cli {
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

OpenedPlan open_without_model(const ExecutionFlags& flags) {
  OpenedPlan opened = open_plan(flags.plan);
  if (!flags.schedule.empty()) opened = with_orders(opened, choose_orders(flags.schedule));
  require_runnable(opened.file.staged);
  return opened;
}

OpenedPlan open_with_model(const ExecutionFlags& flags) {
  const std::string& plan = flags.plan;
  OpenedPlan opened = open_without_model(flags);
  if (opened.model.empty()) throw InputError(plan + ": names no model; plan a .pt2 file to execute");
  require_program(plan, opened.model);
  if (const Precision planned = opened.file.training.precision; planned != Precision::kF32) {
    throw InputError(plan + ": was planned for " + std::string(to_text(planned)) +
                     ", but a run computes in the model's own types; plan it without --precision to execute "
                     "it, or export the model in bf16");
  }
  return opened;
}

int workers_for(const ExecutionFlags& flags, const PlanFile& file) {
  if (flags.workers > 0) return flags.workers;
  std::set<DeviceId> devices;
  for (const StagedStage& stage : file.staged.stages) {
    for (const StagedReplica& replica : stage.replicas) {
      devices.insert(replica.devices.begin(), replica.devices.end());
    }
  }
  return static_cast<int>(devices.size());
}

std::vector<std::string> device_warnings(const Program& program, const OpenedPlan& opened,
                                         const ExecutionFlags& flags) {
  Machine machine = program.machine;
  machine.runs_on = kind_of_device(flags.device);
  return device_kind_warnings(opened, machine);
}

}  // namespace espalier::cli
