#include "espalier/learned/contrastive.h"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <numeric>

#include "espalier/base/rng.h"
#include "espalier/learned/policy_parts.h"
#include "espalier/learned/torch_threads.h"

namespace espalier::placement {
namespace {

// The same graph, each node with the features of another one.
NetInput with_other_rows(const NetInput& input, std::uint64_t key) {
  std::vector<std::int64_t> row(static_cast<std::size_t>(input.nodes)), node_of_row(row.size());
  std::iota(row.begin(), row.end(), std::int64_t{0});
  Rng rng(key);
  for (std::size_t i = row.size(); i > 1; --i) std::swap(row[i - 1], row[rng.below(i)]);
  for (std::size_t n = 0; n < row.size(); ++n)
    node_of_row[static_cast<std::size_t>(row[n])] = static_cast<std::int64_t>(n);
  const auto tensor = [&](std::vector<std::int64_t>& values) {
    return at::from_blob(values.data(), {input.nodes}, at::kLong).clone().to(input.numbers.device());
  };
  NetInput other = input;
  other.numbers = input.numbers.index_select(0, tensor(row));
  other.bag_of = tensor(node_of_row).index_select(0, input.bag_of);
  return other;
}

NamedTensors embedding_weights(const Net& net) {
  NamedTensors weights;
  for (const auto& [name, weight] : net.weights()) {
    if (name == "types" || name.starts_with("enter.") || name.starts_with("sage."))
      weights.emplace_back(name, weight);
  }
  return weights;
}

// [2 n]: how much each node, and then each of its counterparts, is held for one of the graph.
at::Tensor belonging(const Net& net, const NetInput& input, const NetInput& other,
                     const at::Tensor& discriminator) {
  const at::Tensor own = net.embed(input);
  const at::Tensor towards = at::matmul(discriminator, at::sigmoid(own.mean(0)));
  return at::matmul(at::cat({own, net.embed(other)}, 0), towards);
}

}  // namespace

std::vector<ContrastPoint> contrast(Policy& policy, std::span<const PolicyInput* const> inputs,
                                    const ContrastOptions& options, const Context& context) {
  std::vector<ContrastPoint> points;
  if (policy.is_table() || inputs.empty() || options.epochs == 0) return points;
  const Net& net = *policy.parts().net;
  std::vector<NetInput> graphs;
  for (const PolicyInput* input : inputs) graphs.emplace_back(*input, net.shape(), net.device());
  const std::int64_t width = net.shape().width;
  const at::Tensor discriminator = drawn_weight(stream_key(options.seed, {4}), {width, width},
                                                std::sqrt(3.0 / static_cast<double>(width)), net.device());
  NamedTensors weights = embedding_weights(net);
  weights.emplace_back("discriminator", discriminator);
  Adam adam(std::move(weights));
  for (std::uint64_t epoch = 0; epoch < options.epochs; ++epoch) {
    ContrastPoint point;
    for (std::size_t i = 0; i < graphs.size(); ++i) {
      if (context.stop()) return points;
      const NetInput& graph = graphs[i];
      const FewTorchThreads few(static_cast<std::size_t>(graph.nodes));
      const NetInput other = with_other_rows(graph, stream_key(options.seed, {5, epoch, i}));
      const at::Tensor told = belonging(net, graph, other, discriminator);
      const at::Tensor sign = at::cat({at::ones({graph.nodes}, told.options().requires_grad(false)),
                                       at::full({graph.nodes}, -1, told.options().requires_grad(false))});
      const at::Tensor loss = at::softplus(-sign * told).mean();
      point.loss += loss.item<double>() / static_cast<double>(graphs.size());
      point.right +=
          (sign * told > 0).to(at::kFloat).mean().item<double>() / static_cast<double>(graphs.size());
      adam.step(loss, options.learning_rate, options.most_norm);
    }
    points.push_back(point);
  }
  return points;
}

}  // namespace espalier::placement
