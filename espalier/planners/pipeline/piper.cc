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
#include "espalier/planners/pipeline/downset_search.h"
#include "espalier/planners/pipeline/memory_ladder.h"

// Bad cases: many branches, whose downsets are as many as sets of branches; the pieces are coarse then.

namespace espalier {
namespace {

using internal::DownsetSearch;
using internal::DownsetTail;
using internal::Pieces;
using internal::PlacePrices;

constexpr std::size_t kFinest = 16;  // pieces of a branch
// Of a device's even share: parallel parts with less beside their heaviest branch are a piece of their run,
// lighter branches join another one, as in graphpipe.
constexpr std::int64_t kLeastForkPerMille = 750, kLightBranchPerMille = 60;
constexpr std::size_t kMostProposals = 12;     // of one search, that are simulated
constexpr std::uint64_t kGrowthPercent = 150;  // of the states that the square of the downsets tells
constexpr std::int64_t kAnyTime = std::int64_t{1} << 60;

class Piper {
 public:
  Piper(const Problem& problem, const PiperOptions& options, Context& context)
      : problem_(problem),
        options_(options),
        context_(context),
        micro_batches_(usable_micro_batches(problem)) {}

  Outcome run() {
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
    const auto rows = device_rows(problem_.cluster, unpinned_devices(problem_), whole_times(line, costs));
    for (const BatchSize size : micro_batches_) {
      PlacePrices& prices =
          *prices_.emplace_back(std::make_unique<PlacePrices>(line, table, size, internal::MemoryRule::kAll));
      for (const auto& row : rows) searches_.push_back({&prices, &row});
    }
    for (std::size_t level = 0; level < levels_.size() && !context_.stop() && !context_.budget_spent;
         ++level) {
      search_level(level, judge);
    }
    if (options_.choice == PiperOptions::Choice::kBottleneck) {
      std::vector<Proposal> least;
      for (const Search& search : searches_) {
        if (search.least) least.push_back(*search.least);
      }
      judge.consider_all(least);
    }
    const bool any =
        std::ranges::any_of(searches_, [](const Search& search) { return search.least.has_value(); });
    if (!any && !context_.budget_spent && !context_.stop()) {
      propose_closest(rows.front(), judge);
      context_.budget_spent = false;  // what comes closest is no answer that a larger budget would change
    }
    return judge.outcome();
  }

 private:
  struct Level {
    Pieces pieces;
    literal::Downsets downsets;
  };
  // For one micro-batch size and one row of devices, from level to level.
  struct Search {
    PlacePrices* prices = nullptr;  // of its size
    const std::vector<DeviceId>* devices = nullptr;
    std::optional<Proposal> least = {};  // bottleneck so far
    std::uint64_t states = 0;            // that the last level took
    bool left_out = false;               // the next one would take too many
    std::int64_t most() const { return least ? least->estimate->count() : kAnyTime; }
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
      Pieces pieces = internal::pieces_of(tree, line, before);
      if (pieces.places.size() == known) continue;
      if (literal::topological_order(pieces.before).size() != pieces.places.size()) continue;
      known = pieces.places.size();
      auto downsets = literal::enumerate_downsets(pieces.before, options_.max_downsets);
      if (!downsets) return;
      levels_.push_back({std::move(pieces), *std::move(downsets)});
    }
  }

  DownsetSearch::Options search_options() const {
    DownsetSearch::Options options;
    options.schedule = options_.schedule;
    options.recompute = options_.recompute;
    if (options_.tensor_parallel) {
      options.degrees = tensor_parallel_degrees(problem_.costs, problem_.cluster.devices().size());
    }
    return options;
  }

  static DeviceRow row_of(const PlacePrices& prices, const std::vector<DeviceId>& devices) {
    const internal::PlaceRanges all{{0, narrow(prices.line().size())}};
    std::vector<Duration> times;
    for (std::uint32_t c = 0; c < prices.table().classes().size(); ++c) {
      times.push_back(nanoseconds(std::max<std::int64_t>(0, prices.compute(c, all))) +
                      prices.table().classes()[c].actions);
    }
    return {prices.table(), devices, prices.micro_batches(), kMaxMicroBatches, times};
  }

  // All sizes and rows in one level, none above what the levels before found, nor above the fastest plan.
  void search_level(std::size_t number, Judge& judge) {
    const Level& level = levels_[number];
    const bool simulated = options_.choice == PiperOptions::Choice::kSimulated;
    const std::int64_t fastest = simulated && judge.best() ? judge.best()->count() : kAnyTime;
    const std::vector<Search*> worthwhile = affordable(number);
    const DownsetSearch::Options options = search_options();
    std::vector<std::vector<Proposal>> found(worthwhile.size());
    context_.for_each(worthwhile.size(), [&](std::size_t i, Context& own) {
      Search& search = *worthwhile[i];
      DeviceRow row = row_of(*search.prices, *search.devices);
      DownsetSearch of_level(level.pieces, level.downsets, *search.prices, row, options, own);
      found[i] = proposals_of(of_level, of_level.run(std::min(search.most(), fastest)), *search.prices);
      search.states = own.states;
    });
    std::vector<Proposal> proposals;
    for (std::size_t i = 0; i < worthwhile.size(); ++i) {
      if (found[i].empty()) continue;
      worthwhile[i]->least = found[i].front();
      std::ranges::move(found[i], std::back_inserter(proposals));
    }
    if (simulated) judge.consider_all(proposals);
  }

