#include "espalier/learned/placeto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "espalier/base/rng.h"
#include "espalier/learned/placeto_graph.h"
#include "espalier/learned/placeto_net.h"
#include "espalier/learned/placeto_pass.h"
#include "espalier/learned/towers_for_tests.h"
#include "espalier/learned/workload.h"
#include "espalier/planners/placement/memory_ledger.h"
#include "espalier/zoo/task_families.h"

namespace espalier::placement {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

PlacerInput tower_input(std::uint64_t seed = 1) {
  return {.graph = two_towers().graph, .instance = two_towers().instance, .seed = seed};
}

PlacetoOptions few_nodes(std::uint64_t episodes) {
  PlacetoOptions options;
  options.most_nodes = 12;
  options.episodes = episodes;
  return options;
}

std::size_t count_nodes(const PlacetoOptions& options) {
  return make_placeto_graph(two_towers().graph, two_towers().instance, options.most_nodes).nodes;
}

bool all_held_fits(const Instance& instance, const Assignment& assignment) {
  Scratch scratch;
  return Engine(instance, {.memory = Rules::Memory::kAllHeld}).evaluate(assignment, scratch).fits;
}

// ---- The graph as a policy sees it

// 0 → 1 → 3, 0 → 2 → 3, and 4 alone.
PlacetoGraph diamond() {
  PlacetoGraph graph;
  graph.nodes = 5;
  graph.devices = 2;
  for (std::uint32_t n = 0; n < 5; ++n) graph.first.emplace_back(n);
  graph.sequence = {0, 1, 2, 3, 4};
  const std::vector<std::vector<std::uint32_t>> before{{}, {0}, {0}, {1, 2}, {}},
      after{{1, 2}, {3}, {3}, {}, {}};
  for (std::size_t n = 0; n < 5; ++n) {
    graph.before.items.insert(graph.before.items.end(), before[n].begin(), before[n].end());
    graph.before.close();
    graph.after.items.insert(graph.after.items.end(), after[n].begin(), after[n].end());
    graph.after.close();
  }
  graph.cost = {1, 0.5, 0.25, 0.5, 0.125};
  graph.output = {1, 0, 0.5, 0, 0};
  graph.allowed = {1, 1, 1, 1, 1, 1, 1, 1, 0, 1};  // 4: the second device only
  return graph;
}

TEST(PlacetoGraph, MeansAreOverThoseBeforeAfterAndBeside) {
  const std::vector<float> rows = pooling_rows(diamond());
  const auto row = [&](std::size_t node, std::size_t kind) {
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>((node * 3 + kind) * 5);
    return std::vector<float>(begin, begin + 5);
  };
  EXPECT_THAT(row(1, 0), ElementsAre(1, 0, 0, 0, 0));
  EXPECT_THAT(row(1, 1), ElementsAre(0, 0, 0, 1, 0));
  EXPECT_THAT(row(1, 2), ElementsAre(0, 0, 0.5F, 0, 0.5F));
  EXPECT_THAT(row(3, 1), Each(0));
}

TEST(PlacetoGraph, FeaturesAreRelativeToTheCurrentNode) {
  const std::vector<Duration> start{Duration(0), Duration(10), Duration(20), Duration(40), Duration(0)};
  const std::vector<DeviceId> device{DeviceId(0), DeviceId(1), DeviceId(0), DeviceId(0), DeviceId(1)};
  const std::vector<char> placed{1, 0, 0, 0, 0};
  std::vector<float> rows;
  append_features(diamond(), start, device, placed, 2, rows);
  ASSERT_EQ(rows.size(), 5U * 7U);
  // cost, output, placed, current, start less that of node 2 over the furthest (20), devices.
  EXPECT_THAT(std::vector<float>(rows.begin(), rows.begin() + 7), ElementsAre(1, 1, 1, 0, -1, 1, 0));
  EXPECT_THAT(std::vector<float>(rows.begin() + 14, rows.begin() + 21),
              ElementsAre(0.25F, 0.5F, 0, 1, 0, 1, 0));
  EXPECT_THAT(std::vector<float>(rows.begin() + 7, rows.begin() + 14),
              ElementsAre(0.5F, 0, 0, 0, -0.5F, 0, 1));
}

TEST(PlacetoGraph, EdgesOfARealInstanceLeadFromEarlierToLater) {
  const PlacetoGraph graph = make_placeto_graph(two_towers().graph, two_towers().instance, 12);
  EXPECT_EQ(graph.nodes, graph.clusters.count);
  std::vector<std::size_t> place(graph.nodes);
  for (std::size_t i = 0; i < graph.nodes; ++i) place[graph.sequence[i]] = i;
  std::size_t edges = 0;
  for (std::size_t n = 0; n < graph.nodes; ++n) {
    for (const std::uint32_t from : graph.before[n]) EXPECT_LT(place[from], place[n]);
    edges += graph.before[n].size();
  }
  EXPECT_EQ(edges, graph.after.items.size());
  EXPECT_GT(edges, 0U);
}

TEST(PlacetoGraph, AnchorsAreTheNearestOfTheirSets) {
  const PlacetoGraph graph = diamond();
  const Anchors anchors = draw_anchors(graph, 3);
  ASSERT_EQ(anchors.sets, 4U);  // two of two nodes, two of one
  for (std::size_t s = 0; s < anchors.sets; ++s) {
    std::size_t members = 0;
    for (std::size_t n = 0; n < graph.nodes; ++n) {
      const float near = anchors.closeness[n * anchors.sets + s];
      members += near == 1 ? 1 : 0;
      if (near == 1) {
        EXPECT_EQ(anchors.nearest[n * anchors.sets + s], n);
      }
    }
    EXPECT_EQ(members, s < 2 ? 2U : 1U);
  }
}

// ---- Message passing

std::vector<double> relu_of(const at::Tensor& weights, const at::Tensor& biases, std::int64_t layer,
                            const std::vector<double>& in) {
  std::vector<double> out;
  for (std::int64_t j = 0; j < static_cast<std::int64_t>(kPlacetoWidth); ++j) {
    double sum = biases[layer][j].item<double>();
    for (std::size_t i = 0; i < in.size(); ++i)
      sum += in[i] * weights[layer][static_cast<std::int64_t>(i)][j].item<double>();
    out.push_back(std::max(0.0, sum));
  }
  return out;
}

// hʳ[node] as placeto_pass.h defines it, by recursion.
std::vector<double> state_of(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& biases,
                             const Lists<std::uint32_t>& heard, std::size_t round, std::uint32_t node) {
  std::vector<double> own, sum(kPlacetoWidth);
  for (std::int64_t j = 0; j < static_cast<std::int64_t>(kPlacetoWidth); ++j)
    own.push_back(x[node][j].item<double>());
  if (round == 0) return own;
  for (const std::uint32_t from : heard[node]) {
    const std::vector<double> h = state_of(x, weights, biases, heard, round - 1, from);
    const std::vector<double> message = relu_of(weights, biases, 3, relu_of(weights, biases, 2, h));
    for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += message[j];
  }
  const std::vector<double> update = relu_of(weights, biases, 1, relu_of(weights, biases, 0, sum));
  for (std::size_t j = 0; j < own.size(); ++j) own[j] += update[j];
  return own;
}

// Numbers in [-1, 1) that keep a distance from 0, so that small steps do not cross a relu's corner for sure.
at::Tensor drawn(std::uint64_t seed, at::IntArrayRef sizes) {
  return drawn_weight(seed, sizes, 0.7, at::kCPU);
}

constexpr auto kTestWidth = static_cast<std::int64_t>(kPlacetoWidth);

struct SmallPass {
  PlacetoGraph graph = diamond();
  at::Tensor x = drawn(1, {2, 5, kTestWidth}), weights = drawn(2, {4, kTestWidth, kTestWidth}),
             biases = drawn(3, {4, kTestWidth});
};

TEST(PlacetoPass, BothDirectionsEqualTheRecursion) {
  const SmallPass small;
  for (const PassDirection direction : {PassDirection::kForward, PassDirection::kBackward}) {
    for (const std::size_t rounds : {0U, 1U, 3U}) {
      const at::Tensor h =
          directed_pass(small.x, small.weights, small.biases, directed_edges(small.graph, direction, rounds));
      const Lists<std::uint32_t>& heard =
          direction == PassDirection::kForward ? small.graph.before : small.graph.after;
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::uint32_t n = 0; n < 5; ++n) {
          const std::vector<double> plain =
              state_of(small.x[b], small.weights, small.biases, heard, rounds, n);
          for (std::int64_t j = 0; j < kTestWidth; ++j)
            EXPECT_NEAR(h[b][n][j].item<double>(), plain[static_cast<std::size_t>(j)], 1e-4);
        }
      }
    }
  }
}

