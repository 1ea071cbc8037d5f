#include "espalier/cost/precision.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "espalier/base/check.h"

namespace espalier {
namespace {

constexpr std::array<Precision, 3> kPrecisions{Precision::kF32, Precision::kTf32, Precision::kBF16};

bool is_profile(const Graph& graph) {
  return std::any_of(graph.tensors().begin(), graph.tensors().end(),
                     [](const Tensor& tensor) { return tensor.dtype == DType::kOpaque; });
}

DType type_of(Precision precision) {
  return precision == Precision::kBF16 ? DType::kBF16 : DType::kF32;
}

std::string tera_text(double rate) {  // "19.5", "1307.4"
  std::array<char, 32> buffer{};
  const double rounded = static_cast<double>(std::llround(rate / 1e10)) / 100;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), rounded);
  return {buffer.data(), end};
}

}  // namespace

std::string_view to_text(Precision precision) {
  constexpr std::string_view kNames[] = {"f32", "tf32", "bf16"};
  return kNames[static_cast<std::size_t>(precision)];
}

std::optional<Precision> parse_precision(std::string_view text) {
  for (const Precision precision : kPrecisions) {
    if (to_text(precision) == text) return precision;
  }
  return std::nullopt;
}

double matrix_rate(const DeviceKind& kind, DType type, Precision precision) {
  if (type == DType::kBF16) return kind.flops_bf16.value_or(kind.flops_f16);
  if (type != DType::kOpaque && element_size(type).count() <= 2) return kind.flops_f16;
  if (type == DType::kF32 && precision == Precision::kTf32) return kind.flops_tf32.value_or(kind.flops_f32);
  return kind.flops_f32;
}

Graph with_precision(const Graph& graph, Precision precision) {
  if (precision == Precision::kF32) return graph;
  if (is_profile(graph)) {
    throw InputError("--precision " + std::string(to_text(precision)) + ": '" + graph.name() +
                     "' is a profile of bytes and times, not of numbers; it was measured in one precision");
  }
  if (precision == Precision::kTf32) return graph;
  GraphParts parts = graph.parts();
  for (const Tensor& tensor : parts.tensors) {
    if (tensor.role != TensorRole::kParameter) continue;
    Parameter& parameter = parts.parameters[tensor.parameter->index()];
    if (parameter.dtype == DType::kF32) parameter.dtype = DType::kBF16;
  }
  std::vector<bool> changed(parts.tensors.size());
  for (std::size_t i = 0; i < changed.size(); ++i) {
    Tensor& tensor = parts.tensors[i];
    const bool loss = TensorId(i) == parts.loss || (tensor.gradient_of && tensor.gradient_of == parts.loss);
    changed[i] = tensor.dtype == DType::kF32 && tensor.role != TensorRole::kBuffer && !loss;
    if (changed[i]) tensor.dtype = DType::kBF16;
  }
  for (Operator& op : parts.operators) {
    const auto touched = [&](TensorId id) { return changed[id.index()]; };
    if (std::any_of(op.inputs.begin(), op.inputs.end(), touched) ||
        std::any_of(op.outputs.begin(), op.outputs.end(), touched)) {
      op.op_class += " in bf16";
    }
  }
  return Graph(std::move(parts));
}

std::string precision_text(const Cluster& cluster, Precision precision) {
  const auto rate = [](const DeviceKind& kind, Precision of) { return matrix_rate(kind, type_of(of), of); };
  std::string text = std::string(to_text(precision)) + ": matrix work at ";
  bool first = true;
  for (const DeviceKind& kind : cluster.kinds()) {
    text += (first ? "" : ", ") + tera_text(rate(kind, precision)) + (first ? " Tflop/s on " : " on ") +
            kind.name;
    first = false;
  }
  std::string others;
  for (const Precision other : kPrecisions) {
    const bool faster =
        std::any_of(cluster.kinds().begin(), cluster.kinds().end(),
                    [&](const DeviceKind& kind) { return rate(kind, other) > rate(kind, precision); });
    if (faster)
      others += (others.empty() ? "" : ", ") + std::string(to_text(other)) + " " +
                tera_text(rate(cluster.kinds().front(), other));
  }
  return others.empty() ? text : text + " (--precision: " + others + ")";
}

}  // namespace espalier
