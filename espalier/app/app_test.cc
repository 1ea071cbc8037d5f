#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "espalier/app/catalog.h"
#include "espalier/app/comparison.h"
#include "espalier/app/inspect.h"
#include "espalier/app/job_for_tests.h"
#include "espalier/app/opened_plan.h"
#include "espalier/app/plan_diff.h"
#include "espalier/app/planning.h"
#include "espalier/app/towers_for_tests.h"
#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/graph/text.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class App : public Towers {
 protected:
  App() : Towers(1, "1000GB") { options_.micro_batches = {BatchSize(1)}; }

  template <class Change>
  std::string error_of(Change change) const {
    JobOptions options = options_;
    change(options);
    return testing::refusal([&] { prepare_job(options); });
  }
};

TEST_F(App, EveryPlannerIsJudgedByOneSimulator) {
  const PlanningJob job = prepare_job(options_);
  const Comparison comparison = compare_planners(job, {});
  ASSERT_TRUE(comparison.best.has_value());
  // The worked example: 26 ms as a graph; a chain of the same stages takes longer.
  const ComparedPlan& best = comparison.rows[*comparison.best];
  EXPECT_LE(*best.iteration, milliseconds(26) + nanoseconds(10));  // 16-byte tensors take 1 ns each
  for (const ComparedPlan& row : comparison.rows) {
    ASSERT_TRUE(row.judged.has_value()) << row.planner << ": " << row.why;
    EXPECT_GE(*row.iteration, row.judged->stages_bound.time) << row.planner;
    EXPECT_GE(*row.iteration, comparison.any_bound.time) << row.planner;
    EXPECT_GE(*row.iteration, *best.iteration) << row.planner;
  }
}

TEST_F(App, AutoIsComparedWithTheOthersAndFindsWhatItFindsAlone) {
  const PlanningJob job = prepare_job(options_);
  const Comparison comparison = compare_planners(job, {});
  ASSERT_FALSE(comparison.rows.empty());
  const ComparedPlan& last = comparison.rows.back();
  EXPECT_EQ(last.planner, kAutomatic);
  EXPECT_EQ(last.iteration, comparison.rows[*comparison.best].iteration);
  const Planned alone = plan_model(job, {});
  ASSERT_TRUE(alone.judged.has_value());
  ASSERT_TRUE(last.judged.has_value());
  EXPECT_EQ(last.judged->trace, alone.judged->trace);
  EXPECT_EQ(last.stats, alone.outcome.stats);
}

TEST_F(App, AChainIsAlsoShownWithDataEdgesOnly) {
  // A chain of towers carries an empty token from img to txt; without it, the same orders are the graph.
  const Comparison comparison = compare_planners(prepare_job(options_), {.planners = {"even"}});
  ASSERT_EQ(comparison.rows.size(), 2U);
  EXPECT_FALSE(comparison.rows[0].data_edges_only);
  EXPECT_TRUE(comparison.rows[1].data_edges_only);
  EXPECT_LT(*comparison.rows[1].iteration, *comparison.rows[0].iteration);
  EXPECT_EQ(comparison.rows[0].depth, 3U);
}

TEST_F(App, APlanFileReadsBackToTheSameTrace) {
  const PlanningJob job = prepare_job(options_);
  const Planned planned = plan_model(job, {.planner = "branches"});
  ASSERT_TRUE(planned.judged.has_value());
  const PlanFile file = plan_file(job, planned, folder_.string());
  EXPECT_EQ(file.model, "model.txt");
  EXPECT_EQ(file.cost_file, "costs.txt");
  write("plan.json", print_plan_file(file));
  const OpenedPlan opened = open_plan(path("plan.json"));
  EXPECT_EQ(opened.trace, planned.judged->trace);
  EXPECT_EQ(opened.stages_bound, planned.judged->stages_bound);
  EXPECT_EQ(any_plan_bound(opened).bound, planned.judged->any_bound);
}

TEST_F(App, TheBoundSaysWhatItLacks) {
  const PlanningJob job = prepare_job(options_);
  write("plan.json", print_plan_file(plan_file(job, plan_model(job, {.budget = kSmall}), folder_.string())));
  write("costs.txt", costs_ + "cost extra dev batch=1 f=1ms i=0ns w=0ns origin=measured\n");
  EXPECT_THAT(any_plan_bound(open_plan(path("plan.json"))).why_not, HasSubstr("'costs.txt' has changed"));
  std::filesystem::remove(path("model.txt"));
  EXPECT_THAT(any_plan_bound(open_plan(path("plan.json"))).why_not, HasSubstr("needs the model"));
}

