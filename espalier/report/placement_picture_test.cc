#include "espalier/report/placement_picture.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "espalier/base/json.h"
#include "espalier/cluster/text.h"
#include "espalier/cost/cost_table.h"
#include "espalier/cost/text.h"
#include "espalier/graph/text.h"
#include "espalier/placement/instance.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// a on gpu:0 feeds b on gpu:1, and back: one message each way.
struct TwoDevices {
  Graph graph = parse_graph("x = input()\na = f(x)\nb = g(a)\n");
  Cluster cluster = parse_cluster("2xV100-16GB");
  placement::Instance instance = made();
  placement::Assignment assignment;
  placement::Rules rules;
  placement::Timeline line;

  TwoDevices() {
    for (std::size_t u = 0; u < instance.units(); ++u)
      assignment.emplace_back(u + 1 == instance.units() ? 1U : 0U);
    line = placement::timeline(placement::Engine(instance, rules), assignment);
  }
  PlacementPicture picture() const {
    return {graph, cluster, instance, rules, assignment, line, "by <hand>"};
  }

 private:
  placement::Instance made() const {
    Training training;
    training.batch = BatchSize(1);
    const BatchSize one(1);
    return placement::make_instance(
        graph, cluster, complete_costs(graph, cluster, CostTable({}), std::span(&one, 1)), training, {});
  }
};

TEST(PlacementPicture, TheTraceHasEachTaskAndEachMessageOnce) {
  const TwoDevices made;
  ASSERT_FALSE(made.line.messages.empty());
  const Json trace = Json::parse(chrome_placement(made.picture()));
  std::size_t tasks = 0, messages = 0, counters = 0;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "C") ++counters;
    if (event.at("ph") != "X") continue;
    (event.at("cat") == "message" ? messages : tasks) += 1;
    EXPECT_GE(event.at("dur").get<double>(), 0);
  }
  EXPECT_EQ(tasks, made.instance.tasks());
  EXPECT_EQ(messages, made.line.messages.size());
  EXPECT_GE(counters, made.instance.devices());
}

// An arrow's points: each within a slice of its process and thread, later ones not before earlier ones, one
// beginning and one end for each id.
TEST(PlacementPicture, TheArrowsOfTheTraceLieInSlices) {
  const TwoDevices made;
  const Json trace = Json::parse(chrome_placement(made.picture()));
  std::map<std::int64_t, std::vector<Json>> flows;
  std::vector<Json> slices;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") slices.push_back(event);
    if (event.contains("id")) flows[event.at("id").get<std::int64_t>()].push_back(event);
  }
  EXPECT_EQ(flows.size(), made.line.messages.size());
  for (const auto& [id, points] : flows) {
    ASSERT_EQ(points.size(), 3U);  // operator, message, operator
    EXPECT_EQ(points[0].at("ph"), "s");
    EXPECT_EQ(points[1].at("ph"), "t");
    EXPECT_EQ(points[2].at("ph"), "f");
    double before = 0;
    for (const Json& point : points) {
      const double at = point.at("ts").get<double>();
      EXPECT_GE(at, before);
      before = at;
      EXPECT_TRUE(std::any_of(slices.begin(), slices.end(), [&](const Json& slice) {
        const double start = slice.at("ts").get<double>();
        return slice.at("pid") == point.at("pid") && slice.at("tid") == point.at("tid") && start <= at &&
               at < start + slice.at("dur").get<double>();
      })) << point;
    }
    EXPECT_NE(points[0].at("pid"), points[2].at("pid"));
    EXPECT_EQ(points[1].at("pid"), points[0].at("pid"));
    EXPECT_NE(points[1].at("tid"), points[0].at("tid"));
  }
}

