#include "espalier/plan/fragments.h"

#include <gmock/gmock.h>

#include "espalier/base/rng.h"
#include "espalier/graph/expand_backward.h"
#include "espalier/graph/text.h"
#include "espalier/plan/text.h"
#include "testing/random_graphs.h"
#include "testing/random_placements.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::random_placement;

Cluster two_devices() {
  return parse_cluster("2xV100-16GB");
}

// "gpu:0 {a b} after 0": a line for each fragment.
std::vector<std::string> lines_of(const PipelinePlan& plan, const Graph& graph, const Cluster& cluster) {
  std::vector<std::string> lines;
  for (const Stage& stage : plan.stages) {
    std::string line = cluster.device(stage.replicas[0].devices[0]).name + " {";
    for (const OperatorId op : stage.operators) line += (line.back() == '{' ? "" : " ") + graph.op(op).name;
    line += "}";
    for (const StageId before : stage.after) line += " " + std::to_string(before.index());
    lines.push_back(line);
  }
  return lines;
}

std::vector<std::string> fragments(const std::string& graph_text, const std::string& placement) {
  const Graph graph = parse_graph(graph_text);
  const Cluster cluster = two_devices();
  const Placement placed = parse_placement(placement, graph, cluster);
  EXPECT_THAT(check_placement(graph, cluster, placed), IsEmpty());
  const PipelinePlan plan = fragments_of(graph, placed, BatchSize(4));
  EXPECT_THAT(check_fragments(graph, cluster, placed, plan), IsEmpty());
  return lines_of(plan, graph, cluster);
}

TEST(Fragments, AreTheOperatorsOfADeviceAtALevel) {
  // The header's picture.
  EXPECT_THAT(fragments("x = input()\n"
                        "a = f(x)\n"
                        "b = f(a)\n"
                        "g = f(x)\n"
                        "c = f(b, g)\n"
                        "d = f(c)\n"
                        "e = f(b, d)\n",
                        "gpu:0 { a b e }\ngpu:1 { g c d }\n"),
              ElementsAre("gpu:0 {a b}", "gpu:1 {g}", "gpu:1 {c d} 0 1", "gpu:0 {e} 0 2"));
}

TEST(Fragments, OnOneDeviceThereIsOne) {
  EXPECT_THAT(fragments("x = input()\na = f(x)\nb = f(a)\nc = f(a, b)\n", "gpu:1 { a b c }\n"),
              ElementsAre("gpu:1 {a b c}"));
}

TEST(Fragments, TheLevelCountsTheMostChangesOfDeviceOnAPath) {
  // d reads b, two changes behind a, and a itself.
  EXPECT_THAT(
      fragments("x = input()\na = f(x)\nb = f(a)\nc = f(b)\nd = f(c, a)\n", "gpu:0 { a c }\ngpu:1 { b d }\n"),
      ElementsAre("gpu:0 {a}", "gpu:1 {b} 0", "gpu:0 {c} 1", "gpu:1 {d} 0 2"));
}

TEST(Fragments, LevelsOfAPlacementCutThem) {
  // Two layers of three time steps: a1 a2 a3 on one device, b1 b2 b3 on the other.
  const std::string net =
      "x = input()\na1 = f(x)\nb1 = f(a1)\na2 = f(a1)\nb2 = f(b1, a2)\na3 = f(a2)\nb3 = f(b2, a3)\n";
  EXPECT_THAT(fragments(net, "gpu:0 { a1 a2 a3 }\ngpu:1 { b1 b2 b3 }\n"),
              ElementsAre("gpu:0 {a1 a2 a3}", "gpu:1 {b1 b2 b3} 0"));
  EXPECT_THAT(fragments(net,
                        "gpu:0 level 0 { a1 }\ngpu:0 level 1 { a2 a3 }\ngpu:1 level 1 { b1 }\n"
                        "gpu:1 level 2 { b2 b3 }\n"),
              ElementsAre("gpu:0 {a1}", "gpu:0 {a2 a3} 0", "gpu:1 {b1} 0", "gpu:1 {b2 b3} 1 2"));
}

