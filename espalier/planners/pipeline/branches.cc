#include "espalier/planners/pipeline/branches.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>

#include "espalier/base/check.h"
#include "espalier/cost/work.h"
#include "espalier/graph/structure.h"
#include "espalier/planners/pipeline/ahead_of_sums.h"
#include "espalier/planners/pipeline/part_splits.h"

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
// A shape says how many devices what stands before, the tracks and what stands behind get. The step takes at
// least the work per device of each; so shapes are tried in that order, a few at a time, until many in a row
// have brought nothing, fewer where the group is far behind another; those at or above the best iteration
// found are not tried at all.
//
// Known bad cases: branches inside branches are one branch here; several groups in a row are planned one at a
// time, the others as chains.

namespace espalier {
namespace {

constexpr std::uint64_t kStatesForAShape = 40'000;  // of the budget
constexpr std::uint64_t kFewestShapes = 16;
constexpr std::uint64_t kPartOfMore = 20;  // of the budget: below 1/20 more groups are tried
constexpr std::size_t kShapesAtOnce = 8;
constexpr std::size_t kPatience = 96;               // shapes that bring nothing, in a row
constexpr std::size_t kPatienceFar = 32;            // where no plan of the group is near the best
constexpr std::int64_t kNear = 110, kNotFar = 125;  // per cent of the best iteration

// A parallel part of the structure, as places in the linearization.
struct BranchGroup {
  Places before;
  std::vector<Places> branches;  // at least two
  Places after;
};

BranchGroup group_of(const Structure& structure, PartId part) {
  const auto places = [&](PartId id) {
    return Places{structure.part(id).first_operator, structure.part(id).end_operator};
  };
  BranchGroup group;
  group.before = {0, structure.part(part).first_operator};
  group.after = {structure.part(part).end_operator, narrow(structure.operators.size())};
  for (const PartId branch : structure.children_of(part)) group.branches.push_back(places(branch));
  return group;
}

// Which branches share a track, and whether what stands before or behind joins the first or the last.
struct Deal {
  bool before_joins = false, after_joins = false;
  std::vector<std::vector<std::size_t>> tracks;  // branches, ascending
};

struct Shape {
  const Deal* deal = nullptr;
  std::vector<std::size_t> devices;  // of each part: before, the tracks, behind
  std::vector<std::size_t> parts;    // in PartSplits
  Duration most, next;               // the largest work per device, and the second
};

// Judges each plan once: shapes often come to the same, over one row or several.
class JudgedOnce {
 public:
  explicit JudgedOnce(Judge& judge) : judge_(judge) {}

  // Of each that fits, its iteration. All of them have one schedule, here and in other calls.
  std::vector<std::optional<Duration>> iterations(std::vector<Proposal> proposals) {
    std::vector<Known::iterator> places;
    std::vector<Known::iterator> fresh;
    std::vector<Proposal> unknown;
    for (Proposal& proposal : proposals) {
      const auto [at, is_new] = known_.try_emplace(key_of(proposal));
      places.push_back(at);
      if (!is_new) continue;
      fresh.push_back(at);
      unknown.push_back(std::move(proposal));
    }
    const std::vector<std::optional<Verdict>> verdicts = judge_.consider_all(unknown);
    for (std::size_t i = 0; i < fresh.size(); ++i) {
      if (verdicts[i] && verdicts[i]->fits()) fresh[i]->second = verdicts[i]->iteration;
    }
    std::vector<std::optional<Duration>> iterations;
    for (const auto& place : places) iterations.push_back(place->second);
    return iterations;
  }

 private:
  using Known = std::map<std::vector<std::uint32_t>, std::optional<Duration>>;

  // Micro-batch, and of each stage the operators and the devices.
  static std::vector<std::uint32_t> key_of(const Proposal& proposal) {
    std::vector<std::uint32_t> key{narrow(static_cast<std::size_t>(proposal.micro_batch.count()))};
    for (const StageDraft& stage : proposal.stages) {
      key.push_back(narrow(stage.operators.runs().size()));
      for (const OperatorRun& run : stage.operators.runs()) key.insert(key.end(), {run.first, run.last});
      key.push_back(narrow(stage.devices.size()));
      for (const DeviceId device : stage.devices) key.push_back(narrow(device.index()));
    }
    return key;
  }

  Judge& judge_;
  Known known_;
};

class BranchSearch {
 public:
  BranchSearch(const BranchesOptions& options, PartSplits& parts, const BranchGroup& group, JudgedOnce& judge,
               Context& context)
      : options_(options), parts_(parts), group_(group), judge_(judge), context_(context) {}

