// How many plans and tasks does the simulator do in a second? Parts, by name on the command line:
//
//   engine N              run_tasks on a compiled pipeline schedule (8 stages, one switch whose links carry
//   one
//                         transfer at a time) of about N tasks
//   evaluator N [skips]   fresh PipelinePlans, 8 stages × 32 micro-batches, the same switch, random cuts of N
//                         layers: each plan once, with a scratch that has seen none of them ("new stages"),
//                         then again ("known stages", what a planner's neighbouring plans mostly are), and in
//                         full: stage_model + make_schedule + compile + run_tasks + memory
//   reference             simulate and the slow second simulator of the tests, in turn, on such schedules
//
// Contenders' answers are compared before anything is timed. Times are of one thread's processor time, the
// best of several rounds, since other work may share the machine. Prints CSV without a header: what, size,
// count, unit, seconds, note; the last row is the largest memory that the process held.

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/sim/evaluator.h"
#include "espalier/sim/simulate.h"
#include "testing/reference_simulator.h"

namespace espalier {
namespace {

// `count` plans or tasks in a round, whose best took so many seconds.
void print(const std::string& what, const std::string& size, std::uint64_t count, const char* unit,
           double seconds, const std::string& note) {
  std::printf("%s,%s,%llu,%s,%.9f,%s\n", what.c_str(), size.c_str(), static_cast<unsigned long long>(count),
              unit, seconds, note.c_str());
}

void print_peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) {
      const unsigned long long kib = std::stoull(line.substr(6));
      print("peak memory", "process", 1024 * kib, "bytes", 0, "");
    }
  }
}

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

// A chain of 8 stages, a message of 1 MiB each way between neighbours.
StagedModel chain(std::uint32_t micro_batches) {
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
  return model;
}

// Each micro-batch is 2 actions on each device and 2 messages between neighbours: 30 tasks.
void engine(std::size_t about) {
  const StagedModel model = chain(static_cast<std::uint32_t>(about / 30));
  const CompiledSchedule compiled = compile(model, one_switch(8), make_schedule(model, 8));
  const std::size_t tasks = compiled.tasks.size();
  Duration makespan = run_tasks(compiled.tasks).makespan;
  // The second simulator is slow: the shortest chain only.
  const StagedModel small = chain(34);
  const Schedule schedule = make_schedule(small, 8);
  ESP_CHECK(run_tasks(compile(small, one_switch(8), schedule).tasks).makespan ==
            testing::reference_simulate(small, one_switch(8), schedule).iteration);
  const int repeat = tasks < 10'000 ? 200 : 1;
  const auto run = [&] {
    for (int i = 0; i < repeat; ++i) makespan = run_tasks(compiled.tasks).makespan;
  };
  const double seconds = best_of(tasks < 10'000 ? 50 : 15, run) / repeat;
  char note[100];
  std::snprintf(note, sizeof note, "%.1f successors and links a task; graph %.0f B and run %.0f B a task",
                static_cast<double>(compiled.tasks.successors.size() + compiled.tasks.links.size()) /
                    static_cast<double>(tasks),
                static_cast<double>(bytes_of(compiled.tasks)) / static_cast<double>(tasks),
                2.0 * sizeof(Duration) + sizeof(std::uint32_t));
  print("engine", std::to_string(about) + " tasks", tasks, "tasks", seconds, note);
}

void evaluator(std::size_t operators, Skips skips) {
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
      std::to_string(operators) + (skips == Skips::kNone ? " layers" : " layers with skips");
  const std::string about = "about " + std::to_string(tasks) + " tasks a plan";

  std::int64_t sum = 0;
  const auto evaluate_all = [&] {
    for (const PipelinePlan& plan : plans) sum += evaluator.evaluate(plan, *scratch).iteration.count();
  };
  double fresh = 1e30;
  std::uint64_t walked = 0;
  for (int round = 0; round < 200; ++round) {
    scratch = Evaluator::make_scratch();
    evaluator.evaluate(plans[0], *scratch);
    const std::uint64_t before = Evaluator::counts(*scratch).stages_walked;
    fresh = std::min(fresh, best_of(1, evaluate_all));
    walked = Evaluator::counts(*scratch).stages_walked - before;
  }
  print("evaluator; new stages", size, plans.size(), "plans", fresh,
        about + "; " + std::to_string(walked) + " of " + std::to_string(8 * plans.size()) + " stages walked");
  const std::uint64_t before = Evaluator::counts(*scratch).stages_walked;
  const double known = best_of(200, evaluate_all);
  walked = (Evaluator::counts(*scratch).stages_walked - before) / 200;
  print("evaluator; known stages", size, plans.size(), "plans", known,
        about + "; " + std::to_string(walked) + " of " + std::to_string(8 * plans.size()) + " stages walked");
  const std::vector<PipelinePlan> few(plans.begin(), plans.begin() + 20);
  const auto in_full = [&] {
    for (const PipelinePlan& plan : few) sum += evaluator.simulate_in_full(plan).iteration.count();
  };
  print("in full", size, few.size(), "plans", best_of(5, in_full), about);
  ESP_CHECK(sum > 0);
}

// Spans of equal (device, stream, start, end) may stand in any order.
Trace canonical(Trace trace) {
  std::sort(trace.spans.begin(), trace.spans.end(), [](const Span& a, const Span& b) {
    const auto key = [](const Span& s) {
      return std::tie(s.device, s.stream, s.start, s.end, s.kind, s.action, s.message, s.peer);
    };
    return key(a) < key(b);
  });
  return trace;
}

void reference() {
  const StagedModel model = chain(32);
  const Cluster cluster = one_switch(8);
  const Schedule schedule = make_schedule(model, 8);
  const std::size_t tasks = compile(model, cluster, schedule).tasks.size();
  Trace ours, theirs;
  double best = 1e30, slow = 1e30;
  std::vector<double> ratios;
  for (int round = 0; round < 7; ++round) {
    const double a = best_of(5, [&] { ours = simulate(model, cluster, schedule); });
    const double b = best_of(1, [&] { theirs = testing::reference_simulate(model, cluster, schedule); });
    ESP_CHECK(canonical(ours) == canonical(theirs), round);
    best = std::min(best, a);
    slow = std::min(slow, b);
    ratios.push_back(b / a);
  }
  std::sort(ratios.begin(), ratios.end());
  char note[100];
  std::snprintf(note, sizeof note, "ratios of 7 turns: median %.1f; %.1f to %.1f", ratios[3], ratios.front(),
                ratios.back());
  print("simulate; with its trace", "32 micro-batches", tasks, "tasks", best, "");
  print("reference simulator", "32 micro-batches", tasks, "tasks", slow, note);
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "";
  const std::size_t size = argc > 2 ? std::stoul(argv[2]) : 0;
  if (part == "engine") {
    espalier::engine(size);
  } else if (part == "evaluator") {
    espalier::evaluator(size, argc > 3 ? espalier::Skips::kEverySecond : espalier::Skips::kNone);
  } else if (part == "reference") {
    espalier::reference();
  } else {
    std::fprintf(stderr, "bench_simulator engine N | evaluator N [skips] | reference\n");
    return 2;
  }
  espalier::print_peak_memory();
}
