#include "espalier/planners/hand_plan.h"

#include <gmock/gmock.h>

#include "espalier/cluster/text.h"
#include "espalier/graph/text.h"
#include "espalier/planners/toy_for_tests.h"
#include "espalier/sim/evaluator.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct HandProblem : Toy {
  using Toy::Toy;

  std::vector<HandStage> split(const std::string& text) const {
    return parse_hand_split(text, graph, cluster, {});
  }
};

Outcome planned(const HandProblem& hand, const std::string& stages, const HandOptions& options = {}) {
  Context context;
  return plan_by_hand(hand.problem(), hand.split(stages), options, context);
}

constexpr const char* kTwoLayers =
    "batch 1..8\nx = input() : f32[b]\nw = parameter(w) : f32[1]\n"
    "a = f(x, w) : f32[b] @class=c1 @module=h.0\nb = f(a, w) : f32[b] @class=c3 @module=h.1\n"
    "c = f(b, w) : f32[b] @class=c2 @module=h.2\nloss = f(c, w) : f32[] @class=c1\n";

constexpr const char* kThreeAlike =
    "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
    "group network 1GB latency=500us lanes=unlimited\n"
    "device dev0 gpu in network\ndevice dev1 gpu in network\ndevice dev2 gpu in network\n";

// Of one kind with different speeds, and a link between two.
constexpr const char* kUnlike =
    "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
    "kind slow 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1 speed=0.5\n"
    "group network 1MB latency=900us lanes=unlimited\n"
    "device dev0 slow in network\ndevice dev1 gpu in network\ndevice dev2 gpu in network\n"
    "device dev3 gpu in network\nlink dev2 dev3 1GB latency=10us lanes=unlimited\n";

// The least time over every way to deal the devices to the stages, replicas and all: by the full simulation,
// for more than four devices by the evaluator.
Duration least_by_trying(const HandProblem& hand, const std::string& text) {
  const std::vector<HandStage> stages = hand.split(text);
  const Evaluator evaluator(hand.graph, hand.cluster, hand.costs, hand.training);
  const auto scratch = Evaluator::make_scratch();
  const std::size_t devices = hand.cluster.devices().size();
  Duration least = Duration::max();
  for (const BatchSize micro_batch : hand.training.micro_batches) {
    std::vector<std::size_t> holder(devices, 0);  // 0: nobody
    const auto micro_batches = static_cast<std::uint32_t>(hand.training.batch.count() / micro_batch.count());
    while (true) {
      PipelinePlan plan{.stages = {}, .batch = hand.training.batch, .orders = OrderRule()};
      for (std::size_t s = 0; s < stages.size(); ++s) {
        Stage stage;
        stage.name = "s" + std::to_string(s);
        stage.operators = stages[s].operators;
        stage.micro_batch = micro_batch;
        std::vector<DeviceId> mine = stages[s].devices;
        for (std::size_t d = 0; d < devices && stages[s].devices.empty(); ++d) {
          if (holder[d] == s + 1) mine.push_back(DeviceId(d));
        }
        for (std::size_t r = 0; r < mine.size(); ++r) {
          stage.replicas.push_back({{mine[r]}, round_robin(micro_batches, r, mine.size())});
        }
        if (s > 0) stage.after.push_back(StageId(s - 1));
        plan.stages.push_back(std::move(stage));
      }
      bool legal = true;
      for (const Stage& stage : plan.stages)
        legal &= !stage.replicas.empty() && stage.replicas.size() <= micro_batches;
      std::vector<char> taken(devices, 0);
      for (const Stage& stage : plan.stages) {
        for (const Replica& replica : stage.replicas)
          legal &= !std::exchange(taken[replica.devices[0].index()], 1);
      }
      if (legal) {
        const std::vector<std::uint32_t> limits = in_flight_limits(plan);
        for (std::size_t s = 0; s < limits.size(); ++s) plan.stages[s].in_flight = limits[s];
        const Evaluation evaluation =
            devices > 4 ? evaluator.evaluate(plan, *scratch) : evaluator.simulate_in_full(plan);
        if (!evaluation.overflow) least = std::min(least, evaluation.iteration);
      }
      std::size_t d = 0;
      while (d < devices && ++holder[d] > stages.size()) holder[d++] = 0;
      if (d == devices) break;
    }
  }
  return least;
}

TEST(HandPlan, StagesStandAsTheyWereNamedOnTheBestDevices) {
  for (const char* cluster : {kThreeAlike, kUnlike}) {
    for (const char* text : {"h.0,h.1-2", "h.0-1,h.2", "h.0,h.1,h.2", "h.0=dev1,h.1-2", "h.*"}) {
      const HandProblem hand(kTwoLayers, cluster, 4, {BatchSize(1), BatchSize(2)});
      const Outcome outcome = planned(hand, text);
      ASSERT_EQ(outcome.status, Status::kFeasible) << text << outcome.why;
      EXPECT_EQ(hand.simulated(outcome), least_by_trying(hand, text)) << text << " on\n" << cluster;
      const auto& plan = std::get<PipelinePlan>(*outcome.plan);
      const std::vector<HandStage> stages = hand.split(text);
      ASSERT_EQ(plan.stages.size(), stages.size());
      for (std::size_t s = 0; s < stages.size(); ++s) {
        EXPECT_EQ(plan.stages[s].operators, stages[s].operators);
      }
    }
  }
}

