// Preset tsan compiles this file: its suites run under ThreadSanitizer too.

// Optimizers, data, checkpoints and the wire: what training needs beside operators.

#include "espalier/runtime/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <set>
#include <thread>

#include "espalier/base/check.h"
#include "espalier/frontend/archive_for_tests.h"
#include "espalier/runtime/data.h"
#include "espalier/runtime/loaded_model.h"
#include "espalier/runtime/plans_for_tests.h"
#include "espalier/runtime/tensor_file.h"
#include "espalier/runtime/transport.h"
#include "espalier/runtime/weights_file.h"
#include "espalier/runtime/wire.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The weight after each of two updates with gradients 0.5 and -0.25, starting from 1.
std::vector<double> two_updates(const Optimizer& optimizer) {
  std::vector<Variable> variables(1);
  variables[0].value = at::ones({1}, at::kDouble).requires_grad_(true);
  std::vector<double> weights;
  for (const double gradient : {0.5, -0.25}) {
    variables[0].value.mutable_grad() = at::full({1}, gradient, at::kDouble);
    update(optimizer, weights.size() + 1, variables);
    weights.push_back(variables[0].value.item<double>());
  }
  return weights;
}

TEST(Update, SgdWithMomentumAndDecay) {
  // g1 = 0.5 + 0.1·1 = 0.6, v1 = 0.6, w = 1 - 0.1·0.6 = 0.94
  // g2 = -0.25 + 0.1·0.94 = -0.156, v2 = 0.9·0.6 - 0.156 = 0.384, w = 0.94 - 0.0384 = 0.9016
  const auto weights =
      two_updates({.kind = OptimizerKind::kSgd, .learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.1});
  EXPECT_NEAR(weights[0], 0.94, 1e-12);
  EXPECT_NEAR(weights[1], 0.9016, 1e-12);
}

// Three updates of a parameter whose rows lie in columns, with gradients of many sizes.
std::pair<at::Tensor, std::vector<double>> three_updates(const Optimizer& optimizer, at::ScalarType type) {
  std::vector<Variable> variables(1);
  const at::Tensor values = at::arange(7 * 613, at::kDouble).sin_().view({613, 7});
  variables[0].value = values.to(type, false, true).t().requires_grad_(true);
  std::vector<double> squares;
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const at::Tensor gradient = (values * static_cast<double>(step)).tan_().pow_(3).to(at::kFloat);
    variables[0].value.mutable_grad() = gradient.t().contiguous().to(type);  // in rows
    squares.push_back(update(optimizer, step, variables)[0]);
    EXPECT_FALSE(variables[0].value.grad().defined());
  }
  return {variables[0].value.detach(), squares};
}

