// Verdicts on placements: on all small graphs against a step worked out here from the definition, on random
// ones against the reference simulator and the checkers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "espalier/base/rng.h"
#include "espalier/bound/bound.h"
#include "espalier/cluster/text.h"
#include "espalier/graph/expand_backward.h"
#include "espalier/graph/text.h"
#include "espalier/plan/text.h"
#include "espalier/sim/placement_judge.h"
#include "espalier/sim/simulate.h"
#include "testing/random_graphs.h"
#include "testing/random_placements.h"
#include "testing/reference_simulator.h"

namespace espalier {
namespace {

using ::testing::IsEmpty;
using testing::random_placement;

// A step of one micro-batch, from the definition in docs/semantics.md alone, for graphs without duplicables,
// ties, views and mutations, on links that nobody waits for, with one overhead of an action. Fragments are
// named by (level, device). The order of each device is given: which of its fragments runs when is a rule's
// business.
class StepByHand {
 public:
  using Key = std::pair<int, std::size_t>;  // level, device
  struct Job {
    Key key;
    bool backward = false;
  };

  StepByHand(const Graph& graph, const Cluster& cluster, const CostTable& costs, BatchSize batch,
             const Placement& placement, Duration overhead, Duration update)
      : graph_(graph), cluster_(cluster), batch_(batch), placement_(placement), update_(update) {
    const OperatorCosts cost(graph, cluster, costs, batch);
    for (std::size_t v = 0; v < graph.operators().size(); ++v) {
      const OperatorCost& own = cost.of(OperatorId(v), cluster.device(placement.device[v]).kind);
      Work& work = work_[key(v)];
      work.forward += own.forward;
      work.backward += own.backward();
      work.has_weights = work.has_weights || reads_weights(v);
    }
    for (auto& [at, work] : work_) {
      work.forward += overhead;
      work.backward += overhead;
    }
  }

  Key key(std::size_t v) const { return {level(v), placement_.device[v].index()}; }

  // Each device's jobs in order. F of a fragment waits for F of those it reads from, B for B of its readers;
  // a tensor on its way takes the route's latency and its bytes' time.
  Duration step(const std::vector<std::vector<Job>>& order) {
    std::map<std::pair<Key, bool>, Duration> end;
    std::vector<std::size_t> next(order.size());
    std::vector<Duration> free(order.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t d = 0; d < order.size(); ++d) {
        if (next[d] == order[d].size()) continue;
        const Job& job = order[d][next[d]];
        const std::optional<Duration> ready = ready_at(job, end);
        if (!ready) continue;
        const Work& work = work_.at(job.key);
        free[d] = std::max(free[d], *ready) + (job.backward ? work.backward : work.forward);
        end[{job.key, job.backward}] = free[d];
        ++next[d];
        moved = true;
      }
    }
    Duration last;
    for (std::size_t d = 0; d < order.size(); ++d) {
      EXPECT_EQ(next[d], order[d].size()) << "its order waits in a circle";
      for (const auto& [at, work] : work_) {
        if (at.second == d && work.has_weights) free[d] += update_;
      }
      last = std::max(last, free[d]);
    }
    return last;
  }

 private:
  struct Work {
    Duration forward, backward;
    bool has_weights = false;
  };

  // The most changes of device on a path to v.
  int level(std::size_t v) const {
    int most = 0;
    for (const OperatorId u : graph_.predecessors(OperatorId(v))) {
      const int change = placement_.device[u.index()] == placement_.device[v] ? 0 : 1;
      most = std::max(most, level(u.index()) + change);
    }
    return most;
  }

  bool reads_weights(std::size_t v) const {
    for (const TensorId input : graph_.operators()[v].inputs) {
      if (graph_.tensor(input).role == TensorRole::kParameter) return true;
    }
    return false;
  }

  std::optional<Duration> ready_at(const Job& job,
                                   const std::map<std::pair<Key, bool>, Duration>& end) const {
    Duration ready;
    const auto wait = [&](Key other, bool backward, Duration more) {
      const auto at = end.find({other, backward});
      if (at == end.end()) return false;
      ready = std::max(ready, at->second + more);
      return true;
    };
    if (job.backward && !wait(job.key, false, Duration())) return std::nullopt;
    for (std::size_t v = 0; v < graph_.operators().size(); ++v) {
      for (const TensorId input : graph_.operators()[v].inputs) {
        const std::optional<OperatorId> u = graph_.tensor(input).producer;
        if (!u || key(u->index()) == key(v)) continue;
        const DeviceId from = placement_.device[u->index()], to = placement_.device[v];
        Duration way;
        if (from != to) {
          const Route route = cluster_.route(from, to);
          way = route.latency + route.hold(graph_.tensor(input).bytes(batch_));
        }
        if (!job.backward && key(v) == job.key && !wait(key(u->index()), false, way)) return std::nullopt;
        if (job.backward && key(u->index()) == job.key && !wait(key(v), true, way)) return std::nullopt;
      }
    }
    return ready;
  }

