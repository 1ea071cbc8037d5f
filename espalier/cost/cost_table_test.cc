#include "espalier/cost/cost_table.h"

#include <gmock/gmock.h>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/base/rng.h"
#include "espalier/cost/json.h"
#include "espalier/cost/text.h"
#include "espalier/graph/text.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::refusal;

constexpr const char* kTable =
    "machine \"AMD EPYC, 2 cores\" threads=2 torch=2.13.0\n"
    "overhead cpu action=20us neighbour=30 spread=80 device-spread=40 first=1ms adam=50us+12ps/B\n"
    "link 2GB latency=40us send=100us+400ps/B receive=20us+100ps/B\n"
    "cost linear(f32[b,16],f32[16,16]) cpu batch=4 f=2ms i=3ms w=1ms saved=in0,out0 private=64B "
    "between=32B workspace=1KiB origin=measured\n"
    "cost linear(f32[b,16],f32[16,16]) cpu batch=8 f=4ms i=6ms w=1ms saved=in0 private=65B "
    "origin=profile\n"
    "cost linear(f32[b,16],f32[16,16]) cpu batch=4 f=1ms tp=2 recompute origin=analytic extrapolated\n";

OperatorCost linear_at(std::int64_t batch) {
  const CostTable table = parse_costs(kTable);
  return cost_at(*table.find("linear(f32[b,16],f32[16,16])", "cpu"), BatchSize(batch));
}

TEST(CostTable, AGridPointIsTheCellItself) {
  const OperatorCost cost = linear_at(4);
  EXPECT_EQ(cost.forward, milliseconds(2));
  EXPECT_EQ(cost.backward(), milliseconds(4));
  EXPECT_EQ(cost.origin, Origin::kMeasured);
  EXPECT_THAT(cost.saved, ElementsAre(SavedTensor{SavedTensor::Side::kInput, 0},
                                      SavedTensor{SavedTensor::Side::kOutput, 0}));
}

TEST(CostTable, BetweenPointsTimeIsLinearAndBytesRoundUp) {
  // Batch 5 of 4..8: forward 2 + (4 - 2) · 1/4 = 2.5 ms; private 64 + 1/4 → 65 B; workspace 1024 · 3/4.
  const OperatorCost cost = linear_at(5);
  EXPECT_EQ(cost.forward, microseconds(2500));
  EXPECT_EQ(cost.weight_gradient, milliseconds(1));
  EXPECT_EQ(cost.private_bytes, Bytes(65));
  EXPECT_EQ(cost.workspace, Bytes(768));
  EXPECT_EQ(cost.origin, Origin::kInterpolated);
  EXPECT_FALSE(cost.extrapolated);
  EXPECT_EQ(cost.saved.size(), 2u);  // what either neighbour keeps
}

TEST(CostTable, BeyondTheGridTheNearestSegmentContinues) {
  EXPECT_EQ(linear_at(12).forward, milliseconds(6));  // 4 + 2
  EXPECT_TRUE(linear_at(12).extrapolated);
  EXPECT_EQ(linear_at(2).forward, milliseconds(1));
  EXPECT_EQ(linear_at(100).workspace, Bytes(0));  // 1024 at 4 and 0 at 8 would go below zero
}

TEST(CostTable, HalfANanosecondRoundsUp) {
  const CostTable table = parse_costs("cost a cpu batch=1 f=1ns\ncost a cpu batch=3 f=2ns\n");
  EXPECT_EQ(cost_at(*table.find("a", "cpu"), BatchSize(2)).forward, nanoseconds(2));
}

TEST(CostTable, OnePointAloneIsProportional) {
  const CostTable table = parse_costs("cost a cpu batch=4 f=2ms\n");
  const OperatorCost cost = cost_at(*table.find("a", "cpu"), BatchSize(6));
  EXPECT_EQ(cost.forward, milliseconds(3));
  EXPECT_TRUE(cost.extrapolated);
}

