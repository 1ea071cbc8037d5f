#include "espalier/base/json.h"

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/trace/json.h"
#include "espalier/trace/names.h"
#include "espalier/trace/trace.h"

namespace espalier {
namespace {

constexpr std::string_view kFormat = "espalier.trace/1";
constexpr std::int64_t kMaxIndex = 0xfffffffe;

std::uint32_t index_at(const JsonCursor& cursor) {
  return static_cast<std::uint32_t>(cursor.integer(0, kMaxIndex));
}

template <class Enum, std::size_t N>
Enum enum_at(const JsonCursor& cursor, const std::array<std::string_view, N>& names) {
  const std::string& text = cursor.string();
  if (const auto value = named<Enum>(names, text)) return *value;
  std::string all;
  for (const std::string_view name : names) all += (all.empty() ? "" : ", ") + std::string(name);
  cursor.fail("is '" + text + "'; expected one of " + all);
}

Json message_to_json(const Message& m) {
  return Json::array({m.direction == Message::Direction::kForward ? "F" : "B", m.crossing, m.reader.index(),
                      m.producer_micro_batch, m.consumer_micro_batch});
}

Message message_from_json(const JsonCursor& cursor) {
  if (cursor.size() != 5)
    cursor.fail("expected [\"F\" or \"B\", crossing, reader, micro-batch, micro-batch]");
  const std::string direction = cursor.at(std::size_t{0}).string();
  if (direction != "F" && direction != "B") cursor.at(std::size_t{0}).fail("expected \"F\" or \"B\"");
  return {direction == "F" ? Message::Direction::kForward : Message::Direction::kBackward,
          index_at(cursor.at(1)), StageId(index_at(cursor.at(2))), index_at(cursor.at(3)),
          index_at(cursor.at(4))};
}

Json span_to_json(const Span& span) {
  Json json = Json::object();
  json["device"] = span.device.index();
  json["stream"] = to_text(span.stream);
  if (span.kind != usual_kind(span.stream)) json["kind"] = to_text(span.kind);
  json["action"] = std::string(1, letter(span.action.kind));
  json["stage"] = span.action.target();
  json["micro_batch"] = span.action.micro_batch;
  json["start_ns"] = span.start.count();
  json["end_ns"] = span.end.count();
  if (span.posted) json["posted_ns"] = span.posted->count();
  if (span.message) json["message"] = message_to_json(*span.message);
  if (span.peer) json["peer"] = span.peer->index();
  if (span.bytes != Bytes()) json["bytes"] = span.bytes.count();
  return json;
}

DeviceId device_at(const JsonCursor& cursor, const Trace& trace) {
  if (trace.devices.empty()) cursor.fail("there is no device");
  return DeviceId(
      static_cast<std::size_t>(cursor.integer(0, static_cast<std::int64_t>(trace.devices.size()) - 1)));
}

Span span_from_json(const JsonCursor& cursor, const Trace& trace) {
  cursor.only({"device", "stream", "kind", "action", "stage", "micro_batch", "start_ns", "end_ns",
               "posted_ns", "message", "peer", "bytes"});
  Span span;
  span.device = device_at(cursor.at("device"), trace);
  span.stream = enum_at<Stream>(cursor.at("stream"), kStreamNames);
  span.kind = usual_kind(span.stream);
  if (cursor.has("kind")) span.kind = enum_at<SpanKind>(cursor.at("kind"), kSpanKindNames);
  const std::string action = cursor.at("action").string();
  const auto kind = action.size() == 1 ? action_kind(action.front()) : std::nullopt;
  if (!kind) cursor.at("action").fail("is '" + action + "'; expected one of F, B, I, W, R, A, T, U");
  const std::uint32_t target = index_at(cursor.at("stage"));  // of T: the tie
  const Step step = *kind == ActionKind::kTieSum ? Step(TieId(target)) : Step(*kind, StageId(target));
  span.action = {step, index_at(cursor.at("micro_batch"))};
  span.start = cursor.at("start_ns").duration();
  span.end = cursor.at("end_ns").duration();
  if (cursor.has("posted_ns")) span.posted = cursor.at("posted_ns").duration();
  if (cursor.has("message")) span.message = message_from_json(cursor.at("message"));
  if (cursor.has("peer")) span.peer = device_at(cursor.at("peer"), trace);
  if (cursor.has("bytes")) span.bytes = cursor.at("bytes").bytes();
  return span;
}

MemorySample sample_from_json(const JsonCursor& cursor, const Trace& trace) {
  cursor.only({"device", "time_ns", "held"});
  MemorySample sample;
  sample.device = device_at(cursor.at("device"), trace);
  sample.time = cursor.at("time_ns").duration();
  const JsonCursor held = cursor.at("held");
  if (held.size() != kMemoryCategories) held.fail("expected " + std::to_string(kMemoryCategories) + " sizes");
  for (std::size_t i = 0; i < kMemoryCategories; ++i) sample.held.bytes[i] = held.at(i).bytes();
  return sample;
}

std::vector<std::string> strings_at(const JsonCursor& cursor) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < cursor.size(); ++i) result.push_back(cursor.at(i).string());
  return result;
}

}  // namespace

