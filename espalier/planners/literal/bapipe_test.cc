#include "espalier/planners/literal/bapipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "espalier/planners/literal/published_for_tests.h"
#include "testing/refusal.h"

namespace espalier::literal {
namespace {

using espalier::testing::refusal;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A chain of layers of 1 ms forward and 2 ms backward, whose outputs have so many megabytes: at 1 GB/s a
// megabyte takes a millisecond.
PipedreamProfile chain_of(const std::vector<double>& megabytes) {
  PipedreamProfile profile;
  profile.file = "chain";
  for (std::size_t i = 0; i < megabytes.size(); ++i) {
    profile.nodes.push_back({.id = "node" + std::to_string(i),
                             .description = "Linear",
                             .forward = 1,
                             .backward = 2,
                             .activation = 1e6 * megabytes[i],
                             .parameters = 1e6});
    if (i > 0) profile.edges.push_back({i - 1, i});
  }
  return profile;
}

std::vector<std::size_t> sizes(const BapipeResult& result) {
  std::vector<std::size_t> sizes;
  for (const BapipeStage& stage : result.stages) sizes.push_back(stage.nodes.size());
  return sizes;
}

TEST(Bapipe, ClosedFormsByHand) {
  // Two stages of F = 2, B = 4, a message of 1 between them; M = 4, n = 2.
  const std::vector<BapipeStageTimes> stages{{2, 4, 1}, {2, 4, 0}};
  using S = BapipeSchedule;
  EXPECT_DOUBLE_EQ(bapipe_step(S::k1F1BAs, stages, 4), 5 * 6);           // hidden: 1 < 2
  EXPECT_DOUBLE_EQ(bapipe_step(S::kFbpAs, stages, 4), 5 * 6);            // likewise
  EXPECT_DOUBLE_EQ(bapipe_step(S::k1F1BSno, stages, 4), 5 * 6 + 4 * 2);  // (M + n − 2)·2C
  EXPECT_DOUBLE_EQ(bapipe_step(S::k1F1BSo, stages, 4), 5 * 6 + 1 * 2);   // (n − 1)·2C
  // A message of 3 is longer than F: slots of 3 + 4, for FBP-AS still of 6.
  const std::vector<BapipeStageTimes> slow{{2, 4, 3}, {2, 4, 0}};
  EXPECT_DOUBLE_EQ(bapipe_step(S::k1F1BAs, slow, 4), 5 * 7);
  EXPECT_DOUBLE_EQ(bapipe_step(S::kFbpAs, slow, 4), 5 * 6);
  EXPECT_DOUBLE_EQ(bapipe_step(S::k1F1BSo, slow, 4), 5 * 7 + 2 * 3);
  // Three stages: 3, 2, 1 in flight, or 5, 3, 1; no more than M.
  EXPECT_EQ(bapipe_in_flight(S::k1F1BSno, 3, 0, 8), 3);
  EXPECT_EQ(bapipe_in_flight(S::k1F1BSo, 3, 0, 8), 5);
  EXPECT_EQ(bapipe_in_flight(S::k1F1BSo, 3, 2, 8), 1);
  EXPECT_EQ(bapipe_in_flight(S::k1F1BSo, 3, 0, 4), 4);
}

TEST(Bapipe, EvenLayersAreCutEvenlyAndOverlapped) {
  // Four layers on two devices: 2 | 2, F = 2, B = 4, C = 1 as above: 1F1B-SO with 32 beats SNO with 38.
  const PipedreamProfile profile = chain_of({1, 1, 1, 1});
  const BapipeOptions options{.devices = 2, .micro_batches = 4};
  const BapipeResult result = bapipe(profile, options);
  EXPECT_THAT(check_bapipe(profile, options, result), IsEmpty());
  EXPECT_THAT(sizes(result), ElementsAre(2, 2));
  EXPECT_EQ(result.schedule, BapipeSchedule::k1F1BSo);
  EXPECT_DOUBLE_EQ(result.time, 32);
  EXPECT_DOUBLE_EQ(result.one_device, 48);
}

TEST(Bapipe, MemoryTakesTheScheduleThatHoldsLess) {
  // Weights 2·2 MB; the first stage holds min(4, 3)·2 MB with SO, 2·2 MB with SNO: 10 and 8 MB.
  const PipedreamProfile profile = chain_of({1, 1, 1, 1});
  BapipeOptions options{.devices = 2, .memory = 9e6, .micro_batches = 4};
  BapipeResult result = bapipe(profile, options);
  EXPECT_THAT(check_bapipe(profile, options, result), IsEmpty());
  // SO with one layer on the first device holds 2 + 3 = 5 MB there and 6 + 3 = 9 on the second: it fits, but
  // its slot is 9: 5·9 + 2 = 47. SNO with 2 | 2 takes 38.
  EXPECT_EQ(result.schedule, BapipeSchedule::k1F1BSno);
  EXPECT_THAT(sizes(result), ElementsAre(2, 2));
  EXPECT_DOUBLE_EQ(result.time, 38);
  options.memory = 1e6;
  EXPECT_THAT(bapipe(profile, options).why, HasSubstr("no partition fits"));
}

TEST(Bapipe, LayersBetweenLongMessagesStayTogether) {
  // A share is 12/2 = 6 ms. The even cut's message takes 7, so the cut stands before: 1 | 3, slot 9.
  const PipedreamProfile profile = chain_of({1, 7, 5, 1});
  const BapipeOptions options{.devices = 2, .micro_batches = 4, .streaming = true};
  const BapipeResult result = bapipe(profile, options);
  EXPECT_THAT(check_bapipe(profile, options, result), IsEmpty());
  EXPECT_THAT(sizes(result), ElementsAre(1, 3));
  EXPECT_DOUBLE_EQ(result.time, 5 * 9);
  // Where all messages are longer, the least of them that allows a cut is allowed.
  EXPECT_THAT(sizes(bapipe(chain_of({9, 8, 9, 1}), options)), ElementsAre(2, 2));
}

TEST(Bapipe, NoPartitionThatMayBeIsBetter) {
  // All partitions of short chains into three stages whose messages are short, by hand of three loops.
  for (const double memory : {16e6, 18e6, 1e12}) {
    const PipedreamProfile profile = chain_of({2, 1, 3, 1, 2, 1, 4, 1});
    const BapipeOptions options{.devices = 3, .memory = memory, .micro_batches = 6};
    const BapipeResult result = bapipe(profile, options);
    ASSERT_TRUE(result.found()) << memory;
    EXPECT_THAT(check_bapipe(profile, options, result), IsEmpty()) << memory;
    double least = 1e9;  // largest F + B of those that fit with that schedule
    for (std::size_t a = 1; a < 7; ++a) {
      for (std::size_t b = a + 1; b < 8; ++b) {
        const std::vector<std::size_t> ends{0, a, b, 8};
        double largest = 0;
        bool fits = true;
        for (std::size_t s = 0; s < 3; ++s) {
          double outputs = 0;
          for (std::size_t i = ends[s]; i < ends[s + 1]; ++i) outputs += profile.nodes[i].activation;
          const auto layers = static_cast<double>(ends[s + 1] - ends[s]);
          const auto held = static_cast<double>(bapipe_in_flight(result.schedule, 3, s, 6));
          fits = fits && 2e6 * layers + held * outputs <= memory;
          largest = std::max(largest, 3 * layers);
        }
        if (fits) least = std::min(least, largest);
      }
    }
    double largest = 0;
    for (const BapipeStage& stage : result.stages)
      largest = std::max(largest, stage.times.forward + stage.times.backward);
    EXPECT_DOUBLE_EQ(largest, least) << memory;
  }
}

TEST(Bapipe, PublishedProfilesPassTheChecker) {
  for (const char* name : {"alexnet", "vgg16", "resnet18", "gnmt"}) {
    for (const bool streaming : {false, true}) {
      const PipedreamProfile profile = pipedream_input(name);
      const BapipeOptions options{.devices = 4, .micro_batches = 16, .streaming = streaming};
      EXPECT_THAT(check_bapipe(profile, options, bapipe(profile, options)), IsEmpty()) << name;
    }
  }
}

TEST(Bapipe, WrongOptionsAndShortSequencesAreRefused) {
  EXPECT_THAT(refusal([] { bapipe(chain_of({1}), {.devices = 0}); }), HasSubstr("positive"));
  EXPECT_THAT(bapipe(chain_of({1}), {.devices = 2}).why, HasSubstr("1 layers cannot be cut into 2 stages"));
}

}  // namespace
}  // namespace espalier::literal
