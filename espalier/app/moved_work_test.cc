#include "espalier/app/moved_work.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "espalier/base/rng.h"
#include "espalier/graph/text.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// One operator for each pair of module and places; each reads a parameter of 4 · its number of elements.
struct Example {
  std::string text = "x = input() : f32[b,1]\n";
  std::string last = "x";
  Standing standing{{"gpu:0", "gpu:1", "gpu:2"}, {"V", "V", "V"}, {}, {}};
  std::vector<Duration> work;
  std::string parameters;

  void add(const std::string& module, std::int64_t time, std::uint32_t a, std::uint32_t b,
           std::int64_t elements = 0) {
    const std::string number = std::to_string(work.size());
    std::string reads = last;
    if (elements > 0) {
      parameters += "w" + number + " = parameter(p" + number + ") : f32[" + std::to_string(elements) + "]\n";
      reads += ", w" + number;
    }
    text +=
        "o" + number + " = f(" + reads + ") : f32[b,1]" + (module.empty() ? "" : " @module=" + module) + "\n";
    last = "o" + number;
    standing.a.push_back({a});
    standing.b.push_back({b});
    work.emplace_back(time);
  }
  Graph graph() const { return parse_graph(parameters + text); }
  MovedWork moved(std::size_t lines = 12) const {
    return moved_work(graph(), standing, work, {.most_lines = lines});
  }
};

std::vector<std::string> lines_of(const MovedWork& moved) {
  std::vector<std::string> out;
  for (const MovedWork::Line& line : moved.lines) {
    out.push_back(line.module + " " + line.from + " " + line.to + " " + std::to_string(line.operators) + " " +
                  std::to_string(std::lround(100 * line.share)) + "% " +
                  std::to_string(line.parameters.count()));
  }
  return out;
}

TEST(MovedWork, WhatGoesOneWayIsToldAsAWhole) {
  Example e;
  e.add("net.encoder.a", 10, 0, 1, 3);
  e.add("net.encoder.b", 20, 0, 1, 5);
  e.add("net.decoder", 70, 2, 2, 7);
  const MovedWork moved = e.moved();
  EXPECT_THAT(lines_of(moved), ElementsAre("net.encoder gpu:0 gpu:1 2 30% 32"));
  EXPECT_EQ(moved.all.operators, 2U);
  EXPECT_EQ(moved.all.parameters, Bytes(32));
  EXPECT_EQ(moved.more, 0U);
}

TEST(MovedWork, WhatDoesNotIsToldByTheModulesInsideAndNeighboursAreJoined) {
  Example e;
  e.add("net.h.0", 10, 0, 0);
  e.add("net.h.1", 10, 0, 1);
  e.add("net.h.2", 10, 0, 1);
  e.add("net.h.3", 10, 0, 1);
  e.add("net.h.4.mlp", 30, 0, 1);
  e.add("net.h.4.norm", 5, 1, 0);
  e.add("net.h.4.mlp", 25, 2, 2);
  const MovedWork moved = e.moved();
  EXPECT_THAT(lines_of(moved), ElementsAre("net.h.1-3 gpu:0 gpu:1 3 30% 0", "net.h.4.mlp gpu:0 gpu:1 1 30% 0",
                                           "net.h.4.norm gpu:1 gpu:0 1 5% 0"));
  // With room for two lines: what goes 0 -> 1 and 1 -> 0.
  EXPECT_THAT(lines_of(e.moved(2)), ElementsAre("net.h gpu:0 gpu:1 4 60% 0", "net.h gpu:1 gpu:0 1 5% 0"));
  const MovedWork one = e.moved(1);
  EXPECT_THAT(lines_of(one), ElementsAre("net.h gpu:0 gpu:1 4 60% 0"));
  EXPECT_EQ(one.more, 1U);
  EXPECT_EQ(one.rest.operators, 1U);
  EXPECT_EQ(one.all.operators, 5U);
}

TEST(MovedWork, OperatorsWithoutModuleGoByTheirNames) {
  Example e;
  e.add("", 10, 0, 1);
  e.add("", 30, 0, 0);
  EXPECT_THAT(lines_of(e.moved()), ElementsAre("o0 gpu:0 gpu:1 1 25% 0"));
}

