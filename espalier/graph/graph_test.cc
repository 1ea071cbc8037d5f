#include "espalier/graph/graph.h"

#include <gmock/gmock.h>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/base/rng.h"
#include "espalier/graph/json.h"
#include "espalier/graph/text.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;

std::vector<std::string> names(const Graph& g, std::span<const OperatorId> ids) {
  std::vector<std::string> result;
  for (const OperatorId id : ids) result.push_back(g.op(id).name);
  return result;
}
std::vector<std::string> successors(const Graph& g, const char* name) {
  return names(g, g.successors(*g.find_operator(name)));
}
std::vector<std::string> predecessors(const Graph& g, const char* name) {
  return names(g, g.predecessors(*g.find_operator(name)));
}

TEST(DType, SizesAndNamesAgree) {
  int count = 0;
  for (const char* name : {"opaque", "u8", "i8", "i16", "i32", "i64", "f16", "f32", "f64", "bf16", "bool",
                           "c32", "c64", "c128", "u16", "u32", "u64", "f8"}) {
    const auto dtype = parse_dtype(name);
    ASSERT_TRUE(dtype) << name;
    EXPECT_EQ(to_text(*dtype), name);
    EXPECT_EQ(static_cast<int>(*dtype), count++);
  }
  EXPECT_EQ(element_size(DType::kBF16), Bytes(2));
  EXPECT_EQ(element_size(DType::kC128), Bytes(16));
  EXPECT_TRUE(is_floating_point(DType::kOpaque));
  EXPECT_FALSE(is_floating_point(DType::kBool));
  EXPECT_EQ(parse_dtype("float"), std::nullopt);
}

TEST(Tensor, BytesAreElementsTimesElementSize) {
  const Graph g = parse_graph("x = input() : bf16[b,3,(b+1)//2]\ns = input() : f64[]\n");
  EXPECT_EQ(g.tensor(TensorId(0)).bytes(BatchSize(4)), Bytes(48));  // 4 * 3 * 2 * 2 B
  EXPECT_EQ(g.tensor(TensorId(1)).bytes(BatchSize(4)), Bytes(8));
  EXPECT_THAT(refusal([&] { (void)g.tensor(TensorId(0)).bytes(BatchSize(std::int64_t{1} << 31)); }),
              HasSubstr("2^62"));
}

TEST(Graph, ReadersAndEdgesAreAscendingAndEachOnce) {
  const Graph g = parse_graph(
      "x = input()\n"
      "a = f(x)\n"
      "c = g(a, a)\n"
      "d = g(a, c)\n"
      "e = h(d, a, c)\n");
  EXPECT_THAT(names(g, g.readers(TensorId(1))), ElementsAre("c", "d", "e"));
  EXPECT_THAT(successors(g, "a"), ElementsAre("c", "d", "e"));
  EXPECT_THAT(predecessors(g, "e"), ElementsAre("a", "c", "d"));
  EXPECT_THAT(predecessors(g, "a"), IsEmpty());
  EXPECT_EQ(g.find_operator("x"), std::nullopt);
  EXPECT_EQ(g.storage_count(), 5U);
}

TEST(Graph, AMutationStandsBetweenEarlierAndLaterReaders) {
  const Graph g = parse_graph(
      "s = buffer(stats) : f32[4]\n"
      "a = read(s)\n"
      "c = read(s)\n"
      "n = bump(a, s) @mutates=s\n"
      "d = read(s)\n"
      "bump(s, n) @mutates=s @name=again\n"
      "e = read(s)\n");
  EXPECT_THAT(predecessors(g, "n"), ElementsAre("a", "c"));
  EXPECT_THAT(predecessors(g, "d"), ElementsAre("n"));
  EXPECT_THAT(predecessors(g, "again"), ElementsAre("n", "d"));
  EXPECT_THAT(predecessors(g, "e"), ElementsAre("again"));
}

