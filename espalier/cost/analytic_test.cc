#include "espalier/cost/analytic.h"

#include <gmock/gmock.h>

#include "espalier/base/check.h"
#include "espalier/cost/operator_family.h"
#include "espalier/cost/text.h"
#include "espalier/graph/text.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr SavedTensor in(std::uint32_t i) {
  return {SavedTensor::Side::kInput, i};
}
constexpr SavedTensor out(std::uint32_t i) {
  return {SavedTensor::Side::kOutput, i};
}

// 108 multiprocessors, 10 Tflop/s f32, 100 Tflop/s f16, 1 TB/s, 5 µs a launch.
DeviceKind device() {
  DeviceKind kind;
  kind.name = "test";
  kind.memory = gibibytes(16);
  kind.flops_f32 = 10e12;
  kind.flops_f16 = 100e12;
  kind.memory_bandwidth = 1'000'000'000'000;
  kind.launch_overhead = microseconds(5);
  kind.multiprocessors = 100;
  return kind;
}

constexpr const char* kSources =
    "x = input() : f32[b,128,256]\n"
    "ids = input() : i64[b,128]\n"
    "labels = input() : i64[b]\n"
    "image = input() : f32[b,3,32,32]\n"
    "w = parameter(w) : f32[512,256]\n"
    "bias = parameter(bias) : f32[512]\n"
    "g = parameter(g) : f32[256]\n"
    "filter = parameter(filter) : f32[64,3,3,3]\n"
    "table = parameter(table) : f32[1000,256]\n"
    "e = embedding(table, ids) : f32[b,128,256]\n";

struct Single {
  Graph graph;
  OperatorId op;
  Work work() const { return operator_work(graph, op, BatchSize(4)); }
  OperatorCost cost() const { return analytic_cost(graph, op, device(), BatchSize(4)); }
};

// The operator `y` of a line, below the sources.
Single line(const std::string& text) {
  Graph graph = parse_graph(kSources + text + "\n");
  const OperatorId op = *graph.find_operator("y");
  return {std::move(graph), op};
}

TEST(AnalyticCost, LinearIsTwoFlopsAWeightAndRow) {
  const Work work = line("y = aten.linear.default(e, w, bias) : f32[b,128,512]").work();
  const double flops = 2.0 * (4 * 128) * 512 * 256;
  EXPECT_EQ(work.forward_flops, flops);
  EXPECT_EQ(work.input_gradient_flops, flops);
  EXPECT_EQ(work.weight_gradient_flops, flops);
  EXPECT_EQ(work.output_tiles, 4 * 4);  // 512 rows and 512 columns in tiles of 128
  EXPECT_TRUE(work.matrix);
}

TEST(AnalyticCost, TheWorkedNumberOfTheDocument) {
  // docs/cost-model.md: 16 tiles of 2·128·128·256 = 8.39 Mflop; the inner dimension 256 is one part, so one
  // wave of 100 multiprocessors: 8.39e6 · 100 / (0.75 · 10e12) = 111.8 µs, above the bytes' (0.5 + 1 + 0.5 MB
  // + 2 KB) / 0.8 TB/s = 2.6 µs. With 5 µs to launch: 116.848 µs.
  const OperatorCost cost = line("y = linear(e, w, bias) : f32[b,128,512]").cost();
  EXPECT_EQ(cost.forward, nanoseconds(5'000 + 111'848));
  EXPECT_EQ(cost.origin, Origin::kAnalytic);
  EXPECT_THAT(cost.saved, ElementsAre(in(0), in(1)));
  EXPECT_EQ(cost.between_halves, Bytes(4 * 128 * 512 * 4));  // the output's gradient
}

TEST(AnalyticCost, MatrixProductsKnowTheirOperands) {
  EXPECT_EQ(line("y = aten.addmm.default(bias, x, w) : f32[b,128,512]").work().forward_flops,
            2.0 * 4 * 128 * 512 * 256);
  EXPECT_EQ(line("a = linear(e, w) : f32[b,128,512]\nz = linear(x, w) : f32[b,128,512]\n"
                 "y = bmm(a, z) : f32[b,128,128]")
                .work()
                .forward_flops,
            2.0 * 4 * 128 * 128 * 512);
  EXPECT_EQ(line("y = einsum(x, w) : f32[b,128,512]").work().forward_flops, 2.0 * 4 * 128 * 512 * 256);
}

TEST(AnalyticCost, AGroupedProductDealsItsRowsToTheMatrices) {
  const std::string rows = "r = view(e) : f32[128*b,256] @view\n";
  const Work work = line(rows +
                         "experts = parameter(experts) : f32[8,256,512]\n"
                         "y = aten._grouped_mm.default(r, experts) : f32[128*b,512]")
                        .work();
  EXPECT_EQ(work.forward_flops, 2.0 * (4 * 128) * 256 * 512);
  EXPECT_EQ(work.output_tiles, 8 * 1 * 4);  // each expert has 64 of the 512 rows
  EXPECT_EQ(work.weight_gradient_flops, work.forward_flops);
}

