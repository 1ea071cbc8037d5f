#pragma once

// What a planner is: a pure function of its inputs and a work budget.
//
//   Outcome graphpipe(const Problem&, const GraphPipeOptions&, Context&);

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "espalier/bound/bound.h"
#include "espalier/graph/orders.h"
#include "espalier/plan/plan.h"
#include "espalier/planners/context.h"
#include "espalier/planners/oracle.h"
#include "espalier/planners/pareto_set.h"
#include "espalier/planners/pins.h"

namespace espalier {

// Whether a stage that writes buffers (BatchNorm's statistics) may have replicas, each of which writes its
// own.
enum class WrittenBuffers : std::uint8_t { kOneReplica, kReplicated };

using Plan = std::variant<PipelinePlan, Placement>;

// A stage that people want kept: operators, replicas, micro-batch and recomputation of `stage`; its `after`
// names other locked stages by their place in the list.
struct LockedStage {
  Stage stage;
  std::string where;  // "plan.json: stages[2]"
  friend bool operator==(const LockedStage&, const LockedStage&) = default;
};

// What is to be planned, for the least iteration time. Copies share the oracle, which was made for graph,
// cluster, costs and training: all else of a copy may change.
struct Problem {
  const Graph& graph;
  const Cluster& cluster;
  const CostTable& costs;  // complete for the cluster's kinds and the training's micro-batches
  const Training training;
  Pins pins = {};
  std::optional<Plan> start = {};  // a plan that takes part as it is
  WrittenBuffers written_buffers = WrittenBuffers::kOneReplica;
  std::vector<LockedStage> locked = {};  // keep_locked plans around them; other planners do not
  bool lists = false;                    // nobody asked for a rule: plans may carry lists of orders
  // In which placers that take operators one after the other visit them, where their own rule says none.
  TraversalOrder order = TraversalOrder::kTopoGenerations;
  std::shared_ptr<const Oracle> oracle = std::make_shared<const Oracle>(graph, cluster, costs, training);
};

enum class Status : std::uint8_t {
  kFeasible,     // a plan that fits
  kInfeasible,   // nothing fits: `why` says what is short and the smallest change that would help
  kUnsupported,  // not a problem of this planner's kind: `why` says why
  kBudgetSpent,  // the budget ended before it found any
  kInterrupted,  // somebody ended the search before it found any
};
std::string_view to_text(Status status);

// A device that a plan asks too much of.
struct Excess {
  DeviceId device;
  Bytes needs, by;  // at its peak; more than it has
  friend bool operator==(const Excess&, const Excess&) = default;
};

// What all of them lack together.
Bytes sum_of(const std::vector<Excess>& excess);

// A plan that runs but does not fit.
struct NearMiss {
  Plan plan;
  std::vector<Excess> excess;  // ascending device
  std::string planner = {};    // that made it, where several were asked
  Bytes lack() const { return sum_of(excess); }
  const PipelinePlan* pipeline() const { return std::get_if<PipelinePlan>(&plan); }  // null: a placement
  friend bool operator==(const NearMiss&, const NearMiss&) = default;
};

// A plan that fits, slower than the best, with less memory or depth.
struct OtherChoice {
  PipelinePlan plan;
  PlanPrice price;
  friend bool operator==(const OtherChoice&, const OtherChoice&) = default;
};

// `estimate` is the planner's own figure and `bound` what it can prove nobody beats; the simulator's verdict
// is a third number that everything is compared by. Never mix the three.
struct Outcome {
  Status status = Status::kInfeasible;
  std::optional<Plan> plan = std::nullopt;
  std::optional<Duration> estimate = std::nullopt;
  std::optional<Bound> bound = std::nullopt;
  std::string why = {};
  SearchStats stats = {};
  bool interrupted = false;              // somebody ended the search
  std::optional<NearMiss> closest = {};  // where nothing fits: the plan whose devices lack least in all
  // Beside the plan the fastest that was judged and fits of each micro-batch, ascending: of those whose
  // stages have one size and that carry no lists. A search that improves plans begins with them too.
  std::vector<PipelinePlan> of_other_sizes = {};
  // Of all that were judged and fit: each has a tenth less memory on the fullest device than the plan and the
  // choices before it, or less depth; ascending time, at most twice the plan's.
  std::vector<OtherChoice> choices = {};

  // The plan, else the one that came closest; null if there is neither, or it is a placement.
  const PipelinePlan* pipeline() const {
    return plan ? std::get_if<PipelinePlan>(&*plan) : closest ? closest->pipeline() : nullptr;
  }
};

}  // namespace espalier
