// Preset tsan compiles this file: its suites run under ThreadSanitizer too.

#include "espalier/runtime/scheduler_hints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>

#include "testing/refusal.h"

namespace espalier {
namespace {

using espalier::testing::refusal;
using ::testing::HasSubstr;

std::ptrdiff_t threads_of_this_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

TEST(SchedulerHints, WithoutThemNoThreadKeepsTheCoreAwake) {
  const std::ptrdiff_t before = threads_of_this_process();
  {
    Awake awake(SchedulerHints::kNone);
    const Awake::Wait wait(awake);
    EXPECT_EQ(threads_of_this_process(), before);
  }
  Awake awake(SchedulerHints::kGiven);
  const Awake::Wait wait(awake);
  EXPECT_EQ(threads_of_this_process(), before + 1);
}

TEST(SchedulerHints, TheEnvironmentSwitchesThemOff) {
  EXPECT_EQ(world_from_environment().scheduler_hints, SchedulerHints::kGiven);
  setenv("ESPALIER_SCHEDULER_HINTS", "off", 1);
  EXPECT_EQ(world_from_environment().scheduler_hints, SchedulerHints::kNone);
  setenv("ESPALIER_SCHEDULER_HINTS", "no", 1);
  EXPECT_THAT(refusal([] { world_from_environment(); }),
              HasSubstr("ESPALIER_SCHEDULER_HINTS=no: expected on or off"));
  unsetenv("ESPALIER_SCHEDULER_HINTS");
}

}  // namespace
}  // namespace espalier
