#include "espalier/graph/module_names.h"

#include <gmock/gmock.h>

#include "espalier/base/check.h"
#include "espalier/graph/text.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;

// Two towers with layers, one of them inside a wrapper; an operator without a module.
constexpr const char* kModel =
    "x = input() : f32[b]\n"
    "e = f(x) : f32[b] @module=transformer.wte\n"
    "a0 = f(e) : f32[b] @module=transformer.h.0.attn\n"
    "r0 = f(a0) : f32[b] @module=transformer.h.0\n"
    "a1 = f(r0) : f32[b] @module=transformer.h.1.attn\n"
    "a12 = f(a1) : f32[b] @module=transformer.h.12.attn\n"
    "i0 = f(x) : f32[b] @module=image.blocks.0\n"
    "t0 = f(x) : f32[b] @module=text.blocks.0\n"
    "loss = f(a12, i0, t0) : f32[]\n";

std::vector<std::string> operators_named(const Graph& graph, const std::vector<OperatorId>& operators) {
  std::vector<std::string> result;
  for (const OperatorId op : operators) result.push_back(graph.op(op).name);
  return result;
}

TEST(ModuleNames, ANameMeansAModuleWithAllInsideOrAnOperator) {
  const Graph graph = parse_graph(kModel);
  const ModuleNames modules(graph);
  const auto find = [&](std::string_view name) { return operators_named(graph, modules.find(name)); };
  EXPECT_THAT(find("transformer.h.0"), ElementsAre("a0", "r0"));
  EXPECT_THAT(find("transformer"), ElementsAre("e", "a0", "r0", "a1", "a12"));
  EXPECT_THAT(find("loss"), ElementsAre("loss"));
  EXPECT_THAT(find("*.attn"), ElementsAre("a0", "a1", "a12"));
  EXPECT_THAT(find("transformer.h.[0-1].*"), ElementsAre("a0", "r0", "a1")) << "the modules themselves, too";
  EXPECT_THAT(find("transformer.h.[0,12]"), ElementsAre("a0", "r0", "a12"));
  EXPECT_THAT(find("transformer.h.0-1"), ElementsAre("a0", "r0", "a1"));
  EXPECT_THAT(find("a[0-1]"), ElementsAre("a0", "a1"));
}

TEST(ModuleNames, WhatStandsBeforeMayBeLeftOutIfItIsTheSameEverywhere) {
  const Graph graph = parse_graph(kModel);
  const ModuleNames modules(graph);
  EXPECT_THAT(operators_named(graph, modules.find("h.0-5")), ElementsAre("a0", "r0", "a1"));
  EXPECT_THAT(operators_named(graph, modules.find("wte")), ElementsAre("e"));
  EXPECT_EQ(refusal([&] { modules.find("blocks.0"); }),
            "'blocks.0' could be 'image.blocks.0' or 'text.blocks.0'; '*.blocks.0' means all of them");
  EXPECT_THAT(refusal([&] { modules.find("attn"); }), HasSubstr("or one of 1 more"));
  EXPECT_THAT(operators_named(graph, modules.find("*.blocks.0")), ElementsAre("i0", "t0"));
}

TEST(ModuleNames, ANameThatMeansNothingSaysTheNearest) {
  const Graph graph = parse_graph(kModel);
  const ModuleNames modules(graph);
  EXPECT_THAT(
      refusal([&] { modules.find("imgae.*"); }),
      AllOf(HasSubstr("'imgae.*' matches no operator or module"), HasSubstr("did you mean 'image'?")));
  EXPECT_THAT(refusal([&] { modules.find("transformer.h.[2-5].*"); }),
              HasSubstr("did you mean 'transformer.h.0'?"));
  EXPECT_THAT(refusal([&] { modules.find("h.13.attn"); }), HasSubstr("did you mean 'transformer.h.1"));
  EXPECT_THAT(refusal([&] { modules.find("lss"); }), HasSubstr("did you mean 'loss'?"));
  EXPECT_THAT(refusal([&] { modules.find("h.[0-"); }), HasSubstr("'h.[0-': '[0-' has no end"));
  EXPECT_THAT(refusal([&] { modules.find("h.5-0"); }), HasSubstr("'h.5-0': '[5-0]': 5 is above 0"));
  EXPECT_THAT(refusal([&] { modules.find(""); }), HasSubstr("expected the name of a module or operator"));
}

TEST(ModuleNames, WithoutModulesTheNamesOfOperatorsAreCut) {
  const Graph graph = parse_graph(
      "x = input() : f32[b]\n\"/layer1/conv/Conv\" = f(x) : f32[b]\n"
      "\"/layer1/relu/Relu\" = f(\"/layer1/conv/Conv\") : f32[b]\nn7 = f(\"/layer1/relu/Relu\") : f32[]\n");
  const ModuleNames modules(graph);
  std::vector<std::string> paths;
  for (const Module& module : modules.modules()) paths.push_back(module.path);
  EXPECT_THAT(paths, ElementsAre("/layer1", "/layer1/conv", "/layer1/relu"));
  EXPECT_THAT(operators_named(graph, modules.find("/layer1")),
              ElementsAre("/layer1/conv/Conv", "/layer1/relu/Relu"));
  EXPECT_THAT(operators_named(graph, modules.find("relu")), ElementsAre("/layer1/relu/Relu"));
  EXPECT_THAT(operators_named(graph, {modules.without_module().begin(), modules.without_module().end()}),
              ElementsAre("n7"));
}

TEST(ModuleNames, AModuleHoldsWhatIsInsideIt) {
  const Graph graph = parse_graph(kModel);
  const ModuleNames modules(graph);
  for (std::uint32_t m = 0; m < modules.modules().size(); ++m) {
    const Module& module = modules.modules()[m];
    EXPECT_EQ(modules.find(module.path), modules.operators_of(m)) << module.path;
    if (module.inside) {
      EXPECT_LT(*module.inside, m);
    }
  }
  EXPECT_THAT(modules.outermost(), ElementsAre(0, 9, 12));
}

TEST(ModuleNames, AGraphWithoutOperatorsHasNone) {
  const Graph graph = parse_graph("x = input() : f32[b]\nreturn x\n");
  const ModuleNames modules(graph);
  EXPECT_THAT(modules.modules(), IsEmpty());
  EXPECT_THAT(refusal([&] { modules.find("a"); }), HasSubstr("'a' matches no operator or module (`espalier"));
}

}  // namespace
}  // namespace espalier
