// verify finds nothing where nothing is wrong, and finds and names every planted mistake.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "espalier/plan/fragments.h"
#include "espalier/runtime/comparison.h"
#include "espalier/runtime/loaded_model.h"
#include "espalier/runtime/plans_for_tests.h"
#include "espalier/runtime/runtime.h"
#include "espalier/runtime/testing/faults.h"
#include "espalier/runtime/verify.h"
#include "testing/cut_plan.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using espalier::testing::CutOptions;
using espalier::testing::Fault;
using espalier::testing::plan_from_cuts;
using espalier::testing::PlantedFault;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// A model cut in two at an operator, four micro-batches of two samples.
struct Cut {
  std::string fixture;
  std::string at;  // first operator of the second stage
  CutOptions options = {};
  Optimizer optimizer = {};
};

struct Planted {
  Fault fault;
  std::size_t stage;
};

VerifyResult verify_file(PlanFile file, const LoadedModel& model, std::optional<Planted> planted,
                         std::uint64_t steps) {
  file.seed = 5;
  VerifyOptions options;
  options.steps = steps;
  if (!planted) return verify_plan(file, model.path, options);
  PlantedFault hooks(planted->fault, planted->stage, model.graph());
  return verify_plan_with(file, model.path, options, &hooks);
}

VerifyResult verify(const Cut& cut, std::optional<Planted> planted = {}, std::uint64_t steps = 2) {
  const std::string path = kFixtures + cut.fixture + ".pt2";
  const LoadedModel model(path);
  const auto at = model.graph().find_operator(cut.at);
  EXPECT_TRUE(at.has_value()) << cut.at;
  const PipelinePlan plan = plan_from_cuts(model.graph(), {at->index()}, cut.options);
  const Cluster cluster = cpus(4);
  const Training training{plan.batch, {cut.options.micro_batch}, cut.optimizer};
  return verify_file(make_plan_file(model.graph(), cluster, training, plan,
                                    staged_for_tests(model.graph(), cluster, plan, training.optimizer)),
                     model, planted, steps);
}

std::vector<std::string> names(const VerifyResult& result, Difference::What what) {
  std::vector<std::string> names;
  for (const Difference& difference : result.differences) {
    if (difference.what == what) names.push_back(difference.name);
  }
  return names;
}

const Cut kGpt{"gpt", "layer_norm_2"};    // embed and head share a weight over the cut
const Cut kResnet{"resnet", "conv2d_3"};  // BatchNorm on both sides

TEST(Verify, AModelCutInTwoIsBitEqualToOneProcess) {
  const VerifyResult result = verify(kResnet);
  EXPECT_TRUE(result.equal) << result.verdict;
  EXPECT_TRUE(result.bit_equal) << result.verdict;
  EXPECT_TRUE(result.bit_equality_due);
  EXPECT_EQ(result.worst, 0);
  EXPECT_THAT(result.verdict,
              HasSubstr("are bit-equal to one process of this program with the same micro-batches"));
  EXPECT_EQ(result.compared_with, "one process of this program with the same micro-batches");
}

TEST(Verify, ATiedWeightIsEqualWithinTheTolerance) {
  const VerifyResult result = verify(kGpt);
  EXPECT_TRUE(result.equal) << result.verdict;
  EXPECT_FALSE(result.bit_equality_due);
  EXPECT_EQ(result.gradients, 28U);
  EXPECT_LE(result.worst, 1e-5);
}

TEST(Verify, ReplicasAreEqualWithinTheTolerance) {
  Cut cut = kGpt;
  cut.options.devices = {{DeviceId(0), DeviceId(1)}, {DeviceId(2), DeviceId(3)}};
  const VerifyResult result = verify(cut);
  EXPECT_TRUE(result.equal) << result.verdict;
}

