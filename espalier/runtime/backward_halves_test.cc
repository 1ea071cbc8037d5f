// A backward pass in two halves against the same pass at once, and what each half leaves behind.

#include "espalier/runtime/backward_halves.h"

#include <ATen/ATen.h>
#include <ATen/SequenceNumber.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace espalier {
namespace {

// A piece of graph, as a stage records it: x enters, y leaves, each call of op() is an operator.
class Recorded {
 public:
  explicit Recorded(std::uint64_t seed = 1) { at::manual_seed(seed); }

  at::Tensor parameter(at::IntArrayRef sizes) {
    parameters.push_back(at::randn(sizes).requires_grad_(true));
    return parameters.back();
  }
  at::Tensor enters(at::IntArrayRef sizes) {
    at::Tensor x = at::randn(sizes).requires_grad_(true);
    entries.push_back(torch::autograd::impl::gradient_edge(x));
    entered.push_back(x);
    return x;
  }
  at::Tensor op(const std::function<at::Tensor()>& call) {
    first_nodes.push_back(at::sequence_number::peek());
    return call();
  }
  void leaves(const at::Tensor& y) {
    roots.push_back(torch::autograd::impl::gradient_edge(y));
    gradients.push_back(at::randn(y.sizes()));
  }

  // The gradients of what entered, then those of the parameters.
  std::vector<at::Tensor> at_once() {
    torch::autograd::Engine::get_default_engine().execute(roots, gradients, false, false, true);
    std::vector<at::Tensor> all;
    for (const at::Tensor& x : entered) all.push_back(x.grad());
    for (const at::Tensor& p : parameters) all.push_back(p.grad());
    return all;
  }
  std::vector<at::Tensor> in_halves() {
    InputHalf half = run_input_half(std::move(roots), std::move(gradients), entries, first_nodes);
    roots.clear();
    for (const at::Tensor& p : parameters)
      EXPECT_FALSE(p.grad().defined()) << "I computed a weight's gradient";
    run_weight_half(std::move(half.rest), parameters);
    std::vector<at::Tensor> all = half.entered;
    for (const at::Tensor& p : parameters) all.push_back(p.grad());
    return all;
  }

  std::vector<at::Tensor> parameters, entered;
  torch::autograd::edge_list entries, roots;
  torch::autograd::variable_list gradients;
  std::vector<std::uint64_t> first_nodes;
};

using Build = std::function<void(Recorded&)>;

void expect_equal_bits(const Build& build) {
  Recorded one, two;
  at::manual_seed(5);
  build(one);
  const std::vector<at::Tensor> expected = one.at_once();
  at::manual_seed(5);
  build(two);
  const std::vector<at::Tensor> actual = two.in_halves();
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined()) << i;
    if (!expected[i].defined()) continue;
    EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
    EXPECT_EQ(actual[i].strides(), expected[i].strides()) << i;
  }
}

void chain(Recorded& p) {
  at::Tensor h = p.enters({4, 8});
  for (int layer = 0; layer < 3; ++layer) {
    const at::Tensor w = p.parameter({8, 8}), b = p.parameter({8}), g = p.parameter({8});
    const at::Tensor before = h;
    h = p.op([&] { return at::linear(h, w, b); });
    h = p.op([&] { return at::layer_norm(h, {8}, g); });
    h = p.op([&] { return at::gelu(h); });
    h = p.op([&] { return at::add(h, before); });
  }
  p.leaves(h);
}

TEST(BackwardHalves, AChainWithResiduals) {
  expect_equal_bits(chain);
}

TEST(BackwardHalves, AWeightThatIsReadThreeTimes) {
  expect_equal_bits([](Recorded& p) {
    const at::Tensor w = p.parameter({8, 8});
    at::Tensor h = p.enters({4, 8});
    for (int i = 0; i < 3; ++i) {
      h = p.op([&] { return at::linear(h, w); });
      h = p.op([&] { return at::tanh(h); });
    }
    p.leaves(h);
  });
}

TEST(BackwardHalves, AWeightThatAnotherOperatorTransposes) {
  expect_equal_bits([](Recorded& p) {
    const at::Tensor w = p.parameter({6, 8});
    const at::Tensor x = p.enters({4, 8});
    const at::Tensor t = p.op([&] { return w.t(); });
    at::Tensor h = p.op([&] { return at::matmul(x, t); });
    h = p.op([&] { return at::matmul(h, w); });
    p.leaves(p.op([&] { return at::matmul(h, t); }));
  });
}

TEST(BackwardHalves, AnOperatorThatReadsItsWeightsManyTimes) {
  expect_equal_bits([](Recorded& p) {
    const at::Tensor x = p.enters({5, 3, 4});
    const std::vector<at::Tensor> weights{p.parameter({24, 4}), p.parameter({24, 6}), p.parameter({24}),
                                          p.parameter({24})};
    const at::Tensor zero = at::zeros({1, 3, 6});
    p.leaves(p.op([&] {
      return std::get<0>(at::lstm(x, {zero, zero}, weights, true, 1, 0.0, false, false, false));
    }));
  });
}

TEST(BackwardHalves, TwoWaysInAndTwoOut) {
  expect_equal_bits([](Recorded& p) {
    const at::Tensor a = p.enters({4, 8}), b = p.enters({4, 8}), w = p.parameter({8, 8});
    const at::Tensor h = p.op([&] { return at::linear(a, w); });
    const at::Tensor both = p.op([&] { return at::mul(h, b); });
    p.leaves(h);
    p.leaves(p.op([&] { return at::linear(both, w); }));
  });
}

