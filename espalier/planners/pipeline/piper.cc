#include "espalier/planners/pipeline/piper.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/cost/work.h"
#include "espalier/graph/structure.h"
#include "espalier/planners/candidate.h"
#include "espalier/planners/literal/downsets.h"
#include "espalier/planners/pipeline/graphpipe_prices.h"
#include "espalier/planners/pipeline/graphpipe_tree.h"

//   Piper                          here
//   downset D, k devices, s = Σ d  front(D, place): what stands behind D on the devices from place on
//   time of a stage                PlacePrices::step_time, of a whole step
//   in flight ⌈Σ d / d⌉            what 1F1B needs before a rest that holds so many (docs/semantics.md)
//   largest stage, minimised       a front over (bottleneck, held, stages): memory needs the second
//
// Bad cases: many branches, whose downsets are as many as sets of branches; the pieces are coarse then.

namespace espalier {
namespace {

using internal::PlacePrices;
using internal::PlaceRanges;
using internal::StageNeeds;

constexpr std::size_t kFinest = 16;  // pieces of a branch
// Of a device's even share: parallel parts with less beside their heaviest branch are a piece of their run,
// lighter branches join another one, as in graphpipe.
constexpr std::int64_t kLeastForkPerMille = 750, kLightBranchPerMille = 60;
constexpr std::size_t kMostProposals = 12;  // of one search, that are simulated

// A way to plan what stands behind a downset.
struct Tail {
  std::int64_t bottleneck = 0;
  std::int64_t held = 0;  // micro-batches in flight of its first stage, over the replicas
  std::uint32_t stages = 0;
  std::uint32_t to = 0;  // the downset behind its first stage
  std::uint32_t replicas = 0;
  std::uint32_t rest = 0;  // in the front behind that
};

bool beats(const Tail& a, const Tail& b) {
  return a.bottleneck <= b.bottleneck && a.held <= b.held && a.stages <= b.stages;
}

// The pieces of a tree, without forks, and what each needs before it.
struct Pieces {
  std::vector<PlaceRanges> places;
  literal::ItemLists before;
};

void collect(const internal::PipeTree& tree, std::uint32_t run, std::vector<PlaceRanges>& places) {
  for (const internal::PipeItem& item : tree.runs[run].items) {
    if (!item.fork) {
      places.push_back(item.places);
      continue;
    }
    for (const std::uint32_t branch : tree.forks[*item.fork].branches) collect(tree, branch, places);
  }
}

Pieces pieces_of(const internal::PipeTree& tree, const Linearization& line) {
  Pieces pieces;
  collect(tree, 0, pieces.places);
  const Graph& graph = line.problem().graph;
  std::vector<std::optional<std::uint32_t>> piece_of(graph.operators().size());
  for (std::size_t p = 0; p < pieces.places.size(); ++p) {
    for (const Places& each : pieces.places[p]) {
      for (std::uint32_t place = each.begin; place < each.end; ++place)
        piece_of[line[place].index()] = narrow(p);
    }
  }
  pieces.before.resize(pieces.places.size());
  for (std::size_t op = 0; op < piece_of.size(); ++op) {
    if (!piece_of[op]) continue;
    for (const OperatorId source : graph.predecessors(OperatorId(op))) {
      const auto& from = piece_of[source.index()];
      if (from && from != piece_of[op]) pieces.before[*piece_of[op]].push_back(*from);
    }
  }
  for (auto& list : pieces.before) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  return pieces;
}

class DownsetSearch {
 public:
  DownsetSearch(const Pieces& pieces, const literal::Downsets& downsets, PlacePrices& prices, DeviceRow& row,
                const OrderRule& schedule, Context& context)
      : pieces_(pieces),
        downsets_(downsets),
        prices_(prices),
        row_(row),
        schedule_(schedule),
        context_(context) {
    for (std::size_t d = 1; d < row.size(); ++d) {
      const Hop& hop = row.table().hops()[row.table().hop_of(row[d - 1], row[d])];
      if (d == 1 || hop.hold(mebibytes(1)) > hop_.hold(mebibytes(1))) hop_ = hop;
    }
    if (!schedule.group.empty()) group_ = *std::min_element(schedule.group.begin(), schedule.group.end());
  }

  // The front of whole plans with no stage above `most`; nothing if the budget ends.
  std::vector<Tail> run(std::int64_t most) {
    most_ = most;
    work_.clear();
    for (std::size_t set = 0; set < downsets_.size(); ++set) work_.push_back(least_work(difference(0, set)));
    fronts_.assign(downsets_.size() * (row_.size() + 1), {});
    for (std::size_t p = 0; p <= row_.size(); ++p) front(downsets_.size() - 1, p).push_back({});
    for (std::size_t set = downsets_.size() - 1; set-- > 0;) {
      for (std::size_t larger = set + 1; larger < downsets_.size(); ++larger) {
        if (!literal::is_subset(downsets_.row(set), downsets_.row(larger), downsets_.words())) continue;
        if (!add_stage(set, larger)) return {};
      }
    }
    return front(0, 0);
  }

