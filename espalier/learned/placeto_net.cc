#include "espalier/learned/placeto_net.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <limits>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"

namespace espalier::placement {
namespace {

constexpr auto kDirectionWidth = static_cast<std::int64_t>(kPlacetoWidth);
constexpr std::int64_t kLayerWidth = 16;  // of embeddings without directions
constexpr std::int64_t kHeadWidth = 32;   // of the layer before the devices
constexpr std::size_t kNeighbourLayers = 2;

PassEdges view_of(const at::Tensor& begin, const at::Tensor& from, std::int64_t rounds) {
  return {.nodes = static_cast<std::size_t>(begin.size(0) - 1),
          .rounds = static_cast<std::size_t>(rounds),
          .begin = {begin.const_data_ptr<std::int32_t>(), static_cast<std::size_t>(begin.size(0))},
          .from = {from.const_data_ptr<std::int32_t>(), static_cast<std::size_t>(from.size(0))}};
}

class DirectedPass : public torch::autograd::Function<DirectedPass> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weights, const at::Tensor& biases, const at::Tensor& begin,
                            const at::Tensor& from, std::int64_t rounds) {
    const PassEdges edges = view_of(begin, from, rounds);
    const at::Tensor in = x.contiguous();
    const std::int64_t states = in.size(0);
    const std::size_t numbers = edges.nodes * kPlacetoWidth;
    at::Tensor kept = at::empty({states, static_cast<std::int64_t>(pass_kept(edges))}, in.options());
    at::Tensor h = at::empty_like(in);
    for (std::size_t b = 0; b < static_cast<std::size_t>(states); ++b) {
      pass_forward(edges, weights.const_data_ptr<float>(), biases.const_data_ptr<float>(),
                   in.const_data_ptr<float>() + b * numbers,
                   kept.mutable_data_ptr<float>() + b * pass_kept(edges),
                   h.mutable_data_ptr<float>() + b * numbers);
    }
    context->saved_data["rounds"] = rounds;
    context->save_for_backward({in, weights, biases, begin, from, kept});
    return h;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weights = saved[1], &biases = saved[2], &kept = saved[5];
    const PassEdges edges = view_of(saved[3], saved[4], context->saved_data["rounds"].toInt());
    const std::size_t numbers = edges.nodes * kPlacetoWidth;
    const at::Tensor turned = weights.detach().transpose(1, 2).contiguous();
    at::Tensor of_x = gradients[0].contiguous().clone();
    at::Tensor of_weights = at::zeros(weights.sizes(), of_x.options());
    at::Tensor of_biases = at::zeros(biases.sizes(), of_x.options());
    at::Tensor work = at::empty({3, static_cast<std::int64_t>(numbers)}, of_x.options());
    for (std::size_t b = 0; b < static_cast<std::size_t>(of_x.size(0)); ++b) {
      pass_backward(edges,
                    {.weight = weights.const_data_ptr<float>(),
                     .turned = turned.const_data_ptr<float>(),
                     .bias = biases.const_data_ptr<float>(),
                     .x = x.const_data_ptr<float>() + b * numbers,
                     .kept = kept.const_data_ptr<float>() + b * pass_kept(edges)},
                    {.of_state = of_x.mutable_data_ptr<float>() + b * numbers,
                     .of_weight = of_weights.mutable_data_ptr<float>(),
                     .of_bias = of_biases.mutable_data_ptr<float>(),
                     .work = work.mutable_data_ptr<float>()});
    }
    return {of_x, of_weights, of_biases, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor whole_numbers(const std::vector<std::uint32_t>& values, at::ScalarType type) {
  const std::vector<std::int64_t> wide(values.begin(), values.end());
  return at::from_blob(const_cast<std::int64_t*>(wide.data()), {static_cast<std::int64_t>(wide.size())},
                       at::kLong)
      .to(type, /*non_blocking=*/false, /*copy=*/true);
}

at::Tensor floats_of(const std::vector<float>& values, at::IntArrayRef sizes) {
  return at::from_blob(const_cast<float*>(values.data()), sizes, at::kFloat).clone();
}

}  // namespace

DirectedEdges directed_edges(const PlacetoGraph& graph, PassDirection direction, std::size_t rounds) {
  const Lists<std::uint32_t>& lists = direction == PassDirection::kForward ? graph.before : graph.after;
  return {whole_numbers(lists.begin, at::kInt), whole_numbers(lists.items, at::kInt),
          static_cast<std::int64_t>(rounds)};
}

at::Tensor directed_pass(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& biases,
                         const DirectedEdges& edges) {
  ESP_CHECK(x.size(2) == kDirectionWidth && x.size(1) + 1 == edges.begin.size(0), x.size(1), x.size(2));
  ESP_CHECK(weights.is_contiguous() && biases.is_contiguous());
  return DirectedPass::apply(x, weights, biases, edges.begin, edges.from, edges.rounds);
}

at::Tensor PlacetoNet::make(const std::string& name, std::initializer_list<std::int64_t> sizes,
                            double scale) {
  at::Tensor tensor = drawn_weight(stream_key(seed_, {weights_.size()}), sizes, scale, at::kCPU);
  weights_.emplace_back(name, tensor);
  return tensor;
}

// Glorot, Bengio (AISTATS'10).
PlacetoNet::Dense PlacetoNet::make_dense(const std::string& name, std::int64_t from, std::int64_t to) {
  Dense made;
  made.weight = make(name + ".weight", {to, from}, std::sqrt(6.0 / static_cast<double>(from + to)));
  made.bias = make(name + ".bias", {to}, 0);
  return made;
}

void PlacetoNet::make_passes(const PlacetoGraph& graph, std::size_t rounds) {
  for (const PassDirection direction : {PassDirection::kForward, PassDirection::kBackward}) {
    const std::string name = direction == PassDirection::kForward ? "forward" : "backward";
    Pass pass;
    pass.own = make_dense(name + ".own", static_cast<std::int64_t>(graph.features()), kDirectionWidth);
    pass.weights = make(name + ".weights", {4, kDirectionWidth, kDirectionWidth},
                        std::sqrt(3.0 / static_cast<double>(kDirectionWidth)));
    pass.biases = make(name + ".biases", {4, kDirectionWidth}, 0);
    pass.edges = directed_edges(graph, direction, rounds);
    passes_.push_back(std::move(pass));
  }
  width_ = 2 * kDirectionWidth;
}

void PlacetoNet::make_layers(const PlacetoGraph& graph) {
  const bool anchored = embedding_ == PlacetoEmbedding::kPGnn;
  enter_ = make_dense("enter", static_cast<std::int64_t>(graph.features()), kLayerWidth);
  for (std::size_t i = 0; i < kNeighbourLayers; ++i) {
    const std::string name = "layer." + std::to_string(i);
    layers_.push_back({make_dense(name + ".other", kLayerWidth, kLayerWidth),
                       make_dense(name + ".own", anchored ? kLayerWidth : 2 * kLayerWidth, kLayerWidth)});
  }
  if (!anchored) {
    neighbours_ = floats_of(neighbour_rows(graph), {nodes_, nodes_});
    width_ = kLayerWidth;
    return;
  }
  const Anchors anchors = draw_anchors(graph, stream_key(seed_, {1000}));
  anchor_sets_ = static_cast<std::int64_t>(anchors.sets);
  anchor_nearest_ = whole_numbers(anchors.nearest, at::kLong);
  anchor_near_ = floats_of(anchors.closeness, {nodes_ * anchor_sets_, 1});
  position_ = make_dense("position", kLayerWidth, 1);
  width_ = kLayerWidth + anchor_sets_;
}

PlacetoNet::PlacetoNet(const PlacetoGraph& graph, PlacetoEmbedding embedding, std::size_t rounds,
                       std::uint64_t seed)
    : embedding_(embedding), seed_(seed), nodes_(static_cast<std::int64_t>(graph.nodes)) {
  if (embedding == PlacetoEmbedding::kMessagePassing) {
    make_passes(graph, rounds);
  } else {
    make_layers(graph);
  }
  const auto devices = static_cast<std::int64_t>(graph.devices);
  hidden_ = make_dense("hidden", 4 * width_, kHeadWidth);
  devices_.weight = make("devices.weight", {devices, kHeadWidth}, 0);
  devices_.bias = make("devices.bias", {devices}, 0);
  pooling_ = floats_of(pooling_rows(graph), {nodes_, 3, nodes_});
  std::vector<float> bars;
  for (const char allowed : graph.allowed)
    bars.push_back(allowed != 0 ? 0 : -std::numeric_limits<float>::infinity());
  barred_ = floats_of(bars, {nodes_, devices});
}

at::Tensor PlacetoNet::embed_by_neighbours(const at::Tensor& features) const {
  at::Tensor h = at::relu(enter_(features));
  for (const Heard& layer : layers_) {
    const at::Tensor heard = at::matmul(neighbours_, at::relu(layer.other(h)));
    h = at::relu(layer.own(at::cat({h, heard}, 2))) + h;
  }
  return h;
}

at::Tensor PlacetoNet::embed_by_anchors(const at::Tensor& features) const {
  const std::int64_t states = features.size(0);
  at::Tensor h = at::relu(enter_(features)), heard;
  for (const Heard& layer : layers_) {
    const at::Tensor other = layer.other(h).index_select(1, anchor_nearest_) * anchor_near_;
    heard = at::relu(other.view({states, nodes_, anchor_sets_, kLayerWidth}) + layer.own(h).unsqueeze(2));
    h = heard.mean(2);
  }
  return at::cat({h, position_(heard).squeeze(3)}, 2);
}

at::Tensor PlacetoNet::embed(const at::Tensor& features) const {
  if (embedding_ == PlacetoEmbedding::kGraphSage) return embed_by_neighbours(features);
  if (embedding_ == PlacetoEmbedding::kPGnn) return embed_by_anchors(features);
  std::vector<at::Tensor> both;
  for (const Pass& pass : passes_)
    both.push_back(directed_pass(pass.own(features), pass.weights, pass.biases, pass.edges));
  return at::cat(both, 2);
}

at::Tensor PlacetoNet::logits(const at::Tensor& features, const at::Tensor& current) const {
  const std::int64_t states = features.size(0);
  const at::Tensor embedded = embed(features);
  const at::Tensor place = at::arange(states, at::kLong) * nodes_ + current;
  const at::Tensor own = embedded.reshape({states * nodes_, width_}).index_select(0, place);
  const at::Tensor around = at::bmm(pooling_.index_select(0, current), embedded);  // [B, 3, E]
  const at::Tensor all = at::cat({own, around.reshape({states, 3 * width_})}, 1);
  return devices_(at::relu(hidden_(all))) + barred_.index_select(0, current);
}

}  // namespace espalier::placement
