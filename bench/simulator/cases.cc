#include "bench/simulator/cases.h"

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/planners/draft.h"

namespace espalier::bench {

std::string name_of(Case which) {
  switch (which) {
    case Case::kChain:
      return "chain";
    case Case::kSkips:
      return "skips";
    case Case::kShared:
      return "8 stages on 4 devices";
    case Case::kSplit:
      return "split backward";
    case Case::kTwoAtATime:
      return "k = 2";
    case Case::kUnequal:
      return "micro-batches 2:1";
    case Case::kReplicas:
      return "two replicas each";
    case Case::kRecompute:
      return "all recomputed";
    case Case::kEndpoints:
      return "endpoints";
    case Case::kFar:
      return "far duplicables";
    case Case::kOwnShapes:
      return "devices and shares drawn";
  }
  return "";
}

Cluster one_switch(std::size_t devices, EndpointCost ends) {
  ClusterParts parts;
  DeviceKind kind;
  kind.name = "gpu";
  kind.memory = gibibytes(80);
  kind.flops_f32 = kind.flops_f16 = 1e14;
  kind.memory_bandwidth = 2'000'000'000'000;
  parts.kinds = {kind};
  Group network;
  network.name = "network";
  network.bandwidth = 3'125'000'000;
  network.latency = microseconds(10);
  network.send = network.receive = ends;
  parts.groups = {network};
  for (std::size_t d = 0; d < devices; ++d) {
    parts.devices.push_back({"gpu:" + std::to_string(d), KindId(0), GroupId(0), kind.memory});
  }
  return Cluster(std::move(parts));
}

Layers layered_graph(std::size_t operators, Case which, Rng& rng) {
  GraphParts parts;
  parts.name = "layers";
  parts.batch = {BatchSize(1), BatchSize(1024)};
  CostTableParts costs;
  const auto add_tensor = [&](std::string name, TensorRole role, std::int64_t features) {
    Tensor tensor;
    tensor.name = std::move(name);
    tensor.role = role;
    tensor.sizes = {SizeExpr::batch(), SizeExpr(features)};
    tensor.requires_grad = role == TensorRole::kActivation || role == TensorRole::kParameter;
    tensor.storage = StorageId(parts.tensors.size());
    parts.tensors.push_back(tensor);
    return TensorId(parts.tensors.size() - 1);
  };
  TensorId last = add_tensor("x", TensorRole::kInput, 1024), skipped = last, mask = last;
  if (which == Case::kFar) {
    Operator op;
    op.name = op.target = op.op_class = "mask";
    op.duplicable = true;
    op.inputs = {last};
    mask = add_tensor("mask", TensorRole::kActivation, 16);
    parts.tensors[mask.index()].producer = OperatorId(0);
    parts.tensors[mask.index()].requires_grad = false;
    op.outputs = {mask};
    parts.operators.push_back(op);
    OperatorCost cost;
    cost.forward = microseconds(1);
    costs.rows.push_back({op.op_class, "gpu", {}, {{BatchSize(4), cost}}});
  }
  for (std::size_t i = 0; i < operators; ++i) {
    const std::string name = "layer" + std::to_string(i);
    Parameter parameter;
    parameter.names = {name + ".weight"};
    parameter.sizes = {1024, 1024};
    const TensorId weight = add_tensor(name + ".weight", TensorRole::kParameter, 1024);
    parts.tensors[weight.index()].sizes = {SizeExpr(1024), SizeExpr(1024)};
    parts.tensors[weight.index()].parameter = ParameterId(parts.parameters.size());
    parts.parameters.push_back(parameter);
    Operator op;
    op.name = op.target = op.op_class = name;
    op.inputs = {last, weight};
    if (which == Case::kSkips && i % 2 == 1) op.inputs.push_back(skipped);
    if (which == Case::kFar && i % 8 == 7) op.inputs.push_back(mask);
    const TensorId output = add_tensor(name, TensorRole::kActivation, 1024);
    parts.tensors[output.index()].producer = OperatorId(parts.operators.size());
    op.outputs = {output};
    skipped = last;
    last = output;
    parts.operators.push_back(op);
    OperatorCost cost;
    cost.forward = microseconds(static_cast<std::int64_t>(50 + rng.below(100)));
    cost.input_gradient = cost.weight_gradient = cost.forward;
    cost.saved = {{SavedTensor::Side::kInput, 0}};
    cost.workspace = kibibytes(static_cast<std::int64_t>(rng.below(64)));
    costs.rows.push_back({op.op_class, "gpu", {}, {{BatchSize(4), cost}}});
  }
  parts.outputs = {last};
  return {Graph(std::move(parts)), CostTable(std::move(costs))};
}

Training training() {
  Training result;
  result.batch = BatchSize(128);
  result.micro_batches = {BatchSize(4), BatchSize(8)};
  return result;
}

Problem make_problem(Case which, std::size_t operators, std::size_t stages, Rng& rng) {
  const std::size_t devices = which == Case::kReplicas ? 2 * stages
                              : which == Case::kShared ? stages / 2
                                                       : stages;
  const EndpointCost ends = which == Case::kEndpoints ? EndpointCost{microseconds(2), 20} : EndpointCost();
  return {layered_graph(operators, which, rng), one_switch(devices, ends), training()};
}

namespace {

constexpr std::uint32_t kMicroBatches = 32;

void add_after(const Graph& graph, const std::vector<std::size_t>& cuts, PipelinePlan& plan) {
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    std::vector<StageId>& after = plan.stages[s].after;
    for (std::size_t i = cuts[s]; i < cuts[s + 1]; ++i) {
      for (const OperatorId before : graph.predecessors(OperatorId(i))) {
        if (graph.op(before).duplicable) continue;
        const auto at = std::upper_bound(cuts.begin(), cuts.end(), before.index()) - cuts.begin() - 1;
        if (static_cast<std::size_t>(at) < s) after.push_back(StageId(static_cast<std::size_t>(at)));
      }
    }
    std::sort(after.begin(), after.end());
    after.erase(std::unique(after.begin(), after.end()), after.end());
  }
}

// Two replicas on any two devices, each with a quarter of the micro-batches at least.
std::vector<Replica> drawn_replicas(std::size_t devices, Rng& rng) {
  const std::size_t first = rng.below(devices), second = (first + 1 + rng.below(devices - 1)) % devices;
  const std::uint32_t share = kMicroBatches / 4 + narrow(rng.below(kMicroBatches / 2 + 1));
  const std::uint32_t shares[] = {share, kMicroBatches - share};
  auto dealt = deal_micro_batches(kMicroBatches, shares);
  return {{{DeviceId(first)}, std::move(dealt[0])}, {{DeviceId(second)}, std::move(dealt[1])}};
}

// Of stages on devices of their own: w forwards, then backward and forward in turn, W one backward later.
OrderLists split_lists(const PipelinePlan& plan) {
  OrderLists lists(plan.stages.size());
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const auto add = [&](ActionKind kind) { lists[s].emplace_back(kind, StageId(s)); };
    std::uint32_t forwards = 0;
    for (; forwards < plan.stages[s].in_flight; ++forwards) add(ActionKind::kForward);
    for (std::uint32_t backwards = 0; backwards < kMicroBatches; ++backwards) {
      add(ActionKind::kInputGradient);
      if (backwards > 0) add(ActionKind::kWeightGradient);
      if (forwards++ < kMicroBatches) add(ActionKind::kForward);
    }
    add(ActionKind::kWeightGradient);
  }
  return lists;
}

}  // namespace

