// Chains of phases.
//
//   phase      1        2        3      …        each chain takes its share of a phase's states
//   chain 0  ─────┐  ┌─────┐  ┌─────
//   chain 1  ─────┴──┴─────┴──┴─────            between phases: all go on from where they stood, but who is
//                                               further behind the best than kBehind starts from the best
//
// Where there are several orders for devices to run by, they are dealt to the chains, and who falls behind
// takes the best one's with its assignment. Which of them is better depends on the graph: by upward rank
// searches find 6 % more on RNNLM-2, 5 % on Transformer-XL-4 and 7 % less on RNNLM-4
// (docs/planners/learned.md).
//
// First clusters move as one, coarse ones and then finer ones (search_levels), with a third to half of the
// looks: layers go elsewhere as a whole, where each single operator on the way would make the step longer. On
// recurrent networks and on transformers over segments that is worth 11 to 30 %. Where there are looks enough
// for single operators, every other chain moves those meanwhile: graphs without layers lose nothing then.
//
// The default accepts what is not worse, with changes anywhere and changes that begin on the critical path in
// one mix (guided_accept), twice: chains that fell behind begin the second time from the best. With few looks
// for each unit the first time is a descent along the path. A walk on units that stands still goes on from a
// kick. What it has was chosen on CLIP, Inception v3 and NASNet; bench/placement_quality has the table on
// others. Annealing and tabu search take more looks a unit than budgets have as a rule.
//
// Bad cases: budgets below some looks for each unit. There a good start is worth more than any search.

#include "espalier/planners/placement/default_search.h"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/planners/placement/annealing.h"
#include "espalier/planners/placement/descent.h"
#include "espalier/planners/placement/ground.h"
#include "espalier/planners/placement/guided.h"
#include "espalier/planners/placement/placement_bounds.h"
#include "espalier/planners/placement/ranks.h"

namespace espalier::placement {
namespace {

constexpr double kBehind = 0.01;

constexpr std::size_t kUnits = SIZE_MAX;

struct Phase {
  SearchMethod method;
  double share;                // of all states
  std::size_t level = kUnits;  // what moves: clusters of options.levels, or units
  std::size_t one_in = 1;      // on a level one in so many chains moves clusters; the others move units
  bool kicks = false;          // whether guided_accept goes on from one after as many looks in vain as units
  double hot = 0.02;           // of annealing
};

// Fewer looks for each unit than this: what the critical path asks for comes first.
constexpr double kLooksWithoutPath = 9;
// With fewer, all chains move clusters on levels; with more every other one moves units meanwhile.
constexpr double kLooksForUnits = 6;

// Of what levels take together, each one's part: finer ones have more to try.
constexpr std::array<double, 2> kPartOfLevel = {0.4, 0.6};
constexpr std::array<std::size_t, 2> kClusters = {48, 192};
constexpr std::size_t kFewestClusters = 24;
// After this part of a level's looks it ends, and what is left is for finer ones, if it is further behind
// than that.
constexpr double kTrial = 1.0 / 3, kNear = 0.05;
constexpr double kShareOfLevels = 0.35, kShareWithFewLooks = 0.5;

std::vector<Phase> default_phases(double looks_a_unit, std::size_t levels) {
  const bool few = looks_a_unit < kLooksForUnits;
  const double of_levels = levels == 0 ? 0 : few ? kShareWithFewLooks : kShareOfLevels;
  std::vector<Phase> phases;
  double parts = 0;
  for (std::size_t l = 0; l < levels; ++l) parts += kPartOfLevel[std::min(l, kPartOfLevel.size() - 1)];
  for (std::size_t l = 0; l < levels; ++l) {
    const double part = kPartOfLevel[std::min(l, kPartOfLevel.size() - 1)] / parts;
    phases.push_back({SearchMethod::kGuided, of_levels * part, l, few ? 1U : 2U});
  }
  const double half = (1 - of_levels) / 2;
  const bool path_first = looks_a_unit < kLooksWithoutPath;
  phases.push_back(
      {.method = path_first ? SearchMethod::kPath : SearchMethod::kGuided, .share = half, .kicks = true});
  phases.push_back({.method = SearchMethod::kGuided, .share = half, .kicks = true});
  return phases;
}

void run_method(Walk& walk, const Phase& phase, const ProposalGuide* guide, Rng& rng) {
  const std::uint64_t patience = phase.kicks ? walk.around().movable().size() : kEndlessPatience;
  const auto once = [&] {
    if (guide && (phase.method == SearchMethod::kGuided || phase.method == SearchMethod::kPath))
      return proposed_accept(walk, rng, *guide, patience);
    switch (phase.method) {
      case SearchMethod::kGuided:
        return guided_accept(walk, rng, patience);
      case SearchMethod::kCoordinate:
        return coordinate_descent(walk, rng);
      case SearchMethod::kPath:
        return path_descent(walk, rng);
      case SearchMethod::kAnnealing:
        return anneal(walk, {.hot = phase.hot}, rng);
      case SearchMethod::kTabu:
        return tabu_search(walk, rng);
      case SearchMethod::kLargeNeighbourhood:
        return large_neighbourhood(walk, rng);
      case SearchMethod::kAccept:
      case SearchMethod::kDefault:
        break;
    }
    accept_if_not_worse(walk, rng);
  };
  once();
  while (walk.goes_on()) {
    const std::uint64_t before = walk.states();
    kick(walk, rng);
    once();
    if (walk.states() == before) return;  // there is nothing to change
  }
}

class PhasedSearch {
 public:
  PhasedSearch(const Instance& instance, const Rules& rules, const PlacementSearchOptions& options,
               Context& context)
      : instance_(instance),
        rules_(rules),
        options_(options),
        context_(context),
        orders_(options.orders),
        units_(instance, rules, orders_) {
    ESP_CHECK(rules.order != Rules::Order::kListed && !orders_.empty());
  }