// The slope of f along numbers of `leaf`, 32 at most, by differences, is that of autograd. Where a relu's
// corner lies between the two sides, halves differ: those numbers are left out, and few they are.
void expect_slopes(const std::function<at::Tensor()>& f, const at::Tensor& leaf, const std::string& name) {
  const at::Tensor slope = torch::autograd::grad({f()}, {leaf}).front().reshape({-1});
  const at::NoGradGuard guard;
  at::Tensor numbers = leaf.view({-1});
  const double step = 4e-3;
  const std::int64_t stride = (numbers.numel() + 31) / 32;
  std::int64_t compared = 0, tried = 0;
  for (std::int64_t i = 0; i < numbers.numel(); i += stride, ++tried) {
    const double before = numbers[i].item<double>();
    const auto at_offset = [&](double offset) {
      numbers[i].fill_(before + offset);
      const double value = f().item<double>();
      numbers[i].fill_(before);
      return value;
    };
    const double up = (at_offset(step) - at_offset(0)) / step,
                 down = (at_offset(0) - at_offset(-step)) / step;
    if (std::abs(up - down) > 0.02 * (1 + std::abs(up))) continue;
    ++compared;
    EXPECT_NEAR(slope[i].item<double>(), (up + down) / 2, 0.02 * (1 + std::abs(up))) << name << ' ' << i;
  }
  EXPECT_GE(2 * compared, tried) << name;
}

