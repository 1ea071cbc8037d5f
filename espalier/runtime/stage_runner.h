#pragma once

// One stage on one device: forward, recompute and backward of its operators, a micro-batch at a time;
// backward at once or in two halves (backward_halves.h). Knows nothing of schedules or messages; gets and
// gives tensors. Includes libtorch; runtime/ only.
//
// The operators are cut into segments, runs of operators that are recomputed or not; mostly there is one. A
// segment is a piece of autograd graph of its own: what enters it is detached. Operators that share a memory
// which somebody writes stand in one segment, together with what is between them. Backward goes through the
// segments in reverse order and adds gradients of one tensor up in that order. A recomputed segment runs
// forward without recording, and once more, recording, before backward, with the same random numbers. An
// operator that shares memory with one that mutates is never recomputed, so BatchNorm's statistics are
// updated once.
//
// Between forward and backward nothing is kept but what autograd saved: what enters gets an Entry node in
// place of a leaf (a leaf would hold the data), and of what leaves only the edge into its graph is kept.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "espalier/runtime/backward_halves.h"
#include "espalier/runtime/program.h"
#include "espalier/runtime/session.h"

namespace espalier {

// Sees every operator call of a stage; for the profiler and for verify.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  virtual void before(OperatorId, const Tensors&) {}
  virtual void after(OperatorId, const Tensors&) {}
};

class StageRunner {
 public:
  struct Interface {
    std::vector<OperatorId> operators;  // ascending
    std::vector<OperatorId> recompute;  // ascending
    std::vector<TensorId> received;     // from other stages
    std::vector<TensorId> sent;         // to other stages
  };

  // program, session and holding must outlive it.
  StageRunner(const Program& program, const Session& session, Holding& holding, Interface interface);

  // The parameters that operators read, ascending.
  static std::vector<ParameterId> parameters_of(const Graph& graph, const std::vector<OperatorId>& operators);

  // The segment of each operator, by position. O(operators).
  static std::vector<std::size_t> segments_of(const Graph& graph, const std::vector<OperatorId>& operators,
                                              const std::vector<OperatorId>& recompute);

  // Indices into ExportedProgram::inputs of those that the stage reads, ascending.
  const std::vector<std::size_t>& inputs() const { return inputs_; }
  bool recomputes() const;

  // Runs forward and keeps what backward needs. `inputs` as in inputs(), `received` as in the interface.
  // Returns the tensors to send, detached.
  std::vector<at::Tensor> forward(const RandomKey& key, const std::vector<at::Tensor>& inputs,
                                  const std::vector<at::Tensor>& received);

  // The loss of that micro-batch, if this stage computes it; until backward.
  at::Tensor loss(std::uint64_t micro_batch) const;

  void forget(std::uint64_t micro_batch) { alive_.erase(micro_batch); }

  // Runs recomputed segments again. backward does it if nobody did.
  void recompute(const RandomKey& key);

  // Gradients of the sent tensors in, undefined where none came; the loss, if here, starts with `loss_scale`.
  // Where it fails, the error names the operator whose backward failed (blame.h). Returns the gradients of
  // the received tensors: undefined where nothing flowed. Parameter gradients accumulate in the holding.
  std::vector<at::Tensor> backward(const RandomKey& key, const std::vector<at::Tensor>& sent_gradients,
                                   double loss_scale);

  // The same in two halves. The first returns what backward returns, and keeps only what the second needs;
  // the second adds to the parameters' gradients what backward adds.
  std::vector<at::Tensor> input_half(const RandomKey& key, const std::vector<at::Tensor>& sent_gradients,
                                     double loss_scale);
  void weight_half(std::uint64_t micro_batch);

  void set_observer(CallObserver* observer) { observer_ = observer; }

 private:
  struct Segment {
    std::vector<OperatorId> operators;
    bool recomputed = false;
    std::vector<TensorId> enters;                   // from other stages or earlier segments
    std::vector<TensorId> leaves;                   // read by later segments, sent, or the loss
    std::vector<std::vector<TensorId>> dead_after;  // by operator: nobody in the stage reads them later
  };
  struct Live {                                  // of one segment and micro-batch
    std::vector<at::Tensor> values;              // as Segment::enters; kept only to recompute
    std::vector<torch::autograd::Edge> entries;  // as Segment::enters; invalid where no gradient is wanted
    std::vector<torch::autograd::Edge> left;     // as Segment::leaves; invalid where none flows
    std::vector<std::uint64_t> first_nodes;  // as Segment::operators: the number of its next autograd node
    bool recorded = false;
    WeightHalf rest;  // between the halves
  };
  struct Roots {  // where a pass through a segment starts
    torch::autograd::edge_list edges;
    torch::autograd::variable_list gradients;
  };
  using Gradients = std::map<TensorId, at::Tensor>;  // of what enters and leaves segments
  struct MicroBatch {
    std::vector<Live> segments;
    std::vector<at::Tensor> inputs;  // kept only if a segment is recomputed
    at::Tensor loss;
  };

  void cut_into_segments();
  void find_lifetimes();
  // Returns Live::first_nodes.
  std::vector<std::uint64_t> run(const Segment& segment, Tensors& tensors, const RandomKey& key);
  Tensors start(const std::vector<at::Tensor>& inputs) const;
  void record(const Segment& segment, Live& live, Tensors& tensors, const RandomKey& key);
  // Through all segments, the last first, each by `pass`; returns the gradients of the received tensors.
  template <class Pass>
  std::vector<at::Tensor> back_through_all(const RandomKey& key,
                                           const std::vector<at::Tensor>& sent_gradients, double loss_scale,
                                           const Pass& pass);
  // Takes the edges out of the segment for which there is a gradient.
  static Roots take_roots(const Segment& segment, Live& live, const Gradients& gradients);
  // Runs a part of the segment's backward; an error names the operator.
  template <class Work>
  void blamed(const Segment& segment, const Live& live, const Work& work) const;
  void back_through(const Segment& segment, Live& live, Gradients& gradients);
  void input_half_of(const Segment& segment, Live& live, Gradients& gradients);
  std::string describe_backward(const Segment& segment, const Live& live,
                                std::optional<std::uint64_t> node) const;

  const Program& program_;
  Interface interface_;
  std::vector<std::size_t> inputs_;
  std::vector<Segment> segments_;
  std::vector<bool> mutated_;        // by TensorId: an operator of this stage writes it or an alias
  Tensors base_;                     // parameters, buffers and constants, by TensorId
  std::vector<at::Tensor> trained_;  // of the holding, those that it shares too
  std::vector<TensorId> fresh_;      // constants that are written: each forward gets a copy
  std::map<std::uint64_t, MicroBatch> alive_;
  CallObserver* observer_ = nullptr;
};

}  // namespace espalier
