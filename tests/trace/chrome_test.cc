// The rules of docs/formats.md that make a viewer draw every slice, checked on the parsed JSON.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "espalier/base/json.h"
#include "espalier/sim/simulate.h"
#include "espalier/trace/trace.h"
#include "testing/random_staged_model.h"
#include "testing/worked_example.h"

namespace espalier {
namespace {

using espalier::testing::random_staged_model;
using espalier::testing::worked_example;
using espalier::testing::WorkedExample;
using ::testing::HasSubstr;
using Track = std::pair<std::int64_t, std::int64_t>;  // pid, tid

struct Slice {
  std::int64_t start, end;  // ns
};

// Microseconds with three decimals, exactly.
std::int64_t nanoseconds_of(const Json& number) {
  return std::llround(number.get<double>() * 1000);
}

struct Parsed {
  std::map<Track, std::vector<Slice>> slices;
  std::map<std::int64_t, std::vector<Json>> flows;  // by id: start, end
  std::vector<Json> counters;
  std::map<std::string, std::set<Track>> names;  // of metadata events
  std::size_t slice_count = 0;
};

Parsed parse(const std::string& text) {
  const Json json = parse_json(text, "chrome");
  EXPECT_EQ(json.at("displayTimeUnit"), "ns");
  Parsed parsed;
  for (const Json& event : json.at("traceEvents")) {
    const std::string ph = event.at("ph");
    EXPECT_TRUE(event.at("pid").is_number_integer()) << event;
    EXPECT_TRUE(!event.contains("tid") || event.at("tid").is_number_integer()) << event;
    const Track track{event.at("pid"), event.value("tid", std::int64_t{-1})};
    if (ph == "X") {
      const std::int64_t start = nanoseconds_of(event.at("ts"));
      parsed.slices[track].push_back({start, start + nanoseconds_of(event.at("dur"))});
      ++parsed.slice_count;
    } else if (ph == "s" || ph == "f") {
      EXPECT_EQ(event.value("bp", ""), ph == "f" ? "e" : "");
      parsed.flows[event.at("id")].push_back(event);
    } else if (ph == "C") {
      parsed.counters.push_back(event);
    } else {
      EXPECT_EQ(ph, "M");
      parsed.names[event.at("name")].insert(track);
    }
  }
  return parsed;
}

void expect_drawable(const Trace& trace) {
  const Parsed parsed = parse(chrome_trace(trace));
  EXPECT_EQ(parsed.slice_count, trace.spans.size());
  EXPECT_EQ(parsed.counters.size(), trace.memory.size());
  for (const auto& [track, slices] : parsed.slices) {
    EXPECT_TRUE(parsed.names.at("thread_name").count(track));
    EXPECT_TRUE(parsed.names.at("thread_sort_index").count(track));
    for (std::size_t i = 0; i < slices.size(); ++i) {
      for (std::size_t j = i + 1; j < slices.size(); ++j) {
        const bool disjoint = slices[i].end <= slices[j].start || slices[j].end <= slices[i].start;
        ASSERT_TRUE(disjoint) << "pid " << track.first << " tid " << track.second;
      }
    }
  }
  for (const auto& [id, ends] : parsed.flows) {
    ASSERT_EQ(ends.size(), 2u) << id;
    EXPECT_EQ(ends[0].at("ph"), "s");
    EXPECT_LE(nanoseconds_of(ends[0].at("ts")), nanoseconds_of(ends[1].at("ts")));
    for (const Json& end : ends) {
      const std::int64_t time = nanoseconds_of(end.at("ts"));
      const auto& slices = parsed.slices.at({end.at("pid"), end.at("tid")});
      EXPECT_TRUE(std::any_of(slices.begin(), slices.end(), [&](const Slice& s) {
        return s.start <= time && time < s.end;
      })) << end;
    }
  }
  for (const Json& counter : parsed.counters) {
    EXPECT_EQ(counter.at("args").size(), kMemoryCategories);
    for (const Json& value : counter.at("args")) EXPECT_TRUE(value.is_number_integer());
  }
}

TEST(ChromeTrace, WorkedExampleIsDrawable) {
  const auto [model, cluster] = worked_example(WorkedExample::kChain);
  const Trace trace = simulate(model, cluster);
  expect_drawable(trace);
  const std::string text = chrome_trace(trace);
  // B0 of img: the slice as a viewer sees it, and an arrow for each of 4 × 3 messages forward and back.
  EXPECT_THAT(
      text,
      HasSubstr(R"("name": "F0 img", "cat": "forward", "pid": 0, "tid": 1, "ts": 0.000, "dur": 2000.000)"));
  EXPECT_EQ(parse(text).flows.size(), 24u);
}

TEST(ChromeTrace, RandomTracesAreDrawable) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    Rng rng(seed * 31 + 7);
    const auto [model, cluster] = random_staged_model(rng);
    expect_drawable(simulate(model, cluster));
  }
}

TEST(ChromeTrace, MessagesInFlightTogetherGetRowsOfTheirOwn) {
  // Three transfers on one channel, 1 us apart and 5 us long.
  Trace trace;
  trace.devices = {"d", "e"};
  trace.capacity = {Bytes(), Bytes()};
  trace.stages = {"s"};
  for (int i = 0; i < 3; ++i) {
    Span span;
    span.stream = Stream::kSend;
    span.kind = SpanKind::kTransfer;
    span.message = Message{};
    span.peer = DeviceId(1);
    span.start = microseconds(i);
    span.end = microseconds(i + 5);
    trace.spans.push_back(span);
  }
  expect_drawable(trace);
  EXPECT_THAT(chrome_trace(trace), HasSubstr("send to e (3)"));
}

TEST(ChromeTrace, NanosecondsSurviveAsThreeDecimals) {
  Trace trace;
  trace.devices = {"d"};
  trace.capacity = {Bytes()};
  trace.stages = {"s"};
  Span span;
  span.start = Duration(1'234'567'005);
  span.end = Duration(1'234'567'006);
  trace.spans = {span};
  EXPECT_THAT(chrome_trace(trace), HasSubstr(R"("ts": 1234567.005, "dur": 0.001)"));
}

TEST(ChromeTrace, NamesAreEscaped) {
  Trace trace;
  trace.devices = {"a\"b\\c\n\x01", "bad \xff bytes"};
  trace.capacity = {Bytes(), Bytes()};
  trace.stages = {"größe </script>"};
  trace.spans = {Span{}};
  trace.spans[0].end = Duration(1);
  const Json events = parse_json(chrome_trace(trace), "chrome").at("traceEvents");
  EXPECT_EQ(events[0].at("args").at("name"), trace.devices[0]);
  EXPECT_EQ(events[2].at("args").at("name"), "bad \xEF\xBF\xBD bytes");
  EXPECT_EQ(events.back().at("args").at("stage"), trace.stages[0]);
}

}  // namespace
}  // namespace espalier
