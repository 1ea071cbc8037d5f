#pragma once

// Another cluster than the one at hand, in words: what `--what-if` takes.
//
//     gpu:3=gone          without this device; of a group: without all in it
//     gpu:3=+1  host1=+1  one more like it, in its group
//     gpu:3=0.5x          half as fast; of a group or a kind: all its devices
//     gpu:3=+4GiB         so much more memory, or less: -1GiB
//     links=2x            twice the bandwidth of all links
//     links:host1=2x      of the links of the members of this group
//
// `*` stands for all devices. Several joined by ',' come one after the other.

#include <string>
#include <string_view>
#include <vector>

#include "espalier/app/planning_job.h"

namespace espalier {

// The job on the changed cluster. What is pinned, locked or chosen by hand stays on its devices, and so does
// the plan to start from where none of its devices goes; else there is none. A device that runs at another
// speed is of a kind of its own, with the costs of the old one. Throws InputError:
// "--what-if 'gpu:9=gone': …".
PlanningJob with_change(const PlanningJob& job, std::string_view change);

}  // namespace espalier
