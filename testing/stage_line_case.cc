#include "testing/stage_line_case.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "espalier/schedule/order_file.h"

namespace espalier::testing {

StagedLine staged_line(const StageLineCase& of) {
  ClusterParts parts;
  DeviceKind kind;
  kind.name = "worker";
  kind.memory = of.memory;
  kind.flops_f32 = 1e12;
  kind.flops_f16 = 1e12;
  kind.memory_bandwidth = 100'000'000'000;
  parts.kinds = {kind};
  Group network;
  network.name = "network";
  network.latency = of.hop;
  network.contention = false;
  parts.groups = {network};
  StageLine line{.layout = of.layout, .chunks = of.chunks, .micro_batches = of.micro_batches};
  for (std::size_t place = 0; place < of.places; ++place) {
    parts.devices.push_back({"dev" + std::to_string(place), KindId(0), GroupId(0), of.memory});
    line.devices.push_back(DeviceId(place));
  }
  StagedModel model;
  model.stages.resize(of.places * of.chunks);
  for (std::size_t place = 0; place < of.places; ++place) {
    for (std::size_t chunk = 0; chunk < of.chunks; ++chunk) {
      const std::size_t s = line.stage(place, chunk).index();
      const HalfTimes& times = of.times.size() == 1 ? of.times.front() : of.times.at(s);
      StagedReplica replica;
      replica.devices = {line.devices[place]};
      replica.micro_batches.resize(of.micro_batches);
      std::iota(replica.micro_batches.begin(), replica.micro_batches.end(), 0U);
      replica.times.forward = times.forward;
      replica.times.input_gradient = times.input;
      replica.times.weight_gradient = times.weight;
      StagedStage& stage = model.stages[s];
      stage.name = "s" + std::to_string(s);
      if (s > 0) stage.after = {StageId(s - 1)};
      stage.micro_batches = of.micro_batches;
      stage.replicas = {std::move(replica)};
      stage.memory.saved = of.saved;
      stage.memory.saved_for_input = of.saved_for_input;
    }
  }
  for (std::size_t s = 0; s + 1 < model.stages.size(); ++s) {
    Crossing crossing;
    crossing.tensor = "t" + std::to_string(s);
    crossing.from = StageId(s);
    crossing.readers = {{.stage = StageId(s + 1), .saved = false, .bytes = Bytes(1), .gradient = Bytes(1)}};
    crossing.output = Bytes(1);
    model.crossings.push_back(std::move(crossing));
  }
  return {with_orders(std::move(model), Orders(ScheduleKind::kOneFOneB)), Cluster(std::move(parts))};
}

LongestSpan longest_span(const Trace& trace) {
  LongestSpan longest;
  for (std::size_t d = 0; d < trace.devices.size(); ++d) {
    Duration first = Duration::max(), last, busy;
    for (const Span& span : trace.spans) {
      if (span.device != DeviceId(d) || span.kind != SpanKind::kAction) continue;
      first = std::min(first, span.start);
      last = std::max(last, span.end);
      busy += span.end - span.start;
    }
    if (last <= first || last - first <= longest.span) continue;
    longest = {last - first, 1 - ratio(busy, last - first)};
  }
  return longest;
}

}  // namespace espalier::testing
