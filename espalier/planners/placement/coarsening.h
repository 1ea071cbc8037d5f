#pragma once

// A smaller instance of the same problem: pairs of tasks become one, and the units of both stand together.
//
//   a ─▶ b ─▶ d        {a b} ─▶ {c d}      what passed between a and b passes no more; a's values that c
//   └──▶ c ──┘                             reads leave when {a b} has ended
//
// No cycle arises. Tasks of a pair lie on one level (most edges from a task that reads nothing) or on two
// that follow each other. Each edge leads to a higher level, and a way through a pair goes down one level at
// most; so a cycle needs pairs all of which are entered above and left below, between the same two levels.
// Such cycles are looked for before a pair is made. (Herrmann et al., "Multilevel algorithms for acyclic
// partitioning of directed acyclic graphs", SISC'19, §4.1, forbid more.)

#include <cstddef>
#include <vector>

#include "espalier/placement/instance.h"

namespace espalier::placement {

struct CoarseningLimits {
  Duration unit_time = Duration::max();  // of a unit's tasks together, on average over devices
  Bytes unit_bytes = Bytes::max();       // of what a unit needs alone
};

struct Coarse {
  Instance instance;
  std::vector<TaskId> task_of;  // by task of the fine instance
  std::vector<UnitId> unit_of;  // by unit of the fine instance
};

// One level: pairs by weight, the heaviest first: tasks that stand together anyhow, then those with the
// longest messages between them, then readers of one value. A value that nobody else reads any more is held
// as a resident; values with the same readers become one. O((tasks + reads) · log).
Coarse coarsen(const Instance& fine, const CoarseningLimits& limits);

// The assignment of the fine instance that stands where the coarse one does.
Assignment refined(const Coarse& coarse, const Assignment& assignment);

}  // namespace espalier::placement
