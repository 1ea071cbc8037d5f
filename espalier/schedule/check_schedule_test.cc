// Every rule has a planted fault that only that rule finds. Then: random mutations of random schedules are
// refused, or are schedules too.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "espalier/schedule/dependencies.h"
#include "espalier/schedule/schedule.h"
#include "testing/random_staged_model.h"
#include "testing/worked_example.h"

namespace espalier {
namespace {

using espalier::testing::random_staged_model;
using espalier::testing::RandomModelOptions;
using espalier::testing::worked_example;
using espalier::testing::worked_example_orders;
using espalier::testing::WorkedExample;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// All violations are of this rule, and there is one.
auto only(const std::string& rule) {
  return AllOf(Not(IsEmpty()), Each(StartsWith(rule + ": ")));
}

class CheckSchedule : public ::testing::Test {
 protected:
  CheckSchedule() { model_.stages[0].memory.gradients = Bytes(1); }  // img has an update

  // The violations of these orders of the graph pipeline, with the channels that belong to them.
  std::vector<std::string> violations(const std::string& img, const std::string& txt = kTxt,
                                      const std::string& head = kHead) {
    return check_schedule(
        model_, parse_schedule("dev0 " + img + "\ndev1 " + txt + "\ndev2 " + head, model_, cluster_));
  }
  Schedule made() const { return make_schedule(model_, 3); }

