// Every file of workloads/ against the figures of its README: what is published is what is read.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <ostream>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/frontend/imported.h"

namespace espalier {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kFolder = ESPALIER_SOURCE_DIR "/workloads/";

Imported load_workload(const std::string& name, const ImportOptions& options = {}) {
  return import_file(kFolder + name, options);
}

std::size_t edges(const Graph& graph) {
  std::size_t count = 0;
  for (const Operator& op : graph.operators()) {
    for (const TensorId id : op.inputs) count += graph.tensor(id).producer ? 1 : 0;
  }
  return count;
}

std::size_t forward_operators(const Graph& graph) {
  return static_cast<std::size_t>(
      std::count_if(graph.operators().begin(), graph.operators().end(),
                    [](const Operator& op) { return op.role == OperatorRole::kForward; }));
}

struct Sum {
  double forward = 0, backward = 0;  // ms
};
Sum sum(const Imported& in, const std::string& kind, Variant variant = {}) {
  Sum total;
  for (const Operator& op : in.graph.operators()) {
    const CostRow* const row = in.costs->find(op.op_class, kind, variant);
    if (row == nullptr) continue;
    total.forward += to_milliseconds(row->points.front().cost.forward);
    total.backward += to_milliseconds(row->points.front().cost.backward());
  }
  return total;
}

double stored_bytes(const Graph& graph) {
  double total = 0;
  for (const Parameter& parameter : graph.parameters())
    total += static_cast<double>(parameter.bytes().count());
  return total;
}

// -- dnn-partitioning -------------------------------------------------------------------------------------

struct MsrRow {
  const char* file;
  std::size_t forward, nodes, edges;
  double accelerator_ms, cpu_ms;
  std::size_t accelerators, cpus;
  std::int64_t memory;
  friend std::ostream& operator<<(std::ostream& out, const MsrRow& row) { return out << row.file; }
};

class Msr : public ::testing::TestWithParam<MsrRow> {};

TEST_P(Msr, HasThePublishedFigures) {
  const MsrRow& row = GetParam();
  const Imported in = load_workload(std::string("dnn-partitioning/") + row.file);
  EXPECT_EQ(forward_operators(in.graph), row.forward);
  EXPECT_EQ(in.graph.operators().size(), row.nodes);
  EXPECT_EQ(edges(in.graph), row.edges);
  const Sum accelerator = sum(in, "accelerator"), cpu = sum(in, "cpu");
  EXPECT_NEAR(accelerator.forward + accelerator.backward, row.accelerator_ms, 0.0006);
  EXPECT_NEAR(cpu.forward + cpu.backward, row.cpu_ms, 0.006);
  EXPECT_EQ(accelerator.backward > 0, row.forward < row.nodes);
  ASSERT_EQ(in.cluster->devices().size(), row.accelerators + row.cpus);
  EXPECT_EQ(in.cluster->device(DeviceId(0)).memory, Bytes(row.memory));
  EXPECT_EQ(in.cluster->device(DeviceId(row.accelerators)).name, "cpu:0");
}

INSTANTIATE_TEST_SUITE_P(Published, Msr,
                         ::testing::Values(MsrRow{"throughput-inputs/LayerGraphs/bert24_inference.json", 32,
                                                  32, 55, 92.406, 924.06, 6, 1, 17185374208},
                                           MsrRow{"throughput-inputs/LayerGraphs/bert24_training.json", 32,
                                                  64, 110, 217.813, 2178.13, 6, 1, 17185374208},
                                           MsrRow{"throughput-inputs/LayerGraphs/gnmt_inference.json", 96, 96,
                                                  122, 182.563, 1825.63, 6, 1, 17185374208},
                                           MsrRow{"throughput-inputs/LayerGraphs/gnmt_training.json", 96, 192,
                                                  244, 520.453, 5204.53, 6, 1, 17185374208},
                                           MsrRow{"throughput-inputs/LayerGraphs/inceptionv3_inference.json",
                                                  326, 326, 363, 310.969, 3109.69, 6, 1, 17185374208},
                                           MsrRow{"throughput-inputs/OperatorGraphs/bert_l-3_inference.json",
                                                  235, 235, 250, 49.353, 1135.11, 3, 1, 17185374208},
                                           MsrRow{"throughput-inputs/OperatorGraphs/bert_l-3_training.json",
                                                  235, 600, 817, 122.987, 2828.71, 3, 1, 17185374208},
                                           MsrRow{"throughput-inputs/OperatorGraphs/bert_l-12_inference.json",
                                                  783, 783, 843, 642.780, 14783.94, 6, 1, 17185374208},
                                           MsrRow{"throughput-inputs/OperatorGraphs/bert_L-12_training.json",
                                                  783, 2012, 2751, 1891.742, 43510.07, 6, 1, 17185374208},
                                           MsrRow{"throughput-inputs/OperatorGraphs/resnet50_inference.json",
                                                  604, 604, 619, 325.132, 7478.04, 6, 1, 17185374208},
                                           MsrRow{"throughput-inputs/OperatorGraphs/resnet50_training.json",
                                                  604, 1243, 1806, 684.891, 15752.48, 6, 1, 17185374208},
                                           MsrRow{"latency-inputs/LayerGraphs/bert24_inference.json", 32, 32,
                                                  55, 92.406, 924.06, 5, 8, 629145600},
                                           MsrRow{"latency-inputs/LayerGraphs/inceptionv3_inference.json",
                                                  326, 326, 363, 310.969, 3109.69, 12, 8, 2147483648},
                                           MsrRow{"latency-inputs/OperatorGraphs/bert_l-3_inference.json",
                                                  235, 235, 250, 49.353, 1135.11, 4, 8, 629145600},
                                           MsrRow{"latency-inputs/OperatorGraphs/bert_l-12_inference.json",
                                                  783, 783, 843, 642.780, 14783.94, 8, 8, 2147483648},
                                           MsrRow{"latency-inputs/OperatorGraphs/resnet50_inference.json",
                                                  604, 604, 619, 325.132, 7478.04, 9, 8, 629145600}));

TEST(MsrUnits, CostsInSecondsAreRepairedAndMeanTheSameAsInTheOtherFile) {
  const std::string throughput = "dnn-partitioning/throughput-inputs/LayerGraphs/bert24_inference.json";
  const Imported seconds = load_workload(throughput);
  const Imported milliseconds =
      load_workload("dnn-partitioning/latency-inputs/LayerGraphs/bert24_inference.json");
  EXPECT_THAT(seconds.warnings, Contains(HasSubstr("seconds beside times in milliseconds")));
  EXPECT_THAT(milliseconds.warnings, IsEmpty());
  EXPECT_EQ(seconds.graph.parts().tensors, milliseconds.graph.parts().tensors);

  const Imported literal = load_workload(throughput, {.repair = Repair::kLiteral});
  EXPECT_THAT(literal.warnings, IsEmpty());
  // bert24's layers pass 1024 × 1024 × 4 … bytes on; read as milliseconds that is a thousandth.
  std::int64_t repaired_bytes = 0, literal_bytes = 0;
  for (const Tensor& t : seconds.graph.tensors())
    repaired_bytes += t.producer ? t.bytes(BatchSize(1)).count() : 0;
  for (const Tensor& t : literal.graph.tensors())
    literal_bytes += t.producer ? t.bytes(BatchSize(1)).count() : 0;
  EXPECT_NEAR(static_cast<double>(repaired_bytes) / static_cast<double>(literal_bytes), 1000, 1);
}

TEST(MsrUnits, ATransferTakesItsCost) {
  // resnet50: n1's edge costs what its bytes take at 2^31 bytes/s.
  const Imported in = load_workload("dnn-partitioning/latency-inputs/LayerGraphs/inceptionv3_inference.json");
  const auto& tensors = in.graph.tensors();
  const auto largest = std::max_element(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    const auto bytes = [](const Tensor& t) { return t.producer ? t.bytes(BatchSize(1)) : Bytes(); };
    return bytes(a) < bytes(b);
  });
  const Route route = in.cluster->route(DeviceId(0), DeviceId(1));
  EXPECT_EQ(route.bandwidth, std::int64_t{1} << 31);
  EXPECT_EQ(route.hold(largest->bytes(BatchSize(1))),
            transfer_time(largest->bytes(BatchSize(1)), std::int64_t{1} << 31));
  EXPECT_EQ(in.cluster->route(DeviceId(0), DeviceId(12)).bandwidth, std::int64_t{1} << 31);  // to cpu:0
  EXPECT_EQ(in.cluster->route(DeviceId(12), DeviceId(13)).bandwidth, std::nullopt);          // among CPUs
}

