#include "espalier/planners/hand_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <tuple>

#include "espalier/base/check.h"
#include "espalier/planners/candidate.h"
#include "espalier/sim/evaluator.h"

namespace espalier {
namespace {

constexpr std::size_t kMostHandDeals = 4096;

using HandDeal = std::vector<std::vector<DeviceId>>;  // devices of each stage

// Whom to prefer: what lacks least memory, then the fastest, then the least peak, then the fewest devices.
using DealKey = std::tuple<Bytes, Duration, Bytes, std::size_t>;

class HandSearch {
 public:
  HandSearch(const Problem& problem, const std::vector<HandStage>& stages, const HandOptions& options,
             Context& context)
      : problem_(problem), stages_(stages), options_(options), context_(context), scratch_(*problem.oracle) {
    std::vector<char> taken(problem.cluster.devices().size(), 0);
    for (std::size_t s = 0; s < stages.size(); ++s) {
      for (const DeviceId device : stages[s].devices) taken[device.index()] = 1;
      if (stages[s].devices.empty()) open_.push_back(s);
    }
    for (std::size_t d = 0; d < taken.size(); ++d) {
      if (!taken[d]) free_.push_back(DeviceId(d));
    }
    shared_ = free_.size() < open_.size();
    if (shared_ && free_.empty()) {
      for (std::size_t d = 0; d < taken.size(); ++d) free_.push_back(DeviceId(d));
    }
    for (const DeviceId device : free_) {
      const auto alike = std::find_if(classes_.begin(), classes_.end(),
                                      [&](const auto& others) { return are_alike(others.front(), device); });
      if (alike == classes_.end()) {
        classes_.push_back({device});
      } else {
        alike->push_back(device);
      }
    }
  }

  // False if the micro-batch is too large for the replicas that were asked for.
  bool run(BatchSize micro_batch) {
    const auto micro_batches =
        static_cast<std::size_t>(problem_.training.batch.count() / micro_batch.count());
    most_.clear();
    for (const HandStage& stage : stages_) {
      if (stage.devices.size() > micro_batches) return false;
      const bool writes = std::any_of(stage.operators.begin(), stage.operators.end(),
                                      [&](OperatorId op) { return writes_buffer(problem_.graph, op); });
      const bool one = writes && problem_.written_buffers == WrittenBuffers::kOneReplica;
      most_.push_back(one || shared_ ? 1 : micro_batches);
    }
    make_base(micro_batch);
    judged_.clear();
    now_.reset();
    if (deals() <= kMostHandDeals) {
      try_all();
    } else {
      for (const HandDeal& start : {one_each(), all_dealt()}) climb(start);
    }
    return true;
  }

  const std::optional<PipelinePlan>& best() const { return best_; }
  std::uint64_t evaluations() const { return evaluations_; }

 private:
  bool are_alike(DeviceId a, DeviceId b) const {
    const Cluster& cluster = problem_.cluster;
    const Device &x = cluster.device(a), &y = cluster.device(b);
    return x.kind == y.kind && x.group == y.group && x.memory == y.memory && !shared_ &&
           !cluster.has_own_link(a) && !cluster.has_own_link(b);
  }

  // The plan with any device for each stage, and where in it each stage stands.
  void make_base(BatchSize micro_batch) {
    std::vector<StageDraft> drafts;
    for (const HandStage& stage : stages_) {
      drafts.push_back({.operators = stage.operators,
                        .devices = {DeviceId(0)},
                        .after = {},
                        .locked_as = stage.name,
                        .recompute = {}});
    }
    const auto plan =
        complete_plan(problem_.graph, drafts, problem_.training.batch, micro_batch, options_.schedule);
    ESP_CHECK(plan.has_value());
    base_ = *plan;
    std::vector<std::size_t> stage_of(problem_.graph.operators().size(), 0);
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      for (const OperatorId op : stages_[s].operators) stage_of[op.index()] = s;
    }
    place_.assign(stages_.size(), 0);
    for (std::size_t p = 0; p < base_.stages.size(); ++p) {
      const auto& operators = base_.stages[p].operators;
      const auto own = std::find_if(operators.begin(), operators.end(),
                                    [&](OperatorId op) { return !problem_.graph.op(op).duplicable; });
      place_[stage_of[own->index()]] = p;
    }
  }

  // How many deals there are, or one more than would be judged.
  std::size_t deals() const {
    std::size_t count = 1;
    const auto times = [&count](std::size_t factor) {
      count = count > kMostHandDeals / std::max<std::size_t>(factor, 1) ? kMostHandDeals + 1 : count * factor;
    };
    if (shared_) {
      for (std::size_t i = 0; i < open_.size(); ++i) times(free_.size());
      return count;
    }
    for (const auto& devices : classes_) {
      std::size_t ways = 1;  // of dealing them to the open stages and to nobody
      for (std::size_t i = 1; i <= open_.size() && ways <= kMostHandDeals; ++i) {
        ways = ways * (devices.size() + i) / i;
      }
      times(ways);
    }
    return count;
  }