  // `best` is the best iteration so far, here and elsewhere.
  void run(std::optional<Duration>& best) {
    std::vector<Shape> shapes;
    for (const bool before_joins : {false, true}) {
      for (const bool after_joins : {false, true}) {
        if ((group_.before.empty() && !before_joins) || (group_.after.empty() && !after_joins)) continue;
        for (const std::size_t tracks : track_counts()) add_shapes(before_joins, after_joins, tracks, shapes);
      }
    }
    std::stable_sort(shapes.begin(), shapes.end(), [](const Shape& a, const Shape& b) {
      return std::tuple(a.most, a.next) < std::tuple(b.most, b.next);
    });
    const std::uint64_t most = std::max(kFewestShapes, context_.budget.max_states / kStatesForAShape);
    if (shapes.size() > most) shapes.resize(most);
    std::size_t idle = 0;  // shapes since the last improvement
    for (std::size_t begin = 0; begin < shapes.size() && idle < patience(best); begin += kShapesAtOnce) {
      if (context_.stop() || context_.budget_spent || (best && shapes[begin].most > *best)) return;
      const std::size_t end = std::min(begin + kShapesAtOnce, shapes.size());
      const std::optional<Duration> before = best;
      consider({shapes.data() + begin, shapes.data() + end}, best);
      idle = best == before ? idle + (end - begin) : 0;
    }
  }

 private:
  // All up to eight, then half as many more each time, and one for each branch.
  std::vector<std::size_t> track_counts() const {
    const std::size_t most = group_.branches.size();
    std::vector<std::size_t> counts;
    for (std::size_t g = 2; g < most; g = g < 8 ? g + 1 : g + g / 2) counts.push_back(g);
    counts.push_back(most);
    return counts;
  }

  // Longest branch first, each to the least loaded track (Graham, 1969).
  Deal deal(bool before_joins, bool after_joins, std::size_t tracks) const {
    Deal deal{before_joins, after_joins, std::vector<std::vector<std::size_t>>(tracks)};
    std::vector<Duration> work, load(tracks);
    for (const Places& branch : group_.branches) work.push_back(parts_.work(branch));
    if (before_joins) load.front() += parts_.work(group_.before);
    if (after_joins) load.back() += parts_.work(group_.after);
    std::vector<std::size_t> order(work.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return work[a] > work[b]; });
    for (const std::size_t branch : order) {
      const auto least = static_cast<std::size_t>(std::min_element(load.begin(), load.end()) - load.begin());
      deal.tracks[least].push_back(branch);
      load[least] += work[branch];
    }
    for (auto& track : deal.tracks) std::sort(track.begin(), track.end());
    return deal;
  }

  // All up to 32 devices, then a sixteenth more each time.
  static std::size_t next_count(std::size_t devices) {
    return devices + std::max<std::size_t>(1, devices / 16);
  }

  void add_shapes(bool before_joins, bool after_joins, std::size_t tracks, std::vector<Shape>& shapes) {
    const Deal& deal = deals_.emplace_back(this->deal(before_joins, after_joins, tracks));
    std::vector<std::size_t> parts;
    if (!before_joins) parts.push_back(parts_.part({group_.before}));
    for (std::size_t t = 0; t < tracks; ++t) {
      std::vector<Places> of_track;
      if (t == 0 && before_joins && !group_.before.empty()) of_track.push_back(group_.before);
      for (const std::size_t branch : deal.tracks[t]) of_track.push_back(group_.branches[branch]);
      if (t + 1 == tracks && after_joins && !group_.after.empty()) of_track.push_back(group_.after);
      if (of_track.empty()) return;  // more tracks than branches that weigh something
      parts.push_back(parts_.part(of_track));
    }
    if (!after_joins) parts.push_back(parts_.part({group_.after}));

    const std::size_t all = parts_.devices(), first = before_joins ? 0 : 1;
    std::size_t least_of_tracks = 0;
    for (std::size_t t = first; t < first + tracks; ++t) least_of_tracks += parts_.least_devices(parts[t]);
    const auto counts = [&](bool joins, std::size_t part) {
      return joins ? std::pair<std::size_t, std::size_t>(0, 0) : std::pair(parts_.least_devices(part), all);
    };
    const auto [least_before, most_before] = counts(before_joins, parts.front());
    const auto [least_after, most_after] = counts(after_joins, parts.back());
    for (std::size_t before = least_before; before <= most_before; before = next_count(before)) {
      for (std::size_t after = least_after; after <= most_after; after = next_count(after)) {
        if (before + after + least_of_tracks > all) break;
        Shape shape{.deal = &deal,
                    .devices = std::vector<std::size_t>(parts.size(), 0),
                    .parts = parts,
                    .most = {},
                    .next = {}};
        if (!before_joins) shape.devices.front() = before;
        if (!after_joins) shape.devices.back() = after;
        give_devices(shape, first, tracks, all - before - after);
        rate(shape);
        shapes.push_back(std::move(shape));
      }
    }
  }

