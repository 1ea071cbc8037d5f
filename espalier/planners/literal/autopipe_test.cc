#include "espalier/planners/literal/autopipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "espalier/base/rng.h"
#include "espalier/planners/literal/published_for_tests.h"

namespace espalier::literal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The same blocks on every stage.
AutopipeTimes alike(std::size_t stages, const std::vector<std::int64_t>& forward,
                    const std::vector<std::int64_t>& backward) {
  return {std::vector(stages, forward), std::vector(stages, backward)};
}

// The least step of all partitions.
std::int64_t least_step(const AutopipeTimes& times, std::vector<std::size_t> ends, std::size_t begin) {
  const std::size_t stages = times.forward.size(), blocks = times.forward.front().size();
  if (ends.size() + 1 == stages) {
    ends.push_back(blocks);
    return autopipe_step(times, ends).nanoseconds;
  }
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::size_t end = begin + 1; end + (stages - ends.size() - 1) <= blocks; ++end) {
    ends.push_back(end);
    least = std::min(least, least_step(times, ends, end));
    ends.pop_back();
  }
  return least;
}

TEST(Autopipe, EqualStagesTakeTheStepOf1F1B) {
  // Two stages of f = 1, b = 2, four micro-batches: the last stage works from 1 on for 4·3, then the first
  // one's backward: 1 + 12 + 2 = 15 = (4 + 2 - 1)·3. Both have no gap; the last of them is the master.
  EXPECT_EQ(autopipe_step(alike(2, {1, 1}, {2, 2}), {1, 2}), (AutopipeStep{15, 1}));
}

TEST(Autopipe, TheMasterIsTheStageThatNeverWaits) {
  // f, b: first stage 2 and 4, second 1 and 2; m = 4, pairs of the first 1 … 2.
  //   B(1,0) = 2 + 1 = 3            B(0,0) = 3 + 2 = 5
  //   F(1,1) = 3 + 2 = 5            F(0,1) = 5 + 4 = 9
  //   B(1,1) = 6                    B(0,1) = max(6 + 2, 9 + 2) = 11
  //   F(1,2) = max(9 + 2, 6 + 2) = 11: the second waits, so the first is the master
  //   F(0,2) = 11 + 4 = 15, its last pair
  // From there: 15 + 2 = 17 for pair 2's own backward, 17 + 1 = 18 for the second's last. The first's last
  // backward begins at max(17 + 4, 18 + 2) = 21 and ends at 25.
  EXPECT_EQ(autopipe_step(alike(2, {2, 1}, {4, 2}), {1, 2}), (AutopipeStep{25, 0}));
  // Turned round: F(1,k) = 2 + 4·… : the second works from 1 on for 4·6, then 2 more: 27.
  EXPECT_EQ(autopipe_step(alike(2, {1, 2}, {2, 4}), {1, 2}), (AutopipeStep{27, 1}));
}

TEST(Autopipe, ABlockOfTheMasterMovesToTheFront) {
  // Three blocks of f = 1, b = 2 in two stages. Least largest f + b is 6 either way; with the longest last
  // stage first: 1 | 2, 27 as above. Its master is the second stage, whose first block moves: 2 | 1, 25.
  const AutopipeSearch search = autopipe_search(alike(2, {1, 1, 1}, {2, 2, 2}), 100);
  EXPECT_THAT(search.ends, ElementsAre(2, 3));
  EXPECT_EQ(search.step, (AutopipeStep{25, 0}));
  EXPECT_TRUE(search.complete);
}

TEST(Autopipe, EvenBlocksAreCutEvenly) {
  // The example in the authors' program: 24 blocks of 1 ms and 1 ms in four stages. Six each: 11 slots of 12.
  const AutopipeSearch search = autopipe_search(
      alike(4, std::vector<std::int64_t>(24, 1000), std::vector<std::int64_t>(24, 1000)), 1000);
  EXPECT_THAT(search.ends, ElementsAre(6, 12, 18, 24));
  EXPECT_EQ(search.step.nanoseconds, 11 * 12'000);
}

TEST(Autopipe, NeverBeatsTheBestPartitionAndIsMostlyIt) {
  Rng rng(3);
  int equal = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t stages = 2 + rng.below(3), blocks = stages + rng.below(6);
    std::vector<std::int64_t> forward, backward;
    for (std::size_t i = 0; i < blocks; ++i) {
      forward.push_back(static_cast<std::int64_t>(1 + rng.below(9)));
      backward.push_back(static_cast<std::int64_t>(1 + rng.below(18)));
    }
    const AutopipeTimes times = alike(stages, forward, backward);
    const AutopipeSearch search = autopipe_search(times, 10'000);
    EXPECT_TRUE(search.complete);
    EXPECT_EQ(autopipe_step(times, search.ends), search.step);
    const std::int64_t least = least_step(times, {}, 0);
    EXPECT_GE(search.step.nanoseconds, least);
    EXPECT_LE(search.step.nanoseconds, least * 5 / 4);
    equal += search.step.nanoseconds == least ? 1 : 0;
  }
  EXPECT_GE(equal, 150);
}

TEST(Autopipe, PublishedProfilesPassTheChecker) {
  for (const char* name : {"alexnet", "vgg16", "resnet18", "gnmt"}) {
    const PipedreamProfile profile = pipedream_input(name);
    for (const std::size_t stages : {1, 4, 8}) {
      const AutopipeResult result = autopipe(profile, stages);
      ASSERT_TRUE(result.found()) << name << ": " << result.why;
      EXPECT_THAT(check_autopipe(profile, stages, result), IsEmpty()) << name;
      EXPECT_LE(result.one_device, result.time * static_cast<double>(stages) * (1 + 1e-9)) << name;
    }
  }
  AutopipeResult wrong = autopipe(pipedream_input("vgg16"), 4);
  wrong.time /= 2;
  EXPECT_THAT(check_autopipe(pipedream_input("vgg16"), 4, wrong), ElementsAre(HasSubstr("time: it is")));
}

TEST(Autopipe, SaysWhyThereIsNoAnswer) {
  EXPECT_THAT(autopipe(pipedream_input("vgg16"), 64).why,
              HasSubstr("40 layers cannot be cut into 64 stages"));
  EXPECT_THAT(autopipe(pipedream_input("vgg16"), 8, 2).why, HasSubstr("more than 2 partitions"));
}

}  // namespace
}  // namespace espalier::literal
