#pragma once

// What the messages of a timeline are good for: who reads each of them first, which of them a device stood
// idle for, and which lie on the critical path.
//
//   gpu:0   [ a ][  c  ]               gpu:1 has nothing to do until `a` arrives: it waited for it. Then it
//             \.a.\  \..c...\          is busy until c arrives, and begins e as soon as it has: c is waited
//   gpu:1         [  b  ]   [ e ]      for from b's end on. The critical path is a, c, its message, e.
//
// The critical path goes back from the task that ends last: to the message that its device waited for, from
// there to that one's producer; where the device waited for none, to the task before it on the device. So
// each part of it began when the one before had ended, or when links or device had become free.

#include <span>
#include <vector>

#include "espalier/placement/engine.h"

namespace espalier::placement {

struct MessageUse {
  TaskId reader;          // on the receiving device, the one of those that read it that begins first
  Duration waited;        // the device stood idle so long, to the moment at which this arrived
  bool critical = false;  // on the critical path
  friend bool operator==(const MessageUse&, const MessageUse&) = default;
};

// By message of the timeline, which must be of this instance and this assignment, and neither a deadlock nor
// cut off. O(tasks + reads + messages · (readers + log messages)).
std::vector<MessageUse> message_uses(const Instance& instance, std::span<const DeviceId> assignment,
                                     const Timeline& timeline);

}  // namespace espalier::placement