  Placed run_all() {
    const std::uint64_t all = context_.left();
    judge_starts();
    if (units_.around().movable().empty()) return result();
    double share_left = 1;
    for (const Phase& phase : phases(all)) {
      run_phase(phase, share_left);
      share_left -= phase.share;
      context_.report(1 - static_cast<double>(context_.left()) /
                              static_cast<double>(std::max<std::uint64_t>(1, all)));
    }
    return result();
  }

 private:
  std::vector<Phase> phases(std::uint64_t looks) const {
    if (options_.method != SearchMethod::kDefault) return {{options_.method, 1.0}};
    const auto units = static_cast<double>(units_.around().movable().size());
    return default_phases(static_cast<double>(looks) / units, options_.levels.size());
  }

  // Where a chain stands, and what devices run by there.
  struct Place {
    Assignment assignment;
    std::size_t order = 0;
  };

  // Those that the budget allows, in their order, by each order. Orders are dealt to the chains, which begin
  // at the best starts by theirs.
  void judge_starts() {
    std::vector<Assignment> starts = options_.starts;
    for (Assignment& start : simple_starts(instance_)) starts.push_back(std::move(start));
    std::size_t allowed = 0;
    while (allowed < starts.size() && context_.take_states(orders_.size())) ++allowed;
    if (allowed == 0) allowed = 1;  // a search without budget still has its first start judged
    starts.resize(allowed);
    std::vector<std::vector<std::size_t>> ranking;  // of the starts, by order
    for (std::size_t o = 0; o < orders_.size(); ++o) {
      const std::vector<Evaluated> seen = units_.engines()[o].evaluate_all(starts, context_.pool);
      std::vector<std::size_t>& ranked = ranking.emplace_back(starts.size());
      std::iota(ranked.begin(), ranked.end(), 0U);
      std::sort(ranked.begin(), ranked.end(), [&](std::size_t a, std::size_t b) {
        const auto rank = [&](std::size_t i) {
          return std::tuple(!seen[i].fits, seen[i].fits ? Bytes() : seen[i].lack, seen[i].time, i);
        };
        return rank(a) < rank(b);
      });
      const std::size_t first = ranked.front();
      if (seen[first].fits) keep({starts[first], seen[first].time}, o);
      if (o == 0 || seen[first].lack < lack_) lack_ = seen[first].lack;
    }
    for (std::size_t c = 0; c < std::max<std::size_t>(1, options_.chains); ++c) {
      const std::size_t o = c % orders_.size();
      at_.push_back({starts[ranking[o][c / orders_.size() % std::min<std::size_t>(starts.size(), 2)]], o});
    }
  }

  void keep(const FittingAssignment& found, std::size_t order) {
    if (best_ && best_->time <= found.time) return;
    best_ = found;
    best_order_ = order;
    if (context_.watch) context_.watch->found(found.time);
  }

  void run_phase(const Phase& phase, double share_left) {
    if (phase.level == kUnits) {
      run_chains(phase, share_left, units_);
    } else {
      const Ground level(instance_, rules_, orders_, &options_.levels[phase.level]);
      Phase trial = phase, rest = phase;
      trial.share = phase.share * kTrial;
      rest.share = phase.share - trial.share;
      run_chains(trial, share_left, level);
      if (is_near_the_best()) run_chains(rest, share_left - trial.share, level);
    }
    go_on_from_the_best();
    if (options_.ranks == PlacementSearchOptions::Ranks::kRecomputed) recompute_ranks();
  }

