#include "espalier/runtime/planned_job.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "espalier/base/check.h"
#include "espalier/plan/fragments.h"
#include "espalier/runtime/fragment_memory.h"
#include "espalier/schedule/order_file.h"

namespace espalier {

PlannedJob planned_job(const PlanFile& file, const Graph& graph) {
  const Cluster cluster(file.cluster);
  PlannedJob job{resolve_plan(file, graph), file.staged, schedule_of(file, "the plan"), {}, {}};
  require_runnable(job.staged);
  require_cuttable(graph, job.plan, job.staged);
  if (file.placement) {
    job.copies = StateCopies::kOfEachDevice;
    const std::vector<std::string> problems = check_fragment_orders(job.staged, cluster);
    if (!problems.empty()) throw InputError("the plan: " + problems.front());
    require_whole_memory(graph, job.plan);
  }
  for (const Device& device : cluster.devices()) {
    job.device_names.push_back(device.name);
    job.device_memory.push_back(device.memory);
  }
  return job;
}

void require_runnable(const StagedModel& model) {
  for (const StagedStage& stage : model.stages) {
    for (const StagedReplica& replica : stage.replicas) {
      if (replica.devices.size() == 1) continue;
      throw InputError("stage '" + stage.name +
                       "' is split over a tensor-parallel group; the runtime runs a stage on one device");
    }
  }
}

std::optional<std::size_t> sample_dimension(const Tensor& tensor) {
  std::optional<std::size_t> found;
  for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
    if (tensor.sizes[d].constant()) continue;
    if (found || tensor.sizes[d] != SizeExpr::batch()) return std::nullopt;
    found = d;
  }
  return found;
}

void require_cuttable(const Graph& graph, const PipelinePlan& plan, const StagedModel& model) {
  const auto other = std::find_if(plan.stages.begin(), plan.stages.end(), [&](const Stage& stage) {
    return stage.micro_batch != plan.stages[0].micro_batch;
  });
  if (other == plan.stages.end()) return;
  const std::string sizes = "stages '" + plan.stages[0].name + "' and '" + other->name +
                            "' have micro-batches of " + std::to_string(plan.stages[0].micro_batch.count()) +
                            " and " + std::to_string(other->micro_batch.count()) + ", but ";
  if (graph.batch().fixed()) {
    throw InputError(sizes + "the model was exported for a batch of " +
                     std::to_string(graph.batch().min.count()) + " alone");
  }
  for (const Operator& op : graph.operators()) {
    if (op.mixes_samples) throw InputError(sizes + "operator '" + op.name + "' mixes samples");
  }
  std::map<std::string, const Tensor*, std::less<>> tensors;
  for (const Tensor& tensor : graph.tensors()) tensors.emplace(tensor.name, &tensor);
  for (const Crossing& crossing : model.crossings) {
    if (crossing.token) continue;
    const auto cuts = [&](const Crossing::Reader& reader) {
      return plan.stages[reader.stage.index()].micro_batch != plan.stages[crossing.from.index()].micro_batch;
    };
    const auto tensor = tensors.find(crossing.tensor);
    if (tensor == tensors.end() || sample_dimension(*tensor->second)) continue;
    if (std::any_of(crossing.readers.begin(), crossing.readers.end(), cuts)) {
      throw InputError(sizes + "'" + crossing.tensor +
                       "', which crosses between them, has no batch dimension");
    }
  }
}

StageId loss_stage(const Graph& graph, const PipelinePlan& plan) {
  if (!graph.loss() || !graph.tensor(*graph.loss()).producer) return StageId(0);
  const OperatorId op = *graph.tensor(*graph.loss()).producer;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const std::vector<OperatorId>& operators = plan.stages[s].operators;
    if (std::binary_search(operators.begin(), operators.end(), op)) return StageId(s);
  }
  return StageId(0);
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
