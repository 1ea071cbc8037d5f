#include <gmock/gmock.h>

#include <map>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/base/rng.h"
#include "espalier/cluster/cluster.h"
#include "espalier/cluster/json.h"
#include "espalier/cluster/text.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;

// host0 has a pair of devices with a link of their own; host0 and host1 have a cable beside the network.
constexpr const char* kTree =
    "kind V100 16GiB f32=15.7e12 f16=125e12 mem=900GB launch=5us sms=80\n"
    "group network 25Gb latency=10us send=100us+400ps/B\n"
    "group host0 in network 16GB latency=5us\n"
    "group host1 in network 16GB latency=5us\n"
    "group host2 in network 16GB latency=5us\n"
    "device gpu:0 V100 in host0\n"
    "device gpu:1 V100 in host0\n"
    "device gpu:2 V100 in host0\n"
    "device gpu:3 V100 in host1\n"
    "device gpu:4 V100 in host2\n";

Cluster with(const std::string& lines) {
  return parse_cluster_lines(kTree + lines);
}

std::vector<std::string> names_of(const Cluster& cluster, const Route& route) {
  std::vector<std::string> names;
  for (const LinkIndex link : route.links) names.push_back(cluster.link_name(link));
  return names;
}

TEST(NamedLinks, APairsOwnLinkLeavesThoseOfTheHostFree) {
  const Cluster c = with("link gpu:0 gpu:1 50GB latency=2us\n");
  const Route pair = c.route(DeviceId(0), DeviceId(1));
  EXPECT_THAT(names_of(c, pair), ElementsAre("gpu:0 to gpu:1"));
  EXPECT_EQ(pair.bandwidth, 50'000'000'000);
  EXPECT_EQ(pair.latency, microseconds(2));
  EXPECT_THAT(names_of(c, c.route(DeviceId(1), DeviceId(0))), ElementsAre("gpu:1 to gpu:0"));
  EXPECT_THAT(names_of(c, c.route(DeviceId(0), DeviceId(2))), ElementsAre("gpu:0 up", "gpu:2 down"));
  EXPECT_TRUE(c.has_own_link(DeviceId(1)));
  EXPECT_FALSE(c.has_own_link(DeviceId(2)));
}

TEST(NamedLinks, ACableBetweenHostsTakesThePlaceOfTheNetwork) {
  const Cluster c = with("link host0 host1 1Gb\n");
  const Route across = c.route(DeviceId(2), DeviceId(3));
  EXPECT_THAT(names_of(c, across), ElementsAre("gpu:2 up", "host0 to host1", "gpu:3 down"));
  EXPECT_EQ(across.bandwidth, 125'000'000);
  EXPECT_EQ(across.latency, microseconds(10)) << "what the line leaves out is the network's";
  EXPECT_EQ(across.send, (EndpointCost{microseconds(100), 400}));
  EXPECT_THAT(names_of(c, c.route(DeviceId(2), DeviceId(4))),
              ElementsAre("gpu:2 up", "host0 up", "host2 down", "gpu:4 down"));
}

TEST(NamedLinks, TheDeepestEndsCount) {
  const Cluster c = with("link host0 host1 1Gb\nlink gpu:0 host1 2Gb\nlink gpu:0 gpu:3 4Gb\n");
  EXPECT_EQ(c.route(DeviceId(1), DeviceId(3)).bandwidth, 125'000'000);
  EXPECT_THAT(names_of(c, c.route(DeviceId(0), DeviceId(3))), ElementsAre("gpu:0 to gpu:3"));
  const Cluster two = with("link host0 host1 1Gb\nlink gpu:0 host1 2Gb\n");
  EXPECT_THAT(names_of(two, two.route(DeviceId(3), DeviceId(0))), ElementsAre("gpu:3 up", "host1 to gpu:0"));
}

TEST(NamedLinks, TwoLinesGiveEachDirectionItsOwn) {
  const Cluster c = with("link gpu:0 gpu:1 50GB\nlink gpu:1 gpu:0 10GB latency=9us\n");
  EXPECT_EQ(c.route(DeviceId(0), DeviceId(1)).bandwidth, 50'000'000'000);
  EXPECT_EQ(c.route(DeviceId(1), DeviceId(0)).bandwidth, 10'000'000'000);
  EXPECT_EQ(c.route(DeviceId(1), DeviceId(0)).latency, microseconds(9));
}

TEST(NamedLinks, AnUnlimitedLinkIsNotHeldButLimitsTheRate) {
  const Cluster c = with("link gpu:0 gpu:1 50GB lanes=unlimited\n");
  EXPECT_THAT(c.route(DeviceId(0), DeviceId(1)).links, IsEmpty());
  EXPECT_EQ(c.route(DeviceId(0), DeviceId(1)).bandwidth, 50'000'000'000);
}

TEST(NamedLinks, ARingRunsOverThem) {
  const Cluster c = with("link gpu:0 gpu:1 50GB latency=2us\n");
  const std::vector<DeviceId> pair{DeviceId(0), DeviceId(1)};
  const CollectiveCost cost = all_reduce_cost(c, pair, Bytes(100'000));
  EXPECT_EQ(cost.hold, microseconds(2));  // 2 steps of 50 kB at 50 GB/s
  EXPECT_EQ(cost.latency, microseconds(4));
  std::vector<std::string> names;
  for (const LinkIndex link : cost.links) names.push_back(c.link_name(link));
  EXPECT_THAT(names, ElementsAre("gpu:0 to gpu:1", "gpu:1 to gpu:0"));
}

TEST(NamedLinks, ParseBack) {
  const Cluster c = with(
      "link gpu:0 gpu:1 50GB latency=2us lanes=unlimited\nlink host0 host1 1Gb send=0ns receive=3us+1ps/B\n"
      "link host1 host0 2Gb\nlink gpu:4 host0 1GB send=100us+400ps/B\n");
  EXPECT_THAT(print_cluster(c), HasSubstr("link gpu:0 gpu:1 50GB latency=2us lanes=unlimited\n"
                                          "link host0 host1 125MB latency=10us send=0ns receive=3us+1ps/B\n"
                                          "link host1 host0 250MB latency=10us\n"
                                          "link gpu:4 host0 1GB latency=10us\n"));
  EXPECT_EQ(parse_cluster_lines(print_cluster(c)), c);
  EXPECT_EQ(cluster_from_json(cluster_to_json(c), "c.json"), c);
  EXPECT_EQ(cluster_to_json(with("")).count("links"), 0U) << "as before where there are none";
}

TEST(NamedLinks, WhatIsWrongIsNamed) {
  EXPECT_THAT(refusal([] { with("link gpu:0 gpu:9 50GB\n"); }),
              HasSubstr("line 11: no device or group 'gpu:9' is defined above"));
  EXPECT_THAT(refusal([] { with("link gpu:0 gpu:1\n"); }),
              HasSubstr("line 11: expected `link FROM TO BANDWIDTH`"));
  EXPECT_THAT(refusal([] { with("link gpu:0 gpu:1 50GB lanes=2\n"); }),
              HasSubstr("lanes=unlimited or nothing"));
  EXPECT_THAT(refusal([] { with("link gpu:0 gpu:1 50GB latncy=2us\n"); }),
              HasSubstr("did you mean 'latency'"));
  EXPECT_THAT(refusal([] { with("link gpu:0 host0 50GB\n"); }),
              HasSubstr("the link from 'gpu:0' to 'host0': one end is in the other"));
  EXPECT_THAT(refusal([] { with("link network gpu:0 50GB\n"); }), HasSubstr("one end is in the other"));
  EXPECT_THAT(refusal([] { with("link gpu:0 gpu:0 50GB\n"); }), HasSubstr("one end is in the other"));
  EXPECT_THAT(refusal([] { with("link gpu:0 gpu:1 50GB\nlink gpu:0 gpu:1 1GB\n"); }),
              HasSubstr("the link from 'gpu:0' to 'gpu:1' stands twice"));
  const auto broken = [](auto change) {
    ClusterParts parts = with("link gpu:0 gpu:1 50GB\n").parts();
    change(parts.links[0]);
    return check_cluster(parts);
  };
  EXPECT_THAT(broken([](NamedLink& link) { link.bandwidth = 0; }),
              ElementsAre(HasSubstr("bandwidth must be positive")));
  EXPECT_THAT(broken([](NamedLink& link) { link.latency = Duration(-1); }),
              ElementsAre(HasSubstr("negative time")));
  EXPECT_THAT(broken([](NamedLink& link) { link.send.fixed = Duration(-1); }),
              ElementsAre(HasSubstr("negative time")));
  EXPECT_THAT(broken([](NamedLink& link) { link.to = DeviceId(9); }),
              ElementsAre("links[0]: one of its ends does not exist"));
  EXPECT_THAT(broken([](NamedLink& link) { link.to = GroupId(9); }),
              ElementsAre("links[0]: one of its ends does not exist"));
}

TEST(NamedLinks, JsonErrorsNameThePlace) {
  const std::string json = print_json(cluster_to_json(with("link gpu:0 gpu:1 50GB\n")));
  const auto read = [&](const std::string& from, const std::string& to) {
    std::string text = json;
    text.replace(text.find(from), from.size(), to);
    return refusal([&] { cluster_from_json(parse_json(text, "c.json"), "c.json"); });
  };
  EXPECT_THAT(read("\"to\":\"gpu:1\"", "\"to\":\"gpu:7\""),
              HasSubstr("c.json: links[0].to: is no device or group"));
  EXPECT_THAT(read("\"to\":\"gpu:1\"", "\"to\":\"host0\""), HasSubstr("one end is in the other"));
  EXPECT_THAT(read("\"bytes_per_second\":50000000000", "\"bytes\":1"), HasSubstr("did you mean"));
}

TEST(ClusterJson, ADeviceMayBeOfAKindThatIsAPreset) {
  const std::string text =
      R"({"format":"espalier.cluster/1","kinds":[],"groups":[{"name":"g","latency_ns":0}],)"
      R"("devices":[{"name":"a","kind":"L4","in":"g"},{"name":"b","kind":"L4","in":"g"}]})";
  const Cluster c = cluster_from_json(parse_json(text, "c.json"), "c.json");
  EXPECT_THAT(c.kinds(), ElementsAre(device_preset("L4")));
  EXPECT_EQ(c.device(DeviceId(1)).memory, device_preset("L4").memory);
  std::string wrong = text;
  wrong.replace(wrong.find("L4"), 2, "L5");
  EXPECT_THAT(
      refusal([&] { cluster_from_json(parse_json(wrong, "c.json"), "c.json"); }),
      AllOf(HasSubstr("c.json: devices[0].kind: is no kind of this file"), HasSubstr("did you mean 'L4'?")));
}

// The route as the header tells it, by looking at every link: the members around each device, the best link,
// and what lies below its ends.
Route route_by_looking(const ClusterParts& parts, DeviceId from, DeviceId to) {
  if (from == to) return {};
  const auto around = [&](DeviceId device) {  // innermost first
    std::vector<Member> members{device};
    for (std::optional<GroupId> at = parts.devices[device.index()].group; at;
         at = parts.groups[at->index()].parent) {
      members.push_back(*at);
    }
    return members;
  };
  const std::vector<Member> a = around(from), b = around(to);
  const auto place = [](const std::vector<Member>& members, Member member) -> std::optional<std::size_t> {
    const auto found = std::find(members.begin(), members.end(), member);
    if (found == members.end()) return std::nullopt;
    return found - members.begin();
  };
  struct Found {
    std::size_t depth, link;
    bool back;
    std::size_t up, down;  // members below the ends
  };
  std::optional<Found> best;
  for (std::size_t l = 0; l < parts.links.size(); ++l) {
    const NamedLink& link = parts.links[l];
    for (const bool back : {false, true}) {
      const Member x = back ? link.to : link.from, y = back ? link.from : link.to;
      const auto i = place(a, x), j = place(b, y);
      if (!i || !j) continue;
      const bool replaced =
          back && std::any_of(parts.links.begin(), parts.links.end(),
                              [&](const NamedLink& other) { return other.from == x && other.to == y; });
      if (replaced) continue;
      const std::size_t depth = a.size() - *i + b.size() - *j;
      if (!best || depth > best->depth) best = Found{depth, l, back, *i, *j};
    }
  }
  std::size_t up = 0, down = 0;
  if (best) {
    up = best->up, down = best->down;
  } else {
    while (!place(b, a[up])) ++up;
    down = *place(b, a[up]);
  }
  Route route;
  const auto step = [&](const std::vector<Member>& members, std::size_t i, bool is_down) {
    const auto* device = std::get_if<DeviceId>(&members[i]);
    const std::size_t number =
        device ? device->index() : parts.devices.size() + std::get<GroupId>(members[i]).index() - 1;
    const Group& group = parts.groups[std::get<GroupId>(members[i + 1]).index()];
    if (group.contention) route.links.push_back(static_cast<LinkIndex>(2 * number + is_down));
    if (group.bandwidth)
      route.bandwidth = std::min(route.bandwidth.value_or(*group.bandwidth), *group.bandwidth);
  };
  for (std::size_t i = 0; i < up; ++i) step(a, i, false);
  if (best) {
    const NamedLink& link = parts.links[best->link];
    const std::size_t first = 2 * (parts.devices.size() + parts.groups.size() - 1);
    if (link.contention) route.links.push_back(static_cast<LinkIndex>(first + 2 * best->link + best->back));
    route.bandwidth = std::min(route.bandwidth.value_or(link.bandwidth), link.bandwidth);
    route.latency = link.latency, route.send = link.send, route.receive = link.receive;
  } else {
    const Group& top = parts.groups[std::get<GroupId>(a[up]).index()];
    route.latency = top.latency, route.send = top.send, route.receive = top.receive;
  }
  for (std::size_t i = down; i-- > 0;) step(b, i, true);
  return route;
}

TEST(NamedLinks, RandomClustersHaveTheRoutesThatALookAtEveryLinkGives) {
  Rng rng(11);
  std::size_t clusters = 0, over_links = 0;
  while (clusters < 300) {
    ClusterParts parts;
    parts.kinds.push_back(device_preset("T4"));
    for (std::size_t g = 0, groups = 1 + rng.below(6); g < groups; ++g) {
      Group group{.name = "g" + std::to_string(g)};
      if (g > 0) group.parent = GroupId(rng.below(g));
      if (rng.below(4) > 0) group.bandwidth = static_cast<std::int64_t>(1 + rng.below(9));
      group.latency = Duration(static_cast<std::int64_t>(rng.below(9)));
      group.contention = rng.below(4) > 0;
      parts.groups.push_back(group);
    }
    for (std::size_t d = 0, devices = 2 + rng.below(5); d < devices; ++d) {
      parts.devices.push_back(
          {"d" + std::to_string(d), KindId(0), GroupId(rng.below(parts.groups.size())), gibibytes(1)});
    }
    const auto member = [&]() -> Member {
      if (rng.below(2) == 0) return DeviceId(rng.below(parts.devices.size()));
      return GroupId(rng.below(parts.groups.size()));
    };
    for (std::size_t l = rng.below(6); l-- > 0;) {
      NamedLink link = usual_link(parts, member(), member());
      link.bandwidth = static_cast<std::int64_t>(1 + rng.below(9));
      link.contention = rng.below(4) > 0;
      parts.links.push_back(link);
      if (!check_cluster(parts).empty()) parts.links.pop_back();
    }
    const Cluster cluster(parts);
    ++clusters;
    const std::size_t tree = 2 * (parts.devices.size() + parts.groups.size() - 1);
    for (std::size_t a = 0; a < parts.devices.size(); ++a) {
      for (std::size_t b = 0; b < parts.devices.size(); ++b) {
        const Route route = cluster.route(DeviceId(a), DeviceId(b));
        ASSERT_EQ(route, route_by_looking(parts, DeviceId(a), DeviceId(b)))
            << print_cluster(cluster) << a << b;
        for (const LinkIndex link : route.links) {
          ASSERT_LT(link, cluster.link_count());
          over_links += link >= tree;
        }
      }
    }
    EXPECT_EQ(parse_cluster_lines(print_cluster(cluster)), cluster);
    EXPECT_EQ(cluster_from_json(cluster_to_json(cluster), "c.json"), cluster);
  }
  EXPECT_GT(over_links, 300U);
}

}  // namespace
}  // namespace espalier
