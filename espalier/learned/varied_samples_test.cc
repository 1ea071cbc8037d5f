#include "espalier/learned/varied_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "espalier/base/rng.h"
#include "espalier/learned/workload.h"

namespace espalier::placement {
namespace {

LayerRows random_rows(Rng& rng, std::size_t layers, std::size_t devices) {
  LayerRows rows;
  rows.layers = layers;
  rows.devices = devices;
  for (std::size_t cell = 0; cell < layers * devices; ++cell) {
    rows.work.push_back(0.05 + rng.unit());
    rows.bytes.push_back(rng.unit());
    rows.value.push_back(-rng.unit());
  }
  return rows;
}

// What the fullest device has, and the value of a split, as the header says.
struct Judged {
  double share = 0, value = 0;
};
Judged judged(const LayerRows& rows, const SplitChoice& choice, const std::vector<std::size_t>& of_layer) {
  std::vector<double> share(rows.devices);
  Judged sum;
  for (std::size_t l = 0; l < rows.layers; ++l) {
    const std::size_t d = of_layer[l], cell = l * rows.devices + d;
    share[d] += (choice.of_work * rows.work[cell] + (1 - choice.of_work) * rows.bytes[cell]) /
                (choice.room.empty() ? 1 : choice.room[d]);
    sum.value += rows.value[cell];
  }
  sum.share = *std::max_element(share.begin(), share.end());
  return sum;
}

// All splits of layers over the devices in this order.
std::vector<std::vector<std::size_t>> all_splits(std::size_t layers, const std::vector<std::size_t>& order) {
  std::vector<std::vector<std::size_t>> all;
  std::vector<std::size_t> ends(order.size() - 1, 0);
  while (true) {
    if (std::is_sorted(ends.begin(), ends.end())) {
      std::vector<std::size_t> of_layer;
      for (std::size_t l = 0, k = 0; l < layers; ++l) {
        while (k < ends.size() && ends[k] <= l) ++k;
        of_layer.push_back(order[k]);
      }
      all.push_back(std::move(of_layer));
    }
    std::size_t k = 0;
    while (k < ends.size() && ++ends[k] > layers) ends[k++] = 0;
    if (k == ends.size()) return all;
  }
}

TEST(VariedSamples, TheSplitIsTheMostProbableOfAllThatAreEvenEnough) {
  Rng rng(7);
  for (int round = 0; round < 300; ++round) {
    const std::size_t devices = 2 + rng.below(2), layers = 1 + rng.below(6);
    const LayerRows rows = random_rows(rng, layers, devices);
    SplitChoice choice{
        .of_work = 0.5 * static_cast<double>(rng.below(3)),
        .looseness = 1 + 0.5 * static_cast<double>(rng.below(3)),
        .order = rng.below(2) == 0 ? std::vector<std::size_t>{0, 1, 2} : std::vector<std::size_t>{2, 1, 0}};
    std::erase_if(choice.order, [&](std::size_t d) { return d >= devices; });
    if (rng.below(2) == 0) choice.room = {1, 0.5, 2};
    const Judged found = judged(rows, choice, most_probable_split(rows, choice));
    double least = 1e9, best = -1e9;
    for (const auto& split : all_splits(layers, choice.order))
      least = std::min(least, judged(rows, choice, split).share);
    for (const auto& split : all_splits(layers, choice.order)) {
      const Judged other = judged(rows, choice, split);
      if (other.share <= least * choice.looseness * (1 + 1e-9)) best = std::max(best, other.value);
    }
    EXPECT_NEAR(found.value, best, 1e-9) << "round " << round;
    EXPECT_LE(found.share, least * choice.looseness * (1 + 2e-9)) << "round " << round;
  }
}

// Four operators in a row, each a layer, on two devices.
struct FourLayers {
  WorkloadRecipe recipe{"four", "sequential", {{"layers", 4}}, BatchSize(4), "3xV100-16GB", {}};
  Workload workload = make_workload(recipe);
  PlacementTask task{workload.graph, workload.instance, {.clusters = {.clusters = 24}}};
  std::vector<float> even() const { return std::vector<float>(task.input().nodes * 3, 1.0F / 3); }
};

TEST(VariedSamples, ThreeOfEightSamplesAreSplitsBetweenLayers) {
  const FourLayers made;
  const std::vector<Assignment> samples = varied_samples(made.task, made.even(), 33, 4);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (i % 8 != 2 && i % 8 != 5 && i % 8 != 7) continue;
    std::map<std::uint32_t, std::set<std::size_t>> devices_of;
    for (std::size_t u = 0; u < samples[i].size(); ++u)
      devices_of[made.task.layer_of_unit()[u]].insert(samples[i][u].index());
    std::vector<std::size_t> runs;
    for (const auto& [layer, devices] : devices_of) {
      ASSERT_EQ(devices.size(), 1U) << "layer " << layer << " of sample " << i;
      if (runs.empty() || runs.back() != *devices.begin()) runs.push_back(*devices.begin());
    }
    EXPECT_EQ(std::set<std::size_t>(runs.begin(), runs.end()).size(), runs.size()) << "sample " << i;
  }
}

TEST(VariedSamples, UnitsStandOnlyWhereTheyMay) {
  FourLayers made;
  Lists<DeviceId> allowed;
  for (std::size_t u = 0; u < made.workload.instance.units(); ++u) {
    allowed.items.emplace_back(1);
    allowed.items.emplace_back(2);
    allowed.close();
  }
  made.workload.instance.allowed = std::move(allowed);
  std::vector<float> rows;
  for (std::size_t n = 0; n < made.task.input().nodes; ++n) rows.insert(rows.end(), {0, 0.5F, 0.5F});
  for (const Assignment& sample : varied_samples(made.task, rows, 66, 1))
    EXPECT_THAT(sample, ::testing::Each(::testing::Ne(DeviceId(0))));
}

TEST(VariedSamples, TheSameSeedGivesTheSameSamplesAndManyDiffer) {
  const FourLayers made;
  const std::vector<Assignment> samples = varied_samples(made.task, made.even(), 96, 9);
  EXPECT_EQ(samples, varied_samples(made.task, made.even(), 96, 9));
  EXPECT_NE(samples, varied_samples(made.task, made.even(), 96, 10));
  EXPECT_GT(std::set<Assignment>(samples.begin(), samples.end()).size(), 12U);
}

}  // namespace
}  // namespace espalier::placement
