#pragma once

// The operators of an exported program, ready to be called at one micro-batch size on one device. Includes
// libtorch; runtime/ only.
//
// Every call goes through the boxed dispatcher, so autograd records as in eager PyTorch. Arguments are made
// once: constants become values, sizes are evaluated at the micro-batch, devices are overridden. Immutable
// after construction; any number of threads may call operators. For an operator that draws random numbers
// the default generator is seeded with stream_key(seed, {step, micro-batch, original index}) and put back
// afterwards; one lock covers it all, since that generator is global. Operators of other libraries draw
// random numbers if their schema says so.

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/frontend/exported_program.h"

namespace espalier {

at::ScalarType torch_type(DType dtype);  // throws InputError for types that torch has not

// The tensors that are alive, by TensorId; undefined where there is none.
using Tensors = std::vector<at::Tensor>;

struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint64_t micro_batch = 0;
};

class Program {
 public:
  // `exported` must outlive it. Throws InputError naming the first operator that this libtorch does not have,
  // whose arguments do not fit its schema, or that writes an argument of which the graph does not know it.
  Program(const ExportedProgram& exported, BatchSize micro_batch, at::Device device);

  const ExportedProgram& exported() const { return *exported_; }
  const Graph& graph() const { return exported_->imported.graph; }
  BatchSize micro_batch() const { return micro_batch_; }
  at::Device device() const { return device_; }

  // Reads its inputs from `tensors` and puts its outputs there. Where it fails, the error names operator,
  // module path and source line (blame.h).
  void call(OperatorId op, Tensors& tensors, const RandomKey& key) const;

  std::vector<std::int64_t> sizes(TensorId id) const;  // at the micro-batch
  at::ScalarType type(TensorId id) const { return torch_type(graph().tensor(id).dtype); }

  // "operator 'linear_3' (encoder.layers.0, model.py:12)"
  std::string describe(OperatorId op) const;

 private:
  struct Slot {  // one argument: a value made at load, or tensors to be read
    enum class Kind : std::uint8_t { kValue, kTensor, kTensorList, kOptionalTensorList } kind = Kind::kValue;
    c10::IValue value;
    std::vector<OptionalTensor> tensors;
  };
  struct Prepared {
    c10::OperatorHandle handle;
    std::vector<Slot> slots;  // by schema argument
    bool random = false;      // draws random numbers, as the graph or the schema knows
  };
  Slot prepare(OperatorId op, const c10::Argument& formal, const ArgumentValue& actual) const;
  void check_writes(OperatorId op, const Prepared& prepared) const;

  const ExportedProgram* exported_;
  BatchSize micro_batch_;
  at::Device device_;
  std::vector<Prepared> prepared_;  // by OperatorId
};

// The bytes of a stored tensor, copied out of the archive. Strides are kept.
at::Tensor load_stored(const StoredTensor& stored, std::string_view archive, at::Device device);

}  // namespace espalier
