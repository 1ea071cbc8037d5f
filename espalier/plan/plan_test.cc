#include "espalier/plan/plan.h"

#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/base/rng.h"
#include "espalier/graph/text.h"
#include "espalier/plan/json.h"
#include "espalier/plan/text.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;
using ::testing::StartsWith;

// Two towers and a head; a mask that may stand anywhere; a pair that belongs together.
Graph towers() {
  return parse_graph(
      "batch 1..64\n"
      "x = input() : f32[b,16]\n"
      "ids = input() : i64[b]\n"
      "wi = parameter(wi) : f32[16,16]\n"
      "wt = parameter(wt) : f32[16,16]\n"
      "img = linear(x, wi) : f32[b,16]\n"
      "pool = relu(img) : f32[b,16]\n"
      "mask = ne(ids) : bool[b] @duplicable\n"
      "txt = linear(x, wt) : f32[b,16] @colocate=1\n"
      "end = masked_fill(txt, mask) : f32[b,16] @colocate=1\n"
      "sims = matmul(pool, end) : f32[b,b] @mixes\n"
      "loss = sum(sims, mask) : f32[]\n"
      "return loss\n");
}

Cluster four_devices() {
  return parse_cluster("4xA100-80GB");
}

constexpr const char* kPlan =
    "batch 16 micro_batch 4 schedule 1f1b\n"
    "stage img gpu:0 { img pool }\n"
    "stage txt gpu:1 | gpu:2 { mask .. end } in_flight 1\n"
    "stage head gpu:3 { mask sims loss } after img txt recompute { sims }\n";

PipelinePlan plan() {
  return parse_plan(kPlan, towers(), four_devices());
}

// ---- small functions ----

TEST(RoundRobin, SharesAreAPartition) {
  EXPECT_THAT(round_robin(5, 0, 2), ElementsAre(0, 2, 4));
  EXPECT_THAT(round_robin(5, 1, 2), ElementsAre(1, 3));
  for (std::uint32_t m = 1; m < 12; ++m) {
    for (std::size_t r = 1; r <= 4; ++r) {
      std::set<std::uint32_t> all;
      for (std::size_t k = 0; k < r; ++k) {
        for (const std::uint32_t j : round_robin(m, k, r)) EXPECT_TRUE(all.insert(j).second);
      }
      EXPECT_EQ(all.size(), m);
    }
  }
}

// ---- in-flight limits ----

struct ChainStage {
  std::size_t replicas;
  std::int64_t micro_batch;
};

PipelinePlan chain(const std::vector<ChainStage>& stages, std::int64_t batch) {
  PipelinePlan plan;
  plan.batch = BatchSize(batch);
  for (std::size_t x = 0; x < stages.size(); ++x) {
    Stage stage;
    stage.name = "s" + std::to_string(x);
    stage.micro_batch = BatchSize(stages[x].micro_batch);
    if (x > 0) stage.after.push_back(StageId(x - 1));
    plan.stages.push_back(stage);
    for (std::size_t r = 0; r < stages[x].replicas; ++r) {
      plan.stages[x].replicas.push_back(
          {{}, round_robin(plan.micro_batches(StageId(x)), r, stages[x].replicas)});
    }
  }
  return plan;
}

TEST(InFlightLimits, OneReplicaEachIsTheDepthToTheEnd) {
  EXPECT_THAT(in_flight_limits(chain({{1, 1}, {1, 1}, {1, 1}, {1, 1}}, 100)), ElementsAre(4, 3, 2, 1));
}

TEST(InFlightLimits, AreCappedByTheShare) {
  EXPECT_THAT(in_flight_limits(chain({{1, 1}, {1, 1}, {1, 1}, {1, 1}}, 2)), ElementsAre(2, 2, 2, 1));
}

TEST(InFlightLimits, WithReplicasFollowTheFormula) {
  // w_x = ⌈(r_x + r_y·w_y) / r_x⌉: the last has 1; before it ⌈(2 + 3)/2⌉ = 3; before that ⌈(1 + 2·3)/1⌉ = 7.
  EXPECT_THAT(in_flight_limits(chain({{1, 1}, {2, 1}, {3, 1}}, 100)), ElementsAre(7, 3, 1));
  EXPECT_THAT(in_flight_limits(chain({{4, 1}, {1, 1}, {1, 1}}, 100)), ElementsAre(2, 2, 1));
}