  // The stages of a plan of the front: their places and their devices.
  struct Stage {
    PlaceRanges places;
    std::vector<DeviceId> devices;
  };
  std::vector<Stage> stages_of(Tail tail) {
    std::vector<Stage> stages;
    std::size_t set = 0, place = 0;
    while (tail.stages > 0) {
      stages.push_back({difference(set, tail.to), row_.run(place, place + tail.replicas)});
      set = tail.to;
      place += tail.replicas;
      tail = Tail(front(set, place)[tail.rest]);
    }
    return stages;
  }

 private:
  std::vector<Tail>& front(std::size_t set, std::size_t place) {
    return fronts_[set * (row_.size() + 1) + place];
  }

  PlaceRanges difference(std::size_t small, std::size_t large) const {
    PlaceRanges places;
    for (std::size_t item = 0; item < downsets_.items(); ++item) {
      if (!downsets_.has(large, item) || downsets_.has(small, item)) continue;
      for (const Places& each : pieces_.places[item]) internal::append_places(places, each);
    }
    return places;
  }

  // Of a step, on the fastest devices alone on their hosts.
  std::int64_t least_work(const PlaceRanges& places) const {
    std::optional<std::int64_t> least;
    for (std::uint32_t c = 0; c < row_.table().classes().size(); ++c) {
      const std::int64_t work = prices_.compute_alone(c, places);
      if (work >= 0 && (!least || work < *least)) least = work;
    }
    return prices_.micro_batches() * least.value_or(0);
  }

  // Whether the devices before a place can do what is before a downset within the target, and those behind it
  // the rest.
  bool is_possible(std::size_t set, std::size_t place) const {
    const auto before = static_cast<std::int64_t>(place),
               behind = static_cast<std::int64_t>(row_.size() - place);
    const std::int64_t rest = work_.back() - work_[set];
    return (before == 0 ? set == 0 : work_[set] / before <= most_) &&
           (behind == 0 ? set + 1 == downsets_.size() : rest / behind <= most_);
  }

  bool add_stage(std::size_t set, std::size_t larger) {
    const PlaceRanges places = difference(set, larger);
    const StageNeeds* needs = nullptr;
    for (std::size_t place = 0; place < row_.size(); ++place) {
      if (set == 0 && place > 0) break;  // plans begin with the first device
      if (!is_possible(set, place)) continue;
      const std::size_t longest = std::min(row_.longest_run(), row_.size() - place);
      for (std::size_t r = 1; r <= longest; ++r) {
        const std::vector<Tail>& behind = front(larger, place + r);
        if (behind.empty() || !is_possible(larger, place + r)) continue;
        const RunClass& on = row_.classes()[row_.class_of(place, r)];
        const std::int64_t alone = prices_.compute_alone(on.loads.front().compute, places);
        if (alone < 0 || on.loads.front().share * alone > most_) continue;
        if (!context_.take_state() || context_.stop()) return false;
        if (!needs) needs = &prices_.needs(places);
        if (r > 1 && needs->writes_buffers &&
            prices_.line().problem().written_buffers == WrittenBuffers::kOneReplica) {
          break;
        }
        const auto time = prices_.step_time(*needs, on, hop_);
        if (!time || *time > most_) continue;
        for (std::size_t rest = 0; rest < behind.size(); ++rest) {
          const Tail& next = behind[rest];
          const std::int64_t w = in_flight(on, next);
          if (on.memory < needs->memory.memory(w)) continue;
          add({.bottleneck = std::max(*time, next.bottleneck),
               .held = on.replicas * w,
               .stages = next.stages + 1,
               .to = narrow(larger),
               .replicas = narrow(r),
               .rest = narrow(rest)},
              front(set, place));
        }
      }
    }
    return true;
  }

  std::int64_t in_flight(const RunClass& on, const Tail& next) const {
    if (schedule_.kind == ScheduleKind::kGPipe) return on.share;
    if (next.stages == 0) return std::min(on.share, group_);
    return std::min(on.share, (group_ * on.replicas + next.held + on.replicas - 1) / on.replicas);
  }

  static void add(const Tail& fresh, std::vector<Tail>& front) {
    if (std::any_of(front.begin(), front.end(), [&](const Tail& each) { return beats(each, fresh); })) return;
    std::erase_if(front, [&](const Tail& each) { return beats(fresh, each); });
    front.push_back(fresh);
  }

  const Pieces& pieces_;
  const literal::Downsets& downsets_;
  PlacePrices& prices_;
  DeviceRow& row_;
  const OrderRule& schedule_;
  Context& context_;
  Hop hop_;  // the slowest between neighbours of the row
  std::int64_t group_ = 1, most_ = 0;
  std::vector<std::int64_t> work_;         // by downset: least_work of what it holds
  std::vector<std::vector<Tail>> fronts_;  // by downset, place
};

class Piper {
 public:
  Piper(const Problem& problem, const PiperOptions& options, Context& context)
      : problem_(problem),
        options_(options),
        context_(context),
        micro_batches_(usable_micro_batches(problem)) {}

