#include "espalier/learned/guide_learning.h"

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
#include "espalier/planners/joint/moves.h"
#include "espalier/planners/pipeline/branches.h"
#include "espalier/planners/pipeline/graphpipe.h"
#include "espalier/planners/pipeline/pipedream.h"

namespace espalier::joint {
namespace {

constexpr double kWorst = -0.1, kBest = 0.2;  // gains that are told apart
constexpr float kWorthwhile = 5e-4F;          // a gain that counts
constexpr float kMoreForGains = 9;
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
  RatedRows rows{.inputs = MoveFigures::kCount, .numbers = {}, .worth = {}, .weight = {}};
  for (const JudgedPlace& place : places) {
    for (const JudgedMove& move : place) {
      rows.numbers.insert(rows.numbers.end(), move.figures.values.begin(), move.figures.values.end());
      rows.worth.push_back(std::clamp(move.gain, static_cast<float>(kWorst), static_cast<float>(kBest)));
      rows.weight.push_back(1 + (rows.worth.back() > kWorthwhile ? kMoreForGains : 0));
    }
  }
  if (rows.rows() == 0) throw InputError("there is no plan to learn from: no start of any problem fits");
  return MoveGuide(learn_ratings(rows, options));
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