TEST(MovedWork, WhatGoesManyWaysIsOneLineBesideItsLargestPart) {
  Example e;
  for (std::uint32_t way = 0; way < 6; ++way) e.add("m", 10, way / 2, way % 2 + (way / 2 <= way % 2 ? 1 : 0));
  EXPECT_THAT(lines_of(e.moved()), ElementsAre("m 3 places 3 places 6 100% 0"));
  e.add("m", 100, 0, 1);
  EXPECT_THAT(lines_of(e.moved()), ElementsAre("m gpu:0 gpu:1 2 69% 0", "m 3 places 3 places 5 31% 0"));
}

TEST(MovedWork, CrumbsTakeNoLine) {
  Example e;
  e.add("h.a", 1000, 0, 1);
  e.add("h.b", 500, 1, 0);
  e.add("c", 1, 2, 0);
  const MovedWork moved = e.moved(2);
  EXPECT_THAT(lines_of(moved), ElementsAre("h.a gpu:0 gpu:1 1 67% 0", "h.b gpu:1 gpu:0 1 33% 0"));
  EXPECT_EQ(moved.more, 1U);
}

TEST(MovedWork, NothingMovedIsNothing) {
  Example e;
  e.add("net", 10, 0, 0);
  EXPECT_THAT(e.moved().lines, IsEmpty());
  EXPECT_FALSE(e.moved().renaming.has_value());
}

TEST(MovedWork, EqualDevicesUnderOtherNamesExplainMostOfIt) {
  Example e;
  e.add("a", 40, 0, 1);
  e.add("b", 40, 1, 0);
  e.add("c", 10, 0, 2);
  e.add("d", 10, 2, 2);
  const MovedWork moved = e.moved();
  EXPECT_DOUBLE_EQ(moved.all.share, 0.9);
  ASSERT_TRUE(moved.renaming.has_value());
  EXPECT_EQ(moved.renaming->devices, "gpu:0 <-> gpu:1");
  EXPECT_DOUBLE_EQ(moved.renaming->share, 0.1);

  e.standing.kinds = {"V", "A", "V"};  // another device is no other name
  EXPECT_FALSE(e.moved().renaming.has_value());
}

TEST(MovedWork, ARenamingInACircleIsOne) {
  Example e;
  for (std::uint32_t d = 0; d < 3; ++d) e.add("m", 10, d, (d + 1) % 3);
  ASSERT_TRUE(e.moved().renaming.has_value());
  EXPECT_EQ(e.moved().renaming->devices, "gpu:0 -> gpu:1 -> gpu:2 -> gpu:0");
  EXPECT_EQ(e.moved().renaming->share, 0);
}

TEST(MovedWork, ARenamingThatExplainsLessThanHalfIsNone) {
  Example e;
  e.add("a", 10, 0, 1);
  e.add("b", 10, 0, 2);
  e.add("c", 10, 1, 2);
  e.add("d", 10, 2, 0);
  e.add("e", 20, 0, 0);
  EXPECT_FALSE(e.moved().renaming.has_value());
}

// The best of all permutations leaves as much as the renaming says, or none explains more than half.
TEST(MovedWork, NoOtherRenamingLeavesMore) {
  Rng rng(7);
  for (int round = 0; round < 200; ++round) {
    Example e;
    e.standing.names.push_back("gpu:3");
    e.standing.kinds.emplace_back("V");
    const std::vector<std::uint32_t> hidden{1, 0, 3, 2};
    for (int i = 0; i < 8; ++i) {
      const auto a = static_cast<std::uint32_t>(rng.below(4));
      const auto other = static_cast<std::uint32_t>(rng.below(4));
      e.add("m", 1 + static_cast<std::int64_t>(rng.below(50)), a, rng.below(3) == 0 ? other : hidden[a]);
    }
    std::vector<std::uint32_t> names{0, 1, 2, 3};
    std::int64_t whole = 0, moved = 0, least = std::numeric_limits<std::int64_t>::max();
    for (std::size_t i = 0; i < e.work.size(); ++i) {
      whole += e.work[i].count();
      moved += e.standing.a[i] == e.standing.b[i] ? 0 : e.work[i].count();
    }
    do {
      std::int64_t left = 0;
      for (std::size_t i = 0; i < e.work.size(); ++i) {
        left += names[e.standing.a[i][0]] == e.standing.b[i][0] ? 0 : e.work[i].count();
      }
      least = std::min(least, left);
    } while (std::next_permutation(names.begin(), names.end()));
    const auto renaming = e.moved().renaming;
    ASSERT_EQ(renaming.has_value(), 2 * least < moved) << round;
    if (renaming) {
      EXPECT_NEAR(renaming->share, static_cast<double>(least) / static_cast<double>(whole), 1e-12);
    }
  }
}

}  // namespace
}  // namespace espalier
