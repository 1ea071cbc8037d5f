#include "espalier/planners/repeated.h"

#include <gmock/gmock.h>

#include <set>
#include <string>

#include "espalier/planners/joint/joint.h"
#include "espalier/planners/pipeline/pipedream.h"
#include "espalier/planners/toy_for_tests.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsSupersetOf;

constexpr const char* kChain =
    "x = input() : f32[b]\nw = parameter(w) : f32[1]\nh0 = f(x, w) : f32[b] @class=c1\n"
    "h1 = f(h0, w) : f32[b] @class=c2\nh2 = f(h1, w) : f32[b] @class=c1\nloss = f(h2, w) : f32[] @class=c2\n"
    "return loss\n";

std::string hosts(int count) {
  std::string text =
      "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
      "kind old 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1 speed=0.5\n"
      "group network 10GB latency=100us\n";
  for (int h = 0; h < count; ++h) {
    const std::string host = "host" + std::to_string(h);
    text += "group " + host + " in network 10GB latency=20us\ndevice a" + host + " gpu in " + host +
            "\ndevice b" + host + " old in " + host + "\n";
  }
  return text;
}

// Copies meet in sums alone, and those are short here: four bytes.
TEST(Repeated, CopiesTakeAsLongAsOne) {
  const Toy whole(kChain, hosts(4), 12);
  const auto parts = equal_parts(whole.cluster, Division::kOutermost, 1);
  ASSERT_TRUE(parts);
  const Toy one(kChain, hosts(2), 6);
  Context context;
  const Outcome found = pipedream(one.problem(), {}, context);
  Outcome both = found;
  both.plan = repeated(std::get<PipelinePlan>(*found.plan), *parts);
  const Duration before = one.simulated(found), after = whole.simulated(both);
  EXPECT_GE(after, before);
  EXPECT_LE(after, before + milliseconds(1));
}

TEST(Repeated, MicroBatchesAreDealtToCopiesInTurn) {
  const Toy whole(kChain, hosts(2), 6);
  const auto parts = equal_parts(whole.cluster, Division::kOutermost, 1);
  ASSERT_TRUE(parts);
  PipelinePlan plan;
  plan.batch = BatchSize(3);
  Stage stage;
  stage.name = "all";
  stage.replicas = {{{DeviceId(0U)}, {0, 2}}, {{DeviceId(1)}, {1}}};
  stage.micro_batch = BatchSize(1);
  plan.stages = {stage};
  const PipelinePlan twice = repeated(plan, *parts);
  EXPECT_EQ(twice.batch, BatchSize(6));
  EXPECT_THAT(twice.stages.front().replicas,
              ElementsAre(Replica{{DeviceId(0U)}, {0, 4}}, Replica{{DeviceId(2)}, {1, 5}},
                          Replica{{DeviceId(1)}, {2}}, Replica{{DeviceId(3)}, {3}}));
}

// Who watches hears of the parts too, and of no plan that is a part's alone.
TEST(Repeated, PartsAreHeard) {
  const Toy whole(kChain, hosts(4), 12);
  std::set<std::string> heard;
  double last = 0;
  std::optional<Duration> best;
  SearchWatch watch([&](const SearchProgress& progress) {
    heard.emplace(progress.planner);
    EXPECT_GE(progress.fraction, last - 1e-9);
    EXPECT_LE(progress.fraction, 1);
    last = progress.fraction;
    best = progress.best;
  });
  Context context{.budget = {.max_states = 20'000}, .watch = &watch};
  const std::vector<NamedPlanner> planners{
      {"pipedream", [](const Problem& problem, Context& own) { return pipedream(problem, {}, own); }, 1}};
  const Outcome found = joint_search(whole.problem(), planners, {.least_of_a_part = 2}, context);
  ASSERT_EQ(found.status, Status::kFeasible) << found.why;
  EXPECT_THAT(heard, IsSupersetOf({"pipedream", "equal parts"}));
  EXPECT_GE(last, 2.0 / 3 - 1e-9);
  EXPECT_LE(whole.simulated(found), *best);
}

TEST(Repeated, APartHasItsShareOfTheBatchInMicroBatchesThatDivideIt) {
  Training training;
  training.batch = BatchSize(12);
  training.micro_batches = {BatchSize(1), BatchSize(4), BatchSize(6)};
  const auto half = training_of_part(training, 2);
  ASSERT_TRUE(half);
  EXPECT_EQ(half->batch, BatchSize(6));
  EXPECT_THAT(half->micro_batches, ElementsAre(BatchSize(1), BatchSize(6)));
  EXPECT_FALSE(training_of_part(training, 5)) << "12 samples are not in five equal parts";
  training.micro_batches = {BatchSize(12)};
  EXPECT_FALSE(training_of_part(training, 2)) << "no micro-batch of the half";
}

}  // namespace
}  // namespace espalier