nlohmann::ordered_json trace_to_json(const Trace& trace) {
  Json json = Json::object();
  json["format"] = kFormat;
  json["origin"] = trace.origin == Trace::Origin::kMeasured ? "measured" : "simulated";
  json["iteration_ns"] = trace.iteration.count();
  json["devices"] = Json::array();
  for (std::size_t d = 0; d < trace.devices.size(); ++d) {
    json["devices"].push_back({{"name", trace.devices[d]}, {"memory", trace.capacity.at(d).count()}});
  }
  json["stages"] = trace.stages;
  json["tensors"] = trace.tensors;
  json["notes"] = trace.notes;
  json["spans"] = Json::array();
  for (const Span& span : trace.spans) json["spans"].push_back(span_to_json(span));
  json["memory"] = Json::array();
  for (const MemorySample& sample : trace.memory) {
    Json held = Json::array();
    for (const Bytes bytes : sample.held.bytes) held.push_back(bytes.count());
    json["memory"].push_back(
        {{"device", sample.device.index()}, {"time_ns", sample.time.count()}, {"held", std::move(held)}});
  }
  return json;
}

Trace trace_from_json(const nlohmann::ordered_json& json, const std::string& where) {
  const JsonCursor root(json, where);
  root.expect_format(kFormat);
  root.only({"format", "origin", "iteration_ns", "devices", "stages", "tensors", "notes", "spans", "memory"});
  Trace trace;
  trace.origin =
      enum_at<Trace::Origin>(root.at("origin"), std::array<std::string_view, 2>{"simulated", "measured"});
  trace.iteration = root.at("iteration_ns").duration();
  const JsonCursor devices = root.at("devices");
  for (std::size_t d = 0; d < devices.size(); ++d) {
    const JsonCursor device = devices.at(d);
    device.only({"name", "memory"});
    trace.devices.push_back(device.at("name").string());
    trace.capacity.push_back(device.at("memory").bytes());
  }
  trace.stages = strings_at(root.at("stages"));
  trace.tensors = strings_at(root.at("tensors"));
  trace.notes = strings_at(root.at("notes"));
  const JsonCursor spans = root.at("spans");
  for (std::size_t i = 0; i < spans.size(); ++i) trace.spans.push_back(span_from_json(spans.at(i), trace));
  const JsonCursor memory = root.at("memory");
  for (std::size_t i = 0; i < memory.size(); ++i)
    trace.memory.push_back(sample_from_json(memory.at(i), trace));
  try {
    require_sums_fit(trace);
  } catch (const InputError& error) {
    root.fail(error.what());
  }
  return trace;
}

}  // namespace espalier
