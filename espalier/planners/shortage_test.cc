#include "espalier/planners/shortage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/cluster/text.h"
#include "espalier/graph/text.h"
#include "espalier/plan/text.h"
#include "espalier/planners/draft.h"
#include "espalier/sim/simulate.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A chain of linear layers on a host of two or three devices of little memory, with analytic costs.
struct TightCase {
  Graph graph;
  Cluster cluster;
  CostTable costs;
  Training training;

  TightCase(std::size_t layers, std::int64_t width, Bytes memory, std::size_t devices, BatchSize micro_batch)
      : TightCase(text_of(layers, width), memory, devices, micro_batch) {}
  TightCase(const std::string& text, Bytes memory, std::size_t devices, BatchSize micro_batch)
      : graph(parse_graph(text)),
        cluster(parse_cluster_lines(cluster_text(memory, devices))),
        costs(CostTableParts{}) {
    training.batch = BatchSize(256);
    training.micro_batches = {micro_batch};
    complete();
  }

  void complete() {
    costs = complete_costs(graph, cluster, std::move(costs), training.micro_batches, training.precision);
  }
  Problem problem() const {
    return {.graph = graph,
            .cluster = cluster,
            .costs = costs,
            .training = training,
            .pins = {},
            .start = std::nullopt};
  }

  static std::string text_of(std::size_t layers, std::int64_t width) {
    const std::string d = std::to_string(width);
    std::string text = "batch 1..256\nx = input() : f32[b," + d + "]\n", last = "x";
    for (std::size_t i = 0; i < layers; ++i) {
      const std::string n = std::to_string(i);
      text += "w" + n + " = parameter(w" + n + ") : f32[" + d + "," + d + "]\n";
    }
    for (std::size_t i = 0; i < layers; ++i) {
      const std::string n = std::to_string(i);
      text += "h" + n + " = linear(" + last + ", w" + n + ") : f32[b," + d + "]\n";
      last = "h" + n;
    }
    return text + "loss = mean(" + last + ") : f32[]\n";
  }

  static std::string cluster_text(Bytes memory, std::size_t devices) {
    std::string text = "kind gpu " + to_exact_text(memory) +
                       " f32=1e12 f16=1e12 mem=100GB launch=1us sms=1\ngroup host 10GB latency=1us\n";
    for (std::size_t d = 0; d < devices; ++d) text += "device gpu:" + std::to_string(d) + " gpu in host\n";
    return text;
  }
};

// Every cut of the chain into at most two stages, on any devices in any order, and one stage in replicas on
// two.
std::vector<PipelinePlan> all_plans(const Problem& problem) {
  std::vector<PipelinePlan> plans;
  const std::size_t n = problem.graph.operators().size(), devices = problem.cluster.devices().size();
  const auto add = [&](BatchSize size, std::size_t cut, std::vector<std::vector<DeviceId>> on) {
    PipelinePlan plan;
    plan.batch = problem.training.batch;
    const auto micro_batches = static_cast<std::uint32_t>(plan.batch.count() / size.count());
    for (std::size_t s = 0; s < on.size(); ++s) {
      Stage stage;
      stage.name = "s" + std::to_string(s);
      for (std::size_t i = s == 0 ? 0 : cut; i < (s + 1 == on.size() ? n : cut); ++i) {
        stage.operators.push_back(OperatorId(i));
      }
      if (s > 0) stage.after = {StageId(0)};
      stage.micro_batch = size;
      const std::size_t replicas = std::min<std::size_t>(on[s].size(), micro_batches);
      for (std::size_t r = 0; r < replicas; ++r) {
        stage.replicas.push_back({{on[s][r]}, round_robin(micro_batches, r, replicas)});
      }
      plan.stages.push_back(std::move(stage));
    }
    const std::vector<std::uint32_t> limits = in_flight_limits(plan);
    for (std::size_t s = 0; s < limits.size(); ++s) plan.stages[s].in_flight = limits[s];
    plans.push_back(std::move(plan));
  };
  for (const BatchSize size : problem.training.micro_batches) {
    for (std::size_t a = 0; a < devices; ++a) {
      add(size, n, {{DeviceId(a)}});
      for (std::size_t b = 0; b < devices; ++b) {
        if (a == b) continue;
        if (a < b) add(size, n, {{DeviceId(a), DeviceId(b)}});
        for (std::size_t cut = 1; cut < n; ++cut) add(size, cut, {{DeviceId(a)}, {DeviceId(b)}});
      }
    }
  }
  return plans;
}

