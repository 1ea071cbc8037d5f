#include <gmock/gmock.h>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/frontend/imported.h"
#include "espalier/frontend/onnx_file.h"
#include "espalier/frontend/onnx_for_tests.h"
#include "espalier/frontend/onnx_sizes.h"
#include "espalier/frontend/zip.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using namespace testing;  // NOLINT: makers of files
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::string onnx_fixture(const std::string& name) {
  return std::string(ESPALIER_SOURCE_DIR) + "/tests/fixtures/onnx/" + name + ".onnx";
}

ImportOptions with_dims(std::map<std::string, SizeExpr> dims) {
  ImportOptions options;
  options.dims = std::move(dims);
  return options;
}

Imported read_fixture(const std::string& name) {
  return import_file(onnx_fixture(name),
                     name.starts_with("bert") ? with_dims({{"tokens", 12}}) : ImportOptions());
}

std::string sizes_of(const Imported& model, const std::string& tensor) {
  for (const Tensor& each : model.graph.tensors())
    if (each.name == tensor) return type_text(each);
  return "no tensor " + tensor;
}

std::int64_t parameter_elements(const Graph& graph) {
  std::int64_t count = 0;
  for (const Parameter& parameter : graph.parameters())
    if (parameter.trainable) count += parameter.elements();
  return count;
}

// What PyTorch's exporter wrote of each value it found itself, at a batch: no other reader of ours knows
// that.
TEST(Onnx, DerivedSizesAreThoseThatTheExporterFound) {
  for (const char* name : {"towers", "pictures", "recurrent", "bert"}) {
    const MappedFile bytes(onnx_fixture(name));
    const OnnxFile file = read_onnx_file(bytes.bytes(), name);
    const Imported model = read_fixture(name);
    std::size_t compared = 0;
    for (const Tensor& tensor : model.graph.tensors()) {
      const auto said = file.types.find(tensor.name);
      if (said == file.types.end() || !said->second.dims) continue;
      ASSERT_EQ(tensor.sizes.size(), said->second.dims->size()) << name << ' ' << tensor.name;
      EXPECT_EQ(onnx_dtype(said->second.element), tensor.dtype) << name << ' ' << tensor.name;
      for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
        const OnnxDim& dim = (*said->second.dims)[i];
        if (!dim.value && dim.symbol != "batch" && dim.symbol != "tokens")
          continue;  // the exporter left it open
        const std::string size = dim.value ? std::to_string(*dim.value) : dim.symbol == "batch" ? "b" : "12";
        EXPECT_EQ(tensor.sizes[i].text(), size) << name << ' ' << tensor.name;
        ++compared;
      }
    }
    EXPECT_GT(compared, name == std::string("towers") ? 20U : 50U) << name;
  }
}

// The older exporter describes no value between inputs and outputs.
TEST(Onnx, BothExportersGiveTheSameModel) {
  for (const char* name : {"towers", "pictures", "recurrent", "bert"}) {
    const Imported one = read_fixture(name), other = read_fixture(std::string(name) + "_legacy");
    const std::int64_t left_out = name == std::string("bert") ? 18 : 0;  // biases of zero, by the newer one
    EXPECT_EQ(parameter_elements(one.graph) + left_out, parameter_elements(other.graph)) << name;
    ASSERT_THAT(one.graph.outputs(), SizeIs(1));
    ASSERT_THAT(other.graph.outputs(), SizeIs(1));
    EXPECT_EQ(type_text(one.graph.tensor(one.graph.outputs()[0])),
              type_text(other.graph.tensor(other.graph.outputs()[0])))
        << name;
    for (const Imported* model : {&one, &other}) {
      EXPECT_THAT(check_graph(model->graph.parts()), IsEmpty());
      EXPECT_FALSE(model->graph.loss().has_value());
      EXPECT_FALSE(model->graph.training_mode());
      EXPECT_FALSE(model->graph.batch().fixed());
      for (const Operator& op : model->graph.operators()) EXPECT_TRUE(op.known) << op.target;
    }
  }
}

// As many as sum(p.numel() for p in model.parameters()) counts, though the file holds equal biases once.
TEST(Onnx, ParametersAreThoseOfTheModel) {
  EXPECT_EQ(parameter_elements(read_fixture("bert_legacy").graph), 6642);
  EXPECT_EQ(parameter_elements(read_fixture("towers").graph), 611);
}

