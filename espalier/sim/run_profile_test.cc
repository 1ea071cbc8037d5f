#include "espalier/sim/run_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "espalier/base/rng.h"
#include "espalier/graph/text.h"

namespace espalier::internal {
namespace {

TEST(RangeMaximum, EqualsAScanOfEveryRange) {
  Rng rng(1);
  for (const std::size_t size : {1u, 7u, 8u, 9u, 64u, 100u}) {
    std::vector<std::int64_t> values;
    for (std::size_t i = 0; i < size; ++i) values.push_back(static_cast<std::int64_t>(rng.below(1000)) - 500);
    const RangeMaximum table(values);
    for (std::size_t first = 0; first < size; ++first) {
      std::int64_t most = values[first];
      for (std::size_t last = first; last < size; ++last) {
        most = std::max(most, values[last]);
        ASSERT_EQ(table.of(first, last), most) << size << ": " << first << " to " << last;
      }
    }
  }
}

Cluster two_kinds() {
  ClusterParts parts;
  Group host;
  host.name = "host";
  parts.groups = {host};
  for (const char* name : {"quick", "slow"}) {
    DeviceKind kind;
    kind.name = name;
    kind.memory = gibibytes(1);
    kind.flops_f32 = kind.flops_f16 = 1e12;
    kind.memory_bandwidth = 1'000'000'000;
    parts.devices.push_back({name, KindId(parts.kinds.size()), GroupId(0), kind.memory});
    parts.kinds.push_back(kind);
  }
  return Cluster(std::move(parts));
}

// A graph and costs from a seed, what its operators may do by `oddities`.
struct Problem {
  Rng rng;
  Graph graph;
  Cluster cluster = two_kinds();
  CostTable costs;
  Training training;

  enum class Oddities : std::uint8_t { kNone, kAll };
  Problem(std::uint64_t seed, std::size_t operators, Oddities oddities)
      : rng(seed), graph(make_graph(operators, oddities)), costs(make_costs()) {
    training.batch = BatchSize(16);
    training.micro_batches = {BatchSize(1), BatchSize(4)};
  }

  std::size_t pick(std::size_t bound) { return static_cast<std::size_t>(rng.below(bound)); }
  bool chance(std::size_t one_in) { return pick(one_in) == 0; }

  Graph make_graph(std::size_t operators, Oddities oddities) {
    const bool odd = oddities == Oddities::kAll;
    std::ostringstream text;
    text << "batch 1..64\nx = input() : f32[b,5]\nids = input() : f32[b,3]\ns = buffer(s) : f32[7]\n";
    const std::size_t weights = 1 + operators / 2;
    for (std::size_t w = 0; w < weights; ++w) {
      text << "w" << w << " = parameter(w" << w << (chance(5) ? ", frozen" : "") << ") : f32[" << 1 + pick(30)
           << "]\n";
    }
    if (odd) text << "mask = op(x) : f32[b,3] @class=mask @duplicable\n";
    std::vector<std::string> tensors{"x"};
    for (std::size_t i = 0; i < operators; ++i) {
      const std::string name = "t" + std::to_string(i);
      const bool view = odd && i > 0 && chance(8), two = !view && chance(8);
      // Mostly what was made lately, sometimes anything.
      const std::size_t near = std::min<std::size_t>(tensors.size(), chance(10) ? tensors.size() : 4);
      text << name << (two ? "," + name + "b" : "") << " = op(" << tensors[tensors.size() - 1 - pick(near)];
      if (chance(3)) text << ", " << tensors[tensors.size() - 1 - pick(near)];
      if (chance(2)) text << ", w" << pick(weights);
      if (chance(12)) text << ", s";
      if (chance(8)) text << ", ids";
      if (odd && chance(12)) text << ", mask";
      text << ")";
      if (!view) text << " : f32[b," << 1 + pick(9) << "]" << (two ? ", f32[b,2]" : "");
      text << " @class=c" << i << (view ? " @view" : chance(12) ? " @nograd" : "") << "\n";
      tensors.push_back(name);
      if (two) tensors.push_back(name + "b");
    }
    text << "loss = mean(" << tensors.back() << ") : f32[] @class=loss\n";
    return parse_graph(text.str());
  }

