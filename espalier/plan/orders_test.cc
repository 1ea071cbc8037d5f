// Orders as text: rules, and lists for each device.

#include "espalier/plan/orders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/base/rng.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::refusal;

constexpr StageId kImg(0), kTxt(1);

// gpu0 has img, gpu1 img and txt, "gpu 2" txt.
OrderNames names() {
  return {{"img", "txt (b):x"}, {"gpu0", "gpu1", "gpu 2"}, {kImg, std::nullopt, kTxt}, 2, 100};
}

std::string printed(const std::vector<Step>& list, std::size_t device = 0) {
  return print_order(list, DeviceId(device), names());
}
std::vector<Step> parsed(const std::string& text, std::size_t device = 0) {
  return parse_order(text, DeviceId(device), names(), "here");
}

// "FFB": steps of img.
std::vector<Step> steps(const std::string& letters) {
  std::vector<Step> list;
  for (const char c : letters) {
    list.emplace_back(static_cast<ActionKind>(std::string("FBIWRATU").find(c)), kImg);
  }
  return list;
}

TEST(OrderRule, ReadsBack) {
  for (const char* text : {"gpipe", "1f1b", "1f1b,k=2", "1f1b,k=4/2/1", "1f1b,split", "gpipe,split",
                           "1f1b,k=3,split,edition=1", "gpipe,edition=1"}) {
    EXPECT_EQ(to_text(parse_order_rule(text)), text);
  }
  EXPECT_EQ(parse_order_rule("1f1b,k=1/1"), OrderRule(ScheduleKind::kOneFOneB));
  EXPECT_TRUE(parse_order_rule("1f1b,edition=1").is_plain());
  EXPECT_FALSE(parse_order_rule("gpipe,split").is_plain());
}

TEST(OrderRule, AGroupIsOfAllStagesOrOfEach) {
  EXPECT_EQ(parse_order_rule("1f1b").group_of(StageId(3)), 1u);
  EXPECT_EQ(parse_order_rule("1f1b,k=2").group_of(StageId(3)), 2u);
  EXPECT_EQ(parse_order_rule("1f1b,k=4/2/1").group_of(StageId(1)), 2u);
}

TEST(OrderRule, WhatIsWrongIsNamed) {
  const auto wrong = [](const char* text) { return refusal([&] { parse_order_rule(text); }); };
  EXPECT_EQ(wrong("2f2b"), "'2f2b' is not known; expected 1f1b or gpipe");
  EXPECT_THAT(wrong("1f1b,k=0"), HasSubstr("'1f1b,k=0': '0' is not a whole number from 1"));
  EXPECT_THAT(wrong("1f1b,k=2/"), HasSubstr("'' is not a whole number"));
  EXPECT_THAT(wrong("gpipe,k=2"), HasSubstr("'k=2' is not known; expected split"));
  EXPECT_THAT(wrong("1f1b,splits"), HasSubstr("'splits' is not known; expected k=N"));
  EXPECT_THAT(wrong(""), HasSubstr("expected 1f1b or gpipe"));
}

TEST(OrderText, FoldsRepetitions) {
  std::string letters = "FFF";
  for (int i = 0; i < 29; ++i) letters += "BF";
  EXPECT_EQ(printed(steps(letters + "BBB")), "3F 29(B F) 3B");
  EXPECT_EQ(printed(steps("FFFFBBFFBBFFBBBB")), "4F 2(2B 2F) 4B");
  EXPECT_EQ(printed(steps("FB")), "F B");
  EXPECT_EQ(printed({}), "");
  EXPECT_EQ(printed({{ActionKind::kForward, kTxt}, {ActionKind::kForward, kTxt}, Step(TieId(1))}),
            "2(\"txt (b):x\":F) T1");
}

TEST(OrderText, AStageIsNamedWhereADeviceHasSeveral) {
  EXPECT_EQ(printed(steps("FFB"), 1), "2(img:F) img:B");
  EXPECT_EQ(parsed("2(img:F) img:B", 1), steps("FFB"));
  EXPECT_EQ(parsed("img:F", 0), steps("F"));
  EXPECT_EQ(parsed("2(F 2(B F)) 1U"), steps("FBFBFFBFBFU"));
}