  // Those that the budget is expected to be enough for: states grow with the square of the downsets. Those
  // that took most are left out first, here and in finer levels; one always stays.
  std::vector<Search*> affordable(std::size_t number) {
    std::vector<Search*> all;
    for (Search& search : searches_) {
      if (!search.left_out) all.push_back(&search);
    }
    if (number == 0) return all;
    const std::uint64_t now = levels_[number].downsets.size(), before = levels_[number - 1].downsets.size();
    const std::uint64_t left = context_.left();
    const auto expected = [&](const Search& search) {
      return search.states * now / before * now / before * kGrowthPercent / 100;
    };
    while (all.size() > 1) {
      const auto largest =
          std::ranges::max_element(all, {}, [](const Search* search) { return search->states; });
      if (expected(**largest) <= left / all.size()) break;
      (*largest)->left_out = true;
      all.erase(largest);
    }
    return all;
  }

  // In the smallest micro-batch and the coarsest pieces that there are twice as many of as devices.
  void propose_closest(const std::vector<DeviceId>& devices, Judge& judge) {
    PlacePrices& prices = *prices_.front();
    DeviceRow row = row_of(prices, devices);
    DownsetSearch::Options options = search_options();
    const Level* level = &levels_.front();
    for (const Level& each : levels_) {
      if (level->pieces.places.size() < 2 * problem_.cluster.devices().size()) level = &each;
    }
    const auto search = [&](std::int64_t percent) {
      options.memory_percent = percent;
      DownsetSearch of_percent(level->pieces, level->downsets, prices, row, options, context_);
      return proposals_of(of_percent, of_percent.run(kAnyTime), prices);
    };
    judge.consider_all(closest_by_memory(search, context_));
  }

  // The least bottleneck first.
  std::vector<Proposal> proposals_of(DownsetSearch& search, std::vector<DownsetTail> found,
                                     const PlacePrices& prices) const {
    std::stable_sort(found.begin(), found.end(),
                     [](const DownsetTail& a, const DownsetTail& b) { return a.bottleneck < b.bottleneck; });
    if (found.size() > kMostProposals) found.resize(kMostProposals);
    std::vector<Proposal> proposals;
    for (const DownsetTail& each : found) {
      proposals.push_back({drafts(search.stages_of(each), prices), prices.micro_batch(), options_.schedule,
                           nanoseconds(each.bottleneck)});
    }
    return proposals;
  }

  std::vector<StageDraft> drafts(const std::vector<DownsetSearch::Stage>& stages,
                                 const PlacePrices& prices) const {
    const Linearization& line = prices.line();
    std::vector<StageDraft> drafts;
    for (const DownsetSearch::Stage& stage : stages) {
      StageDraft draft;
      draft.operators = OperatorSet(operators_of(stage.places, line));
      draft.devices = stage.devices;
      std::vector<OperatorId> again = operators_of(stage.again, line);
      std::erase_if(again, [&](OperatorId op) { return !problem_.graph.op(op).mutates.empty(); });
      draft.recompute = OperatorSet(std::move(again));
      draft.degree = stage.degree;
      if (stage.degree == 1) draft.weights = shares_of(stage, prices);
      drafts.push_back(std::move(draft));
    }
    return drafts;
  }

  static std::vector<std::uint32_t> shares_of(const DownsetSearch::Stage& stage, const PlacePrices& prices) {
    std::vector<Duration> times;
    for (const DeviceId device : stage.devices) {
      const std::uint32_t compute = prices.table().class_of(device);
      times.push_back(nanoseconds(prices.compute(compute, stage.places)) +
                      prices.table().classes()[compute].actions);
    }
    return even_shares(prices.micro_batches(), times);
  }

  static std::vector<OperatorId> operators_of(const internal::PlaceRanges& places,
                                              const Linearization& line) {
    std::vector<OperatorId> operators;
    for (const Places& each : places) {
      for (std::uint32_t place = each.begin; place < each.end; ++place) operators.push_back(line[place]);
    }
    return operators;
  }

  const Problem& problem_;
  const PiperOptions& options_;
  Context& context_;
  const std::vector<BatchSize> micro_batches_;
  std::vector<std::unique_ptr<PlacePrices>> prices_;  // by micro-batch size, for all rows and levels
  std::vector<Level> levels_;
  std::vector<Search> searches_;  // of the smallest size first, by row
};

}  // namespace

Outcome piper(const Problem& problem, const PiperOptions& options, Context& context) {
  return Piper(problem, options, context).run();
}

}  // namespace espalier
