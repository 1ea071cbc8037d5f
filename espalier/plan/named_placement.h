#pragma once

// A placement by names, as files hold it, before a Graph and a Cluster resolve it.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "espalier/plan/plan.h"

namespace espalier {

struct NamedPlacement {
  struct OnDevice {
    std::string device;
    std::optional<std::uint32_t> level = {};                     // of all of these operators
    std::vector<std::pair<std::string, std::string>> operators;  // runs first..last of the graph's order
    friend bool operator==(const OnDevice&, const OnDevice&) = default;
  };
  std::vector<OnDevice> devices;  // those with operators, ascending; with levels each (device, level)
  friend bool operator==(const NamedPlacement&, const NamedPlacement&) = default;
};

// The fewest runs. The placement has a device of the cluster for each operator.
NamedPlacement name_placement(const Placement& placement, const Graph& graph, const Cluster& cluster);

// Throws InputError "<where>devices[0].operators[1]: …" where a name is not there, a run is backwards or an
// operator stands twice, "<where>operator 'a' stands on no device", and where some entries have a level and
// others none.
Placement resolve_placement(const NamedPlacement& named, const Graph& graph, const Cluster& cluster,
                            const std::string& where);

}  // namespace espalier
