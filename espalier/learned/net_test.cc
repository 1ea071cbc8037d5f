#include "espalier/learned/net.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>

#include "espalier/base/rng.h"

namespace espalier::placement {
namespace {

// `nodes` nodes in a line, each with its two neighbours, drawn numbers.
PolicyInput line_input(std::size_t nodes, std::size_t devices, std::uint64_t seed) {
  Rng rng(seed);
  PolicyInput input;
  input.nodes = nodes;
  input.devices = devices;
  const auto drawn = [&] { return static_cast<float>(rng.unit()); };
  for (std::size_t n = 0; n < nodes; ++n) {
    for (std::size_t i = 0; i < kNodeNumbers; ++i) input.numbers.push_back(drawn());
    input.types.items.push_back(static_cast<std::uint32_t>(rng.below(kOperatorTypes)));
    input.types.close();
    input.type_share.push_back(1);
    if (n > 0) input.neighbours.items.push_back(static_cast<std::uint32_t>(n - 1));
    if (n + 1 < nodes) input.neighbours.items.push_back(static_cast<std::uint32_t>(n + 1));
    input.neighbours.close();
    input.order.push_back(static_cast<std::uint32_t>(n));
    input.work.push_back(1.0F / static_cast<float>(nodes));
  }
  for (std::size_t i = 0; i < devices * kDeviceNumbers; ++i) input.device_numbers.push_back(drawn());
  input.slowness.assign(nodes * devices, 0);
  input.allowed.assign(nodes * devices, 1);
  for (std::size_t d = 0; d < devices; ++d) input.equal_to.push_back(0);
  return input;
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST(NeighbourMax, EqualsTheMaximumOverEachNodesEdges) {
  const std::int64_t nodes = 7, width = 5;
  Rng rng(3);
  std::vector<std::int64_t> from, to, begin{0};
  for (std::int64_t n = 0; n < nodes; ++n) {
    for (std::uint64_t e = rng.below(4); e > 0; --e) {
      from.push_back(static_cast<std::int64_t>(rng.below(7)));
      to.push_back(n);
    }
    begin.push_back(static_cast<std::int64_t>(from.size()));
  }
  const auto longs = [](std::vector<std::int64_t>& values) {
    return at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kLong).clone();
  };
  std::vector<float> numbers;
  for (std::int64_t i = 0; i < nodes * width; ++i) numbers.push_back(static_cast<float>(rng.unit()) - 0.5F);
  at::Tensor x = at::from_blob(numbers.data(), {nodes, width}, at::kFloat).clone();
  x.set_requires_grad(true);
  const at::Tensor ours = neighbour_max(x, longs(from), longs(to), longs(begin));
  const at::Tensor index = longs(to).unsqueeze(1).expand({static_cast<std::int64_t>(to.size()), width});
  const at::Tensor theirs =
      at::zeros({nodes, width}).scatter_reduce(0, index, x.index_select(0, longs(from)), "amax", false);
  EXPECT_EQ(largest_difference(ours, theirs), 0);
  const at::Tensor weight = at::arange(nodes * width, at::kFloat).view({nodes, width});
  const auto gradient = [&](const at::Tensor& y) {
    return torch::autograd::grad({(y * weight).sum()}, {x})[0];
  };
  EXPECT_EQ(largest_difference(gradient(ours), gradient(theirs)), 0);
}

// Numbers of nodes mean nothing: renamed nodes get the renamed logits.
TEST(Net, DoesNotSeeTheNumbersOfNodes) {
  const std::size_t nodes = 11;
  const PolicyInput input = line_input(nodes, 3, 5);
  PolicyInput turned = input;
  turned.neighbours = {};
  turned.types = {};
  const auto renamed = [&](std::uint32_t n) { return static_cast<std::uint32_t>(nodes - 1 - n); };
  for (std::uint32_t n = 0; n < nodes; ++n) {
    const std::uint32_t old = renamed(n);
    std::copy_n(input.numbers.begin() + old * kNodeNumbers, kNodeNumbers,
                turned.numbers.begin() + n * kNodeNumbers);
    turned.types.items.push_back(input.types[old].front());
    turned.types.close();
    std::vector<std::uint32_t> neighbours;
    for (const std::uint32_t other : input.neighbours[old]) neighbours.push_back(renamed(other));
    std::sort(neighbours.begin(), neighbours.end());
    turned.neighbours.items.insert(turned.neighbours.items.end(), neighbours.begin(), neighbours.end());
    turned.neighbours.close();
    turned.order[n] = renamed(input.order[n]);
  }
  for (const Gate gate : {Gate::kNone, Gate::kNode, Gate::kGraph}) {
    const PolicyShape shape{.width = 16, .heads = 2, .segment = 4, .refinements = 1, .gate = gate};
    const Net net(shape, 1, at::kCPU);
    const at::Tensor logits = net.logits(NetInput(input, shape, at::kCPU));
    const at::Tensor other = net.logits(NetInput(turned, shape, at::kCPU));
    EXPECT_LT(largest_difference(logits, other.flip({0})), 1e-5) << to_text(gate);
  }
}

// Node 9 of segments of 4 reads segments 1 and 2, and no gradient goes to segment 1 through attention.
TEST(Net, SegmentsReadTheOneBeforeAndSendItNoGradient) {
  const PolicyShape shape{
      .width = 16, .sage_layers = 0, .heads = 2, .segment = 4, .gate = Gate::kNone, .centred = false};
  const Net net(shape, 1, at::kCPU);
  PolicyInput input = line_input(12, 3, 5);
  const auto row_of_9 = [&] { return net.logits(NetInput(input, shape, at::kCPU))[9].detach().clone(); };
  const at::Tensor before = row_of_9();
  const auto changed = [&](std::size_t node) {
    const PolicyInput kept = input;
    input.numbers[node * kNodeNumbers] += 1;
    const double difference = largest_difference(before, row_of_9());
    input = kept;
    return difference;
  };
  EXPECT_EQ(changed(3), 0);     // two segments away
  EXPECT_GT(changed(6), 1e-7);  // memory
  EXPECT_GT(changed(10), 1e-7);
  NetInput tensors(input, shape, at::kCPU);
  tensors.numbers.set_requires_grad(true);
  const at::Tensor gradient =
      torch::autograd::grad({net.logits(tensors)[9].sum()}, {tensors.numbers})[0].abs().sum(1);
  EXPECT_EQ(gradient[6].item<double>(), 0);
  EXPECT_GT(gradient[10].item<double>(), 0);
}

TEST(Net, AnswersByWhatDevicesRunByWhereItIsTold) {
  for (const bool told : {false, true}) {
    const PolicyShape shape{.width = 16, .heads = 2, .segment = 8, .told_order = told};
    const Net net(shape, 1, at::kCPU);
    PolicyInput input = line_input(12, 3, 5);
    const at::Tensor by_graph = net.logits(NetInput(input, shape, at::kCPU));
    input.by_priority = true;
    const double difference = largest_difference(by_graph, net.logits(NetInput(input, shape, at::kCPU)));
    EXPECT_EQ(difference > 1e-5, told) << difference;
  }
}

// A line with the same numbers everywhere: without positions all inner nodes look alike to a net without
// attention that hears two nodes far.
TEST(Net, SpectralPositionsTellNodesOfALineApart) {
  PolicyInput input = line_input(40, 2, 5);
  for (std::size_t n = 1; n < 40; ++n)
    std::copy_n(input.numbers.begin(), kNodeNumbers, input.numbers.begin() + n * kNodeNumbers);
  std::fill(input.types.items.begin(), input.types.items.end(), 0);
  const auto difference = [&](std::int64_t positions) {
    const PolicyShape shape{.width = 16, .attention_layers = 0, .heads = 2, .spectral = positions};
    const at::Tensor h = Net(shape, 1, at::kCPU).embed(NetInput(input, shape, at::kCPU));
    return largest_difference(h[10], h[30]);
  };
  EXPECT_EQ(difference(0), 0);
  EXPECT_GT(difference(1), 0.1);
}

TEST(Net, CentringLeavesEqualDevicesEqualWork) {
  const PolicyShape shape{.width = 16, .heads = 2};
  const Net net(shape, 1, at::kCPU);
  const PolicyInput input = line_input(20, 4, 7);
  const NetInput tensors(input, shape, at::kCPU);
  const at::Tensor mean = (net.logits(tensors) * tensors.work).sum(0);
  EXPECT_LT((mean - mean.mean()).abs().max().item<double>(), 1e-5);
}

TEST(Net, ASecondHeadLeavesTheFirstOnesLogitsAndBeginsInTheMiddle) {
  const PolicyShape shape{.width = 16, .heads = 2}, joint{.width = 16, .heads = 2, .priorities = 5};
  const PolicyInput input = line_input(20, 3, 7);
  const Net one(shape, 1, at::kCPU), two(joint, 1, at::kCPU);
  const NetInput tensors(input, joint, at::kCPU);
  const NetAnswer answer = two.answer(tensors);
  EXPECT_EQ(largest_difference(one.logits(NetInput(input, shape, at::kCPU)), answer.logits), 0);
  const at::Tensor rows = at::softmax(two.levels(tensors, answer, answer.logits), 1);
  ASSERT_EQ(rows.sizes(), (at::IntArrayRef{20, 5}));
  EXPECT_GT(rows.select(1, 2).min().item<double>(), 0.6);
}

// What the first head says reaches the second, without gradient.
TEST(Net, LevelsFollowWhereNodesAreToStand) {
  const PolicyShape shape{.width = 16, .heads = 2, .priorities = 5};
  const Net net(shape, 1, at::kCPU);
  const NetInput tensors(line_input(20, 3, 7), shape, at::kCPU);
  const NetAnswer answer = net.answer(tensors);
  at::Tensor turned = answer.logits.detach().roll({1}, {1}).clone();
  turned.set_requires_grad(true);
  const at::Tensor levels = net.levels(tensors, answer, turned);
  EXPECT_GT(largest_difference(net.levels(tensors, answer, answer.logits), levels), 1e-6);
  EXPECT_FALSE(
      torch::autograd::grad({levels.square().sum()}, {turned}, {}, std::nullopt, false, true)[0].defined());
}

TEST(Net, BarredDevicesHaveNoProbability) {
  const PolicyShape shape{.width = 16, .heads = 2};
  const Net net(shape, 1, at::kCPU);
  PolicyInput input = line_input(5, 3, 7);
  input.allowed[2 * 3 + 1] = 0;
  const at::Tensor rows = at::softmax(net.logits(NetInput(input, shape, at::kCPU)), 1);
  EXPECT_EQ(rows[2][1].item<double>(), 0);
  EXPECT_TRUE(at::isfinite(rows).all().item<bool>());
}

// Where a GPU is, it computes what the CPU computes.
TEST(CudaNet, GivesTheSameLogits) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU that this libtorch can use";
  const PolicyShape shape{.width = 32};
  const PolicyInput input = line_input(300, 4, 7);
  const Net here(shape, 1, at::kCPU), there(shape, 1, at::Device("cuda"));
  EXPECT_LT(largest_difference(here.logits(NetInput(input, shape, at::kCPU)),
                               there.logits(NetInput(input, shape, at::Device("cuda"))).cpu()),
            1e-3);
}

}  // namespace
}  // namespace espalier::placement