TEST(Onnx, ModulesAndSourceLinesAreTheExportersNotes) {
  const Imported towers = read_fixture("towers"), legacy = read_fixture("towers_legacy");
  EXPECT_EQ(towers.graph.operators()[0].module_path, "image.0");
  EXPECT_THAT(towers.graph.operators()[0].source, StartsWith("make_onnx.py:"));
  EXPECT_EQ(legacy.graph.operators()[0].module_path, "image.image.0");
  const Imported bert = read_fixture("bert");
  bool found = false;
  for (const Operator& op : bert.graph.operators())
    found = found || op.module_path == "bert.bert.encoder.layer.1.attention.self.query";
  EXPECT_TRUE(found);
}

OnnxParts two_layers() {
  return {.nodes = {onnx_node("Gemm", {"x", "w"}, {"h"}, {}, "/first/Gemm"), onnx_node("Relu", {"h"}, {"r"}),
                    onnx_node("MatMul", {"r", "v"}, {"y"}, {}, "/second/MatMul")},
          .initializers = {onnx_tensor("w", {8, 16}), onnx_tensor("v", {16, 4})},
          .inputs = {onnx_value("x", {"batch", "8"})},
          .outputs = {onnx_value("y", {"batch", "4"})},
          .values = {}};
}

Imported imported(const OnnxParts& parts, const ImportOptions& options = {}) {
  return import_bytes(onnx_model(parts), "m.onnx", options);
}
std::string refused(const OnnxParts& parts, const ImportOptions& options = {}) {
  return refusal([&] { imported(parts, options); });
}

TEST(Onnx, AModelByHand) {
  const Imported model = imported(two_layers());
  EXPECT_EQ(model.graph.name(), "m");
  ASSERT_THAT(model.graph.operators(), SizeIs(3));
  EXPECT_EQ(model.graph.operators()[0].name, "/first/Gemm");
  EXPECT_EQ(model.graph.operators()[0].module_path, "first");
  EXPECT_EQ(model.graph.operators()[1].name, "r");
  EXPECT_EQ(sizes_of(model, "h"), "f32[b,16]");
  EXPECT_EQ(sizes_of(model, "y"), "f32[b,4]");
  ASSERT_THAT(model.graph.parameters(), SizeIs(2));
  EXPECT_THAT(model.graph.parameters()[0].names, ElementsAre("w"));
  EXPECT_THAT(model.graph.parameters()[0].sizes, ElementsAre(8, 16));
  EXPECT_TRUE(model.graph.tensor(model.graph.outputs()[0]).requires_grad);
  EXPECT_EQ(model.graph.batch().max, BatchSize(1048576));
}

// Names of nodes need not differ; those of values do.
TEST(Onnx, OperatorsOfOneNameAreCalledByTheirOutputs) {
  OnnxParts parts = two_layers();
  parts.nodes[0] = onnx_node("Gemm", {"x", "w"}, {"h"}, {}, "r");
  parts.nodes[2] = onnx_node("MatMul", {"r", "v"}, {"y"}, {}, "r");
  std::string names;
  const Imported model = imported(parts);
  for (const Operator& op : model.graph.operators()) names += op.name + ' ';
  EXPECT_EQ(names, "r r_2 y ");
}

TEST(Onnx, FrozenParametersGetNoGradient) {
  ImportOptions options;
  options.frozen = {"w"};
  const Imported model = imported(two_layers(), options);
  EXPECT_FALSE(model.graph.parameters()[0].trainable);
  EXPECT_TRUE(model.graph.parameters()[1].trainable);
  EXPECT_FALSE(
      model.graph.tensor(*model.graph.tensors()[0].parameter == ParameterId(0) ? TensorId(0) : TensorId(1))
          .requires_grad);
  options.frozen = {"z*"};
  EXPECT_EQ(refused(two_layers(), options), "m.onnx: --freeze 'z*' matches no parameter");
}

