// Operators with several implementations from the cost file to the plan file: the fastest, and where memory
// binds the fewest lighter ones that fit.

#include <gmock/gmock.h>

#include "espalier/app/opened_plan.h"
#include "espalier/app/planning.h"
#include "espalier/app/towers_for_tests.h"
#include "espalier/cost/implementations.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LighterImplementations : public Towers {
 protected:
  LighterImplementations() : Towers(1, "1000GB") { options_.micro_batches = {BatchSize(1)}; }

  // Towers and head in two ways each, the lighter ones slower; `memory` of each device.
  PlanningJob job(const std::string& memory) {
    std::string text = cluster_;
    text.replace(text.find("1GiB"), 4, memory);
    options_.cluster = write("cluster.txt", text);
    options_.costs = write("costs.txt",
                           "cost tower dev batch=1 f=2ms i=2ms w=2ms private=600MiB by=fast\n"
                           "cost tower dev batch=1 f=3ms i=3ms w=3ms by=light\n"
                           "cost head dev batch=1 f=1ms i=1ms w=1ms private=300MiB by=fast\n"
                           "cost head dev batch=1 f=9ms i=9ms w=9ms by=light\n"
                           "cost mean dev batch=1 f=0ns\n");
    return prepare_job(options_);
  }
};

TEST_F(LighterImplementations, WhereThereIsRoomTheFastestAreNamed) {
  for (const std::string planner : {"single", "m-etf"}) {
    const PlanningJob roomy = job("16GiB");
    const Planned planned = plan_model(roomy, {.planner = planner});
    ASSERT_TRUE(planned.judged && !planned.judged->overflow) << planner;
    EXPECT_FALSE(planned.costs.has_value());
    EXPECT_THAT(implementations_of(roomy, planned),
                ElementsAre(NamedImplementation{"dev", "fast", {"img", "txt", "head"}}));
    const PlanFile file = plan_file(roomy, planned, folder_.string());
    write("plan.json", print_plan_file(file));
    EXPECT_EQ(open_plan(path("plan.json")).file.implementations, file.implementations);
    EXPECT_EQ(open_plan(path("plan.json")).trace, planned.judged->trace);
  }
}

TEST_F(LighterImplementations, WhereMemoryBindsTheCheapestForEachByteBecomeLighter) {
  // On one device towers alone: 1 ms more a pass for 600 MiB each; the head's 8 ms for 300 MiB would not do.
  const PlanningJob tight = job("1GiB");
  const Planned planned = plan_model(tight, {.planner = "single"});
  ASSERT_TRUE(planned.judged && !planned.judged->overflow);
  EXPECT_THAT(implementations_of(tight, planned),
              ElementsAre(NamedImplementation{"dev", "fast", {"head"}},
                          NamedImplementation{"dev", "light", {"img", "txt"}}));
  EXPECT_THAT(planned.outcome.why, HasSubstr("2 operators take a lighter one, 1.17 GiB less"));
  EXPECT_GE(planned.judged->trace.iteration, planned.judged->any_bound.time);
  const PlanFile file = plan_file(tight, planned, folder_.string());
  EXPECT_EQ(file.implementations.size(), 2U);
  write("plan.json", print_plan_file(file));
  EXPECT_EQ(open_plan(path("plan.json")).trace, planned.judged->trace);

  const Planned both = plan_model(job("100MiB"), {.planner = "single"});
  ASSERT_TRUE(both.judged && !both.judged->overflow);
  EXPECT_THAT(implementations_of(job("100MiB"), both),
              ElementsAre(NamedImplementation{"dev", "light", {"img", "txt", "head"}}));
}

// The towers fit where they are computed twice, 2 ms each; lighter ones take 1 ms longer to compute.
TEST_F(LighterImplementations, AreTakenWhereThatIsFasterThanToRecompute) {
  std::string text = cluster_;
  text.erase(text.find("device dev1"));
  options_.cluster = write("cluster.txt", text);
  const auto planned_with = [&](const std::string& light) {
    options_.costs =
        write("costs.txt", "cost tower dev batch=1 f=20ms i=2ms w=2ms private=600MiB by=fast\n" + light +
                               "cost head dev batch=1 f=1ms i=1ms w=1ms\n"
                               "cost mean dev batch=1 f=0ns\n");
    return plan_model(prepare_job(options_), {.budget = kSmall});
  };
  const Planned recomputed = planned_with("");
  ASSERT_TRUE(recomputed.judged && !recomputed.judged->overflow);
  const Planned lighter = planned_with("cost tower dev batch=1 f=21ms i=2ms w=2ms by=light\n");
  ASSERT_TRUE(lighter.judged && !lighter.judged->overflow);
  EXPECT_LT(lighter.judged->trace.iteration, recomputed.judged->trace.iteration);
  EXPECT_TRUE(lighter.costs.has_value());
  EXPECT_THAT(lighter.outcome.why,
              HasSubstr("faster than to recompute more: 2 operators take a lighter one"));
  const Planned slower = planned_with("cost tower dev batch=1 f=90ms i=2ms w=2ms by=light\n");
  EXPECT_EQ(slower.judged->trace.iteration, recomputed.judged->trace.iteration);
  EXPECT_FALSE(slower.costs.has_value());
}

TEST_F(LighterImplementations, MoreDevicesComeBeforeLighterOnes) {
  const Planned planned = plan_model(job("1GiB"), {.budget = kSmall});
  ASSERT_TRUE(planned.judged && !planned.judged->overflow);
  EXPECT_FALSE(planned.costs.has_value()) << "the towers stand apart";
}

TEST_F(LighterImplementations, WhereNothingHelpsTheRefusalIsTheOrdinaryOne) {
  const Planned planned = plan_model(job("64B"), {.planner = "single"});
  EXPECT_FALSE(planned.judged && !planned.judged->overflow);
  EXPECT_EQ(planned.outcome.status, Status::kInfeasible);
  EXPECT_TRUE(planned.shortage.has_value());
}

}  // namespace
}  // namespace espalier
