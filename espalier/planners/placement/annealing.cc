#include "espalier/planners/placement/annealing.h"

#include <algorithm>

namespace espalier::placement {

void anneal(Walk& walk, const AnnealingOptions& options, Rng& rng) {
  const Neighbourhood& around = walk.around();
  const double hot = options.hot * static_cast<double>(walk.score().count());
  const std::size_t largest = std::max<std::size_t>(2, around.movable().size() / 4);
  std::uint64_t empty = 0;
  while (walk.goes_on() && empty < 1'000) {
    const double left = walk.share_left(), temperature = hot * left * left;
    // Half the changes move one unit; clusters and ranges shrink as it gets colder.
    const auto kind = rng.below(2) == 0 ? MoveKind::kUnit : static_cast<MoveKind>(rng.below(kMoveKinds));
    const auto most = static_cast<std::size_t>(2 + left * static_cast<double>(largest - 2));
    const Change change = random_change(around, walk.at(), kind, most, rng);
    empty = change.empty() ? empty + 1 : 0;
    const double worse = std::min(temperature * exponential(rng), 1e18);
    walk.offer(change, walk.score() + Duration(static_cast<std::int64_t>(worse)));
  }
}

}  // namespace espalier::placement
