// A change of one item touches two devices' loads (free_placement.h), and the largest of the others is that
// of three devices at most; so a round over all changes costs the outputs of all items times the
// accelerators.

#include "espalier/planners/literal/local_search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <optional>

#include "espalier/base/rng.h"
#include "espalier/planners/literal/contraction.h"
#include "espalier/planners/literal/free_placement.h"

namespace espalier::literal {
namespace {

constexpr double kLeastGain = 1e-5;  // of the largest load, in the file's unit

struct ItemMove {
  std::size_t item = 0, to = 0;
  FreePlacement::Effect effect = {};
  double largest = std::numeric_limits<double>::infinity();  // load after it
};

// The change after which the largest load is least; nothing where the budget ends before all were looked at.
std::optional<ItemMove> best_move(const FreePlacement& now, std::size_t items, std::size_t accelerators,
                                  Context& context) {
  std::array<std::size_t, 3> fullest{};  // as many as there are
  std::vector<std::size_t> by_load(accelerators);
  std::iota(by_load.begin(), by_load.end(), std::size_t{0});
  const std::size_t kept = std::min(fullest.size(), accelerators);
  std::partial_sort(by_load.begin(), by_load.begin() + static_cast<std::ptrdiff_t>(kept), by_load.end(),
                    [&](std::size_t a, std::size_t b) { return now.load(a) > now.load(b); });
  std::copy_n(by_load.begin(), kept, fullest.begin());
  ItemMove best;
  for (std::size_t item = 0; item < items; ++item) {
    const std::size_t from = now.place()[item];
    for (std::size_t to = 0; to < accelerators; ++to) {
      if (to == from) continue;
      if (context.stop() || !context.take_state()) return std::nullopt;
      const FreePlacement::Effect effect = now.effect(item, to);
      double largest = std::max(effect.from_load, effect.to_load);
      for (std::size_t i = 0; i < kept; ++i) {
        if (fullest[i] != from && fullest[i] != to) largest = std::max(largest, now.load(fullest[i]));
      }
      if (largest < best.largest) best = {item, to, effect, largest};
    }
  }
  return best;
}

}  // namespace

MaxLoadResult local_search(const MsrProfile& profile, const LocalSearchOptions& options, Context& context) {
  MaxLoadOptions accelerators_alone = options.machine;
  accelerators_alone.cpus = 0;
  const FreeMachine machine = free_machine(profile, accelerators_alone);
  const FreeItems graph = free_items(profile, fused_colours(profile));
  MaxLoadResult result;
  result.items = graph.items.size();
  if (std::any_of(graph.items.begin(), graph.items.end(),
                  [](const FreeItems::Item& item) { return item.cpu_only; })) {
    result.why = "a node runs on CPUs only, of which local search knows nothing";
    return result;
  }
  std::vector<std::vector<std::uint32_t>> found(std::max<std::size_t>(1, options.starts));
  std::vector<double> largest(found.size(), std::numeric_limits<double>::infinity());
  context.for_each(found.size(), [&](std::size_t start, Context& mine) {
    Rng rng(stream_key(options.seed, {start}));
    std::vector<std::uint32_t> place;
    for (std::size_t i = 0; i < graph.items.size(); ++i)
      place.push_back(static_cast<std::uint32_t>(rng.below(machine.accelerators)));
    FreePlacement now(graph, machine, std::move(place));
    while (const auto move = best_move(now, graph.items.size(), machine.accelerators, mine)) {
      if (move->largest > now.largest() - kLeastGain) break;
      now.move(move->item, move->to, move->effect);
    }
    now.count();
    largest[start] = now.largest();
    found[start] = now.place();
  });
  const auto best = std::min_element(largest.begin(), largest.end()) - largest.begin();
  return priced_items(profile, accelerators_alone, graph, machine, found[static_cast<std::size_t>(best)]);
}

}  // namespace espalier::literal
