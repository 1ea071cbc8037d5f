#include "espalier/sim/evaluator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "espalier/base/rng.h"
#include "espalier/graph/text.h"
#include "espalier/sim/simulate.h"
#include "testing/evaluations.h"
#include "testing/random_orders.h"

namespace espalier {
namespace {

// A problem and plans for it, all from one seed. Operators read earlier tensors, share storages, parameters
// (some tied, some frozen), inputs; costs keep random tensors; the cluster has hosts of two kinds.
class RandomProblem {
 public:
  explicit RandomProblem(std::uint64_t seed)
      : rng_(seed), graph_(make_graph()), cluster_(make_cluster()), costs_(make_costs()) {
    training_.batch = BatchSize(static_cast<std::int64_t>(12 * (1 + pick(2))));
    training_.micro_batches = {BatchSize(1), BatchSize(2), BatchSize(4)};
    training_.optimizer.kind = chance(2) ? OptimizerKind::kAdam : OptimizerKind::kSgd;
  }

  const Graph& graph() const { return graph_; }
  const Cluster& cluster() const { return cluster_; }
  const CostTable& costs() const { return costs_; }
  const Training& training() const { return training_; }

  struct PlanOptions {
    bool odd = false;  // shared devices, unequal sizes, groups, shares that are not j mod r
  };
  PipelinePlan plan(PlanOptions options);

 private:
  std::size_t pick(std::size_t bound) { return static_cast<std::size_t>(rng_.below(bound)); }
  bool chance(std::size_t one_in) { return pick(one_in) == 0; }

  Graph make_graph() {
    std::ostringstream text;
    text << "batch 1..64\nx = input() : f32[b," << 1 + pick(8) << "]\n";
    const std::size_t parameters = 1 + pick(4);
    for (std::size_t p = 0; p < parameters; ++p) {
      text << "w" << p << " = parameter(w" << p << (chance(5) ? ", frozen" : "") << ") : f32[" << 1 + pick(30)
           << "]\n";
    }
    text << "s = buffer(s) : f32[7]\n";
    text << "mask = op(x) : f32[b,3] @class=mask @duplicable\n";
    const std::size_t operators = 1 + pick(12);
    std::vector<std::string> tensors{"x"};
    for (std::size_t i = 0; i < operators; ++i) {
      const std::string name = "t" + std::to_string(i);
      const bool view = i > 0 && chance(6);
      const bool two = !view && chance(6);
      text << name << (two ? "," + name + "b" : "") << " = op(";
      const std::string first = chance(3) ? tensors[pick(tensors.size())] : tensors.back();
      text << first;
      if (chance(2)) text << ", " << tensors[pick(tensors.size())];
      if (chance(2)) text << ", w" << pick(parameters);
      if (chance(8)) text << ", s";
      if (chance(4)) text << ", mask";
      text << ")";
      if (!view) text << " : f32[b," << 1 + pick(9) << "]" << (two ? ", f32[b,2]" : "");
      text << " @class=c" << i << (view ? " @view" : chance(9) ? " @nograd" : "") << "\n";
      tensors.push_back(name);
      if (two) tensors.push_back(name + "b");
    }
    text << "loss = mean(" << tensors.back() << ", x) : f32[] @class=loss\n";
    return parse_graph(text.str());
  }

  Cluster make_cluster() {
    ClusterParts parts;
    for (const char* name : {"quick", "slow"}) {
      DeviceKind kind;
      kind.name = name;
      kind.memory = Bytes(static_cast<std::int64_t>(2000 + pick(20000)));
      kind.flops_f32 = kind.flops_f16 = 1e12;
      kind.memory_bandwidth = 1'000'000'000;
      kind.speed = parts.kinds.empty() ? 1 : 0.75;
      parts.kinds.push_back(kind);
    }
    const std::size_t hosts = 1 + pick(3);
    for (std::size_t g = 0; g <= hosts; ++g) {
      Group group;
      group.name = "group" + std::to_string(g);
      if (g > 0) group.parent = GroupId(0);
      if (!chance(4)) group.bandwidth = static_cast<std::int64_t>(1'000'000 * (1 + pick(100)));
      group.latency = microseconds(static_cast<std::int64_t>(pick(6)));
      group.contention = !chance(4);
      parts.groups.push_back(group);
    }
    if (chance(2)) {
      Group& group = parts.groups[pick(parts.groups.size())];
      group.send = {microseconds(static_cast<std::int64_t>(pick(3))), static_cast<std::int64_t>(pick(9000))};
      group.receive = {microseconds(static_cast<std::int64_t>(pick(3))),
                       static_cast<std::int64_t>(pick(9000))};
    }
    const std::size_t devices = 3 + pick(6);
    for (std::size_t d = 0; d < devices; ++d) {
      const KindId kind(pick(2));
      parts.devices.push_back(
          {"d" + std::to_string(d), kind, GroupId(1 + pick(hosts)), parts.kinds[kind.index()].memory});
    }
    return Cluster(std::move(parts));
  }