// A model that makes much of every rounding error, with sums in another order than one process has.
Cut mobile_in_replicas() {
  Cut cut{"mobile", "conv2d_4"};
  cut.options.devices = {{DeviceId(0), DeviceId(1)}, {DeviceId(2), DeviceId(3)}};
  cut.optimizer = {.kind = OptimizerKind::kSgd, .learning_rate = 0.1};
  return cut;
}

TEST(Verify, WhatAModelMakesOfARoundingErrorIsNoDifference) {
  const VerifyResult result = verify(mobile_in_replicas(), {}, 5);
  EXPECT_GT(result.worst, result.tolerance);  // beyond the tolerance …
  EXPECT_TRUE(result.equal) << result.verdict;
  EXPECT_THAT(result.differences, IsEmpty());
  ASSERT_TRUE(result.control.has_value());  // … and so is one process that starts a rounding error away
  EXPECT_GT(result.control->control, result.control->plan / 4);
  EXPECT_THAT(result.verdict,
              HasSubstr("as equal to one process of this program with the same micro-batches as "
                        "rounding in this model allows"));
}

TEST(Verify, InAModelThatMakesMuchOfRoundingEveryMistakeIsStillFound) {
  for (const Fault fault : {Fault::kLostMicroBatch, Fault::kUnscaledLoss, Fault::kNoAllReduce,
                            Fault::kWrongDataOrder, Fault::kSkippedUpdate}) {
    const VerifyResult result = verify(mobile_in_replicas(), Planted{fault, 1}, 5);
    EXPECT_FALSE(result.equal) << static_cast<int>(fault) << ": " << result.verdict;
    EXPECT_FALSE(result.first.empty()) << result.verdict;
  }
}

TEST(Verify, AControlRunNeverExcusesBitsThatMustBeEqual) {
  const VerifyResult result = verify(kResnet, Planted{Fault::kLostMicroBatch, 0});
  EXPECT_FALSE(result.equal);
  EXPECT_FALSE(result.control.has_value());
}

// Stages of other sizes than the loss draw other random numbers than one process.
TEST(Verify, AStageThatDrawsForOtherMicroBatchesThanTheLossIsRefusedInOneLine) {
  const std::string path = kFixtures + "gpt.pt2";
  const LoadedModel model(path);
  const std::size_t at = model.graph().find_operator(kGpt.at).value().index();
  PipelinePlan plan = plan_from_cuts(model.graph(), {at}, kGpt.options);
  plan.stages[0].micro_batch = BatchSize(4);
  plan.stages[0].replicas[0].micro_batches = round_robin(2, 0, 1);
  const std::vector<std::uint32_t> limits = in_flight_limits(plan);
  for (std::size_t s = 0; s < limits.size(); ++s) plan.stages[s].in_flight = limits[s];
  const PlanFile file = make_plan_file(model.graph(), cpus(2), {plan.batch, {BatchSize(2)}, {}}, plan,
                                       staged_for_tests(model.graph(), cpus(2), plan, {}));
  EXPECT_THAT(espalier::testing::refusal([&] { verify_plan(file, path, {}); }),
              ::testing::AllOf(StartsWith("stage 's0' draws random numbers (operator '"),
                               HasSubstr("for micro-batches of 4, one process for those of the loss, 2")));
}

TEST(Verify, TheToleranceIsThatOfTheModelsPrecision) {
  const auto tolerance = [](const char* fixture) {
    return default_tolerance(LoadedModel(kFixtures + fixture + ".pt2").graph());
  };
  EXPECT_EQ(tolerance("gpt"), 1e-5);
  EXPECT_EQ(tolerance("spectral"), 1e-5);
  EXPECT_EQ(tolerance("gpt_bf16"), 4 * std::ldexp(1, -7));
  EXPECT_EQ(tolerance("rotary_f64"), 1e-5 * std::ldexp(1, -29));
}

