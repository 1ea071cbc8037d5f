#include "espalier/runtime/planned_job.h"

#include <numeric>

#include "espalier/base/check.h"

namespace espalier {

PlannedJob planned_job(const PlanFile& file, const Graph& graph) {
  const Cluster cluster(file.cluster);
  PlannedJob job{
      resolve_plan(file, graph), file.staged, make_schedule(file.staged, cluster.devices().size()), {}, {}};
  const std::vector<std::string> problems = check_schedule(job.staged, job.schedule);
  if (!problems.empty()) throw InputError("the plan's schedule cannot run: " + problems.front());
  for (const Device& device : cluster.devices()) {
    job.device_names.push_back(device.name);
    job.device_memory.push_back(device.memory);
  }
  return job;
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
