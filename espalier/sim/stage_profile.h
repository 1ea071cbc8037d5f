#pragma once

// What a set of operators is as a stage, without saying where or beside whom: its memory, the tensors it
// receives and those it hands on. The evaluator's half of stage_model (plan/staged_model.h), from flat tables
// that are filled once per problem; for stages on single devices. Equal to stage_model, by test.
//
// Given the operators, their micro-batch, which of them are recomputed and the kinds of their devices,
// nothing here depends on the rest of the plan (a tensor crosses exactly if somebody outside reads it). So a
// profile can be kept and used again wherever the same stage comes back.

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/plan/staged_model.h"

namespace espalier::internal {

struct StageProfile {
  struct Output {  // ascending tensor
    std::uint32_t tensor = 0;
    Bytes bytes;
    bool saved = false;
  };
  struct Received {  // in order of first use
    std::uint32_t tensor = 0;
    bool saved = false;
    bool gradient = false;  // something flows back
  };
  StageMemory memory;
  std::vector<Output> outputs;
  std::vector<Received> received;
  std::vector<std::uint32_t> shared_parameters;  // trainable ones that several operators of the graph read
};

// The graph and its costs, flat, by operator and tensor.
class ProfileTables {
 public:
  ProfileTables(const Graph& graph, const Cluster& cluster, const CostTable& costs, const Training& training);

  static constexpr std::uint32_t kNone = 0xffffffff;

  struct Sums {  // over some operators on one kind
    Duration forward, input_gradient, weight_gradient;
  };

  struct Costs {               // at one micro-batch and kind; by operator, `before` with one entry more
    std::vector<Sums> before;  // of all operators with smaller ids
    std::vector<Bytes> private_bytes, between_halves, workspace;
    std::vector<std::uint32_t> saved_begin;  // the tensors an operator keeps, in `saved`
    std::vector<std::uint32_t> saved;
  };

  struct FlatOperator {
    std::uint32_t inputs = 0, outputs = 0;  // begin in `input_`, `output_`; the next operator's is the end
    bool has_backward = false;
    bool duplicable = false;
    Bytes fresh_gradients;
  };

  std::optional<std::size_t> micro_batch_index(BatchSize size) const;
  const Costs& costs(std::size_t micro_batch, std::size_t kind) const {
    return costs_[micro_batch * kinds_ + kind];
  }
  Bytes tensor_bytes(std::size_t micro_batch, std::uint32_t tensor) const {
    return tensor_bytes_[micro_batch * tensors_.size() + tensor];
  }
  std::uint32_t producer(std::uint32_t tensor) const { return tensors_[tensor].producer; }
  const FlatOperator& operator_of(std::size_t id) const { return operators_[id]; }
  // Does this tensor hold a parameter that several operators read?
  bool shared(std::uint32_t tensor) const {
    return tensors_[tensor].parameter != kNone && shared_parameter_[tensors_[tensor].parameter];
  }
  std::size_t operators() const { return operators_.size() - 1; }
  std::size_t tensors() const { return tensors_.size(); }

  // Room for the walk over a stage; grows to the largest.
  struct Scratch {
    struct Local {
      Bytes bytes;
      std::uint32_t producer = 0, last_use = 0, last_gradient = 0;
      std::uint32_t parameter = kNone;
      enum class Kind : std::uint8_t { kOwn, kReceived, kInput, kState } kind = Kind::kOwn;
      bool produced_again = false, kept = false, kept_again = false, crosses = false, gradient = false;
    };
    std::vector<Local> locals;
    std::vector<std::uint32_t> local_of;  // by tensor
    std::vector<std::uint32_t> state_of;  // by storage
    std::vector<std::uint32_t> touched;   // tensors
    std::vector<std::uint32_t> touched_states;
    std::vector<std::uint8_t> read_with_gradient;  // by place in `touched`
    std::vector<std::uint32_t> place_of;           // by tensor: place in `touched`
    std::vector<bool> inside;                      // by operator, for stages that are no run
    std::vector<bool> again;                       // by position: recomputed
    std::vector<Bytes> forward, backward;          // changes by position, then what each needs itself
    std::vector<Bytes> forward_own, backward_own;
  };

  // `kinds` ascending, each once; `recompute` as in Stage.
  void profile(std::span<const OperatorId> stage, std::span<const OperatorId> recompute,
               std::size_t micro_batch, std::span<const std::size_t> kinds, Scratch& scratch,
               StageProfile& result) const;

 private:
  struct FlatTensor {
    TensorRole role = TensorRole::kActivation;
    bool requires_grad = false;
    bool trainable = false;  // of its parameter
    std::uint32_t storage = 0;
    std::uint32_t producer = kNone;
    std::uint32_t parameter = kNone;
    std::uint32_t last_reader = 0;  // largest operator that reads it; 0: nobody
  };

  struct Walk;

  const Graph& graph_;
  std::size_t kinds_;
  std::vector<BatchSize> micro_batches_;
  std::vector<FlatOperator> operators_;  // one more than there are
  std::vector<std::uint32_t> input_, output_;
  std::vector<FlatTensor> tensors_;
  std::vector<Bytes> tensor_bytes_;  // by micro-batch, then tensor
  std::vector<Costs> costs_;         // by micro-batch, then kind
  std::vector<bool> shared_parameter_;
  std::size_t storages_;
};

}  // namespace espalier::internal