TEST(Onnx, OpenSizesAreAskedForByName) {
  OnnxParts parts = two_layers();
  parts.inputs = {onnx_value("x", {"batch", "seq", "8"})};
  EXPECT_EQ(
      refused(parts),
      "m.onnx: leaves open how large 'seq' (dimension 1 of input 'x') is; say it, such as --dim seq=128");
  EXPECT_EQ(sizes_of(imported(parts, with_dims({{"seq", 5}})), "y"), "f32[b,5,4]");
  EXPECT_EQ(sizes_of(imported(parts, with_dims({{"seq", 2 * SizeExpr::batch()}})), "y"), "f32[b,2*b,4]");
  EXPECT_EQ(refused(parts, with_dims({{"seq", 5}, {"sqe", 5}})),
            "m.onnx: --dim sqe: no input has a size of that name; open are batch, seq");

  // Not called so, the batch is the first dimension; without a name a size is called by its place.
  parts.inputs = {onnx_value("x", {"", "", "8"})};
  EXPECT_THAT(refused(parts), HasSubstr("say it, such as --dim x.1=128"));
  EXPECT_EQ(sizes_of(imported(parts, with_dims({{"x.1", 5}})), "y"), "f32[b,5,4]");
  parts.inputs = {onnx_value("x", {"seq", "N", "8"})};
  EXPECT_EQ(sizes_of(imported(parts, with_dims({{"seq", 5}})), "y"), "f32[5,b,4]");

  // A batch that is given is fixed.
  const Imported fixed = imported(two_layers(), with_dims({{"batch", 6}}));
  EXPECT_EQ(sizes_of(fixed, "y"), "f32[6,4]");
  EXPECT_TRUE(fixed.graph.batch().fixed());
  EXPECT_EQ(fixed.graph.batch().min, BatchSize(6));
  EXPECT_THAT(fixed.warnings,
              ElementsAre(HasSubstr("fixed batch of 6: export it with an open one, or try --dim x.0=b")));

  // "?" is no name, and every size is asked for at once. A fixed size may be opened by its place.
  parts.inputs = {onnx_value("x", {"?", "?", "?", "8"})};
  EXPECT_EQ(refused(parts),
            "m.onnx: leaves open how large 'x.1' (dimension 1 of input 'x'), 'x.2' (dimension 2 of input "
            "'x') are; say it, such as --dim x.1=128 --dim x.2=128");
  parts.inputs = {onnx_value("x", {"1", "8"})};
  const Imported opened = imported(parts, with_dims({{"x.0", SizeExpr::batch()}}));
  EXPECT_EQ(sizes_of(opened, "y"), "f32[b,4]");
  EXPECT_FALSE(opened.graph.batch().fixed());
  EXPECT_THAT(opened.warnings, IsEmpty());
  EXPECT_EQ(refusal([] {
              import_bytes("x = input()\ny = relu(x)\n", "g", with_dims({{"n", 1}}));
            }),
            "g: --dim is for ONNX files that leave sizes open");
}

// Shape, Gather, Concat and Reshape in a row, as exporters write a view.
TEST(Onnx, WhatIsComputedFromSizesIsNoOperator) {
  OnnxParts parts;
  parts.inputs = {onnx_value("x", {"batch", "6", "8"})};
  parts.initializers = {onnx_tensor("zero", {}, 7, {0}), onnx_tensor("rest", {2}, 7, {-1, 4}),
                        onnx_tensor("axis", {1}, 7, {0}), onnx_tensor("w", {4, 4})};
  parts.nodes = {onnx_node("Shape", {"x"}, {"shape"}),
                 onnx_node("Gather", {"shape", "zero"}, {"samples"}),
                 onnx_node("Unsqueeze", {"samples", "axis"}, {"first"}),
                 onnx_node("Concat", {"first", "rest"}, {"to"}, {onnx_attribute("axis", std::int64_t{0})}),
                 onnx_node("Reshape", {"x", "to"}, {"view"}),
                 onnx_node("MatMul", {"view", "w"}, {"y"})};
  parts.outputs = {onnx_value("y", {})};
  const Imported model = imported(parts);
  ASSERT_THAT(model.graph.operators(), SizeIs(2));
  EXPECT_EQ(sizes_of(model, "view"), "f32[b,12,4]");
  EXPECT_EQ(sizes_of(model, "y"), "f32[b,12,4]");
  const Operator& reshape = model.graph.operators()[0];
  ASSERT_THAT(reshape.inputs, SizeIs(1));
  EXPECT_EQ(model.graph.tensor(reshape.inputs[0]).storage, model.graph.tensor(reshape.outputs[0]).storage);
  EXPECT_TRUE(reshape.duplicable);
}

