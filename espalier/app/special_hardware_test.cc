// Placers where some tasks can run on some devices only: GiPH's networks.

#include <gmock/gmock.h>

#include "espalier/planners/placement/placement_planner.h"
#include "espalier/planners/placement/placer.h"
#include "espalier/sim/placement_judge.h"
#include "espalier/zoo/task_families.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SpecialHardware : public ::testing::TestWithParam<std::int64_t> {
 protected:
  // Of all tasks 60 percent need one of three sorts, and two of six devices have each.
  static ZooValues values(std::int64_t seed) {
    return {{"tasks", 18},   {"devices", 6}, {"restricted", 60},
            {"support", 33}, {"seed", seed}, {"network", seed}};
  }
  static Training training() {
    Training one;
    one.batch = BatchSize(1);
    one.micro_batches = {BatchSize(1)};
    return one;
  }
};

TEST_P(SpecialHardware, EveryPlacerStandsTasksWhereTheyCanRun) {
  const Imported model = build_task_family(*find_task_family("giph"), values(GetParam()));
  ClusterParts parts = model.cluster->parts();
  for (Device& device : parts.devices) device.price_per_hour = 1;
  const Cluster cluster(parts);
  const Problem problem{
      .graph = model.graph, .cluster = cluster, .costs = *model.costs, .training = training()};
  std::size_t answers = 0;
  for (const placement::Placer& placer : placement::placement_placers()) {
    SCOPED_TRACE(placer.name);
    Context context{.budget = {.max_states = 20'000}};
    const Outcome outcome = placement::plan_by_placer(problem, placer, {}, context);
    if (placer.name == "one-device") {
      EXPECT_NE(outcome.status, Status::kFeasible) << "no device has every sort";
      EXPECT_THAT(outcome.why, HasSubstr("device"));
      continue;
    }
    if (placer.name == "contiguous-max-load" && !outcome.plan) {
      EXPECT_THAT(outcome.why, HasSubstr("no contiguous placement"));
      continue;
    }
    ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
    const auto& found = std::get<Placement>(*outcome.plan);
    EXPECT_THAT(check_placement(model.graph, cluster, found), IsEmpty());
    for (std::size_t i = 0; i < found.device.size(); ++i) {
      const DeviceKind& kind = cluster.kind(cluster.device(found.device[i]).kind);
      EXPECT_NE(model.costs->find(model.graph.op(OperatorId(i)).op_class, kind.name), nullptr) << i;
    }
    EXPECT_TRUE(judge_placement(model.graph, cluster, *model.costs, problem.training, found).can_run());
    ++answers;
  }
  EXPECT_GT(answers, 15U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SpecialHardware, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace espalier
