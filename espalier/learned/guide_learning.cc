#include "espalier/learned/guide_learning.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/base/shuffle.h"
#include "espalier/cost/cost_table.h"
#include "espalier/learned/torch_threads.h"
#include "espalier/learned/weights.h"
#include "espalier/planners/joint/moves.h"
#include "espalier/planners/pipeline/branches.h"
#include "espalier/planners/pipeline/graphpipe.h"
#include "espalier/planners/pipeline/pipedream.h"

namespace espalier::joint {
namespace {

using placement::Adam;
using placement::drawn_weight;
using placement::FewTorchThreads;
using placement::NamedTensors;

constexpr double kWorst = -0.1, kBest = 0.2;  // gains that are told apart
constexpr double kWorthwhile = 5e-4;          // a gain that counts
constexpr double kMoreForGains = 9;
constexpr std::uint64_t kStatesOfPlanner = 200'000;
constexpr std::uint64_t kAnyStep = 6;  // one time in so many
constexpr std::int64_t kMostMicroBatches = 64;

struct ModelRange {
  const char* name;
  std::vector<std::pair<const char*, std::vector<std::int64_t>>> settings;
  std::int64_t samples = 1;  // as many times the samples of a device
};

const std::vector<ModelRange>& all_models() {
  static const std::vector<ModelRange> kModels{
      {"mmt", {{"branches", {2, 3, 4, 6}}, {"layers", {4, 8}}}},
      {"dlrm", {{"dense", {3, 7}}, {"sparse", {3, 7}}}, 64},
      {"candle-uno", {{"branches", {4, 7, 12}}}, 64},
      {"clip", {{"layers", {6, 12}}, {"text-layers", {4, 12}}}},
      {"co-attention", {}},
      {"vision-language", {}},
      {"whisper", {}},
      {"t5", {{"layers", {4, 8}}}},
      {"gpt", {{"layers", {12, 24}}}},
      {"bert", {}},
      {"mixture-of-experts", {{"layers", {4, 8}}}},
      {"inception-v3", {}},
      {"u-net", {}},
  };
  return kModels;
}

struct DrawnCluster {
  const char* text;
  std::int64_t devices;
};
constexpr DrawnCluster kClusters[] = {
    {"4xV100-16GB", 4},
    {"2xA100-40GB+2xV100-16GB@25Gb", 4},
    {"2x4xV100-16GB@100Gb", 8},
    {"4xA100-40GB+4xV100-16GB@100Gb", 8},
    {"8xRTX4090", 8},
    {"4x4xV100-16GB@100Gb", 16},
    {"2x4xA100-40GB+2x4xV100-16GB@100Gb", 16},
    {"4x4xA100-40GB+4x4xV100-16GB@100Gb", 32},
};
constexpr std::int64_t kSamplesOfADevice[] = {4, 16};

// What planners find, in every micro-batch size.
std::vector<Proposal> starts_of(const Problem& problem, const Space& space) {
  std::vector<Proposal> starts;
  const auto add = [&](const Outcome& found) {
    const auto take = [&](const PipelinePlan& plan) {
      if (std::optional<Proposal> start = proposal_of(space, plan)) starts.push_back(*std::move(start));
    };
    if (const auto* plan = found.plan ? std::get_if<PipelinePlan>(&*found.plan) : nullptr) take(*plan);
    for (const PipelinePlan& other : found.of_other_sizes) take(other);
  };
  const auto context = [] {
    Context own;
    own.budget.max_states = kStatesOfPlanner;
    return own;
  };
  Context first = context(), second = context(), third = context();
  add(graphpipe(problem, {}, first));
  add(branches(problem, {}, second));
  add(pipedream(problem, {}, third));
  return starts;
}

// Up to 64 micro-batches, two at least where the batch allows it.
Training training_of(const Graph& graph, BatchSize wanted) {
  Training training;
  training.batch = std::max(wanted, graph.batch().min);
  training.micro_batches.clear();
  const std::int64_t batch = training.batch.count();
  for (std::int64_t size = std::max<std::int64_t>(1, batch / kMostMicroBatches); size <= batch / 2;
       size *= 2) {
    training.micro_batches.push_back(BatchSize(size));
  }
  return training;
}

float gain_of(Duration before, const Verdict& after) {
  if (!after.fits()) return JudgedMove::kUnfit;
  return static_cast<float>(std::log(ratio(before, std::max(after.iteration, nanoseconds(1)))));
}

// Means and deviations of figures.
struct Scale {
  std::vector<float> middle, factor;

