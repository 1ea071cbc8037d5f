#include "espalier/graph/expand_backward.h"

#include <gmock/gmock.h>

#include "espalier/base/json.h"
#include "espalier/base/rng.h"
#include "espalier/graph/algorithms.h"
#include "espalier/graph/json.h"
#include "espalier/graph/text.h"
#include "testing/random_graphs.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;

ExpandOptions free_of_colocation() {
  ExpandOptions options;
  options.colocation = ExpandOptions::Colocation::kFree;
  return options;
}

// The lines behind the forward half: from the first gradient on.
std::string backward_half(const Graph& training) {
  std::string text = print_graph(training);
  return text.substr(text.find("loss.grad = "));
}

TEST(ExpandBackward, OfALinearLayerIsWhatAutogradDoes) {
  // linear keeps x and w; mean keeps nothing. x needs no gradient.
  const Graph forward = parse_graph(
      "x = input() : f32[b,16]\n"
      "w = parameter(w) : f32[4,16]\n"
      "y = linear(x, w) : f32[b,4]\n"
      "loss = mean(y)\n");
  ExpandOptions options = free_of_colocation();
  options.kept = {{.inputs = {0, 1}}, {}};
  const Graph training = expand_backward(forward, options);
  EXPECT_EQ(backward_half(training),
            "loss.grad = constant() : f32[] @gradient_of=loss.grad:loss\n"
            "y.grad = mean.backward(loss.grad) : f32[b,4] @name=loss.backward @backward "
            "@gradient_of=y.grad:y @class=\"mean(f32[b,4])\"\n"
            "w.grad = linear.backward(y.grad, x, w) : f32[4,16] @name=y.backward @backward "
            "@gradient_of=w.grad:w @class=\"linear(f32[b,16],f32[4,16])\"\n"
            "update(w, w.grad) @mutates=w @name=w.update @update\n"
            "return loss\n");
}

// The text form's own quoting aside, what each operator behind the forward half reads and gives.
std::vector<std::string> calls(const Graph& training) {
  std::vector<std::string> result;
  for (const Operator& op : training.operators()) {
    if (op.role == OperatorRole::kForward) continue;
    const auto list = [&](const std::vector<TensorId>& ids) {
      std::string text;
      for (const TensorId id : ids) text += (text.empty() ? "" : " ") + training.tensor(id).name;
      return text;
    };
    result.push_back(op.name + ": " + list(op.inputs) + " -> " + list(op.outputs));
  }
  return result;
}

TEST(ExpandBackward, ATensorWithSeveralReadersAddsUpAsThePartsComeIn) {
  const Graph forward = parse_graph(
      "batch 1..8\n"
      "x = input()\n"
      "w = parameter(w) : f32[4]\n"
      "a = scale(x, w)\n"
      "p = f(a)\n"
      "q = g(a)\n"
      "r = h(a, a)\n"
      "loss = join(p, q, r)\n");
  ExpandOptions options = free_of_colocation();
  options.kept.resize(5);
  EXPECT_THAT(calls(expand_backward(forward, options)),
              ElementsAre("loss.backward: loss.grad -> p.grad q.grad r.grad",
                          "r.backward: r.grad -> a.grad.1",  // one for both uses of a
                          "q.backward: q.grad -> a.grad.2", "a.grad.sum2: a.grad.1 a.grad.2 -> a.grad.sum2",
                          "p.backward: p.grad -> a.grad.3", "a.grad: a.grad.sum2 a.grad.3 -> a.grad",
                          "a.backward: a.grad -> w.grad", "w.update: w w.grad -> "));
}

TEST(ExpandBackward, ATiedParameterHasOneGradientAndOneUpdate) {
  const Graph forward = parse_graph(
      "x = input()\n"
      "w = parameter(in.weight, tied=out.weight) : f32[4]\n"
      "a = embed(x, w)\n"
      "v = parameter(in.weight)\n"
      "y = project(a, v)\n"
      "loss = mean(y)\n");
  ExpandOptions options = free_of_colocation();
  options.kept.resize(3);
  const Graph training = expand_backward(forward, options);
  EXPECT_THAT(calls(training),
              ElementsAre("loss.backward: loss.grad -> y.grad", "y.backward: y.grad -> a.grad w.grad.1",
                          "a.backward: a.grad -> w.grad.2", "w.grad: w.grad.1 w.grad.2 -> w.grad",
                          "in.weight.update: w w.grad -> "));
  EXPECT_THAT(check_expansion(forward, training), IsEmpty());
}

