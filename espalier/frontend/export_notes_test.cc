// What extra/espalier.json tells the reader: schemas, outputs by name, ties of tensors without bytes; and
// regions of autocast, which only exported programs have.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/frontend/archive_for_tests.h"
#include "espalier/frontend/exported_program.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Json named(const std::string& name) {
  return TestProgram::tensor(name);
}

// x[b,4], y[b,4] → loss = mean(x), beside what the test adds.
TestProgram with_loss() {
  TestProgram p;
  p.input("x", {0, 4});
  p.input("y", {0, 4});
  p.parameter("w", {4, 4});
  p.op("linear.default", "l", {{"input", named("x")}, {"weight", named("p_w")}}, {0, 4});
  p.op("mean.default", "loss", {{"self", named("l")}}, {});
  p.output("loss");
  return p;
}

ExportedProgram read_with_notes(TestProgram program, const Json& notes) {
  program.more.emplace_back("extra/espalier.json", notes.dump());
  return read_exported_program(program.archive(), "net.pt2");
}

const Operator& operator_called(const Graph& graph, std::string_view name) {
  return graph.op(graph.find_operator(name).value());
}

Json schema(const std::vector<std::string>& writes, const Json& shares, bool random) {
  return {{"writes", writes}, {"shares", shares}, {"random", random}};
}

TEST(ExportNotes, ASchemaTellsWhatACustomOperatorWritesSharesAndDraws) {
  TestProgram p = with_loss();
  p.op("neg.default", "n", {{"self", named("y")}}, {0, 4});
  p.op("torch.ops.mylib.mix.default", "m", {{"from", named("l")}, {"into", named("n")}}, {0, 4});
  p.op("torch.ops.mylib.plain.default", "q", {{"from", named("n")}}, {0, 4});
  const Json notes{{"operators",
                    {{"mylib::mix.default", schema({"into"}, {{"into"}}, true)},
                     {"mylib::plain.default", schema({}, {Json::array()}, false)}}}};
  const ExportedProgram program = read_with_notes(p, notes);
  const Graph& graph = program.imported.graph;
  const Operator& mix = operator_called(graph, "m");
  EXPECT_TRUE(mix.known);
  EXPECT_TRUE(mix.random);
  EXPECT_THAT(mix.mutates, ElementsAre(operator_called(graph, "n").outputs[0]));
  EXPECT_EQ(graph.tensor(mix.outputs[0]).storage, graph.tensor(mix.mutates[0]).storage);
  EXPECT_EQ(mix.colocation, operator_called(graph, "n").colocation);
  EXPECT_NE(mix.colocation, operator_called(graph, "l").colocation);  // read, not written and not shared
  const Operator& plain = operator_called(graph, "q");
  EXPECT_FALSE(plain.random);
  EXPECT_THAT(plain.mutates, IsEmpty());
  EXPECT_THAT(unknown_operators(graph), IsEmpty());
  EXPECT_THAT(
      program.imported.warnings,
      ElementsAre("operator mylib::mix (1 use, net.py:7) is not in libtorch: it runs only in a program that "
                  "registers it",
                  HasSubstr("mylib::plain")));
}

TEST(ExportNotes, AGradientFlowsThroughWhatACustomOperatorWrites) {
  TestProgram p = with_loss();
  p.op("neg.default", "n", {{"self", named("y")}}, {0, 4});
  p.node("torch.ops.mylib.add_to.default", "a", {{"from", named("l")}, {"into", named("n")}}, Json::array());
  const Json notes{{"operators", {{"mylib::add_to.default", schema({"into"}, Json::array(), false)}}}};
  const Graph graph = read_with_notes(p, notes).imported.graph;
  EXPECT_TRUE(graph.tensor(operator_called(graph, "n").outputs[0]).requires_grad);
}

TEST(ExportNotes, SeveralUsesOfACustomOperatorGiveOneWarning) {
  TestProgram p = with_loss();
  for (const char* const name : {"a", "b", "c"})
    p.op("torch.ops.mylib.plain.default", name, {{"from", named("l")}}, {0, 4});
  const Json notes{{"operators", {{"mylib::plain.default", schema({}, {Json::array()}, false)}}}};
  EXPECT_THAT(read_with_notes(p, notes).imported.warnings,
              ElementsAre(HasSubstr("operator mylib::plain (3 uses, first net.py:7) is not in libtorch")));
}

TEST(ExportNotes, TheLossAndFurtherOutputsAreNamed) {
  TestProgram p = with_loss();
  p.op("max.default", "best", {{"self", named("l")}}, {});
  p.output("best");
  p.output("l");
  const Json notes{{"outputs", {{"loss", "loss"}, {"accuracy", "best"}, {"logits", "l"}}}};
  const ExportedProgram program = read_with_notes(p, notes);
  const Graph& graph = program.imported.graph;
  EXPECT_EQ(graph.loss(), operator_called(graph, "loss").outputs[0]);
  EXPECT_THAT(program.outputs, ElementsAre(UserOutput{"accuracy", operator_called(graph, "best").outputs[0]},
                                           UserOutput{"logits", operator_called(graph, "l").outputs[0]}));
}

