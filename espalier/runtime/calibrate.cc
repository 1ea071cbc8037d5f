#include "espalier/runtime/calibrate.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include "espalier/runtime/link_profiler.h"
#include "espalier/runtime/optimizer_step.h"
#include "espalier/runtime/statistics.h"
#include "espalier/runtime/workers.h"

// The analytic model (cost/analytic.cc) turned round: it takes a kind's rates and shares of them that kernels
// reach, and gives times; here are times, and the rates that explain them.
//
//   a linear layer        launch + flops / (0.75 · flops_f32)
//   a sum of tensors      launch + bytes / (0.8 · memory_bandwidth)
//   an empty operator     launch, once for its forward, once for each half of its backward

namespace espalier {
namespace {

constexpr double kMatrixShare = 0.75;
constexpr double kBandwidthShare = 0.8;
constexpr std::int64_t kRows = 256, kInputs = 128, kOutputs = 512;  // of a layer as in a small transformer
constexpr int kLayers = 16;                                         // with weights beyond a core's own cache
constexpr std::int64_t kElements = 1 << 19;  // of a tensor to add: 2 MiB, beyond a core's own cache
constexpr int kBlocks = 16;                  // of the small training step
constexpr int kPassesOfABlock = 10;          // that the analytic model counts: see small_step
constexpr int kRepeats = 15;
constexpr int kLinkRounds = 2;
constexpr Duration kTimeout = milliseconds(20'000);

double nanoseconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return static_cast<double>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count());
}

double usual_time(const std::function<void()>& work) {
  work();  // fills the caches, and makes what is made once
  std::vector<double> times;
  for (int i = 0; i < kRepeats; ++i) times.push_back(nanoseconds_of(work));
  return median(times);
}

// A step as transformers have them, on tensors so small that only calls cost: a linear layer (forward, two
// halves of backward), GELU (two passes), a norm with weights (three), a residual sum (two).
class SmallStep {
 public:
  SmallStep() {
    for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{8, 8}, {8}, {8}, {8}}) {
      parameters_.push_back(at::full(sizes, 0.1F).requires_grad_(true));
    }
  }
  void operator()() const {
    at::Tensor x = input_;
    for (int block = 0; block < kBlocks; ++block) {
      const at::Tensor y = at::gelu(at::linear(x, parameters_[0], parameters_[1]));
      x = at::add(at::layer_norm(y, {8}, parameters_[2], parameters_[3]), x);
    }
    torch::autograd::backward({at::sum(x)}, {});
    for (const at::Tensor& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
  }

 private:
  at::Tensor input_ = at::full({2, 8}, 0.5F);
  std::vector<at::Tensor> parameters_;
};

// What an action costs beside its operators: to start the engine and to fetch what comes out.
double time_of_an_action() {
  const at::Tensor weight = at::full({8}, 0.1F).requires_grad_(true);
  return usual_time([&] {
           torch::autograd::backward({at::sum(weight)}, {});
           weight.mutable_grad() = at::Tensor();
         }) /
         2;
}

KindOverhead overhead_of(double launch) {
  KindOverhead overhead{
      .kind = "cpu", .per_action = {}, .neighbour_per_mille = 0, .scatter = {}, .updates = {}};
  overhead.per_action = round_duration(std::max(0.0, time_of_an_action() - launch));
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    std::vector<Variable> variables{{ParameterId(0), at::zeros({kElements}).requires_grad_(true), {}}};
    std::uint64_t step = 0;
    const at::Tensor gradient = at::full({kElements}, 1e-3F);
    const double time = usual_time([&] {
      variables[0].value.mutable_grad() = gradient.clone();
      update({.kind = kind, .learning_rate = 1e-9}, ++step, variables);
    });
    overhead.updates.push_back({kind, {}, std::llround(1000 * time / (4.0 * kElements))});
  }
  return overhead;
}

// Rates of this worker, in the order of the fields below.
struct Rates {
  double matrix = 0, sum = 0, launch = 0;  // nanoseconds
};

Rates measure_rates() {
  Rates rates;
  const SmallStep small;
  rates.launch = usual_time(small) / (kBlocks * kPassesOfABlock);
  // A product of the same three matrices again and again is a third faster than any layer of a model.
  const at::Tensor rows = at::full({kRows, kInputs}, 0.5F), bias = at::zeros({kOutputs});
  std::vector<at::Tensor> weights;
  for (int layer = 0; layer < kLayers; ++layer) weights.push_back(at::full({kOutputs, kInputs}, 0.25F));
  rates.matrix = usual_time([&] {
                   for (const at::Tensor& weight : weights) at::linear(rows, weight, bias);
                 }) /
                 kLayers;
  const at::Tensor x = at::ones({kElements}), y = at::ones({kElements});
  at::Tensor z = at::empty({kElements});
  rates.sum = usual_time([&] { at::add_out(z, x, y); });
  return rates;
}

Calibration measure(Workers& workers, std::uint32_t threads) {
  wait_for_all(workers, "the calibration");
  const Rates mine = measure_rates();
  const std::vector<double> own{mine.matrix, mine.sum, mine.launch};
  Rates mean;
  const auto all = wait_for_all(workers, "the calibration's rates", own);
  for (const std::vector<double>& worker : all) {
    mean.matrix += worker[0] / static_cast<double>(all.size());
    mean.sum += worker[1] / static_cast<double>(all.size());
    mean.launch += worker[2] / static_cast<double>(all.size());
  }
  Calibration result;
  result.machine = machine_description();
  result.threads = threads;
  result.torch_version = torch_version();
  result.launch_overhead = round_duration(mean.launch);
  const double flops = 2.0 * kRows * kInputs * kOutputs, bytes = 3.0 * 4 * kElements;
  const auto beside_launch = [&](double time) { return std::max(time - mean.launch, time / 10); };
  result.flops_f32 = std::max(1.0, flops / (1e-9 * beside_launch(mean.matrix)) / kMatrixShare);
  result.memory_bandwidth =
      std::max<std::int64_t>(1, std::llround(bytes / (1e-9 * beside_launch(mean.sum)) / kBandwidthShare));
  CostTableParts parts;
  parts.machine = result.machine;
  parts.threads = threads;
  parts.torch_version = result.torch_version;
  parts.overheads.push_back(overhead_of(mean.launch));
  if (workers.transport->ranks() > 1) {
    LinkProfiler link(workers, some_milliseconds());
    for (int round = 0; round < kLinkRounds; ++round) link.round();
    parts.link = link.link(LinkProfiler::Endpoints::kCallsAndThreads);
  }
  result.costs = CostTable(std::move(parts));
  return result;
}

}  // namespace

Calibration calibrate(const World& world, std::uint32_t threads) {
  at::set_num_threads(static_cast<int>(threads));
  Workers workers = join_workers(world, {.timeout = kTimeout});
  Calibration result;
  guarded(workers, [&] { result = measure(workers, threads); });
  return result;
}

std::string torch_version() {
  return TORCH_VERSION;
}

}  // namespace espalier
