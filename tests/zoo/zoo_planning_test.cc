// Every model of the zoo is planned, and shows the branches that a person names.

#include <gmock/gmock.h>

#include <filesystem>
#include <string>
#include <vector>

#include "espalier/app/inspect.h"
#include "espalier/app/planning.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/cost/work.h"
#include "espalier/graph/json.h"
#include "testing/small_zoo.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::small_zoo;

class PlannedZoo : public ::testing::Test {
 protected:
  PlannedZoo() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) / (std::string("espalier_zoo_") + test->name());
    std::filesystem::create_directories(folder_);
  }
  ~PlannedZoo() override { std::filesystem::remove_all(folder_); }
  PlannedZoo(const PlannedZoo&) = delete;
  PlannedZoo& operator=(const PlannedZoo&) = delete;

  PlanningJob job_of(const std::string& name, const ZooValues& values, const std::string& cluster) const {
    const std::string path = (folder_ / (name + ".json")).string();
    write_file_atomically(path, print_json(graph_to_json(build_zoo_model(name, values))));
    JobOptions options;
    options.model = path;
    options.cluster = cluster;
    options.batch = BatchSize(8);
    return prepare_job(options);
  }

  std::filesystem::path folder_;
};

TEST_F(PlannedZoo, EvenPlansEveryModel) {
  for (const auto& [name, both] : small_zoo()) {
    for (const ZooValues& values : both) {
      SCOPED_TRACE(name);
      const PlanningJob job = job_of(name, values, "3xA100-80GB");
      const Planned planned = plan_model(job, {.planner = "even"});
      ASSERT_TRUE(planned.judged.has_value()) << planned.outcome.why;
      EXPECT_THAT(check_plan(job.graph, job.cluster, planned.judged->plan), IsEmpty());
      EXPECT_GE(planned.judged->trace.iteration, planned.judged->stages_bound.time);
    }
  }
}

// The branches of each section that has several: "a | b; c | d".
std::string branches(const Outline& outline) {
  std::string all;
  for (const Outline::Section& section : outline.sections) {
    if (section.branches.size() < 2) continue;
    std::string names;
    for (const Outline::Branch& branch : section.branches)
      names += (names.empty() ? "" : " | ") + branch.name;
    all += (all.empty() ? "" : "; ") + names;
  }
  return all;
}

struct Expected {
  std::string model;
  ZooValues values;
  std::string branches;
};

TEST_F(PlannedZoo, TheStructureShowsTheBranchesThatAPersonNames) {
  const std::vector<Expected> expected{
      {"mmt", {}, "branches.0 | branches.1 | branches.2 | branches.3"},
      {"case-study", {}, "branches.0 | branches.1"},
      {"sequential", {}, ""},
      {"candle-uno", {{"branches", 4}}, "towers.0 | towers.1 | towers.2 | towers.3"},
      {"gpt", {}, ""},
      {"bert", {}, ""},
      {"clip", {}, "image | text"},
      {"whisper", {}, "encoder | decoder.layers.0.self-cross"},
      {"resnet", {}, ""},
      {"u-net", {}, ""},
      {"vision-language", {{"encoders", 2}, {"layers", 4}}, "encoders.0 | encoders.1"},
  };
  for (const Expected& one : expected) {
    const PlanningJob job = job_of(one.model, one.values, "1xA100-80GB");
    const ModelSummary summary = inspect(job);
    EXPECT_EQ(branches(summary.outline), one.branches) << one.model << "\n" << to_text(summary.outline);
    const OperatorCosts costs(job.graph, job.cluster, job.costs, summary.at);
    EXPECT_THAT(check_structure(summary.structure, job.graph, work_weights(job.graph, costs, summary.at)),
                IsEmpty());
  }
}

// Where parts wait for more than they read, the order is no series-parallel one.
TEST_F(PlannedZoo, SomeAreNoSeriesParallelGraphs) {
  for (const std::string model : {"co-attention", "nasnet", "gnn"}) {
    EXPECT_GT(inspect(job_of(model, small_zoo().at(model)[0], "1xA100-80GB")).waits.count, 0U) << model;
  }
  for (const std::string model : {"mmt", "dlrm", "clip", "resnet"}) {
    EXPECT_EQ(inspect(job_of(model, small_zoo().at(model)[0], "1xA100-80GB")).waits.count, 0U) << model;
  }
}

}  // namespace
}  // namespace espalier
