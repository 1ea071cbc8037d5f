#include "espalier/learned/guide_learning.h"

#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "espalier/base/rng.h"
#include "testing/refusal.h"

namespace espalier::joint {
namespace {

using espalier::testing::refusal;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// Places of steps whose gain is what their third time falls by, or rises: no figure that loads have.
std::vector<JudgedPlace> made_up_places(std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  const auto drawn = [&] { return static_cast<float>(rng.below(1'000)) / 1'000; };
  std::vector<JudgedPlace> places(count);
  for (JudgedPlace& place : places) {
    for (int i = 0; i < 16; ++i) {
      JudgedMove move;
      for (float& value : move.figures.values) value = drawn();
      move.gain = 0.2F * (0.5F - move.figures.values[2 * PlanFigures::kEnds + 1]);
      place.push_back(move);
    }
  }
  return places;
}

constexpr std::size_t kPlaces = 250;

TEST(GuideLearning, FindsWhatStepsAreWorth) {
  const MoveGuide guide =
      learn_guide(made_up_places(kPlaces, 1), {.units = {16}, .updates = 1'500, .batch = 128});
  const GuideQuality unseen = quality_of(guide, made_up_places(kPlaces, 2));
  EXPECT_GT(unseen.guided, 0.9);
  EXPECT_LT(unseen.by_load, 0.8);
}

TEST(GuideLearning, GivesTheSameForASeed) {
  const std::vector<JudgedPlace> places = made_up_places(8, 1);
  std::vector<MoveFigures> moves;
  for (const JudgedMove& move : places.front()) moves.push_back(move.figures);
  const GuideLearning options{.units = {8}, .updates = 20, .batch = 32, .seed = 3};
  const std::vector<float> rates = learn_guide(places, options).rate(moves);
  EXPECT_EQ(learn_guide(places, options).rate(moves), rates);
  EXPECT_NE(learn_guide(places, {.units = {8}, .updates = 20, .batch = 32, .seed = 4}).rate(moves), rates);
}

TEST(GuideLearning, NothingToLearnFromIsTold) {
  EXPECT_THAT(refusal([] { learn_guide({}, {}); }), HasSubstr("no start of any problem fits"));
}

TEST(GuideQuality, IsOneWhereTheBestComesFirst) {
  RatingNet::Net net{.middle = std::vector<float>(MoveFigures::kCount),
                     .scale = std::vector<float>(MoveFigures::kCount, 1),
                     .layers = {{.inputs = MoveFigures::kCount,
                                 .units = 1,
                                 .weights = std::vector<float>(MoveFigures::kCount),
                                 .offsets = {0}}}};
  net.layers[0].weights[2 * PlanFigures::kEnds + 1] = -1;
  EXPECT_EQ(quality_of(MoveGuide(RatingNet(net)), made_up_places(kPlaces, 1)).guided, 1);
  EXPECT_EQ(quality_of(MoveGuide(RatingNet(net)), {}).guided, 0);
}

TEST(DrawnPipelines, AreTheSameForASeedAndLeaveModelsOut) {
  EXPECT_EQ(draw_pipeline(5), draw_pipeline(5));
  std::set<std::string> met;
  for (std::uint64_t seed = 0; seed < 200; ++seed) met.insert(draw_pipeline(seed).model);
  EXPECT_EQ(met.size(), drawn_models().size());
  std::vector<std::string> others = drawn_models();
  std::erase(others, "mmt");
  std::erase(others, "t5");
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_THAT(draw_pipeline(seed, others).model, AnyOf("mmt", "t5"));
  }
  EXPECT_THAT(refusal([] { draw_pipeline(1, drawn_models()); }), HasSubstr("leaves no model"));
}

// What is judged does not depend on threads; steps that do not fit are among them or not, all others have a
// gain.
TEST(GeneratedPlaces, AreTheSameForAnyNumberOfThreads) {
  const GeneratedMoves options{.problems = 2, .without = {}, .walks = {.places = 3, .moves = 6}, .seed = 2};
  const auto gains = [&](std::size_t threads) {
    ThreadPool pool(threads);
    Context context;
    context.pool = &pool;
    std::vector<float> all;
    for (const JudgedPlace& place : generated_places(options, context)) {
      EXPECT_LE(place.size(), 6U);
      for (const JudgedMove& move : place) {
        EXPECT_TRUE(std::isfinite(move.gain));
        all.push_back(move.gain);
        all.insert(all.end(), move.figures.values.begin(), move.figures.values.end());
      }
    }
    return all;
  };
  const std::vector<float> one = gains(1);
  EXPECT_FALSE(one.empty());
  EXPECT_EQ(gains(2), one);
}

}  // namespace
}  // namespace espalier::joint
