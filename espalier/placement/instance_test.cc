#include "espalier/placement/instance.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "espalier/graph/expand_backward.h"
#include "espalier/graph/text.h"
#include "testing/random_graphs.h"
#include "testing/refusal.h"

namespace espalier::placement {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Every class takes 10 ns forward and 20 back, keeps its first input and 5 bytes, and works in 3.
CostTable costs_of(const Graph& graph, const Cluster& cluster) {
  CostTableParts parts;
  for (const Operator& op : graph.operators()) {
    OperatorCost cost;
    cost.forward = nanoseconds(10);
    cost.input_gradient = cost.weight_gradient = nanoseconds(10);
    cost.saved = {{SavedTensor::Side::kInput, 0}};
    cost.private_bytes = Bytes(5);
    cost.workspace = Bytes(3);
    const auto same = [&](const CostRow& row) { return row.op_class == op.op_class; };
    if (std::any_of(parts.rows.begin(), parts.rows.end(), same)) continue;
    for (const DeviceKind& kind : cluster.kinds()) {
      parts.rows.push_back({op.op_class, kind.name, {}, {{BatchSize(1), cost}}});
    }
  }
  return CostTable(std::move(parts));
}

Instance instance_of(const Graph& graph, const Cluster& cluster) {
  Training training;
  training.batch = BatchSize(1);
  return make_instance(graph, cluster, costs_of(graph, cluster), training, {});
}

std::vector<std::size_t> indices(std::span<const TaskId> tasks) {
  std::vector<std::size_t> result;
  for (const TaskId task : tasks) result.push_back(task.index());
  return result;
}

TEST(PlacementInstance, AForwardGraphIsMirrored) {
  // a and b are computed from the parameter w: tasks a b, then b's and a's backward.
  const Graph graph = parse_graph("x = input()\nw = parameter(w) : f32[4]\na = f(x, w)\nb = g(a, w)\n");
  const Instance made = instance_of(graph, parse_cluster("2xV100-16GB"));
  ASSERT_THAT(check_instance(made), IsEmpty());
  ASSERT_EQ(made.tasks(), 4U);
  EXPECT_THAT(made.pass, ElementsAre(Pass::kForward, Pass::kForward, Pass::kBackward, Pass::kBackward));
  EXPECT_THAT(made.time, ElementsAre(nanoseconds(10), nanoseconds(10), nanoseconds(20), nanoseconds(20)));
  ASSERT_EQ(made.units(), 2U);
  EXPECT_THAT(indices(made.tasks_of[0]), ElementsAre(0, 3));
  EXPECT_THAT(indices(made.tasks_of[1]), ElementsAre(1, 2));
  // a's tensor goes to b, and to b's backward, which keeps it; private bytes from forward to backward; a's
  // gradient from b's backward to a's.
  std::vector<std::vector<std::size_t>> readers;
  for (std::size_t v = 0; v < made.values(); ++v) readers.push_back(indices(made.readers[v]));
  EXPECT_THAT(readers,
              ElementsAre(ElementsAre(1, 2), ElementsAre(3), IsEmpty(), ElementsAre(2), ElementsAre(3)));
  EXPECT_THAT(made.bytes, ElementsAre(Bytes(4), Bytes(5), Bytes(4), Bytes(5), Bytes(4)));
  // x on a's device; w with its gradient and Adam's two moments on both.
  EXPECT_THAT(made.resident_bytes, ElementsAre(Bytes(4), Bytes(64)));
  EXPECT_EQ(made.resident[0].size(), 2U);
  EXPECT_EQ(made.resident[1].size(), 1U);
}

TEST(PlacementInstance, ATrainingGraphHoldsEachThingOnce) {
  const Graph graph =
      expand_backward(parse_graph("x = input()\nw = parameter(w) : f32[4]\na = f(x, w)\nb = g(a, w)\n"));
  const Instance made = instance_of(graph, parse_cluster("2xV100-16GB"));
  ASSERT_THAT(check_instance(made), IsEmpty());
  EXPECT_EQ(made.tasks(), graph.operators().size());
  // The parameter alone (16 bytes), the moments with the update (32); gradients are values.
  EXPECT_THAT(made.resident_bytes, Contains(Bytes(16)));
  EXPECT_THAT(made.resident_bytes, Contains(Bytes(32)));
  EXPECT_THAT(made.resident_bytes, ::testing::Not(Contains(Bytes(64))));
  EXPECT_THAT(made.here_only, Contains(1)) << "the update waits for the parameter's other readers nearby";
}

TEST(PlacementInstance, GoesToPlacementsAndBack) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Rng rng(seed);
    const Graph graph = espalier::testing::random_graph(rng);
    const Cluster cluster = parse_cluster("3xV100-16GB");
    const Instance made = instance_of(graph, cluster);
    Assignment assignment;
    for (std::size_t u = 0; u < made.units(); ++u) assignment.emplace_back(rng.below(3));
    const Placement placement = placement_of(made, graph, assignment);
    EXPECT_THAT(check_placement(graph, cluster, placement), IsEmpty());
    EXPECT_EQ(assignment_of(made, graph, placement), assignment);
  }
}

TEST(PlacementInstance, RefusesWhatStandsNowhereAndPlantedMistakesAreFound) {
  const Graph graph = parse_graph("x = input()\na = f(x)\nb = g(a)\n");
  const Cluster cluster = parse_cluster("2xV100-16GB");
  Training training;
  training.batch = BatchSize(1);
  EXPECT_THAT(espalier::testing::refusal(
                  [&] { make_instance(graph, cluster, CostTable(CostTableParts{}), training, {}); }),
              HasSubstr("operator 'a' stands on no device"));
  const Instance good = instance_of(graph, cluster);
  const auto finding = [&](auto change) {
    Instance bad = good;
    change(bad);
    const std::vector<std::string> found = check_instance(bad);
    return found.empty() ? "" : found.front();
  };
  EXPECT_THAT(finding([](Instance& i) { i.workspace.pop_back(); }), HasSubstr("shape: workspace"));
  EXPECT_THAT(finding([](Instance& i) { i.producer[0] = TaskId(1); }), HasSubstr("value:"));
  EXPECT_THAT(finding([](Instance& i) { i.unit[0] = UnitId(1); }), HasSubstr("unit:"));
  EXPECT_THAT(finding([](Instance& i) { i.time[0] = nanoseconds(-1); }), HasSubstr("size: times"));
  EXPECT_THAT(finding([](Instance& i) { i.within[0] = ValueId(1); }), HasSubstr("shares memory"));
}

}  // namespace
}  // namespace espalier::placement
