#include "espalier/trace/trace.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "espalier/base/check.h"

namespace espalier {
namespace {

// How often an action of a device was seen before tells repeated ones apart.
using ActionKey = std::tuple<DeviceId, Action, int>;

std::vector<std::pair<ActionKey, const Span*>> timed_actions(const Trace& trace) {
  std::vector<std::pair<ActionKey, const Span*>> result;
  std::map<std::pair<DeviceId, Action>, int> seen;
  for (const Span& span : trace.spans) {
    if (span.kind != SpanKind::kAction && span.kind != SpanKind::kCollective) continue;
    result.push_back({{span.device, span.action, seen[{span.device, span.action}]++}, &span});
  }
  return result;
}

std::string describe(const Trace& trace, const Span& span) {
  const std::size_t d = span.device.index();
  const std::string device = d < trace.devices.size() ? trace.devices[d] : "#" + std::to_string(d);
  return device + ":" + span_name(trace, span);
}

}  // namespace

std::string_view to_text(MemoryCategory category) {
  constexpr std::string_view kNames[kMemoryCategories] = {"parameters", "gradients", "optimizer", "buffers",
                                                          "activations"};
  return kNames[static_cast<std::size_t>(category)];
}

Bytes MemoryByCategory::total() const {
  Bytes sum;
  for (const Bytes b : bytes) sum += b;
  return sum;
}

std::string span_name(const Trace& trace, const Span& span) {
  std::string text(1, letter(span.action.kind));
  if (span.action.kind == ActionKind::kTieSum) return text + std::to_string(span.action.target());
  if (!once_per_step(span.action.kind) || span.action.micro_batch != 0)
    text += std::to_string(span.action.micro_batch);
  const std::size_t stage = span.action.target();
  return text + " " + (stage < trace.stages.size() ? trace.stages[stage] : "#" + std::to_string(stage));
}

std::vector<MemoryByCategory> peak_memory(const Trace& trace) {
  std::vector<MemoryByCategory> peak(trace.devices.size());
  for (const MemorySample& sample : trace.memory) {
    MemoryByCategory& most = peak.at(sample.device.index());
    if (sample.held.total() > most.total()) most = sample.held;
  }
  return peak;
}

void require_sums_fit(const Trace& trace) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  std::int64_t left = kMost;
  for (const Span& span : trace.spans) {
    const std::int64_t length = std::max<std::int64_t>(0, (span.end - span.start).count());
    if (length > left) throw InputError("the spans take more than 2^62 ns together");
    left -= length;
  }
  for (const MemorySample& sample : trace.memory) {
    left = kMost;
    for (const Bytes bytes : sample.held.bytes) {
      if (bytes.count() > left) throw InputError("a memory sample holds more than 2^62 bytes");
      left -= bytes.count();
    }
  }
}

std::vector<Duration> busy_time(const Trace& trace) {
  std::vector<Duration> busy(trace.devices.size());
  for (const Span& span : trace.spans) {
    if (span.stream == Stream::kCompute) busy.at(span.device.index()) += span.end - span.start;
  }
  return busy;
}

double bubble_ratio(const Trace& trace) {
  std::vector<bool> works(trace.devices.size(), false);
  for (const Span& span : trace.spans) {
    if (span.kind == SpanKind::kAction) works.at(span.device.index()) = true;
  }
  Duration busy;
  const std::vector<Duration> each = busy_time(trace);
  for (std::size_t d = 0; d < each.size(); ++d) {
    if (works[d]) busy += each[d];
  }
  const auto devices = std::count(works.begin(), works.end(), true);
  if (devices == 0 || trace.iteration == Duration()) return 0;
  return 1 - static_cast<double>(busy.count()) /
                 (static_cast<double>(devices) * static_cast<double>(trace.iteration.count()));
}

TraceDifference diff_traces(const Trace& a, const Trace& b) {
  TraceDifference difference;
  difference.iteration_a = a.iteration;
  difference.iteration_b = b.iteration;
  std::map<ActionKey, const Span*> in_b;
  for (const auto& [key, span] : timed_actions(b)) in_b.emplace(key, span);
  for (const auto& [key, span] : timed_actions(a)) {
    const auto other = in_b.find(key);
    if (other == in_b.end()) {
      difference.only_in_a.push_back(describe(a, *span));
      continue;
    }
    difference.actions.push_back(
        {span->device, span->action, span->start, span->end, other->second->start, other->second->end});
    in_b.erase(other);
  }
  for (const auto& [key, span] : timed_actions(b)) {
    if (in_b.count(key)) difference.only_in_b.push_back(describe(b, *span));
  }
  return difference;
}

}  // namespace espalier