TEST(OrderText, WhatIsWrongIsNamedWithItsPlace) {
  const auto wrong = [](const char* text, std::size_t device = 0) {
    return refusal([&] { parsed(text, device); });
  };
  EXPECT_EQ(wrong("F X"), "here: 'X' is no action; expected F, B, I, W, R, A or U, a count before it, or T0");
  EXPECT_EQ(wrong("F", 1),
            "here: 'F' names no stage; expected 'stage:F', because this device has not exactly one");
  EXPECT_EQ(wrong("tex:F"), "here: stage 'tex' is not in the plan");
  EXPECT_EQ(wrong("2(F B"), "here: a '(' is not closed");
  EXPECT_EQ(wrong("F )"), "here: ')' closes nothing");
  EXPECT_EQ(wrong("3 F"), "here: after '3' expected an action or '('");
  EXPECT_EQ(wrong("T2"), "here: there is no tie 2");
  EXPECT_EQ(wrong("T"), "here: T names no tie; expected such as T0");
  EXPECT_EQ(wrong("0F"), "here: '0' is not a whole number from 1 to 1073741824");
  EXPECT_THAT(wrong("101F"), HasSubstr("at most 100 actions"));
  EXPECT_THAT(wrong("9(9(9F))"), HasSubstr("at most 100 actions"));
  EXPECT_THAT(wrong("F0"), HasSubstr("'F0' is no action"));
  EXPECT_THAT(wrong("((((((((((((((((((F))))))))))))))))))"), HasSubstr("groups stand deeper than 16"));
  EXPECT_THAT(wrong("\"img"), HasSubstr("a quote is not closed"));
  EXPECT_THAT(wrong("\"img\" F"), HasSubstr("after stage 'img' expected such as ':F'"));
}

TEST(OrderText, RandomListsReadBack) {
  Rng rng(3);
  for (int i = 0; i < 2000; ++i) {
    std::vector<Step> list;
    const std::size_t device = rng.below(3);
    const std::size_t kinds = 1 + rng.below(4);
    while (list.size() < 90 && rng.below(40) > 0) {
      if (rng.below(20) == 0) {
        list.emplace_back(TieId(rng.below(2)));
      } else if (list.size() > 4 && rng.below(3) == 0) {  // a repetition
        const std::size_t from = list.size() - 1 - rng.below(4);
        for (std::size_t end = list.size(), k = from; k < end && list.size() < 90; ++k)
          list.push_back(list[k]);
      } else {
        const auto kind = static_cast<ActionKind>(rng.below(kinds));
        list.emplace_back(kind, StageId(device == 1 ? rng.below(2) : device / 2));
      }
    }
    EXPECT_EQ(parsed(printed(list, device), device), list) << printed(list, device);
  }
}

TEST(OrderText, ListsOfAllDevicesReadBack) {
  const OrderLists lists{steps("FB"), {}, {{ActionKind::kForward, kTxt}}};
  EXPECT_EQ(print_order_lists(lists, names()), "gpu0     F B\n\"gpu 2\"  F\n");
  EXPECT_EQ(parse_order_lists("# a comment\n" + print_order_lists(lists, names()), names()), lists);
  EXPECT_EQ(refusal([] { parse_order_lists("gpu0 F\n\ngpu0 B", names()); }),
            "line 3: device 'gpu0' stands here twice");
  EXPECT_EQ(refusal([] { parse_order_lists("gpu9 F", names()); }),
            "line 1: device 'gpu9' is not in the cluster");
}

TEST(OrderText, AnyTextGivesAListOrAnInputError) {
  Rng rng(4);
  const std::string alphabet = "FBIWRATU0123() \"img:x";
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (std::size_t n = rng.below(24); n > 0; --n) text += alphabet[rng.below(alphabet.size())];
    try {
      const std::vector<Step> list = parsed(text, i % 3);
      EXPECT_EQ(parsed(printed(list, i % 3), i % 3), list) << text;
    } catch (const InputError&) {
    }
  }
}

TEST(OrderLists, HoldWhatIsBetweenForwardAndItsEnd) {
  // gpu0: at most 3 of img; gpu1, I does not end it: 2 of img; txt stands nowhere: 1.
  EXPECT_THAT(in_flight_of({steps("FFFBFBBB"), steps("FIFIWW")}, 2), ElementsAre(3, 1));
  EXPECT_THAT(in_flight_of({steps("FIFIWW")}, 1), ElementsAre(2));
  EXPECT_THAT(in_flight_of({}, 1), ElementsAre(1));
}

TEST(Step, ATieIsNoStage) {
  EXPECT_EQ(Step(TieId(3)).tie(), TieId(3));
  EXPECT_FALSE(Step(TieId(0)).is_of(StageId(0)));
  EXPECT_THAT(refusal<InternalError>([] { Step(TieId(3)).stage(); }), HasSubstr("kTieSum"));
  EXPECT_THAT(refusal<InternalError>([] { (void)steps("F")[0].tie(); }), HasSubstr("kTieSum"));
  EXPECT_THAT(refusal<InternalError>([] { Step(ActionKind::kTieSum, StageId(0)); }), HasSubstr("kTieSum"));
}

}  // namespace
}  // namespace espalier
