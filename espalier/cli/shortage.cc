#include "espalier/cli/shortage.h"

#include "espalier/base/json.h"

namespace espalier::cli {

Json shortage_json(const Shortage& shortage, const Cluster& cluster) {
  Json devices = Json::array(), remedies = Json::array();
  for (const DeviceNeed& need : shortage.devices) {
    devices.push_back({{"device", cluster.device(need.device).name},
                       {"needs", need.needs.count()},
                       {"has", need.has.count()},
                       {"lacks", need.lacks().count()}});
  }
  for (const Remedy& remedy : shortage.remedies) {
    remedies.push_back({{"kind", std::string(to_text(remedy.kind))},
                        {"text", remedy.text},
                        {"iteration_ns", remedy.iteration.count()}});
  }
  return {{"planner", shortage.planner},     {"micro_batch", shortage.micro_batch.count()},
          {"lack", shortage.lack().count()}, {"devices", std::move(devices)},
          {"state", shortage.state.count()}, {"memory", shortage.memory.count()},
          {"remedies", std::move(remedies)}};
}

}  // namespace espalier::cli
