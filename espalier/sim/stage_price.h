#pragma once

// What a stage costs: the one place that says what a set of operators needs as a stage, for whoever asks
// (evaluator, planners, reports). Times by kind of device, memory, tensors that come in and go out; for any
// set of operators, any micro-batch, any part of them recomputed, on single devices or tensor-parallel
// groups. Equal to stage_model (plan/staged_model.h), by test, without a walk over the operators.
//
// A stage is given as runs of operators that stand next to each other in the graph. Most storages are born
// and die inside one run, and what those need is the same in every stage that holds them whole: sums over
// them are differences of prefix sums, peaks are largest values of a range of one table for the whole graph.
// Only storages that span a border of a run are looked at one by one:
//
//     operators      0 1 2 3 4 5 6 7 8 9        a run: 3 … 6
//     inside               4─────6              prefix sums, range maximum
//     spans border 3 . 1───────5                received if the run reads it; taken out of 3 … 5
//     spans border 7         . 5───────9        an output; taken out of 5 … 6
//
// Where some operators are recomputed, a change between both sorts is a border too. Tables are made when
// first asked for, for each (micro-batch, kinds, degree): about 350 bytes an operator.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "espalier/cost/cost_table.h"
#include "espalier/plan/staged_model.h"

namespace espalier {

// Operators first … last, both included, all in one stage.
struct OperatorRun {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  friend bool operator==(const OperatorRun&, const OperatorRun&) = default;
};

// The fewest runs that hold exactly these operators; `operators` ascend, each once. O(runs · log operators).
std::vector<OperatorRun> runs_of(std::span<const OperatorId> operators);
void append_runs(std::span<const OperatorId> operators, std::vector<OperatorRun>& runs);

// A stage as runs: its operators, and those of them that are recomputed.
struct StageRuns {
  std::span<const OperatorRun> operators, recompute;
};

// A cell that the cost table lacks: this operator cannot run on devices of this kind in groups of this size.
struct ForbiddenCell {
  OperatorId op;
  KindId kind;
  std::uint32_t degree = 1;
  friend bool operator==(const ForbiddenCell&, const ForbiddenCell&) = default;
};

struct StageQuestion {
  std::span<const OperatorRun> operators;  // ascending, not touching each other, at least one
  std::span<const OperatorRun> recompute;  // likewise, perhaps none; all of them in `operators`
  BatchSize micro_batch;
  std::uint32_t degree = 1;       // devices in a tensor-parallel group
  std::span<const KindId> kinds;  // of its devices: ascending, each once, at least one
};

struct StagePrice {
  struct Output {  // ascending tensor
    TensorId tensor;
    Bytes bytes;
    bool saved = false;
    bool for_input_only = false;  // saved, but W does not need it
    friend bool operator==(const Output&, const Output&) = default;
  };
  struct Received {  // ascending tensor
    TensorId tensor;
    bool saved = false;
    bool gradient = false;  // something flows back
    bool for_input_only = false;
    friend bool operator==(const Received&, const Received&) = default;
  };
  struct Times {  // of one micro-batch: sums over the operators, nothing added
    Duration forward, input_gradient, weight_gradient, recompute;
    friend bool operator==(const Times&, const Times&) = default;
  };

  std::optional<ForbiddenCell> forbidden;  // the first; then all else is empty
  StageMemory memory;                      // of one device
  std::vector<Times> times;                // by the question's kinds
  std::vector<Output> outputs;
  std::vector<Received> received;
  std::vector<ParameterId> shared_parameters;  // trainable ones that operators elsewhere may read as well
  friend bool operator==(const StagePrice&, const StagePrice&) = default;
};

class StagePrices {
 public:
  // Keeps references to all but `training`.
  StagePrices(const Graph& graph, const Cluster& cluster, const CostTable& costs, const Training& training);
  ~StagePrices();
  StagePrices(StagePrices&&) noexcept;

  // Room to work in, for one thread at a time and one StagePrices.
  class Scratch;
  static std::unique_ptr<Scratch, void (*)(Scratch*)> make_scratch();

  // The answer stays valid until the scratch is used again. Any number of threads may ask. O(runs + storages
  // that span their borders, with their readers in the stage + log operators). Throws InputError if a cell
  // names a tensor that its operator lacks.
  const StagePrice& price(const StageQuestion& question, Scratch& scratch) const;

  // Begins to fetch what price() will look up: for questions that are asked soon, one after the other. On a
  // large graph their time is that of the memory.
  void prefetch(const StageQuestion& question, Scratch& scratch) const;

  // What the devices of a tensor-parallel group reduce within its actions, operator by operator: the times
  // that it takes on their links, where cells of this kind say how much. To be added to those of price(),
  // which must not be forbidden. O(runs) once the tables for such links are made.
  StagePrice::Times collectives(const StageQuestion& question, KindId kind, std::span<const DeviceId> group,
                                Scratch& scratch) const;

  // Of a tensor that crosses, at a micro-batch.
  Bytes tensor_bytes(TensorId tensor, BatchSize micro_batch, Scratch& scratch) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace espalier
