// Which operators relate the samples of a batch (sample_mixing.h, row_dispatch.h), as a program's graph tells
// it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "espalier/frontend/program_for_tests.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;

TEST(SampleMixing, OperatorsThatMixSamplesAreSeenByTheirSizes) {
  TestProgram p = linear();
  p.op("matmul.default", "pairs", {{"self", tensor("l")}, {"other", tensor("l")}}, {0, 0});
  p.op("softmax.int", "rows", {{"self", tensor("l")}, {"dim", number(-1)}}, {0, 4});
  p.op("softmax.int", "columns", {{"self", tensor("l")}, {"dim", number(0)}}, {0, 4});
  p.op("mean.dim", "center", {{"self", tensor("l")}, {"dim", Json{{"as_ints", {0}}}}}, {4});
  p.op("mean.default", "loss", {{"self", tensor("l")}}, {});
  p.op("max.default", "peak", {{"self", tensor("l")}}, {});
  p.op("sub.Tensor", "centred", {{"self", tensor("l")}, {"other", tensor("center")}}, {0, 4});
  const Graph graph = read(p, without_loss()).imported.graph;
  for (const char* name : {"pairs", "columns", "center", "peak"})
    EXPECT_TRUE(op(graph, name).mixes_samples) << name;
  for (const char* name : {"l", "rows", "loss", "centred"})
    EXPECT_FALSE(op(graph, name).mixes_samples) << name;
}

// What of y: f32[b,4] is told of the operators named; they follow each other, the last is the loss.
TEST(SampleMixing, ANumberOfAllSamplesMixesThemUnlessItIsTheirAverage) {
  struct Case {
    const char* what;
    std::function<void(TestProgram&)> add;
    std::vector<std::string> mixing;
  };
  const auto mean = [](TestProgram& p) { p.op("mean.default", "m", {{"self", tensor("l")}}, {}); };
  const auto sum = [](TestProgram& p) { p.op("sum.default", "s", {{"self", tensor("l")}}, {}); };
  const Json batch = {{"as_sym_int", {{"as_name", "size"}}}};
  const std::vector<Case> cases{
      {"a mean", mean, {}},
      {"a mean, scaled, negated and added to another",
       [&](TestProgram& p) {
         mean(p);
         p.op("mse_loss.default", "e", {{"self", tensor("l")}, {"target", tensor("l")}}, {});
         p.op("mul.Tensor", "half", {{"self", tensor("m")}, {"other", real(0.5)}}, {});
         p.op("neg.default", "n", {{"self", tensor("half")}}, {});
         p.op("add.Tensor", "loss", {{"self", tensor("n")}, {"other", tensor("e")}}, {});
       },
       {}},
      {"a sum", sum, {"s"}},
      {"a loss that sums",
       [](TestProgram& p) {
         p.op("mse_loss.default", "e",
              {{"self", tensor("l")}, {"target", tensor("l")}, {"reduction", number(2)}}, {});
       },
       {"e"}},
      {"a sum over a number of samples",
       [&](TestProgram& p) {
         p.node("torch.ops.aten.sym_size.int", "size", {{"self", tensor("l")}, {"dim", number(0)}},
                Json::array({{{"as_sym_int", {{"as_name", "size"}}}}}));
         p.graph["sym_int_values"]["size"] = TestProgram::symbol("s0");
         sum(p);
         p.op("div.Tensor", "loss", {{"self", tensor("s")}, {"other", batch}}, {});
       },
       {}},
      {"a root mean square",
       [&](TestProgram& p) {
         mean(p);
         p.op("sqrt.default", "loss", {{"self", tensor("m")}}, {});
       },
       {"loss"}},
      {"a product of means",
       [&](TestProgram& p) {
         mean(p);
         p.op("mul.Tensor", "loss", {{"self", tensor("m")}, {"other", tensor("m")}}, {});
       },
       {"loss"}},
      {"a mean brought back beside the samples",
       [&](TestProgram& p) {
         mean(p);
         p.op("sub.Tensor", "c", {{"self", tensor("l")}, {"other", tensor("m")}}, {0, 4});
         p.op("mean.default", "loss", {{"self", tensor("c")}}, {});
       },
       {"c"}},
      {"a ratio of sums",
       [&](TestProgram& p) {
         sum(p);
         p.op("div.Tensor", "loss", {{"self", tensor("s")}, {"other", tensor("s")}}, {});
       },
       {"loss"}},
  };
  for (const Case& one : cases) {
    TestProgram p = linear();
    one.add(p);
    p.output(std::string(p.graph["nodes"].back()["name"]));
    const Graph graph = read(p, without_loss()).imported.graph;
    std::vector<std::string> mixing;
    for (const Operator& o : graph.operators()) {
      if (o.mixes_samples) mixing.push_back(o.name);
    }
    EXPECT_EQ(mixing, one.mixing) << one.what;
  }
}

// Two experts: rows of l sorted by their expert, multiplied, and put back.
struct TwoExperts {
  TestProgram p = linear();

