// The evaluator against the full simulation, and that against the second simulator, on everything
// small: all DAGs of up to four stages with all mixes of what a plan on devices of its own may have. Times
// and sizes are a few nanoseconds and bytes, so that much happens at the same time.

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "espalier/base/rng.h"
#include "espalier/graph/text.h"
#include "espalier/sim/evaluator.h"
#include "espalier/sim/simulate.h"
#include "testing/evaluations.h"
#include "testing/reference_simulator.h"
#include "testing/small_cases.h"

namespace espalier {
namespace {

struct Mix {
  bool gpipe, contention, endpoints, recompute, replicas, any_limits;
  explicit Mix(unsigned bits)
      : gpipe(bits & 1),
        contention(bits & 2),
        endpoints(bits & 4),
        recompute(bits & 8),
        replicas(bits & 16),
        any_limits(bits & 32) {}
  static constexpr unsigned kAll = 64;
};

// A problem and a plan of `stages` stages; bit x + y (y - 1) / 2 of `edges`: stage y reads from stage x < y,
// or has an `after` without a tensor. The rest follows from the seed.
class Case {
 public:
  Case(std::size_t stages, unsigned edges, Mix mix, std::uint64_t seed)
      : mix_(mix), rng_(seed), stages_(stages), graph_(make_graph(edges)) {
    training_.batch = BatchSize(6);
    training_.micro_batches = {BatchSize(1), BatchSize(2)};
    training_.optimizer.kind = pick(2) ? OptimizerKind::kAdam : OptimizerKind::kSgd;
  }

  const Graph& graph() const { return graph_; }
  const Training& training() const { return training_; }

  Cluster make_cluster() {
    ClusterParts parts;
    for (const char* name : {"quick", "slow"}) {
      DeviceKind kind;
      kind.name = name;
      kind.memory = Bytes(static_cast<std::int64_t>(100 + pick(200)));
      kind.flops_f32 = kind.flops_f16 = 1e12;
      kind.memory_bandwidth = 1'000'000'000;
      parts.kinds.push_back(kind);
    }
    Group network;
    network.name = "network";
    network.bandwidth = 1'000'000'000;  // a byte is a nanosecond
    network.latency = Duration(static_cast<std::int64_t>(4 * pick(3)));
    network.contention = mix_.contention;
    if (mix_.endpoints) {
      network.send = {Duration(static_cast<std::int64_t>(pick(2))), static_cast<std::int64_t>(500 * pick(3))};
      network.receive = {Duration(static_cast<std::int64_t>(pick(2))),
                         static_cast<std::int64_t>(500 * pick(3))};
    }
    Group host = network;
    host.name = "host";
    host.parent = GroupId(0);
    host.bandwidth = 2'000'000'000;
    parts.groups = {network, host};
    const std::size_t devices = stages_ * (mix_.replicas ? 3 : 1);
    for (std::size_t d = 0; d < devices; ++d) {
      const KindId kind(pick(2));
      parts.devices.push_back({"dev" + std::to_string(d), kind, GroupId(d < devices / 2 ? 1 : 0),
                               parts.kinds[kind.index()].memory});
    }
    return Cluster(std::move(parts));
  }

  CostTable make_costs() {
    CostTableParts parts;
    const auto time = [&] { return Duration(static_cast<std::int64_t>(4 * pick(4))); };
    const auto size = [&] { return Bytes(static_cast<std::int64_t>(4 * pick(4))); };
    for (const Operator& op : graph_.operators()) {
      for (const char* kind : {"quick", "slow"}) {
        OperatorCost cost;
        cost.forward = time();
        cost.input_gradient = time();
        cost.weight_gradient = time();
        cost.private_bytes = size();
        if (pick(2)) cost.private_for_input = cost.private_bytes;
        cost.workspace = size();
        for (std::uint32_t i = 0; i < op.inputs.size(); ++i) {
          if (pick(2)) cost.saved.push_back({SavedTensor::Side::kInput, i, pick(2) == 0});
        }
        if (pick(2)) cost.saved.push_back({SavedTensor::Side::kOutput, 0, pick(2) == 0});
        parts.rows.push_back({op.op_class, kind, {}, {{BatchSize(1), cost}, {BatchSize(2), cost}}});
      }
    }
    for (const char* kind : {"quick", "slow"}) {
      KindOverhead overhead;
      overhead.kind = kind;
      overhead.per_action = Duration(static_cast<std::int64_t>(pick(2)));
      for (const OptimizerKind optimizer : {OptimizerKind::kSgd, OptimizerKind::kAdam}) {
        overhead.updates.push_back({optimizer, time(), 0});
      }
      parts.overheads.push_back(overhead);
    }
    return CostTable(std::move(parts));
  }

