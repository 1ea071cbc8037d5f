#include "espalier/learned/relocation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>

#include "espalier/base/files.h"
#include "espalier/base/rng.h"
#include "espalier/learned/pretrained.h"
#include "espalier/learned/towers_for_tests.h"
#include "espalier/learned/workload.h"
#include "espalier/planners/placement/memory_ledger.h"
#include "espalier/planners/placement/simple.h"
#include "testing/refusal.h"

namespace espalier::placement {
namespace {

using ::testing::HasSubstr;
using testing::refusal;

const PlacementTask& pair_task() {
  static const PlacementTask kTask(two_towers().graph, two_towers().instance, {.clusters = {.clusters = 12}});
  return kTask;
}
const RelocationGraph& pair_graph() {
  static const RelocationGraph kGraph = make_relocation_graph(pair_task());
  return kGraph;
}

Assignment all_on(std::size_t device) {
  return Assignment(two_towers().instance.units(), DeviceId(device));
}

Context most_calls(std::uint64_t most) {
  Context context;
  context.budget.max_states = most;
  return context;
}

RelocationOptions from_device_0(const RelocationPolicy* policy, std::uint64_t steps) {
  RelocationOptions options;
  options.policy = policy;
  options.starts.push_back(all_on(0));
  options.proposals = 8;
  options.steps = steps;
  return options;
}

TEST(RelocationGraph, EdgesAreWhatClustersReadOfEachOther) {
  const Instance& instance = two_towers().instance;
  const RelocationGraph& graph = pair_graph();
  const auto node_of = [&](TaskId task) {
    return pair_task().clusters().of_unit[instance.unit[task.index()].index()];
  };
  std::vector<std::vector<std::int64_t>> bytes(graph.nodes, std::vector<std::int64_t>(graph.nodes, -1));
  for (std::size_t v = 0; v < instance.values(); ++v) {
    std::vector<char> sent(graph.nodes);
    for (const TaskId reader : instance.readers[v]) {
      const std::uint32_t from = node_of(instance.producer[v]), to = node_of(reader);
      if (from == to) continue;
      std::int64_t& sum = bytes[from][to];
      sum = std::max<std::int64_t>(sum, 0) + (sent[to] != 0 ? 0 : instance.bytes[v].count());
      sent[to] = 1;
    }
  }
  std::size_t pairs = 0;
  for (const auto& row : bytes)
    pairs += row.size() - static_cast<std::size_t>(std::count(row.begin(), row.end(), -1));
  EXPECT_EQ(graph.edges.size(), pairs);
  for (const RelocationGraph::Edge& edge : graph.edges)
    EXPECT_EQ(edge.bytes.count(), bytes[edge.from][edge.to]);
  Duration all, of_tasks;
  for (std::size_t n = 0; n < graph.nodes; ++n) all += graph.time[n * graph.devices];
  for (std::size_t t = 0; t < instance.tasks(); ++t) of_tasks += instance.time_on(TaskId(t), DeviceId(0));
  EXPECT_EQ(all, of_tasks);
}

TEST(RelocationView, SaysWhereNodesStandAndWhatDevicesDo) {
  const RelocationGraph& graph = pair_graph();
  const RelocationView view = view_placement(pair_task(), graph, all_on(1));
  Scratch scratch;
  EXPECT_EQ(view.evaluated, pair_task().engine().evaluate(all_on(1), scratch));
  ASSERT_EQ(view.numbers.size(), graph.nodes * 2 * kOptionNumbers);
  for (std::size_t n = 0; n < graph.nodes; ++n) {
    EXPECT_EQ(view.stands[n], 1U);
    EXPECT_EQ(view.moves[2 * n], 1);
    EXPECT_EQ(view.moves[2 * n + 1], 0);
    const float* there = view.numbers.data() + 2 * n * kOptionNumbers;
    const float* here = there + kOptionNumbers;
    EXPECT_EQ(there[0], 0);
    EXPECT_EQ(here[0], 1);
    EXPECT_EQ(there[6], 0);             // nothing runs on device 0
    EXPECT_NEAR(here[6], 1, 1e-4);      // device 1 always runs
    EXPECT_GT(there[3] + there[4], 0);  // a message goes
    EXPECT_EQ(here[3] + here[4], 0);
    EXPECT_EQ(there[9], 0);  // device 0 rests while the node runs
  }
  EXPECT_TRUE(
      std::all_of(view.numbers.begin(), view.numbers.end(), [](float x) { return std::isfinite(x); }));
}

TEST(RelocationPolicies, GiveMovesProbabilitiesAndReadBack) {
  const std::string file =
      (std::filesystem::temp_directory_path() / "espalier_relocation_test.safetensors").string();
  const RelocationView view = view_placement(pair_task(), pair_graph(), all_on(0));
  const RelocationPolicy policy({.width = 8, .rounds = 1}, 3);
  const std::vector<float> rows = policy.probabilities(pair_graph(), view);
  EXPECT_NEAR(std::accumulate(rows.begin(), rows.end(), 0.0), 1, 1e-5);
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i] > 0, view.moves[i] != 0);
  policy.write(file);
  const RelocationPolicy read = RelocationPolicy::read(file);
  EXPECT_EQ(read.shape(), policy.shape());
  EXPECT_EQ(read.probabilities(pair_graph(), view), rows);
  EXPECT_EQ(policy.clone().probabilities(pair_graph(), view), rows);
  write_file_atomically(file, "no policy");
  EXPECT_THAT(refusal([&] { RelocationPolicy::read(file); }), HasSubstr(file));
  std::remove(file.c_str());
}

