#pragma once

// How a policy learns to place graphs: proximal policy optimisation (Schulman et al., arXiv 1707.06347) of a
// bandit of one step, as GDP has it.
//
//   update   a graph's logits, one forward pass for all its rollouts
//            rollouts: placements drawn node by node, judged by the operator engine
//            advantage of each rollout: its rank among them
//            epochs: p = new probability / old one of each node's device, clipped node by node
//
// A placement of n nodes is one action of n parts that share an advantage. The ratio of all parts together
// leaves any clip at once, so each node's is clipped (docs/planners/learned.md). Since a node's logits do not
// depend on what was drawn, the objective needs two sums for each node and device:
//
//   maximise Σ_nd  A⁺_nd · min(p_nd, 1 + ε) + A⁻_nd · max(p_nd, 1 - ε),   A± = Σ advantages ≷ 0 that chose d
//
// A policy with levels of schedule priority (PolicyShape::priorities) draws one for each node too. Devices
// and levels are parts of one action: they share its advantage, and each is clipped by itself.
//
// A policy that coarsens (coarsening.h) draws for each node whom it joins, and then a device for each group.
// Each node's choice and each group's device are parts that are clipped by themselves; a device's logits are
// pooled over its group, so each rollout has rows of its own. Imitation steps down the nodes' cross entropy
// as ever, and the chance that a node joins one of another target device.
//
// The same seed gives the same bytes on one machine, for any number of pool threads.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "espalier/learned/placement_task.h"
#include "espalier/learned/policy.h"
#include "espalier/planners/context.h"

namespace espalier::placement {

enum class Advantage : std::uint8_t {
  kRank,         // +1 for the best of the rollouts, -1 for the worst, evenly between; equals share
  kNormalised,   // (reward - mean) / deviation of the rollouts
  kRunningMean,  // reward - mean of all earlier rewards of the graph
};

struct LearningOptions {
  std::size_t rollouts = 16;  // an update
  std::size_t epochs = 4;
  std::uint64_t updates = 200;  // over which the learning rate falls; it stays at its end after
  // After so many updates it has fallen already, and does so anew over the rest (SGDR, arXiv 1608.03983); 0:
  // never.
  std::uint64_t restart = 0;
  double learning_rate = 3e-3, last_learning_rate = 3e-4;
  double clip = 0.2;
  double most_norm = 1;  // of a gradient
  double entropy = 0;    // price of certainty: its weight at the beginning, 0 at the last update
  Advantage advantage = Advantage::kRank;
  InvalidPrice invalid = InvalidPrice::kGraded;
  Repairs repairs = Repairs::kNone;
  // Each task has a table of its own that is added to the net's logits and learns 30 times as fast: what is
  // particular to one graph need not be learnt through all weights of a net. For policies that are to serve
  // other graphs it would hide what the net lacks.
  bool tables = true;
  bool repeat_best = false;  // the best placement so far takes part in each update as one more rollout
  std::uint64_t seed = 1;
};

// The reward settings that are told of GDP (docs/planners/learned.md): reward -√seconds, -10 for what does
// not fit, less the mean of all earlier ones; entropy 0.01, learning rate 1e-3. They do not learn on graphs
// of this size; kept for the table that says so.
LearningOptions published_learning();

// How far a graph is.
struct LearningPoint {
  std::uint64_t update = 0;  // of the learner, from 1
  std::uint64_t calls = 0;   // simulator calls for this graph so far
  double best = 0;           // score of the best that fits so far; 0: none yet
  double mean = 0;           // score of this update's rollouts
  double valid = 0;          // part of them that fits
  friend bool operator==(const LearningPoint&, const LearningPoint&) = default;
};

struct TaskProgress {
  std::optional<Sample> best;  // that fits
  std::vector<LearningPoint> curve;
  std::uint64_t calls = 0;
  double reward_sum = 0;
};

class Learner {
 public:
  // Learns with that policy, in place. Tasks take turns, in an order drawn anew for each round. Refers to
  // tasks and policy.
  Learner(Policy& policy, std::vector<const PlacementTask*> tasks, const LearningOptions& options);
  ~Learner();

  // One update of one task; a state for each rollout. False, and nothing done, where the context has no more
  // or wants the end.
  bool update(Context& context);

  // Steps down the cross entropy to a target for each node, which is told with this confidence: the rest is
  // shared by the other devices. One task a step, in turn, after the steps of earlier calls; no simulator
  // calls. `targets`: by task, in canonical form.
  void imitate(const std::vector<NodeDevices>& targets, std::uint64_t steps, double confidence,
               double learning_rate);

  // A placement that takes part as one that was drawn: a start that is known.
  void know(std::size_t task, const Sample& sample);

  std::uint64_t updates() const;
  std::size_t next_task() const;   // of the next update
  std::uint64_t imitated() const;  // steps of imitation
  const TaskProgress& progress(std::size_t task) const;
  // Of all tasks, by update: the calls for all of them, the mean of their best.
  std::vector<LearningPoint> curve() const;

  // All of it, policy included, so that a learner made the same way goes on with the same bytes. Atomic.
  void save(const std::string& path) const;
  // Throws InputError where the file is not of a learner with these tasks and options.
  void restore(const std::string& path);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What was found for tasks first … end - 1: one graph by several orders of devices.
struct FoundForGraph {
  std::uint64_t calls = 0;
  std::optional<Duration> best = {};  // step of the best that fits
};
FoundForGraph found_for(const Learner& learner, std::size_t first, std::size_t end);

// The curve of a file that a learner saved, as curve() of it. Throws InputError where it is none.
std::vector<LearningPoint> read_learning_curve(const std::string& path);

}  // namespace espalier::placement