  CostTable make_costs() {
    CostTableParts parts;
    const auto size = [&] { return Bytes(static_cast<std::int64_t>(pick(3) * pick(60))); };
    for (const Operator& op : graph.operators()) {
      for (const char* kind : {"quick", "slow"}) {
        OperatorCost cost;
        cost.private_bytes = size();
        cost.between_halves = size();
        cost.workspace = size();
        for (std::uint32_t i = 0; i < op.inputs.size(); ++i) {
          if (chance(3)) cost.saved.push_back({SavedTensor::Side::kInput, i});
        }
        if (chance(3)) cost.saved.push_back({SavedTensor::Side::kOutput, 0});
        parts.rows.push_back({op.op_class, kind, {}, {{BatchSize(1), cost}}});
      }
    }
    return CostTable(std::move(parts));
  }
};

std::string text(StageProfile profile) {
  std::sort(profile.received.begin(), profile.received.end(),
            [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
  std::sort(profile.shared_parameters.begin(), profile.shared_parameters.end());
  std::ostringstream out;
  const StageMemory& memory = profile.memory;
  out << "parameters " << memory.parameters.count() << " buffers " << memory.buffers.count() << " gradients "
      << memory.gradients.count() << " optimizer " << memory.optimizer_state.count() << " saved "
      << memory.saved.count() << " recomputed " << memory.recomputed.count() << " between "
      << memory.between_halves.count() << " forward " << memory.forward_workspace.count() << " backward "
      << memory.backward_workspace.count() << "\n";
  for (const auto& each : profile.outputs) {
    out << "out " << each.tensor << " " << each.bytes.count() << (each.saved ? " saved\n" : "\n");
  }
  for (const auto& each : profile.received) {
    out << "in " << each.tensor << (each.saved ? " saved" : "") << (each.gradient ? " gradient\n" : "\n");
  }
  for (const std::uint32_t parameter : profile.shared_parameters) out << "shared " << parameter << "\n";
  return out.str();
}

struct Tally {
  std::size_t runs = 0, declined = 0;
};

// Every run of a graph, recomputed or not, at each micro-batch and kind.
void compare_all_runs(const Problem& problem, Tally& tally) {
  const ProfileTables tables(problem.graph, problem.cluster, problem.costs, problem.training);
  const RunTables runs(problem.graph, tables, 2, 2);
  RunTables::Scratch scratch;
  ProfileTables::Scratch walk;
  StageProfile quick, slow;
  const std::size_t operators = problem.graph.operators().size();
  std::vector<OperatorId> all;
  for (std::size_t i = 0; i < operators; ++i) all.emplace_back(i);
  for (std::uint32_t first = 0; first < operators; ++first) {
    for (std::uint32_t last = first; last < operators; ++last) {
      const std::span<const OperatorId> stage(all.data() + first, last + 1 - first);
      for (const auto recompute : {RunTables::Recompute::kNone, RunTables::Recompute::kAll}) {
        for (const std::size_t variant : {0u, 1u, 2u, 3u}) {
          const RunTables::Run run{first, last, recompute, variant / 2, variant % 2};
          ++tally.runs;
          if (!runs.profile(run, scratch, quick)) {
            ++tally.declined;
            continue;
          }
          const bool again = recompute == RunTables::Recompute::kAll;
          tables.profile(stage, again ? stage : std::span<const OperatorId>(), run.micro_batch,
                         std::vector<std::size_t>{run.kind}, walk, slow);
          ASSERT_EQ(text(quick), text(slow)) << first << " to " << last << (again ? " recomputed" : "");
        }
      }
    }
  }
}

TEST(RunTables, EveryRunOfAChainWithSkipsEqualsTheWalk) {
  Tally tally;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    compare_all_runs(Problem(seed, 1 + seed, Problem::Oddities::kNone), tally);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(tally.runs, 50'000u);
  EXPECT_EQ(tally.declined, 0u);  // nothing here is too odd
}

TEST(RunTables, RunsOfGraphsWithViewsAndDuplicablesEqualTheWalkOrAreDeclined) {
  Tally tally;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    compare_all_runs(Problem(seed, 1 + seed % 30, Problem::Oddities::kAll), tally);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(tally.declined, 0u);
  EXPECT_LT(tally.declined, tally.runs * 3 / 4);
}

}  // namespace
}  // namespace espalier::internal