  static constexpr const char* kImg = "F0 F1 B0 F2 B1 F3 B2 B3 U";
  static constexpr const char* kTxt = "F0 F1 B0 F2 B1 F3 B2 B3";
  static constexpr const char* kHead = "F0 B0 F1 B1 F2 B2 F3 B3";
  testing::WorkedExampleParts parts_ = worked_example(WorkedExample::kGraphPipeline);
  StagedModel& model_ = parts_.model;
  Cluster& cluster_ = parts_.cluster;
};

TEST_F(CheckSchedule, AcceptsBothWorkedExamples) {
  // With sends and receives in the compute order, as blocking calls, both would deadlock: dev0 sends F1 while
  // dev2 sends B0. Receives that are posted when a slot is free make both run.
  for (const WorkedExample which : {WorkedExample::kGraphPipeline, WorkedExample::kChain}) {
    const auto [model, cluster] = worked_example(which);
    EXPECT_THAT(check_schedule(model, parse_schedule(worked_example_orders(which), model, cluster)),
                IsEmpty());
  }
}

TEST_F(CheckSchedule, AcceptsSplitBackwards) {
  EXPECT_THAT(violations("F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3 U"), IsEmpty());
}

TEST_F(CheckSchedule, AcceptsWeightHalvesLater) {
  model_.stages[0].in_flight = 4;
  EXPECT_THAT(violations("F0 F1 I0 F2 I1 F3 I2 I3 W0 W1 W2 W3 U"), IsEmpty());
}

TEST_F(CheckSchedule, CompleteFindsWhatIsMissing) {
  EXPECT_THAT(violations("F0 F1 B0 F2 B1 F3 B2 B3"), ElementsAre("complete: img:U is missing"));
  EXPECT_THAT(violations("F0 F1 B0 F2 B1 B2 B3 U"), ElementsAre("complete: img:F3 is missing"));
  EXPECT_THAT(violations("F0 F1 B0 F2 B1 F3 B2 U"), ElementsAre("complete: img:B3 is missing"));
  EXPECT_THAT(violations("F0 F1 B0 F2 B1 F3 B2 I3 U"), ElementsAre("complete: img:W3 is missing"));
  EXPECT_THAT(violations(""), only("complete"));
}

TEST_F(CheckSchedule, CompleteFindsWhatIsTooMuch) {
  EXPECT_THAT(violations("F0 F0 F1 B0 F2 B1 F3 B2 B3 U"), ElementsAre("complete: img:F0 stands 2 times"));
  EXPECT_THAT(violations("F0 F1 B0 F2 B1 F3 B2 B3 I3 W3 U"),
              ElementsAre("complete: img:B3 stands beside one of its halves"));
  EXPECT_THAT(violations("F0 F1 B0 F2 B1 F3 B2 B3 F4 U"),
              ElementsAre("complete: img:F4 is no action of this plan"));
  EXPECT_THAT(violations("F0 F1 R0 B0 F2 B1 F3 B2 B3 U"),
              ElementsAre("complete: img:R0 is no action of this plan"));
  EXPECT_THAT(violations("F0 F1 B0 F2 B1 F3 B2 B3 A U"),
              ElementsAre("complete: img:A is no action of this plan"));
  EXPECT_THAT(violations(kImg, "F0 F1 B0 F2 B1 F3 B2 B3 U"),
              ElementsAre("complete: txt:U is no action of this plan"));
}

TEST_F(CheckSchedule, CompleteAsksForRecomputationReductionAndTies) {
  model_.stages[0].replicas[0].times.recompute = milliseconds(1);
  EXPECT_THAT(violations(kImg),
              Each(AllOf(StartsWith("complete: img:R"), ::testing::EndsWith("is missing"))));
  model_.stages[0].replicas[0].times.recompute = Duration();
  model_.ties = {{"w", Bytes(1), {StageId(0), StageId(1)}}};
  EXPECT_THAT(violations(kImg), ElementsAre("complete: T0 is missing"));
}

TEST_F(CheckSchedule, PlaceFindsAnActionOnAForeignDevice) {
  EXPECT_THAT(violations("F0 F1 B0 F2 B1 F3 B2 U", "F0 F1 B0 F2 B1 F3 B2 B3 img:B3"),
              ElementsAre("place: img:B3 does not stand on dev0",
                          "place: img:B3 stands on dev1, which does not take that share"));
  model_.ties = {{"w", Bytes(1), {StageId(0), StageId(1)}}};
  EXPECT_THAT(violations("F0 F1 B0 F2 B1 F3 B2 B3 T0 U"), ElementsAre("place: T0 does not stand on dev1"));
}

TEST_F(CheckSchedule, OrderFindsMicroBatchesAndStepsOutOfOrder) {
  EXPECT_THAT(violations("F1 F0 B0 F2 B1 F3 B2 B3 U"),
              ElementsAre("order: img:F0 stands after img:F1 on dev0"));
  EXPECT_THAT(violations("F0 F1 B1 F2 B0 F3 B2 B3 U"), only("order"));
  EXPECT_THAT(violations("F0 F1 B0 F2 B1 F3 B2 U B3"),
              ElementsAre("order: img:B3 stands after img:U on dev0"));
  EXPECT_THAT(violations("F0 F1 I0 W0 F2 I1 W1 F3 W2 I2 I3 W3 U"),
              ElementsAre("order: img:I2 stands after img:W2 on dev0"));
}

TEST_F(CheckSchedule, OrderFindsUpdatesBeforeSums) {
  model_.ties = {{"w", Bytes(1), {StageId(0), StageId(1)}}};
  EXPECT_THAT(violations("F0 F1 B0 F2 B1 F3 B2 B3 U T0", "F0 F1 B0 F2 B1 F3 B2 B3 T0"),
              ElementsAre("order: T0 stands after img:U on dev0"));
}

TEST_F(CheckSchedule, InFlightFindsOneTooMany) {
  EXPECT_THAT(violations("F0 F1 F2 B0 F3 B1 B2 B3 U"),
              ElementsAre("in-flight: img:F2 on dev0 is number 3 of stage img, whose limit is 2"));
  // A micro-batch whose weight half is still to come is in flight.
  EXPECT_THAT(violations("F0 F1 I0 F2 W0 I1 W1 F3 I2 W2 I3 W3 U"), only("in-flight"));
}

TEST_F(CheckSchedule, MessagesFindsWhatIsMissingTwiceOrNotNeeded) {
  Schedule missing = made();
  missing.channels[0].messages.erase(missing.channels[0].messages.begin() + 1);
  EXPECT_THAT(
      check_schedule(model_, missing),
      ElementsAre("messages: forward of 'img' (reader head, micro-batches 1 and 1) from dev0 to dev2 is "
                  "missing"));
  Schedule twice = made();
  twice.channels[0].messages.push_back(twice.channels[0].messages.back());
  EXPECT_THAT(check_schedule(model_, twice),
              ElementsAre("messages: forward of 'img' (reader head, micro-batches 3 and 3) from dev0 to dev2 "
                          "travels twice"));
  Schedule foreign = made();
  foreign.channels[2].messages[0].crossing = 7;
  EXPECT_THAT(check_schedule(model_, foreign), only("messages"));
}

TEST_F(CheckSchedule, MessagesFindsChannelsThatAreEmptyOrOutOfOrder) {
  Schedule swapped = made();
  std::swap(swapped.channels[0], swapped.channels[1]);
  EXPECT_THAT(check_schedule(model_, swapped),
              ElementsAre("messages: the channel from dev0 to dev2 stands after dev1 to dev2"));
  Schedule empty = made();
  empty.channels.push_back({DeviceId(2), DeviceId(3), {}});
  EXPECT_THAT(check_schedule(model_, empty), ElementsAre("messages: the channel from dev2 to dev3 is empty"));
}

TEST_F(CheckSchedule, ChannelFindsMessagesThatOvertake) {
  Schedule schedule = made();
  std::swap(schedule.channels[0].messages[0], schedule.channels[0].messages[1]);
  EXPECT_THAT(check_schedule(model_, schedule), only("channel"));
}

TEST_F(CheckSchedule, DeadlockFindsOrdersThatWaitForEachOther) {
  // img and txt on dev0, and txt reads from img; txt stands first.
  model_.stages[1].replicas[0].devices = {DeviceId(0)};
  model_.crossings[0].readers[0].stage = StageId(1);
  const std::string text =
      "dev0  txt:F0 img:F0 txt:F1 img:F1 txt:B0 img:B0 txt:F2 img:F2 txt:B1 img:B1 txt:F3 img:F3 txt:B2 "
      "img:B2 "
      "txt:B3 img:B3 img:U\n"
      "dev2  F0 B0 F1 B1 F2 B2 F3 B3\n";
  EXPECT_THAT(
      check_schedule(model_, parse_schedule(text, model_, cluster_)),
      ElementsAre("deadlock: dev0:txt:F0 → dev0:img:F0 → dev0:txt:F0 (each waits for the one before it)"));
}

TEST_F(CheckSchedule, DeadlockFindsACycleAcrossDevices) {
  // Each of the two branches would like the head's backward of the other's next micro-batch first.
  model_.stages[0].in_flight = model_.stages[1].in_flight = model_.stages[2].in_flight = 4;
  EXPECT_THAT(violations("F0 B0 F1 B1 F2 B2 F3 B3 U", kTxt, "F0 F1 B0 B1 F2 F3 B2 B3"),
              ElementsAre("deadlock: dev0:B0 → dev0:F1 → dev2:F1 → dev2:B0 → dev0:B0 (each waits for the one "
                          "before it)"));
}

// Stages a, b, c, d in a row; a and c on dev0, b and d on dev1. a runs four forwards at once.
testing::WorkedExampleParts interleaved(std::uint32_t limit_of_b) {
  auto parts = worked_example(WorkedExample::kGraphPipeline);
  StagedModel& model = parts.model;
  model.stages.push_back(model.stages.back());
  model.crossings.push_back(model.crossings.back());
  const std::vector<std::string> names{"a", "b", "c", "d"};
  const std::vector<std::uint32_t> limits{4, limit_of_b, 1, 1};
  for (std::size_t s = 0; s < 4; ++s) {
    StagedStage& stage = model.stages[s];
    stage.name = names[s];
    stage.replicas[0].devices = {DeviceId(s % 2)};
    stage.in_flight = limits[s];
    stage.memory.gradients = Bytes();
    stage.after.clear();
    if (s > 0) stage.after = {StageId(s - 1)};
  }
  for (std::size_t c = 0; c < 3; ++c) {
    model.crossings[c].from = StageId(c);
    model.crossings[c].readers[0].stage = StageId(c + 1);
  }
  return parts;
}
constexpr std::string_view kFourAtOnce =
    "dev0  a:F0 a:F1 a:F2 a:F3 c:F0 c:B0 a:B0 c:F1 c:B1 a:B1 c:F2 c:B2 a:B2 c:F3 c:B3 a:B3\n"
    "dev1  b:F0 d:F0 d:B0 b:B0 b:F1 d:F1 d:B1 b:B1 b:F2 d:F2 d:B2 b:B2 b:F3 d:F3 d:B3 b:B3\n";

TEST_F(CheckSchedule, DeadlockFindsAMessageWithoutSlotThatHoldsUpAnother) {
  // b has two slots. Its third message waits for b's B0, and with it, on the same channel, what c sends to d;
  // without that there is no B0.
  const auto [model, cluster] = interleaved(1);
  EXPECT_THAT(
      check_schedule(model, parse_schedule(kFourAtOnce, model, cluster)),
      ElementsAre("deadlock: dev1:d:F0 → dev1:d:B0 → dev1:b:B0 → dev1:d:F0 (each waits for the one before "
                  "it)"));
}

TEST_F(CheckSchedule, AcceptsTheSameOrdersWithEnoughSlots) {
  const auto [model, cluster] = interleaved(3);
  EXPECT_THAT(check_schedule(model, parse_schedule(kFourAtOnce, model, cluster)), IsEmpty());
}

TEST_F(CheckSchedule, DeadlockFindsCollectivesInDifferentOrders) {
  model_.ties = {{"v", Bytes(1), {StageId(0), StageId(1)}}, {"w", Bytes(1), {StageId(0), StageId(1)}}};
  const std::string img = "F0 F1 B0 F2 B1 F3 B2 B3";
  EXPECT_THAT(violations(img + " T0 T1 U", img + " T0 T1"), IsEmpty());
  EXPECT_THAT(violations(img + " T0 T1 U", img + " T1 T0"),
              ElementsAre("deadlock: dev0:T0 → dev0:T1 → dev0:T0 (each waits for the one before it)"));
}

// Runs a schedule step by step, in any order that the rules allow: does everything get done?
bool runs_to_the_end(const Schedule& schedule, const ScheduleFacts& facts, const StagedModel& model) {
  std::vector<std::size_t> next(schedule.devices.size(), 0);        // by device
  std::vector<std::vector<Action>> open(schedule.devices.size());   // by device: sums begun and not over
  std::vector<std::size_t> begin(schedule.channels.size() + 1, 0);  // by channel, into facts.messages
  for (const MessageFacts& message : facts.messages) ++begin[message.channel + 1];
  for (std::size_t c = 1; c < begin.size(); ++c) begin[c] += begin[c - 1];
  std::vector<std::size_t> sent(begin.begin(), begin.end() - 1);
  const auto done = [&](const ActionPlace& place) { return next[place.device.index()] > place.position; };
  const auto all_done = [&](const std::vector<ActionPlace>& places) {
    return std::all_of(places.begin(), places.end(), done);
  };
  const auto can_send = [&](const MessageFacts& message) {
    if (!all_done(message.producers)) return false;
    if (message.receiver_forward) return done(*message.receiver_forward);
    const auto before = facts.slots[*message.slot].before;
    return !before || all_done(facts.slots[*before].released_by);
  };
  const auto can_run = [&](const ActionPlace& place) {
    for (const auto& [producer, consumer] : facts.local) {
      if (consumer == place && !done(producer)) return false;
    }
    for (std::size_t m = 0; m < facts.messages.size(); ++m) {
      const auto& consumers = facts.messages[m].consumers;
      if (std::find(consumers.begin(), consumers.end(), place) == consumers.end()) continue;
      if (sent[facts.messages[m].channel] <= m) return false;
    }
    return true;
  };
  // The first sum of a device is over once it is the first of all its devices.
  const auto end_sum = [&](DeviceId device) {
    if (open[device.index()].empty()) return false;
    const Action sum = open[device.index()].front();
    const std::vector<DeviceId> together = expected_devices(model, sum);
    const bool all = std::all_of(together.begin(), together.end(), [&](DeviceId each) {
      return !open[each.index()].empty() && open[each.index()].front() == sum;
    });
    if (!all) return false;
    for (const DeviceId each : together) open[each.index()].erase(open[each.index()].begin());
    return true;
  };
  const auto awaits_sum = [&](DeviceId device, StageId stage) {
    return std::any_of(open[device.index()].begin(), open[device.index()].end(), [&](const Action& sum) {
      if (sum.kind == ActionKind::kAllReduce) return sum.stage() == stage;
      const std::vector<StageId>& stages = model.ties[sum.tie().index()].stages;
      return std::find(stages.begin(), stages.end(), stage) != stages.end();
    });
  };
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t c = 0; c < sent.size(); ++c) {
      while (sent[c] < begin[c + 1] && can_send(facts.messages[sent[c]])) ++sent[c], moved = true;
    }
    for (std::size_t d = 0; d < next.size(); ++d) {
      moved = end_sum(DeviceId(d)) || moved;
      if (next[d] == schedule.devices[d].size()) continue;
      const Action& action = schedule.devices[d][next[d]];
      if (is_sum(action.kind)) {  // it goes on beside the list
        open[d].push_back(action);
        ++next[d];
        moved = true;
        continue;
      }
      if (action.kind == ActionKind::kUpdate && awaits_sum(DeviceId(d), action.stage())) continue;
      std::vector<DeviceId> together{DeviceId(d)};
      if (action.kind != ActionKind::kUpdate) together = expected_devices(model, action);
      const bool all = std::all_of(together.begin(), together.end(), [&](DeviceId device) {
        const std::size_t at = next[device.index()];
        const auto& list = schedule.devices[device.index()];
        return at < list.size() && list[at] == action && can_run({device, static_cast<std::uint32_t>(at)});
      });
      if (!all) continue;
      for (const DeviceId device : together) ++next[device.index()];
      moved = true;
    }
  }
  for (std::size_t d = 0; d < next.size(); ++d) {
    if (next[d] != schedule.devices[d].size() || !open[d].empty()) return false;
  }
  return std::equal(sent.begin(), sent.end(), begin.begin() + 1);
}

