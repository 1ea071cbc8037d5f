#include "espalier/runtime/model_profiler.h"

#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/cost/analytic.h"
#include "espalier/runtime/executor.h"
#include "espalier/runtime/statistics.h"
#include "espalier/runtime/torch_device.h"

namespace espalier {
namespace {

constexpr int kPasses = 3;
constexpr double kTrim = 0.05;
constexpr double kRoughTrim = 0.25;
constexpr double kLongPass = 15e6;  // nanoseconds
constexpr std::size_t kStages = 4;
constexpr Duration kStepWait = milliseconds(5);  // of a worker at a step's begin, about
constexpr OptimizerKind kKinds[] = {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW};

}  // namespace

// What is known of one micro-batch size: by operator, then sample; nanoseconds.
struct ModelProfiler::Size {
  Size(const LoadedModel& model, BatchSize batch_size, at::Device device, Session& session,
       const DataSource& data)
      : batch(batch_size),
        program(model.exported, batch, device),
        profiler(program, session, data),
        forward(model.graph().operators().size()),
        backward(model.graph().operators().size()) {}

  BatchSize batch;
  Program program;
  PassProfiler profiler;
  std::vector<OperatorMemory> memory;
  std::vector<std::vector<double>> forward, backward;
  std::vector<double> whole_forward, whole_backward;    // without timestamps: means of a round
  std::vector<double> single_forward, single_backward;  // each pass of them
};

ModelProfiler::ModelProfiler(const LoadedModel& model, const ProfileOptions& options, Workers& workers)
    : model_(model), options_(options), workers_(workers) {
  if (!graph().loss()) throw InputError(graph().name() + ": has no loss, so it has no backward to measure");
  const at::Device device = parse_device(options.device);
  data_ = synthetic_data(model.exported, options.seed);
  session_ = std::make_unique<Session>(model.exported, model.file.bytes(), Optimizer{}, options.seed, device);
  for (const BatchSize size : sizes_of(graph(), options)) {
    sizes_.push_back(std::make_unique<Size>(model, size, device, *session_, *data_));
    sizes_.back()->memory = sizes_.back()->profiler.memory();
  }
  take_update(*sizes_.front());  // makes the optimizer's state
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
  if (average({pass.forward + pass.backward})[0] < kLongPass) return [&profiler] { profiler.plain(); };
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

// The mean over workers, everywhere the same.
std::vector<double> ModelProfiler::average(const std::vector<double>& mine) {
  const auto all = exchange(*workers_.transport, workers_.first_devices, mine);
  std::vector<double> mean(mine.size(), 0.0);
  for (const auto& worker : all) {
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += worker[i] / static_cast<double>(all.size());
  }
  return mean;
}

void ModelProfiler::meet() {
  average({0});
}

void ModelProfiler::round() {
  const auto start = Clock::now();
  for (const auto& size : sizes_) {
    meet();
    take_passes(*size);
    take_update(*size);
  }
  take_stages(*sizes_.front());
  take_first(*sizes_.front());
  take_alone(*sizes_.front());
  take_gap(*sizes_.front());
  if (link_) link_->round();
  round_seconds_ = average({1e-9 * since(start)})[0];
}

// The mean of some passes, as a step is a sum of some; the median is taken over rounds, as over steps.
void ModelProfiler::take_passes(Size& size) {
  std::vector<PassTimes> plain = size.profiler.in_flight(1 + kPasses);
  plain.erase(plain.begin());  // it filled the caches
  const PassTimes stamped = size.profiler.stamped();
  size.whole_forward.push_back(0);
  size.whole_backward.push_back(0);
  for (const PassTimes& pass : plain) {
    size.whole_forward.back() += pass.forward / kPasses;
    size.whole_backward.back() += pass.backward / kPasses;
    size.single_forward.push_back(pass.forward);
    size.single_backward.push_back(pass.backward);
  }
  for (std::size_t op = 0; op < stamped.forward_of.size(); ++op) {
    size.forward[op].push_back(stamped.forward_of[op]);
    size.backward[op].push_back(stamped.backward_of[op]);
  }
}

// What an action takes beside its operators: the model cut into stages against the model as one stage, in the
// same round, divided by the actions that the cuts add.
void ModelProfiler::take_stages(Size& size) {
  if (stages_ < 2) return;
  meet();
  std::vector<PassTimes> passes = size.profiler.stages_in_flight(1 + kPasses);
  passes.erase(passes.begin());
  double more = -size.whole_forward.back() - size.whole_backward.back();
  for (const PassTimes& pass : passes) more += (pass.forward + pass.backward) / kPasses;
  cut_overheads_.push_back(more / (2.0 * static_cast<double>(stages_ - 1)));
}

void ModelProfiler::take_first(Size& size) {
  meet();
  firsts_.push_back(size.profiler.forward_after(kStepWait) - size.whole_forward.back());
}

void ModelProfiler::take_alone(Size& size) {
  const std::uint32_t workers = workers_.transport->ranks();
  for (std::uint32_t turn = 0; turn < workers && workers > 1; ++turn) {
    meet();
    if (turn != workers_.transport->rank()) continue;
    const PassTimes plain = size.profiler.in_flight(2).back();
    const double busy = size.whole_forward.back() + size.whole_backward.back();
    busy_over_alone_.push_back(busy / (plain.forward + plain.backward));
  }
  meet();
}

// One kind after the other, as the runtime does it: after a backward pass, so that parameters and state are
// out of the caches.
void ModelProfiler::take_update(Size& size) {
  std::vector<Variable>& all = size.profiler.holding().parameters;
  if (all.empty()) return;
  if (std::none_of(all.begin(), all.end(), [](const Variable& v) { return v.value.grad().defined(); })) {
    size.profiler.plain();
  }
  const bool first = updates_done_ == 0;
  const Optimizer optimizer{.kind = first ? OptimizerKind::kAdam : kKinds[updates_done_ % std::size(kKinds)],
                            .learning_rate = 1e-9};
  const auto start = Clock::now();
  update(optimizer, ++updates_done_, all);
  updates_[optimizer.kind].push_back(since(start));
}

// Between two actions of a device stands its worker's own work, which is seen in a step of one stage.
void ModelProfiler::take_gap(Size& size) {
  const PlannedJob planned = one_stage_job(graph(), BatchSize(2 * size.batch.count()), size.batch);
  const Job job = make_job(size.program, planned);
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

// The part of backward that only the weights need: measured together, divided as the arithmetic is.
double ModelProfiler::weight_share(OperatorId op, BatchSize size) const {
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

// Medians by operator, scaled so that they sum up to the mean pass without timestamps; without the neighbour,
// whose factor stage_model puts back where there is one.
void ModelProfiler::add_points(std::map<std::string, CostRow>& rows, Size& size, double factor) {
  const std::size_t n = graph().operators().size();
  std::vector<double> times(2 * n);
  const auto scale_into = [&](std::size_t at, const auto& samples, const std::vector<double>& whole) {
    double sum = 0;
    for (std::size_t op = 0; op < n; ++op) sum += times[at + op] = median(samples[op]);
    for (std::size_t op = 0; op < n && sum > 0; ++op) times[at + op] *= trimmed_mean(whole, kTrim) / sum;
  };
  scale_into(0, size.forward, size.whole_forward);
  scale_into(n, size.backward, size.whole_backward);
  times = average(times);

  struct Sum {
    double forward = 0, input = 0, weight = 0;
    std::size_t operators = 0;
    OperatorCost cost;
  };
  std::map<std::string, Sum> classes;
  for (std::size_t i = 0; i < n; ++i) {
    const Operator& op = graph().operators()[i];
    const OperatorMemory& memory = size.memory[i];
    Sum& sum = classes[op.op_class];
    const double share = weight_share(OperatorId(i), size.batch);
    sum.forward += times[i] / factor;
    sum.input += times[n + i] / factor * (1 - share);
    sum.weight += times[n + i] / factor * share;
    ++sum.operators;
    std::vector<SavedTensor> saved;
    std::set_union(sum.cost.saved.begin(), sum.cost.saved.end(), memory.saved.begin(), memory.saved.end(),
                   std::back_inserter(saved));
    sum.cost.saved = std::move(saved);
    sum.cost.private_bytes = std::max(sum.cost.private_bytes, memory.private_bytes);
    sum.cost.workspace = std::max(sum.cost.workspace, memory.workspace);
    // Between the halves the gradient that arrived is kept for the weights.
    if (share > 0 && share < 1 && !op.outputs.empty()) {
      sum.cost.between_halves = graph().tensor(op.outputs[0]).bytes(size.batch);
    }
  }
  for (auto& [name, sum] : classes) {
    const double count = static_cast<double>(sum.operators);
    sum.cost.forward = round_duration(sum.forward / count);
    sum.cost.input_gradient = round_duration(sum.input / count);
    sum.cost.weight_gradient = round_duration(sum.weight / count);
    sum.cost.origin = Origin::kMeasured;
    CostRow& row = rows[name];
    row.op_class = name;
    row.kind = options_.kind;
    row.points.push_back({size.batch, sum.cost});
  }
}

// An action is a part of a pass: forward and backward apart are nearer to it. Of this worker.
double ModelProfiler::spread() const {
  double sum = 0;
  for (const auto& size : sizes_) {
    sum += deviation_within(size->single_forward, kPasses) + deviation_within(size->single_backward, kPasses);
  }
  return sum / static_cast<double>(2 * sizes_.size());
}

// A round's passes are together as long as a short step. Less what their own spread, `single`, explains.
double ModelProfiler::device_spread(double single) {
  if (workers_.transport->ranks() < 2) return 0;
  double variance = 0;
  for (const auto& size : sizes_) {
    std::vector<double> mine(size->whole_forward.size());
    for (std::size_t round = 0; round < mine.size(); ++round) {
      mine[round] = size->whole_forward[round] + size->whole_backward[round];
    }
    const auto all = exchange(*workers_.transport, workers_.first_devices, mine);
    variance += variance_between(all, kTrim) / static_cast<double>(sizes_.size());
  }
  const double explained = single * single / (2 * kPasses);  // a pass is two actions
  return std::sqrt(std::max(0.0, variance - explained));
}

KindOverhead ModelProfiler::overhead(double factor) {
  KindOverhead kind{
      .kind = options_.kind, .per_action = {}, .neighbour_per_mille = 0, .scatter = {}, .updates = {}};
  // Small differences between long times.
  const auto difference = [&](const std::vector<double>& samples) {
    return samples.empty() ? 0 : std::max(0.0, average({trimmed_mean(samples, kRoughTrim)})[0]);
  };
  kind.per_action = round_duration(difference(cut_overheads_) + average({trimmed_mean(gaps_, kTrim)})[0]);
  kind.scatter.first = round_duration(difference(firsts_));
  kind.neighbour_per_mille = static_cast<std::int32_t>(std::lround(1000 * (factor - 1)));
  const auto per_mille = [](double share) {
    return static_cast<std::int32_t>(std::min(1000L, std::lround(1000 * share)));
  };
  const double single = average({spread()})[0];
  kind.scatter.spread_per_mille = per_mille(single);
  kind.scatter.device_per_mille = per_mille(device_spread(single));
  double bytes = 0;
  for (const Variable& variable : sizes_.front()->profiler.holding().parameters) {
    bytes += static_cast<double>(variable.value.nbytes());
  }
  if (bytes == 0) return kind;
  for (const OptimizerKind optimizer : kKinds) {
    while (updates_[optimizer].empty()) take_update(*sizes_.front());
    KindOverhead::Update fitted;
    fitted.optimizer = optimizer;
    fitted.picoseconds_per_byte =
        std::llround(1000 * average({trimmed_mean(updates_[optimizer], kTrim)})[0] / bytes);
    kind.updates.push_back(fitted);
  }
  return kind;
}

CostTable ModelProfiler::table() {
  const double alone = busy_over_alone_.empty() ? 1 : median(busy_over_alone_);
  const double factor = std::max(1.0, average({alone})[0]);
  CostTableParts parts;
  parts.machine = machine_description();
  parts.threads = options_.threads;
  parts.torch_version = TORCH_VERSION;
  std::map<std::string, CostRow> rows;
  for (const auto& size : sizes_) add_points(rows, *size, factor);
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
