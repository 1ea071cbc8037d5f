#include "espalier/learned/proposal_learning.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/learned/rating_learning.h"
#include "espalier/planners/placement/default_search.h"
#include "espalier/planners/placement/ground.h"
#include "espalier/planners/placement/guided.h"
#include "espalier/planners/placement/ranks.h"
#include "espalier/planners/placement/search_placer.h"
#include "espalier/planners/placement/simple.h"

namespace espalier::placement {
namespace {

constexpr double kMostGain = 0.1;  // more counts as that
constexpr float kMoreForGains = 10;
constexpr std::int64_t kLostPart = 8;  // of a score: what takes so much longer is not looked at to its end
constexpr std::uint64_t kAnyChange = 8;
constexpr std::uint64_t kStartBudget = 4'000;

// Signed, so that small gains are told apart.
float rooted(float gain) {
  return gain < 0 ? -std::sqrt(-gain) : std::sqrt(gain);
}

// Walks on one workload, one place after the other.
class JudgingWalks {
 public:
  JudgingWalks(const Workload& workload, const ChangeWalks& options, std::uint64_t seed)
      : instance_(workload.instance),
        options_(options),
        rng_(stream_key(seed, {0x70726f70})),
        levels_(search_levels(instance_, layers_of(instance_, workload.graph))) {
    Context of_starts;
    of_starts.budget.max_states = kStartBudget;
    starts_ = placer_starts({workload.graph, instance_}, {}, of_starts);
    for (Assignment& start : simple_starts(instance_)) starts_.push_back(std::move(start));
    const std::vector<DeviceOrders> orders = usual_orders(instance_);
    grounds_.push_back(std::make_unique<Ground>(instance_, Rules(), orders));
    for (const Clusters& level : levels_)
      grounds_.push_back(std::make_unique<Ground>(instance_, Rules(), orders, &level));
    for (const Engine& engine : grounds_.front()->engines()) best_start_.push_back(best_start_by(engine));
  }

  // What is judged at the next place; then the walk goes on. Nothing where nothing can move.
  JudgedPlacement next() {
    if (!walk_ || left_ == 0) {
      begin();
    } else {
      --left_;
    }
    JudgedPlacement here;
    if (!walk_) return here;
    StepView view(walk_->around(), walk_->engine(), walk_->at());
    ChangeSource source(walk_->around());
    source.see(view.path(), walk_->at());
    std::vector<std::pair<Duration, Change>> seen;  // those that were not lost
    const Duration score = walk_->score();
    for (std::size_t i = 0; i < options_.changes; ++i) {
      const std::size_t kind = rng_.below(ChangeSource::kKinds);
      Change change = source.draw(walk_->at(), kind, rng_);
      if (change.empty()) continue;
      here.push_back({view.of(walk_->at(), change, kind), JudgedChange::kLost});
      const std::optional<Duration> after = walk_->look(change, score + score / kLostPart);
      if (!after) continue;
      here.back().gain = static_cast<float>(std::log(ratio(score, std::max(*after, nanoseconds(1)))));
      seen.emplace_back(*after, std::move(change));
    }
    go_on(seen, score);
    return here;
  }

 private:
  std::size_t best_start_by(const Engine& engine) const {
    const std::vector<Evaluated> seen = engine.evaluate_all(starts_, nullptr);
    const auto best = std::ranges::min_element(
        seen, {}, [](const Evaluated& each) { return each.fits ? each.time : Duration::max(); });
    return static_cast<std::size_t>(best - seen.begin());
  }

  // A walk; every other one from where a search would begin.
  void begin() {
    walk_.reset();
    const std::size_t g = rng_.below(grounds_.size());
    const Ground& ground = *grounds_[g];
    if (ground.around().movable().empty()) return;
    const std::size_t by = rng_.below(ground.engines().size());
    const Assignment& start = starts_[rng_.below(2) == 0 ? best_start_[by] : rng_.below(starts_.size())];
    walk_ = std::make_unique<Walk>(ground.engines()[by], ground.around(), ground.from_units(start), context_);
    left_ = options_.least + rng_.below(options_.most - options_.least + 1);
  }

