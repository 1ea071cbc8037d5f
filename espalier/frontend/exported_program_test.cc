#include "espalier/frontend/exported_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/base/rng.h"
#include "espalier/frontend/archive_for_tests.h"
#include "espalier/frontend/program_for_tests.h"
#include "espalier/frontend/sample_inputs.h"
#include "espalier/frontend/zip.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string fixture(const std::string& name) {
  return ESPALIER_SOURCE_DIR "/tests/fixtures/" + name;
}

ExportedProgram load_fixture(const std::string& name) {
  const MappedFile file(fixture(name + ".pt2"));
  return read_exported_program(file.bytes(), name + ".pt2");
}

class Fixtures : public ::testing::TestWithParam<const char*> {};

TEST_P(Fixtures, AgreeWithWhatPyTorchSaysOfThem) {
  const ExportedProgram program = load_fixture(GetParam());
  const Graph& graph = program.imported.graph;
  const std::string where = std::string(GetParam()) + ".expected.json";
  const Json json = parse_json(read_file(fixture(where)), where);

  ASSERT_EQ(program.calls.size(), graph.operators().size());
  ASSERT_TRUE(graph.loss());
  EXPECT_TRUE(graph.training_mode());
  EXPECT_THAT(program.imported.warnings, IsEmpty());

  std::vector<std::string> inputs;
  for (const UserInput& input : program.inputs) inputs.push_back(input.name);
  EXPECT_EQ(inputs, json["inputs"].get<std::vector<std::string>>());

  std::vector<std::string> trained, buffers;
  Json tied = Json::object();
  for (const Parameter& parameter : graph.parameters()) {
    (parameter.trainable ? trained : buffers).push_back(parameter.names.front());
    for (std::size_t i = 1; i < parameter.names.size(); ++i)
      tied[parameter.names[i]] = parameter.names.front();
  }
  EXPECT_EQ(trained, json["gradients"].get<std::vector<std::string>>());
  EXPECT_EQ(buffers, json["buffers"].get<std::vector<std::string>>());
  EXPECT_EQ(tied, json["tied"]);

  // The numbering of the reference: its random operators are ours, by name and number. It also lists those
  // that could draw and do not (attention without dropout).
  std::vector<std::pair<std::string, std::uint32_t>> expected, found;
  for (const Json& op : json["random_operators"]) {
    const std::string name = op["name"];
    const auto id = graph.find_operator(name);
    ASSERT_TRUE(id) << name;
    EXPECT_EQ(program.calls[id->index()].original_index, op["index"].get<std::uint32_t>()) << name;
    if (graph.op(*id).random) expected.emplace_back(name, op["index"]);
  }
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    if (graph.operators()[i].random)
      found.emplace_back(graph.operators()[i].name, program.calls[i].original_index);
  }
  EXPECT_EQ(found, expected);
  EXPECT_LT(program.calls.back().original_index, json["operators"].get<std::uint32_t>());
}

INSTANTIATE_TEST_SUITE_P(All, Fixtures,
                         ::testing::Values("two_tower", "two_tower_fixed", "three_branch", "gpt", "resnet",
                                           "dlrm", "unet", "gpt2", "llama", "autocast"),
                         [](const auto& test) { return std::string(test.param); });

// -- Programs made by hand --------------------------------------------------------------------------------

using Arguments = std::vector<std::pair<std::string, Json>>;

std::string error_of(const TestProgram& program, const ImportOptions& options = without_loss()) {
  std::string error = testing::refusal([&] { read(program, options); });
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  return error;
}

TEST(Program, InPlaceNodesStayAndStandWithWhoTouchesTheirMemory) {
  TestProgram p = linear();
  p.op("relu_.default", "r", {{"self", tensor("l")}}, {0, 4});
  p.op("neg.default", "late", {{"self", tensor("l")}}, {0, 4});  // sees what relu_ wrote
  p.op("abs.default", "free", {{"self", tensor("r")}}, {0, 4});  // reads the finished value
  const Graph graph = read(p, without_loss()).imported.graph;
  EXPECT_THAT(op(graph, "r").mutates, ElementsAre(op(graph, "l").outputs[0]));
  EXPECT_EQ(value(graph, "r").storage, value(graph, "l").storage);
  EXPECT_TRUE(op(graph, "l").colocation);
  EXPECT_EQ(op(graph, "r").colocation, op(graph, "l").colocation);
  EXPECT_EQ(op(graph, "late").colocation, op(graph, "l").colocation);
  EXPECT_EQ(op(graph, "free").colocation, std::nullopt);
}

