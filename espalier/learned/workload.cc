#include "espalier/learned/workload.h"

#include <algorithm>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/cost/cost_table.h"
#include "espalier/cost/kept_tensors.h"
#include "espalier/graph/expand_backward.h"
#include "espalier/placement/engine.h"

namespace espalier::placement {
namespace {

// Every device holds `share` times an even part of what one device holds at its peak if it runs everything.
void bind_memory(Instance& instance, double share) {
  std::fill(instance.memory.begin(), instance.memory.end(), Bytes(std::int64_t{1} << 50));
  const Engine engine(instance, {});
  const Bytes peak = timeline(engine, Assignment(instance.units(), DeviceId(0))).peak.front();
  const double each = static_cast<double>(peak.count()) * share / static_cast<double>(instance.devices());
  std::fill(instance.memory.begin(), instance.memory.end(), Bytes(static_cast<std::int64_t>(each)));
}

template <class T>
const T& any_of(Rng& rng, const std::vector<T>& choices) {
  return choices[rng.below(choices.size())];
}

// A setting that is drawn: any of these.
struct DrawnSetting {
  const char* name;
  std::vector<std::int64_t> values;
};
struct DrawnFamily {
  const char* model;
  std::vector<DrawnSetting> settings;
  std::vector<std::int64_t> batches;
};

// Sizes such that a graph has some hundred to some thousand operators.
const std::vector<DrawnFamily>& drawn_families() {
  static const std::vector<DrawnFamily> kFamilies{
      {"rnnlm",
       {{"layers", {1, 2, 3, 4, 6}}, {"hidden", {512, 1024, 1500, 2048}}, {"length", {10, 16, 24, 35}}},
       {16, 64, 128}},
      {"gnmt",
       {{"layers", {2, 3, 4, 6}},
        {"hidden", {512, 1024}},
        {"length", {6, 10, 14}},
        {"vocabulary", {8'000, 32'000}}},
       {16, 64, 128}},
      {"transformer-xl",
       {{"layers", {2, 4, 6, 8}},
        {"hidden", {256, 512, 1024}},
        {"positions", {64, 128, 256}},
        {"segments", {2, 4, 6, 8}}},
       {4, 16, 32}},
      {"inception-v3", {{"auxiliary", {0, 1}}, {"image", {299, 363}}}, {8, 32, 64}},
      {"amoebanet", {{"layers", {3, 6, 9, 18}}, {"filters", {64, 128, 208}}}, {8, 32, 64}},
      {"nasnet", {{"cells", {2, 4, 6}}, {"filters", {44, 168}}}, {8, 32, 64}},
      {"wavenet",
       {{"stacks", {2, 3}}, {"layers", {12, 18, 24, 36}}, {"channels", {64, 128}}, {"length", {4000, 8000}}},
       {4, 8, 16}},
      {"mmt", {{"branches", {2, 3, 4, 6}}, {"layers", {2, 4, 6}}}, {8, 16, 64}},
      {"clip", {{"layers", {4, 8, 12}}, {"text-layers", {4, 8, 12}}}, {8, 32, 64}},
      {"t5", {{"layers", {2, 4, 6}}}, {4, 16, 32}},
      {"dlrm", {{"dense", {3, 7}}, {"sparse", {3, 7, 16}}}, {64, 256, 1024}},
      {"candle-uno", {{"branches", {3, 7, 12}}}, {64, 256, 1024}},
      {"mixture-of-experts",
       {{"layers", {2, 4}},
        {"experts", {4, 8}},
        {"hidden", {512, 1024}},
        {"heads", {8}},
        {"key-value-heads", {8}},
        {"feed-forward", {2048}},
        {"positions", {256}}},
       {4, 16}},
      {"u-net", {{"levels", {3, 4}}}, {4, 8}},
  };
  return kFamilies;
}

}  // namespace

Workload make_workload(const WorkloadRecipe& recipe) {
  const Graph forward = build_zoo_model(recipe.model, recipe.values);
  Graph graph = expand_backward(forward);
  const Cluster cluster = parse_cluster(recipe.cluster);
  const BatchSize batch = std::max(recipe.batch, graph.batch().min);
  const CostTable costs = complete_costs(graph, cluster, CostTable({}), std::span(&batch, 1));
  Training training;
  training.batch = batch;
  training.micro_batches = {batch};
  Instance instance = make_instance(graph, cluster, costs, training, {.micro_batch = batch});
  if (recipe.memory_share) bind_memory(instance, *recipe.memory_share);
  return {recipe.name, std::move(graph), std::move(instance)};
}

const std::vector<WorkloadRecipe>& gdp_workloads() {
  constexpr const char* kTwo = "2xP100-16GB";
  constexpr const char* kFour = "4xP100-16GB";
  constexpr const char* kEight = "8xP100-16GB";
  const auto unrolled = [](std::int64_t layers) {
    return ZooValues{{"layers", layers}, {"positions", 128}, {"segments", 16}};
  };
  static const std::vector<WorkloadRecipe> kWorkloads{
      {"RNNLM-2", "rnnlm", {{"layers", 2}, {"length", 80}}, BatchSize(32), kTwo, {}},
      {"RNNLM-4", "rnnlm", {{"layers", 4}, {"length", 80}}, BatchSize(128), kFour, {}},
      {"GNMT-2", "gnmt", {{"layers", 2}}, BatchSize(16), kTwo, {}},
      {"GNMT-4", "gnmt", {{"layers", 4}}, BatchSize(16), kFour, {}},
      {"GNMT-8", "gnmt", {{"layers", 8}}, BatchSize(16), kEight, {}},
      {"Transformer-XL-2", "transformer-xl", unrolled(4), BatchSize(16), kTwo, {}},
      {"Transformer-XL-4", "transformer-xl", unrolled(8), BatchSize(16), kFour, {}},
      {"Transformer-XL-8", "transformer-xl", unrolled(16), BatchSize(16), kEight, {}},
      {"Inception-v3", "inception-v3", {}, BatchSize(32), kTwo, {}},
      {"AmoebaNet", "amoebanet", {}, BatchSize(32), kFour, {}},
      {"WaveNet 2x18", "wavenet", {{"stacks", 2}, {"layers", 18}}, BatchSize(8), kTwo, {}},
      {"WaveNet 4x36", "wavenet", {{"stacks", 4}, {"layers", 36}}, BatchSize(16), kFour, {}},
  };
  return kWorkloads;
}

std::string family_of(const WorkloadRecipe& recipe) {
  return recipe.model;
}

WorkloadRecipe draw_workload(std::uint64_t seed, const std::vector<std::string>& without) {
  Rng rng(stream_key(seed, {0x776f726b}));
  std::vector<const DrawnFamily*> families;
  for (const DrawnFamily& family : drawn_families()) {
    if (std::find(without.begin(), without.end(), family.model) == without.end()) families.push_back(&family);
  }
  ESP_CHECK(!families.empty());
  const DrawnFamily& family = *any_of(rng, families);
  WorkloadRecipe recipe;
  recipe.model = family.model;
  recipe.name = recipe.model + " " + std::to_string(seed);
  for (const DrawnSetting& setting : family.settings)
    recipe.values[setting.name] = any_of(rng, setting.values);
  recipe.batch = BatchSize(any_of(rng, family.batches));
  recipe.cluster = any_of<std::string>(
      rng, {"2xV100-16GB", "4xV100-16GB", "8xV100-16GB", "2x2xV100-16GB@25Gb", "2x4xV100-16GB@100Gb",
            "2xV100-16GB+2xT4@25Gb", "2xA100-40GB+2xV100-16GB@100Gb", "4xA100-40GB+4xV100-16GB@100Gb",
            "2xP100-16GB", "4xP100-16GB", "8xP100-16GB", "4xRTX4090", "3xV100-16GB"});
  const std::vector<double> shares{0, 1.3, 1.5, 2, 3};
  const double share = any_of(rng, shares);
  if (share > 0) recipe.memory_share = share;
  return recipe;
}

}  // namespace espalier::placement
