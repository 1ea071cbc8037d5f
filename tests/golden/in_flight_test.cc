// How many micro-batches a stage must hold (docs/semantics.md §2.3, notes on GraphPipe's in-flight rule), by
// simulation: backward = 2 × forward, messages free, stages balanced so that each could work all the time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "espalier/plan/plan.h"
#include "espalier/sim/simulate.h"

namespace espalier {
namespace {

// A DAG of stages, each by the number of its replicas and the stages after it.
struct Shape {
  std::vector<std::uint32_t> replicas;
  std::vector<std::pair<std::size_t, std::size_t>> edges;
};

Shape chain(std::vector<std::uint32_t> replicas) {
  Shape shape{std::move(replicas), {}};
  for (std::size_t s = 1; s < shape.replicas.size(); ++s) shape.edges.push_back({s - 1, s});
  return shape;
}

// A balanced plan: a stage with r replicas takes r times as long for a micro-batch. `unit`: forward of one
// micro-batch on one replica.
StagedModel balanced(const Shape& shape, std::uint32_t micro_batches, std::int64_t unit) {
  StagedModel model;
  std::size_t devices = 0;
  for (std::size_t s = 0; s < shape.replicas.size(); ++s) {
    StagedStage stage;
    stage.name = "s" + std::to_string(s);
    stage.micro_batches = micro_batches;
    for (std::uint32_t r = 0; r < shape.replicas[s]; ++r) {
      const Duration time(unit * shape.replicas[s]);
      stage.replicas.push_back({{DeviceId(devices++)},
                                round_robin(micro_batches, r, shape.replicas[s]),
                                {time, time, time, Duration(), Duration()}});
    }
    model.stages.push_back(stage);
  }
  for (const auto& [x, y] : shape.edges) {
    Crossing crossing;
    crossing.tensor = std::to_string(x) + "-" + std::to_string(y);
    crossing.from = StageId(x);
    crossing.readers = {{StageId(y), true, Bytes(1), Bytes(1)}};
    model.crossings.push_back(crossing);
    model.stages[y].after.push_back(StageId(x));
  }
  std::stable_sort(model.crossings.begin(), model.crossings.end(),
                   [](const Crossing& a, const Crossing& b) { return a.from < b.from; });
  return model;
}

// The rule of in_flight_limits, which plans use.
std::vector<std::uint32_t> rule(const StagedModel& model) {
  PipelinePlan plan;
  plan.batch = BatchSize(model.stages[0].micro_batches);
  for (const StagedStage& staged : model.stages) {
    Stage stage;
    stage.micro_batch = BatchSize(1);
    stage.after = staged.after;
    for (const StagedReplica& replica : staged.replicas) {
      stage.replicas.push_back({replica.devices, replica.micro_batches});
    }
    plan.stages.push_back(stage);
  }
  return in_flight_limits(plan);
}

Cluster free_links(std::size_t devices) {
  ClusterParts parts;
  DeviceKind kind;
  kind.name = "worker";
  kind.memory = gibibytes(1);
  kind.flops_f32 = kind.flops_f16 = 1e12;
  kind.memory_bandwidth = 1'000'000'000;
  parts.kinds = {kind};
  Group network;
  network.name = "network";
  network.contention = false;
  parts.groups = {network};
  for (std::size_t d = 0; d < devices; ++d) {
    parts.devices.push_back({"dev" + std::to_string(d), KindId(0), GroupId(0), gibibytes(1)});
  }
  return Cluster(std::move(parts));
}

// Nothing if the orders wait in a circle.
std::optional<Duration> iteration(StagedModel model, const std::vector<std::uint32_t>& limits) {
  std::size_t devices = 0;
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    model.stages[s].in_flight = limits[s];
    devices += model.stages[s].replicas.size();
  }
  const Cluster cluster = free_links(devices);
  const Schedule schedule = make_schedule(model, devices);
  if (!check_schedule(model, schedule).empty()) return std::nullopt;
  return simulate(model, cluster, schedule).iteration;
}

// The time a further round of micro-batches takes once the pipeline is full, with these limits.
std::optional<Duration> steady_round(const Shape& shape, const std::vector<std::uint32_t>& limits,
                                     std::uint32_t round, std::int64_t unit) {
  const auto shorter = iteration(balanced(shape, 6 * round, unit), limits);
  const auto longer = iteration(balanced(shape, 8 * round, unit), limits);
  if (!shorter || !longer) return std::nullopt;
  return (*longer - *shorter) / 2;
}

TEST(InFlightRule, IsSufficientAndTightOnAllBalancedThreeStageChainsOfUpToFourReplicas) {
  // 12 micro-batches, divisible by 1, 2, 3 and 4, are a round. A stage of r replicas that each take r × 3
  // units for a micro-batch does 12 of them in 12 × 3 units: full throughput. With one micro-batch fewer in
  // flight anywhere, a round takes longer.
  constexpr std::uint32_t kRound = 12;
  constexpr std::int64_t kUnit = 1;
  std::size_t chains = 0, usual_is_too_small = 0;
  for (std::uint32_t a = 1; a <= 4; ++a) {
    for (std::uint32_t b = 1; b <= 4; ++b) {
      for (std::uint32_t c = 1; c <= 4; ++c, ++chains) {
        const Shape shape = chain({a, b, c});
        SCOPED_TRACE(std::to_string(a) + "-" + std::to_string(b) + "-" + std::to_string(c));
        const std::vector<std::uint32_t> limits = rule(balanced(shape, 8 * kRound, kUnit));
        EXPECT_EQ(steady_round(shape, limits, kRound, kUnit), Duration(kRound * 3 * kUnit));
        for (std::size_t s = 0; s < 3; ++s) {
          if (limits[s] == 1) continue;
          std::vector<std::uint32_t> fewer = limits;
          --fewer[s];
          const auto round = steady_round(shape, fewer, kRound, kUnit);
          EXPECT_TRUE(!round || *round > Duration(kRound * 3 * kUnit)) << "stage " << s << " can spare one";
        }
        // The usual count: devices from here to the end over those of the stage, rounded up.
        const std::vector<std::uint32_t> usual{(a + b + c + a - 1) / a, (b + c + b - 1) / b, 1};
        const auto round = steady_round(shape, usual, kRound, kUnit);
        if (!round || *round > Duration(kRound * 3 * kUnit)) ++usual_is_too_small;
      }
    }
  }
  EXPECT_EQ(chains, 64u);
  EXPECT_EQ(usual_is_too_small, 17u);
}

// Stages on the longest path.
std::size_t depth(const Shape& shape) {
  std::vector<std::size_t> length(shape.replicas.size(), 1);
  for (std::size_t y = 0; y < length.size(); ++y) {
    for (const auto& [x, to] : shape.edges) {
      if (to == y) length[y] = std::max(length[y], length[x] + 1);
    }
  }
  return *std::max_element(length.begin(), length.end());
}

TEST(InFlightRule, ABalancedPlanTakesMicroBatchesPlusDepthLessOneTimesTheTimeOfOne) {
  // m micro-batches behind a pipeline of depth D: (m + D - 1) × 3 units. All DAGs of up to five stages.
  for (std::size_t stages = 1; stages <= 5; ++stages) {
    const std::size_t pairs = stages * (stages - 1) / 2;
    for (std::uint32_t bits = 0; bits < 1u << pairs; ++bits) {
      Shape shape;
      shape.replicas.assign(stages, 1);
      for (std::size_t y = 1; y < stages; ++y) {
        for (std::size_t x = 0; x < y; ++x) {
          if (bits >> (x + y * (y - 1) / 2) & 1) shape.edges.push_back({x, y});
        }
      }
      const StagedModel model = balanced(shape, 8, 2);
      const auto expected = static_cast<std::int64_t>((8 + depth(shape) - 1) * 3 * 2);
      ASSERT_EQ(iteration(model, rule(model)), Duration(expected)) << stages << " stages, edges " << bits;
    }
  }
}

TEST(InFlightRule, OneMicroBatchTooFewIsACliff) {
  // Chains of S = 4 and 8 stages, m = 64 micro-batches, 3 units each. With one micro-batch too few at stage
  // s, its device is idle every other time: (2 m + s) × 3 instead of (m + S - 1) × 3, which is 1.80 to 1.94
  // times as long.
  const std::int64_t m = 64;
  for (const std::int64_t stages : {4, 8}) {
    const StagedModel model = balanced(chain(std::vector<std::uint32_t>(stages, 1)), m, 1);
    const std::vector<std::uint32_t> limits = rule(model);
    EXPECT_EQ(iteration(model, limits), Duration((m + stages - 1) * 3));
    for (std::int64_t s = 0; s + 1 < stages; ++s) {
      std::vector<std::uint32_t> fewer = limits;
      --fewer[s];
      EXPECT_EQ(iteration(model, fewer), Duration((2 * m + s) * 3)) << stages << " stages, stage " << s;
      EXPECT_GT((2 * m + s) * 100, (m + stages - 1) * 180);
      EXPECT_LT((2 * m + s) * 100, (m + stages - 1) * 195);
    }
  }
}

TEST(InFlightRule, EachStagesCountIsTightOnSmallDags) {
  // Fork, join, diamond, unequal branches, and the N-shape that is not series-parallel.
  const std::vector<Shape> shapes = {
      {{1, 1, 1}, {{0, 1}, {0, 2}}},
      {{1, 1, 1}, {{0, 2}, {1, 2}}},
      {{1, 1, 1, 1}, {{0, 1}, {0, 2}, {1, 3}, {2, 3}}},
      {{1, 1, 1, 1, 1}, {{0, 1}, {1, 2}, {0, 3}, {2, 4}, {3, 4}}},
      {{1, 1, 1, 1}, {{0, 2}, {1, 2}, {1, 3}}},
  };
  for (const Shape& shape : shapes) {
    const StagedModel model = balanced(shape, 24, 1);
    const std::vector<std::uint32_t> limits = rule(model);
    const Duration best = *iteration(model, limits);
    EXPECT_EQ(best, Duration(static_cast<std::int64_t>((24 + depth(shape) - 1) * 3)));
    for (std::size_t s = 0; s < limits.size(); ++s) {
      if (limits[s] == 1) continue;
      std::vector<std::uint32_t> fewer = limits;
      --fewer[s];
      const auto slower = iteration(model, fewer);
      EXPECT_TRUE(!slower || *slower > best) << "stage " << s << " of " << limits.size() << " can spare one";
    }
  }
}

}  // namespace
}  // namespace espalier