// Whatever the numbers of nodes and of devices.
TEST(RelocationPolicies, DoNotSeeTheNumbersOfEqualDevices) {
  const RelocationPolicy policy({.width = 8}, 3);
  const std::vector<float> one =
      policy.probabilities(pair_graph(), view_placement(pair_task(), pair_graph(), all_on(0)));
  const std::vector<float> other =
      policy.probabilities(pair_graph(), view_placement(pair_task(), pair_graph(), all_on(1)));
  for (std::size_t n = 0; n < pair_graph().nodes; ++n) EXPECT_NEAR(one[2 * n + 1], other[2 * n], 1e-6);
}

// One of two devices is five times as fast: what helps is to move there.
TEST(RelocationLearning, MovesGoWhereTheyHelpForAnyThreads) {
  const Workload uneven = make_workload(
      {"uneven", "mmt", {{"branches", 2}, {"layers", 1}}, BatchSize(16), "1xT4+1xA100-40GB", {}});
  const PlacementTask task(uneven.graph, uneven.instance, {.clusters = {.clusters = 12}});
  const auto learnt = [&](ThreadPool* pool) {
    RelocationTask own(task);
    own.starts.emplace_back(uneven.instance.units(), DeviceId(0));
    RelocationPolicy policy({.width = 8}, 1);
    Context context = most_calls(100'000);
    context.pool = pool;
    const auto found = learn_relocation(
        policy, {&own, 1}, {.walks = 2, .steps = 3, .proposals = 6, .updates = 40, .learning_rate = 2e-2},
        context);
    EXPECT_EQ(context.states, 40U * 2 * (3 * 6 + 1));
    Scratch scratch;
    EXPECT_LT(task.engine().evaluate(found.front().value(), scratch).time,
              task.engine().evaluate(own.starts.front(), scratch).time);
    // Half of the nodes on either device: how much of the probability goes to the fast one.
    Assignment half;
    for (std::size_t u = 0; u < uneven.instance.units(); ++u)
      half.emplace_back(task.clusters().of_unit[u] % 2);
    const std::vector<float> rows = policy.probabilities(own.graph, view_placement(task, own.graph, half));
    double to_fast = 0;
    for (std::size_t i = 1; i < rows.size(); i += 2) to_fast += static_cast<double>(rows[i]);
    return to_fast;
  };
  const double to_fast = learnt(nullptr);
  EXPECT_GT(to_fast, 0.6);
  ThreadPool two(2);
  EXPECT_EQ(learnt(&two), to_fast);
}

TEST(RelocationLearning, GraphsAreDrawnAndTheirFamiliesLeftOut) {
  RelocationPretraining options;
  options.graphs = 2;
  options.clusters = 8;
  options.shape.width = 8;
  options.without = {"rnnlm",   "gnmt",         "transformer-xl", "amoebanet", "nasnet",
                     "wavenet", "inception-v3", "clip",           "t5"};
  options.learning = {.walks = 2, .steps = 3, .proposals = 2, .updates = 3};
  Context context = most_calls(1'000);
  std::uint64_t updates = 0;
  pretrain_relocation(options, context, [&](const RelocationPoint& point) { updates = point.update; });
  EXPECT_EQ(updates, 3U);
  EXPECT_EQ(context.states, 3U * 2 * (3 * 2 + 1));
}

TEST(Relocation, AnswersFitAndAreNoSlowerThanTheirStart) {
  const PlacerInput input{two_towers().graph, two_towers().instance};
  const RelocationPolicy policy({.width = 8}, 2);
  const RelocationOptions options = from_device_0(&policy, 3);
  const auto placed = [&](ThreadPool* pool) {
    Context context = most_calls(1'000);
    context.pool = pool;
    Placed answer = relocate(input, options, context);
    EXPECT_EQ(context.states, 2U + 1U + 3 * 8);  // the start by each order, and where the walk begins
    return answer;
  };
  ThreadPool two(2);
  const Placed answer = placed(nullptr);
  ASSERT_TRUE(answer.assignment.has_value());
  EXPECT_EQ(answer.assignment, placed(&two).assignment);
  EXPECT_TRUE(check_memory(two_towers().instance, *answer.assignment).empty());
  const Engine engine(two_towers().instance, options.task.rules, answer.orders);
  Scratch scratch;
  EXPECT_EQ(engine.evaluate(*answer.assignment, scratch).time, *answer.estimate);
  EXPECT_LT(*answer.estimate, engine.evaluate(all_on(0), scratch).time);
}

TEST(Relocation, EndsWithTheBudget) {
  const PlacerInput input{two_towers().graph, two_towers().instance};
  Context context = most_calls(28);
  const RelocationPolicy policy({.width = 8}, 2);
  EXPECT_TRUE(relocate(input, from_device_0(&policy, 0), context).assignment.has_value());
  EXPECT_EQ(context.states, 28U);
}

TEST(Relocation, OneDeviceLeavesNothingToMove) {
  const Workload alone =
      make_workload({"alone", "mmt", {{"branches", 2}, {"layers", 1}}, BatchSize(16), "1xP100-16GB", {}});
  Context context = most_calls(100);
  const RelocationPolicy policy({.width = 8}, 2);
  EXPECT_TRUE(relocate({alone.graph, alone.instance}, {.policy = &policy}, context).assignment.has_value());
}

TEST(Relocation, ThePolicyThatComesAlongImprovesASplit) {
  const PlacerInput input{two_towers().graph, two_towers().instance};
  Context context = most_calls(400);
  const Placed placed = relocate(input, from_device_0(nullptr, 4), context);
  Scratch scratch;
  EXPECT_LT(*placed.estimate, pair_task().engine().evaluate(all_on(0), scratch).time);
}

}  // namespace
}  // namespace espalier::placement
