#include "espalier/cli/runtime_verbs.h"

#include <set>

#include "espalier/base/check.h"

namespace espalier::cli {

void needs_runtime(const std::string& verb) {
  throw InputError(
      "this build of espalier has no runtime, which `" + verb +
      "` needs. Build one: scripts/setup, then cmake --preset release && cmake --build build/release "
      "--target espalier");
}

int devices_in_use(const StagedModel& model) {
  std::set<DeviceId> devices;
  for (const StagedStage& stage : model.stages) {
    for (const StagedReplica& replica : stage.replicas) {
      devices.insert(replica.devices.begin(), replica.devices.end());
    }
  }
  return static_cast<int>(devices.size());
}

}  // namespace espalier::cli
