// Moves that change when a stage computes what: micro-batches, samples in flight, rules.

#include <algorithm>

#include "espalier/planners/joint/moves.h"

namespace espalier::joint {
namespace {

constexpr std::int32_t kAhead = 8;  // micro-batches

void change_micro_batch(const Site& site, std::vector<Proposal>& moves) {
  const std::vector<BatchSize>& sizes = site.space.sizes();
  const auto at = std::lower_bound(sizes.begin(), sizes.end(), site.plan.micro_batch) - sizes.begin();
  for (const std::ptrdiff_t step : {-1, 1}) {
    if (at + step < 0 || at + step >= static_cast<std::ptrdiff_t>(sizes.size())) continue;
    moves.push_back(with_micro_batch(site.space, site.plan, sizes[static_cast<std::size_t>(at + step)]));
  }
}

// All that a stage reads from, directly or through others.
std::vector<char> ancestors(const Neighbours& neighbours, std::size_t stage) {
  std::vector<char> is_one(neighbours.before.size(), 0);
  std::vector<std::size_t> open{stage};
  while (!open.empty()) {
    const std::size_t at = open.back();
    open.pop_back();
    for (const std::size_t before : neighbours.before[at]) {
      if (is_one[before] == 0) open.push_back(before);
      is_one[before] = 1;
    }
  }
  return is_one;
}

// What comes before a replicated stage goes ahead: the stage is done with its last micro-batch earlier, and
// its sum goes on beside what the others still go back through.
void go_ahead_of_sums(const Site& site, std::vector<Proposal>& moves) {
  std::size_t tried = 0;
  for (std::size_t i = 0; i < site.stages.size() && tried < kTargets; ++i) {
    const std::size_t summed = site.stages[i];
    if (site.plan.stages[summed].replicas() < 2 || site.neighbours.before[summed].empty()) continue;
    ++tried;
    const std::vector<char> ahead = ancestors(site.neighbours, summed);
    Proposal plan = site.plan;
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      std::int32_t& more = plan.stages[s].more_in_flight;
      if (ahead[s] != 0 && !site.is_fixed(s)) more = std::max(more, std::min(more + kAhead, kMostMore));
    }
    moves.push_back(std::move(plan));
  }
}

void change_in_flight(const Site& site, std::vector<Proposal>& moves) {
  if (site.plan.schedule.kind != ScheduleKind::kOneFOneB) return;
  const std::int32_t fewest = fewest_in_flight(site.space, site.plan);
  const auto with_more = [&](std::int32_t more, std::optional<std::size_t> only) {
    Proposal plan = site.plan;
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      if (site.is_fixed(s) || (only && *only != s)) continue;
      std::int32_t& own = plan.stages[s].more_in_flight;
      own = std::clamp(std::max(own, fewest) + more, fewest, kMostMore);
    }
    moves.push_back(std::move(plan));
  };
  for (const std::int32_t more : {1, 2, 4, -1}) with_more(more, std::nullopt);
  for (std::size_t i = 0; i < site.stages.size() && i < kSources; ++i) {
    with_more(1, site.stages[i]);
    with_more(-1, site.stages[i]);
  }
  go_ahead_of_sums(site, moves);
}

void drop_bare_edges(const Site& site, std::vector<Proposal>& moves) {
  Proposal plan = site.plan;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    if (!site.is_fixed(s)) plan.stages[s].after.clear();
  }
  moves.push_back(std::move(plan));
}

// Another kind or k, or backward the other way.
void change_rule(const Site& site, std::vector<Proposal>& moves) {
  using Backward = OrderRule::Backward;
  const auto with = [&](const OrderRule& rule) {
    Proposal plan = site.plan;
    plan.schedule = rule;
    moves.push_back(std::move(plan));
  };
  OrderRule rule = site.plan.schedule;
  for (const std::uint32_t k : {1U, 2U, 4U}) {
    rule.kind = ScheduleKind::kOneFOneB;
    rule.group = k > 1 ? std::vector{k} : std::vector<std::uint32_t>();
    with(rule);
  }
  rule.kind = ScheduleKind::kGPipe;
  rule.group.clear();
  with(rule);
  if (site.space.halves() == Halves::kNever) return;
  rule = site.plan.schedule;
  rule.backward = rule.backward == Backward::kWhole ? Backward::kSplit : Backward::kWhole;
  with(rule);
}

}  // namespace

std::int32_t fewest_in_flight(const Space& space, const Proposal& plan) {
  const std::int64_t micro_batches = space.problem().training.batch.count() / plan.micro_batch.count();
  return -static_cast<std::int32_t>(std::min<std::int64_t>(micro_batches - 1, kMostMore));
}

std::vector<Proposal> order_moves(const Site& site, OrdersMay may) {
  std::vector<Proposal> moves;
  if (!site.any_fixed) change_micro_batch(site, moves);
  change_in_flight(site, moves);
  drop_bare_edges(site, moves);
  if (may == OrdersMay::kChange) change_rule(site, moves);
  return moves;
}

}  // namespace espalier::joint