TEST(Graph, AMutationIsSeenThroughAView) {
  const Graph g = parse_graph(
      "x = input()\n"
      "h = f(x)\n"
      "v = view(h) @view\n"
      "a = f(h)\n"
      "y = relu_(v) @inplace\n"
      "c = f(h)\n");
  EXPECT_THAT(predecessors(g, "y"), ElementsAre("h", "v", "a")) << "a reads h, whose memory y changes";
  EXPECT_THAT(predecessors(g, "c"), ElementsAre("h", "y"));
}

TEST(Graph, AnUnknownOperatorMayAlias) {
  const std::string text =
      "x = input()\n"
      "h = f(x)\n"
      "m = mystery(h)";
  const Graph known = parse_graph(text + "\ny = relu_(m) @inplace\nz = f(h)\n");
  const Graph unknown = parse_graph(text + " @unknown\ny = relu_(m) @inplace\nz = f(h)\n");
  EXPECT_THAT(predecessors(known, "z"), ElementsAre("h"));
  EXPECT_THAT(predecessors(unknown, "z"), ElementsAre("h", "y"));
}

TEST(Colocation, ReadersBeforeTheLastMutationStayTogether) {
  const Graph g = parse_graph(
      "x = input()\n"
      "h = conv(x)\n"
      "r = f(h)\n"
      "y = relu_(h) @inplace\n"
      "z = conv(y)\n"
      "q = relu_(z) @inplace\n");
  // h, r, y touch h's memory up to y; z reads what is finished, and has a mutation of its own.
  EXPECT_EQ(g.op(OperatorId(0)).colocation, 0U);
  EXPECT_EQ(g.op(OperatorId(1)).colocation, 0U);
  EXPECT_EQ(g.op(OperatorId(2)).colocation, 0U);
  EXPECT_EQ(g.op(OperatorId(3)).colocation, 1U);
  EXPECT_EQ(g.op(OperatorId(4)).colocation, 1U);
}

TEST(Colocation, EveryoneWhoTouchesAMutatedBufferStaysTogether) {
  const Graph g = parse_graph(
      "s = buffer(stats) : f32[4]\n"
      "bump(s) @mutates=s @name=bump\n"
      "a = read(s)\n"
      "c = f(a)\n");
  EXPECT_EQ(g.op(OperatorId(1)).colocation, g.op(OperatorId(0)).colocation);
  EXPECT_EQ(g.op(OperatorId(2)).colocation, std::nullopt);
}

TEST(Colocation, ExistingNumbersAreKeptAndJoined) {
  const Graph g = parse_graph(
      "x = input()\n"
      "a = f(x) @colocate=9\n"
      "h = f(x)\n"
      "y = relu_(h) @inplace @colocate=9\n"
      "c = f(x) @colocate=0\n"
      "k = f(x)\n"
      "m = relu_(k) @inplace\n");
  EXPECT_EQ(g.op(OperatorId(1)).colocation, 9U);
  EXPECT_EQ(g.op(OperatorId(4)).colocation, 1U) << "0 is taken";
  EXPECT_EQ(with_colocation(g.parts()), g.parts());
}

TEST(Graph, TheFingerprintIsOfStructureAndNames) {
  const std::string text = "x = input()\nw = parameter(w) : f32[4]\ny = f(x, w)\nz = g(y)\n";
  const std::uint64_t original = parse_graph(text).fingerprint();
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    other.replace(other.find(from), from.size(), to);
    return parse_graph(other).fingerprint();
  };
  EXPECT_NE(original, changed("z = g", "q = g"));
  EXPECT_NE(original, changed("z = g(y)", "z = g(x)"));
  EXPECT_NE(original, changed("f32[4]", "f32[5]"));
  EXPECT_NE(original, changed("(w)", "(w, tied=v)"));
  EXPECT_NE(original, changed("f(x, w)", "f(w, x)"));
  EXPECT_EQ(original, changed("g(y)", "g(y) @source=m.py:3 @module=net"));
  EXPECT_EQ(original, changed("x =", "graph other\nx ="));
}

