#pragma once

// HDP's net (Mirhoseini et al., ICLR'18, §3; sizes and order of operations as its public code has them):
//
//   grouper   what is known of a node ─▶ relu ─▶ softmax over groups
//   placer    groups' rows ─▶ LSTM in both directions ─▶ memory
//             device of the group before ─▶ LSTM ─▶ attention on the memory ─▶ softmax over devices
//
// symbol  here
//   n     nodes            G  groups             D  devices
//   R     rollouts: each has a grouping of its own, so rows of its own
//
// Deviations: the grouper has a relu between its layers (the code has none, the paper has a feed-forward net)
// and reads policy_input.h's numbers and types, not raw shapes and numbers of neighbours. By option it begins
// at runs of neighbours (`start`), and tables of logits beside both nets learn 30 times as fast, as beside
// GDP's (learner.h).
//
// Includes libtorch; learned/ only.

#include <ATen/ATen.h>
#include <ATen/core/Generator.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "espalier/learned/net.h"
#include "espalier/learned/weights.h"

namespace espalier::placement {

struct HdpShape {
  std::int64_t groups = 1;
  std::int64_t group_numbers = 1;  // of a group's row
  std::int64_t grouper_width = 64;
  std::int64_t placer_width = 64;  // of the decoder; half of it for each direction of the encoder
  double logit_bound = 0;          // devices' logits are b · tanh(logit); 0: as they are
  bool tables = false;
};

// Logits with Gaussian noise of a part of their root mean square, the same for the same seed.
class LogitNoise {
 public:
  LogitNoise(double part, std::uint64_t seed);
  at::Tensor operator()(const at::Tensor& logits);

 private:
  double part_;
  at::Generator generator_;
};

class HdpNet {
 public:
  // Weights from a seed. `input` and `start` stay where they are while the net lives. `start`: [n, G], added
  // to the grouper's logits; undefined: nothing is.
  HdpNet(const NetInput& input, const HdpShape& shape, at::Tensor start, std::uint64_t seed);

  at::Tensor grouping_logits() const;  // [n, G], with gradients

  // Which device a group of a rollout gets, told the probabilities of all.
  using Choose =
      std::function<std::size_t(std::size_t rollout, std::size_t group, std::span<const float> probability)>;
  struct Placements {
    std::vector<std::vector<std::uint32_t>> devices;  // by rollout and group
    at::Tensor log_probability;                       // [R], of all groups together, with gradients
  };
  // `rows`: [R, G, group_numbers]. Groups are asked for in their order; within one, rollouts.
  Placements place(const at::Tensor& rows, const Choose& choose, LogitNoise* noise) const;

  const NamedTensors& weights() const { return weights_; }

 private:
  at::Tensor make(const std::string& name, at::IntArrayRef sizes, double scale);
  at::Tensor make_forget_bias(const std::string& name, std::int64_t width);
  struct Memory {
    at::Tensor keys, state, cell;  // [R, G, H], [R, H], [R, H]
  };
  Memory encode(const at::Tensor& rows) const;
  at::Tensor attend(const at::Tensor& state, const at::Tensor& keys) const;

  const NetInput& input_;
  HdpShape shape_;
  at::Tensor start_;
  std::uint64_t seed_;
  NamedTensors weights_;
  at::Tensor types_, enter_, enter_bias_, groups_, grouping_table_;
  std::vector<at::Tensor> encoder_;                                 // as at::lstm takes them
  at::Tensor devices_, decoder_in_, decoder_bias_, decoder_state_;  // devices_: [D + 1, H]
  at::Tensor attention_memory_, attention_query_, attention_sum_, device_logits_, device_table_;
};

}  // namespace espalier::placement