TEST(Program, ABufferUpdateWhoseResultNobodyReadsIsKept) {
  TestProgram p = linear();
  p.buffer("count", {}, 5);
  p.op("add_.Tensor", "add_", {{"self", tensor("b_count")}, {"other", number(1)}}, {}, 5);
  const ExportedProgram program = read(p, without_loss());
  const Graph& graph = program.imported.graph;
  EXPECT_THAT(op(graph, "add_").mutates,
              ElementsAre(value(graph, "b_count").parameter ? op(graph, "add_").inputs[0] : TensorId()));
  EXPECT_FALSE(op(graph, "add_").duplicable);
  EXPECT_EQ(program.calls[1].target, "aten::add_");
  EXPECT_EQ(program.calls[1].overload, "Tensor");
}

TEST(Program, GradientsFlowFromParametersThroughFloatingPointOutputs) {
  TestProgram p = linear();
  p.op("argmax.default", "index", {{"self", tensor("l")}}, {0}, 5);
  p.op("detach.default", "cut", {{"self", tensor("l")}}, {0, 4});
  p.op("mul.Tensor", "scaled", {{"self", tensor("x")}, {"other", number(2)}}, {0, 4});
  const Graph graph = read(p, without_loss()).imported.graph;
  EXPECT_TRUE(value(graph, "l").requires_grad);
  EXPECT_FALSE(value(graph, "index").requires_grad);
  EXPECT_FALSE(value(graph, "cut").requires_grad);
  EXPECT_FALSE(value(graph, "scaled").requires_grad);
  EXPECT_FALSE(value(graph, "x").requires_grad);
  EXPECT_TRUE(op(graph, "scaled").duplicable);
  EXPECT_FALSE(op(graph, "l").duplicable);
}

TEST(Program, AFrozenParameterGivesNoGradientAndIsNotDuplicated) {
  TestProgram p = linear();
  p.graph["tensor_values"]["p_w"]["requires_grad"] = false;
  const Graph graph = read(p, without_loss()).imported.graph;
  EXPECT_FALSE(graph.parameters()[0].trainable);
  EXPECT_FALSE(value(graph, "l").requires_grad);
  EXPECT_FALSE(op(graph, "l").duplicable);
}

TEST(Program, TiedParametersAreOneWithSeveralNames) {
  TestProgram p;
  p.input("x", {0, 4});
  p.parameter("embed", {4, 4}, "weight_0");
  p.parameter("head", {4, 4}, "weight_0");
  p.op("linear.default", "l", {{"input", tensor("x")}, {"weight", tensor("p_head")}}, {0, 4});
  const ExportedProgram program = read(p, without_loss());
  ASSERT_EQ(program.imported.graph.parameters().size(), 1u);
  EXPECT_THAT(program.imported.graph.parameters()[0].names, ElementsAre("embed", "head"));
  EXPECT_EQ(program.stored.size(), 1u);
  EXPECT_EQ(program.imported.graph.op(OperatorId(0)).inputs[1], program.stored[0].tensor);
}

TEST(Program, OverlappingButDifferentParametersAreRefused) {
  TestProgram p;
  p.input("x", {0, 4});
  p.parameter("a", {4, 4}, "weight_0");
  p.parameter("b", {2, 4}, "weight_0");
  EXPECT_THAT(error_of(p), HasSubstr("tensors 'b' and 'p_a' that overlap in memory"));
  p.weights["b"]["tensor_meta"]["storage_offset"] = number(16);  // behind a: no overlap, beyond the entry
  EXPECT_THAT(error_of(p), HasSubstr("'b' reaches beyond the 64 bytes"));
  p.data["weight_0"].resize(96);
  EXPECT_EQ(read(p, without_loss()).stored.size(), 2u);
}

