#include "espalier/runtime/measured_trace.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "espalier/base/check.h"

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

}  // namespace espalier
