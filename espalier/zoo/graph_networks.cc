#include "espalier/zoo/graph_networks.h"

#include <string>

#include "espalier/zoo/model_builder.h"

namespace espalier {
namespace {

// The sum over the edges of a chunk of what stands at their other ends, each times the edge's weight.
TensorId aggregated(ModelBuilder& out, const std::vector<TensorId>& sources, TensorId from, TensorId to,
                    TensorId weights, const ModelBuilder::Sizes& chunk) {
  const TensorId all = sources.size() > 1 ? out.concat("all", sources, 0) : sources[0];
  ModelBuilder::Sizes rows = chunk;
  rows[0] = out.sizes(from)[0];
  const TensorId neighbours = out.add("neighbours", "aten.index_select.default", {all, from}, rows);
  const TensorId weighted = out.map("weighted", "aten.mul.Tensor", {neighbours, weights});
  const TensorId zeros = out.generate("zeros", "aten.zeros.default", chunk);
  return out.add("aggregated", "aten.index_add.default", {zeros, to, weighted}, chunk);
}

}  // namespace

Graph build(const ChunkedGraphNetwork& model) {
  expect_sizes("gnn", {model.chunks, model.layers, model.vertices, model.edges, model.features, model.hidden,
                       model.classes});
  ModelBuilder out("gnn", kAnyBatch);
  const SizeExpr vertices = model.vertices * SizeExpr::batch(), edges = model.edges * SizeExpr::batch();
  const auto chunks = static_cast<std::size_t>(model.chunks);
  std::vector<TensorId> from, to, weights, labels, states;
  for (std::size_t c = 0; c < chunks; ++c) {
    const std::string number = "." + std::to_string(c);
    states.push_back(out.input("features" + number, {vertices, model.features}));
    from.push_back(out.input("from" + number, {edges}, DType::kI64));
    to.push_back(out.input("to" + number, {edges}, DType::kI64));
    weights.push_back(out.input("weights" + number, {edges, 1}));
    labels.push_back(out.input("labels" + number, {vertices}, DType::kI64));
  }
  for (std::int64_t l = 0; l < model.layers; ++l) {
    const std::string layer = "layers." + std::to_string(l);
    const std::int64_t width = l == 0 ? model.features : model.hidden;
    const TensorId weight = out.parameter(layer + ".weight", {model.hidden, width});
    const TensorId bias = out.parameter(layer + ".bias", {model.hidden});
    std::vector<TensorId> before = states, stale = states;
    for (std::size_t c = 1; c < chunks && l > 0; ++c)
      stale[c] = out.input("stale." + std::to_string(l) + "." + std::to_string(c), {vertices, width});
    for (std::size_t c = 0; c < chunks; ++c) {
      out.enter(layer + ".chunks." + std::to_string(c));
      std::vector<TensorId> sources = stale;
      for (std::size_t known = 0; known <= c; ++known) sources[known] = before[known];
      const TensorId sum = aggregated(out, sources, from[c], to[c], weights[c], {vertices, width});
      const TensorId made =
          out.add("linear", "aten.linear.default", {sum, weight, bias}, {vertices, model.hidden});
      states[c] = out.map("relu", "aten.relu.default", {made});
    }
  }
  const TensorId weight = out.parameter("classes.weight", {model.classes, model.hidden});
  const TensorId bias = out.parameter("classes.bias", {model.classes});
  std::vector<TensorId> losses;
  for (std::size_t c = 0; c < chunks; ++c) {
    out.enter("classes.chunks." + std::to_string(c));
    const TensorId logits =
        out.add("logits", "aten.linear.default", {states[c], weight, bias}, {vertices, model.classes});
    losses.push_back(out.cross_entropy("loss", logits, labels[c]));
  }
  out.enter("");
  const TensorId all = out.add("losses", "aten.stack.default", losses, {model.chunks});
  return out.finish(out.add("loss", "aten.mean.default", {all}, {}));
}

}  // namespace espalier