TEST(InFlightLimits, TheLargestSuccessorDecides) {
  // 0 → 1 → 3 and 0 → 3, 0 → 2 without a successor.
  PipelinePlan plan = chain({{1, 1}, {1, 1}, {1, 1}, {1, 1}}, 100);
  plan.stages[2].after = {StageId(0)};
  plan.stages[3].after = {StageId(0), StageId(1)};
  EXPECT_THAT(in_flight_limits(plan), ElementsAre(3, 2, 1, 1));
}

TEST(InFlightLimits, UnequalSizesCountSamples) {
  // Micro-batches of 1, 2, 4: 10, 8 and 4 samples in flight; of 4 everywhere: 12, 8, 4 (GraphPipe, Fig. 5).
  EXPECT_THAT(in_flight_limits(chain({{1, 1}, {1, 2}, {1, 4}}, 64)), ElementsAre(10, 4, 1));
  EXPECT_THAT(in_flight_limits(chain({{1, 4}, {1, 4}, {1, 4}}, 64)), ElementsAre(3, 2, 1));
}

TEST(InFlightLimits, GPipeHoldsTheWholeShare) {
  PipelinePlan plan = chain({{1, 1}, {2, 1}}, 9);
  plan.orders = ScheduleKind::kGPipe;
  EXPECT_THAT(in_flight_limits(plan), ElementsAre(9, 5));
}

// ---- text ----

TEST(PlanText, FillsWhatIsLeftOut) {
  const PipelinePlan p = plan();
  const Graph graph = towers();
  ASSERT_EQ(p.stages.size(), 3u);
  EXPECT_THAT(p.stages[1].operators, ElementsAre(OperatorId(2), OperatorId(3), OperatorId(4)));
  EXPECT_THAT(p.stages[1].replicas[1].micro_batches, ElementsAre(1, 3));
  EXPECT_EQ(p.stages[0].in_flight, 2u);
  EXPECT_EQ(p.stages[1].in_flight, 1u);
  EXPECT_THAT(p.stages[2].recompute, ElementsAre(OperatorId(5)));
  EXPECT_THAT(check_plan(graph, four_devices(), p), IsEmpty());
}

TEST(PlanText, AfterIsCompletedByDataEdges) {
  const std::string text(kPlan);
  const std::string without = std::string(text).replace(text.find("after img txt "), 14, "");
  EXPECT_EQ(parse_plan(without, towers(), four_devices()), plan());
  const std::string chained = std::string(text).replace(text.find(" in_flight 1"), 12, " after img");
  EXPECT_THAT(parse_plan(chained, towers(), four_devices()).stages[1].after, ElementsAre(StageId(0)));
}

TEST(PlanText, PrintsRunsAndOnlyWhatIsNotTheDefault) {
  EXPECT_EQ(print_plan(plan(), towers(), four_devices()),
            "batch 16 micro_batch 4 schedule 1f1b\n"
            "stage img gpu:0 { img pool }\n"
            "stage txt gpu:1 | gpu:2 { mask .. end } in_flight 1\n"
            "stage head gpu:3 { mask sims loss } after img txt recompute { sims }\n");
}

TEST(PlanText, EveryPartReadsBack) {
  const char* const text =
      "batch 16 micro_batch 4 schedule gpipe tokens forward\n"
      "stage \"a b\" gpu:0 + gpu:1 { img pool } in_flight 3\n"
      "stage after gpu:2 | gpu:3 { mask .. end } share 0,1,2,3,4 | 5,6,7 micro_batch 2\n"
      "stage head gpu:0 { mask sims loss } after \"after\" \"a b\"\n";
  const PipelinePlan p = parse_plan(text, towers(), four_devices());
  EXPECT_EQ(p.tokens, TokenRule::kForwardOnly);
  EXPECT_EQ(p.orders, Orders(ScheduleKind::kGPipe));
  EXPECT_THAT(p.stages[0].replicas[0].devices, ElementsAre(DeviceId(0), DeviceId(1)));
  EXPECT_THAT(p.stages[1].replicas[1].micro_batches, ElementsAre(5, 6, 7));
  EXPECT_EQ(p.stages[1].in_flight, 5u);
  EXPECT_EQ(parse_plan(print_plan(p, towers(), four_devices()), towers(), four_devices()), p);
}