TEST(Program, AListOfOutputsIsOneOutputWithSeveralTensors) {
  TestProgram p = linear();
  p.value("g0", {0, 2}), p.value("g1", {0, 2});
  p.node("chunk.default", "chunk", {{"self", tensor("l")}, {"chunks", number(2)}, {"dim", number(-1)}},
         Json::array({tensors({"g0", "g1"})}));
  const ExportedProgram program = read(p, without_loss());
  ASSERT_EQ(program.calls[1].outputs.size(), 1u);
  EXPECT_TRUE(program.calls[1].outputs[0].is_list);
  EXPECT_EQ(program.calls[1].outputs[0].tensors.size(), 2u);
  EXPECT_EQ(value(program.imported.graph, "g1").storage, value(program.imported.graph, "l").storage);
}

TEST(Program, NumbersFromSizesAreEvaluatedAtLoadAndCounted) {
  TestProgram p = linear();
  p.graph["sym_int_values"]["n"] = TestProgram::symbol("s0");
  p.graph["sym_int_values"]["m"] = {
      {"as_expr",
       {{"expr_str", "Mul(Integer(2), Symbol('s0', positive=True, integer=True))"}, {"hint", number(10)}}}};
  const auto sym = [](const char* name) { return Json{{"as_sym_int", {{"as_name", name}}}}; };
  p.node("sym_size.int", "n", {{"self", tensor("x")}, {"dim", number(0)}}, Json::array({sym("n")}));
  p.node("_operator.mul", "m", {{"a", sym("n")}, {"b", number(2)}}, Json::array({sym("m")}));
  p.node("_assert_tensor_metadata.default", "check", {{"a", tensor("l")}}, Json::array());
  p.op("view.default", "v",
       {{"self", tensor("l")}, {"size", Json{{"as_sym_ints", {Json{{"as_name", "m"}}, number(2)}}}}}, {0, 2});
  const ExportedProgram program = read(p, without_loss());
  ASSERT_EQ(program.calls.size(), 2u);
  EXPECT_EQ(program.calls[0].original_index, 0u);
  EXPECT_EQ(program.calls[1].original_index, 4u);  // behind sym_size, mul and the assertion
  const auto& size = std::get<std::vector<SizeExpr>>(program.calls[1].arguments[1].value);
  EXPECT_EQ(size[0].at(BatchSize(7)), 14);
  EXPECT_EQ(size[1], SizeExpr(2));
}

TEST(Program, ADynamicBatchHasItsRangeAndAFixedOneItsSize) {
  EXPECT_EQ(read(linear(), without_loss()).imported.graph.batch(), (BatchRange{BatchSize(2), BatchSize(64)}));
  TestProgram p;
  p.input("x", {6, 4});
  p.op("neg.default", "n", {{"self", tensor("x")}}, {6, 4});
  EXPECT_EQ(read(p, without_loss()).imported.graph.batch(), (BatchRange{BatchSize(6), BatchSize(6)}));
  // What the exporter noted goes before the first input's size.
  p.more.emplace_back("extra/espalier.json", R"({"mode": "eval", "batch": {"kind": "fixed", "size": 3}})");
  const Graph noted = read(p, without_loss()).imported.graph;
  EXPECT_EQ(noted.batch().max, BatchSize(3));
  EXPECT_FALSE(noted.training_mode());
}

TEST(Program, SizesThatAreNotTheBatchAreRefusedWithTheUsersLine) {
  TestProgram data = linear();
  Json& node = data.op("nonzero.default", "nz", {{"self", tensor("l")}}, {1, 2}, 5);
  data.graph["tensor_values"]["nz"]["sizes"][0] = TestProgram::symbol("u0");
  EXPECT_THAT(error_of(data),
              HasSubstr("net.pt2: node 'nz' (net.py:7) depends on data ('u0' is known only when it runs)"));
  (void)node;

  TestProgram item = linear();
  item.graph["sym_int_values"]["i"] = TestProgram::symbol("u3");
  item.node("item.default", "i", {{"self", tensor("l")}},
            Json::array({Json{{"as_sym_int", {{"as_name", "i"}}}}}));
  EXPECT_THAT(error_of(item), HasSubstr("node 'i' (net.py:7) depends on data"));

  TestProgram second;
  second.input("x", {0, 4});
  second.graph["tensor_values"]["x"]["sizes"][1] = TestProgram::symbol("s7");
  EXPECT_THAT(error_of(second), HasSubstr("input 'x' has a dynamic size 's7' that is not the batch"));

  TestProgram two;
  two.input("x", {0, 4});
  two.input("y", {0, 4});
  two.graph["tensor_values"]["y"]["sizes"][0] = TestProgram::symbol("s7");
  EXPECT_THAT(error_of(two),
              HasSubstr("inputs 'x' and 'y' whose first dimensions vary on their own ('s0', 's7')"));
}

