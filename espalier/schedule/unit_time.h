#pragma once

// One order for all devices by a rule, from a simulation with every action one clock long and messages free.
//
// A device takes, of the actions that are ready, backwards first, then forwards, then W; of each, earlier
// samples, then higher stages. A forward is ready only when the receive slots of its outputs are free, so
// that messages leave at once; or where its message may wait at the sender, since nothing but the stage's
// tensors for this reader goes from the one device to the other: then the reader's forward is ready only when
// the slot has become free. (A tensor for a stage far down a chain, which has few slots, would hold up all
// before it.) The clock order is then consistent with compute, channel, data and slot edges, and the schedule
// cannot deadlock. O(clocks · (replicas + readers)), and the devices' square where a message waits.

#include <vector>

#include "espalier/schedule/rules.h"

namespace espalier {

enum class Choice : std::uint8_t {
  kPattern,        // each replica keeps to its pattern
  kForwardsFirst,  // each takes what is ready, but no backward before its last forward
  kEager           // each takes what is ready and allowed
};

struct UnitTimeOrder {
  std::vector<StartedAction> started;  // by start
  // False if nothing could run before all had: then the rest stands behind, as the pattern has it.
  //
  // The eager choice completes for micro-batches of one size: all before the lowest unfinished one are
  // finished everywhere, so neither limits (k is at most one) nor slots hold that one back. With unequal
  // sizes and limits smaller than one large micro-batch it may stop.
  bool completed = false;
};
UnitTimeOrder unit_time_order(const StagedModel& model, std::size_t devices, Choice choice);

}  // namespace espalier
