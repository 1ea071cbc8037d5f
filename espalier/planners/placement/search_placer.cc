#include "espalier/planners/placement/search_placer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "espalier/planners/placement/default_search.h"
#include "espalier/planners/placement/list_clock.h"
#include "espalier/planners/placement/ranks.h"

namespace espalier::placement {
namespace {

constexpr std::array<std::string_view, 5> kStarts = {"one-device", "expert", "m-etf", "heft", "multilevel"};
constexpr std::uint64_t kPartOfStarts = 4;  // of the budget, which placers that search may take
constexpr std::uint64_t kFewestLooks = 200;

// Of the placers that find something. The last that found nothing says what lacks, if none does.
std::vector<Assignment> starts_of(const PlacerInput& input, Context& context, Placed& failed) {
  std::vector<Assignment> starts;
  Context part = context;
  part.states = 0;
  part.budget.max_states = context.budget.max_states / kPartOfStarts;
  for (const std::string_view name : kStarts) {
    if (context.stop() && !starts.empty()) break;
    Placed placed = find_placer(name).place(input, part);
    if (placed.assignment) {
      starts.push_back(std::move(*placed.assignment));
    } else {
      failed = std::move(placed);
    }
  }
  context.states += std::min(part.states, part.budget.max_states);
  return starts;
}

}  // namespace

Placed search_placer(const PlacerInput& input, const SearchPlacerOptions& options, Context& context) {
  const Instance& instance = input.instance;
  Placed failed;
  PlacementSearchOptions search{.starts = starts_of(input, context, failed),
                                .orders = {priorities_by(upward_ranks(instance, MeanCosts(instance))), {}},
                                .seed = input.seed};
  const bool any = !search.starts.empty();
  const std::uint64_t affordable = options.max_tasks / std::max<std::size_t>(1, instance.tasks());
  const std::uint64_t looks = std::clamp(affordable, kFewestLooks, std::max(kFewestLooks, options.max_looks));
  Context own = context;
  own.budget.max_states = std::min(context.budget.max_states, context.states + looks);
  Placed placed = placement_search(instance, options.rules, search, own);
  context.states = own.states;
  return placed.assignment || any ? placed : failed;
}

}  // namespace espalier::placement