TEST(Fragments, WithLevelsOneMicroBatchRunsByLevel) {
  const Graph graph = parse_graph("x = input()\na = f(x)\nb = f(x)\nc = f(a, b)\nd = f(c)\n");
  const Cluster cluster = two_devices();
  const Placement placed = parse_placement(
      "gpu:0 level 0 { a }\ngpu:0 level 2 { b }\ngpu:1 level 3 { c }\ngpu:0 level 4 { d }\n", graph, cluster);
  const PipelinePlan plan = fragments_of(graph, placed, BatchSize(4));
  ASSERT_NE(plan.orders.lists(), nullptr);
  using enum ActionKind;
  const auto step = [](ActionKind kind, std::size_t fragment) { return Step(kind, StageId(fragment)); };
  EXPECT_THAT(*plan.orders.lists(),
              ElementsAre(ElementsAre(step(kForward, 0), step(kForward, 1), step(kForward, 3),
                                      step(kBackward, 3), step(kBackward, 1), step(kBackward, 0)),
                          ElementsAre(step(kForward, 2), step(kBackward, 2))));
  EXPECT_EQ(fragments_of(graph, placed, BatchSize(4), {{}, ScheduleKind::kGPipe}).orders,
            Orders(ScheduleKind::kGPipe));
  EXPECT_EQ(fragments_of(graph, placed, BatchSize(4), {BatchSize(2), {}}).orders, Orders());
}

TEST(Fragments, DuplicableOperatorsStandBesideTheirReaders) {
  // n reads m; both go where d and c are. k is read by nobody and stays.
  EXPECT_THAT(fragments("x = input()\n"
                        "m = ne(x) : bool[b] @duplicable\n"
                        "n = neg(m) : bool[b] @duplicable\n"
                        "k = ne(x) : bool[b] @duplicable\n"
                        "a = f(x)\n"
                        "c = f(a, m)\n"
                        "d = f(c, n)\n",
                        "gpu:0 { m n c }\ngpu:1 { k a d }\n"),
              ElementsAre("gpu:1 {k a}", "gpu:0 {m c} 0", "gpu:1 {m n d} 1"));
}

TEST(Fragments, WritersAndReadersOfMemoryKeepTheirOrder) {
  // c writes a's memory, which b reads before. b waits for the other device; so c waits for b, though what
  // it needs itself is there from the start.
  EXPECT_THAT(fragments("x = input()\n"
                        "a = f(x)\n"
                        "y = f(x)\n"
                        "b = f(a, y)\n"
                        "c = f_(a) @inplace\n"
                        "d = f(c)\n",
                        "gpu:0 { a b c d }\ngpu:1 { y }\n"),
              ElementsAre("gpu:0 {a}", "gpu:1 {y}", "gpu:0 {b c d} 0 1"));
}

TEST(Fragments, ReadersElsewhereWaitForTheWriter) {
  // b writes a's memory; c, which reads a afterwards, sees what b wrote. b itself waits for y.
  EXPECT_THAT(fragments("x = input()\n"
                        "a = f(x)\n"
                        "y = f(x)\n"
                        "b = f_(a, y) @inplace\n"
                        "c = f(a)\n"
                        "loss = mean(b, c)\n",
                        "gpu:0 { a b }\ngpu:1 { y c loss }\n"),
              ElementsAre("gpu:0 {a}", "gpu:1 {y}", "gpu:0 {b} 0 1", "gpu:1 {c loss} 0 2"));
}