bool has_rule(const std::vector<std::string>& violations, const std::string& rule) {
  return std::any_of(violations.begin(), violations.end(),
                     [&](const std::string& line) { return line.rfind(rule + ": ", 0) == 0; });
}

// One random change: swap, drop, duplicate or move an action or a message.
void mutate(Rng& rng, Schedule& schedule) {
  const auto pick = [&](std::size_t bound) { return static_cast<std::size_t>(rng.below(bound)); };
  const auto change = [&](auto& from, auto& to) {
    if (from.empty()) return;
    const std::size_t i = pick(from.size());
    const auto item = from[i];
    switch (pick(4)) {
      case 0:
        std::swap(from[i], from[pick(from.size())]);
        break;
      case 1:
        from.erase(from.begin() + static_cast<std::ptrdiff_t>(i));
        break;
      case 2:
        from.insert(from.begin() + static_cast<std::ptrdiff_t>(pick(from.size() + 1)), item);
        break;
      default:
        from.erase(from.begin() + static_cast<std::ptrdiff_t>(i));
        to.insert(to.begin() + static_cast<std::ptrdiff_t>(pick(to.size() + 1)), item);
    }
  };
  if (schedule.channels.empty() || pick(2) == 0) {
    change(schedule.devices[pick(schedule.devices.size())], schedule.devices[pick(schedule.devices.size())]);
  } else {
    change(schedule.channels[pick(schedule.channels.size())].messages,
           schedule.channels[pick(schedule.channels.size())].messages);
  }
}

