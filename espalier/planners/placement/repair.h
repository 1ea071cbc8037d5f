#pragma once

// Makes an assignment fit: moves units from devices that hold too much, least harm first, and where that does
// not do, looks for any assignment that fits.
//
// 1. Units leave a device that lacks memory for one with room, by the harm they do for each byte that they
//    free: messages that would be needed less those that would not, and time beyond the busiest device's.
// 2. What is left is a packing problem, searched depth first with a bound on states: large units first, each
//    on its present device if it can stay, else where it adds least. A branch ends where what nobody holds
//    yet exceeds all the room there is.
// With few units the search is complete: then it finds an assignment that fits wherever there is one.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "espalier/placement/instance.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

struct RepairOptions {
  std::uint64_t max_states = 200'000;  // of the packing search; beside two for each unit
};

struct Repaired {
  std::optional<Assignment> assignment = {};
  bool proved = false;                 // nothing fits, and the search was complete
  std::string why = {};                // where there is none
  std::vector<DeviceLack> lacks = {};  // of the closest that was seen, ascending device
  std::uint64_t states = 0;
};

// O(units · devices · what a unit touches) for the moves, and the same for each state of the search.
Repaired repair(const Instance& instance, Assignment assignment, const RepairOptions& options = {});

}  // namespace espalier::placement
