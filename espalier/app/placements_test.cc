#include "espalier/app/placements.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "espalier/app/comparison.h"
#include "espalier/app/opened_plan.h"
#include "espalier/app/plan_diff.h"
#include "espalier/app/step_price.h"
#include "espalier/app/towers_for_tests.h"
#include "espalier/base/files.h"
#include "espalier/sim/placement_judge.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;

// 1000 bytes take a microsecond.
class Placements : public Towers {
 protected:
  Placements() : Towers(4, "1GB") {
    options_.placement = write("towers.json", R"({"txt": "dev1", "*": "dev0"})");
  }

  // The plan file of these options.
  std::string planned(const JobOptions& options, const std::string& name) const {
    const PlanningJob job = prepare_job(options);
    return write(name, print_plan_file(plan_file(job, plan_model(job, {}), folder_.string())));
  }
  JobOptions without_placement() const {
    JobOptions options = options_;
    options.placement.clear();
    return options;
  }
};

TEST_F(Placements, AreJudgedAsTheyStand) {
  // txt beside img: 2 ms; its 64 bytes arrive 500 us and 64 ns later; the head 1 + 2 ms; the gradient as
  // long on its way back; the towers' backward 4 ms. Adam's update of 64 bytes takes nothing here.
  const PlanningJob job = prepare_job(options_);
  const Planned planned = plan_model(job, {});
  ASSERT_TRUE(planned.judged.has_value());
  EXPECT_EQ(planned.outcome.status, Status::kFeasible);
  EXPECT_EQ(planned.judged->trace.iteration, milliseconds(10) + 2 * nanoseconds(64));
  EXPECT_EQ(planned.judged->placement, job.placement);
  EXPECT_EQ(planned.judged->plan.stages.size(), 3U);
  const Evaluation verdict = judge_placement(job.graph, job.cluster, job.costs, job.training, *job.placement);
  EXPECT_EQ(verdict.iteration, planned.judged->trace.iteration);
  EXPECT_EQ(verdict.peak, planned.judged->peak);
  EXPECT_GE(planned.judged->trace.iteration, planned.judged->any_bound.time);
}

TEST_F(Placements, MayBeThoseThatPeoplePublished) {
  const std::string folder = ESPALIER_SOURCE_DIR "/workloads/dnn-partitioning/";
  JobOptions options;
  options.model = folder + "throughput-inputs/LayerGraphs/gnmt_inference.json";
  options.placement = folder + "human-experts/gnmt_inference_expert.json";
  const PlanningJob job = prepare_job(options);
  ASSERT_TRUE(job.placement.has_value());
  std::set<DeviceId> used(job.placement->device.begin(), job.placement->device.end());
  EXPECT_EQ(used.size(), 6U);
  EXPECT_TRUE(plan_model(job, {}).judged.has_value());
  options.cluster = "4xV100-16GB";  // has no device that is called accelerator:0
  EXPECT_THAT(refusal([&] { prepare_job(options); }),
              HasSubstr("fpgas[0].nodes: places nodes on 'accelerator:0'"));
}

