// Every rule has a planted fault that only that rule finds: lines of a correct trace are replaced. Then: all
// simulated traces of random plans pass, and no random change of one does.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "espalier/cluster/text.h"
#include "espalier/sim/simulate.h"
#include "espalier/trace/trace.h"
#include "testing/random_staged_model.h"

namespace espalier {
namespace {

using espalier::testing::random_staged_model;
using espalier::testing::RandomModelOptions;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

auto only(const std::string& rule) {
  return AllOf(Not(IsEmpty()), Each(StartsWith(rule + ": ")));
}

StagedStage stage(const char* name, std::size_t device, int milliseconds_each, int update_ms,
                  std::uint32_t in_flight) {
  StagedReplica replica;
  replica.devices = {DeviceId(device)};
  replica.micro_batches = {0, 1, 2};
  replica.times.forward = milliseconds(milliseconds_each);
  replica.times.input_gradient = milliseconds(milliseconds_each);
  replica.times.update = milliseconds(update_ms);
  StagedStage result;
  result.name = name;
  result.micro_batches = 3;
  result.in_flight = in_flight;
  result.replicas = {std::move(replica)};
  result.memory.saved = Bytes(100);
  return result;
}

Crossing crossing(const char* tensor, std::size_t from, std::size_t to) {
  Crossing result;
  result.tensor = tensor;
  result.from = StageId(from);
  result.readers = {{StageId(to), false, Bytes(1'000'000), Bytes(1'000'000)}};
  return result;
}

// a on dev0 sends x to b on dev1, three micro-batches. Forward, backward, update: a 2, 2, 2 ms, b 4, 4, 5 ms.
// 1 MB at 1 GB/s holds the links 1 ms, then 0.5 ms latency; sending costs the sender 0.1 ms. b has two
// receive slots, so the third message waits for the end of b's F0 at 7.6 ms. A tied parameter is summed at
// the end.
class CheckTrace : public ::testing::Test {
 protected:
  CheckTrace() {
    model_.stages = {stage("a", 0, 2, 2, 3), stage("b", 1, 4, 5, 1)};
    model_.stages[1].after = {StageId(0)};
    model_.crossings = {crossing("x", 0, 1)};
    model_.ties = {{"w", Bytes(1'000'000), {StageId(0), StageId(1)}}};
  }

  static Cluster cluster_with(const std::string& network) {
    std::string text =
        "kind k 16GiB f32=1e12 f16=1e12 mem=900GB launch=0us sms=1\ngroup net " + network + "\n";
    for (const char* name : {"dev0", "dev1", "dev2"}) text += "device " + std::string(name) + " k in net\n";
    return parse_cluster_lines(text);
  }

  std::string simulated() const { return print_trace(simulate(model_, cluster_)); }

  // The violations after each `from` in the simulated trace became `to`.
  std::vector<std::string> with(const std::vector<std::pair<std::string, std::string>>& changes) const {
    std::string text = simulated();
    for (const auto& [from, to] : changes) {
      const std::size_t at = text.find(from);
      EXPECT_NE(at, std::string::npos) << from << " is not in\n" << text;
      if (at != std::string::npos) text.replace(at, from.size(), to);
    }
    return check_trace(model_, cluster_, make_schedule(model_, 3), parse_trace(text));
  }

