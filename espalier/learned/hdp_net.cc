#include "espalier/learned/hdp_net.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"

namespace espalier::placement {
namespace {

// Glorot, Bengio (AISTATS'10): the width of uniform weights between layers of these sizes.
double glorot(std::int64_t from, std::int64_t to) {
  return std::sqrt(6.0 / static_cast<double>(from + to));
}

}  // namespace

LogitNoise::LogitNoise(double part, std::uint64_t seed)
    : part_(part), generator_(at::detail::createCPUGenerator(seed)) {}

at::Tensor LogitNoise::operator()(const at::Tensor& logits) {
  const at::Tensor size = logits.detach().square().mean().sqrt();
  return logits + at::randn(logits.sizes(), generator_, logits.options().requires_grad(false)) * size * part_;
}

at::Tensor HdpNet::make(const std::string& name, at::IntArrayRef sizes, double scale) {
  at::Tensor tensor =
      drawn_weight(stream_key(seed_, {weights_.size()}), sizes, scale, input_.numbers.device());
  weights_.emplace_back(name, tensor);
  return tensor;
}

// Gates are in, forget, new, out; a cell remembers at first.
at::Tensor HdpNet::make_forget_bias(const std::string& name, std::int64_t width) {
  at::Tensor bias = make(name, {4 * width}, 0);
  at::NoGradGuard guard;
  bias.slice(0, width, 2 * width).fill_(1);
  return bias;
}

HdpNet::HdpNet(const NetInput& input, const HdpShape& shape, at::Tensor start, std::uint64_t seed)
    : input_(input), shape_(shape), start_(std::move(start)), seed_(seed) {
  const std::int64_t width = shape.placer_width, half = width / 2, groups = shape.groups;
  ESP_CHECK(width % 2 == 0 && groups > 0, width, groups);
  const auto numbers = static_cast<std::int64_t>(kNodeNumbers);
  types_ = make("grouper.types", {static_cast<std::int64_t>(kOperatorTypes), shape.grouper_width}, 0.5);
  enter_ = make("grouper.enter", {shape.grouper_width, numbers}, glorot(numbers, shape.grouper_width));
  enter_bias_ = make("grouper.enter.bias", {shape.grouper_width}, 0);
  groups_ = make("grouper.groups", {groups, shape.grouper_width}, glorot(shape.grouper_width, groups));
  for (const char* direction : {"forward", "backward"}) {
    const std::string name = std::string("encoder.") + direction;
    encoder_.push_back(
        make(name + ".in", {4 * half, shape.group_numbers}, glorot(shape.group_numbers, 4 * half)));
    encoder_.push_back(make(name + ".state", {4 * half, half}, glorot(half, 4 * half)));
    encoder_.push_back(make_forget_bias(name + ".bias", half));
    encoder_.push_back(at::zeros({4 * half}, enter_.options().requires_grad(false)));
  }
  devices_ = make("devices", {input.devices + 1, width}, glorot(input.devices, width));
  decoder_in_ = make("decoder.in", {4 * width, width}, glorot(2 * width, 4 * width));
  decoder_bias_ = make_forget_bias("decoder.bias", width);
  decoder_state_ = make("decoder.state", {4 * width, width}, glorot(2 * width, 4 * width));
  attention_memory_ = make("attention.memory", {width, width}, glorot(width, width));
  attention_query_ = make("attention.query", {width, width}, glorot(width, width));
  attention_sum_ = make("attention.sum", {width, 1}, glorot(width, 1));
  device_logits_ = make("device.logits", {2 * width, input.devices}, glorot(2 * width, input.devices));
  if (!shape.tables) return;
  grouping_table_ = make("table.grouping", {input.nodes, groups}, 0);
  device_table_ = make("table.devices", {groups, input.devices}, 0);
}

at::Tensor HdpNet::grouping_logits() const {
  const at::Tensor entries = types_.index_select(0, input_.types) * input_.type_share;
  const at::Tensor type =
      at::zeros({input_.nodes, shape_.grouper_width}, entries.options()).index_add(0, input_.bag_of, entries);
  const at::Tensor hidden = at::relu(at::linear(input_.numbers, enter_, enter_bias_) + type);
  at::Tensor logits = at::matmul(hidden, groups_.t());
  if (start_.defined()) logits = logits + start_;
  return grouping_table_.defined() ? logits + grouping_table_ : logits;
}

HdpNet::Memory HdpNet::encode(const at::Tensor& rows) const {
  const at::Tensor none = at::zeros({2, rows.size(0), shape_.placer_width / 2}, rows.options());
  const auto [all, state, cell] =
      at::lstm(rows, {none, none}, encoder_, /*has_biases=*/true, /*num_layers=*/1, /*dropout=*/0,
               /*train=*/true, /*bidirectional=*/true, /*batch_first=*/true);
  return {at::matmul(all, attention_memory_), at::cat({state[0], state[1]}, 1),
          at::cat({cell[0], cell[1]}, 1)};
}

// The part of the memory that the decoder asks for (Bahdanau et al., ICLR'15).
at::Tensor HdpNet::attend(const at::Tensor& state, const at::Tensor& keys) const {
  const at::Tensor asked = at::tanh(at::matmul(state, attention_query_).unsqueeze(1) + keys);
  const at::Tensor part = at::softmax(at::matmul(asked, attention_sum_), 1);  // [R, G, 1]
  return at::bmm(part.transpose(1, 2), keys).squeeze(1);
}

HdpNet::Placements HdpNet::place(const at::Tensor& rows, const Choose& choose, LogitNoise* noise) const {
  const std::int64_t rollouts = rows.size(0), devices = input_.devices;
  auto [keys, state, cell] = encode(rows);
  // What a device that was chosen adds to the gates: one row for each, the last for none yet.
  const at::Tensor entering = at::linear(devices_, decoder_in_, decoder_bias_);
  at::Tensor table = device_table_;
  if (table.defined()) table = table - table.mean(0, true);
  Placements made;
  made.devices.resize(static_cast<std::size_t>(rollouts));
  at::Tensor before = at::full({rollouts}, devices, at::kLong);
  std::vector<at::Tensor> logits, chosen;
  for (std::int64_t g = 0; g < shape_.groups; ++g) {
    const std::vector<at::Tensor> gates =
        (entering.index_select(0, before) + at::matmul(state, decoder_state_.t())).chunk(4, 1);
    cell = at::sigmoid(gates[1]) * cell + at::sigmoid(gates[0]) * at::tanh(gates[2]);
    state = at::sigmoid(gates[3]) * at::tanh(cell);
    at::Tensor step = at::matmul(at::cat({state, attend(state, keys)}, 1), device_logits_);
    if (shape_.logit_bound > 0) step = at::tanh(step) * shape_.logit_bound;
    if (table.defined()) step = step + table[g];
    if (noise) step = (*noise)(step);
    const at::Tensor probability = at::softmax(step.detach(), 1).contiguous();
    const float* row = probability.const_data_ptr<float>();
    before = at::empty({rollouts}, at::kLong);
    for (std::int64_t r = 0; r < rollouts; ++r) {
      const std::size_t device = choose(static_cast<std::size_t>(r), static_cast<std::size_t>(g),
                                        {row + r * devices, static_cast<std::size_t>(devices)});
      made.devices[static_cast<std::size_t>(r)].push_back(static_cast<std::uint32_t>(device));
      before.mutable_data_ptr<std::int64_t>()[r] = static_cast<std::int64_t>(device);
    }
    logits.push_back(std::move(step));
    chosen.push_back(before);
  }
  made.log_probability = at::log_softmax(at::stack(logits), 2)
                             .gather(2, at::stack(chosen).unsqueeze(2))  // [G, R, 1]
                             .sum(at::IntArrayRef({0, 2}));
  return made;
}

}  // namespace espalier::placement
