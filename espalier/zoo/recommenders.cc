#include "espalier/zoo/recommenders.h"

#include <algorithm>
#include <string>

#include "espalier/base/check.h"
#include "espalier/zoo/model_builder.h"

namespace espalier {
namespace {

using Bias = ModelBuilder::Bias;

// Linear layers of one width, each with its relu.
TensorId linear_layers(ModelBuilder& out, const std::string& module, TensorId x, std::int64_t layers,
                       std::int64_t width, Bias bias = Bias::kWith) {
  const auto scope = out.inside(module);
  for (std::int64_t l = 0; l < layers; ++l) {
    const std::string number = std::to_string(l);
    x = out.map("relu." + number, "aten.relu.default", {out.linear("linear." + number, x, width, bias)});
  }
  return x;
}

// What a sample picks of a table: the sum of its rows, or all of them side by side.
TensorId bag_of(ModelBuilder& out, const std::string& name, TensorId picked, const Dlrm& model) {
  const SizeExpr batch = SizeExpr::batch();
  const auto scope = out.inside(name);
  if (model.reduction == Dlrm::Bag::kSideBySide) {
    const TensorId rows = out.embedding("table", picked, model.rows, model.embedding);
    return out.view("side_by_side", "aten.view.default", rows, {batch, model.bag * model.embedding});
  }
  const TensorId table = out.parameter(out.full_name("table.weight"), {model.rows, model.embedding});
  return out.add("table", "aten.embedding_bag.default", {table, picked}, {batch, model.embedding});
}

}  // namespace

Graph build(const Dlrm& model) {
  if (std::min(model.dense, model.sparse) < 0 || model.dense + model.sparse < 1) {
    throw InputError("dlrm: expected at least one branch, dense or sparse");
  }
  expect_sizes("dlrm", {model.layers, model.width, model.rows, model.embedding, model.bag, model.top});
  ModelBuilder out("dlrm", kAnyBatch);
  const SizeExpr batch = SizeExpr::batch();
  std::vector<TensorId> ends;
  for (std::int64_t i = 0; i < model.dense; ++i) {
    const std::string name = "dense." + std::to_string(i);
    ends.push_back(
        linear_layers(out, name, out.input(name, {batch, model.width}), model.layers, model.width));
  }
  for (std::int64_t i = 0; i < model.sparse; ++i) {
    const std::string name = "sparse." + std::to_string(i);
    ends.push_back(bag_of(out, name, out.input(name, {batch, model.bag}, DType::kI64), model));
  }
  const TensorId label = out.input("label", {batch, 1});
  out.enter("top");
  const TensorId joined = ends.size() > 1 ? out.concat("cat", ends, 1) : ends[0];
  const TensorId x = linear_layers(out, "layers", joined, model.top, model.width);
  const TensorId click = out.linear("click", x, 1);
  return out.finish(out.add("loss", "aten.binary_cross_entropy_with_logits.default", {click, label}, {}));
}

CandleUno flexflow_candle_uno() {
  return {.features = {942, 5270, 2048, 5270, 2048},
          .doses = 2,
          .layers = 8,
          .width = 4192,
          .head = 4,
          .biases = CandleUno::Biases::kWithout};
}

Graph build(const CandleUno& model) {
  if (model.features.empty()) throw InputError("candle-uno: expected at least one tower");
  expect_sizes("candle-uno", {*std::min_element(model.features.begin(), model.features.end()),
                              model.doses + 1, model.layers, model.width, model.head});
  ModelBuilder out("candle-uno", kAnyBatch);
  const SizeExpr batch = SizeExpr::batch();
  const Bias bias = model.biases == CandleUno::Biases::kWith ? Bias::kWith : Bias::kWithout;
  std::vector<TensorId> ends;
  for (std::size_t i = 0; i < model.features.size(); ++i) {
    const TensorId features = out.input("features." + std::to_string(i), {batch, model.features[i]});
    ends.push_back(
        linear_layers(out, "towers." + std::to_string(i), features, model.layers, model.width, bias));
  }
  for (std::int64_t i = 0; i < model.doses; ++i) {
    ends.push_back(out.input("doses." + std::to_string(i), {batch, 1}));
  }
  const TensorId growth = out.input("growth", {batch, 1});
  out.enter("head");
  const TensorId joined = ends.size() > 1 ? out.concat("cat", ends, 1) : ends[0];
  const TensorId x = linear_layers(out, "layers", joined, model.head, model.width, bias);
  return out.finish(out.add("loss", "aten.mse_loss.default", {out.linear("growth", x, 1, bias), growth}, {}));
}

}  // namespace espalier