// A sub-graph that doubles its one input.
Json doubling(const char* input, const char* output) {
  TestProgram inner;
  inner.value(input, {0, 4});
  inner.op("mul.Tensor", output, {{"self", tensor(input)}, {"other", number(2)}}, {0, 4});
  inner.graph["inputs"] = Json::array({tensor(input)});
  inner.graph["outputs"] = Json::array({tensor(output)});
  return {{"as_graph", {{"name", "body"}, {"graph", inner.graph}}}};
}

TEST(Program, SubGraphsWithoutGradientsAreInlined) {
  TestProgram p = linear();
  p.node("torch.ops.higher_order.wrap_with_set_grad_enabled", "wrap",
         {{"", truth(false)}, {"", doubling("l", "twice")}, {"", tensor("l")}},
         Json::array({tensor("twice")}));
  p.op("neg.default", "n", {{"self", tensor("twice")}}, {0, 4});
  const ExportedProgram program = read(p, without_loss());
  const Graph& graph = program.imported.graph;
  ASSERT_EQ(program.calls.size(), 3u);
  EXPECT_FALSE(program.calls[1].grad_enabled);
  EXPECT_TRUE(program.calls[2].grad_enabled);
  EXPECT_EQ(program.calls[1].original_index, 1u);  // the wrapper has no number
  EXPECT_FALSE(value(graph, "twice").requires_grad);
  EXPECT_FALSE(value(graph, "n").requires_grad);
  EXPECT_EQ(op(graph, "n").inputs, op(graph, "twice").outputs);
}

TEST(Program, NamesOfASubGraphMayRepeatThoseAroundIt) {
  TestProgram p = linear();
  for (int i = 0; i < 2; ++i) {
    p.node("torch.ops.higher_order.wrap_with_set_grad_enabled", "wrap" + std::to_string(i),
           {{"", truth(true)}, {"", doubling("l", "inner")}, {"", tensor("l")}},
           Json::array({tensor("twice" + std::to_string(i))}));
  }
  p.op("add.Tensor", "sum", {{"self", tensor("twice0")}, {"other", tensor("twice1")}}, {0, 4});
  const Graph graph = read(p, without_loss()).imported.graph;
  EXPECT_NE(op(graph, "sum").inputs[0], op(graph, "sum").inputs[1]);
  EXPECT_TRUE(graph.find_operator("inner"));
  EXPECT_TRUE(graph.find_operator("inner__1"));
}

TEST(Program, AutocastIsInlined) {
  const auto with = [](bool enabled) {
    TestProgram p = linear();
    p.node("torch.ops.higher_order.wrap_with_autocast", "cast",
           {{"", Json{{"as_string", "cpu"}}},
            {"", Json{{"as_none", true}}},
            {"", truth(enabled)},
            {"", truth(true)},
            {"", doubling("l", "twice")},
            {"", tensor("l")}},
           Json::array({tensor("twice")}));
    return p;
  };
  for (const bool enabled : {false, true}) {
    EXPECT_TRUE(value(read(with(enabled), without_loss()).imported.graph, "twice").requires_grad);
  }
}

TEST(Program, ControlFlowOnDataIsRefusedWithTheUsersLine) {
  TestProgram p = linear();
  p.node("torch.ops.higher_order.cond", "cond", {{"", tensor("l")}, {"", doubling("l", "t")}},
         Json::array({tensor("t")}));
  EXPECT_THAT(error_of(p), HasSubstr("node 'cond' (net.py:7) is 'cond': which of its sub-graphs runs"));
}

