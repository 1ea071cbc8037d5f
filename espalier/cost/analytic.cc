// Symbols of docs/cost-model.md and their names here:
//
//   F, B      flops, bytes           of a pass, from operator_work
//   P         kind_peak              flops per second that the pass can use
//   S         multiprocessors
//   T, K      output_tiles, tile_splits     pieces of a matrix product, and parts of one piece
//
// How we deviate from the plain roofline: matrix work takes whole waves of tiles, so its time is a staircase;
// two constants say which share of either peak a good kernel reaches.

#include "espalier/cost/analytic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_set>

#include "espalier/base/check.h"
#include "espalier/cost/cpu_kernels.h"
#include "espalier/cost/operator_family.h"

namespace espalier {
namespace {

constexpr double kMatrixShare = 0.75;       // of the peak, in a full wave of full tiles
constexpr double kPointwiseShare = 0.25;    // of the f32 peak, for work without matrix units
constexpr double kCpuPointwiseShare = 0.1;  // exponentials on one core
constexpr double kBandwidthShare = 0.8;     // of the memory bandwidth
constexpr double kTile = 128;               // largest side of a tile; small sides take a multiple of 16
constexpr double kSmallTile = 16;
constexpr double kSplitDepth = 256;  // least inner dimension worth a part of its own

class Measure {
 public:
  Measure(const Graph& graph, OperatorId id, BatchSize batch)
      : graph_(graph), op_(graph.op(id)), batch_(batch), family_(operator_family(graph, id)) {}

  Work work() {
    for (std::size_t i = 0; i < op_.inputs.size(); ++i) {
      if (std::find(op_.inputs.begin(), op_.inputs.begin() + static_cast<std::ptrdiff_t>(i), op_.inputs[i]) ==
          op_.inputs.begin() + static_cast<std::ptrdiff_t>(i)) {
        work_.bytes_read += bytes(op_.inputs[i]);
      }
    }
    for (const TensorId output : op_.outputs) work_.bytes_written += bytes(output);
    find_type();
    switch (family_.family) {
      case Family::kView:
        work_ = Work();
        work_.free = true;
        return work_;
      case Family::kGenerate:
        work_.bytes_read = 0;
        break;
      case Family::kMatrix:
        matrix();
        break;
      case Family::kConvolution:
        convolution();
        break;
      case Family::kAttention:
        attention();
        break;
      case Family::kLookup:
        work_.bytes_read = looked_up_bytes() + integer_bytes();
        break;
      case Family::kRecurrent:
        weights_times_rows();
        break;
      case Family::kUnknown:
        if (has_matrix_parameter()) weights_times_rows();
        break;
      case Family::kElementwise:
        break;
    }
    if (!work_.matrix) elementwise();
    backward_bytes();
    return work_;
  }

 private:
  const Tensor& input(std::size_t i) const { return graph_.tensor(op_.inputs[i]); }
  double bytes(TensorId id) const { return static_cast<double>(graph_.tensor(id).bytes(batch_).count()); }
  double elements(TensorId id) const { return static_cast<double>(graph_.tensor(id).elements(batch_)); }
  double size(const Tensor& tensor, std::size_t from_end) const {
    if (from_end > tensor.sizes.size()) return 1;
    return static_cast<double>(tensor.sizes[tensor.sizes.size() - from_end].at(batch_));
  }
  double output_elements() const { return op_.outputs.empty() ? 0 : elements(op_.outputs[0]); }
  double integer_bytes() const {
    double sum = 0;
    for (const TensorId id : op_.inputs) sum += is_floating_point(graph_.tensor(id).dtype) ? 0 : bytes(id);
    return sum;
  }
  // The rows that a look-up reads: as large as its output, but for a bag's, which are summed.
  double looked_up_bytes() const {
    if (base_name(op_.target) != "embedding_bag" || op_.inputs.size() < 2) return work_.bytes_written;
    const Tensor& table = input(0);
    const double row = size(table, 1) * static_cast<double>(element_size(table.dtype).count());
    return std::max(work_.bytes_written, elements(op_.inputs[1]) * row);
  }
  bool has_matrix_parameter() const {
    return std::any_of(op_.inputs.begin(), op_.inputs.end(), [&](TensorId id) {
      return graph_.tensor(id).role == TensorRole::kParameter && graph_.tensor(id).sizes.size() >= 2;
    });
  }

