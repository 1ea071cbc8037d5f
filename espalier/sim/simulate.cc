#include "espalier/sim/simulate.h"

#include <algorithm>
#include <tuple>

namespace espalier {
namespace {

using Source = CompiledSchedule::Source;

class TraceWriter {
 public:
  TraceWriter(const StagedModel& model, const Cluster& cluster, const Schedule& schedule)
      : model_(model),
        cluster_(cluster),
        schedule_(schedule),
        compiled_(compile(model, cluster, schedule)),
        times_(run_tasks(compiled_.tasks)) {}

  Trace run() {
    for (const Device& device : cluster_.devices()) {
      trace_.devices.push_back(device.name);
      trace_.capacity.push_back(device.memory);
    }
    for (const StagedStage& stage : model_.stages) trace_.stages.push_back(stage.name);
    for (const Crossing& crossing : model_.crossings) trace_.tensors.push_back(crossing.tensor);
    trace_.iteration = times_.makespan;
    for (TaskIndex task = 0; task < compiled_.tasks.size(); ++task) add_span(task);
    std::stable_sort(trace_.spans.begin(), trace_.spans.end(), [](const Span& a, const Span& b) {
      return std::tie(a.device, a.stream, a.start, a.end) < std::tie(b.device, b.stream, b.start, b.end);
    });
    add_memory();
    return std::move(trace_);
  }

 private:
  const Action& action_at(DeviceId device, std::uint32_t position) const {
    return schedule_.devices[device.index()][position];
  }
  Duration end(TaskIndex task) const { return times_.end[task]; }
  Duration arrival(TaskIndex task) const { return end(task) + compiled_.tasks.delay[task]; }

  void add_span(TaskIndex task) {
    const Source& source = compiled_.sources[task];
    Span span;
    span.device = source.device;
    span.start = times_.start[task];
    span.end = arrival(task);
    switch (source.kind) {
      case Source::Kind::kAction:
        span.action = action_at(source.device, source.index);
        break;
      case Source::Kind::kSendEndpoint:
      case Source::Kind::kReceiveEndpoint:
      case Source::Kind::kMessage:
        describe_message(source, span);
        if (source.kind == Source::Kind::kMessage) span.posted = times_.ready[task];
        break;
      case Source::Kind::kMember:
        add_collective(task, span);
        return;
      case Source::Kind::kCollective:
      case Source::Kind::kJoin:
        return;
    }
    trace_.spans.push_back(span);
  }

  void describe_message(const Source& source, Span& span) const {
    const CompiledSchedule::Sent& sent = compiled_.messages[source.index];
    const bool receives = source.kind == Source::Kind::kReceiveEndpoint;
    span.kind = receives                                     ? SpanKind::kReceiveEndpoint
                : source.kind == Source::Kind::kSendEndpoint ? SpanKind::kSendEndpoint
                                                             : SpanKind::kTransfer;
    span.stream = source.kind == Source::Kind::kMessage ? Stream::kSend : Stream::kCompute;
    span.action = action_at(source.device, receives ? sent.to_position : sent.from_position);
    span.message = sent.message;
    span.peer = receives ? sent.from : sent.to;
    span.bytes = sent.bytes;
  }

  // The collective of which this is a member's arrival.
  void add_collective(TaskIndex member, Span& span) {
    const TaskIndex task = compiled_.sources[member].collective;
    span.stream = Stream::kCollective;
    span.kind = SpanKind::kCollective;
    span.action = action_at(span.device, compiled_.sources[member].index);
    span.bytes = span.action.kind == ActionKind::kAllReduce
                     ? model_.stages[span.action.stage().index()].reduced
                     : model_.ties[span.action.tie().index()].bytes;
    span.posted = times_.ready[task];
    span.start = times_.start[task];
    span.end = arrival(task);
    trace_.spans.push_back(span);
  }

  // Sums all changes of an instant, then samples if something differs from the sample before.
  void add_memory() {
    const TaskGraph& graph = compiled_.tasks;
    struct Change {
      std::uint32_t device;
      std::int64_t time;
      std::uint32_t category;
      Bytes bytes;
    };
    std::vector<Change> changes;
    changes.reserve(graph.memory.size());
    for (const TaskGraph::MemoryDelta& delta : graph.memory) {
      const Duration time = delta.when == TaskGraph::MemoryDelta::When::kStart ? times_.start[delta.task]
                            : delta.when == TaskGraph::MemoryDelta::When::kEnd ? end(delta.task)
                                                                               : arrival(delta.task);
      changes.push_back({static_cast<std::uint32_t>(delta.account / kMemoryCategories), time.count(),
                         static_cast<std::uint32_t>(delta.account % kMemoryCategories), delta.bytes});
    }
    std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
      return a.device != b.device ? a.device < b.device : a.time < b.time;
    });
    auto change = changes.begin();
    for (std::uint32_t device = 0; device < cluster_.devices().size(); ++device) {
      MemorySample sample{DeviceId(device), Duration(), {}};
      for (std::size_t category = 0; category < kMemoryCategories; ++category) {
        sample.held.bytes[category] = graph.initial[device * kMemoryCategories + category];
      }
      bool first = true;
      while (first || (change != changes.end() && change->device == device)) {
        const MemoryByCategory before = sample.held;
        sample.time = first ? Duration() : Duration(change->time);
        for (; change != changes.end() && change->device == device && change->time == sample.time.count();
             ++change) {
          sample.held.bytes[change->category] += change->bytes;
        }
        if (first || sample.held != before) trace_.memory.push_back(sample);
        first = false;
      }
    }
  }

  const StagedModel& model_;
  const Cluster& cluster_;
  const Schedule& schedule_;
  const CompiledSchedule compiled_;
  const TaskTimes times_;
  Trace trace_;
};

}  // namespace

Trace simulate(const StagedModel& model, const Cluster& cluster, const Schedule& schedule) {
  return TraceWriter(model, cluster, schedule).run();
}

Trace simulate(const StagedModel& model, const Cluster& cluster) {
  return simulate(model, cluster, make_schedule(model, cluster.devices().size()));
}

}  // namespace espalier
