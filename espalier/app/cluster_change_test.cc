#include "espalier/app/cluster_change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/app/job_for_tests.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// Two linears on two hosts of two devices.
PlanningJob job_of() {
  return job_for_tests(
      "batch 1..4\nx = input() : f32[b,4]\nw = parameter(w) : f32[4,4]\nh = linear(x, w) : f32[b,4]\n"
      "loss = mean(h) : f32[]\n",
      "2x2xV100-16GB@10Gb", BatchSize(4), BatchSize(2));
}

std::vector<std::string> names(const Cluster& cluster) {
  std::vector<std::string> result;
  for (const Device& device : cluster.devices()) result.push_back(device.name);
  return result;
}

TEST(ClusterChange, TakesDevicesAwayAndPinsFollow) {
  PlanningJob job = job_of();
  job.pins = {parse_pin("h=gpu:3", job.cluster)};
  const PlanningJob changed = with_change(job, "gpu:1=gone");
  EXPECT_THAT(names(changed.cluster), ::testing::ElementsAre("gpu:0", "gpu:2", "gpu:3"));
  EXPECT_EQ(changed.cluster.device(changed.pins[0].device).name, "gpu:3");
  EXPECT_THAT(names(with_change(job, "host0=gone").cluster), ::testing::ElementsAre("gpu:2", "gpu:3"));
  EXPECT_THAT(testing::refusal([&] { with_change(job, "gpu:3=gone"); }), HasSubstr("'gpu:3' is pinned"));
  EXPECT_THAT(testing::refusal([&] { with_change(job, "*=gone"); }), HasSubstr("no device is left"));
}

TEST(ClusterChange, ThePlanToStartFromStaysOnItsDevices) {
  PlanningJob job = job_of();
  Stage stage;
  stage.name = "all";
  for (std::size_t i = 0; i < job.graph.operators().size(); ++i) stage.operators.emplace_back(i);
  stage.micro_batch = BatchSize(2);
  stage.replicas = {{{DeviceId(2)}, {0, 1}}};
  stage.in_flight = 1;
  job.start = PipelinePlan{.stages = {stage}, .batch = BatchSize(4), .orders = ScheduleKind::kOneFOneB};
  ASSERT_THAT(check_plan(job.graph, job.cluster, *job.start), ::testing::IsEmpty());
  const auto device = [&](const char* change) -> std::string {
    const PlanningJob changed = with_change(job, change);
    if (!changed.start) return "none";
    return changed.cluster.device(changed.start->stages[0].replicas[0].devices[0]).name;
  };
  EXPECT_EQ(device("links=2x"), "gpu:2");
  EXPECT_EQ(device("gpu:0=gone"), "gpu:2");
  EXPECT_EQ(device("gpu:3=+1"), "gpu:2");
  EXPECT_EQ(device("gpu:2=gone"), "none");
}

TEST(ClusterChange, AddsOnesThatAreLikeOthers) {
  const PlanningJob job = job_of();
  const Cluster more = with_change(job, "gpu:3=+2").cluster;
  EXPECT_THAT(names(more),
              ::testing::ElementsAre("gpu:0", "gpu:1", "gpu:2", "gpu:3", "gpu:3 again", "gpu:3 again 2"));
  EXPECT_EQ(more.device(DeviceId(5)).group, job.cluster.device(DeviceId(3)).group);
  const Cluster hosts = with_change(job, "host1=+1").cluster;
  EXPECT_EQ(hosts.devices().size(), 6u);
  EXPECT_EQ(hosts.device(DeviceId(4)).group, hosts.device(DeviceId(5)).group);
  EXPECT_NE(hosts.device(DeviceId(4)).group, hosts.device(DeviceId(3)).group);
  EXPECT_EQ(hosts.route(DeviceId(4), DeviceId(0)).bandwidth,
            job.cluster.route(DeviceId(2), DeviceId(0)).bandwidth);
  EXPECT_THAT(testing::refusal([&] { with_change(job, "V100-16GB=+1"); }), HasSubstr("which device"));
}

TEST(ClusterChange, SpeedMemoryAndLinks) {
  const PlanningJob job = job_of();
  const PlanningJob slow = with_change(job, "gpu:0=0.5x,gpu:1=-1GiB");
  const OperatorId op(0);
  const OperatorCosts before(job.graph, job.cluster, job.costs, BatchSize(2));
  const OperatorCosts after(slow.graph, slow.cluster, slow.costs, BatchSize(2));
  const auto forward = [&](const PlanningJob& of, const OperatorCosts& costs, std::size_t device) {
    return costs.of(op, of.cluster.device(DeviceId(device)).kind).forward;
  };
  EXPECT_EQ(forward(slow, after, 0), 2 * forward(job, before, 0));
  EXPECT_EQ(forward(slow, after, 1), forward(job, before, 1));
  EXPECT_EQ(slow.cluster.device(DeviceId(1)).memory + gibibytes(1), job.cluster.device(DeviceId(1)).memory);

  const auto rate = [](const Cluster& cluster, std::size_t to) {
    return *cluster.route(DeviceId(0), DeviceId(to)).bandwidth;
  };
  const Cluster links = with_change(job, "links=2x").cluster;
  EXPECT_EQ(rate(links, 1), 2 * rate(job.cluster, 1));
  EXPECT_EQ(rate(links, 2), 2 * rate(job.cluster, 2));
  const Cluster inside = with_change(job, "links:host0=0.5x").cluster;
  EXPECT_EQ(2 * rate(inside, 1), rate(job.cluster, 1));
  EXPECT_EQ(rate(inside, 2), rate(job.cluster, 2));
}

TEST(ClusterChange, WhatMeansNothingIsNamed) {
  const PlanningJob job = job_of();
  const auto refused = [&](const char* change) {
    return testing::refusal([&] { with_change(job, change); });
  };
  EXPECT_THAT(
      refused("gpu:9=gone"),
      HasSubstr("--what-if 'gpu:9=gone': there is no device, group or kind 'gpu:9'; did you mean 'gpu:"));
  EXPECT_THAT(refused("gpu:1"), HasSubstr("expected such as gpu:3=gone"));
  EXPECT_THAT(refused("gpu:1=faster"), HasSubstr("'faster' is no change"));
  EXPECT_THAT(refused("links=fast"), HasSubstr("is no rate for links"));
  EXPECT_THAT(refused("links:hos=2x"), HasSubstr("did you mean 'host0'?"));
  EXPECT_THAT(refused("gpu:1=-1TB"), HasSubstr("has no more than that"));
  EXPECT_THAT(refused("gpu:1=0x"), HasSubstr("is no change"));
}

}  // namespace
}  // namespace espalier