TEST(PlacetoPass, GradientsEqualDifferences) {
  const SmallPass small;
  const DirectedEdges edges = directed_edges(small.graph, PassDirection::kForward, 2);
  const at::Tensor shares = drawn(4, {2, 5, kTestWidth}).detach();
  const auto f = [&] { return (directed_pass(small.x, small.weights, small.biases, edges) * shares).sum(); };
  expect_slopes(f, small.x, "x");
  expect_slopes(f, small.weights, "weights");
  expect_slopes(f, small.biases, "biases");
}

// ---- The net

struct SmallPlacetoNet {
  PlacetoGraph graph = diamond();
  PlacetoNet net;
  at::Tensor features = drawn(5, {3, 5, 7}).detach(), current = at::tensor({0, 3, 4}, at::kLong);
  explicit SmallPlacetoNet(PlacetoEmbedding embedding) : net(graph, embedding, 2, 6) {}

  // Away from the uniform policy that a net begins with.
  void move_last_layer() {
    const at::NoGradGuard guard;
    for (const auto& [name, weight] : net.weights()) {
      if (name.starts_with("devices")) weight.copy_(drawn(7, weight.sizes()));
    }
  }
};

constexpr PlacetoEmbedding kEveryEmbedding[] = {PlacetoEmbedding::kMessagePassing,
                                                PlacetoEmbedding::kGraphSage, PlacetoEmbedding::kPGnn};

TEST(PlacetoNet, BeginsUniformOnTheDevicesThatANodeMayStandOn) {
  for (const PlacetoEmbedding embedding : kEveryEmbedding) {
    const SmallPlacetoNet small(embedding);
    const at::Tensor chance = at::softmax(small.net.logits(small.features, small.current), 1);
    EXPECT_EQ(chance[0][0].item<float>(), 0.5F);
    EXPECT_EQ(chance[1][1].item<float>(), 0.5F);
    EXPECT_EQ(chance[2][0].item<float>(), 0.0F);
    EXPECT_EQ(chance[2][1].item<float>(), 1.0F);
  }
}

TEST(PlacetoNet, GradientsEqualDifferences) {
  for (const PlacetoEmbedding embedding : kEveryEmbedding) {
    SmallPlacetoNet small(embedding);
    small.move_last_layer();
    const auto f = [&] {
      const at::Tensor all =
          at::log_softmax(small.net.logits(small.features, small.current).slice(0, 0, 2), 1);
      return all.select(1, 0).sum() - (at::exp(all) * all).sum();
    };
    for (const auto& [name, weight] : small.net.weights())
      expect_slopes(f, weight, std::string(to_text(embedding)) + " " + name);
  }
}

// ---- Walks

