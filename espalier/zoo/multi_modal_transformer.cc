#include "espalier/zoo/multi_modal_transformer.h"

#include "espalier/zoo/model_builder.h"

namespace espalier {
namespace {

using Memory = ModelBuilder::Memory;

class MultiModalWriter {
 public:
  explicit MultiModalWriter(const MultiModalTransformer& model)
      : model_(model), out_(model.name, kAnyBatch) {}

  Graph write() {
    std::vector<TensorId> ends;
    for (std::int64_t b = 0; b < model_.branches; ++b) {
      const std::string branch = "branches." + std::to_string(b);
      TensorId x = out_.input("features." + std::to_string(b), wide(model_.hidden));
      for (std::int64_t l = 0; l < model_.layers; ++l) x = layer(branch + ".layers." + std::to_string(l), x);
      ends.push_back(x);
    }
    const TensorId target = out_.input("target", wide(model_.branches * model_.hidden));
    out_.enter("head");
    const TensorId joined = out_.add("cat", "aten.cat.default", ends, out_.sizes(target));
    return out_.finish(out_.add("loss", "aten.mse_loss.default", {joined, target}, {}));
  }

 private:
  ModelBuilder::Sizes wide(std::int64_t width) const { return {batch_, model_.positions, width}; }

  TensorId linear(const std::string& module, const std::string& name, TensorId x, std::int64_t to) {
    const std::int64_t from = *out_.sizes(x).back().constant();
    const TensorId weight = out_.parameter(module + "." + name + ".weight", {to, from});
    return out_.add(name, "aten.linear.default", {x, weight}, wide(to));
  }

  TensorId layer(const std::string& module, TensorId x) {
    out_.enter(module);
    const std::int64_t head = model_.hidden / model_.heads;
    std::vector<TensorId> operands;
    for (const std::string name : {"q", "k", "v"}) {
      const TensorId projected = linear(module, name, x, model_.hidden);
      const TensorId split = out_.add(name + "_split", "aten.view.default", {projected},
                                      {batch_, model_.positions, model_.heads, head}, Memory::kView);
      operands.push_back(out_.add(name + "_heads", "aten.transpose.int", {split},
                                  {batch_, model_.heads, model_.positions, head}, Memory::kView));
    }
    const TensorId attended = out_.add("attention", "aten.scaled_dot_product_attention.default", operands,
                                       {batch_, model_.heads, model_.positions, head});
    const TensorId turned = out_.add("attention_turned", "aten.transpose.int", {attended},
                                     {batch_, model_.positions, model_.heads, head}, Memory::kView);
    const TensorId merged =
        out_.add("attention_merged", "aten.reshape.default", {turned}, wide(model_.hidden));
    const TensorId sum = out_.add("attention_sum", "aten.add.Tensor",
                                  {x, linear(module, "out", merged, model_.hidden)}, wide(model_.hidden));
    const TensorId inner = linear(module, "up", sum, model_.feed_forward);
    const TensorId active = out_.add("relu", "aten.relu.default", {inner}, wide(model_.feed_forward));
    return out_.add("sum", "aten.add.Tensor", {sum, linear(module, "down", active, model_.hidden)},
                    wide(model_.hidden));
  }

  const MultiModalTransformer& model_;
  ModelBuilder out_;
  const SizeExpr batch_ = SizeExpr::batch();
};

}  // namespace

Graph build(const MultiModalTransformer& model) {
  expect_sizes(model.name, {model.branches, model.layers, model.positions, model.hidden, model.heads,
                            model.feed_forward});
  expect_heads(model.name, model.heads, model.hidden);
  return MultiModalWriter(model).write();
}

}  // namespace espalier