TEST_F(App, PinsHoldOrThePlanIsRefused) {
  options_.pins = {"img*=dev2"};
  const PlanningJob job = prepare_job(options_);
  std::size_t kept = 0;
  for (const PlannerEntry& planner : planner_catalog()) {
    const Planned planned = plan_model(job, {.planner = planner.name, .budget = kSmall});
    if (!planned.judged) {
      EXPECT_FALSE(planned.outcome.why.empty()) << planner.name;
      continue;
    }
    for (const Stage& stage : planned.judged->plan.stages) {
      for (const OperatorId op : stage.operators) {
        if (job.graph.op(op).name != "img") continue;
        EXPECT_THAT(stage.replicas.front().devices, ElementsAre(DeviceId(2))) << planner.name;
        ++kept;
      }
    }
  }
  EXPECT_GE(kept, 2u);  // single and auto at least
}

TEST_F(App, WhatDoesNotFitIsInfeasibleWithAReason) {
  std::string tiny = cluster_;
  tiny.replace(tiny.find("1GiB"), 4, "64B");
  options_.cluster = write("tiny.txt", tiny);
  const Planned planned = plan_model(prepare_job(options_), {.budget = kSmall});
  EXPECT_EQ(planned.outcome.status, Status::kInfeasible);
  EXPECT_FALSE(planned.outcome.why.empty());
}

TEST_F(App, UnmeasuredTimeIsCounted) {
  EXPECT_EQ(prepare_job(options_).analytic_share, 0);
  options_.costs.clear();
  const PlanningJob job = prepare_job(options_);
  EXPECT_EQ(job.analytic_share, 1);
  EXPECT_THAT(job.notes, ElementsAre(HasSubstr("100 % of the time is an analytic estimate"),
                                     HasSubstr("precision: f32: matrix work at 1 Tflop/s on dev")));
}

TEST_F(App, TheNoteOnPrecisionSaysThatHalfNumbersStay) {
  options_.model = write("half.txt",
                         "batch 1..8\nx = input() : bf16[b,4]\nw = parameter(w) : bf16[4,4]\n"
                         "a = linear(x, w) : bf16[b,4]\nloss = mean(a) : f32[]\n");
  options_.costs.clear();
  EXPECT_THAT(prepare_job(options_).notes, Contains(HasSubstr("what is bf16 or f16 in the model stays so")));
}

TEST_F(App, CostsOfAnotherMachineOrThreadCountAreWarnedOf) {
  options_.costs =
      write("costs.txt", std::string("machine \"Other, 4 cores\" threads=2 torch=2.13.0\n") + costs_ +
                             "cost tower cpu batch=1 f=2ms i=2ms w=2ms origin=measured\n");
  options_.cluster = "local:2";
  options_.machine = {.local = {.devices = 2, .memory_each = gibibytes(1)}, .description = "Mine, 2 cores"};
  EXPECT_THAT(prepare_job(options_).warnings,
              ElementsAre(HasSubstr("2 threads"), HasSubstr("'Other, 4 cores'")));
  const PlanningJob job = prepare_job(options_);
  const Planned planned = plan_model(job, {.budget = kSmall});
  EXPECT_EQ(plan_file(job, planned, folder_.string()).measured, (MeasuredOn{"Other, 4 cores", 2, {}}));
  EXPECT_THAT(measurement_warnings("c", *job.measured, "Other, 4 cores", 2), IsEmpty());
  EXPECT_THAT(measurement_warnings("c", *job.measured, "Mine", {}),
              ElementsAre(HasSubstr("another machine")));
  EXPECT_EQ(planned.judged->expected, planned.judged->trace.iteration);
  options_.cluster = path("cluster.txt");  // a what-if: nothing to warn of
  EXPECT_EQ(prepare_job(options_).measured, std::nullopt);
  EXPECT_THAT(prepare_job(options_).warnings, ElementsAre());
}

TEST_F(App, AMeasuredSpreadOfActionTimesMakesTheExpectedIterationLonger) {
  options_.costs = write("costs.txt", costs_ +
                                          "overhead cpu action=0ns neighbour=0 spread=100\n"
                                          "cost tower cpu batch=1 f=2ms i=2ms w=2ms origin=measured\n"
                                          "cost head cpu batch=1 f=1us i=1us w=1us origin=measured\n"
                                          "cost mean cpu batch=1 f=0ns i=0ns w=0ns origin=measured\n");
  options_.cluster = "local:2";
  options_.machine = {.local = {.devices = 2, .memory_each = gibibytes(1)}, .description = ""};
  const PlanningJob job = prepare_job(options_);
  const Planned planned = plan_model(job, {.planner = "branches"});
  ASSERT_TRUE(planned.judged);
  EXPECT_GT(planned.judged->expected, planned.judged->trace.iteration);
  EXPECT_LT(planned.judged->expected, planned.judged->trace.iteration + planned.judged->trace.iteration);
  write("plan.json", print_plan_file(plan_file(job, planned, folder_.string())));
  EXPECT_EQ(open_plan(path("plan.json")).expected(), planned.judged->expected);
  EXPECT_EQ(plan_model(job, {.planner = "single"}).judged->expected,
            plan_model(job, {.planner = "single"}).judged->trace.iteration);
}

