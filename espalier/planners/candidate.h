#pragma once

// From a planner's idea (which operators, which devices) to a judged PipelinePlan. Shared by all pipeline
// planners, so that they differ in what they search and in nothing else.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "espalier/planners/planner.h"
#include "espalier/sim/evaluator.h"

namespace espalier {

// A stage as a planner thinks of it. Duplicable operators may be left out: each stage gets those it reads.
struct StageDraft {
  std::vector<OperatorId> operators;  // any order
  std::vector<DeviceId> devices;      // one replica each
  std::vector<std::size_t> after;     // drafts that it follows without reading from them
  std::string locked_as = {};         // the name of a locked stage, which is kept as it is; else empty
  std::vector<OperatorId> recompute = {};
};

// The plan of these drafts: duplicable operators attached, stages in a topological order (stable), `after`
// completed by data edges, shares dealt round robin, in-flight limits set, stages named as locked or by
// part_names, each name once. Drafts must cover every other operator. Nothing if the drafts' stage graph
// has a cycle. O(operators + edges).
std::optional<PipelinePlan> complete_plan(const Graph& graph, const std::vector<StageDraft>& drafts,
                                          BatchSize batch, BatchSize micro_batch, const OrderRule& schedule);

// Judges plans by simulation and keeps the best that fits. Ties: less peak memory, then fewer stages, then
// the first.
class Judge {
 public:
  explicit Judge(const Problem& problem);

  // Completes, checks pins and colocation, and that no written buffer is replicated unless the problem allows
  // it; simulates.
  // Returns the iteration time if the plan is legal and fits.
  std::optional<Duration> consider(const std::vector<StageDraft>& drafts, BatchSize micro_batch,
                                   const OrderRule& schedule,
                                   std::optional<Duration> estimate = std::nullopt);
  // The same for a complete plan, which obeys check_plan; its pins are not checked.
  std::optional<Duration> consider(const PipelinePlan& plan, std::optional<Duration> estimate = std::nullopt);

  std::uint64_t evaluations() const { return evaluations_; }

  // The best plan; or kInfeasible with what was short in the plan that came closest: the one whose devices
  // lack least in all; or kBudgetSpent where the search ended before it found any.
  Outcome outcome(const Context& context) const;

 private:
  void note_overflow(const PipelinePlan& plan, const Evaluation& evaluation);

  const Problem& problem_;
  Evaluator evaluator_;
  std::unique_ptr<Evaluator::Scratch, void (*)(Evaluator::Scratch*)> scratch_;
  std::vector<std::optional<DeviceId>> pins_;
  std::optional<PipelinePlan> best_;
  std::optional<Duration> best_estimate_;
  Evaluation best_evaluation_;
  std::string closest_why_;
  std::optional<Bytes> closest_lack_;  // of that plan's devices together
  bool pin_conflict_ = false;
  std::uint64_t evaluations_ = 0;
};

// The micro-batch sizes of the training that the graph allows; throws InputError if there is none.
std::vector<BatchSize> usable_micro_batches(const Problem& problem);

}  // namespace espalier
