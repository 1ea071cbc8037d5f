#include "espalier/runtime/model_profiler.h"

#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/runtime/executor.h"
#include "espalier/runtime/profile_estimate.h"
#include "espalier/runtime/statistics.h"
#include "espalier/runtime/torch_device.h"

namespace espalier {
namespace {

constexpr double kLongPass = 15e6;  // nanoseconds
constexpr std::size_t kStages = 4;
constexpr Duration kStepWait = milliseconds(5);  // of a worker at a step's begin, about
constexpr OptimizerKind kKinds[] = {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW};

}  // namespace

struct ModelProfiler::Size {
  Size(const LoadedModel& model, BatchSize batch_size, at::Device device, Session& session,
       const DataSource& data)
      : batch(batch_size),
        program(model.exported, batch, device),
        profiler(program, session, data),
        samples(model.graph().operators().size()) {}

  BatchSize batch;
  Program program;
  PassProfiler profiler;
  std::vector<OperatorMemory> memory;
  PassSamples samples;
};

ModelProfiler::ModelProfiler(const LoadedModel& model, const ProfileOptions& options, Workers& workers)
    : model_(model), options_(options), workers_(workers) {
  if (!graph().loss()) throw InputError(graph().name() + ": has no loss, so it has no backward to measure");
  model.program_with_values(nullptr);
  const at::Device device = device_of_worker(options.device, options.world);
  data_ = synthetic_data(model.exported, options.seed);
  session_ = std::make_unique<Session>(model.exported, model.file.bytes(), Optimizer{}, options.seed, device);
  for (const BatchSize size : sizes_of(graph(), options)) {
    sizes_.push_back(std::make_unique<Size>(model, size, device, *session_, *data_));
    sizes_.back()->memory = sizes_.back()->profiler.memory();
  }
  measure_update(*sizes_.front());  // makes the optimizer's state
  updates_.clear();
  stages_ = sizes_.front()->profiler.cut_into(kStages);
  if (workers.transport->ranks() > 1) {
    link_ = std::make_unique<LinkProfiler>(workers, computation_before_messages());
  }
}

ModelProfiler::~ModelProfiler() = default;

// A pass of the model where it is short: between small actions messages count. Else some milliseconds that go
// through more memory than a core's own caches hold.
std::function<void()> ModelProfiler::computation_before_messages() {
  PassProfiler& profiler = sizes_.front()->profiler;
  const PassTimes pass = profiler.plain();
  if (mean_over_workers(pass.forward + pass.backward) < kLongPass) return [&profiler] { profiler.plain(); };
  return some_milliseconds();
}

std::vector<BatchSize> ModelProfiler::sizes_of(const Graph& graph, const ProfileOptions& options) {
  const BatchRange range = graph.batch();
  std::vector<BatchSize> sizes = options.micro_batches;
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

std::vector<BatchSize> ModelProfiler::micro_batches() const {
  std::vector<BatchSize> sizes;
  for (const auto& size : sizes_) sizes.push_back(size->batch);
  return sizes;
}

std::vector<double> ModelProfiler::average(const std::vector<double>& mine) {
  const auto all = exchange(*workers_.transport, workers_.first_devices, mine);
  std::vector<double> mean(mine.size(), 0.0);
  for (const auto& worker : all) {
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += worker[i] / static_cast<double>(all.size());
  }
  return mean;
}

double ModelProfiler::mean_over_workers(double mine) {
  return average({mine})[0];
}

void ModelProfiler::barrier() {
  mean_over_workers(0);
}

void ModelProfiler::round() {
  const auto start = Clock::now();
  for (const auto& size : sizes_) {
    barrier();
    measure_passes(*size);
    measure_update(*size);
  }
  measure_stages(*sizes_.front());
  measure_first(*sizes_.front());
  measure_alone(*sizes_.front());
  measure_gap(*sizes_.front());
  if (link_) link_->round();
  round_seconds_ = mean_over_workers(1e-9 * nanoseconds_between(start, Clock::now()));
}

// The mean of some passes, as a step is a sum of some; the median is taken over rounds, as over steps.
void ModelProfiler::measure_passes(Size& size) {
  std::vector<PassTimes> plain = size.profiler.in_flight(1 + kPassesOfRound);
  plain.erase(plain.begin());  // it filled the caches
  const PassTimes stamped = size.profiler.stamped();
  size.samples.add(plain, stamped, size.profiler.stamped_halves());
}

// What an action takes beside its operators: the model cut into stages against the model as one stage, in the
// same round, divided by the actions that the cuts add.
void ModelProfiler::measure_stages(Size& size) {
  if (stages_ < 2) return;
  barrier();
  std::vector<PassTimes> passes = size.profiler.stages_in_flight(1 + kPassesOfRound);
  passes.erase(passes.begin());
  double more = -size.samples.last_pass();
  for (const PassTimes& pass : passes) more += (pass.forward + pass.backward) / kPassesOfRound;
  cut_overheads_.push_back(more / (2.0 * static_cast<double>(stages_ - 1)));
}

void ModelProfiler::measure_first(Size& size) {
  barrier();
  firsts_.push_back(size.profiler.forward_after(kStepWait) - size.samples.whole_forward.back());
}

void ModelProfiler::measure_alone(Size& size) {
  const std::uint32_t workers = workers_.transport->ranks();
  for (std::uint32_t turn = 0; turn < workers && workers > 1; ++turn) {
    barrier();
    if (turn != workers_.transport->rank()) continue;
    const PassTimes plain = size.profiler.in_flight(2).back();
    busy_over_alone_.push_back(size.samples.last_pass() / (plain.forward + plain.backward));
  }
  barrier();
}

// One kind after the other, as the runtime does it: after a backward pass, so that parameters and state are
// out of the caches.
void ModelProfiler::measure_update(Size& size) {
  std::vector<Variable>& all = size.profiler.holding().parameters;
  if (all.empty()) return;
  if (std::none_of(all.begin(), all.end(), [](const Variable& v) { return v.value.grad().defined(); })) {
    size.profiler.plain();
  }
  const bool first = updates_done_ == 0;
  const Optimizer optimizer{.kind = first ? OptimizerKind::kAdam : kKinds[updates_done_ % std::size(kKinds)],
                            .learning_rate = 1e-9};
  const DeviceClock& clock = size.profiler.clock();
  const auto start = clock.now();
  update(optimizer, ++updates_done_, all);
  updates_[optimizer.kind].push_back(nanoseconds_between(start, clock.now()));
}

// Between two actions of a device stands its worker's own work, which is seen in a step of one stage.
void ModelProfiler::measure_gap(Size& size) {
  const PlannedJob planned = one_stage_job(graph(), BatchSize(2 * size.batch.count()), size.batch);
  const Job job = make_job({&size.program}, planned);
  InProcessTransport transport(milliseconds(60'000));
  Executor executor(job, *session_, *data_, transport, {.threads = options_.threads, .update = false});
  const StepOutcome outcome = executor.step();
  std::vector<const Span*> actions;
  for (const Span& span : outcome.spans) {
    if (span.kind == SpanKind::kAction) actions.push_back(&span);
  }
  for (std::size_t i = 1; i < actions.size(); ++i) {
    gaps_.push_back(static_cast<double>((actions[i]->start - actions[i - 1]->end).count()));
  }
}

// A round's passes together, of all workers, by size.
std::vector<std::vector<std::vector<double>>> ModelProfiler::rounds_of_workers() {
  std::vector<std::vector<std::vector<double>>> rounds;
  for (const auto& size : sizes_) {
    const PassSamples& samples = size->samples;
    std::vector<double> mine(samples.whole_forward.size());
    for (std::size_t round = 0; round < mine.size(); ++round) {
      mine[round] = samples.whole_forward[round] + samples.whole_backward[round];
    }
    rounds.push_back(exchange(*workers_.transport, workers_.first_devices, mine));
  }
  return rounds;
}

KindOverhead ModelProfiler::overhead(double factor) {
  KindOverhead kind{
      .kind = options_.kind, .per_action = {}, .neighbour_per_mille = 0, .scatter = {}, .updates = {}};
  // Differences are averaged before they are cut off at 0: one worker's noise may be below it.
  const auto per_mille = [](double share) {
    return static_cast<std::int32_t>(std::min(1000L, std::lround(1000 * share)));
  };
  std::vector<const PassSamples*> samples;
  for (const auto& size : sizes_) samples.push_back(&size->samples);
  const double of_actions = mean_over_workers(spread_of_actions(samples));
  kind.per_action = round_duration(std::max(0.0, mean_over_workers(mean_of_differences(cut_overheads_))) +
                                   mean_over_workers(mean_of_rounds(gaps_)));
  kind.scatter.first = round_duration(std::max(0.0, mean_over_workers(mean_of_differences(firsts_))));
  kind.neighbour_per_mille = static_cast<std::int32_t>(std::lround(1000 * (factor - 1)));
  kind.scatter.spread_per_mille = per_mille(of_actions);
  kind.scatter.device_per_mille = per_mille(spread_of_devices(rounds_of_workers(), of_actions));
  double bytes = 0;
  for (const Variable& variable : sizes_.front()->profiler.holding().parameters) {
    bytes += static_cast<double>(variable.value.nbytes());
  }
  if (bytes == 0) return kind;
  for (const OptimizerKind optimizer : kKinds) {
    while (updates_[optimizer].empty()) measure_update(*sizes_.front());
    KindOverhead::Update fitted;
    fitted.optimizer = optimizer;
    fitted.picoseconds_per_byte =
        std::llround(1000 * mean_over_workers(mean_of_rounds(updates_[optimizer])) / bytes);
    kind.updates.push_back(fitted);
  }
  return kind;
}

CostTable ModelProfiler::table() {
  const double alone = busy_over_alone_.empty() ? 1 : median(busy_over_alone_);
  const double factor = std::max(1.0, mean_over_workers(alone));
  CostTableParts parts;
  parts.machine = machine_description();
  parts.threads = options_.threads;
  parts.torch_version = TORCH_VERSION;
  std::map<std::string, CostRow> rows;
  for (const auto& size : sizes_) {
    // Without the neighbour, whose factor stage_model puts back where there is one.
    std::vector<double> times = average(operator_times(size->samples));
    for (double& time : times) time /= factor;
    add_points(rows, graph(), options_.kind, size->batch, times, size->memory);
  }
  for (auto& [name, row] : rows) parts.rows.push_back(std::move(row));
  parts.overheads.push_back(overhead(factor));
  if (link_) parts.link = link_->link(LinkProfiler::Endpoints::kCallsAndThreads);
  return CostTable(std::move(parts));
}

std::optional<MeasuredLink> ModelProfiler::link_of_calls() {
  if (!link_) return std::nullopt;
  return link_->link(LinkProfiler::Endpoints::kCalls);
}

}  // namespace espalier
