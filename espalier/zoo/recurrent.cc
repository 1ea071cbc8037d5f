#include "espalier/zoo/recurrent.h"

#include <string>

#include "espalier/zoo/lstm_cell.h"
#include "espalier/zoo/model_builder.h"

namespace espalier {

Graph build(const RecurrentLanguageModel& model) {
  expect_sizes("rnnlm", {model.layers, model.hidden, model.vocabulary, model.length});
  ModelBuilder out("rnnlm-" + std::to_string(model.layers), kAnyBatch);
  const SizeExpr batch = SizeExpr::batch();
  const auto steps = static_cast<std::size_t>(model.length);
  const TensorId words = out.input("words", {batch, model.length}, DType::kI64);
  const TensorId labels = out.input("labels", {batch, model.length}, DType::kI64);
  const TensorId zeros = out.generate("zeros", "aten.zeros.default", {batch, model.hidden});
  const TensorId table = out.parameter("embedding.weight", {model.vocabulary, model.hidden});
  std::vector<LstmCell> cells;
  for (std::int64_t l = 0; l < model.layers; ++l)
    cells.push_back(lstm_cell(out, "layers." + std::to_string(l), model.hidden, model.hidden));
  const TensorId weight = out.parameter("projection.weight", {model.hidden, model.vocabulary});
  const TensorId bias = out.parameter("projection.bias", {model.vocabulary});

  const std::vector<TensorId> word =
      out.add_several("each_word", "aten.unbind.int", {words}, steps, {batch}, ModelBuilder::Memory::kView);
  const std::vector<TensorId> label =
      out.add_several("each_label", "aten.unbind.int", {labels}, steps, {batch}, ModelBuilder::Memory::kView);
  std::vector<LstmState> states(cells.size(), LstmState{zeros, zeros});
  std::vector<TensorId> losses;
  for (std::size_t t = 0; t < steps; ++t) {
    const std::string step = ".step" + std::to_string(t);
    out.enter("embedding" + step);
    TensorId x = out.look_up("word", table, word[t]);
    for (std::size_t l = 0; l < cells.size(); ++l) {
      out.enter("layers." + std::to_string(l) + step);
      states[l] = lstm_step(out, cells[l], {x}, states[l]);
      x = out.random("dropout", "aten.dropout.default", states[l].h);
    }
    out.enter("projection" + step);
    const ModelBuilder::Sizes logits{batch, model.vocabulary};
    const TensorId product = out.add("product", "aten.mm.default", {x, weight}, logits);
    const TensorId biased = out.add("logits", "aten.add.Tensor", {product, bias}, logits);
    losses.push_back(out.cross_entropy("loss", biased, label[t]));
  }
  out.enter("projection");
  const TensorId all = out.add("losses", "aten.stack.default", losses, {model.length});
  return out.finish(out.add("loss", "aten.mean.default", {all}, {}));
}

}  // namespace espalier