  CostTable make_costs() {
    CostTableParts parts;
    const auto time = [&] { return microseconds(static_cast<std::int64_t>(pick(6))); };
    const auto size = [&] { return Bytes(static_cast<std::int64_t>(pick(3) * pick(40))); };
    for (const Operator& op : graph_.operators()) {
      for (const char* kind : {"quick", "slow"}) {
        for (const std::uint32_t group : {1u, 2u}) {
          CostRow row{op.op_class, kind, {group, false}, {}};
          for (const std::int64_t batch : {1, 4}) {
            OperatorCost cost;
            cost.forward = time();
            cost.input_gradient = time();
            cost.weight_gradient = time();
            cost.private_bytes = size();
            cost.private_for_input =
                Bytes(cost.private_bytes.count() / static_cast<std::int64_t>(1 + pick(3)));
            cost.between_halves = size();
            cost.workspace = size();
            if (group > 1 && chance(2)) {
              cost.reduced_forward = size();
              cost.reduced_backward = size();
            }
            for (std::uint32_t i = 0; i < op.inputs.size(); ++i) {
              if (chance(2)) cost.saved.push_back({SavedTensor::Side::kInput, i, chance(2)});
            }
            if (chance(2)) cost.saved.push_back({SavedTensor::Side::kOutput, 0, chance(2)});
            row.points.push_back({BatchSize(batch), cost});
          }
          parts.rows.push_back(row);
        }
      }
    }
    for (const char* kind : {"quick", "slow"}) {
      KindOverhead overhead;
      overhead.kind = kind;
      overhead.per_action = microseconds(static_cast<std::int64_t>(pick(2)));
      overhead.neighbour_per_mille = static_cast<std::int32_t>(pick(60));
      for (const OptimizerKind optimizer : {OptimizerKind::kSgd, OptimizerKind::kAdam}) {
        overhead.updates.push_back({optimizer, time(), static_cast<std::int64_t>(pick(9000))});
      }
      parts.overheads.push_back(overhead);
    }
    return CostTable(std::move(parts));
  }

  void add_operators(PipelinePlan& plan, std::size_t most);
  void add_after(PipelinePlan& plan);
  void add_devices(PipelinePlan& plan, PlanOptions options);
  void set_rule(PipelinePlan& plan);

