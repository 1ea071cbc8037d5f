// One line per span; parses back. Names that are not one plain word are JSON strings; one that stands for
// several devices, stages or tensors is written by its index, "#2".

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/base/words.h"
#include "espalier/trace/names.h"
#include "espalier/trace/trace.h"

namespace espalier {
namespace {

constexpr std::array<std::string_view, 6> kHeads{"trace", "device", "stage", "tensor", "note", "memory"};

std::string quoted(const std::string& name) {
  const bool plain =
      !name.empty() && name.front() != '#' && name.front() != '"' &&
      std::none_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) <= ' '; }) &&
      std::find(kHeads.begin(), kHeads.end(), name) == kHeads.end();
  return plain ? name : Json(name).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string reference(const std::vector<std::string>& names, std::size_t index) {
  const bool first =
      index < names.size() && std::find(names.begin(), names.end(), names[index]) - names.begin() ==
                                  static_cast<std::ptrdiff_t>(index);
  return first ? quoted(names[index]) : "#" + std::to_string(index);
}

std::string action_text(const Trace& trace, const Action& action) {
  std::string text(1, letter(action.kind));
  if (action.kind == ActionKind::kTieSum) {
    text += std::to_string(action.tie().index());
    if (action.micro_batch != 0) text += "." + std::to_string(action.micro_batch);
    return text;
  }
  if (!once_per_step(action.kind) || action.micro_batch != 0) text += std::to_string(action.micro_batch);
  return text + " " + reference(trace.stages, action.stage().index());
}

std::string span_text(const Trace& trace, const Span& span) {
  std::string text = reference(trace.devices, span.device.index()) + " " + std::string(to_text(span.stream));
  if (span.kind != usual_kind(span.stream)) text += " " + std::string(to_text(span.kind));
  text += " " + action_text(trace, span.action);
  if (span.message) {
    const Message& m = *span.message;
    text += m.direction == Message::Direction::kForward ? " forward " : " gradient ";
    text += reference(trace.tensors, m.crossing) + " " + reference(trace.stages, m.reader.index()) + " " +
            std::to_string(m.producer_micro_batch) + " " + std::to_string(m.consumer_micro_batch);
  }
  if (span.peer) text += " peer " + reference(trace.devices, span.peer->index());
  if (span.bytes != Bytes()) text += " bytes " + to_exact_text(span.bytes);
  text += " " + to_exact_text(span.start) + "-" + to_exact_text(span.end);
  if (span.posted) text += " posted " + to_exact_text(*span.posted);
  return text;
}

class LineReader {
 public:
  LineReader(std::string_view line, int number) : where_("line " + std::to_string(number)) {
    if (!is_utf8(line)) fail("is not UTF-8");  // names may go to JSON
    std::size_t at = 0;
    while ((at = line.find_first_not_of(" \t\r", at)) != std::string_view::npos) {
      std::size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
      if (line[at] == '"') {
        end = at + 1;
        while (end < line.size() && line[end] != '"') end += line[end] == '\\' ? 2 : 1;
        if (end >= line.size()) fail("a string has no end");
        ++end;
      }
      words_.push_back(line.substr(at, end - at));
      at = end;
    }
  }

  [[noreturn]] void fail(const std::string& problem) const { throw InputError(where_ + ": " + problem); }
  bool done() const { return next_ == words_.size(); }
  std::string_view peek() const { return done() ? std::string_view() : words_[next_]; }
  std::string_view word(const char* expected) {
    if (done()) fail(std::string("expected ") + expected + " at the end");
    return words_[next_++];
  }
  bool take(std::string_view wanted) { return peek() == wanted ? (++next_, true) : false; }
  void end() const {
    if (!done()) fail("'" + std::string(peek()) + "' is not expected here");
  }

  std::string name(const char* expected) {
    const std::string_view text = word(expected);
    if (text.front() != '"') return std::string(text);
    const Json json = parse_json(text, where_);
    return json.get<std::string>();
  }
  std::size_t reference(const std::vector<std::string>& names, const char* what) {
    if (peek().substr(0, 1) == "#") return number(word(what).substr(1), what);
    const std::string wanted = name(what);
    const auto found = std::find(names.begin(), names.end(), wanted);
    if (found == names.end()) fail(std::string(what) + " '" + wanted + "' is not declared above");
    return static_cast<std::size_t>(found - names.begin());
  }
  DeviceId device(const Trace& trace) {
    const std::size_t index = reference(trace.devices, "device");
    if (index >= trace.devices.size()) fail("there is no device #" + std::to_string(index));
    return DeviceId(index);
  }
  std::uint32_t number(std::string_view text, const char* what) const {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value == 0xffffffff) {
      fail("'" + std::string(text) + "' is not a number, expected for " + what);
    }
    return value;
  }
  template <class Parse>
  auto parsed(std::string_view text, Parse parse) const {
    try {
      return parse(text);
    } catch (const InputError& error) {
      fail(error.what());
    }
  }
  Duration duration(std::string_view text) const { return parsed(text, parse_duration); }
  Bytes bytes(std::string_view text) const { return parsed(text, parse_bytes); }

 private:
  std::string where_;
  std::vector<std::string_view> words_;
  std::size_t next_ = 0;
};

