#include "espalier/learned/proposal_learning.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>
#include <memory>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/learned/rating_learning.h"
#include "espalier/planners/placement/clusters.h"
#include "espalier/planners/placement/default_search.h"
#include "espalier/planners/placement/guided.h"
#include "espalier/planners/placement/ranks.h"
#include "espalier/planners/placement/search_placer.h"
#include "espalier/planners/placement/simple.h"

namespace espalier::placement {
namespace {

constexpr double kMostGain = 0.1;  // more counts as that
constexpr float kMoreForGains = 10;
constexpr std::uint64_t kAnyChange = 8;
constexpr std::uint64_t kStartBudget = 4'000;

// What moves: units, or clusters as units.
struct Ground {
  Ground(const Instance& whole, const Clusters* clusters, const std::vector<DeviceOrders>& orders)
      : joined(clusters ? std::optional(joined_units(whole, *clusters)) : std::nullopt),
        around(joined ? *joined : whole),
        engines(engines_by(joined ? *joined : whole, {}, orders)) {}
  std::optional<Instance> joined;
  Neighbourhood around;
  std::vector<Engine> engines;
};

// Signed, so that small gains are told apart.
float rooted(float gain) {
  return gain < 0 ? -std::sqrt(-gain) : std::sqrt(gain);
}

}  // namespace

std::vector<JudgedPlacement> judged_placements(const Workload& workload, const ChangeWalks& options,
                                               std::uint64_t seed) {
  const Instance& instance = workload.instance;
  Context of_starts;
  of_starts.budget.max_states = kStartBudget;
  std::vector<Assignment> starts = placer_starts({workload.graph, instance}, {}, of_starts);
  for (Assignment& start : simple_starts(instance)) starts.push_back(std::move(start));
  const std::vector<DeviceOrders> orders = usual_orders(instance);
  const std::vector<Clusters> levels = search_levels(instance, layers_of(instance, workload.graph));
  std::vector<std::unique_ptr<Ground>> grounds;
  grounds.push_back(std::make_unique<Ground>(instance, nullptr, orders));
  for (const Clusters& level : levels) grounds.push_back(std::make_unique<Ground>(instance, &level, orders));
  std::vector<JudgedPlacement> result;
  std::vector<std::vector<Duration>> steps;  // by order, of the starts
  for (const Engine& engine : grounds.front()->engines) {
    std::vector<Duration>& of_starts_by = steps.emplace_back();
    for (const Evaluated& seen : engine.evaluate_all(starts, nullptr))
      of_starts_by.push_back(seen.fits ? seen.time : Duration::max());
  }
  Rng rng(stream_key(seed, {0x70726f70}));
  Context context;
  std::unique_ptr<Walk> walk;
  std::size_t left = 0;
  for (std::size_t place = 0; place < options.places; ++place) {
    if (!walk || left-- == 0) {
      const std::size_t g = rng.below(grounds.size());
      const Ground& ground = *grounds[g];
      if (ground.around.movable().empty()) continue;
      const std::size_t by = rng.below(ground.engines.size());
      // Every other walk from where a search would begin.
      const auto best = static_cast<std::size_t>(std::ranges::min_element(steps[by]) - steps[by].begin());
      Assignment start = starts[rng.below(2) == 0 ? best : rng.below(starts.size())];
      if (g > 0) start = devices_of_clusters(instance, levels[g - 1], start);
      walk = std::make_unique<Walk>(ground.engines[by], ground.around, std::move(start), context);
      left = options.least + rng.below(options.most - options.least + 1);
    }
    StepView view(walk->around(), walk->engine(), walk->at());
    ChangeSource source(walk->around());
    source.see(view.path(), walk->at());
    JudgedPlacement here;
    std::optional<Change> best;
    std::vector<Change> all;
    Duration least = Duration::max();
    const Duration score = walk->score();
    const Duration most = score + score / 8;
    for (std::size_t i = 0; i < options.changes; ++i) {
      const std::size_t kind = rng.below(ChangeSource::kKinds);
      const Change change = source.draw(walk->at(), kind, rng);
      if (change.empty()) continue;
      JudgedChange judged{view.of(walk->at(), change, kind), JudgedChange::kLost};
      if (const std::optional<Duration> seen = walk->look(change, most)) {
        judged.gain = static_cast<float>(std::log(ratio(score, std::max(*seen, nanoseconds(1)))));
        if (*seen < least) least = *seen, best = change;
        all.push_back(change);
      }
      here.push_back(judged);
    }
    if (!here.empty()) result.push_back(std::move(here));
    if (!all.empty() && rng.below(kAnyChange) == 0) {
      walk->offer(all[rng.below(all.size())], Duration::max());
    } else if (best && least <= score) {
      walk->offer(*best, Duration::max());
    }
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
