#pragma once

// How a proposal guide of the search of placements learns (planners/placement/proposal_guide.h): from changes
// of placements of generated graphs, what the engine said of each.
//
//   recipes ─▶ graphs ─▶ placements of placers ─▶ walks; at each place some changes, judged ─▶ a net that
//   says of a change what it is worth, by its figures
//
// Regression, not reinforcement: the judge is at hand and says what each change is worth at once.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "espalier/learned/workload.h"
#include "espalier/planners/context.h"
#include "espalier/planners/placement/proposal_guide.h"

namespace espalier::placement {

struct JudgedChange {
  ChangeFigures figures;
  float gain = 0;  // ln(score before / score after); kLost where the score is more than an eighth larger
  static constexpr float kLost = -0.125F;
};
using JudgedPlacement = std::vector<JudgedChange>;  // from one placement

struct ChangeWalks {
  std::size_t places = 60;            // of all walks on a graph together
  std::size_t changes = 48;           // judged at each
  std::size_t least = 10, most = 40;  // places of one walk
};

// Walks on a workload from what placers find, on units and on clusters of both sizes of a search, by either
// of the usual orders: to the best of the changes that were judged, if it is not worse; one time in eight to
// any of them. The same for the same seed.
std::vector<JudgedPlacement> judged_placements(const Workload& workload, const ChangeWalks& options,
                                               std::uint64_t seed);

struct GeneratedChanges {
  std::size_t graphs = 400;  // by draw_workload, seed + 0, 1, …
  std::vector<std::string> without = {};
  ChangeWalks walks = {};
  std::uint64_t seed = 1;
};

// Graphs on all threads of the pool, each in one; the same for any number of them. Ends early, with what
// there is, where the context wants it. `told` hears how many are done, from any thread; may be empty.
std::vector<JudgedPlacement> generated_changes(const GeneratedChanges& options, const Context& context,
                                               const std::function<void(std::size_t)>& told = {});

struct ProposalLearning {
  std::uint64_t updates = 8'000;
  std::uint64_t seed = 1;
};

// A net that has learnt the roots of gains, those that are above zero ten times as much as others. Throws
// InputError where there is no change.
ProposalGuide learn_proposals(const std::vector<JudgedPlacement>& places, const ProposalLearning& options);

// Of the best change at each place, how much a guide's first choice among so many has, as a part of what the
// best of them has: the mean over places that have a shorter step at all. And of one drawn at random.
struct ProposalQuality {
  double proposed = 0, random = 0;
};
ProposalQuality quality_of(const ProposalGuide& guide, const std::vector<JudgedPlacement>& places);

}  // namespace espalier::placement
