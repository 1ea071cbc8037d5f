#include "espalier/planners/placement/objective_search.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <tuple>

#include "espalier/planners/placement/default_search.h"
#include "espalier/planners/placement/local_search.h"
#include "espalier/planners/placement/moves.h"
#include "espalier/planners/placement/placement_bounds.h"

namespace espalier::placement {
namespace {

constexpr double kNanosecondsOfHour = 3.6e12;
constexpr double kRoundedBy = 1e-9;
constexpr std::uint64_t kTrials = 8;  // of several judges each has this part of the budget at first

ObjectiveBound price_bound(const Instance& instance, const Rules& rules, const ObjectiveOptions& options) {
  const auto price = [&](std::size_t d) {
    return options.price_per_hour.empty() ? 1.0 : options.price_per_hour[d];
  };
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t d = 0; d < instance.devices(); ++d) least = std::min(least, price(d));
  const double whole = static_cast<double>(placement_bound(instance, rules).time.count()) * least;
  // A device costs at least its price for as long as it works.
  double by_unit = 0;
  for (std::size_t u = 0; u < instance.units(); ++u) {
    double cheapest = std::numeric_limits<double>::infinity();
    for (const DeviceId device : instance.allowed[u]) {
      double work = 0;
      for (const TaskId task : instance.tasks_of[u])
        work += static_cast<double>(instance.time_on(task, device).count());
      cheapest = std::min(cheapest, work * price(device.index()));
    }
    by_unit += cheapest;
  }
  const double down = (1 - kRoundedBy) / kNanosecondsOfHour;
  if (by_unit > whole) return {by_unit * down, "each unit's work where it is cheapest"};
  return {whole * down, "the least step on the cheapest device"};
}

// Fitting before overfull, then what lacks, then contiguous before not, then the value.
auto rank_of(const ObjectiveValue& value) {
  return std::tuple(!value.fits, value.fits ? Bytes() : value.lack, !value.contiguous, value.value);
}

class Climb {
 public:
  Climb(ObjectiveJudge& judge, std::uint64_t seed)
      : judge_(judge), around_(judge.instance()), rng_(stream_key(seed, {7})) {}

  void begin(const std::vector<Assignment>& starts, Context& context) {
    for (std::size_t i = 0; i < starts.size() && (context.take_state() || i == 0); ++i) {
      const ObjectiveValue value = judge_.judge(starts[i]);
      if (at_.empty() || rank_of(value) < rank_of(now_)) at_ = starts[i], now_ = value;
    }
    best_ = at_, of_best_ = now_;
  }

  // Every assignment, if the budget is enough for all of them; else moves. Nothing where all were seen
  // before.
  void search(Context& context) {
    if (!saw_all_) saw_all_ = look_at_all(context);
    if (!saw_all_) run(context);
  }

  const ObjectiveValue& best_value() const { return of_best_; }

  ObjectivePlaced result() const {
    if (of_best_.feasible()) return {best_, of_best_, 0, {}};
    return {{},
            of_best_,
            0,
            of_best_.fits ? "no contiguous placement was found"
                          : "nothing that fits was found; the nearest lacks " + to_text(of_best_.lack)};
  }

 private:
  bool look_at_all(Context& context) {
    const Instance& instance = judge_.instance();
    std::uint64_t count = 1;
    const std::uint64_t left = context.left();
    for (std::size_t u = 0; u < instance.units(); ++u) {
      const std::uint64_t places = instance.allowed[u].size();
      if (places == 0 || count > left / places) return false;
      count *= places;
    }
    std::vector<std::size_t> choice(instance.units());
    for (bool more = true; more && !context.stop() && context.take_state();) {
      for (std::size_t u = 0; u < choice.size(); ++u) at_[u] = instance.allowed[u][choice[u]];
      now_ = judge_.judge(at_);
      if (rank_of(now_) < rank_of(of_best_)) best_ = at_, of_best_ = now_;
      std::size_t u = 0;
      while (u < choice.size() && ++choice[u] == instance.allowed[u].size()) choice[u++] = 0;
      more = u < choice.size();
    }
    return true;
  }

