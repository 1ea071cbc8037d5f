#include "espalier/zoo/task_dag.h"

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/frontend/profile.h"

namespace espalier {

std::size_t TaskDag::add(Task task, std::vector<std::size_t> reads) {
  std::sort(reads.begin(), reads.end());
  reads.erase(std::unique(reads.begin(), reads.end()), reads.end());
  ESP_CHECK(reads.empty() || reads.back() < tasks_.size(), reads.size(), tasks_.size());
  tasks_.push_back(std::move(task));
  reads_.push_back(std::move(reads));
  return tasks_.size() - 1;
}

std::size_t TaskDag::edges() const {
  std::size_t sum = 0;
  for (const std::vector<std::size_t>& of : reads_) sum += of.size();
  return sum;
}

std::vector<std::size_t> TaskDag::loose() const {
  std::vector<bool> read(tasks_.size());
  for (const std::vector<std::size_t>& of : reads_) {
    for (const std::size_t from : of) read[from] = true;
  }
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < read.size(); ++i) {
    if (!read[i]) result.push_back(i);
  }
  return result;
}

Bytes TaskDag::stored() const {
  Bytes sum;
  for (const Task& task : tasks_) sum += task.stored;
  return sum;
}

void TaskDag::restrict_to(std::size_t task, std::vector<std::string> kinds) {
  std::ranges::sort(kinds);
  tasks_[task].kinds = std::move(kinds);
}

Imported TaskDag::scaled(const Scale& scale, Cluster cluster) const {
  std::vector<bool> read(tasks_.size(), true);
  for (const std::size_t i : loose()) read[i] = false;
  double time = 0, bytes = 0;
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    time += tasks_[i].time;
    if (read[i]) bytes += tasks_[i].bytes;
  }
  const double wanted = 1e3 * static_cast<double>(scale.microseconds) * static_cast<double>(tasks_.size());
  const double per_time = time > 0 ? wanted / time : 0;
  const double sent = wanted * static_cast<double>(scale.communication) / 100 *
                      (static_cast<double>(kTaskLinkBytesPerSecond) / 1e9);
  const double per_byte = bytes > 0 ? sent / bytes : 0;
  const bool backward = scale.passes == Scale::Passes::kForwardAndBackward;
  Profile profile;
  profile.file = profile.name = name_;
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    const Task& task = tasks_[i];
    ProfileNode node;
    node.name = task.name;
    node.target = task.target;
    node.stored = task.stored;
    node.trainable = backward && task.stored.count() > 0;
    node.always_grad = backward;
    node.output = round_bytes(task.bytes * per_byte);
    OperatorCost cost;
    cost.forward = round_duration(task.time * per_time);
    if (backward) {
      cost.input_gradient = cost.forward;
      cost.weight_gradient = cost.forward;
      cost.saved.push_back({.side = SavedTensor::Side::kOutput, .index = 0});
    }
    cost.origin = Origin::kProfile;
    for (const DeviceKind& kind : cluster.kinds()) {
      if (!task.kinds.empty() && !std::ranges::binary_search(task.kinds, kind.name)) continue;
      CostRow row;
      row.kind = kind.name;
      row.points.push_back({BatchSize(1), cost});
      node.costs.push_back(std::move(row));
    }
    profile.nodes.push_back(std::move(node));
    for (const std::size_t from : reads_[i]) profile.edges.push_back({from, i, Bytes()});
  }
  BuiltProfile built = build_profile(std::move(profile));
  Imported result{.graph = std::move(built.graph)};
  result.costs = std::move(built.costs);
  result.cluster = std::move(cluster);
  result.batch = BatchSize(1);
  return result;
}

Cluster task_cluster(std::size_t devices, Bytes memory) {
  return flat_cluster(kProfiledKind, devices, memory, kTaskLinkBytesPerSecond);
}

std::int64_t drawn(Rng& rng, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(most - least) + 1));
}

}  // namespace espalier