TEST(Verify, ComplexAndDoubleAndShortNumbersAreEqualInReplicasToo) {
  for (const Cut& model :
       {Cut{"spectral", "fft_irfft"}, Cut{"rotary_f64", "view_as_real_1"}, Cut{"gpt_bf16", "layer_norm_2"}}) {
    Cut cut = model;
    cut.options.devices = {{DeviceId(0), DeviceId(1)}, {DeviceId(2), DeviceId(3)}};
    const VerifyResult result = verify(cut);
    EXPECT_TRUE(result.equal) << cut.fixture << ": " << result.verdict;
    EXPECT_FALSE(result.control.has_value()) << cut.fixture << ": " << result.verdict;
    for (const Fault fault : {Fault::kLostMicroBatch, Fault::kNoAllReduce, Fault::kSkippedUpdate}) {
      const VerifyResult wrong = verify(cut, Planted{fault, 1}, 1);
      EXPECT_FALSE(wrong.equal) << cut.fixture << " " << static_cast<int>(fault) << ": " << wrong.verdict;
    }
  }
}

TEST(Nudge, EveryNumberButZeroMovesByOneUnitInTheLastPlace) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kComplexFloat}) {
    const at::Tensor before = at::tensor({-3.0, -1.0, 0.0, 0.75, 1.0, 1e4}).to(type);
    const at::Tensor after = before.clone();
    move_by_last_place(after, 1);
    const at::Tensor size = before.abs().to(at::kDouble);
    const at::Tensor change = (after - before).abs().to(at::kDouble) / size.clamp_min(1e-30);
    const double unit = type == at::kDouble     ? std::ldexp(1, -52)
                        : type == at::kBFloat16 ? std::ldexp(1, -7)
                        : type == at::kHalf     ? std::ldexp(1, -10)
                                                : std::ldexp(1, -23);
    EXPECT_TRUE((change <= unit).all().item<bool>()) << change;
    EXPECT_EQ((change > 0).sum().item<std::int64_t>(), 5) << change;
  }
}

TEST(Verify, ALostMicroBatchShowsInTheGradients) {
  const VerifyResult result = verify(kResnet, Planted{Fault::kLostMicroBatch, 0});
  EXPECT_FALSE(result.equal);
  EXPECT_EQ(result.loss, result.reference_loss);  // a loss alone would look right
  EXPECT_EQ(names(result, Difference::What::kGradient).size(), result.gradients);
  EXPECT_THAT(result.first, HasSubstr("operator 'linear'"));
  EXPECT_THAT(result.first, HasSubstr("the gradient of"));
}

TEST(Verify, AnUntiedWeightIsNamed) {
  const VerifyResult result = verify(kGpt, Planted{Fault::kUntied, 0});
  EXPECT_FALSE(result.equal);
  EXPECT_THAT(names(result, Difference::What::kGradient), ElementsAre("embed.weight"));
  EXPECT_THAT(result.first, HasSubstr("the gradient of 'embed.weight' differs"));
}

TEST(Verify, AWrongSeedShowsInTheFirstRandomOperatorOfItsStage) {
  const VerifyResult result = verify(kGpt, Planted{Fault::kWrongSeed, 1});
  EXPECT_FALSE(result.equal);
  EXPECT_THAT(result.first, HasSubstr("operator 'scaled_dot_product_attention_1'"));
  EXPECT_THAT(result.first, HasSubstr("micro-batch 0: its output differs"));
}

TEST(Verify, AStaleReceiveShowsInTheFirstOperatorThatReadsIt) {
  const VerifyResult result = verify(kResnet, Planted{Fault::kStaleReceive, 1});
  EXPECT_FALSE(result.equal);
  EXPECT_THAT(result.first, HasSubstr("operator 'conv2d_3'"));
  EXPECT_THAT(result.first, HasSubstr("micro-batch 1: its output differs"));  // the first has none before it
}

