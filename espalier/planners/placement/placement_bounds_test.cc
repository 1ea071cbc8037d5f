#include "espalier/planners/placement/placement_bounds.h"

#include <gmock/gmock.h>

#include "espalier/planners/placement/search_cases_for_tests.h"

namespace espalier::placement {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(PlacementBounds, NeverAboveTheBestOfAllAssignments) {
  for (std::uint64_t seed = 0; seed < 1'500; ++seed) {
    Rng rng(seed);
    const CaseOptions options{
        .tasks = 2 + rng.below(5),
        .devices = 2 + rng.below(2),
        .kinds = 1 + rng.below(2),
        .memory = static_cast<std::int64_t>(rng.below(3) == 0 ? 12 + rng.below(40) : 1'000)};
    const Instance instance = random_case(options, rng);
    ASSERT_THAT(check_instance(instance), IsEmpty());
    const Rules rules = some_rules(seed);
    const std::optional<Duration> best = least_of_all(Engine(instance, rules));
    if (!best) continue;
    EXPECT_FALSE(nothing_fits(instance, rules)) << seed;
    EXPECT_LE(path_bound(instance, rules).time, *best) << seed;
    EXPECT_LE(message_path_bound(instance, rules).time, *best) << seed;
    EXPECT_LE(load_bound(instance, rules).time, *best) << seed;
    EXPECT_LE(window_bound(instance, rules).time, *best) << seed;
  }
}

// Tasks of given times, each its own unit, on equal devices; `reads` by task.
Instance plain(const std::vector<std::int64_t>& times, const std::vector<std::vector<std::size_t>>& reads,
               std::size_t devices) {
  Rng rng(1);
  Instance made =
      random_case({.tasks = times.size(), .devices = devices, .readers = 0, .together = 1'000'000}, rng);
  std::vector<std::vector<TaskId>> readers(times.size());
  made.reads = {};
  made.readers = {};
  made.allowed = {};
  for (std::size_t t = 0; t < times.size(); ++t) {
    made.time[t] = nanoseconds(times[t]);
    made.bytes[t] = Bytes(1);
    for (const std::size_t from : reads[t]) {
      made.reads.items.emplace_back(from);
      readers[from].emplace_back(t);
    }
    made.reads.close();
    for (std::size_t d = 0; d < devices; ++d) made.allowed.items.emplace_back(d);
    made.allowed.close();
  }
  for (const std::vector<TaskId>& all : readers) {
    made.readers.items.insert(made.readers.items.end(), all.begin(), all.end());
    made.readers.close();
  }
  return made;
}

TEST(PlacementBounds, JoinPaysForAMessageOrRunsItsProducersInTurn) {
  // a (10) and b (10) are read by c (5). On one device 10 + 10 + 5; with b elsewhere its byte takes 10 ns and
  // 3 ns of latency: 10 + 13 + 5 = 28.
  const Instance instance = plain({10, 10, 5}, {{}, {}, {0, 1}}, 2);
  EXPECT_EQ(path_bound(instance, {}).time, nanoseconds(15));
  EXPECT_EQ(message_path_bound(instance, {}).time, nanoseconds(25));
}

TEST(PlacementBounds, LoadIsWorkOverDevicesOrTheLargestThatShareOne) {
  // 40 ns on two devices; of three largest units, 10 each, two share a device.
  EXPECT_EQ(load_bound(plain({10, 10, 10, 10}, {{}, {}, {}, {}}, 2), {}).time, nanoseconds(20));
  EXPECT_EQ(load_bound(plain({10, 10, 10}, {{}, {}, {}}, 2), {}).time, nanoseconds(20));
}

TEST(PlacementBounds, WindowAddsWhatMustComeBeforeAndBehind) {
  // A source of 10, four of 10 each on two devices, a sink of 10: 10 + 20 + 10.
  const Instance instance = plain({10, 10, 10, 10, 10, 10}, {{}, {0}, {0}, {0}, {0}, {1, 2, 3, 4}}, 2);
  EXPECT_GE(window_bound(instance, {}).time, nanoseconds(39));
}

TEST(PlacementBounds, NothingFitsSaysWhatIsTooLarge) {
  Instance instance = plain({1, 1, 1}, {{}, {}, {}}, 2);
  instance.resident_bytes = {Bytes(600), Bytes(600), Bytes(600)};
  EXPECT_THAT(nothing_fits(instance, {}).value_or(""), HasSubstr("the largest units"));
  instance.resident_bytes = {Bytes(900), Bytes(900), Bytes(300)};
  EXPECT_THAT(nothing_fits(instance, {}).value_or(""), HasSubstr("all units together"));
  instance.resident_bytes = {Bytes(1'100), Bytes(1), Bytes(1)};
  EXPECT_THAT(nothing_fits(instance, {}).value_or(""), HasSubstr("unit 0 alone"));
  instance.resident_bytes = {Bytes(500), Bytes(1), Bytes(1)};
  EXPECT_FALSE(nothing_fits(instance, {}));
}

}  // namespace
}  // namespace espalier::placement
