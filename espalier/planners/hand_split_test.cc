#include "espalier/planners/hand_split.h"

#include <gmock/gmock.h>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/cluster/text.h"
#include "espalier/graph/text.h"
#include "espalier/planners/candidate.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;
using ::testing::SizeIs;

constexpr const char* kSplitDevices =
    "group g latency=1us\ndevice gpu:0 cpu in g\ndevice gpu:1 cpu in g\ndevice gpu:2 cpu in g\n";

// wte → h.0 → h.1 → (add of no module) → h.2 → head, and a mask that every layer reads.
constexpr const char* kSplitModel =
    "x = input() : f32[b]\nw = parameter(w) : f32[1]\n"
    "mask = g() : f32[1] @duplicable @module=m.mask\n"
    "e = f(x, w) : f32[b] @module=m.wte\n"
    "a0 = f(e, mask) : f32[b] @module=m.h.0.attn\nm0 = f(a0) : f32[b] @module=m.h.0.mlp\n"
    "a1 = f(m0, mask) : f32[b] @module=m.h.1.attn\nm1 = f(a1) : f32[b] @module=m.h.1.mlp\n"
    "add = f(m0, m1) : f32[b]\na2 = f(add, mask) : f32[b] @module=m.h.2.attn\n"
    "head = f(a2) : f32[b] @module=m.head\nloss = f(head) : f32[]\n";

class HandSplit : public ::testing::Test {
 protected:
  std::vector<HandStage> split(const std::string& text, const std::vector<std::string>& pins = {}) const {
    Pins parsed;
    for (const std::string& pin : pins) parsed.push_back(parse_pin(pin, cluster_));
    return parse_hand_split(text, graph_, cluster_, parsed);
  }
  std::string said(const std::string& text, const std::vector<std::string>& pins = {}) const {
    return refusal([&] { split(text, pins); });
  }
  std::string operators(const HandStage& stage) const {
    std::string names;
    for (const OperatorId op : stage.operators) names += (names.empty() ? "" : " ") + graph_.op(op).name;
    return names;
  }

  Cluster cluster_ = parse_cluster_lines(kSplitDevices);
  Graph graph_ = parse_graph(kSplitModel);
};

TEST_F(HandSplit, WhatNoItemNamesJoinsWhereItBelongs) {
  const auto stages = split("h.0-1,h.2");
  ASSERT_THAT(stages, SizeIs(2));
  EXPECT_EQ(operators(stages[0]), "e a0 m0 a1 m1 add") << "before the first reader, behind the last it reads";
  EXPECT_EQ(operators(stages[1]), "a2 head loss");
  EXPECT_EQ(stages[0].name, "h.0-1");
  EXPECT_EQ(unnamed_text(stages), "4 operators that no item names: 2 with h.0-1, 2 with h.2");
  EXPECT_EQ(unnamed_text(split("e+m.h.0-1+add,h.2+head+loss")), "");
}

TEST_F(HandSplit, ItemsAreNamesJoinedWithPlus) {
  const auto stages = split("wte+h.[0,1].*,head+h.2");
  EXPECT_EQ(operators(stages[0]), "e a0 m0 a1 m1 add");
  EXPECT_EQ(operators(stages[1]), "a2 head loss");
  EXPECT_EQ(stages[0].name, "") << "a name of a stage has no '+'";
  EXPECT_THAT(stages[0].devices, IsEmpty());
}

TEST_F(HandSplit, WhatLiesBetweenOperatorsOfAStageBelongsToIt) {
  EXPECT_EQ(operators(split("h.0+h.2,head")[0]), "e a0 m0 a1 m1 add a2");
}

TEST_F(HandSplit, DevicesStandBehindAnEqualsSign) {
  const auto stages = split("h.0=gpu:2,h.1-2=gpu:0+gpu:1");
  EXPECT_THAT(stages[0].devices, ElementsAre(DeviceId(2)));
  EXPECT_THAT(stages[1].devices, ElementsAre(DeviceId(0), DeviceId(1)));
  EXPECT_THAT(split("h.0,h.1-2=gpu:[0-1]")[1].devices, ElementsAre(DeviceId(0), DeviceId(1)));
  EXPECT_THAT(said("h.0=gpu:7,h.1"),
              HasSubstr("--stages 'h.0=gpu:7': no device 'gpu:7'; did you mean 'gpu:0'?"));
  EXPECT_THAT(said("h.0=,h.1"), HasSubstr("no device ''"));
  EXPECT_THAT(said("h.0=gpu:1+gpu:1,h.1"), HasSubstr("device 'gpu:1' stands twice"));
}