TEST(Update, OnePassOverFloatsIsTheUpdateInDoubleRounded) {
  for (const OptimizerKind kind : {OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    const Optimizer optimizer{.kind = kind, .learning_rate = 0.01, .weight_decay = 0.1};
    const auto [once, squares] = three_updates(optimizer, at::kFloat);
    const auto [right, right_squares] = three_updates(optimizer, at::kDouble);
    EXPECT_LE((once.to(at::kDouble) - right).abs().max().item<double>(), 5e-7);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(squares[i] / right_squares[i], 1, 1e-12);
  }
}

TEST(Update, AdamMovesByTheLearningRateFirst) {
  // m1 = 0.1·0.5, v1 = 0.001·0.25; both divided by 1 - beta: 0.5 / (√0.25 + 1e-8) ≈ 1, so w ≈ 1 - 0.01.
  // m2 = 0.9·0.05 - 0.1·0.25 = 0.02, v2 = 0.999·0.00025 + 0.001·0.0625 = 0.00031225;
  // m̂ = 0.02 / 0.19, v̂ = 0.00031225 / 0.001999.
  const auto weights = two_updates({.kind = OptimizerKind::kAdam, .learning_rate = 0.01});
  EXPECT_NEAR(weights[0], 1 - 0.01 * 0.5 / (0.5 + 1e-8), 1e-12);
  EXPECT_NEAR(weights[1], weights[0] - 0.01 * (0.02 / 0.19) / (std::sqrt(0.00031225 / 0.001999) + 1e-8),
              1e-12);
}

TEST(Update, AdamWDecaysTheWeightItself) {
  const auto plain = two_updates({.kind = OptimizerKind::kAdamW, .learning_rate = 0.01});
  const auto decayed =
      two_updates({.kind = OptimizerKind::kAdamW, .learning_rate = 0.01, .weight_decay = 0.1});
  EXPECT_NEAR(decayed[0], plain[0] - 1 * 0.01 * 0.1, 1e-12);
}

// Two updates of a complex parameter, and of the real parameter that holds the same pairs of numbers.
TEST(Update, AComplexParameterIsUpdatedAsItsRealAndImaginaryParts) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const Optimizer optimizer{.kind = kind, .learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.1};
      const at::Tensor start = at::arange(12, type).view({3, 2, 2});
      std::vector<Variable> complex(1), real(1);
      complex[0].value = at::view_as_complex(start.clone()).requires_grad_(true);
      real[0].value = start.clone().requires_grad_(true);
      for (std::uint64_t step = 1; step <= 2; ++step) {
        const at::Tensor gradient = at::sin(start * static_cast<double>(step));
        complex[0].value.mutable_grad() = at::view_as_complex(gradient);
        real[0].value.mutable_grad() = gradient;
        EXPECT_EQ(update(optimizer, step, complex), update(optimizer, step, real));
      }
      EXPECT_TRUE(at::equal(at::view_as_real(complex[0].value.detach()), real[0].value.detach()))
          << to_text(kind) << " " << c10::toString(type);
    }
  }
}

TEST(Update, TheNormOfAComplexGradientIsThatOfItsSizes) {
  std::vector<Variable> variables(1);
  variables[0].value = at::zeros({2}, at::kComplexFloat).requires_grad_(true);
  const at::Tensor gradient = at::view_as_complex(at::tensor({3.0F, 4.0F, 0.0F, 12.0F}).view({2, 2}));
  variables[0].value.mutable_grad() = gradient;
  EXPECT_THAT(drop_gradients(variables), ElementsAre(25 + 144));
}

TEST(Update, AConjugateOrANegativeIsReadAsWhatItStandsFor) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam}) {
    const at::Tensor numbers = at::view_as_complex(at::tensor({1.0F, 2.0F, 3.0F, -4.0F}).view({2, 2}));
    const at::Tensor conjugate = numbers.conj(), negative = at::imag(conjugate);
    ASSERT_TRUE(conjugate.is_conj() && negative.is_neg());
    for (const at::Tensor& gradient : {conjugate, negative}) {
      std::vector<Variable> marked(1), plain(1);
      for (auto* variables : {&marked, &plain}) {
        (*variables)[0].value =
            at::empty_strided(gradient.sizes(), gradient.strides(), gradient.options()).zero_();
        (*variables)[0].value.requires_grad_(true);
      }
      marked[0].value.mutable_grad() = gradient;
      plain[0].value.mutable_grad() = gradient.resolve_conj().resolve_neg();
      EXPECT_EQ(update({.kind = kind}, 1, marked), update({.kind = kind}, 1, plain));
      EXPECT_TRUE(at::equal(marked[0].value.detach(), plain[0].value.detach()));
    }
  }
}

TEST(Update, ABfloat16ParameterHasStateOfItsTypeAndANormInDouble) {
  std::vector<Variable> variables(1);
  variables[0].value = at::ones({4096}, at::kBFloat16).requires_grad_(true);
  variables[0].value.mutable_grad() = at::ones({4096}, at::kBFloat16);
  EXPECT_THAT(update({.kind = OptimizerKind::kAdam, .learning_rate = 0.125}, 1, variables),
              ElementsAre(4096));  // in bfloat16 itself a sum of ones ends at 256
  EXPECT_EQ(variables[0].state[0].scalar_type(), at::kBFloat16);
  EXPECT_EQ(variables[0].state[1].scalar_type(), at::kBFloat16);
  EXPECT_EQ(variables[0].value[0].item<float>(), 0.875F);
}

