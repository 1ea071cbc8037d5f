#include "espalier/planners/joint/exhaust.h"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>

namespace espalier::joint {
namespace {

constexpr std::size_t kMostUnits = 8;
constexpr std::int32_t kMoreInFlight = 3;
constexpr std::size_t kAtOnce = 512;  // between two looks at the best

// Operators that stand together in any plan: colocation groups, else each by itself.
std::vector<std::vector<OperatorId>> units_of(const Space& space) {
  std::vector<std::vector<OperatorId>> units;
  std::map<std::uint32_t, std::size_t> unit_of;
  for (std::size_t i = 0; i < space.operators() && units.size() <= kMostUnits; ++i) {
    if (!space.is_own(i)) continue;
    const auto group = space.problem().graph.operators()[i].colocation;
    if (group) {
      const auto [at, fresh] = unit_of.try_emplace(*group, units.size());
      if (!fresh) {
        units[at->second].push_back(OperatorId(i));
        continue;
      }
    }
    units.push_back({OperatorId(i)});
  }
  return units;
}

// Σ over partitions of n units into s parts: S(n, s) · sets^s, at most `limit` + 1.
std::uint64_t plans_of(std::size_t units, std::uint64_t sets, std::uint64_t limit) {
  std::vector<std::uint64_t> ways{1};  // by parts: partitions, times the sets for each part
  for (std::size_t n = 0; n < units; ++n) {
    std::vector<std::uint64_t> next(ways.size() + 1, 0);
    for (std::size_t s = 0; s < ways.size(); ++s) {
      next[s] = std::min(limit + 1, next[s] + s * ways[s]);
      next[s + 1] = std::min(limit + 1, next[s + 1] + sets * ways[s]);
    }
    ways = std::move(next);
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t each : ways) sum = std::min(limit + 1, sum + each);
  return sum;
}

class Exhaustion {
 public:
  Exhaustion(const Space& space, const OrderRule& schedule, std::size_t count, Judge& judge, Context& context)
      : space_(space), schedule_(schedule), count_(count), judge_(judge), context_(context) {}

  std::vector<Proposal> run(const std::vector<std::vector<OperatorId>>& units) {
    part_of_.assign(units.size(), 0);
    for (const BatchSize size : space_.sizes()) partition(units, size, 0, 0);
    judge_waiting();
    std::vector<Proposal> plans;
    for (auto& [rank, plan] : best_) plans.push_back(std::move(plan));
    return plans;
  }

 private:
  void partition(const std::vector<std::vector<OperatorId>>& units, BatchSize size, std::size_t unit,
                 std::size_t parts) {
    if (context_.stop() || context_.budget_spent) return;
    if (unit < units.size()) {
      for (std::size_t p = 0; p <= parts; ++p) {
        part_of_[unit] = p;
        partition(units, size, unit + 1, std::max(parts, p + 1));
      }
      return;
    }
    std::vector<std::vector<OperatorId>> operators(parts);
    for (std::size_t u = 0; u < units.size(); ++u) {
      operators[part_of_[u]].insert(operators[part_of_[u]].end(), units[u].begin(), units[u].end());
    }
    Proposal plan{.stages = {}, .micro_batch = size, .schedule = schedule_, .estimate = std::nullopt};
    for (std::vector<OperatorId>& of_part : operators) {
      plan.stages.push_back({.operators = std::move(of_part), .devices = {}, .after = {}});
    }
    deal_devices(plan, 0);
  }

  void deal_devices(Proposal& plan, std::size_t stage) {
    if (stage == plan.stages.size()) return propose(plan);
    const std::size_t devices = space_.problem().cluster.devices().size();
    for (std::size_t set = 1; set < std::size_t{1} << devices; ++set) {
      plan.stages[stage].devices.clear();
      for (std::size_t d = 0; d < devices; ++d) {
        if (set >> d & 1) plan.stages[stage].devices.push_back(DeviceId(d));
      }
      for (const std::uint32_t degree : space_.degrees()) {
        if (plan.stages[stage].devices.size() % degree != 0) continue;
        plan.stages[stage].degree = degree;
        deal_devices(plan, stage + 1);
      }
    }
  }

  // Shares dealt in turn, and by speed; as many in flight as the rule says, and a few more.
  void propose(const Proposal& plan) {
    propose_limits(plan);
    Proposal by_speed = plan;
    for (StageDraft& stage : by_speed.stages) stage = settled(space_, std::move(stage), plan.micro_batch);
    if (by_speed != plan) propose_limits(by_speed);
  }

  void propose_limits(const Proposal& plan) {
    if (best_.size() == count_ && load_of(space_, plan).most() > std::get<0>(best_.back().first)) return;
    const std::int64_t micro_batches = space_.problem().training.batch.count() / plan.micro_batch.count();
    const std::int32_t most = plan.schedule.kind == ScheduleKind::kOneFOneB ? kMoreInFlight : 0;
    for (std::int32_t more = 0; more <= most && more < micro_batches; ++more) {
      Proposal with_more = plan;
      for (StageDraft& stage : with_more.stages) stage.more_in_flight = more;
      wait(std::move(with_more));
    }
  }

  void wait(Proposal plan) {
    waiting_.push_back(std::move(plan));
    if (waiting_.size() == kAtOnce) judge_waiting();
  }

  void judge_waiting() {
    std::size_t count = 0;
    while (count < waiting_.size() && context_.take_states(charge_of(space_, waiting_[count]))) ++count;
    const auto verdicts = judge_.consider_all(std::span(waiting_).first(count));
    for (std::size_t i = 0; i < verdicts.size(); ++i) {
      if (verdicts[i] && verdicts[i]->fits()) {
        best_.emplace_back(std::pair(verdicts[i]->iteration, numbers_++), std::move(waiting_[i]));
      }
    }
    std::sort(best_.begin(), best_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    if (best_.size() > count_) best_.erase(best_.begin() + static_cast<std::ptrdiff_t>(count_), best_.end());
    waiting_.clear();
  }

  const Space& space_;
  const OrderRule& schedule_;
  const std::size_t count_;
  Judge& judge_;
  Context& context_;
  std::vector<std::size_t> part_of_;  // by unit
  std::vector<Proposal> waiting_;
  std::vector<std::pair<std::pair<Duration, std::uint64_t>, Proposal>> best_;  // ascending (time, number)
  std::uint64_t numbers_ = 0;
};

}  // namespace

std::vector<Proposal> exhaust(const Space& space, const OrderRule& schedule, std::uint64_t most_plans,
                              std::size_t count, Judge& judge, Context& context) {
  const std::size_t devices = space.problem().cluster.devices().size();
  const std::vector<std::vector<OperatorId>> units = units_of(space);
  if (units.empty() || units.size() > kMostUnits || devices > kMostUnits || !space.problem().locked.empty()) {
    return {};
  }
  std::uint64_t sets = 0;  // in groups of each size
  for (std::uint64_t set = 1; set < std::uint64_t{1} << devices; ++set) {
    for (const std::uint32_t degree : space.degrees()) {
      sets += static_cast<std::uint64_t>(std::popcount(set)) % degree == 0 ? 1 : 0;
    }
  }
  const std::uint64_t plans = plans_of(units.size(), sets, most_plans) * space.sizes().size();
  constexpr std::uint64_t kStatesOfAPlan = 400;  // charged, more or less: most are left out by their load
  if (plans > most_plans || plans * kStatesOfAPlan > context.budget.max_states) return {};
  return Exhaustion(space, schedule, count, judge, context).run(units);
}

}  // namespace espalier::joint
