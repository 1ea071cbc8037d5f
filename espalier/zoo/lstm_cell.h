#pragma once

// The plain cell of recurrent layers (Hochreiter and Schmidhuber, 1997; Gers et al., 2000), an operator for
// each step of its arithmetic, as graphs that are unrolled over time hold it.

#include <string>
#include <vector>

#include "espalier/zoo/model_builder.h"

namespace espalier {

struct LstmCell {
  TensorId weight, bias;  // (input + hidden) × 4 hidden, 4 hidden
};
struct LstmState {
  TensorId c, h;
};

LstmCell lstm_cell(ModelBuilder& out, const std::string& module, std::int64_t input, std::int64_t hidden);

// c' = sigmoid(f + 1)·c + sigmoid(i)·tanh(j), h' = sigmoid(o)·tanh(c'), where i j f o are the quarters of
// (inputs, h)·weight + bias, `inputs` beside each other: 14 operators in the present module.
LstmState lstm_step(ModelBuilder& out, const LstmCell& cell, std::vector<TensorId> inputs,
                    const LstmState& before);

}  // namespace espalier