TEST(PlanText, ErrorsNameTheLineAndWhatWouldBeRight) {
  const Graph graph = towers();
  const Cluster cluster = four_devices();
  const auto wrong = [&](const std::string& line) {
    return [&graph, &cluster, line] { parse_plan("batch 16 micro_batch 4\n" + line, graph, cluster); };
  };
  EXPECT_THAT(refusal([&] { parse_plan("", graph, cluster); }), HasSubstr("batch N"));
  EXPECT_THAT(refusal([&] { parse_plan("batch 4 schedule zb", graph, cluster); }),
              HasSubstr("expected 1f1b or gpipe"));
  EXPECT_THAT(refusal(wrong("stage a gpu:9 { img }")), HasSubstr("line 2: device 'gpu:9'"));
  EXPECT_THAT(refusal(wrong("stage a gpu:0 { imgg }")), HasSubstr("operator 'imgg'"));
  EXPECT_THAT(refusal(wrong("stage a gpu:0 { pool .. img }")), HasSubstr("stands before"));
  EXPECT_THAT(refusal(wrong("stage a gpu:0 { img img }")), HasSubstr("stands twice"));
  EXPECT_THAT(refusal(wrong("stage a gpu:0 { img")), HasSubstr("at the end"));
  EXPECT_THAT(refusal(wrong("stage a gpu:0 { img } after b")), HasSubstr("stage 'b'"));
  EXPECT_THAT(refusal(wrong("stage a gpu:0 { img } limit 3")), HasSubstr("'limit'"));
  EXPECT_THAT(refusal(wrong("stage a gpu:0 { img } share 0 | 1")), HasSubstr("2 shares for 1"));
  EXPECT_THAT(refusal(wrong("stage a gpu:0 { img } in_flight x")), HasSubstr("in_flight 'x'"));
  EXPECT_THAT(refusal([&] {
                parse_plan("batch 1099511627776 micro_batch 1\nstage a gpu:0 { img }", graph, cluster);
              }),
              HasSubstr("2^20"));
  // 64 KiB of such lines would take 14 GB.
  std::string many = "batch 1048576 micro_batch 1\n";
  for (int i = 0; i < 5; ++i) many += "stage s" + std::to_string(i) + " gpu:0 {}\n";
  EXPECT_THAT(refusal([&] { parse_plan(many, graph, cluster); }),
              "line 4: the stages have more than 2^21 micro-batches together");
}

// `after` names stages: of two with one name it could mean either.
TEST(PlanText, AStageStandsOnce) {
  EXPECT_THAT(refusal([] {
                parse_plan("batch 16\nstage a gpu:0 { img }\nstage a gpu:1 { txt } after a\n", towers(),
                           four_devices());
              }),
              "line 3: stage 'a' stands twice");
}

TEST(PlanText, AnyBytesGiveAPlanOrAnInputError) {
  const Graph graph = towers();
  const Cluster cluster = four_devices();
  Rng rng(5);
  for (int i = 0; i < 3000; ++i) {
    std::string text = kPlan;
    for (std::uint64_t n = 1 + rng.below(4); n > 0; --n) {
      const std::size_t at = rng.below(text.size());
      if (rng.below(2) == 0) {
        text[at] = static_cast<char>(rng.below(256));
      } else {
        text.erase(at, 1 + rng.below(8));
      }
      if (text.empty()) text = "x";
    }
    try {
      const PipelinePlan p = parse_plan(text, graph, cluster);
      check_plan(graph, cluster, p);
    } catch (const InputError&) {
    }
  }
}

TEST(PlacementText, ReadsBackAndNamesWhatIsMissing) {
  const Graph graph = towers();
  const Cluster cluster = four_devices();
  const Placement placement =
      parse_placement("gpu:1 { img txt .. loss }\ngpu:0 { pool mask }\n", graph, cluster);
  EXPECT_EQ(print_placement(placement, graph, cluster), "gpu:0 { pool mask }\ngpu:1 { img txt .. loss }\n");
  EXPECT_EQ(parse_placement(print_placement(placement, graph, cluster), graph, cluster), placement);
  EXPECT_THAT(refusal([&] { parse_placement("gpu:0 { img .. sims }", graph, cluster); }),
              HasSubstr("'loss' stands on no device"));
  EXPECT_THAT(refusal([&] { parse_placement("gpu:0 { img }\ngpu:1 { img }", graph, cluster); }),
              HasSubstr("two devices"));

  const std::string leveled =
      "gpu:0 level 0 { pool }\ngpu:0 level 2 { mask }\ngpu:1 level 1 { img txt .. loss }\n";
  const Placement cut = parse_placement(leveled, graph, cluster);
  EXPECT_EQ(cut.device, placement.device);
  EXPECT_EQ(cut.level[graph.find_operator("mask")->index()], 2U);
  EXPECT_EQ(print_placement(cut, graph, cluster), leveled);
  EXPECT_THAT(refusal([&] { parse_placement("gpu:0 level 0 { img }\ngpu:1 { txt }", graph, cluster); }),
              HasSubstr("line 2: expected a level in every line or in none"));
}

