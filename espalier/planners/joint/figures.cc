#include "espalier/planners/joint/figures.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

namespace espalier::joint {
namespace {

constexpr double kCopiesOfAParameter = 4;  // itself, its gradient, two moments of an optimizer

double seconds(Duration time) {
  return static_cast<double>(time.count()) * 1e-9;
}

}  // namespace

FigureTables::Wire::Wire(const Cluster& cluster, DeviceId from, DeviceId to) {
  if (from == to) return;
  const Route route = cluster.route(from, to);
  if (route.bandwidth) a_byte = 1 / static_cast<double>(*route.bandwidth);
  fixed = seconds(route.latency);
}

// Stages that others wait for first; fewer where they wait for each other.
std::vector<std::size_t> FigureTables::in_order(std::span<const Edge> edges,
                                                std::span<const std::vector<std::size_t>> into,
                                                std::span<const std::vector<std::size_t>> out) {
  std::vector<std::size_t> awaited, order;
  for (std::size_t s = 0; s < into.size(); ++s) {
    awaited.push_back(into[s].size());
    if (into[s].empty()) order.push_back(s);
  }
  for (std::size_t at = 0; at < order.size(); ++at) {
    for (const std::size_t e : out[order[at]]) {
      if (--awaited[edges[e].to] == 0) order.push_back(edges[e].to);
    }
  }
  return order;
}

FigureTables::FigureTables(const Space& space) : space_(space), returned_{0}, parameters_{0} {
  const Graph& graph = space.problem().graph;
  const BatchSize some = space.sizes().back();
  std::vector<char> met(graph.parameters().size());
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    const Operator& op = graph.operators()[i];
    double returned = 0, parameters = 0;
    for (const TensorId output : op.outputs) {
      if (!op.duplicable) returned += static_cast<double>(graph.tensor(output).bytes(some).count());
    }
    for (const TensorId input : op.inputs) {
      const std::optional<ParameterId> parameter = graph.tensor(input).parameter;
      if (!parameter || met[parameter->index()] != 0) continue;
      met[parameter->index()] = 1;
      parameters += static_cast<double>(graph.parameters()[parameter->index()].bytes().count());
    }
    returned_.push_back(returned_.back() + returned / static_cast<double>(some.count()));
    parameters_.push_back(parameters_.back() + parameters);
  }
}

// What an operator returns counts once for each stage that reads it.
std::vector<FigureTables::Edge> FigureTables::edges_of(const Proposal& plan) const {
  const std::vector<std::size_t> stage_of = stages_of_operators(space_, plan.stages);
  std::vector<std::tuple<std::size_t, std::size_t, std::uint32_t>> crossing;
  for (const Link& link : space_.links()) {
    const std::size_t from = stage_of[link.from], to = stage_of[link.to];
    if (from != to) crossing.emplace_back(from, to, link.from);
  }
  std::sort(crossing.begin(), crossing.end());
  crossing.erase(std::unique(crossing.begin(), crossing.end()), crossing.end());
  std::vector<Edge> edges;
  for (const auto& [from, to, op] : crossing) {
    if (edges.empty() || edges.back().from != from || edges.back().to != to) edges.push_back({from, to, 0});
    edges.back().bytes += returned_[op + 1] - returned_[op];
  }
  return edges;
}

// Around a ring of its devices, as if they stood as far apart as the first and the last.
double FigureTables::seconds_of_sum(const StageDraft& stage) const {
  if (stage.replicas() < 2) return 0;
  const Wire wire(space_.problem().cluster, stage.devices.front(), stage.devices.back());
  const auto members = static_cast<double>(stage.replicas());
  const double bytes = sum_over(parameters_, stage.operators) / stage.degree;
  return 2 * (members - 1) * (bytes / members * wire.a_byte + wire.fixed);
}

// What figures are made of.
struct FigureTables::Stages {
  struct One {
    double forward = 0, backward = 0;  // of one micro-batch; what is computed again is backward
    double sum = 0;                    // of its gradients
    double there = 0, back = 0;        // the longest way to it, and from it to the first stages
    double depth = 1, to_end = 1;      // stages on the longest way, itself counted
  };
  std::vector<One> of;
  std::vector<Edge> edges;
  std::vector<double> message;  // of one micro-batch, by edge
  bool circle = false;
};

