#include <gtest/gtest.h>

#include <set>

#include "espalier/learned/workload.h"
#include "espalier/planners/placement/clusters.h"
#include "espalier/planners/placement/simple.h"

namespace espalier::placement {
namespace {

const Workload& small_rnn() {
  static const Workload kWorkload = make_workload(
      {"small", "rnnlm", {{"layers", 2}, {"hidden", 256}, {"length", 12}}, BatchSize(8), "2xP100-16GB", {}});
  return kWorkload;
}

// The steps in time of a layer each send a gradient of all its weights: parting them costs more than it
// gains.
TEST(ClustersOfNetworks, StepsThatShareWeightsComeTogether) {
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

TEST(ClustersOfNetworks, PartsStayApartWhileTheAimAllowsIt) {
  const Instance& instance = small_rnn().instance;
  const std::vector<std::uint32_t> parts = layers_of(instance, small_rnn().graph);
  const Clusters clusters = cluster_units(
      instance, {.clusters = 30, .most_time = 1e9, .most_memory = 1e9, .most_bound = 1e9, .parts = parts});
  std::vector<std::set<std::uint32_t>> of(clusters.count);
  for (std::size_t u = 0; u < instance.units(); ++u) of[clusters.of_unit[u]].insert(parts[u]);
  for (const std::set<std::uint32_t>& in_cluster : of) EXPECT_EQ(in_cluster.size(), 1U);
}

}  // namespace
}  // namespace espalier::placement