TEST(Program, EveryKindOfArgumentIsDecoded) {
  TestProgram p = linear();
  p.node("special_airy_ai.default", "foo",
         {{"none", Json{{"as_none", true}}},
          {"int", number(-3)},
          {"big", number(INT64_MAX)},
          {"ints", Json{{"as_ints", {1, 2}}}},
          {"float", real(0.5)},
          {"inf", Json{{"as_float", "-Infinity"}}},
          {"floats", Json{{"as_floats", {0.5, 2}}}},
          {"bool", truth(true)},
          {"bools", Json{{"as_bools", {true, false}}}},
          {"string", Json{{"as_string", "mean"}}},
          {"dtype", Json{{"as_scalar_type", 13}}},
          {"layout", Json{{"as_layout", 7}}},
          {"format", Json{{"as_memory_format", 2}}},
          {"device", Json{{"as_device", {{"type", "cuda"}, {"index", 0}}}}},
          {"tensors", tensors({"x", "l"})},
          {"optional", Json{{"as_optional_tensor", {{"as_none", true}}}}},
          {"optionals", Json{{"as_optional_tensors", {tensor("x"), Json{{"as_none", true}}}}}},
          {"sym", Json{{"as_sym_int", number(4)}}},
          {"sym_bool", Json{{"as_sym_bool", truth(false)}}},
          {"sym_float", Json{{"as_sym_float", real(1.5)}}}},
         Json::array());
  const Call call = read(p, without_loss()).calls[1];
  const auto get = [&](const char* name) -> const ArgumentValue& {
    for (const Argument& argument : call.arguments) {
      if (argument.name == name) return argument.value;
    }
    throw InputError(name);
  };
  EXPECT_EQ(get("none"), ArgumentValue(NoArgument()));
  EXPECT_EQ(get("int"), ArgumentValue(SizeExpr(-3)));
  EXPECT_EQ(get("big"), ArgumentValue(SizeExpr(INT64_MAX)));
  EXPECT_EQ(get("ints"), ArgumentValue(std::vector<SizeExpr>{1, 2}));
  EXPECT_EQ(get("float"), ArgumentValue(0.5));
  EXPECT_EQ(get("inf"), ArgumentValue(-std::numeric_limits<double>::infinity()));
  EXPECT_EQ(get("floats"), ArgumentValue(std::vector<double>{0.5, 2}));
  EXPECT_EQ(get("bool"), ArgumentValue(true));
  EXPECT_EQ(get("bools"), ArgumentValue(std::vector<bool>{true, false}));
  EXPECT_EQ(get("string"), ArgumentValue(std::string("mean")));
  EXPECT_EQ(get("dtype"), ArgumentValue(DType::kBF16));
  EXPECT_EQ(get("layout"), ArgumentValue(LayoutArgument::kStrided));
  EXPECT_EQ(get("format"), ArgumentValue(MemoryFormatArgument::kChannelsLast));
  EXPECT_EQ(get("device"), ArgumentValue(DeviceArgument()));
  EXPECT_EQ(get("tensors"), ArgumentValue(std::vector<OptionalTensor>{TensorId(0), TensorId(2)}));
  EXPECT_EQ(get("optional"), ArgumentValue(NoArgument()));
  EXPECT_EQ(get("optionals"), ArgumentValue(std::vector<OptionalTensor>{TensorId(0), std::nullopt}));
  EXPECT_EQ(get("sym"), ArgumentValue(SizeExpr(4)));
  EXPECT_EQ(get("sym_bool"), ArgumentValue(false));
  EXPECT_EQ(get("sym_float"), ArgumentValue(1.5));
}

TEST(Program, AnUnknownKindOfArgumentIsNamedWithItsNode) {
  for (const char* kind : {"as_int_lists", "as_complex", "as_whatever", "as_operator"}) {
    TestProgram p = linear();
    p.node("foo.default", "foo", {{"a", Json{{kind, 1}}}}, Json::array());
    EXPECT_THAT(error_of(p),
                HasSubstr("node 'foo' (net.py:7) has an argument of kind '" + std::string(kind) + "'"));
  }
  TestProgram p = linear();
  p.node("foo.default", "foo", {{"a", Json{{"as_custom_obj", {{"name", "o"}}}}}}, Json::array());
  EXPECT_THAT(error_of(p), HasSubstr("node 'foo' (net.py:7) reads a custom object"));
}

TEST(Program, AnUnknownOperatorMayAliasAndIsListed) {
  TestProgram p = linear();
  p.op("special_airy_ai.default", "t", {{"x", tensor("l")}}, {0, 4});
  p.op("relu_.default", "r", {{"self", tensor("t")}}, {0, 4});
  const Graph graph = read(p, without_loss()).imported.graph;
  EXPECT_FALSE(op(graph, "t").known);
  EXPECT_NE(value(graph, "t").storage, value(graph, "l").storage);
  EXPECT_EQ(op(graph, "l").colocation, op(graph, "r").colocation);  // relu_ may have written l
  const auto unknown = unknown_operators(graph);
  ASSERT_EQ(unknown.size(), 1u);
  EXPECT_EQ(unknown[0].target, "aten.special_airy_ai.default");
}

