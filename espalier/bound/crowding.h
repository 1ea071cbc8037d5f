#pragma once

// Where few operators can run side by side, most devices wait. Internal to bounds.

#include "espalier/base/units.h"
#include "espalier/bound/least_costs.h"
#include "espalier/bound/spread.h"

namespace espalier::internal {

// In a step of T each pass of a micro-batch lies between what comes before it and T less what comes behind,
// so a part of it lies in any interval [a, b]: the least of what lies there if it begins as early, and as
// late, as it can. All these parts must find room on the devices in b - a. The largest T for which some
// interval of a grid lacks room is too short, as is any below it, which is a step within T as well (Erschler,
// Lopez, Thuriot, 1991). `time`: a bound that is known; less than that is not looked at. O(intervals ·
// operators · ways), bounded by the grid.
Duration crowded_time(const Known& known, const Spread& work, Duration time);

}  // namespace espalier::internal
