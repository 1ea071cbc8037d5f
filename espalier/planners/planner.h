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

using Plan = std::variant<PipelinePlan, Placement>;

struct Problem {
  const Graph& graph;
  const Cluster& cluster;
  const CostTable& costs;  // complete for the cluster's kinds and the training's micro-batches
  Training training;
  Objective objective = Objective::kIterationTime;
  Pins pins;
  std::optional<Plan> start;  // the plan to improve or to adapt
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

  void report(double fraction, std::string_view what) const {
    if (progress) progress(fraction, what);
  }
  bool stop() const { return cancelled && cancelled->load(std::memory_order_relaxed); }
};

}  // namespace espalier
