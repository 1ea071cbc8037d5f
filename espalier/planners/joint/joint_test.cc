#include "espalier/planners/joint/joint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "espalier/base/rng.h"
#include "espalier/plan/text.h"
#include "espalier/planners/pipeline/branches.h"
#include "espalier/planners/pipeline/graphpipe.h"
#include "espalier/planners/pipeline/locked.h"
#include "espalier/planners/pipeline/looped.h"
#include "espalier/planners/pipeline/pipedream.h"
#include "espalier/planners/pipeline/piper.h"
#include "espalier/planners/pipeline/single.h"
#include "espalier/planners/repeated.h"
#include "espalier/planners/toy_for_tests.h"
#include "testing/brute_force.h"
#include "testing/small_cases.h"

namespace espalier {
namespace {

using espalier::testing::of_usual;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<NamedPlanner> joint_starts() {
  return {
      {"single", [](const Problem& p, Context& c) { return single(p, {}, c); }},
      {"pipedream", [](const Problem& p, Context& c) { return pipedream(p, {}, c); }, 1},
      {"branches", [](const Problem& p, Context& c) { return branches(p, {}, c); }, 1},
      {"graphpipe", [](const Problem& p, Context& c) { return graphpipe(p, {}, c); }, 1},
  };
}

Outcome plan_jointly(const Problem& problem, std::uint64_t states = 10'000'000) {
  Context context{.budget = {.max_states = states}};
  return joint_search(problem, joint_starts(), {}, context);
}

constexpr const char* kTwoDevices =
    "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
    "group network latency=500us lanes=unlimited\ndevice dev0 gpu in network\ndevice dev1 gpu in network\n";

// One micro-batch, as a contrastive loss demands. With the head in one tower's stage that tower waits for the
// other: 2 + 0.5 + 3 + 6 + 0.5 + 4 = 16 ms. As a stage of its own on one tower's device:
//   dev0  img F 0-2                                    img B 6-10
//   dev1  txt F 0-2, head F 2.5-3.5, head B 3.5-5.5, txt B 5.5-9.5
// with 0.5 ms between devices both ways.
TEST(Joint, TwoTowersRunSideBySideOnTwoDevices) {
  const Toy toy(kTowers, kTwoDevices, 1);
  Context context;
  const Outcome apart = branches(toy.problem(), {}, context);
  EXPECT_EQ(toy.simulated(apart), milliseconds(16));
  const Outcome outcome = plan_jointly(toy.problem());
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  EXPECT_EQ(toy.simulated(outcome), milliseconds(10));
  const auto& plan = std::get<PipelinePlan>(*outcome.plan);
  EXPECT_EQ(plan.stages.size(), 3U);
  EXPECT_EQ(plan.stages[2].replicas.size(), 1U);
  EXPECT_THAT(outcome.why, HasSubstr("joint search: 10.0 ms simulated, from 15.0 ms (planner "));
}

// One to three devices, some of which are slower, behind one or two hosts.
std::string random_cluster_text(Rng& rng) {
  std::string text =
      "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
      "kind old 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1 speed=0.5\n"
      "group network latency=500us lanes=unlimited\ngroup host in network latency=100us lanes=unlimited\n";
  const std::size_t devices = 1 + rng.below(3);
  for (std::size_t d = 0; d < devices; ++d) {
    text += "device dev" + std::to_string(d) + (rng.below(2) ? " gpu" : " old") + " in " +
            (rng.below(2) ? "network" : "host") + "\n";
  }
  return text;
}

// Brute force over every partition, every set of disjoint devices, every stage edge; and over every set of
// devices that stages may share. What was found.
Duration expect_no_slower_than_brute_force(const Toy& toy) {
  const auto disjoint = ::espalier::testing::brute_force(toy.problem());
  const auto sharing = ::espalier::testing::brute_force_sharing(toy.problem());
  const Outcome outcome = plan_jointly(toy.problem());
  if (!disjoint.plan || !sharing.plan || outcome.status != Status::kFeasible) {
    ADD_FAILURE() << outcome.why;
    return {};
  }
  const Duration found = toy.simulated(outcome);
  EXPECT_LE(found, disjoint.iteration) << print_plan(*disjoint.plan, toy.graph, toy.cluster);
  EXPECT_LE(found, sharing.iteration) << print_plan(*sharing.plan, toy.graph, toy.cluster);
  EXPECT_GE(found, plan_bound(toy.graph, toy.cluster, toy.costs, toy.training, Bound::Scope::kOneSize).time);
  return found;
}

// On up to three devices of two kinds.
TEST(Joint, IsAsGoodAsBruteForceOnSmallProblems) {
  Rng rng(11);
  for (int trial = 0; trial < of_usual(40); ++trial) {
    const std::string text = random_graph_text(rng), cluster = random_cluster_text(rng);
    const auto batch = static_cast<std::int64_t>(1 + rng.below(4));
    SCOPED_TRACE(text + cluster + "batch " + std::to_string(batch));
    expect_no_slower_than_brute_force(Toy(text, cluster, batch));
  }
}

std::string chain_of(std::size_t layers) {
  std::string text = "x = input() : f32[b]\nw = parameter(w) : f32[1]\n", before = "x";
  for (std::size_t i = 0; i < layers; ++i) {
    const bool last = i + 1 == layers;
    const std::string name = last ? "loss" : "h" + std::to_string(i);
    text += name + " = f(" + before + ", w) : f32[" + (last ? "" : "b") + "] @class=c4\n";
    before = name;
  }
  return text;
}

// Eight layers of 4 ms forward and 8 ms backward, half of that in groups of two: six samples on four groups
// beside each other take 96 ms, and less in a pipeline. Too many plans to try them all.
TEST(Joint, LaysPipelinesOfTensorParallelGroups) {
  std::string devices =
      "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
      "group network latency=50us lanes=unlimited\n";
  for (int d = 0; d < 8; ++d) devices += "device dev" + std::to_string(d) + " gpu in network\n";
  Toy toy(chain_of(8), devices, 6);
  toy.costs = with_groups(toy.costs);
  std::vector<NamedPlanner> planners = joint_starts();
  planners.push_back({"piper", [](const Problem& p, Context& c) { return piper(p, {}, c); }, 1});
  Context context{.budget = {.max_states = 2'000'000}}, of_piper = context;
  const Outcome outcome = joint_search(toy.problem(), planners, {}, context);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  EXPECT_LT(toy.simulated(outcome), toy.simulated(piper(toy.problem(), {}, of_piper)));
  const auto& plan = std::get<PipelinePlan>(*outcome.plan);
  EXPECT_TRUE(std::ranges::any_of(
      plan.stages, [](const Stage& stage) { return stage.replicas.front().devices.size() == 2; }));
}

// Two kinds of devices on two hosts, some pairs with a link of their own, one of them slower than the rest.
std::string random_mixed_text(Rng& rng, std::size_t devices) {
  std::string text =
      "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
      "kind old 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1 speed=0.5\n"
      "group network latency=500us lanes=unlimited\ngroup a in network latency=100us lanes=unlimited\n"
      "group b in network latency=200us lanes=unlimited\n";
  for (std::size_t d = 0; d < devices; ++d) {
    text += "device dev" + std::to_string(d) + (rng.below(2) ? " gpu" : " old") + " in " +
            (rng.below(2) ? "a" : "b") + "\n";
  }
  for (std::size_t d = 0; d + 1 < devices; d += 2) {
    text += "link dev" + std::to_string(d) + " dev" + std::to_string(d + 1) +
            (rng.below(3) ? " 10GB latency=20us" : " 10GB latency=1ms") + " lanes=unlimited\n";
  }
  return text;
}

// A problem of so many operators.
std::string random_graph_of(std::size_t operators, Rng& rng) {
  while (true) {
    std::string text = random_graph_text(rng);
    if (parse_graph(text).operators().size() == operators) return text;
  }
}

void compare_on_mixed_clusters(std::size_t operators, std::size_t devices, int trials, Rng& rng) {
  for (int trial = 0; trial < trials; ++trial) {
    const std::string text = random_graph_of(operators, rng), cluster = random_mixed_text(rng, devices);
    const auto batch = static_cast<std::int64_t>(1 + rng.below(4));
    SCOPED_TRACE(text + cluster + "batch " + std::to_string(batch));
    expect_no_slower_than_brute_force(Toy(text, cluster, batch));
  }
}

TEST(Joint, IsAsGoodAsBruteForceOnMixedClustersOfFourAndFive) {
  Rng rng(5);
  compare_on_mixed_clusters(2, 5, of_usual(6), rng);
  compare_on_mixed_clusters(3, 4, of_usual(4), rng);
}

// In tensor-parallel groups of two where operators have cells for that: some halve their time, some do not,
// some have none.
TEST(Joint, IsAsGoodAsBruteForceWithTensorParallelGroups) {
  Rng rng(29);
  int faster = 0;
  for (int trial = 0; trial < of_usual(10); ++trial) {
    const std::string text = random_graph_of(3, rng), cluster = random_cluster_text(rng);
    const Toy plain(text, cluster, static_cast<std::int64_t>(1 + rng.below(3)));
    Toy toy = plain;
    toy.costs = with_groups(plain.costs);
    SCOPED_TRACE(text + cluster + "batch " + std::to_string(toy.training.batch.count()));
    faster += expect_no_slower_than_brute_force(toy) < expect_no_slower_than_brute_force(plain) ? 1 : 0;
  }
  EXPECT_GT(faster, 0);
}

TEST(LongJoint, IsAsGoodAsBruteForceOnMixedClustersOfFourAndFive) {
  Rng rng(6);
  compare_on_mixed_clusters(2, 5, of_usual(20), rng);
  compare_on_mixed_clusters(3, 4, of_usual(20), rng);
}

// Five devices of two kinds on two hosts, and a graph of two towers of four layers with a head.
constexpr const char* kFiveDevices =
    "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
    "kind old 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1 speed=0.5\n"
    "group network latency=500us lanes=unlimited\ngroup a in network latency=50us lanes=unlimited\n"
    "group b in network latency=50us lanes=unlimited\ndevice a0 gpu in a\ndevice a1 gpu in a\n"
    "device b0 old in b\ndevice b1 old in b\ndevice b2 gpu in b\n";

std::string tall_towers() {
  std::string text = "x = input() : f32[b]\ny = input() : f32[b]\nw = parameter(w) : f32[1]\n";
  for (const std::string tower : {"i", "t"}) {
    for (int layer = 0; layer < 4; ++layer) {
      const std::string below = layer == 0 ? (tower == "i" ? "x" : "y") : tower + std::to_string(layer - 1);
      text += tower + std::to_string(layer) + " = f(" + below + ", w) : f32[b] @class=c" +
              std::to_string(1 + (layer + (tower == "i" ? 0 : 2)) % 4) + "\n";
    }
  }
  return text + "loss = head(i3, t3) : f32[] @class=c2\nreturn loss\n";
}

TEST(Joint, IsNeverSlowerThanAnyPlannerWithTheSameBudget) {
  for (const std::int64_t batch : {1, 4, 12}) {
    const Toy toy(tall_towers(), kFiveDevices, batch);
    const Outcome outcome = plan_jointly(toy.problem(), 100'000);
    ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
    const Duration found = toy.simulated(outcome);
    for (const NamedPlanner& planner : joint_starts()) {
      Context context{.budget = {.max_states = 100'000}};
      EXPECT_LE(found, toy.simulated(planner.plan(toy.problem(), context))) << planner.name << ' ' << batch;
    }
    EXPECT_GE(found,
              plan_bound(toy.graph, toy.cluster, toy.costs, toy.training, Bound::Scope::kOneSize).time);
  }
}

// Four hosts of a fast and a slow device each.
std::string four_hosts() {
  std::string text =
      "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
      "kind old 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1 speed=0.5\n"
      "group network 1GB latency=50us\n";
  for (const std::string host : {"a", "b", "c", "d"}) {
    text += "group " + host + " in network 1GB latency=5us\ndevice " + host + "0 gpu in " + host +
            "\ndevice " + host + "1 old in " + host + "\n";
  }
  return text;
}

TEST(Joint, IsNeverSlowerThanAPartsPlanOnAllParts) {
  const Toy whole(tall_towers(), four_hosts(), 8);
  const auto parts = equal_parts(whole.cluster, Division::kOutermost, 4);
  ASSERT_TRUE(parts);
  const Problem part{.graph = whole.graph,
                     .cluster = parts->part,
                     .costs = whole.costs,
                     .training = *training_of_part(whole.training, 2)};
  Context fourth{.budget = {.max_states = 50'000}}, all{.budget = {.max_states = 200'000}};
  Outcome repeated = joint_search(part, joint_starts(), {}, fourth);
  ASSERT_TRUE(repeated.plan);
  repeated.plan = espalier::repeated(std::get<PipelinePlan>(*repeated.plan), *parts);
  const JointOptions options{.of_parts = {"single", "pipedream", "branches", "graphpipe"},
                             .least_of_a_part = 4};
  const Outcome found = joint_search(whole.problem(), joint_starts(), options, all);
  ASSERT_EQ(found.status, Status::kFeasible) << found.why;
  EXPECT_LE(whole.simulated(found), whole.simulated(repeated));
}

// Buffers that a replica would write for itself stay in stages of one device; where that is allowed, parts
// have one each.
TEST(Joint, PlansOfPartsKeepWrittenBuffersInOneReplica) {
  const Toy toy(
      "x = input() : f32[b]\nm = buffer(m) : f32[1]\nw = parameter(w) : f32[1]\n"
      "n = norm(x, m, w) : f32[b] @mutates=m @class=c8\nloss = f(n, w) : f32[] @class=c1\n"
      "return loss\n",
      four_hosts(), 8);
  const JointOptions options{.least_of_a_part = 2};
  const auto writers = [&](WrittenBuffers written) {
    Problem problem = toy.problem();
    problem.written_buffers = written;
    Context context{.budget = {.max_states = 100'000}};
    const Outcome found = joint_search(problem, joint_starts(), options, context);
    toy.simulated(found);
    return std::get<PipelinePlan>(*found.plan).stages.front().replicas.size();
  };
  EXPECT_EQ(writers(WrittenBuffers::kOneReplica), 1U);
  EXPECT_GT(writers(WrittenBuffers::kReplicated), 1U);
}

// Nobody asked for a rule.
Problem with_lists(Problem problem) {
  problem.lists = true;
  return problem;
}

TEST(Joint, PlansTheSameOnAnyNumberOfThreads) {
  const Toy toy(tall_towers(), kFiveDevices, 6);
  const JointOptions any{.orders = joint::OrdersMay::kChange};
  std::optional<Outcome> one;
  for (const std::size_t threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    Context context{.budget = {.max_states = 200'000}, .pool = &pool};
    const Outcome outcome = joint_search(with_lists(toy.problem()), joint_starts(), any, context);
    ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
    if (!one) one = outcome;
    EXPECT_EQ(*one->plan, *outcome.plan) << threads;
    EXPECT_EQ(one->stats, outcome.stats) << threads;
    EXPECT_EQ(one->why, outcome.why) << threads;
  }
}

TEST(Joint, PlansOfPartsAreTheSameOnAnyNumberOfThreads) {
  const Toy toy(tall_towers(), four_hosts(), 8);
  const JointOptions options{.orders = joint::OrdersMay::kChange, .least_of_a_part = 2};
  std::optional<Outcome> one;
  for (const std::size_t threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    Context context{.budget = {.max_states = 100'000}, .pool = &pool};
    const Outcome outcome = joint_search(with_lists(toy.problem()), joint_starts(), options, context);
    ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
    if (!one) one = outcome;
    EXPECT_EQ(*one->plan, *outcome.plan) << threads;
    EXPECT_EQ(one->stats, outcome.stats) << threads;
  }
}

TEST(Joint, PinsAreKept) {
  const Toy toy(tall_towers(), kFiveDevices, 4);
  const Outcome outcome = plan_jointly(toy.problem({{"i1", DeviceId(3)}, {"loss", DeviceId(2)}}), 100'000);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  toy.simulated(outcome);
  int pinned = 0;
  for (const Stage& stage : std::get<PipelinePlan>(*outcome.plan).stages) {
    for (const OperatorId op : stage.operators) {
      const std::string& name = toy.graph.op(op).name;
      if (name != "i1" && name != "loss") continue;
      const DeviceId device(name == "i1" ? 3 : 2);
      EXPECT_EQ(stage.replicas, (std::vector<Replica>{{{device}, {0, 1, 2, 3}}})) << name;
      ++pinned;
    }
  }
  EXPECT_EQ(pinned, 2);
}

TEST(Joint, ALockedStageStaysAsItIs) {
  const Toy toy(tall_towers(), kFiveDevices, 4);
  Problem problem = toy.problem();
  Stage stage;
  stage.name = "kept";
  stage.operators = {OperatorId(1), OperatorId(2)};
  stage.replicas = {{{DeviceId(2)}, {0, 1, 2, 3}}};
  stage.micro_batch = BatchSize(1);
  problem.locked = {{stage, "plan.json: stages[0]"}};
  Context first, second;
  second.budget.max_states = 3'000'000;
  const Outcome before = keep_locked(problem, {}, first);
  const Outcome after = improved(problem, before, {}, second);
  ASSERT_EQ(after.status, Status::kFeasible) << after.why;
  EXPECT_LT(toy.simulated(after), toy.simulated(before));  // the old devices are used as well
  std::size_t kept = 0;
  for (const Stage& each : std::get<PipelinePlan>(*after.plan).stages) {
    if (each.name != "kept") continue;
    ++kept;
    EXPECT_EQ(each.operators, stage.operators);
    EXPECT_EQ(each.replicas, stage.replicas);
  }
  EXPECT_EQ(kept, 1U);
}

// A chain of layers, 1 ms forward and 2 ms backward each. A sample is 1 MiB wherever it crosses a border.
std::string chain_with_wide_borders(int layers) {
  std::string text = "x = input() : f32[b,262144]\nw = parameter(w) : f32[1]\n", below = "x";
  for (int layer = 0; layer < layers; ++layer) {
    const bool last = layer + 1 == layers;
    const std::string name = last ? "loss" : "h" + std::to_string(layer);
    text += name + " = f(" + below + ", w) : f32[" + (last ? "" : "b,262144") + "] @class=c1\n";
    below = name;
  }
  return text + "return loss\n";
}

std::string devices_of(int devices, const std::string& memory) {
  std::string text =
      "kind gpu " + memory +
      " f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\ngroup network latency=1us lanes=unlimited\n";
  for (int d = 0; d < devices; ++d) text += "device dev" + std::to_string(d) + " gpu in network\n";
  return text;
}

bool recomputes(const Outcome& outcome) {
  const auto& stages = std::get<PipelinePlan>(*outcome.plan).stages;
  return std::any_of(stages.begin(), stages.end(),
                     [](const Stage& stage) { return !stage.recompute.empty(); });
}

// Of two stages of four layers the first holds two micro-batches of four tensors. Where that does not fit,
// one in flight would do, and one stage waits for the other: 8 · 24 ms. To compute some layers again takes a
// little longer than a step with room, 8 · 12 ms.
TEST(Joint, RecomputesWhereMemoryBindsAndNowhereElse) {
  const std::string chain = chain_with_wide_borders(8);
  const Toy tight(chain, devices_of(2, "8MiB"), 8), ample(chain, devices_of(2, "64MiB"), 8);
  const Outcome found = plan_jointly(tight.problem(), 1'000'000);
  ASSERT_EQ(found.status, Status::kFeasible) << found.why;
  EXPECT_TRUE(recomputes(found)) << print_plan(std::get<PipelinePlan>(*found.plan), tight.graph,
                                               tight.cluster);
  for (const NamedPlanner& planner : joint_starts()) {
    Context context;
    const Outcome without = planner.plan(tight.problem(), context);
    if (!without.plan) continue;
    EXPECT_LT(tight.simulated(found), tight.simulated(without)) << planner.name;
  }
  const Outcome plenty = plan_jointly(ample.problem(), 1'000'000);
  ASSERT_EQ(plenty.status, Status::kFeasible) << plenty.why;
  EXPECT_FALSE(recomputes(plenty));
  EXPECT_LT(ample.simulated(plenty), tight.simulated(found));
}

// Eight tensors of 1 MiB and what backward needs beside them do not fit. Two stages on the device do, of
// which one is recomputed.
TEST(Joint, BeginsWithTheClosestPlanWhereNothingFitsWithoutRecomputation) {
  const Toy toy(chain_with_wide_borders(8), devices_of(1, "7MiB"), 4);
  for (const NamedPlanner& planner : joint_starts()) {
    Context context;
    EXPECT_FALSE(planner.plan(toy.problem(), context).plan) << planner.name;
  }
  const Outcome found = plan_jointly(toy.problem(), 1'000'000);
  ASSERT_EQ(found.status, Status::kFeasible) << found.why;
  EXPECT_TRUE(recomputes(found));
  toy.simulated(found);
  EXPECT_THAT(found.why, HasSubstr("where no other planner's plan fits"));
}

// Where orders may change, halves of backward fill the wait, and lists where they help more. Costs that know
// one time for both halves get neither.
TEST(Joint, OrdersChangeWhereNobodyAskedForARule) {
  const Toy toy(chain_with_wide_borders(6), devices_of(3, "1GiB"), 4);
  const Outcome ruled = plan_jointly(toy.problem(), 1'000'000);
  Context context{.budget = {.max_states = 1'000'000}};
  const JointOptions any{.orders = joint::OrdersMay::kChange};
  const Outcome open = joint_search(with_lists(toy.problem()), joint_starts(), any, context);
  ASSERT_EQ(open.status, Status::kFeasible) << open.why;
  EXPECT_LT(toy.simulated(open), toy.simulated(ruled));

  const Toy guessed = with_guessed_halves(toy);
  const Problem problem = with_lists(guessed.problem());
  Context again{.budget = {.max_states = 1'000'000}};
  const Outcome whole = joint_search(problem, joint_starts(), any, again);
  ASSERT_EQ(whole.status, Status::kFeasible) << whole.why;
  for (const NamedPlanner& planner : joint_starts()) {
    Context alone{.budget = {.max_states = 300'000}};
    const Outcome of_planner = planner.plan(problem, alone);
    if (!of_planner.plan) continue;
    EXPECT_LE(toy.simulated(whole), toy.simulated(of_planner)) << planner.name;
  }
  const Orders& orders = std::get<PipelinePlan>(*whole.plan).orders;
  if (orders.rule()) {
    EXPECT_EQ(orders.rule()->backward, OrderRule::Backward::kWhole);
  }
  if (orders.lists()) {
    for (const std::vector<Step>& list : *orders.lists()) {
      for (const Step& step : list) EXPECT_NE(step.kind, ActionKind::kInputGradient);
    }
  }
}

// Lists are taken where they are 1 % faster.
TEST(Joint, IsAsFastAsAnInterleavedPipelineWhereMicroBatchesAreFew) {
  for (const std::int64_t batch : {3, 4, 6}) {
    const Toy toy(chain_with_wide_borders(24), devices_of(3, "1GiB"), batch);
    Context context{.budget = {.max_states = 100'000}}, alone;
    const Outcome joint = joint_search(with_lists(toy.problem()), joint_starts(),
                                       {.orders = joint::OrdersMay::kChange}, context);
    const Outcome laid = looped(toy.problem(), {.briefly = true}, alone);
    ASSERT_EQ(laid.status, Status::kFeasible) << laid.why;
    EXPECT_LE(toy.simulated(joint).count() * 99, toy.simulated(laid).count() * 100) << batch;
  }
}

// Whatever a move proposes is a plan, or two stages of it read from each other.
TEST(Joint, EveryMoveIsAPlanOrACircle) {
  const Toy toy(tall_towers(), kFiveDevices, 4, {BatchSize(1), BatchSize(2)});
  const Problem problem = toy.problem();
  const joint::Space space(problem);
  Context context;
  std::optional<Proposal> plan =
      joint::proposal_of(space, std::get<PipelinePlan>(*graphpipe(problem, {}, context).plan));
  ASSERT_TRUE(plan.has_value());
  Rng rng(3);
  std::size_t legal = 0, circles = 0;
  for (int step = 0; step < 30; ++step) {
    if (step % 10 == 9) plan->stages.front().recompute = space.repeatable();
    const std::vector<Proposal> moves =
        joint::moves_of(joint::Site(space, *plan), joint::OrdersMay::kChange).all;
    ASSERT_FALSE(moves.empty());
    for (const Proposal& move : moves) {
      const auto whole =
          complete_plan(toy.graph, move.stages, toy.training.batch, move.micro_batch, move.schedule);
      if (!whole) {
        ++circles;
        continue;
      }
      ++legal;
      ASSERT_THAT(check_plan(toy.graph, toy.cluster, *whole), IsEmpty());
      if (legal % 5 != 0) continue;
      const Oracle::Loan scratch(*problem.oracle);
      const Evaluation evaluation = problem.oracle->evaluator().evaluate(*whole, *scratch);
      if (!evaluation.can_run()) continue;
      ASSERT_EQ(evaluation, problem.oracle->evaluator().simulate_in_full(*whole))
          << print_plan(*whole, toy.graph, toy.cluster);
    }
    const Proposal& next = moves[rng.below(moves.size())];
    if (complete_plan(toy.graph, next.stages, toy.training.batch, next.micro_batch, next.schedule))
      plan = next;
  }
  EXPECT_GT(legal, 1000U);
  EXPECT_LT(circles, legal);
}

// Two layers with many parameters on two devices, behind one on its own. What comes before goes eight
// micro-batches further ahead, and nothing else does; as the layers are done sooner, so is their sum.
TEST(Joint, WhatComesBeforeAReplicatedStageMayGoAhead) {
  const Toy toy(
      "x = input() : f32[b,1024]\nw = parameter(w) : f32[1]\nv = parameter(v) : f32[40000000]\n"
      "h = f(x, w) : f32[b,1024] @class=c6\ny = f(h, v) : f32[b,1024] @class=c4\n"
      "loss = f(y, w) : f32[] @class=c1\nreturn loss\n",
      devices_of(3, "16GiB"), 40);
  Context context;
  const Problem problem = toy.problem();
  const joint::Space space(problem);
  const auto stage = [](std::uint32_t first, std::uint32_t last, std::vector<DeviceId> devices) {
    return StageDraft{OperatorSet({OperatorRun{first, last}}), std::move(devices), {}};
  };
  const Proposal plan{
      {stage(0, 0, {DeviceId(0)}), stage(1, 2, {DeviceId(1), DeviceId(2)})}, BatchSize(1), {}, Duration()};
  const joint::Moves moves = joint::moves_of(joint::Site(space, plan), joint::OrdersMay::kStay);
  const auto goes_ahead = [](const Proposal& move) {
    return move.stages.size() == 2 && move.stages[0].more_in_flight == 8 &&
           move.stages[1].more_in_flight == 0;
  };
  const auto orders = moves.all.begin() + static_cast<std::ptrdiff_t>(moves.orders_begin);
  EXPECT_EQ(std::count_if(moves.all.begin(), orders, goes_ahead), 0);
  ASSERT_EQ(std::count_if(orders, moves.all.end(), goes_ahead), 1);
  const Proposal ahead = *std::find_if(orders, moves.all.end(), goes_ahead);
  Judge judge(problem, context);
  EXPECT_LT(judge.consider(ahead).iteration, judge.consider(plan).iteration);
}

TEST(Joint, ADealFollowsTheWeights) {
  using Shares = std::vector<std::vector<std::uint32_t>>;
  EXPECT_EQ(deal_micro_batches(5, std::vector<std::uint32_t>{1, 1}), (Shares{{0, 2, 4}, {1, 3}}));
  EXPECT_EQ(deal_micro_batches(6, std::vector<std::uint32_t>{4, 2}), (Shares{{0, 1, 3, 4}, {2, 5}}));
  EXPECT_EQ(deal_micro_batches(2, std::vector<std::uint32_t>{9, 1}), (Shares{{0, 1}, {}}));
}

}  // namespace
}  // namespace espalier
