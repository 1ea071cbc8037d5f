#pragma once

// Why nothing fits: the plan that came closest, what each of its devices lacks, whether what any plan must
// hold exceeds all memory there is; and what would do. A remedy stands here only if it was tried: the problem
// was changed as it says, planned again, and the simulator found that the plan fits (find_remedies).

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/planners/planner.h"

namespace espalier {

// A device of the closest plan.
struct DeviceNeed {
  DeviceId device;
  Bytes needs;  // at its peak
  Bytes has;
  Bytes lacks() const { return needs > has ? needs - has : Bytes(); }
  friend bool operator==(const DeviceNeed&, const DeviceNeed&) = default;
};

// A change after which a plan fits.
struct Remedy {
  enum class Kind : std::uint8_t {
    kMicroBatch,  // a smaller one that was not among those to choose from
    kMemory,      // more on each device that lacks some, or on all of its kind
    kRecompute,   // of the closest plan's stages on such devices; piper, checkpointed and auto plan it
                  // themselves
    kPrecision,   // bf16, where no costs were measured
    kOptimizer,   // SGD without momentum, which has no state and trains otherwise
    kDevices,     // more of the last host's, or more hosts like it
  } kind = Kind::kMicroBatch;
  std::string text;    // "--micro-batch 2", as one types or changes it
  Duration iteration;  // of the plan that was then found, simulated
  friend bool operator==(const Remedy&, const Remedy&) = default;
};
std::string_view to_text(Remedy::Kind kind);  // "micro-batch"

struct Shortage {
  std::string
      planner;  // that made the closest plan; of several planners the one whose plan lacks least in all
  BatchSize micro_batch;
  std::vector<DeviceNeed> devices;  // that the plan uses, ascending
  Bytes state;   // parameters, their gradients, optimizer state, buffers: each once, as any plan holds them
  Bytes memory;  // of all devices
  std::vector<Remedy> remedies;

  Bytes lack() const;  // of all devices together
  friend bool operator==(const Shortage&, const Shortage&) = default;
};

// What any plan holds at least, on all devices together: each parameter that an operator reads with its
// gradient and what the optimizer keeps for it, each buffer and constant. O(operators + tensors).
Bytes least_state(const Graph& graph, const Optimizer& optimizer);

// The simulator's verdict on a plan of either type; a placement is judged in its largest micro-batch.
Evaluation evaluation_of(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                         const Training& training, const Plan& plan);

// What is short in a plan that runs (Evaluation::can_run); without remedies.
Shortage shortage_of(const Problem& problem, const Plan& closest, std::string planner);

// Plans a changed problem, as the first was planned.
using PlanAgain = std::function<Outcome(const Problem&)>;

// Tries what could help, in the order of Remedy::Kind, and keeps what does. `again` is called at most eight
// times: once for each kind, and once more where there are a lesser and a larger change. Of a placement,
// recomputation and smaller micro-batches are not tried. Deterministic as `again` is.
std::vector<Remedy> find_remedies(const Problem& problem, const Plan& closest, const Shortage& shortage,
                                  const PlanAgain& again);

// For people: three digits, rounded up, so that so much is enough; "19.9 GiB", "653 MiB".
std::string enough_text(Bytes bytes);
// What enough_text shows.
Bytes enough(Bytes bytes);

// A few lines: the closest plan, what any plan holds, what would do.
std::vector<std::string> shortage_lines(const Shortage& shortage, const Cluster& cluster);

}  // namespace espalier