  explicit Scale(const at::Tensor& figures) {
    const at::Tensor mean = figures.mean(0), deviation = figures.std(0, false).clamp_min(1e-3);
    for (std::int64_t i = 0; i < figures.size(1); ++i) {
      middle.push_back(mean[i].item<float>());
      factor.push_back(1 / deviation[i].item<float>());
    }
  }
};

std::vector<float> floats_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

}  // namespace

std::vector<std::string> drawn_models() {
  std::vector<std::string> names;
  for (const ModelRange& model : all_models()) names.emplace_back(model.name);
  return names;
}

PipelineRecipe draw_pipeline(std::uint64_t seed, const std::vector<std::string>& without) {
  std::vector<const ModelRange*> models;
  for (const ModelRange& model : all_models()) {
    if (std::find(without.begin(), without.end(), model.name) == without.end()) models.push_back(&model);
  }
  if (models.empty()) throw InputError("--without: leaves no model of the zoo to learn from");
  Rng rng(stream_key(seed, {0x67756964}));
  const auto any_of = [&rng](const auto& choices) { return choices[rng.below(std::size(choices))]; };
  const ModelRange& model = *any_of(models);
  PipelineRecipe recipe{.model = model.name};
  for (const auto& [name, values] : model.settings) recipe.values[name] = any_of(values);
  const DrawnCluster cluster = any_of(kClusters);
  recipe.cluster = cluster.text;
  recipe.batch = BatchSize(cluster.devices * any_of(kSamplesOfADevice) * model.samples);
  return recipe;
}

std::vector<JudgedPlace> judged_places(const Problem& problem, const WalkOptions& options,
                                       std::uint64_t seed) {
  const Space space(problem);
  const FigureTables tables(space);
  const std::vector<Proposal> starts = starts_of(problem, space);
  std::vector<JudgedPlace> result;
  if (starts.empty()) return result;
  Rng rng(stream_key(seed, {0x77616c6b}));
  Context context;
  Judge judge(problem, context);
  std::optional<Proposal> at;
  Duration step;
  std::size_t left = 0;
  for (std::size_t place = 0; place < options.places; ++place) {
    if (!at || left-- == 0) {
      const Proposal& start = starts[rng.below(starts.size())];
      const Verdict verdict = judge.consider(start);
      at.reset();
      if (!verdict.fits()) continue;
      at = start;
      step = verdict.iteration;
      left = options.least + rng.below(options.most - options.least + 1);
    }
    std::vector<Proposal> moves = moves_of(Site(space, *at), OrdersMay::kChange).all;
    draw_to_front(std::span(moves), options.moves, rng);
    if (moves.size() > options.moves) moves.resize(options.moves);
    const std::vector<std::optional<Verdict>> verdicts = judge.consider_all(moves);
    const PlanFigures before = tables.of(*at);
    JudgedPlace here;
    std::vector<std::size_t> fitting;
    std::size_t best = 0;
    for (std::size_t i = 0; i < moves.size(); ++i) {
      here.push_back({figures_of(before, step, tables.of(moves[i])), gain_of(step, *verdicts[i])});
      if (!verdicts[i]->fits()) continue;
      if (fitting.empty() || verdicts[i]->iteration < verdicts[best]->iteration) best = i;
      fitting.push_back(i);
    }
    result.push_back(std::move(here));
    if (fitting.empty()) {
      at.reset();
      continue;
    }
    const std::size_t next = rng.below(kAnyStep) == 0 ? fitting[rng.below(fitting.size())] : best;
    step = verdicts[next]->iteration;
    at = std::move(moves[next]);
  }
  return result;
}

std::vector<JudgedPlace> generated_places(const GeneratedMoves& options, const Context& context,
                                          const std::function<void(std::size_t)>& told) {
  std::vector<std::vector<JudgedPlace>> of_problem(options.problems);
  std::atomic<std::size_t> done{0};
  on_threads(context.pool, options.problems, [&](std::size_t i) {
    if (context.stop()) return;
    const std::uint64_t seed = options.seed * 100'000 + i;
    const PipelineRecipe recipe = draw_pipeline(seed, options.without);
    const Graph graph = build_zoo_model(recipe.model, recipe.values);
    const Cluster cluster = parse_cluster(recipe.cluster);
    const Training training = training_of(graph, recipe.batch);
    const CostTable costs = complete_costs(graph, cluster, CostTable({}), training.micro_batches);
    const Problem problem{.graph = graph, .cluster = cluster, .costs = costs, .training = training};
    of_problem[i] = judged_places(problem, options.walks, seed);
    if (told) told(++done);
  });
  std::vector<JudgedPlace> places;
  for (std::vector<JudgedPlace>& each : of_problem) std::ranges::move(each, std::back_inserter(places));
  return places;
}

MoveGuide learn_guide(const std::vector<JudgedPlace>& places, const GuideLearning& options) {
  std::size_t moves = 0;
  for (const JudgedPlace& place : places) moves += place.size();
  if (moves == 0) throw InputError("there is no plan to learn from: no start of any problem fits");
  const auto count = static_cast<std::int64_t>(moves);
  constexpr auto kFigures = static_cast<std::int64_t>(MoveFigures::kCount);
  at::Tensor figures = at::empty({count, kFigures}, at::kFloat), gains = at::empty({count}, at::kFloat);
  float* row = figures.data_ptr<float>();
  float* gain = gains.data_ptr<float>();
  for (const JudgedPlace& place : places) {
    for (const JudgedMove& move : place) {
      row = std::copy(move.figures.values.begin(), move.figures.values.end(), row);
      *gain++ = std::clamp(move.gain, static_cast<float>(kWorst), static_cast<float>(kBest));
    }
  }
  const FewTorchThreads few(static_cast<std::size_t>(options.batch));
  const Scale scale(figures);
  figures = (figures - at::tensor(scale.middle)) * at::tensor(scale.factor);
  NamedTensors weights;
  std::vector<std::int64_t> units = options.units;
  units.push_back(1);
  std::int64_t inputs = kFigures;
  for (std::size_t l = 0; l < units.size(); ++l) {
    const double most = std::sqrt(6.0 / static_cast<double>(inputs));
    weights.emplace_back("weights",
                         drawn_weight(stream_key(options.seed, {1, l}), {units[l], inputs}, most, at::kCPU));
    weights.emplace_back("offsets",
                         drawn_weight(stream_key(options.seed, {2, l}), {units[l]}, 0.01, at::kCPU));
    inputs = units[l];
  }
  Adam adam(weights);
  Rng rng(stream_key(options.seed, {3}));
  for (std::uint64_t update = 0; update < options.updates; ++update) {
    at::Tensor rows = at::empty({options.batch}, at::kLong);
    for (std::int64_t i = 0; i < options.batch; ++i) {
      rows.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(rng.below(moves));
    }
    at::Tensor said = figures.index_select(0, rows);
    for (std::size_t l = 0; l < units.size(); ++l) {
      said = at::linear(said, weights[2 * l].second, weights[2 * l + 1].second);
      if (l + 1 < units.size()) said = at::relu(said);
    }
    const at::Tensor wanted = gains.index_select(0, rows);
    const at::Tensor weight = 1 + kMoreForGains * (wanted > kWorthwhile).to(at::kFloat);
    const at::Tensor loss =
        (weight * at::smooth_l1_loss(said.squeeze(1), wanted, at::Reduction::None, 0.02)).mean();
    const double done = static_cast<double>(update) / static_cast<double>(options.updates);
    adam.step(loss, options.learning_rate * (0.01 + 0.99 * 0.5 * (1 + std::cos(3.14159265358979 * done))),
              10);
  }
  MoveGuide::Net net{.middle = scale.middle, .scale = scale.factor, .layers = {}};
  inputs = kFigures;
  for (std::size_t l = 0; l < units.size(); ++l) {
    net.layers.push_back({.inputs = static_cast<std::size_t>(inputs),
                          .units = static_cast<std::size_t>(units[l]),
                          .weights = floats_of(weights[2 * l].second),
                          .offsets = floats_of(weights[2 * l + 1].second)});
    inputs = units[l];
  }
  return MoveGuide(std::move(net));
}

GuideQuality quality_of(const MoveGuide& guide, const std::vector<JudgedPlace>& places) {
  GuideQuality quality;
  double counted = 0;
  for (const JudgedPlace& place : places) {
    double best = 0;
    std::vector<MoveFigures> figures;
    for (const JudgedMove& move : place) {
      best = std::max<double>(best, move.gain);
      figures.push_back(move.figures);
    }
    if (best <= kWorthwhile) continue;
    const auto found_by = [&](std::vector<std::pair<float, std::size_t>> rated) {  // least first
      std::sort(rated.begin(), rated.end());
      double found = 0;
      for (std::size_t i = 0; i < (place.size() + 3) / 4; ++i) {
        found = std::max<double>(found, place[rated[i].second].gain);
      }
      return found / best;
    };
    const std::vector<float> rates = guide.rate(figures);
    std::vector<std::pair<float, std::size_t>> guided, by_load;
    for (std::size_t i = 0; i < place.size(); ++i) {
      guided.emplace_back(-rates[i], i);
      by_load.emplace_back(figures[i].values[2 * PlanFigures::kBusiest], i);
    }
    quality.guided += found_by(std::move(guided));
    quality.by_load += found_by(std::move(by_load));
    ++counted;
  }
  if (counted > 0) {
    quality.guided /= counted;
    quality.by_load /= counted;
  }
  return quality;
}

}  // namespace espalier::joint