// PyTorch's older exporter asks whether a dimension is one before it drops it.
TEST(Onnx, ABranchThatSizesDecideIsTaken) {
  OnnxParts parts = two_layers();
  parts.initializers.push_back(onnx_tensor("one", {1}, 7, {1}));
  parts.initializers.push_back(onnx_tensor("last", {1}, 7, {1}));
  const auto graph = [](const std::string& node, const std::string& output) {
    return onnx_field(6, onnx_field(1, node) + onnx_field(12, onnx_value(output, {})));
  };
  parts.nodes.insert(parts.nodes.begin(),
                     {onnx_node("Shape", {"x"}, {"shape"}), onnx_node("Gather", {"shape", "last"}, {"width"}),
                      onnx_node("Equal", {"width", "one"}, {"is_one"})});
  parts.nodes[4] = onnx_node("If", {"is_one"}, {"r"},
                             {onnx_field(1, "then_branch") + graph(onnx_node("Tanh", {"h"}, {"t"}), "t"),
                              onnx_field(1, "else_branch") + graph(onnx_node("Sigmoid", {"h"}, {"s"}), "s")});
  const Imported model = imported(parts);
  ASSERT_THAT(model.graph.operators(), SizeIs(3));
  EXPECT_EQ(model.graph.operators()[1].target, "onnx.Sigmoid");
  EXPECT_EQ(sizes_of(model, "y"), "f32[b,4]");
}

// Equal biases are written once by PyTorch's older exporter; equal matrices are tied.
TEST(Onnx, IdentityOfABiasIsAnotherBias) {
  OnnxParts parts = two_layers();
  parts.initializers.push_back(onnx_tensor("bias", {16}));
  parts.nodes = {onnx_node("Identity", {"bias"}, {"other.bias"}), onnx_node("Identity", {"w"}, {"other.w"}),
                 onnx_node("Gemm", {"x", "w", "bias"}, {"h"}),
                 onnx_node("Gemm", {"x", "other.w", "other.bias"}, {"g"}),
                 onnx_node("Add", {"h", "g"}, {"y"})};
  const Imported model = imported(parts);
  EXPECT_THAT(model.graph.parameters(), SizeIs(3));
  EXPECT_THAT(model.graph.operators(), SizeIs(4));  // the Identity of the matrix is one
}

TEST(Onnx, WeightsMayBeWrittenAsConstants) {
  OnnxParts parts = two_layers();
  parts.initializers = {onnx_tensor("shape", {2}, 7, {16, 4})};
  const std::string value = onnx_field(1, "value") + onnx_field(5, onnx_tensor("", {8, 16}));
  parts.nodes.insert(parts.nodes.begin(), {onnx_node("Constant", {}, {"w"}, {value}),
                                           onnx_node("ConstantOfShape", {"shape"}, {"v"})});
  const Imported model = imported(parts);
  EXPECT_EQ(parameter_elements(model.graph), 8 * 16 + 16 * 4);
  EXPECT_THAT(model.graph.operators(), SizeIs(3));
}

TEST(Onnx, StatisticsAndWholeNumbersAreNotTrained) {
  OnnxParts parts;
  parts.inputs = {onnx_value("x", {"N", "3", "4", "4"})};
  for (const char* name : {"scale", "shift", "mean", "variance"})
    parts.initializers.push_back(onnx_tensor(name, {3}));
  parts.initializers.push_back(onnx_tensor("weights", {64, 3, 1, 1}, 3));
  parts.initializers.push_back(onnx_tensor("factor", {}));
  parts.nodes = {onnx_node("BatchNormalization", {"x", "scale", "shift", "mean", "variance"}, {"n"}),
                 onnx_node("DequantizeLinear", {"weights", "factor"}, {"w"}),
                 onnx_node("Conv", {"n", "w"}, {"y"})};
  parts.outputs = {onnx_value("y", {})};
  const Imported model = imported(parts);
  ASSERT_THAT(model.graph.parameters(), SizeIs(5));
  std::string trained;
  for (const Parameter& parameter : model.graph.parameters())
    if (parameter.trainable) trained += parameter.names[0] + ' ';
  EXPECT_EQ(trained, "scale shift ");
  EXPECT_EQ(sizes_of(model, "w"), "f32[64,3,1,1]");
  EXPECT_EQ(sizes_of(model, "y"), "f32[b,64,4,4]");
}

