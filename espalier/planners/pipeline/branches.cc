#include "espalier/planners/pipeline/branches.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "espalier/base/check.h"
#include "espalier/planners/candidate.h"
#include "espalier/planners/pipeline/pipedream.h"

// Problem. Keep independent branches on devices of their own, so that the pipeline is as deep as its longest
// branch and not as all of them together (GraphPipe, ASPLOS'25, §3). This is the simple form: one group of
// branches at a time, whole branches per track.
//
//   clock   0    1    2    3
//   img     F0   F1   B0   F2 …
//   txt     F0   F1   B0   F2 …
//   head         F0   B0   F1   B1 …
//
// Two towers on a track each, a head behind both: depth 2 where the chain has 3.
//
// Known bad cases: branches inside branches are one branch here; several groups in a row are planned one at a
// time, the others as chains.

namespace espalier {
namespace {

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

class Components {
 public:
  explicit Components(std::size_t n) : parent_(n) {
    std::iota(parent_.begin(), parent_.end(), std::size_t{0});
  }
  std::size_t find(std::size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(std::size_t a, std::size_t b) {
    a = find(a), b = find(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<std::size_t> parent_;
};

// The operators that decide the structure, in graph order, and where the others stay.
struct Skeleton {
  std::vector<OperatorId> order;
  std::vector<std::size_t> position;               // by operator; kNone if it is not in `order`
  std::vector<std::vector<OperatorId>> followers;  // by position: operators that stay with it
};

// Leaves out duplicable operators, and those from which neither the loss nor an output that needs a gradient
// can be reached.
Skeleton skeleton(const Graph& graph) {
  const std::size_t n = graph.operators().size();
  std::vector<char> needed(n, 0);
  const auto need_producer = [&](TensorId t) {
    if (const auto producer = graph.tensor(t).producer) needed[producer->index()] = 1;
  };
  if (graph.loss()) need_producer(*graph.loss());
  bool any = std::any_of(needed.begin(), needed.end(), [](char c) { return c != 0; });
  for (std::size_t i = n; i-- > 0;) {
    if (!any && graph.successors(OperatorId(i)).empty())
      needed[i] = 1;  // a profile has no loss: every sink counts
    if (!needed[i]) continue;
    for (const OperatorId p : graph.predecessors(OperatorId(i))) needed[p.index()] = 1;
  }
  Skeleton result;
  result.position.assign(n, kNone);
  for (std::size_t i = 0; i < n; ++i) {
    if (!needed[i] || graph.operators()[i].duplicable) continue;
    result.position[i] = result.order.size();
    result.order.push_back(OperatorId(i));
  }
  result.followers.resize(result.order.size());
  std::map<std::uint32_t, std::size_t> colocated;
  for (std::size_t p = 0; p < result.order.size(); ++p) {
    if (const auto group = graph.op(result.order[p]).colocation) colocated[*group] = p;
  }
  std::vector<std::size_t> home(n, kNone);
  for (std::size_t i = 0; i < n; ++i) {
    if (result.position[i] != kNone) {
      home[i] = result.position[i];
      continue;
    }
    if (graph.operators()[i].duplicable) continue;
    std::size_t& mine = home[i];
    if (const auto group = graph.operators()[i].colocation; group && colocated.contains(*group))
      mine = colocated[*group];
    for (const OperatorId p : graph.predecessors(OperatorId(i))) {
      if (mine == kNone && home[p.index()] != kNone) mine = home[p.index()];
    }
    if (mine == kNone) mine = 0;
    if (const auto group = graph.operators()[i].colocation) colocated.try_emplace(*group, mine);
    if (!result.followers.empty()) result.followers[mine].push_back(OperatorId(i));
  }
  return result;
}

// serial[p]: every other operator of the skeleton is an ancestor or a descendant of the one at p. All before
// p lead to it exactly if each of them has a successor at or before p; likewise behind it.
std::vector<char> serial_positions(const Graph& graph, const Skeleton& s) {
  const std::size_t n = s.order.size();
  std::vector<std::size_t> nearest_successor(n, n), nearest_predecessor(n, kNone);
  for (std::size_t p = 0; p < n; ++p) {
    for (const OperatorId q : graph.successors(s.order[p])) {
      const std::size_t to = s.position[q.index()];
      if (to != kNone) nearest_successor[p] = std::min(nearest_successor[p], to);
    }
    for (const OperatorId q : graph.predecessors(s.order[p])) {
      const std::size_t from = s.position[q.index()];
      if (from != kNone && (nearest_predecessor[p] == kNone || from > nearest_predecessor[p]))
        nearest_predecessor[p] = from;
    }
  }
  std::vector<char> serial(n, 1);
  std::size_t furthest = 0;
  for (std::size_t p = 0; p < n; ++p) {
    if (furthest > p) serial[p] = 0;
    furthest = std::max(furthest, nearest_successor[p]);
  }
  std::size_t earliest = n;
  for (std::size_t p = n; p-- > 0;) {
    if (earliest < p + 1) serial[p] = 0;
    earliest = std::min(earliest, nearest_predecessor[p] == kNone ? 0 : nearest_predecessor[p] + 1);
  }
  return serial;
}

// Work of one micro-batch of the operators, on a kind.
class WorkOf {
 public:
  WorkOf(const Problem& problem, BatchSize micro_batch)
      : costs_(problem.graph, problem.cluster, problem.costs, micro_batch) {}
  Duration operator()(const std::vector<OperatorId>& operators, KindId kind) const {
    Duration sum;
    for (const OperatorId op : operators) sum += costs_.of(op, kind).forward + costs_.of(op, kind).backward();
    return sum;
  }

 private:
  OperatorCosts costs_;
};

void append(std::vector<OperatorId>& to, const std::vector<OperatorId>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// A track: what one or several devices compute beside the other tracks.
struct Track {
  std::vector<OperatorId> operators;
  Duration load;
  std::size_t devices = 1;
};

// Longest branch first, each to the least loaded track (Graham, 1969).
void deal(std::vector<Track>& tracks, const BranchGroup& group, const std::vector<Duration>& work) {
  std::vector<std::size_t> order(group.branches.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return work[a] > work[b]; });
  for (const std::size_t b : order) {
    Track& least = *std::min_element(tracks.begin(), tracks.end(),
                                     [](const Track& x, const Track& y) { return x.load < y.load; });
    append(least.operators, group.branches[b]);
    least.load += work[b];
  }
}

// Devices beyond one each go where the load per device is highest.
void give_devices(std::vector<Track>& tracks, std::size_t devices) {
  for (std::size_t spare = devices - tracks.size(); spare > 0; --spare) {
    const auto busier = [](const Track& a, const Track& b) {
      return a.load.count() * static_cast<std::int64_t>(b.devices) <
             b.load.count() * static_cast<std::int64_t>(a.devices);
    };
    ++std::max_element(tracks.begin(), tracks.end(), busier)->devices;
  }
}

class BranchSearch {
 public:
  BranchSearch(const Problem& problem, const BranchesOptions& options, BatchSize micro_batch, Judge& judge,
               Context& context)
      : problem_(problem),
        options_(options),
        micro_batch_(micro_batch),
        judge_(judge),
        context_(context),
        work_(problem, micro_batch) {
    for (std::size_t d = 0; d < problem.cluster.devices().size(); ++d) devices_.push_back(DeviceId(d));
  }

  void run(const BranchGroup& group) {
    const std::size_t total = devices_.size();
    const std::size_t most_before = group.before.empty() ? 0 : total - 2;
    const std::size_t most_after = group.after.empty() ? 0 : total - 2;
    for (std::size_t before = 0; before <= most_before; ++before) {
      for (std::size_t after = 0; before + after + 2 <= total && after <= most_after; ++after) {
        const std::size_t in_group = total - before - after;
        for (std::size_t tracks = 2; tracks <= std::min(in_group, group.branches.size()); ++tracks) {
          if (context_.stop()) return;
          try_shape(group, before, tracks, in_group, after);
        }
      }
    }
  }

 private:
  void try_shape(const BranchGroup& group, std::size_t before, std::size_t track_count, std::size_t in_group,
                 std::size_t after) {
    const KindId kind = problem_.cluster.devices().front().kind;
    std::vector<Track> tracks(track_count);
    if (before == 0) {  // what stands before joins the first track
      append(tracks.front().operators, group.before);
      tracks.front().load += work_(group.before, kind);
    }
    if (after == 0) {  // what stands behind joins the last
      append(tracks.back().operators, group.after);
      tracks.back().load += work_(group.after, kind);
    }
    std::vector<Duration> work;
    for (const auto& branch : group.branches) work.push_back(work_(branch, kind));
    deal(tracks, group, work);
    give_devices(tracks, in_group);

    std::vector<StageDraft> drafts;
    std::size_t next = 0;
    if (before > 0 && !add_part(drafts, group.before, next, before)) return;
    next += before;
    for (const Track& track : tracks) {
      if (track.operators.empty() || !add_part(drafts, track.operators, next, track.devices)) return;
      next += track.devices;
    }
    if (after > 0 && !add_part(drafts, group.after, next, after)) return;
    judge_.consider(drafts, micro_batch_, options_.schedule);
  }

  // Cuts the operators over devices [first, first + count) and adds the stages; false if they do not fit.
  bool add_part(std::vector<StageDraft>& drafts, const std::vector<OperatorId>& operators, std::size_t first,
                std::size_t count) {
    const std::vector<DeviceId> devices(devices_.begin() + static_cast<std::ptrdiff_t>(first),
                                        devices_.begin() + static_cast<std::ptrdiff_t>(first + count));
    std::vector<OperatorId> order = operators;
    std::sort(order.begin(), order.end());
    const auto [it, fresh] = parts_.try_emplace({order, devices});
    if (fresh) {
      const Chain chain(problem_, order, micro_batch_, 64);
      const std::int64_t m = problem_.training.batch.count() / micro_batch_.count();
      const std::vector<ChainSplit> splits = min_max_splits(problem_, chain, devices, m, context_);
      if (!splits.empty()) {
        for (const ChainStage& stage : splits.front().stages) {
          it->second.push_back({chain.operators(stage.first_block, stage.last_block), stage.devices, {}});
        }
      }
    }
    drafts.insert(drafts.end(), it->second.begin(), it->second.end());
    return !it->second.empty();
  }

  const Problem& problem_;
  const BranchesOptions& options_;
  BatchSize micro_batch_;
  Judge& judge_;
  Context& context_;
  WorkOf work_;
  std::vector<DeviceId> devices_;
  std::map<std::pair<std::vector<OperatorId>, std::vector<DeviceId>>, std::vector<StageDraft>> parts_;
};

// Groups by the work that can run beside the heaviest branch, most first; those without any are left out.
std::vector<BranchGroup> worthwhile(const Problem& problem, BatchSize micro_batch, std::size_t most) {
  const WorkOf work(problem, micro_batch);
  const KindId kind = problem.cluster.devices().front().kind;
  std::vector<std::pair<Duration, BranchGroup>> rated;
  for (BranchGroup& group : branch_groups(problem.graph)) {
    Duration sum, heaviest;
    for (const auto& branch : group.branches) {
      const Duration w = work(branch, kind);
      sum += w;
      heaviest = std::max(heaviest, w);
    }
    if (sum > heaviest) rated.emplace_back(sum - heaviest, std::move(group));
  }
  std::stable_sort(rated.begin(), rated.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<BranchGroup> result;
  for (auto& [gain, group] : rated) {
    if (result.size() < most) result.push_back(std::move(group));
  }
  return result;
}

}  // namespace

std::vector<BranchGroup> branch_groups(const Graph& graph) {
  const Skeleton s = skeleton(graph);
  const std::size_t n = s.order.size();
  const std::vector<char> serial = serial_positions(graph, s);
  std::vector<BranchGroup> groups;
  for (std::size_t begin = 0; begin < n;) {
    if (serial[begin]) {
      ++begin;
      continue;
    }
    std::size_t end = begin;
    while (end < n && !serial[end]) ++end;
    Components components(end - begin);
    std::map<std::uint32_t, std::size_t> colocated;
    for (std::size_t p = begin; p < end; ++p) {
      for (const OperatorId q : graph.successors(s.order[p])) {
        const std::size_t to = s.position[q.index()];
        if (to != kNone && to < end) components.join(p - begin, to - begin);
      }
      if (const auto group = graph.op(s.order[p]).colocation) {
        components.join(colocated.try_emplace(*group, p - begin).first->second, p - begin);
      }
    }
    std::map<std::size_t, std::vector<OperatorId>> by_root;  // ordered by first operator
    for (std::size_t p = begin; p < end; ++p) {
      std::vector<OperatorId>& branch = by_root[components.find(p - begin)];
      branch.push_back(s.order[p]);
      append(branch, s.followers[p]);
    }
    if (by_root.size() >= 2) {
      BranchGroup group;
      for (std::size_t p = 0; p < n; ++p) {
        if (p >= begin && p < end) continue;
        std::vector<OperatorId>& side = p < begin ? group.before : group.after;
        side.push_back(s.order[p]);
        append(side, s.followers[p]);
      }
      for (auto& [root, branch] : by_root) {
        std::sort(branch.begin(), branch.end());
        group.branches.push_back(std::move(branch));
      }
      std::sort(group.before.begin(), group.before.end());
      std::sort(group.after.begin(), group.after.end());
      groups.push_back(std::move(group));
    }
    begin = end;
  }
  return groups;
}

Outcome branches(const Problem& problem, const BranchesOptions& options, Context& context) {
  if (problem.cluster.devices().size() < 2) {
    return {.status = Status::kUnsupported,
            .why = "parallel branches need two devices; this cluster has one"};
  }
  Judge judge(problem);
  bool any = false;
  for (const BatchSize micro_batch : usable_micro_batches(problem)) {
    BranchSearch search(problem, options, micro_batch, judge, context);
    for (const BranchGroup& group : worthwhile(problem, micro_batch, options.max_groups)) {
      any = true;
      search.run(group);
    }
  }
  if (!any) {
    return {.status = Status::kUnsupported,
            .why = "the graph has no two branches with work in both; a chain planner fits it"};
  }
  return judge.outcome(context);
}

}  // namespace espalier
