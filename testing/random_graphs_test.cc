#include "testing/random_graphs.h"

#include <gmock/gmock.h>

#include <set>

#include "espalier/base/json.h"
#include "espalier/cluster/json.h"
#include "espalier/cluster/text.h"
#include "espalier/graph/json.h"
#include "espalier/graph/text.h"

namespace espalier::testing {
namespace {

TEST(RandomGraphs, PassTheCheckerAndReadBack) {
  Rng rng(1);
  for (int round = 0; round < 500; ++round) {
    RandomGraphOptions options;
    options.operators = 1 + rng.below(30);
    options.shape = round % 3 == 0 ? GraphShape::kSeriesParallel : GraphShape::kDag;
    options.mutations = round % 2 == 0;
    options.loss = round % 5 != 0;
    options.one_class_each = round % 7 == 0;
    const Graph g = random_graph(rng, options);
    const std::string text = print_graph(g);
    ASSERT_EQ(check_graph(g.parts()), std::vector<std::string>());
    ASSERT_EQ(parse_graph(text), g) << text;
    ASSERT_EQ(graph_from_json(graph_to_json(g), "g"), g) << text;
  }
}

TEST(RandomGraphs, HaveEveryFeatureSomewhere) {
  Rng rng(2);
  std::set<std::string> seen;
  for (int round = 0; round < 200; ++round) {
    const Graph g = random_graph(rng, {.operators = 20, .mutations = true});
    for (const Parameter& p : g.parameters()) {
      if (p.names.size() > 1) seen.insert("names");
      if (!p.trainable) seen.insert("frozen");
    }
    for (const Tensor& t : g.tensors()) {
      if (!is_floating_point(t.dtype) && t.producer) seen.insert("integer");
      for (const SizeExpr& size : t.sizes) seen.insert(size.constant() ? "fixed" : "batch");
    }
    if (g.storage_count() < g.tensors().size()) seen.insert("shared");
    for (std::size_t i = 0; i < g.tensors().size(); ++i) {
      if (g.tensor(TensorId(i)).parameter && g.readers(TensorId(i)).size() > 1) seen.insert("tie");
    }
    for (const Operator& op : g.operators()) {
      if (op.duplicable) seen.insert("duplicable");
      if (!op.mutates.empty()) seen.insert("mutates");
      if (op.colocation) seen.insert("colocation");
      if (op.outputs.size() > 1) seen.insert("two");
    }
    if (g.loss()) seen.insert("loss");
  }
  EXPECT_THAT(seen, ::testing::ElementsAre("batch", "colocation", "duplicable", "fixed", "frozen", "integer",
                                           "loss", "mutates", "names", "shared", "tie", "two"));
}

TEST(RandomGraphs, SameSeedSameGraph) {
  Rng a(3);
  Rng b(3);
  EXPECT_EQ(random_graph(a), random_graph(b));
  EXPECT_EQ(random_cluster(a), random_cluster(b));
}

TEST(SmallGraphs, AreAllOfThem) {
  const std::vector<Graph> graphs = all_small_graphs(4);
  EXPECT_EQ(graphs.size(), 1U + 2 + 8 + 64);
  std::set<std::string> different;
  for (const Graph& g : graphs) different.insert(print_graph(g));
  EXPECT_EQ(different.size(), graphs.size());
  EXPECT_EQ(all_small_graphs(5).size(), graphs.size() + 1024);
}

TEST(RandomClusters, PassTheCheckerAndReadBack) {
  Rng rng(4);
  for (int round = 0; round < 200; ++round) {
    const Cluster c = random_cluster(rng, {.max_devices = 9, .max_kinds = 3});
    ASSERT_EQ(parse_cluster_lines(print_cluster(c)), c);
    ASSERT_EQ(cluster_from_json(parse_json(print_json(cluster_to_json(c)), "c"), "c"), c);
  }
}

}  // namespace
}  // namespace espalier::testing
