#include "espalier/planners/shortage.h"

#include <algorithm>
#include <set>

#include "espalier/base/check.h"
#include "espalier/sim/placement_judge.h"

namespace espalier {

std::string_view to_text(Remedy::Kind kind) {
  constexpr std::string_view kNames[] = {"micro-batch", "memory",    "recompute",
                                         "precision",   "optimizer", "devices"};
  return kNames[static_cast<std::size_t>(kind)];
}

Bytes Shortage::lack() const {
  Bytes sum;
  for (const DeviceNeed& need : devices) sum += need.lacks();
  return sum;
}

Bytes least_state(const Graph& graph, const Optimizer& optimizer) {
  std::vector<char> counted(graph.storage_count(), 0);
  Bytes trained, other;
  for (const Operator& op : graph.operators()) {
    for (const TensorId input : op.inputs) {
      const Tensor& tensor = graph.tensor(input);
      if (tensor.role == TensorRole::kActivation || tensor.role == TensorRole::kInput) continue;
      if (std::exchange(counted[tensor.storage.index()], 1)) continue;
      const bool trainable = tensor.parameter && graph.parameter(*tensor.parameter).trainable;
      (trainable ? trained : other) += tensor.bytes(graph.batch().min);
    }
  }
  return 2 * trained + optimizer_state(optimizer, trained) + other;
}

Evaluation evaluation_of(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                         const Training& training, const Plan& plan) {
  if (const auto* placement = std::get_if<Placement>(&plan)) {
    return judge_placement(graph, cluster, costs, training, *placement,
                           {.micro_batch = training.largest_micro_batch()});
  }
  const Evaluator evaluator(graph, cluster, costs, training);
  const auto scratch = Evaluator::make_scratch();
  return evaluator.evaluate(std::get<PipelinePlan>(plan), *scratch);
}

namespace {

std::set<DeviceId> devices_of(const Plan& plan) {
  if (const auto* placement = std::get_if<Placement>(&plan)) {
    return {placement->device.begin(), placement->device.end()};
  }
  std::set<DeviceId> used;
  for (const Stage& stage : std::get<PipelinePlan>(plan).stages) {
    for (const Replica& replica : stage.replicas) used.insert(replica.devices.begin(), replica.devices.end());
  }
  return used;
}

}  // namespace

Shortage shortage_of(const Problem& problem, const Plan& closest, std::string planner) {
  const Evaluation evaluation =
      evaluation_of(problem.graph, problem.cluster, problem.costs, problem.training, closest);
  ESP_CHECK(evaluation.can_run());
  Shortage shortage;
  shortage.planner = std::move(planner);
  const auto* pipeline = std::get_if<PipelinePlan>(&closest);
  shortage.micro_batch =
      pipeline ? pipeline->stages.front().micro_batch : problem.training.largest_micro_batch();
  for (const DeviceId device : devices_of(closest)) {
    shortage.devices.push_back(
        {device, evaluation.peak[device.index()].total(), problem.cluster.device(device).memory});
  }
  shortage.state = least_state(problem.graph, problem.training.optimizer);
  for (const Device& device : problem.cluster.devices()) shortage.memory += device.memory;
  return shortage;
}

namespace {

// Three digits, rounded up: `count` / `scale` of a unit.
struct Shown {
  std::int64_t count = 0, scale = 1, unit = 1;
  const char* name = "B";
};
Shown shown(Bytes bytes) {
  __extension__ using Wide = __int128;
  Shown result;
  for (const char* name : {"KiB", "MiB", "GiB"}) {
    if (bytes.count() < result.unit << 10) break;
    result.unit <<= 10;
    result.name = name;
  }
  if (result.unit > 1)
    result.scale = bytes.count() >= 100 * result.unit ? 1 : bytes.count() >= 10 * result.unit ? 10 : 100;
  result.count = static_cast<std::int64_t>(
      (static_cast<Wide>(bytes.count()) * result.scale + result.unit - 1) / result.unit);
  return result;
}

std::string list_text(const std::vector<std::string>& items) {
  constexpr std::size_t kMost = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(items.size(), kMost); ++i) text += (i == 0 ? "" : ", ") + items[i];
  if (items.size() > kMost) text += " and " + std::to_string(items.size() - kMost) + " more";
  return text;
}

}  // namespace

std::string enough_text(Bytes bytes) {
  const Shown as = shown(bytes);
  std::string text = std::to_string(as.count / as.scale);
  if (as.scale > 1) {
    const std::string rest =
        std::to_string(as.scale + as.count % as.scale);  // its first digit is no part of it
    text += "." + rest.substr(1);
  }
  return text + " " + as.name;
}

Bytes enough(Bytes bytes) {
  __extension__ using Wide = __int128;
  const Shown as = shown(bytes);
  return Bytes(static_cast<std::int64_t>(static_cast<Wide>(as.count) * as.unit / as.scale));
}

std::vector<std::string> shortage_lines(const Shortage& shortage, const Cluster& cluster) {
  std::vector<std::string> lines, needs;
  for (const DeviceNeed& need : shortage.devices) {
    if (need.lacks() == Bytes()) continue;
    needs.push_back(cluster.device(need.device).name + " lacks " + enough_text(need.lacks()) + " (needs " +
                    enough_text(need.needs) + ", has " + to_text(need.has) + ")");
  }
  lines.push_back("nothing fits; " +
                  (shortage.planner.empty() ? "the closest plan" : "closest comes " + shortage.planner) +
                  ", with micro-batches of " + std::to_string(shortage.micro_batch.count()) + ": " +
                  list_text(needs) +
                  (needs.size() > 1 ? "; " + enough_text(shortage.lack()) + " in all" : ""));
  std::string state = "parameters, gradients, optimizer state and buffers take " + to_text(shortage.state) +
                      " in any plan, all devices have " + to_text(shortage.memory);
  if (shortage.state > shortage.memory) {
    state += ": " + enough_text(shortage.state - shortage.memory) + " are missing, however it is split";
  }
  lines.push_back(std::move(state));
  for (const Remedy& remedy : shortage.remedies) {
    lines.push_back("would do: " + remedy.text + " (" + to_text(remedy.iteration) + " per iteration)");
  }
  if (shortage.remedies.empty()) {
    lines.push_back(
        "tried without success: a smaller micro-batch, more memory or devices, another precision or "
        "optimizer");
  }
  return lines;
}

}  // namespace espalier
