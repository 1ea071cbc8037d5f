#include <gmock/gmock.h>

#include <sstream>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/report/axis.h"
#include "espalier/report/device_selection.h"
#include "espalier/report/gantt.h"
#include "espalier/report/svg.h"
#include "espalier/report/table.h"
#include "espalier/report/table_json.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Action parse_action(const std::string& text, StageId stage) {
  constexpr std::string_view kLetters = "FBIWRATU";
  return {static_cast<ActionKind>(kLetters.find(text[0])), stage,
          static_cast<std::uint32_t>(text.size() > 1 ? std::stoi(text.substr(1)) : 0)};
}

// "F0 0-2 B0 3-7": actions of device and stage d in milliseconds; each is followed by a transfer of 0.5 ms to
// the devices named.
void add_device(Trace& trace, std::size_t d, const std::string& text,
                std::initializer_list<std::size_t> peers) {
  trace.devices.push_back("dev" + std::to_string(d));
  trace.capacity.push_back(gibibytes(1));
  std::istringstream in(text);
  std::string name, times;
  while (in >> name >> times) {
    const auto dash = times.find('-');
    Span span;
    span.device = DeviceId(d);
    span.action = parse_action(name, StageId(d));
    span.start = parse_duration(times.substr(0, dash) + "ms");
    span.end = parse_duration(times.substr(dash + 1) + "ms");
    trace.spans.push_back(span);
    trace.iteration = std::max(trace.iteration, span.end);
    for (const std::size_t peer : peers) {
      Span wire = span;
      wire.stream = Stream::kSend;
      wire.kind = SpanKind::kTransfer;
      wire.peer = DeviceId(peer);
      wire.start = span.end;
      wire.end = span.end + microseconds(500);
      trace.spans.push_back(wire);
    }
  }
}

Trace two_stages() {
  Trace trace;
  trace.stages = {"body", "head"};
  add_device(trace, 0, "F0 0-2 F1 2-4 B0 6-10 B1 10-14 U 14-15", {1});
  add_device(trace, 1, "F0 3-4 B0 4-6 F1 6-7 B1 7-9 U 9-10", {});
  // 300 MiB from the start, 500 MiB from 2 ms to 14 ms.
  const auto sample = [](std::int64_t ms, std::int64_t activations) {
    MemorySample result;
    result.device = DeviceId(0);
    result.time = milliseconds(ms);
    result.held.bytes[0] = mebibytes(300);
    result.held.bytes[4] = mebibytes(activations);
    return result;
  };
  trace.memory = {sample(0, 0), sample(2, 200), sample(14, 0)};
  return trace;
}

TEST(Table, NumbersStandToTheRightWithUnits) {
  const Table table{{{"planner", "planner"}, {"time", "iteration"}, {"bubble", "bubble"}, {"peak", "peak"}},
                    {{std::string("chain"), milliseconds(34), Percentage{0.123}, gibibytes(2)},
                     {std::string("graph"), microseconds(500), Percentage{1}, std::monostate()}}};
  EXPECT_EQ(print_text(table, "  "),
            "  planner  iteration   bubble      peak\n"
            "  chain      34.0 ms   12.3 %  2.00 GiB\n"
            "  graph     500.0 us  100.0 %         -\n");
}

TEST(Table, MachinesSeePlainNumbersAndUnitsInKeys) {
  const Table table{
      {{"name", "name"}, {"time", "time"}, {"peak", "peak"}, {"fits", "fits"}, {"speed", "speed"}},
      {{std::string("a,\"b\""), milliseconds(1), Bytes(8), true, Factor{1.5}},
       {std::string("c"), std::monostate(), std::monostate(), false, std::monostate()}}};
  EXPECT_EQ(print_csv(table),
            "name,time_ns,peak_bytes,fits,speed\n"
            "\"a,\"\"b\"\"\",1000000,8,true,1.5\n"
            "c,,,false,\n");
  EXPECT_EQ(to_json(table).dump(),
            R"([{"name":"a,\"b\"","time_ns":1000000,"peak_bytes":8,"fits":true,"speed":1.5},)"
            R"({"name":"c","time_ns":null,"peak_bytes":null,"fits":false,"speed":null}])");
}

TEST(Table, MarkdownAlignsNumbersAndEscapesBars) {
  const Table table{{{"a", "a|b"}, {"n", "n"}}, {{std::string("x|y"), std::int64_t{3}}}};
  EXPECT_EQ(print_markdown(table), "| a\\|b | n |\n|---|---:|\n| x\\|y | 3 |\n");
}

TEST(Table, ColumnsAreChosenByKeyAndUnknownOnesRefused) {
  const Table table{{{"a", "A"}, {"b", "B"}}, {{std::int64_t{1}, std::int64_t{2}}}};
  EXPECT_EQ(print_csv(select_columns(table, {"b", "a"})), "b,a\n2,1\n");
  EXPECT_THROW(select_columns(table, {"c"}), InputError);
}

