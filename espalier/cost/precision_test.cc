#include "espalier/cost/precision.h"

#include <gmock/gmock.h>

#include "espalier/base/check.h"
#include "espalier/cost/analytic.h"
#include "espalier/graph/text.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr const char* kLayer =
    "x = input() : f32[b,1024]\n"
    "ids = input() : i64[b]\n"
    "w = parameter(w) : f32[1024,1024]\n"
    "stats = buffer(stats) : f32[1024]\n"
    "y = linear(x, w) : f32[b,1024]\n"
    "n = batch_norm(y, stats) : f32[b,1024]\n"
    "loss = cross_entropy_loss(n, ids)\n";

const DeviceKind& a100() {
  return device_preset("A100-80GB");
}

Duration forward_of(const Graph& graph, const char* name, const DeviceKind& kind, Precision precision) {
  return analytic_cost(graph, *graph.find_operator(name), kind, BatchSize(4096), precision).forward;
}

TEST(Precision, NamesParseBack) {
  for (const Precision precision : {Precision::kF32, Precision::kTf32, Precision::kBF16}) {
    EXPECT_EQ(parse_precision(to_text(precision)), precision);
  }
  EXPECT_EQ(parse_precision("fp8"), std::nullopt);
}

TEST(Precision, RatesAreThoseOfTheType) {
  EXPECT_EQ(matrix_rate(a100(), DType::kF32, Precision::kF32), 19.5e12);
  EXPECT_EQ(matrix_rate(a100(), DType::kF32, Precision::kTf32), 156e12);
  EXPECT_EQ(matrix_rate(a100(), DType::kBF16, Precision::kBF16), 312e12);
  EXPECT_EQ(matrix_rate(a100(), DType::kF64, Precision::kTf32), 19.5e12);
  const DeviceKind& v100 = device_preset("V100-16GB");  // knows neither TF32 nor bf16
  EXPECT_EQ(matrix_rate(v100, DType::kF32, Precision::kTf32), 15.7e12);
  EXPECT_EQ(matrix_rate(v100, DType::kBF16, Precision::kBF16), 15.7e12);
  EXPECT_EQ(matrix_rate(v100, DType::kF16, Precision::kF32), 125e12);
}

TEST(Precision, Bf16HalvesWhatIsF32AndLeavesBuffersAndTheLoss) {
  const Graph graph = with_precision(parse_graph(kLayer), Precision::kBF16);
  const auto type = [&](const char* name) {
    for (const Tensor& t : graph.tensors()) {
      if (t.name == name) return t.dtype;
    }
    return DType::kBool;
  };
  for (const char* name : {"x", "w", "y", "n"}) EXPECT_EQ(type(name), DType::kBF16) << name;
  EXPECT_EQ(type("stats"), DType::kF32);
  EXPECT_EQ(type("loss"), DType::kF32);
  EXPECT_EQ(type("ids"), DType::kI64);
  EXPECT_EQ(graph.parameter(ParameterId(0)).bytes(), Bytes(2 * 1024 * 1024));
  EXPECT_EQ(graph.parameter(ParameterId(1)).bytes(), Bytes(4 * 1024));
  EXPECT_THAT(graph.op(OperatorId(0)).op_class, HasSubstr(" in bf16"));
}

TEST(Precision, F32AndTf32LeaveTheGraphAsItIs) {
  const Graph graph = parse_graph(kLayer);
  EXPECT_EQ(with_precision(graph, Precision::kF32), graph);
  EXPECT_EQ(with_precision(graph, Precision::kTf32), graph);
}

TEST(Precision, AProfileHasNoNumbers) {
  const Graph graph = parse_graph("x = input() : opaque[100]\na = f(x) : opaque[5]\n");
  EXPECT_EQ(with_precision(graph, Precision::kF32), graph);
  EXPECT_THAT(testing::refusal([&] { with_precision(graph, Precision::kBF16); }), HasSubstr("is a profile"));
  EXPECT_THAT(testing::refusal([&] { with_precision(graph, Precision::kTf32); }), HasSubstr("is a profile"));
}

TEST(Precision, MatrixWorkFollowsTheRates) {
  // 4096 × 1024 · 1024: 256 tiles of 128 × 128 on 108 multiprocessors are three waves: 3 · 108 ·
  // 2·128·128·1024 = 10.87 Gflop. f32: / (0.75 · 19.5e12) = 743.3 µs; tf32: 92.9 µs; bf16: 46.5 µs; each + 5
  // µs.
  const Graph f32 = parse_graph(kLayer);
  const Graph bf16 = with_precision(f32, Precision::kBF16);
  EXPECT_EQ(forward_of(f32, "y", a100(), Precision::kF32), nanoseconds(5'000 + 743'360));
  EXPECT_EQ(forward_of(f32, "y", a100(), Precision::kTf32), nanoseconds(5'000 + 92'920));
  EXPECT_EQ(forward_of(bf16, "y", a100(), Precision::kBF16), nanoseconds(5'000 + 46'460));
}

TEST(Precision, WorkBoundByMemoryTakesHalfAsLongInBf16) {
  const Graph f32 = parse_graph(kLayer);
  const Graph bf16 = with_precision(f32, Precision::kBF16);
  const Duration launch = a100().launch_overhead;
  const Duration in_f32 = forward_of(f32, "n", a100(), Precision::kF32) - launch;
  EXPECT_EQ(forward_of(f32, "n", a100(), Precision::kTf32) - launch, in_f32);
  EXPECT_NEAR(ratio(forward_of(bf16, "n", a100(), Precision::kBF16) - launch, in_f32), 0.5, 0.001);
}

TEST(Precision, AnUpdateMovesTheSameBytesInBf16) {
  const Cluster cluster = parse_cluster("1xA100-80GB");
  const BatchSize batch(8);
  const auto update = [&](Precision precision) {
    const Graph graph = with_precision(parse_graph(kLayer), precision);
    const CostTable table =
        complete_costs(graph, cluster, CostTable(CostTableParts{}), std::span(&batch, 1), precision);
    return update_time(table.overhead("A100-80GB"), OptimizerKind::kAdam,
                       graph.parameter(ParameterId(0)).bytes());
  };
  EXPECT_NEAR(ratio(update(Precision::kBF16), update(Precision::kF32)), 1,
              0.1);  // per byte: whole picoseconds
}

TEST(Precision, TheTextNamesRatesAndWhatWouldBeFaster) {
  EXPECT_EQ(
      precision_text(parse_cluster("1xA100-80GB+1xV100-16GB"), Precision::kF32),
      "f32: matrix work at 19.5 Tflop/s on A100-80GB, 15.7 on V100-16GB (--precision: tf32 156, bf16 312)");
  EXPECT_EQ(precision_text(parse_cluster("1xH100"), Precision::kBF16),
            "bf16: matrix work at 989.4 Tflop/s on H100");
  EXPECT_EQ(precision_text(parse_cluster("1xcpu"), Precision::kF32),
            "f32: matrix work at 0.05 Tflop/s on cpu");
}

}  // namespace
}  // namespace espalier
