#pragma once

// What we know of operators that a call's arguments do not show, in one table. Of PyTorch's: which outputs
// share memory with an input, which arguments are written, which operators draw random numbers; from the
// operators' documented meaning, and python/tests/test_aten_table.py compares it with the schemas of an
// installed torch. Of all: how the analytic model sees them (operator_family.h).

#include <cstdint>
#include <string_view>

#include "espalier/cost/operator_family.h"

namespace espalier {

enum class AtenAlias : std::uint8_t {
  kFresh,       // outputs have their own memory
  kView,        // outputs share the memory of the first tensor argument, always
  kIfStrided,   // … if its strides allow the output's sizes without a copy (reshape, contiguous)
  kIfSameType,  // … if the output has its type (to, type_as)
  kIfInactive,  // … unless the operator is active: dropout returns its input in evaluation
  kBroadcast,   // output i shares the memory of tensor i of a list
};

enum class AtenRandom : std::uint8_t {
  kNever,
  kAlways,
  kDropout,    // if training and with a probability above 0 (dropout: `p`, `train`)
  kAttention,  // if `dropout_p` is above 0
};

struct AtenOperator {
  std::string_view name = {};  // "linear", without overload
  AtenAlias alias = AtenAlias::kFresh;
  AtenRandom random = AtenRandom::kNever;
  bool differentiable = true;  // false: no output requires a gradient, whatever is read (detach, zeros_like)
  bool updates_statistics = false;  // in training writes running_mean and running_var
  bool along_dim = false;           // mixes what stands along its `dim` argument (softmax, cumsum, sort)
};

// Facts of an operator by its name without namespace and overload ("linear", "add_"); null if unknown. An
// in-place operator ("add_") has the facts of "add"; see writes_first_argument.
const AtenOperator* find_aten(std::string_view name);

// How the analytic model sees an operator of that base name (operator_family.h); null if it does not know it.
const OperatorFamily* find_family(std::string_view base_name);

// "add_", "__iand__": the result is the first argument itself, changed.
bool writes_first_argument(std::string_view name);

}  // namespace espalier