TEST(CostTable, FindsRowsByClassKindAndVariant) {
  CostTableParts parts;
  Rng rng(3);
  for (int i = 0; i < 200; ++i) {
    CostRow row;
    row.op_class = "op" + std::to_string(rng.below(40));
    row.kind = "kind" + std::to_string(rng.below(3));
    row.variant.tensor_parallel = 1 + static_cast<std::uint32_t>(rng.below(2));
    row.points.push_back({BatchSize(1), {}});
    const bool there = std::any_of(parts.rows.begin(), parts.rows.end(), [&](const CostRow& r) {
      return r.op_class == row.op_class && r.kind == row.kind && r.variant == row.variant;
    });
    if (!there) parts.rows.push_back(std::move(row));
  }
  const CostTable table(parts);
  for (const CostRow& row : parts.rows) {
    const CostRow* found = table.find(row.op_class, row.kind, row.variant);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(*found, row);
  }
  EXPECT_EQ(table.find("op", "kind0"), nullptr);
  EXPECT_EQ(table.find("op1", "kind9"), nullptr);
}

TEST(CostTable, EveryRuleHasItsFault) {
  const CostTableParts good = parse_costs(kTable).parts();
  ASSERT_THAT(check_cost_table(good), ElementsAre());
  const auto faults = [&](auto change) {
    CostTableParts parts = good;
    change(parts);
    return check_cost_table(parts);
  };
  using P = CostTableParts;
  EXPECT_THAT(faults([](P& p) { p.threads = 0; }), ElementsAre(HasSubstr("threads")));
  EXPECT_THAT(faults([](P& p) { p.rows[0].op_class.clear(); }), ElementsAre(HasSubstr("no operator class")));
  EXPECT_THAT(faults([](P& p) { p.rows[0].kind.clear(); }), ElementsAre(HasSubstr("kind is empty")));
  EXPECT_THAT(faults([](P& p) { p.rows[0].variant.tensor_parallel = 0; }), ElementsAre(HasSubstr("degree")));
  EXPECT_THAT(faults([](P& p) { p.rows[0].points.clear(); }), ElementsAre(HasSubstr("no point")));
  EXPECT_THAT(faults([](P& p) { p.rows[0].points[0].batch = BatchSize(0); }),
              ElementsAre(HasSubstr("at least 1")));
  EXPECT_THAT(faults([](P& p) { std::swap(p.rows[0].points[0], p.rows[0].points[1]); }),
              ElementsAre(HasSubstr("not above")));
  EXPECT_THAT(faults([](P& p) { std::swap(p.rows[0], p.rows[1]); }),
              ElementsAre(HasSubstr("rows are not sorted")));
  EXPECT_THAT(faults([](P& p) { p.rows[1] = p.rows[0]; }), ElementsAre(HasSubstr("rows are not sorted")));
  EXPECT_THAT(faults([](P& p) { p.rows[0].points[0].cost.forward = nanoseconds(-1); }),
              ElementsAre(HasSubstr("forward is -1")));
  EXPECT_THAT(faults([](P& p) { p.rows[0].points[0].cost.workspace = Bytes(std::int64_t{1} << 60); }),
              ElementsAre(HasSubstr("workspace")));
  EXPECT_THAT(faults([](P& p) { p.rows[0].points[0].cost.saved.push_back({}); }),
              ElementsAre(HasSubstr("not ascending")));
  EXPECT_THAT(faults([](P& p) { p.overheads[0].kind.clear(); }), ElementsAre(HasSubstr("no device kind")));
  EXPECT_THAT(faults([](P& p) { p.overheads[0].per_action = nanoseconds(-1); }),
              ElementsAre(HasSubstr("per action")));
  EXPECT_THAT(faults([](P& p) { p.overheads[0].neighbour_per_mille = -1; }),
              ElementsAre(HasSubstr("neighbour")));
  EXPECT_THAT(faults([](P& p) { p.overheads[0].scatter.spread_per_mille = 1001; }),
              ElementsAre(HasSubstr(": spread is 1001")));
  EXPECT_THAT(faults([](P& p) { p.overheads[0].scatter.device_per_mille = -1; }),
              ElementsAre(HasSubstr("device spread is -1")));
  EXPECT_THAT(faults([](P& p) { p.overheads[0].scatter.first = nanoseconds(-1); }),
              ElementsAre(HasSubstr("first action")));
  EXPECT_THAT(faults([](P& p) { p.overheads[0].updates[0].fixed = nanoseconds(-1); }),
              ElementsAre(HasSubstr("update by adam")));
  EXPECT_THAT(faults([](P& p) { p.overheads[0].updates.push_back(p.overheads[0].updates[0]); }),
              ElementsAre(HasSubstr("sorted by optimizer")));
  EXPECT_THAT(faults([](P& p) { p.overheads.push_back(p.overheads[0]); }),
              ElementsAre(HasSubstr("overheads are not sorted")));
  EXPECT_THAT(faults([](P& p) { p.link->bandwidth = 0; }), ElementsAre(HasSubstr("bandwidth")));
  EXPECT_THAT(faults([](P& p) { p.link->latency = nanoseconds(-1); }),
              ElementsAre(HasSubstr("link: a time")));
}

