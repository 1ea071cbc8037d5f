// Segments, blame, and operators that only their schema knows.

#include "espalier/runtime/stage_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <vector>

#include "espalier/base/check.h"
#include "espalier/frontend/archive_for_tests.h"
#include "espalier/runtime/runtime.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

at::Tensor throw_what_an_allocator_throws(const at::Tensor&) {
  C10_THROW_ERROR(Error,
                  "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
                  "you tried to allocate 3221225472 bytes. Error code 12 (Cannot allocate memory)");
}
at::Tensor throw_a_failed_assertion(const at::Tensor&) {
  C10_THROW_ERROR(Error, "0 INTERNAL ASSERT FAILED at \"x.cpp\":1, please report a bug to PyTorch.");
}
at::Tensor add_noise(const at::Tensor& x) {
  return x + at::rand_like(x);
}
void negate_all(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) tensor.neg_();
}

TORCH_LIBRARY(espalier_test, library) {
  library.def("no_memory(Tensor x) -> Tensor", throw_what_an_allocator_throws);
  library.def("assertion(Tensor x) -> Tensor", throw_a_failed_assertion);
  library.def("noise(Tensor x) -> Tensor", add_noise, {at::Tag::nondeterministic_seeded});
  library.def("negate_all(Tensor(a!)[] tensors) -> ()",
              [](const std::vector<at::Tensor>& t) { negate_all(t); });
}

using Arguments = std::vector<std::pair<std::string, Json>>;
Json number(std::int64_t value) {
  return {{"as_int", value}};
}
Json tensors(const std::vector<std::string>& names) {
  Json list = Json::array();
  for (const std::string& name : names) list.push_back({{"name", name}});
  return {{"as_tensors", list}};
}

// h = x · w for an input x [b, 3] and a parameter w [3]; tests add operators and a loss.
struct Net : TestProgram {
  Net() {
    // The file claims that no operator of these tests writes or draws: what libtorch knows counts.
    Json operators = Json::object();
    for (const char* name : {"no_memory", "assertion", "noise"}) {
      operators["espalier_test::" + std::string(name) + ".default"] = {
          {"writes", Json::array()}, {"shares", {Json::array()}}, {"random", false}};
    }
    operators["espalier_test::negate_all.default"] = {
        {"writes", Json::array()}, {"shares", Json::array()}, {"random", false}};
    more.emplace_back("extra/espalier.json", Json{{"operators", operators}}.dump());
    parameter("w", {3});
    input("x", {0, 3});
    call("mul.Tensor", "h", {{"self", tensor("x")}, {"other", tensor("p_w")}});
  }
  void call(const std::string& target, const std::string& name, const Arguments& arguments,
            const Sizes& sizes = {0, 3}) {
    op(target, name, arguments, sizes);
  }
  void loss_of(const std::string& name) {
    call("mean.default", "loss", {{"self", tensor(name)}}, {});
    output("loss");
  }
};

// All of a program as one stage, its weights 0.5, 1, 1.5.
struct Running {
  explicit Running(const TestProgram& net, const std::vector<std::string>& recompute = {})
      : archive(net.archive()),
        exported(read_exported_program(archive, "net.pt2")),
        program(exported, BatchSize(2), at::kCPU),
        session(exported, archive, {}, 0, at::kCPU) {
    const Graph& graph = program.graph();
    StageRunner::Interface all;
    for (std::size_t i = 0; i < graph.operators().size(); ++i) all.operators.push_back(OperatorId(i));
    for (const std::string& name : recompute) all.recompute.push_back(graph.find_operator(name).value());
    holding = &session.holding(StageId(0), DeviceId(0), StageRunner::parameters_of(graph, all.operators));
    const at::NoGradGuard no_grad;
    holding->parameters.at(0).value.copy_(at::tensor({0.5F, 1.0F, 1.5F}));
    runner = std::make_unique<StageRunner>(program, session, *holding, std::move(all));
  }
  double forward() {
    runner->forward({}, {at::arange(6, at::kFloat).view({2, 3})}, {});
    return runner->loss(0).item<double>();
  }
  at::Tensor gradient() {
    runner->backward({}, {}, 1);
    return holding->parameters.at(0).value.grad();
  }

