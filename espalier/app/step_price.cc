#include "espalier/app/step_price.h"

#include <set>

namespace espalier {

std::optional<StepPrice> step_price(const Cluster& cluster, const StagedModel& staged, Duration iteration,
                                    BatchSize batch) {
  if (!cluster.has_prices()) return std::nullopt;
  std::set<DeviceId> used;
  for (const StagedStage& stage : staged.stages) {
    for (const StagedReplica& replica : stage.replicas) {
      used.insert(replica.devices.begin(), replica.devices.end());
    }
  }
  StepPrice price{.devices = used.size()};
  for (const DeviceId device : used) price.hour += *cluster.device(device).price_per_hour;
  constexpr double kSecondsOfHour = 3600;
  price.step = to_seconds(iteration) / kSecondsOfHour * price.hour;
  price.million_samples = price.step / static_cast<double>(batch.count()) * 1e6;
  return price;
}

}  // namespace espalier
