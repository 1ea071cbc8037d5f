#include "espalier/zoo/multi_modal_transformer.h"

#include <string>

#include "espalier/zoo/model_builder.h"

namespace espalier {
namespace {

TensorId multi_modal_layer(ModelBuilder& out, TensorId x, const MultiModalTransformer& model) {
  const auto projected = [&](const std::string& name, TensorId from, std::int64_t to) {
    return out.linear(name, from, to, ModelBuilder::Bias::kWithout);
  };
  std::vector<TensorId> operands;
  for (const std::string name : {"q", "k", "v"})
    operands.push_back(out.split_heads(name, projected(name, x, model.hidden), model.heads));
  const TensorId attended = projected("out", out.attend("attention", operands), model.hidden);
  x = out.map("attention_sum", "aten.add.Tensor", {x, attended});
  const TensorId active = out.map("relu", "aten.relu.default", {projected("up", x, model.feed_forward)});
  return out.map("sum", "aten.add.Tensor", {x, projected("down", active, model.hidden)});
}

}  // namespace

Graph build(const MultiModalTransformer& model) {
  expect_sizes(model.name, {model.branches, model.layers, model.positions, model.hidden, model.heads,
                            model.feed_forward});
  expect_heads(model.name, model.heads, model.hidden);
  ModelBuilder out(model.name, kAnyBatch);
  const auto wide = [&](std::int64_t width) {
    return ModelBuilder::Sizes{SizeExpr::batch(), model.positions, width};
  };
  std::vector<TensorId> ends;
  for (std::int64_t b = 0; b < model.branches; ++b) {
    const std::string branch = "branches." + std::to_string(b);
    TensorId x = out.input("features." + std::to_string(b), wide(model.hidden));
    for (std::int64_t l = 0; l < model.layers; ++l) {
      out.enter(branch + ".layers." + std::to_string(l));
      x = multi_modal_layer(out, x, model);
    }
    ends.push_back(x);
  }
  const TensorId target = out.input("target", wide(model.branches * model.hidden));
  out.enter("head");
  const TensorId joined = out.concat("cat", ends, 2);
  return out.finish(out.add("loss", "aten.mse_loss.default", {joined, target}, {}));
}

}  // namespace espalier