TEST(Verify, BatchNormStatisticsThatAreUpdatedTwiceAreNamed) {
  const VerifyResult result = verify(kResnet, Planted{Fault::kDoubleBufferUpdate, 0});
  EXPECT_FALSE(result.equal);
  EXPECT_EQ(result.loss, result.reference_loss);
  EXPECT_THAT(names(result, Difference::What::kGradient), IsEmpty());
  EXPECT_EQ(names(result, Difference::What::kBuffer).size(), 9U);  // three layers of the first stage
  EXPECT_THAT(result.first, HasSubstr("operator 'add_'"));         // it counts the batches
  EXPECT_THAT(result.first, HasSubstr("micro-batch 1: its output differs"));
}

TEST(Verify, ALossThatIsNotScaledShowsInEveryGradient) {
  const VerifyResult result = verify(kResnet, Planted{Fault::kUnscaledLoss, 0});
  EXPECT_FALSE(result.equal);
  EXPECT_EQ(names(result, Difference::What::kGradient).size(), result.gradients);
  EXPECT_NEAR(result.gradient_norm / result.reference_gradient_norm, 4, 1e-6);  // four micro-batches
}

TEST(Verify, AMissingAllReduceShowsInItsStageAlone) {
  Cut cut = kGpt;
  cut.options.devices = {{DeviceId(0), DeviceId(1)}, {DeviceId(2)}};
  const VerifyResult result = verify(cut, Planted{Fault::kNoAllReduce, 0});
  EXPECT_FALSE(result.equal);
  for (const std::string& name : names(result, Difference::What::kGradient)) {
    EXPECT_THAT(name, AnyOf(StartsWith("blocks.0."), StartsWith("embed."), StartsWith("position.")));
  }
  EXPECT_THAT(result.first, HasSubstr("the gradient of 'embed.weight' differs"));  // the head reads it too
}

TEST(Verify, ANormThatCountsCopiesIsNamedAlone) {
  const VerifyResult result = verify(kGpt, Planted{Fault::kNormOfCopies, 0});
  EXPECT_FALSE(result.equal);
  ASSERT_EQ(result.differences.size(), 1U) << result.verdict;
  EXPECT_EQ(result.differences[0].what, Difference::What::kGradientNorm);
  EXPECT_GT(result.gradient_norm, result.reference_gradient_norm);
  EXPECT_THAT(result.verdict, HasSubstr("first: gradient norm"));
}

TEST(Verify, AnUpdateThatOneStageSkipsShowsInItsParametersAlone) {
  const VerifyResult result = verify(kGpt, Planted{Fault::kSkippedUpdate, 1}, 1);
  EXPECT_FALSE(result.equal);
  EXPECT_NEAR(result.gradient_norm / result.reference_gradient_norm, 1, 1e-6);
  EXPECT_EQ(names(result, Difference::What::kParameter).size(), result.differences.size());
  for (const std::string& name : names(result, Difference::What::kParameter)) {
    EXPECT_THAT(name, AnyOf(StartsWith("blocks.1."), StartsWith("norm.")));
  }
  EXPECT_THAT(result.first, HasSubstr("the parameter 'blocks.1."));
}

// Operators by the first that matches of a module's beginning and a device; four micro-batches of two
// samples.
struct Placed {
  std::string fixture;
  std::vector<std::pair<std::string, std::size_t>> rules;
};

VerifyResult verify(const Placed& placed, std::optional<Planted> planted = {}, std::uint64_t steps = 2) {
  const LoadedModel model(kFixtures + placed.fixture + ".pt2");
  Placement placement;
  for (const Operator& op : model.graph().operators()) {
    const auto rule = std::find_if(placed.rules.begin(), placed.rules.end(), [&](const auto& each) {
      return op.module_path.rfind(each.first, 0) == 0;
    });
    placement.device.emplace_back(rule->second);
  }
  const Cluster cluster = cpus(2);
  EXPECT_THAT(check_placement(model.graph(), cluster, placement), IsEmpty());
  const BatchSize micro_batch(2);
  const PipelinePlan plan = fragments_of(model.graph(), placement, BatchSize(8), {micro_batch, Orders()});
  return verify_file(
      make_plan_file(model.graph(), cluster, {plan.batch, {micro_batch}, {}}, placement, micro_batch,
                     staged_for_tests(model.graph(), cluster, plan, {}, StateCopies::kOfEachDevice)),
      model, planted, steps);
}