  std::string archive;
  ExportedProgram exported;
  Program program;
  Session session;
  Holding* holding = nullptr;
  std::unique_ptr<StageRunner> runner;
};

// A loss and a gradient that do not depend on what is recomputed.
void expect_equal_recomputed(const Net& net, const std::vector<std::string>& recompute) {
  Running plain(net), recomputed(net, recompute);
  EXPECT_EQ(plain.forward(), recomputed.forward());
  EXPECT_TRUE(recomputed.runner->recomputes());
  EXPECT_TRUE(at::equal(plain.gradient(), recomputed.gradient()));
}

TEST(Segments, AViewSeesAWriteThatComesAfterARecomputedOperator) {
  Net net;
  net.call("unsqueeze.default", "view", {{"self", net.tensor("h")}, {"dim", number(0)}}, {1, 0, 3});
  net.call("sigmoid.default", "between", {{"self", net.tensor("x")}});
  net.call("add_.Tensor", "written", {{"self", net.tensor("h")}, {"other", net.tensor("p_w")}});
  net.call("mul.Tensor", "both", {{"self", net.tensor("view")}, {"other", net.tensor("between")}}, {1, 0, 3});
  net.call("sigmoid.default", "behind", {{"self", net.tensor("both")}}, {1, 0, 3});
  net.loss_of("behind");
  expect_equal_recomputed(net, {"between", "behind"});
}

TEST(Segments, AGradientPassesAWriteWhereATensorIsReadByItsOldName) {
  Net net;
  net.call("mul_.Tensor", "written", {{"self", net.tensor("h")}, {"other", net.tensor("p_w")}});
  net.call("sigmoid.default", "between", {{"self", net.tensor("x")}});
  net.call("mul.Tensor", "both", {{"self", net.tensor("h")}, {"other", net.tensor("between")}});
  net.call("sigmoid.default", "behind", {{"self", net.tensor("both")}});
  net.loss_of("behind");
  expect_equal_recomputed(net, {"between", "behind"});
}

TEST(Segments, ComplexTensorsCarryGradientsIntoRecomputedOperators) {
  Net net;
  net.op("fft_rfft.default", "spectrum", {{"self", net.tensor("h")}}, {0, 2}, 10);
  net.op("_conj.default", "conjugate", {{"self", net.tensor("spectrum")}}, {0, 2}, 10);
  net.op("mul.Tensor", "square", {{"self", net.tensor("conjugate")}, {"other", net.tensor("spectrum")}},
         {0, 2}, 10);
  net.call("abs.default", "size", {{"self", net.tensor("square")}}, {0, 2});
  net.loss_of("size");
  expect_equal_recomputed(net, {"conjugate", "square"});
}

TEST(Segments, WhatLeavesMayBeAViewOfWhatEntersOrTheTensorItself) {
  Net net;
  net.call("alias.default", "view", {{"self", net.tensor("h")}});
  net.call("dropout.default", "same",
           {{"input", net.tensor("h")}, {"p", {{"as_float", 0.5}}}, {"train", {{"as_bool", false}}}});
  net.call("mul.Tensor", "both", {{"self", net.tensor("view")}, {"other", net.tensor("same")}});
  net.loss_of("both");
  expect_equal_recomputed(net, {"view", "same"});
}

TEST(Segments, WholeNumbersEnterWithoutAGradient) {
  Net net;
  net.op("argmax.default", "place",
         {{"self", net.tensor("h")}, {"dim", number(1)}, {"keepdim", {{"as_bool", true}}}}, {0, 1}, 5);
  net.call("gather.default", "largest",
           {{"self", net.tensor("h")}, {"dim", number(1)}, {"index", net.tensor("place")}}, {0, 1});
  net.loss_of("largest");
  expect_equal_recomputed(net, {"largest"});
}

