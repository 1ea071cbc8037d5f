#include "espalier/planners/pipeline/locked.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <set>

#include "espalier/base/check.h"
#include "espalier/planners/candidate.h"
#include "espalier/planners/pipeline/part_splits.h"

// Problem. Some stages L₁ … L_k are given; cut the rest into stages that form a DAG with them.
//
// Let before(v) be the locked stages that lead to operator v, behind(v) those it leads to, each locked stage
// taken as one node. A stage that holds u and v, u → L → v, would lead to itself; it is safe exactly if none
// of its operators has an L before it that is behind another. Operators with equal before(v) form a class;
// sorted by the size of before(v), no class reads from a later one, so a part of neighbouring classes reads
// from none behind it. Classes are joined while that is safe: fewer parts need fewer devices. Each part is a
// chain, cut as PipeDream cuts; parts and locked stages then form a DAG by construction.
//
// Rows: device_rows of the devices that are left. Pinned devices take the parts that hold what is pinned.
//
//   a → L → b, c beside them:   before(a) = before(c) = {}, before(b) = {L}   parts {a, c} and {b}
//
// Known bad case: branches within a part are cut as one chain.

namespace espalier {
namespace {

constexpr std::size_t kMostDeals = 4096;  // ways to deal devices to the parts

using StageSet = std::vector<std::uint64_t>;

StageSet operator|(const StageSet& a, const StageSet& b) {
  StageSet sum = a;
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] |= b[i];
  return sum;
}
bool meet(const StageSet& a, const StageSet& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if ((a[i] & b[i]) != 0) return true;
  }
  return false;
}
std::size_t size_of(const StageSet& set) {
  std::size_t count = 0;
  for (const std::uint64_t word : set) count += static_cast<std::size_t>(std::popcount(word));
  return count;
}

// The graph with each locked stage as one node: nodes 0 … k-1 are the locked stages, k + i is operator i.
class Contracted {
 public:
  explicit Contracted(const Problem& problem)
      : graph_(problem.graph),
        locked_(problem.locked.size()),
        node_(problem.graph.operators().size()),
        successors_(locked_ + node_.size()) {
    for (std::size_t i = 0; i < node_.size(); ++i) node_[i] = locked_ + i;
    for (std::size_t s = 0; s < locked_; ++s) {
      for (const OperatorId op : problem.locked[s].stage.operators) {
        if (!graph_.op(op).duplicable) node_[op.index()] = s;
      }
      for (const StageId before : problem.locked[s].stage.after) successors_[before.index()].insert(s);
    }
    for (std::size_t i = 0; i < node_.size(); ++i) {
      if (graph_.operators()[i].duplicable) continue;
      for (const OperatorId p : graph_.predecessors(OperatorId(i))) {
        if (graph_.op(p).duplicable || node_[p.index()] == node_[i]) continue;
        successors_[node_[p.index()]].insert(node_[i]);
      }
    }
  }

  std::size_t locked() const { return locked_; }
  std::size_t nodes() const { return successors_.size(); }
  std::size_t of(OperatorId op) const { return node_[op.index()]; }
  const std::set<std::size_t>& successors(std::size_t node) const { return successors_[node]; }

  // All nodes, each behind those that lead to it; fewer if there is a cycle.
  std::vector<std::size_t> order() const {
    std::vector<std::size_t> missing(nodes(), 0), order;
    for (const auto& readers : successors_) {
      for (const std::size_t reader : readers) ++missing[reader];
    }
    for (std::size_t n = 0; n < nodes(); ++n) {
      if (missing[n] == 0) order.push_back(n);
    }
    for (std::size_t next = 0; next < order.size(); ++next) {
      for (const std::size_t reader : successors_[order[next]]) {
        if (--missing[reader] == 0) order.push_back(reader);
      }
    }
    return order;
  }

  std::vector<char> reached_from(std::size_t node) const {
    std::vector<char> reached(nodes(), 0);
    std::vector<std::size_t> stack{node};
    while (!stack.empty()) {
      const std::size_t at = stack.back();
      stack.pop_back();
      for (const std::size_t reader : successors_[at]) {
        if (reached[reader]) continue;
        reached[reader] = 1;
        stack.push_back(reader);
      }
    }
    return reached;
  }