TEST(ExportNotes, OutputsThatAreNotThereOrNoLossAreRefused) {
  const auto error = [](const Json& outputs) {
    TestProgram p = with_loss();
    p.op("argmax.default", "index", {{"self", named("l")}}, {}, 5);
    p.output("l");
    p.output("index");
    return testing::refusal([&] { read_with_notes(p, {{"outputs", outputs}}); });
  };
  EXPECT_EQ(error({{"loss", "gone"}}),
            "net.pt2: extra/espalier.json names an output 'gone', which the program does not have");
  EXPECT_EQ(error({{"loss", "l"}}), "net.pt2: its loss 'l' is not one floating-point number");
  EXPECT_EQ(error({{"loss", "loss"}, {"best", "index"}}), "net.pt2: its output 'best' is not floating-point");
}

TEST(ExportNotes, AModelWithoutBytesIsReadAndItsTiesAreThoseOfTheNotes) {
  TestProgram p = with_loss();
  p.parameter("v", {4, 4});
  p.parameter("u", {4, 4});
  p.op("linear.default", "second", {{"input", named("l")}, {"weight", named("p_v")}}, {0, 4});
  for (auto& [name, row] : p.weights.items()) row["path_name"] = "weight_0";
  p.data = {{"weight_0", ""}};
  const ExportedProgram program = read_with_notes(p, {{"weights", "none"}, {"ties", {{"u", "w"}}}});
  const auto parameters = program.imported.graph.parameters();
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_THAT(parameters[0].names, ElementsAre("w", "u"));
  EXPECT_THAT(parameters[1].names, ElementsAre("v"));
  EXPECT_TRUE(program.stored[0].absent);
  EXPECT_THAT(testing::refusal([&] { require_weights(program, "net.pt2"); }),
              HasSubstr("net.pt2: holds no weights, since its model was made on the meta device"));
  EXPECT_THAT(read_with_notes(with_loss(), Json::object()).stored[0].absent, false);
}

TEST(ExportNotes, BadNotesAreRefusedWithTheirPlace) {
  const auto error = [](const Json& notes) {
    return testing::refusal([&] { read_with_notes(with_loss(), notes); });
  };
  EXPECT_THAT(
      error({{"operators", {{"mylib::f.default", {{"writes", 3}}}}}}),
      HasSubstr("net.pt2: extra/espalier.json.operators.mylib::f.default.writes: is 3; expected a list"));
  EXPECT_THAT(error({{"outputs", {{"loss", 3}}}}), HasSubstr("outputs.loss"));
  EXPECT_THAT(error({{"ties", {{"a", 1}}}}), HasSubstr("ties.a"));
}

// r = wrap_with_autocast(device, dtype, enabled, cache, {y = linear(x, w)}) of l and w.
TestProgram with_region(const std::string& device, const Json& dtype, bool enabled) {
  TestProgram p = with_loss();
  Json body{{"inputs", Json::array({named("a"), named("b")})},
            {"outputs", Json::array({named("inner")})},
            {"nodes", Json::array()},
            {"tensor_values",
             {{"a", TestProgram::meta({0, 4}, 7)},
              {"b", TestProgram::meta({4, 4}, 7)},
              {"inner", TestProgram::meta({0, 4}, 13)}}}};
  TestProgram calls;
  calls.op("linear.default", "inner", {{"input", named("a")}, {"weight", named("b")}}, {0, 4}, 13);
  body["nodes"] = calls.graph["nodes"];
  p.value("r", {0, 4}, 13);
  p.node("torch.ops.higher_order.wrap_with_autocast", "r",
         {{"", Json{{"as_string", device}}},
          {"", dtype},
          {"", Json{{"as_bool", enabled}}},
          {"", Json{{"as_bool", false}}},
          {"", Json{{"as_graph", {{"name", "body"}, {"graph", body}}}}},
          {"", named("l")},
          {"", named("p_w")}},
         Json::array({named("r")}));
  return p;
}

TEST(ExportNotes, ARegionOfAutocastSetsWhatItsOperatorsComputeIn) {
  const Json bf16{{"as_scalar_type", 13}}, none{{"as_none", true}};
  const auto setting = [](const TestProgram& p) {
    const ExportedProgram program = read_with_notes(p, Json::object());
    EXPECT_EQ(program.calls[0].autocast, std::nullopt);
    return program.calls[2].autocast;
  };
  EXPECT_EQ(setting(with_region("cpu", bf16, true)), DType::kBF16);
  EXPECT_EQ(setting(with_region("cpu", none, true)), DType::kBF16);
  EXPECT_EQ(setting(with_region("cpu", bf16, false)), std::nullopt);
  EXPECT_EQ(setting(with_region("cuda", bf16, true)), std::nullopt);  // the tensors are on the CPU
  const Graph graph = read_with_notes(with_region("cpu", bf16, true), Json::object()).imported.graph;
  EXPECT_EQ(operator_called(graph, "inner").op_class,
            "aten.linear.default(f32[b,4]',f32[4,4]')autocast=bf16");
  EXPECT_EQ(graph.tensor(operator_called(graph, "inner").outputs[0]).dtype, DType::kBF16);
}

}  // namespace
}  // namespace espalier
