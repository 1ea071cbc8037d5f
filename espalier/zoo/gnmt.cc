#include "espalier/zoo/gnmt.h"

#include <algorithm>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/zoo/lstm_cell.h"
#include "espalier/zoo/model_builder.h"

namespace espalier {
namespace {

using Memory = ModelBuilder::Memory;
using Steps = std::vector<TensorId>;  // a tensor for each word

constexpr std::int64_t kFirstResidual = 2;  // layer

class GnmtWriter {
 public:
  explicit GnmtWriter(const Gnmt& model)
      : model_(model), out_("gnmt-" + std::to_string(model.layers), kAnyBatch) {}

  Graph write() {
    const TensorId source = out_.input("source", {batch_, model_.length}, DType::kI64);
    const TensorId target = out_.input("target", {batch_, model_.length}, DType::kI64);
    const TensorId labels = out_.input("labels", {batch_, model_.length}, DType::kI64);
    zeros_ = out_.generate("zeros", "aten.zeros.default", state_sizes());
    const TensorId memory = encoder(words("encoder", source));
    const Steps decoded = decoder(words("decoder", target), memory);
    return out_.finish(projection(decoded, each("labels", labels)));
  }

 private:
  using Cell = LstmCell;
  using State = LstmState;

  ModelBuilder::Sizes state_sizes() const { return {batch_, model_.hidden}; }
  ModelBuilder::Sizes all_sizes(std::int64_t width) const { return {batch_, model_.length, width}; }
  static std::string step_name(const std::string& module, std::size_t step) {
    return module + ".step" + std::to_string(step);
  }

  // The words of a sentence, one after the other.
  Steps each(const std::string& module, TensorId ids) {
    out_.enter(module);
    return out_.add_several("each", "aten.unbind.int", {ids}, static_cast<std::size_t>(model_.length),
                            {batch_}, Memory::kView);
  }

  Steps words(const std::string& module, TensorId ids) {
    const TensorId table = out_.parameter(module + ".embedding.weight", {model_.vocabulary, model_.hidden});
    Steps result = each(module + ".embedding", ids);
    for (std::size_t t = 0; t < result.size(); ++t) {
      out_.enter(step_name(module + ".embedding", t));
      result[t] = out_.look_up("word", table, result[t]);
    }
    return result;
  }

  Cell cell(const std::string& module, std::int64_t input) {
    return lstm_cell(out_, module, input, model_.hidden);
  }
  State step(const std::string& name, const Cell& cell, Steps inputs, const State& before) {
    out_.enter(name);
    return lstm_step(out_, cell, std::move(inputs), before);
  }

  // What the layer above reads of a step: dropped out, summed with the layer's own input where that is due.
  TensorId passed_on(TensorId h, std::optional<TensorId> residual) {
    const TensorId dropped = out_.random("dropout", "aten.dropout.default", h);
    if (!residual) return dropped;
    return out_.add("residual", "aten.add.Tensor", {*residual, dropped}, state_sizes());
  }

  enum class Way : std::uint8_t { kForward, kBackward };
  Steps encoder_layer(const std::string& module, const Steps& inputs, Way way, bool residual) {
    const Cell own = cell(module, *out_.sizes(inputs[0]).back().constant());
    Steps outputs(inputs.size());
    State state{zeros_, zeros_};
    for (std::size_t t = 0; t < inputs.size(); ++t) {
      const std::size_t at = way == Way::kForward ? t : inputs.size() - 1 - t;
      state = step(step_name(module, at), own, {inputs[at]}, state);
      outputs[at] = passed_on(state.h, residual ? std::optional(inputs[at]) : std::nullopt);
    }
    return outputs;
  }

  TensorId encoder(Steps words) {
    const Steps there = encoder_layer("encoder.layers.0.forward", words, Way::kForward, false);
    const Steps back = encoder_layer("encoder.layers.0.backward", words, Way::kBackward, false);
    for (std::size_t t = 0; t < words.size(); ++t) {
      out_.enter(step_name("encoder.layers.0", t));
      words[t] = out_.add("both", "aten.cat.default", {there[t], back[t]}, {batch_, 2 * model_.hidden});
    }
    for (std::int64_t l = 1; l < model_.layers; ++l) {
      words = encoder_layer("encoder.layers." + std::to_string(l), words, Way::kForward, l >= kFirstResidual);
    }
    out_.enter("encoder");
    return out_.add("memory", "aten.stack.default", words, all_sizes(model_.hidden));
  }