TEST(Fragments, OneMicroBatchHasOneSlotAndSeveralHaveTheirLimits) {
  const Graph graph = parse_graph("x = input()\na = f(x)\nb = f(a)\nc = f(b)\n");
  const Cluster cluster = two_devices();
  const Placement placed = parse_placement("gpu:0 { a c }\ngpu:1 { b }\n", graph, cluster);
  const PipelinePlan one = fragments_of(graph, placed, BatchSize(8));
  EXPECT_EQ(one.stages[0].slots, 1U);
  EXPECT_EQ(one.stages[0].in_flight, 1U);
  const PipelinePlan four = fragments_of(graph, placed, BatchSize(8), {.micro_batch = BatchSize(2)});
  EXPECT_EQ(four.stages[0].slots, std::nullopt);
  EXPECT_THAT(four.stages[0].replicas[0].micro_batches, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(four.stages[0].in_flight, 3U) << "three fragments on the longest path";
  EXPECT_EQ(four.stages[2].in_flight, 1U);
}

TEST(Fragments, OfRandomPlacementsPassTheChecker) {
  Rng rng(1);
  std::size_t several = 0;
  for (int round = 0; round < 400; ++round) {
    const Graph graph = testing::random_graph(
        rng, {.operators = 1 + rng.below(25), .mutations = true, .max_batch = BatchSize(16)});
    const Cluster cluster = testing::random_cluster(rng);
    Placement placement = random_placement(rng, graph, cluster);
    if (round % 2 == 1) placement = testing::with_random_levels(rng, graph, std::move(placement));
    ASSERT_THAT(check_placement(graph, cluster, placement), IsEmpty());
    ASSERT_EQ(parse_placement(print_placement(placement, graph, cluster), graph, cluster), placement);
    const PipelinePlan plan = fragments_of(
        graph, placement, BatchSize(8),
        {.micro_batch = BatchSize(std::int64_t{8} >> rng.below(4)), .devices = cluster.devices().size()});
    ASSERT_THAT(check_fragments(graph, cluster, placement, plan), IsEmpty())
        << print_graph(graph) << print_placement(placement, graph, cluster);
    // As a plan of stages there is nothing wrong with it but groups that stand in several fragments.
    for (const std::string& line : check_plan(graph, cluster, plan)) {
      ASSERT_EQ(line.rfind("colocation", 0), 0U) << line;
    }
    several += plan.stages.size() > 2 ? 1 : 0;
  }
  EXPECT_GT(several, 200U);
}

TEST(Fragments, OfTrainingGraphsPassTheChecker) {
  Rng rng(2);
  std::size_t tried = 0;
  for (int round = 0; round < 100; ++round) {
    const Graph forward = testing::random_graph(
        rng, {.operators = 1 + rng.below(12), .views = false, .max_batch = BatchSize(16)});
    std::optional<Graph> graph;
    try {
      graph = expand_backward(forward,
                              {.colocation = rng.below(2) == 0 ? ExpandOptions::Colocation::kFree
                                                               : ExpandOptions::Colocation::kWithForward});
    } catch (const InputError&) {
      continue;  // nothing is trained
    }
    const Cluster cluster = testing::random_cluster(rng);
    const Placement placement = random_placement(rng, *graph, cluster);
    const PipelinePlan plan = fragments_of(*graph, placement, BatchSize(4));
    ASSERT_THAT(check_fragments(*graph, cluster, placement, plan), IsEmpty())
        << print_graph(*graph) << print_placement(placement, *graph, cluster);
    ++tried;
  }
  EXPECT_GT(tried, 50U);
}

TEST(Fragments, TheCheckerSeesWhatIsWrong) {
  const Graph graph =
      parse_graph("x = input()\nm = ne(x) : bool[b] @duplicable\na = f(x, m)\nb = f(a)\nc = f(b, m)\n");
  const Cluster cluster = two_devices();
  const Placement placed = parse_placement("gpu:0 { m a c }\ngpu:1 { b }\n", graph, cluster);
  const PipelinePlan good = fragments_of(graph, placed, BatchSize(4));
  ASSERT_THAT(check_fragments(graph, cluster, placed, good), IsEmpty());
  const auto rule_of = [&](auto change) {
    PipelinePlan plan = good;
    change(plan);
    const std::vector<std::string> found = check_fragments(graph, cluster, placed, plan);
    return found.empty() ? "" : found[0].substr(0, found[0].find(' '));
  };
  EXPECT_EQ(rule_of([](PipelinePlan& p) { p.stages[1].name = p.stages[0].name; }), "named");
  EXPECT_EQ(rule_of([](PipelinePlan& p) { p.stages[1].replicas[0].devices = {DeviceId(7)}; }), "devices");
  EXPECT_EQ(rule_of([](PipelinePlan& p) { p.stages[1].replicas[0].devices = {DeviceId(0)}; }), "covered");
  EXPECT_EQ(rule_of([](PipelinePlan& p) { p.stages[1].micro_batch = BatchSize(2); }), "micro-batch");
  EXPECT_EQ(rule_of([](PipelinePlan& p) { p.stages[0].replicas[0].micro_batches = {}; }), "devices");
  EXPECT_EQ(rule_of([](PipelinePlan& p) { p.stages[0].recompute = {OperatorId(1)}; }), "devices");
  EXPECT_EQ(rule_of([](PipelinePlan& p) { p.stages[2].operators.erase(p.stages[2].operators.begin()); }),
            "covered")
      << "the mask is missing where it is read";
  EXPECT_EQ(rule_of([](PipelinePlan& p) {
              p.stages[1].operators.insert(p.stages[1].operators.begin(), OperatorId(0));
            }),
            "covered")
      << "a mask that nobody reads there";
  EXPECT_EQ(rule_of([](PipelinePlan& p) {  // everything of gpu:0 in one fragment
              p.stages[0].operators.push_back(OperatorId(3));
              p.stages.pop_back();
            }),
            "level");
  EXPECT_EQ(rule_of([](PipelinePlan& p) { p.stages[2].after = {}; }), "ordered");
  EXPECT_EQ(rule_of([](PipelinePlan& p) { p.stages[2].after = {StageId(0), StageId(1)}; }), "ordered");
}

// ---- with costs ----

CostTable analytic(const Graph& graph, const Cluster& cluster, BatchSize size) {
  return complete_costs(graph, cluster, CostTable(CostTableParts{}), std::span(&size, 1));
}

TEST(StagedPlacement, FragmentsOfADeviceShareTheirParameters) {
  // w (400 bytes) is read by a and c on gpu:0 and by b on gpu:1; s (40 bytes) by a and c.
  const Graph graph = parse_graph(
      "x = input() : f32[b]\n"
      "w = parameter(w) : f32[100]\n"
      "v = parameter(v) : f32[10]\n"
      "s = buffer(s) : f32[10]\n"
      "a = f(x, w, s) : f32[b]\n"
      "b = f(a, w) : f32[b]\n"
      "c = f(b, w, s, v) : f32[b]\n"
      "loss = mean(c)\n");
  const Cluster cluster = two_devices();
  const Placement placed = parse_placement("gpu:0 { a c loss }\ngpu:1 { b }\n", graph, cluster);
  Training training;
  training.batch = BatchSize(4);
  const PipelinePlan plan = fragments_of(graph, placed, training.batch);
  const CostTable costs = analytic(graph, cluster, training.batch);
  const StagedModel model = stage_placement(graph, cluster, costs, training, plan);
  EXPECT_THAT(check_staged_model(model, cluster), IsEmpty());
  ASSERT_EQ(model.stages.size(), 3U);
  EXPECT_EQ(model.stages[0].memory.parameters, Bytes(400));
  EXPECT_EQ(model.stages[1].memory.parameters, Bytes(400));
  EXPECT_EQ(model.stages[2].memory.parameters, Bytes(40)) << "v alone: w stands there already";
  EXPECT_EQ(model.stages[2].memory.gradients, Bytes(40));
  EXPECT_EQ(model.stages[2].memory.optimizer_state, Bytes(80));
  EXPECT_EQ(model.stages[0].memory.buffers, Bytes(40));
  EXPECT_EQ(model.stages[2].memory.buffers, Bytes(0));
  ASSERT_EQ(model.ties.size(), 1U);
  EXPECT_THAT(model.ties[0].stages, ElementsAre(StageId(0), StageId(1))) << "one of each device";
  // As stages of their own they would have a copy each.
  EXPECT_EQ(stage_model(graph, cluster, costs, training, plan).stages[2].memory.parameters, Bytes(440));
}

TEST(StagedPlacement, OnOneDeviceIsOneStage) {
  Rng rng(3);
  for (int round = 0; round < 50; ++round) {
    const Graph graph = testing::random_graph(rng, {.mutations = true, .max_batch = BatchSize(16)});
    const Cluster cluster = two_devices();
    Training training;
    training.batch = BatchSize(4);
    const CostTable costs = analytic(graph, cluster, training.batch);
    const Placement placed{std::vector<DeviceId>(graph.operators().size(), DeviceId(1))};
    const PipelinePlan plan = fragments_of(graph, placed, training.batch);
    ASSERT_EQ(plan.stages.size(), 1U);
    EXPECT_EQ(plan.stages[0].operators.size(), graph.operators().size());
    EXPECT_EQ(stage_placement(graph, cluster, costs, training, plan),
              stage_model(graph, cluster, costs, training, plan));
  }
}

TEST(StagedPlacement, EachDeviceHoldsEachParameterThatItReadsOnce) {
  Rng rng(4);
  for (int round = 0; round < 100; ++round) {
    const Graph graph =
        testing::random_graph(rng, {.operators = 20, .mutations = true, .max_batch = BatchSize(16)});
    const Cluster cluster = testing::random_cluster(rng);
    const Placement placed = random_placement(rng, graph, cluster);
    Training training;
    training.batch = BatchSize(4);
    const PipelinePlan plan = fragments_of(graph, placed, training.batch);
    const StagedModel model =
        stage_placement(graph, cluster, analytic(graph, cluster, training.batch), training, plan);
    std::vector<Bytes> held(cluster.devices().size()), expected(cluster.devices().size());
    for (const StagedStage& stage : model.stages) {
      held[stage.replicas[0].devices[0].index()] += stage.memory.parameters + stage.memory.buffers;
    }
    std::set<std::pair<DeviceId, StorageId>> seen;
    for (const Stage& stage : plan.stages) {
      for (const OperatorId op : stage.operators) {
        for (const TensorId input : graph.op(op).inputs) {
          const Tensor& tensor = graph.tensor(input);
          if (tensor.role == TensorRole::kActivation || tensor.role == TensorRole::kInput) continue;
          const DeviceId device = stage.replicas[0].devices[0];
          if (seen.emplace(device, tensor.storage).second) {
            expected[device.index()] += tensor.bytes(training.batch);
          }
        }
      }
    }
    ASSERT_EQ(held, expected) << print_graph(graph);
    for (const Tie& tie : model.ties) {
      std::set<DeviceId> devices;
      for (const StageId stage : tie.stages) {
        ASSERT_TRUE(devices.insert(model.stages[stage.index()].replicas[0].devices[0]).second);
      }
    }
  }
}

TEST(StagedPlacement, BackwardOfATrainingGraphTakesNoTime) {
  const Graph graph = expand_backward(
      parse_graph("x = input() : f32[b]\nw = parameter(w) : f32[9]\na = f(x, w) : f32[b]\nloss = mean(a)\n"));
  const Cluster cluster = parse_cluster("1xV100-16GB");
  CostTableParts parts = analytic(graph, cluster, BatchSize(4)).parts();
  parts.overheads = {{"V100-16GB", microseconds(100), 0, {}, {}}};
  Training training;
  training.batch = BatchSize(4);
  const Placement placed{std::vector<DeviceId>(graph.operators().size(), DeviceId(0))};
  const StagedModel model = stage_placement(graph, cluster, CostTable(parts), training,
                                            fragments_of(graph, placed, training.batch));
  EXPECT_EQ(model.stages[0].replicas[0].times.backward(), Duration());
  EXPECT_GE(model.stages[0].replicas[0].times.forward, microseconds(100));
}

TEST(StagedPlacement, ListsHaveUpdatesAtTheirEnd) {
  StagedModel model;
  model.stages.resize(2);
  model.stages[1].name = "late";
  const Cluster cluster = two_devices();
  const auto found = [&](std::vector<Step> list) {
    model.orders = Orders(OrderLists{{}, std::move(list)});
    return check_fragment_orders(model, cluster);
  };
  const Step f{ActionKind::kForward, StageId(1)}, b{ActionKind::kBackward, StageId(1)},
      u{ActionKind::kUpdate, StageId(0)};
  EXPECT_THAT(found({f, b, u}), IsEmpty());
  EXPECT_THAT(found({f, b, u, Step(TieId(0))}), IsEmpty());
  EXPECT_THAT(found({f, u, b}),
              ElementsAre("order on gpu:1 U stands before B of 'late'; the fragments of a device share their "
                          "parameters, so it belongs behind"));
  model.orders = Orders(OrderRule());
  EXPECT_THAT(check_fragment_orders(model, cluster), IsEmpty());
}

TEST(StagedPlacement, TheFirstMissingCellIsNamed) {
  const Graph graph = parse_graph("x = input()\na = f(x) @class=one\nb = f(a) @class=two\n");
  const Cluster cluster = parse_cluster("1xV100-16GB+1xA100-80GB");
  const Placement placed = parse_placement("gpu:0 { a }\ngpu:1 { b }\n", graph, cluster);
  const PipelinePlan plan = fragments_of(graph, placed, BatchSize(4));
  CostTableParts parts = analytic(graph, cluster, BatchSize(4)).parts();
  EXPECT_EQ(missing_cell(graph, cluster, CostTable(parts), plan), std::nullopt);
  std::erase_if(parts.rows,
                [](const CostRow& row) { return row.op_class == "two" && row.kind != "V100-16GB"; });
  const auto cell = missing_cell(graph, cluster, CostTable(parts), plan);
  ASSERT_TRUE(cell.has_value());
  EXPECT_EQ(cell->op, OperatorId(1));
  EXPECT_EQ(cell->kind, cluster.device(DeviceId(1)).kind);
}

}  // namespace
}  // namespace espalier
