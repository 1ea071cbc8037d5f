#include "espalier/schedule/pytorch_csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/base/check.h"
#include "espalier/schedule/interleaved.h"
#include "espalier/schedule/order_file.h"
#include "testing/refusal.h"
#include "testing/stage_line_case.h"

namespace espalier {
namespace {

using espalier::testing::staged_line;
using espalier::testing::StagedLine;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;

StagedLine two_by_two(std::size_t chunks = 1) {
  return staged_line({.places = 2,
                      .chunks = chunks,
                      .micro_batches = 2,
                      .times = {{microseconds(1), microseconds(1), microseconds(1)}}});
}

std::string lists_text(const StagedLine& line, const OrderLists& lists) {
  return print_order_lists(lists, order_names(line.model, line.cluster));
}

TEST(PytorchCsv, RowsAreRanksAndEmptyCellsAreBubbles) {
  const StagedLine line = two_by_two();
  const OrderLists lists =
      parse_pytorch_csv("0F0,0F1,,0I0,0W0,0B1\r\n,1F0,1B0,1F1,1I1,1W1\r\n", "f", line.model, line.cluster);
  EXPECT_EQ(lists_text(line, lists), "dev0  2F I W B\ndev1  F B F I W\n");
}

TEST(PytorchCsv, PairsStandOneAfterTheOtherAndMessagesArePassedOver) {
  const StagedLine line = two_by_two();
  const OrderLists lists = parse_pytorch_csv(
      "0UNSHARD,0F0,0SEND_F0,0F1,0RECV_B0,0B0,0B1,0REDUCE_GRAD\n1RECV_F0,1F0,(1F1;1B0)OVERLAP_F_B,1B1\n", "f",
      line.model, line.cluster);
  EXPECT_EQ(lists_text(line, lists), "dev0  2F 2B\ndev1  2F 2B\n");
}

TEST(PytorchCsv, WhatIsWrittenReadsBack) {
  const StagedLine line = two_by_two(2);
  const OrderLists lists = interleaved(line.model, 2).lists.value();
  const StagedModel model = with_orders(line.model, Orders(lists));
  const Schedule schedule = make_schedule(model, 2);
  ASSERT_THAT(check_schedule(model, schedule), IsEmpty());
  const std::string text = print_pytorch_csv(model, schedule);
  EXPECT_EQ(text,
            "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n"
            "1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1\n");
  EXPECT_EQ(parse_pytorch_csv(text, "f", model, line.cluster), lists);
}

TEST(PytorchCsv, AStageWithoutWeightsHasWholeBackwards) {
  StagedLine line = two_by_two();
  line.model.stages[1].replicas[0].times.weight_gradient = Duration();
  const OrderLists lists =
      parse_pytorch_csv("0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1W0,1I1,1W1\n", "f", line.model, line.cluster);
  EXPECT_EQ(lists_text(line, lists), "dev0  2F 2B\ndev1  2(F B)\n");
}

TEST(PytorchCsv, RefusalsNameTheRow) {
  const StagedLine line = two_by_two(2);
  const auto why = [&](const char* text) {
    return refusal([&] { parse_pytorch_csv(text, "f.csv", line.model, line.cluster); });
  };
  EXPECT_THAT(why("0F0\n1F0,1X0\n"), HasSubstr("f.csv: row 2: '1X0' is no action"));
  EXPECT_THAT(why("0F0,(0F1;0B0\n"), HasSubstr("row 1: '(0F1;0B0' is no action"));
  EXPECT_THAT(why("9F0\n"), HasSubstr("'9F0': the plan has 4 stages"));
  EXPECT_THAT(why("0F0,1F0\n"), HasSubstr("'1F0': stage 's1' stands on another device"));
  EXPECT_THAT(why("0F0\n2F0\n"), HasSubstr("row 2: its stages stand on the device of row 1"));
  EXPECT_THAT(why("0F1\n"), HasSubstr("micro-batch 0 would be next"));
  EXPECT_THAT(why("0F0,0W0\n"), HasSubstr("'0W0' has no I before it"));
  EXPECT_THAT(why(",,\n"), HasSubstr("has no action"));
}

}  // namespace
}  // namespace espalier
