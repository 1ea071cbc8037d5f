#include "espalier/planners/pipeline/graphpipe.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/cost/work.h"
#include "espalier/graph/structure.h"
#include "espalier/planners/candidate.h"
#include "espalier/planners/pipeline/ahead_of_sums.h"
#include "espalier/planners/pipeline/graphpipe_bisection.h"
#include "espalier/planners/pipeline/graphpipe_layout.h"
#include "espalier/planners/pipeline/graphpipe_neighbours.h"
#include "espalier/planners/pipeline/graphpipe_search.h"
#include "espalier/planners/pipeline/graphpipe_traffic.h"
#include "espalier/planners/pipeline/graphpipe_tree.h"
#include "espalier/planners/repeated.h"

// For each micro-batch size, row of devices and tree: bisection over stage prices (graphpipe_bisection.h),
// each probe a dynamic program over the tree (graphpipe_search.h). They take their probes in turn, and one
// whose least is far above what another has found is left. What comes out is handed to devices
// (graphpipe_layout.h) and judged by simulation.
//
// Known bad cases: a stage cannot hold parts of two branches, unless it holds one of them whole, so branches
// whose work is far from a multiple of a device's share leave devices idle; transfers count at the slowest
// link between neighbours of the row, wherever they go.

namespace espalier {
namespace {

using internal::Bisection;
using internal::PipePlan;
using internal::PipeSearch;
using internal::PipeSearchOptions;
using internal::PipeSize;
using internal::PipeStage;
using internal::PipeTree;
using internal::PipeTreeOptions;
using internal::PlaceRanges;

using PipeSizes = std::vector<std::unique_ptr<PipeSize>>;

constexpr std::size_t kPlansToTune = 4;  // of those, simulated: for more in flight, and larger k
constexpr std::size_t kPlansToChange =
    2;                       // of those: for what their neighbours bring (graphpipe_neighbours.h)
constexpr int kChanges = 8;  // of one plan, at most
// Of the budget, dealt to a round's searches: more changed no plan of twelve models on equal devices and made
// some ten times as slow. With twice as many, plans for devices of two kinds are 2 to 4 % faster.
constexpr std::uint64_t kStatesOfRound = 1'500'000, kStatesForAnOperator = 150;
// Up to so many those that need more than their deal have what others leave, as long as it is some for each.
constexpr std::uint64_t kStatesShared = 1'000'000, kStatesToGoOn = 5'000;
constexpr int kDeals = 8;                    // at most
constexpr std::uint64_t kStatesOfATask = 4;  // of the budget, for each task of the steps that are simulated
// What a bottleneck may be above the least, where plans are simulated.
constexpr std::int64_t kSlackPerMille = 4;
constexpr std::int64_t kAnyEstimate = std::numeric_limits<std::int64_t>::max();
// Clusters of more devices are planned part by part too; larger parts repeat what smaller ones found, without
// a search of their own, and more devices make simulations long.
constexpr std::size_t kManyDevices = 64, kLeastOfAPart = 32, kMostOfASearch = 128;
constexpr std::int64_t kFarToSimulate = 125, kFarToTune = 30;         // per mille of the best step
constexpr std::int64_t kMemoryRounds[] = {1000, 900, 750, 600, 450};  // per mille: what a search counts on

// A plan with all that it takes to propose it.
struct PipeCandidate {
  PipePlan plan;
  std::vector<std::vector<DeviceId>> devices;  // by stage
  std::vector<BatchSize> micro_batches;        // likewise
};

// One search: a row, micro-batch sizes, a tree.
struct PipeJob {
  const std::vector<DeviceId>* row = nullptr;
  std::vector<BatchSize> micro_batches;
  PipeTreeOptions::Tangles tangles = PipeTreeOptions::Tangles::kAddedEdges;
  bool folds_light_branches = true;
  std::size_t tracks = 0;
  bool as_a_chain = false;  // no forks: the paper's sequential special case
};

// A job under way, with at most so many states.
struct PipeAttempt {
  PipeAttempt(PipeSizes of_job, PipeTree of_sizes, const PipeSearchOptions& with, const Context& own,
              std::uint64_t most_states, std::int64_t slack_per_mille)
      : sizes(std::move(of_job)),
        tree(std::move(of_sizes)),
        options(with),
        context(own),
        limited(most_states < own.budget.max_states),
        search(tree, sizes, options, context),
        bisection(search, slack_per_mille) {
    context.budget.max_states = std::min(context.budget.max_states, most_states);
  }

