#include "espalier/runtime/measured_trace.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/trace/json.h"

namespace espalier {
namespace {

// Two clocks run apart by less than this part of the time, 100 µs in a second: the offset was right when it
// was measured, after the step.
constexpr std::int64_t kDrift = 10'000;

// Shifts all times so that the earliest start of a step on any worker is 0, by worker 0's clock.
void shift(Workers& workers, Trace& mine, Duration start, const ReadClock& read) {
  std::vector<ClockOffset> clocks = measure_clocks(workers, read);
  const Duration offset = clocks[workers.transport->rank()].offset;
  const std::int64_t told[]{(start - offset).count(), (read() - start).count()};
  const auto all = exchange(*workers.transport, workers.first_devices, std::span<const std::int64_t>(told));
  Duration first = start - offset, longest;
  for (const auto& numbers : all) {
    first = std::min(first, Duration(numbers[0]));
    longest = std::max(longest, Duration(numbers[1]));
  }
  for (ClockOffset& clock : clocks) {
    if (clock != ClockOffset{}) clock.uncertainty += Duration(longest.count() / kDrift);
  }
  mine.notes = clock_notes(workers, clocks);
  const Duration zero = first + offset;
  for (Span& span : mine.spans) {
    span.start -= zero;
    span.end -= zero;
    if (span.posted) *span.posted -= zero;
  }
  for (MemorySample& sample : mine.memory) sample.time -= zero;
}

// What another worker saw of the same job.
Trace trace_of(const std::string& text, const std::string& worker, const Trace& job) {
  const std::string where = "the trace that " + worker + " sent";
  try {
    Trace trace = trace_from_json(parse_json(text, where), where);
    if (trace.devices != job.devices || trace.stages != job.stages || trace.tensors != job.tensors) {
      throw InputError(where + ": is of another job");
    }
    return trace;
  } catch (const InputError& error) {
    throw WorkerError(error.what());
  }
}

}  // namespace

std::optional<Trace> gather_trace(Workers& workers, const PlannedJob& job, StepOutcome outcome,
                                  Clock::time_point start, const ReadClock& read) {
  Trace mine;
  mine.origin = Trace::Origin::kMeasured;
  mine.devices = job.device_names;
  mine.capacity = job.device_memory;
  for (const StagedStage& stage : job.staged.stages) mine.stages.push_back(stage.name);
  for (const Crossing& crossing : job.staged.crossings) mine.tensors.push_back(crossing.tensor);
  mine.spans = std::move(outcome.spans);
  mine.memory = std::move(outcome.memory);
  shift(workers, mine, Duration(std::chrono::nanoseconds(start.time_since_epoch()).count()), read);

  const bool alone = workers.transport->ranks() == 1;
  const bool sends = !alone && workers.transport->rank() != 0;
  const std::vector<std::string> texts = gather(workers, sends ? trace_to_json(mine).dump() : "");
  if (workers.transport->rank() != 0) return std::nullopt;
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    const Trace other = trace_of(texts[rank], workers.all[rank].worker, mine);
    mine.spans.insert(mine.spans.end(), other.spans.begin(), other.spans.end());
    mine.memory.insert(mine.memory.end(), other.memory.begin(), other.memory.end());
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
