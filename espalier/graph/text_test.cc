#include "espalier/graph/text.h"

#include <gmock/gmock.h>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using testing::refusal;

constexpr const char* kTwoTowers =
    "x = input() : f32[b,16]\n"
    "w = parameter(encoder.weight, tied=head.weight) : f32[16,16]\n"
    "h = linear(x, w) : f32[b,16]\n"
    "y = relu_(h) @inplace\n"
    "loss = mean(y)\n"
    "return loss\n";

TEST(GraphText, DefaultsAreWrittenOut) {
  EXPECT_EQ(print_graph(parse_graph(kTwoTowers)),
            "batch 1..1024\n"
            "x = input() : f32[b,16]\n"
            "w = parameter(encoder.weight, tied=head.weight) : f32[16,16]\n"
            "h = linear(x, w) : f32[b,16] @colocate=0\n"
            "y = relu_(h) : f32[b,16] @inplace @colocate=0\n"
            "loss = mean(y) : f32[]\n"
            "return loss\n");
}

TEST(GraphText, AnInPlaceResultSharesAndMutatesItsFirstInput) {
  const Graph g = parse_graph(kTwoTowers);
  const TensorId h(2), y(3), loss(4);
  EXPECT_EQ(g.tensor(y).storage, g.tensor(h).storage);
  EXPECT_NE(g.tensor(loss).storage, g.tensor(h).storage);
  EXPECT_THAT(g.op(OperatorId(1)).mutates, ElementsAre(h));
  EXPECT_EQ(g.loss(), loss);
  EXPECT_TRUE(g.tensor(loss).requires_grad) << "w is trainable, so what comes from it needs a gradient";
}

TEST(GraphText, EveryFeatureParsesBack) {
  const Graph g = parse_graph(
      "graph \"my graph\"\n"
      "batch 2..64\n"
      "mode eval\n"
      "\n"
      "# parameters in another order than their tensors\n"
      "parameter(late) : bf16[4]\n"
      "parameter(lonely, frozen) : f32[3]\n"
      "buffer(stats, nonpersistent) : i64[]\n"
      "x = input() : f32[b,max(b,4),(b+1)//2]\n"
      "s = buffer(stats)\n"
      "p = parameter(early, tied=\"odd name\", tied=third) : f32[4-2+2]\n"
      "q = parameter(late)\n"
      "q2 = parameter(late)\n"
      "c = constant() : u8[] @shares=c:x\n"
      "a, \"b c\" = split(x, c) : f32[b], i64[] @module=net.0 @source=model.py:12 @class=\"split by 2\"\n"
      "v = \"aten::view\"(a, a) @view @random @mixes @unknown @name=other\n"
      "one = constant() : f32[b] @gradient_of=one:a\n"
      "m, n, o = three(v, q, q2) : f32[b], f32[], bf16[4] @shares=n:a,o:m @backward @gradient_of=m:a,o:q2\n"
      "\"return\" = \"input\"(m) @colocate=7\n"
      "step(p, s) @mutates=p,s @name=update_p @update\n"
      "loss = sum(n) : f32[1]\n"
      "no loss\n"
      "return o, \"b c\", loss\n");
  const std::string text = print_graph(g);
  EXPECT_EQ(parse_graph(text), g) << text;
  EXPECT_EQ(print_graph(parse_graph(text)), text);
  EXPECT_THAT(g.tensors(), Each(Field(&Tensor::requires_grad, false))) << "the graph holds its backward";
  EXPECT_EQ(g.loss(), std::nullopt);
  EXPECT_EQ(g.batch(), (BatchRange{BatchSize(2), BatchSize(64)}));
  EXPECT_THAT(g.parameter(ParameterId(3)).names, ElementsAre("early", "odd name", "third"));
}

TEST(GraphText, GradientFlagsParseBack) {
  const Graph g = parse_graph(
      "x = input() : f32[b,2] @grad\n"
      "p = parameter(p) : f32[4] @nograd\n"
      "q = parameter(q)\n"
      "m, n, o = three(x, p, q) : f32[b], f32[], bf16[b] @nograd=m\n"
      "k = one(p) @grad=k\n");
  EXPECT_EQ(parse_graph(print_graph(g)), g) << print_graph(g);
}

TEST(GraphText, ErrorsNameTheLine) {
  EXPECT_THAT(refusal([] { parse_graph("x = input()\ny = relu(z)\n"); }),
              HasSubstr("line 2: 'z' is not defined above"));
  EXPECT_THAT(refusal([] { parse_graph("x = input() : f33[b]\n"); }),
              HasSubstr("'f33' is not an element type"));
  EXPECT_THAT(refusal([] { parse_graph("x = input()\ny = relu(x) @in_place\n"); }),
              HasSubstr("did you mean '@inplace'"));
  EXPECT_THAT(refusal([] { parse_graph("x = input()\nx = input()\n"); }), HasSubstr("'x' is defined twice"));
  EXPECT_THAT(refusal([] { parse_graph("x = input() : f32[b\n"); }), HasSubstr("line 1: expected ']'"));
  EXPECT_THAT(refusal([] { parse_graph("x y\n"); }), HasSubstr("'x' begins no line"));
  EXPECT_THAT(refusal([] { parse_graph("x = input()\na, c = f(x) : f32[b]\n"); }),
              HasSubstr("as many types as outputs"));
  EXPECT_THAT(refusal([] { parse_graph("w = parameter(w) : f32[b]\n"); }), HasSubstr("depends on the batch"));
  EXPECT_THAT(refusal([] { parse_graph("x = input()\nf(x)\n"); }), HasSubstr("needs @name"));
}

}  // namespace
}  // namespace espalier
