#pragma once

// Chains of stages laid over a row of devices, with times that one writes down: for schedules.

#include <cstdint>
#include <vector>

#include "espalier/cluster/cluster.h"
#include "espalier/plan/staged_model.h"
#include "espalier/schedule/stage_line.h"
#include "espalier/trace/trace.h"

namespace espalier::testing {

struct HalfTimes {  // of a stage
  Duration forward, input, weight;
};

struct StageLineCase {
  std::size_t places = 4;
  std::size_t chunks = 1;
  StageLine::Layout layout = StageLine::Layout::kLoop;
  std::uint32_t micro_batches = 8;
  std::vector<HalfTimes> times = {};  // by stage; of one: all stages'
  Duration hop = {};                  // latency of a message
  Bytes saved = Bytes(1000);          // of a micro-batch, kept to the end of W
  Bytes saved_for_input = {};         // of it, to the end of I
  Bytes memory = gibibytes(1);        // of a device
};

struct StagedLine {
  StagedModel model;
  Cluster cluster;  // dev0, dev1, …
};

// Messages take the hop's latency and no link. Stages "s0", "s1", …; orders 1F1B.
StagedLine staged_line(const StageLineCase& of);

// The device whose first action and last one are furthest apart: how far, and what part of it is idle. The
// bubble of zero-bubble papers, where a device need not wait for the others' step to end.
struct LongestSpan {
  Duration span;
  double bubble = 0;
};
LongestSpan longest_span(const Trace& trace);

}  // namespace espalier::testing