  Outcome run() {
    if (!problem_.pins.empty()) return {.status = Status::kUnsupported, .why = "piper takes no pins"};
    const OperatorCosts costs(problem_.graph, problem_.cluster, problem_.costs, micro_batches_.back());
    const Structure structure =
        make_structure(problem_.graph, work_weights(problem_.graph, costs, micro_batches_.back()));
    if (structure.empty()) {
      return {.status = Status::kUnsupported, .why = "the graph has no operator that a stage could hold"};
    }
    const Linearization line(problem_, structure.operators);
    make_levels(structure, line, costs);
    if (levels_.empty()) {
      return {.status = Status::kUnsupported,
              .why = "even with one piece for each branch the graph has more than " +
                     std::to_string(options_.max_downsets) + " downsets"};
    }
    const DeviceTable table(problem_);
    Judge judge(problem_, context_);
    for (const BatchSize size : micro_batches_) {
      for (const auto& row :
           device_rows(problem_.cluster, unpinned_devices(problem_), whole_times(line, costs))) {
        propose(line, table, row, size, judge);
      }
    }
    return judge.outcome();
  }

 private:
  struct Level {
    Pieces pieces;
    literal::Downsets downsets;
  };

  // From coarse to fine, as long as there are not too many downsets.
  void make_levels(const Structure& structure, const Linearization& line, const OperatorCosts& costs) {
    std::vector<Weight> before{Weight()};
    for (std::size_t place = 0; place < line.size(); ++place) {
      std::int64_t most = 0;
      for (const Device& device : problem_.cluster.devices()) {
        const OperatorCost& cost = costs.of(line[place], device.kind);
        most = std::max(most, (cost.forward + cost.backward()).count());
      }
      before.push_back(before.back() + Weight(most));
    }
    const Weight share = before.back() / static_cast<std::int64_t>(problem_.cluster.devices().size());
    const Weight least_fork = kLeastForkPerMille * (share / 1000),
                 light = kLightBranchPerMille * (share / 1000);
    std::size_t known = 0;  // pieces of the level before
    for (std::size_t items = 1; items <= kFinest; items *= 2) {
      const internal::PipeTree tree = internal::make_pipe_tree(
          structure, before, {.least_fork = least_fork, .light_branch = light, .most_items = items});
      Pieces pieces = pieces_of(tree, line);
      if (pieces.places.size() == known) continue;
      if (literal::topological_order(pieces.before).size() != pieces.places.size()) continue;
      known = pieces.places.size();
      auto downsets = literal::enumerate_downsets(pieces.before, options_.max_downsets);
      if (!downsets) return;
      levels_.push_back({std::move(pieces), *std::move(downsets)});
    }
  }

  void propose(const Linearization& line, const DeviceTable& table, const std::vector<DeviceId>& devices,
               BatchSize size, Judge& judge) {
    PlacePrices prices(line, table, size, internal::MemoryRule::kAll);
    DeviceRow row(table, devices, prices.micro_batches());
    std::int64_t most = std::int64_t{1} << 60;
    std::vector<Proposal> proposals;
    for (const Level& level : levels_) {
      DownsetSearch search(level.pieces, level.downsets, prices, row, options_.schedule, context_);
      std::vector<Tail> found = search.run(most);
      std::stable_sort(found.begin(), found.end(),
                       [](const Tail& a, const Tail& b) { return a.bottleneck < b.bottleneck; });
      if (found.size() > kMostProposals) found.resize(kMostProposals);
      std::vector<Proposal> of_level;
      for (const Tail& each : found) {
        of_level.push_back(
            {drafts(search.stages_of(each), line), size, options_.schedule, nanoseconds(each.bottleneck)});
      }
      if (!found.empty()) most = found.front().bottleneck;
      const bool least = options_.choice == PiperOptions::Choice::kBottleneck;
      if (least && !of_level.empty()) {
        proposals.clear();
        proposals.push_back(std::move(of_level.front()));
      } else {
        proposals.insert(proposals.end(), std::make_move_iterator(of_level.begin()),
                         std::make_move_iterator(of_level.end()));
      }
    }
    judge.consider_each(proposals.size(), [&](std::size_t number, Context&) { return proposals[number]; });
  }

  static std::vector<StageDraft> drafts(const std::vector<DownsetSearch::Stage>& stages,
                                        const Linearization& line) {
    std::vector<StageDraft> drafts;
    for (const DownsetSearch::Stage& stage : stages) {
      std::vector<OperatorId> operators;
      for (const Places& each : stage.places) {
        for (std::uint32_t place = each.begin; place < each.end; ++place) operators.push_back(line[place]);
      }
      drafts.push_back({OperatorSet(std::move(operators)), stage.devices, {}});
    }
    return drafts;
  }

  const Problem& problem_;
  const PiperOptions& options_;
  Context& context_;
  const std::vector<BatchSize> micro_batches_;
  std::vector<Level> levels_;
};

}  // namespace

Outcome piper(const Problem& problem, const PiperOptions& options, Context& context) {
  return Piper(problem, options, context).run();
}

}  // namespace espalier
