#pragma once

// Better plans from given ones, step by step: a beam of plans, each of which is left for the best of those
// one step away, until none is better; then some random steps from the best, and down again, as long as that
// helps. Before, each micro-batch size has a beam of its own: successive halving among sizes.

#include <vector>

#include "espalier/planners/joint/guide.h"
#include "espalier/planners/joint/moves.h"

namespace espalier::joint {

struct SearchOptions {
  OrdersMay orders = OrdersMay::kStay;
  std::size_t width = 6;         // plans of the beam
  std::size_t most_moves = 192;  // judged from one plan
  std::size_t kicks = 32;        // in a row without gain, then it ends
  // That no plan beats whose stages all have this size, by Space::sizes; may be empty. A size is left at it,
  // and where none is left the search ends.
  std::vector<Duration> bounds = {};
  // Where there are more moves than are judged it says which; none: those whose busiest device has least to
  // do.
  const MoveGuide* guide = nullptr;
  std::uint64_t seed = 1;
};

struct Searched {
  std::vector<Proposal> best;                 // the last beam, the best first
  std::vector<std::uint64_t> states_of_size;  // that a size climbed with by itself, by Space::sizes
};

// Judges what it meets; what is best, the judge knows. Takes about one state for each task of a plan judged.
// The same for any number of threads. `starts` need not fit.
Searched search(const Space& space, const std::vector<Proposal>& starts, const SearchOptions& options,
                Judge& judge, Context& context);

}  // namespace espalier::joint
