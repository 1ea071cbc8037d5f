#include "espalier/graph/part_names.h"

#include <gmock/gmock.h>

#include <set>
#include <string>

#include "espalier/base/rng.h"
#include "espalier/graph/text.h"
#include "testing/random_graphs.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// One operator for each module, one behind the other.
Graph modules(const std::vector<std::string>& paths) {
  std::string lines = "x = input()\n", last = "x";
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::string name = "op" + std::to_string(i);
    lines += name + " = relu(" + last + ")" + (paths[i].empty() ? "" : " @module=" + paths[i]) + "\n";
    last = name;
  }
  return parse_graph(lines);
}

std::vector<OperatorId> run(std::size_t first, std::size_t end) {
  std::vector<OperatorId> result;
  for (std::size_t i = first; i < end; ++i) result.emplace_back(i);
  return result;
}

const std::vector<std::string> kTowers = {
    "m.vit.embed",    "m.vit.layers.0", "m.vit.layers.1", "m.vit.layers.2",
    "m.vit.layers.3", "m.text.embed",   "m.text.norm",    ""};

TEST(PartNames, AreModulesAndRunsOfModules) {
  const Graph graph = modules(kTowers);
  const std::vector<std::vector<OperatorId>> towers{run(0, 5), run(5, 7), run(7, 8)};
  EXPECT_THAT(part_names(graph, towers), ElementsAre("vit", "text", "op7"));
  const std::vector<std::vector<OperatorId>> cut{run(0, 1), run(1, 4), run(4, 7)};
  EXPECT_THAT(part_names(graph, cut), ElementsAre("vit.embed", "vit.layers.0-2", "vit-text"));
}

TEST(PartNames, GoDeeperWhereTwoPartsShareAModule) {
  const Graph graph = modules({"h.0.attn.q", "h.0.attn.k", "h.0.mlp", "h.0.mlp", "h.1.attn.q", "h.1.mlp"});
  const std::vector<std::vector<OperatorId>> cut{run(0, 1), run(1, 2), run(2, 3), run(3, 6)};
  EXPECT_THAT(part_names(graph, cut), ElementsAre("h.0.attn.q", "h.0.attn.k", "h.0.mlp.op2", "h.0-1"));
}

TEST(PartNames, AnOperatorThatRepeatsItsModuleIsNamedOnce) {
  // As the zoo's operators: "h.0.up" stands in module "h.0"; "h.01" only begins alike.
  const Graph graph = parse_graph(
      "x = input()\nh.0.up = relu(x) @module=h.0\nh.0.down = relu(h.0.up) @module=h.0\n"
      "h.01 = relu(h.0.down) @module=h.0\n");
  const std::vector<std::vector<OperatorId>> each{run(0, 1), run(1, 2), run(2, 3)};
  EXPECT_THAT(part_names(graph, each), ElementsAre("h.0.up", "h.0.down", "h.0.h.01"));
}

TEST(PartNames, NumbersAreOrderedAsNumbers) {
  std::vector<std::string> paths;
  for (int i = 0; i < 12; ++i) paths.push_back("net.layers." + std::to_string(i));
  paths.push_back("net.head");
  const std::vector<std::vector<OperatorId>> cut{run(0, 11), run(11, 13)};
  EXPECT_THAT(part_names(modules(paths), cut), ElementsAre("layers.0-10", "layers-head"));
}

TEST(PartNames, ANameIsNoModuleThatIsSomethingElse) {
  // A module is called like the run of two others.
  const Graph graph = modules({"0", "1", "b", "0-1", "0-1", "0-1"});
  const std::vector<std::vector<OperatorId>> cut{run(0, 2), run(2, 6)};
  const auto names = part_names(graph, cut);
  EXPECT_NE(names[0], "0-1");
  EXPECT_NE(names[0], names[1]);
}

TEST(PartNames, GivenOnesStayAndOthersMakeRoom) {
  const Graph graph = modules({"img", "txt", "head"});
  const std::vector<std::vector<OperatorId>> each{run(0, 1), run(1, 2), run(2, 3)};
  const std::vector<std::string> given{"", "img", ""};
  EXPECT_THAT(part_names(graph, each, given), ElementsAre("img.op0", "img", "head"));
}

TEST(PartNames, WithoutModulesAreOperators) {
  const Graph graph = parse_graph("x = input()\na = relu(x)\n\"b c\" = relu(a)\nd = relu(\"b c\")\n");
  const std::vector<std::vector<OperatorId>> cut{run(0, 2), run(2, 3)};
  EXPECT_THAT(part_names(graph, cut), ElementsAre("a-b_c", "d"));
  const std::vector<std::vector<OperatorId>> all{run(0, 3)};
  EXPECT_THAT(part_names(graph, all), ElementsAre("model"));
}

TEST(PartNames, AreUniqueWhateverTheModulesAre) {
  Rng rng(5);
  const std::vector<std::string> words{"a", "b", "0", "1", "2", "a-b", "0-1", "model", "op3", ""};
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> paths;
    for (int i = 0; i < 20; ++i) {
      std::string path = words[rng.below(words.size())];
      for (std::uint64_t k = rng.below(3); k > 0 && !path.empty(); --k) path += "." + words[rng.below(9)];
      paths.push_back(path);
    }
    const Graph graph = modules(paths);
    std::vector<std::vector<OperatorId>> sets(1 + rng.below(8));
    for (std::size_t i = 0; i < paths.size(); ++i) {
      sets[i < sets.size() ? i : rng.below(sets.size())].emplace_back(i);
    }
    const auto names = part_names(graph, sets);
    const std::set<std::string> once(names.begin(), names.end());
    ASSERT_THAT(once, SizeIs(sets.size())) << print_graph(graph);
    for (std::size_t s = 0; s < sets.size(); ++s) {  // no module that is mostly in other sets
      std::size_t inside = 0, mine = 0;
      for (std::size_t i = 0; i < paths.size(); ++i) {
        const bool within = paths[i] == names[s] || paths[i].rfind(names[s] + ".", 0) == 0;
        inside += within ? 1 : 0;
        mine += within && std::find(sets[s].begin(), sets[s].end(), OperatorId(i)) != sets[s].end() ? 1 : 0;
      }
      ASSERT_LE(inside, 2 * mine) << names[s] << "\n" << print_graph(graph);
    }
  }
}

}  // namespace
}  // namespace espalier
