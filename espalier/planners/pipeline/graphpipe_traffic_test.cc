#include "espalier/planners/pipeline/graphpipe_traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "espalier/base/rng.h"
#include "espalier/planners/draft.h"
#include "espalier/planners/toy_for_tests.h"

namespace espalier::internal {
namespace {

// Hosts of two devices, 1 GB/s inside, and so much between them.
std::string hosts(std::size_t count, const std::string& bandwidth = "1GB") {
  std::string text =
      "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\ngroup network " + bandwidth + "\n";
  for (std::size_t h = 0; h < count; ++h) {
    const std::string host = "host" + std::to_string(h);
    text += "group " + host + " in network 1GB\ndevice a" + host + " gpu in " + host + "\ndevice b" + host +
            " gpu in " + host + "\n";
  }
  return text;
}

std::int64_t mebibytes_at_one_gigabyte(std::int64_t count) {
  return transfer_time(mebibytes(1), 1'000'000'000).count() * count;
}

std::map<std::string, std::int64_t> by_name(const Cluster& cluster, const std::vector<std::int64_t>& held) {
  std::map<std::string, std::int64_t> named;
  for (LinkIndex link = 0; link < held.size(); ++link) {
    if (held[link] > 0) named[cluster.link_name(link)] = held[link];
  }
  return named;
}

// Two replicas of the first layer on two hosts send 1 MiB a sample to one device of the first of them, which
// sends as much back. Six micro-batches in turn: three stay on the host.
TEST(StepTraffic, CountsEachLinkOfAWay) {
  const Toy toy(wide_chain({1, 1}), hosts(2), 6);
  const Problem problem = toy.problem();
  const Linearization line(problem, chain_order(problem.graph));
  const DeviceTable table(problem);
  PlacePrices prices(line, table, BatchSize(1), MemoryRule::kAll);
  const PlaceRanges first{{0, 1}}, second{{1, 2}};
  const StepTraffic traffic(problem, {{&first, &prices}, {&second, &prices}});
  const auto held =
      traffic.on_links({{DeviceId(0U), DeviceId(2)}, {DeviceId(1)}});  // sums: four bytes, two chunks of two
  const CollectiveCost sum = all_reduce_cost(toy.cluster, std::vector{DeviceId(0U), DeviceId(2)}, Bytes(4));
  const std::int64_t three = mebibytes_at_one_gigabyte(3), six = mebibytes_at_one_gigabyte(6);
  const std::int64_t added = sum.hold.count();
  const std::map<std::string, std::int64_t> expected{
      {"ahost0 up", three + added},  {"ahost0 down", three + added}, {"bhost0 up", six},
      {"bhost0 down", six},          {"ahost1 up", three + added},   {"ahost1 down", three + added},
      {"host0 up", three + added},   {"host0 down", three + added},  {"host1 up", three + added},
      {"host1 down", three + added},
  };
  EXPECT_EQ(by_name(toy.cluster, held), expected);
  EXPECT_EQ(traffic.busiest({{DeviceId(0U), DeviceId(2)}, {DeviceId(1)}}), six);
}

// A micro-batch of two samples before stages of one each: both pieces are sent by themselves.
TEST(StepTraffic, PiecesOfLargerMicroBatchesGoToWhoTakesThem) {
  const Toy toy(wide_chain({1, 1}), hosts(2), 6, {BatchSize(1), BatchSize(2)});
  const Problem problem = toy.problem();
  const Linearization line(problem, chain_order(problem.graph));
  const DeviceTable table(problem);
  PlacePrices ones(line, table, BatchSize(1), MemoryRule::kAll);
  PlacePrices twos(line, table, BatchSize(2), MemoryRule::kAll);
  const PlaceRanges first{{0, 1}}, second{{1, 2}};
  const StepTraffic traffic(problem, {{&first, &twos}, {&second, &ones}});
  auto held = by_name(toy.cluster, traffic.on_links({{DeviceId(0U)}, {DeviceId(1), DeviceId(2)}}));
  EXPECT_GE(held["ahost0 up"], mebibytes_at_one_gigabyte(6) - 6);  // each piece is rounded up by itself
  EXPECT_LE(held["ahost0 up"], mebibytes_at_one_gigabyte(6) + 6);
  EXPECT_GE(held["host0 up"], mebibytes_at_one_gigabyte(3));
  EXPECT_LE(held["host0 up"], mebibytes_at_one_gigabyte(3) + 1000);  // and four bytes of gradients
}

// Random chains of stages with one or two replicas, on hosts with links of several speeds: no link holds more
// than a step, and in some of them nearly as much.
TEST(StepTraffic, NoStepIsShorterThanItsBusiestLink) {
  Rng rng(20261129);
  int close = 0;
  for (int round = 0; round < 100; ++round) {
    const std::size_t layers = 2 + rng.below(4);
    std::vector<std::int64_t> times(layers);
    for (std::int64_t& each : times) each = static_cast<std::int64_t>(1 + rng.below(4));
    const Toy toy(wide_chain(times), hosts(4, std::to_string(50 << rng.below(6)) + "MB"), 12);
    const Problem problem = toy.problem();
    const Linearization line(problem, chain_order(problem.graph));
    const DeviceTable table(problem);
    PlacePrices prices(line, table, BatchSize(1), MemoryRule::kAll);
    std::vector<DeviceId> row = unpinned_devices(problem);
    for (std::size_t i = row.size(); i > 1; --i) std::swap(row[i - 1], row[rng.below(i)]);
    std::vector<StageDraft> drafts;
    std::vector<PlaceRanges> places;
    for (std::uint32_t place = 0; place < line.size(); ++place) {
      const bool begins = drafts.empty() || (drafts.size() < 4 && rng.below(2) == 0);
      if (begins) {
        drafts.push_back({});
        places.emplace_back();
        const std::size_t replicas = 1 + rng.below(2);
        for (std::size_t r = 0; r < replicas; ++r) {
          drafts.back().devices.push_back(row.back());
          row.pop_back();
        }
      }
      drafts.back().operators = united(drafts.back().operators, {line[place]});
      append_places(places.back(), {place, place + 1});
    }
    const auto plan = complete_plan(toy.graph, drafts, BatchSize(12), BatchSize(1), OrderRule());
    ASSERT_TRUE(plan.has_value());
    std::vector<StepTraffic::StageAt> stages;
    std::vector<std::vector<DeviceId>> devices;
    for (const PlaceRanges& each : places) stages.push_back({&each, &prices});
    for (const StageDraft& draft : drafts) devices.push_back(draft.devices);
    const std::int64_t busiest = StepTraffic(problem, stages).busiest(devices);
    Outcome outcome;
    outcome.plan = Plan(*plan);
    const Duration step = toy.simulated(outcome);
    EXPECT_LE(busiest, step.count()) << round;
    close += 10 * busiest > 8 * step.count() ? 1 : 0;
  }
  EXPECT_GT(close, 5);
}

}  // namespace
}  // namespace espalier::internal