TEST(Table, WidthCountsCharactersNotBytesAndSkipsColours) {
  EXPECT_EQ(display_width("░▓é"), 3U);
  EXPECT_EQ(display_width("\x1b[48;5;117mF0\x1b[0m"), 2U);
}

TEST(Axis, TicksAreRoundAndFewEnough) {
  const Axis axis = time_axis(milliseconds(26), 7);  // 26 ms in at most six steps: 5 ms
  EXPECT_EQ(axis.unit, "ms");
  ASSERT_EQ(axis.ticks.size(), 6U);
  EXPECT_EQ(axis.ticks.back().label, "25");
  EXPECT_EQ(time_axis(milliseconds(1500), 4).ticks[1].label, "0.5");  // of seconds
  EXPECT_EQ(time_axis(Duration(), 4).ticks[0].label, "0");
}

TEST(Gantt, ForwardAndBackwardDifferWithoutColour) {
  // 15 ms over 66 - 4 - 2 - 15 = 45 columns: three a millisecond.
  EXPECT_EQ(text_gantt(two_stages(), {.width = 66}),
            "      0              5              10             15 ms\n"
            "dev0  F0░░░░F1░░░░······B0▓▓▓▓▓▓▓▓▓▓B1▓▓▓▓▓▓▓▓▓▓U==   86.7 % busy\n"
            "dev1  ·········F0░B0▓▓▓▓F1░B1▓▓▓▓U==···············   46.7 % busy\n"
            "F░ forward   B▓ backward   U= update   · idle\n");
}

TEST(Gantt, SumsShowWhereTheDeviceIsIdle) {
  Trace trace = two_stages();
  Span sum;
  sum.device = DeviceId(0);
  sum.stream = Stream::kCollective;
  sum.kind = SpanKind::kCollective;
  sum.action = Action(ActionKind::kAllReduce, StageId(1), 0);
  sum.start = milliseconds(3);  // F1 goes on for 1 ms
  sum.end = milliseconds(5);
  trace.spans.push_back(sum);
  const std::string text = text_gantt(trace, {.width = 66});
  EXPECT_THAT(text, HasSubstr("dev0  F0░░░░F1░░░░A≡≡···B0▓▓"));
  EXPECT_THAT(text, HasSubstr("A≡ sum over replicas, where idle"));
  EXPECT_THAT(text, HasSubstr("  86.7 % busy"));
}

TEST(Gantt, ColourOnlyAddsEscapes) {
  const std::string plain = text_gantt(two_stages(), {.width = 60});
  const std::string coloured = text_gantt(two_stages(), {.width = 60, .colour = Colour::kAnsi});
  EXPECT_THAT(coloured, HasSubstr("\x1b[48;5;"));
  EXPECT_THAT(plain, Not(HasSubstr("\x1b")));
  std::istringstream a(plain), b(coloured);
  for (std::string left, right; std::getline(a, left) && left[0] != 'F' && std::getline(b, right);) {
    EXPECT_EQ(display_width(left), display_width(right));
  }
}

TEST(Gantt, MicroBatchNumbersLeaveWhenThereIsNoRoomForThem) {
  Trace trace;
  trace.stages = {"body"};
  std::string actions;
  for (int i = 0; i < 40; ++i) {
    actions += "F" + std::to_string(i) + ' ' + std::to_string(i) + '-' + std::to_string(i + 1) + ' ';
  }
  add_device(trace, 0, actions, {});
  EXPECT_THAT(text_gantt(trace, {.width = 60}), HasSubstr("dev0  ░░░░░░░"));
  // 40 ms over 80 and 120 columns: two and three a millisecond. F10 never looks like F1.
  EXPECT_THAT(text_gantt(trace, {.width = 101}), HasSubstr("F0F1F2F3F4F5F6F7F8F9F░F░F░"));
  EXPECT_THAT(text_gantt(trace, {.width = 141}), HasSubstr("F8░F9░F10F11"));
}

TEST(Gantt, TransfersAndMemoryHaveTheirRows) {
  const std::string text = text_gantt(two_stages(), {.width = 60, .transfers = true, .memory = true});
  EXPECT_THAT(text, HasSubstr("→"));
  EXPECT_THAT(text, HasSubstr("▅▅▅▅▅"));  // 300 of 500 MiB: five eighths
  EXPECT_THAT(text, HasSubstr("peak 500.0 MiB"));
}

TEST(MemoryBars, SaysWhatFitsAndWhatDoesNot) {
  Trace trace = two_stages();
  EXPECT_THAT(memory_bars(trace, {.width = 66}),
              HasSubstr("dev0  PPPPPPAAAA··········  500.0 MiB of  1.00 GiB  49 %"));
  trace.capacity[0] = mebibytes(400);
  EXPECT_THAT(memory_bars(trace, {.width = 66}), HasSubstr("TOO MUCH by 100.0 MiB"));
}

