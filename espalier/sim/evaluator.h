#pragma once

// The planners' oracle: a PipelinePlan in, iteration time and peak memory per device out, equal to the full
// simulation to the nanosecond and byte, some tens of microseconds a plan. Built once per problem;
// thread-safe, because the scratch belongs to the caller.

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
  // Keeps references to graph and cluster; costs are resolved at each allowed micro-batch.
  Evaluator(const Graph& graph, const Cluster& cluster, const CostTable& costs, const Training& training);
  ~Evaluator();
  Evaluator(Evaluator&&) noexcept;

  class Scratch;  // grows to the largest plan seen; reuse it
  static std::unique_ptr<Scratch, void (*)(Scratch*)> make_scratch();

  // The plan must pass check_plan. Its schedule is that of make_schedule.
  Evaluation evaluate(const PipelinePlan& plan, Scratch& scratch) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace espalier