TEST(PlacementJson, ReadsBackAndNamesWhatIsWrong) {
  const Graph graph = towers();
  const Cluster cluster = four_devices();
  const Placement placement = parse_placement("gpu:0 { img }\ngpu:2 { pool .. loss }", graph, cluster);
  const Json good = placement_to_json(placement, graph, cluster);
  EXPECT_EQ(good.dump(),
            R"({"format":"espalier.placement/1","devices":[{"device":"gpu:0","operators":[["img"]]},)"
            R"({"device":"gpu:2","operators":[["pool","loss"]]}]})");
  EXPECT_EQ(placement_from_json(good, "p", graph, cluster), placement);
  const auto with = [&](auto change) {
    Json json = good;
    change(json["devices"]);
    return [&graph, &cluster, json] { placement_from_json(json, "p", graph, cluster); };
  };
  EXPECT_THAT(refusal(with([](Json& d) { d[0]["device"] = "tpu:0"; })),
              HasSubstr("p: devices[0].device: is 'tpu:0'"));
  EXPECT_THAT(refusal(with([](Json& d) { d[0]["operators"][0][0] = "z"; })), HasSubstr("'z' is no operator"));
  EXPECT_THAT(refusal(with([](Json& d) { d.erase(0); })), HasSubstr("'img' stands on no device"));
  EXPECT_THAT(refusal(with([](Json& d) { d.push_back(d[0]); })), HasSubstr("'img' a second time"));
  EXPECT_THAT(refusal(with([](Json& d) { std::swap(d[1]["operators"][0][0], d[1]["operators"][0][1]); })),
              HasSubstr("against the model's order"));
  EXPECT_THAT(refusal(with([](Json& d) { d[0]["operators"][0] = Json::array(); })),
              HasSubstr("expected [first, last]"));

  Placement cut = placement;
  cut.level.assign(graph.operators().size(), 3);
  cut.level.back() = 5;
  const Json leveled = placement_to_json(cut, graph, cluster);
  EXPECT_EQ(leveled["devices"].size(), 3U);
  EXPECT_EQ(leveled["devices"][2].dump(), R"({"device":"gpu:2","level":5,"operators":[["loss"]]})");
  EXPECT_EQ(placement_from_json(leveled, "p", graph, cluster), cut);
  EXPECT_THAT(refusal(with([](Json& d) { d[1]["level"] = 1; })),
              HasSubstr("p: devices[1]: has a level, and devices[0] has none"));
  EXPECT_THAT(refusal(with([](Json& d) { d[0]["level"] = 1; })), HasSubstr("p: devices[1]: has no level"));
  EXPECT_THAT(refusal(with([](Json& d) { d[0]["level"] = -1; })), HasSubstr("p: devices[0].level"));
}

TEST(Placement, RulesHaveTheirFaults) {
  const Graph graph = towers();
  const Cluster cluster = four_devices();
  Placement placement = parse_placement("gpu:0 { img .. loss }", graph, cluster);
  EXPECT_THAT(check_placement(graph, cluster, placement), IsEmpty());
  placement.device[4] = DeviceId(1);
  EXPECT_THAT(check_placement(graph, cluster, placement),
              ElementsAre(StartsWith("colocation 'txt' and 'end'")));
  placement.device[4] = DeviceId(0);
  placement.level.assign(graph.operators().size(), 1);
  EXPECT_THAT(check_placement(graph, cluster, placement), IsEmpty());
  placement.level.back() = 0;
  EXPECT_THAT(
      check_placement(graph, cluster, placement),
      ElementsAre("level 'loss' is at level 0, and 'sims' on its device, which must come first, at 1"));
  placement.level.pop_back();
  EXPECT_THAT(check_placement(graph, cluster, placement), ElementsAre(StartsWith("level the placement has")));
  placement.level.clear();
  placement.device[0] = DeviceId(4);
  EXPECT_THAT(check_placement(graph, cluster, placement), ElementsAre(StartsWith("devices")));
  placement.device.pop_back();
  EXPECT_THAT(check_placement(graph, cluster, placement), ElementsAre(StartsWith("covered")));
}

// ---- the checker ----

std::set<std::string> rules(const std::vector<std::string>& violations) {
  std::set<std::string> names;
  for (const std::string& line : violations) names.insert(line.substr(0, line.find(' ')));
  return names;
}