TEST(Blame, AnOperatorWithoutMemoryIsNotWrongInputAndSaysHowMuchItNeeds) {
  Net net;
  net.call("torch.ops.espalier_test.no_memory.default", "made", {{"x", net.tensor("h")}});
  net.loss_of("made");
  Running running(net);
  try {
    running.forward();
    FAIL() << "nothing was thrown";
  } catch (const ResourceError& error) {
    EXPECT_THAT(error.what(), AllOf(StartsWith("operator 'made' (a.b, net.py:7): there is not enough memory"),
                                    HasSubstr("3.00 GiB more")));
  }
}

TEST(Blame, AFailedAssertionInsideTorchIsNotWrongInput) {
  Net net;
  net.call("torch.ops.espalier_test.assertion.default", "made", {{"x", net.tensor("h")}});
  net.loss_of("made");
  Running running(net);
  try {
    running.forward();
    FAIL() << "nothing was thrown";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), StartsWith("operator 'made' (a.b, net.py:7): "));
  }
}

TEST(Blame, AFailureInBackwardNamesTheOperatorWhoseBackwardItIs) {
  Net net;
  net.call("exp.default", "grown", {{"self", net.tensor("h")}});  // keeps its output for backward
  net.call("add_.Tensor", "written", {{"self", net.tensor("grown")}, {"other", net.tensor("p_w")}});
  net.loss_of("written");
  Running running(net);
  running.forward();
  EXPECT_THAT(
      testing::refusal([&] { running.gradient(); }),
      AllOf(StartsWith("backward of operator 'grown' (a.b, net.py:7): "), HasSubstr("inplace operation")));
}

TEST(Schemas, AForeignOperatorThatDrawsIsSeededWithoutTheGraphKnowingIt) {
  Net net;
  net.call("torch.ops.espalier_test.noise.default", "made", {{"x", net.tensor("h")}});
  net.loss_of("made");
  Running first(net), second(net);
  EXPECT_EQ(first.forward(), second.forward());
}

TEST(Schemas, AWriteThatTheGraphDoesNotKnowIsRefusedByName) {
  Net net;
  net.call("relu.default", "k", {{"self", net.tensor("h")}});
  net.node("torch.ops.espalier_test.negate_all.default", "negated", {{"tensors", tensors({"h", "k"})}},
           Json::array());
  net.loss_of("k");
  EXPECT_THAT(
      testing::refusal([&] { const Running running(net); }),
      AllOf(StartsWith("operator 'negated' (a.b, net.py:7): espalier_test::negate_all writes its argument "
                       "'tensors'"),
            HasSubstr("graph does not know")));
}

TEST(Schemas, SparseGradientsOfEmbeddingsAreMadeDense) {
  TestProgram net;
  net.parameter("w", {5, 3});
  net.input("x", {0}, 5);
  net.op("embedding.default", "rows",
         {{"weight", net.tensor("p_w")}, {"indices", net.tensor("x")}, {"sparse", {{"as_bool", true}}}},
         {0, 3});
  net.op("mean.default", "loss", {{"self", net.tensor("rows")}}, {});
  net.output("loss");
  const std::string archive = net.archive();
  const ExportedProgram exported = read_exported_program(archive, "net.pt2");
  const Program program(exported, BatchSize(2), at::kCPU);
  Session session(exported, archive, {}, 0, at::kCPU);
  StageRunner::Interface all{{OperatorId(0), OperatorId(1)}, {}, {}, {}};
  Holding& holding =
      session.holding(StageId(0), DeviceId(0), StageRunner::parameters_of(program.graph(), all.operators));
  StageRunner runner(program, session, holding, std::move(all));
  runner.forward({}, {at::tensor({1, 3}, at::kLong)}, {});
  runner.backward({}, {}, 1);
  EXPECT_EQ(holding.parameters.at(0).value.grad().layout(), at::kStrided);
  EXPECT_EQ(update({}, 1, holding.parameters).size(), 1U);
}

}  // namespace
}  // namespace espalier
