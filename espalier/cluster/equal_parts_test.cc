#include "espalier/cluster/equal_parts.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "espalier/cluster/text.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

std::vector<std::size_t> indices(const std::vector<DeviceId>& devices) {
  std::vector<std::size_t> result;
  for (const DeviceId device : devices) result.push_back(device.index());
  return result;
}

// What copies promise: every device is in one of them, and routes within a copy are those of the part, but
// for the bandwidth of groups that the copies share.
void expect_copies_of_the_part(const Cluster& cluster, const EqualParts& parts) {
  std::set<std::size_t> met;
  for (const std::vector<DeviceId>& copy : parts.copies) {
    ASSERT_THAT(copy, SizeIs(parts.part.devices().size()));
    for (std::size_t a = 0; a < copy.size(); ++a) {
      EXPECT_TRUE(met.insert(copy[a].index()).second);
      EXPECT_EQ(parts.part.device(DeviceId(a)).kind, cluster.device(copy[a]).kind);
      EXPECT_EQ(parts.part.device(DeviceId(a)).memory, cluster.device(copy[a]).memory);
      for (std::size_t b = 0; b < copy.size(); ++b) {
        const Route in_part = parts.part.route(DeviceId(a), DeviceId(b)),
                    in_copy = cluster.route(copy[a], copy[b]);
        EXPECT_EQ(in_part.links.size(), in_copy.links.size());
        EXPECT_EQ(in_part.latency, in_copy.latency);
        EXPECT_LE(in_part.bandwidth, in_copy.bandwidth);
      }
    }
  }
  EXPECT_THAT(met, SizeIs(cluster.devices().size()));
}

TEST(EqualParts, HostsAreDealtByTheirKind) {
  const Cluster cluster = parse_cluster("2xA100-40GB+2xV100-16GB+2xA100-40GB+2xV100-16GB@100Gb");
  const auto parts = equal_parts(cluster, Division::kOutermost, 1);
  ASSERT_TRUE(parts);
  ASSERT_THAT(parts->copies, SizeIs(2));
  EXPECT_THAT(indices(parts->copies[0]), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(indices(parts->copies[1]), ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(parts->part.group(GroupId(0U)).bandwidth, cluster.group(GroupId(0U)).bandwidth);
  expect_copies_of_the_part(cluster, *parts);
}

TEST(EqualParts, InnermostPartsHaveHalfOfEachHostAndOfWhatJoinsThem) {
  const Cluster cluster = parse_cluster("2x4xV100-16GB@100Gb");
  const auto parts = equal_parts(cluster, Division::kInnermost, 1);
  ASSERT_TRUE(parts);
  EXPECT_THAT(indices(parts->copies[0]), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(indices(parts->copies[1]), ElementsAre(2, 3, 6, 7));
  EXPECT_THAT(parts->part.groups(), SizeIs(3));
  EXPECT_EQ(*parts->part.group(GroupId(0U)).bandwidth * 2, *cluster.group(GroupId(0U)).bandwidth);
  EXPECT_EQ(parts->part.group(GroupId(1)).bandwidth, cluster.group(GroupId(1)).bandwidth);
  expect_copies_of_the_part(cluster, *parts);
}

// Two unlike hosts cannot be dealt, so they are divided.
TEST(EqualParts, UnlikeHostsAreDividedEitherWay) {
  const Cluster cluster = parse_cluster("2xA100-40GB+4xV100-16GB@100Gb");
  for (const Division division : {Division::kOutermost, Division::kInnermost}) {
    const auto parts = equal_parts(cluster, division, 1);
    ASSERT_TRUE(parts);
    EXPECT_THAT(indices(parts->copies[0]), ElementsAre(0, 2, 3));
    expect_copies_of_the_part(cluster, *parts);
  }
}

TEST(EqualParts, ThreePartsWhereTwoAreNone) {
  const auto parts = equal_parts(parse_cluster("9xV100-16GB"), Division::kOutermost, 1);
  ASSERT_TRUE(parts);
  EXPECT_THAT(parts->copies, SizeIs(3));
}

TEST(EqualParts, RacksOfUnequalOrderHaveEqualParts) {
  const Cluster cluster = parse_cluster_lines(
      "kind k 1GiB f32=1 mem=1GB\nkind l 2GiB f32=1 mem=1GB\ngroup root 1GB latency=9us\n"
      "group p in root 2GB latency=3us\ngroup q in root 2GB latency=3us\n"
      "device a k in p\ndevice b l in p\ndevice c l in q\ndevice d k in q\n");
  const auto parts = equal_parts(cluster, Division::kOutermost, 1);
  ASSERT_TRUE(parts);
  EXPECT_THAT(indices(parts->copies[0]), ElementsAre(0, 1));
  EXPECT_THAT(indices(parts->copies[1]), ElementsAre(3, 2));
  expect_copies_of_the_part(cluster, *parts);
}

TEST(EqualParts, ThereAreNone) {
  const auto none = [](const Cluster& cluster, std::size_t least) {
    return !equal_parts(cluster, Division::kOutermost, least) &&
           !equal_parts(cluster, Division::kInnermost, least);
  };
  EXPECT_TRUE(none(parse_cluster("1xV100-16GB"), 1));
  EXPECT_TRUE(none(parse_cluster("3xA100-40GB+4xV100-16GB@100Gb"), 1));
  EXPECT_TRUE(none(parse_cluster("4xV100-16GB"), 3)) << "parts of two devices";
  EXPECT_TRUE(none(parse_cluster("1xA100-40GB+1xV100-16GB@25Gb"), 1));
  EXPECT_TRUE(none(parse_cluster_lines("kind k 1GiB f32=1 mem=1GB\ngroup root 1GB\ndevice a k in root\n"
                                       "device b k in root memory=1MiB\n"),
                   1))
      << "of one kind with unequal memory";
  EXPECT_TRUE(none(parse_cluster_lines("kind k 1GiB f32=1 mem=1GB\ngroup root 1GB\ndevice a k in root\n"
                                       "device b k in root\nlink a b 2GB latency=1us\n"),
                   1))
      << "a named link";
}

}  // namespace
}  // namespace espalier