TEST(Placeto, WithoutLearningItIsTheUniformWalk) {
  PlacetoOptions options;
  options.learning_rate = options.last_learning_rate = 1e-300;
  options.entropy = 0;
  const Engine engine(two_towers().instance, {.memory = Rules::Memory::kAllHeld});
  double learnt = 0, uniform = 0;
  const std::uint64_t looks = 6 * two_towers().instance.units() + 1;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    std::vector<PlacetoPoint> points;
    options.told = [&](const PlacetoPoint& point) { points.push_back(point); };
    const OrderedOptions run{.seed = seed, .looks = looks};
    Context of_policy, of_walk;
    const Placed placed = placeto_in_order(two_towers().graph, engine, options, run, of_policy);
    const Placed walked =
        place_in_order(two_towers().graph, engine, OrderedPlacer::kUniformWalk, run, of_walk);
    EXPECT_EQ(of_policy.states, of_walk.states);
    EXPECT_EQ(points.size(), 6U);  // the last is cut off by as many looks as there were ways back
    for (const PlacetoPoint& point : points) EXPECT_NEAR(point.entropy, 1, 1e-6);
    learnt += std::log(static_cast<double>(placed.estimate->count())) / 12;
    uniform += std::log(static_cast<double>(walked.estimate->count())) / 12;
  }
  EXPECT_NEAR(learnt, uniform, 0.03);
}

// Messages take three times as long as the work: most moves of a uniform walk hurt, which can be learnt.
const Imported& costly_messages() {
  static const Imported kModel =
      build_task_family(*find_task_family("layered"), {{"seed", 1}, {"communication", 300}});
  return kModel;
}

TEST(Placeto, LearningPaysAgainstTheUniformWalkOfEqualLooks) {
  const Imported& model = costly_messages();
  Training training;
  training.batch = model.graph.batch().min;
  const Instance instance =
      make_instance(model.graph, *model.cluster, *model.costs, training, {.micro_batch = training.batch});
  const Engine engine(instance, placeto_rules());
  double learnt = 0, uniform = 0, gain = 0, flipped_gain = 0;
  PlacetoOptions options, flipped;
  flipped.reward = PlacetoReward::kSlower;
  options.told = [&](const PlacetoPoint& point) { gain += point.gain; };
  flipped.told = [&](const PlacetoPoint& point) { flipped_gain += point.gain; };
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    const OrderedOptions run{.seed = seed, .looks = 30 * instance.units() + 1};
    Context context;
    learnt += to_seconds(*placeto_in_order(model.graph, engine, options, run, context).estimate);
    uniform +=
        to_seconds(*place_in_order(model.graph, engine, OrderedPlacer::kUniformWalk, run, context).estimate);
    placeto_in_order(model.graph, engine, flipped, run, context);
  }
  EXPECT_LT(learnt, 0.97 * uniform);
  EXPECT_GT(gain, flipped_gain + 3);  // of 60 episodes: ln
}

TEST(Placeto, TheFirstEpisodeTeaches) {
  // Two episodes: what the second one's policy has learnt, it has from the first.
  PlacetoOptions options = few_nodes(2);
  options.entropy = 0;
  std::vector<PlacetoPoint> points;
  options.told = [&](const PlacetoPoint& point) { points.push_back(point); };
  Context context;
  placeto(tower_input(), options, context);
  ASSERT_EQ(points.size(), 2U);
  EXPECT_NEAR(points[0].entropy, 1, 1e-6);
  EXPECT_LT(points[1].entropy, 1 - 1e-6);
}

TEST(Placeto, EvaluationsTakeLooksAndTeachNothing) {
  PlacetoOptions options = few_nodes(4);
  options.evaluate_every = 2;
  options.entropy = 0;
  std::vector<PlacetoPoint> points;
  options.told = [&](const PlacetoPoint& point) { points.push_back(point); };
  Context context;
  placeto(tower_input(), options, context);
  const std::uint64_t nodes = count_nodes(options);
  ASSERT_EQ(points.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(points[i].evaluation, i % 2 == 1);
    EXPECT_EQ(points[i].states, 1 + (i + 1) * nodes + i);
  }
  EXPECT_EQ(points[0].best, points[1].best);
}

TEST(Placeto, BudgetsAreKeptToTheLastState) {
  for (const std::uint64_t most : {0U, 1U, 2U, 37U}) {
    for (const std::uint64_t episodes : {0U, 400U}) {
      Context context;
      context.budget.max_states = most;
      std::uint64_t told = 0;
      PlacetoOptions options = few_nodes(episodes);
      options.told = [&](const PlacetoPoint& point) { told = point.states; };
      const Placed placed = placeto(tower_input(), options, context);
      EXPECT_EQ(context.states, most);
      EXPECT_EQ(placed.assignment.has_value(), most > 0);
      EXPECT_EQ(placed.why.empty(), most > 0);
      EXPECT_EQ(told, most > 1 ? most : 0U);  // an episode that was cut off is told of too
    }
  }
}

