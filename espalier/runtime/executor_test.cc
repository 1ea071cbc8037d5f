// The runtime against PyTorch's own numbers, as another machine wrote them (tests/fixtures): by the measure
// of docs/semantics.md, for the last bits depend on the processor. tests/parity demands bits of PyTorch here.

#include "espalier/runtime/executor.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/runtime/comparison.h"
#include "espalier/runtime/tensor_file.h"
#include "espalier/runtime/tensors_for_tests.h"
#include "espalier/runtime/trainer.h"

namespace espalier {
namespace {

const std::string kFixtures = std::string(ESPALIER_SOURCE_DIR) + "/tests/fixtures/";

struct Expected {
  Json facts;
  std::map<std::string, at::Tensor> tensors;
  std::uint32_t micro_batches() const { return facts.at("micro_batches").get<std::uint32_t>(); }
  BatchSize micro_batch() const { return BatchSize(facts.at("micro_batch_size").get<std::int64_t>()); }
};

Expected read_expected(const std::string& stem) {
  return {parse_json(read_file(kFixtures + stem + ".expected.json"), stem),
          read_tensors(kFixtures + stem + ".expected.safetensors")};
}

// Those whose names begin so, without it.
std::map<std::string, at::Tensor> tensors_of(const Expected& expected, const std::string& prefix) {
  std::map<std::string, at::Tensor> found;
  for (const auto& [name, tensor] : expected.tensors) {
    if (name.rfind(prefix, 0) == 0) found[name.substr(prefix.size())] = tensor;
  }
  return found;
}

// A type coarser than 1e-5 has eight of its roundings.
double allowed(const Graph& graph) {
  return std::max(1e-5, 2 * default_tolerance(graph));
}

// The samples of the expected step, in their order.
class FixtureData final : public DataSource {
 public:
  FixtureData(const ExportedProgram& exported, const Expected& expected)
      : exported_(exported), expected_(expected) {}
  at::Tensor read(std::uint64_t, std::size_t input, BatchSize first, BatchSize count) const override {
    return expected_.tensors.at("input." + exported_.inputs[input].name)
        .narrow(0, first.count(), count.count());
  }
  DataPosition position(std::uint64_t) const override { return {}; }

 private:
  const ExportedProgram& exported_;
  const Expected& expected_;
};

class Fixture : public ::testing::TestWithParam<std::string> {};

TEST_P(Fixture, OneProcessComputesWhatPyTorchComputes) {
  at::set_num_threads(1);
  const Expected expected = read_expected(GetParam());
  const LoadedModel model(kFixtures + expected.facts.at("model").get<std::string>());
  const BatchSize batch = expected.micro_batch() * expected.micro_batches();
  const PlannedJob planned = one_stage_job(model.graph(), batch, expected.micro_batch());
  const FixtureData data(model.exported, expected);
  InProcessTransport transport(milliseconds(1'000));
  Trainer trainer(model, planned, data, transport,
                  {.seed = expected.facts.at("seed").get<std::uint64_t>(),
                   .executor = {.keep_gradients = true, .update = false}});
  Executor& executor = trainer.executor();
  const StepOutcome outcome = executor.step();

  const double most = allowed(model.graph());
  ASSERT_EQ(outcome.losses.size(), expected.micro_batches());
  for (const auto& [j, loss] : outcome.losses) {
    const double right = std::stod(expected.facts.at("micro_batch_losses_hex").at(j).get<std::string>());
    EXPECT_NEAR(loss, right, most * std::abs(right));
  }
  std::map<std::string, at::Tensor> gradients;
  for (const auto& [id, gradient] : outcome.gradients) {
    gradients[model.graph().parameter(id).names[0]] = gradient;
  }
  const auto right_gradients = tensors_of(expected, "grad.");
  EXPECT_EQ(right_gradients.size(), expected.facts.at("gradients").size());
  for (const auto& [name, right] : right_gradients) {
    gradients.try_emplace(name, at::zeros_like(right));  // none flowed
  }
  for (const auto& [name, difference] : relative_differences(gradients, right_gradients)) {
    EXPECT_LE(difference, most) << "gradient of " << name;
  }
  std::map<std::string, at::Tensor> buffers;
  for (std::size_t p = 0; p < model.graph().parameters().size(); ++p) {
    buffers[model.graph().parameters()[p].names[0]] = executor.owned(ParameterId(p));
  }
  for (const auto& [name, right] : tensors_of(expected, "buffer.")) {
    EXPECT_LE(relative_differences(buffers, {{name, right}}).at(name), most) << "buffer " << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Fixture,
                         ::testing::Values("two_tower", "two_tower.two", "two_tower_fixed",
                                           "two_tower_fixed.two", "three_branch", "three_branch.two", "gpt",
                                           "gpt.two", "resnet", "resnet.two", "dlrm", "dlrm.two", "unet",
                                           "unet.two", "gpt2", "gpt2.two", "llama", "llama.two", "spectral",
                                           "spectral.two", "rotary", "rotary.two", "rotary_f64",
                                           "rotary_f64.two", "gpt_bf16", "gpt_bf16.two", "custom",
                                           "custom.two", "autocast", "autocast.two"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

}  // namespace
}  // namespace espalier