// Ways there and back, unless stages wait for each other.
void FigureTables::find_ways(Stages& stages) {
  std::vector<std::vector<std::size_t>> into(stages.of.size()), out(stages.of.size());
  for (std::size_t e = 0; e < stages.edges.size(); ++e) {
    into[stages.edges[e].to].push_back(e);
    out[stages.edges[e].from].push_back(e);
  }
  const std::vector<std::size_t> order = in_order(stages.edges, into, out);
  stages.circle = order.size() < stages.of.size();
  if (stages.circle) return;
  for (const std::size_t s : order) {
    Stages::One& at = stages.of[s];
    for (const std::size_t e : into[s]) {
      const Stages::One& from = stages.of[stages.edges[e].from];
      at.there = std::max(at.there, from.there + from.forward + stages.message[e]);
      at.back = std::max(at.back, from.back + from.backward + stages.message[e]);
      at.depth = std::max(at.depth, from.depth + 1);
    }
  }
  for (std::size_t i = order.size(); i-- > 0;) {
    Stages::One& at = stages.of[order[i]];
    for (const std::size_t e : out[order[i]]) {
      at.to_end = std::max(at.to_end, stages.of[stages.edges[e].to].to_end + 1);
    }
  }
}

FigureTables::Stages FigureTables::stages_of(const Proposal& plan) const {
  const Cluster& cluster = space_.problem().cluster;
  Stages stages{.of = {}, .edges = edges_of(plan), .message = {}};
  for (const StageDraft& stage : plan.stages) {
    const KindId kind = cluster.device(stage.devices.front()).kind;
    Stages::One one;
    one.forward = seconds(space_.forward(stage, kind, plan.micro_batch));
    one.backward = seconds(space_.work(stage, kind, plan.micro_batch)) - one.forward;
    one.sum = seconds_of_sum(stage);
    for (const std::size_t before : stage.after) stages.edges.push_back({before, stages.of.size(), 0});
    stages.of.push_back(one);
  }
  for (const Edge& edge : stages.edges) {
    const Wire wire = wire_of(plan, edge);
    const double bytes = edge.bytes * static_cast<double>(plan.micro_batch.count());
    stages.message.push_back(bytes * wire.a_byte + wire.fixed);
  }
  find_ways(stages);
  return stages;
}

FigureTables::Wire FigureTables::wire_of(const Proposal& plan, const Edge& edge) const {
  return Wire(space_.problem().cluster, plan.stages[edge.from].devices.front(),
              plan.stages[edge.to].devices.front());
}

void FigureTables::add_loads(const Load& load, PlanFigures& figures) const {
  auto& times = figures.times;
  const auto devices = static_cast<double>(load.of_device.size());
  double used = 0, squares = 0;
  for (const Duration each : load.of_device) {
    const double work = seconds(each);
    times[PlanFigures::kNext] =
        std::max(times[PlanFigures::kNext], std::min(work, times[PlanFigures::kBusiest]));
    times[PlanFigures::kBusiest] = std::max(times[PlanFigures::kBusiest], work);
    times[PlanFigures::kMean] += work / devices;
    squares += work * work / devices;
    used += work > 0 ? 1 : 0;
  }
  times[PlanFigures::kSpread] = std::sqrt(squares);
  figures.shapes[PlanFigures::kUsed] = used / devices;
}

void FigureTables::add_stages(const Proposal& plan, const Stages& stages, PlanFigures& figures) const {
  auto& times = figures.times;
  auto& shapes = figures.shapes;
  const auto devices = static_cast<double>(space_.problem().cluster.devices().size());
  const auto count = static_cast<double>(plan.stages.size());
  double operators = 0, again = 0;
  shapes[PlanFigures::kLeastAhead] = shapes[PlanFigures::kMostAhead] = plan.stages.front().more_in_flight;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StageDraft& stage = plan.stages[s];
    const Stages::One& one = stages.of[s];
    times[PlanFigures::kHeaviest] = std::max(times[PlanFigures::kHeaviest], one.forward + one.backward);
    times[PlanFigures::kSum] = std::max(times[PlanFigures::kSum], one.sum);
    operators += static_cast<double>(stage.operators.size());
    if (!stage.recompute.empty()) {
      again += static_cast<double>(common(stage.operators, stage.recompute).size());
    }
    const double ahead = stage.more_in_flight;
    shapes[PlanFigures::kLeastAhead] = std::min(shapes[PlanFigures::kLeastAhead], ahead);
    shapes[PlanFigures::kMostAhead] = std::max(shapes[PlanFigures::kMostAhead], ahead);
    shapes[PlanFigures::kReplicas] += static_cast<double>(stage.replicas()) / count;
    shapes[PlanFigures::kBare] += static_cast<double>(stage.after.size()) / count;
    if (stages.circle) continue;
    times[PlanFigures::kPath] =
        std::max(times[PlanFigures::kPath], one.there + one.forward + one.backward + one.back);
    shapes[PlanFigures::kDepth] = std::max(shapes[PlanFigures::kDepth], one.depth / devices);
  }
  shapes[PlanFigures::kStages] = count / devices;
  shapes[PlanFigures::kRecomputed] = operators > 0 ? again / operators : 0;
  shapes[PlanFigures::kCircle] = stages.circle ? 1 : 0;
}

