// Chrome trace JSON, for Perfetto and chrome://tracing. Rules that make every version of Perfetto draw it
// (docs/formats.md): pid and tid are integers; times are microseconds with three decimals, written from
// integers; slices of one (pid, tid) nest or are disjoint; both ends of a flow lie within slices.
//
// A device's messages overlap in time, those of one channel too (the next leaves while the last is in flight
// or waits for its link), so each (stream, peer) gets as many rows as it has at once: a span goes to the
// first row that is free.

#include <algorithm>
#include <map>
#include <tuple>

#include "espalier/base/json.h"
#include "espalier/trace/chrome_text.h"
#include "espalier/trace/names.h"
#include "espalier/trace/trace.h"

namespace espalier {

std::string chrome_string(std::string_view words) {
  return Json(words).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string chrome_time(Duration time) {
  const std::int64_t n = time.count() < 0 ? -time.count() : time.count();
  const std::string decimals = std::to_string(n % 1000);
  return (time.count() < 0 ? "-" : "") + std::to_string(n / 1000) + "." +
         std::string(3 - decimals.size(), '0') + decimals;
}

namespace {

std::string_view category(const Span& span) {
  if (span.kind == SpanKind::kTransfer) return "send";
  if (span.kind == SpanKind::kReceiveWait) return "receive";
  if (span.kind == SpanKind::kCollective) return "collective";
  if (span.kind != SpanKind::kAction) return "endpoint";
  switch (span.action.kind) {
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kRecompute:
      return "recompute";
    case ActionKind::kUpdate:
      return "update";
    default:
      return "backward";
  }
}

class ChromeWriter {
 public:
  explicit ChromeWriter(const Trace& trace) : trace_(trace) {}

  std::string run() {
    assign_tracks();
    out_ = "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [";
    for (std::size_t d = 0; d < trace_.devices.size(); ++d) {
      metadata("process_name", d, "\"name\": " + chrome_string(trace_.devices[d]));
      metadata("process_sort_index", d, "\"sort_index\": " + std::to_string(d));
    }
    for (const auto& [track, tid] : tracks_) {
      const std::string at = ", \"tid\": " + std::to_string(tid);
      metadata("thread_name", track.device, "\"name\": " + chrome_string(track_name(track)), at);
      metadata("thread_sort_index", track.device, "\"sort_index\": " + std::to_string(tid), at);
    }
    for (std::size_t i = 0; i < trace_.spans.size(); ++i) slice(i);
    flows();
    for (const MemorySample& sample : trace_.memory) counter(sample);
    return out_ + "\n]}\n";
  }

 private:
  struct Track {
    std::size_t device = 0;
    Stream stream = Stream::kCompute;
    std::size_t peer = 0;
    std::size_t row = 0;
    friend auto operator<=>(const Track&, const Track&) = default;
  };

  void assign_tracks() {
    std::map<Track, std::vector<Duration>> rows;  // by track with row 0: the end of each row's last span
    std::vector<Track> track_of;
    for (std::size_t d = 0; d < trace_.devices.size(); ++d) tracks_[{d, Stream::kCompute, 0, 0}] = 0;
    for (const Span& span : trace_.spans) {
      Track track{span.device.index(), span.stream, span.peer ? span.peer->index() : 0, 0};
      if (span.stream == Stream::kCompute || span.stream == Stream::kCollective) track.peer = 0;
      std::vector<Duration>& ends = rows[track];
      const auto free =
          std::find_if(ends.begin(), ends.end(), [&](Duration end) { return end <= span.start; });
      track.row = static_cast<std::size_t>(free - ends.begin());
      if (free == ends.end()) {
        ends.push_back(span.end);
      } else {
        *free = span.end;
      }
      tracks_[track] = 0;
      track_of.push_back(track);
    }
    std::size_t device = trace_.devices.size();
    int tid = 0;
    for (auto& [track, number] : tracks_) {  // numbered from 1 on each device
      tid = track.device == device ? tid + 1 : 1;
      device = track.device;
      number = tid;
    }
    for (const Track& track : track_of) tid_.push_back(tracks_.at(track));
  }

  std::string device_name(std::size_t device) const {
    return device < trace_.devices.size() ? trace_.devices[device] : "#" + std::to_string(device);
  }
  std::string track_name(const Track& track) const {
    std::string name(to_text(track.stream));
    if (track.stream == Stream::kSend) name += " to " + device_name(track.peer);
    if (track.stream == Stream::kReceive) name += " from " + device_name(track.peer);
    return track.row == 0 ? name : name + " (" + std::to_string(track.row + 1) + ")";
  }

  void event(const std::string& fields) {
    out_ += first_ ? "\n{" : ",\n{";
    first_ = false;
    out_ += fields;
    out_ += '}';
  }
  void metadata(const char* name, std::size_t pid, const std::string& args, const std::string& tid = "") {
    event(std::string("\"ph\": \"M\", \"name\": \"") + name + "\", \"pid\": " + std::to_string(pid) + tid +
          ", \"args\": {" + args + "}");
  }
  std::string place(std::size_t i, Duration time) const {
    return ", \"pid\": " + std::to_string(trace_.spans[i].device.index()) +
           ", \"tid\": " + std::to_string(tid_[i]) + ", \"ts\": " + chrome_time(time);
  }

  void slice(std::size_t i) {
    const Span& span = trace_.spans[i];
    std::string name = span_name(trace_, span);
    std::string args = "\"micro_batch\": " + std::to_string(span.action.micro_batch);
    if (span.kind == SpanKind::kTransfer || span.kind == SpanKind::kSendEndpoint) name = "send " + name;
    if (span.kind == SpanKind::kReceiveWait || span.kind == SpanKind::kReceiveEndpoint) name = "for " + name;
    if (span.action.kind != ActionKind::kTieSum && span.action.target() < trace_.stages.size()) {
      args += ", \"stage\": " + chrome_string(trace_.stages[span.action.target()]);
    }
    if (span.message && span.message->crossing < trace_.tensors.size()) {
      args += ", \"tensor\": " + chrome_string(trace_.tensors[span.message->crossing]);
    }
    if (span.bytes != Bytes()) args += ", \"bytes\": " + std::to_string(span.bytes.count());
    if (span.posted) args += ", \"waited_us\": " + chrome_time(span.start - *span.posted);
    event("\"ph\": \"X\", \"name\": " + chrome_string(name) + ", \"cat\": \"" + std::string(category(span)) +
          "\"" + place(i, span.start) + ", \"dur\": " + chrome_time(span.end - span.start) + ", \"args\": {" +
          args + "}");
  }

  // An arrow from each transfer to the slice that uses what it brought.
  void flows() {
    std::map<std::pair<DeviceId, Action>, std::size_t> actions;
    std::map<std::tuple<DeviceId, DeviceId, Message>, std::size_t> endpoints;  // by (to, from, message)
    std::map<std::uint32_t, StageId> made_by;                                  // by crossing
    for (std::size_t i = 0; i < trace_.spans.size(); ++i) {
      const Span& span = trace_.spans[i];
      if (span.kind == SpanKind::kAction) actions.emplace(std::pair(span.device, span.action), i);
      if (!span.message || !span.peer) continue;
      if (span.kind == SpanKind::kReceiveEndpoint)
        endpoints.emplace(std::tuple(span.device, *span.peer, *span.message), i);
      if (span.kind == SpanKind::kTransfer && span.message->direction == Message::Direction::kForward)
        made_by.emplace(span.message->crossing, StageId(span.action.target()));
    }
    const auto consumer = [&](const Span& transfer) -> std::optional<std::size_t> {
      const Message& message = *transfer.message;
      const auto endpoint = endpoints.find({*transfer.peer, transfer.device, message});
      if (endpoint != endpoints.end()) return endpoint->second;
      const bool forward = message.direction == Message::Direction::kForward;
      const auto maker = made_by.find(message.crossing);
      if (!forward && maker == made_by.end()) return std::nullopt;
      for (const ActionKind kind : {ActionKind::kBackward, ActionKind::kInputGradient}) {
        const Action action = forward
                                  ? Action{ActionKind::kForward, message.reader, message.consumer_micro_batch}
                                  : Action{kind, maker->second, message.producer_micro_batch};
        const auto found = actions.find({*transfer.peer, action});
        if (found != actions.end()) return found->second;
      }
      return std::nullopt;
    };
    for (std::size_t i = 0; i < trace_.spans.size(); ++i) {
      const Span& transfer = trace_.spans[i];
      if (transfer.kind != SpanKind::kTransfer || !transfer.message || !transfer.peer) continue;
      const auto to = consumer(transfer);
      if (to) flow(transfer.end > transfer.start ? i : sender(actions, i), *to, i);
    }
  }

  // A transfer that takes no time has no slice to start from: its arrow starts in the action that sends.
  std::size_t sender(const std::map<std::pair<DeviceId, Action>, std::size_t>& actions, std::size_t i) const {
    const auto found = actions.find({trace_.spans[i].device, trace_.spans[i].action});
    return found == actions.end() ? i : found->second;
  }

  void flow(std::size_t from, std::size_t to, std::size_t id) {
    const Span& a = trace_.spans[from];
    const Span& b = trace_.spans[to];
    if (a.end == a.start || b.end == b.start || b.start < a.start) return;  // no slice, or clocks disagree
    const std::string same = ", \"id\": " + std::to_string(id) + ", \"name\": \"message\", \"cat\": \"flow\"";
    event("\"ph\": \"s\"" + same + place(from, a.start));
    event("\"ph\": \"f\", \"bp\": \"e\"" + same + place(to, b.start));
  }

  void counter(const MemorySample& sample) {
    std::string args;
    for (std::size_t i = 0; i < kMemoryCategories; ++i) {
      args += (args.empty() ? "\"" : ", \"") + std::string(to_text(static_cast<MemoryCategory>(i))) +
              "\": " + std::to_string(sample.held.bytes[i].count());
    }
    event("\"ph\": \"C\", \"name\": \"memory\", \"pid\": " + std::to_string(sample.device.index()) +
          ", \"ts\": " + chrome_time(sample.time) + ", \"args\": {" + args + "}");
  }

  const Trace& trace_;
  std::map<Track, int> tracks_;
  std::vector<int> tid_;  // by span
  std::string out_;
  bool first_ = true;
};

}  // namespace

std::string chrome_trace(const Trace& trace) {
  return ChromeWriter(trace).run();
}

}  // namespace espalier