// Fragments: what comes before the blocks and the second block's device, the first block, the rest.
const Placed kEndsTogether{"gpt", {{"blocks.0", 1}, {"", 0}}};
const Placed kEndsApart{"gpt", {{"embed", 0}, {"position", 0}, {"blocks.0", 0}, {"", 1}}};
const Placed kResnetInThree{"resnet", {{"blocks.0", 1}, {"", 0}}};

TEST(VerifyPlacement, APlacementEqualsOneProcess) {
  for (const Placed& placed : {kEndsTogether, kEndsApart, kResnetInThree}) {
    const VerifyResult result = verify(placed);
    EXPECT_TRUE(result.equal) << placed.fixture << ": " << result.verdict;
    EXPECT_FALSE(result.control.has_value()) << placed.fixture << ": " << result.verdict;
  }
}

TEST(VerifyPlacement, AFragmentThatLosesItsPartOfASharedGradientIsNamed) {
  const VerifyResult result = verify(kEndsTogether, Planted{Fault::kLostFragment, 2});
  EXPECT_FALSE(result.equal);
  EXPECT_THAT(names(result, Difference::What::kGradient), ElementsAre("embed.weight"));
  EXPECT_THAT(result.first, HasSubstr("the gradient of 'embed.weight' differs"));
}

TEST(VerifyPlacement, AnUntiedWeightIsNamed) {
  const VerifyResult result = verify(kEndsApart, Planted{Fault::kUntied, 0});
  EXPECT_FALSE(result.equal);
  EXPECT_THAT(names(result, Difference::What::kGradient), ElementsAre("embed.weight"));
}

TEST(VerifyPlacement, ANormThatCountsCopiesIsNamedAlone) {
  const VerifyResult result = verify(kEndsApart, Planted{Fault::kNormOfCopies, 0});
  ASSERT_EQ(result.differences.size(), 1U) << result.verdict;
  EXPECT_EQ(result.differences[0].what, Difference::What::kGradientNorm);
}

TEST(VerifyPlacement, EveryMistakeOfAStageIsOneOfAFragment) {
  for (const Planted planted : {Planted{Fault::kLostMicroBatch, 0}, Planted{Fault::kWrongSeed, 2},
                                Planted{Fault::kStaleReceive, 2}, Planted{Fault::kUnscaledLoss, 0},
                                Planted{Fault::kWrongDataOrder, 0}, Planted{Fault::kSkippedUpdate, 1}}) {
    const VerifyResult result = verify(kEndsTogether, planted, 1);
    EXPECT_FALSE(result.equal) << static_cast<int>(planted.fault) << ": " << result.verdict;
    EXPECT_FALSE(result.first.empty()) << result.verdict;
  }
  const VerifyResult result = verify(kResnetInThree, Planted{Fault::kDoubleBufferUpdate, 0});
  EXPECT_FALSE(result.equal);
  EXPECT_THAT(names(result, Difference::What::kBuffer), Not(IsEmpty()));
}

TEST(Verify, AWrongDataOrderShowsInTheFirstOperatorThatReadsTheInput) {
  const VerifyResult result = verify(kResnet, Planted{Fault::kWrongDataOrder, 0});
  EXPECT_FALSE(result.equal);
  EXPECT_THAT(result.first, HasSubstr("operator 'conv2d'"));
  EXPECT_THAT(result.first, HasSubstr("micro-batch 0: its output differs"));
}

}  // namespace
}  // namespace espalier