// Device d works for stage d / `each` from 0 to d + 1 ms and holds d + 1 MiB.
Trace many_devices(std::size_t count, std::size_t each) {
  Trace trace;
  for (std::size_t s = 0; s * each < count; ++s) trace.stages.push_back("s" + std::to_string(s));
  for (std::size_t d = 0; d < count; ++d) {
    add_device(trace, d, "F0 0-" + std::to_string(d + 1), {});
    trace.spans.back().action = {ActionKind::kForward, StageId(d / each), 0};
    MemorySample sample;
    sample.device = DeviceId(d);
    sample.held.bytes[0] = mebibytes(static_cast<std::int64_t>(d) + 1);
    trace.memory.push_back(sample);
  }
  return trace;
}

std::vector<std::size_t> indices(const std::vector<DeviceId>& devices) {
  std::vector<std::size_t> result;
  for (const DeviceId device : devices) result.push_back(device.index());
  return result;
}

TEST(ManyDevices, AsManyAsThereIsRoomForAreAllShown) {
  const DeviceSelection selection = fullest_devices(many_devices(kMostPrintedDevices, 1));
  EXPECT_EQ(selection.shown.size(), kMostPrintedDevices);
  EXPECT_TRUE(selection.hidden.empty());
}

TEST(ManyDevices, TheFullestOfEachRunOfOneStageIsShown) {
  const DeviceSelection selection = fullest_devices(many_devices(40, 10));
  EXPECT_EQ(indices(selection.shown), (std::vector<std::size_t>{9, 19, 29, 39}));
  EXPECT_EQ(selection.hidden.size(), 36U);
}

TEST(ManyDevices, OfTooManyRunsTheFullestAreShownInTheirOrder) {
  Trace trace = many_devices(40, 1);
  trace.capacity[0] = mebibytes(1);  // as full as can be, with the least memory
  const DeviceSelection selection = fullest_devices(trace);
  ASSERT_EQ(selection.shown.size(), kMostPrintedDevices);
  EXPECT_EQ(selection.shown[0], DeviceId(0));
  EXPECT_EQ(selection.shown[1], DeviceId(9));
  EXPECT_EQ(indices(selection.hidden), (std::vector<std::size_t>{1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST(ManyDevices, EqualFiguresEndWithTheSmallerDeviceAndOnlyCandidatesAreNamed) {
  const Trace trace = many_devices(6, 3);
  const std::vector<DeviceId> candidates{DeviceId(1), DeviceId(2), DeviceId(4), DeviceId(5)};
  const std::vector<double> figure(6, 0.5);
  const DeviceSelection selection = select_devices(trace, candidates, figure, 3);
  EXPECT_EQ(indices(selection.shown), (std::vector<std::size_t>{1, 4}));
  EXPECT_EQ(indices(selection.hidden), (std::vector<std::size_t>{2, 5}));
}

TEST(ManyDevices, ALineSaysHowManyLanesAndBarsAreHiddenAndHowFarTheyLie) {
  const Trace trace = many_devices(40, 10);
  const std::string lanes = text_gantt(trace, {.width = 80});
  EXPECT_THAT(lanes, HasSubstr("\n36 more devices are 2.5 to 97.5 % busy\n"));
  EXPECT_THAT(lanes, HasSubstr("dev39"));
  EXPECT_THAT(lanes, Not(HasSubstr("dev38")));
  const std::string bars = memory_bars(trace, {.width = 80});
  EXPECT_THAT(
      bars,
      HasSubstr("\n36 more devices hold 1.00 MiB to 39.0 MiB at their peak, at most 4 % of their memory\n"));
  EXPECT_THAT(bars, Not(HasSubstr("dev38")));
}

TEST(ManyDevices, TheLegendInColourNamesNoMoreStagesThanDevices) {
  const std::string text = text_gantt(many_devices(40, 1), {.width = 80, .colour = Colour::kAnsi});
  EXPECT_THAT(text, HasSubstr("s31   and 8 more"));
  EXPECT_THAT(text, Not(HasSubstr("s32")));
}

TEST(Svg, DrawsEveryActionWithAHoverTitleAndEscapesNames) {
  Trace trace = two_stages();
  trace.stages[1] = "head <&>";
  const SvgPanel panel{trace, "a & b", ""};
  const std::string svg = svg_timeline(std::span(&panel, 1));
  EXPECT_THAT(svg, HasSubstr("<title>B1 body: 10.0 ms to 14.0 ms (4.00 ms)</title>"));
  EXPECT_THAT(svg, HasSubstr("head &lt;&amp;&gt;"));
  EXPECT_THAT(svg, HasSubstr("a &amp; b"));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_EQ(svg, svg_timeline(std::span(&panel, 1)));
}

TEST(Svg, ShowsACapacityThatIsNotEnough) {
  Trace trace = two_stages();
  trace.capacity[0] = mebibytes(400);
  const SvgPanel panel{trace, "x", ""};
  EXPECT_THAT(svg_timeline(std::span(&panel, 1)), HasSubstr("does not fit"));
}

}  // namespace
}  // namespace espalier
