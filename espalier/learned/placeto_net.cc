#include "espalier/learned/placeto_net.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/learned/placeto_pass.h"

namespace espalier::placement {
namespace {

constexpr std::int64_t kWide = kPlacetoWidth;
constexpr std::int64_t kHidden = 32;  // of the last layers
constexpr std::size_t kNeighbourLayers = 2;

PassEdges view_of(const at::Tensor& sequence, const at::Tensor& begin, const at::Tensor& from) {
  return {sequence.size(0), sequence.const_data_ptr<std::int64_t>(), begin.const_data_ptr<std::int64_t>(),
          from.const_data_ptr<std::int64_t>()};
}

class DirectedPass : public torch::autograd::Function<DirectedPass> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weights, const at::Tensor& biases, const at::Tensor& sequence,
                            const at::Tensor& begin, const at::Tensor& from) {
    const at::Tensor in = x.contiguous();
    const std::int64_t states = in.size(0), nodes = in.size(1);
    at::Tensor kept = at::zeros({states, nodes, kPassKept, kWide}, in.options());
    const PassEdges edges = view_of(sequence, begin, from);
    for (std::int64_t b = 0; b < states; ++b) {
      pass_forward(edges, weights.const_data_ptr<float>(), biases.const_data_ptr<float>(),
                   in.const_data_ptr<float>() + b * nodes * kWide,
                   kept.mutable_data_ptr<float>() + b * nodes * kPassKept * kWide);
    }
    context->save_for_backward({kept, weights, sequence, begin, from});
    return kept.select(2, static_cast<std::int64_t>(PassKept::kState)).contiguous();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor turned = saved[1].detach().transpose(1, 2).contiguous();
    at::Tensor of_state = gradients[0].contiguous().clone();
    const std::int64_t states = of_state.size(0), nodes = of_state.size(1);
    at::Tensor of_message = at::zeros({nodes, kWide}, of_state.options());
    at::Tensor of_weights = at::zeros({4, kWide, kWide}, of_state.options());
    at::Tensor of_biases = at::zeros({4, kWide}, of_state.options());
    const PassEdges edges = view_of(saved[2], saved[3], saved[4]);
    for (std::int64_t b = 0; b < states; ++b) {
      of_message.zero_();
      pass_backward(
          edges, turned.const_data_ptr<float>(),
          saved[0].const_data_ptr<float>() + b * nodes * kPassKept * kWide,
          {of_state.mutable_data_ptr<float>() + b * nodes * kWide, of_message.mutable_data_ptr<float>(),
           of_weights.mutable_data_ptr<float>(), of_biases.mutable_data_ptr<float>()});
    }
    return {of_state, of_weights, of_biases, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor longs_of(const std::vector<std::uint32_t>& values) {
  const std::vector<std::int64_t> wide(values.begin(), values.end());
  return at::from_blob(const_cast<std::int64_t*>(wide.data()), {static_cast<std::int64_t>(wide.size())},
                       at::kLong)
      .clone();
}

at::Tensor floats_of(const std::vector<float>& values, at::IntArrayRef sizes) {
  return at::from_blob(const_cast<float*>(values.data()), sizes, at::kFloat).clone();
}

}  // namespace

DirectedEdges directed_edges(const PlacetoGraph& graph, PassDirection direction) {
  const bool forward = direction == PassDirection::kForward;
  const Lists<std::uint32_t>& lists = forward ? graph.before : graph.after;
  std::vector<std::uint32_t> sequence = graph.sequence;
  if (!forward) std::reverse(sequence.begin(), sequence.end());
  return {longs_of(sequence), longs_of(lists.begin), longs_of(lists.items)};
}

at::Tensor directed_pass(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& biases,
                         const DirectedEdges& edges) {
  ESP_CHECK(x.size(2) == kWide && weights.is_contiguous() && biases.is_contiguous(), x.size(2));
  return DirectedPass::apply(x, weights, biases, edges.sequence, edges.begin, edges.from);
}

at::Tensor PlacetoNet::make(const std::string& name, std::initializer_list<std::int64_t> sizes,
                            double scale) {
  const at::Tensor tensor = drawn_weight(stream_key(seed_, {weights_.size()}), sizes, scale, at::kCPU);
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

void PlacetoNet::make_passes(const PlacetoGraph& graph) {
  for (const PassDirection direction : {PassDirection::kForward, PassDirection::kBackward}) {
    const std::string name = direction == PassDirection::kForward ? "forward" : "backward";
    Pass pass;
    pass.own = make_dense(name + ".own", static_cast<std::int64_t>(graph.features()), kWide);
    pass.weights = make(name + ".weights", {4, kWide, kWide}, std::sqrt(3.0 / kWide));
    pass.biases = make(name + ".biases", {4, kWide}, 0);
    pass.edges = directed_edges(graph, direction);
    passes_.push_back(std::move(pass));
  }
  width_ = 2 * kWide;
}

void PlacetoNet::make_layers(const PlacetoGraph& graph) {
  const bool anchored = embedding_ == PlacetoEmbedding::kPGnn;
  enter_ = make_dense("enter", static_cast<std::int64_t>(graph.features()), kWide);
  for (std::size_t i = 0; i < kNeighbourLayers; ++i) {
    const std::string name = "layer." + std::to_string(i);
    layers_.push_back({make_dense(name + ".other", kWide, kWide),
                       make_dense(name + ".own", anchored ? kWide : 2 * kWide, kWide)});
  }
  if (!anchored) {
    neighbours_ = floats_of(neighbour_rows(graph), {nodes_, nodes_});
    width_ = kWide;
    return;
  }
  const Anchors anchors = draw_anchors(graph, stream_key(seed_, {1000}));
  anchor_sets_ = static_cast<std::int64_t>(anchors.sets);
  anchor_nearest_ = longs_of(anchors.nearest);
  anchor_near_ = floats_of(anchors.closeness, {nodes_ * anchor_sets_, 1});
  position_ = make_dense("position", kWide, 1);
  width_ = kWide + anchor_sets_;
}

PlacetoNet::PlacetoNet(const PlacetoGraph& graph, PlacetoEmbedding embedding, std::uint64_t seed)
    : embedding_(embedding), seed_(seed), nodes_(static_cast<std::int64_t>(graph.nodes)) {
  if (embedding == PlacetoEmbedding::kMessagePassing) {
    make_passes(graph);
  } else {
    make_layers(graph);
  }
  const auto devices = static_cast<std::int64_t>(graph.devices);
  hidden_ = make_dense("hidden", 4 * width_, kHidden);
  devices_ = make_dense("devices", kHidden, devices);
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
    heard = at::relu(other.view({states, nodes_, anchor_sets_, kWide}) + layer.own(h).unsqueeze(2));
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
