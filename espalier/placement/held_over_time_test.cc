#include "espalier/placement/held_over_time.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "testing/random_instances.h"

namespace espalier::placement {
namespace {

using ::testing::ElementsAre;

HeldFrom point(std::int64_t time, std::int64_t held) {
  return {nanoseconds(time), Bytes(held)};
}

TEST(HeldOverTime, WorkedExampleByHand) {
  // a (10 ns, 4 bytes) is read by b and c; d reads both. b stands on device 1; engine_test.cc draws it.
  const Instance instance = espalier::testing::draw(
      {{{10, 4, {}}, {20, 0, {0}}, {20, 5, {0}}, {1, 7, {1, 2}}}, 2, 1'000'000'000, nanoseconds(3)});
  const Assignment assignment{DeviceId(0), DeviceId(1), DeviceId(0), DeviceId(0)};
  const Timeline line = timeline(Engine(instance, {}), assignment);
  EXPECT_THAT(held_over_time(instance, {}, assignment, line),
              ElementsAre(ElementsAre(point(0, 4), point(10, 9), point(30, 5), point(40, 12), point(41, 0)),
                          ElementsAre(point(0, 0), point(10, 4), point(37, 0))));
}

TEST(HeldOverTime, ItsPeaksAreTheTimelinesUnderAllRules) {
  Rng rng(11);
  for (int round = 0; round < 40; ++round) {
    espalier::testing::RandomInstanceOptions options;
    options.training_graph = round % 2 == 1;
    const Instance instance = espalier::testing::random_instance(rng, options);
    const Assignment assignment = espalier::testing::random_assignment(rng, instance);
    for (const Rules& rules : espalier::testing::all_rules()) {
      const Engine engine(instance, rules,
                          espalier::testing::random_orders(rng, instance, rules, assignment));
      const Timeline line = timeline(engine, assignment);
      if (line.evaluated.deadlock) continue;
      std::vector<Bytes> peaks;
      for (const auto& points : held_over_time(instance, rules, assignment, line)) {
        Bytes peak;
        for (const HeldFrom& at : points) peak = std::max(peak, at.held);
        peaks.push_back(peak);
      }
      ASSERT_EQ(peaks, line.peak) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace espalier::placement
