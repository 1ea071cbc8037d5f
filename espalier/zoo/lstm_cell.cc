#include "espalier/zoo/lstm_cell.h"

#include <utility>

namespace espalier {

LstmCell lstm_cell(ModelBuilder& out, const std::string& module, std::int64_t input, std::int64_t hidden) {
  return {out.parameter(module + ".weight", {input + hidden, 4 * hidden}),
          out.parameter(module + ".bias", {4 * hidden})};
}

LstmState lstm_step(ModelBuilder& out, const LstmCell& cell, std::vector<TensorId> inputs,
                    const LstmState& before) {
  const ModelBuilder::Sizes state = out.sizes(before.h);
  const ModelBuilder::Sizes gates{state[0], out.size(cell.bias, 0)};
  const auto one = [&](const char* what, const char* target, std::vector<TensorId> reads) {
    return out.add(what, target, std::move(reads), state);
  };
  inputs.push_back(before.h);
  const TensorId joined = out.concat("cat", std::move(inputs), 1);
  const TensorId product = out.add("product", "aten.mm.default", {joined, cell.weight}, gates);
  const TensorId biased = out.add("biased", "aten.add.Tensor", {product, cell.bias}, gates);
  const std::vector<TensorId> ijfo =
      out.add_several("gates", "aten.chunk.default", {biased}, 4, state, ModelBuilder::Memory::kView);
  const TensorId shifted = one("shifted", "aten.add.Scalar", {ijfo[2]});
  const TensorId forget = one("forget", "aten.sigmoid.default", {shifted});
  const TensorId enter = one("enter", "aten.sigmoid.default", {ijfo[0]});
  const TensorId fresh = one("fresh", "aten.tanh.default", {ijfo[1]});
  const TensorId leave = one("leave", "aten.sigmoid.default", {ijfo[3]});
  const TensorId kept = one("kept", "aten.mul.Tensor", {before.c, forget});
  const TensorId added = one("added", "aten.mul.Tensor", {enter, fresh});
  const TensorId c = one("c", "aten.add.Tensor", {kept, added});
  const TensorId shown = one("shown", "aten.tanh.default", {c});
  return {c, one("h", "aten.mul.Tensor", {leave, shown})};
}

}  // namespace espalier
