#pragma once

// The judge of plans: a planner's idea in, a verdict out, and in the end the best. Shared by all planners, so
// that they differ in what they search and in nothing else.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "espalier/planners/draft.h"
#include "espalier/planners/planner.h"

namespace espalier {

// What a judge says of a plan.
struct Verdict {
  enum class Ruling : std::uint8_t {
    kFits,              // legal, and within the memory of each device: all else is a reason against it
    kTooMuchMemory,     // on the devices that `excess` names
    kDeadlock,          // its orders cannot run (Evaluation::deadlock)
    kForbidden,         // a cost cell is missing: `forbidden`
    kPinBroken,         // `op` is pinned to another device
    kTornApart,         // operators that `op` belongs together with stand elsewhere
    kReplicatedWrites,  // `op` writes a buffer, in replicas
    kCircle,            // stages read from each other
    kWrongOrders,       // the rule has a parameter for each of another number of stages
  } ruling = Ruling::kFits;
  Duration iteration;          // of kFits and kTooMuchMemory
  Bytes peak;                  // likewise: of the fullest device
  std::uint64_t messages = 0;  // likewise: of a step
  std::vector<Excess> excess;  // ascending device
  std::optional<OperatorId> op = {};
  std::optional<ForbiddenCell> forbidden = {};

  bool fits() const { return ruling == Ruling::kFits; }
  friend bool operator==(const Verdict&, const Verdict&) = default;
};

// A candidate as a planner proposes it.
struct Proposal {
  std::vector<StageDraft> stages;
  BatchSize micro_batch;
  OrderRule schedule;
  std::optional<Duration> estimate = std::nullopt;  // the planner's own
  std::optional<OrderLists> lists = {};             // of stages as they stand here; in place of the rule
  friend bool operator==(const Proposal&, const Proposal&) = default;
};

// Judges by simulation and keeps the best plan that fits. Ties: less peak memory, then fewer stages, then the
// one that was proposed first. A call costs what the stages' runs and borders cost, and the engine's step.
class Judge {
 public:
  // Refers to both.
  Judge(const Problem& problem, Context& context);
  ~Judge();

  // Completes the drafts (planners/draft.h) and judges. One thread at a time.
  Verdict consider(const Proposal& proposal);
  Verdict consider(const std::vector<StageDraft>& stages, BatchSize micro_batch, const OrderRule& schedule,
                   std::optional<Duration> estimate = std::nullopt);
  // A whole plan, which obeys check_plan but for stages' names. Replicas that write buffers stay as they are.
  Verdict consider(const Plan& plan, std::optional<Duration> estimate = std::nullopt);

  // Makes and judges `count` candidates on all threads, as if they were considered one after the other: what
  // is kept does not depend on the threads. `make` may take states from its context, an equal share of what
  // is left, and returns nothing where there is no candidate.
  void consider_each(std::size_t count,
                     const std::function<std::optional<Proposal>(std::size_t, Context&)>& make);

  // Judges proposals on all threads, as if they were considered one after the other. Nothing stands for those
  // that had not begun when somebody ended the search.
  std::vector<std::optional<Verdict>> consider_all(std::span<const Proposal> proposals);

  // The best of what was considered: to prune by, between rounds of consider_each.
  std::optional<Duration> best() const;
  std::uint64_t evaluations() const;  // plans judged

  // The best plan, with its names; or kInfeasible with what was short in the plan that came closest; or
  // kBudgetSpent or kInterrupted where the search ended before it found any.
  Outcome outcome() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The micro-batch sizes of the training that the graph allows; throws InputError if there is none.
std::vector<BatchSize> usable_micro_batches(const Problem& problem);

}  // namespace espalier
