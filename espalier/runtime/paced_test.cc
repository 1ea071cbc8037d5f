// Plans that are tried without being computed: what is waited for, what is sent, and how long it takes at
// least. How long at most depends on the machine: bench/paced.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "espalier/runtime/loaded_model.h"
#include "espalier/runtime/plans_for_tests.h"
#include "espalier/runtime/runtime.h"
#include "espalier/schedule/order_file.h"
#include "testing/cut_plan.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using espalier::testing::CutOptions;
using espalier::testing::plan_from_cuts;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// gpt in two stages that share a weight; the second with micro-batches of `second`.
PlanFile gpt_in_two(const CutOptions& options, int devices, BatchSize second = BatchSize(2)) {
  const LoadedModel model(kFixtures + "gpt.pt2");
  const Graph& graph = model.graph();
  PipelinePlan plan = plan_from_cuts(graph, {graph.find_operator("layer_norm_2").value().index()}, options);
  if (second != plan.stages[1].micro_batch) {
    plan.stages[1].micro_batch = second;
    plan.stages[1].replicas[0].micro_batches = round_robin(plan.micro_batches(StageId(1)), 0, 1);
    const std::vector<std::uint32_t> limits = in_flight_limits(plan);
    for (std::size_t s = 0; s < limits.size(); ++s) plan.stages[s].in_flight = limits[s];
  }
  PlanFile file = make_plan_file(graph, cpus(devices), {plan.batch, {BatchSize(2)}, {}}, plan,
                                 staged_for_tests(graph, cpus(devices), plan, {}));
  file.model = "not-there.pt2";
  return file;
}

void expect_kept(const PlanFile& file, double slower) {
  const PacedResult result = run_paced(file, {.world = {}, .steps = 2, .slower = slower});
  ASSERT_THAT(result.steps, SizeIs(2));
  ASSERT_TRUE(result.trace.has_value());
  const Trace& trace = *result.trace;
  const Schedule schedule = schedule_of(file, "the plan");
  EXPECT_THAT(check_trace(file.staged, Cluster(file.cluster), schedule, trace), IsEmpty());
  for (const Span& span : trace.spans) {
    if (span.kind != SpanKind::kTransfer) continue;
    const Crossing& crossing = file.staged.crossings[span.message->crossing];
    for (const Crossing::Reader& reader : crossing.readers) {
      if (reader.stage != span.message->reader) continue;
      const bool back = span.message->direction == Message::Direction::kBackward;
      EXPECT_EQ(span.bytes, back ? reader.gradient : reader.bytes) << crossing.tensor;
    }
  }
  // No device is faster than its actions, whatever it waits for.
  for (std::size_t d = 0; d < schedule.devices.size(); ++d) {
    Duration least;
    for (const Action& action : schedule.devices[d]) {
      if (once_per_step(action.kind)) continue;
      const StageTimes& times = file.staged.stages[action.stage().index()].replicas[0].times;
      least += action.kind == ActionKind::kForward          ? times.forward
               : action.kind == ActionKind::kBackward       ? times.backward()
               : action.kind == ActionKind::kInputGradient  ? times.input_half()
               : action.kind == ActionKind::kWeightGradient ? times.weight_half()
                                                            : times.recompute;
    }
    for (const Duration step : result.steps) {
      EXPECT_GE(step.count(), slower * static_cast<double>(least.count())) << d;
    }
  }
}

TEST(Paced, APlanKeepsItsTimesAndSendsItsBytesWithoutItsModel) {
  expect_kept(gpt_in_two({}, 2), 10);
}

TEST(Paced, HalvesRecomputationReplicasAndSumsAreKeptToo) {
  CutOptions options{.batch = BatchSize(10), .schedule = parse_order_rule("1f1b,split"), .recompute = true};
  options.devices = {{DeviceId(0), DeviceId(1)}, {DeviceId(2)}};
  expect_kept(gpt_in_two(options, 3), 2);
}

TEST(Paced, StagesOfOneDeviceSendNothing) {
  CutOptions options;
  options.devices = {{DeviceId(0)}, {DeviceId(0)}};
  options.chain = true;
  expect_kept(gpt_in_two(options, 1), 2);
}

TEST(Paced, MicroBatchesOfDifferentSizesAreKeptToo) {
  expect_kept(gpt_in_two({.batch = BatchSize(16)}, 2, BatchSize(4)), 2);
}

TEST(Paced, AGroupOfDevicesIsRefusedInOneLine) {
  PlanFile file = gpt_in_two({}, 2);
  file.staged.stages[1].replicas[0].devices.push_back(DeviceId(0));
  EXPECT_THAT(testing::refusal([&] { run_paced(file, {}); }), HasSubstr("tensor-parallel"));
}

}  // namespace
}  // namespace espalier