  void find_type() {
    for (const std::vector<TensorId>* tensors : {&op_.inputs, &op_.outputs}) {
      for (const TensorId id : *tensors) {
        const DType type = graph_.tensor(id).dtype;
        if (!is_floating_point(type) || type == DType::kOpaque) continue;
        work_.type = type;
        return;
      }
    }
  }

  // batches × (m × k) · (k × n), cut into tiles.
  void product(double batches, double m, double n, double k) {
    const auto side = [](double size) {
      return size >= kTile ? kTile : std::max(kSmallTile, kSmallTile * std::ceil(size / kSmallTile));
    };
    const double tile_m = side(m);
    const double tile_n = side(n);
    work_.matrix = true;
    work_.forward_flops = 2 * batches * m * n * k;
    work_.output_tiles = std::max(1.0, batches * std::ceil(m / tile_m) * std::ceil(n / tile_n));
    work_.tile_flops = 2 * tile_m * tile_n * k;
    work_.tile_splits = std::max(1.0, std::floor(k / kSplitDepth));
  }

  // Half of a product's backward each, to the half that its operand belongs to.
  void share_backward(const Tensor& a, const Tensor& b) {
    for (const Tensor* operand : {&a, &b}) {
      (operand->role == TensorRole::kParameter ? work_.weight_gradient_flops : work_.input_gradient_flops) +=
          work_.forward_flops;
    }
  }

  void matrix() {
    const std::size_t first = family_.first_operand;  // addmm(bias, a, b)
    if (op_.inputs.size() < first + 2 || op_.outputs.empty()) return;
    const Tensor& a = input(first);
    const Tensor& b = input(first + 1);
    const Tensor& out = graph_.tensor(op_.outputs[0]);
    const double total = output_elements();
    const double n = size(out, 1);
    double k = size(a, 1);
    if (family_.contraction == ContractionForm::kEinsum && total > 0) {
      k = std::sqrt(elements(op_.inputs[first]) * elements(op_.inputs[first + 1]) / total);
    }
    const bool batched = b.sizes.size() >= 3;
    const bool grouped = batched && out.sizes.size() == 2;  // the rows are dealt to the matrices
    const double rows = grouped ? size(out, 2) / std::max(1.0, size(b, 3)) : size(out, 2);
    const double m = batched ? rows : (n > 0 ? total / n : 0);
    const double batches = m * n > 0 ? total / (m * n) : 0;
    product(batches, m, n, k);
    share_backward(a, b);
  }

  void convolution() {
    if (op_.inputs.size() < 2 || op_.outputs.empty()) return;
    const Tensor& weight = input(1);
    if (weight.sizes.size() < 3) return;
    const bool transposed = family_.contraction == ContractionForm::kTransposedConvolution;
    const double weights = elements(op_.inputs[1]);
    const double channels = static_cast<double>(weight.sizes[0].at(batch_));
    // Implicit product: output positions × output channels × (input channels of the group · kernel).
    const double points = transposed ? elements(op_.inputs[0]) : output_elements();
    const double k = channels > 0 ? weights / channels : 0;
    product(1, channels > 0 ? points / channels : 0, channels, k);
    share_backward(input(0), weight);
  }

  // q·kᵀ and its product with v, tile by tile, scores never stored (Dao et al., NeurIPS'22): backward
  // computes the scores again, five products against two.
  void attention() {
    if (op_.inputs.size() < 3 || op_.outputs.empty()) return;
    const double rows = size(input(0), 2);
    const double depth = size(input(0), 1);
    const double keys = size(input(1), 2);
    const double heads = rows * depth > 0 ? elements(op_.inputs[0]) / (rows * depth) : 0;
    product(heads, rows, depth, 2 * keys);
    work_.tile_splits = 1;
    work_.input_gradient_flops = 2.5 * work_.forward_flops;
  }

