#include "espalier/app/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "espalier/app/planning.h"
#include "espalier/cost/analytic.h"
#include "espalier/cost/work.h"
#include "espalier/frontend/libtorch_operators.h"
#include "espalier/graph/algorithms.h"
#include "espalier/sim/stage_price.h"

namespace espalier {
namespace {

void add_parameters(const Graph& graph, ModelSummary& summary) {
  std::set<ParameterId> buffers;
  for (const Tensor& tensor : graph.tensors()) {
    if (tensor.role == TensorRole::kBuffer) buffers.insert(*tensor.parameter);
  }
  for (std::size_t p = 0; p < graph.parameters().size(); ++p) {
    const Parameter& parameter = graph.parameters()[p];
    if (buffers.contains(ParameterId(p))) {
      summary.buffers += parameter.bytes();
      continue;
    }
    if (!parameter.trainable) {
      summary.frozen_elements += parameter.elements();
      summary.frozen += parameter.bytes();
      continue;
    }
    summary.parameter_elements += parameter.elements();
    summary.parameters += parameter.bytes();
    if (parameter.names.size() > 1) summary.ties.push_back(parameter.names);
  }
}

// Work of an operator that runs by itself in a training graph: of a backward operator that of its class's
// forward operator, both halves; an update and a sum of gradients count for nothing.
class RoleWork {
 public:
  RoleWork(const Graph& graph, BatchSize at) : graph_(graph), at_(at) {
    if (!is_training_graph(graph.operators())) return;
    training_ = true;
    for (std::size_t i = graph.operators().size(); i-- > 0;) {
      const Operator& op = graph.operators()[i];
      if (op.role == OperatorRole::kForward) forward_of_class_[op.op_class] = OperatorId(i);
    }
  }

  struct Flops {
    double forward = 0, backward = 0;
  };
  Flops of(OperatorId id) const {
    const Operator& op = graph_.op(id);
    if (op.role == OperatorRole::kForward) {
      const Work work = operator_work(graph_, id, at_);
      if (training_) return {work.forward_flops, 0};
      const BackwardHalves halves = backward_halves(graph_, op);
      return {work.forward_flops, (halves.input ? work.input_gradient_flops : 0) +
                                      (halves.weights ? work.weight_gradient_flops : 0)};
    }
    const auto forward = forward_of_class_.find(op.op_class);
    if (op.role == OperatorRole::kUpdate || forward == forward_of_class_.end()) return {};
    const Work work = operator_work(graph_, forward->second, at_);
    return {0, work.input_gradient_flops + work.weight_gradient_flops};
  }

 private:
  const Graph& graph_;
  BatchSize at_;
  bool training_ = false;
  std::map<std::string_view, OperatorId> forward_of_class_;
};

void add_structure(const Graph& graph, const OperatorCosts& costs, std::span<const Duration> times,
                   ModelSummary& summary) {
  summary.structure = make_structure(graph, work_weights(graph, costs, summary.at));
  const Structure& structure = summary.structure;
  summary.outline = outline(structure, graph, times);
  summary.waits.count = structure.waits.size();
  if (structure.longest_path.count() > 0) {
    summary.waits.growth =
        static_cast<double>(structure.growth().count()) / static_cast<double>(structure.longest_path.count());
  }
  if (structure.empty() || structure.parts[0].kind != PartKind::kSeries) return;
  for (const Bytes bytes : carried_over(structure, graph, PartId(0), summary.at)) {
    summary.carried = std::max(summary.carried, bytes);
  }
}

// Of one micro-batch, all operators on one device; zero where a cost is missing there.
Bytes kept_for_backward(const PlanningJob& job, KindId device, BatchSize micro_batch) {
  if (job.graph.operators().empty()) return {};
  const StagePrices prices(job.graph, job.cluster, job.costs, job.training);
  const auto scratch = StagePrices::make_scratch();
  const OperatorRun all{0, narrow(job.graph.operators().size() - 1)};
  return prices
      .price({.operators = std::span(&all, 1),
              .recompute = {},
              .micro_batch = micro_batch,
              .kinds = std::span(&device, 1)},
             *scratch)
      .memory.saved;
}

// Times of operators, their sum by kind, and the longest dependent path.
void add_work(const PlanningJob& job, ModelSummary& summary) {
  const Graph& graph = job.graph;
  const OperatorCosts costs(graph, job.cluster, job.costs, summary.at);
  const KindId device = job.cluster.devices().front().kind;
  std::map<std::string, ModelSummary::Kind> kinds;
  std::vector<Duration> times;
  const RoleWork role_work(graph, summary.at);
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    const Operator& op = graph.op(OperatorId(i));
    const OperatorCost& cost = costs.of(OperatorId(i), device);
    const Duration time = cost.forward + cost.backward();
    const RoleWork::Flops flops = role_work.of(OperatorId(i));
    ModelSummary::Kind& kind = kinds[short_target(op.target)];
    kind.name = short_target(op.target);
    ++kind.count;
    if (!summary.opaque) {
      kind.forward_flops += flops.forward;
      summary.forward_flops += flops.forward;
      summary.backward_flops += flops.backward;
    }
    kind.time += time;
    (op.role == OperatorRole::kForward ? summary.forward : summary.backward) += cost.forward;
    summary.backward += cost.backward();
    times.push_back(time);
  }
  summary.saved = kept_for_backward(job, device, summary.at);
  summary.critical_path = critical_path(graph, times).length;
  const Duration all = summary.forward + summary.backward;
  if (summary.critical_path.count() > 0) {
    summary.parallelism = ratio(all, summary.critical_path);
  }
  for (auto& [name, kind] : kinds) {
    kind.share = ratio(kind.time, all);
    summary.kinds.push_back(kind);
  }
  std::stable_sort(summary.kinds.begin(), summary.kinds.end(), [](const auto& a, const auto& b) {
    return std::pair(b.time, b.count) < std::pair(a.time, a.count);
  });