  // What the tracks do not need goes where the load per device is highest.
  void give_devices(Shape& shape, std::size_t first, std::size_t tracks, std::size_t devices) const {
    for (std::size_t t = first; t < first + tracks; ++t) {
      shape.devices[t] = parts_.least_devices(shape.parts[t]);
      devices -= shape.devices[t];
    }
    for (; devices > 0; --devices) {
      std::size_t busiest = first;
      for (std::size_t t = first + 1; t < first + tracks; ++t) {
        const auto load = [&](std::size_t of) { return parts_.work_of_part(shape.parts[of]).count(); };
        const auto size = [&](std::size_t of) {
          return static_cast<std::int64_t>(shape.devices[of] + parts_.pinned_devices(shape.parts[of]));
        };
        if (load(busiest) * size(t) < load(t) * size(busiest)) busiest = t;
      }
      ++shape.devices[busiest];
    }
  }

  void rate(Shape& shape) const {
    for (std::size_t p = 0; p < shape.parts.size(); ++p) {
      const Duration share = parts_.least_busy(shape.parts[p], shape.devices[p]);
      if (share > shape.most) {
        shape.next = shape.most;
        shape.most = share;
      } else {
        shape.next = std::max(shape.next, share);
      }
    }
  }

  // One question for each part.
  static std::vector<PartSplits::Question> questions_of(const Shape& shape) {
    std::vector<PartSplits::Question> questions;
    std::size_t next = 0;
    for (std::size_t p = 0; p < shape.parts.size(); ++p) {
      questions.push_back({shape.parts[p], next, shape.devices[p]});
      next += shape.devices[p];
    }
    return questions;
  }

  // A shape with the splits of its parts, of which it has chosen some.
  struct Tried {
    std::vector<PartSplits::Question> questions;
    std::vector<const std::vector<ChainSplit>*> splits = {};
    std::vector<std::size_t> choice = {};
    Duration bottleneck = {};  // the largest of the least
    bool is_new = true;        // the choice
  };

  std::size_t patience(const std::optional<Duration>& best) const {
    const bool near = !best || (fastest_ && 100 * *fastest_ <= kNear * *best);
    return near ? kPatience : kPatienceFar;
  }

  // Each part with the least bottleneck; and, where that comes near the best, with the fewest stages that
  // keep every part below the largest of those, or a little above: fewer stages fill sooner.
  void consider(std::span<const Shape> shapes, std::optional<Duration>& best) {
    std::vector<Tried> tried = answered(shapes, best);
    for (const std::int64_t percent : {0, 100, 110, 130, 160}) {
      std::vector<Proposal> proposals;
      for (Tried& each : tried) {
        each.is_new = choose(each, percent);
        if (each.is_new) proposals.push_back(proposal_of(each));
      }
      const std::vector<std::optional<Duration>> iterations = judge_.iterations(std::move(proposals));
      for (const std::optional<Duration>& iteration : iterations) {
        if (iteration && (!best || *iteration < *best)) best = iteration;
        if (iteration && (!fastest_ || *iteration < *fastest_)) fastest_ = iteration;
      }
      std::size_t next = 0;
      std::erase_if(tried, [&](const Tried& each) {
        if (!each.is_new) return false;
        const std::optional<Duration>& iteration = iterations[next++];
        return best && (!iteration || 100 * *iteration > kNotFar * *best);
      });
    }
  }

  // Those that all parts of have splits, below the best.
  std::vector<Tried> answered(std::span<const Shape> shapes, const std::optional<Duration>& best) {
    std::vector<PartSplits::Question> questions;
    std::vector<Tried> tried;
    for (const Shape& shape : shapes) {
      if (best && shape.most > *best) break;
      tried.push_back({.questions = questions_of(shape)});
      questions.insert(questions.end(), tried.back().questions.begin(), tried.back().questions.end());
    }
    parts_.answer(questions, best.value_or(Duration::max()), context_);
    for (Tried& each : tried) {
      for (const PartSplits::Question& question : each.questions) {
        each.splits.push_back(&parts_.splits(question, context_));
        if (!each.splits.back()->empty()) {
          each.bottleneck = std::max(each.bottleneck, each.splits.back()->front().bottleneck);
        }
      }
      each.choice.assign(each.splits.size(), 0);
    }
    std::erase_if(tried, [&](const Tried& each) {
      return std::ranges::any_of(each.splits, [](const auto* splits) { return splits->empty(); }) ||
             (best && each.bottleneck > *best);
    });
    return tried;
  }