  // A layer known by its weights only: each row of the output multiplies all of them.
  void weights_times_rows() {
    double weights = 0;
    for (const TensorId id : op_.inputs) {
      if (graph_.tensor(id).role == TensorRole::kParameter) weights += elements(id);
    }
    const Tensor& out = graph_.tensor(op_.outputs.empty() ? op_.inputs[0] : op_.outputs[0]);
    const double width = size(out, 1);
    double rows = width > 0 ? output_elements() / width : 0;
    // ONNX's recurrent layers: weights are inputs 1 and 2, computed ones too, [directions, gates, width], and
    // the output keeps the directions apart.
    if (op_.inputs.size() > 2 && out.sizes.size() == 4 && input(1).sizes.size() == 3) {
      weights = elements(op_.inputs[1]) + elements(op_.inputs[2]);
      rows /= std::max(1.0, size(input(1), 3));
    }
    if (width <= 0 || weights <= 0) return;
    product(1, rows, width, weights / width);
    work_.weight_gradient_flops = work_.input_gradient_flops = work_.forward_flops;
  }

  void elementwise() {
    double largest = output_elements();
    for (const TensorId id : op_.inputs) {
      if (graph_.tensor(id).role != TensorRole::kParameter) largest = std::max(largest, elements(id));
    }
    if (family_.family == Family::kLookup) largest = output_elements();
    work_.forward_flops = family_.flops_per_element * largest;
    work_.input_gradient_flops = family_.has_gradient ? family_.flops_per_element * largest : 0;
    work_.output_tiles = std::max(1.0, std::ceil(largest / (kTile * kSmallTile)));
    if (has_parameter()) work_.weight_gradient_flops = largest;
  }

  bool has_parameter() const {
    return std::any_of(op_.inputs.begin(), op_.inputs.end(),
                       [&](TensorId id) { return graph_.tensor(id).role == TensorRole::kParameter; });
  }

  // The input half reads the output's gradient and what was saved, and writes the inputs' gradients; the
  // weight half reads the output's gradient and the inputs, and writes the parameters' gradients.
  void backward_bytes() {
    if (!family_.has_gradient) return;
    double inputs = 0, parameters = 0;
    std::unordered_set<std::size_t> seen;
    for (const TensorId id : op_.inputs) {
      const Tensor& tensor = graph_.tensor(id);
      if (!is_floating_point(tensor.dtype) || !seen.insert(id.index()).second) continue;
      (tensor.role == TensorRole::kParameter ? parameters : inputs) += bytes(id);
    }
    const double saved = family_.saves != 0 ? inputs : 0;
    if (inputs > 0) work_.input_gradient_bytes = work_.bytes_written + saved + inputs;
    if (work_.matrix) work_.input_gradient_bytes += inputs > 0 ? parameters : 0;
    if (parameters > 0) work_.weight_gradient_bytes = work_.bytes_written + inputs + parameters;
    if (family_.family == Family::kLookup) {
      work_.weight_gradient_bytes = parameters + 2 * looked_up_bytes();  // zeros, then rows added
    }
    if (inputs == 0) work_.input_gradient_flops = 0;
    if (parameters == 0) work_.weight_gradient_flops = 0;
  }