  Rng rng_;
  Graph graph_;
  Cluster cluster_;
  CostTable costs_;
  Training training_;
};

// Half of the time runs of operators, else any parts that keep edges going forward: then convex as well.
void RandomProblem::add_operators(PipelinePlan& plan, std::size_t most) {
  const std::size_t operators = graph_.operators().size();
  const bool runs = chance(2);
  std::vector<std::size_t> stage(operators, 0);
  for (std::size_t i = 1; i < operators; ++i) {
    std::size_t least = 0;
    for (const OperatorId before : graph_.predecessors(OperatorId(i))) {
      least = std::max(least, stage[before.index()]);
    }
    if (runs) least = stage[i - 1];
    stage[i] = std::min(least + (chance(3) ? 1 : 0), most - 1);
    if (!runs && chance(3)) stage[i] = std::max(least, pick(most));
  }
  std::vector<std::size_t> used = stage;
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  plan.stages.resize(used.size());
  for (std::size_t i = 0; i < operators; ++i) {
    const auto at = std::lower_bound(used.begin(), used.end(), stage[i]) - used.begin();
    plan.stages[static_cast<std::size_t>(at)].operators.push_back(OperatorId(i));
  }
  // The mask, operator 0, stands beside each of its readers too.
  for (Stage& each : plan.stages) {
    const bool reads = std::any_of(each.operators.begin(), each.operators.end(), [&](OperatorId op) {
      const auto before = graph_.predecessors(op);
      return std::find(before.begin(), before.end(), OperatorId(0)) != before.end();
    });
    if (reads && each.operators[0] != OperatorId(0))
      each.operators.insert(each.operators.begin(), OperatorId(0));
  }
}

void RandomProblem::add_after(PipelinePlan& plan) {
  std::vector<std::size_t> owner(graph_.operators().size());
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const OperatorId op : plan.stages[s].operators) owner[op.index()] = s;
  }
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    std::vector<StageId>& after = plan.stages[s].after;
    for (const OperatorId op : plan.stages[s].operators) {
      for (const OperatorId before : graph_.predecessors(op)) {
        if (before.index() > 0 && owner[before.index()] != s) after.push_back(StageId(owner[before.index()]));
      }
    }
    if (s > 0 && chance(3)) after.push_back(StageId(pick(s)));
    std::sort(after.begin(), after.end());
    after.erase(std::unique(after.begin(), after.end()), after.end());
  }
}

void RandomProblem::add_devices(PipelinePlan& plan, PlanOptions options) {
  std::vector<DeviceId> free;
  for (std::size_t d = 0; d < cluster_.devices().size(); ++d) free.push_back(DeviceId(d));
  const auto shuffle = [&] {
    for (std::size_t d = free.size(); d > 1; --d) std::swap(free[d - 1], free[pick(d)]);
  };
  shuffle();
  std::size_t taken = 0;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    Stage& stage = plan.stages[s];
    const std::uint32_t micro_batches = plan.micro_batches(StageId(s));
    const std::size_t spare = free.size() - taken - (plan.stages.size() - s - 1);
    std::size_t replicas = std::min<std::size_t>({spare, micro_batches, chance(3) ? 1 + pick(3) : 1});
    std::size_t group = 1;
    if (options.odd) {  // devices of other stages as well
      shuffle();
      taken = 0;
      group = chance(4) ? 2 : 1;
      replicas = std::min<std::size_t>({free.size() / group, micro_batches, 1 + pick(3)});
    }
    for (std::size_t r = 0; r < replicas; ++r) {
      Replica replica;
      for (std::size_t i = 0; i < group; ++i) replica.devices.push_back(free[taken++]);
      replica.micro_batches = round_robin(micro_batches, r, replicas);
      stage.replicas.push_back(replica);
    }
    if (options.odd && replicas == 2 && chance(2)) {  // an odd share: the first takes one more
      std::vector<std::uint32_t>&first = stage.replicas[0].micro_batches,
      &second = stage.replicas[1].micro_batches;
      if (second.size() > 1) {
        first.push_back(second.back());
        second.pop_back();
        std::sort(first.begin(), first.end());
      }
    }
  }
}

void RandomProblem::set_rule(PipelinePlan& plan) {
  OrderRule rule = chance(4) ? ScheduleKind::kGPipe : ScheduleKind::kOneFOneB;
  if (chance(3)) rule.backward = OrderRule::Backward::kSplit;
  if (rule.kind == ScheduleKind::kOneFOneB && chance(3)) {
    const std::size_t groups = chance(2) ? 1 : plan.stages.size();
    for (std::size_t i = 0; i < groups; ++i) rule.group.push_back(static_cast<std::uint32_t>(1 + pick(4)));
  }
  if (chance(6)) rule.edition = OrderRule::Edition::kFirst;
  plan.orders = rule;
}

