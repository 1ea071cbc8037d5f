#include "espalier/learned/hdp.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/learned/best_so_far.h"
#include "espalier/learned/gdp.h"
#include "espalier/learned/hdp_net.h"
#include "espalier/learned/order_trial.h"
#include "espalier/learned/torch_threads.h"

namespace espalier::placement {
namespace {

// The published training (TensorFlow's hierarchical_controller.py).
constexpr double kNoise = 0.5;  // of the logits' root mean square, for so many updates
constexpr std::uint64_t kNoisyUpdates = 750;
constexpr std::uint64_t kFullRate = 400, kRateStep = 50;
constexpr double kRateFactor = 0.95;
constexpr std::uint64_t kFailuresLearnt = 1000;  // updates until rollouts that fail are left out
constexpr double kMeanDecay = 0.9;
constexpr double kFailure = 10;  // √ of the 100 s that a run counts that fails

constexpr double kMostNorm = 1;  // of a gradient

// Groups as runs of neighbours: a normal distribution around a node's place, as wide as most of a group; a
// little is left to all others.
constexpr double kStartWidth = 0.7, kStartLeast = -8;

struct Rollout {
  Grouping grouping;
  std::vector<std::uint32_t> devices;  // by group
};

NodeDevices devices_of_nodes(const PolicyInput& input, const Rollout& rollout) {
  NodeDevices placement;
  for (std::size_t n = 0; n < input.nodes; ++n) {
    std::size_t device = rollout.devices[rollout.grouping[n]];
    while (input.allowed[n * input.devices + device] == 0) device = (device + 1) % input.devices;
    placement.emplace_back(device);
  }
  return placement;
}

at::Tensor layer_start(const PolicyInput& input, std::size_t groups) {
  const std::vector<double> place = places_by_layer(input);
  std::vector<float> logits;
  for (std::size_t n = 0; n < input.nodes; ++n) {
    for (std::size_t g = 0; g < groups; ++g) {
      const double away =
          (place[n] * static_cast<double>(groups) - static_cast<double>(g) - 0.5) / kStartWidth;
      logits.push_back(static_cast<float>(std::max(kStartLeast, -away * away / 2)));
    }
  }
  return at::from_blob(logits.data(),
                       {static_cast<std::int64_t>(input.nodes), static_cast<std::int64_t>(groups)},
                       at::kFloat)
      .clone();
}

std::vector<float> values_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().contiguous();
  return {dense.const_data_ptr<float>(), dense.const_data_ptr<float>() + dense.numel()};
}

class HdpLearner {
 public:
  HdpLearner(const PlacementTask& task, const HdpOptions& options, std::uint64_t seed)
      : task_(task),
        options_(options),
        seed_(seed),
        groups_(std::min(options.groups > 0 ? options.groups : usual_groups(task.input().devices),
                         task.input().nodes)),
        describer_(task, groups_, options.features),
        input_(task.input(), PolicyShape{}, at::kCPU),
        net_(input_, shape(), start(), seed),
        adam_(net_.weights()) {}

  // False, and nothing done, where the context has no more states or wants the end.
  bool update(Context& context);

  const BestSoFar& seen() const { return seen_; }
  std::uint64_t updates() const { return updates_; }
  const LearningPoint& point() const { return point_; }  // of the last update

 private:
  bool published() const { return options_.training == HdpTraining::kPublished; }
  HdpShape shape() const {
    return {.groups = static_cast<std::int64_t>(groups_),
            .group_numbers = static_cast<std::int64_t>(describer_.width()),
            .grouper_width = static_cast<std::int64_t>(options_.grouper_width),
            .placer_width = static_cast<std::int64_t>(options_.placer_width),
            .logit_bound = options_.logit_bound,
            .tables = options_.tables};
  }
  at::Tensor start() const {
    return options_.start == GroupStart::kLayers ? layer_start(task_.input(), groups_) : at::Tensor();
  }

  double learning_rate() const;
  HdpNet::Placements place(std::vector<Rollout>& rollouts, std::size_t drawn, LogitNoise* noise,
                           ThreadPool* pool) const;
  void remember(std::span<const Rollout> rollouts, std::span<const Sample> samples);
  std::vector<double> advantages(std::span<const Evaluated> of);
  std::vector<double> published_advantages(std::span<const Evaluated> of);
  void learn(const at::Tensor& grouping, const HdpNet::Placements& placements,
             std::span<const Rollout> rollouts, std::span<const double> advantage);