TEST(Onnx, AnUnknownOperatorTakesItsSizeFromTheFile) {
  OnnxParts parts = two_layers();
  parts.nodes[1] = onnx_node("Frobnicate", {"h"}, {"r"});
  EXPECT_THAT(refused(parts),
              StartsWith("m.onnx: node 'r' (Frobnicate) gives 'r', whose size neither its inputs nor "
                         "the file tell; let Python's onnx write sizes into the file"));
  parts.values = {onnx_value("r", {"batch", "16"})};
  const Imported model = imported(parts);
  EXPECT_FALSE(model.graph.operators()[1].known);
  EXPECT_EQ(sizes_of(model, "y"), "f32[b,4]");
  parts.values = {onnx_value("r", {"4*batch", "16"})};
  EXPECT_EQ(sizes_of(imported(parts), "y"), "f32[4*b,4]");
}

TEST(Onnx, TheLossIsTheOneScalarThatLearns) {
  OnnxParts parts = two_layers();
  parts.nodes.push_back(
      onnx_node("ReduceMean", {"y"}, {"mean"}, {onnx_attribute("keepdims", std::int64_t{0})}));
  parts.outputs.push_back(onnx_value("mean", {}));
  const Imported model = imported(parts);
  ASSERT_TRUE(model.graph.loss().has_value());
  EXPECT_EQ(model.graph.tensor(*model.graph.loss()).name, "mean");
  ImportOptions options;
  options.loss = "y";
  EXPECT_THAT(refused(parts, options), HasSubstr("output 'y' cannot be the loss"));
}

TEST(Onnx, WhatIsNotReadIsSaidInOneLine) {
  OnnxParts parts = two_layers();
  parts.nodes[1] = onnx_node("If", {"h"}, {"r"}, {onnx_field(1, "then_branch") + onnx_field(6, "")});
  EXPECT_THAT(refused(parts), HasSubstr("node 'r' (If) chooses between two graphs when it runs"));
  parts.nodes[1] = onnx_node("Loop", {"h"}, {"r"}, {onnx_field(1, "body") + onnx_field(6, "")});
  EXPECT_THAT(refused(parts), HasSubstr("node 'r' (Loop) repeats a graph of its own"));
  parts = two_layers();
  parts.more = onnx_field(25, "");
  EXPECT_THAT(refused(parts), HasSubstr("inline_local_functions"));
  parts = two_layers();
  parts.nodes[1] = onnx_node("Relu", {"nothing"}, {"r"});
  EXPECT_EQ(refused(parts),
            "m.onnx: node 'r' (Relu) reads 'nothing', which is neither an input nor made before it");
  parts = two_layers();
  parts.nodes[1] = onnx_node("Relu", {"h"}, {"h"});
  EXPECT_EQ(refused(parts), "m.onnx: gives the name 'h' to two values");
  parts = two_layers();
  parts.outputs = {onnx_value("z", {})};
  EXPECT_EQ(refused(parts), "m.onnx: names an output 'z' that nobody makes");
  parts = two_layers();
  parts.initializers[0] = onnx_tensor("w", {8, -16});
  EXPECT_THAT(refused(parts), HasSubstr("damaged ONNX file: tensor 'w' has a negative size"));
  parts = two_layers();
  parts.inputs = {onnx_value("x", {"batch", "9"})};  // and the weights have eight rows
  EXPECT_THAT(refused(parts), HasSubstr("node '/first/Gemm' (Gemm) gives 'h', whose size"));
  const std::string whole = onnx_model(two_layers());
  for (std::size_t length = 9; length < whole.size(); ++length)
    refusal([&] { import_bytes(std::string_view(whole).substr(0, length), "m.onnx"); });
}

// A size squared a thousand times has no end; the file is refused and memory stays small.
TEST(Onnx, SizesThatGrowWithoutEndAreRefused) {
  OnnxParts parts;
  parts.inputs = {onnx_value("x", {"batch"})};
  parts.nodes = {onnx_node("Shape", {"x"}, {"s0"})};
  for (int i = 0; i < 1000; ++i) {
    const std::string from = "s" + std::to_string(i), to = "s" + std::to_string(i + 1);
    parts.nodes.push_back(onnx_node("Mul", {from, from}, {to}));
  }
  parts.nodes.push_back(onnx_node("Expand", {"x", "s1000"}, {"y"}));
  parts.outputs = {onnx_value("y", {})};
  EXPECT_THAT(refused(parts), HasSubstr("whose size neither its inputs nor the file tell"));
}

