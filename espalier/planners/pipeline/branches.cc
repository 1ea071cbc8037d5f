#include "espalier/planners/pipeline/branches.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>

#include "espalier/base/check.h"
#include "espalier/cost/work.h"
#include "espalier/graph/structure.h"
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

// A parallel part of the structure, and what may run before and behind it.
struct BranchGroup {
  std::vector<OperatorId> before;
  std::vector<std::vector<OperatorId>> branches;  // at least two; ascending
  std::vector<OperatorId> after;
};

BranchGroup group_of(const Structure& structure, PartId part) {
  const auto ascending = [](std::span<const OperatorId> operators) {
    std::vector<OperatorId> sorted(operators.begin(), operators.end());
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  };
  const std::span<const OperatorId> all = structure.operators;
  BranchGroup group;
  group.before = ascending(all.first(structure.part(part).first_operator));
  group.after = ascending(all.subspan(structure.part(part).end_operator));
  for (const PartId branch : structure.children_of(part)) {
    group.branches.push_back(ascending(structure.operators_of(branch)));
  }
  return group;
}

// Work of one micro-batch of the operators, on a kind.
class WorkOf {
 public:
  WorkOf(const Problem& problem, BatchSize micro_batch)
      : costs_(problem.graph, problem.cluster, problem.costs, micro_batch) {}
  Duration operator()(std::span<const OperatorId> operators, KindId kind) const {
    Duration sum;
    for (const OperatorId op : operators) sum += costs_.of(op, kind).forward + costs_.of(op, kind).backward();
    return sum;
  }
  const OperatorCosts& costs() const { return costs_; }

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

// Parallel parts by the work that can run beside the heaviest branch, most first; those without any are left
// out.
std::vector<PartId> worthwhile(const Structure& structure, const WorkOf& work, KindId kind,
                               std::size_t most) {
  std::vector<std::pair<Duration, PartId>> rated;
  for (std::size_t p = 0; p < structure.parts.size(); ++p) {
    if (structure.parts[p].kind != PartKind::kParallel) continue;
    Duration sum, heaviest;
    for (const PartId branch : structure.children_of(PartId(p))) {
      const Duration w = work(structure.operators_of(branch), kind);
      sum += w;
      heaviest = std::max(heaviest, w);
    }
    if (sum > heaviest) rated.emplace_back(sum - heaviest, PartId(p));
  }
  std::stable_sort(rated.begin(), rated.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<PartId> result;
  for (const auto& [gain, part] : rated) {
    if (result.size() < most) result.push_back(part);
  }
  return result;
}

}  // namespace

Outcome branches(const Problem& problem, const BranchesOptions& options, Context& context) {
  if (problem.cluster.devices().size() < 2) {
    return {.status = Status::kUnsupported,
            .why = "parallel branches need two devices; this cluster has one"};
  }
  Judge judge(problem);
  bool any = false;
  for (const BatchSize micro_batch : usable_micro_batches(problem)) {
    const WorkOf work(problem, micro_batch);
    const Structure structure =
        make_structure(problem.graph, work_weights(problem.graph, work.costs(), micro_batch));
    BranchSearch search(problem, options, micro_batch, judge, context);
    for (const PartId part :
         worthwhile(structure, work, problem.cluster.devices().front().kind, options.max_groups)) {
      any = true;
      search.run(group_of(structure, part));
    }
  }
  if (!any) {
    return {.status = Status::kUnsupported,
            .why = "the graph has no two branches with work in both; a chain planner fits it"};
  }
  return judge.outcome(context);
}

}  // namespace espalier
