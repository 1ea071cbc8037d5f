#include "espalier/learned/net.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/learned/spectral.h"
#include "espalier/learned/weights.h"

namespace espalier::placement {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

template <class T>
at::Tensor tensor_of(const std::vector<T>& values, std::initializer_list<std::int64_t> sizes,
                     at::Device device) {
  constexpr at::ScalarType kType = std::is_same_v<T, float> ? at::kFloat : at::kLong;
  return at::from_blob(const_cast<T*>(values.data()), sizes, at::TensorOptions(kType)).clone().to(device);
}

std::vector<std::int64_t> longs(std::span<const std::uint32_t> values) {
  return {values.begin(), values.end()};
}

class NeighbourMax : public torch::autograd::Function<NeighbourMax> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& from, const at::Tensor& begin) {
    const at::Tensor input = x.contiguous();
    const std::int64_t nodes = begin.size(0) - 1, width = input.size(1);
    at::Tensor out = at::zeros({nodes, width}, input.options());
    at::Tensor winner = at::full({nodes, width}, -1, input.options().dtype(at::kInt));
    const float* values = input.const_data_ptr<float>();
    const auto* sources = from.const_data_ptr<std::int64_t>();
    const auto* starts = begin.const_data_ptr<std::int64_t>();
    float* best = out.mutable_data_ptr<float>();
    int* best_source = winner.mutable_data_ptr<int>();
    for (std::int64_t node = 0; node < nodes; ++node) {
      for (std::int64_t e = starts[node]; e < starts[node + 1]; ++e) {
        const float* row = values + sources[e] * width;
        for (std::int64_t i = 0; i < width; ++i) {
          const std::int64_t at = node * width + i;
          if (e > starts[node] && row[i] <= best[at]) continue;
          best[at] = row[i];
          best_source[at] = static_cast<int>(sources[e]);
        }
      }
    }
    context->save_for_backward({winner});
    context->saved_data["rows"] = input.size(0);
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor winner = context->get_saved_variables()[0];
    const at::Tensor gradient = gradients[0].contiguous();
    const std::int64_t nodes = winner.size(0), width = winner.size(1);
    at::Tensor result = at::zeros({context->saved_data["rows"].toInt(), width}, gradient.options());
    const int* source = winner.const_data_ptr<int>();
    const float* given = gradient.const_data_ptr<float>();
    float* sum = result.mutable_data_ptr<float>();
    for (std::int64_t node = 0; node < nodes; ++node) {
      for (std::int64_t i = 0; i < width; ++i) {
        const std::int64_t at = node * width + i;
        if (source[at] >= 0) sum[source[at] * width + i] += given[at];
      }
    }
    return {result, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor neighbour_max(const at::Tensor& x, const at::Tensor& from, const at::Tensor& to,
                         const at::Tensor& begin) {
  if (x.is_cpu()) return NeighbourMax::apply(x, from, begin);
  const std::int64_t nodes = begin.size(0) - 1;
  const at::Tensor index = to.unsqueeze(1).expand({to.size(0), x.size(1)});
  return at::zeros({nodes, x.size(1)}, x.options())
      .scatter_reduce(0, index, x.index_select(0, from), "amax", /*include_self=*/false);
}

at::Tensor centred(const at::Tensor& logits, const NetInput& input) {
  const at::Tensor mean = (logits * input.work).sum(0, true);
  return logits - mean + at::matmul(mean, input.kinds.t());
}

NetInput::NetInput(const PolicyInput& input, const PolicyShape& shape, at::Device device)
    : nodes(static_cast<std::int64_t>(input.nodes)),
      devices(static_cast<std::int64_t>(input.devices)),
      segments((nodes + shape.segment - 1) / shape.segment) {
  ESP_CHECK(nodes > 0, nodes);
  numbers = tensor_of(input.numbers, {nodes, static_cast<std::int64_t>(kNodeNumbers)}, device);
  if (shape.spectral > 0) {
    const std::vector<float> positions =
        spectral_positions(input.neighbours, static_cast<std::size_t>(shape.spectral));
    numbers = at::cat({numbers, tensor_of(positions, {nodes, shape.spectral}, device)}, 1);
  }
  std::vector<std::int64_t> owner, target, starts(1);
  for (std::size_t n = 0; n < input.nodes; ++n) {
    owner.insert(owner.end(), input.types[n].size(), static_cast<std::int64_t>(n));
    target.insert(target.end(), input.neighbours[n].size(), static_cast<std::int64_t>(n));
    starts.push_back(static_cast<std::int64_t>(target.size()));
  }
  const auto bags = static_cast<std::int64_t>(owner.size()), edges = static_cast<std::int64_t>(target.size());
  types = tensor_of(longs(input.types.items), {bags}, device);
  bag_of = tensor_of(owner, {bags}, device);
  type_share = tensor_of(input.type_share, {bags, 1}, device);
  from = tensor_of(longs(input.neighbours.items), {edges}, device);
  to = tensor_of(target, {edges}, device);
  begin = tensor_of(starts, {nodes + 1}, device);
  std::vector<std::int64_t> slot(static_cast<std::size_t>(segments * shape.segment)), place(input.nodes);
  const auto window = static_cast<std::size_t>(shape.segment);
  std::vector<float> masked(static_cast<std::size_t>(segments) * 2 * window, kNever);
  for (std::size_t i = 0; i < input.nodes; ++i) {
    slot[i] = input.order[i];
    place[input.order[i]] = static_cast<std::int64_t>(i);
    const std::size_t segment = i / window, inside = i % window;
    masked[segment * 2 * window + window + inside] = 0;
    if (segment + 1 < static_cast<std::size_t>(segments)) masked[(segment + 1) * 2 * window + inside] = 0;
  }
  slots = tensor_of(slot, {segments * shape.segment}, device);
  place_of = tensor_of(place, {nodes}, device);
  mask = tensor_of(masked, {segments, 1, 1, 2 * shape.segment}, device);
  device_numbers =
      tensor_of(input.device_numbers, {devices, static_cast<std::int64_t>(kDeviceNumbers)}, device);
  slowness = tensor_of(input.slowness, {nodes, devices}, device);
  work = tensor_of(input.work, {nodes, 1}, device);
  std::vector<float> bars(input.allowed.size());
  for (std::size_t i = 0; i < bars.size(); ++i) {
    if (input.allowed[i] != 0) continue;
    bars[i] = kNever;
    any_barred = true;
  }
  barred = tensor_of(bars, {nodes, devices}, device);
  std::vector<float> average(input.devices * input.devices);
  for (std::size_t d = 0; d < input.devices; ++d) {
    const auto equals = std::count(input.equal_to.begin(), input.equal_to.end(), input.equal_to[d]);
    for (std::size_t e = 0; e < input.devices; ++e) {
      if (input.equal_to[e] == input.equal_to[d])
        average[d * input.devices + e] = 1.0F / static_cast<float>(equals);
    }
  }
  kinds = tensor_of(average, {devices, devices}, device);
  if (shape.coarsening != Coarsening::kNone) join.emplace(input, device);
  by_priority = input.by_priority;
}

at::Tensor Net::make(const std::string& name, std::initializer_list<std::int64_t> sizes, double scale) {
  at::Tensor tensor = drawn_weight(stream_key(seed_, {weights_.size()}), sizes, scale, device_);
  weights_.emplace_back(name, tensor);
  return tensor;
}

Net::Linear Net::make_linear(const std::string& name, std::int64_t from, std::int64_t to, double gain) {
  const double scale = gain * std::sqrt(3.0 / static_cast<double>(from));
  Linear made;
  made.weight = make(name + ".weight", {to, from}, scale);
  made.bias = make(name + ".bias", {to}, 0);
  return made;
}

Net::Norm Net::make_norm(const std::string& name, std::int64_t width) {
  Norm made;
  made.weight = make(name + ".weight", {width}, 0);
  made.bias = make(name + ".bias", {width}, 0);
  at::NoGradGuard guard;
  made.weight.fill_(1);
  return made;
}

Net::Net(const PolicyShape& shape, std::uint64_t seed, at::Device device)
    : shape_(shape), device_(device), seed_(seed) {
  const std::int64_t width = shape.width;
  ESP_CHECK(width % shape.heads == 0, width, shape.heads);
  type_table_ = make("types", {static_cast<std::int64_t>(kOperatorTypes), width}, 0.5);
  enter_ = make_linear("enter", static_cast<std::int64_t>(kNodeNumbers) + shape.spectral, width);
  for (std::int64_t i = 0; i < shape.sage_layers; ++i) {
    const std::string name = "sage." + std::to_string(i);
    sages_.push_back(
        {make_linear(name + ".message", width, width), make_linear(name + ".update", 2 * width, width)});
  }
  for (std::int64_t i = 0; i < shape.attention_layers; ++i) {
    attentions_.push_back(make_attention("attention." + std::to_string(i)));
  }
  last_ = make_norm("last", width);
  if (shape.refinements > 0) feedback_ = make_linear("feedback", width, width);
  device_enter_ = make_linear("device.enter", static_cast<std::int64_t>(kDeviceNumbers), width);
  device_out_ = make_linear("device.out", width, width);
  head_ = make_linear("head", width, width, 0.1);
  speed_ = make_linear("speed", width, 1, 0.1);
  if (shape.priorities > 0) level_head_ = make_level_head();
  if (shape.coarsening == Coarsening::kLearned) {
    join_head_ = {make_norm("join.before", width),
                  make_linear("join.from", width, width),
                  make_linear("join.to", width, width),
                  make_linear("join.edge", static_cast<std::int64_t>(kJoinNumbers), width),
                  make_linear("join.out", width, 1, 0.1),
                  make_linear("join.own", width, 1, 0.1)};
  }
  if (shape.told_order) by_priority_ = make("by_priority", {width}, 0.5);
}

Net::Attention Net::make_attention(const std::string& name) {
  const std::int64_t width = shape_.width;
  Attention layer;
  layer.before = make_norm(name + ".before", width);
  layer.qkv = make_linear(name + ".qkv", width, 3 * width);
  layer.out = make_linear(name + ".out", width, width, 0.5);
  layer.between = make_norm(name + ".between", width);
  layer.widen = make_linear(name + ".widen", width, 2 * width);
  layer.narrow = make_linear(name + ".narrow", 2 * width, width, 0.5);
  if (shape_.gate != Gate::kNone) {
    layer.gate_qkv = make_linear(name + ".gate_qkv", width, width);
    layer.gate_out = make_linear(name + ".gate_out", width, width);
    layer.gate_widen = make_linear(name + ".gate_widen", width, width);
  }
  return layer;
}

Net::LevelHead Net::make_level_head() {
  constexpr double kOfTheMiddle = 0.8;  // its probability in the beginning
  const std::int64_t width = shape_.width, levels = shape_.priorities;
  LevelHead head;
  head.placed = make_linear("level.placed", width, width);
  head.attention = make_attention("level.attention");
  head.last = make_norm("level.last", width);
  head.out = make_linear("level.out", width, levels, 0.1);
  const at::NoGradGuard guard;
  const double others = static_cast<double>(levels - 1) * kOfTheMiddle / (1 - kOfTheMiddle);
  head.out.bias[levels / 2] += std::log(std::max(1.0, others));
  return head;
}

at::Tensor Net::embed(const NetInput& input) const {
  const at::Tensor entries = type_table_.index_select(0, input.types) * input.type_share;
  const at::Tensor type =
      at::zeros({input.nodes, shape_.width}, entries.options()).index_add(0, input.bag_of, entries);
  at::Tensor entered = enter_(input.numbers) + type;
  if (by_priority_.defined() && input.by_priority) entered = entered + by_priority_;
  at::Tensor h = at::relu(entered);
  for (const Sage& sage : sages_) {
    const at::Tensor heard = neighbour_max(at::sigmoid(sage.message(h)), input.from, input.to, input.begin);
    h = at::relu(sage.update(at::cat({h, heard}, 1))) + h;
  }
  return h;
}

at::Tensor Net::attend(const Attention& layer, at::Tensor x, const at::Tensor& context,
                       const NetInput& input) const {
  const auto gated = [&](const at::Tensor& value, const Linear& gate) {
    return shape_.gate == Gate::kNone ? value : value * (2 * at::sigmoid(gate(context)));
  };
  const std::int64_t segment = shape_.segment, heads = shape_.heads, each = shape_.width / heads;
  const at::Tensor qkv = layer.qkv(gated(layer.before(x), layer.gate_qkv))
                             .index_select(0, input.slots)
                             .view({input.segments, segment, 3, heads, each})
                             .permute({2, 0, 3, 1, 4});  // [3, segments, heads, S, each]
  const auto with_memory = [&](const at::Tensor& own) {
    const at::Tensor nothing = at::zeros({1, heads, segment, each}, own.options());
    const at::Tensor before = at::cat({nothing, own.slice(0, 0, input.segments - 1).detach()}, 0);
    return at::cat({before, own}, 2);
  };
  const at::Tensor mask = input.mask.expand({input.segments, 1, segment, 2 * segment});
  const at::Tensor mixed =
      at::scaled_dot_product_attention(qkv[0], with_memory(qkv[1]), with_memory(qkv[2]), mask)
          .permute({0, 2, 1, 3})
          .reshape({input.segments * segment, shape_.width})
          .index_select(0, input.place_of);
  x = x + layer.out(gated(mixed, layer.gate_out));
  return x + layer.narrow(at::relu(layer.widen(gated(layer.between(x), layer.gate_widen))));
}

NetAnswer Net::answer(const NetInput& input) const {
  const at::Tensor h = embed(input);
  const at::Tensor context = shape_.gate == Gate::kGraph ? h.mean(0, true) : h;
  const at::Tensor device = device_out_(at::relu(device_enter_(input.device_numbers)));  // [D, d]
  NetAnswer answer{{}, {}, context, device};
  at::Tensor& logits = answer.logits;
  for (std::int64_t pass = 0; pass <= shape_.refinements; ++pass) {
    at::Tensor x = h;
    if (pass > 0) x = x + feedback_(at::matmul(at::softmax(logits, 1), device));
    for (const Attention& layer : attentions_) x = attend(layer, x, context, input);
    answer.nodes = x;
    x = last_(x);
    logits = at::matmul(head_(x), device.t()) - at::softplus(speed_(x)) * input.slowness;
    if (shape_.centred) logits = centred(logits, input);
    if (input.any_barred) logits = logits + input.barred;
  }
  return answer;
}

at::Tensor Net::levels(const NetInput& input, const NetAnswer& answer, const at::Tensor& logits) const {
  ESP_CHECK(shape_.priorities > 0);
  const at::Tensor placed = at::matmul(at::softmax(logits, 1).detach(), answer.devices);
  const at::Tensor x =
      attend(level_head_.attention, answer.nodes + level_head_.placed(placed), answer.context, input);
  return level_head_.out(level_head_.last(x));
}

at::Tensor Net::joins(const NetInput& input, const NetAnswer& answer) const {
  const JoinInput& join = input.join.value();
  if (shape_.coarsening == Coarsening::kRandom) return join.prior;
  const at::Tensor x = join_head_.before(answer.nodes);
  const at::Tensor hidden =
      at::relu(join_head_.from(x).index_select(0, join.from) + join_head_.to(x).index_select(0, join.to) +
               join_head_.edge(join.numbers));
  const at::Tensor scores = at::cat({join_head_.own(x), join_head_.out(hidden)}, 0).squeeze(1);
  return join.prior + at::zeros({join.prior.numel()}, scores.options())
                          .index_add(0, join.slots, scores)
                          .view_as(join.prior);
}

}  // namespace espalier::placement
