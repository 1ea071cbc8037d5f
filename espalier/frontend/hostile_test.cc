// Whatever the bytes, a reader answers with a value or one line, in memory that the input's size bounds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/frontend/archive_for_tests.h"
#include "espalier/frontend/exported_program.h"
#include "espalier/frontend/imported.h"

namespace {

std::atomic<std::size_t> g_live{0}, g_peak{0};

// Each block begins with its size, so that freed bytes are known.
constexpr std::size_t kHeader = alignof(std::max_align_t);

void* counted(std::size_t size) {
  void* const block = std::malloc(size + kHeader);
  if (block == nullptr) throw std::bad_alloc();
  *static_cast<std::size_t*>(block) = size;
  const std::size_t live = g_live += size;
  std::size_t peak = g_peak;
  while (live > peak && !g_peak.compare_exchange_weak(peak, live)) {
  }
  return static_cast<char*>(block) + kHeader;
}

void release(void* pointer) noexcept {
  if (pointer == nullptr) return;
  void* const block = static_cast<char*>(pointer) - kHeader;
  g_live -= *static_cast<std::size_t*>(block);
  std::free(block);
}

}  // namespace

void* operator new(std::size_t size) {
  return counted(size);
}
void* operator new[](std::size_t size) {
  return counted(size);
}
// Sanitizers bring these themselves and would mix their blocks with ours.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return counted(size);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return counted(size);
}
void operator delete(void* pointer) noexcept {
  release(pointer);
}
void operator delete[](void* pointer) noexcept {
  release(pointer);
}
void operator delete(void* pointer, std::size_t) noexcept {
  release(pointer);
}
void operator delete[](void* pointer, std::size_t) noexcept {
  release(pointer);
}