template <class Change>
std::set<std::string> broken_by(Change change) {
  PipelinePlan p = plan();
  change(p);
  return rules(check_plan(towers(), four_devices(), p));
}

TEST(CheckPlan, EveryRuleCatchesAFaultThatNoOtherCatches) {
  using P = PipelinePlan;
  const auto only = [](const char* rule) { return ElementsAre(rule); };
  EXPECT_THAT(broken_by([](P&) {}), IsEmpty());
  EXPECT_THAT(broken_by([](P& p) { p.stages[1].name = "img"; }), only("named"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[1].name.clear(); }), only("named"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[1].name = "\xff"; }), only("named"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[2].operators.pop_back(); }), only("covered"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[1].operators.erase(p.stages[1].operators.begin()); }),
              only("covered"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[0].operators.push_back(OperatorId(7)); }), only("covered"));
  EXPECT_THAT(
      broken_by([](P& p) { p.stages[2].operators.insert(p.stages[2].operators.begin(), OperatorId(1)); }),
      only("covered"));  // pool twice
  EXPECT_THAT(broken_by([](P& p) { std::swap(p.stages[0].operators[0], p.stages[0].operators[1]); }),
              only("ordered"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[0].after = {StageId(1)}; }), only("ordered"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[2].after = {StageId(1), StageId(0)}; }), only("ordered"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[2].after = {StageId(1)}; }), only("data-edge"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[1].replicas.clear(); }), only("devices"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[1].replicas[0].devices.clear(); }), only("devices"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[1].replicas[0].devices = {DeviceId(4)}; }), only("devices"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[1].replicas[0].devices = {DeviceId(2)}; }), only("devices"));
  EXPECT_THAT(broken_by([](P& p) {
                p.stages[1].replicas[0].devices = {DeviceId(0), DeviceId(3)};
              }),
              only("devices"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[0].replicas[0].micro_batches = {0, 1, 3}; }), only("shares"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[0].replicas[0].micro_batches = {0, 1, 2, 4}; }), only("shares"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[0].replicas[0].micro_batches = {0, 1, 3, 2}; }), only("shares"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[1].replicas[0].micro_batches = {0, 1, 2}; }), only("shares"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[0].in_flight = 0; }), only("in-flight"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[1].in_flight = 3; }), only("in-flight"));
  EXPECT_THAT(broken_by([](P& p) { p.stages[2].recompute = {OperatorId(0)}; }), only("recompute"));
  EXPECT_THAT(broken_by([](P& p) {
                p.stages[2].recompute = {OperatorId(6), OperatorId(5)};
              }),
              only("recompute"));
}

TEST(CheckPlan, WhatIsEmptyOrNotPositiveIsNamed) {
  const auto found = [](auto change) {
    PipelinePlan p = plan();
    change(p);
    return check_plan(towers(), four_devices(), p);
  };
  using P = PipelinePlan;
  using ::testing::Contains;
  using testing::refusal;
  EXPECT_THAT(found([](P& p) { p.stages.clear(); }), Contains("covered the plan has no stage"));
  EXPECT_THAT(found([](P& p) { p.stages[1].operators.clear(); }), Contains(HasSubstr("has no operator")));
  EXPECT_THAT(found([](P& p) { p.stages[0].replicas[0].devices.clear(); }),
              ElementsAre(HasSubstr("has a replica without device")));
  EXPECT_THAT(found([](P& p) { p.stages[0].replicas[0].micro_batches.clear(); }),
              Contains(HasSubstr("has a replica without micro-batch")));
  EXPECT_THAT(found([](P& p) { p.stages[0].micro_batch = BatchSize(0); }),
              Contains(HasSubstr("micro-batch 0 is not positive")));
  EXPECT_THAT(found([](P& p) { p.batch = BatchSize(0); }), Contains(HasSubstr("the batch is 0")));
}

