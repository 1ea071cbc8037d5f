#pragma once

// What each operator costs on each kind of device: times, what is kept for backward, and where the figure
// came from.
//
// Rows are keyed by operator class (operators of equal signature are measured once, so 80 000 operators stay
// small), device kind, variant and, where a device can run the operator in several ways, the implementation's
// name (implementations.h); each row has cells at a grid of batches. Between two grid points time is linear
// in the batch (origin kInterpolated; kAnalytic if a neighbour is); beyond the grid it continues the nearest
// segment, never below zero, and `extrapolated` says so. A row with one point is proportional to the batch.
// All values are integers, rounded once when the table was filled.

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/base/units.h"
#include "espalier/cluster/cluster.h"
#include "espalier/cost/precision.h"
#include "espalier/graph/graph.h"

namespace espalier {

// Where a figure comes from; the best first.
enum class Origin : std::uint8_t { kMeasured, kProfile, kInterpolated, kAnalytic };
std::string_view to_text(Origin origin);  // "measured"

// A tensor that an operator keeps for its backward: its n-th input or output. Kept tensors of a stage are
// counted once per storage, so a cell names them instead of adding them up (docs/semantics.md, graph).
struct SavedTensor {
  enum class Side : std::uint8_t { kInput, kOutput } side = Side::kInput;
  std::uint32_t index = 0;
  bool for_input_only = false;  // the weight half does not need it
  friend auto operator<=>(const SavedTensor&, const SavedTensor&) = default;
};
// What either keeps, each once; for the input half alone if nobody keeps it for the other. Both ascending.
std::vector<SavedTensor> merged(const std::vector<SavedTensor>& a, const std::vector<SavedTensor>& b);

struct OperatorCost {
  Duration forward;
  Duration input_gradient;         // backward's part that others wait for
  Duration weight_gradient;        // its other part; backward = both
  std::vector<SavedTensor> saved;  // ascending, each tensor once
  Bytes private_bytes;             // kept for backward beside them: a dropout's mask, a softmax's sums
  Bytes between_halves;  // kept from the end of the input half to the end of the weight half, beside all that
  Bytes workspace;       // while it runs, forward or backward
  Bytes private_for_input = {};  // of the private bytes: what the weight half does not need
  // What the devices of a tensor-parallel group all-reduce at the end of the forward pass, and of the input
  // half. Priced from the links of the group that runs it, beside the times above.
  Bytes reduced_forward = {}, reduced_backward = {};
  Origin origin = Origin::kMeasured;
  bool extrapolated = false;

  Duration backward() const { return input_gradient + weight_gradient; }
  friend bool operator==(const OperatorCost&, const OperatorCost&) = default;
};

struct Variant {
  std::uint32_t tensor_parallel = 1;  // devices that share the operator
  bool recompute = false;  // costs of a layer that recomputes its activations (published profiles only)
  friend auto operator<=>(const Variant&, const Variant&) = default;
};

struct CostRow {
  struct Point {
    BatchSize batch;
    OperatorCost cost;
    friend bool operator==(const Point&, const Point&) = default;
  };
  std::string op_class;
  std::string kind;  // a DeviceKind's name
  Variant variant;
  std::vector<Point> points;        // ascending batch, at least one
  std::string implementation = {};  // letters, digits, '.', '_' and '-'; empty: whatever runs it
  friend bool operator==(const CostRow&, const CostRow&) = default;
};

enum class OptimizerKind : std::uint8_t { kSgd, kAdam, kAdamW };
std::string_view to_text(OptimizerKind kind);  // "sgd", "adam", "adamw"
std::optional<OptimizerKind> parse_optimizer(std::string_view text);

// How the times of a real step's actions stray from their usual ones (sim/expected.h).
struct ActionScatter {
  std::int32_t spread_per_mille = 0;  // relative standard deviation, each action for itself
  std::int32_t device_per_mille = 0;  // of one device's whole step, against the other devices of the host
  Duration first = {};  // the first action of a device in a step is this much longer: its caches are cold
  friend bool operator==(const ActionScatter&, const ActionScatter&) = default;
};

// What a device kind pays beside its operators.
struct KindOverhead {
  std::string kind;
  Duration per_action;  // one F, B, I or W of a stage
  std::int32_t neighbour_per_mille =
      0;  // operators are this much slower while other devices of the host compute
  ActionScatter scatter;
  struct Update {  // one optimizer step over a stage's parameters, measured cold
    OptimizerKind optimizer = OptimizerKind::kSgd;
    Duration fixed;
    std::int64_t picoseconds_per_byte = 0;  // of parameters
    friend bool operator==(const Update&, const Update&) = default;
  };
  std::vector<Update> updates;
  friend bool operator==(const KindOverhead&, const KindOverhead&) = default;
};

// The process-to-process link of the machine that was measured, for the cluster `local`.
struct MeasuredLink {
  std::int64_t bandwidth = 0;  // bytes per second
  Duration latency;
  EndpointCost send;
  EndpointCost receive;
  friend bool operator==(const MeasuredLink&, const MeasuredLink&) = default;
};

struct CostTableParts {
  std::string machine;                  // "AMD EPYC, 2 cores": what was measured; empty for a profile
  std::uint32_t threads = 1;            // of each worker while it was measured
  std::string torch_version;            // empty if none was involved
  std::vector<CostRow> rows;            // sorted by (op_class, kind, variant, implementation), unique
  std::vector<KindOverhead> overheads;  // sorted by kind, unique
  std::optional<MeasuredLink> link;
  friend bool operator==(const CostTableParts&, const CostTableParts&) = default;
};

class CostTable {
 public:
  // Sorts rows and points. Throws InputError with the first violation that check_cost_table finds.
  explicit CostTable(CostTableParts parts);

