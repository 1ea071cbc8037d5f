#include "espalier/planners/joint/repeated.h"

#include <algorithm>
#include <utility>

namespace espalier::joint {

std::optional<Training> training_of_part(const Training& training, std::size_t parts) {
  const auto count = static_cast<std::int64_t>(parts);
  if (training.batch.count() % count != 0) return std::nullopt;
  Training part = training;
  part.batch = BatchSize(training.batch.count() / count);
  std::erase_if(part.micro_batches, [&](BatchSize size) { return part.batch.count() % size.count() != 0; });
  if (part.micro_batches.empty()) return std::nullopt;
  return part;
}

PipelinePlan repeated(const PipelinePlan& plan, const EqualParts& parts) {
  PipelinePlan whole = plan;
  const std::size_t copies = parts.copies.size();
  whole.batch = BatchSize(plan.batch.count() * static_cast<std::int64_t>(copies));
  for (Stage& stage : whole.stages) {
    const std::vector<Replica> replicas = std::exchange(stage.replicas, {});
    for (const Replica& replica : replicas) {
      for (std::size_t c = 0; c < copies; ++c) {
        Replica copy = replica;
        for (DeviceId& device : copy.devices) device = parts.copies[c][device.index()];
        for (std::uint32_t& j : copy.micro_batches) j = narrow(copies * j + c);
        stage.replicas.push_back(std::move(copy));
      }
    }
  }
  return whole;
}

}  // namespace espalier::joint