TEST(Onnx, RandomChangesNeverDoMoreThanBeRefused) {
  Rng rng(12);
  for (const char* name : {"towers_legacy", "pictures"}) {
    const MappedFile file(onnx_fixture(name));
    for (int round = 0; round < 1500; ++round) {
      std::string bytes(file.bytes());
      for (std::uint64_t change = 1 + rng.below(3); change-- > 0;) {
        const std::size_t at = rng.below(bytes.size());
        if (rng.below(2) == 0) {
          bytes[at] = static_cast<char>(rng.below(256));
        } else {
          bytes.erase(at, 1 + rng.below(8));
        }
      }
      try {
        EXPECT_THAT(check_graph(import_onnx(bytes, "m.onnx").graph.parts()), IsEmpty());
      } catch (const InputError& error) {
        EXPECT_THAT(error.what(), StartsWith("m.onnx: "));
      }
    }
  }
}

// -- Rules of single operators ----------------------------------------------------------------------

OnnxValue floats(std::vector<SizeExpr> sizes) {
  return {.sizes = std::move(sizes)};
}
OnnxValue numbers(std::vector<std::int64_t> elements) {
  OnnxValue value{.dtype = DType::kI64, .sizes = {static_cast<std::int64_t>(elements.size())}};
  value.integers = std::vector<SizeExpr>(elements.begin(), elements.end());
  return value;
}

struct Asked {
  std::string type;
  std::vector<OnnxValue> inputs;
  std::vector<OnnxAttribute> attributes = {};
  std::size_t outputs = 1;
};

OnnxAttribute whole(const std::string& name, std::int64_t value) {
  OnnxAttribute attribute{.name = name};
  attribute.integer = value;
  return attribute;
}
OnnxAttribute list(const std::string& name, std::vector<std::int64_t> values) {
  OnnxAttribute attribute{.name = name};
  attribute.integers = std::move(values);
  return attribute;
}
OnnxAttribute text(const std::string& name, const std::string& value) {
  return {.name = name, .text = value};
}

// "[b,3] [b,3]", or "unknown"; elements of whole numbers behind the sizes: "[2]=3,b".
std::string answer_of(const Asked& asked, std::int64_t opset = 20) {
  OnnxNode node{.type = asked.type, .attributes = asked.attributes};
  for (std::size_t i = 0; i < asked.outputs; ++i) node.outputs.push_back("y" + std::to_string(i));
  std::vector<const OnnxValue*> inputs;
  for (const OnnxValue& input : asked.inputs) inputs.push_back(&input);
  const auto outputs = onnx_outputs(node, inputs, opset);
  if (!outputs) return "unknown";
  std::string result;
  for (const OnnxValue& output : *outputs) {
    result += result.empty() ? "[" : " [";
    for (std::size_t i = 0; i < output.sizes.size(); ++i)
      result += (i > 0 ? "," : "") + output.sizes[i].text();
    result += "]";
    if (!output.integers) continue;
    for (std::size_t i = 0; i < output.integers->size(); ++i)
      result += (i > 0 ? "," : "=") + (*output.integers)[i].text();
  }
  return result;
}

const SizeExpr kSamples = SizeExpr::batch();

TEST(OnnxSizes, ProductsAndWindows) {
  EXPECT_EQ(answer_of({"MatMul", {floats({kSamples, 1, 5, 8}), floats({4, 8, 3})}}), "[b,4,5,3]");
  EXPECT_EQ(answer_of({"MatMul", {floats({8}), floats({kSamples, 8, 3})}}), "[b,3]");
  EXPECT_EQ(answer_of({"MatMul", {floats({kSamples, 8}), floats({7, 3})}}), "unknown");
  EXPECT_EQ(
      answer_of({"Gemm", {floats({8, kSamples}), floats({3, 8})}, {whole("transA", 1), whole("transB", 1)}}),
      "[b,3]");
  EXPECT_EQ(answer_of({"Einsum",
                       {floats({kSamples, 2, 5}), floats({kSamples, 5, 7})},
                       {text("equation", "bij, bjk -> bik")}}),
            "[b,2,7]");
  EXPECT_EQ(answer_of({"Conv",
                       {floats({kSamples, 3, 33, 32}), floats({8, 3, 3, 3})},
                       {list("strides", {2, 2}), list("pads", {1, 1, 1, 1})}}),
            "[b,8,17,16]");
  EXPECT_EQ(answer_of({"Conv",
                       {floats({kSamples, 3, 33}), floats({8, 3, 3})},
                       {list("strides", {2}), text("auto_pad", "SAME_UPPER")}}),
            "[b,8,17]");
  EXPECT_EQ(answer_of({"ConvTranspose",
                       {floats({kSamples, 8, 9, 9}), floats({8, 2, 4, 4})},
                       {list("strides", {2, 2}), list("pads", {1, 1, 1, 1}), whole("group", 2)}}),
            "[b,4,18,18]");
  EXPECT_EQ(answer_of({"MaxPool",
                       {floats({kSamples, 3, 32, 32})},
                       {list("kernel_shape", {3, 3}), list("strides", {2, 2})},
                       2}),
            "[b,3,15,15] [b,3,15,15]");
  EXPECT_EQ(answer_of({"AveragePool",
                       {floats({kSamples, 3, 32, 32})},
                       {list("kernel_shape", {3, 3}), list("strides", {2, 2}), whole("ceil_mode", 1)}}),
            "[b,3,16,16]");
  EXPECT_EQ(answer_of({"LSTM",
                       {floats({5, kSamples, 6}), floats({2, 40, 6})},
                       {whole("hidden_size", 10), text("direction", "bidirectional")},
                       3}),
            "[5,2,b,10] [2,b,10] [2,b,10]");
}

