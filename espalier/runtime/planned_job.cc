#include "espalier/base/check.h"
#include "espalier/runtime/workbench.h"

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

}  // namespace espalier
