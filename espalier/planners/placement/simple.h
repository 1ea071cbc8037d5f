#pragma once

// The placers that others are measured against.

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/placement/engine.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

// All units on the device where they take least time together, of those that may have and hold all of them.
// Nothing is repaired: where none can, there is no answer. O(tasks · devices).
Placed one_device(const Instance& instance);

// The k-th unit of `order` on device k mod devices, or the next one that it may stand on and that has room.
Placed round_robin_units(const Instance& instance, std::span<const UnitId> order);

struct RandomOptions {
  std::uint32_t samples = 100;  // a state each
  std::uint64_t seed = 1;
  Rules rules = {};
};

// The best by the engine of so many assignments, each unit of each drawn from the devices with room for it.
// The more samples, the better, for one seed.
Placed random_best(const Instance& instance, const RandomOptions& options, Context& context);

// What people do by hand: layers in the order of the network, the same amount of work on each device, one
// after the other in their own order, with memory respected. The best of all such cuts: the device with most
// to do has least. Where no cut fits, the best without memory is repaired.
//
// `layer`: of each unit (layers_of); layers run from 0 on without a gap. O(layers² · devices + layers ·
// what all units touch).
Placed human_expert(const Instance& instance, std::span<const std::uint32_t> layer);

// The layers that people see: of an operator's module path the part up to its first number
// ("encoder.layers.3" of "encoder.layers.3.attn.linear"), or the outermost module of a path without number.
// Layers are numbered by their first operator; one that comes back after another one began is still the same.
// Operators without a path are a layer each. More than 512 are joined with their neighbours to 512 of about
// equal work.
std::vector<std::uint32_t> layers_of(const Instance& instance, const Graph& graph);

}  // namespace espalier::placement