TEST(BackwardHalves, ViewsAndWritesInPlace) {
  expect_equal_bits([](Recorded& p) {
    const at::Tensor x = p.enters({4, 8}), w = p.parameter({8, 8}), b = p.parameter({4});
    const at::Tensor h = p.op([&] { return at::linear(x, w); });
    const at::Tensor half = p.op([&] { return h.narrow(1, 0, 4); });
    p.op([&] { return half.add_(b); });
    p.leaves(p.op([&] { return at::relu(h); }));
  });
}

TEST(BackwardHalves, NothingEntersTheFirstStage) {
  expect_equal_bits([](Recorded& p) {
    const at::Tensor x = at::randn({4, 8}), w = p.parameter({8, 8}), v = p.parameter({8, 8});
    const at::Tensor h = p.op([&] { return at::linear(x, w); });
    p.leaves(p.op([&] { return at::linear(h, v); }));
  });
}

TEST(BackwardHalves, AParameterLeavesAndIsRead) {
  expect_equal_bits([](Recorded& p) {
    const at::Tensor x = p.enters({4, 8}), w = p.parameter({8, 8});
    p.leaves(w);
    p.leaves(p.op([&] { return at::linear(x, w); }));
  });
}

TEST(BackwardHalves, AGradientThatIsAddedUpIsNoOtherStagesToo) {
  // The gradient of x + w is that of both, in one memory: w's next micro-batch would be added to what is on
  // its way.
  Recorded p;
  const at::Tensor x = p.enters({4, 8}), w = p.parameter({4, 8});
  p.leaves(p.op([&] { return at::add(x, w); }));
  InputHalf half = run_input_half(std::move(p.roots), std::move(p.gradients), p.entries, p.first_nodes);
  run_weight_half(std::move(half.rest), p.parameters);
  EXPECT_TRUE(at::equal(w.grad(), half.entered[0]));
  EXPECT_FALSE(w.grad().is_alias_of(half.entered[0]));
}

// Nodes that run in either half, by name.
std::vector<std::string> runs_of(const Build& build, std::vector<std::string>& in_weight_half) {
  Recorded p;
  build(p);
  std::vector<std::string> ran;
  class Count final : public torch::autograd::FunctionPreHook {
   public:
    Count(std::vector<std::string>& ran, std::string name) : ran_(ran), name_(std::move(name)) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
      ran_.push_back(name_);
      return gradients;
    }

   private:
    std::vector<std::string>& ran_;
    std::string name_;
  };
  std::vector<torch::autograd::Node*> open{p.roots.at(0).function.get()};
  std::vector<const void*> seen;
  while (!open.empty()) {
    torch::autograd::Node* node = open.back();
    open.pop_back();
    if (std::find(seen.begin(), seen.end(), node) != seen.end()) continue;
    seen.push_back(node);
    if (node->num_outputs() == 0) continue;
    node->add_pre_hook(std::make_unique<Count>(ran, node->name()));
    for (const auto& edge : node->next_edges()) {
      if (edge.is_valid()) open.push_back(edge.function.get());
    }
  }
  InputHalf half = run_input_half(std::move(p.roots), std::move(p.gradients), p.entries, p.first_nodes);
  std::vector<std::string> in_input_half = std::exchange(ran, {});
  run_weight_half(std::move(half.rest), p.parameters);
  in_weight_half = ran;
  return in_input_half;
}

TEST(BackwardHalves, EachHalfRunsOnlyTheNodesThatItNeeds) {
  std::vector<std::string> weight_half;
  const std::vector<std::string> input_half = runs_of(
      [](Recorded& p) {
        const at::Tensor x = p.enters({4, 8}), w = p.parameter({8, 8});
        const at::Tensor h = p.op([&] { return at::linear(x, w); });
        p.leaves(p.op([&] { return at::gelu(h); }));
      },
      weight_half);
  EXPECT_EQ(input_half, (std::vector<std::string>{"GeluBackward0", "MmBackward0"}));
  EXPECT_EQ(weight_half, (std::vector<std::string>{"MmBackward0", "TBackward0"}));
}

TEST(BackwardHalves, WhatTheWeightHalfDoesNotNeedGoesWithTheFirst) {
  Recorded p;
  const at::Tensor w = p.parameter({8, 8}), v = p.parameter({8, 8});
  const at::Tensor x = p.enters({4, 8});
  at::Tensor h = p.op([&] { return at::linear(x, w); });
  at::Tensor g = p.op([&] { return at::gelu(h); });  // keeps h
  p.leaves(p.op([&] { return at::linear(g, v); }));  // keeps g, for v
  const auto of_h = h.storage().getWeakStorageImpl(), of_g = g.storage().getWeakStorageImpl();
  h.reset();
  g.reset();
  EXPECT_FALSE(of_h.expired());
  InputHalf half = run_input_half(std::move(p.roots), std::move(p.gradients), p.entries, p.first_nodes);
  p.roots.clear();
  EXPECT_TRUE(of_h.expired());
  EXPECT_FALSE(of_g.expired());
  run_weight_half(std::move(half.rest), p.parameters);
  EXPECT_TRUE(of_g.expired());
}

}  // namespace
}  // namespace espalier
