#include "espalier/runtime/planned_job.h"

#include <numeric>

#include "espalier/base/check.h"
#include "espalier/schedule/order_file.h"

namespace espalier {

PlannedJob planned_job(const PlanFile& file, const Graph& graph) {
  if (file.placement) throw InputError("the plan is a placement of operators, which cannot run yet");
  const Cluster cluster(file.cluster);
  PlannedJob job{resolve_plan(file, graph), file.staged, schedule_of(file, "the plan"), {}, {}};
  require_runnable(job.staged);
  for (const Device& device : cluster.devices()) {
    job.device_names.push_back(device.name);
    job.device_memory.push_back(device.memory);
  }
  return job;
}

void require_runnable(const StagedModel& model) {
  for (const StagedStage& stage : model.stages) {
    if (stage.micro_batches != model.stages.front().micro_batches) {
      throw InputError("stage '" + stage.name + "' has " + std::to_string(stage.micro_batches) +
                       " micro-batches, stage '" + model.stages.front().name + "' " +
                       std::to_string(model.stages.front().micro_batches) +
                       ": the runtime needs equal sizes; plan with one --micro-batch");
    }
    for (const StagedReplica& replica : stage.replicas) {
      if (replica.devices.size() == 1) continue;
      throw InputError("stage '" + stage.name +
                       "' is split over a tensor-parallel group; the runtime runs a stage on one device");
    }
  }
}

PlannedJob one_stage_job(const Graph& graph, BatchSize batch, BatchSize micro_batch) {
  if (micro_batch.count() <= 0 || batch.count() <= 0 || batch.count() % micro_batch.count() != 0) {
    throw InputError("the micro-batch " + std::to_string(micro_batch.count()) +
                     " does not divide the batch " + std::to_string(batch.count()));
  }
  const auto count = static_cast<std::uint32_t>(batch.count() / micro_batch.count());
  PlannedJob job;
  Stage stage;
  stage.name = "all";
  for (std::size_t i = 0; i < graph.operators().size(); ++i) stage.operators.push_back(OperatorId(i));
  std::vector<std::uint32_t> share(count);
  std::iota(share.begin(), share.end(), 0U);
  stage.replicas = {{{DeviceId(0)}, share}};
  stage.micro_batch = micro_batch;
  job.plan.batch = batch;
  job.plan.stages = {stage};
  StagedStage staged;
  staged.name = "all";
  staged.micro_batches = count;
  staged.replicas = {{{DeviceId(0)}, share, {}}};
  staged.memory.gradients = Bytes(1);  // there is an update
  job.staged.stages = {staged};
  job.schedule = make_schedule(job.staged, 1);
  job.device_names = {"reference"};
  job.device_memory = {Bytes()};
  return job;
}

std::vector<DeviceId> devices_with_work(const Schedule& schedule) {
  std::vector<DeviceId> devices;
  for (std::size_t d = 0; d < schedule.devices.size(); ++d) {
    if (!schedule.devices[d].empty()) devices.push_back(DeviceId(d));
  }
  return devices;
}

}  // namespace espalier
