#pragma once

// A plan at the level of its stages, with costs: all that schedules and the simulator need, and what a plan
// file stores as "the stage totals that were used". Derived from Graph, CostTable, Cluster, Training and
// PipelinePlan once; no operator is named after that.

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/plan/plan.h"

namespace espalier {

struct StageTimes {  // of one micro-batch on one replica
  Duration forward;  // with the overhead of an action, as recompute
  Duration input_gradient;
  Duration weight_gradient;
  Duration recompute;  // before backward; zero if nothing is recomputed
  Duration update;     // once per step
  // Of an action, paid once for each B, I and W beside the above. Plan files of version 1 have it in
  // input_gradient.
  Duration overhead = {};
  Duration backward() const { return input_gradient + weight_gradient + overhead; }  // B
  Duration input_half() const { return input_gradient + overhead; }                  // I
  Duration weight_half() const { return weight_gradient + overhead; }                // W
  friend bool operator==(const StageTimes&, const StageTimes&) = default;
};

struct StagedReplica {
  std::vector<DeviceId> devices;
  std::vector<std::uint32_t> micro_batches;
  StageTimes times;
  friend bool operator==(const StagedReplica&, const StagedReplica&) = default;
};

// Memory of one replica, by storage, each storage once.
struct StageMemory {
  Bytes parameters;  // trainable parameters it holds, buffers and constants apart
  Bytes buffers;     // buffers and constants
  Bytes gradients;   // of its trainable parameters
  Bytes optimizer_state;
  // Per micro-batch, from the start of F to the end of B (of W if halves are split): storages kept for
  // backward, apart from received tensors and crossing outputs, which are counted with their Crossing, plus
  // private bytes. With recompute: what is kept until the recomputation starts.
  Bytes saved;
  Bytes recomputed;          // per micro-batch, from the start of the recomputation to the end of B
  Bytes between_halves;      // per micro-batch, from the end of I to the end of W
  Bytes forward_workspace;   // while F or R runs: operator workspace and intermediates nobody keeps (largest
                             // sum alive), user inputs among them
  Bytes backward_workspace;  // while B, I or W runs: operator workspace, gradients of intermediates, and the
                             // parameter gradient that is about to be added to its sum
  // Where the halves are split: what of `saved` and `recomputed` only I needs. It goes at the end of I.
  Bytes saved_for_input = {};
  Bytes recomputed_for_input = {};
  Bytes update_workspace = {};  // while U runs: temporaries of the largest update (training.h)
  friend bool operator==(const StageMemory&, const StageMemory&) = default;
};

struct StagedStage {
  std::string name;
  std::vector<StageId> after;
  std::uint32_t micro_batches = 1;  // of the whole stage
  std::uint32_t in_flight = 1;
  std::vector<StagedReplica> replicas;
  StageMemory memory;
  Bytes reduced;                            // gradient bytes that replicas all-reduce
  std::optional<std::uint32_t> slots = {};  // receive slots of each incoming edge; none: in_flight + 1
  std::uint32_t receive_slots() const { return slots.value_or(in_flight + 1); }
  friend bool operator==(const StagedStage&, const StagedStage&) = default;
};

// A tensor that one stage produces and others read, or an empty token between stages (bytes 0, `token`). Sent
// once per destination device, however many stages there read it. Sizes are those of one piece: the samples
// of the smaller micro-batch of the two stages.
struct Crossing {
  std::string tensor;
  StageId from;
  struct Reader {
    StageId stage;
    bool saved = false;           // kept there for backward; else freed after F
    Bytes bytes;                  // of one piece
    Bytes gradient;               // sent back for one piece; 0: no gradient flows
    bool for_input_only = false;  // saved, but W does not need it: freed after I where the halves are split
    friend bool operator==(const Reader&, const Reader&) = default;
  };
  std::vector<Reader> readers;     // ascending stage
  Bytes output;                    // of the producer's whole micro-batch
  bool saved_by_producer = false;  // kept there until the end of B; else until all sends end
  bool token = false;
  bool returns = true;          // a gradient (or a token) travels back
  bool for_input_only = false;  // saved by the producer, but its W does not need it
  friend bool operator==(const Crossing&, const Crossing&) = default;
};

// A parameter that several stages read: each holds a copy; at the end of a step they send partial gradients
// to the lowest stage, which sums in stage order and returns the sum (docs/semantics.md, graph).
struct Tie {
  std::string parameter;
  Bytes bytes;
  std::vector<StageId> stages;  // ascending, at least two
  friend bool operator==(const Tie&, const Tie&) = default;
};

struct StagedModel {
  std::vector<StagedStage> stages;
  std::vector<Crossing> crossings;  // by (from, tensor); tokens last among those of one stage
  std::vector<Tie> ties;
  Orders orders;
  TokenRule tokens = TokenRule::kBothWays;
  friend bool operator==(const StagedModel&, const StagedModel&) = default;
};

// Does this device have a copy of the tied parameter in each stage that holds one? Then it adds their
// gradients up by itself.
bool has_all_copies(const StagedModel& model, const Tie& tie, DeviceId device);

// What a sum needs on a device beside what is held anyway, from the device's arrival to its end:
//  A  the gradients, one behind the other, and in each step of the ring the chunk that goes and the one that
//     comes
//  T  where it is summed (the first device of the lowest stage) the sum so far, the gradient that arrived and
//     their sum; elsewhere the sum that arrives or is made
Bytes all_reduce_scratch(Bytes reduced, std::size_t replicas);
Bytes tied_sum_scratch(const StagedModel& model, const Tie& tie, DeviceId device);

// Who holds a copy of a parameter or buffer: each stage that reads it, or each device for its stages
// together, as the fragments of a placement do (fragments.h).
enum class StateCopies : std::uint8_t { kOfEachStage, kOfEachDevice };

// O(operators + edges). The plan must pass check_plan. Which times: Σ over the stage's operators on the
// replica's device kind at the stage's micro-batch, neighbour factor applied where another device of the host
// has a stage, plus the kind's per-action overhead once per action. In-flight limits are the plan's, with
// lists what they hold. What recomputed operators read from outside their set is kept; what only they keep is
// dropped. A tensor-parallel group takes cells of its variant, the all-reduces that they name over the links
// of its devices, and an even part of the parameters. Throws
// InputError where a cell that a stage needs is missing, or names a tensor that its operator lacks.
StagedModel stage_model(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                        const Training& training, const PipelinePlan& plan,
                        StateCopies copies = StateCopies::kOfEachStage);

// Violations of what a schedule relies on: names, `after` to smaller stages, shares a partition, ids in
// range, readers after producers, sizes and times from 0 to 2^56, those of a step together below 2^60,
// crossings in order. Holds for any values.
std::vector<std::string> check_staged_model(const StagedModel& model, const Cluster& cluster);

// For lists of this model's orders.
OrderNames order_names(const StagedModel& model, const Cluster& cluster);

}  // namespace espalier
