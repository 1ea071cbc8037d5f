#include "espalier/plan/placement_rules.h"

#include <gmock/gmock.h>

#include "espalier/graph/text.h"
#include "espalier/plan/text.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;

const char* const kRulesGraph =
    "x = input()\n"
    "m = ne(x) : bool[b] @duplicable\n"
    "a = f(x) @module=encoder.layers.0\n"
    "b = f(a, m) @module=encoder.layers.1\n"
    "c = f(b) @module=decoder\n"
    "loss = mean(c)\n";

struct Rules {
  Graph graph = parse_graph(kRulesGraph);
  Cluster cluster = parse_cluster("3xV100-16GB");

  std::string placed(const std::string& text) const {
    return print_placement(parse_placement_file(text, "p", graph, cluster).placement, graph, cluster);
  }
  std::string refused(const std::string& text) const {
    return refusal([&] { parse_placement_file(text, "p", graph, cluster); });
  }
};

TEST(PlacementRules, TheFirstThatMatchesPlacesAnOperator) {
  const std::string expected = "gpu:0 { m .. b }\ngpu:1 { c }\ngpu:2 { loss }\n";
  EXPECT_EQ(Rules().placed(R"({"encoder.*": "gpu:0", "loss": "gpu:2", "*": "gpu:1"})"),
            "gpu:0 { a b }\ngpu:1 { m c }\ngpu:2 { loss }\n");
  EXPECT_EQ(Rules().placed("# by hand\nencoder.* = gpu:0\nloss=gpu:2\n\"decoder\" = gpu:1\n"), expected)
      << "the mask goes to its reader";
}

TEST(PlacementRules, ReadBack) {
  const Rules rules;
  for (const char* text :
       {"a = gpu:0\n", "\"a b\" = gpu:1\n* = gpu:2\n", "\"a=b\" = gpu:1\n", "\"{a\" = gpu:1\n"}) {
    const auto parsed = parse_placement_rules(text, "p", rules.cluster);
    EXPECT_EQ(print_placement_rules(parsed, rules.cluster), text);
  }
}

TEST(PlacementRules, OtherFormsOfAPlacementAreTaken) {
  const std::string text = "gpu:0 { m .. b }\ngpu:2 { c loss }\n";
  EXPECT_EQ(Rules().placed(text), text);
  EXPECT_EQ(Rules().placed(R"({"format": "espalier.placement/1", "devices": [
    {"device": "gpu:0", "operators": [["m", "b"]]}, {"device": "gpu:2", "operators": [["c", "loss"]]}]})"),
            text);
}

TEST(PlacementRules, WhatIsWrongIsNamedInOneLine) {
  const Rules rules;
  EXPECT_THAT(
      rules.refused(R"({"encoder.*": "gpu:7", "*": "gpu:1"})"),
      AllOf(HasSubstr("p: encoder.*: 'gpu:7' is no device of the cluster"), HasSubstr("did you mean")));
  EXPECT_THAT(rules.refused("encoder.* = gpu:0\n* = gpu:9\n"), HasSubstr("p: line 2: 'gpu:9' is no device"));
  EXPECT_THAT(rules.refused("encoder.* = gpu:0\n"),
              AllOf(HasSubstr("p: no pattern matches operator 'c' of module 'decoder' and 1 more"),
                    HasSubstr("\"*\": \"gpu:0\"")));
  EXPECT_THAT(rules.refused("encodr.* = gpu:0\n* = gpu:1\n"),
              HasSubstr("p: 'encodr.*' matches no operator or module"));
  EXPECT_THAT(rules.refused("* = gpu:0\n* = gpu:1\n"), HasSubstr("p: line 2: '*' stands here twice"));
  EXPECT_THAT(rules.refused("* = gpu:0 gpu:1\n"), HasSubstr("p: line 1: expected PATTERN = DEVICE"));
  EXPECT_THAT(rules.refused(R"({"*": 3})"), HasSubstr("p: *: is 3; expected a string"));
  EXPECT_THAT(rules.refused(R"({"format": "espalier.placement/2"})"), HasSubstr("espalier.placement/1"));
  EXPECT_THAT(rules.refused("{"), HasSubstr("p: not JSON"));
  EXPECT_THAT(rules.refused(""), HasSubstr("p: operator 'm' stands on no device"));
  EXPECT_THAT(rules.refused("{}"), HasSubstr("p: no pattern matches operator"));
}

TEST(PlacementRules, ARuleWhoseOperatorsAreAllTakenIsNoMistake) {
  EXPECT_EQ(Rules().placed("* = gpu:0\nencoder.* = gpu:1\n"), "gpu:0 { m .. loss }\n");
}

TEST(PlacementRules, AColocationGroupGoesWhereItsFirstRuleSays) {
  const Graph graph = parse_graph(
      "x = input()\n"
      "a = f(x) @module=front\n"
      "b = f_(a) @inplace @module=back\n"
      "c = f(b) @module=back\n");
  const Cluster cluster = parse_cluster("2xV100-16GB");
  const auto placed = [&](const std::string& text) {
    return place_by_rules(graph, cluster, parse_placement_rules(text, "p", cluster), "p");
  };
  const PlacedByRules front = placed("front = gpu:0\nback = gpu:1\n");
  EXPECT_EQ(print_placement(front.placement, graph, cluster), "gpu:0 { a b }\ngpu:1 { c }\n");
  EXPECT_THAT(front.notes,
              ElementsAre("p: 1 operator, 'b', stands on gpu:0 ('front') in place of gpu:1 ('back'), with "
                          "operators that use memory which one of them writes"));
  const PlacedByRules back = placed("back = gpu:1\nfront = gpu:0\n");
  EXPECT_EQ(print_placement(back.placement, graph, cluster), "gpu:1 { a .. c }\n");
  EXPECT_THAT(placed("* = gpu:1\n").notes, IsEmpty());
  EXPECT_THAT(refusal([&] { parse_placement_file("gpu:0 { a c }\ngpu:1 { b }\n", "p", graph, cluster); }),
              HasSubstr("p: breaks a rule: colocation 'a' and 'b' belong together"));
}

}  // namespace
}  // namespace espalier
