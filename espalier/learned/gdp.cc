#include "espalier/learned/gdp.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "espalier/base/rng.h"
#include "espalier/planners/placement/search_placer.h"

namespace espalier::placement {

std::size_t usual_clusters(std::size_t devices) {
  return devices < 8 ? 256 : 384;
}

TaskOptions task_options(const PlacerInput& input, TaskOptions options) {
  options.order = input.order;
  if (options.clusters.clusters == ClusterOptions().clusters)
    options.clusters.clusters = usual_clusters(input.instance.devices());
  return options;
}

namespace {

constexpr std::array<double, 4> kSharpness = {1, 2, 4, 8};
constexpr std::array<double, 4> kLeanings = {0, 0.5, 1.5, 5};

// Rows in which all nodes of a layer agree: the mean of their logarithms, each by its work.
std::vector<float> by_layers(const PolicyInput& input, const std::vector<float>& probability) {
  const std::size_t layers = *std::max_element(input.layer.begin(), input.layer.end()) + 1;
  std::vector<double> mean(layers * input.devices), weight(layers);
  for (std::size_t n = 0; n < input.nodes; ++n) {
    weight[input.layer[n]] += static_cast<double>(input.work[n]);
    for (std::size_t d = 0; d < input.devices; ++d) {
      const double chance = static_cast<double>(probability[n * input.devices + d]);
      mean[input.layer[n] * input.devices + d] +=
          static_cast<double>(input.work[n]) * std::log(chance + 1e-12);
    }
  }
  std::vector<float> rows(probability.size());
  for (std::size_t n = 0; n < input.nodes; ++n) {
    const std::size_t layer = input.layer[n];
    double sum = 0;
    for (std::size_t d = 0; d < input.devices; ++d)
      sum += std::exp(mean[layer * input.devices + d] / weight[layer]);
    for (std::size_t d = 0; d < input.devices; ++d)
      rows[n * input.devices + d] =
          static_cast<float>(std::exp(mean[layer * input.devices + d] / weight[layer]) / sum);
  }
  return rows;
}

// Each row times a factor for each device, to a power, as probabilities again. A row of zeros stays as it is.
std::vector<float> leaning_rows(const std::vector<float>& probability, const std::vector<double>& factor,
                                double power) {
  std::vector<float> rows = probability;
  for (std::size_t begin = 0; begin < rows.size(); begin += factor.size()) {
    double sum = 0;
    for (std::size_t d = 0; d < factor.size(); ++d)
      sum += std::pow(static_cast<double>(probability[begin + d]) * factor[d], power);
    for (std::size_t d = 0; d < factor.size() && sum > 0; ++d) {
      rows[begin + d] =
          static_cast<float>(std::pow(static_cast<double>(probability[begin + d]) * factor[d], power) / sum);
    }
  }
  return rows;
}

// Samples whose nodes differ together, since nodes that are drawn one by one spoil what only makes sense as a
// whole. Rows are sharpened (raised to a power) and lean towards some devices (a factor for each, drawn
// log-normally), so a cut between layers moves as one; in every other sample whole layers are drawn.
std::vector<NodeDevices> varied_samples(const PolicyInput& input, const std::vector<float>& probability,
                                        std::size_t count, std::uint64_t seed) {
  const std::vector<float> of_layers = by_layers(input, probability);
  std::vector<NodeDevices> samples;
  for (std::size_t i = 0; i < count; ++i) {
    Rng rng(stream_key(seed, {i, 1}));
    const bool whole_layers = i % 2 == 1;
    const double power = kSharpness[i / 2 % kSharpness.size()];
    const double leaning = kLeanings[i / 2 / kSharpness.size() % kLeanings.size()];
    std::vector<double> factor;
    for (std::size_t d = 0; d < input.devices; ++d) {
      double normal = -6;  // the sum of twelve uniform draws is as good as normal here
      for (int k = 0; k < 12; ++k) normal += rng.unit();
      factor.push_back(std::exp(leaning * normal));
    }
    const std::vector<float> rows = leaning_rows(whole_layers ? of_layers : probability, factor, power);
    NodeDevices sample = std::move(draw(rows, input.devices, 1, stream_key(seed, {i, 2})).front());
    std::vector<std::optional<DeviceId>> of_layer(of_layers.size());
    for (std::size_t n = 0; n < input.nodes && whole_layers; ++n) {
      std::optional<DeviceId>& first = of_layer[input.layer[n]];
      if (!first) first = sample[n];
      if (input.allowed[n * input.devices + first->index()] != 0) sample[n] = *first;
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

}  // namespace

PolicyAnswer ask(const Policy& policy, const PlacementTask& task, std::size_t samples, std::uint64_t seed,
                 ThreadPool* pool) {
  const std::vector<float> probability = policy.probabilities(task.input());
  const std::size_t devices = task.input().devices;
  std::vector<NodeDevices> drawn = varied_samples(task.input(), probability, samples, seed);
  drawn.push_back(most_probable(probability, devices));
  PolicyAnswer answer;
  answer.most_probable = judge(task, {drawn.back()}, Repairs::kNone, nullptr).front();
  for (Sample& sample : judge(task, std::move(drawn), Repairs::kInvalid, pool)) {
    if (!sample.evaluated.fits) continue;
    if (!answer.best || sample.evaluated.time < answer.best->evaluated.time) answer.best = std::move(sample);
  }
  return answer;
}

Placed gdp(const PlacerInput& input, const GdpOptions& options, Context& context) {
  const std::uint64_t states = context.states;
  const PlacementTask task(input.graph, input.instance, task_options(input, options.task));
  Policy policy = options.policy ? options.policy->clone() : Policy(options.shape, input.seed);
  std::optional<Sample> best;
  const auto keep = [&](std::optional<Sample> sample) {
    if (sample && (!best || sample->evaluated.time < best->evaluated.time)) best = std::move(sample);
  };
  const auto answer = [&](std::uint64_t stream) {
    context.take_states(options.samples + 1);  // the answer is worth having where they are not left, too
    return ask(policy, task, options.samples, stream_key(input.seed, {stream}), context.pool).best;
  };
  if (options.policy) keep(answer(6));
  if (options.updates > 0) {
    LearningOptions learning = options.learning;
    learning.seed = input.seed;
    learning.updates = options.updates;
    {
      Learner learner(policy, {&task}, learning);
      if (best) learner.know(0, *best);
      while (learner.updates() < options.updates && learner.update(context)) {
        if (options.told) options.told(learner.progress(0).curve.back());
        context.report(static_cast<double>(learner.updates()) / static_cast<double>(options.updates));
      }
      keep(learner.progress(0).best);
    }
    keep(answer(7));
  }
  Placed placed;
  placed.stats = {context.states - states, context.states - states};
  if (!best) {
    placed.why = "no placement of the policy fits, nor can one be repaired";
    return placed;
  }
  placed.estimate = best->evaluated.time;
  placed.assignment = std::move(best->assignment);
  return placed;
}

Placed gdp_search(const PlacerInput& input, const GdpOptions& options, Context& context) {
  const std::uint64_t states = context.states;
  Placed answer = gdp(input, options, context);
  SearchPlacerOptions search{.rules = options.task.rules};
  if (answer.assignment) search.starts.push_back(std::move(*answer.assignment));
  Placed placed = search_placer(input, search, context);
  placed.stats = {context.states - states, context.states - states};
  return placed;
}

}  // namespace espalier::placement