  const PlacementTask& task_;
  const HdpOptions& options_;
  std::uint64_t seed_;
  std::size_t groups_;
  GroupDescriber describer_;
  NetInput input_;
  HdpNet net_;
  Adam adam_;
  BestSoFar seen_;
  std::optional<Rollout> best_;  // that fits
  LearningPoint point_;
  std::uint64_t updates_ = 0, calls_ = 0;
  double mean_reward_ = kFailure;
};

double HdpLearner::learning_rate() const {
  if (published()) {
    const std::uint64_t steps = updates_ < kFullRate ? 0 : (updates_ - kFullRate) / kRateStep;
    return options_.learning_rate * std::pow(kRateFactor, static_cast<double>(steps));
  }
  const double part = static_cast<double>(updates_) / static_cast<double>(options_.updates);
  return options_.learning_rate *
         std::pow(options_.last_learning_rate / options_.learning_rate, std::min(1.0, part));
}

// Devices of the first `drawn` rollouts are drawn, those of the others are as they were.
HdpNet::Placements HdpLearner::place(std::vector<Rollout>& rollouts, std::size_t drawn, LogitNoise* noise,
                                     ThreadPool* pool) const {
  std::vector<Grouping> groupings;
  for (const Rollout& rollout : rollouts) groupings.push_back(rollout.grouping);
  std::vector<float> rows = describer_.describe_all(groupings, pool);
  const at::Tensor told =
      at::from_blob(rows.data(),
                    {static_cast<std::int64_t>(rollouts.size()), static_cast<std::int64_t>(groups_),
                     static_cast<std::int64_t>(describer_.width())},
                    at::kFloat);
  std::vector<Rng> random;
  for (std::size_t r = 0; r < drawn; ++r) random.emplace_back(stream_key(seed_, {11, updates_, r}));
  HdpNet::Placements made = net_.place(
      told.clone(),
      [&](std::size_t r, std::size_t g, std::span<const float> probability) -> std::size_t {
        return r < drawn ? drawn_entry(probability, random[r].unit()) : rollouts[r].devices[g];
      },
      noise);
  for (std::size_t r = 0; r < drawn; ++r) rollouts[r].devices = made.devices[r];
  return made;
}

void HdpLearner::remember(std::span<const Rollout> rollouts, std::span<const Sample> samples) {
  calls_ += samples.size();
  point_ = {updates_ + 1, calls_};
  for (std::size_t r = 0; r < samples.size(); ++r) {
    const Evaluated& evaluated = samples[r].evaluated;
    const std::optional<Sample>& best = seen_.best();
    if (evaluated.fits && (!best || evaluated.time < best->evaluated.time)) best_ = rollouts[r];
    seen_.see(samples[r]);
    point_.mean += score(task_, evaluated) / static_cast<double>(samples.size());
    point_.valid += (evaluated.fits ? 1.0 : 0.0) / static_cast<double>(samples.size());
  }
  if (seen_.best()) point_.best = score(task_, seen_.best()->evaluated);
}

std::vector<double> HdpLearner::published_advantages(std::span<const Evaluated> of) {
  std::vector<double> advantage;
  double sum = 0, count = 0;
  const bool all = updates_ < kFailuresLearnt;
  for (const Evaluated& evaluated : of) {
    const double reward = evaluated.fits ? std::sqrt(to_seconds(evaluated.time)) : kFailure;
    const bool counts = all || evaluated.fits;
    advantage.push_back(counts ? mean_reward_ - reward : 0);
    sum += counts ? reward : 0;
    count += counts ? 1 : 0;
  }
  if (count > 0) mean_reward_ = kMeanDecay * mean_reward_ + (1 - kMeanDecay) * sum / count;
  return advantage;
}

std::vector<double> HdpLearner::advantages(std::span<const Evaluated> of) {
  if (published()) return published_advantages(of);
  std::vector<double> scores;
  for (const Evaluated& evaluated : of) scores.push_back(score(task_, evaluated));
  return rank_advantages(scores);
}

// A node's group does not depend on what was drawn for others, so the groupings need one number for each node
// and group: the advantages of those that chose it.
void HdpLearner::learn(const at::Tensor& grouping, const HdpNet::Placements& placements,
                       std::span<const Rollout> rollouts, std::span<const double> advantage) {
  std::vector<float> chosen(task_.input().nodes * groups_), of_rollout;
  for (std::size_t r = 0; r < rollouts.size(); ++r) {
    const auto each = static_cast<float>(advantage[r] / static_cast<double>(rollouts.size()));
    of_rollout.push_back(each);
    for (std::size_t n = 0; n < task_.input().nodes; ++n)
      chosen[n * groups_ + rollouts[r].grouping[n]] += each;
  }
  const at::Tensor of_groups = at::from_blob(chosen.data(), grouping.sizes(), at::kFloat);
  const at::Tensor of_placements =
      at::from_blob(of_rollout.data(), placements.log_probability.sizes(), at::kFloat);
  const at::Tensor loss =
      -(of_groups.clone() * grouping).sum() - (of_placements.clone() * placements.log_probability).sum();
  adam_.step(loss, learning_rate(), kMostNorm);
}

bool HdpLearner::update(Context& context) {
  const std::size_t count =
      std::min<std::uint64_t>(options_.rollouts, std::max<std::uint64_t>(1, context.left()));
  if (context.stop() || !context.take_states(count)) return false;
  std::optional<LogitNoise> noise;
  if (published() && updates_ <= kNoisyUpdates) noise.emplace(kNoise, stream_key(seed_, {9, updates_}));
  const at::Tensor logits = net_.grouping_logits();
  const at::Tensor grouping = at::log_softmax(noise ? (*noise)(logits) : logits, 1);
  std::vector<Rollout> rollouts;
  for (Grouping& drawn : draw_groupings(values_of(at::exp(grouping.detach())), groups_, count,
                                        stream_key(seed_, {10, updates_}), context.pool))
    rollouts.push_back({std::move(drawn), {}});
  if (options_.repeat_best && best_) rollouts.push_back(*best_);
  const HdpNet::Placements placements = place(rollouts, count, noise ? &*noise : nullptr, context.pool);

  std::vector<NodeDevices> drawn;
  for (std::size_t r = 0; r < count; ++r) drawn.push_back(devices_of_nodes(task_.input(), rollouts[r]));
  const std::vector<Sample> samples = judge(task_, std::move(drawn), Repairs::kNone, context.pool);
  std::vector<Evaluated> evaluated;
  for (const Sample& sample : samples) evaluated.push_back(sample.evaluated);
  if (rollouts.size() > count) evaluated.push_back(seen_.best()->evaluated);
  remember(rollouts, samples);
  learn(grouping, placements, rollouts, advantages(evaluated));
  ++updates_;
  return true;
}

}  // namespace

