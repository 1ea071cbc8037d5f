#include "espalier/planners/cuts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/graph/text.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

TEST(Cuts, EachTensorCrossesUpToItsLastReaderOnce) {
  const Graph graph = parse_graph(
      "batch 1..8\nx = input() : f32[b]\na = f(x) : f32[b,3]\nc = g(a) : f32[b,2]\nd = g(a) : f32[b]\n"
      "loss = h(c, d) : f32[]\nreturn loss\n");
  // Before a, c, d, h and behind: nothing, a, a and c, c and d, nothing.
  EXPECT_THAT(crossing_bytes(graph), ElementsAre(Optional(Bytes(0)), Optional(Bytes(12)), Optional(Bytes(20)),
                                                 Optional(Bytes(12)), Optional(Bytes(0))));
}

TEST(Cuts, NoneStandsBetweenOperatorsThatBelongTogether) {
  const Graph graph = parse_graph(
      "x = input() : f32[b]\na = f(x) : f32[b] @colocate=1\nc = g(a) : f32[b]\nd = g(c) : f32[b] "
      "@colocate=1\n"
      "loss = h(d) : f32[]\nreturn loss\n");
  EXPECT_THAT(crossing_bytes(graph), ElementsAre(Optional(Bytes(0)), std::nullopt, std::nullopt,
                                                 Optional(Bytes(4)), Optional(Bytes(0))));
}

TEST(Cuts, WhatWritesIsNotComputedTwice) {
  const Graph graph = parse_graph(
      "x = input() : f32[b]\nmean = buffer(mean) : f32[1]\na = f(x) : f32[b]\nc = norm(a, mean) : f32[b] "
      "@mutates=mean\n"
      "loss = h(c) : f32[]\nreturn loss\n");
  EXPECT_EQ(repeatable_operators(graph), OperatorSet({OperatorId(0), OperatorId(2)}));
}

}  // namespace
}  // namespace espalier