PipelinePlan RandomProblem::plan(PlanOptions options) {
  PipelinePlan plan;
  plan.batch = training_.batch;
  plan.tokens = static_cast<TokenRule>(pick(4));
  add_operators(plan, 1 + pick(cluster_.devices().size()));
  add_after(plan);
  set_rule(plan);
  const BatchSize micro_batch = training_.micro_batches[pick(3)];
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    Stage& stage = plan.stages[s];
    stage.name = "s" + std::to_string(s);
    stage.micro_batch = options.odd && chance(2) ? training_.micro_batches[pick(3)] : micro_batch;
    if (chance(5)) stage.slots = static_cast<std::uint32_t>(1 + pick(4));
    if (chance(4)) stage.recompute = stage.operators;
    if (chance(6)) stage.recompute = {stage.operators[pick(stage.operators.size())]};
    if (chance(6)) {
      stage.recompute.clear();
      for (const OperatorId op : stage.operators) {
        if (chance(2)) stage.recompute.push_back(op);
      }
    }
  }
  add_devices(plan, options);
  const std::vector<std::uint32_t> limits = in_flight_limits(plan);
  const bool any =
      plan.orders.has_kind(ScheduleKind::kOneFOneB) && chance(5);  // perhaps growing along an edge
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    Stage& stage = plan.stages[s];
    std::size_t share = 0;
    for (const Replica& replica : stage.replicas) share = std::max(share, replica.micro_batches.size());
    stage.in_flight = any ? static_cast<std::uint32_t>(1 + pick(share)) : limits[s];
  }
  return plan;
}

struct Tally {
  Evaluator::Counts counts;
  std::size_t plans = 0, refused = 0;
};

// Plans whose schedule check_schedule refuses deadlock here; they are counted.
Tally compare(std::uint64_t problems, int plans_each, RandomProblem::PlanOptions options) {
  Tally tally;
  const auto scratch = Evaluator::make_scratch();
  for (std::uint64_t seed = 0; seed < problems; ++seed) {
    RandomProblem problem(seed);
    const Evaluator evaluator(problem.graph(), problem.cluster(), problem.costs(), problem.training());
    for (int i = 0; i < plans_each; ++i) {
      const PipelinePlan plan = problem.plan(options);
      const std::vector<std::string> broken = check_plan(problem.graph(), problem.cluster(), plan);
      EXPECT_EQ(broken, std::vector<std::string>()) << "seed " << seed << " plan " << i;
      const StagedModel model =
          stage_model(problem.graph(), problem.cluster(), problem.costs(), problem.training(), plan);
      const Schedule schedule = make_schedule(model, problem.cluster().devices().size());
      if (options.odd && !check_schedule(model, schedule).empty()) {
        ++tally.refused;
        EXPECT_TRUE(evaluator.evaluate(plan, *scratch).deadlock) << "seed " << seed << " plan " << i;
        continue;
      }
      ++tally.plans;
      const std::string full = testing::text(evaluator.simulate_in_full(plan));
      // Twice: the second time from what the scratch remembers.
      EXPECT_EQ(testing::text(evaluator.evaluate(plan, *scratch)), full) << "seed " << seed << " plan " << i;
      EXPECT_EQ(testing::text(evaluator.evaluate(plan, *scratch)), full) << "seed " << seed << " plan " << i;
      if (::testing::Test::HasFailure()) return tally;
    }
  }
  tally.counts = Evaluator::counts(*scratch);
  return tally;
}

TEST(Evaluator, EqualsTheFullSimulationToTheNanosecondAndByte) {
  const Tally tally = compare(300, 5, {});
  EXPECT_EQ(tally.plans, 300u * 5);
  EXPECT_EQ(tally.counts.plans, 2 * tally.plans);
}

TEST(Evaluator, PlansOfAnyShapeEqualTheFullSimulation) {
  // Shared devices, tensor-parallel groups, unequal micro-batches, odd shares.
  const Tally tally = compare(120, 5, {.odd = true});
  EXPECT_GT(tally.plans, 100u * 5 / 2);
  EXPECT_GT(tally.refused, 0u);
}

TEST(Evaluator, RemembersStructuresButNotThoseOfAnotherProblem) {
  // The scratch serves two evaluators in turn; each change makes it begin anew.
  RandomProblem a(1), b(2);
  const Evaluator first(a.graph(), a.cluster(), a.costs(), a.training());
  const Evaluator second(b.graph(), b.cluster(), b.costs(), b.training());
  const PipelinePlan plan_a = a.plan({}), plan_b = b.plan({});
  const auto scratch = Evaluator::make_scratch();
  const Evaluation expected_a = first.simulate_in_full(plan_a), expected_b = second.simulate_in_full(plan_b);
  for (std::uint64_t round = 0; round < 2; ++round) {
    EXPECT_EQ(first.evaluate(plan_a, *scratch), expected_a);
    EXPECT_EQ(Evaluator::counts(*scratch).structures, 2 * round + 1);
    EXPECT_EQ(first.evaluate(plan_a, *scratch), expected_a);
    EXPECT_EQ(Evaluator::counts(*scratch).structures, 2 * round + 1);
    EXPECT_EQ(second.evaluate(plan_b, *scratch), expected_b);
  }
}

