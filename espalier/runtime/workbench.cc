#include "espalier/runtime/workbench.h"

#include <ATen/detail/CUDAHooksInterface.h>

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <tuple>
#include <type_traits>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/runtime/checkpoint.h"
#include "espalier/runtime/transport_gloo.h"

namespace espalier {

namespace {

template <class T>
std::string as_bytes(const std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <class T>
void add_bytes(std::vector<T>& values, const std::string& bytes) {
  ESP_CHECK(bytes.size() % sizeof(T) == 0, bytes.size());
  const std::size_t before = values.size();
  values.resize(before + bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(static_cast<void*>(values.data() + before), bytes.data(), bytes.size());
}

}  // namespace

LoadedModel::LoadedModel(const std::string& path)
    : file(path), exported(read_exported_program(file.bytes(), path)) {}

at::Device parse_device(const std::string& text) {
  if (text == "cpu") return at::kCPU;
  const bool gpu = at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0;
  if (text.empty()) return gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  if (text.rfind("cuda", 0) == 0) {
    if (!gpu) throw InputError("--device " + text + ": there is no GPU that this libtorch can use; use cpu");
    try {
      const at::Device device(text);
      return device.has_index() ? device : at::Device(at::kCUDA, 0);
    } catch (const c10::Error&) {
      // below
    }
  }
  throw InputError("--device " + text + ": expected cpu, cuda or cuda:1");
}

void keep_freed_memory() {
  constexpr int kGibibyte = 1 << 30;
  mallopt(M_TRIM_THRESHOLD, kGibibyte);
  mallopt(M_MMAP_THRESHOLD, kGibibyte);
  mallopt(M_TOP_PAD, 64 << 20);
}

PlannedJob one_stage_job(const Graph& graph, BatchSize batch, BatchSize micro_batch) {
  if (micro_batch.count() <= 0 || batch.count() <= 0 || batch.count() % micro_batch.count() != 0) {
    throw InputError("the micro-batch " + std::to_string(micro_batch.count()) +
                     " does not divide the batch " + std::to_string(batch.count()));
  }
  const auto count = static_cast<std::uint32_t>(batch.count() / micro_batch.count());
  PlannedJob job;
  Stage stage;
  stage.name = "all";
  for (std::size_t i = 0; i < graph.operators().size(); ++i) stage.operators.push_back(OperatorId(i));
  std::vector<std::uint32_t> share(count);
  std::iota(share.begin(), share.end(), 0U);
  stage.replicas = {{{DeviceId(0)}, share}};
  stage.micro_batch = micro_batch;
  job.plan.batch = batch;
  job.plan.stages = {stage};
  StagedStage staged;
  staged.name = "all";
  staged.micro_batches = count;
  staged.replicas = {{{DeviceId(0)}, share, {}}};
  staged.memory.gradients = Bytes(1);  // there is an update
  job.staged.stages = {staged};
  job.schedule = make_schedule(job.staged, 1);
  job.device_names = {"reference"};
  job.device_memory = {Bytes()};
  return job;
}

Workers join_workers(const World& world, const PlannedJob& job, Duration timeout) {
  const Schedule& schedule = job.schedule;
  std::vector<DeviceId> used;
  for (std::size_t d = 0; d < schedule.devices.size(); ++d) {
    if (!schedule.devices[d].empty()) used.push_back(DeviceId(d));
  }
  if (used.empty()) throw InputError("the plan gives no device anything to do");
  if (world.size > used.size()) {
    throw InputError("there are " + std::to_string(world.size) + " workers, but the plan uses " +
                     std::to_string(used.size()) + " devices: start at most one worker for each");
  }
  const std::vector<std::uint32_t> dealt = deal_devices(used.size(), world.size);
  std::vector<std::uint32_t> rank_of(schedule.devices.size(), 0);
  Workers workers;
  workers.first_devices.resize(world.size);
  for (std::size_t i = used.size(); i-- > 0;) {
    rank_of[used[i].index()] = dealt[i];
    workers.first_devices[dealt[i]] = used[i];
  }
  workers.transport = world.size == 1 ? std::make_unique<InProcessTransport>(timeout)
                                      : make_gloo_transport(world, rank_of, timeout);
  if (world.size > 1) {
    WatchdogOptions watch{.world = world, .workers = {}, .abort = {}};
    for (std::uint32_t rank = 0; rank < world.size; ++rank) {
      std::string names;
      for (std::size_t i = 0; i < used.size(); ++i) {
        if (dealt[i] == rank) names += (names.empty() ? "" : ", ") + job.device_names[used[i].index()];
      }
      watch.workers.push_back("worker " + std::to_string(rank) + " (" + names + ")");
    }
    watch.abort = [transport = workers.transport.get()](const std::string& reason) {
      transport->abort(reason);
    };
    workers.watchdog = std::make_unique<Watchdog>(std::move(watch));
  }
  return workers;
}

std::unique_ptr<DataSource> make_data(const std::string& path, const ExportedProgram& exported,
                                      BatchSize batch, std::uint64_t seed) {
  return path.empty() ? synthetic_data(exported, seed) : open_data(path, exported, batch, seed);
}

std::vector<std::string> gather(Workers& workers, const std::string& mine) {
  Transport& transport = *workers.transport;
  const double size = static_cast<double>(mine.size());
  const auto sizes = exchange(transport, workers.first_devices, std::span(&size, 1));
  std::vector<std::string> all(transport.ranks());
  const auto link = [&](std::uint32_t rank) {
    return Link{workers.first_devices[rank], workers.first_devices[0], Lane::kControl};
  };
  if (transport.rank() != 0) {
    if (mine.empty()) return {};
    at::Tensor bytes = at::empty({static_cast<std::int64_t>(mine.size())}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), mine.data(), mine.size());
    transport.post_send(link(transport.rank()), bytes)->wait();
    return {};
  }
  all[0] = mine;
  for (std::uint32_t r = 1; r < transport.ranks(); ++r) {
    const auto length = static_cast<std::int64_t>(sizes[r][0]);
    if (length == 0) continue;
    const at::Tensor bytes = transport.post_receive(link(r), at::kByte, length)->wait();
    all[r].assign(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  }
  return all;
}

at::Tensor fetch(Workers& workers, DeviceId owner, const at::Tensor& mine, at::ScalarType type,
                 const std::vector<std::int64_t>& sizes) {
  Transport& transport = *workers.transport;
  const std::uint32_t rank = transport.rank_of(owner);
  if (rank == 0) return mine;
  const Link link{workers.first_devices[rank], workers.first_devices[0], Lane::kControl};
  const std::int64_t elements = c10::multiply_integers(sizes);
  if (elements == 0) return at::empty(sizes, type);
  if (transport.rank() == rank) {
    transport.post_send(link, mine.cpu().contiguous().view({-1}))->wait();
  } else if (transport.rank() == 0) {
    return transport.post_receive(link, type, elements)->wait().view(sizes);
  }
  return {};
}

std::map<std::string, at::Tensor> gather_state(Workers& workers, const Graph& graph,
                                               const Executor& executor) {
  std::map<std::string, at::Tensor> state;
  for (std::size_t p = 0; p < graph.parameters().size(); ++p) {
    const Parameter& parameter = graph.parameters()[p];
    if (!parameter.persistent) continue;
    const at::Tensor mine = executor.owned(ParameterId(p));
    const auto owner = executor.owner(ParameterId(p));
    const at::Tensor value =
        owner ? fetch(workers, *owner, mine, torch_type(parameter.dtype), parameter.sizes) : mine;
    if (workers.transport->rank() == 0) state[parameter.names[0]] = value;
  }
  return state;
}

void save_state(const std::string& path, Workers& workers, const Graph& graph, const Executor& executor) {
  const auto state = gather_state(workers, graph, executor);
  if (workers.transport->rank() == 0) {
    std::map<std::string, std::string> metadata{{"format", "pt"}};
    for (const Parameter& parameter : graph.parameters()) {
      for (std::size_t i = 1; parameter.persistent && i < parameter.names.size(); ++i) {
        metadata[parameter.names[i]] = parameter.names[0];
      }
    }
    write_tensors(path, state, metadata);
  }
}

std::optional<Trace> gather_trace(Workers& workers, const PlannedJob& job, StepOutcome outcome,
                                  Clock::time_point start) {
  Trace mine;
  mine.origin = Trace::Origin::kMeasured;
  mine.devices = job.device_names;
  mine.capacity = job.device_memory;
  for (const StagedStage& stage : job.staged.stages) mine.stages.push_back(stage.name);
  for (const Crossing& crossing : job.staged.crossings) mine.tensors.push_back(crossing.tensor);

  // All clocks are one where all workers share a host; the earliest barrier is time 0.
  const double my_start = static_cast<double>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(start.time_since_epoch()).count());
  const auto starts = exchange(*workers.transport, workers.first_devices, std::span(&my_start, 1));
  double first = my_start;
  for (const auto& other : starts) first = std::min(first, other[0]);
  const Duration zero(static_cast<std::int64_t>(first));
  for (Span& span : outcome.spans) {
    span.start -= zero;
    span.end -= zero;
    if (span.posted) *span.posted -= zero;
  }
  for (MemorySample& sample : outcome.memory) sample.time -= zero;
  mine.spans = std::move(outcome.spans);
  mine.memory = std::move(outcome.memory);

  // Workers run the same program, so spans and samples travel as their bytes.
  const std::vector<std::string> spans = gather(workers, as_bytes(mine.spans));
  const std::vector<std::string> samples = gather(workers, as_bytes(mine.memory));
  if (workers.transport->rank() != 0) return std::nullopt;
  for (std::size_t r = 1; r < spans.size(); ++r) {
    add_bytes(mine.spans, spans[r]);
    add_bytes(mine.memory, samples[r]);
  }
  std::stable_sort(mine.spans.begin(), mine.spans.end(), [](const Span& a, const Span& b) {
    return std::tie(a.device, a.stream, a.start, a.end) < std::tie(b.device, b.stream, b.start, b.end);
  });
  std::stable_sort(mine.memory.begin(), mine.memory.end(), [](const MemorySample& a, const MemorySample& b) {
    return std::tie(a.device, a.time) < std::tie(b.device, b.time);
  });
  for (const Span& span : mine.spans) mine.iteration = std::max(mine.iteration, span.end);
  return mine;
}

std::vector<std::vector<double>> meet(Workers& workers, const std::string& where,
                                      std::span<const double> mine) {
  try {
    return exchange(*workers.transport, workers.first_devices, mine);
  } catch (const WorkerError& error) {
    throw WorkerError("it waits for the other workers at " + where + ": " + error.what());
  }
}

TimedStep timed_step(Workers& workers, Executor& executor, std::uint64_t step, BatchSize batch,
                     std::uint32_t micro_batches, const std::atomic<bool>* stop) {
  const double nothing = 0;
  meet(workers, "the start of step " + std::to_string(step + 1), std::span(&nothing, 1));
  TimedStep timed;
  timed.start = Clock::now();
  timed.outcome = executor.step();
  // Losses are summed in micro-batch order, whoever computed them, as one process sums them.
  std::vector<double> mine(std::size_t{micro_batches} * 2 + 2, 0.0);
  for (const auto& [j, loss] : timed.outcome.losses) mine[2 * j] = loss, mine[2 * j + 1] = 1;
  mine[mine.size() - 2] = timed.outcome.gradient_norm_squared;
  mine.back() = stop != nullptr && stop->load() ? 1 : 0;
  const auto all = meet(workers, "the end of step " + std::to_string(step + 1), mine);
  const auto end = Clock::now();
  double loss = 0, norm = 0;
  for (std::uint32_t j = 0; j < micro_batches; ++j) {
    for (const auto& worker : all) {
      if (worker[2 * j + 1] == 0) continue;
      loss += worker[2 * j];
      break;
    }
  }
  for (const auto& worker : all) {
    norm += worker[worker.size() - 2];
    timed.stop = timed.stop || worker.back() != 0;
  }
  timed.report.step = step;
  timed.report.loss = loss / micro_batches;
  timed.report.gradient_norm = std::sqrt(norm);
  timed.report.time =
      Duration(std::chrono::duration_cast<std::chrono::nanoseconds>(end - timed.start).count());
  timed.report.samples = batch;
  return timed;
}

}  // namespace espalier
