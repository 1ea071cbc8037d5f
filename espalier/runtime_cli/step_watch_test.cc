#include "espalier/runtime_cli/step_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <utility>

namespace espalier::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(StepWatch, SaysThatAStepStillRuns) {
  std::promise<std::string> said;
  bool first = true;
  StepWatch watch(std::chrono::nanoseconds(1), [&](const std::string& line) {
    if (std::exchange(first, false)) said.set_value(line);
  });
  watch.starts(7);
  EXPECT_THAT(said.get_future().get(), ::testing::AllOf(StartsWith("step 7 runs since "), HasSubstr(" s")));
}

TEST(StepWatch, SaysNothingBeforeTheFirstStepOrWithinTheInterval) {
  bool said = false;
  {
    StepWatch watch(std::chrono::nanoseconds(1), [&](const std::string&) { said = true; });
  }
  {
    StepWatch watch(std::chrono::hours(1), [&](const std::string&) { said = true; });
    watch.starts(1);
    watch.starts(2);
  }
  EXPECT_FALSE(said);
}

}  // namespace
}  // namespace espalier::cli