  // Each chain goes on from where it is, with its part of what the phase has of what is left; those that do
  // not move clusters now, on units.
  void run_chains(const Phase& phase, double share_left, const Ground& level) {
    Context part = context_;
    const std::uint64_t left = context_.left();
    const double of_left = std::min(1.0, phase.share / std::max(share_left, 1e-9));
    part.budget.max_states =
        context_.states +
        (of_left > 1 - 1e-6 ? left : static_cast<std::uint64_t>(static_cast<double>(left) * of_left));
    std::vector<std::optional<FittingAssignment>> found(at_.size());
    ++phase_;
    moving_ = moving_clusters(phase);
    part.for_each(at_.size(), [&](std::size_t c, Context& mine) {
      if (mine.budget.max_states < 2) return;
      Rng rng(stream_key(options_.seed, {phase_, c}));
      const Ground& ground = moving_[c] != 0 ? level : units_;
      auto& [at, order] = at_[c];
      Walk walk(ground.engines()[order], ground.around(), ground.from_units(at), mine);
      walk.allow(mine.budget.max_states);
      run_method(walk, phase, options_.method == SearchMethod::kDefault ? options_.guide : nullptr, rng);
      found[c] = walk.best();
      if (found[c]) found[c]->assignment = ground.to_units(found[c]->assignment);
      at = ground.to_units(walk.nearest());
    });
    context_.states = part.states;
    found_.assign(at_.size(), std::nullopt);
    for (std::size_t c = 0; c < at_.size(); ++c) {
      if (!found[c]) continue;
      found_[c] = found[c]->time;
      keep(*found[c], at_[c].order);
    }
  }

  // Which chains move clusters in a phase. Those that differ in what devices run by do not differ in that:
  // what they find says which order is better.
  std::vector<char> moving_clusters(const Phase& phase) const {
    const bool alike = std::all_of(at_.begin(), at_.end(),
                                   [&](const Place& place) { return place.order == at_.front().order; });
    std::vector<char> moving(at_.size(), 0);
    for (std::size_t c = 0; c < at_.size() && phase.level != kUnits; ++c)
      moving[c] = !alike || c % phase.one_in == 0 ? 1 : 0;
    return moving;
  }

  // Whether a chain of clusters found something in the last phase that is worth going on with.
  bool is_near_the_best() const {
    for (std::size_t c = 0; c < found_.size(); ++c) {
      if (moving_[c] == 0 || !found_[c]) continue;
      if (relative_difference(*found_[c], best_->time) <= kNear) return true;
    }
    return false;
  }

  // Chains that ended further behind than kBehind.
  void go_on_from_the_best() {
    if (!best_) return;
    for (std::size_t c = 0; c < at_.size(); ++c) {
      if (!found_[c] || relative_difference(*found_[c], best_->time) > kBehind)
        at_[c] = {best_->assignment, best_order_};
    }
  }

  void recompute_ranks() {
    if (rules_.order != Rules::Order::kPriority || !best_ || !context_.take_state()) return;
    DeviceOrders orders{rank_priorities(instance_, rules_, best_->assignment), {}};
    Engine engine(units_.engines()[best_order_], orders);
    Scratch scratch;
    const Evaluated seen = engine.evaluate(best_->assignment, scratch);
    if (!seen.fits || seen.time > best_->time) return;
    best_->time = seen.time;
    orders_[best_order_] = std::move(orders);
    units_.set_engine(best_order_, std::move(engine));
  }

  Placed result() const {
    Placed placed;
    placed.stats.evaluations = placed.stats.states = context_.states;
    if (best_) {
      placed.assignment = best_->assignment;
      placed.estimate = best_->time;
      placed.orders = orders_[best_order_];
      return placed;
    }
    placed.why = nothing_fits(instance_, rules_)
                     .value_or("nothing that fits was found; the nearest start lacks " + to_text(lack_));
    return placed;
  }