TEST(CheckPlan, MicroBatchesDivideTheBatchAndOneAnother) {
  const auto broken = [](std::int64_t batch, std::int64_t a, std::int64_t b) {
    PipelinePlan p = plan();
    p.batch = BatchSize(batch);
    const std::int64_t sizes[] = {a, a, b};
    for (std::size_t x = 0; x < 3; ++x) {
      p.stages[x].micro_batch = BatchSize(sizes[x]);
      for (std::size_t r = 0; r < p.stages[x].replicas.size(); ++r) {
        p.stages[x].replicas[r].micro_batches =
            round_robin(p.micro_batches(StageId(x)), r, p.stages[x].replicas.size());
      }
      p.stages[x].in_flight = 1;
    }
    return rules(check_plan(towers(), four_devices(), p));
  };
  EXPECT_THAT(broken(24, 4, 2), IsEmpty());
  EXPECT_THAT(broken(24, 4, 6), ElementsAre("micro-batch"));       // 4 and 6 of joined stages
  EXPECT_THAT(broken(26, 4, 4), ElementsAre("micro-batch"));       // does not divide
  EXPECT_THAT(broken(256, 128, 128), ElementsAre("micro-batch"));  // the graph ends at 64
  EXPECT_THAT(broken(1 << 19, 1, 1), IsEmpty());
  EXPECT_THAT(broken(1 << 20, 1, 1), ElementsAre("micro-batch"));  // three stages: 3 · 2^20 together
}

TEST(CheckPlan, ABatchHasAtMostAMillionMicroBatches) {
  // 2^32 + 4 micro-batches would look like 4 in 32 bits.
  PipelinePlan p = plan();
  p.batch = BatchSize(((std::int64_t{1} << 32) + 4) * 4);
  EXPECT_THAT(rules(check_plan(towers(), four_devices(), p)), ElementsAre("micro-batch"));
}

TEST(CheckPlan, StagesThatReadFromEachOtherAreNotConvex) {
  const Graph graph =
      parse_graph("x = input() : f32[b]\na = relu(x)\nb1 = relu(a)\nc = add(a, b1)\nd = relu(c)\nreturn d\n");
  const char* const text =
      "batch 4 micro_batch 4\nstage outer gpu:0 { a c d }\nstage inner gpu:1 { b1 } after outer\n";
  PipelinePlan p = parse_plan(text, graph, four_devices());
  p.stages[0].after.clear();
  EXPECT_THAT(check_plan(graph, four_devices(), p),
              ElementsAre(::testing::AllOf(StartsWith("convex"), HasSubstr("'inner'"), HasSubstr("'c'"))));
  // Two stages that read from each other without any path that returns are no better.
  const Graph pair = parse_graph(
      "x = input() : f32[b]\na1 = relu(x)\na2 = relu(x)\nb1 = relu(a1)\nc2 = relu(a2)\nreturn b1, c2\n");
  PipelinePlan q =
      parse_plan("batch 4\nstage s gpu:0 { a1 c2 }\nstage t gpu:1 { a2 b1 }\n", pair, four_devices());
  q.stages[0].after.clear();
  EXPECT_THAT(rules(check_plan(pair, four_devices(), q)), ElementsAre("convex"));
}

TEST(CheckPlan, ColocatedOperatorsStandTogether) {
  const PipelinePlan p = parse_plan(
      "batch 16 micro_batch 4\nstage a gpu:0 { img pool txt }\nstage b gpu:1 { mask end .. loss }\n",
      towers(), four_devices());
  EXPECT_THAT(check_plan(towers(), four_devices(), p), ElementsAre(StartsWith("colocation 'txt' and 'end'")));
}

TEST(CheckPlan, WhatWritesItsInputIsNotComputedTwice) {
  const Graph graph = parse_graph(
      "x = input() : f32[b]\nw = parameter(w) : f32[1]\na = mul(x, w) : f32[b] @colocate=0\n"
      "c = relu_(a) @inplace @colocate=0\nreturn c\n");
  const PipelinePlan p =
      parse_plan("batch 4\nstage s gpu:0 { a c } recompute { a c }\n", graph, four_devices());
  EXPECT_THAT(check_plan(graph, four_devices(), p), ElementsAre(StartsWith("recompute")));
}

// ---- mutations: an oracle by sets and maps says whether a plan is still valid ----

bool reaches(const std::map<std::size_t, std::set<std::size_t>>& edges, std::size_t from, std::size_t to,
             std::set<std::size_t>& seen) {
  const auto next = edges.find(from);
  if (next == edges.end()) return false;
  for (const std::size_t y : next->second) {
    if (y == to || (seen.insert(y).second && reaches(edges, y, to, seen))) return true;
  }
  return false;
}

