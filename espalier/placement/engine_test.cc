#include "espalier/placement/engine.h"

#include <gmock/gmock.h>

#include "testing/random_instances.h"

namespace espalier::placement {
namespace {

using espalier::testing::draw;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::int64_t> counts(const std::vector<Duration>& times) {
  std::vector<std::int64_t> result;
  for (const Duration time : times) result.push_back(time.count());
  return result;
}

Assignment on(std::initializer_list<std::size_t> devices) {
  Assignment assignment;
  for (const std::size_t device : devices) assignment.emplace_back(device);
  return assignment;
}

// a (10 ns, 4 bytes) is read by b and c; d reads both. b stands on device 1.
//   device 0   a 0-10   c 10-30           d 40-41
//   device 1            b 17-37
//   wire       a 10-14           b 37-37                latency 3 ns: arrivals at 17 and 40
Instance worked_example() {
  return draw({{{10, 4, {}}, {20, 0, {0}}, {20, 5, {0}}, {1, 7, {1, 2}}}, 2, 1'000'000'000, nanoseconds(3)});
}

TEST(PlacementEngine, WorkedExampleByHand) {
  const Instance instance = worked_example();
  ASSERT_THAT(check_instance(instance), IsEmpty());
  const Assignment assignment = on({0, 1, 0, 0});
  const Engine engine(instance, {});
  const Timeline line = timeline(engine, assignment);
  EXPECT_THAT(counts(line.start), ElementsAre(0, 17, 10, 40));
  EXPECT_THAT(counts(line.end), ElementsAre(10, 37, 30, 41));
  EXPECT_EQ(line.evaluated.time, nanoseconds(41));
  // Device 0: a's value from 0 to c's end at 30; c's from 10 on; at 40 c's and d's: 4 + 5 or 5 + 7.
  // Device 1: the copy of a's value from 10 to 37.
  EXPECT_THAT(line.peak, ElementsAre(Bytes(12), Bytes(4)));
  EXPECT_THAT(check_timeline(instance, {}, assignment, line), IsEmpty());
  Scratch scratch;
  EXPECT_EQ(engine.evaluate(assignment, scratch), line.evaluated);
}

TEST(PlacementEngine, ALimitEndsWhatTakesThatLongAndNothingElse) {
  const Instance instance = worked_example();
  const Engine engine(instance, {});
  Scratch scratch;
  EXPECT_FALSE(engine.evaluate(on({0, 1, 0, 0}), scratch, nanoseconds(42)).cut_off);
  EXPECT_TRUE(engine.evaluate(on({0, 1, 0, 0}), scratch, nanoseconds(41)).cut_off);
}

TEST(PlacementEngine, PlacetoSendsOnceOverABusAndRestsAfterEverything) {
  // a's 76,000 bytes take 10 µs for b and c together; then the bus rests for 25 µs.
  //   device 0   a 0-1 µs, busy to 6.7   d 6.7-7.7
  //   bus        a 1-11                  d 36-46 (76,000 bytes, from the end of 25 µs after 11)
  //   device 1   b 11-12                 device 2   c 11-12   e 46-47
  const Instance instance = draw(
      {{{1'000, 76'000, {}}, {1'000, 0, {0}}, {1'000, 0, {0}}, {1'000, 76'000, {0}}, {1'000, 0, {3}}}, 3, 1});
  const Engine engine(instance, placeto_rules());
  const Timeline line = timeline(engine, on({0, 1, 2, 0, 2}));
  EXPECT_THAT(counts(line.start), ElementsAre(0, 11'000, 11'000, 6'700, 46'000));
  EXPECT_EQ(line.evaluated.time, microseconds(47));
  EXPECT_THAT(check_timeline(instance, placeto_rules(), on({0, 1, 2, 0, 2}), line), IsEmpty());
}

TEST(PlacementEngine, ADeviceTakesFirstWhatWasReadyFirstOrWhatCountsMost) {
  // b arrives at 5, c at 3 while a runs to 10: first c, or with priorities b.
  const Instance instance = draw({{{10, 0, {}}, {5, 0, {}}, {3, 0, {}}, {1, 0, {1}}, {1, 0, {2}}}, 3});
  const Assignment assignment = on({0, 1, 2, 0, 0});
  Rules rules;
  rules.order = Rules::Order::kFirstReady;
  EXPECT_THAT(counts(timeline(Engine(instance, rules), assignment).start), ElementsAre(0, 0, 0, 11, 10));
  rules.order = Rules::Order::kPriority;
  EXPECT_THAT(counts(timeline(Engine(instance, rules), assignment).start), ElementsAre(0, 0, 0, 10, 11));
  const Engine reversed(instance, rules, {.priority = {0, 0, 0, 2, 1}});
  EXPECT_THAT(counts(timeline(reversed, assignment).start), ElementsAre(0, 0, 0, 11, 10));
}

TEST(PlacementEngine, OthersOrdersMakeTheEngineThatWasMadeWithThem) {
  Rng rng(5);
  for (int round = 0; round < 20; ++round) {
    const Instance instance = draw({{{10, 0, {}}, {5, 3, {}}, {3, 2, {}}, {1, 0, {1}}, {1, 0, {2}}}, 3});
    DeviceOrders orders;
    Assignment assignment;
    for (std::size_t t = 0; t < instance.tasks(); ++t)
      orders.priority.push_back(static_cast<std::uint32_t>(rng.below(3)));
    for (std::size_t u = 0; u < instance.units(); ++u) assignment.emplace_back(rng.below(3));
    const Engine plain(instance, {}), made(instance, {}, orders), changed(plain, orders);
    Scratch scratch;
    EXPECT_EQ(changed.evaluate(assignment, scratch), made.evaluate(assignment, scratch));
    EXPECT_EQ(timeline(changed, assignment).lists, timeline(made, assignment).lists);
    EXPECT_EQ(timeline(Engine(made, {}), assignment).lists, timeline(plain, assignment).lists);
  }
}

TEST(PlacementEngine, ListsThatWaitInACircleAreADeadlock) {
  const Instance instance = draw({{{1, 0, {}}, {1, 0, {}}, {1, 0, {0}}, {1, 0, {1}}}, 2});
  Rules rules;
  rules.order = Rules::Order::kListed;
  DeviceOrders orders;
  orders.lists.items = {TaskId(3), TaskId(0), TaskId(2), TaskId(1)};  // d before a, c before b
  orders.lists.begin = {0, 2, 4};
  Scratch scratch;
  EXPECT_TRUE(Engine(instance, rules, orders).evaluate(on({0, 1, 1, 0}), scratch).deadlock);
  orders.lists.items = {TaskId(0), TaskId(3), TaskId(2), TaskId(1)};
  EXPECT_EQ(Engine(instance, rules, orders).evaluate(on({0, 1, 1, 0}), scratch).time, nanoseconds(4));
}

TEST(PlacementEngine, ViewsTakeNothingWhereTheyAreMadeAndKeepWhatTheyShow) {
  // b is a view of a's 8 bytes; c reads b elsewhere, where the copy is memory of its own.
  Instance instance = draw({{{1, 8, {}}, {1, 6, {0}}, {1, 0, {1}}}, 2});
  instance.own_bytes = {Bytes(8), Bytes(), Bytes()};
  instance.within = {ValueId(0), ValueId(0), ValueId(2)};
  ASSERT_THAT(check_instance(instance), IsEmpty());
  const Timeline line = timeline(Engine(instance, {}), on({0, 0, 1}));
  EXPECT_THAT(line.peak, ElementsAre(Bytes(8), Bytes(6)));
  EXPECT_THAT(check_timeline(instance, {}, on({0, 0, 1}), line), IsEmpty());
}

TEST(PlacementEngine, PlantedMistakesInATimelineAreFound) {
  const Instance instance = worked_example();
  const Assignment assignment = on({0, 1, 0, 0});
  const Timeline good = timeline(Engine(instance, {}), assignment);
  const auto finding = [&](auto change) {
    Timeline bad = good;
    change(bad);
    const std::vector<std::string> found = check_timeline(instance, {}, assignment, bad);
    std::string all;
    for (const std::string& line : found) all += line + "\n";
    return all;
  };
  EXPECT_THAT(finding([](Timeline& t) {
                t.lists.items = {TaskId(0), TaskId(2), TaskId(1), TaskId(3)};
              }),
              HasSubstr("stands elsewhere"));
  EXPECT_THAT(finding([](Timeline& t) { t.end[3] = nanoseconds(42); }), HasSubstr("duration:"));
  EXPECT_THAT(finding([](Timeline& t) { t.start[3] -= nanoseconds(1), t.end[3] -= nanoseconds(1); }),
              HasSubstr("early:"));
  EXPECT_THAT(finding([](Timeline& t) { t.start[3] += nanoseconds(1), t.end[3] += nanoseconds(1); }),
              HasSubstr("idle:"));
  EXPECT_THAT(finding([](Timeline& t) { t.start[2] -= nanoseconds(1), t.end[2] -= nanoseconds(1); }),
              HasSubstr("overlap:"));
  EXPECT_THAT(finding([](Timeline& t) { t.messages.pop_back(); }), HasSubstr("never comes"));
  EXPECT_THAT(finding([](Timeline& t) { t.messages.push_back(t.messages[0]); }), HasSubstr("comes twice"));
  EXPECT_THAT(finding([](Timeline& t) { t.messages[0].start += nanoseconds(1); }), HasSubstr("wire:"));
  EXPECT_THAT(finding([](Timeline& t) { t.peak[1] = Bytes(5); }), HasSubstr("memory:"));
  EXPECT_THAT(finding([](Timeline& t) { t.evaluated.lack = Bytes(1); }), HasSubstr("what lacks"));
  EXPECT_THAT(finding([](Timeline& t) { t.evaluated.time = nanoseconds(40); }), HasSubstr("time:"));
}

TEST(PlacementEngine, EvaluationsOfManyAreTheSameOnAnyNumberOfThreads) {
  Rng rng(5);
  const Instance instance = espalier::testing::random_instance(rng);
  const Engine engine(instance, {});
  std::vector<Assignment> assignments;
  for (int i = 0; i < 50; ++i) assignments.push_back(espalier::testing::random_assignment(rng, instance));
  const std::vector<Evaluated> alone = engine.evaluate_all(assignments, nullptr);
  for (const std::size_t threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(engine.evaluate_all(assignments, &pool), alone);
  }
}

}  // namespace
}  // namespace espalier::placement