TEST_F(App, AProfilesCostsCountOnAnotherClusterAndLiteralOnesAreFoundAgain) {
  // 2 ms forward and 4 ms backward; the input's 6 ms are data loading, which only --literal counts.
  options_.model =
      write("graph.txt",
            "node1 -- Input0 -- forward_compute_time=6, backward_compute_time=0, activation_size=4, "
            "parameter_size=0\n"
            "node2 -- Linear -- forward_compute_time=2, backward_compute_time=4, activation_size=4, "
            "parameter_size=4\n\tnode1 -- node2\n");
  options_.costs.clear();
  options_.cluster = "1xV100-16GB";
  options_.batch = BatchSize(1);
  options_.micro_batches = {BatchSize(1)};
  for (const Repair repair : {Repair::kRepair, Repair::kLiteral}) {
    options_.import.repair = repair;
    const PlanningJob job = prepare_job(options_);
    EXPECT_THAT(job.warnings, Contains(HasSubstr("'V100-16GB' is taken to be as fast")));
    EXPECT_EQ(job.analytic_share, 0);
    write("plan.json",
          print_plan_file(plan_file(job, plan_model(job, {.budget = kSmall}), folder_.string())));
    const BoundOrReason bound = any_plan_bound(open_plan(path("plan.json")));
    ASSERT_TRUE(bound.bound.has_value()) << bound.why_not;
    EXPECT_GE(bound.bound->time, milliseconds(repair == Repair::kRepair ? 6 : 12));
    EXPECT_LT(bound.bound->time, milliseconds(repair == Repair::kRepair ? 7 : 13));
  }
}