namespace espalier {
namespace {

using ::testing::HasSubstr;

struct Answer {
  std::string message;  // empty: a value
  std::size_t peak = 0;
};

Answer answer(const std::string& bytes) {
  Answer result;
  const std::size_t before = g_live;
  g_peak = before;
  try {
    import_bytes(bytes, "f");
  } catch (const InputError& error) {
    result.message = error.what();
    EXPECT_EQ(result.message.find('\n'), std::string::npos);
    EXPECT_LT(result.message.size(), 1000u);
    EXPECT_THAT(result.message, HasSubstr("f"));
  }
  result.peak = g_peak - before;
  return result;
}

std::string repeated(const std::string& part, std::size_t bytes) {
  std::string result;
  while (result.size() < bytes) result += part;
  return result;
}

TEST(Hostile, MemoryIsBoundedByTheInputsSize) {
  constexpr std::size_t kSize = 200'000;
  const std::string inputs[] = {
      repeated("[", kSize),
      "{\"nodes\":" + repeated("[", kSize),
      "{\"maxFPGAs\": [" + repeated("[],", kSize) + "[]]}",
      "{\"maxFPGAs\": [" + repeated("0,", kSize) + "0]}",
      "{\"maxFPGAs\": \"" + std::string(kSize, 'x') + "\"}",
      repeated("node1 -- a -- forward_compute_time=1, backward_compute_time=1, activation_size=1, "
               "parameter_size=1\n",
               kSize),
      "\t" + repeated("a -- ", kSize),
      repeated("node1 -- forward_compute_time=", kSize),
      repeated("x = input() : f32[", kSize),
      repeated("PK\x05\x06", kSize),
      std::string(kSize, '\0'),
      std::string(kSize, '\n'),
  };
  for (const std::string& input : inputs) {
    const Answer result = answer(input);
    EXPECT_NE(result.message, "") << input.substr(0, 40);
    EXPECT_LT(result.peak, 200 * kSize) << input.substr(0, 40);
  }
}

TEST(Hostile, ADirectoryThatClaimsBillionsOfEntriesAllocatesNothing) {
  std::string zip = make_zip({{"a", "x"}});
  const std::size_t end = zip.size() - 22;
  for (std::size_t i = 8; i < 12; ++i) zip[end + i] = '\xff';
  const Answer result = answer(zip);
  EXPECT_THAT(result.message, HasSubstr("entries"));
  EXPECT_LT(result.peak, 100'000u);
}

TEST(Hostile, NumbersBeyondAnyModelAreRefused) {
  const auto msr = [](const std::string& size, const std::string& id = "1") {
    return R"({"maxSizePerFPGA": 100, "maxFPGAs": 2, "maxCPUs": 1, "edges": [], "nodes": [{"id": )" + id +
           R"(, "name": "a", "supportedOnFpga": 1, "cpuLatency": 1, "fpgaLatency": 1, "isBackwardNode": 0, "size": )" +
           size + "}]}";
  };
  EXPECT_EQ(answer(msr("5")).message, "");
  EXPECT_THAT(answer(msr("1e300")).message, HasSubstr("nodes[0].size: is 1e+300; expected a number"));
  EXPECT_THAT(answer(msr("1e999")).message, HasSubstr("number overflow"));
  EXPECT_THAT(answer(msr("-1")).message, HasSubstr("nodes[0].size: is -1"));
  EXPECT_THAT(answer(msr("5", "99999999999999999999")).message, HasSubstr("nodes[0].id"));
  EXPECT_THAT(answer(msr("5", "1.5")).message, HasSubstr("whole number"));
}

TEST(Hostile, NegativeAndAbsurdDimensionsOfAProgramAreRefused) {
  for (const std::int64_t size : {std::int64_t{-1}, std::int64_t{1} << 60, INT64_MIN, INT64_MAX}) {
    TestProgram p;
    p.input("x", {0, 4});
    p.graph["tensor_values"]["x"]["sizes"][1]["as_int"] = size;
    EXPECT_THAT(answer(p.archive()).message, HasSubstr("size of " + std::to_string(size)));
  }
  TestProgram p;
  p.input("x", {0, 4});
  for (int i = 0; i < 4; ++i)
    p.graph["tensor_values"]["x"]["sizes"].push_back({{"as_int", 1000000000}}),
        p.graph["tensor_values"]["x"]["strides"].push_back({{"as_int", 1}});
  EXPECT_NE(answer(p.archive()).message, "");
}

TEST(Hostile, SubGraphsInSubGraphsEndSomewhere) {
  Json inner{{"inputs", Json::array()},
             {"outputs", Json::array()},
             {"nodes", Json::array()},
             {"tensor_values", Json::object()}};
  for (int i = 0; i < 25; ++i) {
    Json node{{"target", "torch.ops.higher_order.wrap_with_set_grad_enabled"},
              {"name", "w"},
              {"outputs", Json::array()},
              {"metadata", Json::object()},
              {"inputs", Json::array()}};
    node["inputs"].push_back({{"name", ""}, {"arg", {{"as_bool", true}}}, {"kind", 1}});
    node["inputs"].push_back(
        {{"name", ""}, {"arg", {{"as_graph", {{"name", "g"}, {"graph", inner}}}}}, {"kind", 1}});
    inner["nodes"] = Json::array({node});
  }
  TestProgram p;
  p.input("x", {0, 4});
  p.graph["nodes"] = inner["nodes"];
  const Answer result = answer(p.archive());
  EXPECT_TRUE(result.message.find("nested deeper") != std::string::npos) << result.message;
}

TEST(Hostile, CyclesAreNamed) {
  EXPECT_THAT(answer("node1 -- a -- forward_compute_time=1, backward_compute_time=1, activation_size=1, "
                     "parameter_size=1\n"
                     "node2 -- a -- forward_compute_time=1, backward_compute_time=1, activation_size=1, "
                     "parameter_size=1\n"
                     "\tnode1 -- node2\n\tnode2 -- node1\n")
                  .message,
              HasSubstr("reads its own output"));
  EXPECT_THAT(answer("node1 -- a -- forward_compute_time=1, backward_compute_time=1, activation_size=1, "
                     "parameter_size=1\n"
                     "\tnode1 -- node1\n")
                  .message,
              HasSubstr("node 'node1' reads its own output"));
}

TEST(Hostile, RepeatedNamesAndUnknownNodesAreNamedWithTheirLine) {
  const std::string node =
      "node1 -- a -- forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=1\n";
  EXPECT_THAT(answer(node + node).message, HasSubstr("f:2: node 'node1' stands twice"));
  EXPECT_THAT(answer(node + "\tnode1 -- node9\n").message, HasSubstr("f:2: there is no node 'node9'"));
  EXPECT_THAT(answer(node + "\tnode1\n").message, HasSubstr("f:2: expected an edge"));
  EXPECT_THAT(answer("node1 -- a -- forward_compute_time=1\n").message,
              HasSubstr("'activation_size' is missing"));
  EXPECT_THAT(answer("node1 -- a -- forward_compute_time=x, a=1\n").message,
              HasSubstr("f:1: 'x' is not a number"));
  EXPECT_THAT(answer("node1 -- a -- forward_compute_time=1, forward_compute_time=1\n").message,
              HasSubstr("not a figure due here"));
  EXPECT_THAT(answer("node1 -- a -- activation_size=[1; 2, forward_compute_time=1\n").message,
              HasSubstr("has no ']'"));
}

TEST(Hostile, OtherKindsOfFilesGetARecipe) {
  const auto zip = [](const char* entry) {
    return answer(make_zip({{entry, "x"}, {"version", "1"}})).message;
  };
  EXPECT_THAT(zip("serialized_exported_program.json"), HasSubstr("torch 2.7 and older"));
  EXPECT_THAT(zip("constants.pkl"), HasSubstr("TorchScript"));
  EXPECT_THAT(zip("data.pkl"), HasSubstr("pickle of weights"));
  EXPECT_THAT(zip("hello"), HasSubstr("no exported program"));
  EXPECT_THAT(answer(std::string("\x80\x02}q\x00. and more", 15)).message, HasSubstr("Python pickle"));
  EXPECT_THAT(answer(std::string("\x08\x08\x12\x07pytorch\x1a", 12)).message, HasSubstr("damaged ONNX"));
  EXPECT_THAT(answer(std::string("\x10\0\0\0\0\0\0\0{\"w\":1}", 15)).message, HasSubstr("safetensors"));
  for (const std::string& message :
       {zip("data.pkl"), zip("constants.pkl"), zip("serialized_exported_program.json")}) {
    EXPECT_THAT(message, HasSubstr("from espalier_export import export"));
  }
  EXPECT_THAT(answer("{\"fpgas\": []}").message, HasSubstr("is a placement"));
  EXPECT_THAT(answer("{\"a\": 1}").message, HasSubstr("JSON of no known kind"));
  EXPECT_THAT(answer("").message, HasSubstr("is empty"));
  EXPECT_THAT(answer(std::string("ab\x01\x02")).message, HasSubstr("of no known kind"));
}

TEST(Hostile, EveryKindIsToldByItsContent) {
  EXPECT_EQ(answer("x = input() : f32[b,4]\ny = relu(x) : f32[b,4]\n").message, "");
  EXPECT_EQ(answer("\r\nnode1 -- a -- forward_compute_time=1, backward_compute_time=1, activation_size=1, "
                   "parameter_size=1\r\n")
                .message,
            "");
  EXPECT_THAT(answer("this is not a graph").message, HasSubstr("f: "));
}

// Random changes of small good inputs: a value or one line.
TEST(Hostile, RandomChangesNeverDoMoreThanBeRefused) {
  const std::string seeds[] = {
      "node1 -- Input0 -- forward_compute_time=1.5, backward_compute_time=0, activation_size=64.0, "
      "parameter_size=0\n"
      "node2 -- LSTM(2, 4) -- forward_compute_time=3.1, backward_compute_time=5.3, activation_size=[62.0; "
      "13.0], "
      "parameter_size=50 -- stage_id=0\n\tnode1 -- node2\n",
      R"({"maxDevices":2,"maxMemoryPerDevice":8e10,"bandwidth":2.5e10,"mbsInBatch":8,"nodes":[{"id":0,"name":"a","TMPCs":
        {"1":[{"id":"vanilla","timePerSample":25.6,"parameterSize":132,"memoryUsageA":13,"memoryUsageB":264}]}}],"edges":[]})",
      "batch 2..8\nx = input() : f32[b,16]\nw = parameter(e.w) : f32[16,16]\nh = linear(x, w) : f32[b,16]\n"
      "loss = mean(h) : f32[]\nreturn loss\n",
  };
  Rng rng(11);
  for (const std::string& seed : seeds) {
    ASSERT_EQ(answer(seed).message, "");
    for (int round = 0; round < 3000; ++round) {
      std::string bytes = seed;
      for (std::uint64_t change = 1 + rng.below(3); change-- > 0 && !bytes.empty();) {
        const std::size_t at = rng.below(bytes.size());
        switch (rng.below(3)) {
          case 0:
            bytes[at] = static_cast<char>(rng.below(256));
            break;
          case 1:
            bytes.erase(at, 1 + rng.below(8));
            break;
          default:
            bytes.insert(at, bytes.substr(rng.below(bytes.size()), 1 + rng.below(20)));
        }
      }
      answer(bytes);
    }
  }
}

}  // namespace
}  // namespace espalier
