#include "espalier/cost/implementations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/base/json.h"
#include "espalier/base/rng.h"
#include "espalier/cluster/text.h"
#include "espalier/cost/json.h"
#include "espalier/cost/text.h"
#include "espalier/graph/text.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::refusal;

// x -> two convolutions of one class -> loss, on two kinds.
Graph two_convolutions() {
  return parse_graph(
      "batch 1..8\n"
      "x = input() : f32[b,4]\n"
      "w = parameter(w) : f32[4,4]\n"
      "c1 = conv2d(x, w) : f32[b,4] @class=conv\n"
      "c2 = conv2d(c1, w) : f32[b,4] @class=conv\n"
      "loss = mean(c2) @class=mean\n");
}

Cluster two_kinds() {
  return parse_cluster_lines(
      "kind A 1GiB f32=1e12 f16=1e12 mem=100GB launch=1us sms=1\n"
      "kind B 1GiB f32=1e12 f16=1e12 mem=100GB launch=1us sms=1\n"
      "group host 10GB latency=1us\n"
      "device a A in host\n"
      "device b B in host\n");
}

// Small batches by direct, large ones by winograd, which keeps more; gemm is slow and keeps nothing.
constexpr const char* kThreeWays =
    "cost conv A batch=1 f=2ms i=2ms w=2ms private=10KiB by=direct\n"
    "cost conv A batch=8 f=16ms i=16ms w=16ms private=80KiB by=direct\n"
    "cost conv A batch=1 f=4ms i=4ms w=4ms private=20KiB by=winograd\n"
    "cost conv A batch=8 f=8ms i=8ms w=8ms private=160KiB by=winograd\n"
    "cost conv A batch=1 f=9ms i=9ms w=9ms by=gemm\n"
    "cost conv A batch=8 f=30ms i=30ms w=30ms by=gemm\n"
    "cost conv B batch=1 f=5ms i=5ms w=5ms\n"
    "cost mean A batch=1 f=1ms i=1ms\n"
    "cost mean B batch=1 f=1ms i=1ms\n";

std::vector<std::string> names(const CostTable& table, std::int64_t size) {
  return implementations_of(two_convolutions(), two_kinds().kind(KindId(0)), table, BatchSize(size));
}

TEST(Implementations, TheFastestCountsAtEachMicroBatch) {
  const CostTable table = parse_costs(kThreeWays);
  EXPECT_THAT(names(table, 1), ElementsAre("direct", "direct", ""));
  EXPECT_THAT(names(table, 8), ElementsAre("winograd", "winograd", ""));
  for (const std::int64_t size : {1, 8}) {
    const OperatorCosts costs(two_convolutions(), two_kinds(), table, BatchSize(size));
    const KindCosts of_a(two_convolutions(), two_kinds().kind(KindId(0)), table, BatchSize(size));
    EXPECT_EQ(costs.of(OperatorId(0), KindId(0)), *of_a.of(OperatorId(0)));
    EXPECT_EQ(costs.of(OperatorId(0), KindId(0)).forward, milliseconds(size == 1 ? 2 : 8));
    EXPECT_EQ(costs.of(OperatorId(0), KindId(1)).forward, milliseconds(5 * size)) << "no choice on B";
  }
}

TEST(Implementations, OfEquallyFastOnesTheOneWithFewerBytesCounts) {
  const CostTable table = parse_costs(
      "cost conv A batch=1 f=2ms private=9B by=a\ncost conv A batch=1 f=2ms private=8B by=b\n"
      "cost conv A batch=1 f=2ms private=8B by=c\ncost mean A batch=1 f=1ms\n");
  EXPECT_THAT(names(table, 1), ElementsAre("b", "b", ""));
}

// What nobody runs does not decide: without gradients the forward pass alone.
TEST(Implementations, WhatAnOperatorDoesNotDoDoesNotDecide) {
  const Graph forward_only = parse_graph(
      "x = input() : f32[b,4]\n"
      "c1 = conv2d(x) : f32[b,4] @class=conv\n");
  const CostTable table = parse_costs(
      "cost conv A batch=1 f=1ms i=9ms w=9ms by=quick-forward\ncost conv A batch=1 f=2ms i=1ms w=1ms "
      "by=quick-backward\n");
  EXPECT_THAT(implementations_of(forward_only, two_kinds().kind(KindId(0)), table, BatchSize(1)),
              ElementsAre("quick-forward"));
  EXPECT_THAT(implementations_of(two_convolutions(), two_kinds().kind(KindId(0)), table, BatchSize(1)),
              ElementsAre("quick-backward", "quick-backward", ""));
}