TEST(ExpandBackward, WhatLeadsNowhereOrNeedsNoGradientHasNoBackward) {
  const Graph forward = parse_graph(
      "x = input()\n"
      "w = parameter(w) : f32[4]\n"
      "cold = parameter(cold, frozen) : f32[4]\n"
      "unused = parameter(unused) : f32[4]\n"
      "mask = arange() : i64[8] @duplicable\n"
      "below = f(x, cold)\n"
      "a = f(below, w, mask)\n"
      "cut = detach(a) @nograd\n"
      "behind = f(cut)\n"
      "side = stats(a, unused)\n"
      "loss = f(a, behind)\n"
      "return loss, side\n");
  ExpandOptions options = free_of_colocation();
  options.kept.resize(7);
  EXPECT_THAT(calls(expand_backward(forward, options)),
              ElementsAre("loss.backward: loss.grad -> a.grad", "a.backward: a.grad -> w.grad",
                          "w.update: w w.grad -> "));
}

TEST(ExpandBackward, WithoutALossEveryOutputIsASeed) {
  const Graph forward = parse_graph(
      "x = input()\n"
      "w = parameter(w) : f32[4]\n"
      "a = f(x, w)\n"
      "p = f(a)\n"
      "return p, a\n");
  ExpandOptions options = free_of_colocation();
  options.kept.resize(2);
  const Graph training = expand_backward(forward, options);
  EXPECT_THAT(calls(training),
              ElementsAre("p.backward: p.grad -> a.grad.2", "a.grad: a.grad.1 a.grad.2 -> a.grad",
                          "a.backward: a.grad -> w.grad", "w.update: w w.grad -> "));
  EXPECT_THAT(check_expansion(forward, training), IsEmpty());
}

TEST(ExpandBackward, AViewsGradientIsAViewAndAnInputsIsAnOutput) {
  const Graph forward = parse_graph(
      "x = input() : f32[b,6] @grad\n"
      "v = view(x) : f32[2*b,3] @view\n"
      "part = slice(v) : f32[b,3] @view\n"
      "loss = mean(part)\n");
  ExpandOptions options = free_of_colocation();
  options.kept.resize(3);
  const Graph training = expand_backward(forward, options);
  const auto storage = [&](const std::string& name) {
    for (const Tensor& t : training.tensors()) {
      if (t.name == name) return t.storage;
    }
    return StorageId(9999);
  };
  EXPECT_NE(storage("v.grad"), storage("part.grad")) << "the rest of v has zeros";
  EXPECT_EQ(training.outputs().size(), 2U);
  EXPECT_EQ(training.tensor(training.outputs()[1]).name, "x.grad");
  EXPECT_EQ(training.tensor(training.outputs()[1]).gradient_of, TensorId(0));
}

TEST(ExpandBackward, SharedElementsShareTheirGradient) {
  const Graph forward = parse_graph(
      "x = input() : f32[b,6]\n"
      "w = parameter(w) : f32[6]\n"
      "a = f(x, w) : f32[b,6]\n"
      "v = view(a) : f32[b,6] @view\n"
      "loss = mean(v)\n");
  const Graph training = expand_backward(forward, free_of_colocation());
  std::optional<StorageId> of_v, of_a;
  for (const Tensor& t : training.tensors()) {
    if (t.name == "v.grad") of_v = t.storage;
    if (t.name == "a.grad") of_a = t.storage;
  }
  ASSERT_TRUE(of_v && of_a);
  EXPECT_EQ(of_v, of_a);
}

