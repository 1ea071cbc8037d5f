#include "espalier/planners/placement/local_search.h"

#include <algorithm>
#include <array>

#include "espalier/base/check.h"

namespace espalier::placement {
namespace {

// Of what a step costs more where it does not fit: at all, and where the devices lack as much as they have.
constexpr double kOverfull = 0.1, kLack = 16;
constexpr int kPatience = 64;  // looks until the charge changes
constexpr double kLeastCharge = 0.25, kMostCharge = 1e4;

constexpr Duration kAnything = Duration::max();

}  // namespace

Walk::Walk(const Engine& engine, const Neighbourhood& around, Assignment start, Context& context)
    : engine_(engine),
      around_(around),
      context_(context),
      incremental_(engine, std::move(start)),
      until_(context.budget.max_states) {
  for (const Bytes bytes : engine.instance().memory) memory_ += bytes;
  context_.take_state();
  settle();
}

double Walk::share_left() const {
  const std::uint64_t given = until_ - began_;
  return given == 0 || context_.states >= until_
             ? 0
             : static_cast<double>(until_ - context_.states) / static_cast<double>(given);
}

void Walk::allow(std::uint64_t states) {
  began_ = context_.states;
  until_ = std::min(context_.budget.max_states, context_.states + states);
}

Duration Walk::score_of(const Evaluated& evaluated) const {
  if (evaluated.fits) return evaluated.time;
  const double lack = static_cast<double>(evaluated.lack.count()) /
                      static_cast<double>(std::max<std::int64_t>(1, memory_.count()));
  const double more = std::min(1e4, charge_ * (kOverfull + kLack * lack));
  const double time = static_cast<double>(evaluated.time.count());
  return Duration(static_cast<std::int64_t>(std::min(4e18, time * (1 + more))) + 1);
}

std::optional<Duration> Walk::look(std::span<const Incremental::Move> change, Duration most) {
  if (change.empty() || !goes_on() || !context_.take_state()) return std::nullopt;
  const bool fits = evaluated().fits;
  if (!fits == (overfull_ >= 0)) {
    overfull_ += fits ? -1 : 1;
  } else {
    overfull_ = 0;
  }
  if (overfull_ >= kPatience || overfull_ <= -kPatience) {
    charge_ = std::clamp(charge_ * (fits ? 0.8 : 1.5), kLeastCharge, kMostCharge);
    overfull_ = 0;
    score_ = score_of(evaluated());
  }
  const Duration limit = most == kAnything ? most : most + nanoseconds(1);
  const Evaluated seen = incremental_.look(change, limit);
  if (seen.cut_off || seen.deadlock) return std::nullopt;
  seen_ = score_of(seen);
  if (seen_ > most) return std::nullopt;
  return seen_;
}

void Walk::take() {
  incremental_.take();
  settle();
}

bool Walk::offer(std::span<const Incremental::Move> change, Duration most) {
  if (!look(change, most)) return false;
  take();
  return true;
}

void Walk::go_to(const Assignment& assignment) {
  Change change;
  for (std::size_t u = 0; u < assignment.size(); ++u) {
    if (assignment[u] != at()[u]) change.push_back({UnitId(u), assignment[u]});
  }
  offer(change, kAnything);
}

void Walk::settle() {
  const Evaluated& now = evaluated();
  score_ = score_of(now);
  if (now.fits && !now.deadlock && (!best_ || now.time < best_->time)) {
    best_ = FittingAssignment{at(), now.time};
    if (context_.watch) context_.watch->found(now.time);
  }
  if (!best_ && !now.fits && (!least_lack_ || now.lack < *least_lack_)) {
    least_lack_ = now.lack;
    nearest_ = at();
  }
}

namespace {

constexpr double kMemory = 0.98, kLeast = 0.25;

}  // namespace

std::size_t KindChoice::draw(Rng& rng) const {
  double sum = 0;
  for (const double weight : weight_) sum += weight;
  double left = rng.unit() * sum;
  for (std::size_t k = 0; k + 1 < weight_.size(); ++k) {
    if (left < weight_[k]) return k;
    left -= weight_[k];
  }
  return weight_.size() - 1;
}

void KindChoice::learn(std::size_t kind, bool gained) {
  weight_[kind] = std::max(kLeast, weight_[kind] * kMemory + (gained ? 1.0 : 0.0));
}

std::size_t largest_change(const Neighbourhood& around) {
  return std::max<std::size_t>(2, around.movable().size() / 4);
}

void accept_if_not_worse(Walk& walk, Rng& rng) {
  KindChoice kinds(kMoveKinds);
  const std::size_t most = largest_change(walk.around());
  std::uint64_t empty = 0;
  while (walk.goes_on() && empty < 1'000) {
    const std::size_t kind = kinds.draw(rng);
    const Change change = random_change(walk.around(), walk.at(), static_cast<MoveKind>(kind), most, rng);
    empty = change.empty() ? empty + 1 : 0;
    if (change.empty()) continue;
    const Duration before = walk.score();
    const bool taken = walk.offer(change, before);
    kinds.learn(kind, taken && walk.score() < before);
  }
}

void tabu_search(Walk& walk, Rng& rng) {
  const Neighbourhood& around = walk.around();
  const std::size_t movable = around.movable().size(), most = largest_change(around);
  const std::size_t sample = std::clamp<std::size_t>(movable / 4, 8, 32);
  const std::uint64_t tenure = std::max<std::size_t>(3, std::min<std::size_t>(movable / 4, 50));
  std::vector<std::uint64_t> free_at(walk.at().size());
  for (std::uint64_t step = 1; walk.goes_on(); ++step) {
    Change chosen;
    Duration least = kAnything;
    for (std::size_t i = 0; i < sample && walk.goes_on(); ++i) {
      const auto kind = static_cast<MoveKind>(rng.below(kMoveKinds));
      const Change change = random_change(around, walk.at(), kind, most, rng);
      const bool tabu = std::any_of(change.begin(), change.end(), [&](const Incremental::Move& move) {
        return free_at[move.unit.index()] > step;
      });
      Duration below = chosen.empty() ? kAnything : least - nanoseconds(1);
      if (tabu && !walk.best()) continue;
      if (tabu) below = std::min(below, walk.best()->time - nanoseconds(1));
      if (const std::optional<Duration> score = walk.look(change, below)) least = *score, chosen = change;
    }
    if (chosen.empty() || !walk.offer(chosen, kAnything)) continue;
    for (const Incremental::Move& move : chosen)
      free_at[move.unit.index()] = step + tenure / 2 + rng.below(tenure);
  }
}

namespace {

// Each unit of a region in turn to the device that is best for it, from where the others are now.
void rebuild(Walk& walk, std::vector<UnitId> region, Rng& rng) {
  for (std::size_t i = region.size(); i > 1; --i) std::swap(region[i - 1], region[rng.below(i)]);
  for (const UnitId unit : region) {
    for (const DeviceId device : walk.around().instance().allowed[unit.index()]) {
      const Incremental::Move move{unit, device};
      if (walk.at()[unit.index()] != device) walk.offer(std::span(&move, 1), walk.score() - nanoseconds(1));
    }
  }
}

}  // namespace

void large_neighbourhood(Walk& walk, Rng& rng) {
  const Neighbourhood& around = walk.around();
  const std::span<const UnitId> line = around.movable();
  const std::size_t most = std::clamp<std::size_t>(line.size() / 8, 3, 24);
  while (walk.goes_on()) {
    const Assignment before = walk.at();
    const Duration bar = walk.score();
    std::vector<UnitId> region;
    const std::size_t length = std::min(line.size(), 2 + rng.below(most)), begin = rng.below(line.size());
    if (rng.below(2) == 0) {
      for (std::size_t i = 0; i < length; ++i) region.push_back(line[(begin + i) % line.size()]);
    } else {
      region = cluster_around(around, walk.at(), line[begin], length);
    }
    Change ruin;
    for (const UnitId unit : region) {
      const std::span<const DeviceId> allowed = around.instance().allowed[unit.index()];
      const DeviceId to = allowed[rng.below(allowed.size())];
      if (to != walk.at()[unit.index()]) ruin.push_back({unit, to});
    }
    if (ruin.empty() || !walk.offer(ruin, kAnything)) continue;
    rebuild(walk, region, rng);
    if (walk.score() > bar) walk.go_to(before);
  }
}

}  // namespace espalier::placement