  // With so many states more, if it lacked some.
  void go_on(std::uint64_t states) {
    context.budget.max_states = context.states + states;
    context.budget_spent = false;
  }

  // Says what it took since it last did. With more states than its limit it would have found nothing else.
  void settle(Context& whole) {
    whole.states += context.states - settled;
    settled = context.states;
    whole.budget_spent = whole.budget_spent || (context.budget_spent && !(limited && bisection.best()));
  }

  PipeSizes sizes;
  const PipeTree tree;
  const PipeSearchOptions options;
  Context context;
  const bool limited;
  std::uint64_t settled = 0;
  PipeSearch search;
  Bisection bisection;
  bool asked = false;  // for all its plans
};

// What a step computes at least before each place, in ns: at the best micro-batch size on the fastest kind.
std::vector<Weight> least_work_before(const PipeSizes& sizes) {
  const Linearization& line = sizes.front()->prices.line();
  const auto classes = narrow(sizes.front()->row.table().classes().size());
  std::vector<Weight> before{Weight()};
  for (std::uint32_t place = 0; place < line.size(); ++place) {
    std::optional<std::int64_t> least;
    for (const auto& size : sizes) {
      for (std::uint32_t c = 0; c < classes; ++c) {
        const std::int64_t work = size->prices.compute_alone(c, {{place, place + 1}});
        if (work < 0) continue;
        const std::int64_t of_step = size->prices.micro_batches() * work;
        if (!least || of_step < *least) least = of_step;
      }
    }
    before.push_back(before.back() + Weight(least.value_or(0)));
  }
  return before;
}

class GraphPipe {
 public:
  GraphPipe(const Problem& problem, const GraphPipeOptions& options, Context& context)
      : problem_(problem),
        options_(options),
        context_(context),
        micro_batches_(usable_micro_batches(problem)),
        structure_(structure()),
        table_(problem) {}

  // `known`: plans that take part as they are.
  Outcome run(const std::vector<PipelinePlan>& known) {
    if (structure_.empty()) {
      return {.status = Status::kUnsupported, .why = "the graph has no operator that a stage could hold"};
    }
    line_ = std::make_unique<Linearization>(problem_, structure_.operators);
    const OperatorCosts costs(problem_.graph, problem_.cluster, problem_.costs, micro_batches_.back());
    rows_ = device_rows(problem_.cluster, unpinned_devices(problem_), whole_times(*line_, costs));
    const auto rule = is_literal() ? internal::MemoryRule::kLiteral : internal::MemoryRule::kAll;
    for (const BatchSize b : micro_batches_) {
      prices_[b] = std::make_unique<internal::PlacePrices>(*line_, table_, b, rule);
    }
    most_branches_ = most_branches();
    Judge judge(problem_, context_);
    for (const PipelinePlan& plan : known) judge.consider(Plan(plan));
    for (const std::int64_t per_mille : kMemoryRounds) {
      if (!propose_all(judge, begin(per_mille)) || judge.best() || ended()) break;
    }
    // What lacks least, and whether fewer micro-batches in flight make it fit.
    if (!judge.best() && !ended()) {
      const Attempts attempts = begin(std::nullopt);
      bisect(attempts, true);
      propose_whatever_fits(judge, candidates_of(attempts));
    }
    return judge.outcome();
  }

 private:
  bool ended() const { return context_.budget_spent || context_.stop(); }
  bool is_literal() const { return options_.choice == GraphPipeOptions::Choice::kLiteral; }

  Structure structure() const {
    const BatchSize largest = micro_batches_.back();
    const OperatorCosts costs(problem_.graph, problem_.cluster, problem_.costs, largest);
    return make_structure(problem_.graph, work_weights(problem_.graph, costs, largest));
  }