TEST_F(App, LocalRunsOverTheMeasuredLink) {
  options_.costs = write("costs.txt", "link 2GB latency=40us send=100us+400ps/B receive=20us+100ps/B\n");
  options_.cluster = "local";
  options_.machine.local = {.devices = 3, .memory_each = gibibytes(1)};
  const Route route = prepare_job(options_).cluster.route(DeviceId(0), DeviceId(2));
  EXPECT_EQ(route.latency, microseconds(40));
  EXPECT_EQ(route.bandwidth, 2'000'000'000);
  EXPECT_EQ(route.send.of(Bytes(1000)), microseconds(100) + nanoseconds(400));
}

TEST_F(App, LocalWithMoreWorkersSharesTheMemory) {
  const LocalMachine machine{.devices = 2, .memory_each = gibibytes(6)};
  EXPECT_EQ(load_cluster("local", machine).devices().size(), 2U);
  const Cluster four = load_cluster("local:4", machine);
  EXPECT_EQ(four.devices().size(), 4U);
  EXPECT_EQ(four.device(DeviceId(0)).memory, gibibytes(3));
}

TEST_F(App, TheModelFilesOwnDevicesMayBeMoreOrFewer) {
  options_ = {};
  options_.model = write("timed.stg", "2\n0 0 0\n1 3 1\n0 0\n2 5 1\n1 4\n3 0 1\n2 0\n");
  const PlanningJob four = prepare_job(options_);
  EXPECT_EQ(four.cluster.devices().size(), 4U);
  EXPECT_EQ(four.training.batch, BatchSize(1));
  EXPECT_THAT(four.notes, Contains("batch: the model file's own, 1 (--batch)"));
  options_.cluster = "file:8";
  const PlanningJob eight = prepare_job(options_);
  EXPECT_EQ(eight.cluster.devices().size(), 8U);
  EXPECT_EQ(eight.cluster.device(DeviceId(7)).name, "profiled:7");
  EXPECT_THAT(eight.notes, Contains("cluster: 8 of the model file's own devices"));
  EXPECT_EQ(eight.cluster.route(DeviceId(0), DeviceId(7)), four.cluster.route(DeviceId(0), DeviceId(3)));
  options_.cluster = "file:none";
  EXPECT_THAT(error_of([](JobOptions&) {}), HasSubstr("such as file:8"));
  options_.cluster = "file:2";
  options_.model = write("plain.stg", "1\n0 0 0\n1 3 1 0\n2 0 1 1\n");
  EXPECT_THAT(error_of([](JobOptions&) {}), HasSubstr("brings no devices"));
}

TEST_F(App, DefaultsAreEightMicroBatchesAndHalvedSizes) {
  const auto graph_of = [](const std::string& range) {
    return parse_graph("batch " + range + "\nx = input() : f32[b]\nloss = mean(x) : f32[]\nreturn loss\n");
  };
  const Graph graph = graph_of("2..64"), large = graph_of("1..512");
  EXPECT_EQ(default_batch(graph, 2), BatchSize(16));
  EXPECT_EQ(default_batch(graph, 12), BatchSize(24));
  const auto sizes = [](const Graph& of, std::int64_t batch, std::size_t devices) {
    std::vector<std::int64_t> counts;
    for (const BatchSize size : default_micro_batches(of, BatchSize(batch), devices))
      counts.push_back(size.count());
    return counts;
  };
  EXPECT_THAT(sizes(graph, 16, 2), ElementsAre(2, 4, 8, 16));
  EXPECT_THAT(sizes(graph, 96, 2), ElementsAre(3, 6, 12, 24, 48));
  EXPECT_THAT(sizes(graph, 1024, 2), ElementsAre(2, 4, 8, 16, 32, 64));  // six at most
  EXPECT_THAT(sizes(graph, 67, 2), ElementsAre());                       // a prime beyond the range
  // Small ones in place of those that leave devices idle.
  EXPECT_THAT(sizes(large, 512, 2), ElementsAre(16, 32, 64, 128, 256, 512));
  EXPECT_THAT(sizes(large, 512, 4), ElementsAre(8, 16, 32, 64, 128, 512));
  EXPECT_THAT(sizes(large, 512, 16), ElementsAre(2, 4, 8, 16, 32, 512));
  EXPECT_THAT(sizes(large, 64, 16), ElementsAre(1, 2, 4, 8, 16, 64));
  EXPECT_THAT(sizes(large, 32, 16), ElementsAre(1, 2, 4, 8, 16, 32));  // there are no others
}

TEST_F(App, WrongOptionsAreToldWithWhatWouldBeRight) {
  EXPECT_THAT(error_of([](JobOptions& o) { o.micro_batches = {BatchSize(3)}; }),
              HasSubstr("--micro-batch 3: does not divide the batch of 4"));
  EXPECT_THAT(error_of([](JobOptions& o) { o.batch = BatchSize(32), o.micro_batches = {BatchSize(16)}; }),
              HasSubstr("exported for 1 to 8 samples"));
  EXPECT_THAT(error_of([](JobOptions& o) { o.batch = BatchSize(0); }), HasSubstr("at least 1"));
  EXPECT_THAT(error_of([](JobOptions& o) { o.cluster = "local:0"; }), HasSubstr("such as local:2"));
  EXPECT_THAT(error_of([](JobOptions& o) { o.cluster = "gone/file"; }), HasSubstr("no such file"));
  EXPECT_THAT(error_of([](JobOptions& o) { o.pins = {"img=dev9"}; }), HasSubstr("dev9"));
  EXPECT_THAT(error_of([this](JobOptions& o) { o.cluster = write("bad.txt", "kind\n"); }),
              HasSubstr("bad.txt: line 1"));
}

TEST_F(App, InspectCountsWorkAndBranches) {
  const ModelSummary summary = inspect(prepare_job(options_));
  EXPECT_EQ(summary.operators, 4U);
  EXPECT_EQ(summary.parameter_elements, 32);
  EXPECT_EQ(summary.loss, "loss");
  EXPECT_EQ(summary.forward, milliseconds(5));        // 2 + 2 + 1
  EXPECT_EQ(summary.backward, milliseconds(10));      // 4 + 4 + 2
  EXPECT_EQ(summary.critical_path, milliseconds(9));  // a tower and the head
  EXPECT_DOUBLE_EQ(summary.parallelism, 15.0 / 9.0);
  EXPECT_EQ(to_text(summary.outline), "  img 40 % | txt 40 %\n  head 20 %\n");  // 6, 6 and 3 of 15 ms
  EXPECT_EQ(summary.kinds.front().name, "linear");
}

TEST_F(App, InspectTellsFrozenParametersFromBuffers) {
  const ModelSummary summary = inspect(job_for_tests(
      "batch 1..8\nx = input() : f32[b,4]\nw = parameter(w) : f32[4,4]\nv = parameter(v, frozen) : f32[4,4]\n"
      "s = buffer(s) : f32[4]\na = linear(x, w) : f32[b,4]\nc = linear(a, v) : f32[b,4]\nd = mul(c, s) : "
      "f32[b,4]\n"
      "loss = mean(d) : f32[]\n",
      "1xT4", BatchSize(8), BatchSize(4)));
  EXPECT_EQ(summary.parameter_elements, 16);
  EXPECT_EQ(summary.parameters, Bytes(64));
  EXPECT_EQ(summary.frozen_elements, 16);
  EXPECT_EQ(summary.frozen, Bytes(64));
  EXPECT_EQ(summary.buffers, Bytes(16));
}

TEST_F(App, InspectListsOperatorsThatLibtorchDoesNotHave) {
  options_.costs.clear();
  options_.model = write("own.txt",
                         "x = input() : f32[2,4]\n"
                         "a = aten.neg.default(x) : f32[2,4]\n"
                         "m = mylib.scale.default(a) : f32[2,4]\n"
                         "loss = aten.mean.default(m) : f32[]\n"
                         "return loss\n");
  EXPECT_THAT(inspect(prepare_job(options_)).foreign, ElementsAre("mylib.scale (m)"));
}

TEST_F(App, DiffOfPlansNamesWhatMoved) {
  const PlanningJob job = prepare_job(options_);
  const auto opened = [&](const std::string& planner) {
    const std::string name = planner + ".json";
    write(name, print_plan_file(plan_file(job, plan_model(job, {.planner = planner}), folder_.string())));
    return open_plan(path(name));
  };
  const OpenedPlan graph = opened("branches"), one = opened("single");
  EXPECT_TRUE(diff_plans(graph, graph, job.graph).same());
  const PlanDifference difference = diff_plans(one, graph, job.graph);
  EXPECT_FALSE(difference.same());
  EXPECT_THAT(difference.settings, ElementsAre("planner: single in a, branches in b"));
  ASSERT_FALSE(difference.moved.empty());
  EXPECT_THAT(difference.moved[0].from, HasSubstr(" on dev0"));
}

TEST(Catalog, PlannersAreFoundByNameOrTheNearestIsTold) {
  EXPECT_EQ(find_planner("auto").name, "auto");
  EXPECT_THAT(testing::refusal([] { find_planner("brnches"); }), HasSubstr("did you mean 'branches'?"));
  for (const NamedPlanner& planner : named_planners(ScheduleKind::kOneFOneB)) EXPECT_NE(planner.name, "auto");
}

TEST(ModuleText, NeighboursAreRunsAndLongTextsLoseTheirDepth) {
  const Graph graph = parse_graph(
      "x = input() : f32[b]\n"
      "a = relu(x) @module=enc.layers.0\n"
      "b2 = relu(a) @module=enc.layers.1\n"
      "c = relu(b2) @module=enc.layers.2\n"
      "d = relu(c) @module=head.norm\n"
      "loss = mean(d) : f32[]\nreturn loss\n");
  const std::vector<OperatorId> all{OperatorId(0), OperatorId(1), OperatorId(2), OperatorId(3)};
  EXPECT_EQ(module_text(graph, all, 60), "enc.layers.0-2, head.norm");
  EXPECT_EQ(module_text(graph, all, 21), "enc.layers, head.norm");
  EXPECT_EQ(module_text(graph, all, 12), "enc, head");
  EXPECT_EQ(module_text(graph, all, 6), "enc, …");
}

TEST_F(App, PeopleReadLongListsOfDevicesAndStagesShortened) {
  for (int d = 3; d < 16; ++d) cluster_ += "device dev" + std::to_string(d) + " dev in net\n";
  options_.cluster = write("cluster.txt", cluster_);
  const PlanningJob job = prepare_job(options_);
  Judged judged = *plan_model(job, {.planner = "single"}).judged;
  StagedStage& stage = judged.staged.stages[0];
  const auto cell = [&](std::size_t column) { return to_text(stage_table(job, judged).rows[0][column]); };
  const auto replicas_on = [&stage](std::size_t first, std::size_t count) {
    stage.replicas.resize(count, stage.replicas[0]);
    for (std::size_t r = 0; r < count; ++r) stage.replicas[r].devices = {DeviceId(first + r)};
  };
  replicas_on(2, 3);
  EXPECT_EQ(cell(2), "dev2 | dev3 | dev4");
  replicas_on(2, 12);
  EXPECT_EQ(cell(2), "dev2 … dev13 (12)");
  std::swap(stage.replicas[0], stage.replicas[1]);
  EXPECT_EQ(cell(2), "dev3 and 11 more");
  stage.replicas.resize(1);
  stage.replicas[0].devices.clear();
  for (std::size_t d = 4; d < 16; ++d) stage.replicas[0].devices.push_back(DeviceId(d));
  EXPECT_EQ(cell(2), "dev4 +…+ dev15 (12)");
  stage.name = "branches.0.layers.7-8";
  stage.after = {StageId(0)};
  EXPECT_EQ(cell(1), "branches.0.layers.7-8");
  stage.after.resize(16, StageId(0));
  EXPECT_EQ(cell(1), "branches.0.layers.7-8 and 15 more");
}

TEST(ComparisonTable, PeopleReadLongListsOfReplicasAsARangeAndMachinesGetThemAll) {
  Comparison comparison;
  comparison.rows.resize(1);
  comparison.rows[0].iteration = milliseconds(1);
  const auto cell = [&comparison](const std::string& replicas, TableReaders readers) {
    comparison.rows[0].replicas = replicas;
    return to_text(comparison_table(comparison, readers).rows[0][3]);
  };
  const auto listed = [](std::initializer_list<int> counts) {
    std::string text;
    for (int i = 0; i < 10; ++i) {
      for (const int count : counts) text += (text.empty() ? "" : "+") + std::to_string(count);
    }
    return text;
  };
  EXPECT_EQ(cell("2+1+1", TableReaders::kPeople), "2+1+1");
  EXPECT_EQ(cell(listed({3, 16, 1}), TableReaders::kPeople), "1 to 16");
  EXPECT_EQ(cell(listed({8, 8, 8}), TableReaders::kPeople), "8 each");
  EXPECT_EQ(cell(listed({3, 16, 1}), TableReaders::kMachines), listed({3, 16, 1}));
}

TEST_F(App, APlanForOtherDeviceKindsThanItRunsOnIsToldSo) {
  const PlanningJob job = prepare_job(options_);
  write("plan.json",
        print_plan_file(plan_file(job, plan_model(job, {.planner = "branches"}), folder_.string())));
  const OpenedPlan opened = open_plan(path("plan.json"));
  EXPECT_THAT(device_kind_warnings(opened, {.local = {}, .runs_on = "cpu", .description = ""}),
              ElementsAre(HasSubstr("is a plan for 3 x dev, but this runs on cpu")));
  EXPECT_THAT(device_kind_warnings(opened, {.local = {}, .runs_on = "dev", .description = ""}), IsEmpty());
  EXPECT_THAT(device_kind_warnings(opened, {.local = {}, .runs_on = "cuda", .description = ""}), IsEmpty());
}

TEST_F(App, AnOperatorNobodyKnowsIsWarnedOfOnce) {
  options_.model = write("unknown.txt", [] {
    std::string text = kModel;
    text.replace(text.find("@class=head"), 11, "@unknown @class=head");
    return text;
  }());
  const PlanningJob job = prepare_job(options_);
  const Planned planned = plan_model(job, {.budget = kSmall});
  std::vector<std::string> all = job.warnings;
  all.insert(all.end(), planned.warnings.begin(), planned.warnings.end());
  EXPECT_EQ(std::count_if(all.begin(), all.end(),
                          [](const std::string& line) { return line.find("operator table") != line.npos; }),
            1);
}

TEST_F(App, APlanIsPredictedAgainFromOtherCostsWithoutPlanningAgain) {
  const PlanningJob job = prepare_job(options_);
  write("plan.json",
        print_plan_file(plan_file(job, plan_model(job, {.planner = "branches"}), folder_.string())));
  const OpenedPlan opened = open_plan(path("plan.json"));
  const OpenedPlan same = with_costs(opened, options_.costs);
  EXPECT_EQ(same.trace, opened.trace);
  EXPECT_EQ(same.file.staged, opened.file.staged);
  // Everything takes twice as long: the same stages, in the same orders.
  std::string twice = costs_;
  for (std::size_t at = 0; (at = twice.find("=2ms", at)) != std::string::npos; ++at)
    twice.replace(at, 4, "=4ms");
  for (std::size_t at = 0; (at = twice.find("=1ms", at)) != std::string::npos; ++at)
    twice.replace(at, 4, "=2ms");
  const OpenedPlan slower = with_costs(opened, write("twice.txt", twice));
  EXPECT_EQ(slower.schedule, opened.schedule);
  EXPECT_GT(slower.trace.iteration, opened.trace.iteration + milliseconds(20));
  EXPECT_LE(slower.trace.iteration, 2 * opened.trace.iteration);
  EXPECT_FALSE(any_plan_bound(slower).why_not.size() > 0) << any_plan_bound(slower).why_not;
  EXPECT_THAT(testing::refusal([&] {
                with_costs(opened, write("other.txt",
                                         "cost tower other batch=1 f=2ms i=2ms w=2ms origin=measured\n"));
              }),
              HasSubstr("has no costs for 'dev'"));
}

TEST_F(App, ACalibrationIsOfLocalWithoutCostsAlone) {
  Machine machine{.local = {.devices = 2, .memory_each = gibibytes(6)}, .description = "here, 2 cores"};
  machine.calibration = Calibration{.machine = "here, 2 cores",
                                    .threads = 1,
                                    .torch_version = "2",
                                    .flops_f32 = 1e9,
                                    .memory_bandwidth = 3'000'000'000,
                                    .launch_overhead = microseconds(50),
                                    .costs = CostTable(CostTableParts{})};
  CostTableParts measured;
  measured.link =
      MeasuredLink{.bandwidth = 1'000'000, .latency = microseconds(300), .send = {}, .receive = {}};
  machine.calibration->costs = CostTable(measured);
  options_.machine = machine;
  const std::string cluster = std::exchange(options_.cluster, "local");
  const std::string costs = std::exchange(options_.costs, "");
  const PlanningJob local = prepare_job(options_);
  EXPECT_EQ(local.cluster.kinds()[0].launch_overhead, microseconds(50));
  EXPECT_EQ(local.cluster.kinds()[0].flops_f32, 1e9);
  EXPECT_EQ(local.cluster.groups()[0].latency, microseconds(300));
  EXPECT_EQ(local.cost_hash, 0U);
  options_.cluster = "2xcpu";
  EXPECT_NE(prepare_job(options_).cluster.kinds()[0].launch_overhead, microseconds(50));
  options_.cluster = cluster;
  options_.costs = costs;
  EXPECT_EQ(prepare_job(options_).cluster.kinds()[0].launch_overhead, microseconds(1));
}

class Edited : public App {
 protected:
  Edited() {
    write("plan.json",
          print_plan_file(plan_file(job_, plan_model(job_, {.planner = "branches"}), folder_.string())));
  }

  // The plan with one text for another, as somebody would edit it.
  std::string edit(const std::string& from, const std::string& to) {
    std::string text = read_file(path("plan.json"));
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from << "\n" << text;
    if (at != std::string::npos) text.replace(at, from.size(), to);
    return write("edited.json", text);
  }
  JobOptions start_from(const std::string& file) const {
    JobOptions options;
    options.model = options_.model;
    options.start = file;
    return options;
  }
  std::string refused(const std::string& from, const std::string& to) {
    const std::string file = edit(from, to);
    return testing::refusal([&] { prepare_job(start_from(file)); });
  }

  PlanningJob job_ = prepare_job(options_);
};

TEST_F(Edited, AnEditedPlanIsNotSimulatedAsIfNothingHadChanged) {
  const std::string file = edit("\"operators\": [[\"img\"]]", "\"operators\": [[\"txt\"]]");
  EXPECT_THAT(testing::refusal([&] { open_plan(file); }),
              ::testing::AllOf(HasSubstr("edited.json: stages[0]: was edited since"), HasSubstr("--start")));
}

TEST_F(Edited, LockedStagesAreKeptAndSettingsAreTheStarts) {
  const std::string file = edit("\"name\": \"img\",", "\"name\": \"img\", \"locked\": true,");
  open_plan(file);  // a lock changes nothing else
  const PlanningJob job = prepare_job(start_from(file));
  EXPECT_EQ(job.training, job_.training);
  EXPECT_EQ(job.cluster, job_.cluster);
  EXPECT_EQ(job.cost_hash, job_.cost_hash);
  ASSERT_EQ(job.locked.size(), 1U);
  EXPECT_EQ(job.locked[0].where, file + ": stages[0] ('img')");
  const Planned planned = plan_model(job, {.budget = kSmall});
  ASSERT_TRUE(planned.judged.has_value()) << planned.outcome.why;
  EXPECT_LE(planned.judged->trace.iteration,
            plan_model(job_, {.planner = "branches"}).judged->trace.iteration);
  const PlanFile again = plan_file(job, planned, folder_.string());
  const auto img = std::find_if(again.stages.begin(), again.stages.end(),
                                [](const NamedStage& stage) { return stage.name == "img"; });
  ASSERT_NE(img, again.stages.end());
  EXPECT_TRUE(img->locked);
  EXPECT_THAT(img->devices, ElementsAre("dev0"));
  EXPECT_EQ(plan_model(job, {.planner = "even"}).outcome.status, Status::kUnsupported);
}

TEST_F(Edited, DerivedPartsAreComputedAgainAndItIsSaid) {
  // img moves to dev2, where the head was: the head must go.
  std::string text = read_file(edit("\"devices\": [\"dev0\"]", "\"devices\": [\"dev2\"]"));
  text.replace(text.find("\"name\": \"img\","), 14, "\"name\": \"img\", \"locked\": true,");
  const PlanningJob job = prepare_job(start_from(write("edited.json", text)));
  EXPECT_THAT(job.notes, Contains(HasSubstr("stages[0] ('img') was edited")));
  const Planned planned = plan_model(job, {.budget = kSmall});
  ASSERT_TRUE(planned.judged.has_value()) << planned.outcome.why;
  for (const StagedStage& stage : planned.judged->staged.stages) {
    EXPECT_EQ(stage.name == "img", stage.replicas[0].devices[0] == DeviceId(2)) << stage.name;
  }
}

TEST_F(Edited, MistakesAreNamedWithTheirPlace) {
  EXPECT_THAT(
      refused("[[\"img\"]]", "[[\"imgg\"]]"),
      HasSubstr(
          "edited.json: stages[0].operators[0]: 'imgg' is no operator of the model; did you mean 'img'?"));
  EXPECT_THAT(refused("[[\"img\"]]", "[[\"txt\"]]"), HasSubstr("'txt' stands in stages["));
  EXPECT_THAT(refused("\"devices\": [\"dev0\"]", "\"devices\": [\"dev9\"]"),
              HasSubstr("stages[0].devices[0]: 'dev9' is no device"));
  EXPECT_THAT(refused("\"name\": \"img\"", "\"name\": \"txt\""),
              HasSubstr("stages[1].name: 'txt' is stages[0]'s, too"));
  EXPECT_THAT(refused("\"after\": []", "\"after\": [\"nobody\"]"),
              HasSubstr("stages[0].after[0]: there is no stage 'nobody'"));
  EXPECT_THAT(refused("\"micro_batch\": 1", "\"micro_batch\": 3"),
              HasSubstr("stages[0].micro_batch: 3 does not divide the batch 4"));
}

TEST_F(Edited, StagesMayShareADevice) {
  const PlanningJob job = prepare_job(start_from(edit("\"devices\": [\"dev0\"]", "\"devices\": [\"dev1\"]")));
  ASSERT_TRUE(job.start.has_value());
  std::size_t on_dev1 = 0;
  for (const Stage& stage : job.start->stages) on_dev1 += stage.replicas[0].devices[0] == DeviceId(1) ? 1 : 0;
  EXPECT_EQ(on_dev1, 2U);
  const Planned planned = plan_model(job, {.budget = kSmall});
  ASSERT_TRUE(planned.judged.has_value()) << planned.outcome.why;
  EXPECT_THAT(check_plan(job.graph, job.cluster, planned.judged->plan), ::testing::IsEmpty());
}

// What a search found is begun with as it stands: shares of replicas, samples in flight, stages on one
// device.
TEST_F(Edited, AnUneditedPlanIsTheStart) {
  const PlanningJob job = prepare_job(start_from(path("plan.json")));
  ASSERT_TRUE(job.start.has_value());
  EXPECT_EQ(*job.start, resolve_plan(open_plan(path("plan.json")).file, job.graph));
}

// The fixtures: two_tower has a contrastive loss, resnet BatchNorm.
PlanningJob fixture_job(const std::string& name, JobOptions options = {}) {
  options.model = std::string(ESPALIER_SOURCE_DIR) + "/tests/fixtures/" + name + ".pt2";
  options.cluster = "4xcpu";
  options.batch = BatchSize(32);
  return prepare_job(options);
}

TEST(WhatIsTrained, AContrastiveLossKeepsTheBatchWholeUnlessASmallerMicroBatchIsNamed) {
  const PlanningJob whole = fixture_job("two_tower");
  EXPECT_THAT(whole.training.micro_batches, ElementsAre(BatchSize(32)));
  EXPECT_THAT(whole.notes, Contains(HasSubstr("the whole batch of 32, because 'matmul")));
  for (const PlannerEntry& planner : planner_catalog()) {
    const Planned planned = plan_model(whole, {.planner = planner.name, .budget = kSmall});
    if (!planned.judged) continue;
    for (const Stage& stage : planned.judged->plan.stages) {
      EXPECT_EQ(stage.micro_batch, BatchSize(32)) << planner.name;
      EXPECT_EQ(stage.replicas.size(), 1U) << planner.name;
    }
  }
  JobOptions named;
  named.micro_batches = {BatchSize(8)};
  const PlanningJob split = fixture_job("two_tower", named);
  EXPECT_THAT(split.training.micro_batches, ElementsAre(BatchSize(8)));
  EXPECT_THAT(plan_model(split, {.planner = "branches"}).warnings, Contains(HasSubstr("mixes samples")));
}

TEST(WhatIsTrained, ModelsThatAverageTheirSamplesMayBeSplit) {
  for (const char* name : {"three_branch", "gpt", "dlrm", "unet", "gpt2", "llama", "resnet"}) {
    EXPECT_GT(fixture_job(name).training.micro_batches.size(), 1U) << name;
  }
}

TEST(WhatIsTrained, StagesThatWriteBuffersAreNotReplicatedUnlessAsked) {
  const PlanningJob job = fixture_job("resnet");
  const auto replicated = [](const PlanningJob& of, const std::string& planner) {
    const Planned planned = plan_model(of, {.planner = planner, .budget = kSmall});
    EXPECT_TRUE(planned.judged.has_value()) << planner << ": " << planned.outcome.why;
    if (!planned.judged) return false;
    for (const Stage& stage : planned.judged->plan.stages) {
      const bool writes = std::any_of(stage.operators.begin(), stage.operators.end(),
                                      [&](OperatorId op) { return writes_buffer(of.graph, op); });
      if (writes && stage.replicas.size() > 1) return true;
    }
    return false;
  };
  for (const PlannerEntry& planner : planner_catalog()) {
    // One finds no two branches, another no prices, and policies no libtorch.
    if (planner.name == "branches" || planner.name == "price" || planner.learned) continue;
    EXPECT_FALSE(replicated(job, planner.name)) << planner.name;
  }
  JobOptions asked;
  asked.written_buffers = WrittenBuffers::kReplicated;
  EXPECT_TRUE(replicated(fixture_job("resnet", asked), "pipedream"));
}

}  // namespace
}  // namespace espalier
