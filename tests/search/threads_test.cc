// One search, whatever the number of threads: the same plan file and the same table, byte for byte; and
// whoever ends it keeps what was found.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>

#include "espalier/app/comparison.h"
#include "espalier/app/planning.h"
#include "espalier/base/files.h"
#include "espalier/graph/text.h"
#include "espalier/zoo/gnmt.h"
#include "espalier/zoo/multi_modal_transformer.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A sanitized build is ten times as slow: two hosts of two devices, short searches and one number of threads
// show it as many races as two of eight, long ones and several.
#if defined(ESPALIER_SANITIZED)
constexpr const char* kTwoHosts = "2x2xT4";
constexpr std::uint64_t kStates = 20'000;
constexpr std::array<std::size_t, 1> kThreads{3};
#else
constexpr const char* kTwoHosts = "2x8xT4";
constexpr std::uint64_t kStates = 200'000;
constexpr std::array<std::size_t, 2> kThreads{2, 7};
#endif

struct Case {
  const char* name;
  std::string model;  // a path, or empty: the zoo's of that name
  std::string cluster;
  std::int64_t batch;
};

Case fixture(const char* name, std::string cluster, std::int64_t batch) {
  return {name, std::string(ESPALIER_SOURCE_DIR) + "/tests/fixtures/" + name + ".pt2", std::move(cluster),
          batch};
}

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases{
      fixture("three_branch", "3xV100-16GB", 16),    fixture("two_tower", "2xA100-80GB+2xV100-16GB@25Gb", 16),
      fixture("unet", "2xV100-16GB+2xV100-16GB", 8), fixture("resnet", "4xV100-16GB", 8),
      {"mmt", "", "3xV100-16GB+3xV100-16GB", 8},     {"gnmt", "", kTwoHosts, 16},
  };
  return kCases;
}

class Search : public ::testing::TestWithParam<Case> {
 protected:
  Search()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                ("espalier_search_" + std::to_string(::getpid()) + "_" + GetParam().name)) {
    std::filesystem::create_directories(folder_);
    JobOptions options;
    options.model = GetParam().model;
    if (options.model.empty()) {
      options.model = (folder_ / "model.txt").string();
      write_file_atomically(options.model, print_graph(of_zoo(GetParam().name)));
    }
    options.cluster = GetParam().cluster;
    options.batch = BatchSize(GetParam().batch);
    job_.emplace(prepare_job(options));
  }
  ~Search() override { std::filesystem::remove_all(folder_); }

  static Graph of_zoo(const std::string& name);

  std::string plan_with(const SearchOptions& search, const std::string& planner) const {
    const Planned planned =
        plan_model(*job_, {.planner = planner, .budget = {.max_states = kStates}, .search = search});
    if (!planned.judged) return "no plan: " + planned.outcome.why;
    return print_plan_file(plan_file(*job_, planned, folder_.string())) +
           std::to_string(planned.outcome.stats.states) + ' ' +
           std::to_string(planned.outcome.stats.evaluations);
  }
  std::string table_with(const SearchOptions& search) const {
    const Comparison comparison =
        compare_planners(*job_, {.budget = Budget{.max_states = kStates}, .search = search});
    std::string text = print_csv(comparison_table(comparison, TableReaders::kMachines));
    for (const ComparedPlan& row : comparison.rows) text += row.planner + ": " + row.why + '\n';
    return text;
  }

  std::filesystem::path folder_;
  std::optional<PlanningJob> job_;
};

Graph Search::of_zoo(const std::string& name) {
  if (name == "gnmt") return build(Gnmt{.layers = 2, .hidden = 8, .vocabulary = 16, .length = 3});
  return build(
      MultiModalTransformer{.layers = 2, .positions = 8, .hidden = 32, .heads = 4, .feed_forward = 64});
}

TEST_P(Search, AnyNumberOfThreadsPlansTheSame) {
  const std::string one = plan_with({.threads = 1}, "auto");
  EXPECT_THAT(one, Not(HasSubstr("no plan")));
  for (const std::size_t threads : kThreads)
    EXPECT_EQ(plan_with({.threads = threads}, "auto"), one) << threads;
}

TEST_P(Search, AnyNumberOfThreadsPlansTheSameByOnePlanner) {
  for (const char* planner : {"branches", "graphpipe", "graphpipe-literal", "checkpointed"}) {
    const std::string alone = plan_with({.threads = 1}, planner);
    for (const std::size_t threads : kThreads)
      EXPECT_EQ(plan_with({.threads = threads}, planner), alone) << planner;
  }
}

TEST_P(Search, AnyNumberOfThreadsComparesTheSame) {
  const std::string one = table_with({.threads = 1});
  for (const std::size_t threads : kThreads) EXPECT_EQ(table_with({.threads = threads}), one) << threads;
}

TEST_P(Search, WhoListensChangesNothing) {
  std::size_t heard = 0;
  const auto count = [&](const SearchProgress&) { ++heard; };
  EXPECT_EQ(plan_with({.threads = 2, .progress = count}, "auto"), plan_with({}, "auto"));
  EXPECT_GT(heard, 0U);
}

TEST_P(Search, EndedFromItsProgressItKeepsTheBest) {
  for (const std::size_t threads : {1, 3}) {
    std::atomic<bool> cancelled = false;
    std::optional<Duration> best;
    const auto end = [&](const SearchProgress& progress) {
      if (!progress.best) return;
      best = progress.best;
      cancelled = true;
    };
    const SearchOptions search{.threads = threads, .progress = end, .cancelled = &cancelled};
    const Planned planned = plan_model(*job_, {.search = search});
    ASSERT_TRUE(planned.judged.has_value()) << planned.outcome.why;
    EXPECT_TRUE(planned.outcome.interrupted);
    EXPECT_EQ(planned.judged->trace.iteration, *best);
    EXPECT_THAT(check_plan(job_->graph, job_->cluster, planned.judged->plan), IsEmpty());
    EXPECT_THAT(print_plan_file(plan_file(*job_, planned, folder_.string())), HasSubstr("interrupted"));

    cancelled = false;
    const Comparison comparison = compare_planners(*job_, {.search = search});
    EXPECT_TRUE(comparison.interrupted);
    ASSERT_TRUE(comparison.best.has_value());
    EXPECT_EQ(comparison.rows[*comparison.best].iteration, best);
  }
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Graphs, Search, ::testing::ValuesIn(cases()), name_of);

}  // namespace
}  // namespace espalier
