// One model on one cluster under several planners, all judged by one simulator:
//
//   bench_graphpipe_paper MODEL[,setting=value…] CLUSTER BATCH SIZE[,SIZE…] MOST_REPLICAS CONTENDER…
//
// MODEL is one of the zoo's. MOST_REPLICAS bounds the devices of a stage; 0: no bound. Prints CSV without a
// header, a row for each contender: its name, whether it found a plan, then of the plan iteration time in ns,
// micro-batch, depth, stages, peak bytes and those of activations on the fullest device, then seconds of
// processor time, states and simulated plans of the search. Each plan, with its schedule and its trace, has
// passed the checkers.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "espalier/app/planning.h"
#include "espalier/base/check.h"
#include "espalier/cluster/cluster.h"
#include "espalier/planners/pipeline/branches.h"
#include "espalier/planners/pipeline/graphpipe.h"
#include "espalier/planners/pipeline/pipedream.h"
#include "espalier/planners/pipeline/piper.h"
#include "espalier/sim/simulate.h"
#include "espalier/zoo/zoo.h"

namespace espalier {
namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == at) {
      parts.emplace_back();
    } else {
      parts.back().push_back(c);
    }
  }
  return parts;
}

Graph build_model(const std::string& text) {
  const std::vector<std::string> parts = split(text, ',');
  ZooValues values;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::vector<std::string> setting = split(parts[i], '=');
    ESP_CHECK(setting.size() == 2, parts[i]);
    values[setting[0]] = std::stoll(setting[1]);
  }
  return build_zoo_model(parts[0], values);
}

Outcome plan(const std::string& contender, const Problem& problem, std::size_t most_replicas) {
  using Order = PipeDreamOptions::Order;
  static const std::map<std::string, Order> kChains{{"depth-first", Order::kDepthFirst},
                                                    {"breadth-first", Order::kBreadthFirst},
                                                    {"best chain", Order::kAll}};
  Context context;
  if (const auto chain = kChains.find(contender); chain != kChains.end()) {
    return pipedream(problem, {.order = chain->second, .most_replicas = most_replicas}, context);
  }
  if (contender == "piper") return piper(problem, {}, context);
  if (contender == "branches") return branches(problem, {}, context);
  if (contender == "graphpipe") return graphpipe(problem, {.most_replicas = most_replicas}, context);
  ESP_CHECK(contender == "graphpipe-literal", contender);
  return graphpipe(problem, {.choice = GraphPipeOptions::Choice::kLiteral, .most_replicas = most_replicas},
                   context);
}

void refuse(const std::vector<std::string>& violations) {
  ESP_CHECK(violations.empty(), violations.front());
}

void print_plan(const Problem& problem, const PipelinePlan& plan) {
  refuse(check_plan(problem.graph, problem.cluster, plan));
  const StagedModel model =
      stage_model(problem.graph, problem.cluster, problem.costs, problem.training, plan);
  const Schedule schedule = make_schedule(model, problem.cluster.devices().size());
  refuse(check_schedule(model, schedule));
  const Trace trace = simulate(model, problem.cluster, schedule);
  refuse(check_trace(model, problem.cluster, schedule, trace));
  Bytes peak, activations;
  for (const MemoryByCategory& each : peak_memory(trace)) peak = std::max(peak, each.total());
  for (const MemorySample& each : trace.memory) {
    activations =
        std::max(activations, each.held.bytes[static_cast<std::size_t>(MemoryCategory::kActivations)]);
  }
  std::printf(",plan,%lld,%lld,%zu,%zu,%lld,%lld", static_cast<long long>(trace.iteration.count()),
              static_cast<long long>(plan.stages.front().micro_batch.count()), pipeline_depth(model),
              plan.stages.size(), static_cast<long long>(peak.count()),
              static_cast<long long>(activations.count()));
}

int run(const std::vector<std::string>& arguments) {
  ESP_CHECK(arguments.size() >= 6, arguments.size());
  const Graph graph = build_model(arguments[0]);
  const Cluster cluster = parse_cluster(arguments[1]);
  Training training;
  training.batch = BatchSize(std::stoll(arguments[2]));
  for (const std::string& size : split(arguments[3], ',')) {
    training.micro_batches.emplace_back(std::stoll(size));
  }
  const std::size_t bound = std::stoul(arguments[4]);
  const std::size_t most_replicas = bound == 0 ? cluster.devices().size() : bound;
  const CostTable costs = complete_costs(graph, cluster, CostTable({}), training.micro_batches);
  for (std::size_t i = 5; i < arguments.size(); ++i) {
    const Problem problem{.graph = graph, .cluster = cluster, .costs = costs, .training = training};
    const double begin = thread_seconds();
    const Outcome outcome = plan(arguments[i], problem, most_replicas);
    const double seconds = thread_seconds() - begin;
    std::printf("%s", arguments[i].c_str());
    if (outcome.plan) {
      print_plan(problem, std::get<PipelinePlan>(*outcome.plan));
    } else {
      std::printf(",%s,,,,,,", std::string(to_text(outcome.status)).c_str());
    }
    std::printf(",%.4f,%llu,%llu\n", seconds, static_cast<unsigned long long>(outcome.stats.states),
                static_cast<unsigned long long>(outcome.stats.evaluations));
  }
  return 0;
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  return espalier::run({argv + 1, argv + argc});
}
