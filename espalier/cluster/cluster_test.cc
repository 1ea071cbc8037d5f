#include "espalier/cluster/cluster.h"

#include <gmock/gmock.h>

#include <cmath>
#include <functional>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/base/rng.h"
#include "espalier/cluster/json.h"
#include "espalier/cluster/text.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;
using ::testing::SizeIs;

// Two hosts with two devices each:   network -- host0 -- gpu:0, gpu:1
//                                            \- host1 -- gpu:2, gpu:3
constexpr const char* kTwoHosts =
    "kind V100 16GiB f32=15.7e12 f16=125e12 mem=900GB launch=5us sms=80\n"
    "group network 25Gb latency=10us send=100us+400ps/B\n"
    "group host0 in network 150GB latency=2us\n"
    "group host1 in network 100GB latency=3us lanes=unlimited\n"
    "device gpu:0 V100 in host0\n"
    "device gpu:1 V100 in host0 memory=12GiB\n"
    "device gpu:2 V100 in host1\n"
    "device gpu:3 V100 in host1\n";

std::vector<std::string> link_names(const Cluster& cluster, const Route& route) {
  std::vector<std::string> names;
  for (const LinkIndex link : route.links) names.push_back(cluster.link_name(link));
  return names;
}

TEST(Cluster, ARouteInsideAHostHoldsTwoLinks) {
  const Cluster c = parse_cluster_lines(kTwoHosts);
  const Route route = c.route(DeviceId(0), DeviceId(1));
  EXPECT_THAT(link_names(c, route), ElementsAre("gpu:0 up", "gpu:1 down"));
  EXPECT_EQ(route.bandwidth, 150'000'000'000);
  EXPECT_EQ(route.latency, microseconds(2));
  EXPECT_EQ(route.send, EndpointCost()) << "the network's endpoint cost is for routes that leave the host";
  EXPECT_EQ(route.hold(Bytes(1'500'000)), microseconds(10));  // 1.5 MB at 150 GB/s
}

TEST(Cluster, ARouteBetweenHostsIsAsFastAsItsSlowestLink) {
  const Cluster c = parse_cluster_lines(kTwoHosts);
  const Route route = c.route(DeviceId(1), DeviceId(2));
  // Inside host1 transfers do not disturb each other, so that link is not held.
  EXPECT_THAT(link_names(c, route), ElementsAre("gpu:1 up", "host0 up", "host1 down"));
  EXPECT_EQ(route.bandwidth, 3'125'000'000);  // 25 Gb/s
  EXPECT_EQ(route.latency, microseconds(10));
  EXPECT_EQ(route.send.of(Bytes(1000)), nanoseconds(100'400));  // 100 us + 1000 * 400 ps
}

TEST(Cluster, LinksOfADeviceInAGroupWithoutContentionStillLimitTheRate) {
  const Cluster c = parse_cluster_lines(kTwoHosts);
  const Route route = c.route(DeviceId(2), DeviceId(3));
  EXPECT_THAT(route.links, IsEmpty());
  EXPECT_EQ(route.bandwidth, 100'000'000'000);
}

TEST(Cluster, ADeviceReachesItselfInNoTime) {
  const Cluster c = parse_cluster_lines(kTwoHosts);
  EXPECT_EQ(c.route(DeviceId(0), DeviceId(0)), Route());
}

TEST(Cluster, ThereAreTwoLinksPerDeviceAndPerGroupBelowTheRoot) {
  const Cluster c = parse_cluster_lines(kTwoHosts);
  ASSERT_EQ(c.link_count(), 12U);  // 2 * (4 devices + 2 hosts)
  std::vector<std::string> names;
  for (LinkIndex link = 0; link < c.link_count(); ++link) names.push_back(c.link_name(link));
  EXPECT_THAT(names,
              ElementsAre("gpu:0 up", "gpu:0 down", "gpu:1 up", "gpu:1 down", "gpu:2 up", "gpu:2 down",
                          "gpu:3 up", "gpu:3 down", "host0 up", "host0 down", "host1 up", "host1 down"));
}

TEST(Cluster, TheCommonGroupIsTheLowestOneWithBoth) {
  const Cluster c = parse_cluster_lines(
      "kind k 1GiB f32=1 mem=1GB\n"
      "group root\ngroup rack in root\ngroup host in rack\n"
      "device a k in host\ndevice b k in host\ndevice c k in rack\ndevice d k in root\n");
  const auto common = [&](std::size_t a, std::size_t b) {
    return c.group(c.common_group(DeviceId(a), DeviceId(b))).name;
  };
  EXPECT_EQ(common(0, 1), "host");
  EXPECT_EQ(common(0, 2), "rack");
  EXPECT_EQ(common(3, 1), "root");
  EXPECT_EQ(c.route(DeviceId(3), DeviceId(0)).links.size(), 4U);  // d up, rack down, host down, a down
}

TEST(EndpointCost, IsRoundedUpToNanoseconds) {
  EXPECT_EQ((EndpointCost{Duration(), 400}.of(Bytes(1))), nanoseconds(1));
  EXPECT_EQ((EndpointCost{Duration(), 400}.of(Bytes(5))), nanoseconds(2));
  EXPECT_EQ(EndpointCost().of(Bytes(1'000'000)), Duration());
  EXPECT_EQ((EndpointCost{Duration(), 1 << 30}.of(Bytes(std::int64_t{1} << 61))),
            Duration(std::int64_t{1} << 60));
}

TEST(AllReduce, ARingSendsEachShareTwiceButOnce) {
  const Cluster c = parse_cluster_lines(kTwoHosts);
  const std::vector<DeviceId> two{DeviceId(0), DeviceId(1)};
  const CollectiveCost inside = all_reduce_cost(c, two, Bytes(300'000));
  // 2 * (2 - 1) steps of 150 kB at 150 GB/s = 2 * 1 us, and 2 * 2 us latency
  EXPECT_EQ(inside.hold, microseconds(2));
  EXPECT_EQ(inside.latency, microseconds(4));
  EXPECT_THAT(inside.links, ElementsAre(0, 1, 2, 3));

  const std::vector<DeviceId> all{DeviceId(0), DeviceId(1), DeviceId(2), DeviceId(3)};
  const CollectiveCost across = all_reduce_cost(c, all, Bytes(12'500));
  // 2 * (4 - 1) steps of 3125 B at 3.125 GB/s = 6 * 1 us, and 6 * 10 us latency with the senders' 101.25 us
  EXPECT_EQ(across.hold, microseconds(6));
  EXPECT_EQ(across.latency, 6 * nanoseconds(10'000 + 100'000 + 1'250));
}

TEST(AllReduce, EveryStepPaysBothEndpoints) {
  ClusterParts parts = parse_cluster_lines(kTwoHosts).parts();
  parts.groups[1].send = {microseconds(3), 1000};  // and 1 ns per byte
  parts.groups[1].receive = {microseconds(2), 0};
  const std::vector<DeviceId> two{DeviceId(0), DeviceId(1)};
  const CollectiveCost cost = all_reduce_cost(Cluster(parts), two, Bytes(300'000));
  EXPECT_EQ(cost.hold, microseconds(2));
  EXPECT_EQ(cost.latency, 2 * (microseconds(2) + microseconds(3 + 150) + microseconds(2)));
}

TEST(AllReduce, OneMemberPaysNothing) {
  const Cluster c = parse_cluster_lines(kTwoHosts);
  const std::vector<DeviceId> one{DeviceId(2)};
  const CollectiveCost cost = all_reduce_cost(c, one, gibibytes(1));
  EXPECT_EQ(cost.hold + cost.latency, Duration());
  EXPECT_THAT(cost.links, IsEmpty());
}

// Planted faults: each breaks one rule, and only that rule reports.
ClusterParts two_hosts() {
  return parse_cluster_lines(kTwoHosts).parts();
}
void expect_one(const ClusterParts& parts, const std::string& why) {
  EXPECT_THAT(check_cluster(parts), ElementsAre(HasSubstr(why)));
  EXPECT_THAT(refusal([&] { Cluster cluster(parts); }), HasSubstr(why));
}

TEST(CheckCluster, RefusesNamesThatRepeatOrAreMissing) {
  ClusterParts parts = two_hosts();
  parts.devices[1].name = "gpu:0";
  expect_one(parts, "'gpu:0' stands twice");
  parts = two_hosts();
  parts.devices[1].name = "host1";
  expect_one(parts, "'host1' stands twice");
  parts = two_hosts();
  parts.kinds.push_back(parts.kinds[0]);
  expect_one(parts, "device kind 'V100' stands twice");
  parts = two_hosts();
  parts.kinds[0].name.clear();
  expect_one(parts, "kind has no name");
  parts = two_hosts();
  parts.groups[1].name.clear();
  expect_one(parts, "has no name");
  parts = two_hosts();
  parts.groups[1].name = "\xff";
  expect_one(parts, "group or device is not UTF-8");
  parts = two_hosts();
  parts.kinds[0].name = "\xff";
  expect_one(parts, "kind is not UTF-8");
}

TEST(CheckCluster, RefusesRatesThatAreNotPositive) {
  const auto broken = [](auto change) {
    ClusterParts parts = two_hosts();
    change(parts.kinds[0]);
    return parts;
  };
  expect_one(broken([](DeviceKind& k) { k.memory = Bytes(); }), "memory must be positive");
  expect_one(broken([](DeviceKind& k) { k.flops_f32 = 0; }), "f32 must be positive");
  expect_one(broken([](DeviceKind& k) { k.flops_f16 = -1; }), "f16 must be positive");
  expect_one(broken([](DeviceKind& k) { k.memory_bandwidth = 0; }), "memory bandwidth must be positive");
  expect_one(broken([](DeviceKind& k) { k.multiprocessors = 0; }), "multiprocessors must be positive");
  expect_one(broken([](DeviceKind& k) { k.speed = 0; }), "speed must be positive");
  expect_one(broken([](DeviceKind& k) { k.flops_f32 = std::nan(""); }), "f32 must be positive");
  expect_one(broken([](DeviceKind& k) { k.launch_overhead = Duration(-1); }), "launch overhead is negative");
  ClusterParts parts = two_hosts();
  parts.groups[0].bandwidth = 0;
  expect_one(parts, "bandwidth must be positive");
  parts = two_hosts();
  parts.devices[0].memory = Bytes();
  expect_one(parts, "device 'gpu:0': memory must be positive");
}

TEST(CheckCluster, RefusesRatesBeyondAllReason) {
  const auto broken = [](auto change) {
    ClusterParts parts = two_hosts();
    change(parts.kinds[0]);
    return parts;
  };
  expect_one(broken([](DeviceKind& k) { k.flops_f32 = 1.1e30; }), "f32 must be at most 1e30");
  expect_one(broken([](DeviceKind& k) { k.speed = HUGE_VAL; }), "speed must be at most 1e30");
  expect_one(broken([](DeviceKind& k) { k.multiprocessors = 1'000'001; }), "more than a million");
}

// Otherwise a cluster could be read from lines, but not from the JSON written for it.
TEST(ClusterText, HasTheLimitsOfTheJsonForm) {
  const std::string rest = " mem=1GB\ngroup g\ndevice d k in g\n";
  EXPECT_THAT(refusal([&] { parse_cluster_lines("kind k 1GiB f32=1e63" + rest); }),
              HasSubstr("device kind 'k': f32 must be at most 1e30"));
  EXPECT_THAT(refusal([&] { parse_cluster_lines("kind k 1GiB f32=1 speed=1e31" + rest); }),
              HasSubstr("at most 1e30"));
  const Cluster most = parse_cluster_lines("kind k 1GiB f32=1e30 sms=1000000" + rest);
  EXPECT_EQ(cluster_from_json(cluster_to_json(most), "c.json"), most);
}

TEST(CheckCluster, RefusesNegativeTimes) {
  ClusterParts parts = two_hosts();
  parts.groups[0].latency = Duration(-1);
  expect_one(parts, "negative time");
  parts = two_hosts();
  parts.groups[0].receive.picoseconds_per_byte = -1;
  expect_one(parts, "negative time");
}

TEST(CheckCluster, RefusesWhatIsNoTree) {
  ClusterParts parts = two_hosts();
  parts.groups[0].parent = GroupId(1);
  expect_one(parts, "must be the root");
  parts = two_hosts();
  parts.groups[2].parent = std::nullopt;
  expect_one(parts, "only the first is a root");
  parts = two_hosts();
  parts.groups[1].parent = GroupId(2);
  expect_one(parts, "stands before its parent");
  parts = two_hosts();
  parts.devices[0].group = GroupId(9);
  expect_one(parts, "there is no group 9");
  parts = two_hosts();
  parts.devices[0].kind = KindId(9);
  expect_one(parts, "there is no kind 9");
  parts = two_hosts();
  parts.devices.clear();
  expect_one(parts, "no device");
  EXPECT_THAT(check_cluster({}), Contains("the cluster has no group"));
}

TEST(ClusterShortForm, NamesHostsAndTheNetwork) {
  const Cluster c = parse_cluster("4xA100-80GB+2xV100-16GB@25Gb");
  EXPECT_THAT(c.devices(), SizeIs(6));
  EXPECT_EQ(c.device(DeviceId(4)).name, "gpu:4");
  EXPECT_EQ(c.kind_of(DeviceId(4)).name, "V100-16GB");
  EXPECT_EQ(c.device(DeviceId(4)).memory, mebibytes(15 * 1024 + 256));
  EXPECT_EQ(c.route(DeviceId(0), DeviceId(1)).bandwidth, 300'000'000'000);
  EXPECT_EQ(c.route(DeviceId(4), DeviceId(5)).bandwidth, 150'000'000'000);
  EXPECT_EQ(c.route(DeviceId(3), DeviceId(4)).bandwidth, 3'125'000'000);
  EXPECT_EQ(c.route(DeviceId(3), DeviceId(4)).latency, microseconds(10));
}

TEST(ClusterShortForm, OneHostHasNoNetworkUnlessItIsAskedFor) {
  EXPECT_THAT(parse_cluster("1xcpu").groups(), SizeIs(1));
  EXPECT_THAT(parse_cluster("1xcpu@10Gb").groups(), SizeIs(2));
  EXPECT_EQ(parse_cluster("1xcpu").device(DeviceId(0)).name, "cpu:0");
  EXPECT_EQ(parse_cluster("1xH100+1xH100").group(GroupId(0)).bandwidth, 12'500'000'000)
      << "100Gb if not said";
}

TEST(ClusterShortForm, ATwoByFourIsTwoHostsOfFour) {
  EXPECT_EQ(parse_cluster("2x4xH200@400Gb"), parse_cluster("4xH200+4xH200@400Gb"));
}

TEST(ClusterShortForm, AKindAloneIsOneDevice) {
  EXPECT_EQ(parse_cluster("H100+cpu@10Gb"), parse_cluster("1xH100+1xcpu@10Gb"));
}

TEST(ClusterShortForm, UnequalDevicesOfOneHostShareTheLinkOfTheSlowest) {
  const Cluster c = parse_cluster("2xRTX5090,RTX2080Ti");
  ASSERT_THAT(c.groups(), SizeIs(1));
  ASSERT_THAT(c.devices(), SizeIs(3));
  EXPECT_EQ(c.kind_of(DeviceId(1)).name, "RTX5090");
  EXPECT_EQ(c.kind_of(DeviceId(2)).name, "RTX2080Ti");
  EXPECT_EQ(c.device(DeviceId(2)).name, "gpu:2");
  EXPECT_EQ(c.group(GroupId(0)).bandwidth, 16'000'000'000);
  EXPECT_EQ(parse_cluster("RTX3060,RTX3060"), parse_cluster("2xRTX3060"));
  EXPECT_THAT(parse_cluster("RTX3060,RTX3090+2xT4@10Gb").groups(), SizeIs(3));
}

TEST(ClusterShortForm, ErrorsNameThePartAndTheNearestPreset) {
  EXPECT_THAT(refusal([] { parse_cluster("4xA100-80G"); }), HasSubstr("did you mean 'A100-80GB'?"));
  EXPECT_THAT(refusal([] { parse_cluster("2xh100"); }), HasSubstr("did you mean 'H100'?"));
  EXPECT_THAT(refusal([] { parse_cluster("2xH100+gpu"); }),
              HasSubstr("'gpu': expected a count and a device"));
  EXPECT_THAT(refusal([] { parse_cluster("2x4xH100,cpu"); }),
              HasSubstr("'2x4xH100,cpu': expected one host's devices"));
  EXPECT_THAT(refusal([] { parse_cluster("cpu,2x4xH100"); }), HasSubstr("expected one host's devices"));
  EXPECT_THAT(refusal([] { parse_cluster("H100,"); }), HasSubstr("'': expected a count and a device"));
  EXPECT_THAT(refusal([] { parse_cluster("H100,H10"); }), HasSubstr("'H10': expected a count and a device"));
  EXPECT_THAT(refusal([] { parse_cluster("0xcpu"); }), HasSubstr("expected a count from 1"));
  EXPECT_THAT(refusal([] { parse_cluster("99999999999xcpu"); }), HasSubstr("expected a count from 1"));
  EXPECT_THAT(refusal([] { parse_cluster("4096x4096xcpu"); }), HasSubstr("more than 4096 devices"));
  EXPECT_THAT(refusal([] { parse_cluster("4096xcpu+1xcpu"); }), HasSubstr("more than 4096 devices in all"));
  EXPECT_THAT(refusal([] { parse_cluster("4cpu"); }), HasSubstr("expected 'x' behind the count"));
  EXPECT_THAT(refusal([] { parse_cluster("2xcpu@fast"); }), HasSubstr("'fast' is not a bandwidth"));
  EXPECT_THAT(refusal([] { parse_cluster(""); }), HasSubstr("empty"));
}

TEST(KindCalled, FindsThePresetThatADriversNameMeans) {
  EXPECT_EQ(kind_called("NVIDIA H200"), "H200");
  EXPECT_EQ(kind_called("NVIDIA H100 80GB HBM3"), "H100");
  EXPECT_EQ(kind_called("NVIDIA A100-SXM4-80GB"), "A100-80GB");
  EXPECT_EQ(kind_called("Tesla V100-SXM2-16GB"), "V100-16GB");
  EXPECT_EQ(kind_called("NVIDIA GeForce RTX 4090"), "RTX4090");
  EXPECT_EQ(kind_called("NVIDIA A10"), "A10");
  EXPECT_EQ(kind_called("NVIDIA GeForce RTX 2080 Ti"), "RTX2080Ti");
  EXPECT_EQ(kind_called("NVIDIA GeForce RTX 3080 Ti"), "NVIDIA-GeForce-RTX-3080-Ti") << "not an RTX 3080";
  EXPECT_EQ(kind_called("NVIDIA RTX A6000"), "A6000");
  EXPECT_EQ(kind_called("NVIDIA A100-PCIE-40GB"), "A100-40GB");
  EXPECT_EQ(kind_called("NVIDIA TITAN V"), "NVIDIA-TITAN-V")
      << "no preset: a kind that a cluster file may define";
}

TEST(LocalCluster, HasOneDevicePerWorker) {
  const Cluster c = local_cluster({.devices = 3, .memory_each = gibibytes(2), .flops_f32_each = 80e9});
  EXPECT_THAT(c.devices(), SizeIs(3));
  EXPECT_EQ(c.kind_of(DeviceId(2)).flops_f32, 80e9);
  EXPECT_EQ(c.kind_of(DeviceId(2)).memory_bandwidth, 10'000'000'000) << "what is not given is the preset's";
  EXPECT_EQ(c.device(DeviceId(2)).memory, gibibytes(2));
  EXPECT_EQ(c.kind_of(DeviceId(2)).name, "cpu");
  EXPECT_EQ(local_cluster({.kind = "H200"}).kind_of(DeviceId(0)).name, "H200");
  EXPECT_THAT(refusal([] { local_cluster({.devices = 0}); }), HasSubstr("expected 1 to 4096"));
}

// Rates in Tflop/s, dense; GiB of memory that a step may use; memory bandwidth in GB/s; GB/s of a device's
// link into its host.
struct PresetRow {
  const char* name;
  double f32, tf32, bf16, f16, usable, memory, link;
  friend std::ostream& operator<<(std::ostream& out, const PresetRow& row) { return out << row.name; }
};
class Preset : public ::testing::TestWithParam<PresetRow> {};

TEST_P(Preset, ParsesInShortFormsAndFilesAndSaysItsLinks) {
  const PresetRow& row = GetParam();
  const std::string name = row.name;
  const Cluster c = parse_cluster("2x" + name + "+1x" + name);
  const DeviceKind& kind = c.kind_of(DeviceId(0));
  EXPECT_EQ(kind, device_preset(name));
  EXPECT_DOUBLE_EQ(kind.flops_f32, row.f32 * 1e12);
  EXPECT_DOUBLE_EQ(kind.flops_tf32.value_or(kind.flops_f32), row.tf32 * 1e12);
  EXPECT_DOUBLE_EQ(kind.flops_bf16.value_or(kind.flops_f16), row.bf16 * 1e12);
  EXPECT_DOUBLE_EQ(kind.flops_f16, row.f16 * 1e12);
  EXPECT_EQ(static_cast<double>(kind.memory.count()), row.usable * (1 << 30));
  EXPECT_EQ(static_cast<double>(kind.memory_bandwidth), row.memory * 1e9);
  EXPECT_EQ(static_cast<double>(*c.group(c.device(DeviceId(0)).group).bandwidth), row.link * 1e9);
  EXPECT_EQ(parse_cluster_lines("kind " + name + "\ngroup g\ndevice d " + name + " in g\n").kinds()[0], kind);
  EXPECT_EQ(parse_cluster_lines("group g\ndevice d " + name + " in g\n").kinds()[0], kind);
  EXPECT_EQ(cluster_from_json(cluster_to_json(c), "c.json"), c);
  EXPECT_EQ(parse_cluster_lines(print_cluster(c)), c);
  EXPECT_THAT(assumed_links("2x" + name + "+1x" + name),
              AllOf(HasSubstr("GB/s and "), HasSubstr("us inside a host of " + name),
                    HasSubstr("and 10us between hosts")));
}

INSTANTIATE_TEST_SUITE_P(Known, Preset,
                         ::testing::Values(PresetRow{"V100-16GB", 15.7, 15.7, 15.7, 125, 15.25, 900, 150},
                                           PresetRow{"V100-32GB", 15.7, 15.7, 15.7, 125, 31, 900, 150},
                                           PresetRow{"A100-40GB", 19.5, 156, 312, 312, 38.75, 1555, 300},
                                           PresetRow{"A100-80GB", 19.5, 156, 312, 312, 78.75, 2039, 300},
                                           PresetRow{"H100", 67, 494.7, 989.4, 989.4, 78.5, 3350, 450},
                                           PresetRow{"H200", 67, 494.7, 989.4, 989.4, 139.25, 4800, 450},
                                           PresetRow{"B200", 80, 1100, 2250, 2250, 177.75, 8000, 900},
                                           PresetRow{"MI300X", 163.4, 653.7, 1307.4, 1307.4, 191.25, 5300,
                                                     64},
                                           PresetRow{"P100-16GB", 9.3, 9.3, 9.3, 18.7, 15.25, 732, 16},
                                           PresetRow{"T4", 8.1, 8.1, 8.1, 65, 14.25, 320, 16},
                                           PresetRow{"L4", 30.3, 60.5, 121, 121, 21.5, 300, 32},
                                           PresetRow{"L40S", 91.6, 183, 362.05, 362.05, 43.75, 864, 32},
                                           PresetRow{"A10", 31.2, 62.5, 125, 125, 21.5, 600, 32},
                                           PresetRow{"RTX3090", 35.6, 35.6, 71, 71, 23, 936, 32},
                                           PresetRow{"RTX4090", 82.6, 82.6, 165.2, 165.2, 23, 1008, 32},
                                           PresetRow{"RTX5090", 104.8, 104.8, 209.5, 209.5, 30.75, 1792, 64},
                                           PresetRow{"RTX5080", 56.3, 56.3, 112.6, 112.6, 14.75, 960, 64},
                                           PresetRow{"RTX4080", 48.7, 48.7, 97.5, 97.5, 15, 717, 32},
                                           PresetRow{"RTX4070", 29.1, 29.1, 58.3, 58.3, 11, 504, 32},
                                           PresetRow{"RTX3080", 29.8, 29.8, 59.5, 59.5, 9.25, 760, 32},
                                           PresetRow{"RTX3070", 20.3, 20.3, 40.6, 40.6, 7.25, 448, 32},
                                           PresetRow{"RTX3060", 12.7, 12.7, 25.5, 25.5, 11.25, 360, 32},
                                           PresetRow{"RTX2080Ti", 13.4, 13.4, 13.4, 53.8, 10.25, 616, 16},
                                           PresetRow{"GTX1080Ti", 11.3, 11.3, 11.3, 11.3, 10.25, 484, 16},
                                           PresetRow{"A6000", 38.7, 77.4, 154.8, 154.8, 47, 768, 32},
                                           PresetRow{"A5000", 27.8, 55.6, 111.1, 111.1, 23, 768, 32},
                                           PresetRow{"A4000", 19.2, 38.3, 76.7, 76.7, 15, 448, 32},
                                           PresetRow{"A40", 37.4, 74.8, 149.7, 149.7, 43.75, 696, 32},
                                           PresetRow{"A30", 10.3, 82, 165, 165, 23, 933, 32},
                                           PresetRow{"cpu", 0.05, 0.05, 0.05, 0.05, 4, 10, 2}));

TEST(ClusterShortForm, SaysWhatItAssumesOfLinks) {
  EXPECT_EQ(
      assumed_links("4xA100-80GB+2xV100-16GB@25Gb"),
      "300GB/s and 5us inside a host of A100-80GB, 150GB/s and 5us inside a host of V100-16GB, 10us between "
      "hosts")
      << "the rate between hosts was said";
  EXPECT_EQ(assumed_links("2x4xT4"), "16GB/s and 10us inside a host of T4, 12500MB/s and 10us between hosts");
  EXPECT_EQ(assumed_links("1xcpu"), "2GB/s and 40us inside a host of cpu");
}

TEST(ClusterText, AKindMayBeAPresetButForSomething) {
  const Cluster c = parse_cluster_lines(
      "kind slow 32GiB preset=A100-80GB speed=0.5\n"
      "kind other preset=A100-80GB f32=1e12\n"
      "group g\n"
      "device a slow in g\n"
      "device b other in g\n"
      "device c T4 in g\n");
  DeviceKind slow = device_preset("A100-80GB");
  slow.name = "slow";
  slow.memory = gibibytes(32);
  slow.speed = 0.5;
  EXPECT_EQ(c.kinds()[0], slow);
  EXPECT_EQ(c.kinds()[1].flops_tf32, std::nullopt) << "a preset's other rates go with its f32 rate";
  EXPECT_EQ(c.kinds()[1].flops_f16, 1e12);
  EXPECT_EQ(c.kinds()[2], device_preset("T4"));
  EXPECT_THAT(refusal([] { parse_cluster_lines("kind k preset=A100-80G\n"); }),
              HasSubstr("did you mean 'A100-80GB'"));
  EXPECT_THAT(refusal([] { parse_cluster_lines("kind k speed=2\n"); }), HasSubstr("or `kind NAME preset="));
}

TEST(ClusterJson, AKindMayBeAPresetButForSomething) {
  const std::string text =
      R"({"format":"espalier.cluster/1","kinds":[{"name":"mine","preset":"H100","speed":0.9}],)"
      R"("groups":[{"name":"g","latency_ns":0}],"devices":[{"name":"d","kind":"mine","in":"g"}]})";
  DeviceKind mine = device_preset("H100");
  mine.name = "mine";
  mine.speed = 0.9;
  EXPECT_EQ(cluster_from_json(parse_json(text, "c.json"), "c.json").kinds()[0], mine);
  const std::string wrong = text.substr(0, text.find("H100")) + "H300" + text.substr(text.find("H100") + 4);
  EXPECT_THAT(refusal([&] { cluster_from_json(parse_json(wrong, "c.json"), "c.json"); }),
              HasSubstr("did you mean 'H"));
}

TEST(ClusterText, PrintsWhatItRead) {
  EXPECT_EQ(print_cluster(parse_cluster_lines(kTwoHosts)),
            "kind V100 16GiB f32=1.57e+13 f16=1.25e+14 mem=900GB launch=5us sms=80\n"
            "group network 3125MB latency=10us send=100us+400ps/B\n"
            "group host0 in network 150GB latency=2us\n"
            "group host1 in network 100GB latency=3us lanes=unlimited\n"
            "device gpu:0 V100 in host0\n"
            "device gpu:1 V100 in host0 memory=12GiB\n"
            "device gpu:2 V100 in host1\n"
            "device gpu:3 V100 in host1\n");
}

// The V100s cost 2.5 an hour, but gpu:1 nothing; the A100 costs 4. No device is of the kind without a price.
constexpr const char* kPriced =
    "kind V100 preset=V100-16GB price=2.5\n"
    "kind A100 preset=A100-40GB price=4\n"
    "kind unused preset=T4\n"
    "group network 25Gb latency=10us\n"
    "device gpu:0 V100 in network\n"
    "device gpu:1 V100 in network price=0\n"
    "device gpu:2 A100 in network\n";

TEST(Prices, AreTheKindsUnlessADeviceSaysItsOwn) {
  const Cluster c = parse_cluster_lines(kPriced);
  ASSERT_TRUE(c.has_prices());
  EXPECT_EQ(c.device(DeviceId(0)).price_per_hour, 2.5);
  EXPECT_EQ(c.device(DeviceId(1)).price_per_hour, 0);
  EXPECT_EQ(c.device(DeviceId(2)).price_per_hour, 4);
  EXPECT_FALSE(parse_cluster_lines(kTwoHosts).has_prices());
  EXPECT_FALSE(parse_cluster("4xA100-80GB").has_prices()) << "presets have none";
}

TEST(Prices, PrintAndParseBack) {
  const Cluster c = parse_cluster_lines(kPriced);
  EXPECT_EQ(parse_cluster_lines(print_cluster(c)), c);
  const std::string json = print_json(cluster_to_json(c));
  EXPECT_EQ(cluster_from_json(parse_json(json, "c.json"), "c.json"), c) << json;
  EXPECT_THAT(json, HasSubstr("\"price_per_hour\": 2.5"));
  EXPECT_THAT(print_json(cluster_to_json(parse_cluster_lines(kTwoHosts))),
              ::testing::Not(HasSubstr("price")));
}

TEST(Prices, AreFromZeroOnAndForEveryDeviceOrForNone) {
  const auto broken = [](const std::function<void(ClusterParts&)>& change) {
    ClusterParts parts = parse_cluster_lines(kPriced).parts();
    change(parts);
    return parts;
  };
  expect_one(broken([](ClusterParts& p) { p.kinds[2].price_per_hour = -1; }),
             "device kind 'unused': the price per hour must be from 0 to 1e30");
  expect_one(broken([](ClusterParts& p) { p.devices[0].price_per_hour = std::nan(""); }),
             "device 'gpu:0': the price per hour must be from 0 to 1e30");
  expect_one(broken([](ClusterParts& p) { p.devices[2].price_per_hour = HUGE_VAL; }),
             "device 'gpu:2': the price per hour must be from 0 to 1e30");
  expect_one(broken([](ClusterParts& p) { p.devices[1].price_per_hour = std::nullopt; }),
             "device 'gpu:1' has no price per hour, but 'gpu:0' has one");
  const std::string kind = "kind k 1GiB f32=1 mem=1GB";
  EXPECT_THAT(refusal([&] { parse_cluster_lines(kind + " price=-2\ngroup g\ndevice d k\n"); }),
              HasSubstr("price per hour must be from 0"));
  EXPECT_THAT(refusal([&] { parse_cluster_lines(kind + " price=cheap\ngroup g\ndevice d k\n"); }),
              HasSubstr("line 1: 'cheap' is not a number"));
}

TEST(ClusterText, ErrorsNameTheLine) {
  const std::string kind = "kind k 1GiB f32=1 mem=1GB\n";
  EXPECT_THAT(refusal([&] { parse_cluster_lines(kind + "group g\ndevice d q in g\n"); }),
              HasSubstr("line 3: kind 'q' is not defined above"));
  EXPECT_THAT(refusal([&] { parse_cluster_lines(kind + "group g in r\n"); }), HasSubstr("line 2: group 'r'"));
  EXPECT_THAT(refusal([&] { parse_cluster_lines(kind + "group g latncy=1us\n"); }),
              HasSubstr("did you mean 'latency'"));
  EXPECT_THAT(refusal([&] { parse_cluster_lines(kind + "group g lanes=2\n"); }),
              HasSubstr("lanes=unlimited"));
  EXPECT_THAT(refusal([&] { parse_cluster_lines("kind k 1GiB mem=1GB\n"); }), HasSubstr("'f32=' is missing"));
  EXPECT_THAT(refusal([&] { parse_cluster_lines("host h\n"); }), HasSubstr("'host' begins no line"));
  EXPECT_THAT(refusal([&] { parse_cluster_lines(kind + "group g send=1us+4\n"); }),
              HasSubstr("is not a cost"));
}

TEST(ClusterJson, ParsesBack) {
  for (const Cluster& c : {parse_cluster_lines(kTwoHosts), parse_cluster("4xA100-80GB+2xV100-16GB@25Gb"),
                           local_cluster({.devices = 2})}) {
    const std::string json = print_json(cluster_to_json(c));
    EXPECT_EQ(cluster_from_json(parse_json(json, "c.json"), "c.json"), c) << json;
    EXPECT_EQ(parse_cluster_lines(print_cluster(c)), c);
  }
}

TEST(ClusterJson, ErrorsNameThePlace) {
  const auto read = [](const std::string& text) {
    return [text] { cluster_from_json(parse_json(text, "c.json"), "c.json"); };
  };
  EXPECT_THAT(refusal(read("{\"format\": \"espalier.cluster/2\"}")), HasSubstr("espalier.cluster/1"));
  EXPECT_THAT(refusal(read("[]")), HasSubstr("expected an object"));
  EXPECT_THAT(refusal(read("{\"format\": \"espalier.cluster/1\", \"kinds\": [], \"groups\": "
                           "[{\"name\": \"a\", \"in\": \"b\", \"latency_ns\": 0}], \"devices\": []}")),
              HasSubstr("c.json: groups[0].in: is no group above"));
  EXPECT_THAT(refusal(read("{\"format\": \"espalier.cluster/1\", \"kinds\": [], \"groups\": "
                           "[{\"name\": \"a\", \"latency_ns\": 0}], \"devices\": []}")),
              HasSubstr("c.json: the cluster has no device"));
}

// Any change of a byte gives a cluster or an InputError, never anything else.
TEST(ClusterText, DamagedTextIsRefusedPolitely) {
  const Cluster whole = parse_cluster_lines(kTwoHosts);
  const std::string json_text = print_json(cluster_to_json(whole));
  Rng rng(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text = round % 2 == 0 ? kTwoHosts : json_text;
    for (int change = 0; change < 3; ++change) {
      const std::size_t at = rng.below(text.size());
      if (rng.below(2) == 0) {
        text[at] = static_cast<char>(rng.below(256));
      } else {
        text.erase(at, rng.below(12));
      }
    }
    try {
      round % 2 == 0 ? (void)parse_cluster_lines(text) : (void)cluster_from_json(parse_json(text, "c"), "c");
    } catch (const InputError&) {
    }
  }
}

TEST(ClusterFormats, TheDocumentsExamplesAreTrue) {
  const std::string document = read_file(ESPALIER_SOURCE_DIR "/docs/formats.md");
  const auto block = [&](const std::string& kind) {
    const std::size_t heading = document.find("\n## Clusters");
    const std::size_t fence = document.find("\n```" + kind + "\n", heading);
    const std::size_t begin = document.find('\n', fence + 1) + 1;
    return document.substr(begin, document.find("\n```", begin) + 1 - begin);
  };
  const std::string text = block("text");
  EXPECT_EQ(print_json(cluster_to_json(parse_cluster_lines(text))), block("json"));
}

}  // namespace
}  // namespace espalier