bool valid(const Graph& graph, const Cluster& cluster, const PipelinePlan& p) {
  std::map<std::string, std::set<std::size_t>> where;
  std::set<std::string> names;
  std::map<std::uint32_t, std::set<std::set<std::size_t>>> groups;
  if (p.stages.empty() || p.batch.count() < 1) return false;
  for (std::size_t x = 0; x < p.stages.size(); ++x) {
    const Stage& s = p.stages[x];
    if (s.name.empty() || !names.insert(s.name).second || s.operators.empty() || s.replicas.empty())
      return false;
    for (std::size_t i = 0; i < s.operators.size(); ++i) {
      if (s.operators[i].index() >= graph.operators().size()) return false;
      if (i > 0 && s.operators[i].index() <= s.operators[i - 1].index()) return false;
      where[graph.op(s.operators[i]).name].insert(x);
    }
    if (!std::is_sorted(s.after.begin(), s.after.end())) return false;
    if (std::set(s.after.begin(), s.after.end()).size() != s.after.size()) return false;
    for (const StageId before : s.after) {
      if (before.index() >= x) return false;
    }
    const std::int64_t size = s.micro_batch.count();
    if (size < graph.batch().min.count() || size > graph.batch().max.count() || p.batch.count() % size != 0)
      return false;
    std::multiset<std::uint32_t> taken;
    std::set<std::size_t> sizes, group_sizes;
    std::multiset<DeviceId> devices;
    for (const Replica& r : s.replicas) {
      if (!std::is_sorted(r.micro_batches.begin(), r.micro_batches.end())) return false;
      taken.insert(r.micro_batches.begin(), r.micro_batches.end());
      sizes.insert(r.micro_batches.size());
      group_sizes.insert(r.devices.size());
      devices.insert(r.devices.begin(), r.devices.end());
    }
    std::multiset<std::uint32_t> expected;
    for (std::uint32_t j = 0; j < p.batch.count() / size; ++j) expected.insert(j);
    if (taken != expected || *sizes.begin() == 0) return false;
    if (group_sizes.size() != 1 || *group_sizes.begin() == 0) return false;
    if (std::set(devices.begin(), devices.end()).size() != devices.size()) return false;
    if (devices.rbegin()->index() >= cluster.devices().size()) return false;
    if (s.in_flight < 1 || s.in_flight > *sizes.rbegin()) return false;
    if (!std::is_sorted(s.recompute.begin(), s.recompute.end())) return false;
    if (std::set(s.recompute.begin(), s.recompute.end()).size() != s.recompute.size()) return false;
    for (const OperatorId op : s.recompute) {
      if (std::count(s.operators.begin(), s.operators.end(), op) == 0 || !graph.op(op).mutates.empty())
        return false;
    }
  }
  std::map<std::size_t, std::set<std::size_t>> edges;
  for (const Operator& op : graph.operators()) {
    const std::set<std::size_t>& own = where[op.name];
    if (own.empty() || (own.size() > 1 && !op.duplicable)) return false;
    if (op.colocation) groups[*op.colocation].insert(own);
    for (const TensorId input : op.inputs) {
      if (!graph.tensor(input).producer) continue;
      const Operator& producer = graph.op(*graph.tensor(input).producer);
      for (const std::size_t x : own) {
        if (where[producer.name].contains(x)) continue;
        if (producer.duplicable) return false;
        const std::size_t from = *where[producer.name].begin();
        edges[from].insert(x);
        const auto& after = p.stages[x].after;
        if (std::count(after.begin(), after.end(), StageId(from)) == 0) return false;
      }
    }
  }
  for (const auto& [group, places] : groups) {
    if (places.size() > 1) return false;
  }
  for (std::size_t x = 0; x < p.stages.size(); ++x) {
    std::set<std::size_t> seen;
    if (reaches(edges, x, x, seen)) return false;
    for (const StageId before : p.stages[x].after) {
      const std::int64_t a = p.stages[x].micro_batch.count(),
                         b = p.stages[before.index()].micro_batch.count();
      if (a % b != 0 && b % a != 0) return false;
    }
  }
  return true;
}