  PipelinePlan make_plan() {
    PipelinePlan plan;
    plan.batch = training_.batch;
    OrderRule rule = mix_.gpipe ? ScheduleKind::kGPipe : ScheduleKind::kOneFOneB;
    if (pick(4) == 0) rule.backward = OrderRule::Backward::kSplit;
    if (!mix_.gpipe && pick(4) == 0) rule.group = {static_cast<std::uint32_t>(2 + pick(2))};
    plan.orders = rule;
    plan.tokens = static_cast<TokenRule>(pick(4));
    const BatchSize micro_batch = training_.micro_batches[pick(2)];
    std::size_t device = 0;
    for (std::size_t s = 0; s < stages_; ++s) {
      Stage stage;
      stage.name = "s" + std::to_string(s);
      for (std::size_t op = first_operator_[s]; op < first_operator_[s + 1]; ++op) {
        stage.operators.push_back(OperatorId(op));
      }
      stage.after = after_[s];
      stage.micro_batch = micro_batch;
      if (pick(5) == 0) stage.slots = static_cast<std::uint32_t>(1 + pick(3));
      if (mix_.recompute && pick(4)) stage.recompute = stage.operators;
      if (mix_.recompute && pick(4) == 0) stage.recompute = {stage.operators[0]};
      const auto micro_batches = static_cast<std::uint32_t>(training_.batch.count() / micro_batch.count());
      const std::size_t replicas = mix_.replicas ? 1 + pick(3) : 1;
      for (std::size_t r = 0; r < replicas; ++r) {
        stage.replicas.push_back({{DeviceId(device++)}, round_robin(micro_batches, r, replicas)});
      }
      plan.stages.push_back(stage);
    }
    const std::vector<std::uint32_t> limits = in_flight_limits(plan);
    for (std::size_t s = 0; s < stages_; ++s) {
      const std::size_t share = plan.stages[s].replicas[0].micro_batches.size();
      plan.stages[s].in_flight =
          mix_.any_limits && !mix_.gpipe ? static_cast<std::uint32_t>(1 + pick(share)) : limits[s];
    }
    return plan;
  }

 private:
  std::size_t pick(std::size_t bound) { return static_cast<std::size_t>(rng_.below(bound)); }

  // Each stage is two operators, of which others may read either; the last has the loss besides. Sometimes
  // the first and the last stage share a weight.
  Graph make_graph(unsigned edges) {
    std::ostringstream text;
    text << "batch 1..64\nx = input() : f32[b,1]\n";
    for (std::size_t s = 0; s < stages_; ++s) {
      text << "w" << s << " = parameter(w" << s << ") : f32[" << 1 + pick(3) << "]\n";
    }
    const bool tied = stages_ > 1 && pick(3) == 0;
    std::size_t operators = 0;
    for (std::size_t y = 0; y < stages_; ++y) {
      first_operator_.push_back(operators);
      after_.emplace_back();
      text << "a" << y << " = op(w" << (tied && y + 1 == stages_ ? 0 : y);
      bool reads = false;
      for (std::size_t x = 0; x < y; ++x) {
        if (!(edges >> (x + y * (y - 1) / 2) & 1)) continue;
        after_[y].push_back(StageId(x));
        if (pick(4) == 0) continue;  // a token
        reads = true;
        text << ", " << (pick(2) ? "a" : "b") << x;
      }
      if (!reads) text << ", x";
      text << ") : f32[b," << 1 + pick(2) << "] @class=a" << y << "\n";
      text << "b" << y << " = op(a" << y << ") : f32[b," << 1 + pick(2) << "] @class=b" << y
           << (pick(6) ? "" : " @nograd") << "\n";
      operators += 2;
    }
    text << "loss = mean(a" << stages_ - 1 << ") : f32[] @class=loss\n";
    first_operator_.push_back(operators + 1);
    return parse_graph(text.str());
  }

  Mix mix_;
  Rng rng_;
  std::size_t stages_;
  std::vector<std::size_t> first_operator_;
  std::vector<std::vector<StageId>> after_;
  Graph graph_;
  Training training_;
};

TEST(Evaluator, EqualsBothSimulatorsOnAllDagsOfUpToFourStages) {
  const auto scratch = Evaluator::make_scratch();
  std::size_t cases = 0, refused = 0, overflows = 0;
  for (std::size_t stages = 1; stages <= 4; ++stages) {
    const unsigned every = stages == 4 ? testing::kOneIn : 1;
    for (unsigned edges = 0; edges < 1u << (stages * (stages - 1) / 2); ++edges) {
      for (unsigned bits = edges % every; bits < Mix::kAll; bits += every) {
        SCOPED_TRACE(std::to_string(stages) + " stages, edges " + std::to_string(edges) + ", mix " +
                     std::to_string(bits));
        Case small(stages, edges, Mix(bits), (std::uint64_t{edges} << 8) + bits + 1'000'000 * stages);
        const Cluster cluster = small.make_cluster();
        const CostTable costs = small.make_costs();
        const PipelinePlan plan = small.make_plan();
        ASSERT_EQ(check_plan(small.graph(), cluster, plan), std::vector<std::string>());
        const StagedModel model = stage_model(small.graph(), cluster, costs, small.training(), plan);
        const Schedule schedule = make_schedule(model, cluster.devices().size());
        if (!check_schedule(model, schedule).empty()) {  // limits that nothing was promised for
          ++refused;
          const Evaluator stuck(small.graph(), cluster, costs, small.training());
          ASSERT_TRUE(stuck.evaluate(plan, *scratch).deadlock);
          continue;
        }
        const Evaluator evaluator(small.graph(), cluster, costs, small.training());
        const Evaluation full = evaluator.simulate_in_full(plan);
        ASSERT_EQ(testing::text(evaluator.evaluate(plan, *scratch)), testing::text(full));
        ASSERT_EQ(testing::text(full), testing::text(testing::summary_of(
                                           testing::reference_simulate(model, cluster, schedule), cluster)));
        ++cases;
        overflows += full.overflow ? 1 : 0;
      }
    }
  }
  EXPECT_EQ(cases + refused, (1u + 2 + 8 + 64 / testing::kOneIn) * Mix::kAll);
  EXPECT_LE(refused, cases / 10);
  EXPECT_GT(overflows, 0u);
  EXPECT_LT(overflows, cases);
}

}  // namespace
}  // namespace espalier