  const Graph& graph_;
  const Operator& op_;
  BatchSize batch_;
  OperatorFamily family_;
  Work work_;
};

// Seconds that `flops` of an operator's work take, at least.
double compute_seconds(const Work& work, double flops, const DeviceKind& kind, Precision precision) {
  if (flops <= 0) return 0;
  if (!work.matrix) {
    const double units = std::min(work.output_tiles, static_cast<double>(kind.multiprocessors));
    const double share = is_cpu(kind) ? kCpuPointwiseShare : kPointwiseShare;
    return flops / (kind.flops_f32 * share * units / kind.multiprocessors);
  }
  const double peak = matrix_rate(kind, work.type, precision) * kMatrixShare;
  const double units = kind.multiprocessors;
  // Whole waves of tiles; where they do not fill one, pieces are split along the inner dimension.
  double tiles = work.output_tiles;
  double tile_flops = work.tile_flops;
  if (tiles < units && work.tile_splits > 1) {
    const double parts = std::min(work.tile_splits, std::max(1.0, std::floor(units / tiles)));
    tiles *= parts;
    tile_flops /= parts;
  }
  const double forward = std::ceil(tiles / units) * tile_flops * units / peak;
  return forward * (flops / work.forward_flops);  // a gradient's products have other shapes; same waste
}

Duration pass_time(const Work& work, double flops, double bytes, const DeviceKind& kind,
                   Precision precision) {
  if (work.free || (flops <= 0 && bytes <= 0)) return Duration();
  const double moving = bytes / (static_cast<double>(kind.memory_bandwidth) * kBandwidthShare);
  return kind.launch_overhead +
         round_duration(std::max(compute_seconds(work, flops, kind, precision), moving) * 1e9);
}

// The family as the device's kernels have it: on a CPU, PyTorch's attention with dropout is the plain one,
// which stores its scores and copies of its operands.
OperatorFamily family_on(const Graph& graph, OperatorId id, const DeviceKind& kind) {
  OperatorFamily family = operator_family(graph, id);
  const Operator& op = graph.op(id);
  if (family.family == Family::kAttention && op.random && is_cpu(kind)) {
    family.saves = 0;
    family.keeps = Keeps::kScores;
  }
  return family;
}

// Attention adds a mask as numbers: one that is given as truth values is converted and kept in that form.
bool converts_mask(const Graph& graph, const Operator& op, const OperatorFamily& family) {
  return family.family == Family::kAttention && op.inputs.size() > 3 &&
         !is_floating_point(graph.tensor(op.inputs[3]).dtype);
}

// Bytes that the operator keeps beside its tensors, for backward. A native form returns its statistics and
// indices as further outputs, which are tensors of the graph.
Bytes private_bytes(const Graph& graph, const Operator& op, const OperatorFamily& family,
                    const DeviceKind& kind, BatchSize batch) {
  if (op.inputs.empty() || op.outputs.empty()) return Bytes();
  const Tensor& in = graph.tensor(op.inputs[0]);
  const Tensor& out = graph.tensor(op.outputs[0]);
  const std::int64_t elements = in.elements(batch);
  const auto size = [&](const Tensor& tensor, std::size_t i) {
    return i < tensor.sizes.size() ? std::max<std::int64_t>(1, tensor.sizes[i].at(batch)) : 1;
  };
  const std::int64_t rows = elements / size(in, in.sizes.empty() ? 0 : in.sizes.size() - 1);
  const bool native = op.outputs.size() > 1;
  switch (family.keeps) {
    case Keeps::kNothing:
      return Bytes();
    case Keeps::kMask:  // one byte an element on an accelerator; on a CPU PyTorch keeps the scaled noise
      return is_cpu(kind) ? out.bytes(batch) : Bytes(out.elements(batch));
    case Keeps::kChannelMask:
      return Bytes(size(in, 0) * size(in, 1)) * element_size(in.dtype).count();
    case Keeps::kIndices:  // of the maxima, int64
      return native ? Bytes() : Bytes(8 * out.elements(batch));
    case Keeps::kRowStatistics:  // mean and reciprocal deviation of each row, f32
      return native ? Bytes() : Bytes(8 * rows);
    case Keeps::kGroupStatistics:  // the number of groups is not in the graph: at most one a channel
      return native ? Bytes() : Bytes(8 * size(in, 0) * size(in, 1));
    case Keeps::kChannelStatistics:
      return native ? Bytes() : Bytes(8 * size(in, 1));
    case Keeps::kLogSumExp: {  // of each row of q, f32
      const bool mask = converts_mask(graph, op, family);
      const Bytes converted = mask ? 4 * Bytes(graph.tensor(op.inputs[3]).elements(batch)) : Bytes();
      return (native ? Bytes() : Bytes(4 * rows)) + converted;
    }
    case Keeps::kScores: {  // q, k and v as they were multiplied; softmax, dropout's noise, and their product
      if (op.inputs.size() < 3) return Bytes();
      Bytes copies;
      for (std::size_t i = 0; i < 3; ++i) copies += graph.tensor(op.inputs[i]).bytes(batch);
      const Tensor& keys = graph.tensor(op.inputs[1]);
      const std::int64_t scores = rows * size(keys, keys.sizes.size() < 2 ? 0 : keys.sizes.size() - 2);
      return copies + 3 * scores * element_size(in.dtype);
    }
    case Keeps::kProbabilities:  // the logarithms that the loss computes on its way, and its divisor
      return in.bytes(batch) + element_size(in.dtype);
    case Keeps::kGates:  // four gates and a cell for each output element
      return 5 * out.bytes(batch);
  }
  return Bytes();
}

std::vector<SavedTensor> saved_tensors(const Graph& graph, const Operator& op, const OperatorFamily& family) {
  std::vector<SavedTensor> saved;
  for (std::uint32_t i = 0; i < op.inputs.size(); ++i) {
    const Tensor& tensor = graph.tensor(op.inputs[i]);
    const bool whole =
        i < 24 && (family.saves >> i & 1) != 0 && !(i == 3 && converts_mask(graph, op, family));
    const bool rest = (family.saves & kSavesIntegers) != 0 && !is_floating_point(tensor.dtype);
    // A product keeps an operand only for the gradient of another. A bias is no operand.
    const bool operand =
        family.family == Family::kElementwise || i == family.first_operand || i == family.first_operand + 1;
    const bool product = (family.saves & kSavesProduct) != 0 && operand &&
                         std::any_of(op.inputs.begin(), op.inputs.end(), [&](TensorId other) {
                           return other != op.inputs[i] && graph.tensor(other).requires_grad;
                         });
    const bool square = (family.saves & kSavesProduct) != 0 && operand &&
                        std::count(op.inputs.begin(), op.inputs.end(), op.inputs[i]) > 1;
    if (whole || rest || product || square) saved.push_back({SavedTensor::Side::kInput, i});
  }
  for (std::uint32_t i = 0; i < op.outputs.size(); ++i) {
    const bool first = i == 0 && (family.saves & kSavesOutput) != 0;
    const bool later = i > 0 && family.keeps != Keeps::kNothing;  // a native form returns what it keeps
    if (first || later) saved.push_back({SavedTensor::Side::kOutput, i});
  }
  return saved;
}

}  // namespace

Work operator_work(const Graph& graph, OperatorId op, BatchSize batch) {
  return Measure(graph, op, batch).work();
}

BackwardHalves backward_halves(const Graph& graph, const Operator& op) {
  const auto requires_grad = [&](TensorId id) { return graph.tensor(id).requires_grad; };
  BackwardHalves halves;
  if (std::none_of(op.outputs.begin(), op.outputs.end(), requires_grad)) return halves;
  for (const TensorId id : op.inputs) {
    if (!requires_grad(id)) continue;
    (graph.tensor(id).parameter ? halves.weights : halves.input) = true;
  }
  return halves;
}

OperatorCost analytic_cost(const Graph& graph, OperatorId id, const DeviceKind& kind, BatchSize batch,
                           Precision precision) {
  const Operator& op = graph.op(id);
  const Work work = operator_work(graph, id, batch);
  OperatorCost cost;
  cost.origin = Origin::kAnalytic;
  if (work.free) return cost;
  const OperatorFamily family = family_on(graph, id, kind);
  cost.forward = pass_time(work, work.forward_flops, work.bytes_read + work.bytes_written, kind, precision);
  if (!family.has_gradient) return cost;
  cost.input_gradient =
      pass_time(work, work.input_gradient_flops, work.input_gradient_bytes, kind, precision);
  cost.weight_gradient =
      pass_time(work, work.weight_gradient_flops, work.weight_gradient_bytes, kind, precision);
  if (is_cpu(kind)) add_cpu_kernels(graph, op, family, kind, batch, cost);
  cost.saved = saved_tensors(graph, op, family);
  cost.private_bytes = private_bytes(graph, op, family, kind, batch);
  if (cost.weight_gradient != Duration()) {  // until its weight half, an operator keeps its output's gradient
    for (const TensorId output : op.outputs) {
      if (is_floating_point(graph.tensor(output).dtype))
        cost.between_halves += graph.tensor(output).bytes(batch);
    }
  }
  if (!op.inputs.empty() && family.reorders) cost.workspace = graph.tensor(op.inputs[0]).bytes(batch);
  return cost;
}

CostTable complete_costs(const Graph& graph, const Cluster& cluster, CostTable table,
                         std::span<const BatchSize> micro_batches, Precision precision) {
  const std::vector<BatchSize> wanted(micro_batches.begin(), micro_batches.end());
  CostTableParts parts = table.parts();
  for (const DeviceKind& kind : cluster.kinds()) {
    std::unordered_set<std::string_view> seen;
    bool added = false;
    for (std::size_t i = 0; i < graph.operators().size(); ++i) {
      const std::string& op_class = graph.operators()[i].op_class;
      if (!seen.insert(op_class).second) continue;
      const std::span<const CostRow> known_rows = table.rows(op_class, kind.name);
      const CostRow* row = known_rows.empty() ? nullptr : &known_rows.front();
      const bool analytic = std::all_of(known_rows.begin(), known_rows.end(), [](const CostRow& known) {
        return std::all_of(known.points.begin(), known.points.end(),
                           [](const auto& point) { return point.cost.origin == Origin::kAnalytic; });
      });
      if (!analytic) continue;
      CostRow* target =
          row ? &parts.rows[static_cast<std::size_t>(row - table.parts().rows.data())] : nullptr;
      std::vector<CostRow::Point> points;
      for (const BatchSize batch : wanted) {
        const bool known = row && std::any_of(row->points.begin(), row->points.end(),
                                              [&](const auto& point) { return point.batch == batch; });
        const bool twice = std::any_of(points.begin(), points.end(),
                                       [&](const auto& point) { return point.batch == batch; });
        if (!known && !twice)
          points.push_back({batch, analytic_cost(graph, OperatorId(i), kind, batch, precision)});
      }
      if (points.empty()) continue;
      added = true;
      if (target) {
        target->points.insert(target->points.end(), points.begin(), points.end());
      } else {
        parts.rows.push_back({op_class, kind.name, Variant{}, std::move(points)});
      }
    }
    if (!added || table.overhead(kind.name) != KindOverhead{kind.name, {}, 0, {}, {}}) continue;
    // An update reads parameter, gradient and state and writes all but the gradient: 4 passes over the
    // parameters for SGD (with momentum 5), 7 for Adam. In bf16 these passes, but for the gradient's and one
    // more that writes the parameters, go over numbers of twice the size: 10 and 14.
    KindOverhead overhead;
    overhead.kind = kind.name;
    const double copies = precision == Precision::kBF16 ? 2 : 1;
    const double picoseconds = copies * 1e12 / (static_cast<double>(kind.memory_bandwidth) * kBandwidthShare);
    for (const auto& [optimizer, passes] :
         {std::pair(OptimizerKind::kSgd, 5), std::pair(OptimizerKind::kAdam, 7),
          std::pair(OptimizerKind::kAdamW, 7)}) {
      overhead.updates.push_back(
          {optimizer, kind.launch_overhead, static_cast<std::int64_t>(std::ceil(picoseconds * passes))});
    }
    parts.overheads.push_back(std::move(overhead));
  }
  return CostTable(std::move(parts));
}

}  // namespace espalier