TEST(CostTable, TheHashSeesEveryFigure) {
  const CostTableParts good = parse_costs(kTable).parts();
  const std::uint64_t hash = CostTable(good).hash();
  const auto differs = [&](auto change) {
    CostTableParts parts = good;
    change(parts);
    return CostTable(parts).hash() != hash;
  };
  using P = CostTableParts;
  EXPECT_EQ(CostTable(good).hash(), hash);
  EXPECT_TRUE(differs([](P& p) { p.machine += "x"; }));
  EXPECT_TRUE(differs([](P& p) { p.rows[0].points[0].cost.between_halves += Bytes(1); }));
  EXPECT_TRUE(differs([](P& p) { p.rows[0].points[0].cost.saved.pop_back(); }));
  EXPECT_TRUE(differs([](P& p) { p.rows[0].points[1].cost.origin = Origin::kMeasured; }));
  EXPECT_TRUE(differs([](P& p) { p.overheads[0].updates[0].picoseconds_per_byte = 1; }));
  EXPECT_TRUE(differs([](P& p) { p.link->receive.fixed += nanoseconds(1); }));
  EXPECT_TRUE(differs([](P& p) { p.link.reset(); }));
}

TEST(CostTable, LinesAndJsonReadBack) {
  const CostTable table = parse_costs(kTable);
  EXPECT_EQ(print_costs(table), kTable);
  EXPECT_EQ(parse_costs(print_costs(table)), table);
  const std::string json = print_json(costs_to_json(table));
  EXPECT_EQ(costs_from_json(parse_json(json, "c.json"), "c.json"), table);
}

TEST(CostTable, LinesNameWhatIsWrong) {
  const auto wrong = [](const char* text) { return [text] { parse_costs(text); }; };
  EXPECT_THAT(refusal(wrong("\nfoo\n")), HasSubstr("line 2: 'foo' is not known"));
  EXPECT_THAT(refusal(wrong("cost a cpu batch=1 g=2ms")), HasSubstr("'g' is not known"));
  EXPECT_THAT(refusal(wrong("cost a")), HasSubstr("lacks a name"));
  EXPECT_THAT(refusal(wrong("cost a cpu batch=1 saved=x0")), HasSubstr("such as in0"));
  EXPECT_THAT(refusal(wrong("cost a cpu f=1ms f=2ms")), HasSubstr("stands twice"));
  EXPECT_THAT(refusal(wrong("overhead cpu adam=1us+2")), HasSubstr("400ps/B"));
  EXPECT_THAT(refusal(wrong("cost a cpu batch=1\ncost a cpu batch=1")), HasSubstr("not above"));
}

TEST(CostTable, JsonNamesThePlace) {
  const std::string good = print_json(costs_to_json(parse_costs(kTable)));
  const auto wrong = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return [text] { costs_from_json(parse_json(text, "c.json"), "c.json"); };
  };
  EXPECT_THAT(refusal(wrong("costs/1", "costs/9")), HasSubstr("c.json: format"));
  EXPECT_THAT(refusal(wrong("\"in0\"", "\"i0\"")), HasSubstr("rows[0].points[0].saved[0]"));
  EXPECT_THAT(refusal(wrong("\"machine\"", "\"machin\"")), HasSubstr("did you mean 'machine'?"));
  EXPECT_THAT(refusal(wrong("\"forward_ns\": 2000000", "\"forward_ns\": -2")), HasSubstr("forward_ns"));
}

TEST(CostTable, UpdateTimeIsFixedAndPerByteRoundedUp) {
  const KindOverhead overhead = parse_costs(kTable).overhead("cpu");
  // 50 µs + 1000 B · 12 ps = 50 µs + 12 ns; one byte more: 12.012 → 13 ns.
  EXPECT_EQ(update_time(overhead, OptimizerKind::kAdam, Bytes(1000)), microseconds(50) + nanoseconds(12));
  EXPECT_EQ(update_time(overhead, OptimizerKind::kAdam, Bytes(1001)), microseconds(50) + nanoseconds(13));
  EXPECT_EQ(update_time(overhead, OptimizerKind::kSgd, Bytes(1000)), Duration());
  EXPECT_EQ(parse_costs("").overhead("gpu"), (KindOverhead{"gpu", {}, 0, {}, {}}));
}