// Planted faults: each breaks one rule, and only that rule reports.
GraphParts sound() {
  return parse_graph(
             "batch 2..8\n"
             "x = input() : f32[b,4]\n"
             "w = parameter(w) : f32[4,4]\n"
             "s = buffer(s) : f32[4]\n"
             "c = constant() : i64[4]\n"
             "a = f(x, w) : f32[b,4]\n"
             "d, e = split(a) : f32[b,2], f32[b,2]\n"
             "m = arange(c) : i64[4] @duplicable\n"
             "g = gather(d, m) : f32[b]\n"
             "loss = sum(e, g)\n")
      .parts();
}
constexpr std::size_t kX = 0, kW = 1, kS = 2, kC = 3, kA = 4, kD = 5, kM = 7, kG = 8, kLoss = 9;  // tensors
constexpr std::size_t kSplit = 1, kArange = 2, kSum = 4;                                          // operators

template <class F>
void expect_one(const std::string& why, F break_it) {
  GraphParts parts = sound();
  break_it(parts);
  EXPECT_THAT(check_graph(parts), ElementsAre(HasSubstr(why)));
  EXPECT_THAT(refusal([&] { Graph graph(parts); }), HasSubstr(why));
}

TEST(CheckGraph, FindsNothingInASoundGraph) {
  EXPECT_THAT(check_graph(sound()), IsEmpty());
}

TEST(CheckGraph, RefusesABatchRangeThatIsNone) {
  expect_one("expected 1 <= min <= max", [](GraphParts& p) { p.batch.min = BatchSize(9); });
  // A batch of 0 also makes nothing negative: only the range is wrong.
  expect_one("expected 1 <= min <= max", [](GraphParts& p) { p.batch.min = BatchSize(0); });
}

TEST(CheckGraph, RefusesNamesThatRepeatOrAreMissing) {
  expect_one("operator 'a' stands twice", [](GraphParts& p) { p.operators[kSplit].name = "a"; });
  expect_one("tensor 'a' stands twice", [](GraphParts& p) { p.tensors[kX].name = "a"; });
  expect_one("parameter 'w' stands twice", [](GraphParts& p) { p.parameters[1].names = {"w"}; });
  expect_one("name of an operator is empty", [](GraphParts& p) { p.operators[kSplit].name = ""; });
  expect_one("name of a tensor is empty", [](GraphParts& p) { p.tensors[kX].name = ""; });
  expect_one("a parameter has no name", [](GraphParts& p) { p.parameters[1].names = {}; });
  expect_one("has no target", [](GraphParts& p) { p.operators[kSplit].target = ""; });
  expect_one("has no class", [](GraphParts& p) { p.operators[kSplit].op_class = ""; });
}

TEST(CheckGraph, RefusesTextsThatAreNotUtf8) {
  expect_one("not UTF-8", [](GraphParts& p) { p.tensors[kX].name = "\xff"; });
  expect_one("not UTF-8", [](GraphParts& p) { p.operators[kSplit].source = "\xff"; });
  expect_one("not UTF-8", [](GraphParts& p) { p.name = "\xff"; });
}

TEST(CheckGraph, RefusesIdsOutOfRange) {
  expect_one("operator 'd': there is no tensor 99",
             [](GraphParts& p) { p.operators[kSplit].inputs = {TensorId(99)}; });
  expect_one("operator 'd': there is no tensor 99",
             [](GraphParts& p) { p.operators[kSplit].mutates = {TensorId(99)}; });
  expect_one("operator 'd': there is no tensor 99",
             [](GraphParts& p) { p.operators[kSplit].outputs = {TensorId(99)}; });
  expect_one("outputs: there is no tensor", [](GraphParts& p) { p.outputs.emplace_back(99); });
  expect_one("loss: there is no tensor", [](GraphParts& p) { p.loss = TensorId(99); });
  expect_one("there is no operator 99", [](GraphParts& p) { p.tensors[kA].producer = OperatorId(99); });
  expect_one("there is no parameter 99", [](GraphParts& p) { p.tensors[kW].parameter = ParameterId(99); });
}