  void run(Context& context) {
    if (around_.movable().empty()) return;
    KindChoice kinds(kMoveKinds);
    const std::size_t most = largest_change(around_);
    const std::uint64_t patience = std::max<std::uint64_t>(200, 8 * around_.movable().size());
    for (std::uint64_t idle = 0, empty = 0; empty < 1'000 && !context.stop();) {
      if (idle >= patience) {
        kick(most, context);
        idle = 0;
      }
      const std::size_t kind = kinds.draw(rng_);
      const Change change = random_change(around_, at_, static_cast<MoveKind>(kind), most, rng_);
      empty = change.empty() ? empty + 1 : 0;
      if (change.empty()) continue;
      if (!context.take_state()) return;
      const bool gained = offer(change);
      kinds.learn(kind, gained);
      idle = gained ? 0 : idle + 1;
    }
  }

  // Whether it became better, which is more than being kept.
  bool offer(const Change& change) {
    Assignment then = at_;
    for (const Incremental::Move& move : change) then[move.unit.index()] = move.device;
    const ObjectiveValue value = judge_.judge(then);
    if (rank_of(now_) < rank_of(value)) return false;
    const bool gained = rank_of(value) < rank_of(now_);
    at_ = std::move(then), now_ = value;
    if (rank_of(now_) < rank_of(of_best_)) best_ = at_, of_best_ = now_;
    return gained;
  }

  void kick(std::size_t most, Context& context) {
    at_ = best_;
    for (std::uint64_t steps = 2 + rng_.below(3); steps > 0; --steps) {
      const auto kind = static_cast<MoveKind>(rng_.below(kMoveKinds));
      for (const Incremental::Move& move :
           random_change(around_, at_, kind, std::min<std::size_t>(most, 8), rng_))
        at_[move.unit.index()] = move.device;
    }
    now_ = judge_.judge(at_);
    context.take_state();
    if (rank_of(now_) < rank_of(of_best_)) best_ = at_, of_best_ = now_;
  }

  ObjectiveJudge& judge_;
  Neighbourhood around_;
  Rng rng_;
  Assignment at_, best_;
  ObjectiveValue now_, of_best_;
  bool saw_all_ = false;
};

}  // namespace

ObjectiveBound objective_bound(const Instance& instance, const Rules& rules,
                               const ObjectiveOptions& options) {
  const auto of = [](const PlacementBound& bound) {
    return ObjectiveBound{static_cast<double>(bound.time.count()), bound.why};
  };
  switch (options.objective) {
    case Objective::kLatency:
      return of(placement_bound(instance, rules));
    case Objective::kMaxLoad:
    case Objective::kContiguousMaxLoad: {
      Rules without_rests = rules;
      without_rests.busy_after = {};
      return of(load_bound(instance, without_rests));
    }
    case Objective::kPrice:
      return price_bound(instance, rules, options);
    case Objective::kExpected:
    case Objective::kTail:
      break;
  }
  return {0, "no bound is known"};
}

ObjectivePlaced objective_search(std::span<ObjectiveJudge> judges, const std::vector<Assignment>& starts,
                                 std::uint64_t seed, Context& context) {
  std::vector<Assignment> all = starts;
  for (Assignment& start : simple_starts(judges.front().instance())) all.push_back(std::move(start));
  const std::uint64_t trial = judges.size() > 1 ? context.left() / kTrials : context.left();
  std::deque<Climb> climbs;
  std::size_t best = 0;
  for (std::size_t by = 0; by < judges.size(); ++by) {
    Climb& own = climbs.emplace_back(judges[by], seed);
    Context part = context;
    part.budget.max_states = std::min(context.budget.max_states, context.states + trial);
    own.begin(all, part);
    own.search(part);
    context.states = part.states;
    if (rank_of(own.best_value()) < rank_of(climbs[best].best_value())) best = by;
  }
  if (judges.size() > 1) climbs[best].search(context);
  ObjectivePlaced placed = climbs[best].result();
  placed.by = best;
  return placed;
}

}  // namespace espalier::placement
