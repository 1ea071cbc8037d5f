#include "espalier/planners/pins.h"

#include <algorithm>
#include <map>

#include "espalier/base/check.h"
#include "espalier/graph/module_names.h"
#include "espalier/planners/given_sets.h"

namespace espalier {
namespace {

std::string in_quotes(const Pin& pin) {
  return "--pin '" + pin.pattern + "'";
}

// Which pin binds each operator, by index.
std::vector<std::optional<std::size_t>> binding_pins(const Graph& graph, const Pins& pins) {
  std::vector<std::optional<std::size_t>> bound(graph.operators().size());
  if (pins.empty()) return bound;
  const ModuleNames modules(graph);
  for (std::size_t p = 0; p < pins.size(); ++p) {
    std::vector<OperatorId> operators;
    try {
      operators = modules.find(pins[p].pattern);
    } catch (const InputError& error) {
      throw InputError(std::string("--pin ") + error.what());
    }
    bool any = false;
    for (const OperatorId id : operators) {
      if (graph.op(id).duplicable) continue;
      any = true;
      std::optional<std::size_t>& mine = bound[id.index()];
      if (!mine) {
        mine = p;
      } else if (pins[*mine].device != pins[p].device) {
        throw InputError(in_quotes(pins[p]) + ": operator '" + graph.op(id).name +
                         "' is pinned to another device by " + in_quotes(pins[*mine]));
      }
    }
    if (!any) {
      throw InputError(
          in_quotes(pins[p]) +
          ": what it means is computed by every stage that reads it (masks, positions), so it has "
          "no device of its own");
    }
  }
  std::map<std::uint32_t, OperatorId> first;  // pinned operator of a colocation group
  for (std::size_t i = 0; i < bound.size(); ++i) {
    const auto group = graph.operators()[i].colocation;
    if (!group || !bound[i]) continue;
    const auto [it, fresh] = first.emplace(*group, OperatorId(i));
    const std::size_t other = *bound[it->second.index()];
    if (fresh || pins[other].device == pins[*bound[i]].device) continue;
    throw InputError(in_quotes(pins[*bound[i]]) + ": operator '" + graph.operators()[i].name +
                     "' shares memory that is written with '" + graph.op(it->second).name + "', which " +
                     in_quotes(pins[other]) + " wants on another device");
  }
  for (std::size_t i = 0; i < bound.size(); ++i) {
    const auto group = graph.operators()[i].colocation;
    if (!group || bound[i] || graph.operators()[i].duplicable) continue;
    if (const auto it = first.find(*group); it != first.end()) bound[i] = bound[it->second.index()];
  }
  return bound;
}

}  // namespace

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

std::string to_text(const Pin& pin, const Cluster& cluster) {
  return "--pin '" + pin.pattern + "=" + cluster.device(pin.device).name + "'";
}

std::vector<std::optional<DeviceId>> resolve_pins(const Graph& graph, const Pins& pins) {
  std::vector<std::optional<DeviceId>> devices;
  for (const auto& pin : binding_pins(graph, pins)) {
    devices.push_back(pin ? std::optional(pins[*pin].device) : std::nullopt);
  }
  return devices;
}

std::optional<Pin> pin_of(const Graph& graph, const Pins& pins, OperatorId op) {
  const auto pin = binding_pins(graph, pins)[op.index()];
  return pin ? std::optional(pins[*pin]) : std::nullopt;
}

std::string describe_pin(const Graph& graph, const Cluster& cluster, const Pins& pins, OperatorId op) {
  const std::string name = "operator '" + graph.op(op).name + "'";
  const auto pin = pin_of(graph, pins, op);
  return pin ? to_text(*pin, cluster) + " (" + name + ")" : name;
}

std::vector<std::string> pin_detours(const Graph& graph, const Cluster& cluster, const Pins& pins) {
  std::vector<std::string> lines;
  if (pins.empty()) return lines;
  const auto bound = binding_pins(graph, pins);
  std::vector<DeviceId> pinned;  // devices
  for (const Pin& pin : pins) pinned.push_back(pin.device);
  std::sort(pinned.begin(), pinned.end());
  pinned.erase(std::unique(pinned.begin(), pinned.end()), pinned.end());
  std::vector<char> taken(pinned.size(), 1);  // still looked at
  while (true) {
    SetOfOperator set_of(bound.size());
    for (std::size_t i = 0; i < bound.size(); ++i) {
      if (!bound[i]) continue;
      const auto at = std::lower_bound(pinned.begin(), pinned.end(), pins[*bound[i]].device) - pinned.begin();
      if (taken[static_cast<std::size_t>(at)]) set_of[i] = static_cast<SetIndex>(at);
    }
    const ClosedSets closed = close_sets(graph, std::move(set_of), pinned.size());
    if (!closed.cycle) return lines;
    const SetCycle& cycle = *closed.cycle;
    const auto quoted = [&](OperatorId op) {
      return "'" + graph.op(op).name + "', " + to_text(pins[*bound[op.index()]], cluster);
    };
    const std::string& device = cluster.device(pinned[cycle.set]).name;
    lines.push_back("a path leaves " + device + " (" + quoted(cycle.leaves) + ") for " +
                    cluster.device(pinned[cycle.through]).name + " and returns (" + quoted(cycle.returns) +
                    "): no one stage can hold what is pinned to " + device);
    taken[cycle.set] = 0;
  }
}

}  // namespace espalier