  const CostTableParts& parts() const { return parts_; }

  // Those of a class, one for each implementation. O(log rows).
  std::span<const CostRow> rows(std::string_view op_class, std::string_view kind, Variant variant = {}) const;
  // The first of them; null if there is none.
  const CostRow* find(std::string_view op_class, std::string_view kind, Variant variant = {}) const;

  // The overheads of a kind; zeros if none were measured.
  KindOverhead overhead(std::string_view kind) const;

  std::uint64_t hash() const;  // of everything in it: what a plan file remembers

  friend bool operator==(const CostTable&, const CostTable&) = default;

 private:
  CostTableParts parts_;
};

// The sizes of tensor-parallel groups, of at most `most` devices, that a table has cells for; 1 is the first.
// Ascending. O(rows).
std::vector<std::uint32_t> tensor_parallel_degrees(const CostTable& table, std::size_t most);

// A row at a batch: the cell itself, or linear between its neighbours, times rounded half up, bytes up.
OperatorCost cost_at(const CostRow& row, BatchSize batch);

// What a tensor-parallel group takes to all-reduce so many bytes within an action: no links are held. Like
// any time of a cell at most 2^44 ns, so that sums over operators are exact.
Duration reduce_time(const Cluster& cluster, std::span<const DeviceId> group, Bytes bytes);

// One update of `parameters` bytes by `optimizer`; zero where there is nothing to update, or nothing was
// measured. And the part of it that does not grow with the bytes.
Duration update_time(const KindOverhead& overhead, OptimizerKind optimizer, Bytes parameters);
Duration update_overhead(const KindOverhead& overhead, OptimizerKind optimizer);

// Every broken invariant, one line each.
std::vector<std::string> check_cost_table(const CostTableParts& parts);

// Adds what `table` lacks, so that every operator of `graph` has a row for every kind of `cluster` at the
// batches asked for (analytic cells; measured and profiled ones are kept). See analytic.h for the model.
CostTable complete_costs(const Graph& graph, const Cluster& cluster, CostTable table,
                         std::span<const BatchSize> micro_batches, Precision precision = Precision::kF32);

// Costs of a graph's operators, resolved once: costs(operator, kind) without a look-up by text. Throws
// InputError naming the first operator without a cell and what to do.
//
// Here, and only here, a class's cell meets its operator and its device: times are divided by the kind's
// `speed`; an operator none of whose outputs requires a gradient has no backward and keeps nothing for it; an
// analytic cell of an operator without differentiable input (parameters apart) has no input gradient
// (measured ones were measured that way), and one of an operator without trainable parameter has no weight
// gradient and keeps nothing for it.
//
// In a training graph the role decides. All that an operator takes is its `forward`, for nothing else runs
// with it: of a forward operator the cell's forward, of a backward operator the cell's two halves (its class
// is its forward operator's), less a half as above where it gives gradients of parameters only, or of none. A
// forward operator that has a backward keeps its private bytes; what it keeps in tensors are edges of the
// graph. Updates take nothing here: the optimizer's time is that of their parameters together
// (training_times.h).
class OperatorCosts {
 public:
  OperatorCosts(const Graph& graph, const Cluster& cluster, const CostTable& table, BatchSize micro_batch,
                Variant variant = {});

  const OperatorCost& of(OperatorId op, KindId kind) const {
    return costs_[kind.index() * classes_ + class_of_[op.index()]];
  }

 private:
  std::size_t classes_ = 0;
  std::vector<std::uint32_t> class_of_;  // by operator
  std::vector<OperatorCost> costs_;      // kind-major
};

// Throws InputError for an operator that has no cell: "operator 'h1' (class 'linear(…)') has no cost on …".
[[noreturn]] void refuse_missing_cell(const Operator& op, const DeviceKind& kind, Variant variant);

// The same for one kind, where a missing cell is no error: whoever needs it may choose another kind.
class KindCosts {
 public:
  KindCosts(const Graph& graph, const DeviceKind& kind, const CostTable& table, BatchSize micro_batch,
            Variant variant = {});

  // Null where the table has no cell.
  const OperatorCost* of(OperatorId op) const {
    const std::optional<OperatorCost>& cost = costs_[class_of_[op.index()]];
    return cost ? &*cost : nullptr;
  }

 private:
  std::vector<std::uint32_t> class_of_;  // by operator
  std::vector<std::optional<OperatorCost>> costs_;
};

}  // namespace espalier
