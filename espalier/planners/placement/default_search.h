#pragma once

// Searches over placements, by name, and the default: several of them in turns, from the best that is known.
//
// The budget counts assignments that are looked at, those of starts too. It is divided beforehand: into
// phases, and each phase into chains, which run on all threads and know nothing of each other until the phase
// has ended. So any number of threads finds the same bytes.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/planners/placement/clusters.h"
#include "espalier/planners/placement/placer.h"
#include "espalier/planners/placement/proposal_guide.h"

namespace espalier::placement {

enum class SearchMethod : std::uint8_t {
  kDefault,             // phases of those below, on each level and then on units
  kAccept,              // accept_if_not_worse
  kGuided,              // guided_accept
  kCoordinate,          // coordinate_descent, again after each small kick
  kPath,                // path_descent, likewise
  kAnnealing,           // anneal
  kTabu,                // tabu_search
  kLargeNeighbourhood,  // large_neighbourhood
};
std::string_view to_text(SearchMethod method);  // "default", "accept", "coordinate", …
const std::vector<SearchMethod>& search_methods();

struct PlacementSearchOptions {
  SearchMethod method = SearchMethod::kDefault;
  std::vector<Assignment> starts = {};  // need not fit; simple_starts take part in any case
  std::vector<Clusters> levels = {};    // the coarsest first: kDefault moves these before it moves units
  // What devices may run by; starts are judged by each of them, and the best is kept. At least one.
  std::vector<DeviceOrders> orders = {{}};
  // Rules::Order::kPriority only: whether priorities may become those of upward ranks (HEFT), worked out for
  // the best assignment after each phase and kept where the step is not longer.
  enum class Ranks : std::uint8_t { kGiven, kRecomputed } ranks = Ranks::kGiven;
  // A proposal distribution of kDefault; null: changes are random.
  const ProposalGuide* guide = nullptr;
  std::size_t chains = 2;
  std::uint64_t seed = 1;
};

// The best assignment found that fits; it is never worse than the best start that fits. `estimate` is its
// step under the rules and the orders that are returned, one of those given or recomputed. Nothing fits:
// `why` has a proof (nothing_fits), or what the nearest one lacks. The rules' order must not be kListed:
// lists already say who stands where.
Placed placement_search(const Instance& instance, const Rules& rules, const PlacementSearchOptions& options,
                        Context& context);

// placement_search with the default method.
Placed default_placement_search(const Instance& instance, const Rules& rules, std::vector<Assignment> starts,
                                Context& context);

// Clusters of a search: 48 and 192 of them, but at most half as many as units, at least 24, and each time
// twice as many as before. `layer` of each unit (layers_of): clusters stay within layers where they can.
// O(levels · rounds · edges · log edges).
std::vector<Clusters> search_levels(const Instance& instance, const std::vector<std::uint32_t>& layer);

// Everything on one device, for each device (units that may not stand there: on the first that they may), and
// runs of units in topological order over all devices by their work. O(units · devices).
std::vector<Assignment> simple_starts(const Instance& instance);

// Priorities by upward rank: the longest way from a task to the end, with the times of its device and its
// messages; longer first, ties by number. O(tasks · log tasks + reads).
std::vector<std::uint32_t> rank_priorities(const Instance& instance, const Rules& rules,
                                           std::span<const DeviceId> assignment);

}  // namespace espalier::placement