TEST(Program, AnOperatorThatLibtorchDoesNotHaveIsRefused) {
  for (const char* const target : {"torch.ops.mylib.twist.default", "torch.ops.aten.twist.default"}) {
    TestProgram p = linear();
    p.op(target, "t", {{"x", tensor("l")}}, {0, 4});
    EXPECT_THAT(error_of(p), HasSubstr("net.pt2: node 't' (net.py:7) calls operator '"));
    EXPECT_THAT(error_of(p), HasSubstr("::twist', which libtorch does not have"));
  }
  TestProgram p = linear();
  p.op("torch._functorch.predispatch._add_batch_dim", "t", {{"x", tensor("l")}}, {0, 4});
  EXPECT_THAT(error_of(p), HasSubstr("which is no operator, so that only Python can run it"));
}

TEST(Program, OnlyPyTorchsOwnChecksAreDropped) {
  TestProgram p = linear();
  p.node("_assert_tensor_metadata.default", "check", {{"a", tensor("l")}}, Json::array());
  p.node("_assert_async.msg", "async", {{"self", tensor("l")}}, Json::array());
  p.op("_functional_assert_async.msg", "kept", {{"self", tensor("l")}}, {0, 4});
  EXPECT_EQ(read(p, without_loss()).calls.size(), 2u);
  p.node("torch.ops.mylib.my_assert.default", "mine", {{"a", tensor("l")}}, Json::array());
  EXPECT_THAT(error_of(p), HasSubstr("node 'mine' (net.py:7) calls operator 'mylib::my_assert'"));
}

TEST(Program, AnInPlaceOperatorOnAListWritesEachOfIt) {
  TestProgram p = linear();
  p.op("neg.default", "n", {{"self", tensor("x")}}, {0, 4});
  p.node("_foreach_add_.Scalar", "each", {{"self", tensors({"l", "n"})}, {"scalar", number(1)}},
         Json::array());
  const Graph graph = read(p, without_loss()).imported.graph;
  EXPECT_THAT(op(graph, "each").mutates, ElementsAre(op(graph, "l").outputs[0], op(graph, "n").outputs[0]));
  EXPECT_EQ(op(graph, "n").colocation, op(graph, "each").colocation);
}

TEST(Program, ReshapeIsAViewOnlyWhereStridesAllow) {
  TestProgram p = linear();
  p.op("view.default", "v", {{"self", tensor("l")}, {"size", Json{{"as_ints", {-1, 2, 2}}}}}, {0, 2, 2});
  p.op("transpose.int", "t", {{"self", tensor("v")}, {"dim0", number(1)}, {"dim1", number(2)}}, {0, 2, 2});
  p.graph["tensor_values"]["t"]["strides"] = Json::array({number(4), number(1), number(2)});
  p.op("reshape.default", "same", {{"self", tensor("v")}, {"shape", Json{{"as_ints", {-1, 4}}}}}, {0, 4});
  p.op("reshape.default", "copy", {{"self", tensor("t")}, {"shape", Json{{"as_ints", {-1, 4}}}}}, {0, 4});
  p.op("contiguous.default", "dense", {{"self", tensor("t")}}, {0, 2, 2});
  p.op("contiguous.default", "already", {{"self", tensor("v")}}, {0, 2, 2});
  p.op("to.dtype", "to", {{"self", tensor("v")}, {"dtype", Json{{"as_scalar_type", 7}}}}, {0, 2, 2});
  p.op("dropout.default", "eval", {{"input", tensor("v")}, {"p", real(0.5)}, {"train", truth(false)}},
       {0, 2, 2});
  p.op("dropout.default", "train", {{"input", tensor("v")}, {"p", real(0.5)}, {"train", truth(true)}},
       {0, 2, 2});
  const Graph graph = read(p, without_loss()).imported.graph;
  const auto shares = [&](const char* name) {
    return value(graph, name).storage == value(graph, "l").storage;
  };
  for (const char* name : {"v", "t", "same", "already", "to", "eval"}) EXPECT_TRUE(shares(name)) << name;
  for (const char* name : {"copy", "dense", "train"}) EXPECT_FALSE(shares(name)) << name;
  EXPECT_TRUE(op(graph, "train").random);
  EXPECT_FALSE(op(graph, "eval").random);
  // The classes tell the two reshapes apart: one copies.
  EXPECT_EQ(op(graph, "same").op_class, "aten.reshape.default(f32[b,2,2]',shape=[-1,4])");
  EXPECT_EQ(op(graph, "copy").op_class, "aten.reshape.default(f32[b,2,2]~021',shape=[-1,4])");
}

