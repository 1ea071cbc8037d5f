#pragma once

// Times of a schedule's actions and messages, read from a trace: what check_trace's rules share.

#include <map>
#include <optional>
#include <vector>

#include "espalier/schedule/dependencies.h"
#include "espalier/trace/trace.h"

namespace espalier {

struct Timeline {
  std::vector<std::vector<const Span*>> actions;  // by device and position; never null once `actions` holds
  struct MessageSpans {
    const Span* transfer = nullptr;  // never null once `messages` holds
    const Span* send_endpoint = nullptr;
    const Span* receive_endpoint = nullptr;
    const Span* receive_wait = nullptr;
  };
  std::vector<MessageSpans> messages;           // by ScheduleFacts::messages
  std::map<ActionPlace, Duration> sum_reached;  // when what stands before a sum in its list has ended

  const Span& at(const ActionPlace& place) const { return *actions[place.device.index()][place.position]; }
  // The latest end of these actions.
  Duration end_of(const std::vector<ActionPlace>& places) const;
  // When a device had done what stands before a sum, and its sum before that was over.
  Duration sum_arrival(const ScheduleFacts& facts, const ActionPlace& sum) const;
};

// What each device holds, by the text of trace.h: samples at 0 and wherever it changes.
std::vector<MemorySample> held_memory(const StagedModel& model, const Schedule& schedule,
                                      const ScheduleFacts& facts, const Timeline& timeline);

}  // namespace espalier