struct Measured {
  Duration iteration;
  std::vector<Bytes> peak;  // by device
  Bytes lack, held;
};
// By the full simulation.
Measured measure(const Problem& problem, const PipelinePlan& plan) {
  const StagedModel model =
      stage_model(problem.graph, problem.cluster, problem.costs, problem.training, plan);
  const Trace trace = simulate(model, problem.cluster);
  Measured result{trace.iteration, {}, {}, {}};
  for (std::size_t d = 0; d < trace.capacity.size(); ++d) {
    const Bytes peak = peak_memory(trace)[d].total();
    result.peak.push_back(peak);
    result.held += peak;
    if (peak > trace.capacity[d]) result.lack += peak - trace.capacity[d];
  }
  return result;
}

// The fastest of all plans that fits, else the one that lacks least.
struct Searched {
  std::optional<PipelinePlan> fastest;
  PipelinePlan closest;
  Bytes lack;
};
Searched search(const Problem& problem) {
  Searched result;
  Duration fastest;
  bool first = true;
  for (const PipelinePlan& plan : all_plans(problem)) {
    const Measured measured = measure(problem, plan);
    if (measured.lack == Bytes() && (!result.fastest || measured.iteration < fastest)) {
      result.fastest = plan;
      fastest = measured.iteration;
    }
    if (!std::exchange(first, false) && measured.lack >= result.lack) continue;
    result.closest = plan;
    result.lack = measured.lack;
  }
  return result;
}

Outcome plan_all(const Problem& problem) {
  const Searched searched = search(problem);
  if (!searched.fastest) return {.status = Status::kInfeasible};
  return {.status = Status::kFeasible, .plan = Plan(*searched.fastest)};
}

std::int64_t number_in(const std::string& text, const std::string& behind) {
  return std::stoll(text.substr(text.find(behind) + behind.size()));
}

// The change that a remedy's words ask for, made from the words alone.
TightCase applied(TightCase changed, const Remedy& remedy) {
  ClusterParts parts = changed.cluster.parts();
  switch (remedy.kind) {
    case Remedy::Kind::kMicroBatch:
      changed.training.micro_batches = {BatchSize(number_in(remedy.text, "--micro-batch "))};
      break;
    case Remedy::Kind::kMemory: {
      const std::string all = " on every device";
      for (Device& device : parts.devices) {
        const std::size_t at = remedy.text.find(" more on " + device.name);
        if (remedy.text.ends_with(all)) {
          const Bytes each = parse_bytes(remedy.text.substr(0, remedy.text.size() - all.size()));
          device.memory = std::max(device.memory, each);
        } else if (at != std::string::npos) {
          const std::size_t comma = remedy.text.rfind(", ", at);
          const std::size_t begin = comma == std::string::npos ? 0 : comma + 2;
          device.memory += parse_bytes(remedy.text.substr(begin, at - begin));
        }
      }
      break;
    }
    case Remedy::Kind::kPrecision:
      changed.graph = with_precision(changed.graph, Precision::kBF16);
      changed.training.precision = Precision::kBF16;
      changed.training.optimizer.master_weights = true;
      changed.costs = CostTable(CostTableParts{});
      break;
    case Remedy::Kind::kOptimizer:
      changed.training.optimizer = {.kind = OptimizerKind::kSgd};
      break;
    case Remedy::Kind::kDevices:
      while (parts.devices.size() < static_cast<std::size_t>(number_in(remedy.text, ""))) {
        parts.devices.push_back(parts.devices.back());
        parts.devices.back().name = "gpu:" + std::to_string(parts.devices.size());
      }
      break;
    case Remedy::Kind::kRecompute:
      break;
  }
  changed.cluster = Cluster(std::move(parts));
  changed.complete();
  return changed;
}

// All of the named stages recomputed.
PipelinePlan recomputed(PipelinePlan plan, const Remedy& remedy) {
  for (Stage& stage : plan.stages) {
    if (remedy.text.find(stage.name) != std::string::npos) stage.recompute = stage.operators;
  }
  return plan;
}

