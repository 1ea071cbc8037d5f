#pragma once

// How a guide of the joint search learns (planners/joint/guide.h): from steps between plans of the zoo's
// models, what the simulator said of each.
//
//   recipes ─▶ problems ─▶ plans of planners ─▶ walks; at each place some steps, judged ─▶ a net that
//   says of a step what it is worth, by its figures
//
// Regression, not reinforcement: the judge is at hand and says what each step is worth at once.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "espalier/learned/rating_learning.h"
#include "espalier/planners/joint/guide.h"
#include "espalier/zoo/zoo.h"

namespace espalier::joint {

struct PipelineRecipe {
  std::string model;  // of the zoo
  ZooValues values = {};
  std::string cluster = {};  // a short form
  BatchSize batch{64};
  friend bool operator==(const PipelineRecipe&, const PipelineRecipe&) = default;
};

// Models of the zoo that recipes are drawn from.
std::vector<std::string> drawn_models();

// A recipe drawn from these: sizes, four to 32 devices, alike or not, with few samples for each device or
// many. The same for the same seed. `without`: models that are left out. Throws InputError where none is
// left.
PipelineRecipe draw_pipeline(std::uint64_t seed, const std::vector<std::string>& without = {});

struct JudgedMove {
  MoveFigures figures;
  float gain = 0;  // ln(step before / step after); kUnfit where it does not fit
  static constexpr float kUnfit = -1;
};
using JudgedPlace = std::vector<JudgedMove>;  // from one plan

struct WalkOptions {
  std::size_t places = 100;          // of all walks together
  std::size_t moves = 48;            // judged at each, drawn from all
  std::size_t least = 4, most = 40;  // places of one walk
};

// Walks from plans of `graphpipe`, `branches` and `pipedream`: to the best of the steps that were judged, one
// time in six to any of them. The same for the same seed.
std::vector<JudgedPlace> judged_places(const Problem& problem, const WalkOptions& options,
                                       std::uint64_t seed);

struct GeneratedMoves {
  std::size_t problems = 400;  // by draw_pipeline, seed · 100 000 + 0, 1, …
  std::vector<std::string> without = {};
  WalkOptions walks = {};
  std::uint64_t seed = 1;
};

// Problems on all threads of the pool, each in one; the same for any number of them. Ends early, with what
// there is, where the context wants it. `told` hears how many are done, from any thread; may be empty.
std::vector<JudgedPlace> generated_places(const GeneratedMoves& options, const Context& context,
                                          const std::function<void(std::size_t)>& told = {});

using GuideLearning = RatingLearning;

// A net that has learnt gains, those that are above zero ten times as much as others; what is worse than a
// tenth or better than a fifth counts as that. Throws InputError where there is no move. The same bytes on
// one machine.
MoveGuide learn_guide(const std::vector<JudgedPlace>& places, const GuideLearning& options);

// Of the best step at each place, how much is among the quarter that a guide puts first; the mean over places
// that have a better step at all. And of the quarter whose busiest device has least to do.
struct GuideQuality {
  double guided = 0, by_load = 0;
};
GuideQuality quality_of(const MoveGuide& guide, const std::vector<JudgedPlace>& places);

}  // namespace espalier::joint
