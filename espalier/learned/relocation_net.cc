#include "espalier/learned/relocation_net.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "espalier/base/rng.h"

namespace espalier::placement {
namespace {

at::Tensor floats(const std::vector<float>& values, at::IntArrayRef sizes) {
  return at::from_blob(const_cast<float*>(values.data()), sizes, at::kFloat).clone();
}

at::Tensor whole_numbers(const std::vector<std::int64_t>& values, at::IntArrayRef sizes) {
  return at::from_blob(const_cast<std::int64_t*>(values.data()), sizes, at::kLong).clone();
}

at::Tensor shares_of(const std::vector<std::int64_t>& ends, std::size_t nodes) {
  std::vector<float> count(nodes, 0), share;
  for (const std::int64_t node : ends) count[static_cast<std::size_t>(node)] += 1;
  for (const float each : count) share.push_back(1 / std::max(1.0F, each));
  return floats(share, {static_cast<std::int64_t>(nodes), 1, 1});
}

}  // namespace

RelocationEdges::RelocationEdges(const RelocationGraph& graph)
    : nodes(static_cast<std::int64_t>(graph.nodes)),
      devices(static_cast<std::int64_t>(graph.devices)),
      edges(static_cast<std::int64_t>(graph.edges.size())) {
  std::vector<std::int64_t> begins, ends;
  for (const RelocationGraph::Edge& edge : graph.edges) {
    begins.push_back(edge.from);
    ends.push_back(edge.to);
  }
  from = whole_numbers(begins, {edges});
  to = whole_numbers(ends, {edges});
  in_share = shares_of(ends, graph.nodes);
  out_share = shares_of(begins, graph.nodes);
}

RelocationBatch::RelocationBatch(const RelocationGraph& graph, std::span<const RelocationView* const> views) {
  constexpr float kBarred = -std::numeric_limits<float>::infinity();
  const auto count = static_cast<std::int64_t>(views.size()), nodes = static_cast<std::int64_t>(graph.nodes);
  const auto devices = static_cast<std::int64_t>(graph.devices);
  const auto edges = static_cast<std::int64_t>(graph.edges.size());
  std::vector<float> all_numbers, bars, all_arrive, all_leave;
  std::vector<std::int64_t> where;
  for (const RelocationView* view : views) {
    all_numbers.insert(all_numbers.end(), view->numbers.begin(), view->numbers.end());
    all_arrive.insert(all_arrive.end(), view->arrive.begin(), view->arrive.end());
    all_leave.insert(all_leave.end(), view->leave.begin(), view->leave.end());
    where.insert(where.end(), view->stands.begin(), view->stands.end());
    for (const char may : view->moves) bars.push_back(may != 0 ? 0 : kBarred);
  }
  numbers = floats(all_numbers, {count, nodes, devices, static_cast<std::int64_t>(kOptionNumbers)});
  stands = whole_numbers(where, {count, nodes});
  barred = floats(bars, {count, nodes * devices});
  const auto of_edge = static_cast<std::int64_t>(kEdgeNumbers);
  arrive = floats(all_arrive, {count, edges, devices, of_edge});
  leave = floats(all_leave, {count, edges, devices, of_edge});
}

RelocationNet::Linear RelocationNet::make_linear(const std::string& name, std::int64_t from, std::int64_t to,
                                                 double gain) {
  const auto made = [&](const std::string& part, at::IntArrayRef sizes, double scale) {
    at::Tensor tensor = drawn_weight(stream_key(seed_, {weights_.size()}), sizes, scale, at::kCPU);
    weights_.emplace_back(name + part, tensor);
    return tensor;
  };
  const double scale = gain / std::sqrt(static_cast<double>(from));
  at::Tensor weight = made(".weight", {to, from}, scale);
  return {weight, made(".bias", {to}, scale)};
}

RelocationNet::Hearing RelocationNet::make_hearing(const std::string& name) {
  return {make_linear(name + ".option", shape_.width, shape_.width),
          make_linear(name + ".edge", static_cast<std::int64_t>(kEdgeNumbers), shape_.width)};
}

RelocationNet::RelocationNet(const RelocationShape& shape, std::uint64_t seed) : shape_(shape), seed_(seed) {
  const std::int64_t width = shape.width;
  enter_ = make_linear("enter", static_cast<std::int64_t>(kOptionNumbers), width);
  for (std::int64_t i = 0; i < shape.rounds; ++i) {
    const std::string name = "round." + std::to_string(i);
    Round round;
    round.inputs = make_hearing(name + ".inputs");
    round.outputs = make_hearing(name + ".outputs");
    round.update = make_linear(name + ".update", 3 * width, width);
    rounds_.push_back(round);
  }
  weigh_ = make_linear("weigh", 3 * width, width);
  score_ = make_linear("score", width, 1, 0.1);
}

at::Tensor RelocationNet::log_probabilities(const RelocationEdges& edges,
                                            const RelocationBatch& batch) const {
  const std::int64_t count = batch.stands.size(0);
  const at::Tensor index =
      batch.stands.view({count, edges.nodes, 1, 1}).expand({count, edges.nodes, 1, shape_.width});
  // Of each node the option where it stands: [B, n, d].
  const auto standing = [&](const at::Tensor& h) { return h.gather(2, index).squeeze(2); };
  const auto hear = [&](const Hearing& hearing, const at::Tensor& h, const at::Tensor& numbers,
                        const at::Tensor& who, const at::Tensor& whom, const at::Tensor& share) {
    const at::Tensor told = hearing.from_option(h).index_select(1, who).unsqueeze(2);  // [B, edges, 1, d]
    const at::Tensor heard = at::relu(told + hearing.from_edge(numbers));
    return at::zeros({count, edges.nodes, edges.devices, shape_.width}, heard.options())
               .index_add(1, whom, heard) *
           share;
  };
  at::Tensor h = at::relu(enter_(batch.numbers));
  for (const Round& round : rounds_) {
    const at::Tensor now = standing(h);
    const at::Tensor inputs = hear(round.inputs, now, batch.arrive, edges.from, edges.to, edges.in_share);
    const at::Tensor outputs = hear(round.outputs, now, batch.leave, edges.to, edges.from, edges.out_share);
    h = h + at::relu(round.update(at::cat({h, inputs, outputs}, 3)));
  }
  const at::Tensor now = standing(h);
  const at::Tensor here = now.unsqueeze(2).expand_as(h);
  const at::Tensor graph = now.mean(1, true).unsqueeze(2).expand_as(h);
  const at::Tensor scores = score_(at::relu(weigh_(at::cat({h, here, graph}, 3))));
  return at::log_softmax(scores.view({count, edges.nodes * edges.devices}) + batch.barred, 1);
}

}  // namespace espalier::placement
