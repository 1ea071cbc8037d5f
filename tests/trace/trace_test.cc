#include "espalier/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/sim/simulate.h"
#include "espalier/trace/json.h"
#include "testing/random_staged_model.h"
#include "testing/refusal.h"
#include "testing/worked_example.h"

namespace espalier {
namespace {

using espalier::testing::worked_example;
using espalier::testing::WorkedExample;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;

Trace worked(WorkedExample which) {
  const auto [model, cluster] = worked_example(which);
  return simulate(model, cluster);
}

TEST(Trace, WorkedExampleTakesTheTimesOfTheDesign) {
  const Trace graph = worked(WorkedExample::kGraphPipeline);
  EXPECT_EQ(graph.iteration, milliseconds(26));
  EXPECT_EQ(worked(WorkedExample::kChain).iteration, milliseconds(34));
  EXPECT_THAT(print_trace(graph), HasSubstr("dev2 compute F0 head 2500us-3500us\n"
                                            "dev2 compute B0 head 3500us-5500us\n"
                                            "dev2 compute F1 head 5500us-6500us\n"
                                            "dev2 compute B1 head 6500us-8500us\n"
                                            "dev2 compute F2 head 12500us-13500us\n"));
}

TEST(Trace, BusyTimeCountsComputeAndTheBubbleIsTheRest) {
  const Trace trace = worked(WorkedExample::kGraphPipeline);
  // A tower: 4 × (2 + 4) ms; the head: 4 × (1 + 2) ms; idle: 3 × 26 - 60 of 3 × 26.
  EXPECT_THAT(busy_time(trace), ElementsAre(milliseconds(24), milliseconds(24), milliseconds(12)));
  EXPECT_DOUBLE_EQ(bubble_ratio(trace), 18.0 / 78.0);
}

TEST(Trace, BubbleIgnoresDevicesWithoutWorkAndEmptyTraces) {
  Trace trace = worked(WorkedExample::kGraphPipeline);
  trace.devices.push_back("idle");
  EXPECT_DOUBLE_EQ(bubble_ratio(trace), 18.0 / 78.0);
  EXPECT_EQ(bubble_ratio(Trace()), 0);
}

TEST(Trace, PeakIsTheFirstLargestSampleOfEachDevice) {
  Trace trace;
  trace.devices = {"a", "b"};
  trace.memory = {{DeviceId(0), Duration(0), {{Bytes(1), {}, {}, {}, Bytes(4)}}},
                  {DeviceId(0), Duration(1), {{Bytes(2), {}, {}, {}, Bytes(3)}}},
                  {DeviceId(0), Duration(2), {{Bytes(1), {}, {}, {}, Bytes(2)}}}};
  EXPECT_THAT(peak_memory(trace),
              ElementsAre(MemoryByCategory{{Bytes(1), {}, {}, {}, Bytes(4)}}, MemoryByCategory{}));
  EXPECT_EQ(peak_memory(trace)[0].total(), Bytes(5));
}

TEST(Trace, TheTowersOfTheWorkedExampleHoldTwoMicroBatchesAgainstThree) {
  // What img keeps is its output, 1 MiB per micro-batch, until it is sent.
  auto held = [](WorkedExample which) {
    auto [model, cluster] = worked_example(which);
    for (StagedStage& stage : model.stages) stage.memory.saved = mebibytes(10);
    for (Crossing& crossing : model.crossings) crossing.output = Bytes();
    return peak_memory(simulate(model, cluster))[0]
        .bytes[static_cast<std::size_t>(MemoryCategory::kActivations)];
  };
  EXPECT_EQ(held(WorkedExample::kGraphPipeline), mebibytes(20));
  EXPECT_EQ(held(WorkedExample::kChain), mebibytes(30));
}

TEST(DiffTraces, PairsEqualActionsAndNamesTheOthers) {
  const Trace a = worked(WorkedExample::kGraphPipeline);
  Trace b = worked(WorkedExample::kChain);
  std::erase_if(b.spans, [](const Span& s) { return s.device == DeviceId(1) && s.action.micro_batch == 3; });
  b.spans.push_back(b.spans.front());
  b.spans.back().action.kind = ActionKind::kUpdate;
  const TraceDifference difference = diff_traces(a, b);
  EXPECT_EQ(difference.iteration_a, milliseconds(26));
  EXPECT_EQ(difference.iteration_b, milliseconds(34));
  EXPECT_EQ(difference.actions.size(), 22u);  // 24 without dev1's F3 and B3
  const ActionDifference& second = difference.actions[2];
  EXPECT_EQ(second.action, (Action{ActionKind::kBackward, StageId(0), 0}));
  EXPECT_EQ(second.start_a, milliseconds(6));
  EXPECT_GT(second.start_b, second.start_a);
  EXPECT_THAT(difference.only_in_a, ElementsAre("dev1:F3 txt", "dev1:B3 txt"));
  EXPECT_THAT(difference.only_in_b, ElementsAre("dev0:U img"));
}

TEST(DiffTraces, ATraceDoesNotDifferFromItself) {
  const Trace a = worked(WorkedExample::kChain);
  const TraceDifference difference = diff_traces(a, a);
  EXPECT_THAT(difference.only_in_a, IsEmpty());
  EXPECT_THAT(difference.only_in_b, IsEmpty());
  for (const ActionDifference& action : difference.actions) EXPECT_EQ(action.start_a, action.start_b);
}

// Names that a line of words cannot hold as they are, and the rarer kinds of span.
Trace awkward() {
  Trace trace;
  trace.origin = Trace::Origin::kMeasured;
  trace.devices = {"gpu 0", "memory", "#1", "", "twin", "twin", "a\"b\\c\nd", "größe"};
  trace.capacity.assign(trace.devices.size(), gibibytes(1));
  trace.stages = {"stage one", "x", "x"};
  trace.tensors = {"t", "note"};
  trace.notes = {"clock offset host1 12us ±3us"};
  trace.iteration = Duration(12'345'678'901);
  for (std::size_t d = 0; d < trace.devices.size(); ++d) {
    Span span;
    span.device = DeviceId(d);
    span.action = {ActionKind::kForward, StageId(d % 4), 7};  // stage 3 does not exist
    span.start = Duration(1);
    span.end = Duration(1'000'001);
    trace.spans.push_back(span);
    span.stream = Stream::kReceive;
    span.kind = SpanKind::kReceiveWait;
    span.message = Message{Message::Direction::kBackward, 1, StageId(2), 3, 4};
    span.peer = DeviceId(7 - d);
    span.bytes = Bytes(5);
    span.posted = Duration(0);
    trace.spans.push_back(span);
    span.stream = Stream::kCollective;
    span.kind = SpanKind::kCollective;
    span.action = Action(TieId(9));
    trace.spans.push_back(span);
    trace.memory.push_back({DeviceId(d), Duration(3), {{Bytes(1), Bytes(2), Bytes(3), Bytes(4), Bytes(5)}}});
  }
  return trace;
}

TEST(TraceText, ParsesBackWhateverTheNames) {
  EXPECT_EQ(parse_trace(print_trace(awkward())), awkward()) << print_trace(awkward());
  EXPECT_EQ(parse_trace(print_trace(Trace())), Trace());
}

TEST(TraceText, WrongTextSaysWhereAndWhatWouldBeRight) {
  const auto parse = [](std::string_view text) { return [text] { parse_trace(text); }; };
  EXPECT_THAT(refusal(parse("trace simulated 1ms\ndev0 compute F0 a 0ns-1ns")),
              "line 2: device 'dev0' is not declared above");
  const std::string head = "device d 1B\nstage a\n";
  const auto after = [&](const std::string& line) { return [text = head + line] { parse_trace(text); }; };
  EXPECT_THAT(refusal(after("d compute X0 a 0ns-1ns")), HasSubstr("line 3: 'X0' is not an action"));
  EXPECT_THAT(refusal(after("d wander F0 a 0ns-1ns")), HasSubstr("'wander' is no stream; expected"));
  EXPECT_THAT(refusal(after("d compute F0 a 0ns")), HasSubstr("is not start-end"));
  EXPECT_THAT(refusal(after("d compute F0 a 0ns-1parsec")), HasSubstr("line 3: '1parsec' is not a time"));
  EXPECT_THAT(refusal(after("d compute F0 a 0ns-1ns much")), HasSubstr("'much' is not expected here"));
  EXPECT_THAT(refusal(after("memory d 0ns cake=1B")), HasSubstr("is not a category and its size"));
  EXPECT_THAT(refusal(after("\"open")), HasSubstr("a string has no end"));
  EXPECT_THAT(refusal(after("#9 compute F0 a 0ns-1ns")), HasSubstr("there is no device #9"));
  EXPECT_THAT(refusal(after("d compute F0 a -1ns-1ns")), HasSubstr("line 3: '-1ns' is negative"));
}

// What reads a trace adds these up.
TEST(TraceText, SumsThatDoNotFitAreRefused) {
  const std::string head = "device d 1B\nstage a\n", most = std::to_string(std::int64_t{1} << 62);
  const std::string span = "d compute F0 a 0ns-" + most + "ns\n", more = "d compute F1 a 0ns-1ns\n";
  EXPECT_EQ(busy_time(parse_trace(head + span))[0].count(), std::int64_t{1} << 62);
  EXPECT_THAT(refusal([&] { parse_trace(head + span + more); }), "the spans take more than 2^62 ns together");
  const std::string sample = "memory d 0ns buffers=" + most + "B";
  Trace trace = parse_trace(head + sample);
  EXPECT_THAT(refusal([&] { parse_trace(head + sample + " activations=1B"); }),
              "a memory sample holds more than 2^62 bytes");
  trace.memory[0].held.bytes[0] = Bytes(1);
  EXPECT_THAT(refusal([&] { trace_from_json(trace_to_json(trace), "t.json"); }), HasSubstr("t.json"));
}

// JSON cannot hold such a name, and would put another in its place.
TEST(TraceText, NamesAreUtf8) {
  for (const char* line : {"device \xff 1B", "stage \xc3", "tensor \"\xff\"", "note \xff"}) {
    EXPECT_THAT(refusal([&] { parse_trace(line); }), "line 1: is not UTF-8");
  }
}

TEST(TraceText, AnyTextGivesAValueOrAnInputError) {
  const std::string seed = print_trace(awkward());
  Rng rng(11);
  for (int i = 0; i < 3000; ++i) {
    std::string text = seed;
    for (std::uint64_t k = rng.below(4); k-- > 0;) {
      const std::size_t at = rng.below(text.size());
      if (rng.below(2) == 0) {
        text[at] = static_cast<char>(rng.below(256));
      } else {
        text.erase(at, 1 + rng.below(20));
      }
    }
    try {
      const Trace trace = parse_trace(text);
      EXPECT_EQ(parse_trace(print_trace(trace)).spans.size(), trace.spans.size());
      chrome_trace(trace);
      peak_memory(trace);
      bubble_ratio(trace);
    } catch (const InputError&) {
    }
  }
}

TEST(TraceJson, ParsesBack) {
  for (const Trace& trace : {awkward(), worked(WorkedExample::kChain), Trace()}) {
    const std::string text = print_json(trace_to_json(trace));
    EXPECT_EQ(trace_from_json(parse_json(text, "t.json"), "t.json"), trace);
  }
}

TEST(TraceJson, WrongDocumentsAreRefusedWithTheirPlace) {
  const auto read = [](const std::string& spans) {
    return [spans] {
      const std::string text = R"({"format": "espalier.trace/1", "origin": "simulated", "iteration_ns": 5,
        "devices": [{"name": "d", "memory": 1}], "stages": [], "tensors": [], "notes": [], "memory": [],
        "spans": )" + spans + "}";
      trace_from_json(parse_json(text, "t.json"), "t.json");
    };
  };
  EXPECT_THAT(refusal(read(R"([{"device": 1, "stream": "compute"}])")),
              HasSubstr("t.json: spans[0].device: is 1; expected a whole number from 0 to 0"));
  EXPECT_THAT(refusal(read(R"([{"device": 0, "stream": "beam"}])")),
              HasSubstr("is 'beam'; expected one of compute, send, receive, collective"));
  EXPECT_THAT(refusal(read(R"([{"device": 0, "stream": "send", "start_ns": 1, "actoin": "F"}])")),
              HasSubstr("did you mean 'action'?"));
  EXPECT_THAT(
      refusal(read(
          R"([{"device": 0, "stream": "send", "action": "F", "stage": 0, "micro_batch": 0, "start_ns": -1}])")),
      HasSubstr("spans[0].start_ns"));
}

}  // namespace
}  // namespace espalier
