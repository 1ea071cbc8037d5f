#pragma once

// Two runs side by side, one of a plan and one of one process: what tests of plans compare. Tests only.
// Includes libtorch.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "espalier/plan/fragments.h"
#include "espalier/runtime/comparison.h"
#include "espalier/runtime/executor.h"
#include "espalier/runtime/fragment_memory.h"
#include "espalier/runtime/measured_trace.h"
#include "espalier/runtime/plans_for_tests.h"
#include "espalier/runtime/tensors_for_tests.h"
#include "espalier/runtime/trainer.h"
#include "espalier/runtime/whole_state.h"
#include "espalier/runtime/workers.h"

namespace espalier::testing {

// What W does not need, by a rule that no cost cell has: every other crossing.
inline void free_some_after_the_input_half(StagedModel& staged) {
  for (std::size_t c = 0; c < staged.crossings.size(); c += 2) {
    for (Crossing::Reader& reader : staged.crossings[c].readers) reader.for_input_only = reader.saved;
  }
}

inline PlannedJob job_with(const Graph& graph, const Cluster& cluster, const PipelinePlan& plan,
                           const Optimizer& optimizer, StateCopies copies) {
  PlannedJob job;
  job.plan = plan;
  job.copies = copies;
  job.staged = staged_for_tests(graph, cluster, plan, optimizer, copies);
  free_some_after_the_input_half(job.staged);
  job.schedule = make_schedule(job.staged, cluster.devices().size());
  EXPECT_THAT(check_schedule(job.staged, job.schedule), ::testing::IsEmpty());
  for (const auto& device : cluster.devices()) {
    job.device_names.push_back(device.name);
    job.device_memory.push_back(device.memory);
  }
  return job;
}

inline PlannedJob job_of(const Graph& graph, const Cluster& cluster, const PipelinePlan& plan,
                         const Optimizer& optimizer) {
  EXPECT_THAT(check_plan(graph, cluster, plan), ::testing::IsEmpty());
  return job_with(graph, cluster, plan, optimizer, StateCopies::kOfEachStage);
}

inline PlannedJob placed_job_of(const Graph& graph, const Cluster& cluster, const Placement& placement,
                                BatchSize batch, const FragmentOptions& options) {
  EXPECT_THAT(check_placement(graph, cluster, placement), ::testing::IsEmpty());
  FragmentOptions all = options;
  all.devices = cluster.devices().size();
  const PipelinePlan plan = fragments_of(graph, placement, batch, all);
  EXPECT_THAT(check_fragments(graph, cluster, placement, plan), ::testing::IsEmpty());
  require_whole_memory(graph, plan);
  return job_with(graph, cluster, plan, {}, StateCopies::kOfEachDevice);
}

struct TrainedRun {
  std::vector<double> losses;                   // of the steps' micro-batches
  std::map<std::string, at::Tensor> gradients;  // of the last step
  std::map<std::string, at::Tensor> state;      // after it
  Trace trace;                                  // of it
};

inline TrainedRun run(const LoadedModel& model, const PlannedJob& planned, const Optimizer& optimizer,
                      std::uint64_t seed, int steps) {
  const auto data = synthetic_data(model.exported, seed);
  Workers workers = join_workers({}, planned, {.timeout = milliseconds(20'000)});
  Trainer trainer(model, planned, *data, *workers.transport,
                  {.optimizer = optimizer, .seed = seed, .executor = {.keep_gradients = true}});
  TrainedRun result;
  for (int step = 0; step < steps; ++step) {
    const auto start = Clock::now();
    StepOutcome outcome = trainer.executor().step();
    std::map<std::uint32_t, double> losses(outcome.losses.begin(), outcome.losses.end());
    for (const auto& [j, loss] : losses) result.losses.push_back(loss);
    result.gradients.clear();
    for (const auto& [id, gradient] : outcome.gradients)
      result.gradients[model.graph().parameter(id).names[0]] = gradient;
    result.trace = gather_trace(workers, planned, std::move(outcome), start).value();
  }
  result.state = gather_state(workers, model.graph(), trainer.executor());
  for (auto& [name, value] : result.state) value = value.clone();
  return result;
}

// Nothing crosses to two stages, so each sum over micro-batches has one order: more than verify promises, for
// plans by a rule.
inline bool bit_equality_due(const StagedModel& staged) {
  for (const StagedStage& stage : staged.stages) {
    if (stage.replicas.size() > 1) return false;
  }
  for (const Crossing& crossing : staged.crossings) {
    if (crossing.readers.size() > 1) return false;
  }
  return staged.ties.empty();
}

inline void expect_close(const std::map<std::string, at::Tensor>& a,
                         const std::map<std::string, at::Tensor>& b, double tolerance,
                         const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, difference] : relative_differences(a, b)) {
    EXPECT_LE(difference, tolerance) << what << " " << name;
  }
}

inline void expect_equal(const std::map<std::string, at::Tensor>& a,
                         const std::map<std::string, at::Tensor>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : b) {
    EXPECT_TRUE(at::equal(a.at(name), value)) << what << " " << name;
  }
}

// Bits where they are due, else within the tolerance.
inline void expect_equal_runs(const Graph& graph, bool due, const TrainedRun& actual,
                              const TrainedRun& expected) {
  if (due) {
    EXPECT_EQ(actual.losses, expected.losses);
    expect_equal(actual.gradients, expected.gradients, "gradient");
    expect_equal(actual.state, expected.state, "state");
    return;
  }
  const double tolerance = default_tolerance(graph);
  EXPECT_EQ(actual.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < std::min(actual.losses.size(), expected.losses.size()); ++i)
    EXPECT_NEAR(actual.losses[i], expected.losses[i], tolerance * std::abs(expected.losses[i]));
  expect_close(actual.gradients, expected.gradients, tolerance, "gradient");
}

}  // namespace espalier::testing