  // To the best, if it is not worse than where the walk stands; seldom to any.
  void go_on(const std::vector<std::pair<Duration, Change>>& seen, Duration score) {
    if (seen.empty()) return;
    const bool any = rng_.below(kAnyChange) == 0;
    const auto& [after, change] =
        any ? seen[rng_.below(seen.size())]
            : *std::ranges::min_element(seen, {}, [](const auto& each) { return each.first; });
    if (any || after <= score) walk_->offer(change, Duration::max());
  }

  const Instance& instance_;
  const ChangeWalks options_;
  Rng rng_;
  std::vector<Clusters> levels_;
  std::vector<std::unique_ptr<Ground>> grounds_;  // units, then levels
  std::vector<Assignment> starts_;
  std::vector<std::size_t> best_start_;  // by order
  Context context_;
  std::unique_ptr<Walk> walk_;
  std::size_t left_ = 0;  // places of the walk
};

}  // namespace

std::vector<JudgedPlacement> judged_placements(const Workload& workload, const ChangeWalks& options,
                                               std::uint64_t seed) {
  JudgingWalks walks(workload, options, seed);
  std::vector<JudgedPlacement> result;
  for (std::size_t place = 0; place < options.places; ++place) {
    if (JudgedPlacement here = walks.next(); !here.empty()) result.push_back(std::move(here));
  }
  return result;
}

std::vector<JudgedPlacement> generated_changes(const GeneratedChanges& options, const Context& context,
                                               const std::function<void(std::size_t)>& told) {
  std::vector<std::vector<JudgedPlacement>> of_graph(options.graphs);
  std::atomic<std::size_t> done{0};
  on_threads(context.pool, options.graphs, [&](std::size_t i) {
    if (context.stop()) return;
    const std::uint64_t seed = options.seed + i;
    of_graph[i] = judged_placements(make_workload(draw_workload(seed, options.without)), options.walks, seed);
    if (told) told(++done);
  });
  std::vector<JudgedPlacement> places;
  for (std::vector<JudgedPlacement>& each : of_graph) std::ranges::move(each, std::back_inserter(places));
  return places;
}

ProposalGuide learn_proposals(const std::vector<JudgedPlacement>& places, const ProposalLearning& options) {
  RatedRows rows{.inputs = ChangeFigures::kCount, .numbers = {}, .worth = {}, .weight = {}};
  for (const JudgedPlacement& place : places) {
    for (const JudgedChange& change : place) {
      rows.numbers.insert(rows.numbers.end(), change.figures.values.begin(), change.figures.values.end());
      rows.worth.push_back(rooted(std::min(change.gain, static_cast<float>(kMostGain))));
      rows.weight.push_back(change.gain > 0 ? kMoreForGains : 1);
    }
  }
  if (rows.rows() == 0)
    throw InputError("there is no placement to learn from: no graph has anything to move");
  RatingLearning learning{.seed = options.seed};
  learning.units = {48, 24};
  learning.small = 0.05;
  learning.updates = options.updates;
  return ProposalGuide(learn_ratings(rows, learning));
}

ProposalQuality quality_of(const ProposalGuide& guide, const std::vector<JudgedPlacement>& places) {
  ProposalQuality quality;
  double counted = 0;
  for (const JudgedPlacement& place : places) {
    double best = 0, all = 0;
    std::optional<float> highest;
    double chosen = 0;
    for (const JudgedChange& change : place) {
      const double gain = std::max(0.0F, change.gain);
      best = std::max(best, gain);
      all += gain;
      const float rate = guide.rate(change.figures);
      if (highest && rate <= *highest) continue;
      highest = rate, chosen = gain;
    }
    if (best <= 0) continue;
    quality.proposed += chosen / best;
    quality.random += all / static_cast<double>(place.size()) / best;
    ++counted;
  }
  if (counted > 0) quality.proposed /= counted, quality.random /= counted;
  return quality;
}

}  // namespace espalier::placement
