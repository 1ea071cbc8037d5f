#include "espalier/report/device_selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "espalier/base/check.h"

namespace espalier {
namespace {

// Of each device: the stages that it computes for, ascending. Devices with equal ones do the same work.
std::vector<std::set<std::size_t>> stages_of_devices(const Trace& trace) {
  std::vector<std::set<std::size_t>> result(trace.devices.size());
  for (const Span& span : trace.spans) {
    if (span.stream != Stream::kCompute || span.kind != SpanKind::kAction) continue;
    if (!once_per_step(span.action.kind)) result[span.device.index()].insert(span.action.target());
  }
  return result;
}

// A device without memory that holds something is as full as can be.
double share_held(Bytes held, Bytes capacity) {
  if (held.count() == 0) return 0;
  return static_cast<double>(held.count()) / static_cast<double>(std::max<std::int64_t>(capacity.count(), 1));
}

}  // namespace

DeviceSelection select_devices(const Trace& trace, std::span<const DeviceId> candidates,
                               std::span<const double> figure, std::size_t most) {
  ESP_CHECK(figure.size() == trace.devices.size(), figure.size(), trace.devices.size());
  DeviceSelection result;
  if (candidates.size() <= most) {
    result.shown.assign(candidates.begin(), candidates.end());
    return result;
  }
  const std::vector<std::set<std::size_t>> stages = stages_of_devices(trace);
  const auto larger = [&figure](DeviceId a, DeviceId b) {
    return figure[a.index()] != figure[b.index()] ? figure[a.index()] > figure[b.index()] : a < b;
  };
  for (std::size_t begin = 0; begin < candidates.size();) {
    std::size_t end = begin + 1;
    while (end < candidates.size() && stages[candidates[end].index()] == stages[candidates[begin].index()])
      ++end;
    const std::span<const DeviceId> run = candidates.subspan(begin, end - begin);
    result.shown.push_back(*std::min_element(run.begin(), run.end(), larger));
    begin = end;
  }
  if (result.shown.size() > most) {
    std::sort(result.shown.begin(), result.shown.end(), larger);
    result.shown.resize(most);
    std::sort(result.shown.begin(), result.shown.end());
  }
  std::set_difference(candidates.begin(), candidates.end(), result.shown.begin(), result.shown.end(),
                      std::back_inserter(result.hidden));
  return result;
}

DeviceSelection fullest_devices(const Trace& trace) {
  const std::vector<MemoryByCategory> peaks = peak_memory(trace);
  std::vector<DeviceId> all;
  std::vector<double> figure;
  for (std::size_t d = 0; d < trace.devices.size(); ++d) {
    all.push_back(DeviceId(d));
    figure.push_back(share_held(peaks[d].total(), trace.capacity[d]));
  }
  return select_devices(trace, all, figure);
}

std::string hidden_memory_text(const Trace& trace, std::span<const DeviceId> hidden) {
  if (hidden.empty()) return {};
  const std::vector<MemoryByCategory> peaks = peak_memory(trace);
  Bytes least = peaks[hidden.front().index()].total(), greatest = least;
  double share = 0;
  for (const DeviceId device : hidden) {
    const Bytes peak = peaks[device.index()].total();
    least = std::min(least, peak);
    greatest = std::max(greatest, peak);
    share = std::max(share, share_held(peak, trace.capacity[device.index()]));
  }
  const std::string from = to_text(least), to = to_text(greatest);
  const std::string most = share < 0.01 ? "less than 1 %" : fmt::format("at most {:.0f} %", 100 * share);
  const bool one = hidden.size() == 1;
  return fmt::format("{} more device{} {} at {} peak, {} of {} memory\n", hidden.size(),
                     one ? " holds" : "s hold", from == to ? from : from + " to " + to, one ? "its" : "their",
                     most, one ? "its" : "their");
}

}  // namespace espalier