// What a schedule does, without the order in which it does it.
Schedule canonical(Schedule schedule) {
  for (auto& list : schedule.devices) std::sort(list.begin(), list.end());
  for (Channel& channel : schedule.channels) std::sort(channel.messages.begin(), channel.messages.end());
  return schedule;
}

TEST(CheckScheduleProperty, MutationsAreRefusedOrAreSchedulesToo) {
  int refused = 0;
  int accepted = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    Rng rng(seed * 7'000'003 + 1);
    RandomModelOptions options;
    options.unequal_sizes = seed % 4 == 1;
    const auto [model, cluster] = random_staged_model(rng, options);
    const Schedule original = make_schedule(model, cluster.devices().size());
    Schedule mutant = original;
    mutate(rng, mutant);
    if (mutant == original) continue;
    if (!check_schedule(model, mutant).empty()) {
      ++refused;
      continue;
    }
    // Accepted: it does the same, its channels follow its orders, and it runs to its end.
    ++accepted;
    ASSERT_EQ(canonical(mutant), canonical(original)) << seed;
    ASSERT_EQ(with_channels(model, mutant.devices), mutant) << seed;
    ASSERT_TRUE(runs_to_the_end(mutant, schedule_facts(model, mutant), model)) << seed;
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(accepted, 10);
}

TEST(CheckScheduleProperty, DeadlockIsFoundExactlyWhereARunGetsStuck) {
  int stuck = 0;
  int complete = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Rng rng(seed * 9'000'011 + 5);
    RandomModelOptions options;
    options.unequal_sizes = seed % 4 == 1;
    options.random_limits = true;
    const auto [model, cluster] = random_staged_model(rng, options);
    Schedule schedule = make_schedule(model, cluster.devices().size());
    for (int i = 0; i < 3; ++i) {  // any order of actions, also illegal ones
      auto& list = schedule.devices[rng.below(schedule.devices.size())];
      if (!list.empty()) std::swap(list[rng.below(list.size())], list[rng.below(list.size())]);
    }
    schedule = with_channels(model, schedule.devices);
    const bool runs = runs_to_the_end(schedule, schedule_facts(model, schedule), model);
    ASSERT_EQ(has_rule(check_schedule(model, schedule), "deadlock"), !runs) << seed;
    ++(runs ? complete : stuck);
  }
  EXPECT_GT(stuck, 200);
  EXPECT_GT(complete, 200);
}

}  // namespace
}  // namespace espalier