TEST(ExpandBackward, EverythingStandsWithItsForwardOperator) {
  const Graph forward = parse_graph(
      "x = input()\n"
      "w = parameter(w) : f32[4]\n"
      "a = f(x, w)\n"
      "p = g(a, w) @colocate=3\n"
      "q = g(a)\n"
      "loss = join(p, q)\n");
  const Graph training = expand_backward(forward);
  const auto group = [&](const char* name) { return training.op(*training.find_operator(name)).colocation; };
  EXPECT_EQ(group("p"), 3U);
  EXPECT_EQ(group("p.backward"), 3U);
  EXPECT_EQ(group("a.backward"), group("a"));
  EXPECT_EQ(group("a.grad"), group("a")) << "a sum stands with the producer";
  EXPECT_EQ(group("w.grad"), group("a")) << "the first that reads the parameter";
  EXPECT_EQ(group("w.update"), group("a"));
  EXPECT_NE(group("a"), group("q"));
  EXPECT_NE(group("a"), group("p"));
}

TEST(ExpandBackward, AnUpdateWaitsForEveryReaderAndBindsNone) {
  const Graph forward = parse_graph(
      "x = input()\n"
      "w = parameter(w) : f32[4]\n"
      "a = f(x, w)\n"
      "b = f(a, w)\n"
      "loss = mean(b)\n");
  const Graph training = expand_backward(forward, free_of_colocation());
  const OperatorId update = *training.find_operator("w.update");
  std::vector<std::string> before;
  for (const OperatorId id : training.predecessors(update)) before.push_back(training.op(id).name);
  EXPECT_THAT(before, ElementsAre("a", "b", "b.backward", "a.backward", "w.grad"));
  for (const Operator& op : training.operators()) EXPECT_FALSE(op.colocation.has_value()) << op.name;
}

TEST(ExpandBackward, RefusesWhatIsNoForwardGraph) {
  const Graph forward = parse_graph("x = input()\nw = parameter(w) : f32[4]\na = f(x, w)\nloss = mean(a)\n");
  const Graph training = expand_backward(forward);
  EXPECT_THAT(refusal([&] { expand_backward(training); }), HasSubstr("holds backward or update operators"));
  const Graph still = parse_graph("x = input()\nloss = mean(x)\n");
  EXPECT_THAT(refusal([&] { expand_backward(still); }), HasSubstr("the loss requires no gradient"));
  ExpandOptions wrong;
  wrong.kept = {{.inputs = {2}}, {}};
  EXPECT_THAT(refusal([&] { expand_backward(forward, wrong); }),
              HasSubstr("operator 'a' keeps input 2, but has 2"));
}

TEST(ExpandBackward, TakenNamesGetAnUnderscore) {
  const Graph forward = parse_graph(
      "x = input()\n"
      "w = parameter(w) : f32[4]\n"
      "a.grad = f(x, w) @name=a.backward\n"
      "a = f(a.grad)\n"
      "loss = mean(a)\n");
  const Graph training = expand_backward(forward);
  EXPECT_TRUE(training.find_operator("a.backward_").has_value());
  EXPECT_THAT(check_expansion(forward, training), IsEmpty());
}

// ---- Properties

const std::vector<Graph>& forward_graphs() {
  static const std::vector<Graph> graphs = [] {
    std::vector<Graph> result = testing::all_small_graphs(4);
    Rng rng(41);
    for (std::size_t round = 0; round < 300; ++round) {
      result.push_back(testing::random_graph(
          rng, {.operators = 1 + rng.below(25),
                .shape = round % 2 == 0 ? testing::GraphShape::kSeriesParallel : testing::GraphShape::kDag,
                .mutations = round % 3 == 0,
                .loss = round % 4 != 0}));
    }
    return result;
  }();
  return graphs;
}

TEST(ExpandBackward, GivesLegalTrainingGraphsThatParseBack) {
  std::size_t expanded = 0, refused = 0;
  for (const Graph& forward : forward_graphs()) {
    for (const auto colocation :
         {ExpandOptions::Colocation::kFree, ExpandOptions::Colocation::kWithForward}) {
      std::optional<Graph> training;
      try {
        training = expand_backward(forward, {.colocation = colocation});
      } catch (const InputError& error) {
        EXPECT_THAT(error.what(),
                    AnyOf(HasSubstr("so there is no backward"), HasSubstr("larger than 2^62 bytes")));
        ++refused;
        continue;
      }
      ++expanded;
      EXPECT_THAT(check_graph(training->parts()), IsEmpty());
      EXPECT_THAT(check_expansion(forward, *training), IsEmpty()) << print_graph(*training);
      EXPECT_TRUE(is_legal_order(*training, graph_order(*training)));
      EXPECT_EQ(parse_graph(print_graph(*training)), *training) << print_graph(*training);
      EXPECT_EQ(graph_from_json(graph_to_json(*training), "json"), *training);
    }
  }
  EXPECT_GT(expanded, 500U);
  EXPECT_GT(refused, 0U);
}