TEST_F(HandSplit, PinsSayTheDeviceOfAStage) {
  EXPECT_THAT(split("h.0,h.1-2", {"h.2=gpu:1"})[1].devices, ElementsAre(DeviceId(1)));
  EXPECT_THAT(split("h.0,h.1-2=gpu:1", {"h.2=gpu:1"})[1].devices, ElementsAre(DeviceId(1)));
  EXPECT_EQ(said("h.0,h.1-2=gpu:0", {"h.2=gpu:1"}),
            "--stages 'h.1-2': --pin 'h.2=gpu:1' (operator 'a2') wants it elsewhere");
  EXPECT_EQ(
      said("h.0,h.1-2", {"h.2=gpu:1", "h.1=gpu:2"}),
      "--stages 'h.1-2': --pin 'h.1=gpu:2' (operator 'a1') and --pin 'h.2=gpu:1' (operator 'a2') want it on "
      "two devices");
}

TEST_F(HandSplit, WhatIsWrongIsOneLine) {
  EXPECT_THAT(said("h.0,hh.1"),
              HasSubstr("--stages 'hh.1' matches no operator or module; did you mean 'm.h.1"));
  EXPECT_EQ(said("h.0-1,h.1-2"), "--stages: operator 'a1' of m.h.1.attn stands in 'h.0-1' and in 'h.1-2'");
  EXPECT_EQ(
      said("h.0+h.2,h.1"),
      "--stages: 'h.0+h.2' and 'h.1' read from each other: a path leaves 'h.0+h.2' at 'm0' and returns to it "
      "at 'a2'");
  EXPECT_THAT(said("h.0,,h.1"), HasSubstr("--stages '': an item is empty; expected such as"));
  EXPECT_THAT(said(""), HasSubstr("an item is empty"));
  EXPECT_THAT(said("=gpu:0"), HasSubstr("an item is empty"));
  EXPECT_THAT(said("mask,h.0"), HasSubstr("--stages 'mask': every stage that reads this computes it"));
  EXPECT_THAT(said("h.[0-1,h.2"), HasSubstr("has no end"));
}

TEST_F(HandSplit, WhatSharesWrittenMemoryIsNotTornApart) {
  graph_ = parse_graph(
      "x = input() : f32[b]\na = f(x) : f32[b] @colocate=3 @module=one\nb = f(a) : f32[b] @module=two\n"
      "c = f(a) : f32[b] @colocate=3 @module=two\n");
  EXPECT_EQ(
      said("one,two"),
      "--stages: 'a' in 'one' and 'c' in 'two' share memory that is written, so they stand in one stage");
}

// Any text becomes stages that form a legal plan, or an InputError.
TEST_F(HandSplit, RandomTextsAreRefusedOrMakeALegalPlan) {
  static const std::vector<std::string> kPieces{
      "h.0", "h.1", "h.2", "h.0-1", "h.[1-2]", "wte",   "head",      "loss", "*", "mask", "m",  "a1",
      ",",   ",",   ",",   "+",     "=",       "gpu:0", "gpu:[0-1]", "[",    "]", ".",    "add"};
  Rng rng(29);
  int made = 0, refused = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text;
    for (std::size_t i = 1 + rng.below(7); i-- > 0;) text += kPieces[rng.below(kPieces.size())];
    std::vector<HandStage> stages;
    try {
      stages = split(text);
    } catch (const InputError& error) {
      ++refused;
      EXPECT_EQ(std::string(error.what()).rfind("--stages", 0), 0U) << error.what();
      continue;
    }
    ++made;
    std::vector<StageDraft> drafts;
    for (const HandStage& stage : stages) {
      drafts.push_back({.operators = stage.operators, .devices = {DeviceId(0)}, .after = {}});
    }
    const auto plan =
        complete_plan(graph_, drafts, BatchSize(1), BatchSize(1), OrderRule(ScheduleKind::kOneFOneB));
    ASSERT_TRUE(plan.has_value()) << text;
    EXPECT_THAT(check_plan(graph_, cluster_, *plan), IsEmpty()) << text;
  }
  EXPECT_GT(made, 150);
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace espalier