  std::vector<PipeJob> jobs() const {
    std::vector<PipeJob> jobs;
    std::vector<std::vector<BatchSize>> sizes;
    if (options_.micro_batches == GraphPipeOptions::MicroBatches::kPerStage) {
      sizes = {micro_batches_};
    } else {
      for (const BatchSize b : micro_batches_) sizes.push_back({b});
    }
    for (const std::vector<BatchSize>& of_job : sizes) {
      for (const std::vector<DeviceId>& row : rows_) {
        jobs.push_back({&row, of_job, PipeTreeOptions::Tangles::kAddedEdges, true});
        if (has_light_branches(jobs.back())) {
          jobs.push_back({&row, of_job, PipeTreeOptions::Tangles::kAddedEdges, false});
        }
        if (internal::has_tangles(structure_)) {
          jobs.push_back({&row, of_job, PipeTreeOptions::Tangles::kConvexCuts, true});
        }
        for (const std::size_t tracks : tracks_for(row.size())) {
          jobs.push_back({&row, of_job, PipeTreeOptions::Tangles::kAddedEdges, true, tracks});
        }
        if (!is_literal() && most_branches_ > 1) {
          jobs.push_back({&row, of_job, PipeTreeOptions::Tangles::kAddedEdges, true, 0, true});
        }
      }
    }
    return jobs;
  }

  // Where devices are fewer than two for each branch: a quarter, half, three quarters of them, and all but
  // one.
  std::vector<std::size_t> tracks_for(std::size_t devices) const {
    std::vector<std::size_t> counts;
    if (is_literal() || devices >= 2 * most_branches_) return counts;
    for (const std::size_t tracks : {devices / 4, devices / 2, 3 * devices / 4, devices - 1}) {
      const bool known = std::find(counts.begin(), counts.end(), tracks) != counts.end();
      if (tracks >= 2 && tracks < most_branches_ && !known) counts.push_back(tracks);
    }
    return counts;
  }

  // Of a parallel part, those that weigh something.
  std::size_t most_branches() const {
    std::size_t most = 0;
    for (std::size_t p = 0; p < structure_.parts.size(); ++p) {
      if (structure_.parts[p].kind != PartKind::kParallel) continue;
      std::size_t heavy = 0;
      for (const PartId child : structure_.children_of(PartId(p))) {
        heavy += structure_.part(child).work > Weight() ? 1 : 0;
      }
      most = std::max(most, heavy);
    }
    return most;
  }

  using Attempts = std::vector<std::unique_ptr<PipeAttempt>>;  // without those that were not begun

  Attempts begin(std::optional<std::int64_t> memory_per_mille) {
    const std::vector<PipeJob> all = jobs();
    const auto graphs = static_cast<std::uint64_t>(
        std::count_if(all.begin(), all.end(), [](const PipeJob& job) { return !job.as_a_chain; }));
    const std::uint64_t most =  // chains need few
        (kStatesOfRound + kStatesForAnOperator * problem_.graph.operators().size()) / graphs;
    all_ = context_.left();
    round_ = std::min(all_, kStatesShared + kStatesForAnOperator * problem_.graph.operators().size());
    const std::vector<Context> own = context_.parts(all.size());
    PipeSearchOptions options;
    options.schedule = options_.schedule;
    options.memory_per_mille = memory_per_mille;
    Attempts attempts(all.size());
    on_threads(context_.pool, all.size(), [&](std::size_t i) {
      if (context_.stop()) return;
      PipeSizes sizes = sizes_of(all[i]);
      const std::vector<Weight> before = least_work_before(sizes);
      PipeTree tree = make_pipe_tree(structure_, before, tree_options(all[i], before.back()));
      attempts[i] = std::make_unique<PipeAttempt>(std::move(sizes), std::move(tree), options, own[i], most,
                                                  is_literal() ? 0 : kSlackPerMille);
    });
    std::erase(attempts, nullptr);
    return attempts;
  }

  // What they find; where nothing of that fits, what the hopeless ones find too. Whether there was anything.
  bool propose_all(Judge& judge, const Attempts& attempts) {
    std::vector<PipeCandidate> later;
    bool some = false;
    for (const bool all : {false, true}) {
      const std::optional<std::int64_t> left_above = bisect(attempts, all);
      std::vector<PipeCandidate> found = candidates_of(attempts);
      some = some || !found.empty();
      std::ranges::move(std::exchange(later, {}), std::back_inserter(found));
      if (is_literal() && left_above) {  // what was left may have better ones than these
        const auto safe = [&](const PipeCandidate& each) { return each.plan.bottleneck <= *left_above; };
        const auto above = std::stable_partition(found.begin(), found.end(), safe);
        later.assign(above, found.end());
        found.erase(above, found.end());
      }
      propose(judge, std::move(found));
      if (!left_above || judge.best() || ended()) break;
    }
    return some;
  }

