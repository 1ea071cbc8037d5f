#pragma once

// A policy that learns on many graphs and is asked about others: imitation of searched placements first
// (Doppler, ICLR'26, begins so), then reinforcement (GDP-batch: graphs in turn).
//
//   recipes ─▶ graphs, each cut into clusters ─▶ searched placements ─▶ imitation ─▶ PPO ─▶ policy

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "espalier/learned/learner.h"
#include "espalier/learned/workload.h"

namespace espalier::placement {

struct TrainingSetOptions {
  std::size_t graphs = 300;
  std::vector<std::string> without = {};  // families of the zoo that are left out
  bool by_each_order = false;             // a lesson by each of the usual orders; else by that of the graph
  std::uint64_t looks = 3'000;            // of the search for each lesson's target, its starts too
  std::uint64_t seed = 1;
};

// A graph with devices that run by some order, and the best placement that a search found.
struct Lesson {
  PlacementTask task;  // refers to the graph's workload
  NodeDevices target;  // in canonical form
  double target_score = 0;
};

// What cannot be placed is not in a set.
struct TrainingGraph {
  explicit TrainingGraph(WorkloadRecipe of) : recipe(std::move(of)), workload(make_workload(recipe)) {}
  TrainingGraph(const TrainingGraph&) = delete;
  TrainingGraph& operator=(const TrainingGraph&) = delete;

  WorkloadRecipe recipe;
  Workload workload;
  std::deque<Lesson> lessons = {};
};
using TrainingSet = std::vector<std::unique_ptr<TrainingGraph>>;

// Graphs by draw_workload(seed + i). Searched on all threads of the pool, each in one; the same for any
// number of them. `told` hears how many are done, from any thread; may be empty.
TrainingSet make_training_set(const TrainingSetOptions& options, ThreadPool* pool,
                              const std::function<void(std::size_t)>& told = {});

// The best placement of a task's clusters that a search finds from the best split between layers and simple
// starts. Nothing where none fits.
std::optional<Sample> searched_placement(const PlacementTask& task, std::uint64_t looks, std::uint64_t seed);

struct PretrainingOptions {
  std::uint64_t contrast = 0;     // epochs of contrastive learning before all else (contrastive.h)
  std::uint64_t rounds = 30;      // of imitation: a step for each graph
  double confidence = 0.8;        // in a target
  std::uint64_t updates = 3'000;  // of reinforcement after it, over all graphs
  LearningOptions learning = {.learning_rate = 1e-3, .last_learning_rate = 1e-4, .tables = false};
  double imitation_rate = 3e-3, last_imitation_rate = 3e-4;
  std::string checkpoint = {};  // a file that is written after every `save_every` steps; empty: none
  std::uint64_t save_every = 100;
  std::uint64_t seed = 1;
};

struct PretrainingStep {
  std::uint64_t step = 0, steps = 0;  // of imitation and updates together
  bool imitates = false;
  double valid = 0, mean_over_target = 0;  // of this update's rollouts, if it is one
};

// Trains a policy, fresh from the same seed, on a set. Goes on from the checkpoint where there is one, to the
// same bytes. Ends early, with the policy as it is, where the context wants it. Throws InputError for a
// checkpoint of another call.
void pretrain(Policy& policy, const TrainingSet& set, const PretrainingOptions& options, Context& context,
              const std::function<void(const PretrainingStep&)>& told = {});

}  // namespace espalier::placement
