#pragma once

// A chain of stages that is laid over a row of devices once or several times: what interleaved, V-shaped and
// zero-bubble schedules are made for.
//
//     loop, two chunks            V
//     place  0 1 2 3              place  0 1 2 3
//     stage  0 1 2 3              stage  0 1 2 3
//            4 5 6 7                     7 6 5 4
//
// A place is a device's number in the row, a chunk the number of a stage among those of its device. The
// orders of schedule/interleaved.h, zero_bubble.h, v_schedules.h and dual_pipe_v.h look at places, chunks and
// micro-batches only, never at times or sizes.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "espalier/plan/staged_model.h"

namespace espalier {

struct StageLine {
  enum class Layout : std::uint8_t { kLoop, kV } layout = Layout::kLoop;  // with one chunk both are one
  std::vector<DeviceId> devices = {};                                     // by place
  std::size_t chunks = 1;
  std::uint32_t micro_batches = 1;

  std::size_t places() const { return devices.size(); }
  StageId stage(std::size_t place, std::size_t chunk) const {
    const bool backwards = layout == Layout::kV && chunk % 2 == 1;
    return StageId(chunk * places() + (backwards ? places() - 1 - place : place));
  }
  friend bool operator==(const StageLine&, const StageLine&) = default;
};

// The line of a model, or in one line why it is none: each stage follows the one before it, stands on one
// device, has as many micro-batches as the others, and devices come in that layout.
struct FoundLine {
  std::optional<StageLine> line;
  std::string why_not;
};
FoundLine find_line(const StagedModel& model, StageLine::Layout layout);

// The same where each device has `chunks` stages.
FoundLine find_line(const StagedModel& model, StageLine::Layout layout, std::size_t chunks);

// Orders that some way to make them gives for a model, or in one line why it gives none.
struct GeneratedOrders {
  std::optional<OrderLists> lists;
  std::string why_not;
};

// What a place does, one after the other: F, I, W or B of its chunks.
struct LineStep {
  ActionKind kind = ActionKind::kForward;
  std::size_t chunk = 0;
  friend bool operator==(const LineStep&, const LineStep&) = default;
};
using LineOrder = std::vector<std::vector<LineStep>>;  // by place

// Adds F, I or W of a stage to a list; one whose backward is whole has B in place of I, and no W.
void add_pass(ActionKind pass, StageId stage, bool in_halves, std::vector<Step>& list);

// The same for the devices of a cluster. A stage without weights has B in place of I, and no W.
OrderLists lists_on_devices(const StageLine& line, const StagedModel& model, std::size_t devices,
                            const LineOrder& order);

}  // namespace espalier
