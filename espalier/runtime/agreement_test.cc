#include "espalier/runtime/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "espalier/base/files.h"
#include "espalier/base/rng.h"
#include "espalier/runtime/plans_for_tests.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

Introduction introduction(const std::string& worker, std::vector<Fact> facts) {
  return {worker, 2, "host", "clock", std::move(facts)};
}

TEST(Agreement, EqualFactsAgreeWhateverHostAndClock) {
  Introduction other = introduction("worker 1", {{"steps", "10"}});
  other.host = "another";
  other.clock = "another";
  EXPECT_EQ(disagreement(introduction("worker 0", {{"steps", "10"}}), other), "");
}

TEST(Agreement, WhoDiffersIsNamedWithAllInWhich) {
  EXPECT_EQ(
      disagreement(
          introduction("worker 0 (cpu:0)", {{"plan", "fingerprint a"}, {"seed", "1"}, {"steps", "10"}}),
          introduction("worker 1 (cpu:1)", {{"plan", "fingerprint b"}, {"seed", "1"}, {"steps", "20"}})),
      "worker 1 (cpu:1) differs from worker 0 (cpu:0) in its plan (fingerprint b, not fingerprint a) and in "
      "its "
      "steps (20, not 10)");
}

TEST(Agreement, AFactThatOneWorkerDoesNotKnowIsADifference) {
  EXPECT_EQ(disagreement(introduction("worker 0", {}), introduction("worker 1", {{"clip", "1"}})),
            "worker 1 differs from worker 0 in its clip (1, not unknown)");
  EXPECT_EQ(disagreement(introduction("worker 0", {{"clip", "1"}}), introduction("worker 1", {})),
            "worker 1 differs from worker 0 in its clip (unknown, not 1)");
}

TEST(Agreement, TheNumberOfWorkersIsAFactToo) {
  Introduction other = introduction("worker 1", {});
  other.workers = 3;
  EXPECT_EQ(disagreement(introduction("worker 0", {}), other),
            "worker 1 differs from worker 0 in its number of workers (3, not 2)");
}

TEST(Agreement, AnIntroductionIsReadBackAndAnyOtherBytesAreRefused) {
  const Introduction mine = introduction("worker \"1\"", {{"plan", "fingerprint a"}, {"steps", "10"}});
  const std::string text = print_introduction(mine);
  EXPECT_EQ(parse_introduction(text, "worker 1"), mine);
  Rng rng(1);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = text.substr(0, 1 + rng.below(text.size()));
    bytes[rng.below(bytes.size())] = static_cast<char>(rng.next());
    try {
      parse_introduction(bytes, "worker 1");
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("worker 1"));
    }
  }
  EXPECT_THAT(testing::refusal([] { parse_introduction(std::string(2 << 20, ' '), "worker 1"); }),
              HasSubstr("worker 1: has 2097152 bytes"));
}

TEST(Agreement, APlansNamesAndNotesDoNotMatterItsContentDoes) {
  PlanFile plan;
  plan.cluster = cpus(2).parts();
  plan.training.batch = BatchSize(4);
  PlanFile same = plan;
  same.model = "elsewhere/model.pt2";
  same.cost_file = "costs.json";
  same.notes = {"a note"};
  same.planner = "even";
  EXPECT_EQ(plan_fact(plan), plan_fact(same));
  PlanFile other = plan;
  other.training.optimizer.learning_rate *= 2;
  EXPECT_NE(plan_fact(plan), plan_fact(other));
}

TEST(Agreement, AFileIsKnownByItsBytes) {
  const std::string folder = ::testing::TempDir() + "/espalier-agreement-" + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  std::string content(3 << 20, 'a');
  write_file_atomically(folder + "/a", content);
  write_file_atomically(folder + "/copy", content);
  content.back() = 'b';
  write_file_atomically(folder + "/changed", content);
  EXPECT_EQ(file_fact("data", folder + "/a"), file_fact("data", folder + "/copy"));
  EXPECT_NE(file_fact("data", folder + "/a"), file_fact("data", folder + "/changed"));
  EXPECT_EQ(file_fact("data", "").value, "none");
  EXPECT_THAT(testing::refusal([&] { file_fact("data", folder + "/none"); }),
              HasSubstr("/none: cannot read"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace espalier