  // Fewer stages, no part above so many per cent of the largest bottleneck; 0: the least. Whether anything
  // changed.
  static bool choose(Tried& tried, std::int64_t percent) {
    bool changed = percent == 0;
    for (std::size_t p = 0; p < tried.splits.size() && percent > 0; ++p) {
      const std::vector<ChainSplit>& splits = *tried.splits[p];
      std::size_t& choice = tried.choice[p];
      while (choice + 1 < splits.size() &&
             100 * splits[choice + 1].bottleneck <= percent * tried.bottleneck) {
        ++choice;
        changed = true;
      }
    }
    return changed;
  }

  Proposal proposal_of(const Tried& tried) {
    Proposal proposal{{}, parts_.micro_batch(), options_.schedule};
    for (std::size_t p = 0; p < tried.questions.size(); ++p) {
      const std::vector<StageDraft> of_part =
          parts_.drafts(tried.questions[p], (*tried.splits[p])[tried.choice[p]]);
      proposal.stages.insert(proposal.stages.end(), of_part.begin(), of_part.end());
    }
    return proposal;
  }

  const BranchesOptions& options_;
  PartSplits& parts_;
  const BranchGroup& group_;
  JudgedOnce& judge_;
  Context& context_;
  std::deque<Deal> deals_;
  std::optional<Duration> fastest_;  // of this group's plans
};

// Parallel parts by the work that can run beside the heaviest branch, most first; those without any are left
// out.
std::vector<PartId> worthwhile(const Structure& structure, const PartSplits& parts, std::size_t most) {
  std::vector<std::pair<Duration, PartId>> rated;
  for (std::size_t p = 0; p < structure.parts.size(); ++p) {
    if (structure.parts[p].kind != PartKind::kParallel) continue;
    Duration sum, heaviest;
    for (const PartId branch : structure.children_of(PartId(p))) {
      const Duration work =
          parts.work({structure.part(branch).first_operator, structure.part(branch).end_operator});
      sum += work;
      heaviest = std::max(heaviest, work);
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

// Those first that are likely to have the fastest plan, which bounds the others: by the time of their
// micro-batches and of filling a pipeline in which each stage has four devices.
std::vector<BatchSize> likely_first(const Problem& problem) {
  const auto filling = static_cast<std::int64_t>(problem.cluster.devices().size() / 4);
  std::vector<std::pair<Duration, BatchSize>> rated;
  for (const BatchSize size : usable_micro_batches(problem)) {
    const OperatorCosts costs(problem.graph, problem.cluster, problem.costs, size);
    Duration each;
    for (std::size_t op = 0; op < problem.graph.operators().size(); ++op) {
      const OperatorCost& cost = costs.of(OperatorId(op), KindId(0));
      each += cost.forward + cost.backward();
    }
    rated.emplace_back((problem.training.batch.count() / size.count() + filling) * each, size);
  }
  std::ranges::sort(rated);
  std::vector<BatchSize> sizes;
  for (const auto& [time, size] : rated) sizes.push_back(size);
  return sizes;
}

}  // namespace

Outcome branches(const Problem& problem, const BranchesOptions& options, Context& context) {
  if (problem.cluster.devices().size() < 2) {
    return {.status = Status::kUnsupported,
            .why = "parallel branches need two devices; this cluster has one"};
  }
  Judge judge(problem, context);
  JudgedOnce once(judge);
  const DeviceTable table(problem);
  const std::vector<DeviceId> devices = unpinned_devices(problem);
  std::optional<Linearization> line;
  std::optional<Duration> best;
  bool any = false;
  for (const BatchSize micro_batch : likely_first(problem)) {
    const OperatorCosts costs(problem.graph, problem.cluster, problem.costs, micro_batch);
    const Structure structure =
        make_structure(problem.graph, work_weights(problem.graph, costs, micro_batch));
    if (structure.empty()) break;
    if (!line || line->order() != structure.operators) line.emplace(problem, structure.operators);
    const std::vector<Duration> times = whole_times(*line, costs);
    const std::vector<std::vector<DeviceId>> rows = device_rows(problem.cluster, devices, times);
    PartSplits parts(*line, table, rows.front(), micro_batch, costs, {.schedule = options.schedule});
    for (const std::vector<DeviceId>& row : rows) {
      parts.take_row(row);
      const std::uint64_t enough = context.states + context.budget.max_states / kPartOfMore;
      std::size_t tried = 0;
      for (const PartId part : worthwhile(structure, parts, options.max_groups + options.more_groups)) {
        if (tried++ >= options.max_groups && context.states > enough) break;
        any = true;
        const BranchGroup group = group_of(structure, part);
        BranchSearch(options, parts, group, once, context).run(best);
      }
    }
  }
  if (!any) {
    return {.status = Status::kUnsupported,
            .why = "the graph has no two branches with work in both; a chain planner fits it"};
  }
  let_best_go_ahead_of_sums(problem, judge, context);
  return judge.outcome();
}

}  // namespace espalier