  struct Attention {
    TensorId memory, keys, query_weight, v;
  };
  Attention attention(TensorId memory) {
    const std::int64_t h = model_.hidden;
    out_.enter("attention");
    const TensorId key_weight = out_.parameter("attention.key.weight", {h, h});
    const TensorId keys = out_.add("keys", "aten.linear.default", {memory, key_weight}, all_sizes(h));
    return {memory, keys, out_.parameter("attention.query.weight", {h, h}),
            out_.parameter("attention.v", {1, h})};
  }

  TensorId context(const std::string& name, const Attention& over, TensorId state) {
    const std::int64_t h = model_.hidden;
    out_.enter(name);
    const TensorId query = out_.add("query", "aten.mm.default", {state, over.query_weight}, state_sizes());
    const TensorId row = out_.add("row", "aten.unsqueeze.default", {query}, {batch_, 1, h}, Memory::kView);
    const TensorId sum = out_.add("sum", "aten.add.Tensor", {over.keys, row}, all_sizes(h));
    const TensorId active = out_.add("active", "aten.tanh.default", {sum}, all_sizes(h));
    const TensorId scores = out_.add("scores", "aten.linear.default", {active, over.v}, all_sizes(1));
    const TensorId shares = out_.add("shares", "aten.softmax.int", {scores}, all_sizes(1));
    const TensorId turned =
        out_.add("turned", "aten.transpose.int", {shares}, {batch_, 1, model_.length}, Memory::kView);
    const TensorId read = out_.add("read", "aten.bmm.default", {turned, over.memory}, {batch_, 1, h});
    return out_.add("context", "aten.squeeze.dim", {read}, state_sizes(), Memory::kView);
  }

  Steps decoder(const Steps& words, TensorId memory) {
    const Attention over = attention(memory);
    std::vector<Cell> cells;
    for (std::int64_t l = 0; l < model_.layers; ++l) {
      cells.push_back(cell("decoder.layers." + std::to_string(l), 2 * model_.hidden));
    }
    std::vector<State> states(cells.size(), State{zeros_, zeros_});
    TensorId seen = zeros_;  // the last step's context
    Steps outputs;
    for (std::size_t t = 0; t < words.size(); ++t) {
      TensorId x = words[t];
      for (std::size_t l = 0; l < cells.size(); ++l) {
        const std::string name = step_name("decoder.layers." + std::to_string(l), t);
        states[l] = step(name, cells[l], {x, seen}, states[l]);
        const bool residual = static_cast<std::int64_t>(l) >= kFirstResidual;
        const TensorId h = passed_on(states[l].h, residual ? std::optional(x) : std::nullopt);
        if (l == 0) seen = context(step_name("attention", t), over, states[0].h);
        x = h;
      }
      outputs.push_back(x);
    }
    return outputs;
  }

  // The mean of the words' losses.
  TensorId projection(const Steps& decoded, const Steps& labels) {
    const TensorId weight = out_.parameter("projection.weight", {model_.hidden, model_.vocabulary});
    const TensorId bias = out_.parameter("projection.bias", {model_.vocabulary});
    const ModelBuilder::Sizes logits{batch_, model_.vocabulary};
    Steps losses;
    for (std::size_t t = 0; t < decoded.size(); ++t) {
      out_.enter(step_name("projection", t));
      const TensorId product = out_.add("product", "aten.mm.default", {decoded[t], weight}, logits);
      const TensorId biased = out_.add("logits", "aten.add.Tensor", {product, bias}, logits);
      losses.push_back(out_.add("loss", "aten.cross_entropy_loss.default", {biased, labels[t]}, {}));
    }
    out_.enter("projection");
    const TensorId all = out_.add("losses", "aten.stack.default", losses, {model_.length});
    return out_.add("loss", "aten.mean.default", {all}, {});
  }

  const Gnmt& model_;
  ModelBuilder out_;
  const SizeExpr batch_ = SizeExpr::batch();
  TensorId zeros_;
};

}  // namespace

Graph build(const Gnmt& model) {
  if (model.layers < 2) throw InputError("gnmt: expected at least 2 layers, the first of both directions");
  if (std::min({model.hidden, model.vocabulary, model.length}) < 1) {
    throw InputError("gnmt: every size is at least 1");
  }
  return GnmtWriter(model).write();
}

}  // namespace espalier
