#pragma once

// The planners' oracle: a PipelinePlan in, iteration time and peak memory per device out, equal to the full
// simulation to the nanosecond and byte, some tens of microseconds a plan (docs/benchmarks.md). Built once
// per problem; thread-safe, because the scratch belongs to the caller.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "espalier/plan/plan.h"
#include "espalier/trace/trace.h"

namespace espalier {

struct Evaluation {
  Duration iteration;
  std::vector<MemoryByCategory> peak;  // by DeviceId
  std::optional<DeviceId> overflow;    // the first device whose peak exceeds its memory
  friend bool operator==(const Evaluation&, const Evaluation&) = default;
};

class Evaluator {
 public:
  // Keeps references to graph and cluster; costs are copied, and resolved at each allowed micro-batch.
  Evaluator(const Graph& graph, const Cluster& cluster, const CostTable& costs, const Training& training);
  ~Evaluator();
  Evaluator(Evaluator&&) noexcept;

  // Room to work in, for one thread at a time: grows to the largest plan seen and remembers the stages it has
  // met, so reuse it. Given to another evaluator, it begins anew.
  class Scratch;
  static std::unique_ptr<Scratch, void (*)(Scratch*)> make_scratch();

  // The plan must pass check_plan. Its schedule is that of make_schedule. Throws InternalError if that
  // deadlocks, which unequal micro-batches with small in-flight limits can. The fast way is for stages on
  // single devices of their own, equal micro-batches among those allowed, shares j mod r, and limits that do
  // not grow along an edge; anything else is staged, scheduled and simulated in full.
  Evaluation evaluate(const PipelinePlan& plan, Scratch& scratch) const;

  // The full way for any plan: what evaluate is tested against.
  Evaluation simulate_in_full(const PipelinePlan& plan) const;

  // Plans that took the fast way on this scratch, and stages that were walked because they were new to it.
  struct Counts {
    std::uint64_t fast = 0, full = 0, stages_walked = 0;
  };
  static Counts counts(const Scratch& scratch);

 private:
  struct State;
  std::shared_ptr<const State> state_;  // a scratch shares it with the evaluator it worked for last
};

}  // namespace espalier
