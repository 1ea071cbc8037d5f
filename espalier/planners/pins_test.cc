#include "espalier/planners/pins.h"

#include <gmock/gmock.h>

#include "espalier/base/check.h"
#include "espalier/cluster/text.h"
#include "espalier/graph/text.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;

constexpr const char* kPinDevices =
    "group g latency=1us\ndevice dev0 cpu in g\ndevice dev1 cpu in g\ndevice dev2 cpu in g\n";

constexpr const char* kPinnedLayers =
    "x = input() : f32[b]\na = f(x) : f32[b] @module=m.h.0.attn\nb = f(a) : f32[b] @module=m.h.1.attn\n"
    "c = f(b) : f32[b] @module=m.h.2\nd = f(c) : f32[b] @module=m.head\n";

class PinsTest : public ::testing::Test {
 protected:
  Pins pins(std::vector<std::string> texts) const {
    Pins result;
    for (const std::string& text : texts) result.push_back(parse_pin(text, cluster_));
    return result;
  }
  std::vector<std::optional<DeviceId>> resolve(const Graph& graph, std::vector<std::string> texts) const {
    return resolve_pins(graph, pins(std::move(texts)));
  }

  Cluster cluster_ = parse_cluster_lines(kPinDevices);
  Graph graph_ = parse_graph(kPinnedLayers);
};

TEST_F(PinsTest, NamesAreModulesWithAllInsideAndRanges) {
  EXPECT_THAT(resolve(graph_, {"h.[0-1].*=dev1"}),
              ElementsAre(DeviceId(1), DeviceId(1), std::nullopt, std::nullopt));
  EXPECT_THAT(resolve(graph_, {"h.0-1=dev1", "head=dev2", "d=dev2"}),
              ElementsAre(DeviceId(1), DeviceId(1), std::nullopt, DeviceId(2)));
  EXPECT_THAT(resolve(graph_, {}), ElementsAre(std::nullopt, std::nullopt, std::nullopt, std::nullopt));
}

TEST_F(PinsTest, AConflictIsNamedByItsPins) {
  EXPECT_EQ(refusal([&] {
              resolve(graph_, {"h.*=dev1", "h.[1-2]=dev2"});
            }),
            "--pin 'h.[1-2]': operator 'b' is pinned to another device by --pin 'h.*'");
}

TEST_F(PinsTest, APinThatMeansNothingSaysTheNearestModule) {
  EXPECT_THAT(refusal([&] { resolve(graph_, {"m.haed=dev1"}); }),
              HasSubstr("--pin 'm.haed' matches no operator or module; did you mean 'm.head'?"));
  EXPECT_THAT(refusal([&] { resolve(graph_, {"h.[2-0]=dev1"}); }),
              HasSubstr("--pin 'h.[2-0]': '[2-0]': 2 is above 0"));
  EXPECT_THAT(refusal([&] { parse_pin("vision.*=gpu7", cluster_); }),
              HasSubstr("no device 'gpu7'; the cluster has dev0, dev1, dev2"));
}

TEST_F(PinsTest, WhatSharesWrittenMemoryIsPinnedTogether) {
  const Graph graph = parse_graph(
      "x = input() : f32[b]\na = f(x) : f32[b] @colocate=3\nb = f(a) : f32[b]\nc = f(a) : f32[b] "
      "@colocate=3\n"
      "d = f(b, c) : f32[]\n");
  EXPECT_THAT(resolve(graph, {"a=dev1"}), ElementsAre(DeviceId(1), std::nullopt, DeviceId(1), std::nullopt));
  EXPECT_EQ(
      refusal([&] {
        resolve(graph, {"a=dev1", "c=dev2"});
      }),
      "--pin 'c': operator 'c' shares memory that is written with 'a', which --pin 'a' wants on another "
      "device");
  EXPECT_EQ(describe_pin(graph, cluster_, pins({"a=dev1"}), OperatorId(2)), "--pin 'a=dev1' (operator 'c')");
}

TEST_F(PinsTest, DuplicablesHaveNoDeviceOfTheirOwn) {
  const Graph graph = parse_graph(
      "x = input() : i64[b]\np = f(x) : i64[b] @module=pos @duplicable\n"
      "w = parameter(w) : f32[1]\na = f(p, w) : f32[b] @module=pos.a\n");
  EXPECT_THAT(resolve(graph, {"pos=dev1"}), ElementsAre(std::nullopt, DeviceId(1)));
  EXPECT_THAT(refusal([&] { resolve(graph, {"p=dev1"}); }),
              HasSubstr("--pin 'p': what it means is computed by every"));
}

TEST_F(PinsTest, ADescriptionNamesThePinThatBinds) {
  const Pins both = pins({"h.0=dev1", "m.head=dev2"});
  EXPECT_EQ(describe_pin(graph_, cluster_, both, OperatorId(0)), "--pin 'h.0=dev1' (operator 'a')");
  EXPECT_EQ(describe_pin(graph_, cluster_, both, OperatorId(3)), "--pin 'm.head=dev2' (operator 'd')");
  EXPECT_EQ(describe_pin(graph_, cluster_, both, OperatorId(1)), "operator 'b'");
  EXPECT_EQ(pin_of(graph_, both, OperatorId(1)), std::nullopt);
}

TEST_F(PinsTest, APathThatLeavesADeviceAndReturnsIsSaid) {
  EXPECT_THAT(pin_detours(graph_, cluster_, pins({"h.0=dev0", "h.1=dev1"})), IsEmpty());
  EXPECT_THAT(pin_detours(graph_, cluster_, pins({"h.0=dev0", "h.2=dev0"})), IsEmpty())
      << "what lies between may stand there, too";
  EXPECT_THAT(pin_detours(graph_, cluster_, pins({"h.[0,2]=dev0", "h.1=dev1", "head=dev1"})),
              ElementsAre("a path leaves dev0 ('a', --pin 'h.[0,2]=dev0') for dev1 and returns ('c', --pin "
                          "'h.[0,2]=dev0'): no one stage can hold what is pinned to dev0"));
}

}  // namespace
}  // namespace espalier