  const Graph& graph_;
  const Cluster& cluster_;
  const BatchSize batch_;
  const Placement& placement_;
  const Duration update_;
  std::map<Key, Work> work_;
};

constexpr BatchSize kPlacedBatch{4};

// Links without a limit, so that only latency counts, and devices of two speeds.
Cluster three_devices() {
  return parse_cluster_lines(
      "kind quick 1GiB f32=1e12 f16=1e12 mem=100GB launch=1us sms=1\n"
      "kind slow 1GiB f32=1e12 f16=1e12 mem=100GB launch=1us sms=1\n"
      "group net latency=3ns\n"
      "device a quick in net\ndevice b slow in net\ndevice c quick in net\n");
}

// Every operator another cost, an overhead of 2 ns for an action, an update of 5 ns for a fragment.
CostTable costs_of(const Graph& graph, Rng& rng) {
  CostTableParts parts;
  for (const Operator& op : graph.operators()) {
    for (const char* kind : {"quick", "slow"}) {
      const auto time = [&] { return nanoseconds(static_cast<std::int64_t>(rng.below(9))); };
      CostRow row{op.op_class, kind, {}, {}};
      CostRow::Point point{kPlacedBatch, {}};
      point.cost.forward = time();
      point.cost.input_gradient = time();
      point.cost.weight_gradient = time();
      row.points.push_back(point);
      parts.rows.push_back(row);
    }
  }
  for (const char* kind : {"quick", "slow"}) {
    parts.overheads.push_back({kind, nanoseconds(2), 0, {}, {{OptimizerKind::kSgd, nanoseconds(5), 0}}});
  }
  return CostTable(std::move(parts));
}

Training sgd() {
  Training training;
  training.batch = kPlacedBatch;
  training.micro_batches = {kPlacedBatch};
  training.optimizer.kind = OptimizerKind::kSgd;
  return training;
}

TEST(JudgePlacement, IsTheStepByHandForEveryPlacementOfEverySmallGraph) {
  const Cluster cluster = three_devices();
  const Training training = sgd();
  Rng rng(5);
  std::size_t judged = 0, reached = 0;
  for (const Graph& graph : testing::all_small_graphs(4)) {
    const CostTable costs = costs_of(graph, rng);
    const Duration bound = any_plan_bound(graph, cluster, costs, training).time;
    const std::size_t count = graph.operators().size();
    std::size_t placements = 1;
    for (std::size_t v = 0; v < count; ++v) placements *= 3;
    Duration best = Duration::max();
    for (std::size_t code = 0; code < placements; ++code) {
      Placement placement;
      for (std::size_t v = 0, rest = code; v < count; ++v, rest /= 3) {
        placement.device.push_back(DeviceId(rest % 3));
      }
      const PipelinePlan plan = fragments_of(graph, placement, kPlacedBatch);
      const StagedModel model = stage_placement(graph, cluster, costs, training, plan);
      const Schedule schedule = make_schedule(model, 3);
      StepByHand by_hand(graph, cluster, costs, kPlacedBatch, placement, nanoseconds(2), nanoseconds(5));
      std::vector<std::vector<StepByHand::Job>> order(3);
      for (std::size_t d = 0; d < 3; ++d) {
        for (const Action& action : schedule.devices[d]) {
          if (once_per_step(action.kind)) continue;
          const OperatorId first = plan.stages[action.stage().index()].operators.front();
          order[d].push_back({by_hand.key(first.index()), action.kind == ActionKind::kBackward});
        }
      }
      const Evaluation verdict = judge_placement(graph, cluster, costs, training, placement);
      ASSERT_TRUE(verdict.can_run());
      ASSERT_EQ(verdict.iteration, by_hand.step(order))
          << print_graph(graph) << print_placement(placement, graph, cluster);
      ASSERT_LE(bound, verdict.iteration);
      best = std::min(best, verdict.iteration);
      ++judged;
    }
    reached += 4 * bound >= best ? 1 : 0;
  }
  EXPECT_EQ(judged, 3u + 2 * 9 + 8 * 27 + 64 * 81);
  EXPECT_GT(reached, 20u) << "the bound is worth something";
}

TEST(JudgePlacement, IsTheReferenceSimulatorsOnRandomCases) {
  Rng rng(6);
  std::size_t several = 0, overflows = 0;
  for (int round = 0; round < 150; ++round) {
    Graph graph = testing::random_graph(
        rng, {.operators = 1 + rng.below(18), .mutations = true, .max_batch = BatchSize(16)});
    if (rng.below(4) == 0) {
      try {
        graph = expand_backward(graph);
      } catch (const InputError&) {
      }
    }
    const Cluster cluster = testing::random_cluster(rng);
    Placement placement = random_placement(rng, graph, cluster);
    if (rng.below(2) == 0) placement = testing::with_random_levels(rng, graph, std::move(placement));
    Training training;
    training.batch = BatchSize(8);
    FragmentOptions options;
    options.devices = cluster.devices().size();
    if (rng.below(2) == 0) options.micro_batch = BatchSize(std::int64_t{1} << rng.below(4));
    if (rng.below(3) == 0) options.orders = ScheduleKind::kGPipe;
    training.micro_batches = {options.micro_batch.value_or(training.batch)};
    const CostTable costs =
        complete_costs(graph, cluster, CostTable(CostTableParts{}), training.micro_batches);
    const PipelinePlan plan = fragments_of(graph, placement, training.batch, options);
    const StagedModel model = stage_placement(graph, cluster, costs, training, plan);
    ASSERT_THAT(check_staged_model(model, cluster), IsEmpty());
    const Schedule schedule = make_schedule(model, cluster.devices().size());
    ASSERT_THAT(check_schedule(model, schedule), IsEmpty());
    const Trace trace = simulate(model, cluster, schedule);
    ASSERT_THAT(check_trace(model, cluster, schedule, trace), IsEmpty());
    ASSERT_EQ(trace, testing::reference_simulate(model, cluster, schedule));

    // Memory from little to twice the need of each device.
    ClusterParts tight = cluster.parts();
    std::optional<DeviceId> full;
    for (std::size_t d = tight.devices.size(); d-- > 0;) {
      const Bytes peak = peak_memory(trace)[d].total();
      tight.devices[d].memory =
          Bytes(1 + static_cast<std::int64_t>(rng.below(2 * static_cast<std::uint64_t>(peak.count()) + 1)));
      if (tight.devices[d].memory < peak) full = DeviceId(d);
    }
    const Evaluation verdict = judge_placement(graph, Cluster(tight), costs, training, placement, options);
    ASSERT_EQ(verdict.iteration, trace.iteration);
    ASSERT_EQ(verdict.peak, peak_memory(trace));
    ASSERT_EQ(verdict.overflow, full);
    overflows += full ? 1 : 0;
    if (!is_training_graph(graph.operators())) {
      ASSERT_LE(any_plan_bound(graph, cluster, costs, training).time, verdict.iteration);
    }
    several += plan.stages.size() > 2 && options.micro_batch ? 1 : 0;
  }
  EXPECT_GT(several, 20u);
  EXPECT_GT(overflows, 20u);
  EXPECT_LT(overflows, 150u);
}

TEST(JudgePlacement, WhatCannotRunIsAVerdict) {
  const Graph graph = parse_graph("x = input()\na = f(x) @class=one\nb = f(a) @class=two\nloss = mean(b)\n");
  const Cluster cluster = three_devices();
  Rng rng(7);
  const Training training = sgd();
  const Placement placement = parse_placement("a { a loss }\nb { b }\n", graph, cluster);
  CostTableParts parts = costs_of(graph, rng).parts();
  std::erase_if(parts.rows, [](const CostRow& row) { return row.op_class == "two" && row.kind == "slow"; });
  const Evaluation missing = judge_placement(graph, cluster, CostTable(parts), training, placement);
  ASSERT_TRUE(missing.forbidden.has_value());
  EXPECT_EQ(missing.forbidden->op, *graph.find_operator("b"));
  EXPECT_EQ(cluster.kind(missing.forbidden->kind).name, "slow");
  EXPECT_FALSE(missing.can_run());

  // a runs last on its device, though b waits for it.
  const CostTable costs = costs_of(graph, rng);
  const Step f0{ActionKind::kForward, StageId(0)}, f1{ActionKind::kForward, StageId(1)},
      f2{ActionKind::kForward, StageId(2)}, b0{ActionKind::kBackward, StageId(0)},
      b1{ActionKind::kBackward, StageId(1)}, b2{ActionKind::kBackward, StageId(2)};
  const auto with = [&](std::vector<Step> list) {
    return judge_placement(graph, cluster, costs, training, placement,
                           {.micro_batch = {}, .orders = Orders(OrderLists{std::move(list), {f1, b1}, {}})});
  };
  EXPECT_TRUE(with({f0, f2, b2, b0}).can_run());
  EXPECT_EQ(with({f0, b0, f2, b2}), judge_placement(graph, cluster, costs, training, placement));
  EXPECT_TRUE(with({f2, f0, b2, b0}).deadlock);
  EXPECT_TRUE(with({f0, f2, b2}).deadlock) << "a backward is missing";
}

}  // namespace
}  // namespace espalier
