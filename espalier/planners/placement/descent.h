#pragma once

// Descents: only better assignments, until none is one change away.

#include <cstdint>
#include <vector>

#include "espalier/planners/placement/local_search.h"

namespace espalier::placement {

// Coordinate descent: each unit in turn, in a fresh random order each time round, to the device where the
// step is shortest; ends when a whole round gained nothing.
void coordinate_descent(Walk& walk, Rng& rng);

// Moves what makes the step long: units on the critical path, and clusters around them, to where the path
// came from or goes to, or to any other device; ends when the path's changes gain nothing. Takes a state for
// each path.
void path_descent(Walk& walk, Rng& rng);

// From the best that the walk has found, if any: some random changes, taken whatever they cost.
void kick(Walk& walk, Rng& rng);

// What the end of the step waited for, first task first: each task starts when the one before it on the path
// has ended or its message has come.
std::vector<TaskId> critical_tasks(const Instance& instance, std::span<const DeviceId> at,
                                   const Timeline& timeline);

}  // namespace espalier::placement