TEST(CheckGraph, RefusesStoragesNumberedOtherwiseThanByFirstAppearance) {
  expect_one("tensor 'w' has storage 77: expected at most 1",
             [](GraphParts& p) { p.tensors[kW].storage = StorageId(77); });
}

TEST(CheckGraph, RefusesReadingBeforeProducing) {
  expect_one("operator 'd' reads tensor 'g', which is not produced before it",
             [](GraphParts& p) { p.operators[kSplit].inputs = {TensorId(kG)}; });
}

TEST(CheckGraph, RefusesProducersThatDisagree) {
  expect_one("names another producer", [](GraphParts& p) { p.tensors[kM].producer = OperatorId(kSplit); });
  expect_one("which does not list it", [](GraphParts& p) {
    p.operators[kArange].outputs.clear();
    p.operators[kArange].duplicable = false;
  });
  expect_one("is an activation without a producer",
             [](GraphParts& p) { p.tensors[kX].role = TensorRole::kActivation; });
  expect_one("has a producer but is no activation",
             [](GraphParts& p) { p.tensors[kA].role = TensorRole::kConstant; });
  expect_one("is a parameter or buffer of no name",
             [](GraphParts& p) { p.tensors[kC].role = TensorRole::kBuffer; });
  expect_one("names a parameter but is neither",
             [](GraphParts& p) { p.tensors[kS].role = TensorRole::kInput; });
}

TEST(CheckGraph, RefusesOutputsOutOfOrder) {
  expect_one("is out of order", [](GraphParts& p) {
    std::swap(p.operators[kSplit].outputs[0], p.operators[kSplit].outputs[1]);
  });
}

TEST(CheckGraph, RefusesAnOutputListedTwice) {
  GraphParts parts = sound();
  parts.operators[kSplit].outputs.emplace_back(kD);
  EXPECT_THAT(check_graph(parts), ::testing::Contains("tensor 'd' is listed as an output twice"));
}

TEST(CheckGraph, RefusesParametersThatDifferFromTheirTensors) {
  expect_one("is f32[4,4], its parameter 'w' is not", [](GraphParts& p) { p.parameters[0].sizes = {4, 5}; });
  expect_one("is f32[4,4], its parameter 'w' is not",
             [](GraphParts& p) { p.parameters[0].dtype = DType::kF16; });
  expect_one("is f32[4], its parameter 's' is not", [](GraphParts& p) { p.parameters[1].sizes = {}; });
  expect_one("is a buffer, its parameter 's' is trainable",
             [](GraphParts& p) { p.parameters[1].trainable = true; });
  expect_one("has size -1",
             [](GraphParts& p) { p.parameters.push_back({.names = {"lonely"}, .sizes = {-1}}); });
  expect_one("parameter 'huge': a size overflows", [](GraphParts& p) {
    p.parameters.push_back({.names = {"huge"}, .sizes = {1LL << 40, 1LL << 40}});
  });
}

TEST(CheckGraph, RefusesParametersThatShareStorageOrSplitIt) {
  const auto two_of_w = [](GraphParts& p, bool same_parameter, bool same_storage) {
    Tensor copy = p.tensors[kW];
    copy.name = "w2";
    copy.storage = StorageId(same_storage ? 1 : 10);
    if (!same_parameter) {
      copy.parameter = ParameterId(p.parameters.size());
      p.parameters.push_back(p.parameters[0]);
      p.parameters.back().names = {"v"};
    }
    p.tensors.push_back(copy);
  };
  GraphParts fine = sound();
  two_of_w(fine, true, true);
  EXPECT_THAT(check_graph(fine), IsEmpty());
  expect_one("has another storage than its parameter 'w'", [&](GraphParts& p) { two_of_w(p, true, false); });
  expect_one("ties are names of one parameter", [&](GraphParts& p) { two_of_w(p, false, true); });
}