// ---- costs of a graph's operators ----

Graph small_graph() {
  return parse_graph(
      "x = input() : f32[b,16]\n"
      "w = parameter(lin.weight) : f32[16,16]\n"
      "h = linear(x, w) : f32[b,16] @class=lin\n"
      "m = mask(x) : f32[b,16] @class=mask\n"
      "y = linear(h, w) : f32[b,16] @class=lin\n"
      "loss = mean(y) : f32[] @class=mean\n"
      "return loss, m\n");
}

CostTable small_costs(const std::string& origin) {
  return parse_costs("cost lin A100-80GB batch=4 f=2ms i=3ms w=1ms saved=in0 origin=" + origin +
                     "\ncost mask A100-80GB batch=4 f=1ms i=1ms saved=in0 private=8B origin=" + origin +
                     "\ncost mean A100-80GB batch=4 f=1us i=1us origin=" + origin + "\n");
}

TEST(OperatorCosts, WithoutGradientThereIsNoBackwardAndNothingKept) {
  const Graph graph = small_graph();
  const OperatorCosts costs(graph, parse_cluster("1xA100-80GB"), small_costs("measured"), BatchSize(4));
  const OperatorCost& mask = costs.of(*graph.find_operator("m"), KindId(0));
  EXPECT_EQ(mask.forward, milliseconds(1));
  EXPECT_EQ(mask.backward(), Duration());
  EXPECT_THAT(mask.saved, ElementsAre());
  EXPECT_EQ(mask.private_bytes, Bytes());
}

TEST(OperatorCosts, OnlyAnalyticCellsLoseAnInputGradientThatNobodyNeeds) {
  const Graph graph = small_graph();
  const Cluster cluster = parse_cluster("1xA100-80GB");
  const auto input_gradient = [&](const char* op, const char* origin) {
    const OperatorCosts costs(graph, cluster, small_costs(origin), BatchSize(4));
    return costs.of(*graph.find_operator(op), KindId(0)).input_gradient;
  };
  EXPECT_EQ(input_gradient("h", "analytic"), Duration());  // reads x, which requires none
  EXPECT_EQ(input_gradient("y", "analytic"), milliseconds(3));
  EXPECT_EQ(input_gradient("h", "measured"), milliseconds(3));
}

TEST(OperatorCosts, OnlyAnalyticCellsLoseAGradientOfFrozenParameters) {
  const Graph graph = parse_graph(
      "x = input() : f32[b,16]\n"
      "w = parameter(w) : f32[16,16]\n"
      "v = parameter(v, frozen) : f32[16,16]\n"
      "h = linear(x, w) : f32[b,16] @class=lin\n"
      "y = linear(h, v) : f32[b,16] @class=lin\n"
      "loss = mean(y) : f32[] @class=mean\n");
  const auto cost = [&](const char* origin) {
    const OperatorCosts costs(graph, parse_cluster("1xA100-80GB"), small_costs(origin), BatchSize(4));
    return costs.of(*graph.find_operator("y"), KindId(0));
  };
  EXPECT_EQ(cost("analytic").weight_gradient, Duration());
  EXPECT_EQ(cost("analytic").input_gradient, milliseconds(3));
  EXPECT_EQ(cost("analytic").between_halves, Bytes());
  EXPECT_EQ(cost("measured").weight_gradient, milliseconds(1));
}

TEST(OperatorCosts, SpeedDividesTimes) {
  ClusterParts parts = parse_cluster("1xA100-80GB").parts();
  parts.kinds[0].speed = 0.5;
  const Graph graph = small_graph();
  const OperatorCosts costs(graph, Cluster(parts), small_costs("measured"), BatchSize(4));
  EXPECT_EQ(costs.of(*graph.find_operator("y"), KindId(0)).forward, milliseconds(4));
}

TEST(OperatorCosts, AMissingCellNamesOperatorAndKind) {
  const Graph graph = small_graph();
  EXPECT_THAT(refusal([&] {
                OperatorCosts(graph, parse_cluster("1xV100-16GB"), small_costs("measured"), BatchSize(4));
              }),
              ::testing::AllOf(HasSubstr("operator 'h'"), HasSubstr("'V100-16GB'")));
}

}  // namespace
}  // namespace espalier