  const Instance& instance_;
  const Rules& rules_;
  const PlacementSearchOptions& options_;
  Context& context_;
  std::vector<DeviceOrders> orders_;
  Ground units_;
  std::vector<Place> at_;                       // by chain
  std::vector<char> moving_;                    // by chain: whether it moved clusters in the last phase
  std::vector<std::optional<Duration>> found_;  // by chain, in the last phase
  std::optional<FittingAssignment> best_;
  std::size_t best_order_ = 0;
  Bytes lack_ = {};  // of the nearest start
  std::uint64_t phase_ = 0;
};

}  // namespace

std::string_view to_text(SearchMethod method) {
  switch (method) {
    case SearchMethod::kAccept:
      return "accept";
    case SearchMethod::kGuided:
      return "guided";
    case SearchMethod::kCoordinate:
      return "coordinate";
    case SearchMethod::kPath:
      return "path";
    case SearchMethod::kAnnealing:
      return "annealing";
    case SearchMethod::kTabu:
      return "tabu";
    case SearchMethod::kLargeNeighbourhood:
      return "large-neighbourhood";
    case SearchMethod::kDefault:
      break;
  }
  return "default";
}

const std::vector<SearchMethod>& search_methods() {
  static const std::vector<SearchMethod> methods = {
      SearchMethod::kDefault, SearchMethod::kAccept,
      SearchMethod::kGuided,  SearchMethod::kCoordinate,
      SearchMethod::kPath,    SearchMethod::kAnnealing,
      SearchMethod::kTabu,    SearchMethod::kLargeNeighbourhood};
  return methods;
}

Placed placement_search(const Instance& instance, const Rules& rules, const PlacementSearchOptions& options,
                        Context& context) {
  return PhasedSearch(instance, rules, options, context).run_all();
}

Placed default_placement_search(const Instance& instance, const Rules& rules, std::vector<Assignment> starts,
                                Context& context) {
  PlacementSearchOptions options;
  options.starts = std::move(starts);
  return placement_search(instance, rules, options, context);
}

std::vector<Clusters> search_levels(const Instance& instance, const std::vector<std::uint32_t>& layer) {
  std::vector<Clusters> levels;
  std::size_t before = kFewestClusters / 2;
  for (const std::size_t wanted : kClusters) {
    const std::size_t clusters = std::min(wanted, instance.units() / 2);
    if (clusters < 2 * before) break;
    levels.push_back(cluster_units(instance, {.clusters = clusters, .parts = layer}));
    before = clusters;
  }
  return levels;
}

std::vector<Assignment> simple_starts(const Instance& instance) {
  std::vector<Assignment> starts;
  const std::size_t devices = instance.devices();
  const auto allowed_or_first = [&](std::size_t unit, DeviceId device) {
    const std::span<const DeviceId> allowed = instance.allowed[unit];
    return std::find(allowed.begin(), allowed.end(), device) != allowed.end() ? device : allowed.front();
  };
  for (std::size_t d = 0; d < devices; ++d) {
    Assignment start;
    for (std::size_t u = 0; u < instance.units(); ++u) start.push_back(allowed_or_first(u, DeviceId(d)));
    starts.push_back(std::move(start));
  }
  // By work on the unit's own first kind.
  std::vector<std::pair<TaskId, std::size_t>> line;
  std::vector<double> work(instance.units());
  double all = 0;
  for (std::size_t u = 0; u < instance.units(); ++u) {
    line.emplace_back(instance.tasks_of[u].front(), u);
    for (const TaskId task : instance.tasks_of[u])
      work[u] += static_cast<double>(instance.time_on(task, instance.allowed[u].front()).count());
    all += work[u];
  }
  std::sort(line.begin(), line.end());
  Assignment runs(instance.units());
  double done = 0;
  for (const auto& [task, unit] : line) {
    const double middle = all > 0 ? (done + work[unit] / 2) / all : 0;
    const auto device = static_cast<std::size_t>(middle * static_cast<double>(devices));
    runs[unit] = allowed_or_first(unit, DeviceId(std::min(device, devices - 1)));
    done += work[unit];
  }
  starts.push_back(std::move(runs));
  return starts;
}

std::vector<std::uint32_t> rank_priorities(const Instance& instance, const Rules& rules,
                                           std::span<const DeviceId> assignment) {
  std::vector<Duration> rank(instance.tasks());
  for (std::size_t t = instance.tasks(); t-- > 0;) {
    const DeviceId here = assignment[instance.unit[t].index()];
    Duration longest = {};
    for (const ValueId value : instance.produces[t]) {
      const bool here_only = !instance.here_only.empty() && instance.here_only[value.index()] != 0;
      for (const TaskId reader : instance.readers[value.index()]) {
        const DeviceId there = assignment[instance.unit[reader.index()].index()];
        if (here_only && there != here) continue;
        Duration way = rank[reader.index()];
        if (there != here) {
          const Bytes bytes = instance.bytes[value.index()];
          way += rules.bandwidth ? transfer_time(bytes, *rules.bandwidth)
                                 : instance.way(here, there).latency + instance.way(here, there).hold(bytes);
        }
        longest = std::max(longest, way);
      }
    }
    rank[t] = instance.time_on(TaskId(t), here) + longest;
  }
  return priorities_by(rank);
}

}  // namespace espalier::placement
