#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/schedule/json.h"
#include "espalier/schedule/order_file.h"
#include "espalier/schedule/schedule.h"
#include "testing/random_staged_model.h"
#include "testing/refusal.h"
#include "testing/worked_example.h"

namespace espalier {
namespace {

using espalier::testing::random_staged_model;
using espalier::testing::RandomModelOptions;
using espalier::testing::worked_example;
using espalier::testing::worked_example_orders;
using espalier::testing::WorkedExample;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;

std::string orders(const StagedModel& model, const Cluster& cluster) {
  const Schedule schedule = make_schedule(model, cluster.devices().size());
  EXPECT_THAT(check_schedule(model, schedule), IsEmpty());
  return print_schedule(model, cluster, schedule);
}

std::vector<std::string> channel_texts(const Schedule& schedule) {
  std::vector<std::string> texts;
  for (const Channel& channel : schedule.channels) {
    std::string text = std::to_string(channel.from.index()) + ">" + std::to_string(channel.to.index()) + ":";
    for (const Message& m : channel.messages) {
      text += m.direction == Message::Direction::kForward ? " F" : " B";
      text += std::to_string(m.crossing) + "." + std::to_string(m.producer_micro_batch) + "." +
              std::to_string(m.consumer_micro_batch);
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

TEST(MakeSchedule, WorkedExampleHasTheOrdersOfTheDesign) {
  for (const WorkedExample which : {WorkedExample::kGraphPipeline, WorkedExample::kChain}) {
    for (const TokenRule tokens :
         {TokenRule::kBothWays, TokenRule::kForwardOnly, TokenRule::kFree, TokenRule::kNone}) {
      const auto [model, cluster] = worked_example(which, tokens);
      EXPECT_THAT(check_staged_model(model, cluster), IsEmpty());
      EXPECT_EQ(orders(model, cluster), worked_example_orders(which));
    }
  }
}

TEST(MakeSchedule, ChannelsCarryTensorsForwardAndGradientsBack) {
  const auto [model, cluster] = worked_example(WorkedExample::kGraphPipeline);
  EXPECT_THAT(channel_texts(make_schedule(model, 3)),
              ::testing::ElementsAre("0>2: F0.0.0 F0.1.1 F0.2.2 F0.3.3", "1>2: F1.0.0 F1.1.1 F1.2.2 F1.3.3",
                                     "2>0: B0.0.0 B0.1.1 B0.2.2 B0.3.3", "2>1: B1.0.0 B1.1.1 B1.2.2 B1.3.3"));
}

TEST(MakeSchedule, AStageEdgeWithoutTensorCarriesATokenBothWays) {
  // Crossing 1 is the token img -> txt.
  const auto both = worked_example(WorkedExample::kChain, TokenRule::kBothWays);
  EXPECT_THAT(
      channel_texts(make_schedule(both.model, 3)),
      ::testing::IsSupersetOf({"0>1: F1.0.0 F1.1.1 F1.2.2 F1.3.3", "1>0: B1.0.0 B1.1.1 B1.2.2 B1.3.3"}));
  const auto forward = worked_example(WorkedExample::kChain, TokenRule::kForwardOnly);
  EXPECT_EQ(make_schedule(forward.model, 3).channels.size(), 5u);  // none from dev1 to dev0
  const auto none = worked_example(WorkedExample::kChain, TokenRule::kNone);
  EXPECT_EQ(make_schedule(none.model, 3).channels.size(), 4u);
}

TEST(MakeSchedule, GPipeRunsAllForwardsFirst) {
  auto [model, cluster] = worked_example(WorkedExample::kGraphPipeline);
  model.orders = ScheduleKind::kGPipe;
  for (StagedStage& stage : model.stages) stage.in_flight = 4;
  EXPECT_EQ(orders(model, cluster),
            "dev0  F0 F1 F2 F3 B0 B1 B2 B3\n"
            "dev1  F0 F1 F2 F3 B0 B1 B2 B3\n"
            "dev2  F0 F1 F2 F3 B0 B1 B2 B3\n");
}

TEST(MakeSchedule, GroupsOfTwoTakeTwoBackwardsThenTwoForwards) {
  auto [model, cluster] = worked_example(WorkedExample::kGraphPipeline);
  model = with_orders(model, parse_order_rule("1f1b,k=2"));  // limits: 2 + 2, 2 + 2, 2
  EXPECT_EQ(orders(model, cluster),
            "dev0  F0 F1 F2 F3 B0 B1 B2 B3\n"
            "dev1  F0 F1 F2 F3 B0 B1 B2 B3\n"
            "dev2  F0 F1 B0 B1 F2 F3 B2 B3\n");
  for (StagedStage& stage : model.stages) {
    stage.micro_batches = 8;
    stage.replicas[0].micro_batches = round_robin(8, 0, 1);
  }
  EXPECT_EQ(orders(model, cluster),
            "dev0  F0 F1 F2 F3 B0 B1 F4 F5 B2 B3 F6 F7 B4 B5 B6 B7\n"
            "dev1  F0 F1 F2 F3 B0 B1 F4 F5 B2 B3 F6 F7 B4 B5 B6 B7\n"
            "dev2  F0 F1 B0 B1 F2 F3 B2 B3 F4 F5 B4 B5 F6 F7 B6 B7\n");
  model = with_orders(model, parse_order_rule("1f1b,k=1/1/2"));  // limits: 1 + 2, 1 + 2, 2
  EXPECT_EQ(orders(model, cluster),
            "dev0  F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7\n"
            "dev1  F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7\n"
            "dev2  F0 F1 B0 B1 F2 F3 B2 B3 F4 F5 B4 B5 F6 F7 B6 B7\n");
}

// With weights in every stage, and backward in halves.
testing::WorkedExampleParts split_example(WorkedExample which) {
  testing::WorkedExampleParts worked = worked_example(which);
  for (StagedStage& stage : worked.model.stages) stage.memory.gradients = Bytes(1);
  worked.model = with_orders(worked.model, parse_order_rule("1f1b,split"));
  return worked;
}

TEST(MakeSchedule, SplitBackwardsFillWhereOthersWait) {
  // ZB-H1 with two stages: each clock one action. The tower's limit is 2, so W0 makes room for F2; at the end
  // its W run while nothing else can.
  //   clock  0  1  2  3  4  5  6  7  8  9  10 11
  //   img    F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3     I1 is ready at 5: head F1 3, I1 4
  //   head      F0 I0 W0 F1 …
  auto [model, cluster] = split_example(WorkedExample::kGraphPipeline);
  const std::string text = orders(model, cluster);
  EXPECT_THAT(text, HasSubstr("dev2  F0 I0 W0 F1 I1 W1 F2 I2 W2 F3 I3 W3 U\n"));
  EXPECT_THAT(text, HasSubstr("dev0  F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3 U\n"));

  model.stages[0].memory.gradients = Bytes();  // without weights: B
  model.stages[0].replicas[0].times.weight_gradient = Duration();
  EXPECT_THAT(print_schedule(model, cluster, make_schedule(model, 3)),
              HasSubstr("dev0  F0 F1 B0 F2 B1 F3 B2 B3\n"));
}

TEST(MakeSchedule, ForwardsDoNotWaitForSlotsFarDownTheChain) {
  // img's tensors pass txt by on a channel of their own, to a head with two slots: the third waits there for
  // W0 of the head, and img goes on.
  const auto [model, cluster] = split_example(WorkedExample::kChain);
  EXPECT_THAT(orders(model, cluster), HasSubstr("dev0  F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3 U\n"));
}

TEST(MakeSchedule, ListsAreNumberedAndCompleted) {
  testing::WorkedExampleParts worked = worked_example(WorkedExample::kGraphPipeline);
  StagedModel& model = worked.model;
  const Cluster& cluster = worked.cluster;
  model.stages[0].replicas[0].times.recompute = milliseconds(1);
  model.stages[0].memory.gradients = model.stages[2].memory.gradients = Bytes(8);
  const auto listed = [&](const std::string& text) {
    return with_orders(model, Orders(parse_order_lists(text, order_names(model, cluster))));
  };
  // R, and U of the head, are added; U of img stands where the list has it.
  EXPECT_EQ(orders(listed("dev0 4F 3B B U\ndev1 4F 4B\ndev2 2F 2(I F) 2I 4W"), cluster),
            "dev0  F0 F1 F2 F3 R0 B0 R1 B1 R2 B2 R3 B3 U\n"
            "dev1  F0 F1 F2 F3 B0 B1 B2 B3\n"
            "dev2  F0 F1 I0 F2 I1 F3 I2 I3 W0 W1 W2 W3 U\n");
  // Of B, I and W together the n-th W belongs to the n-th that was split.
  EXPECT_EQ(orders(listed("dev0 4F R B R B 2R 2B\ndev1 4F 4B\ndev2 4(F) B I B I 2W"), cluster),
            "dev0  F0 F1 F2 F3 R0 B0 R1 B1 R2 R3 B2 B3 U\n"
            "dev1  F0 F1 F2 F3 B0 B1 B2 B3\n"
            "dev2  F0 F1 F2 F3 B0 I1 B2 I3 W1 W3 U\n");
  // One too many is no action of the plan.
  const StagedModel more = listed("dev0 5F 4B\ndev1 4F 4B\ndev2 4(F B)");
  EXPECT_THAT(check_schedule(more, make_schedule(more, 3)),
              ::testing::ElementsAre("complete: img:F4 is no action of this plan"));
}

TEST(MakeSchedule, AnAllReduceMayStandEarly) {
  auto [model, cluster] = worked_example(WorkedExample::kGraphPipeline);
  model.stages[0].replicas = {model.stages[0].replicas[0], model.stages[0].replicas[0]};
  model.stages[0].replicas[1].devices = {DeviceId(1)};
  model.stages[0].replicas[0].micro_batches = {0, 1};
  model.stages[0].replicas[1].micro_batches = {2, 3};
  model.stages[0].memory.gradients = model.stages[0].reduced = Bytes(8);
  const std::string text =
      "dev0  2F 2B A U\ndev1  img:F txt:F 2(txt:F) img:F txt:F 2(img:B) img:A 4(txt:B) img:U\n";
  const OrderNames names = order_names(model, cluster);
  const StagedModel listed = with_orders(model, Orders(parse_order_lists(text + "dev2 2F 2(B F) 2B", names)));
  const Schedule schedule = make_schedule(listed, 3);
  EXPECT_THAT(check_schedule(listed, schedule), IsEmpty());
  EXPECT_THAT(print_schedule(listed, cluster, schedule),
              HasSubstr("img:B2 img:B3 img:A txt:B0 txt:B1 txt:B2 txt:B3 img:U\n"));
}

// The chain a -> b of the worked example's first and last stage, on the given devices.
testing::WorkedExampleParts two_stages(std::vector<std::vector<std::size_t>> devices_of_a) {
  auto parts = worked_example(WorkedExample::kGraphPipeline);
  StagedModel& model = parts.model;
  model.stages.erase(model.stages.begin() + 1);
  model.crossings.pop_back();
  model.stages[1].after = {StageId(0)};
  model.crossings[0].readers[0].stage = StageId(1);
  StagedStage& a = model.stages[0];
  const StagedReplica replica = a.replicas[0];
  a.replicas.clear();
  for (std::size_t r = 0; r < devices_of_a.size(); ++r) {
    a.replicas.push_back(replica);
    a.replicas[r].devices.clear();
    for (const std::size_t device : devices_of_a[r]) a.replicas[r].devices.push_back(DeviceId(device));
    a.replicas[r].micro_batches = round_robin(4, r, devices_of_a.size());
  }
  return parts;
}

TEST(MakeSchedule, EachReplicaRunsItsShareWithinItsOwnLimit) {
  auto [model, cluster] = two_stages({{0}, {1}});
  model.stages[0].in_flight = 2;  // ⌈(2 + 1) / 2⌉
  EXPECT_EQ(orders(model, cluster),
            "dev0  F0 F2 B0 B2\n"
            "dev1  F1 F3 B1 B3\n"
            "dev2  F0 B0 F1 B1 F2 B2 F3 B3\n");
}

TEST(MakeSchedule, ReplicasReduceThenTiesSumThenOptimizersStep) {
  auto [model, cluster] = two_stages({{0}, {1}});
  model.stages[0].reduced = Bytes(8);
  model.stages[0].memory.gradients = Bytes(8);
  model.stages[1].memory.gradients = Bytes(8);
  model.ties = {{"embedding", Bytes(8), {StageId(0), StageId(1)}}};
  EXPECT_EQ(orders(model, cluster),
            "dev0  F0 F2 B0 B2 A T0 U\n"
            "dev1  F1 F3 B1 B3 A T0 U\n"
            "dev2  F0 B0 F1 B1 F2 B2 F3 B3 T0 U\n");
}

TEST(MakeSchedule, RecomputationStandsBeforeEachBackward) {
  auto [model, cluster] = two_stages({{0}});
  model.stages[0].replicas[0].times.recompute = milliseconds(2);
  EXPECT_EQ(orders(model, cluster),
            "dev0  F0 F1 R0 B0 F2 R1 B1 F3 R2 B2 R3 B3\n"
            "dev2  F0 B0 F1 B1 F2 B2 F3 B3\n");
}

TEST(MakeSchedule, BranchesThatShareADeviceTakeTurns) {
  // img and txt on dev0, head on dev2: the earlier micro-batch first, of one micro-batch the higher stage.
  // head runs F0 at clock 2 and B0 at clock 3, so txt's B0 is ready at clock 4, when both have two in flight.
  auto [model, cluster] = worked_example(WorkedExample::kGraphPipeline);
  model.stages[1].replicas[0].devices = {DeviceId(0)};
  EXPECT_EQ(
      orders(model, cluster),
      "dev0  txt:F0 img:F0 txt:F1 img:F1 txt:B0 img:B0 txt:F2 txt:B1 img:F2 img:B1 txt:F3 txt:B2 img:F3 "
      "img:B2 txt:B3 img:B3\n"
      "dev2  F0 B0 F1 B1 F2 B2 F3 B3\n");
  for (const Channel& channel : make_schedule(model, 3).channels) EXPECT_NE(channel.from, channel.to);
}

TEST(MakeSchedule, StagesOfOneDeviceExchangeNoMessages) {
  auto [model, cluster] = two_stages({{2}});
  // img has two in flight, so its F1 stands before its B0.
  EXPECT_EQ(orders(model, cluster),
            "dev2  img:F0 head:F0 head:B0 img:F1 img:B0 head:F1 head:B1 img:F2 img:B1 head:F2 head:B2 img:F3 "
            "img:B2 head:F3 head:B3 img:B3\n");
  EXPECT_THAT(make_schedule(model, 3).channels, IsEmpty());
}

TEST(MakeSchedule, ATensorTravelsOncePerDeviceHoweverManyReaders) {
  // txt reads img's tensor too; txt and head share dev2: one message each way, by the lower reader.
  auto [model, cluster] = worked_example(WorkedExample::kGraphPipeline);
  model.stages[1].replicas[0].devices = {DeviceId(2)};
  model.stages[1].after = {StageId(0)};
  model.stages[0].in_flight = 3;
  model.crossings[0].readers.insert(model.crossings[0].readers.begin(),
                                    {StageId(1), true, mebibytes(1), mebibytes(1)});
  const Schedule schedule = make_schedule(model, 3);
  EXPECT_THAT(check_schedule(model, schedule), IsEmpty());
  EXPECT_THAT(channel_texts(schedule),
              ::testing::ElementsAre("0>2: F0.0.0 F0.1.1 F0.2.2 F0.3.3", "2>0: B0.0.0 B0.1.1 B0.2.2 B0.3.3"));
  EXPECT_EQ(schedule.channels[0].messages[0].reader, StageId(1));
}

TEST(MakeSchedule, UnequalSizesTravelInPiecesOfTheSmaller) {
  // a has 4 micro-batches, b 2 of twice the size: b's F0 needs a's F0 and F1; its gradient returns in halves.
  auto [model, cluster] = two_stages({{0}});
  model.stages[1].micro_batches = 2;
  model.stages[1].replicas[0].micro_batches = {0, 1};
  model.stages[0].in_flight = 4;
  EXPECT_EQ(orders(model, cluster),
            "dev0  F0 F1 F2 F3 B0 B1 B2 B3\n"
            "dev2  F0 B0 F1 B1\n");
  EXPECT_THAT(channel_texts(make_schedule(model, 3)),
              ::testing::ElementsAre("0>2: F0.0.0 F0.1.0 F0.2.1 F0.3.1", "2>0: B0.0.0 B0.1.0 B0.2.1 B0.3.1"));
}

TEST(MakeSchedule, LimitsThatGrowAlongAnEdgeGiveEagerBackwards) {
  // head would like three forwards before its first backward, but img stops at two.
  auto [model, cluster] = two_stages({{0}});
  model.stages[1].in_flight = 3;
  EXPECT_EQ(orders(model, cluster),
            "dev0  F0 F1 B0 F2 B1 F3 B2 B3\n"
            "dev2  F0 B0 F1 B1 F2 B2 F3 B3\n");
}

TEST(MakeSchedule, LimitsBelowOneLargeMicroBatchDeadlockAndTheCheckerSaysWhy) {
  auto [model, cluster] = two_stages({{0}});
  model.stages[1].micro_batches = 2;
  model.stages[1].replicas[0].micro_batches = {0, 1};
  model.stages[0].in_flight = 1;
  EXPECT_THAT(check_schedule(model, make_schedule(model, 3)),
              ::testing::ElementsAre("deadlock: dev0:B0 → dev0:F1 → dev2:F0 → dev2:B0 → dev0:B0 (each waits "
                                     "for the one before it)"));
}

TEST(MakeSchedule, TensorParallelDevicesTalkPairwise) {
  auto [model, cluster] = two_stages({{0, 1}});
  model.stages[1].replicas[0].devices = {DeviceId(2)};
  // Both devices of the group run everything; dev0 sends; both need the gradient.
  EXPECT_EQ(orders(model, cluster),
            "dev0  F0 F1 B0 F2 B1 F3 B2 B3\n"
            "dev1  F0 F1 B0 F2 B1 F3 B2 B3\n"
            "dev2  F0 B0 F1 B1 F2 B2 F3 B3\n");
  EXPECT_THAT(channel_texts(make_schedule(model, 3)),
              ::testing::ElementsAre("0>2: F0.0.0 F0.1.1 F0.2.2 F0.3.3", "2>0: B0.0.0 B0.1.1 B0.2.2 B0.3.3",
                                     "2>1: B0.0.0 B0.1.1 B0.2.2 B0.3.3"));
}

TEST(MakeSchedule, EveryScheduleOfAnyPlanPassesTheChecker) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Rng rng(seed * 1'000'003);
    RandomModelOptions options;
    options.unequal_sizes = seed % 3 == 1;
    options.random_limits = seed % 3 == 2;
    const auto [model, cluster] = random_staged_model(rng, options);
    ASSERT_THAT(check_staged_model(model, cluster), IsEmpty()) << seed;
    const Schedule schedule = make_schedule(model, cluster.devices().size());
    ASSERT_THAT(check_schedule(model, schedule), IsEmpty()) << seed << "\n"
                                                            << print_schedule(model, cluster, schedule);
    ASSERT_EQ(parse_schedule(print_schedule(model, cluster, schedule), model, cluster), schedule) << seed;
    const std::string json = print_json(schedule_to_json(model, cluster, schedule));
    ASSERT_EQ(schedule_from_json(parse_json(json, "s.json"), "s.json", model, cluster), schedule) << seed;
  }
}

TEST(Collective, AllReduceAndTiedSumHaveOneCost) {
  // Ring of two: 2 steps of half the bytes, each paying 500 us; unlimited bandwidth.
  auto [model, cluster] = two_stages({{0}, {1}});
  model.stages[0].reduced = mebibytes(2);
  model.ties = {{"embedding", mebibytes(1), {StageId(0), StageId(1)}}};
  const Collective reduce = collective_of(model, cluster, {ActionKind::kAllReduce, StageId(0), 0});
  EXPECT_THAT(reduce.members, ::testing::ElementsAre(DeviceId(0), DeviceId(1)));
  EXPECT_EQ(reduce.latency, microseconds(2 * 500));
  // head's sum travels to dev0 and the total back to dev1 and dev2: one latency each way.
  const Collective sum = collective_of(model, cluster, Action(TieId(0)));
  EXPECT_THAT(sum.members, ::testing::ElementsAre(DeviceId(0), DeviceId(1), DeviceId(2)));
  EXPECT_EQ(sum.bytes, mebibytes(1));
  EXPECT_EQ(sum.hold, Duration());
  EXPECT_EQ(sum.latency, microseconds(2 * 500));
}

TEST(Collective, TiedSumSendsOneAfterTheOther) {
  auto [model, cluster] = two_stages({{0}, {1}});
  ClusterParts parts = cluster.parts();
  parts.groups[0].bandwidth = 1'000'000'000;  // 1 MB takes 1 ms
  model.ties = {{"embedding", Bytes(1'000'000), {StageId(0), StageId(1)}}};
  // dev2 → dev0, then dev0 → dev1 and dev0 → dev2: 3 ms.
  EXPECT_EQ(collective_of(model, Cluster(parts), Action(TieId(0))).hold, milliseconds(3));
}

TEST(Collective, TiedSumPaysEndpointsOfItsMessages) {
  auto [model, cluster] = two_stages({{0}, {1}});
  ClusterParts parts = cluster.parts();
  parts.groups[0].send.fixed = microseconds(30);
  parts.groups[0].receive.fixed = microseconds(4);
  model.ties = {{"embedding", Bytes(1'000'000), {StageId(0), StageId(1)}}};
  // dev2 sends and dev0 receives; dev0 sends to dev1 and to dev2, of which the last receives.
  EXPECT_EQ(collective_of(model, Cluster(parts), Action(TieId(0))).latency,
            2 * microseconds(500) + microseconds(30 + 4) + microseconds(2 * 30 + 4));
}

TEST(ScheduleText, WrongTextSaysWhereAndWhatWouldBeRight) {
  const auto [model, cluster] = worked_example(WorkedExample::kGraphPipeline);
  const auto parse = [&model = model, &cluster = cluster](std::string_view text) {
    return [&model, &cluster, text] { parse_schedule(text, model, cluster); };
  };
  EXPECT_THAT(refusal(parse("dev0 F0\ngpu F1")), "line 2: device 'gpu' is not in the cluster");
  EXPECT_THAT(refusal(parse("dev0 F0\ndev0 F1")), HasSubstr("stands here twice"));
  EXPECT_THAT(refusal(parse("dev0 X0")), HasSubstr("line 1: 'X0' is not an action; expected"));
  EXPECT_THAT(refusal(parse("dev0 F")), HasSubstr("'F' has no micro-batch"));
  EXPECT_THAT(refusal(parse("dev0 F-1")), HasSubstr("has no micro-batch"));
  EXPECT_THAT(refusal(parse("dev0 F99999999999")), HasSubstr("has no micro-batch"));
  EXPECT_THAT(refusal(parse("dev0 T0")), HasSubstr("there is no tie 0"));
  EXPECT_THAT(refusal(parse("dev0 nose:F0")), HasSubstr("stage 'nose' is not in the plan"));
}

TEST(ScheduleText, AnyTextGivesAScheduleOrAnInputError) {
  const auto [model, cluster] = worked_example(WorkedExample::kChain);
  const std::string seed = orders(model, cluster);
  Rng rng(3);
  for (int i = 0; i < 3000; ++i) {
    std::string text = seed;
    for (std::uint64_t k = 1 + rng.below(4); k-- > 0;) {
      const std::size_t at = rng.below(text.size());
      constexpr std::string_view kLikely = "FBIWRATU0123456789: \nx";
      if (rng.below(2) == 0) {
        text[at] = kLikely[rng.below(kLikely.size())];
      } else {
        text.erase(at, 1 + rng.below(5));
      }
    }
    try {
      const Schedule schedule = parse_schedule(text, model, cluster);
      check_schedule(model, schedule);  // holds against any schedule
      EXPECT_EQ(parse_schedule(print_schedule(model, cluster, schedule), model, cluster), schedule);
    } catch (const InputError&) {
    }
  }
}

TEST(ScheduleText, AnActionOutOfPlaceNamesItsStage) {
  const auto [model, cluster] = worked_example(WorkedExample::kGraphPipeline);
  const std::string text = "dev0  F0 txt:F1 U\n";
  EXPECT_EQ(print_schedule(model, cluster, parse_schedule(text, model, cluster)), text);
}

TEST(ScheduleJson, WrongDocumentsAreRefusedWithTheirPlace) {
  const auto [model, cluster] = worked_example(WorkedExample::kGraphPipeline);
  const auto read = [&model = model, &cluster = cluster](std::string_view text) {
    return [&model, &cluster, text] {
      schedule_from_json(parse_json(text, "s.json"), "s.json", model, cluster);
    };
  };
  EXPECT_THAT(refusal(read(R"({"format": "espalier.schedule/2"})")), HasSubstr("schedule/1"));
  EXPECT_THAT(
      refusal(read(R"({"format": "espalier.schedule/1", "devices": [{"device": "dev0", "actions": ["F0"]}],
                       "channels": []})")),
      HasSubstr("s.json: devices[0].actions[0]: 'F0' names no stage"));
  EXPECT_THAT(refusal(read(R"({"format": "espalier.schedule/1", "devices": [], "channels": [
                       {"from": "dev0", "to": "dev1", "messages": [["F", 9, "head", 0, 0]]}]})")),
              HasSubstr("channels[0].messages[0][1]: the plan has no such crossing"));
}

}  // namespace
}  // namespace espalier
