#include "espalier/placement/engine.h"

#include <gmock/gmock.h>

namespace espalier::placement {
namespace {

using ::testing::ElementsAre;

// Tasks of one kind and devices of equal ways; each task gives one value.
struct Sketch {
  struct Line {
    std::int64_t time;
    std::int64_t bytes;
    std::vector<std::size_t> reads;  // tasks
  };
  std::vector<Line> tasks;
  std::size_t devices = 2;
  std::int64_t bandwidth = 1'000'000'000;  // a byte a nanosecond
  Duration latency = {};
};

Instance draw(const Sketch& sketch) {
  Instance made;
  std::vector<std::vector<TaskId>> readers(sketch.tasks.size());
  for (std::size_t i = 0; i < sketch.tasks.size(); ++i) {
    const Sketch::Line& line = sketch.tasks[i];
    made.unit.emplace_back(i);
    made.op.emplace_back(i);
    made.pass.push_back(Pass::kForward);
    made.time.push_back(nanoseconds(line.time));
    made.workspace.push_back({});
    made.produces.items.emplace_back(i);
    made.produces.close();
    for (const std::size_t from : line.reads) {
      made.reads.items.emplace_back(from);
      readers[from].emplace_back(i);
    }
    made.reads.close();
    made.duplicates.close();
    made.producer.emplace_back(i);
    made.bytes.emplace_back(line.bytes);
    made.tasks_of.items.emplace_back(i);
    made.tasks_of.close();
    made.resident.close();
    for (std::size_t d = 0; d < sketch.devices; ++d) made.allowed.items.emplace_back(d);
    made.allowed.close();
  }
  for (const std::vector<TaskId>& all : readers) {
    made.readers.items.insert(made.readers.items.end(), all.begin(), all.end());
    made.readers.close();
  }
  made.kind.assign(sketch.devices, KindId(0));
  made.memory.assign(sketch.devices, Bytes(1'000));
  made.kinds = 1;
  made.links = 2 * sketch.devices;
  for (std::size_t from = 0; from < sketch.devices; ++from) {
    for (std::size_t to = 0; to < sketch.devices; ++to) {
      Way way;
      if (from != to) {
        way.links = {narrow(2 * from), narrow(2 * to + 1)};
        way.bandwidth = sketch.bandwidth;
        way.latency = sketch.latency;
      }
      made.ways.push_back(way);
    }
  }
  return made;
}

std::vector<std::int64_t> counts(const std::vector<Duration>& times) {
  std::vector<std::int64_t> result;
  for (const Duration time : times) result.push_back(time.count());
  return result;
}

TEST(PlacementEngine, WorkedExampleByHand) {
  // a (10 ns, 4 bytes) is read by b and c; d reads both. b stands on device 1.
  //   device 0   a 0-10   c 10-30           d 40-41
  //   device 1            b 17-37                        a's 4 bytes: 10-14, and 3 ns of latency
  //   wire       a 10-14           b 37-37                b has no bytes: only the latency, 37-40
  const Instance instance =
      draw({{{10, 4, {}}, {20, 0, {0}}, {20, 5, {0}}, {1, 7, {1, 2}}}, 2, 1'000'000'000, nanoseconds(3)});
  const Assignment assignment{DeviceId(0), DeviceId(1), DeviceId(0), DeviceId(0)};
  const Engine engine(instance, {});
  const Timeline line = timeline(engine, assignment);
  EXPECT_THAT(counts(line.start), ElementsAre(0, 17, 10, 40));
  EXPECT_THAT(counts(line.end), ElementsAre(10, 37, 30, 41));
  EXPECT_EQ(line.evaluated.time, nanoseconds(41));
  // Device 0: a's value from 0 to c's end at 30; c's from 10 on; at 40 c's and d's: 4 + 5 or 5 + 7.
  // Device 1: the copy of a's value from 10 to 37.
  EXPECT_THAT(line.peak, ElementsAre(Bytes(12), Bytes(4)));
  Scratch scratch;
  EXPECT_EQ(engine.evaluate(assignment, scratch), line.evaluated);
  EXPECT_FALSE(engine.evaluate(assignment, scratch, nanoseconds(42)).cut_off);
  EXPECT_TRUE(engine.evaluate(assignment, scratch, nanoseconds(41)).cut_off);
}

}  // namespace
}  // namespace espalier::placement