void mutate(PipelinePlan& p, Rng& rng) {
  Stage& s = p.stages[rng.below(p.stages.size())];
  Stage& t = p.stages[rng.below(p.stages.size())];
  Replica& r = s.replicas[rng.below(s.replicas.size())];
  const auto number = [&](std::uint64_t bound) { return static_cast<std::uint32_t>(rng.below(bound)); };
  switch (rng.below(14)) {
    case 0:
      if (!s.operators.empty()) {
        const std::size_t i = rng.below(s.operators.size());
        t.operators.insert(std::upper_bound(t.operators.begin(), t.operators.end(), s.operators[i]),
                           s.operators[i]);
        if (&s != &t) s.operators.erase(s.operators.begin() + static_cast<std::ptrdiff_t>(i));
      }
      break;
    case 1:
      if (!s.operators.empty()) s.operators.erase(s.operators.begin());
      break;
    case 2:
      s.after.push_back(StageId(number(4)));
      break;
    case 3:
      if (!s.after.empty()) s.after.pop_back();
      break;
    case 4:
      s.micro_batch = BatchSize(rng.below(9));
      break;
    case 5:
      p.batch = BatchSize(8 * rng.below(4));
      break;
    case 6:
      s.in_flight = number(6);
      break;
    case 7:
      if (!r.micro_batches.empty()) r.micro_batches[rng.below(r.micro_batches.size())] = number(5);
      break;
    case 8:
      r.devices.push_back(DeviceId(number(5)));
      break;
    case 9:
      if (!r.devices.empty()) r.devices[0] = DeviceId(number(5));
      break;
    case 10:
      s.recompute.push_back(OperatorId(number(8)));
      break;
    case 11:
      std::swap(s, t);
      break;
    case 12:
      s.name = t.name;
      break;
    default:
      s.operators.insert(s.operators.begin(), OperatorId(number(8)));
  }
}

TEST(CheckPlan, MutatedPlansAreRejectedOrStillValid) {
  const Graph graph = towers();
  const Cluster cluster = four_devices();
  const PipelinePlan good = plan();
  Rng rng(11);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    PipelinePlan p = good;
    for (std::uint64_t n = 1 + rng.below(3); n > 0; --n) mutate(p, rng);
    const std::vector<std::string> violations = check_plan(graph, cluster, p);
    accepted += violations.empty() ? 1 : 0;
    ASSERT_EQ(violations.empty(), valid(graph, cluster, p))
        << (violations.empty() ? print_plan(p, graph, cluster) : violations.front());
  }
  EXPECT_GT(accepted, 100);
}

// ---- warnings ----

TEST(SemanticWarnings, SayWhatOneProcessWouldComputeOtherwise) {
  const Graph graph = parse_graph(
      "x = input() : f32[b,4]\n"
      "m = buffer(bn.mean) : f32[4]\n"
      "w = parameter(bn.weight) : f32[4]\n"
      "n = batch_norm(x, w, m) : f32[b,4] @mutates=m @mixes @colocate=0\n"
      "d = dropout(n) : f32[b,4] @random\n"
      "u = somebodys(d) : f32[b,4] @unknown @colocate=0\n"
      "s = sum(u) : f32[]\n"
      "c = count_nonzero(x) : f32[]\n"
      "loss = div(s, c) : f32[] @mixes\n"
      "return loss\n");
  const Cluster cluster = four_devices();
  const PipelinePlan p = parse_plan(
      "batch 16 micro_batch 4\nstage a gpu:0 | gpu:1 { n .. u }\nstage b gpu:2 { s .. loss } micro_batch 8\n",
      graph, cluster);
  EXPECT_THAT(semantic_warnings(graph, p),
              ElementsAre(HasSubstr("'n' mixes samples (batch_norm): it sees 4 of 16"),
                          HasSubstr("'bn.mean' is written in each of 2 replicas"),
                          HasSubstr("the loss 'loss' depends on which samples"),
                          HasSubstr("the loss 'loss' divides by 'c'"),
                          StartsWith("'d' draws random numbers for each micro-batch"),
                          HasSubstr("micro-batches of 4 and 8")));
  const PipelinePlan whole =
      parse_plan("batch 4 micro_batch 4\nstage a gpu:0 { n .. loss }\n", graph, cluster);
  EXPECT_THAT(semantic_warnings(graph, whole), IsEmpty());
}

TEST(WholeBatch, IsNeededByWhatMixesOnTheWayToTheLossButNotByBatchNorm) {
  const Graph graph = parse_graph(
      "batch 2..64\nx = input() : f32[b,4]\nm = buffer(bn.mean) : f32[4]\n"
      "n = aten.batch_norm.default(x, m) : f32[b,4] @mutates=m @mixes @colocate=0\n"
      "metric = max(n) : f32[] @mixes\n"
      "logits = matmul(n, n) : f32[b,b] @mixes\n"
      "loss = mean(logits) : f32[]\n"
      "return loss, metric\nloss loss\n");
  EXPECT_THAT(operators_that_need_the_whole_batch(graph), ElementsAre(*graph.find_operator("logits")));
  EXPECT_TRUE(writes_buffer(graph, *graph.find_operator("n")));
  EXPECT_FALSE(writes_buffer(graph, *graph.find_operator("logits")));
}

}  // namespace
}  // namespace espalier
