#pragma once

// Levels for a placement, so that its fragments (plan/fragments.h) keep up with its operators.
//
// With the smallest levels a fragment takes all that its device can do before it must wait for another one. A
// recurrent net with a layer on each device is then one fragment for each layer, and the second layer waits
// for the last time step of the first. Operator by operator (engine.h) it waits for the first time step.
//
//   operators   gpu:0  a1 a2 a3 a4            smallest levels   gpu:0 [a1 a2 a3 a4]
//               gpu:1     b1 b2 b3 b4                           gpu:1               [b1 b2 b3 b4]
//
// These levels cut what a device runs, in its timeline's order, into runs as long as may be without making
// anybody wait longer. A message that leaves at e, takes t and is read at r has a slack of r - t - e. Its
// sender's run may last half of that beyond e, and its reader's run begin half of that before r: so the
// message is there in time wherever the two runs end and begin. Backward passes of a forward graph, which a
// run does in one go too, count likewise. A run is not cut between operators that a mutation ties together:
// what the runtime would have to copy, or refuse, stays in one fragment.
//
// Such long runs differ from the timeline in two ways. A run's backward passes may lie apart there, with
// others of their device between them: as one backward pass of a fragment they come in another order. And a
// message that leaves later, though in time by itself, may find its links taken, or be in another's way. On
// recurrent networks and transformers over segments that costs 14 to 19 % of a step. Close runs are more and
// shorter, which costs where an action has an overhead.

#include <optional>
#include <span>
#include <vector>

#include "espalier/placement/engine.h"

namespace espalier::placement {

enum class Runs : std::uint8_t {
  kLong,   // as long as messages are in time
  kClose,  // whose backward passes follow one another in the timeline; only messages that take less than
           // 1/10,000 of the step leave later than there
};

// By operator, for Placement::level; 0 for duplicable ones. Nothing where runs would wait in a circle, which
// operators tied by a mutation may bring about. The timeline must be of this instance of the graph and of
// this assignment, and neither a deadlock nor cut off. O(tasks + reads + edges + messages · log messages).
std::optional<std::vector<std::uint32_t>> levels_of(const Graph& graph, const Instance& instance,
                                                    std::span<const DeviceId> assignment,
                                                    const Timeline& timeline, Runs runs);

// What each device does in order, where it follows the timeline: forward passes by level; backward passes by
// when the first of their operators began, as far as each comes behind those that give it gradients. Of
// fragments of one micro-batch, with these levels. O(operators + reads + fragments · log fragments).
OrderLists orders_of(const Graph& graph, const PipelinePlan& fragments, const Instance& instance,
                     const Timeline& timeline);

}  // namespace espalier::placement
