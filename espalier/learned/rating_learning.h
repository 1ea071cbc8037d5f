#pragma once

// How a rating net learns (planners/rating_net.h): regression of what was judged, by what could be said
// before.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/planners/rating_net.h"

namespace espalier {

struct RatingLearning {
  std::vector<std::int64_t> units = {64, 32};
  std::uint64_t updates = 8'000;
  std::int64_t batch = 1'024;   // rows of an update
  double learning_rate = 3e-3;  // falls to a hundredth
  double small = 0.02;          // errors below count by their square, above by themselves (Huber, 1964)
  std::uint64_t seed = 1;
};

// What there is to learn: rows of so many numbers, what each was worth and how much it weighs.
struct RatedRows {
  std::size_t inputs = 0;
  std::vector<float> numbers, worth, weight;  // rows × inputs; rows; rows
  std::size_t rows() const { return worth.size(); }
};

// Needs a row. The same bytes on one machine.
RatingNet learn_ratings(const RatedRows& rows, const RatingLearning& options);

}  // namespace espalier