  HandDeal given() const {
    HandDeal deal;
    for (const HandStage& stage : stages_) deal.push_back(stage.devices);
    return deal;
  }

  void try_all() {
    HandDeal deal = given();
    if (shared_) {
      try_shared(deal, 0);
    } else {
      try_class(deal, 0, 0, 0);
    }
  }
  void try_shared(HandDeal& deal, std::size_t next) {
    if (next == open_.size()) {
      consider(deal);
      return;
    }
    for (const DeviceId device : free_) {
      deal[open_[next]] = {device};
      try_shared(deal, next + 1);
    }
  }
  // Devices of a class from `used` on, to open stages from `next` on.
  void try_class(HandDeal& deal, std::size_t at, std::size_t next, std::size_t used) {
    if (at == classes_.size()) {
      consider(deal);
      return;
    }
    if (next == open_.size()) return try_class(deal, at + 1, 0, 0);
    std::vector<DeviceId>& mine = deal[open_[next]];
    const std::size_t before = mine.size();
    for (std::size_t count = 0;; ++count) {
      try_class(deal, at, next + 1, used + count);
      if (used + count == classes_[at].size() || mine.size() == most_[open_[next]]) break;
      mine.push_back(classes_[at][used + count]);
    }
    mine.resize(before);
  }

  // The first devices, or all of them in turn.
  HandDeal one_each() const {
    HandDeal deal = given();
    for (std::size_t i = 0; i < open_.size(); ++i) deal[open_[i]] = {free_[i % free_.size()]};
    return deal;
  }
  // Neighbours to one stage.
  HandDeal all_dealt() const {
    if (shared_) return one_each();
    HandDeal deal = given();
    for (std::size_t d = 0; d < free_.size(); ++d) {
      std::vector<DeviceId>& mine = deal[open_[d * open_.size() / free_.size()]];
      if (mine.size() < most_[open_[d * open_.size() / free_.size()]]) mine.push_back(free_[d]);
    }
    return deal;
  }

  void climb(HandDeal deal) {
    now_ = consider(deal);
    if (!now_) return;
    while (improve(deal)) {
    }
  }

  // Takes every step to a better neighbour that it meets; false if it met none.
  bool improve(HandDeal& deal) {
    bool better = false;
    const auto take = [&](const HandDeal& next) {
      const auto key = consider(next);
      if (!key || !(*key < *now_)) return false;
      now_ = key;
      deal = next;
      return better = true;
    };
    for (const std::size_t s : open_) {
      for (const std::size_t t : open_) {
        if (s != t && !context_.stop()) try_between(deal, s, t, take);
      }
      for (const std::vector<DeviceId>& devices : classes_) {
        if (const auto device = unused(deal, devices)) try_with(deal, s, *device, take);
      }
      for (std::size_t r = 0; r < deal[s].size() && deal[s].size() > 1; ++r) {
        HandDeal next = deal;
        next[s].erase(next[s].begin() + static_cast<std::ptrdiff_t>(r));
        if (take(next)) break;
      }
    }
    return better;
  }

  using Take = std::function<bool(const HandDeal&)>;

  // A device of s moves to t, or changes places with one of t.
  void try_between(const HandDeal& deal, std::size_t s, std::size_t t, const Take& take) const {
    for (std::size_t i = 0; i < deal[s].size(); ++i) {
      if (i > 0 && class_of(deal[s][i]) == class_of(deal[s][i - 1])) continue;
      if (deal[s].size() > 1 && deal[t].size() < most_[t]) {
        HandDeal next = deal;
        next[t].push_back(deal[s][i]);
        next[s].erase(next[s].begin() + static_cast<std::ptrdiff_t>(i));
        std::sort(next[t].begin(), next[t].end());
        if (take(next)) return;
      }
      for (std::size_t j = 0; j < deal[t].size() && s < t; ++j) {
        if (class_of(deal[s][i]) == class_of(deal[t][j])) continue;
        HandDeal next = deal;
        std::swap(next[s][i], next[t][j]);
        std::sort(next[s].begin(), next[s].end());
        std::sort(next[t].begin(), next[t].end());
        if (take(next)) return;
      }
    }
  }

  // A device that nobody uses, or any where devices are shared, joins s or replaces one of s.
  void try_with(const HandDeal& deal, std::size_t s, DeviceId device, const Take& take) const {
    if (deal[s].size() < most_[s]) {
      HandDeal next = deal;
      next[s].push_back(device);
      std::sort(next[s].begin(), next[s].end());
      if (take(next)) return;
    }
    for (std::size_t i = 0; i < deal[s].size(); ++i) {
      if (class_of(deal[s][i]) == class_of(device)) continue;
      HandDeal next = deal;
      next[s][i] = device;
      std::sort(next[s].begin(), next[s].end());
      if (take(next)) return;
    }
  }