TEST(Evaluator, ListsEqualTheFullSimulationOrCannotRun) {
  // Orders of random runs, and mutations of them: some of those break rules.
  std::size_t run = 0, deadlocks = 0, others = 0;
  const auto scratch = Evaluator::make_scratch();
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    RandomProblem problem(seed);
    Rng rng(seed);
    const std::size_t devices = problem.cluster().devices().size();
    const Evaluator evaluator(problem.graph(), problem.cluster(), problem.costs(), problem.training());
    PipelinePlan plan = problem.plan({.odd = seed % 2 == 1});
    const auto model_of = [&] {
      return stage_model(problem.graph(), problem.cluster(), problem.costs(), problem.training(), plan);
    };
    const OrderLists lists = testing::random_orders(rng, model_of(), devices,
                                                    {.split = seed % 3 > 0, .depth_first = seed % 5 > 0});
    for (int i = 0; i < 20; ++i) {
      OrderLists changed = lists;
      for (int n = 0; n < (i + 4) / 5; ++n) testing::mutate_orders(rng, model_of(), changed);
      plan.orders = Orders(changed);
      const StagedModel model = model_of();
      const std::vector<std::string> broken = check_schedule(model, make_schedule(model, devices));
      const Evaluation evaluation = evaluator.evaluate(plan, *scratch);
      ASSERT_EQ(evaluation.deadlock, !broken.empty()) << "seed " << seed;
      ++(broken.empty() ? run : broken[0].rfind("deadlock", 0) == 0 ? deadlocks : others);
      if (!broken.empty()) continue;
      ASSERT_EQ(testing::text(evaluation), testing::text(evaluator.simulate_in_full(plan)))
          << "seed " << seed;
    }
  }
  EXPECT_GT(run, 300u);
  EXPECT_GT(deadlocks, 10u);
  EXPECT_GT(others, 300u);
}

TEST(Evaluator, AMissingCellIsAVerdict) {
  RandomProblem problem(4);
  const PipelinePlan plan = problem.plan({});
  const std::size_t kind = problem.cluster().device(plan.stages[0].replicas[0].devices[0]).kind.index();
  const OperatorId op = plan.stages[0].operators.back();
  CostTableParts parts = problem.costs().parts();
  std::erase_if(parts.rows, [&](const CostRow& row) {
    return row.op_class == problem.graph().op(op).op_class &&
           row.kind == problem.cluster().kinds()[kind].name && row.variant.tensor_parallel == 1;
  });
  const CostTable costs(std::move(parts));
  const Evaluator evaluator(problem.graph(), problem.cluster(), costs, problem.training());
  const auto scratch = Evaluator::make_scratch();
  const Evaluation evaluation = evaluator.evaluate(plan, *scratch);
  EXPECT_FALSE(evaluation.can_run());
  EXPECT_EQ(evaluation.forbidden, (ForbiddenCell{op, KindId(kind), 1}));
}

TEST(Evaluator, NamesTheFirstDeviceThatOverflows) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    RandomProblem problem(seed);
    const Evaluator evaluator(problem.graph(), problem.cluster(), problem.costs(), problem.training());
    const PipelinePlan plan = problem.plan({});
    const auto scratch = Evaluator::make_scratch();
    const Evaluation evaluation = evaluator.evaluate(plan, *scratch);
    std::optional<DeviceId> first;
    for (std::size_t d = evaluation.peak.size(); d-- > 0;) {
      Bytes total;
      for (const Bytes bytes : evaluation.peak[d].bytes) total += bytes;
      if (total > problem.cluster().devices()[d].memory) first = DeviceId(d);
    }
    EXPECT_EQ(evaluation.overflow, first);
  }
}

}  // namespace
}  // namespace espalier