TEST(AnalyticCost, AProductKeepsAnOperandOnlyForTheOthersGradient) {
  EXPECT_THAT(line("y = bmm(e, e) : f32[b,128,128]").cost().saved, ElementsAre(in(0), in(1)));
  EXPECT_THAT(line("y = mul(e, x) : f32[b,128,256]").cost().saved, ElementsAre(in(1)));
  EXPECT_THAT(line("y = mul(e) : f32[b,128,256]").cost().saved, IsEmpty());  // by a number
}

TEST(AnalyticCost, ConvolutionCountsItsKernelAtEachPosition) {
  const Single conv = line("y = aten.conv2d.default(image, filter) : f32[b,64,16,16]");  // stride 2
  EXPECT_EQ(conv.work().forward_flops, 2.0 * 4 * 64 * 16 * 16 * 3 * 3 * 3);
  EXPECT_GT(conv.cost().workspace, Bytes());
  const Single transposed =
      line("h = conv2d(image, filter) : f32[b,64,32,32]\ny = conv_transpose2d(h, filter) : f32[b,3,34,34]");
  EXPECT_EQ(transposed.work().forward_flops, 2.0 * 4 * 64 * 32 * 32 * 3 * 3 * 3);
}

TEST(AnalyticCost, ABagReadsAllItsRows) {
  // 128 rows of 256 numbers for each of 4 samples, and their indices; one row a sample is written.
  const Work bag = line("y = embedding_bag(table, ids) : f32[b,256]").work();
  EXPECT_EQ(bag.bytes_read, 4.0 * 128 * 256 * 4 + 4.0 * 128 * 8);
  EXPECT_EQ(bag.bytes_written, 4.0 * 256 * 4);
  const Work rows = line("y = embedding(table, ids) : f32[b,128,256]").work();
  EXPECT_EQ(rows.bytes_read, bag.bytes_read);
  EXPECT_EQ(rows.weight_gradient_bytes, bag.weight_gradient_bytes);
}

TEST(AnalyticCost, AttentionStoresNoScores) {
  const Single attention = line(
      "q = view(e) : f32[b,8,128,32] @view\n"
      "y = aten.scaled_dot_product_attention.default(q, q, q) : f32[b,8,128,32]");
  const Work work = attention.work();
  EXPECT_EQ(work.forward_flops, 4.0 * 4 * 8 * 128 * 128 * 32);
  EXPECT_EQ(work.input_gradient_flops, 2.5 * work.forward_flops);
  const OperatorCost cost = attention.cost();
  EXPECT_THAT(cost.saved, ElementsAre(in(0), in(1), in(2), out(0)));
  EXPECT_EQ(cost.private_bytes, Bytes(4 * 4 * 8 * 128));
}

TEST(AnalyticCost, EachOperatorKeepsWhatItsBackwardReads) {
  const auto saved = [](const std::string& text) { return line(text).cost().saved; };
  EXPECT_THAT(saved("y = relu(e) : f32[b,128,256]"), ElementsAre(out(0)));
  EXPECT_THAT(saved("y = aten.relu_.default(e) : f32[b,128,256]"), ElementsAre(out(0)));
  EXPECT_THAT(saved("y = gelu(e) : f32[b,128,256]"), ElementsAre(in(0)));
  EXPECT_THAT(saved("y = softmax(e) : f32[b,128,256]"), ElementsAre(out(0)));
  EXPECT_THAT(saved("y = layer_norm(e, g, g) : f32[b,128,256]"), ElementsAre(in(0), in(1)));
  EXPECT_THAT(saved("y = embedding(table, ids) : f32[b,128,256]"), ElementsAre(in(1)));
  EXPECT_THAT(saved("y = add(e, x) : f32[b,128,256]"), IsEmpty());
  EXPECT_THAT(saved("y = mean(e) : f32[]"), IsEmpty());
  EXPECT_THAT(saved("y = dropout(e) : f32[b,128,256] @random"), IsEmpty());
  EXPECT_THAT(saved("y = somebodys_operator(e, ids) : f32[b,128,256]"), ElementsAre(in(0), in(1)));
}

TEST(AnalyticCost, SomeKeepBytesOfTheirOwn) {
  const auto kept = [](const std::string& text) { return line(text).cost().private_bytes; };
  EXPECT_EQ(kept("y = dropout(e) : f32[b,128,256]"), Bytes(4 * 128 * 256));             // a mask
  EXPECT_EQ(kept("y = layer_norm(e, g, g) : f32[b,128,256]"), Bytes(2 * 4 * 4 * 128));  // two f32 a row
  EXPECT_EQ(kept("y = max_pool2d(image) : f32[b,3,16,16]"), Bytes(8 * 4 * 3 * 16 * 16));
  EXPECT_EQ(kept("h = linear(e, w) : f32[b,512]\ny = cross_entropy_loss(h, labels) : f32[]"),
            Bytes(4 * 512 * 4 + 4));
}

