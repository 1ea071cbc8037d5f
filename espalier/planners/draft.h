#pragma once

// From a planner's idea of a plan (which operators, which devices) to the plan: what follows from the graph
// and nobody needs to say. Who reads from whom, where duplicable operators stand, whether what belongs
// together stands together. It costs what the stages' runs and borders cost, not what their operators do.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "espalier/plan/plan.h"
#include "espalier/planners/operator_set.h"

namespace espalier {

// A stage as a planner thinks of it. Duplicable operators do not count, there or not: each stage gets those
// that it reads.
struct StageDraft {
  OperatorSet operators;
  std::vector<DeviceId> devices;            // one replica each, or `degree` that follow each other
  std::vector<std::size_t> after;           // drafts that it follows without reading from them
  std::string locked_as = {};               // the name of a locked stage, which is kept as it is; else empty
  OperatorSet recompute = {};               // as far as the stage has them
  std::vector<std::uint32_t> weights = {};  // of the replicas' shares (deal_micro_batches); empty: all equal
  std::int32_t more_in_flight = 0;          // than the rule gives; at least one stays in flight
  std::uint32_t degree = 1;                 // of tensor parallelism: devices of a replica

  std::size_t replicas() const { return devices.size() / degree; }
  std::span<const DeviceId> group(std::size_t replica) const {
    return std::span(devices).subspan(replica * degree, degree);
  }
  friend bool operator==(const StageDraft&, const StageDraft&) = default;
};

// Which micro-batches each of several replicas takes, ascending: each in turn goes to the one that would have
// the least per weight with it (d'Hondt), the first of equals. Equal weights deal round robin; weights that
// add up to `micro_batches` are the numbers dealt. Weights are positive. O(micro-batches · replicas).
std::vector<std::vector<std::uint32_t>> deal_micro_batches(std::uint32_t micro_batches,
                                                           std::span<const std::uint32_t> weights);
// How many each takes.
std::vector<std::uint32_t> share_sizes(std::uint32_t micro_batches, std::span<const std::uint32_t> weights);

// Replicas that take equally long for a micro-batch: `with_most` of them get `most`, the others one less.
struct EqualReplicas {
  std::int64_t count = 1;
  Duration time;  // of one micro-batch; none counts as 1 ns
  std::int64_t most = 0, with_most = 0;

  std::int64_t share(std::int64_t place) const { return place < with_most ? most : most - 1; }
};

// Puts so many more replicas into the group that takes as long; the group's place.
std::size_t add_replicas(std::vector<EqualReplicas>& groups, Duration time, std::int64_t count);

// Deals micro-batches, one at least to each replica, so that the last of them ends as early as can be. As
// many micro-batches as replicas, or more; together they take less than 2^62 ns. O(groups · log time).
void deal_evenly(std::int64_t micro_batches, std::span<EqualReplicas> groups);

// The same by replica, as weights of deal_micro_batches; empty where all of them take equally long.
std::vector<std::uint32_t> even_shares(std::int64_t micro_batches, std::span<const Duration> times);

// A plan whose stages are runs: `frame` has all of a PipelinePlan but operators, and names of locked stages
// only.
struct RunPlan {
  PipelinePlan frame;
  struct Runs {
    std::vector<OperatorRun> operators, recompute;
    friend bool operator==(const Runs&, const Runs&) = default;
  };
  std::vector<Runs> runs;  // by stage
  friend bool operator==(const RunPlan&, const RunPlan&) = default;
};

// The plan with operators and names (graph/part_names.h). O(operators).
PipelinePlan spelled_out(const Graph& graph, const RunPlan& plan);

// Made once for a graph, which it refers to; any number of threads may ask.
class DraftRules {
 public:
  explicit DraftRules(const Graph& graph);  // O((operators + edges) · log operators)
  ~DraftRules();
  DraftRules(DraftRules&&) noexcept;

  // The plan of these drafts: stages in a topological order (stable), `after` completed by data edges, shares
  // dealt, in-flight limits set. Of a draft's devices only as many are used as there are micro-batches, and
  // only those that get one. Duplicables that nobody reads stand in the last stage. Nothing if drafts read
  // from each other in a circle, or `after` makes one. Drafts must cover every other operator, each once:
  // else InternalError. O(runs and what spans their borders, with log operators).
  std::optional<RunPlan> complete(std::span<const StageDraft> drafts, BatchSize batch, BatchSize micro_batch,
                                  const Orders& orders) const;

  // An operator of the stage whose colocation group has another operator elsewhere.
  std::optional<OperatorId> first_torn(std::span<const OperatorRun> stage) const;
  // The first operator of a stage that writes a buffer. O(runs · log operators).
  std::optional<OperatorId> first_writer(std::span<const OperatorRun> stage) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

// Which operators are pinned where: made for a problem's pins.
class PinTable {
 public:
  PinTable(const Graph& graph, const std::vector<std::optional<DeviceId>>& pins);  // by operator
  bool empty() const { return pinned_.empty(); }
  // The first operator of a stage on these devices that is pinned to another. A pinned operator has one
  // device. O(runs · log operators).
  std::optional<OperatorId> first_broken(std::span<const OperatorRun> stage,
                                         std::span<const DeviceId> devices) const;

 private:
  struct Pinned {
    std::uint32_t op;
    DeviceId device;
    std::size_t same_until;  // the last of the row of pins on one device that this begins or goes on
  };
  std::vector<Pinned> pinned_;  // ascending operator
};

// As DraftRules::complete, spelled out; nothing if it gives none. O(operators + edges) · log.
std::optional<PipelinePlan> complete_plan(const Graph& graph, std::span<const StageDraft> drafts,
                                          BatchSize batch, BatchSize micro_batch, const OrderRule& schedule);

}  // namespace espalier
