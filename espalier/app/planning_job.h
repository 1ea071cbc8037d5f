#pragma once

// What a verb works on: a model, a cluster, complete costs and training settings, from names and defaults.
// Every part has a default, so the model alone is enough.

#include <optional>
#include <string>
#include <vector>

#include "espalier/cost/calibration.h"
#include "espalier/frontend/imported.h"
#include "espalier/plan/plan_file.h"
#include "espalier/planners/hand_split.h"
#include "espalier/planners/planner.h"

namespace espalier {

// This computer, as somebody who may look at it has counted it.
struct Machine {
  LocalMachine local;                 // one device per core, memory shared equally
  std::string runs_on = "cpu";        // the kind of device that a run here computes on, "cuda" for any GPU
  std::string description;            // "AMD EPYC 7B13, 2 cores": compared with a cost file's
  std::string calibration_file = {};  // where calibrations are remembered; empty: none is made
  std::optional<Calibration> calibration = {};  // for `local` where no costs are given
};

struct JobOptions {
  std::string model;  // path
  ImportOptions import;
  std::string cluster;  // "local", "local:4", "4xA100-80GB+2xV100-16GB@25Gb", a file, or "file:8": so many of
                        // the model file's own devices; empty: its own cluster if it carries one (a
                        // published profile), else local
  Machine machine;
  std::optional<BatchSize> batch;  // empty: the model file's own, else default_batch
  // Empty: up to six divisors of the batch that the model allows; the whole batch alone where a smaller
  // micro-batch would train something else (operators_that_need_the_whole_batch).
  std::vector<BatchSize> micro_batches;
  std::string costs;  // a cost file (`espalier profile`); empty: the model file's own, else none
  std::optional<Precision> precision = {};  // that the analytic model supposes; none: the start's, else f32
  std::uint32_t threads = 1;                // that each worker will use
  std::vector<std::string> pins;            // "vision.*=gpu:0"
  std::string stages;                       // "h.0-5,h.6-11=gpu:1": a split by hand; empty: planners decide
  Optimizer optimizer;
  std::uint64_t seed = 0;
  WrittenBuffers written_buffers = WrittenBuffers::kOneReplica;
  // A plan file, perhaps edited by hand: its locked stages are kept, and what is found is no slower than it.
  // Cluster, batch, micro-batches, costs, seed and optimizer are its own where these options say nothing
  // else.
  std::string start;
  // A file that places every operator (plan/placement_rules.h): then there is nothing to plan. A start that
  // holds a placement does the same.
  std::string placement = {};
  TraversalOrder order = TraversalOrder::kTopoGenerations;  // of placers (Problem::order)
  std::vector<std::string> notes;                           // that stand before the job's own
};

struct PlanningJob {
  std::string model;  // path
  Graph graph;
  Cluster cluster;
  CostTable costs;  // complete for the cluster's kinds and the micro-batches
  Training training;
  Pins pins;
  std::uint64_t seed = 0;
  WrittenBuffers written_buffers = WrittenBuffers::kOneReplica;
  std::optional<PipelinePlan> start;  // all of the start, where it is a whole legal plan
  std::vector<LockedStage> locked;
  std::vector<HandStage> stages;            // the split by hand; empty: none
  std::optional<Placement> placement = {};  // given, not to be planned
  TraversalOrder order = TraversalOrder::kTopoGenerations;
  std::string cost_file;               // path; empty if none was given
  std::uint64_t cost_hash = 0;         // of that file's table or the model file's, as read; 0: neither
  std::optional<MeasuredOn> measured;  // of a cost file, where the cluster is `local`
  double analytic_share = 0;           // of the time of one pass on the first device: nobody measured it
  std::vector<std::string> notes;      // what was assumed
  std::vector<std::string> warnings;   // what may go wrong

  Problem problem() const {
    return {.graph = graph,
            .cluster = cluster,
            .costs = costs,
            .training = training,
            .pins = pins,
            .start = start ? std::optional<Plan>(*start) : std::nullopt,
            .written_buffers = written_buffers,
            .locked = locked,
            .order = order};
  }
};

// Throws InputError saying which part is wrong and what would be right.
PlanningJob prepare_job(const JobOptions& options);

// Throws InputError where the model was not exported for that size, naming those that it was exported for.
void check_micro_batch(const Graph& graph, BatchSize size);

// "8 samples", "2 to 64 samples", "2 samples or more".
std::string batch_text(const BatchRange& range);

// "local", "local:4".
bool names_local(const std::string& cluster);

// The parts, for those who have some of them already.
Cluster load_cluster(const std::string& name, const LocalMachine& machine);
CostTable load_costs(const std::string& path);
// Measured costs are of the model's own types: throws InputError for another precision than f32.
void refuse_precision_of_costs(Precision precision, const std::string& cost_file);
// What a profile says of a cluster that it does not name: the same figures on each device.
CostTable own_costs(const Imported& model, const Cluster& cluster);
// Costs that were measured elsewhere, or with another number of threads than a run would use, mislead.
std::vector<std::string> measurement_warnings(const std::string& costs, const MeasuredOn& measured,
                                              const std::string& machine,
                                              std::optional<std::uint32_t> threads);
// A cluster of one host whose link was measured.
Cluster with_measured_link(const Cluster& cluster, const MeasuredLink& link);
// Eight micro-batches of the exported size, or of the least; as many as devices where those are more.
BatchSize default_batch(const Graph& graph, std::size_t devices);
// Divisors of the batch within the model's range, ascending: the largest, and each the largest up to half of
// the one before it, six at most. Where there are more, those with fewer micro-batches than devices are left
// out first, the second largest before smaller ones; then the smallest. The largest stays: a model too small
// for several devices does best with it.
std::vector<BatchSize> default_micro_batches(const Graph& graph, BatchSize batch, std::size_t devices);

}  // namespace espalier