TEST(Update, AParameterWithoutGradientStays) {
  std::vector<Variable> variables(1);
  variables[0].value = at::ones({1}).requires_grad_(true);
  update({.kind = OptimizerKind::kAdamW, .weight_decay = 0.5}, 1, variables);
  EXPECT_EQ(variables[0].value.item<float>(), 1);
}

class Files : public ::testing::Test {
 protected:
  Files() : folder_(::testing::TempDir() + "/espalier_files_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~Files() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

TEST_F(Files, AnEpochVisitsEverySampleOfItsWholeBatchesOnce) {
  const LoadedModel model(kFixtures + "gpt.pt2");
  const auto sizes = Program(model.exported, BatchSize(2), at::kCPU).sizes(model.exported.inputs[0].tensor);
  const at::Tensor rows = at::arange(11, at::kLong).view({-1, 1}).expand({-1, sizes[1]}).contiguous();
  const std::string path = folder_ + "/data.safetensors";
  write_tensors(path, {{"tokens", rows}, {"labels", rows}}, {});
  const auto data = open_data(path, model.exported, BatchSize(4), from_the_beginning(3));
  EXPECT_EQ(data->dropped_samples(), 3U);  // 11 = 2 · 4 + 3
  const auto sample = [&](std::uint64_t step, std::size_t input, std::int64_t i) {
    return data->read(step, input, BatchSize(i), BatchSize(1))[0][0].item<std::int64_t>();
  };
  std::set<std::int64_t> first_epoch;
  std::vector<std::int64_t> order, next_order;
  for (std::uint64_t step = 0; step < 2; ++step) {
    for (std::int64_t i = 0; i < 4; ++i) {
      first_epoch.insert(sample(step, 0, i));
      EXPECT_EQ(sample(step, 0, i), sample(step, 1, i));  // inputs and labels stay together
      order.push_back(sample(step, 0, i));
      next_order.push_back(sample(step + 2, 0, i));
    }
  }
  EXPECT_EQ(first_epoch.size(), 8U);
  EXPECT_NE(order, next_order);
}

TEST_F(Files, DataThatDoesNotFitIsRefusedByName) {
  const LoadedModel model(kFixtures + "gpt.pt2");
  const std::string path = folder_ + "/data.safetensors";
  const auto error = [&](const std::map<std::string, at::Tensor>& tensors) -> std::string {
    write_tensors(path, tensors, {});
    return testing::refusal([&] { open_data(path, model.exported, BatchSize(4), from_the_beginning(0)); });
  };
  const auto sizes = Program(model.exported, BatchSize(8), at::kCPU).sizes(model.exported.inputs[0].tensor);
  const at::Tensor right = at::zeros(sizes, at::kLong);
  EXPECT_EQ(error({{"tokens", right}, {"labels", right}}), "(nothing was refused)");
  EXPECT_THAT(error({{"tokens", right}}), HasSubstr("no tensor 'labels'"));
  EXPECT_THAT(error({{"tokens", right.to(at::kInt)}, {"labels", right}}), HasSubstr("'tokens' has type Int"));
  EXPECT_THAT(error({{"tokens", right.narrow(1, 0, 3).contiguous()}, {"labels", right}}),
              HasSubstr("'tokens' has shape"));
  EXPECT_THAT(error({{"tokens", right}, {"labels", right.narrow(0, 0, 5)}}),
              HasSubstr("'labels' has 5 samples, 'tokens' has 8"));
  EXPECT_THAT(error({{"tokens", right.narrow(0, 0, 3)}, {"labels", right.narrow(0, 0, 3)}}),
              HasSubstr("has 3 samples, a batch needs 4"));
}

TEST_F(Files, ACallThatTorchRefusesNamesOperatorAndTheUsersLine) {
  const std::string model = kFixtures + "gpt.pt2";
  const LoadedModel loaded(model);
  const auto sizes = Program(loaded.exported, BatchSize(4), at::kCPU).sizes(loaded.exported.inputs[0].tensor);
  const at::Tensor too_large = at::full(sizes, 1'000'000, at::kLong);  // beyond the embedding's rows
  ReferenceOptions options;
  options.batch = BatchSize(4);
  options.micro_batch = BatchSize(2);
  options.data = folder_ + "/data.safetensors";
  write_tensors(options.data, {{"tokens", too_large}, {"labels", too_large}}, {});
  EXPECT_THAT(testing::refusal([&] { run_reference(model, options); }),
              AllOf(HasSubstr("operator 'embedding' (embed, gpt.py:"), HasSubstr("index out of range")));
}

TEST(Synthetic, ASampleDoesNotDependOnHowManyAreRead) {
  const LoadedModel model(kFixtures + "gpt.pt2");
  const auto data = synthetic_data(model.exported, 5);
  const at::Tensor all = data->read(1, 0, BatchSize(0), BatchSize(6));
  EXPECT_TRUE(at::equal(all.narrow(0, 2, 3), data->read(1, 0, BatchSize(2), BatchSize(3))));
  EXPECT_FALSE(at::equal(all, data->read(2, 0, BatchSize(0), BatchSize(6))));
  EXPECT_LE(all.max().item<std::int64_t>(), *model.exported.inputs[0].sample_max);
  EXPECT_GE(all.min().item<std::int64_t>(), *model.exported.inputs[0].sample_min);
}

TEST(Synthetic, AModelOfFixedBatchReadsSeveralMicroBatchesAtOnce) {
  const LoadedModel model(kFixtures + "two_tower_fixed.pt2");
  const BatchSize size = model.graph().batch().min;
  const auto data = synthetic_data(model.exported, 5);
  const at::Tensor all = data->read(0, 0, BatchSize(0), size * 3);
  EXPECT_EQ(all.size(0), 3 * size.count());
  EXPECT_TRUE(at::equal(all.narrow(0, size.count(), size.count()), data->read(0, 0, size, size)));
}

TEST(Synthetic, WhatLiesBetweenZeroAndOneInTheExampleDoesSoHere) {
  const LoadedModel model(kFixtures + "dlrm.pt2");
  const auto data = synthetic_data(model.exported, 5);
  for (std::size_t i = 0; i < model.exported.inputs.size(); ++i) {
    if (model.exported.inputs[i].name != "clicked") continue;
    const at::Tensor values = data->read(0, i, BatchSize(0), BatchSize(100));
    EXPECT_GE(values.min().item<float>(), 0);
    EXPECT_LE(values.max().item<float>(), 1);
    EXPECT_NEAR(values.mean().item<float>(), 0.5, 0.2);
    return;
  }
  FAIL() << "no input 'clicked'";
}

TEST(Synthetic, ComplexInputsAreDrawnToo) {
  TestProgram net;
  net.input("x", {0, 3}, 10);  // c64
  net.op("abs.default", "size", {{"self", TestProgram::tensor("x")}}, {0, 3});
  net.op("mean.default", "loss", {{"self", TestProgram::tensor("size")}}, {});
  net.output("loss");
  const ExportedProgram exported = read_exported_program(net.archive(), "net.pt2");
  const at::Tensor values = synthetic_data(exported, 1)->read(0, 0, BatchSize(0), BatchSize(50));
  EXPECT_EQ(values.scalar_type(), at::kComplexFloat);
  EXPECT_GT(at::imag(values).abs().mean().item<float>(), 0.1F);
}

TEST_F(Files, SavedParametersLoadAgainAndTiesAreKeptOnce) {
  const std::string path = kFixtures + "gpt.pt2";
  ReferenceOptions options;
  options.batch = BatchSize(4);
  options.micro_batch = BatchSize(2);
  options.seed = 3;
  options.optimizer = {.kind = OptimizerKind::kSgd, .learning_rate = 0.1};
  options.steps = 1;
  options.save = folder_ + "/one.safetensors";
  run_reference(path, options);
  const auto saved = read_tensors(options.save);
  EXPECT_TRUE(saved.contains("embed.weight"));
  EXPECT_FALSE(saved.contains("head.weight"));  // a further name of the same storage, in the metadata
  const LoadedModel model(path);
  Session fresh(model.exported, model.file.bytes(), {}, 0, at::kCPU);
  Session loaded(model.exported, model.file.bytes(), {}, 0, at::kCPU);
  loaded.start_from(std::make_shared<WeightsFile>(options.save, model.graph(), MissingNames::kRefused), 0);
  for (std::size_t p = 0; p < model.graph().parameters().size(); ++p) {
    const std::string& name = model.graph().parameters()[p].names[0];
    EXPECT_TRUE(at::equal(loaded.initial(ParameterId(p)), saved.at(name))) << name;
  }
  EXPECT_FALSE(at::equal(fresh.initial(ParameterId(0)), loaded.initial(ParameterId(0))));
}

TEST_F(Files, ADefaultGeneratorGoesOnAsIfNothingHadTrained) {
  ReferenceOptions options;
  options.batch = options.micro_batch = BatchSize(2);
  options.steps = 1;
  at::manual_seed(5);
  const at::Tensor expected = at::rand({3});
  at::manual_seed(5);
  run_reference(kFixtures + "gpt.pt2", options);  // with dropout
  EXPECT_TRUE(at::equal(at::rand({3}), expected));
}

TEST(Holdings, TheFragmentsOfADeviceShareOneCopyAndStagesDoNot) {
  const LoadedModel model(kFixtures + "gpt.pt2");
  const std::vector<ParameterId> parameters{ParameterId(0)};
  for (const StateCopies copies : {StateCopies::kOfEachDevice, StateCopies::kOfEachStage}) {
    Session session(model.exported, model.file.bytes(), {}, 1, at::kCPU);
    const auto held = [&](std::size_t stage, std::size_t device) -> const Holding& {
      return session.holding(StageId(stage), DeviceId(device), parameters, copies);
    };
    const Holding &first = held(0, 0), &elsewhere = held(1, 1), &second = held(2, 0);
    ASSERT_EQ(first.parameters.size(), 1U);
    ASSERT_EQ(elsewhere.parameters.size(), 1U);
    EXPECT_FALSE(elsewhere.parameters[0].value.is_same(first.parameters[0].value));
    const bool shares = copies == StateCopies::kOfEachDevice;
    EXPECT_EQ(second.parameters.size(), shares ? 0U : 1U);
    ASSERT_EQ(second.shared.size(), shares ? 1U : 0U);
    if (shares) {
      EXPECT_TRUE(second.shared[0].value.is_same(first.parameters[0].value));
    }
  }
}

TEST(Wire, StridesSurvive) {
  const at::Tensor plain = at::arange(24, at::kFloat).view({2, 3, 4});
  for (const at::Tensor& tensor : {plain, plain.transpose(0, 2), plain.select(2, 1), plain.narrow(1, 0, 2),
                                   plain.slice(2, 0, 4, 2), plain.select(1, 0).unsqueeze(1).expand({2, 5, 4}),
                                   at::ones({}).expand({3, 2}), at::ones({}), at::ones({0, 3})}) {
    const Strides strides = strides_on_wire(tensor);
    const at::Tensor flat = to_wire(tensor, strides);
    EXPECT_EQ(flat.dim(), 1);
    EXPECT_EQ(flat.numel(), tensor.numel());
    const at::Tensor back = from_wire(flat.clone(), tensor.sizes(), strides);
    EXPECT_TRUE(at::equal(back, tensor));
    if (tensor.is_non_overlapping_and_dense()) {
      EXPECT_EQ(back.strides(), tensor.strides());
    }
  }
}

// Kernels choose their order of additions by it: a part of an image in channels-last format stays in that
// format.
TEST(Wire, WhatIsNotDenseKeepsTheOrderOfItsDimensions) {
  const at::Tensor image = at::rand({2, 8, 3, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor part = image.narrow(1, 2, 4);
  ASSERT_FALSE(part.is_non_overlapping_and_dense());
  const Strides strides = strides_on_wire(part);
  const at::Tensor back = from_wire(to_wire(part, strides).clone(), part.sizes(), strides);
  EXPECT_TRUE(at::equal(back, part));
  EXPECT_TRUE(back.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_EQ(strides_on_wire(at::rand({4, 6}).narrow(1, 0, 3)), (Strides{3, 1}));
  EXPECT_EQ(strides_on_wire(at::rand({4, 6}).narrow(1, 0, 3).t()), (Strides{1, 3}));
}

TEST(Wire, WhatIsSentOfAConjugateOrANegativeIsItsValue) {
  const at::Tensor numbers = at::view_as_complex(at::arange(12, at::kFloat).view({2, 3, 2}));
  for (const at::Tensor& tensor : {numbers.conj(), numbers.conj().t(), at::imag(numbers.conj())}) {
    const Strides strides = strides_on_wire(tensor);
    const at::Tensor flat = to_wire(tensor, strides);
    EXPECT_FALSE(flat.is_conj() || flat.is_neg());
    EXPECT_TRUE(
        at::equal(from_wire(flat.clone(), tensor.sizes(), strides), tensor.resolve_conj().resolve_neg()));
  }
}

// Runs one function per device, each in a thread.
void on_devices(std::size_t devices, const std::function<void(DeviceId)>& work) {
  std::vector<std::thread> threads;
  for (std::size_t d = 0; d < devices; ++d) threads.emplace_back(work, DeviceId(d));
  for (std::thread& thread : threads) thread.join();
}

TEST(Collectives, ARingGivesEveryMemberTheSameSum) {
  InProcessTransport transport(milliseconds(20'000));
  const std::vector<DeviceId> members{DeviceId(0), DeviceId(1), DeviceId(2)};
  std::vector<at::Tensor> values;
  for (int d = 0; d < 3; ++d) values.push_back(at::arange(7, at::kFloat) * (d + 1));
  on_devices(3, [&](DeviceId d) { all_reduce(transport, d, members, values[d.index()]); });
  for (const at::Tensor& value : values) {
    EXPECT_TRUE(at::equal(value, at::arange(7, at::kFloat) * 6));  // 1 + 2 + 3
  }
}

// 1e8 + 1 - 1e8 is 0 in single precision from the left, 1 in any other order. `alone` have all parts.
void expect_parts_added_in_order(const std::vector<DeviceId>& alone) {
  InProcessTransport transport(milliseconds(20'000));
  const OrderedSum sum{
      {DeviceId(2), DeviceId(0), DeviceId(1)}, {DeviceId(0), DeviceId(1), DeviceId(2), DeviceId(3)}, alone};
  const std::vector<float> values{1e8F, 1, -1e8F};
  std::vector<at::Tensor> totals(4);
  on_devices(4, [&](DeviceId d) {
    const bool all = std::find(alone.begin(), alone.end(), d) != alone.end();
    std::vector<at::Tensor> parts(3);
    for (std::size_t i = 0; i < 3; ++i) {
      if (all || sum.sources[i] == d) parts[i] = at::full({1}, values[i]);
    }
    totals[d.index()] = sum_in_order(transport, d, sum, parts, at::kFloat, 1);
  });
  for (const at::Tensor& total : totals) EXPECT_EQ(total.item<float>(), 0);
}

TEST(Collectives, PartsAreAddedInOrder) {
  expect_parts_added_in_order({});
}

TEST(Collectives, WhoHasAllPartsAddsThemUpInTheSameOrder) {
  expect_parts_added_in_order({DeviceId(3)});               // no source
  expect_parts_added_in_order({DeviceId(1), DeviceId(2)});  // who adds up for others, and a source
  expect_parts_added_in_order({DeviceId(0), DeviceId(1), DeviceId(2), DeviceId(3)});
}

TEST(Transport, AReceiveThatNobodyServesNamesBothEnds) {
  InProcessTransport transport(milliseconds(1));
  const auto pending = transport.post_receive({DeviceId(0), DeviceId(1), Lane::kMessages}, at::kFloat, 1);
  try {
    pending->wait();
    FAIL() << "came from nowhere";
  } catch (const WorkerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("device 0 to device 1"));
  }
}

TEST(Transport, DevicesAreDealtInBlocksThatDifferByOneAtMost) {
  EXPECT_THAT(deal_devices(5, 2), ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(deal_devices(4, 4), ElementsAre(0, 1, 2, 3));
}

}  // namespace
}  // namespace espalier