  StagedModel model_;
  Cluster cluster_ = cluster_with("1GB latency=500us send=100us");
};

TEST_F(CheckTrace, AcceptsWhatTheComparisonsBelowStartFrom) {
  EXPECT_THAT(with({}), IsEmpty());
  EXPECT_THAT(simulated(), HasSubstr("dev0 compute F1 a 2100us-4100us\n"));
}

TEST_F(CheckTrace, SortedFindsSpansAndSamplesOutOfOrder) {
  EXPECT_THAT(with({{"dev0 compute B1 a 21300us-23300us\n", ""},
                    {"dev1 compute F0", "dev0 compute B1 a 21300us-23300us\ndev1 compute F0"}}),
              only("sorted"));
  EXPECT_THAT(with({{"dev1 compute U b 34600us-39600us", "dev1 compute U b 34600us-39700us"}}),
              only("sorted"));
  EXPECT_THAT(with({{"U b 34600us-39600us", "U b 34600us-34500us"}}), only("sorted"));
  EXPECT_THAT(with({{"memory dev0 2ms", "memory dev0 0ns"}}),
              ElementsAre("sorted: the memory sample of dev0 at 0ns does not stand after the one before it"));
}

TEST_F(CheckTrace, ActionsFindsWhatIsMissingForeignOrTwice) {
  EXPECT_THAT(with({{"dev0 compute U a 34600us-36600us\n", ""}}),
              ElementsAre("actions: a:U is missing on dev0"));
  EXPECT_THAT(with({{"dev0 compute U a", "dev0 compute U b"}}), only("actions"));
  EXPECT_THAT(with({{"dev1 compute F0 b", "dev1 compute F0 b 3600us-7600us\ndev1 compute F0 b"}}),
              ElementsAre("actions: dev1:F0 b stands twice"));
}

TEST_F(CheckTrace, ActionsFindsOverlap) {
  // The tied sum occupies dev0 until 34.6 ms.
  EXPECT_THAT(with({{"dev0 compute U a 34600us-36600us", "dev0 compute U a 34500us-36500us"}}),
              ElementsAre("actions: dev0:U a starts at 34500us, before dev0:T0 ends at 34600us"));
}

TEST_F(CheckTrace, ActionsFindsAnIllegalSchedule) {
  Schedule schedule = make_schedule(model_, 3);
  schedule.devices[0].pop_back();
  EXPECT_THAT(check_trace(model_, cluster_, schedule, simulate(model_, cluster_)),
              ElementsAre("actions: the schedule itself is not legal: complete: a:U is missing"));
}

TEST_F(CheckTrace, DurationFindsAnActionOrEndpointOfAnotherLength) {
  EXPECT_THAT(with({{"dev0 compute U a 34600us-36600us", "dev0 compute U a 34600us-36599us"}}),
              ElementsAre("duration: dev0:U a takes 1999us, not 2ms"));
}

TEST_F(CheckTrace, DurationFindsAMissingEndpoint) {
  // Its message is then also posted later than it could be.
  EXPECT_THAT(
      with(
          {{"dev0 compute send_endpoint F1 a forward x b 1 1 peer dev1 bytes 1000000B 4100us-4200us\n", ""}}),
      Contains("duration: dev0:F1 a forward #0 to dev1 lacks an endpoint of 100us"));
}

TEST_F(CheckTrace, MessagesFindsWhatIsMissingForeignOrTwice) {
  const std::string line =
      "dev0 send F1 a forward x b 1 1 peer dev1 bytes 1000000B 4200us-5700us posted 4200us\n";
  EXPECT_THAT(with({{line, ""}}), only("messages"));
  EXPECT_THAT(with({{line, line + line}}), only("messages"));
  EXPECT_THAT(with({{"send F1 a forward x b 1 1", "send F1 a forward x b 1 2"}}), only("messages"));
  EXPECT_THAT(with({{"bytes 1000000B 4200us-5700us", "bytes 1000001B 4200us-5700us"}}),
              ElementsAre(HasSubstr("carries 1000001B, not 1000000B")));
  EXPECT_THAT(with({{"send F1 a forward x b 1 1", "send F2 a forward x b 1 1"}}), only("messages"));
}

TEST_F(CheckTrace, MessagesFindsOneThatLeavesBeforeItIsThere) {
  EXPECT_THAT(
      with({{"4200us-5700us posted 4200us", "4100us-5600us posted 4100us"}}),
      ElementsAre("messages: dev0:F1 a forward #0 to dev1 is sent at 4100us, before it is there at 4200us"));
}

TEST_F(CheckTrace, MessagesFindsAConsumerThatDoesNotWait) {
  // b's F0 and all that follows it would be early; U b alone is not: it has no message. Take the last
  // gradient: a's B2 starts when it arrives at 29.4 ms, and dev0 has been idle.
  EXPECT_THAT(
      with({{"dev0 compute B2 a 29400us-31400us", "dev0 compute B2 a 29300us-31400us"}}),
      Contains(AllOf(StartsWith("messages: "), HasSubstr("before dev1:B2 b gradient #0 to dev0 arrives"))));
}

TEST_F(CheckTrace, ChannelFindsAMessageOnTheWireBeforeTheLastLeftIt) {
  // x and y leave after the same action, and links are not contended: y is posted when x left the wire.
  cluster_ = cluster_with("1GB latency=500us lanes=unlimited");
  model_.crossings = {crossing("x", 0, 1), crossing("y", 0, 1)};
  EXPECT_THAT(
      with({{"F1 a forward y b 1 1 peer dev1 bytes 1000000B 5ms-6500us posted 5ms",
             "F1 a forward y b 1 1 peer dev1 bytes 1000000B 4900us-6400us posted 4900us"}}),
      ElementsAre("channel: dev0:F1 a forward #1 to dev1 is sent at 4900us, before 5ms, when the message "
                  "before it left the wire"));
}

TEST_F(CheckTrace, LinksFindsATransferOfAnotherLength) {
  EXPECT_THAT(with({{"4200us-5700us posted 4200us", "4200us-5600us posted 4200us"}}),
              ElementsAre("links: dev0:F1 a forward #0 to dev1 takes 1400us, not 1500us"));
}

TEST_F(CheckTrace, LinksFindsTwoTransfersAtOnce) {
  // c on dev2 reads y. x to dev1 and y to dev2 are ready together and share dev0's way out.
  cluster_ = cluster_with("1GB latency=500us");
  model_.stages.push_back(stage("c", 2, 4, 5, 1));
  model_.stages[2].after = {StageId(0)};
  model_.crossings = {crossing("x", 0, 1), crossing("y", 0, 2)};
  EXPECT_THAT(with({}), IsEmpty());
  EXPECT_THAT(
      with({{"F1 a forward y c 1 1 peer dev2 bytes 1000000B 5ms-6500us posted 4ms",
             "F1 a forward y c 1 1 peer dev2 bytes 1000000B 4900us-6400us posted 4ms"}}),
      ElementsAre("links: dev0:F1 a forward #1 to dev2 shares a link with dev0:F1 a forward #0 to dev1 on "
                  "dev0 up"));
}

TEST_F(CheckTrace, CollectiveFindsAStartBeforeAllArrivedAndMembersThatDiffer) {
  // dev0 arrives at 31.4 ms. Everything after the sum is early by as much.
  EXPECT_THAT(
      with({{"dev0 collective T0 bytes 1000000B 31400us-34600us posted 31400us",
             "dev0 collective T0 bytes 1000000B 31300us-34500us posted 31300us"},
            {"dev1 collective T0 bytes 1000000B 31400us-34600us posted 31400us",
             "dev1 collective T0 bytes 1000000B 31300us-34500us posted 31300us"},
            {"U a 34600us-36600us", "U a 34500us-36500us"},
            {"U b 34600us-39600us", "U b 34500us-39500us"},
            {"simulated 39600us", "simulated 39500us"}}),
      AllOf(Contains(StartsWith("collective: dev0:T0 starts at 31300us")),
            Contains(StartsWith("collective: dev1:T0 starts at 31300us")),
            Each(AnyOf(StartsWith("collective: "), StartsWith("memory: ")))));  // its buffers go early
  EXPECT_THAT(with({{"dev1 collective T0 bytes 1000000B", "dev1 collective T0 bytes 999999B"}}),
              ElementsAre("collective: dev1:T0 differs from the other members' or in its bytes"));
}

TEST_F(CheckTrace, EagerFindsAWaitWithoutCause) {
  EXPECT_THAT(with({{"U a 34600us-36600us", "U a 34601us-36601us"}}),
              ElementsAre("eager: dev0:U a starts at 34601us, but could at 34600us"));
  EXPECT_THAT(with({{"7600us-9100us posted 7600us", "7700us-9200us posted 7700us"}}),
              ElementsAre("eager: dev0:F2 a forward #0 to dev1 is posted at 7700us, but could at 7600us"));
  EXPECT_THAT(
      with({{"7600us-9100us posted 7600us", "7700us-9200us posted 7600us"}}),
      ElementsAre("eager: dev0:F2 a forward #0 to dev1 goes on the wire at 7700us, but could at 7600us"));
}

TEST_F(CheckTrace, SlotsFindsAMessageWithoutABufferToReceiveIt) {
  EXPECT_THAT(
      with({{"7600us-9100us posted 7600us", "7500us-9ms posted 7500us"}}),
      ElementsAre("slots: dev0:F2 a forward #0 to dev1 is sent at 7500us, before its receive is posted at "
                  "7600us"));
}

TEST_F(CheckTrace, MemoryFindsAByteTooManyAndAMissingSample) {
  EXPECT_THAT(
      with({{"memory dev0 2100us buffers=1000000B activations=200B",
             "memory dev0 2100us buffers=1000000B activations=201B"}}),
      ElementsAre("memory: dev0 should hold 1000000B buffers + 200B activations from 2100us, the trace has "
                  "1000000B buffers + 201B activations from 2100us"));
  EXPECT_THAT(with({{"memory dev1 34600us\n", ""}}), only("memory"));
  EXPECT_THAT(with({{"memory dev1 34600us\n", "memory dev1 34601us\n"}}), only("memory"));
}

TEST_F(CheckTrace, IterationFindsAnotherEnd) {
  EXPECT_THAT(with({{"simulated 39600us", "simulated 39601us"}}),
              ElementsAre("iteration: is 39601us, but the last span ends at 39600us"));
}

// The simulated trace as if it had been measured: no endpoints; a receive for each message.
class CheckMeasuredTrace : public CheckTrace {
 protected:
  CheckMeasuredTrace() {
    trace_ = simulate(model_, cluster_);
    trace_.origin = Trace::Origin::kMeasured;
    std::vector<Span> spans;
    for (const Span& span : trace_.spans) {
      if (span.kind == SpanKind::kSendEndpoint) continue;
      spans.push_back(span);
      if (span.kind != SpanKind::kTransfer) continue;
      Span wait = span;
      std::tie(wait.device, wait.peer) = std::tuple(*span.peer, span.device);
      wait.stream = Stream::kReceive;
      wait.kind = SpanKind::kReceiveWait;
      wait.start = Duration();
      wait.posted.reset();
      spans.push_back(wait);
    }
    trace_.spans = std::move(spans);
    sort();
  }