  // Each to its least bottleneck, a probe of each at a time. Unless all are to go on, those are left that
  // have no plan with a bottleneck as short as the least found; where the simulator chooses, as half as long
  // again as the shortest estimate of a step. If some were left: what theirs are above.
  std::optional<std::int64_t> bisect(const Attempts& attempts, bool all) const {
    if (all) share_the_rest(attempts);  // those that were left have theirs yet
    std::int64_t hopeless = kAnyEstimate;
    std::vector<PipeAttempt*> going;
    bool left_some = false;
    const auto look = [&](PipeAttempt* each) {
      const std::optional<PipePlan>& best = each->bisection.best();
      if (!best) return;
      hopeless = std::min(hopeless, is_literal() ? best->bottleneck : best->estimate() / 2 * 3);
    };
    const auto stays = [&](PipeAttempt* each) {
      if (each->bisection.ended()) return false;
      const bool leaves = !all && each->bisection.low() > hopeless;
      left_some = left_some || leaves;
      return !leaves;
    };
    for (const auto& attempt : attempts) going.push_back(attempt.get());
    int deals = 0;
    while (!context_.stop()) {
      std::ranges::for_each(going, look);
      std::erase_if(going, [&](PipeAttempt* each) { return !stays(each); });
      if (going.empty() && deals++ < kDeals) going = starved(attempts, all ? kAnyEstimate : hopeless);
      if (going.empty()) break;
      on_threads(context_.pool, going.size(), [&](std::size_t i) { going[i]->bisection.step(); });
    }
    return left_some ? std::optional(hopeless) : std::nullopt;
  }

  // Those that ended for lack of states, with what others have left of the round; none where that is too
  // little for another probe.
  std::vector<PipeAttempt*> starved(const Attempts& attempts, std::int64_t hopeless) const {
    std::vector<PipeAttempt*> result;
    std::uint64_t left = round_;
    for (const auto& each : attempts) {
      left -= std::min(left, each->context.states);
      if (each->context.budget_spent && each->bisection.low() <= hopeless) result.push_back(each.get());
    }
    left /= 2;  // other plans take some, too
    if (result.empty() || left / result.size() < kStatesToGoOn) return {};
    for (PipeAttempt* each : result) each->go_on(left / result.size());
    return result;
  }

  // No more for what is to come than the whole budget has left, whatever searches were dealt.
  void share_the_rest(const Attempts& attempts) const {
    std::uint64_t left = all_, asked = 0;
    for (const auto& each : attempts) {
      left -= std::min(left, each->context.states);
      asked += each->asked ? 0 : 1;
    }
    for (const auto& each : attempts) {
      Context& own = each->context;
      if (!each->asked) own.budget.max_states = std::min(own.budget.max_states, own.states + left / asked);
    }
  }

  // What those have found that have not said so, and what else is worth a look beside it.
  std::vector<PipeCandidate> candidates_of(const Attempts& attempts) {
    std::vector<std::vector<PipeCandidate>> each(attempts.size());
    share_the_rest(attempts);
    on_threads(context_.pool, attempts.size(), [&](std::size_t i) {
      if (!attempts[i]->asked && !context_.stop()) each[i] = candidates_of(*attempts[i]);
    });
    std::vector<PipeCandidate> all;
    for (std::size_t i = 0; i < attempts.size(); ++i) {
      attempts[i]->settle(context_);
      std::ranges::move(each[i], std::back_inserter(all));
    }
    return all;
  }

  PipeTreeOptions tree_options(const PipeJob& job, Weight all) const {
    const std::int64_t devices = static_cast<std::int64_t>(std::max<std::size_t>(job.row->size(), 1));
    return {.least_fork = job.as_a_chain ? all + all : options_.least_fork_per_mille * (all / devices / 1000),
            .light_branch = job.folds_light_branches
                                ? options_.light_branch_per_mille * (all / devices / 1000)
                                : Weight(),
            .tangles = job.tangles,
            .tracks = job.tracks,
            .most_items = options_.most_items,
            .devices = job.row->size(),
            .share_equal_parts = problem_.pins.empty()};
  }

  PipeSizes sizes_of(const PipeJob& job) const {
    PipeSizes sizes;
    for (const BatchSize b : job.micro_batches) {
      sizes.push_back(
          std::make_unique<PipeSize>(*prices_.at(b), *job.row, is_literal(), options_.most_replicas));
    }
    return sizes;
  }

