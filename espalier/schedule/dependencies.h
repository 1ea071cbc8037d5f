#pragma once

// What waits for what in a schedule, derived again for the checkers: it shares nothing with make_schedule,
// with_channels or the simulator, and follows the comments of schedule.h and trace.h word by word.
//
// It counts samples, not micro-batches: the batch is cut into `units` so small that every micro-batch of
// every stage of a crossing is a whole number of them.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "espalier/schedule/schedule.h"

namespace espalier {

struct ActionPlace {
  DeviceId device;
  std::uint32_t position = 0;  // in the device's list
  friend auto operator<=>(const ActionPlace&, const ActionPlace&) = default;
};

struct SentMessage {
  DeviceId from;
  DeviceId to;
  Message message;
  friend auto operator<=>(const SentMessage&, const SentMessage&) = default;
};

// Every message that the model needs, ascending, each once.
std::vector<SentMessage> expected_messages(const StagedModel& model);

// The devices on which an action must stand, ascending; empty if the model has no such action.
std::vector<DeviceId> expected_devices(const StagedModel& model, const Action& action);

struct MessageFacts {
  SentMessage sent;
  std::uint32_t channel = 0;  // index into Schedule::channels
  Bytes bytes;
  std::vector<ActionPlace> producers;           // ascending
  std::vector<ActionPlace> consumers;           // ascending
  std::optional<std::size_t> slot;              // forward: index into `slots`
  std::optional<ActionPlace> receiver_forward;  // backward: its end posts the receive
};

// A forward receive slot, taken for one micro-batch of an edge (trace.h).
struct SlotFacts {
  DeviceId device;
  Bytes bytes;                           // of all messages that fill it
  std::optional<std::size_t> before;     // the slot's last use: index into `slots`; none: it is free at 0
  std::vector<ActionPlace> released_by;  // the latest end of these: of F, I, B or W
};

// Requires the rules `complete`, `place` and `messages` of check_schedule.
struct ScheduleFacts {
  std::vector<MessageFacts> messages;  // by channel, in its order
  std::vector<SlotFacts> slots;
  std::vector<std::pair<ActionPlace, ActionPlace>> local;  // producer, consumer on one device: no message
  // A sum of gradients and what of its device's list waits for its end: the sum after it, and the update of
  // each stage for the last sum that the stage is in. Ascending by who waits.
  std::vector<std::pair<ActionPlace, ActionPlace>> sums;
};
ScheduleFacts schedule_facts(const StagedModel& model, const Schedule& schedule);

// Is it an action of this stage, or a sum over a tie that the stage is in?
bool concerns(const StagedModel& model, const Action& action, StageId stage);

// Where actions stand.
class ActionIndex {
 public:
  explicit ActionIndex(const Schedule& schedule);
  std::optional<std::uint32_t> find(DeviceId device, const Action& action) const;
  // Of a micro-batch of a stage: B, or I (start) and W (end) where the halves are split.
  std::optional<ActionPlace> backward_start(DeviceId device, StageId stage, std::uint32_t micro_batch) const;
  std::optional<ActionPlace> backward_end(DeviceId device, StageId stage, std::uint32_t micro_batch) const;

 private:
  std::optional<ActionPlace> either(DeviceId device, ActionKind a, ActionKind b, StageId stage,
                                    std::uint32_t micro_batch) const;
  std::vector<std::vector<std::pair<Action, std::uint32_t>>> sorted_;  // by device
};

}  // namespace espalier