  std::string name(const Problem& problem, std::size_t node) const {
    return node < locked_ ? problem.locked[node].where
                          : "'" + graph_.operators()[node - locked_].name + "', which is not locked";
  }

 private:
  const Graph& graph_;
  std::size_t locked_;
  std::vector<std::size_t> node_;                  // of each operator
  std::vector<std::set<std::size_t>> successors_;  // by node
};

// Locked stages that no order can keep.
void find_cycles(const Problem& problem, std::vector<std::string>& found) {
  const Contracted contracted(problem);
  for (std::size_t s = 0; s < contracted.locked(); ++s) {
    const std::vector<char> reached = contracted.reached_from(s);
    if (!reached[s]) continue;
    for (std::size_t n = contracted.nodes(); n-- > 0;) {
      if (n == s || !reached[n] || !contracted.successors(n).contains(s)) continue;
      found.push_back(problem.locked[s].where + ": a path leaves it and returns through " +
                      contracted.name(problem, n));
      break;
    }
  }
}

std::string quoted(const std::string& name) {
  return "'" + name + "'";
}

void find_shared(const Problem& problem, std::vector<std::string>& found) {
  std::map<OperatorId, const LockedStage*> holder;
  std::map<DeviceId, const LockedStage*> user;
  std::map<std::uint32_t, std::pair<OperatorId, const LockedStage*>> colocated;
  const std::vector<std::optional<DeviceId>> pins = resolve_pins(problem.graph, problem.pins);
  for (const LockedStage& locked : problem.locked) {
    for (const OperatorId id : locked.stage.operators) {
      const Operator& op = problem.graph.op(id);
      if (op.duplicable) continue;
      const auto [it, fresh] = holder.emplace(id, &locked);
      if (!fresh)
        found.push_back(locked.where + ": " + quoted(op.name) + " stands in " + it->second->where + ", too");
      const std::optional<DeviceId>& pin = pins[id.index()];
      if (pin &&
          (locked.stage.replicas.size() != 1 || locked.stage.replicas[0].devices != std::vector{*pin})) {
        found.push_back(locked.where + ": " + quoted(op.name) + " is locked there, and --pin wants it on " +
                        problem.cluster.device(*pin).name);
      }
    }
    for (const Replica& replica : locked.stage.replicas) {
      for (const DeviceId device : replica.devices) {
        const auto [it, fresh] = user.emplace(device, &locked);
        if (fresh || it->second == &locked) continue;
        found.push_back(locked.where + ": stands on " + problem.cluster.device(device).name +
                        ", and so does " + it->second->where + "; planners give a device one stage");
      }
    }
  }
  std::set<std::uint32_t> told;
  for (std::size_t i = 0; i < problem.graph.operators().size(); ++i) {
    const auto group = problem.graph.operators()[i].colocation;
    if (!group) continue;
    const auto held = holder.find(OperatorId(i));
    const LockedStage* const mine = held == holder.end() ? nullptr : held->second;
    const auto [it, fresh] = colocated.emplace(*group, std::pair(OperatorId(i), mine));
    const LockedStage* const other = it->second.second;
    if (fresh || other == mine || !told.insert(*group).second) continue;
    found.push_back((mine ? mine : other)->where + ": " + quoted(problem.graph.operators()[i].name) +
                    " and " + quoted(problem.graph.op(it->second.first).name) +
                    " share memory that is written, so they stand in one stage");
  }
}

