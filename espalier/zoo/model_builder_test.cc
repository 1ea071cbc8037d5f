#include "espalier/zoo/model_builder.h"

#include <gmock/gmock.h>

#include "espalier/base/check.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using testing::refusal;

class Building : public ::testing::Test {
 protected:
  std::string type(TensorId id) const {
    Tensor tensor;
    tensor.sizes = out_.sizes(id);
    return type_text(tensor);
  }

  ModelBuilder out_{"test", kAnyBatch};
  const TensorId image_ = out_.input("image", {SizeExpr::batch(), 3, 9, 12});
  const TensorId rows_ = out_.input("rows", {SizeExpr::batch(), 5, 8});
};

// places = ⌊(places + 2·padding − dilation·(kernel − 1) − 1) / stride⌋ + 1
TEST_F(Building, AWindowLeavesThePlacesThatItFits) {
  EXPECT_EQ(type(out_.convolution("a", image_, 4, ModelBuilder::square(3))), "f32[b,4,9,12]");
  EXPECT_EQ(type(out_.convolution("b", image_, 4, ModelBuilder::square(3, 2))), "f32[b,4,5,6]");
  EXPECT_EQ(type(out_.convolution("c", image_, 4, {.kernel = {1, 7}, .padding = {0, 3}})), "f32[b,4,9,12]");
  EXPECT_EQ(type(out_.convolution("d", image_, 4, {.kernel = {2, 2}, .dilation = 5})), "f32[b,4,4,7]");
  EXPECT_EQ(type(out_.convolution("e", image_, 6, {}, ModelBuilder::Bias::kWithout, 3)), "f32[b,6,9,12]");
  EXPECT_EQ(type(out_.pool("f", "aten.max_pool2d.default", image_, {.kernel = {9, 9}})), "f32[b,3,1,4]");
  out_.enter("module");
  EXPECT_THAT(refusal([&] {
                out_.convolution("g", image_, 4, {.kernel = {10, 1}});
              }),
              HasSubstr("module.g: a window of 10 does not fit into 9"));
}

TEST_F(Building, LayersHaveTheSizesOfTheirNames) {
  EXPECT_EQ(type(out_.linear("linear", rows_, 3)), "f32[b,5,3]");
  EXPECT_EQ(type(out_.split_heads("q", rows_, 2)), "f32[b,2,5,4]");
  EXPECT_EQ(type(out_.attention("attention", rows_, rows_, {.heads = 4, .key_value_heads = 2})),
            "f32[b,5,8]");
  EXPECT_EQ(type(out_.concat("cat", {rows_, rows_}, 1)), "f32[b,10,8]");
  EXPECT_EQ(type(out_.global_pool("pool", image_)), "f32[b,3]");
  EXPECT_EQ(out_.size(image_, -1), 12);
}

TEST_F(Building, ScopesNestAndEnd) {
  {
    const auto outer = out_.inside("layers", 2);
    const auto inner = out_.inside("attn");
    EXPECT_EQ(out_.full_name("q"), "layers.2.attn.q");
  }
  EXPECT_EQ(out_.full_name("q"), "q");
}

TEST_F(Building, ABatchNormWritesWhatItRemembers) {
  const TensorId labels = out_.input("labels", {SizeExpr::batch()}, DType::kI64);
  const TensorId normed = out_.batch_norm("bn", image_);
  const Graph graph = out_.finish(out_.cross_entropy("loss", out_.global_pool("pool", normed), labels));
  const Operator& norm = graph.op(*graph.find_operator("bn.norm"));
  EXPECT_TRUE(norm.mixes_samples);
  ASSERT_EQ(norm.mutates.size(), 2U);
  EXPECT_EQ(graph.tensor(norm.mutates[0]).name, "bn.running_mean");
  EXPECT_EQ(graph.op(*graph.find_operator("bn.count")).mutates.size(), 1U);
  EXPECT_FALSE(graph.parameter(*graph.tensor(norm.mutates[1]).parameter).trainable);
}

TEST_F(Building, ANameStandsOnce) {
  out_.linear("linear", rows_, 3);
  EXPECT_THAT(refusal<InternalError>([&] { out_.map("linear", "aten.relu.default", {rows_}); }),
              HasSubstr("linear"));
}

}  // namespace
}  // namespace espalier
