#include "espalier/planners/literal/block_partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "espalier/base/rng.h"
#include "espalier/planners/literal/layer_sequence.h"
#include "espalier/planners/literal/published_for_tests.h"
#include "testing/refusal.h"

namespace espalier::literal {
namespace {

using espalier::testing::refusal;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(BlockPartition, ElementsMoveTowardsTheSmallestBlock) {
  // 1 … 6 become 0, 0.2, … 1. Halves have 0.6 and 2.4; the first element of the second goes over: 1.2
  // and 1.8, which differ by less than 1. As costs 1+2+3+4 = 10 and 5+6 = 11, which is the best.
  const std::vector<double> costs{1, 2, 3, 4, 5, 6};
  const auto ends = block_partition(costs, 2);
  EXPECT_THAT(ends, ElementsAre(4U, 6U));
  EXPECT_EQ(largest_block(costs, ends), 11);
  EXPECT_EQ(largest_block(costs, least_largest_block(costs, 2)), 11);
}

TEST(BlockPartition, TheLeastCostCountsAsNothing) {
  // 9 becomes 0 and 10 becomes 1: halves have 0 and 2. An element of no size goes over, then one of size 1: 1
  // and 1, where it stops. As costs 9·4 + 10 = 46 and 10; three and three would be 27 and 29.
  const std::vector<double> costs{9, 9, 9, 9, 10, 10};
  const auto ends = block_partition(costs, 2);
  EXPECT_THAT(ends, ElementsAre(5U, 6U));
  EXPECT_EQ(largest_block(costs, ends), 46);
  EXPECT_EQ(largest_block(costs, least_largest_block(costs, 2)), 29);
}

TEST(BlockPartition, EqualCostsAreCutByCount) {
  // Seven layers in three blocks: 7 div 3 = 2, 2 and the rest.
  EXPECT_THAT(block_partition(std::vector<double>(7, 5.0), 3), ElementsAre(2U, 4U, 7U));
}

// The least largest sum over every way to cut.
double by_trying_all(std::span<const double> costs, std::size_t blocks) {
  if (blocks == 1) return largest_block(costs, {costs.size()});
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t first = 1; first + blocks - 1 <= costs.size(); ++first) {
    best = std::min(best,
                    std::max(largest_block(costs, {first}), by_trying_all(costs.subspan(first), blocks - 1)));
  }
  return best;
}

TEST(BlockPartition, TheExactCutIsTheBestOfAllAndThePublishedOneNeverBetter) {
  Rng rng(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<double> costs;
    for (std::size_t i = 0; i < 4 + rng.below(6); ++i) costs.push_back(static_cast<double>(rng.below(12)));
    const std::size_t blocks = 1 + rng.below(4);
    const auto exact = least_largest_block(costs, blocks), published = block_partition(costs, blocks);
    EXPECT_EQ(largest_block(costs, exact), by_trying_all(costs, blocks));
    EXPECT_GE(largest_block(costs, published), largest_block(costs, exact));
    EXPECT_EQ(exact.back(), costs.size());
    EXPECT_TRUE(std::is_sorted(published.begin(), published.end()));
  }
}

TEST(BlockPartition, MoreBlocksThanLayersAreRefused) {
  EXPECT_THAT(refusal([] { block_partition(std::vector<double>{1, 2}, 3); }), HasSubstr("2 layers"));
}

TEST(Torchgpipe, ASequenceLeavesOutInputsAndKeepsTheOrderOfEdges) {
  const PipedreamProfile profile = read_pipedream(
      "node1 -- Input0 -- forward_compute_time=600.0, backward_compute_time=0.0, activation_size=8.0, "
      "parameter_size=0.0\n"
      "node2 -- Conv -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0, "
      "parameter_size=4.0\n"
      "node3 -- Conv -- forward_compute_time=2.0, backward_compute_time=4.0, activation_size=8.0, "
      "parameter_size=4.0\n"
      "node4 -- Linear -- forward_compute_time=1.0, backward_compute_time=3.0, activation_size=8.0, "
      "parameter_size=4.0\n"
      "\tnode1 -- node2\n\tnode2 -- node3\n\tnode3 -- node4\n",
      "chain.txt");
  EXPECT_THAT(layer_sequence(profile), ElementsAre(1U, 2U, 3U));
  // 3, 6, 4 become 0, 1, 1/3. 3 div 2 = 1: blocks of 0 and 4/3, which differ by more than 1; the second layer
  // goes over: 1 and 1/3. As times 9 and 4; the best is the same.
  const TorchgpipeResult result = torchgpipe_balance(profile, 2);
  EXPECT_THAT(check_torchgpipe(profile, 2, result), IsEmpty());
  EXPECT_EQ(result.largest, 9);
  EXPECT_EQ(result.exact, 9);
  EXPECT_THAT(torchgpipe_balance(profile, 4).why, HasSubstr("3 layers"));
}

TEST(Torchgpipe, ThePublishedProfilesPassTheChecker) {
  for (const char* name : {"alexnet", "vgg16", "resnet18", "resnext50", "resnet101", "densenet121", "gnmt"}) {
    const PipedreamProfile profile = pipedream_input(name);
    for (const std::size_t blocks : {4U, 8U, 16U}) {
      const TorchgpipeResult result = torchgpipe_balance(profile, blocks);
      EXPECT_THAT(check_torchgpipe(profile, blocks, result), IsEmpty()) << name;
      EXPECT_LE(result.exact, result.largest) << name;
    }
  }
}

}  // namespace
}  // namespace espalier::literal