  // Whether the tree is another one where light branches stay by themselves.
  bool has_light_branches(PipeJob job) const {
    const std::vector<Weight> before = least_work_before(sizes_of(job));
    std::size_t runs[2] = {};
    for (const bool folds : {false, true}) {
      job.folds_light_branches = folds;
      runs[folds ? 1 : 0] = make_pipe_tree(structure_, before, tree_options(job, before.back())).runs.size();
    }
    return runs[0] != runs[1];
  }

  std::vector<PipeCandidate> candidates_of(PipeAttempt& attempt) const {
    std::vector<PipeCandidate> candidates;
    attempt.asked = attempt.bisection.ended();
    const std::optional<PipePlan>& fastest = attempt.bisection.best();
    if (!fastest) return candidates;
    std::vector<PipePlan> plans{*fastest};
    if (!is_literal() && attempt.asked) {
      std::ranges::move(internal::other_plans(attempt.search, *fastest), std::back_inserter(plans));
    }
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const auto same = [&](const PipePlan& other) { return other.stages == plans[i].stages; };
      if (std::none_of(plans.begin(), plans.begin() + static_cast<std::ptrdiff_t>(i), same)) {
        add_layouts(plans[i], attempt.sizes, candidates);
      }
    }
    return candidates;
  }

  void add_layouts(PipePlan plan, const PipeSizes& sizes, std::vector<PipeCandidate>& candidates) const {
    const DeviceRow& row = sizes.front()->row;
    PipeCandidate candidate;
    for (const PipeStage& stage : plan.stages) {
      candidate.micro_batches.push_back(sizes[stage.size]->prices.micro_batch());
    }
    candidate.devices = devices_in_a_row(plan, row);
    candidate.plan = std::move(plan);
    candidates.push_back(candidate);
    if (rows_.size() > 1 || is_literal()) return;  // devices differ: the row says where stages stand
    std::vector<std::vector<DeviceId>> by_host = devices_by_host(candidate.plan, row);
    if (by_host == candidate.devices) return;
    candidate.devices = std::move(by_host);
    candidates.push_back(std::move(candidate));
  }

  std::vector<StageDraft> drafts(const PipeCandidate& candidate) const {
    std::vector<StageDraft> drafts;
    for (std::size_t s = 0; s < candidate.plan.stages.size(); ++s) {
      std::vector<OperatorId> operators;
      for (const Places& each : candidate.plan.stages[s].places) {
        for (std::uint32_t place = each.begin; place < each.end; ++place) {
          operators.push_back((*line_)[place]);
        }
      }
      drafts.push_back({OperatorSet(std::move(operators)), candidate.devices[s], {}});
    }
    return drafts;
  }

  bool is_uniform(const PipeCandidate& candidate) const {
    return std::all_of(candidate.micro_batches.begin(), candidate.micro_batches.end(),
                       [&](BatchSize b) { return b == candidate.micro_batches.front(); });
  }

  Proposal proposal(const PipeCandidate& candidate) const {
    return {drafts(candidate), candidate.micro_batches.front(), options_.schedule,
            nanoseconds(candidate.plan.bottleneck)};
  }

  // Of the plans found: the best by the objective, one after the other until one fits; or the fastest that
  // the simulator finds.
  void propose(Judge& judge, std::vector<PipeCandidate> found) {
    const auto rank = [&](const PipeCandidate& c) {
      return std::tuple(is_literal() ? c.plan.bottleneck : c.plan.estimate(), c.plan.samples, c.plan.depth);
    };
    std::stable_sort(found.begin(), found.end(),
                     [&](const PipeCandidate& a, const PipeCandidate& b) { return rank(a) < rank(b); });
    if (is_literal()) {
      for (const PipeCandidate& candidate : found) {
        if (consider(judge, candidate, options_.schedule).fits() || context_.stop()) return;
      }
      return;
    }
    leave_out_repeated(found);
    if (found.size() > options_.most_proposals) found.resize(options_.most_proposals);
    std::vector<std::pair<Duration, std::size_t>> fastest;
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (context_.stop()) return;
      if (i >= kPlansToTune && !fastest.empty() && !may_simulate(2)) break;
      if (is_far_from(judge, nanoseconds(found[i].plan.estimate()), kFarToSimulate)) continue;
      if (simulates_for_long() && judge.best() && busiest_link(found[i]) >= *judge.best()) continue;
      const Verdict verdict = consider(judge, found[i], options_.schedule);
      if (verdict.fits()) fastest.emplace_back(verdict.iteration, i);
    }
    std::sort(fastest.begin(), fastest.end());
    if (fastest.size() > kPlansToTune) fastest.resize(kPlansToTune);
    std::erase_if(fastest, [&](const auto& each) { return is_far_from(judge, each.first, kFarToTune); });
    for (const auto& [iteration, number] : fastest) {
      if (!may_simulate(1)) return;
      hold_more(judge, found[number], iteration);
      raise_groups(judge, found[number], iteration);
    }
    if (fastest.size() > kPlansToChange) fastest.resize(kPlansToChange);
    for (const auto& [iteration, number] : fastest) climb(judge, found[number], iteration);
  }