TEST(Placeto, TheSameSeedGivesTheSameBytesForAnyThreads) {
  for (const PlacetoEmbedding embedding : kEveryEmbedding) {
    PlacetoOptions options = few_nodes(3);
    options.embedding = embedding;
    const auto placed_with = [&](ThreadPool* pool) {
      std::vector<std::vector<PlacetoPoint>> points(4);
      std::vector<Placed> placed(4);
      Context context;
      context.pool = pool;
      context.for_each(4, [&](std::size_t i, Context& own) {
        PlacetoOptions told = options;
        told.told = [&](const PlacetoPoint& point) { points[i].push_back(point); };
        placed[i] = placeto(tower_input(i / 2), told, own);
      });
      EXPECT_EQ(points[0], points[1]);
      EXPECT_EQ(placed[0].assignment, placed[1].assignment);
      return points;
    };
    ThreadPool three(3);
    EXPECT_EQ(placed_with(nullptr), placed_with(&three));
  }
}

TEST(Placeto, PlacementsFitAndNodesStandWhereTheyMay) {
  Instance instance = two_towers().instance;
  instance.allowed = {};
  for (std::size_t u = 0; u < instance.units(); ++u) {
    for (std::size_t d = u % 3 == 0 ? 1 : 0; d < 2; ++d) instance.allowed.items.emplace_back(d);
    instance.allowed.close();
  }
  Context context;
  const Placed placed = placeto({.graph = two_towers().graph, .instance = instance}, few_nodes(2), context);
  ASSERT_TRUE(placed.assignment.has_value()) << placed.why;
  EXPECT_TRUE(all_held_fits(instance, *placed.assignment));
  for (std::size_t u = 0; u < instance.units(); u += 3) EXPECT_EQ((*placed.assignment)[u], DeviceId(1));
  const Rules rules{.memory = Rules::Memory::kAllHeld};
  const Timeline line = timeline(Engine(instance, rules), *placed.assignment);
  EXPECT_THAT(check_timeline(instance, rules, *placed.assignment, line), ::testing::IsEmpty());
  EXPECT_EQ(line.evaluated.time, *placed.estimate);
}

TEST(Placeto, RepairsTheNearestOrSaysWhatLacks) {
  Instance instance = two_towers().instance;
  MemoryLedger ledger(instance);
  for (std::size_t u = 0; u < instance.units(); ++u) ledger.place(UnitId(u), DeviceId(0));
  std::fill(instance.memory.begin(), instance.memory.end(),
            Bytes(ledger.needs(DeviceId(0)).count() * 65 / 100));
  Context one, other;
  one.budget.max_states = 1;  // all on the first device
  const Placed repaired = placeto({.graph = two_towers().graph, .instance = instance}, few_nodes(1), one);
  ASSERT_TRUE(repaired.assignment.has_value()) << repaired.why;
  EXPECT_TRUE(all_held_fits(instance, *repaired.assignment));
  std::fill(instance.memory.begin(), instance.memory.end(), Bytes(1000));
  const Placed none = placeto({.graph = two_towers().graph, .instance = instance}, few_nodes(1), other);
  EXPECT_FALSE(none.assignment.has_value());
  EXPECT_FALSE(none.why.empty());
}

TEST(Placeto, SettingsHaveNames) {
  for (const PlacetoEmbedding embedding : kEveryEmbedding)
    EXPECT_EQ(parse_placeto_embedding(to_text(embedding)), embedding);
  EXPECT_EQ(parse_placeto_embedding("rnn"), std::nullopt);
  EXPECT_EQ(placeto_by_name("placeto-p-gnn")->embedding, PlacetoEmbedding::kPGnn);
  EXPECT_EQ(placeto_by_name("placeto")->evaluate_every, 0U);
  EXPECT_EQ(placeto_by_name("placeto-literature")->evaluate_every, 5U);
  EXPECT_EQ(placeto_by_name("placeto-literature")->reward, PlacetoReward::kFaster);
  EXPECT_EQ(placeto_by_name("placeto-flipped")->reward, PlacetoReward::kSlower);
  EXPECT_EQ(placeto_by_name("placeto-message-passing")->discount, 0);
  EXPECT_EQ(placeto_by_name("placet"), std::nullopt);
}

}  // namespace
}  // namespace espalier::placement