TEST(Shortage, WhatItSaysIsTrueOnSmallCases) {
  Rng rng(11);
  std::map<Remedy::Kind, int> kept;
  int hopeless = 0, without = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const std::int64_t width = 8 << rng.below(2);
    const std::size_t layers = 2 + rng.below(3);
    const Bytes weights(static_cast<std::int64_t>(layers) * width * width * 4);
    const Bytes memory = Bytes(weights.count() * static_cast<std::int64_t>(10 + rng.below(110)) / 10);
    const TightCase tight(layers, width, memory, 1 + rng.below(3),
                          BatchSize(std::int64_t{16} << rng.below(4)));
    const Problem problem = tight.problem();
    const Searched searched = search(problem);
    if (searched.fastest) continue;

    Shortage shortage = shortage_of(problem, searched.closest, "all");
    EXPECT_EQ(shortage.lack(), searched.lack) << "the closest lacks least";
    const Measured measured = measure(problem, searched.closest);
    for (const DeviceNeed& need : shortage.devices) {
      EXPECT_EQ(need.needs, measured.peak[need.device.index()]);
      EXPECT_EQ(need.has, memory);
    }
    for (const PipelinePlan& plan : all_plans(problem)) {
      EXPECT_GE(measure(problem, plan).held, shortage.state) << "any plan holds as much";
    }

    shortage.remedies = find_remedies(problem, searched.closest, shortage, plan_all);
    for (const Remedy& remedy : shortage.remedies) {
      ++kept[remedy.kind];
      const TightCase changed = applied(tight, remedy);
      const Measured after = remedy.kind == Remedy::Kind::kRecompute
                                 ? measure(problem, recomputed(searched.closest, remedy))
                                 : measure(changed.problem(), search(changed.problem()).fastest.value());
      EXPECT_EQ(after.lack, Bytes()) << remedy.text;
      EXPECT_EQ(after.iteration, remedy.iteration) << remedy.text;
    }
    hopeless += shortage.state > shortage.memory ? 1 : 0;
    without += shortage.remedies.empty() ? 1 : 0;
    EXPECT_THAT(shortage_lines(shortage, problem.cluster).front(), HasSubstr("closest comes all"));
  }
  EXPECT_GT(hopeless, 3);
  EXPECT_LT(without, 30);
  // Recomputation helps no chain of linears with one micro-batch in flight.
  for (const Remedy::Kind kind : {Remedy::Kind::kMicroBatch, Remedy::Kind::kMemory, Remedy::Kind::kPrecision,
                                  Remedy::Kind::kOptimizer, Remedy::Kind::kDevices}) {
    EXPECT_GE(kept[kind], 1) << to_text(kind);
  }
}

TEST(Shortage, RecomputationIsARemedyWhereSeveralInFlightKeepMuch) {
  // Two stages, so the first has two micro-batches in flight, and each keeps what five gelus read.
  std::string text = "batch 1..256\nx = input() : f32[b,64]\nw = parameter(w) : f32[64]\n";
  text += "h0 = mul(x, w) : f32[b,64]\n";
  for (int i = 1; i < 7; ++i) {
    text += "h" + std::to_string(i) + " = gelu(h" + std::to_string(i - 1) + ") : f32[b,64]\n";
  }
  text += "loss = mean(h6) : f32[]\n";
  PipelinePlan plan;
  plan.batch = BatchSize(256);
  for (std::size_t s = 0; s < 2; ++s) {
    Stage stage{.name = s == 0 ? "front" : "back",
                .operators = {},
                .replicas = {{{DeviceId(s)}, round_robin(16, 0, 1)}},
                .after = {},
                .micro_batch = BatchSize(16)};
    for (std::size_t op = s == 0 ? 0 : 6; op < (s == 0 ? 6 : 8); ++op)
      stage.operators.push_back(OperatorId(op));
    if (s == 1) stage.after = {StageId(0)};
    stage.in_flight = s == 0 ? 2 : 1;
    plan.stages.push_back(std::move(stage));
  }
  PipelinePlan with = plan;
  with.stages[0].recompute = with.stages[0].operators;

  const TightCase ample(text, gibibytes(1), 2, BatchSize(16));
  const Measured less = measure(ample.problem(), with), more = measure(ample.problem(), plan);
  ASSERT_LT(less.peak[0], more.peak[0]);
  const TightCase tight(text, std::max(less.peak[0], less.peak[1]), 2, BatchSize(16));
  ASSERT_EQ(check_plan(tight.graph, tight.cluster, plan), std::vector<std::string>());
  const Problem problem = tight.problem();
  const auto none = [](const Problem&) { return Outcome{.status = Status::kInfeasible}; };
  const std::vector<Remedy> remedies = find_remedies(problem, plan, shortage_of(problem, plan, "all"), none);
  ASSERT_EQ(remedies.size(), 1u);
  EXPECT_EQ(remedies[0].kind, Remedy::Kind::kRecompute);
  EXPECT_EQ(remedies[0].text, "the closest plan with all of stage front recomputed");
  EXPECT_EQ(remedies[0].iteration, measure(problem, with).iteration);
}

