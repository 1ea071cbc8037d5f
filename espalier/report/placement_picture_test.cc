#include "espalier/report/placement_picture.h"

#include <gmock/gmock.h>

#include "espalier/base/json.h"
#include "espalier/cost/cost_table.h"
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

}  // namespace
}  // namespace espalier