Action read_action(LineReader& line, const Trace& trace) {
  const std::string_view text = line.word("an action");
  const auto kind = action_kind(text.front());
  if (!kind) line.fail("'" + std::string(text) + "' is not an action; expected such as F0, A, T0 or U");
  std::string_view rest = text.substr(1);
  std::uint32_t micro_batch = 0;
  if (*kind == ActionKind::kTieSum) {
    const std::size_t dot = std::min(rest.find('.'), rest.size());
    const TieId tie(line.number(rest.substr(0, dot), "a tie"));
    if (dot < rest.size()) micro_batch = line.number(rest.substr(dot + 1), "a micro-batch");
    return {Step(tie), micro_batch};
  }
  if (!rest.empty() || !once_per_step(*kind)) micro_batch = line.number(rest, "a micro-batch");
  return {*kind, StageId(line.reference(trace.stages, "stage")), micro_batch};
}

Message read_message(LineReader& line, const Trace& trace, Message::Direction direction) {
  Message message;
  message.direction = direction;
  message.crossing = static_cast<std::uint32_t>(line.reference(trace.tensors, "tensor"));
  message.reader = StageId(line.reference(trace.stages, "stage"));
  message.producer_micro_batch = line.number(line.word("a micro-batch"), "a micro-batch");
  message.consumer_micro_batch = line.number(line.word("a micro-batch"), "a micro-batch");
  return message;
}

Span read_span(LineReader& line, const Trace& trace) {
  Span span;
  span.device = line.device(trace);
  const std::string_view stream = line.word("a stream");
  const auto known = parse_stream(stream);
  if (!known) {
    line.fail("'" + std::string(stream) + "' is no stream; expected compute, send, receive or collective");
  }
  span.stream = *known;
  span.kind = usual_kind(*known);
  if (const auto kind = parse_span_kind(line.peek())) {
    span.kind = *kind;
    line.word("a kind");
  }
  span.action = read_action(line, trace);
  if (line.take("forward")) span.message = read_message(line, trace, Message::Direction::kForward);
  if (!span.message && line.take("gradient"))
    span.message = read_message(line, trace, Message::Direction::kBackward);
  if (line.take("peer")) span.peer = line.device(trace);
  if (line.take("bytes")) span.bytes = line.bytes(line.word("a size"));
  const std::string_view times = line.word("start-end");
  const std::size_t dash = times.find('-', 1);
  if (dash == std::string_view::npos) line.fail("'" + std::string(times) + "' is not start-end");
  span.start = line.duration(times.substr(0, dash));
  span.end = line.duration(times.substr(dash + 1));
  if (line.take("posted")) span.posted = line.duration(line.word("a time"));
  return span;
}

MemorySample read_sample(LineReader& line, const Trace& trace) {
  MemorySample sample;
  sample.device = line.device(trace);
  sample.time = line.duration(line.word("a time"));
  while (!line.done()) {
    const std::string_view text = line.word("a category");
    const std::size_t equals = std::min(text.find('='), text.size());
    std::size_t category = 0;
    while (category < kMemoryCategories &&
           to_text(static_cast<MemoryCategory>(category)) != text.substr(0, equals)) {
      ++category;
    }
    if (category == kMemoryCategories || equals == text.size()) {
      line.fail("'" + std::string(text) + "' is not a category and its size, such as buffers=1MiB");
    }
    sample.held.bytes[category] = line.bytes(text.substr(equals + 1));
  }
  return sample;
}

void read_line(LineReader& line, Trace& trace) {
  if (line.take("trace")) {
    const std::string_view origin = line.word("simulated or measured");
    if (origin != "simulated" && origin != "measured") line.fail("expected simulated or measured");
    trace.origin = origin == "measured" ? Trace::Origin::kMeasured : Trace::Origin::kSimulated;
    trace.iteration = line.duration(line.word("a time"));
  } else if (line.take("device")) {
    trace.devices.push_back(line.name("a name"));
    trace.capacity.push_back(line.bytes(line.word("a size")));
  } else if (line.take("stage")) {
    trace.stages.push_back(line.name("a name"));
  } else if (line.take("tensor")) {
    trace.tensors.push_back(line.name("a name"));
  } else if (line.take("note")) {
    trace.notes.push_back(line.name("a text"));
  } else if (line.take("memory")) {
    trace.memory.push_back(read_sample(line, trace));
  } else {
    trace.spans.push_back(read_span(line, trace));
  }
  line.end();
}

}  // namespace

std::string print_trace(const Trace& trace) {
  const bool measured = trace.origin == Trace::Origin::kMeasured;
  std::string out =
      "trace " + std::string(measured ? "measured " : "simulated ") + to_exact_text(trace.iteration) + "\n";
  for (std::size_t d = 0; d < trace.devices.size(); ++d) {
    out += "device " + quoted(trace.devices[d]) + " " + to_exact_text(trace.capacity.at(d)) + "\n";
  }
  for (const std::string& stage : trace.stages) out += "stage " + quoted(stage) + "\n";
  for (const std::string& tensor : trace.tensors) out += "tensor " + quoted(tensor) + "\n";
  for (const std::string& note : trace.notes) out += "note " + quoted(note) + "\n";
  for (const Span& span : trace.spans) out += span_text(trace, span) + "\n";
  for (const MemorySample& sample : trace.memory) {
    out += "memory " + reference(trace.devices, sample.device.index()) + " " + to_exact_text(sample.time);
    for (std::size_t i = 0; i < kMemoryCategories; ++i) {
      if (sample.held.bytes[i] == Bytes()) continue;
      out += " " + std::string(to_text(static_cast<MemoryCategory>(i))) + "=" +
             to_exact_text(sample.held.bytes[i]);
    }
    out += "\n";
  }
  return out;
}

Trace parse_trace(std::string_view text) {
  Trace trace;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    LineReader line(text.substr(0, end), number);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.done()) read_line(line, trace);
  }
  require_sums_fit(trace);
  return trace;
}

}  // namespace espalier