TEST(Program, ModulePathAndSourceComeFromTheMetadata) {
  const Graph graph = read(linear(), without_loss()).imported.graph;
  EXPECT_EQ(op(graph, "l").module_path, "a.b");
  EXPECT_EQ(op(graph, "l").source, "net.py:7");
}

TEST(Program, TheSourceIsTheInnermostLineThatIsNotOfTorch) {
  const auto source_of = [](const std::string& trace) {
    TestProgram p = linear();
    for (Json& node : p.graph["nodes"]) node["metadata"]["stack_trace"] = trace;
    return op(read(p, without_loss()).imported.graph, "l").source;
  };
  const std::string net = "  File \"net.py\", line 7, in forward\n    y = self.block(x)\n";
  const std::string block = "  File \"blocks.py\", line 12, in forward\n    return self.l(x)\n";
  for (const char* const folder : {"torch/nn", "/usr/lib/python3/dist-packages/torch/nn"}) {
    const std::string torch = "  File \"" + std::string(folder) + "/linear.py\", line 134, in forward\n";
    EXPECT_EQ(source_of(net + block + torch), "blocks.py:12");
    EXPECT_EQ(source_of(torch), std::string(folder) + "/linear.py:134");
  }
  EXPECT_EQ(source_of(net), "net.py:7");
  EXPECT_EQ(source_of("no frame"), "");
}

TEST(Program, TheLossIsTheOnlyFloatingPointScalar) {
  TestProgram p = linear();
  p.op("mean.default", "loss", {{"self", tensor("l")}}, {});
  p.op("argmax.default", "best", {{"self", tensor("l")}}, {}, 5);
  p.output("l"), p.output("best"), p.output("loss");
  EXPECT_EQ(value(read(p).imported.graph, "loss").name, "loss");
  p.op("sum.default", "other", {{"self", tensor("l")}}, {});
  p.output("other");
  EXPECT_THAT(error_of(p, {}), HasSubstr("name one with --loss: l, best, loss, other"));
  ImportOptions named;
  named.loss = "other";
  const Graph graph = read(p, named).imported.graph;
  EXPECT_EQ(graph.tensor(*graph.loss()).name, "other");
  named.loss = "l";
  EXPECT_THAT(error_of(p, named), HasSubstr("output 'l' cannot be the loss"));
  named.loss = "nothing";
  EXPECT_THAT(error_of(p, named), HasSubstr("has no output 'nothing'; its outputs: l, best, loss, other"));
}

TEST(Program, WithoutALossTheExportersRecipeIsGiven) {
  TestProgram p = linear();
  p.output("l");
  EXPECT_THAT(error_of(p, {}), HasSubstr("has no loss"));
  EXPECT_THAT(error_of(p, {}), HasSubstr("from espalier_export import export"));
  EXPECT_THAT(read(p, without_loss()).imported.warnings, ElementsAre(HasSubstr("has no loss")));
}

TEST(Program, PickledWeightsAreRefusedByName) {
  TestProgram p = linear();
  p.weights["w"]["use_pickle"] = true;
  EXPECT_THAT(error_of(p), HasSubstr("'w' is stored as a pickle"));
  p.weights.erase("w");
  EXPECT_THAT(error_of(p), HasSubstr("'w' is read by the program, and the archive does not store it"));
}

TEST(Program, StoredTensorsMustFitTheirEntryAndTheirGraph) {
  TestProgram p = linear();
  p.data["weight_0"].resize(63);
  EXPECT_THAT(error_of(p), HasSubstr("'w' reaches beyond the 63 bytes"));
  p.data.erase("weight_0");
  EXPECT_THAT(error_of(p), HasSubstr("'data/weights/weight_0', which is not in the archive"));
  TestProgram other = linear();
  other.graph["tensor_values"]["p_w"]["sizes"][0] = number(5);
  EXPECT_THAT(error_of(other), HasSubstr("stores 'w' with another type or size"));
}

