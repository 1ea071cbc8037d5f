#include "espalier/placement/message_uses.h"

#include <gmock/gmock.h>

#include <map>

#include "testing/random_instances.h"

namespace espalier::placement {
namespace {

using ::testing::ElementsAre;

TEST(MessageUses, WorkedExampleByHand) {
  // a (10 ns, 4 bytes) is read by b and c; d reads both. b stands on device 1: it gets a at 10 + 4 + 3 = 17
  // and its device stood idle until then; its 5 bytes come back at 37 + 5 + 3 = 45, for which device 0 waits
  // from c's end at 30 on.
  const Instance instance = espalier::testing::draw(
      {{{10, 4, {}}, {20, 5, {0}}, {20, 0, {0}}, {1, 7, {1, 2}}}, 2, 1'000'000'000, nanoseconds(3)});
  const Assignment assignment{DeviceId(0), DeviceId(1), DeviceId(0), DeviceId(0)};
  const Timeline line = timeline(Engine(instance, {}), assignment);
  EXPECT_THAT(message_uses(instance, assignment, line),
              ElementsAre(MessageUse{TaskId(1), nanoseconds(17), true},
                          MessageUse{TaskId(3), nanoseconds(15), true}));
}

TEST(MessageUses, OnlyIdlenessIsWaiting) {
  // The same, but c takes 50 ns: the message from b comes at 45, c ends at 60.
  const Instance instance = espalier::testing::draw(
      {{{10, 4, {}}, {20, 5, {0}}, {50, 0, {0}}, {1, 7, {1, 2}}}, 2, 1'000'000'000, nanoseconds(3)});
  const Assignment assignment{DeviceId(0), DeviceId(1), DeviceId(0), DeviceId(0)};
  const Timeline line = timeline(Engine(instance, {}), assignment);
  EXPECT_THAT(message_uses(instance, assignment, line),
              ElementsAre(MessageUse{TaskId(1), nanoseconds(17), false},
                          MessageUse{TaskId(3), nanoseconds(0), false}));
}

TEST(MessageUses, DevicesWaitAtMostWhileTheyAreIdleUnderAllRules) {
  Rng rng(12);
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
      const std::vector<MessageUse> uses = message_uses(instance, assignment, line);
      ASSERT_EQ(uses.size(), line.messages.size());
      std::map<DeviceId, Duration> waited, busy;
      for (std::size_t m = 0; m < uses.size(); ++m) {
        waited[line.messages[m].to] += uses[m].waited;
        EXPECT_LE(line.messages[m].arrival, line.start[uses[m].reader.index()]) << "round " << round;
        EXPECT_EQ(assignment[instance.unit[uses[m].reader.index()].index()], line.messages[m].to);
        if (uses[m].critical) {
          EXPECT_GT(uses[m].waited, Duration());
        }
      }
      for (std::size_t d = 0; d < instance.devices(); ++d) {
        for (const TaskId task : line.lists[d])
          busy[DeviceId(d)] += line.end[task.index()] - line.start[task.index()];
        EXPECT_LE(waited[DeviceId(d)] + busy[DeviceId(d)], line.evaluated.time) << "round " << round;
      }
    }
  }
}

}  // namespace
}  // namespace espalier::placement
