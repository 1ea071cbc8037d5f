#pragma once

// Graph partitioners as placers: they cut as few bytes as they can while parts are even, and know nothing of
// the direction of an edge, of when anything runs, or of what a device holds twice.
//
//   metis   METIS 5.1, k-way with two weights of a unit: its time and its bytes (Karypis, Kumar, SISC'98)
//   scotch  Scotch 7.0, mapped onto the devices by their speed; one weight, time (Pellegrini, Roman, HPCN'96)
//
// Vertices are units; an edge between two has the time of the values that pass between them, means over all
// pairs of devices. A part is a device: parts are sized by the devices' speed, and for METIS by their memory.
// Units that the partitioner puts where they may not stand go to their first device; what does not fit is
// repaired. Fewer than four units for each device are not cut: all on one. Both libraries keep random numbers
// of their own for a whole process: calls wait for each other, and begin from a fixed seed, so that they
// repeat.

#include <cstdint>

#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

struct PartitionOptions {
  std::int32_t seed = 1;
};

// O(reads · log) beside the library's own time.
Placed metis(const Instance& instance, const PartitionOptions& options = {});
Placed scotch(const Instance& instance, const PartitionOptions& options = {});

}  // namespace espalier::placement