// ---- The checker finds what is wrong

TEST(CheckExpansion, EveryMistakeIsFound) {
  const Graph forward = parse_graph(
      "x = input()\n"
      "w = parameter(w) : f32[4]\n"
      "v = parameter(v) : f32[4]\n"
      "a = f(x, w)\n"
      "p = f(a, v)\n"
      "q = f(a)\n"
      "loss = join(p, q)\n");
  const Graph good = expand_backward(forward, free_of_colocation());
  ASSERT_THAT(check_expansion(forward, good), IsEmpty());
  const auto found = [&](auto change) {
    GraphParts parts = good.parts();
    change(parts);
    const std::vector<std::string> lines = check_expansion(forward, Graph(with_colocation(std::move(parts))));
    return lines.empty() ? std::string("(nothing)") : lines.front();
  };
  const auto op = [&](GraphParts& parts, const char* name) -> Operator& {
    return parts.operators[good.find_operator(name)->index()];
  };
  const auto tensor = [&](const char* name) {
    for (std::size_t t = 0; t < good.tensors().size(); ++t) {
      if (good.tensors()[t].name == name) return TensorId(t);
    }
    return TensorId(9999);
  };
  EXPECT_THAT(found([&](GraphParts& p) { op(p, "a").target = "g"; }), HasSubstr("not the forward graph's"));
  EXPECT_THAT(found([&](GraphParts& p) { op(p, "w.update").inputs[1] = tensor("v.grad"); }),
              HasSubstr("not the parameter's whole gradient"));
  EXPECT_THAT(found([&](GraphParts& p) { op(p, "a.backward").inputs[0] = tensor("a.grad.1"); }),
              HasSubstr("whole gradient"));
  EXPECT_THAT(found([&](GraphParts& p) { op(p, "a.grad").inputs[1] = tensor("a.grad.1"); }),
              HasSubstr("whole gradient"));
  EXPECT_THAT(found([&](GraphParts& p) { op(p, "a.backward").op_class = "other"; }),
              HasSubstr("another class"));
  EXPECT_THAT(found([&](GraphParts& p) { op(p, "q.backward").inputs.push_back(tensor("p")); }),
              HasSubstr("which its forward operator does not"));
  EXPECT_THAT(found([&](GraphParts& p) { p.operators.pop_back(); }), HasSubstr("has no update"));
  EXPECT_THAT(found([&](GraphParts& p) {
                p.operators.push_back(p.operators.back());
                p.operators.back().name = "again";
              }),
              HasSubstr("a second time"));
}

TEST(CheckGraph, ATrainingGraphLeavesNothingToAutograd) {
  const Graph forward = parse_graph("x = input()\nw = parameter(w) : f32[4]\na = f(x, w)\nloss = mean(a)\n");
  const GraphParts good = expand_backward(forward).parts();
  const auto first = [](GraphParts parts) {
    const auto lines = check_graph(parts);
    return lines.empty() ? std::string("(nothing)") : lines.front();
  };
  GraphParts parts = good;
  parts.tensors[1].requires_grad = true;
  EXPECT_THAT(first(parts), HasSubstr("'w' requires a gradient, but the graph holds backward"));
  parts = good;
  parts.tensors.back().gradient_of = TensorId(0);
  EXPECT_THAT(first(parts), HasSubstr("but a gradient of tensor 'x', which is f32[b]"));
  parts = good;
  parts.tensors.back().gradient_of = TensorId(500);
  EXPECT_THAT(first(parts), HasSubstr("there is no tensor 500"));
  parts = forward.parts();
  parts.tensors[0].gradient_of = TensorId(0);
  EXPECT_THAT(first(parts), HasSubstr("the graph has no backward operator"));
}

}  // namespace
}  // namespace espalier