TEST(HandPlan, GivenDevicesAreKeptAsTheyAreTyped) {
  const HandProblem hand(kTwoLayers, kThreeAlike, 4);
  const Outcome outcome = planned(hand, "h.0=dev2,h.1-2=dev1+dev0");
  hand.simulated(outcome);
  const auto& plan = std::get<PipelinePlan>(*outcome.plan);
  EXPECT_EQ(plan.stages[0].name, "h.0");
  EXPECT_EQ(plan.stages[1].name, "h.1-2");
  ASSERT_THAT(plan.stages[1].replicas, SizeIs(2));
  EXPECT_THAT(plan.stages[1].replicas[0].devices, ElementsAre(DeviceId(1)));
  EXPECT_THAT(plan.stages[1].replicas[1].devices, ElementsAre(DeviceId(0)));
  EXPECT_EQ(outcome.stats.states, 1U) << "nothing is left open";
}

TEST(HandPlan, StagesShareDevicesWhereThereAreTooFew) {
  const HandProblem hand(kTwoLayers,
                         "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
                         "group network 1GB latency=500us\n"
                         "device dev0 gpu in network\ndevice dev1 gpu in network\n",
                         4);
  const Outcome outcome = planned(hand, "h.0,h.1,h.2");
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  hand.simulated(outcome);
  const Outcome given = planned(hand, "h.0=dev0,h.1=dev1,h.2=dev0");
  ASSERT_EQ(given.status, Status::kFeasible) << given.why;
  EXPECT_LE(hand.simulated(outcome), hand.simulated(given));
}

TEST(HandPlan, ManyDealsAreSearchedLocally) {
  // Seven devices of seven speeds: 4^7 deals.
  std::string cluster = "group network 1GB latency=100us lanes=unlimited\n", devices;
  for (int d = 0; d < 7; ++d) {
    cluster += "kind k" + std::to_string(d) +
               " 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1 speed=" + std::to_string(1 + d % 4) +
               ".5\n";
    devices += "device dev" + std::to_string(d) + " k" + std::to_string(d) + " in network\n";
  }
  const HandProblem hand(kTwoLayers, cluster + devices, 6);
  const Outcome outcome = planned(hand, "h.0,h.1,h.2");
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  EXPECT_LT(outcome.stats.states, 4096U);
  const Duration least = least_by_trying(hand, "h.0,h.1,h.2");
  EXPECT_LE(hand.simulated(outcome).count(), least.count() * 11 / 10);
}

TEST(HandPlan, WhatDoesNotFitSaysWhatIsShort) {
  const HandProblem hand(kTwoLayers,
                         "kind gpu 4B f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
                         "group network 1GB latency=500us\n"
                         "device dev0 gpu in network\ndevice dev1 gpu in network\n",
                         4);
  const Outcome outcome = planned(hand, "h.0,h.1-2");
  EXPECT_EQ(outcome.status, Status::kInfeasible);
  EXPECT_THAT(outcome.why, HasSubstr("nothing fits"));
}

TEST(HandPlan, TooManyReplicasOrKAreAReason) {
  const HandProblem hand(kTwoLayers, kThreeAlike, 2, {BatchSize(2)});
  const Outcome replicas = planned(hand, "h.0=dev0+dev1,h.1-2");
  EXPECT_EQ(replicas.status, Status::kInfeasible);
  EXPECT_THAT(replicas.why,
              HasSubstr("stage 'h.0' has 2 replicas, and no micro-batch divides the batch of 2"));
  const Outcome ks = planned(hand, "h.0,h.1-2", {.schedule = parse_order_rule("1f1b,k=1/2/1")});
  EXPECT_EQ(ks.status, Status::kUnsupported);
  EXPECT_THAT(ks.why, HasSubstr("k for 3 stages, --stages names 2"));
}

TEST(HandPlan, OpenStagesThatWriteBuffersHaveOneReplica) {
  const HandProblem hand(
      "batch 1..8\nx = input() : f32[b]\nm = buffer(running) : f32[1]\nw = parameter(w) : f32[1]\n"
      "n = norm(x, m, w) : f32[b] @mutates=m @class=c5 @module=n\nloss = f(n, w) : f32[] @class=c1\n",
      kThreeAlike, 6);
  EXPECT_THAT(std::get<PipelinePlan>(*planned(hand, "n,loss").plan).stages[0].replicas, SizeIs(1));
  EXPECT_THAT(std::get<PipelinePlan>(*planned(hand, "n=dev0+dev1,loss").plan).stages[0].replicas, SizeIs(2));
}

}  // namespace
}  // namespace espalier
