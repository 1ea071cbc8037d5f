#pragma once

// The planners' oracle: a PipelinePlan in, iteration time and peak memory per device out, equal to the full
// simulation to the nanosecond and byte, some tens of microseconds a plan (docs/benchmarks.md). Built once
// per problem; thread-safe, because the scratch belongs to the caller.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "espalier/plan/plan.h"
#include "espalier/schedule/schedule.h"
#include "espalier/sim/stage_price.h"
#include "espalier/trace/trace.h"

namespace espalier {

// What a plan comes to. If its order deadlocks, or a list breaks another rule of check_schedule, or a cost
// cell is missing, it cannot run, and all else is empty.
struct Evaluation {
  Duration iteration;
  std::vector<MemoryByCategory> peak;  // by DeviceId
  std::optional<DeviceId> overflow;    // the first device whose peak exceeds its memory
  std::uint64_t messages = 0;          // of a step, between devices
  bool deadlock = false;               // check_schedule shows the cycle, or what else is wrong
  std::optional<ForbiddenCell> forbidden = {};
  bool can_run() const { return !deadlock && !forbidden; }
  friend bool operator==(const Evaluation&, const Evaluation&) = default;
};

class Evaluator {
 public:
  // Keeps references to graph and cluster; costs are copied, and resolved when first needed.
  Evaluator(const Graph& graph, const Cluster& cluster, const CostTable& costs, const Training& training);
  ~Evaluator();
  Evaluator(Evaluator&&) noexcept;

  // Room to work in, for one thread at a time: grows to the largest plan seen and remembers the structures of
  // plans that it has met (at most about 32 MiB), so reuse it. Given to another evaluator, it begins anew.
  class Scratch;
  static std::unique_ptr<Scratch, void (*)(Scratch*)> make_scratch();

  // The plan must pass check_plan. Its schedule is that of make_schedule. Any plan goes this one way, rules
  // and lists alike.
  Evaluation evaluate(const PipelinePlan& plan, Scratch& scratch) const;

  // The same for a plan whose stages hold no operators: `runs` has those of each stage, as runs_of makes
  // them.
  Evaluation evaluate(const PipelinePlan& plan, std::span<const StageRuns> runs, Scratch& scratch) const;

  // What the stages of its plans cost.
  const StagePrices& prices() const;

  // The full way: what evaluate is tested against. Throws InputError where a cell is missing, InternalError
  // where the order deadlocks.
  Evaluation simulate_in_full(const PipelinePlan& plan) const;

  // Plans that were evaluated on this scratch, and structures that were made because they were new to it.
  struct Counts {
    std::uint64_t plans = 0, structures = 0;
  };
  static Counts counts(const Scratch& scratch);

 private:
  struct State;
  std::shared_ptr<const State> state_;  // a scratch shares it with the evaluator it worked for last
};

}  // namespace espalier