TEST(OnnxSizes, Shapes) {
  EXPECT_EQ(answer_of({"Reshape", {floats({kSamples, 12, 64}), numbers({0, 0, -1, 16})}}), "[b,12,4,16]");
  EXPECT_EQ(answer_of({"Reshape", {floats({kSamples, 12, 64}), numbers({-1, 64})}}), "[12*b,64]");
  EXPECT_EQ(answer_of({"Reshape", {floats({12 * kSamples, 64}), numbers({-1, 12, 64})}}), "[b,12,64]");
  EXPECT_EQ(answer_of({"Reshape", {floats({kSamples, 12}), numbers({-1, -1})}}), "unknown");
  EXPECT_EQ(answer_of({"Flatten", {floats({kSamples, 3, 4})}}), "[b,12]");
  EXPECT_EQ(answer_of({"Transpose", {floats({kSamples, 3, 4})}, {list("perm", {2, 0, 1})}}), "[4,b,3]");
  EXPECT_EQ(answer_of({"Squeeze", {floats({1, kSamples, 1}), numbers({-1})}}), "[1,b]");
  EXPECT_EQ(answer_of({"Unsqueeze", {floats({kSamples, 3}), numbers({0, 3})}}), "[1,b,3,1]");
  EXPECT_EQ(answer_of({"Concat", {floats({kSamples, 3}), floats({kSamples, 4})}, {whole("axis", 1)}}),
            "[b,7]");
  EXPECT_EQ(answer_of({"Concat", {floats({kSamples, 3}), floats({1, 3})}, {whole("axis", 0)}}), "[b+1,3]");
  EXPECT_EQ(answer_of({"Split", {floats({kSamples, 7})}, {whole("axis", 1)}, 3}), "[b,3] [b,3] [b,1]");
  EXPECT_EQ(answer_of({"Split", {floats({kSamples, 7}), numbers({2, 5})}, {whole("axis", -1)}, 2}),
            "[b,2] [b,5]");
  EXPECT_EQ(answer_of({"Slice", {floats({kSamples, 12}), numbers({-5}), numbers({1 << 30}), numbers({1})}}),
            "[b,5]");
  EXPECT_EQ(answer_of({"Slice",
                       {floats({kSamples, 12}), numbers({-1}), numbers({-(std::int64_t{1} << 40)}),
                        numbers({1}), numbers({-1})}}),
            "[b,12]");
  EXPECT_EQ(
      answer_of({"Slice", {floats({kSamples, 12}), numbers({1}), numbers({10}), numbers({1}), numbers({4})}}),
      "[b,3]");
  EXPECT_EQ(answer_of({"Slice", {floats({kSamples, 12}), numbers({9}), numbers({3}), numbers({1})}}),
            "[b,0]");
  EXPECT_EQ(answer_of({"Gather", {floats({50, 16}), floats({kSamples, 12})}}), "[b,12,16]");
  EXPECT_EQ(
      answer_of({"GatherND", {floats({kSamples, 5, 7}), floats({kSamples, 3, 1})}, {whole("batch_dims", 1)}}),
      "[b,3,7]");
  EXPECT_EQ(answer_of({"Tile", {floats({kSamples, 3}), numbers({1, 4})}}), "[b,12]");
  EXPECT_EQ(answer_of({"Pad", {floats({kSamples, 3}), numbers({0, 1, 0, 2})}}), "[b,6]");
  EXPECT_EQ(answer_of({"Expand", {floats({kSamples, 1, 4}), numbers({3, 1})}}), "[b,3,4]");
  EXPECT_EQ(answer_of({"DepthToSpace", {floats({kSamples, 12, 4, 5})}, {whole("blocksize", 2)}}),
            "[b,3,8,10]");
  EXPECT_EQ(answer_of({"TopK", {floats({kSamples, 9}), numbers({4})}, {}, 2}), "[b,4] [b,4]");
  EXPECT_EQ(answer_of({"ReduceMean", {floats({kSamples, 9, 3}), numbers({1})}, {whole("keepdims", 0)}}),
            "[b,3]");
  EXPECT_EQ(answer_of({"ReduceMean", {floats({kSamples, 9, 3})}, {list("axes", {-1})}}, 11), "[b,9,1]");
  EXPECT_EQ(answer_of({"ArgMax", {floats({kSamples, 9})}, {whole("axis", 1), whole("keepdims", 0)}}), "[b]");
  EXPECT_EQ(answer_of({"Add", {floats({kSamples, 1, 3}), floats({5, 1})}}), "[b,5,3]");
  EXPECT_EQ(answer_of({"Add", {floats({kSamples, 4}), floats({kSamples, 5})}}), "unknown");
  EXPECT_EQ(
      answer_of({"Add", {floats({kSamples, 4, 5}), floats({4})}, {whole("axis", 1), whole("broadcast", 1)}},
                6),
      "[b,4,5]");
  OnnxValue scales{.sizes = {4}};
  scales.reals = std::vector<double>{1, 1, 2, 2.5};
  EXPECT_EQ(answer_of({"Upsample", {floats({kSamples, 3, 4, 5}), scales}}, 9), "[b,3,8,12]");
}