  void sort() {
    std::stable_sort(trace_.spans.begin(), trace_.spans.end(), [](const Span& a, const Span& b) {
      return std::tie(a.device, a.stream, a.start, a.end) < std::tie(b.device, b.stream, b.start, b.end);
    });
  }
  Span& span(std::size_t device, Stream stream, ActionKind kind, std::uint32_t micro_batch) {
    const auto found = std::find_if(trace_.spans.begin(), trace_.spans.end(), [&](const Span& s) {
      const bool same =
          s.message ? s.message->producer_micro_batch == micro_batch : s.action.micro_batch == micro_batch;
      return s.device == DeviceId(device) && s.stream == stream && s.action.kind == kind && same;
    });
    EXPECT_NE(found, trace_.spans.end());
    return *found;
  }
  std::vector<std::string> violations() {
    sort();
    return check_trace(model_, cluster_, make_schedule(model_, 3), trace_);
  }
  Trace trace_;
};

TEST_F(CheckMeasuredTrace, AcceptsWhatTheComparisonsBelowStartFrom) {
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(CheckMeasuredTrace, AcceptsAnyDurationsAndWaits) {
  span(0, Stream::kCompute, ActionKind::kForward, 2).end += microseconds(3);
  span(0, Stream::kCompute, ActionKind::kUpdate, 0).start += microseconds(700);
  trace_.memory.clear();
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(CheckMeasuredTrace, SortedActionsAndIterationHold) {
  trace_.iteration += nanoseconds(1);
  EXPECT_THAT(violations(), only("iteration"));
  trace_.iteration -= nanoseconds(2);
  EXPECT_THAT(violations(), only("sorted"));
  trace_.iteration += nanoseconds(1);
  span(0, Stream::kCompute, ActionKind::kUpdate, 0).start -= microseconds(1);
  EXPECT_THAT(violations(), only("actions"));
}

TEST_F(CheckMeasuredTrace, MessagesMustBeThereBeforeTheyAreSentAndUsed) {
  span(0, Stream::kSend, ActionKind::kForward, 1).start = microseconds(4000);  // F1 ends at 4.1 ms
  EXPECT_THAT(violations(),
              ElementsAre(HasSubstr("messages: dev0:F1 a forward #0 to dev1 is sent at 4ms, before")));
}

TEST_F(CheckMeasuredTrace, ConsumersStartAfterTheReceive) {
  span(1, Stream::kReceive, ActionKind::kForward, 0).end += nanoseconds(1);
  EXPECT_THAT(violations(),
              ElementsAre(AllOf(StartsWith("messages: dev1:F0 b starts at"), HasSubstr("before"))));
}

TEST_F(CheckMeasuredTrace, AReceiveIsMissing) {
  const Span& receive = span(1, Stream::kReceive, ActionKind::kForward, 0);
  trace_.spans.erase(trace_.spans.begin() + (&receive - trace_.spans.data()));
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("has no receive")));
}

TEST_F(CheckMeasuredTrace, NothingIsReceivedBeforeItIsSentWithinWhatTheClocksAllow) {
  // The message of F1 is sent at 4.2 ms. Clocks of two hosts may differ by 2 × 3 us.
  span(1, Stream::kReceive, ActionKind::kForward, 1).end = microseconds(4195);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("is received at 4195us, before it is sent at 4200us")));
  trace_.notes = {"clock offset dev1 12us ±3us"};
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(CheckMeasuredTrace, ChannelsDeliverInOrder) {
  span(1, Stream::kReceive, ActionKind::kForward, 2).end = microseconds(9100);
  span(1, Stream::kReceive, ActionKind::kForward, 1).end = microseconds(9101);
  EXPECT_THAT(violations(), only("channel"));
}

TEST_F(CheckMeasuredTrace, CollectivesEndAfterAllArrived) {
  trace_.iteration += milliseconds(3);
  Span& late = span(0, Stream::kCollective, ActionKind::kTieSum, 0);
  late.start = late.end = microseconds(36'000);
  span(0, Stream::kCompute, ActionKind::kUpdate, 0).start = microseconds(36'000);
  span(0, Stream::kCompute, ActionKind::kUpdate, 0).end = trace_.iteration;
  // dev1's sum ended at 34.6 ms without dev0's part.
  EXPECT_THAT(violations(),
              ElementsAre(AllOf(StartsWith("collective: dev1:T0 ends at"), HasSubstr("arrives"))));
}

TEST_F(CheckMeasuredTrace, SlotsHold) {
  // The third message needs the slot that b's F0 gives back at 7.6 ms.
  span(0, Stream::kSend, ActionKind::kForward, 2).start = microseconds(6300);
  span(1, Stream::kReceive, ActionKind::kForward, 2).end = microseconds(7599);
  EXPECT_THAT(violations(), only("slots"));
}

TEST(CheckTraceProperty, EverySimulatedTraceIsAccepted) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Rng rng(seed * 3'000'017 + 2);
    RandomModelOptions options;
    options.unequal_sizes = seed % 4 == 1;
    options.random_limits = seed % 4 == 2;
    const auto [model, cluster] = random_staged_model(rng, options);
    const Schedule schedule = make_schedule(model, cluster.devices().size());
    const Trace trace = simulate(model, cluster, schedule);
    ASSERT_THAT(check_trace(model, cluster, schedule, trace), IsEmpty()) << seed;
    ASSERT_EQ(parse_trace(print_trace(trace)), trace) << seed;
  }
}

void mutate(Rng& rng, Trace& trace) {
  const std::size_t i = rng.below(trace.spans.size());
  Span& span = trace.spans[i];
  const Duration by =
      nanoseconds(rng.below(2) == 0 ? 1 : -1) * static_cast<std::int64_t>(1 + rng.below(20'000));
  switch (rng.below(8)) {
    case 0:
      span.start += by;
      break;
    case 1:
      span.end += by;
      break;
    case 2:
      span.start += by, span.end += by;
      if (span.posted) *span.posted += by;
      break;
    case 3:
      if (span.posted) *span.posted += by;
      break;
    case 4:
      trace.spans.erase(trace.spans.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    case 5:
      trace.spans.insert(trace.spans.begin() + static_cast<std::ptrdiff_t>(i), span);
      break;
    case 6:
      span.action.micro_batch ^= 1;
      break;
    default: {
      MemorySample& sample = trace.memory[rng.below(trace.memory.size())];
      sample.held.bytes[rng.below(kMemoryCategories)] += Bytes(1);
    }
  }
  std::stable_sort(trace.spans.begin(), trace.spans.end(), [](const Span& a, const Span& b) {
    return std::tie(a.device, a.stream, a.start, a.end) < std::tie(b.device, b.stream, b.start, b.end);
  });
}

TEST(CheckTraceProperty, NoChangeOfASimulatedTraceIsAccepted) {
  int changed = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    Rng rng(seed * 5'000'011 + 9);
    const auto [model, cluster] = random_staged_model(rng);
    const Schedule schedule = make_schedule(model, cluster.devices().size());
    const Trace original = simulate(model, cluster, schedule);
    Trace mutant = original;
    mutate(rng, mutant);
    if (mutant == original) continue;
    ++changed;
    ASSERT_THAT(check_trace(model, cluster, schedule, mutant), Not(IsEmpty())) << seed << print_trace(mutant);
  }
  EXPECT_GT(changed, 1000);
}

}  // namespace
}  // namespace espalier
