#include "espalier/planners/pipeline/graphpipe_neighbours.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "espalier/planners/pipeline/graphpipe.h"
#include "espalier/planners/toy_for_tests.h"

namespace espalier::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

std::string devices(std::size_t count) {
  std::string text =
      "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\ngroup network latency=0ns "
      "lanes=unlimited\n";
  for (std::size_t d = 0; d < count; ++d) text += "device dev" + std::to_string(d) + " gpu in network\n";
  return text;
}

// Two towers, a join without work, and two heavy operators behind it: places 0 … 4.
constexpr const char* kJoin =
    "x = input() : f32[b]\ny = input() : f32[b]\nw = parameter(w) : f32[1]\n"
    "img = f(x, w) : f32[b] @class=c1\ntxt = f(y, w) : f32[b] @class=c1\ncat = f(img, txt) : f32[b] "
    "@class=c0\n"
    "a = f(cat, w) : f32[b] @class=c4\nloss = f(a, w) : f32[] @class=c4\nreturn loss\n";

struct Given {
  explicit Given(const Toy& toy)
      : problem(toy.problem()),
        line(problem, chain_order(problem.graph)),
        table(problem),
        prices(line, table, BatchSize(1), MemoryRule::kAll),
        size(prices, unpinned_devices(problem), false) {}
  Problem problem;
  Linearization line;
  DeviceTable table;
  PlacePrices prices;
  PipeSize size;
};

PipeStage stage(Places places, std::size_t begin, std::size_t replicas, std::int64_t time) {
  return {.places = {places}, .begin = begin, .replicas = replicas, .time = time};
}

std::vector<PlaceRanges> places_of(const PipePlan& plan) {
  std::vector<PlaceRanges> places;
  for (const PipeStage& each : plan.stages) places.push_back(each.places);
  return places;
}
std::vector<std::size_t> replicas_of(const PipePlan& plan) {
  std::vector<std::size_t> replicas;
  std::size_t next = 0;
  for (const PipeStage& each : plan.stages) {
    EXPECT_EQ(each.begin, next);  // in a row
    next += each.replicas;
    replicas.push_back(each.replicas);
  }
  return replicas;
}

TEST(GraphPipeNeighbours, AnIdleDeviceTakesAJoinAHalfOrAReplica) {
  const Toy toy(kJoin, devices(4), 4);
  const Given given(toy);
  PipePlan plan;
  plan.stages = {stage({0, 1}, 0, 1, 12), stage({1, 2}, 1, 1, 12), stage({2, 5}, 2, 1, 96)};
  const std::vector<PipePlan> near = neighbours(plan, given.size);
  ASSERT_THAT(near, SizeIs(4));
  using Ranges = PlaceRanges;
  // The join by itself; its time is none of the stage's.
  EXPECT_THAT(places_of(near[0]),
              ElementsAre(Ranges{{0, 1}}, Ranges{{1, 2}}, Ranges{{2, 3}}, Ranges{{3, 5}}));
  EXPECT_EQ(near[0].stages[2].time, 0);
  EXPECT_EQ(near[0].stages[3].time, 96);
  // A second replica for the slowest stage: half its share of four micro-batches.
  EXPECT_THAT(replicas_of(near[1]), ElementsAre(1, 1, 2));
  EXPECT_EQ(near[1].stages[2].time, 48);
  // The slowest stage in two halves.
  EXPECT_THAT(places_of(near[2]),
              ElementsAre(Ranges{{0, 1}}, Ranges{{1, 2}}, Ranges{{2, 4}}, Ranges{{4, 5}}));
  EXPECT_EQ(near[2].stages[2].time, 48);
  EXPECT_EQ(near[2].stages[3].time, 48);
  // Of the two towers, which take the same time, the first: one device is idle.
  EXPECT_THAT(replicas_of(near[3]), ElementsAre(2, 1, 1));
}

TEST(GraphPipeNeighbours, ReplicasAreSharedOutAndTakenFromWhoTakesLeast) {
  const Toy toy(kJoin, devices(5), 4);
  const Given given(toy);
  PipePlan plan;
  plan.stages = {stage({0, 1}, 0, 2, 6), stage({1, 2}, 2, 1, 12), stage({2, 5}, 3, 2, 48)};
  bool shared = false, donated = false;
  for (const PipePlan& each : neighbours(plan, given.size)) {
    const std::vector<std::size_t> replicas = replicas_of(each);
    shared = shared || replicas == std::vector<std::size_t>{2, 1, 1, 1};
    donated = donated || replicas == std::vector<std::size_t>{1, 1, 1, 2};  // the join by itself
  }
  EXPECT_TRUE(shared);
  EXPECT_TRUE(donated);
}

TEST(GraphPipe, BranchesBeyondTheDevicesAreDealtToTracks) {
  // Towers of 3, 2, 2, 2, 2 and 1 ms and a head of 6 ms on three devices, no replicas: 3 + 2 + 1 and 2 + 2 +
  // 2 balance, which no set of neighbours by weight does. Eight micro-batches, depth 2, 18 ms each: 162 ms.
  std::string text = "w = parameter(w) : f32[1]\n", ends;
  for (const int ms : {3, 2, 2, 2, 2, 1}) {
    const std::string number = std::to_string(ends.size());
    text += "x" + number + " = input() : f32[b]\nt" + number + " = f(x" + number + ", w) : f32[b] @class=c" +
            std::to_string(ms) + "\n";
    ends += (ends.empty() ? "t" : ", t") + number;
  }
  const Toy toy(text + "loss = head(" + ends + ") : f32[] @class=c6\nreturn loss\n", devices(3), 8);
  Context context;
  const Outcome outcome = graphpipe(toy.problem(), {.most_replicas = 1}, context);
  EXPECT_EQ(toy.simulated(outcome), milliseconds(162));
}

}  // namespace
}  // namespace espalier::internal
