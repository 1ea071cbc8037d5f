// The cost table of a model on this machine. All workers measure at the same time, since a core beside a busy
// one is slower; in between, each measures alone, which gives the factor between the two. Rounds are short
// and stand between probes of the core's speed: a host changes its speed for seconds to minutes, and a round
// in which the core was more than 12 % slower than at its best is taken again.

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/cost/analytic.h"
#include "espalier/runtime/link_profiler.h"
#include "espalier/runtime/pass_profiler.h"
#include "espalier/runtime/runtime.h"
#include "espalier/runtime/workbench.h"

namespace espalier {
namespace {

constexpr double kSlowProbe = 1.12;
constexpr int kTries = 2;            // of a round
constexpr double kSizeSeconds = 20;  // of rounds at one micro-batch; long passes get fewer of them
constexpr std::uint32_t kLeastRounds = 7;
constexpr std::uint32_t kAloneRounds = 5;  // each worker's rounds alone, at the smallest micro-batch
constexpr std::size_t kPieces = 8;

double median(std::vector<double> values) {
  ESP_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Sums and per-operator times of one micro-batch size, scaled to passes without timestamps.
struct Passes {
  std::vector<double> forward, backward;  // by operator, nanoseconds
  double busy = 0, alone = 0;             // a whole pass with all workers at work, and with one
};

class Profiler {
 public:
  Profiler(const std::string& path, const ProfileOptions& options)
      : options_(options), model_(path), device_(parse_device(options.device)) {
    at::set_num_threads(static_cast<int>(options.threads));
  }

  CostTable run() {
    Workers workers = join();
    CostTable table(CostTableParts{});
    guarded(workers, [&] { table = run(workers); });
    return table;
  }

 private:
  const Graph& graph() const { return model_.graph(); }
  void progress(const std::string& phase, std::size_t done, std::size_t total) const {
    if (options_.on_progress) {
      options_.on_progress({phase, static_cast<std::uint32_t>(done), static_cast<std::uint32_t>(total)});
    }
  }

  // One device for each worker.
  Workers join() const {
    PlannedJob job;
    job.schedule.devices.resize(options_.world.size);
    for (std::size_t d = 0; d < job.schedule.devices.size(); ++d) {
      job.schedule.devices[d].push_back({ActionKind::kForward, StageId(0), 0});
      job.device_names.push_back("worker " + std::to_string(d));
    }
    return join_workers(options_.world, job, milliseconds(600'000));
  }

  std::vector<BatchSize> micro_batches() const {
    const BatchRange range = graph().batch();
    std::vector<BatchSize> sizes = options_.micro_batches;
    if (sizes.empty() && range.fixed()) sizes = {range.min};
    if (sizes.empty()) {
      for (const std::int64_t size : {1, 2, 4, 8}) {
        if (BatchSize(size) >= range.min && BatchSize(size) <= range.max && sizes.size() < 3)
          sizes.push_back(BatchSize(size));
      }
      if (sizes.empty()) sizes = {range.min};
    }
    std::sort(sizes.begin(), sizes.end());
    return sizes;
  }

  CostTable run(Workers& workers) {
    if (!graph().loss()) throw InputError(graph().name() + ": has no loss, so it has no backward to measure");
    const std::vector<BatchSize> sizes = micro_batches();
    std::map<std::string, CostRow> rows;
    double busy = 0, alone = 0, overhead = 0;
    const auto data = synthetic_data(model_.exported, options_.seed);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const Program program(model_.exported, sizes[i], device_);
      Session session(model_.exported, model_.file.bytes(), {}, options_.seed, device_);
      PassProfiler profiler(program, session, *data);
      const auto memory = profiler.memory();
      const Passes passes = measure(workers, profiler, sizes[i], i == 0);
      add_points(rows, sizes[i], passes, memory);
      if (i == 0) busy = passes.busy, alone = passes.alone;
      if (i == 0) overhead = average(workers, {profiler.action_overhead(kPieces)})[0];
    }
    CostTableParts parts;
    parts.machine = machine_description();
    parts.threads = options_.threads;
    parts.torch_version = TORCH_VERSION;
    // Rows are taken without the neighbour; stage_model puts the factor back where there is one.
    const double factor = std::max(1.0, alone > 0 ? busy / alone : 1.0);
    for (auto& [name, row] : rows) {
      for (CostRow::Point& point : row.points) divide(point.cost, factor);
      parts.rows.push_back(std::move(row));
    }
    KindOverhead kind{.kind = options_.kind,
                      .per_action = round_duration(overhead),
                      .neighbour_per_mille = 0,
                      .updates = {}};
    kind.neighbour_per_mille = static_cast<std::int32_t>(std::lround(1000 * (factor - 1)));
    kind.updates = measure_updates(workers, *data, sizes.front());
    parts.overheads.push_back(std::move(kind));
    if (workers.transport->ranks() > 1) {
      progress("messages", 0, 1);
      parts.link = measure_link(workers);
    }
    progress("done", 1, 1);
    return CostTable(std::move(parts));
  }

  static void divide(OperatorCost& cost, double factor) {
    for (const auto field :
         {&OperatorCost::forward, &OperatorCost::input_gradient, &OperatorCost::weight_gradient}) {
      cost.*field = round_duration(static_cast<double>((cost.*field).count()) / factor);
    }
  }

  // The mean over workers, everywhere the same.
  std::vector<double> average(Workers& workers, const std::vector<double>& mine) const {
    const auto all = exchange(*workers.transport, workers.first_devices, mine);
    std::vector<double> mean(mine.size(), 0.0);
    for (const auto& worker : all) {
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += worker[i] / static_cast<double>(all.size());
    }
    return mean;
  }

  void meet(Workers& workers) const {
    const double nothing = 0;
    exchange(*workers.transport, workers.first_devices, std::span(&nothing, 1));
  }

  // Takes a sample while the core is at its speed; the last try counts whatever the probe says.
  template <class Sample>
  void at_speed(const Sample& sample) {
    for (int i = 0; i < kTries; ++i) {
      const double before = speed_probe();
      auto taken = sample();
      const double probe = std::max(before, speed_probe());
      best_probe_ = best_probe_ == 0 ? probe : std::min(best_probe_, probe);
      if (probe > kSlowProbe * best_probe_ && i + 1 < kTries) continue;
      taken();
      return;
    }
  }

  // The same number everywhere: workers meet in every round.
  std::uint32_t rounds_for(Workers& workers, PassProfiler& profiler) {
    profiler.plain();
    const PassTimes warm = profiler.plain();
    const double seconds = average(workers, {2e-9 * (warm.forward + warm.backward)})[0];
    const double fit = std::min(kSizeSeconds / seconds, static_cast<double>(std::max(1U, options_.rounds)));
    return std::max(std::min(kLeastRounds, std::max(1U, options_.rounds)), static_cast<std::uint32_t>(fit));
  }

  Passes measure(Workers& workers, PassProfiler& profiler, BatchSize size, bool is_first_size) {
    const std::string phase = "operators, micro-batch " + std::to_string(size.count());
    const std::size_t n = graph().operators().size();
    const bool alone = workers.transport->ranks() == 1;
    std::vector<std::vector<double>> forward(n), backward(n);
    std::vector<double> plain_forward, plain_backward, plain_alone;
    const std::uint32_t rounds = rounds_for(workers, profiler);
    const std::uint32_t alone_rounds = alone || !is_first_size ? 0 : std::min(rounds, kAloneRounds);
    for (std::uint32_t round = 0; round < rounds; ++round) {
      progress(phase, round, rounds);
      meet(workers);
      at_speed([&] {
        const PassTimes plain = profiler.plain();
        const PassTimes stamped = profiler.stamped();
        return [&, plain, stamped] {
          plain_forward.push_back(plain.forward);
          plain_backward.push_back(plain.backward);
          for (std::size_t op = 0; op < n; ++op) {
            forward[op].push_back(stamped.forward_of[op]);
            backward[op].push_back(stamped.backward_of[op]);
          }
        };
      });
      for (std::uint32_t turn = 0; turn < workers.transport->ranks() && round < alone_rounds; ++turn) {
        meet(workers);
        if (turn != workers.transport->rank()) continue;
        at_speed([&] {
          const PassTimes plain = profiler.plain();
          return [&, plain] { plain_alone.push_back(plain.forward + plain.backward); };
        });
      }
    }
    meet(workers);
    std::vector<double> mine(2 * n);
    const double forward_sum = scale_into(mine, 0, forward, median(plain_forward));
    const double backward_sum = scale_into(mine, n, backward, median(plain_backward));
    mine.push_back(forward_sum + backward_sum);
    mine.push_back(plain_alone.empty() ? 0 : median(plain_alone));
    const std::vector<double> mean = average(workers, mine);
    const auto middle = mean.begin() + static_cast<std::ptrdiff_t>(n);
    return {{mean.begin(), middle},
            {middle, middle + static_cast<std::ptrdiff_t>(n)},
            mean[2 * n],
            mean[2 * n + 1]};
  }

  // Medians by operator, scaled so that they sum up to a pass without timestamps, which is returned.
  static double scale_into(std::vector<double>& out, std::size_t at,
                           const std::vector<std::vector<double>>& samples, double plain) {
    double sum = 0;
    for (std::size_t op = 0; op < samples.size(); ++op) sum += out[at + op] = median(samples[op]);
    for (std::size_t op = 0; op < samples.size() && sum > 0; ++op) out[at + op] *= plain / sum;
    return plain;
  }

  // The part of backward that only the weights need: measured together, divided as the arithmetic is.
  double weight_share(OperatorId op, BatchSize size) const {
    bool weights = false, inputs = false;
    for (const TensorId id : graph().op(op).inputs) {
      const Tensor& tensor = graph().tensor(id);
      if (tensor.requires_grad) (tensor.parameter ? weights : inputs) = true;
    }
    if (!weights || !inputs) return weights ? 1 : 0;
    const Work work = operator_work(graph(), op, size);
    const double all = work.input_gradient_flops + work.weight_gradient_flops;
    return all > 0 ? work.weight_gradient_flops / all : 0;
  }

  void add_points(std::map<std::string, CostRow>& rows, BatchSize size, const Passes& passes,
                  const std::vector<OperatorMemory>& memory) const {
    struct Sum {
      double forward = 0, input = 0, weight = 0;
      std::size_t operators = 0;
      OperatorCost cost;
    };
    std::map<std::string, Sum> classes;
    for (std::size_t i = 0; i < graph().operators().size(); ++i) {
      const Operator& op = graph().operators()[i];
      Sum& sum = classes[op.op_class];
      const double share = weight_share(OperatorId(i), size);
      sum.forward += passes.forward[i];
      sum.input += passes.backward[i] * (1 - share);
      sum.weight += passes.backward[i] * share;
      ++sum.operators;
      std::vector<SavedTensor> saved;
      std::set_union(sum.cost.saved.begin(), sum.cost.saved.end(), memory[i].saved.begin(),
                     memory[i].saved.end(), std::back_inserter(saved));
      sum.cost.saved = std::move(saved);
      sum.cost.private_bytes = std::max(sum.cost.private_bytes, memory[i].private_bytes);
      sum.cost.workspace = std::max(sum.cost.workspace, memory[i].workspace);
      // Between the halves the gradient that arrived is kept for the weights.
      if (share > 0 && share < 1 && !op.outputs.empty()) {
        sum.cost.between_halves = graph().tensor(op.outputs[0]).bytes(size);
      }
    }
    for (auto& [name, sum] : classes) {
      const double n = static_cast<double>(sum.operators);
      sum.cost.forward = round_duration(sum.forward / n);
      sum.cost.input_gradient = round_duration(sum.input / n);
      sum.cost.weight_gradient = round_duration(sum.weight / n);
      sum.cost.origin = Origin::kMeasured;
      CostRow& row = rows[name];
      row.op_class = name;
      row.kind = options_.kind;
      row.points.push_back({size, sum.cost});
    }
  }

  // After a backward pass parameters and state are out of the caches, as they are at the end of a step. Two
  // sizes give the fixed part and the rest.
  std::vector<KindOverhead::Update> measure_updates(Workers& workers, const DataSource& data,
                                                    BatchSize size) {
    std::vector<KindOverhead::Update> updates;
    for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
      progress("update with " + std::string(to_text(kind)), 0, 1);
      const Optimizer optimizer{.kind = kind, .learning_rate = 1e-9};
      const Program program(model_.exported, size, device_);
      Session session(model_.exported, model_.file.bytes(), optimizer, options_.seed, device_);
      PassProfiler profiler(program, session, data);
      std::vector<Variable>& all = profiler.holding().parameters;
      if (all.empty()) break;
      std::vector<double> whole, part;
      Bytes whole_bytes, part_bytes;
      for (const Variable& variable : all)
        whole_bytes += Bytes(static_cast<std::int64_t>(variable.value.nbytes()));
      meet(workers);
      for (std::uint64_t step = 1; step <= 9; ++step) {
        profiler.plain();
        std::vector<Variable> few;
        part_bytes = Bytes();
        if (step % 2 == 0) {
          for (std::size_t i = 0; i < all.size(); i += 4) {
            few.push_back(all[i]);
            part_bytes += Bytes(static_cast<std::int64_t>(all[i].value.nbytes()));
          }
        }
        const auto start = Clock::now();
        update(optimizer, step, step % 2 == 0 ? few : all);
        const double time = static_cast<double>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
        if (step > 2) (step % 2 == 0 ? part : whole).push_back(time);
        for (Variable& variable : all) variable.value.mutable_grad().reset();
        if (step % 2 == 0) last_part_ = part_bytes;
      }
      const std::vector<double> mean = average(workers, {median(whole), median(part)});
      const double bytes = static_cast<double>((whole_bytes - last_part_).count());
      const double per_byte = bytes > 0 ? std::max(0.0, (mean[0] - mean[1]) / bytes) : 0;
      KindOverhead::Update fitted;
      fitted.optimizer = kind;
      fitted.picoseconds_per_byte = std::llround(1000 * per_byte);
      fitted.fixed =
          round_duration(std::max(0.0, mean[0] - per_byte * static_cast<double>(whole_bytes.count())));
      updates.push_back(fitted);
    }
    return updates;
  }

  const ProfileOptions& options_;
  LoadedModel model_;
  at::Device device_;
  double best_probe_ = 0;
  Bytes last_part_;
};

}  // namespace

CostTable profile_model(const std::string& model, const ProfileOptions& options) {
  keep_freed_memory();
  return Profiler(model, options).run();
}

}  // namespace espalier