  bool simulates_for_long() const { return problem_.cluster.devices().size() > kMostOfASearch; }

  // Where simulations take long: whether a step of that time is too far from the best.
  bool is_far_from(const Judge& judge, Duration time, std::int64_t far_per_mille) const {
    const std::optional<Duration> best = simulates_for_long() ? judge.best() : std::nullopt;
    return best && time > *best + nanoseconds(best->count() / 1000 * far_per_mille);
  }

  // No step is shorter.
  Duration busiest_link(const PipeCandidate& candidate) const {
    std::vector<internal::StepTraffic::StageAt> stages;
    for (std::size_t s = 0; s < candidate.plan.stages.size(); ++s) {
      stages.push_back({&candidate.plan.stages[s].places, prices_.at(candidate.micro_batches[s]).get()});
    }
    return nanoseconds(internal::StepTraffic(problem_, stages).busiest(candidate.devices));
  }

  // From neighbour to neighbour, as long as the simulator finds one faster.
  void climb(Judge& judge, PipeCandidate at, Duration fastest) {
    if (options_.micro_batches != GraphPipeOptions::MicroBatches::kUniform || rows_.size() > 1) return;
    if (!problem_.pins.empty()) return;
    const PipeJob job{.row = &rows_.front(), .micro_batches = {at.micro_batches.front()}};
    const PipeSizes sizes = sizes_of(job);
    for (int change = 0; change < kChanges && !ended(); ++change) {
      std::vector<PipeCandidate> near;
      for (PipePlan& plan : internal::neighbours(at.plan, *sizes.front())) {
        add_layouts(std::move(plan), sizes, near);
      }
      const PipeCandidate* best = nullptr;
      for (const PipeCandidate& each : near) {
        if (!may_simulate(1)) return;
        const Verdict verdict = consider(judge, each, options_.schedule);
        if (!verdict.fits() || verdict.iteration >= fastest) continue;
        fastest = verdict.iteration;
        best = &each;
      }
      if (!best) break;
      at = *best;
      hold_more(judge, at, fastest);
    }
  }

  // Steps have a quarter as many tasks in all as the budget has states, proposals half of that: on a thousand
  // devices a step has half a million.
  bool may_simulate(std::uint64_t part) const {
    return simulated_ < context_.budget.max_states / kStatesOfATask / part;
  }

  void count_tasks(const PipeCandidate& candidate) {
    for (const BatchSize b : candidate.micro_batches)
      simulated_ += tasks_of_stage(problem_.training.batch, b);
  }

  // Several trees often have the same plan.
  static void leave_out_repeated(std::vector<PipeCandidate>& found) {
    std::set<std::tuple<std::vector<BatchSize>, std::vector<PlaceRanges>, std::vector<std::vector<DeviceId>>>>
        met;
    std::erase_if(found, [&](const PipeCandidate& candidate) {
      std::vector<PlaceRanges> places;
      for (const PipeStage& stage : candidate.plan.stages) places.push_back(stage.places);
      return !met.emplace(candidate.micro_batches, std::move(places), candidate.devices).second;
    });
  }

  // More in flight than the rule has: a few for all stages, and what goes ahead of sums.
  void hold_more(Judge& judge, const PipeCandidate& candidate, Duration fastest) {
    if (options_.schedule.kind != ScheduleKind::kOneFOneB) return;
    const auto plan = whole_plan(candidate, options_.schedule);
    if (!plan) return;
    hide_messages(judge, *plan, candidate, fastest);
    const std::uint64_t most = context_.budget.max_states / kStatesOfATask;
    if (simulated_ >= most) return;
    simulated_ += go_ahead_of_sums(problem_, *plan, fastest, nanoseconds(candidate.plan.bottleneck),
                                   most - simulated_, judge, context_);
  }

