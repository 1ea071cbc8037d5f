#include "espalier/learned/clusters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "espalier/learned/workload.h"
#include "espalier/planners/placement/simple.h"

namespace espalier::placement {
namespace {

const Workload& small_rnn() {
  static const Workload kWorkload = make_workload(
      {"small", "rnnlm", {{"layers", 2}, {"hidden", 256}, {"length", 12}}, BatchSize(8), "2xP100-16GB", {}});
  return kWorkload;
}

TEST(Clusters, CoverAllUnitsAndAreNumberedByTheirFirst) {
  const Instance& instance = small_rnn().instance;
  for (const std::size_t aim : {1UL, 7UL, 40UL, 1000UL}) {
    const Clusters clusters =
        cluster_units(instance, {.clusters = aim, .most_time = 1e9, .most_memory = 1e9});
    ASSERT_EQ(clusters.of_unit.size(), instance.units());
    std::uint32_t next = 0;
    for (const std::uint32_t cluster : clusters.of_unit) {
      ASSERT_LE(cluster, next);
      next += cluster == next ? 1 : 0;
    }
    EXPECT_EQ(next, clusters.count);
    EXPECT_GE(clusters.count, std::min(aim, instance.units()));
  }
}

TEST(Clusters, NoneKeepsEveryUnitAlone) {
  const Instance& instance = small_rnn().instance;
  EXPECT_EQ(cluster_units(instance, {.clusters = 0}).count, instance.units());
}

TEST(Clusters, HoldTheirCaps) {
  const Instance& instance = small_rnn().instance;
  const ClusterOptions options{.clusters = 20, .most_time = 2, .most_bound = 0.3};
  const Clusters clusters = cluster_units(instance, options);
  std::vector<double> time(clusters.count), members(clusters.count);
  double all = 0;
  for (std::size_t u = 0; u < instance.units(); ++u) {
    for (const TaskId task : instance.tasks_of[u]) {
      time[clusters.of_unit[u]] += static_cast<double>(instance.time_on(task, DeviceId(0)).count());
      all += static_cast<double>(instance.time_on(task, DeviceId(0)).count());
    }
    members[clusters.of_unit[u]] += 1;
  }
  const double most = std::max(all * 2 / 20, all * 0.3 / 2);
  for (std::size_t c = 0; c < clusters.count; ++c) {
    if (members[c] > 1) {
      EXPECT_LE(time[c], most * (1 + 1e-9)) << c;
    }
  }
}

// The steps in time of a layer each send a gradient of all its weights: parting them costs more than it
// gains.
TEST(Clusters, StepsThatShareWeightsComeTogether) {
  const Instance& instance = small_rnn().instance;
  const Clusters clusters = cluster_units(
      instance, {.clusters = 40, .most_bound = 2, .parts = layers_of(instance, small_rnn().graph)});
  std::set<std::uint32_t> of_products;
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    const Operator& op = small_rnn().graph.op(instance.op[t]);
    const bool product =
        op.role == OperatorRole::kForward && op.module_path.starts_with("layers.1") &&
        (op.target.find("mm") != std::string::npos || op.target.find("linear") != std::string::npos);
    if (product) of_products.insert(clusters.of_unit[instance.unit[t].index()]);
  }
  EXPECT_EQ(of_products.size(), 1U);
}

TEST(Clusters, PartsStayApartWhileTheAimAllowsIt) {
  const Instance& instance = small_rnn().instance;
  const std::vector<std::uint32_t> parts = layers_of(instance, small_rnn().graph);
  const Clusters clusters = cluster_units(
      instance, {.clusters = 30, .most_time = 1e9, .most_memory = 1e9, .most_bound = 1e9, .parts = parts});
  std::vector<std::set<std::uint32_t>> of(clusters.count);
  for (std::size_t u = 0; u < instance.units(); ++u) of[clusters.of_unit[u]].insert(parts[u]);
  for (const std::set<std::uint32_t>& in_cluster : of) EXPECT_EQ(in_cluster.size(), 1U);
}

TEST(Clusters, PlacementsOfClustersAndOfUnitsAreOne) {
  const Instance& instance = small_rnn().instance;
  const Clusters clusters = cluster_units(instance, {.clusters = 12});
  std::vector<DeviceId> device;
  for (std::size_t c = 0; c < clusters.count; ++c) device.emplace_back(c % 2);
  EXPECT_EQ(devices_of_clusters(instance, clusters, assignment_of_clusters(clusters, device)), device);
}

}  // namespace
}  // namespace espalier::placement
