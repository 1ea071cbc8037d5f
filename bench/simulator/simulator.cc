// How many plans and tasks does the simulator do in a second?
//
//   engine      run_tasks on compiled pipeline schedules (8 stages, one switch whose links carry one transfer
//               at a time) of about 1 000, 100 000 and 1 000 000 tasks
//   evaluator   fresh PipelinePlans, 8 stages × 32 micro-batches, the same switch, random cuts of a layered
//               graph: each plan once, with a scratch that has seen none of them ("new stages") and again
//               ("known stages", what a planner's neighbouring plans mostly are)
//   full        stage_model + make_schedule + compile + run_tasks + memory on the same plans
//   reference   the slow second simulator of the tests on the same schedules
//
// Contenders' answers are compared before anything is timed. Counts first, seconds second: of one thread's
// processor time, the best of several rounds, since other work may share the machine. Prints a table, or CSV
// with --csv.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/sim/evaluator.h"
#include "espalier/sim/simulate.h"

namespace espalier {
namespace {

struct Row {
  std::string what;
  std::uint64_t count;  // plans or tasks in a round
  std::string unit;
  double seconds;  // of the best round
  std::string note;
};

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double best_of(int rounds, const std::function<void()>& work) {
  double best = 1e30;
  for (int i = 0; i < rounds; ++i) {
    const double begin = thread_seconds();
    work();
    best = std::min(best, thread_seconds() - begin);
  }
  return best;
}

Cluster one_switch(std::size_t devices) {
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
  parts.groups = {network};
  for (std::size_t d = 0; d < devices; ++d) {
    parts.devices.push_back({"gpu:" + std::to_string(d), KindId(0), GroupId(0), kind.memory});
  }
  return Cluster(std::move(parts));
}

// A chain of layers, perhaps with a skip over every second one; each has a weight and keeps its input.
struct Layers {
  Graph graph;
  CostTable costs;
};
enum class Skips : std::uint8_t { kNone, kEverySecond };
Layers layered_graph(std::size_t operators, Skips skips, Rng& rng) {
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
  TensorId last = add_tensor("x", TensorRole::kInput, 1024), skipped = last;
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
    if (skips == Skips::kEverySecond && i % 2 == 1) op.inputs.push_back(skipped);
    const TensorId output = add_tensor(name, TensorRole::kActivation, 1024);
    parts.tensors[output.index()].producer = OperatorId(i);
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
  result.micro_batches = {BatchSize(4)};
  return result;
}

// 8 stages at random cuts, 32 micro-batches.
PipelinePlan random_cuts(const Graph& graph, Rng& rng) {
  constexpr std::size_t kStages = 8;
  const std::size_t operators = graph.operators().size();
  std::vector<std::size_t> cuts{0, operators};
  while (cuts.size() < kStages + 1) {
    const std::size_t cut = 1 + rng.below(operators - 1);
    if (std::find(cuts.begin(), cuts.end(), cut) == cuts.end()) cuts.push_back(cut);
  }
  std::sort(cuts.begin(), cuts.end());
  PipelinePlan plan;
  plan.batch = BatchSize(128);
  for (std::size_t s = 0; s < kStages; ++s) {
    Stage stage;
    stage.name = "s" + std::to_string(s);
    for (std::size_t i = cuts[s]; i < cuts[s + 1]; ++i) stage.operators.push_back(OperatorId(i));
    stage.replicas = {{{DeviceId(s)}, round_robin(32, 0, 1)}};
    stage.micro_batch = BatchSize(4);
    std::vector<StageId> after;
    for (const OperatorId op : stage.operators) {
      for (const OperatorId before : graph.predecessors(op)) {
        const auto at = std::upper_bound(cuts.begin(), cuts.end(), before.index()) - cuts.begin() - 1;
        if (static_cast<std::size_t>(at) < s) after.push_back(StageId(static_cast<std::size_t>(at)));
      }
    }
    std::sort(after.begin(), after.end());
    after.erase(std::unique(after.begin(), after.end()), after.end());
    stage.after = after;
    plan.stages.push_back(stage);
  }
  const std::vector<std::uint32_t> limits = in_flight_limits(plan);
  for (std::size_t s = 0; s < kStages; ++s) plan.stages[s].in_flight = limits[s];
  return plan;
}

std::size_t bytes_of(const TaskGraph& graph) {
  const auto bytes = [](const auto& vector) { return vector.size() * sizeof(vector[0]); };
  return bytes(graph.duration) + bytes(graph.delay) + bytes(graph.lane) + bytes(graph.priority) +
         bytes(graph.link_begin) + bytes(graph.links) + bytes(graph.successor_begin) +
         bytes(graph.successors) + bytes(graph.lane_order) + bytes(graph.order_begin) + bytes(graph.order);
}

void engine(std::vector<Row>& rows) {
  const Cluster cluster = one_switch(8);
  for (const std::uint32_t micro_batches : {34u, 3'334u, 33'334u}) {
    Rng rng(1);
    StagedModel model;
    for (std::size_t s = 0; s < 8; ++s) {
      const Duration time = microseconds(static_cast<std::int64_t>(900 + rng.below(200)));
      StagedStage stage;
      stage.name = "s" + std::to_string(s);
      stage.micro_batches = micro_batches;
      stage.in_flight = static_cast<std::uint32_t>(8 - s);
      stage.replicas = {{{DeviceId(s)}, round_robin(micro_batches, 0, 1), {time, time, time, {}, {}}}};
      if (s > 0) stage.after = {StageId(s - 1)};
      model.stages.push_back(stage);
      if (s == 7) break;
      Crossing crossing;
      crossing.tensor = "t" + std::to_string(s);
      crossing.from = StageId(s);
      crossing.readers = {{StageId(s + 1), true, mebibytes(1), mebibytes(1)}};
      model.crossings.push_back(crossing);
    }
    const CompiledSchedule compiled = compile(model, cluster, make_schedule(model, 8));
    const std::size_t tasks = compiled.tasks.size();
    Duration makespan;
    const int repeat = tasks < 10'000 ? 200 : 1;
    const double seconds = best_of(tasks < 10'000 ? 50 : 15,
                                   [&] {
                                     for (int i = 0; i < repeat; ++i)
                                       makespan = run_tasks(compiled.tasks).makespan;
                                   }) /
                           repeat;
    ESP_CHECK(makespan == simulate(model, cluster).iteration, makespan);
    char note[100];
    std::snprintf(note, sizeof note, "%.1f successors and links a task, graph %.0f B, run %.0f B a task",
                  static_cast<double>(compiled.tasks.successors.size() + compiled.tasks.links.size()) /
                      static_cast<double>(tasks),
                  static_cast<double>(bytes_of(compiled.tasks)) / static_cast<double>(tasks),
                  2.0 * sizeof(Duration) + sizeof(std::uint32_t));
    rows.push_back({"engine", tasks, "tasks", seconds, note});
  }
}

void evaluator(std::vector<Row>& rows, std::size_t operators, Skips skips) {
  Rng rng(operators);
  const Layers layers = layered_graph(operators, skips, rng);
  const Cluster cluster = one_switch(8);
  const Evaluator evaluator(layers.graph, cluster, layers.costs, training());
  std::vector<PipelinePlan> plans;
  for (int i = 0; i < 500; ++i) plans.push_back(random_cuts(layers.graph, rng));

  auto scratch = Evaluator::make_scratch();
  for (const PipelinePlan& plan : plans) {
    ESP_CHECK(check_plan(layers.graph, cluster, plan).empty());
    ESP_CHECK(evaluator.evaluate(plan, *scratch) == evaluator.simulate_in_full(plan));
  }
  ESP_CHECK(Evaluator::counts(*scratch).fast == plans.size());
  const StagedModel first = stage_model(layers.graph, cluster, layers.costs, training(), plans[0]);
  const std::size_t tasks = compile(first, cluster, make_schedule(first, 8)).tasks.size();
  const std::string size =
      std::to_string(operators) + " operators, about " + std::to_string(tasks) + " tasks a plan";

  std::int64_t sum = 0;
  const auto evaluate_all = [&] {
    for (const PipelinePlan& plan : plans) sum += evaluator.evaluate(plan, *scratch).iteration.count();
  };
  double fresh = 1e30;
  std::uint64_t walked = 0;
  for (int round = 0; round < 20; ++round) {
    scratch = Evaluator::make_scratch();
    evaluator.evaluate(plans[0], *scratch);
    const std::uint64_t before = Evaluator::counts(*scratch).stages_walked;
    fresh = std::min(fresh, best_of(1, evaluate_all));
    walked = Evaluator::counts(*scratch).stages_walked - before;
  }
  rows.push_back(
      {"evaluator, new stages", plans.size(), "plans", fresh,
       size + ", " + std::to_string(walked) + " of " + std::to_string(8 * plans.size()) + " stages walked"});
  rows.push_back({"evaluator, known stages", plans.size(), "plans", best_of(40, evaluate_all), size});
  const std::vector<PipelinePlan> few(plans.begin(), plans.begin() + 20);
  rows.push_back({"full", few.size(), "plans",
                  best_of(5,
                          [&] {
                            for (const PipelinePlan& plan : few)
                              sum += evaluator.simulate_in_full(plan).iteration.count();
                          }),
                  size});
  ESP_CHECK(sum > 0);
}

void print(const std::vector<Row>& rows, bool csv) {
  if (csv) {
    std::printf("what,count,unit,seconds,per_second,note\n");
    for (const Row& row : rows) {
      std::printf("\"%s\",%llu,%s,%.9f,%.0f,\"%s\"\n", row.what.c_str(),
                  static_cast<unsigned long long>(row.count), row.unit.c_str(), row.seconds,
                  static_cast<double>(row.count) / row.seconds, row.note.c_str());
    }
    return;
  }
  for (const Row& row : rows) {
    std::printf("%-26s %9llu %s  %10.3f ms  %12.0f %s/s   %s\n", row.what.c_str(),
                static_cast<unsigned long long>(row.count), row.unit.c_str(), row.seconds * 1e3,
                static_cast<double>(row.count) / row.seconds, row.unit.c_str(), row.note.c_str());
  }
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  const bool csv = argc > 1 && std::strcmp(argv[1], "--csv") == 0;
  std::vector<espalier::Row> rows;
  espalier::engine(rows);
  for (const std::size_t operators : {64u, 256u, 1024u}) {
    espalier::evaluator(rows, operators, espalier::Skips::kNone);
  }
  espalier::evaluator(rows, 256, espalier::Skips::kEverySecond);
  espalier::print(rows, csv);
}
