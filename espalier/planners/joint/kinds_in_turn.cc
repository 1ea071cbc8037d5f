#include "espalier/planners/joint/kinds_in_turn.h"

#include <algorithm>

#include "espalier/base/check.h"

namespace espalier::joint {
namespace {

constexpr std::size_t kAllOrders = 3;  // kinds, at most, that follow each other in any order

struct Kind {
  KindId id;
  std::vector<DeviceId> devices;
  Duration work = {};  // of a micro-batch of the whole graph, spread over its devices
};

class Chains {
 public:
  Chains(const Space& space, BatchSize size) : space_(space), size_(size) {
    for (std::uint32_t gap = 1; gap < space.operators(); ++gap) {
      if (space.crossing(gap)) gaps_.push_back(gap);
    }
    gaps_.push_back(narrow(space.operators()));
  }

  Duration work(std::uint32_t first, std::uint32_t end, const Kind& kind) const {
    if (first == end) return Duration();
    const Duration all = space_.work(OperatorRun{first, end - 1}, kind.id, size_);
    return Duration(all.count() / static_cast<std::int64_t>(kind.devices.size()));
  }

  // Where each kind's stage ends, so that the slowest takes least time.
  std::vector<std::uint32_t> cut(const std::vector<const Kind*>& kinds) const {
    Duration low(-1), high = work(0, gaps_.back(), *kinds.front());
    while (high.count() - low.count() > 1) {
      const Duration middle(low.count() + (high.count() - low.count()) / 2);
      (within(kinds, middle).back() == gaps_.back() ? high : low) = middle;
    }
    return within(kinds, high);
  }

 private:
  // As far as each comes within this time, one after the other.
  std::vector<std::uint32_t> within(const std::vector<const Kind*>& kinds, Duration time) const {
    std::vector<std::uint32_t> ends;
    std::uint32_t begin = 0;
    for (const Kind* kind : kinds) {
      const auto too_far = std::partition_point(gaps_.begin(), gaps_.end(), [&](std::uint32_t gap) {
        return gap <= begin || work(begin, gap, *kind) <= time;
      });
      if (too_far != gaps_.begin()) begin = std::max(begin, *(too_far - 1));
      ends.push_back(begin);
    }
    return ends;
  }

  const Space& space_;
  const BatchSize size_;
  std::vector<std::uint32_t> gaps_;  // where a stage may end
};

// The fastest first.
std::vector<Kind> kinds_of(const Space& space, const Chains& chains) {
  const Cluster& cluster = space.problem().cluster;
  std::vector<Kind> kinds;
  for (std::size_t k = 0; k < cluster.kinds().size(); ++k) {
    Kind kind{.id = KindId(k), .devices = {}};
    for (std::size_t d = 0; d < cluster.devices().size(); ++d) {
      if (cluster.devices()[d].kind == kind.id) kind.devices.push_back(DeviceId(d));
    }
    if (kind.devices.empty()) continue;
    kind.work = chains.work(0, narrow(space.operators()), kind);
    kinds.push_back(std::move(kind));
  }
  std::stable_sort(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) { return a.work < b.work; });
  return kinds;
}

// The operators [begin, end) that are no copies.
OperatorSet own_operators(const Space& space, std::uint32_t begin, std::uint32_t end) {
  std::vector<OperatorId> operators;
  for (std::uint32_t op = begin; op < end; ++op) {
    if (space.is_own(op)) operators.push_back(OperatorId(op));
  }
  return OperatorSet(std::move(operators));
}

}  // namespace

std::vector<Proposal> kinds_in_turn(const Space& space, const OrderRule& schedule) {
  const Problem& problem = space.problem();
  if (!problem.locked.empty() || !problem.pins.empty() || space.operators() == 0) return {};
  const BatchSize size = space.sizes()[space.sizes().size() / 2];
  const Chains chains(space, size);
  const std::vector<Kind> kinds = kinds_of(space, chains);
  if (kinds.size() < 2) return {};
  std::vector<std::size_t> order(kinds.size());
  for (std::size_t k = 0; k < order.size(); ++k) order[k] = k;
  std::vector<Proposal> plans;
  const auto add = [&] {
    std::vector<const Kind*> in_turn;
    for (const std::size_t k : order) in_turn.push_back(&kinds[k]);
    const std::vector<std::uint32_t> ends = chains.cut(in_turn);
    Proposal plan{.stages = {}, .micro_batch = size, .schedule = schedule, .estimate = std::nullopt};
    std::uint32_t begin = 0;
    for (std::size_t s = 0; s < in_turn.size(); ++s) {
      StageDraft stage{
          .operators = own_operators(space, begin, ends[s]), .devices = in_turn[s]->devices, .after = {}};
      if (stage.operators.empty() || (stage.devices.size() > 1 && space.has_writer(stage.operators))) return;
      plan.stages.push_back(std::move(stage));
      begin = ends[s];
    }
    plans.push_back(std::move(plan));
  };
  if (kinds.size() <= kAllOrders) {
    do {
      add();
    } while (std::next_permutation(order.begin(), order.end()));
  } else {
    add();
    std::reverse(order.begin(), order.end());
    add();
  }
  return plans;
}

}  // namespace espalier::joint
