// One model on one cluster under several planners, all judged by one simulator:
//
//   bench_graphpipe_paper MODEL[,setting=value…] CLUSTER BATCH SIZE[,SIZE…] MOST_REPLICAS CONTENDER…
//
// MODEL is one of the zoo's. MOST_REPLICAS bounds the devices of a stage; 0: no bound. Prints CSV without a
// header, a row for each contender: its name, whether it found a plan, then of the plan iteration time in ns,
// micro-batch, depth, stages, peak bytes and those of activations on the fullest device, then seconds of
// processor time, states and simulated plans of the search. Each plan, with its schedule and its trace, has
// passed the checkers. "literal pipedream" and "literal piper" are the published planners with the graph
// operator by operator as their profile, at the largest SIZE, on hosts of four (planners/literal/): they make
// no plan of ours, so their status is `answer`, or `none` where they give up.

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
#include "espalier/planners/literal/pipedream_optimizer.h"
#include "espalier/planners/literal/piper.h"
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

// What an operator takes of a device, as published profiles have it.
struct Layer {
  double forward = 0, backward = 0;            // ns of a micro-batch
  double output = 0, parameters = 0, own = 0;  // bytes; own: kept, and no tensor
};

std::vector<Layer> layers_of(const Problem& problem) {
  const BatchSize size = problem.training.micro_batches.back();
  const OperatorCosts costs(problem.graph, problem.cluster, problem.costs, size);
  std::vector<Layer> layers;
  for (std::size_t op = 0; op < problem.graph.operators().size(); ++op) {
    const Operator& what = problem.graph.op(OperatorId(op));
    const OperatorCost& cost = costs.of(OperatorId(op), KindId(0));
    Layer layer;
    layer.forward = static_cast<double>(cost.forward.count());
    layer.backward = static_cast<double>((cost.input_gradient + cost.weight_gradient).count());
    layer.own = static_cast<double>(cost.private_bytes.count());
    for (const TensorId id : what.outputs) {
      layer.output += static_cast<double>(problem.graph.tensor(id).bytes(size).count());
    }
    for (const TensorId id : what.inputs) {
      const auto parameter = problem.graph.tensor(id).parameter;
      if (parameter)
        layer.parameters += static_cast<double>(problem.graph.parameter(*parameter).bytes().count());
    }
    layers.push_back(layer);
  }
  return layers;
}

constexpr std::size_t kOfAHost = 4;
constexpr double kInHost = 150e9, kBetweenHosts = 12.5e9;  // bytes/s

struct LiteralAnswer {
  std::string why;  // none: the reason
  std::uint64_t states = 0;
};

LiteralAnswer literal_pipedream(const Problem& problem, const std::vector<Layer>& layers) {
  PipedreamProfile profile;
  for (std::size_t op = 0; op < layers.size(); ++op) {
    profile.nodes.push_back({.id = "node" + std::to_string(op),
                             .description = problem.graph.op(OperatorId(op)).name,
                             .forward = layers[op].forward / 1e6,
                             .backward = layers[op].backward / 1e6,
                             .activation = layers[op].output,
                             .parameters = layers[op].parameters});
  }
  for (std::size_t from = 0; from < layers.size(); ++from) {
    for (const OperatorId to : problem.graph.successors(OperatorId(from))) {
      profile.edges.push_back({from, to.index()});
    }
  }
  const auto hosts = static_cast<std::int64_t>(problem.cluster.devices().size() / kOfAHost);
  const literal::PipedreamResult result = literal::pipedream_optimizer(
      profile, {.levels = {{static_cast<std::int64_t>(kOfAHost), kInHost}, {hosts, kBetweenHosts}}});
  return {result.why, result.splits};
}

LiteralAnswer literal_piper(const Problem& problem, const std::vector<Layer>& layers) {
  constexpr double kCopies = 4;  // of a parameter: itself, its gradient, Adam's moments
  const BatchSize size = problem.training.micro_batches.back();
  PiperProfile profile;
  profile.devices = static_cast<std::int64_t>(problem.cluster.devices().size());
  profile.memory = static_cast<double>(problem.cluster.devices()[0].memory.count());
  profile.bandwidth = kBetweenHosts;
  profile.micro_batches = problem.training.batch.count() / size.count();
  for (std::size_t op = 0; op < layers.size(); ++op) {
    const Layer& layer = layers[op];
    const double fixed = kCopies * layer.parameters;
    profile.nodes.push_back({.id = static_cast<std::int64_t>(op),
                             .name = problem.graph.op(OperatorId(op)).name,
                             .ways = {{.time = (layer.forward + layer.backward) / 1e6,
                                       .parameters = layer.parameters,
                                       .memory_per_micro_batch = layer.output + layer.own,
                                       .memory_fixed = fixed},
                                      {.recompute = true,
                                       .time = (2 * layer.forward + layer.backward) / 1e6,
                                       .parameters = layer.parameters,
                                       .memory_fixed = fixed}}});
  }
  for (std::size_t from = 0; from < layers.size(); ++from) {
    for (const OperatorId reader : problem.graph.successors(OperatorId(from))) {
      const std::size_t to = reader.index();
      profile.edges.push_back({from, to, layers[from].output});
      for (PiperProfile::Way& way : profile.nodes[to].ways) {
        way.sync_forward.push_back({std::to_string(from), 0});
      }
      for (PiperProfile::Way& way : profile.nodes[from].ways) {
        way.sync_backward.push_back({std::to_string(to), 0});
      }
    }
  }
  const literal::PiperResult result = literal::piper(profile);
  return {result.why, result.pairs};
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
  std::sort(training.micro_batches.begin(), training.micro_batches.end());
  const std::size_t bound = std::stoul(arguments[4]);
  const std::size_t most_replicas = bound == 0 ? cluster.devices().size() : bound;
  const CostTable costs = complete_costs(graph, cluster, CostTable({}), training.micro_batches);
  for (std::size_t i = 5; i < arguments.size(); ++i) {
    const Problem problem{.graph = graph, .cluster = cluster, .costs = costs, .training = training};
    const bool of_pipedream = arguments[i] == "literal pipedream";
    if (of_pipedream || arguments[i] == "literal piper") {
      const std::vector<Layer> layers = layers_of(problem);
      const double begin = thread_seconds();
      const LiteralAnswer answer =
          of_pipedream ? literal_pipedream(problem, layers) : literal_piper(problem, layers);
      std::printf("%s,%s,,,,,,,%.4f,%llu,0\n", arguments[i].c_str(), answer.why.empty() ? "answer" : "none",
                  thread_seconds() - begin, static_cast<unsigned long long>(answer.states));
      std::fprintf(stderr, "%s\n", answer.why.c_str());
      continue;
    }
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