PipelinePlan random_cuts(const Problem& problem, Case which, std::size_t stages, Rng& rng) {
  const Graph& graph = problem.layers.graph;
  const std::size_t operators = graph.operators().size(), first = which == Case::kFar ? 1 : 0;
  std::vector<std::size_t> cuts{first, operators};
  while (cuts.size() < stages + 1) {
    const std::size_t cut = first + 1 + rng.below(operators - first - 1);
    if (std::find(cuts.begin(), cuts.end(), cut) == cuts.end()) cuts.push_back(cut);
  }
  std::sort(cuts.begin(), cuts.end());
  PipelinePlan plan;
  plan.batch = BatchSize(128);
  for (std::size_t s = 0; s < stages; ++s) {
    Stage stage;
    stage.name = "s" + std::to_string(s);
    for (std::size_t i = cuts[s]; i < cuts[s + 1]; ++i) stage.operators.push_back(OperatorId(i));
    bool reads_mask = which == Case::kFar && s == 0;
    for (const OperatorId op : graph.successors(OperatorId(0))) {
      reads_mask = reads_mask || (which == Case::kFar && op.index() >= cuts[s] && op.index() < cuts[s + 1]);
    }
    if (reads_mask) stage.operators.insert(stage.operators.begin(), OperatorId(0));
    const bool large = which == Case::kUnequal && s % 2 == 1;
    stage.micro_batch = BatchSize(large ? 8 : 4);
    const std::uint32_t count = large ? kMicroBatches / 2 : kMicroBatches;
    const std::size_t replicas = which == Case::kReplicas ? 2 : 1;
    for (std::size_t r = 0; r < replicas; ++r) {
      const std::size_t device = which == Case::kShared ? s % (stages / 2) : replicas * s + r;
      stage.replicas.push_back({{DeviceId(device)}, round_robin(count, r, replicas)});
    }
    if (which == Case::kOwnShapes) stage.replicas = drawn_replicas(problem.cluster.devices().size(), rng);
    if (which == Case::kRecompute) stage.recompute = stage.operators;
    plan.stages.push_back(std::move(stage));
  }
  add_after(graph, cuts, plan);
  if (which == Case::kTwoAtATime) {
    OrderRule rule;
    rule.group = {2};
    plan.orders = rule;
  }
  const std::vector<std::uint32_t> limits = in_flight_limits(plan);
  for (std::size_t s = 0; s < stages; ++s) {
    plan.stages[s].in_flight = limits[s];
    if (which == Case::kUnequal) {
      plan.stages[s].in_flight = std::min<std::uint32_t>(
          limits[s], static_cast<std::uint32_t>(plan.stages[s].replicas[0].micro_batches.size()));
    }
  }
  if (which == Case::kSplit) {
    plan.orders = Orders(split_lists(plan));
    const std::vector<std::uint32_t> held = in_flight_limits(plan);
    for (std::size_t s = 0; s < stages; ++s) plan.stages[s].in_flight = held[s];
  }
  return plan;
}

}  // namespace espalier::bench
