#pragma once

// What can be said of a plan without simulating it, as numbers: what a guide of the search looks at
// (planners/joint/guide.h). Who changes what they mean trains the guide again:
// espalier learn guide -o espalier/planners/joint/guide.safetensors

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "espalier/planners/joint/space.h"

namespace espalier::joint {

// Times are in seconds of a step.
struct PlanFigures {
  enum Time : std::size_t {
    kBusiest,   // work of the busiest device
    kNext,      // of the next one
    kMean,      // of a device
    kSpread,    // root of the mean square
    kPath,      // of one micro-batch: the longest way through the stages and back, with messages
    kEnds,      // of a device: its work, and the way to its first stage and back from it; the longest
    kClosing,   // likewise, with sums of gradients where the way back is shorter
    kSum,       // the longest sum of a stage's gradients
    kWire,      // messages of the two stages that send each other most
    kTraffic,   // messages of all stages, by device
    kHeaviest,  // one micro-batch in the stage where it takes longest
    kTimes
  };
  enum Shape : std::size_t {
    kStages,        // by device
    kDepth,         // stages on the longest way, by device
    kUsed,          // devices with a stage, by device
    kMicroBatches,  // their logarithm
    kReplicas,      // by stage
    kLeastAhead,    // micro-batches in flight beside those of the rule, of the stage with fewest
    kMostAhead,
    kFullness,    // of the fullest device's memory, by what operators return and parameters, roughly
    kRecomputed,  // of the operators
    kSplit,       // backward in two halves
    kGroup,       // logarithm of k
    kAllForward,  // all forwards first
    kBare,        // stage edges without data, by stage
    kCircle,      // stages wait for each other: then kPath, kEnds, kClosing and kDepth are 0
    kShapes
  };
  std::array<double, kTimes> times = {};
  std::array<double, kShapes> shapes = {};
};

// Tables of a problem that they come from. Any number of threads may ask.
class FigureTables {
 public:
  explicit FigureTables(const Space& space);  // refers to it; O(operators + tensors)

  // O(operators + links between operators + stages · log stages + routes between stages).
  PlanFigures of(const Proposal& plan) const;

 private:
  struct Edge {
    std::size_t from = 0, to = 0;
    double bytes = 0;  // of a sample
  };
  struct Wire {  // seconds of a message
    double a_byte = 0, fixed = 0;
    Wire(const Cluster& cluster, DeviceId from, DeviceId to);
  };
  struct Stages;
  static std::vector<std::size_t> in_order(std::span<const Edge> edges,
                                           std::span<const std::vector<std::size_t>> into,
                                           std::span<const std::vector<std::size_t>> out);
  static void find_ways(Stages& stages);
  std::vector<Edge> edges_of(const Proposal& plan) const;
  Wire wire_of(const Proposal& plan, const Edge& edge) const;
  Stages stages_of(const Proposal& plan) const;
  double seconds_of_sum(const StageDraft& stage) const;
  void add_loads(const Load& load, PlanFigures& figures) const;
  void add_stages(const Proposal& plan, const Stages& stages, PlanFigures& figures) const;
  void add_messages(const Proposal& plan, const Stages& stages, double micro_batches,
                    PlanFigures& figures) const;
  void add_devices(const Proposal& plan, const Stages& stages, const Load& load, double micro_batches,
                   PlanFigures& figures) const;

  const Space& space_;
  std::vector<double> returned_;    // bytes of a sample that operators return; of all before each
  std::vector<double> parameters_;  // likewise, bytes of parameters that they are the first to read
};

// A step from one plan to another: the figures of the second and how they differ, times as parts of the step
// that the first one takes.
struct MoveFigures {
  static constexpr std::size_t kCount =
      2 * (std::size_t{PlanFigures::kTimes} + std::size_t{PlanFigures::kShapes});
  std::array<float, kCount> values = {};
};
MoveFigures figures_of(const PlanFigures& before, Duration step, const PlanFigures& after);

}  // namespace espalier::joint