TEST(OnnxSizes, Elements) {
  EXPECT_EQ(answer_of({"Shape", {floats({kSamples, 3, 4})}}), "[3]=b,3,4");
  EXPECT_EQ(answer_of({"Shape", {floats({kSamples, 3, 4})}, {whole("start", -2)}}), "[2]=3,4");
  EXPECT_EQ(answer_of({"Size", {floats({kSamples, 3, 4})}}), "[]=12*b");
  EXPECT_EQ(answer_of({"Mul", {numbers({2, 3}), numbers({5})}}), "[2]=10,15");
  EXPECT_EQ(answer_of({"Equal", {numbers({-1, 3}), numbers({-1})}}), "[2]=1,0");
  EXPECT_EQ(answer_of({"Slice", {numbers({5, 6, 7}), numbers({1}), numbers({3})}}), "[2]=6,7");
  EXPECT_EQ(
      answer_of({"Slice", {numbers({5, 6, 7}), numbers({-1}), numbers({-9}), numbers({0}), numbers({-1})}}),
      "[3]=7,6,5");
  EXPECT_EQ(answer_of({"Range", {numbers({2}), numbers({9}), numbers({3})}}), "[3]=2,5,8");
  EXPECT_EQ(answer_of({"ReduceProd", {numbers({2, 3, 4})}, {whole("keepdims", 0)}}), "[]=24");
  OnnxValue sizes{.dtype = DType::kI64, .sizes = {2}};
  sizes.integers = std::vector<SizeExpr>{kSamples, 3};
  EXPECT_EQ(answer_of({"Equal", {sizes, numbers({-1})}}), "[2]=0,0");
  EXPECT_EQ(answer_of({"ConstantOfShape", {sizes}}), "[b,3]");
  EXPECT_EQ(answer_of({"Div", {numbers({12}), numbers({0})}}), "[1]");
  OnnxValue column = numbers({1, 2}), row = numbers({3, 4});
  column.sizes = {2, 1};
  EXPECT_EQ(answer_of({"Mul", {column, row}}), "[2,2]");  // each with each: not known, and not two of four
}

TEST(OnnxSizes, TheSimplestFormIsEqual) {
  EXPECT_EQ(simplest(floor_div(768 * kSamples, 768)).text(), "b");
  EXPECT_EQ(simplest(kSamples * 3 + kSamples * 4 - 2).text(), "7*b-2");
  EXPECT_EQ(simplest(kSamples * kSamples * 2).text(), "2*(b*b)");
  const SizeExpr half = floor_div(kSamples + 1, 2);
  EXPECT_EQ(simplest(half), half);
}

}  // namespace
}  // namespace espalier