void FigureTables::add_messages(const Proposal& plan, const Stages& stages, double micro_batches,
                                PlanFigures& figures) const {
  const auto devices = static_cast<double>(space_.problem().cluster.devices().size());
  for (const Edge& edge : stages.edges) {
    const auto side_by_side =
        static_cast<double>(std::min(plan.stages[edge.from].replicas(), plan.stages[edge.to].replicas()));
    const double held = micro_batches * static_cast<double>(plan.micro_batch.count()) * edge.bytes *
                        wire_of(plan, edge).a_byte;
    double& most = figures.times[PlanFigures::kWire];
    most = std::max(most, held / side_by_side);
    figures.times[PlanFigures::kTraffic] += held / devices;
  }
}

void FigureTables::add_devices(const Proposal& plan, const Stages& stages, const Load& load,
                               double micro_batches, PlanFigures& figures) const {
  struct OfDevice {
    double there = std::numeric_limits<double>::infinity(), back = there, sums = 0, bytes = 0;
  };
  const std::span<const Device> devices = space_.problem().cluster.devices();
  std::vector<OfDevice> of_device(devices.size());
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StageDraft& stage = plan.stages[s];
    const Stages::One& one = stages.of[s];
    const double kept = sum_over(
        returned_, stage.recompute.empty() ? stage.operators : without(stage.operators, stage.recompute));
    const double in_flight = std::clamp(one.to_end + stage.more_in_flight, 1.0, micro_batches);
    const double bytes = kCopiesOfAParameter * sum_over(parameters_, stage.operators) / stage.degree +
                         in_flight * static_cast<double>(plan.micro_batch.count()) * kept;
    for (const DeviceId device : stage.devices) {
      OfDevice& each = of_device[device.index()];
      each.there = std::min(each.there, one.there);
      each.back = std::min(each.back, one.back);
      each.sums += one.sum;
      each.bytes += bytes;
    }
  }
  for (std::size_t d = 0; d < devices.size(); ++d) {
    const OfDevice& each = of_device[d];
    double& fullness = figures.shapes[PlanFigures::kFullness];
    fullness = std::max(
        fullness, each.bytes / static_cast<double>(std::max<std::int64_t>(1, devices[d].memory.count())));
    if (stages.circle || !std::isfinite(each.there)) continue;
    const double until = each.there + seconds(load.of_device[d]);
    double &ends = figures.times[PlanFigures::kEnds], &closing = figures.times[PlanFigures::kClosing];
    ends = std::max(ends, until + each.back);
    closing = std::max(closing, until + std::max(each.back, each.sums));
  }
}

PlanFigures FigureTables::of(const Proposal& plan) const {
  const double micro_batches = static_cast<double>(space_.problem().training.batch.count()) /
                               static_cast<double>(plan.micro_batch.count());
  const Load load = load_of(space_, plan);
  const Stages stages = stages_of(plan);
  PlanFigures figures;
  add_loads(load, figures);
  add_stages(plan, stages, figures);
  add_messages(plan, stages, micro_batches, figures);
  add_devices(plan, stages, load, micro_batches, figures);
  auto& shapes = figures.shapes;
  const OrderRule& rule = plan.schedule;
  shapes[PlanFigures::kMicroBatches] = std::log2(micro_batches);
  shapes[PlanFigures::kSplit] = rule.backward == OrderRule::Backward::kSplit ? 1 : 0;
  shapes[PlanFigures::kGroup] = rule.group.empty() ? 0 : std::log2(rule.group.front());
  shapes[PlanFigures::kAllForward] = rule.kind == ScheduleKind::kGPipe ? 1 : 0;
  return figures;
}

MoveFigures figures_of(const PlanFigures& before, Duration step, const PlanFigures& after) {
  MoveFigures move;
  std::size_t at = 0;
  const auto add = [&](double value) {
    move.values[at++] = static_cast<float>(std::clamp(value, -16.0, 16.0));
  };
  const double whole = std::max(seconds(step), 1e-9);
  for (std::size_t i = 0; i < PlanFigures::kTimes; ++i) {
    add(after.times[i] / whole);
    add((after.times[i] - before.times[i]) / whole);
  }
  for (std::size_t i = 0; i < PlanFigures::kShapes; ++i) {
    add(after.shapes[i]);
    add(after.shapes[i] - before.shapes[i]);
  }
  return move;
}

}  // namespace espalier::joint