// Tags close in the order in which they open, and text has no bare sign of markup.
bool well_formed(std::string_view xml) {
  std::vector<std::string_view> open;
  while (!xml.empty()) {
    const std::size_t at = xml.find('<');
    const std::string_view text = xml.substr(0, at);
    if (text.find('>') != text.npos) return false;
    if (at == xml.npos) break;
    const std::size_t end = xml.find('>', at);
    if (end == xml.npos) return false;
    const std::string_view tag = xml.substr(at + 1, end - at - 1);
    xml.remove_prefix(end + 1);
    const std::string_view name = tag.substr(0, tag.find_first_of(" \n/", 1));
    if (tag.front() == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
  }
  return open.empty();
}

TEST(PlacementPicture, TheSvgHasAnArrowForEachMessageThatSomebodyWaitedFor) {
  const TwoDevices made;
  const std::string svg = svg_placement(made.picture());
  EXPECT_TRUE(well_formed(svg));
  std::size_t arrows = 0;
  for (std::size_t at = svg.find("<path class=\"a"); at != svg.npos;
       at = svg.find("<path class=\"a", at + 1)) {
    ++arrows;
  }
  EXPECT_GT(arrows, 0U);
  EXPECT_THAT(svg, HasSubstr("<path class=\"ac\""));
  EXPECT_THAT(svg, HasSubstr("Arrows: " + std::to_string(arrows) + " of " +
                             std::to_string(made.line.messages.size()) + " messages"));
}

TEST(PlacementPicture, TheSvgNamesDevicesAndEscapesItsTitle) {
  const TwoDevices made;
  const std::string svg = svg_placement(made.picture());
  EXPECT_THAT(svg, HasSubstr("by &lt;hand&gt;"));
  EXPECT_THAT(svg, HasSubstr("gpu:0"));
  EXPECT_THAT(svg, HasSubstr("gpu:1"));
  EXPECT_THAT(svg, HasSubstr("to gpu:1"));
  EXPECT_THAT(svg, HasSubstr("</svg>"));
  EXPECT_EQ(svg, svg_placement(made.picture()));
}

// a and c on dev0, b on dev1: 10, 20 and 10 ms; 16 bytes take 10 ms on their way.
struct ThereAndBack {
  Graph graph = parse_graph(
      "x = input() : f32[b,4]\na = f(x) : f32[b,4] @class=a\nb = f(a) : f32[b,4] @class=b\n"
      "c = f(b) : f32[b,4] @class=a\n");
  Cluster cluster = parse_cluster_lines(
      "kind dev 1GiB f32=1e12 f16=1e12 mem=100GB launch=1us sms=1\ngroup net 1600B latency=0ns\n"
      "device dev0 dev in net\ndevice dev1 dev in net\n");
  placement::Instance instance = made();
  placement::Assignment assignment{DeviceId(0), DeviceId(1), DeviceId(0)};
  placement::Rules rules;
  placement::Timeline line = placement::timeline(placement::Engine(instance, rules), assignment);

  PlacementPicture picture() const { return {graph, cluster, instance, rules, assignment, line, ""}; }

 private:
  placement::Instance made() const {
    Training training;
    training.batch = BatchSize(1);
    const CostTable costs = parse_costs(
        "cost a dev batch=1 f=10ms i=0ns w=0ns origin=measured\n"
        "cost b dev batch=1 f=20ms i=0ns w=0ns origin=measured\n");
    return placement::make_instance(graph, cluster, costs, training, {});
  }
};

TEST(PlacementGantt, ShowsWhoIsBusyWhoWaitsAndWhoSends) {
  const ThereAndBack made;
  ASSERT_EQ(made.line.evaluated.time, milliseconds(60));
  EXPECT_EQ(text_placement(made.picture(), {.width = 45}),  // 24 columns of 2.5 ms
            "      0       20      40      60 ms\n"
            "dev0  FFFF················FFFF   33.3 % busy\n"
            "          ====                   16.7 % sends\n"
            "dev1  ········FFFFFFFF           33.3 % busy\n"
            "                      ====       16.7 % sends\n"
            "F forward   B backward   U update\n"
            "small: less than half of a column   · waits\n"
            "= sends, - in less than half of a column\n");
}

TEST(PlacementGantt, MemoryIsShownAsAPartOfItsPeak) {
  const ThereAndBack made;
  const std::string text = text_placement(made.picture(), {.width = 45, .memory = true});
  EXPECT_THAT(text, HasSubstr("  peak " + to_text(made.line.peak[0]) + "\n"));
  EXPECT_THAT(text, HasSubstr("  peak " + to_text(made.line.peak[1]) + "\n"));
  EXPECT_THAT(text, HasSubstr("█"));
}

}  // namespace
}  // namespace espalier
