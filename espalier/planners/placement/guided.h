#pragma once

// Walks that accept what is not worse, half of whose kinds of changes begin on the critical path.

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "espalier/planners/placement/change_figures.h"
#include "espalier/planners/placement/local_search.h"
#include "espalier/planners/placement/proposal_guide.h"

namespace espalier::placement {

// Changes of a walk by their kinds: the four of random_change, then a unit or a cluster of the critical path
// across one of its borders, then a unit or a cluster of it to any device.
class ChangeSource {
 public:
  static constexpr std::size_t kKinds = kMoveKinds + 4;

  explicit ChangeSource(const Neighbourhood& around) : around_(around), most_(largest_change(around)) {}

  // What the path is now.
  void see(std::span<const TaskId> path, std::span<const DeviceId> at);
  // May be empty. Clusters of random_change have at most a quarter of the units.
  Change draw(std::span<const DeviceId> at, std::size_t kind, Rng& rng) const;

 private:
  Change draw_from_path(std::span<const DeviceId> at, bool across, bool cluster, Rng& rng) const;
  UnitId unit(std::size_t i) const { return around_.instance().unit[path_[i].index()]; }
  const Neighbourhood& around_;
  std::size_t most_;
  std::vector<TaskId> path_;
  std::vector<std::size_t> borders_;  // places on the path whose task before stands elsewhere
};

// Accepts what is not worse, as accept_if_not_worse does, with all kinds of changes. The path is worked out
// again, for a state, when the step got shorter since and some looks have passed. After more than `patience`
// looks in a row without a shorter step it goes back to the best and on from a kick.
inline constexpr std::uint64_t kEndlessPatience = std::numeric_limits<std::uint64_t>::max();
void guided_accept(Walk& walk, Rng& rng, std::uint64_t patience = kEndlessPatience);

// The same with a proposal distribution that was learned: of some random changes the one that the guide rates
// highest is judged, none twice while the assignment stays; one in four is any of them, and all are while
// devices lack memory and the charge for that has grown.
void proposed_accept(Walk& walk, Rng& rng, const ProposalGuide& guide,
                     std::uint64_t patience = kEndlessPatience);

}  // namespace espalier::placement
