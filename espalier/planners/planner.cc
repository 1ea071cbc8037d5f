#include "espalier/planners/planner.h"

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/base/spelling.h"

namespace espalier {

std::string_view to_text(Status status) {
  switch (status) {
    case Status::kFeasible:
      return "feasible";
    case Status::kOptimal:
      return "optimal";
    case Status::kInfeasible:
      return "infeasible";
    case Status::kUnsupported:
      return "unsupported";
    case Status::kBudgetSpent:
      return "budget spent";
  }
  return "unknown";
}

Pin parse_pin(std::string_view text, const Cluster& cluster) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size()) {
    throw InputError("--pin '" + std::string(text) +
                     "': expected PATTERN=DEVICE, such as 'vision.*=" + cluster.devices().front().name + "'");
  }
  const std::string_view name = text.substr(equals + 1);
  const auto device = cluster.find_device(name);
  if (!device) {
    std::string known;
    for (const Device& d : cluster.devices().first(std::min<std::size_t>(4, cluster.devices().size()))) {
      known += (known.empty() ? "" : ", ") + d.name;
    }
    throw InputError("--pin '" + std::string(text) + "': no device '" + std::string(name) +
                     "'; the cluster has " + known + (cluster.devices().size() > 4 ? ", …" : ""));
  }
  return Pin{std::string(text.substr(0, equals)), *device};
}

std::vector<std::optional<DeviceId>> resolve_pins(const Graph& graph, const Pins& pins) {
  std::vector<std::optional<DeviceId>> device(graph.operators().size());
  for (const Pin& pin : pins) {
    bool matched = false;
    for (std::size_t i = 0; i < device.size(); ++i) {
      const Operator& op = graph.operators()[i];
      if (!matches_pattern(pin.pattern, op.module_path) && !matches_pattern(pin.pattern, op.name)) continue;
      matched = true;
      if (device[i] && *device[i] != pin.device) {
        throw InputError("--pin '" + pin.pattern + "': operator '" + op.name +
                         "' is already pinned to another device");
      }
      device[i] = pin.device;
    }
    if (!matched) {
      throw InputError("--pin '" + pin.pattern +
                       "' matches no operator or module; `espalier inspect` lists the modules");
    }
  }
  return device;
}

}  // namespace espalier