TEST(MsrMemory, NodesOccupyTheirSizes) {
  // Layer graphs: size = weights + output, so nothing is lost by taking the output out of it.
  const Imported in = load_workload("dnn-partitioning/latency-inputs/LayerGraphs/bert24_inference.json");
  double total = stored_bytes(in.graph);
  for (const Tensor& t : in.graph.tensors())
    total += t.producer ? static_cast<double>(t.bytes(BatchSize(1)).count()) : 0;
  EXPECT_NEAR(total / 1.825e9, 1, 0.001);
}

struct ExpertRow {
  const char *placement, *graph;
  friend std::ostream& operator<<(std::ostream& out, const ExpertRow& row) {
    return out << row.placement << " on " << row.graph;
  }
};

class Experts : public ::testing::TestWithParam<ExpertRow> {};

TEST_P(Experts, PlaceEveryNodeOfTheirGraph) {
  const ExpertRow& row = GetParam();
  const Imported in =
      load_workload(std::string("dnn-partitioning/throughput-inputs/LayerGraphs/") + row.graph);
  const std::string name = kFolder + "dnn-partitioning/human-experts/" + row.placement;
  const Placement placement = import_msr_placement(read_file(name), row.placement, in.graph, *in.cluster);
  EXPECT_THAT(check_placement(in.graph, *in.cluster, placement), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Published, Experts,
                         ::testing::Values(ExpertRow{"bert24_inference_expert.json", "bert24_inference.json"},
                                           ExpertRow{"bert24_inference_expert.json", "bert24_training.json"},
                                           ExpertRow{"bert24_training_expert.json", "bert24_training.json"},
                                           ExpertRow{"gnmt_inference_expert.json", "gnmt_inference.json"},
                                           ExpertRow{"gnmt_inference_expert.json", "gnmt_training.json"},
                                           ExpertRow{"gnmt_training_expert.json", "gnmt_training.json"},
                                           ExpertRow{"inceptionv3_inference_expert.json",
                                                     "inceptionv3_inference.json"}));

// -- piper ------------------------------------------------------------------------------------------------

struct PiperRow {
  const char* file;
  std::size_t nodes, edges;
  double plain_ms, recomputed_ms, weights;
  std::int64_t batch;
  friend std::ostream& operator<<(std::ostream& out, const PiperRow& row) { return out << row.file; }
};

class Piper : public ::testing::TestWithParam<PiperRow> {};

TEST_P(Piper, HasThePublishedFigures) {
  const PiperRow& row = GetParam();
  const Imported in = load_workload(std::string("piper/inputs/") + row.file);
  EXPECT_EQ(in.graph.operators().size(), row.nodes);
  EXPECT_EQ(edges(in.graph), row.edges);
  const Sum plain = sum(in, "profiled"), recomputed = sum(in, "profiled", {.recompute = true});
  EXPECT_NEAR(plain.forward + plain.backward, row.plain_ms, 0.0006);
  EXPECT_NEAR(recomputed.forward + recomputed.backward, row.recomputed_ms, 0.0006);
  EXPECT_NEAR(stored_bytes(in.graph) / row.weights, 1, 0.001);
  EXPECT_EQ(in.batch, BatchSize(row.batch));
  EXPECT_EQ(in.cluster->devices().size(), 10u);
  EXPECT_EQ(in.cluster->device(DeviceId(0)).memory, Bytes(80'000'000'000));
  EXPECT_EQ(in.cluster->route(DeviceId(0), DeviceId(1)).bandwidth, 25'000'000'000);
}

INSTANTIATE_TEST_SUITE_P(Published, Piper,
                         ::testing::Values(PiperRow{"bert32a100.json", 37, 67, 972.864, 1304.647, 5.879e9,
                                                    1920},
                                           PiperRow{"gnmt.json", 78, 104, 520.453, 703.016, 1.111e9, 256}));

TEST(PiperUnits, OnlyTheFileInMillisecondsIsRepaired) {
  EXPECT_THAT(load_workload("piper/inputs/gnmt.json").warnings, Contains(HasSubstr("read as milliseconds")));
  EXPECT_THAT(load_workload("piper/inputs/bert32a100.json").warnings,
              Not(Contains(HasSubstr("read as milliseconds"))));
  const Imported literal = load_workload("piper/inputs/gnmt.json", {.repair = Repair::kLiteral});
  EXPECT_NEAR(sum(literal, "profiled").forward + sum(literal, "profiled").backward, 520453, 0.6);
}

TEST(PiperVariants, EachDegreeHasItsOwnRow) {
  const Imported in = load_workload("piper/inputs/bert32a100.json");
  // Σ timePerSample of the plain rows at 1, 2, 4, 8 devices.
  const double expected[] = {972.864, 601.744, 385.652, 303.980};
  for (std::uint32_t i = 0; i < 4; ++i) {
    const Sum at = sum(in, "profiled", {.tensor_parallel = 1u << i});
    EXPECT_NEAR(at.forward + at.backward, expected[i], 0.0006);
  }
  // Recomputing adds the forward time: 40.685 - 30.492 ms for the first transformer layer.
  const OperatorCost& layer = in.costs->find("n3", "profiled")->points.front().cost;
  EXPECT_EQ(layer.forward, microseconds(10193));
  EXPECT_EQ(layer.private_bytes, Bytes(606478336));  // memoryUsageA
  const OperatorCost& again = in.costs->find("n3", "profiled", {.recompute = true})->points.front().cost;
  EXPECT_EQ(again.workspace, Bytes(558505984));  // memoryUsageB - 2 × parameterSize
}

TEST(PiperEdges, EqualBytesOfOneSourceAreOneTensor) {
  const Imported in = load_workload("piper/inputs/bert32a100.json");
  const Operator& mask = in.graph.op(*in.graph.find_operator("n4"));
  EXPECT_EQ(mask.outputs.size(), 2u);  // 16.8 MB to most layers, 31.5 MB to one
  const Imported literal = load_workload("piper/inputs/bert32a100.json", {.repair = Repair::kLiteral});
  EXPECT_EQ(literal.graph.op(*literal.graph.find_operator("n4")).outputs.size(), 32u);
}

// -- pipedream --------------------------------------------------------------------------------------------

struct PipeDreamRow {
  const char* model;
  std::size_t nodes, edges;
  double forward_ms, backward_ms, input_ms, weights_mb;
  std::int64_t batch;
  friend std::ostream& operator<<(std::ostream& out, const PipeDreamRow& row) { return out << row.model; }
};

class PipeDream : public ::testing::TestWithParam<PipeDreamRow> {};

TEST_P(PipeDream, HasThePublishedFigures) {
  const PipeDreamRow& row = GetParam();
  const std::string file = std::string("pipedream/") + row.model;
  const Imported literal = load_workload(file, {.repair = Repair::kLiteral});
  EXPECT_EQ(literal.graph.operators().size(), row.nodes);
  EXPECT_EQ(edges(literal.graph), row.edges);
  EXPECT_NEAR(sum(literal, "profiled").forward, row.forward_ms, 0.06);
  EXPECT_NEAR(sum(literal, "profiled").backward, row.backward_ms, 0.06);
  EXPECT_NEAR(stored_bytes(literal.graph) / 1e6, row.weights_mb, 0.06);
  EXPECT_EQ(literal.graph.batch().min, BatchSize(row.batch));

  const Imported repaired = load_workload(file);
  EXPECT_NEAR(sum(repaired, "profiled").forward, row.forward_ms - row.input_ms, 0.11);
  EXPECT_NEAR(sum(repaired, "profiled").backward, row.backward_ms, 0.06);
  EXPECT_EQ(std::any_of(repaired.warnings.begin(), repaired.warnings.end(),
                        [](const std::string& w) { return w.find("data loading") != std::string::npos; }),
            row.input_ms > 0);
}

INSTANTIATE_TEST_SUITE_P(
    Published, PipeDream,
    ::testing::Values(PipeDreamRow{"image_classification/profiles/alexnet/graph.txt", 23, 23, 680.7, 40.5,
                                   635.9, 244.4, 256},
                      PipeDreamRow{"image_classification/profiles/densenet121/graph.txt", 429, 487, 186.5,
                                   148.8, 9.1, 31.9, 64},
                      PipeDreamRow{"image_classification/profiles/inception_v3/graph.txt", 326, 362, 311.0,
                                   399.8, 21.7, 108.6, 128},
                      PipeDreamRow{"image_classification/profiles/nasnetalarge/graph.txt", 1251, 1468, 416.1,
                                   249.2, 7.0, 369.0, 16},
                      PipeDreamRow{"image_classification/profiles/resnet101/graph.txt", 347, 380, 207.7,
                                   213.8, 10.4, 178.2, 64},
                      PipeDreamRow{"image_classification/profiles/resnet18/graph.txt", 71, 79, 581.1, 152.3,
                                   473.6, 46.8, 256},
                      PipeDreamRow{"image_classification/profiles/resnext50/graph.txt", 177, 193, 239.0,
                                   369.0, 17.2, 100.1, 128},
                      PipeDreamRow{"image_classification/profiles/vgg16/graph.txt", 41, 41, 251.9, 438.6,
                                   18.0, 553.4, 128},
                      PipeDreamRow{"translation/profiles/gnmt/graph.txt", 48, 58, 33.5, 55.9, 0, 775.1, 1}));

TEST(PipeDreamMemory, PartsOfAListShareItsMemory) {
  const Imported in = load_workload("pipedream/translation/profiles/gnmt/graph.txt");
  const auto output = [&](const char* name) {
    return in.graph.tensor(in.graph.op(*in.graph.find_operator(name)).outputs[0]);
  };
  // node7 -- LSTM -- [6291456; 131072; 131072]; node8 and node9 are its first two parts.
  EXPECT_EQ(output("node7").bytes(BatchSize(1)), Bytes(6291456 + 2 * 131072));
  EXPECT_EQ(output("node8").storage, output("node7").storage);
  EXPECT_EQ(output("node9").storage, output("node7").storage);
  EXPECT_NE(output("node10").storage, output("node7").storage);
}

TEST(PipeDreamInput, StandsInEveryStageThatReadsIt) {
  const Imported in = load_workload("pipedream/translation/profiles/gnmt/graph.txt");
  EXPECT_TRUE(in.graph.op(*in.graph.find_operator("node1")).duplicable);
  EXPECT_FALSE(in.graph.op(*in.graph.find_operator("node4")).duplicable);
}

// -- all --------------------------------------------------------------------------------------------------

TEST(Workloads, EveryFileLoads) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kFolder)) {
    const std::string path = entry.path().string();
    if (!entry.is_regular_file() || path.ends_with(".md") || path.ends_with("LICENSE.txt")) continue;
    if (path.find("human-experts") != std::string::npos) continue;
    ++files;
    const Imported in = import_file(path);
    ASSERT_TRUE(in.costs && in.cluster) << path;
    // Every operator has a cost on every kind of the machine.
    const OperatorCosts costs(in.graph, *in.cluster, *in.costs, in.graph.batch().min);
    for (const std::string& warning : in.warnings) EXPECT_EQ(warning.find('\n'), std::string::npos);
  }
  EXPECT_EQ(files, 16u + 2u + 10u + 1u);
}

TEST(CostsOn, AnotherClusterGetsTheFirstKindsRows) {
  const Imported in = load_workload("piper/inputs/gnmt.json");
  const Cluster other = parse_cluster("2xV100-16GB");
  const CostTable costs = costs_on(*in.costs, other);
  EXPECT_EQ(costs.find("n1", "V100-16GB")->points, costs.find("n1", "profiled")->points);
}

}  // namespace
}  // namespace espalier