// Parts of the rest, each with its operators ascending.
std::vector<std::vector<OperatorId>> parts_of(const Problem& problem) {
  const Contracted contracted(problem);
  const std::vector<std::size_t> order = contracted.order();
  ESP_CHECK(order.size() == contracted.nodes(), order.size());
  const StageSet none(contracted.locked() / 64 + 1, 0);
  std::vector<StageSet> before(contracted.nodes(), none), behind(contracted.nodes(), none);
  const auto with = [&](StageSet set, std::size_t node) {
    if (node < contracted.locked()) set[node / 64] |= std::uint64_t{1} << node % 64;
    return set;
  };
  for (const std::size_t n : order) {
    for (const std::size_t reader : contracted.successors(n)) {
      before[reader] = before[reader] | with(before[n], n);
    }
  }
  for (std::size_t i = order.size(); i-- > 0;) {
    const std::size_t n = order[i];
    for (const std::size_t reader : contracted.successors(n))
      behind[n] = behind[n] | with(behind[reader], reader);
  }
  std::map<std::pair<std::size_t, StageSet>, std::vector<OperatorId>> classes;
  for (std::size_t i = 0; i < problem.graph.operators().size(); ++i) {
    const std::size_t node = contracted.of(OperatorId(i));
    if (problem.graph.operators()[i].duplicable || node < contracted.locked()) continue;
    classes[{size_of(before[node]), before[node]}].push_back(OperatorId(i));
  }
  std::vector<std::vector<OperatorId>> parts;
  StageSet part_before = none, part_behind = none;
  for (const auto& [key, operators] : classes) {
    StageSet class_behind = none;
    for (const OperatorId op : operators) class_behind = class_behind | behind[contracted.of(op)];
    const StageSet joined_before = part_before | key.second, joined_behind = part_behind | class_behind;
    if (parts.empty() || meet(joined_before, joined_behind)) {
      parts.emplace_back();
      part_before = key.second, part_behind = class_behind;
    } else {
      part_before = joined_before, part_behind = joined_behind;
    }
    parts.back().insert(parts.back().end(), operators.begin(), operators.end());
  }
  for (std::vector<OperatorId>& part : parts) std::sort(part.begin(), part.end());
  return parts;
}

class LockedSearch {
 public:
  LockedSearch(const Problem& problem, const LockedOptions& options, Judge& judge, Context& context)
      : problem_(problem),
        options_(options),
        judge_(judge),
        context_(context),
        line_(problem, chain_order(problem.graph)),
        table_(problem),
        micro_batch_(problem.locked.front().stage.micro_batch),
        costs_(problem.graph, problem.cluster, problem.costs, micro_batch_) {
    std::set<DeviceId> taken;
    for (const LockedStage& locked : problem.locked) {
      for (const Replica& replica : locked.stage.replicas)
        taken.insert(replica.devices.begin(), replica.devices.end());
    }
    for (const DeviceId device : unpinned_devices(problem)) {
      if (!taken.contains(device)) free_.push_back(device);
    }
    std::vector<std::uint32_t> place(problem.graph.operators().size());
    for (std::size_t i = 0; i < line_.size(); ++i) place[line_[i].index()] = narrow(i);
    for (const std::vector<OperatorId>& part : parts_of(problem)) {
      std::vector<std::uint32_t>& members = members_.emplace_back();
      std::set<DeviceId> pinned;
      for (const OperatorId op : part) {
        members.push_back(place[op.index()]);
        if (const auto pin = line_.pin(members.back())) pinned.insert(*pin);
      }
      least_.push_back(pinned.empty() ? 1 : 0);
    }
  }

  std::size_t least_devices() const { return std::accumulate(least_.begin(), least_.end(), std::size_t{0}); }
  std::size_t free_devices() const { return free_.size(); }

  void run() {
    for (std::vector<DeviceId>& row : device_rows(problem_.cluster, free_, whole_times(line_, costs_))) {
      PartSplits parts(line_, table_, std::move(row), micro_batch_, costs_,
                       {.keep = SplitOptions::Keep::kLeastBottleneck, .schedule = options_.schedule});
      std::vector<std::size_t> numbers;
      for (const auto& members : members_) numbers.push_back(parts.part_of(members));
      deals_ = 0;
      std::vector<std::size_t> counts;
      deal(parts, numbers, counts, free_.size());
    }
  }

 private:
  void deal(PartSplits& parts, const std::vector<std::size_t>& numbers, std::vector<std::size_t>& counts,
            std::size_t left) {
    if (context_.stop() || context_.budget_spent || deals_ >= kMostDeals) return;
    const std::size_t next = counts.size();
    if (next == numbers.size()) {
      ++deals_;
      return consider(parts, numbers, counts);
    }
    const std::size_t others =
        std::accumulate(least_.begin() + static_cast<std::ptrdiff_t>(next) + 1, least_.end(), std::size_t{0});
    const bool last = next + 1 == numbers.size();
    for (std::size_t mine = last ? left : least_[next]; mine + others <= left; ++mine) {
      counts.push_back(mine);
      deal(parts, numbers, counts, left - mine);
      counts.pop_back();
    }
  }