TEST(AnalyticCost, ViewsAreFreeAndCopiesAreNot) {
  EXPECT_EQ(line("y = aten.view.default(e) : f32[b,32768] @view").cost(), [] {
    OperatorCost none;
    none.origin = Origin::kAnalytic;
    return none;
  }());
  EXPECT_EQ(line("y = reshape(e) : f32[b,32768] @view").cost().forward, Duration());
  const Single copy = line("y = reshape(e) : f32[b,32768]");
  // Reads and writes 512 KiB each: 1048576 B / 0.8 TB/s = 1.311 µs, and 5 µs to launch.
  EXPECT_EQ(copy.cost().forward, nanoseconds(5'000 + 1'311));
}

TEST(AnalyticCost, EfficiencyRisesWithSize) {
  const Graph graph = parse_graph(std::string(kSources) + "y = linear(e, w) : f32[b,128,512]\n");
  double last = 1e30;
  for (std::int64_t batch = 1; batch <= 256; batch *= 4) {
    const OperatorCost cost = analytic_cost(graph, *graph.find_operator("y"), device(), BatchSize(batch));
    const double per_sample = static_cast<double>(cost.forward.count()) / static_cast<double>(batch);
    EXPECT_LT(per_sample, last);
    last = per_sample;
  }
  const double floor = 2.0 * 128 * 512 * 256 / 10e12 * 1e9;  // at the peak
  EXPECT_GT(last, floor);
  EXPECT_LT(last, floor / 0.6);
}

TEST(AnalyticCost, HalfPrecisionUsesTheMatrixUnits) {
  const auto forward = [](const char* type) {
    const std::string t = type;
    const Graph graph = parse_graph("x = input() : " + t + "[b,4096]\nw = parameter(w) : " + t +
                                    "[4096,4096]\ny = linear(x, w) : " + t + "[b,4096]\n");
    return analytic_cost(graph, *graph.find_operator("y"), device(), BatchSize(1024)).forward;
  };
  EXPECT_GT(forward("f32"), 5 * forward("f16"));
  EXPECT_EQ(forward("f16"), forward("bf16"));
}

TEST(AnalyticCost, AnUnknownLayerIsKnownByItsWeights) {
  const Work work = line("y = transformer_layer(e, w) : f32[b,128,256]").work();
  EXPECT_EQ(work.forward_flops, 2.0 * 4 * 128 * 512 * 256);
}

TEST(AnalyticCost, NamesOfAllDialectsMeanTheSame) {
  for (const char* name :
       {"torch.ops.aten.add_.Tensor", "aten.add.Scalar", "onnx.Add", "add", "Add", "aten::add"}) {
    EXPECT_EQ(base_name(name), "add") << name;
  }
  EXPECT_EQ(base_name("aten._native_batch_norm_legit.default"), "native_batch_norm_legit");
  EXPECT_EQ(base_name("_operator.mul"), "mul");
}

// ---- completion ----

TEST(CompleteCosts, FillsWhatIsMissingAndKeepsWhatIsMeasured) {
  const Graph graph = parse_graph(
      "x = input() : f32[b,16]\nw = parameter(w) : f32[16,16]\n"
      "h = linear(x, w) : f32[b,16] @class=lin\nloss = mean(h) : f32[] @class=mean\nreturn loss\n");
  const Cluster cluster = parse_cluster("2xA100-80GB+1xV100-16GB");
  const CostTable measured = parse_costs("cost lin A100-80GB batch=1 f=7ms\n");
  const BatchSize sizes[] = {BatchSize(2), BatchSize(4)};
  const CostTable table = complete_costs(graph, cluster, measured, sizes);
  EXPECT_EQ(*table.find("lin", "A100-80GB"), *measured.find("lin", "A100-80GB"));
  for (const char* kind : {"A100-80GB", "V100-16GB"}) {
    ASSERT_NE(table.find("mean", kind), nullptr);
    EXPECT_EQ(table.find("mean", kind)->points.size(), 2u);
    EXPECT_EQ(table.overhead(kind).updates.size(), 3u);
  }
  EXPECT_EQ(complete_costs(graph, cluster, table, sizes), table);
  const BatchSize more[] = {BatchSize(8), BatchSize(2)};
  EXPECT_EQ(complete_costs(graph, cluster, table, more).find("mean", "V100-16GB")->points.size(), 3u);
  OperatorCosts(graph, cluster, table, BatchSize(4));  // every operator has a cell
}

TEST(CompleteCosts, ACompleteTableStaysAsItIs) {
  const Graph graph = parse_graph("x = input() : f32[b]\ny = relu(x) @class=r\n");
  const CostTable table = parse_costs("cost r A100-80GB batch=4 f=1ms origin=profile\n");
  const BatchSize sizes[] = {BatchSize(2)};
  EXPECT_EQ(complete_costs(graph, parse_cluster("1xA100-80GB"), table, sizes), table);
}

}  // namespace
}  // namespace espalier