TEST(Program, BrokenReferencesAreNamed) {
  TestProgram p = linear();
  p.op("neg.default", "n", {{"self", tensor("ghost")}}, {0, 4});
  EXPECT_THAT(error_of(p),
              HasSubstr("node 'n' (net.py:7) reads tensor 'ghost', which nothing before it defines"));
  TestProgram twice = linear();
  twice.op("neg.default", "l", {{"self", tensor("x")}}, {0, 4});
  EXPECT_THAT(error_of(twice), HasSubstr("defines tensor 'l' a second time"));
  TestProgram mutated = linear();
  mutated.output_specs.push_back({{"buffer_mutation", {{"arg", {{"name", "l"}}}, {"buffer_name", "w"}}}});
  EXPECT_THAT(error_of(mutated), HasSubstr("without run_decompositions"));
  TestProgram token = linear();
  token.input_specs.push_back({{"token", {{"arg", {{"name", "t"}}}}}});
  EXPECT_THAT(error_of(token), HasSubstr("input of kind 'token'"));
}

TEST(Program, AnotherSchemaOrByteOrderIsRefused) {
  TestProgram p = linear();
  std::string text = p.archive();
  const auto at = text.find("\"major\":8");
  text[at + 8] = '7';
  EXPECT_THROW(read_exported_program(text, "f"), InputError);
  const std::string big =
      make_zip({{"archive_format", "pt2"}, {"archive_version", "0"}, {"byteorder", "big"}});
  EXPECT_EQ(testing::refusal([&] { read_exported_program(big, "f"); }),
            "f: byteorder is 'big'; this program reads 'little'");
}

TEST(Program, SampleRangesAreReadOfWhatLiesBetweenZeroAndOne) {
  const ExportedProgram dlrm = load_fixture("dlrm");
  std::size_t shares = 0;
  for (const UserInput& input : dlrm.inputs) {
    if (dlrm.imported.graph.tensor(input.tensor).dtype != DType::kF32 || !input.sample_min) continue;
    EXPECT_EQ(input.sample_min, 0) << input.name;
    EXPECT_EQ(input.sample_max, 1) << input.name;
    ++shares;
  }
  EXPECT_EQ(shares, 1U) << "the labels; the numbers of a sample are below 0 too";
}

TEST(Program, SampleRangesOfIntegerInputsAreRead) {
  const ExportedProgram gpt = load_fixture("gpt");
  EXPECT_EQ(gpt.inputs[0].name, "tokens");
  EXPECT_EQ(gpt.inputs[0].sample_min, 0);
  EXPECT_EQ(gpt.inputs[0].sample_max, 19);                                  // a vocabulary of 20
  EXPECT_EQ(load_fixture("two_tower").inputs[0].sample_min, std::nullopt);  // floating point
}

// Each list holds the one before it 300 times: 300^4 empty lists in 2 KiB.
TEST(Program, SamplesThatShareListsWithoutEndAreLeftAlone) {
  std::string code = "\x80\x02)";
  for (char depth = 0; depth < 4; ++depth) {
    code += 'q';
    code += depth;
    code += '(';
    for (int i = 0; i < 300; ++i) code += {'h', depth};
    code += 't';
  }
  EXPECT_THAT(read_sample_ranges(make_zip({{"data.pkl", code + "."}}, "archive/"), "f"), IsEmpty());
}

TEST(Program, EveryFixtureCutAnywhereIsRefusedOnOneLine) {
  const MappedFile file(fixture("dlrm.pt2"));
  const std::string_view bytes = file.bytes();
  for (std::size_t size = 0; size < bytes.size(); size += 1 + bytes.size() / 400) {
    try {
      read_exported_program(bytes.substr(0, size), "f");
      FAIL() << size;
    } catch (const InputError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
}

TEST(Program, NoChangedByteOfAProgramDoesMoreThanBeRefused) {
  // Any byte of the program replaced: read or refused, never a crash. (Weights are not looked at.)
  TestProgram p = linear();
  p.op("mean.default", "loss", {{"self", tensor("l")}}, {});
  p.output("loss");
  const std::string good = p.archive();
  Rng rng(7);
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(rng.below(256));
    try {
      read_exported_program(bad, "f");
    } catch (const InputError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace espalier