HdpOptions published_hdp() {
  HdpOptions options;
  options.contracted = false;
  options.placer_width = 512;
  options.training = HdpTraining::kPublished;
  options.features = GroupFeatures::kPublished;
  options.start = GroupStart::kEven;
  options.logit_bound = 1;
  options.tables = false;
  options.rollouts = 4;
  options.learning_rate = 0.1;
  return options;
}

std::size_t usual_groups(std::size_t devices) {
  return std::min<std::size_t>(256, 20 * devices);
}

Placed hdp(const PlacerInput& input, const HdpOptions& options, Context& context) {
  ESP_CHECK(options.rollouts > 0);
  TaskOptions how = task_options(input, options.task);
  if (!options.contracted) how.clusters.clusters = 0;
  const auto learn = [&](const TaskOptions& by, double part, Context& own) {
    const PlacementTask task(input.graph, input.instance, by);
    const FewTorchThreads few(0);
    HdpOptions partly = options;
    partly.updates = part_of(options.updates, part);
    HdpLearner learner(task, partly, input.seed);
    while (learner.updates() < partly.updates && learner.update(own)) {
      if (options.told) options.told(learner.point());
      own.report(static_cast<double>(learner.updates()) / static_cast<double>(partly.updates));
    }
    return learner.seen().answer(task, own);
  };
  return by_better_order(input.instance, how, context, learn);
}

}  // namespace espalier::placement