// Six stages of unequal layers, one a device, none of which fits: a line of six amounts would say less.
TEST(Shortage, ManyDevicesThatLackMemoryAreNotNamed) {
  const TightCase tight(7, 64, kibibytes(76), 6, BatchSize(64));
  const Problem problem = tight.problem();
  std::vector<StageDraft> drafts;
  for (std::size_t d = 0; d < 6; ++d) {
    std::vector<OperatorId> operators{OperatorId(d)};
    if (d == 5) operators = {OperatorId(5), OperatorId(6), OperatorId(7)};  // and the loss
    drafts.push_back({operators, {DeviceId(d)}, {}});
  }
  const auto plan =
      complete_plan(problem.graph, drafts, tight.training.batch, BatchSize(64), ScheduleKind::kOneFOneB);
  ASSERT_TRUE(plan.has_value());
  const Shortage shortage = shortage_of(problem, *plan, "all");
  Bytes most;
  for (const DeviceNeed& need : shortage.devices) {
    EXPECT_GT(need.lacks(), Bytes());
    most = std::max(most, need.lacks());
  }
  const auto the_same = [&](const Problem&) {
    return Outcome{.status = Status::kFeasible, .plan = Plan(*plan)};
  };
  for (const Remedy& remedy : find_remedies(problem, *plan, shortage, the_same)) {
    if (remedy.kind != Remedy::Kind::kMemory) continue;
    EXPECT_EQ(remedy.text, enough_text(most) + " more on each of the 6 devices that lack some");
    return;
  }
  ADD_FAILURE() << "no remedy of memory";
}

TEST(Shortage, SaysItInAFewLines) {
  const Cluster cluster = parse_cluster_lines(
      "kind gpu 16GiB f32=1e12 f16=1e12 mem=100GB launch=1us sms=1\ngroup host 10GB latency=1us\n"
      "device gpu:0 gpu in host\ndevice gpu:1 gpu in host\n");
  Shortage shortage{.planner = "branches",
                    .micro_batch = BatchSize(8),
                    .devices = {{DeviceId(0), gibibytes(16) + mebibytes(700), gibibytes(16)},
                                {DeviceId(1), gibibytes(18) + Bytes(1), gibibytes(16)}},
                    .state = gibibytes(20),
                    .memory = gibibytes(32),
                    .remedies = {{Remedy::Kind::kMicroBatch, "--micro-batch 2", milliseconds(26)}}};
  EXPECT_THAT(
      shortage_lines(shortage, cluster),
      ElementsAre(
          "nothing fits; closest comes branches, with micro-batches of 8: gpu:0 lacks 700 MiB (needs "
          "16.7 GiB, has 16.0 GiB), gpu:1 lacks 2.01 GiB (needs 18.1 GiB, has 16.0 GiB); 2.69 GiB in all",
          "parameters, gradients, optimizer state and buffers take 20.0 GiB in any plan, all devices "
          "have 32.0 GiB",
          "would do: --micro-batch 2 (26.0 ms per iteration)"));
  shortage.state = gibibytes(40);
  EXPECT_THAT(shortage_lines(shortage, cluster)[1], HasSubstr("8.00 GiB are missing, however it is split"));
}

TEST(Shortage, WhatItCallsEnoughIsEnough) {
  EXPECT_EQ(enough_text(Bytes(3)), "3 B");
  EXPECT_EQ(enough_text(kibibytes(2) + Bytes(1)), "2.01 KiB");
  EXPECT_EQ(enough_text(mebibytes(652) + Bytes(1)), "653 MiB");
  EXPECT_EQ(enough_text(gibibytes(3) + mebibytes(1)), "3.01 GiB");
  EXPECT_EQ(enough_text(gibibytes(16) + mebibytes(700)), "16.7 GiB");
  Rng rng(3);
  for (int trial = 0; trial < 2000; ++trial) {
    const Bytes bytes(static_cast<std::int64_t>(rng.below(std::uint64_t{1} << (1 + rng.below(44)))));
    EXPECT_GE(enough(bytes), bytes);
    EXPECT_LE(enough(bytes) - bytes, Bytes(1 + bytes.count() / 90)) << bytes.count();
    EXPECT_GE(parse_bytes(enough_text(bytes)), bytes) << bytes.count();
  }
}

TEST(Shortage, WhatAnyPlanHoldsCountsEachStorageOnce) {
  // Two linears share w (16 bytes): 16 + 16 + 2 · 16 with Adam; the buffer 8.
  const Graph graph = parse_graph(
      "batch 1..4\nx = input() : f32[b,2]\nw = parameter(w) : f32[2,2]\nc = buffer(c) : f32[2]\n"
      "h = linear(x, w) : f32[b,2]\ny = linear(h, w) : f32[b,2]\nz = add(y, c) : f32[b,2]\n"
      "loss = mean(z) : f32[]\n");
  EXPECT_EQ(least_state(graph, Optimizer()), Bytes(4 * 16 + 8));
  EXPECT_EQ(least_state(graph, {.kind = OptimizerKind::kSgd}), Bytes(2 * 16 + 8));
}

}  // namespace
}  // namespace espalier
