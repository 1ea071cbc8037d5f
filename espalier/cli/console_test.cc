#include "espalier/cli/console.h"

#include <gtest/gtest.h>

#include <sstream>

namespace espalier::cli {
namespace {

SearchProgress some_progress() {
  SearchProgress progress;
  progress.fraction = 0.5;
  progress.planner = "branches";
  progress.stats = {.states = 1'234'567, .evaluations = 340};
  return progress;
}

TEST(Console, ASearchTellsItsBestPlanTheBoundAndItsWork) {
  SearchProgress progress = some_progress();
  EXPECT_EQ(search_text(progress), "branches: no plan yet; 1234 k states, 340 plans");
  progress.best = milliseconds(26);
  EXPECT_EQ(search_text(progress), "branches: best 26.0 ms; 1234 k states, 340 plans");
  progress.bound = milliseconds(20);
  EXPECT_EQ(search_text(progress),
            "branches: best 26.0 ms, 30.0 % above the bound; 1234 k states, 340 plans");
}

TEST(Console, ProgressIsDrawnOnATerminalOnlyAndWiped) {
  std::ostringstream out, err;
  Console pipe(out, err, {.err = false});
  EXPECT_FALSE(pipe.search_listener());
  Console terminal(out, err, {.err = true});
  terminal.search_listener()(some_progress());
  EXPECT_NE(err.str().find(" 50 %  branches: no plan yet"), std::string::npos) << err.str();
  terminal.finish();
  EXPECT_TRUE(err.str().ends_with("\r\x1b[K"));
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace espalier::cli