  add_structure(graph, costs, times, summary);
}

void add_largest_tensor(const Graph& graph, ModelSummary& summary) {
  const Tensor* largest = nullptr;
  Bytes most;
  for (const Tensor& tensor : graph.tensors()) {
    if (tensor.role == TensorRole::kActivation && tensor.bytes(summary.at) > most) {
      most = tensor.bytes(summary.at);
      largest = &tensor;
    }
  }
  if (!largest) return;
  std::string sizes;
  for (const SizeExpr& size : largest->sizes) {
    sizes += (sizes.empty() ? "" : ",") + std::to_string(size.at(summary.at));
  }
  summary.largest_tensor =
      fmt::format("{} {}[{}], {}", largest->name, to_text(largest->dtype), sizes, to_text(most));
  const std::string& source = graph.op(*largest->producer).source;
  if (!source.empty()) summary.largest_tensor += ", " + source;
}

// "dropout ×2, model.py:14", each kind once with its first source line.
template <class Condition>
std::vector<std::string> list_operators(const Graph& graph, Condition condition) {
  std::map<std::string, std::pair<int, std::string>> found;
  for (const Operator& op : graph.operators()) {
    if (!condition(op)) continue;
    auto& [count, source] = found[short_target(op.target)];
    if (count++ == 0) source = op.source.empty() ? op.name : op.source;
  }
  std::vector<std::string> result;
  for (const auto& [target, use] : found) {
    result.push_back(target + (use.first > 1 ? fmt::format(" ×{}", use.first) : "") + " (" + use.second +
                     ")");
  }
  return result;
}

// "mylib.scale.default" of an exported program, whose operators all have such targets.
bool is_foreign(const Operator& op) {
  if (op.role != OperatorRole::kForward) return false;
  const auto first = op.target.find('.'), last = op.target.rfind('.');
  if (first == std::string::npos || first == last || op.target.find_first_of("( ") != std::string::npos)
    return false;
  return !in_libtorch(op.target.substr(0, first) + "::" + op.target.substr(first + 1, last - first - 1));
}

}  // namespace

std::string short_target(const std::string& target) {
  std::string name = target.substr(0, target.find('('));
  for (const char* prefix : {"aten.", "aten::"}) {
    if (name.rfind(prefix, 0) == 0) name.erase(0, std::string_view(prefix).size());
  }
  constexpr std::string_view kBackward = ".backward";
  if (name.size() > kBackward.size() && name.ends_with(kBackward)) {
    return short_target(name.substr(0, name.size() - kBackward.size())) + " backward";
  }
  const auto dot = name.rfind(".default");
  if (dot != std::string::npos && dot + 8 == name.size()) name.erase(dot);
  return name.empty() ? target : name;
}

std::string flop_text(double flops) {
  static constexpr const char* kUnits[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"};
  std::size_t unit = 0;
  while (flops >= 1000 && unit + 1 < std::size(kUnits)) {
    flops /= 1000;
    ++unit;
  }
  return fmt::format("{:.3g} {}", flops, kUnits[unit]);
}

ModelSummary inspect(const PlanningJob& job) {
  const Graph& graph = job.graph;
  ModelSummary summary;
  summary.name = graph.name();
  summary.batch = graph.batch();
  summary.training_mode = graph.training_mode();
  if (graph.loss()) summary.loss = graph.tensor(*graph.loss()).name;
  summary.at = job.training.micro_batches.front();
  summary.device = job.cluster.kind_of(DeviceId(0)).name;
  summary.operators = graph.operators().size();
  summary.tensors = graph.tensors().size();
  summary.opaque = std::any_of(graph.tensors().begin(), graph.tensors().end(),
                               [](const Tensor& tensor) { return tensor.dtype == DType::kOpaque; });
  summary.duplicable = static_cast<std::size_t>(std::count_if(
      graph.operators().begin(), graph.operators().end(), [](const Operator& op) { return op.duplicable; }));
  add_parameters(graph, summary);
  add_work(job, summary);
  add_largest_tensor(graph, summary);
  summary.unknown = list_operators(graph, [](const Operator& op) { return !op.known; });
  summary.foreign = list_operators(graph, is_foreign);
  summary.mixing = list_operators(graph, [](const Operator& op) { return op.mixes_samples; });
  summary.random = list_operators(graph, [](const Operator& op) { return op.random; });
  return summary;
}

Table kind_table(const ModelSummary& summary, std::size_t most) {
  Table table{{{"operator", "operator"}, {"count", "count"}, {"time", "time"}, {"share", "share"}}, {}};
  const auto add = [&](const ModelSummary::Kind& kind) {
    table.rows.push_back(
        {kind.name, static_cast<std::int64_t>(kind.count), kind.time, Percentage{kind.share}});
    if (!summary.opaque) table.rows.back().push_back(flop_text(kind.forward_flops));
  };
  if (!summary.opaque) table.columns.push_back({"forward_work", "forward work"});
  std::size_t shown = summary.kinds.size() > most ? most - 1 : summary.kinds.size();
  for (std::size_t i = 0; i < shown; ++i) add(summary.kinds[i]);
  if (shown == summary.kinds.size()) return table;
  ModelSummary::Kind rest;
  rest.name = fmt::format("{} others", summary.kinds.size() - shown);
  for (; shown < summary.kinds.size(); ++shown) {
    rest.count += summary.kinds[shown].count;
    rest.forward_flops += summary.kinds[shown].forward_flops;
    rest.time += summary.kinds[shown].time;
    rest.share += summary.kinds[shown].share;
  }
  add(rest);
  return table;
}

}  // namespace espalier
