#pragma once

// Pins: operators that people want on a device.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/cluster/cluster.h"
#include "espalier/graph/graph.h"

namespace espalier {

// "vision.*=gpu:0": the operators that the name means (graph/module_names.h) stand on that device, all but
// duplicable ones, which stand beside each reader.
struct Pin {
  std::string pattern;
  DeviceId device;
  friend bool operator==(const Pin&, const Pin&) = default;
};
using Pins = std::vector<Pin>;

// Throws InputError naming the text and the devices there are.
Pin parse_pin(std::string_view text, const Cluster& cluster);

// "--pin 'vision.*=gpu:0'"
std::string to_text(const Pin& pin, const Cluster& cluster);

// The pinned device of each operator. Where one operator of a colocation group is pinned, the others are as
// well. Throws InputError that names the pin if its name means nothing or nothing that can be pinned, and
// both pins if they want one operator, or one colocation group, on two devices. O(pins · (modules +
// operators)).
std::vector<std::optional<DeviceId>> resolve_pins(const Graph& graph, const Pins& pins);

// The pin that binds an operator: by name if any does, else by its colocation group.
std::optional<Pin> pin_of(const Graph& graph, const Pins& pins, OperatorId op);

// "--pin 'vision.*=gpu:0' (operator 'addmm_3')": for a plan that does not have it there. The operator alone
// if no pin binds it.
std::string describe_pin(const Graph& graph, const Cluster& cluster, const Pins& pins, OperatorId op);

// One line for each device to which a path returns that has left it for another pinned one: no stage can hold
// what is pinned to it, so it needs two. Pins must resolve. Ascending by device; a device that is on a circle
// with an earlier one is not named again.
std::vector<std::string> pin_detours(const Graph& graph, const Cluster& cluster, const Pins& pins);

}  // namespace espalier
