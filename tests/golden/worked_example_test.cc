// The worked example of docs/design.md §4, to the digit. Every expected number stands beside its derivation;
// a golden that changes is explained in the commit.

#include "testing/worked_example.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "espalier/sim/simulate.h"
#include "testing/reference_simulator.h"

namespace espalier {
namespace {

using espalier::testing::reference_simulate;
using espalier::testing::ReferenceOptions;
using espalier::testing::worked_example;
using espalier::testing::worked_example_orders;
using espalier::testing::WorkedExample;
using ::testing::HasSubstr;

// "dev0  F0 0-2 F1 2-4 …" in milliseconds.
std::string compute_spans(const Trace& trace) {
  std::ostringstream out;
  for (std::size_t device = 0; device < trace.devices.size(); ++device) {
    out << trace.devices[device] << ' ';
    for (const Span& span : trace.spans) {
      if (span.device != DeviceId(device) || span.stream != Stream::kCompute) continue;
      out << ' ' << letter(span.action.kind) << span.action.micro_batch << ' ' << to_milliseconds(span.start)
          << '-' << to_milliseconds(span.end);
    }
    out << '\n';
  }
  return out.str();
}

Trace run(WorkedExample which, TokenRule tokens = TokenRule::kBothWays) {
  const auto [model, cluster] = worked_example(which, tokens);
  const Schedule schedule = parse_schedule(worked_example_orders(which), model, cluster);
  EXPECT_EQ(check_schedule(model, schedule), std::vector<std::string>());
  Trace trace = simulate(model, cluster, schedule);
  EXPECT_EQ(check_trace(model, cluster, schedule, trace), std::vector<std::string>());
  EXPECT_EQ(trace, reference_simulate(model, cluster, schedule));
  return trace;
}

TEST(WorkedExample, GraphPipelineTakes26Milliseconds) {
  // A tower is busy 4 × (2 + 4) = 24 ms. It waits once, for the first gradient: F0 ends at 2, the message is
  // there at 2.5, the head takes 1 + 2 ms, the gradient is back at 6.0, and the tower was busy until 4: 2 ms
  // idle. 24 + 2 = 26.
  const Trace trace = run(WorkedExample::kGraphPipeline);
  EXPECT_EQ(trace.iteration, milliseconds(24 + 2));
  EXPECT_EQ(compute_spans(trace),
            "dev0  F0 0-2 F1 2-4 B0 6-10 F2 10-12 B1 12-16 F3 16-18 B2 18-22 B3 22-26\n"
            "dev1  F0 0-2 F1 2-4 B0 6-10 F2 10-12 B1 12-16 F3 16-18 B2 18-22 B3 22-26\n"
            "dev2  F0 2.5-3.5 B0 3.5-5.5 F1 5.5-6.5 B1 6.5-8.5 F2 12.5-13.5 B2 13.5-15.5 F3 18.5-19.5 "
            "B3 19.5-21.5\n");
}

TEST(WorkedExample, ChainTakes34Milliseconds) {
  // With tokens both ways the chain is as deep as it is long. The path that decides, in milliseconds:
  //   dev0 F0 2, token 0.5, dev1 F0 2, message 0.5, dev2 F0 B0 3, gradient 0.5, dev1 B0 4, token 0.5   = 13
  //   dev0 B0 4, F3 2, token 0.5                                                                       = 6.5
  //   dev1 F3 2, B2 4, token 0.5                                                                       = 6.5
  //   dev0 B2 4, B3 4                                                                                  = 8
  const Trace trace = run(WorkedExample::kChain);
  EXPECT_EQ(trace.iteration, microseconds(13'000 + 6'500 + 6'500 + 8'000));
  EXPECT_EQ(compute_spans(trace),
            "dev0  F0 0-2 F1 2-4 F2 4-6 B0 13-17 F3 17-19 B1 19-23 B2 26-30 B3 30-34\n"
            "dev1  F0 2.5-4.5 F1 4.5-6.5 B0 8.5-12.5 F2 12.5-14.5 B1 14.5-18.5 F3 19.5-21.5 B2 21.5-25.5 "
            "B3 25.5-29.5\n"
            "dev2  F0 5-6 B0 6-8 F1 8-9 B1 9-11 F2 15-16 B2 16-18 F3 22-23 B3 23-25\n");
}

TEST(WorkedExample, ChainWithFreeTokensTakes32Milliseconds) {
  // The same path; its four tokens cost nothing: 34 - 4 × 0.5.
  const Trace trace = run(WorkedExample::kChain, TokenRule::kFree);
  EXPECT_EQ(trace.iteration, microseconds(34'000 - 4 * 500));
  EXPECT_EQ(compute_spans(trace),
            "dev0  F0 0-2 F1 2-4 F2 4-6 B0 12-16 F3 16-18 B1 18-22 B2 24-28 B3 28-32\n"
            "dev1  F0 2-4 F1 4-6 B0 8-12 F2 12-14 B1 14-18 F3 18-20 B2 20-24 B3 24-28\n"
            "dev2  F0 4.5-5.5 B0 5.5-7.5 F1 7.5-8.5 B1 8.5-10.5 F2 14.5-15.5 B2 15.5-17.5 F3 20.5-21.5 "
            "B3 21.5-23.5\n");
}

TEST(WorkedExample, ChainWithTokensOnTheWayForwardTakes28AndAHalfMilliseconds) {
  // dev1 gets its first gradient at 2 + 0.5 + 2 + 0.5 + 3 + 0.5 = 8.5 and never waits again: four backwards
  // of 4 ms and the two forwards that are left, 20 ms.
  const Trace trace = run(WorkedExample::kChain, TokenRule::kForwardOnly);
  EXPECT_EQ(trace.iteration, microseconds(8'500 + 4 * 4'000 + 2 * 2'000));
  EXPECT_EQ(compute_spans(trace),
            "dev0  F0 0-2 F1 2-4 F2 4-6 B0 8.5-12.5 F3 12.5-14.5 B1 14.5-18.5 B2 18.5-22.5 B3 24.5-28.5\n"
            "dev1  F0 2.5-4.5 F1 4.5-6.5 B0 8.5-12.5 F2 12.5-14.5 B1 14.5-18.5 F3 18.5-20.5 B2 20.5-24.5 "
            "B3 24.5-28.5\n"
            "dev2  F0 5-6 B0 6-8 F1 8-9 B1 9-11 F2 15-16 B2 16-18 F3 21-22 B3 22-24\n");
}

TEST(WorkedExample, ChainOrdersWithDataEdgesAloneTakeWhatTheGraphPipelineTakes) {
  // dev1 and dev2 do as in the graph pipeline; dev0 runs F2 early and then waits for its last gradient until
  // 22: 22 + 4.
  const Trace trace = run(WorkedExample::kChain, TokenRule::kNone);
  EXPECT_EQ(trace.iteration, milliseconds(22 + 4));
  EXPECT_EQ(compute_spans(trace),
            "dev0  F0 0-2 F1 2-4 F2 4-6 B0 6-10 F3 10-12 B1 12-16 B2 16-20 B3 22-26\n"
            "dev1  F0 0-2 F1 2-4 B0 6-10 F2 10-12 B1 12-16 F3 16-18 B2 18-22 B3 22-26\n"
            "dev2  F0 2.5-3.5 B0 3.5-5.5 F1 5.5-6.5 B1 6.5-8.5 F2 12.5-13.5 B2 13.5-15.5 F3 18.5-19.5 "
            "B3 19.5-21.5\n");
}

TEST(WorkedExample, WithOneSlotFewerTheHeadWaitsForItsSecondInput) {
  // With w = 1 slot an edge, message 1 leaves when B0 gives the slot back at 5.5, and is there at 6.0; with
  // w + 1 = 2 it waited on dev2 since 4.5. So F1 is 6.0-7.0, not 5.5-6.5.
  const auto [model, cluster] = worked_example(WorkedExample::kGraphPipeline);
  const Schedule schedule =
      parse_schedule(worked_example_orders(WorkedExample::kGraphPipeline), model, cluster);
  const Trace trace = reference_simulate(model, cluster, schedule, ReferenceOptions{.slots_beyond_limit = 0});
  EXPECT_THAT(compute_spans(trace), HasSubstr("dev2  F0 2.5-3.5 B0 3.5-5.5 F1 6-7 B1 7-9 F2 12.5-13.5"));
  EXPECT_THAT(compute_spans(run(WorkedExample::kGraphPipeline)),
              HasSubstr("dev2  F0 2.5-3.5 B0 3.5-5.5 F1 5.5-6.5 B1 6.5-8.5 F2 12.5-13.5"));
}

TEST(WorkedExample, AStageHoldsOneBufferPerMicroBatchInFlightAndOneSlotMore) {
  // img keeps a gradient buffer of 1 MiB per micro-batch between F and B: 2 in the graph pipeline, 3 in the
  // chain. The head (w = 1) has w + 1 receive slots of 1 MiB on each of two edges.
  const auto buffers = [](const Trace& trace, std::size_t device) {
    Bytes most;
    for (const MemorySample& sample : trace.memory) {
      if (sample.device != DeviceId(device)) continue;
      most = std::max(most, sample.held.bytes[static_cast<std::size_t>(MemoryCategory::kBuffers)]);
    }
    return most;
  };
  EXPECT_EQ(buffers(run(WorkedExample::kGraphPipeline), 0), mebibytes(2));
  EXPECT_EQ(buffers(run(WorkedExample::kChain), 0), mebibytes(3));
  EXPECT_EQ(buffers(run(WorkedExample::kGraphPipeline), 2), mebibytes((1 + 1) * 2));
}

}  // namespace
}  // namespace espalier