  // The rule takes messages as free. Where they are not, a few more micro-batches in flight hide them.
  void hide_messages(Judge& judge, const PipelinePlan& plan, const PipeCandidate& candidate,
                     Duration fastest) {
    for (const std::uint32_t more : {1U, 2U, 3U}) {
      if (context_.stop()) return;
      count_tasks(candidate);
      PipelinePlan fuller = plan;
      for (Stage& stage : fuller.stages) {
        stage.in_flight = std::min(stage.in_flight + more, stage.largest_share());
      }
      const Verdict verdict = judge.consider(Plan(std::move(fuller)), nanoseconds(candidate.plan.bottleneck));
      if (!verdict.fits() || verdict.iteration >= fastest) return;
      fastest = verdict.iteration;
    }
  }

  Verdict consider(Judge& judge, const PipeCandidate& candidate, const OrderRule& schedule) {
    count_tasks(candidate);
    if (is_uniform(candidate)) {
      Proposal uniform = proposal(candidate);
      uniform.schedule = schedule;
      return judge.consider(uniform);
    }
    const auto plan = whole_plan(candidate, schedule);
    if (!plan) {
      Verdict verdict;
      verdict.ruling = Verdict::Ruling::kCircle;
      return verdict;
    }
    return judge.consider(Plan(*plan), nanoseconds(candidate.plan.bottleneck));
  }

  // With each stage's own micro-batch size, and limits to match.
  std::optional<PipelinePlan> whole_plan(const PipeCandidate& candidate, const OrderRule& schedule) const {
    const std::vector<StageDraft> all = drafts(candidate);
    const BatchSize batch = problem_.training.batch;
    auto plan = problem_.oracle->rules().complete(all, batch, micro_batches_.front(), schedule);
    if (!plan) return std::nullopt;
    for (std::size_t s = 0; s < plan->runs.size(); ++s) {
      const std::size_t d = draft_of(all, plan->runs[s].operators);
      Stage& stage = plan->frame.stages[s];
      stage.micro_batch = candidate.micro_batches[d];
      const std::int64_t m = batch.count() / stage.micro_batch.count();
      const auto replicas = std::min<std::size_t>(candidate.devices[d].size(), static_cast<std::size_t>(m));
      stage.replicas.clear();
      for (std::size_t r = 0; r < replicas; ++r) {
        stage.replicas.push_back(
            {{candidate.devices[d][r]}, round_robin(narrow(static_cast<std::size_t>(m)), r, replicas)});
      }
    }
    const std::vector<std::uint32_t> limits = in_flight_limits(plan->frame);
    for (std::size_t s = 0; s < limits.size(); ++s) plan->frame.stages[s].in_flight = limits[s];
    return spelled_out(problem_.graph, *plan);
  }

  // Which draft a stage of runs comes from. Stages begin with duplicable operators, which drafts leave out.
  static std::size_t draft_of(const std::vector<StageDraft>& drafts, const std::vector<OperatorRun>& runs) {
    for (std::size_t d = 0; d < drafts.size(); ++d) {
      const std::uint32_t first = drafts[d].operators.runs().front().first;
      for (const OperatorRun& run : runs) {
        if (run.first <= first && first <= run.last) return d;
      }
    }
    ESP_CHECK(false, runs.size());
  }

  // kFkB (§5): k doubled, for all stages and then for one after the other, as long as that is faster and
  // fits.
  void raise_groups(Judge& judge, const PipeCandidate& candidate, Duration fastest) {
    const OrderRule& given = options_.schedule;
    if (options_.most_group < 2 || given.kind != ScheduleKind::kOneFOneB || !given.group.empty()) return;
    std::vector<std::uint32_t> best(candidate.plan.stages.size(), 1);
    const auto attempt = [&](const std::vector<std::uint32_t>& groups) {
      if (context_.stop()) return;
      OrderRule schedule = given;
      schedule.group = groups;
      const Verdict verdict = consider(judge, candidate, schedule);
      if (!verdict.fits() || verdict.iteration >= fastest) return;
      fastest = verdict.iteration;
      best = groups;
    };
    for (std::uint32_t k = 2; k <= options_.most_group; k *= 2) {
      attempt(std::vector<std::uint32_t>(best.size(), k));
    }
    for (std::size_t s = 0; s < best.size(); ++s) {
      while (2 * best[s] <= options_.most_group) {
        std::vector<std::uint32_t> groups = best;
        groups[s] *= 2;
        attempt(groups);
        if (best != groups) break;
      }
    }
  }

