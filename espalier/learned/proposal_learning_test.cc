#include "espalier/learned/proposal_learning.h"

#include <gmock/gmock.h>

#include <cmath>

#include "espalier/base/rng.h"
#include "testing/refusal.h"

namespace espalier::placement {
namespace {

using espalier::testing::refusal;
using ::testing::HasSubstr;

// Changes whose gain is what they take off the busiest device.
std::vector<JudgedPlacement> made_up_changes(std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<JudgedPlacement> places(count);
  for (JudgedPlacement& place : places) {
    for (int i = 0; i < 16; ++i) {
      JudgedChange change;
      for (float& value : change.figures.values) value = static_cast<float>(rng.below(1'000)) / 1'000;
      change.gain = 0.1F * (0.5F - change.figures.values[ChangeFigures::kBusiestThen]);
      place.push_back(change);
    }
  }
  return places;
}

TEST(ProposalLearning, FindsWhatChangesAreWorth) {
  const ProposalGuide guide = learn_proposals(made_up_changes(250, 1), {.updates = 1'000});
  const ProposalQuality unseen = quality_of(guide, made_up_changes(250, 2));
  EXPECT_GT(unseen.proposed, 0.8);
  EXPECT_LT(unseen.random, 0.5);
}

TEST(ProposalLearning, GivesTheSameForASeed) {
  const std::vector<JudgedPlacement> places = made_up_changes(8, 1);
  const ChangeFigures& asked = places.front().front().figures;
  const float rate = learn_proposals(places, {.updates = 20, .seed = 3}).rate(asked);
  EXPECT_EQ(learn_proposals(places, {.updates = 20, .seed = 3}).rate(asked), rate);
  EXPECT_NE(learn_proposals(places, {.updates = 20, .seed = 4}).rate(asked), rate);
}

TEST(ProposalLearning, NothingToLearnFromIsTold) {
  EXPECT_THAT(refusal([] { learn_proposals({}, {}); }), HasSubstr("no graph has anything to move"));
}

TEST(ProposalQuality, OfNoPlaceIsNothing) {
  const ProposalGuide guide = learn_proposals(made_up_changes(2, 1), {.updates = 2});
  EXPECT_EQ(quality_of(guide, {}).proposed, 0);
}

// What is judged does not depend on threads, and the guide that comes along has learnt something of it.
TEST(GeneratedChanges, AreTheSameForAnyNumberOfThreads) {
  const GeneratedChanges options{
      .graphs = 3, .without = {}, .walks = {.places = 8, .changes = 24, .least = 2, .most = 5}, .seed = 7};
  const auto judged = [&](std::size_t threads) {
    ThreadPool pool(threads);
    Context context;
    context.pool = &pool;
    return generated_changes(options, context);
  };
  const auto numbers = [](const std::vector<JudgedPlacement>& places) {
    std::vector<float> all;
    for (const JudgedPlacement& place : places) {
      EXPECT_LE(place.size(), 24U);
      for (const JudgedChange& change : place) {
        EXPECT_TRUE(std::isfinite(change.gain));
        EXPECT_GE(change.gain, JudgedChange::kLost);
        all.push_back(change.gain);
        all.insert(all.end(), change.figures.values.begin(), change.figures.values.end());
      }
    }
    return all;
  };
  const std::vector<JudgedPlacement> one = judged(1);
  EXPECT_FALSE(numbers(one).empty());
  EXPECT_EQ(numbers(judged(2)), numbers(one));
  const ProposalQuality quality = quality_of(usual_proposals(), one);
  EXPECT_GT(quality.proposed, quality.random);
}

}  // namespace
}  // namespace espalier::placement