  static Json list(const std::string& name) { return {{"as_optional_tensors", {tensor(name)}}}; }
  void index(const std::string& name, const std::string& of, const std::string& places) {
    p.op("index.Tensor", name, {{"self", tensor(of)}, {"indices", list(places)}}, {0, 4});
  }
  TwoExperts() {
    p.parameter("experts", {2, 4, 4});
    p.op("argmax.default", "expert", {{"self", tensor("l")}, {"dim", number(-1)}}, {0}, 5);
    p.value("sorted", {0}, 5);
    p.value("places", {0}, 5);
    p.node("sort.default", "sort", {{"self", tensor("expert")}},
           Json::array({tensor("sorted"), tensor("places")}));
    p.op("to.dtype", "numbers", {{"self", tensor("sorted")}, {"dtype", {{"as_scalar_type", 7}}}}, {0});
    p.op("histc.default", "counts", {{"self", tensor("numbers")}, {"bins", number(2)}}, {2});
    p.op("cumsum.default", "ends", {{"self", tensor("counts")}, {"dim", number(0)}}, {2}, 4);
    p.op("argsort.default", "inverse", {{"self", tensor("places")}}, {0}, 5);
  }
  void multiply(const std::string& rows) {
    p.op("_grouped_mm.default", "y",
         {{"self", tensor(rows)}, {"mat2", tensor("p_experts")}, {"offs", tensor("ends")}}, {0, 4});
  }
  std::vector<std::string> mixing(const std::string& of) {
    p.op("mean.default", "loss", {{"self", tensor(of)}}, {});
    p.output("loss");
    std::vector<std::string> names;
    const Graph graph = read(p, without_loss()).imported.graph;
    for (const Operator& o : graph.operators()) {
      if (o.mixes_samples) names.push_back(o.name);
    }
    return names;
  }
};

TEST(SampleMixing, ASortThatDealsRowsOutToExpertsAndBackMixesNothing) {
  TwoExperts e;
  e.index("rows", "l", "places");
  e.multiply("rows");
  e.p.op("silu.default", "act", {{"self", tensor("y")}}, {0, 4});
  e.index("back", "act", "inverse");
  EXPECT_THAT(e.mixing("back"), ElementsAre());
}

TEST(SampleMixing, TheInverseMayBeWrittenAsNumbersAtThePlaces) {
  TwoExperts e;
  e.index("rows", "l", "places");
  e.multiply("rows");
  e.p.op("empty_like.default", "empty", {{"self", tensor("places")}}, {0}, 5);
  e.p.op("arange.default", "all", {{"end", number(5)}}, {0}, 5);
  e.p.op("index_put_.default", "put",
         {{"self", tensor("empty")}, {"indices", TwoExperts::list("places")}, {"values", tensor("all")}}, {0},
         5);
  e.index("back", "y", "put");
  EXPECT_THAT(e.mixing("back"), ElementsAre());
}

TEST(SampleMixing, ASortMixesWhereRowsGoElsewhereOrSomethingElseReadsTheirOrder) {
  const std::vector<std::string> both{"sort", "inverse"};
  {
    TwoExperts e;  // rows of the next sample
    e.p.op("add.Tensor", "next", {{"self", tensor("places")}, {"other", number(1)}}, {0}, 5);
    e.index("rows", "l", "next");
    e.multiply("rows");
    e.index("back", "y", "inverse");
    EXPECT_EQ(e.mixing("back"), both);
  }
  {
    TwoExperts e;  // back by the wrong permutation
    e.index("rows", "l", "places");
    e.multiply("rows");
    e.index("back", "y", "places");
    EXPECT_EQ(e.mixing("back"), both);
  }
  {
    TwoExperts e;  // never back
    e.index("rows", "l", "places");
    e.multiply("rows");
    EXPECT_EQ(e.mixing("y"), both);
  }
  {
    TwoExperts e;  // the counts are a loss
    e.index("rows", "l", "places");
    e.multiply("rows");
    e.index("back", "y", "inverse");
    EXPECT_THAT(e.mixing("counts"), ::testing::IsSupersetOf(both));
  }
  {
    TwoExperts e;  // each row with those before it
    e.index("rows", "l", "places");
    e.p.op("cumsum.default", "summed", {{"self", tensor("rows")}, {"dim", number(0)}}, {0, 4});
    e.multiply("summed");
    e.index("back", "y", "inverse");
    EXPECT_THAT(e.mixing("back"), ::testing::IsSupersetOf(both));
  }
  {
    TwoExperts e;  // rows that were not dealt out among them
    e.index("rows", "l", "places");
    e.multiply("rows");
    e.p.op("add.Tensor", "sum", {{"self", tensor("y")}, {"other", tensor("l")}}, {0, 4});
    e.index("back", "sum", "inverse");
    EXPECT_EQ(e.mixing("back"), both);
  }
}

}  // namespace
}  // namespace espalier
