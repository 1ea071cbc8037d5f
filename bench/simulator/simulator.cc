// How many plans and tasks does the simulator do in a second? Parts, by name on the command line:
//
//   engine N              run_tasks on a compiled pipeline schedule (8 stages, one switch whose links carry
//   one
//                         transfer at a time) of about N tasks
//   evaluator N S [case]  fresh PipelinePlans, S stages × 32 micro-batches, the same switch, random cuts of N
//   layers,
//                         with what the case says (cases.h; without one: all of them in turn); and in full:
//                         stage_model + make_schedule + compile + run_tasks + memory
//   threads               the same plans on one thread and on two
//   reference             simulate and the slow second simulator of the tests, in turn, on such schedules
//
// Contenders' answers are compared before anything is timed. Times are of one thread's processor time, the
// best of several rounds, since other work may share the machine. Prints CSV without a header: what, size,
// count, unit, seconds, note; the last row is the largest memory that the process held.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "bench/simulator/cases.h"
#include "bench/timing.h"
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
  const CompiledSchedule compiled = compile(model, bench::one_switch(8), make_schedule(model, 8));
  const std::size_t tasks = compiled.tasks.size();
  Duration makespan = run_tasks(compiled.tasks).makespan;
  // The second simulator is slow: the shortest chain only.
  const StagedModel small = chain(34);
  const Schedule schedule = make_schedule(small, 8);
  ESP_CHECK(run_tasks(compile(small, bench::one_switch(8), schedule).tasks).makespan ==
            testing::reference_simulate(small, bench::one_switch(8), schedule).iteration);
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

std::size_t tasks_of(const bench::Problem& problem, const PipelinePlan& plan) {
  const StagedModel model =
      stage_model(problem.layers.graph, problem.cluster, problem.layers.costs, problem.training, plan);
  const std::size_t devices = problem.cluster.devices().size();
  return compile(model, problem.cluster, make_schedule(model, devices)).tasks.size();
}

// Fresh plans of one case, checked against the full way, then timed: all of them with a scratch that has seen
// one plan, in full some of them.
void evaluator(bench::Case which, std::size_t operators, std::size_t stages) {
  Rng rng(operators);
  const bench::Problem problem = bench::make_problem(which, operators, stages, rng);
  const Evaluator evaluator(problem.layers.graph, problem.cluster, problem.layers.costs, problem.training);
  const bool large = operators > 10'000;
  std::vector<PipelinePlan> plans;
  for (int i = 0; i < (large ? 60 : 500); ++i)
    plans.push_back(bench::random_cuts(problem, which, stages, rng));

  auto scratch = Evaluator::make_scratch();
  const std::size_t compared = large ? 5 : plans.size();
  for (std::size_t i = 0; i < compared; ++i) {
    if (i < 20) {
      const auto broken = check_plan(problem.layers.graph, problem.cluster, plans[i]);
      ESP_CHECK(broken.empty(), broken[0]);
    }
    ESP_CHECK(evaluator.evaluate(plans[i], *scratch) == evaluator.simulate_in_full(plans[i]), i);
  }
  const std::string size = std::to_string(operators) + " layers; " + bench::name_of(which);
  const std::string about = "about " + std::to_string(tasks_of(problem, plans[0])) + " tasks a plan";

  std::int64_t sum = 0;
  const auto evaluate_all = [&] {
    for (const PipelinePlan& plan : plans) sum += evaluator.evaluate(plan, *scratch).iteration.count();
  };
  double fresh = 1e30;
  std::uint64_t made = 0;
  for (int round = 0; round < (large ? 20 : 100); ++round) {
    scratch = Evaluator::make_scratch();
    evaluator.evaluate(plans[0], *scratch);
    fresh = std::min(fresh, best_of(1, evaluate_all));
    made = Evaluator::counts(*scratch).structures - 1;
  }
  const std::size_t few = large ? 2 : 20;
  const double full = best_of(large ? 2 : 5, [&] {
    for (std::size_t i = 0; i < few; ++i) sum += evaluator.simulate_in_full(plans[i]).iteration.count();
  });
  const double ratio = full / static_cast<double>(few) / (fresh / static_cast<double>(plans.size()));
  char note[120];
  std::snprintf(note, sizeof note, "%s; %llu structures made; %.1f times the full way", about.c_str(),
                static_cast<unsigned long long>(made), ratio);
  print("evaluator", size, plans.size(), "plans", fresh, note);
  print("in full", size, few, "plans", full, about);
  ESP_CHECK(sum > 0);
}

double wall_seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Plans that one thread does in a second, and two threads together: by the clock, the median of several
// turns.
void threads() {
  Rng rng(7);
  const bench::Problem problem = bench::make_problem(bench::Case::kChain, 256, 8, rng);
  const Evaluator evaluator(problem.layers.graph, problem.cluster, problem.layers.costs, problem.training);
  std::vector<PipelinePlan> plans;
  for (int i = 0; i < 500; ++i) plans.push_back(bench::random_cuts(problem, bench::Case::kChain, 8, rng));
  constexpr int kTurns = 10;
  const auto work = [&] {
    const auto scratch = Evaluator::make_scratch();
    std::int64_t sum = 0;
    for (int turn = 0; turn < kTurns; ++turn) {
      for (const PipelinePlan& plan : plans) sum += evaluator.evaluate(plan, *scratch).iteration.count();
    }
    ESP_CHECK(sum > 0);
  };
  const auto timed = [&](int count) {
    const double begin = wall_seconds();
    std::vector<std::thread> workers;
    for (int i = 0; i < count; ++i) workers.emplace_back(work);
    for (std::thread& worker : workers) worker.join();
    return wall_seconds() - begin;
  };
  std::vector<double> gains;
  double one = 1e30, two = 1e30;
  for (int turn = 0; turn < 15; ++turn) {
    const double a = timed(1), b = timed(2);
    one = std::min(one, a);
    two = std::min(two, b);
    gains.push_back(2 * a / b);
  }
  std::sort(gains.begin(), gains.end());
  char note[100];
  std::snprintf(note, sizeof note, "two threads do %.2f times as much as one: median of 15; %.2f to %.2f",
                gains[7], gains.front(), gains.back());
  print("evaluator; one thread", "256 layers; chain", kTurns * plans.size(), "plans", one, "by the clock");
  print("evaluator; two threads", "256 layers; chain", 2 * kTurns * plans.size(), "plans", two, note);
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
  const Cluster cluster = bench::one_switch(8);
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
    const std::size_t stages = argc > 3 ? std::stoul(argv[3]) : 8;
    for (const espalier::bench::Case which : espalier::bench::kCases) {
      if (argc < 5 || argv[4] == espalier::bench::name_of(which)) espalier::evaluator(which, size, stages);
    }
  } else if (part == "threads") {
    espalier::threads();
  } else if (part == "reference") {
    espalier::reference();
  } else {
    std::fprintf(stderr, "bench_simulator engine N | evaluator N S [case] | threads | reference\n");
    return 2;
  }
  espalier::print_peak_memory();
}