TEST(CheckGraph, RefusesSizesThatAreNegativeOrTooLarge) {
  expect_one("size b-3 is negative at batch 2",
             [](GraphParts& p) { p.tensors[kX].sizes = {SizeExpr::batch() - 3}; });
  expect_one("size 7-b is negative at batch 8",
             [](GraphParts& p) { p.tensors[kX].sizes = {7 - SizeExpr::batch()}; });
  expect_one("tensor 'x': a size overflows", [](GraphParts& p) {
    p.tensors[kX].sizes = {1LL << 62, SizeExpr::batch()};
  });
  expect_one("larger than 2^62 bytes", [](GraphParts& p) {
    p.tensors[kX].sizes = {1LL << 58, SizeExpr::batch()};
  });
}

TEST(CheckGraph, RefusesGradientsOfIntegers) {
  expect_one("requires a gradient but is i64", [](GraphParts& p) { p.tensors[kC].requires_grad = true; });
}

TEST(CheckGraph, RefusesALossThatIsNoOutputOrNoNumber) {
  expect_one("is not among the outputs", [](GraphParts& p) { p.outputs.clear(); });
  expect_one("expected one floating-point number", [](GraphParts& p) { p.tensors[kLoss].sizes = {2}; });
  expect_one("expected one floating-point number", [](GraphParts& p) {
    p.tensors[kLoss].dtype = DType::kI32;
    p.tensors[kLoss].requires_grad = false;
  });
}

TEST(CheckGraph, RefusesMutatingWhatIsNotRead) {
  expect_one("mutates tensor 'x', which it does not read",
             [](GraphParts& p) { p.operators[kSum].mutates = {TensorId(kX)}; });
  expect_one("as mutated twice", [](GraphParts& p) {
    p.operators[0].mutates = {TensorId(kW), TensorId(kW)};
  });
}

TEST(CheckGraph, RefusesMutatedMemoryThatIsNotColocated) {
  // sum mutates e, a view of nothing, which split produces.
  expect_one("operator 'loss' and operator 'd' touch memory that is mutated",
             [](GraphParts& p) { p.operators[kSum].mutates = {TensorId(6)}; });
  GraphParts parts = sound();
  parts.operators[kSum].mutates = {TensorId(6)};
  EXPECT_THAT(check_graph(with_colocation(parts)), IsEmpty());
}

TEST(CheckGraph, RefusesDuplicablesThatAreNot) {
  expect_one("draws random numbers", [](GraphParts& p) { p.operators[kArange].random = true; });
  expect_one("which requires a gradient", [](GraphParts& p) {
    p.tensors[kM].dtype = DType::kF32;
    p.tensors[kM].requires_grad = true;
  });
  expect_one("reads parameter tensor 'w'",
             [](GraphParts& p) { p.operators[kArange].inputs = {TensorId(kW)}; });
  expect_one("reads tensor 'a', whose producer is not",
             [](GraphParts& p) { p.operators[kArange].inputs = {TensorId(kA)}; });
  const auto mutate = [](GraphParts& p, std::size_t op, std::size_t t, std::size_t reader) {
    p.operators[op].inputs.emplace_back(t);
    p.operators[op].mutates = {TensorId(t)};
    p.operators[op].colocation = p.operators[reader].colocation = 5;
  };
  expect_one("reads tensor 's', whose memory is mutated", [&](GraphParts& p) {
    p.operators[kArange].inputs = {TensorId(kS)};
    mutate(p, kSum, kS, kArange);
  });
  expect_one("gives tensor 'm', whose memory is mutated", [&](GraphParts& p) {
    mutate(p, kSum, kM, kArange);
    p.operators[3].colocation = 5;  // gather reads m too
  });
  GraphParts parts = sound();
  mutate(parts, kArange, kS, kArange);
  EXPECT_THAT(check_graph(parts), ::testing::Contains(HasSubstr("but mutates a tensor")));
}

TEST(GraphJson, ParsesBack) {
  const Graph g = Graph(sound());
  const std::string json = print_json(graph_to_json(g));
  EXPECT_EQ(graph_from_json(parse_json(json, "g.json"), "g.json"), g) << json;
}