  std::size_t class_of(DeviceId device) const {
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      if (std::find(classes_[c].begin(), classes_[c].end(), device) != classes_[c].end()) return c;
    }
    return classes_.size();
  }

  std::optional<DeviceId> unused(const HandDeal& deal, const std::vector<DeviceId>& devices) const {
    if (shared_) return devices.front();
    for (const DeviceId device : devices) {
      const bool used = std::any_of(deal.begin(), deal.end(), [&](const auto& stage) {
        return std::find(stage.begin(), stage.end(), device) != stage.end();
      });
      if (!used) return device;
    }
    return std::nullopt;
  }

  // Its key; none if it cannot run or the budget is spent.
  std::optional<DealKey> consider(const HandDeal& deal) {
    if (std::any_of(deal.begin(), deal.end(), [](const auto& devices) { return devices.empty(); })) return {};
    const auto [known, fresh] = judged_.try_emplace(deal);
    if (!fresh) return known->second;
    if (context_.stop() || !context_.take_state()) return {};
    for (std::size_t s = 0; s < deal.size(); ++s) {
      Stage& stage = base_.stages[place_[s]];
      const std::uint32_t micro_batches = base_.micro_batches(StageId(place_[s]));
      stage.replicas.clear();
      for (std::size_t r = 0; r < deal[s].size(); ++r) {
        stage.replicas.push_back({{deal[s][r]}, round_robin(micro_batches, r, deal[s].size())});
      }
    }
    const std::vector<std::uint32_t> limits = in_flight_limits(base_);
    for (std::size_t p = 0; p < limits.size(); ++p) base_.stages[p].in_flight = limits[p];
    ++evaluations_;
    const Evaluation evaluation = problem_.oracle->evaluator().evaluate(base_, *scratch_);
    if (!evaluation.can_run()) return {};
    Bytes lack, peak;
    std::size_t used = 0;
    for (std::size_t d = 0; d < evaluation.peak.size(); ++d) {
      const Bytes held = evaluation.peak[d].total();
      lack += std::max(Bytes(), held - problem_.cluster.devices()[d].memory);
      peak = std::max(peak, held);
    }
    for (const auto& devices : deal) used += devices.size();
    known->second = DealKey(lack, evaluation.iteration, peak, used);
    if (!best_ || *known->second < best_key_) {
      best_ = base_;
      best_key_ = *known->second;
    }
    return known->second;
  }

  const Problem& problem_;
  const std::vector<HandStage>& stages_;
  const HandOptions& options_;
  Context& context_;
  Oracle::Loan scratch_;
  std::vector<std::size_t> open_;                      // stages without devices
  std::vector<DeviceId> free_;                         // devices for them
  std::vector<std::vector<DeviceId>> classes_;         // of those, alike
  bool shared_ = false;                                // fewer devices than open stages
  std::vector<std::size_t> most_;                      // replicas of each stage
  std::vector<std::size_t> place_;                     // of each stage in the plan
  PipelinePlan base_;                                  // of this micro-batch
  std::map<HandDeal, std::optional<DealKey>> judged_;  // of this micro-batch
  std::optional<DealKey> now_;                         // where the local search stands
  std::optional<PipelinePlan> best_;
  DealKey best_key_;
  std::uint64_t evaluations_ = 0;
};

}  // namespace

Outcome plan_by_hand(const Problem& problem, const std::vector<HandStage>& stages, const HandOptions& options,
                     Context& context) {
  const std::size_t ks = options.schedule.group.size();
  if (ks > 1 && ks != stages.size()) {
    return {.status = Status::kUnsupported,
            .why = "the schedule has k for " + std::to_string(ks) + " stages, --stages names " +
                   std::to_string(stages.size())};
  }
  HandSearch search(problem, stages, options, context);
  bool any = false;
  for (const BatchSize micro_batch : usable_micro_batches(problem)) any |= search.run(micro_batch);
  if (!any) {
    std::size_t most = 0;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      if (stages[s].devices.size() > stages[most].devices.size()) most = s;
    }
    return {.status = Status::kInfeasible,
            .why = "stage '" + stages[most].item + "' has " + std::to_string(stages[most].devices.size()) +
                   " replicas, and no micro-batch divides the batch of " +
                   std::to_string(problem.training.batch.count()) +
                   " into as many; --micro-batch names smaller ones"};
  }
  Judge judge(problem, context);
  if (search.best()) judge.consider(*search.best());
  Outcome outcome = judge.outcome();
  outcome.stats.evaluations += search.evaluations();
  return outcome;
}

}  // namespace espalier