  void consider(PartSplits& parts, const std::vector<std::size_t>& numbers,
                const std::vector<std::size_t>& counts) {
    std::vector<StageDraft> drafts;
    for (const LockedStage& locked : problem_.locked) {
      StageDraft draft{.operators = locked.stage.operators,
                       .devices = {},
                       .after = {},
                       .locked_as = locked.stage.name,
                       .recompute = locked.stage.recompute};
      for (const Replica& replica : locked.stage.replicas) draft.devices.push_back(replica.devices.front());
      for (const StageId before : locked.stage.after) draft.after.push_back(before.index());
      drafts.push_back(std::move(draft));
    }
    std::size_t first = 0;
    for (std::size_t p = 0; p < numbers.size(); ++p) {
      const PartSplits::Question question{numbers[p], first, counts[p]};
      const std::vector<ChainSplit>& splits = parts.splits(question, context_);
      if (splits.empty()) return;
      const std::vector<StageDraft> cut = parts.drafts(question, splits.front());
      drafts.insert(drafts.end(), cut.begin(), cut.end());
      first += counts[p];
    }
    judge_.consider(drafts, micro_batch_, options_.schedule);
  }

  const Problem& problem_;
  const LockedOptions& options_;
  Judge& judge_;
  Context& context_;
  const Linearization line_;
  const DeviceTable table_;
  const BatchSize micro_batch_;
  const OperatorCosts costs_;
  std::vector<std::vector<std::uint32_t>> members_;  // of each part, as places in line_
  std::vector<std::size_t> least_;                   // devices that it needs
  std::vector<DeviceId> free_;
  std::size_t deals_ = 0;
};

}  // namespace

std::vector<std::string> locked_conflicts(const Problem& problem) {
  std::vector<std::string> found;
  const std::int64_t batch = problem.training.batch.count();
  for (const LockedStage& locked : problem.locked) {
    const BatchSize size = locked.stage.micro_batch;
    if (size != problem.locked.front().stage.micro_batch) {
      found.push_back(locked.where + ": is locked with micro-batches of " + std::to_string(size.count()) +
                      ", " + problem.locked.front().where + " with " +
                      std::to_string(problem.locked.front().stage.micro_batch.count()) +
                      "; a run uses one size for all stages");
    }
    const std::vector<BatchSize>& allowed = problem.training.micro_batches;
    if (std::find(allowed.begin(), allowed.end(), size) == allowed.end()) {
      found.push_back(locked.where + ": is locked with micro-batches of " + std::to_string(size.count()) +
                      ", which --micro-batch does not name or the batch of " + std::to_string(batch) +
                      " does not divide into");
    } else if (static_cast<std::int64_t>(locked.stage.replicas.size()) > batch / size.count()) {
      found.push_back(locked.where + ": has " + std::to_string(locked.stage.replicas.size()) +
                      " replicas for " + std::to_string(batch / size.count()) + " micro-batches");
    }
  }
  find_shared(problem, found);
  if (found.empty()) find_cycles(problem, found);
  return found;
}

Outcome keep_locked(const Problem& problem, const LockedOptions& options, Context& context) {
  Judge judge(problem, context);
  LockedSearch search(problem, options, judge, context);
  if (search.least_devices() > search.free_devices()) {
    return {.status = Status::kInfeasible,
            .why = "the locked stages leave " + std::to_string(search.free_devices()) +
                   " devices for the rest, which needs at least " + std::to_string(search.least_devices()) +
                   ": unlock a stage, or lock less of them"};
  }
  const std::vector<BatchSize> usable = usable_micro_batches(problem);
  if (std::find(usable.begin(), usable.end(), problem.locked.front().stage.micro_batch) != usable.end()) {
    search.run();
  }
  if (problem.start) {
    if (const auto* start = std::get_if<PipelinePlan>(&*problem.start)) judge.consider(*start);
  }
  Outcome outcome = judge.outcome();
  if (outcome.plan && outcome.why.empty()) {
    std::string names;
    for (const LockedStage& locked : problem.locked) names += (names.empty() ? "" : ", ") + locked.stage.name;
    outcome.why = "kept as locked: " + names;
  }
  return outcome;
}

}  // namespace espalier