  // Plans that were made without a look at memory: as they are, for what they lack; and with as few
  // micro-batches in flight as their devices hold, where one is always possible.
  void propose_whatever_fits(Judge& judge, const std::vector<PipeCandidate>& found) {
    for (const PipeCandidate& candidate : found) {
      if (context_.stop()) return;
      const Verdict verdict = consider(judge, candidate, options_.schedule);
      if (verdict.ruling != Verdict::Ruling::kTooMuchMemory || is_literal()) continue;
      if (options_.schedule.kind != ScheduleKind::kOneFOneB) continue;
      auto plan = whole_plan(candidate, options_.schedule);
      if (!plan) continue;
      for (int round = 0; round < kFewerRounds; ++round) {
        if (!take_from_the_fullest(*plan, judge)) break;
      }
    }
  }

  // Takes a quarter of the limits of the stages on devices that lack memory. False where nothing is left to
  // take, or the plan fits.
  static bool take_from_the_fullest(PipelinePlan& plan, Judge& judge) {
    const Verdict verdict = judge.consider(Plan(plan));
    if (verdict.ruling != Verdict::Ruling::kTooMuchMemory) return false;
    bool taken = false;
    for (Stage& stage : plan.stages) {
      const bool lacks =
          std::any_of(stage.replicas.begin(), stage.replicas.end(), [&](const Replica& replica) {
            return std::any_of(verdict.excess.begin(), verdict.excess.end(),
                               [&](const Excess& each) { return each.device == replica.devices.front(); });
          });
      if (!lacks || stage.in_flight == 1) continue;
      stage.in_flight -= std::max<std::uint32_t>(1, stage.in_flight / 4);
      taken = true;
    }
    return taken;
  }
  static constexpr int kFewerRounds = 12;

  const Problem& problem_;
  const GraphPipeOptions& options_;
  Context& context_;
  const std::vector<BatchSize> micro_batches_;
  const Structure structure_;
  const DeviceTable table_;
  std::unique_ptr<Linearization> line_;
  std::map<BatchSize, std::unique_ptr<internal::PlacePrices>> prices_;  // for all jobs
  std::vector<std::vector<DeviceId>> rows_;
  std::size_t most_branches_ = 0;  // of a parallel part
  std::uint64_t simulated_ = 0;    // tasks (tasks_of_stage)
  std::uint64_t all_ = 0;          // states that were left when the attempts began
  std::uint64_t round_ = 0;        // states that those that lack some may have, with what all took
};

// With what others judged before; their states are among its own.
Outcome counted(Outcome outcome, const SearchStats& before) {
  outcome.stats.evaluations += before.evaluations;
  return outcome;
}

// Plans of a large cluster's equal parts, on all of them: halves, and halves of halves. Each part has joins
// of its own, and stages that follow each other stand on one host.
PlansOfParts plans_of_parts(const Problem& problem, const GraphPipeOptions& options, Context& context) {
  const bool divides = options.choice == GraphPipeOptions::Choice::kSimulated &&
                       options.most_replicas >= kMaxMicroBatches &&
                       problem.cluster.devices().size() > kManyDevices && may_be_divided(problem);
  const auto parts =
      divides ? equal_parts(problem.cluster, Division::kOutermost, kLeastOfAPart) : std::nullopt;
  if (!parts) return {};
  Context own = context;
  own.watch = nullptr;  // it would take a part's plans for the cluster's
  PlansOfParts found = plans_of_parts(problem, *parts, [&](const Problem& part) {
    const PlansOfParts smaller = plans_of_parts(part, options, own);
    if (part.cluster.devices().size() > kMostOfASearch) {
      Judge judge(part, own);
      for (const PipelinePlan& plan : smaller.plans) judge.consider(Plan(plan));
      if (judge.best()) return counted(judge.outcome(), smaller.stats);
    }
    return counted(GraphPipe(part, options, own).run(smaller.plans), smaller.stats);
  });
  context.states = own.states;
  return found;
}

}  // namespace

Outcome graphpipe(const Problem& problem, const GraphPipeOptions& options, Context& context) {
  const PlansOfParts known = plans_of_parts(problem, options, context);
  return counted(GraphPipe(problem, options, context).run(known.plans), known.stats);
}

}  // namespace espalier
