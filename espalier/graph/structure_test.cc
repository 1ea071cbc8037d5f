#include "espalier/graph/structure.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <string>

#include "espalier/base/rng.h"
#include "espalier/graph/text.h"
#include "testing/random_graphs.h"

namespace espalier {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// 100 for each operator, but what the list says.
std::vector<Weight> weights_of(const Graph& graph,
                               std::initializer_list<std::pair<const char*, std::int64_t>> others = {}) {
  std::vector<Weight> weights(graph.operators().size(), Weight(100));
  for (const auto& [name, weight] : others) {
    weights[graph.find_operator(name).value().index()] = Weight(weight);
  }
  return weights;
}

Structure checked(const Graph& graph, const std::vector<Weight>& weights,
                  const StructureOptions& options = {}) {
  Structure structure = make_structure(graph, weights, options);
  EXPECT_THAT(check_structure(structure, graph, weights), IsEmpty()) << print_graph(graph);
  return structure;
}

std::string text_of(const std::string& lines,
                    std::initializer_list<std::pair<const char*, std::int64_t>> others = {}) {
  const Graph graph = parse_graph(lines);
  return to_text(checked(graph, weights_of(graph, others)), graph);
}

// ---- What decides

TEST(Structure, OfTwoTowersAndAHead) {
  EXPECT_EQ(text_of("x = input()\ny = input()\n"
                    "img = f(x)\nimg2 = f(img)\ntxt = f(y)\n"
                    "sims = g(img2, txt)\nloss = mean(sims)\n"),
            "series(parallel(series(img, img2), txt), sims, loss)");
}

TEST(Structure, AScalarTemperatureHidesNoTower) {
  // As the transformers package exports CLIP: exp(logit_scale) stands beside both towers and their product.
  EXPECT_EQ(text_of("x = input()\ny = input()\nscale = parameter(logit_scale) : f32[]\n"
                    "img = f(x)\ntxt = f(y)\n"
                    "temperature = exp(scale) : f32[]\n"
                    "sims = g(img, txt)\nlogits = mul(sims, temperature)\nloss = mean(logits)\n",
                    {{"temperature", 1}}),
            "series(parallel(img, txt), sims, logits+temperature, loss)");
}

TEST(Structure, AScalarThatBothTowersReadStandsBeforeThem) {
  EXPECT_EQ(text_of("x = input()\ny = input()\nscale = parameter(s) : f32[]\n"
                    "t = exp(scale) : f32[]\n"
                    "img = f(x)\nimg2 = mul(img, t)\ntxt = f(y)\ntxt2 = mul(txt, t)\n"
                    "loss = g(img2, txt2)\n",
                    {{"t", 1}}),
            "series(t, parallel(series(img, img2), series(txt, txt2)), loss)");
}

TEST(Structure, WhatReadsSeveralBranchesStandsBehindThem) {
  // The view of both goes to the join; the mean of both towers' starts waits for nobody's structure.
  EXPECT_EQ(text_of("x = input()\n"
                    "a = f(x)\nc = f(a)\nd = f(a)\n"
                    "norm = g(c, d) : f32[]\n"
                    "c2 = f(c)\nd2 = f(d)\n"
                    "e = g(c2, d2, norm)\nloss = mean(e)\n",
                    {{"norm", 1}}),
            "series(a, parallel(series(c, c2), series(d, d2)), e+norm, loss)");
}

TEST(Structure, LightBranchesBesideHeavyOnesAreCarried) {
  EXPECT_EQ(text_of("x = input()\na = f(x)\nv = view(a) @view\nh = f(a)\ny = add(h, v)\n", {{"v", 0}}),
            "series(a+v, h, y)");
}

TEST(Structure, OperatorsOfOneWeightAreAllCarriedOrNone) {
  const Graph graph = parse_graph("x = input()\na = f(x)\nc = f(x)\nd = f(x)\ne = g(a, c, d)\n");
  const auto weights = weights_of(graph, {{"a", 4}, {"c", 4}, {"d", 4}, {"e", 988}});
  EXPECT_EQ(to_text(checked(graph, weights, {.carried_per_mille = 10}), graph),
            "series(parallel(a, c, d), e)");
  EXPECT_EQ(to_text(checked(graph, weights, {.carried_per_mille = 12}), graph), "e+a+c+d");
}

TEST(Structure, WhereNothingWeighsAnythingAllCountTheSame) {
  const Graph graph = parse_graph("x = input()\na = f(x)\nc = f(a)\nd = f(a)\ne = g(c, d)\n");
  const std::vector<Weight> weights(4);
  const Structure structure = checked(graph, weights);
  EXPECT_EQ(to_text(structure, graph), "series(a, parallel(c, d), e)");
  EXPECT_EQ(structure.longest_path, Weight(3));
}

TEST(Structure, DuplicablesAreOutsideAndSideOperatorsAreCarried) {
  EXPECT_EQ(text_of("x = input()\nk = constant() : i64[4]\n"
                    "m = mask(k) : i64[4] @duplicable\n"
                    "a = f(x, m)\n"
                    "accuracy = f(a, m)\n"
                    "h = f(a)\n"
                    "loss = mean(h, m)\n"),
            "series(a+accuracy, h, loss)");
}

TEST(Structure, ColocatedOperatorsAreOneLeafWithWhatLiesBetween) {
  EXPECT_EQ(text_of("x = input()\na = f(x)\nc = f(a) @colocate=0\nd = f(c)\ne = f(d) @colocate=0\nh = f(a)\n"
                    "y = g(e, h)\n"),
            "series(a, parallel(c+d+e, h), y)");
}

TEST(Structure, OfNothingButDuplicablesIsEmpty) {
  const Graph graph = parse_graph("k = constant() : i64[4]\nm = mask(k) : i64[4] @duplicable\n");
  EXPECT_TRUE(checked(graph, weights_of(graph)).empty());
}

// ---- What crosses, what is the same

TEST(Structure, SkipsKnowWhatTheyCarryOverWhat) {
  const Graph graph = parse_graph(
      "batch 4\nx = input() : f32[b]\na = f(x)\nh = f(a)\nh2 = f(h)\ny = add(h2, a)\nz = add(y, a)\n");
  const Structure structure = checked(graph, weights_of(graph));
  ASSERT_THAT(structure.skips, SizeIs(1));
  EXPECT_EQ(structure.skips[0], (Structure::Skip{PartId(0), 0, 4, graph.op(OperatorId(0)).outputs[0]}));
  EXPECT_THAT(carried_over(structure, graph, PartId(0), BatchSize(4)),
              ElementsAre(Bytes(0), Bytes(16), Bytes(16), Bytes(16), Bytes(0)));
}

// Layers of two operators with weights of their own.
std::string layers(int count, const std::string& second = "") {
  std::string lines = "x = input() : f32[b,8]\n";
  std::string last = "x";
  for (int i = 0; i < count; ++i) {
    const std::string n = std::to_string(i);
    lines += "w" + n + " = parameter(w" + n + ") : f32[8,8]\n";
    lines += "h" + n + " = linear(" + last + ", w" + n + ") : f32[b,8]\n";
    lines += "r" + n + " = " + (i == 1 && !second.empty() ? second : "relu") + "(h" + n + ") : f32[b,8]\n";
    last = "r" + n;
  }
  return lines + "loss = mean(" + last + ") : f32[]\n";
}

TEST(Structure, EqualPartsAreFound) {
  const Graph graph = parse_graph(layers(4));
  const Structure s = checked(graph, weights_of(graph));
  const auto like = [&](const char* name) {
    const auto leaf = leaf_of_operators(s, graph)[graph.find_operator(name).value().index()].value();
    return graph.op(s.operators_of(s.part(leaf).like).front()).name;
  };
  EXPECT_EQ(like("h3"), "h1");  // h0 reads an input, which needs no gradient
  EXPECT_EQ(like("r3"), "r0");
  EXPECT_EQ(like("loss"), "loss");
}

TEST(Structure, BranchesAreAlikeOnlyWithEqualBorders) {
  const std::string towers =
      "x = input() : f32[b,8]\ns = parameter(s) : f32[8]\n"
      "u = parameter(u) : f32[8]\nv = parameter(v) : f32[8]\nt = parameter(t) : f32[8]\n"
      "a = mul(x, s) : f32[b,8]\n"
      "p = mul(a, u) : f32[b,8]\np2 = relu(p) : f32[b,8]\n"
      "q = mul(a, v) : f32[b,8]\nq2 = relu(q) : f32[b,8]\n"
      "r = mul(a, t) : f32[b,8]\nr2 = relu(r) : f32[b,8]\n"
      "j = add3(p2, q2, r2) : f32[b,8]\nloss = mean(j) : f32[]\n";
  const auto kinds = [](const std::string& lines) {
    const Graph graph = parse_graph(lines);
    const Structure s = checked(graph, weights_of(graph));
    std::string out;
    for (const PartId child : s.children_of(s.children_of(PartId(0))[1])) {
      out += graph.op(s.operators_of(s.part(child).like).front()).name;
    }
    return out;
  };
  EXPECT_EQ(kinds(towers), "ppp");
  std::string shared = towers;  // r reads what a reads
  shared.replace(shared.find("mul(a, t)"), 9, "mul(a, s)");
  EXPECT_EQ(kinds(shared), "ppr");
  std::string seen = towers;  // q is read outside, too
  seen.replace(seen.find("mean(j)"), 7, "mean(j, q)");
  EXPECT_EQ(kinds(seen), "pqp");
}

// ---- Every graph

TEST(Structure, OfRandomGraphsKeepsItsPromises) {
  Rng rng(21);
  int waits = 0, branches = 0;
  for (int round = 0; round < 600; ++round) {
    testing::RandomGraphOptions options;
    options.operators = 1 + rng.below(40);
    options.shape = round % 2 == 0 ? testing::GraphShape::kSeriesParallel : testing::GraphShape::kDag;
    options.mutations = round % 3 == 0;
    options.loss = round % 4 != 0;
    GraphParts parts = testing::random_graph(rng, options).parts();
    if (round % 5 == 0) {  // a group that nobody's memory asks for
      for (int member = 0; member < 2; ++member) {
        parts.operators[rng.below(parts.operators.size())].colocation = 1000;
      }
    }
    const Graph graph(with_colocation(parts));
    std::vector<Weight> weights;
    for (std::size_t i = 0; i < graph.operators().size(); ++i) {
      weights.emplace_back(static_cast<std::int64_t>(rng.below(3) * rng.below(100)));
    }
    const auto per_mille = static_cast<std::uint32_t>(rng.below(3) * 50);
    const Structure s = make_structure(graph, weights, {.carried_per_mille = per_mille});
    ASSERT_THAT(check_structure(s, graph, weights), IsEmpty()) << to_text(s, graph) << "\n"
                                                               << print_graph(graph);
    ASSERT_EQ(s, make_structure(graph, weights, {.carried_per_mille = per_mille}));
    waits += static_cast<int>(s.waits.size());
    for (const auto& part : s.parts) branches += part.kind == PartKind::kParallel ? 1 : 0;
  }
  EXPECT_GT(waits, 100);
  EXPECT_GT(branches, 300);
}

TEST(Structure, OfSmallGraphsKeepsItsPromises) {
  for (const Graph& graph : testing::all_small_graphs(5)) {
    const auto weights = weights_of(graph);
    const Structure s = make_structure(graph, weights);
    ASSERT_THAT(check_structure(s, graph, weights), IsEmpty()) << to_text(s, graph) << "\n"
                                                               << print_graph(graph);
  }
}

TEST(CheckStructure, FindsWhatIsWrong) {
  const Graph graph = parse_graph(
      "x = input()\ny = input()\na = f(x)\nh = f(a)\nc = f(y)\nd = g(h, c)\ne = add(d, a)\nz = f(e)\nloss = "
      "mean(z)\n");
  const auto weights = weights_of(graph);
  const Structure good = checked(graph, weights);
  ASSERT_EQ(to_text(good, graph), "series(parallel(series(a, h), c), d, e, z, loss)");
  const auto violations = [&](const std::function<void(Structure&)>& change) {
    Structure bad = good;
    change(bad);
    return check_structure(bad, graph, weights);
  };
  EXPECT_THAT(violations([](Structure& s) { s.parts[1].kind = PartKind::kSeries; }),
              Contains(HasSubstr("of its parent's kind")));
  EXPECT_THAT(violations([](Structure& s) { s.parts[2].kind = PartKind::kParallel; }),
              Contains(HasSubstr("of its parent's kind")));
  EXPECT_THAT(violations([](Structure& s) { std::swap(s.operators[0], s.operators[1]); }),
              Contains(HasSubstr("'h' stands before 'a', which it needs")));
  EXPECT_THAT(violations([](Structure& s) { std::swap(s.operators[1], s.operators[2]); }),
              Contains(HasSubstr("'h' stands beside 'a', which it needs")));
  EXPECT_THAT(violations([](Structure& s) { s.operators[3] = s.operators[2]; }),
              Contains(HasSubstr("there twice")));
  EXPECT_THAT(violations([](Structure& s) { s.parts[3].work += Weight(1); }), Contains(HasSubstr("work")));
  EXPECT_THAT(violations([](Structure& s) { s.parts[0].length += Weight(1); }),
              Contains(HasSubstr("length")));
  EXPECT_THAT(violations([](Structure& s) { s.longest_path -= Weight(1); }),
              Contains(HasSubstr("longest path")));
  EXPECT_THAT(violations([](Structure& s) { s.carried[2] = 1; }), Contains(HasSubstr("length")));
  EXPECT_THAT(violations([](Structure& s) { s.skips.clear(); }), Contains(HasSubstr("skips")));
  EXPECT_THAT(violations([](Structure& s) {
                s.waits.push_back({PartId(1), 1, {OperatorId(0)}, {OperatorId(1)}, 1});
              }),
              Contains(HasSubstr("waits")));
  EXPECT_THAT(violations([](Structure& s) { s.parts[6].like = PartId(3); }),
              Contains(HasSubstr("computes something else")));
}

// ---- Size

TEST(Structure, OfALongDecoderIsFlat) {
  // Each step of the decoder reads the memory of the encoder.
  constexpr int kSteps = 2'000;
  std::string lines = "batch 1\nx = input()\ny = input()\n";
  std::string last = "x";
  for (int i = 0; i < kSteps; ++i) {
    const std::string n = std::to_string(i);
    lines += "e" + n + " = f(" + last + ")\n";
    last = "e" + n;
  }
  const std::string memory = last;
  last = "y";
  for (int i = 0; i < kSteps; ++i) {
    const std::string n = std::to_string(i);
    lines += "s" + n + " = f(" + last + ")\nk" + n + " = f(" + memory + ")\nv" + n + " = f(" + memory + ")\n";
    lines += "d" + n + " = g(s" + n + ", k" + n + ", v" + n + ")\nr" + n + " = add(d" + n + ", s" + n + ")\n";
    last = "r" + n;
  }
  const Graph graph = parse_graph(lines);
  const auto weights = weights_of(graph);
  const Structure s = make_structure(graph, weights);
  EXPECT_THAT(check_structure(s, graph, weights), IsEmpty());
  EXPECT_EQ(s.growth(), Weight());
  EXPECT_THAT(s.children_of(PartId(0)), SizeIs(3 * kSteps));
}

}  // namespace
}  // namespace espalier
