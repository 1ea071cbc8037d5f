#pragma once

// What a planner is: a pure function of its inputs, a seed and a work budget.
//
//   Outcome graphpipe(const Problem&, const GraphPipeOptions&, Context&);

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "espalier/base/rng.h"
#include "espalier/bound/bound.h"
#include "espalier/plan/plan.h"

namespace espalier {

enum class Objective : std::uint8_t { kIterationTime };

// "vision.*=gpu:0": operators whose module path (or name) matches the pattern stand on that device. '*'
// matches any text.
struct Pin {
  std::string pattern;
  DeviceId device;
  friend bool operator==(const Pin&, const Pin&) = default;
};
using Pins = std::vector<Pin>;

// "vision.*=gpu:0". Throws InputError naming the text and the devices there are.
Pin parse_pin(std::string_view text, const Cluster& cluster);

// The pinned device of each operator. Throws InputError if a pattern matches nothing or two pins disagree.
std::vector<std::optional<DeviceId>> resolve_pins(const Graph& graph, const Pins& pins);

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

struct Problem {
  const Graph& graph;
  const Cluster& cluster;
  const CostTable& costs;  // complete for the cluster's kinds and the training's micro-batches
  Training training;
  Objective objective = Objective::kIterationTime;
  Pins pins;
  std::optional<Plan> start;  // the plan to improve or to adapt
  WrittenBuffers written_buffers = WrittenBuffers::kOneReplica;
  std::vector<LockedStage> locked = {};  // keep_locked plans around them; other planners do not
};

enum class Status : std::uint8_t {
  kFeasible,     // a plan that fits
  kOptimal,      // and the planner proves that nothing in its space is better
  kInfeasible,   // nothing fits: `why` says what is short and the smallest change that would help
  kUnsupported,  // not a problem of this planner's kind: `why` says why
  kBudgetSpent,  // stopped before it found any
};
std::string_view to_text(Status status);

struct SearchStats {
  std::uint64_t states = 0;       // explored, in the planner's own sense
  std::uint64_t evaluations = 0;  // plans simulated
  friend bool operator==(const SearchStats&, const SearchStats&) = default;
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
};

// Work, not seconds, so that results repeat.
struct Budget {
  std::uint64_t max_states = 10'000'000;
};

struct Context {
  Budget budget;
  Rng rng{0};
  std::function<void(double fraction, std::string_view what)> progress;  // may be empty
  const std::atomic<bool>* cancelled = nullptr;                          // may be null
  std::uint64_t states = 0;                                              // looked at so far
  bool budget_spent = false;                                             // a search wanted to look at more

  void report(double fraction, std::string_view what) const {
    if (progress) progress(fraction, what);
  }
  // Counts one more state; false once the budget is spent.
  bool take_state() {
    if (states >= budget.max_states) budget_spent = true;
    return !budget_spent && ++states > 0;
  }
  bool stop() const { return cancelled && cancelled->load(std::memory_order_relaxed); }
};

}  // namespace espalier
