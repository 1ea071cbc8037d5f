// A plan file with a placement in place of stages, as it was written for two linear layers side by side and
// their sum: one layer on gpu:1, all else on gpu:0.

#include <gtest/gtest.h>

#include "espalier/base/files.h"
#include "espalier/graph/text.h"
#include "espalier/plan/plan_file.h"
#include "espalier/sim/simulate.h"
#include "espalier/trace/trace.h"

namespace espalier {
namespace {

const std::string kPath = std::string(ESPALIER_SOURCE_DIR) + "/tests/golden/placement.json";

TEST(PlacementFile, StandsForTheSameOperatorsOnTheSameDevices) {
  const PlanFile file = parse_plan_file(read_file(kPath), kPath);
  EXPECT_EQ(print_plan_file(file), read_file(kPath));
  const Graph graph = parse_graph(
      "batch 1..4\nx = input() : f32[b,4]\nw = parameter(w) : f32[4,4]\nv = parameter(v) : f32[4,4]\n"
      "a = linear(x, w) : f32[b,4]\nc = linear(x, v) : f32[b,4]\nd = add(a, c) : f32[b,4]\n"
      "loss = mean(d) : f32[]\n");
  const PipelinePlan plan = resolve_plan(file, graph);
  const auto op = [&](const char* name) { return *graph.find_operator(name); };
  ASSERT_EQ(plan.stages.size(), 3u);  // a, c, and d with the loss
  const std::vector<std::vector<OperatorId>> operators{{op("a")}, {op("c")}, {op("d"), op("loss")}};
  const std::size_t devices[] = {0, 1, 0};
  for (std::size_t s = 0; s < 3; ++s) {
    EXPECT_EQ(plan.stages[s].operators, operators[s]);
    EXPECT_EQ(plan.stages[s].replicas, (std::vector<Replica>{{{DeviceId(devices[s])}, {0}}}));
  }
}

TEST(PlacementFile, TakesTheStepThatItTook) {
  const PlanFile file = parse_plan_file(read_file(kPath), kPath);
  const Cluster cluster(file.cluster);
  const Schedule schedule = make_schedule(file.staged, cluster.devices().size());
  const Trace trace = simulate(file.staged, cluster, schedule);
  EXPECT_EQ(check_trace(file.staged, cluster, schedule, trace), std::vector<std::string>());
  // c's forward 3731 ns, its 64 bytes at 1 GB/s and 1 us of latency to gpu:0: 4795. There d and the loss,
  // forward and backward 2325 each: 9445. gpu:0 goes on with a's backward 3731 and the updates 1560 and 1000:
  // 15736. The gradient is back at gpu:1 at 10509; backward 3731, update 1560.
  EXPECT_EQ(trace.iteration, nanoseconds(15'800));
}

}  // namespace
}  // namespace espalier