TEST(GraphJson, ClassAndColocationMayBeLeftOut) {
  const Graph g = parse_graph("x = input()\nh = f(x)\ny = relu_(h) @inplace\n");
  Json json = graph_to_json(g);
  for (Json& op : json["operators"]) {
    op.erase("class");
    op.erase("colocation");
  }
  EXPECT_EQ(graph_from_json(json, "g.json"), g);
}

TEST(GraphJson, ErrorsNameThePlace) {
  const Json good = graph_to_json(Graph(sound()));
  const auto broken = [&](auto change) {
    Json json = good;
    change(json);
    return [json] { graph_from_json(json, "g.json"); };
  };
  EXPECT_THAT(refusal(broken([](Json& j) { j["format"] = "espalier.graph/9"; })),
              HasSubstr("espalier.graph/1"));
  EXPECT_THAT(refusal(broken([](Json& j) { j["operators"][1]["inputs"][0] = "nobody"; })),
              HasSubstr("g.json: operators[1].inputs[0]: 'nobody' is no tensor of this graph"));
  EXPECT_THAT(refusal(broken([](Json& j) { j["tensors"][0]["sizes"][0] = "b*"; })),
              HasSubstr("g.json: tensors[0].sizes[0]: size"));
  EXPECT_THAT(refusal(broken([](Json& j) { j["tensors"][0]["storage"] = 5; })),
              HasSubstr("g.json: tensors[0].storage"));
  EXPECT_THAT(refusal(broken([](Json& j) { j["tensors"][0]["role"] = "inptu"; })),
              HasSubstr("expected one of input,"));
  EXPECT_THAT(refusal(broken([](Json& j) { j["operators"][2]["outputs"][0] = "a"; })),
              HasSubstr("'a' is produced twice"));
  EXPECT_THAT(refusal(broken([](Json& j) { j["batch"] = {1}; })), HasSubstr("expected [min, max]"));
  EXPECT_THAT(refusal(broken([](Json& j) { j["loss"] = "a"; })), HasSubstr("g.json: the loss, tensor 'a'"));
  EXPECT_THAT(refusal(broken([](Json& j) { j["tensors"][3]["dtype"] = "int"; })),
              HasSubstr("g.json: tensors[3].dtype"));
  EXPECT_THAT(refusal(broken([](Json& j) { j["operators"][0]["muttes"] = 1; })),
              HasSubstr("did you mean 'mutates'"));
}

// Any change of a byte gives a graph or an InputError, never anything else.
TEST(GraphText, DamagedTextIsRefusedPolitely) {
  const Graph g = Graph(sound());
  const std::string lines = print_graph(g);
  const std::string json = print_json(graph_to_json(g));
  Rng rng(3);
  int accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = round % 2 == 0 ? lines : json;
    for (int change = 0; change < 2; ++change) {
      const std::size_t at = rng.below(text.size());
      if (rng.below(2) == 0) {
        text[at] = "(),:@=[]bx19\"\n\xff"[rng.below(15)];
      } else {
        text.erase(at, rng.below(6));
      }
    }
    try {
      const Graph read = round % 2 == 0 ? parse_graph(text) : graph_from_json(parse_json(text, "g"), "g");
      ASSERT_EQ(parse_graph(print_graph(read)), read) << text;
      ASSERT_EQ(graph_from_json(graph_to_json(read), "again"), read) << text;
      ++accepted;
    } catch (const InputError&) {
    }
  }
  EXPECT_GT(accepted, 100);
}

TEST(GraphFormats, TheDocumentsExamplesAreTrue) {
  const std::string document = read_file(ESPALIER_SOURCE_DIR "/docs/formats.md");
  const auto block = [&](const std::string& kind) {
    const std::size_t heading = document.find("\n## Graphs");
    const std::size_t fence = document.find("\n```" + kind + "\n", heading);
    const std::size_t begin = document.find('\n', fence + 1) + 1;
    return document.substr(begin, document.find("\n```", begin) + 1 - begin);
  };
  const std::string text = block("text");
  EXPECT_EQ(print_json(graph_to_json(parse_graph(text))), block("json"));
}

}  // namespace
}  // namespace espalier