TEST(Implementations, LighterOnesAreOfferedByTimeForEachByte) {
  const CostTable table = parse_costs(kThreeWays);
  const std::vector<LighterChoice> choices =
      lighter_choices(two_convolutions(), two_kinds(), table, BatchSize(8));
  ASSERT_EQ(choices.size(), 1U);
  EXPECT_EQ(choices[0].from, "winograd");
  EXPECT_EQ(choices[0].to, "gemm");
  EXPECT_EQ(choices[0].operators, 2U);
  EXPECT_EQ(choices[0].longer, milliseconds(2 * (90 - 24)));
  EXPECT_EQ(choices[0].less, Bytes(2 * 160 * 1024));
  const CostTable lighter = with_lighter(table, choices);
  EXPECT_THAT(names(lighter, 8), ElementsAre("gemm", "gemm", ""));
  EXPECT_EQ(lighter.rows("conv", "B").size(), 1U) << "other kinds stay";
  EXPECT_EQ(with_lighter(table, {}), table);
  EXPECT_TRUE(lighter_choices(two_convolutions(), two_kinds(), lighter, BatchSize(8)).empty());
}

// Costs of the chosen row are never above those of any other: against a search over all rows.
TEST(Implementations, NoOtherIsFaster) {
  Rng rng(7);
  for (int round = 0; round < 200; ++round) {
    std::string text = "cost mean A batch=1 f=1ms\n";
    const int ways = 1 + static_cast<int>(rng.below(5));
    for (int w = 0; w < ways; ++w) {
      const auto time = [&] { return std::to_string(1 + rng.below(20)) + "us"; };
      text += "cost conv A batch=1 f=" + time() + " i=" + time() + " w=" + time() + " by=w" +
              std::to_string(w) + "\n";
      text += "cost conv A batch=8 f=" + time() + " i=" + time() + " w=" + time() + " by=w" +
              std::to_string(w) + "\n";
    }
    const CostTable table = parse_costs(text);
    const BatchSize size(1 + static_cast<std::int64_t>(rng.below(10)));
    const KindCosts costs(two_convolutions(), two_kinds().kind(KindId(0)), table, size);
    Duration least = milliseconds(1000);
    for (const CostRow& row : table.rows("conv", "A")) {
      const OperatorCost cost = cost_at(row, size);
      least = std::min(least, cost.forward + cost.backward());
    }
    const OperatorCost& chosen = *costs.of(OperatorId(1));
    EXPECT_EQ(chosen.forward + chosen.backward(), least) << text;
  }
}

TEST(Implementations, FilesKeepTheirNames) {
  const CostTable table = parse_costs(kThreeWays);
  EXPECT_EQ(parse_costs(print_costs(table)), table);
  EXPECT_EQ(costs_from_json(costs_to_json(table), "costs.json"), table);
  EXPECT_NE(with_lighter(table, lighter_choices(two_convolutions(), two_kinds(), table, BatchSize(8))).hash(),
            table.hash());
  EXPECT_THAT(refusal([] { parse_costs("cost conv A batch=1 f=1ms by=a/b\n"); }),
              HasSubstr("letters, digits, '.', '_' and '-' alone"));
  EXPECT_THAT(
      refusal([] { parse_costs("cost conv A batch=1 f=1ms by=a\ncost conv A batch=1 f=2ms by=a\n"); }),
      HasSubstr("is not above the one before it"));
}

TEST(Implementations, MeasuredOnesKeepTheAnalyticModelOut) {
  const CostTable table = parse_costs(kThreeWays);
  const std::vector<BatchSize> sizes{BatchSize(4)};
  EXPECT_EQ(complete_costs(two_convolutions(), two_kinds(), table, sizes), table);
}

}  // namespace
}  // namespace espalier