TEST_F(Placements, CostTheirStepOnTheDevicesThatTheyUse) {
  EXPECT_FALSE(step_price(prepare_job(options_).cluster, {}, milliseconds(1), BatchSize(1)));
  // dev0 at 3 and dev1 at 6 an hour; dev2, which has nothing to do, would be dear.
  std::string priced = cluster_;
  priced.replace(priced.find(" sms=1"), 6, " sms=1 price=3");
  priced.replace(priced.find("device dev1 dev in net"), 22, "device dev1 dev in net price=6");
  priced.replace(priced.find("device dev2 dev in net"), 22, "device dev2 dev in net price=1000");
  options_.cluster = write("priced.txt", priced);
  const PlanningJob job = prepare_job(options_);
  const Planned planned = plan_model(job, {});
  ASSERT_TRUE(planned.judged.has_value());
  const Judged& judged = *planned.judged;
  const auto price = step_price(job.cluster, judged.staged, judged.trace.iteration, BatchSize(4));
  ASSERT_TRUE(price.has_value());
  EXPECT_EQ(price->devices, 2U);
  EXPECT_DOUBLE_EQ(price->hour, 9);
  const double step = static_cast<double>(judged.trace.iteration.count()) * 9 / 3.6e12;
  EXPECT_NEAR(price->step, step, step * 1e-12);
  EXPECT_NEAR(price->million_samples, step * 250'000, step * 1e-6);

  // A plan file keeps the prices, and so the price.
  write("plan.json", print_plan_file(plan_file(job, planned, folder_.string())));
  const OpenedPlan opened = open_plan(path("plan.json"));
  EXPECT_EQ(opened.cluster, job.cluster);
  EXPECT_EQ(step_price(opened.cluster, opened.file.staged, opened.trace.iteration, BatchSize(4)), price);
}

TEST_F(Placements, StandInPlanFilesAndReadBackToTheSameTrace) {
  const PlanningJob job = prepare_job(options_);
  const Planned planned = plan_model(job, {});
  const PlanFile file = plan_file(job, planned, folder_.string());
  ASSERT_TRUE(file.placement.has_value());
  EXPECT_THAT(file.stages, IsEmpty());
  EXPECT_EQ(file.planner, "placement");
  write("plan.json", print_plan_file(file));
  const OpenedPlan opened = open_plan(path("plan.json"));
  EXPECT_EQ(opened.file, file);
  EXPECT_EQ(opened.trace, planned.judged->trace);
  EXPECT_EQ(any_plan_bound(opened).bound, planned.judged->any_bound);
  EXPECT_EQ(resolve_plan(opened.file, job.graph), planned.judged->plan);

  // Its orders are a rule, so others can be tried; from other costs it is staged as a placement again.
  const OpenedPlan gpipe = with_orders(opened, choose_orders("gpipe"));
  EXPECT_EQ(gpipe.trace.iteration, opened.trace.iteration) << "one micro-batch";
  EXPECT_EQ(with_costs(opened, path("costs.txt")).trace, opened.trace);
}

TEST_F(Placements, SeveralMicroBatchesWhereAsked) {
  options_.micro_batches = {BatchSize(2)};
  options_.costs.clear();
  const Planned planned = plan_model(prepare_job(options_), {});
  EXPECT_EQ(planned.judged->plan.micro_batches(StageId(0)), 2U);
  options_.micro_batches.clear();
  EXPECT_EQ(plan_model(prepare_job(options_), {}).judged->plan.micro_batches(StageId(0)), 1U);
}

TEST_F(Placements, AListOfOrdersNamesFragments) {
  const PlanningJob job = prepare_job(options_);
  const Planned planned = plan_model(job, {});
  const auto names = order_names(planned.judged->staged, job.cluster).stages;
  const std::string text =
      "dev0 " + names[0] + ":F " + names[2] + ":F " + names[2] + ":B " + names[0] + ":B\ndev1 F B\n";
  const ChosenOrders orders = choose_orders(write("orders.txt", text));
  const Planned listed = plan_model(job, {.schedule = orders});
  EXPECT_EQ(listed.judged->trace.iteration, planned.judged->trace.iteration);
  write("listed.json", print_plan_file(plan_file(job, listed, folder_.string())));
  EXPECT_EQ(open_plan(path("listed.json")).trace, listed.judged->trace);
  const ChosenOrders early =
      choose_orders(write("early.txt", "dev0 " + names[0] + ":F " + names[2] + ":F " + names[2] + ":B " +
                                           names[0] + ":U " + names[0] + ":B\ndev1 F B\n"));
  EXPECT_THAT(refusal([&] { plan_model(job, {.schedule = early}); }), HasSubstr("U stands before B"));
}

TEST_F(Placements, AnEditedOneStartsAgainWithItsSettings) {
  planned(options_, "plan.json");
  std::string text = read_file(path("plan.json"));
  const auto move = [&](const std::string& from, const std::string& to) {
    const std::string device = R"("device":")" + from + '"';
    ASSERT_NE(text.find(device), std::string::npos) << text;
    text.replace(text.find(device), device.size(), R"("device":")" + to + '"');
  };
  move("dev1", "dev2");
  write("edited.json", text);
  EXPECT_THAT(refusal([&] { open_plan(path("edited.json")); }),
              AllOf(HasSubstr("edited.json: placement: was edited since"), HasSubstr("--start")));

  JobOptions again;
  again.model = options_.model;
  again.start = path("edited.json");
  const PlanningJob job = prepare_job(again);
  EXPECT_THAT(job.notes, ::testing::Contains(HasSubstr("placement was edited")));
  EXPECT_EQ(job.training.batch, BatchSize(4));
  const Planned planned = plan_model(job, {});
  EXPECT_EQ(planned.judged->trace.iteration, milliseconds(10) + 2 * nanoseconds(64));
  EXPECT_EQ(job.placement->device[1], DeviceId(2));

  move("dev2", "dev7");
  again.start = write("wrong.json", text);
  EXPECT_THAT(refusal([&] { prepare_job(again); }),
              HasSubstr("wrong.json: placement.devices[1].device: is 'dev7', which is no device"));
}

TEST_F(Placements, PinsHold) {
  options_.pins = {"txt=dev1"};
  EXPECT_TRUE(plan_model(prepare_job(options_), {}).judged.has_value());
  options_.pins = {"img=dev2"};
  EXPECT_THAT(refusal([&] { plan_model(prepare_job(options_), {}); }),
              HasSubstr("has operator 'img' on dev0, where --pin wants it on dev2"));
}

TEST_F(Placements, PlansOfBothSortsAreComparedByOneSimulator) {
  planned(options_, "placed.json");
  const std::string stages = planned(without_placement(), "stages.json");
  const PlanningJob job = prepare_job(without_placement());
  const Comparison comparison = compare_planners(
      job, {.planners = {"single"}, .files = {path("placed.json"), path("towers.json"), stages}});
  ASSERT_EQ(comparison.rows.size(), 4U);
  EXPECT_EQ(comparison.rows[1].planner, path("placed.json"));
  EXPECT_EQ(comparison.rows[1].iteration, milliseconds(10) + 2 * nanoseconds(64));
  EXPECT_EQ(comparison.rows[2].iteration, comparison.rows[1].iteration) << "the same by its rules";
  EXPECT_EQ(comparison.rows[1].stages, 3U);
  EXPECT_EQ(comparison.rows[3].iteration, open_plan(stages).trace.iteration);
  for (const ComparedPlan& row : comparison.rows) EXPECT_GE(*row.iteration, comparison.any_bound.time);
}

TEST_F(Placements, PlansOfAnotherJobAreNamed) {
  planned(options_, "placed.json");
  const auto refused = [&](auto change) {
    JobOptions options = without_placement();
    change(options);
    const PlanningJob job = prepare_job(options);
    return refusal([&] { judge_file(job, path("placed.json")); });
  };
  EXPECT_THAT(refused([](JobOptions& o) { o.batch = BatchSize(8); }),
              HasSubstr("placed.json: is a plan for a batch of 4, not 8 (--batch 4)"));
  EXPECT_THAT(refused([](JobOptions& o) {
                o.cluster = "2xV100-16GB";
                o.costs.clear();
              }),
              HasSubstr("placed.json: has stages on dev0, and the cluster has no such device"));
  EXPECT_THAT(refused([&](JobOptions& o) {
                o.model = write("other.txt",
                                "x = input()\na = linear(x) @class=tower\nloss = mean(a) @class=mean\n");
                o.costs.clear();
              }),
              HasSubstr("placed.json: the model is not the one"));
}

TEST_F(Placements, DiffTellsWhichOperatorsMoved) {
  const auto opened = [&](const std::string& rules, const std::string& name) {
    options_.placement = write("rules.txt", rules);
    return open_plan(planned(options_, name));
  };
  const OpenedPlan a = opened("txt = dev1\n* = dev0\n", "a.json");
  const OpenedPlan b = opened("txt = dev2\n* = dev0\n", "b.json");
  const PlanningJob job = prepare_job(options_);
  EXPECT_TRUE(diff_plans(a, a, job.graph).same());
  const PlanDifference moved = diff_plans(a, b, job.graph);
  ASSERT_EQ(moved.moved.size(), 1U);
  EXPECT_EQ(moved.moved[0].operators, "txt");
  EXPECT_EQ(moved.moved[0].from, "dev1");
  EXPECT_EQ(moved.moved[0].to, "dev2");
  EXPECT_THAT(moved.settings, IsEmpty());

  JobOptions one = without_placement();
  const PlanningJob single = prepare_job(one);
  write("one.json",
        print_plan_file(plan_file(single, plan_model(single, {.planner = "single"}), folder_.string())));
  const PlanDifference mixed = diff_plans(a, open_plan(path("one.json")), job.graph);
  EXPECT_THAT(mixed.settings,
              ElementsAre("planner: placement in a, single in b", "plan: a placement in a, stages in b"));
  ASSERT_EQ(mixed.moved.size(), 1U);
  EXPECT_EQ(mixed.moved[0].operators, "txt");
  EXPECT_EQ(mixed.moved[0].to, "dev0");
}

TEST_F(Placements, TablesCountByDevice) {
  const PlanningJob job = prepare_job(options_);
  const Judged judged = *plan_model(job, {}).judged;
  const Table table = placement_table(job, judged);
  ASSERT_EQ(table.rows.size(), 2U);
  EXPECT_EQ(std::get<std::int64_t>(table.rows[0][1]), 3);  // img, head, loss
  EXPECT_EQ(std::get<std::int64_t>(table.rows[0][2]), 2);
  EXPECT_EQ(std::get<Bytes>(table.rows[0][8]), Bytes(64)) << "the gradient of txt";
  EXPECT_EQ(placement_text(judged.staged, 4), "4 operators in 3 fragments, depth 2");
}

}  // namespace
}  // namespace espalier
