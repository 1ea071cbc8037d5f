#include "espalier/plan/plan_file.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/base/rng.h"
#include "espalier/graph/text.h"
#include "espalier/plan/text.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::refusal;

constexpr const char* kGraph =
    "x = input() : f32[b,16]\n"
    "w = parameter(w) : f32[16,16]\n"
    "m = ne(x) : bool[b] @duplicable\n"
    "a = linear(x, w) : f32[b,16]\n"
    "c = relu(a) : f32[b,16]\n"
    "d = masked_fill(c, m) : f32[b,16]\n"
    "e = linear(d, w) : f32[b,16]\n"
    "loss = sum(e, m) : f32[]\n"
    "return loss\n";

struct SavedExample {
  Graph graph = parse_graph(kGraph);
  Cluster cluster = parse_cluster("2xA100-80GB+1xV100-16GB");
  PipelinePlan plan = parse_plan(
      "batch 16 micro_batch 4 schedule 1f1b tokens free\n"
      "stage front gpu:0 | gpu:2 { m a .. d } recompute { c }\n"
      "stage back gpu:1 { m e loss }\n",
      graph, cluster);
  PlanFile file() const {
    Training training;
    training.batch = plan.batch;
    training.micro_batches = {BatchSize(2), BatchSize(4)};
    training.optimizer.learning_rate = 0.1;
    training.optimizer.schedule = {LearningRateSchedule::Shape::kCosine, 10, 100};
    training.optimizer.clip_norm = 1.5;
    training.optimizer.no_decay = {"*.bias"};
    training.frozen = {"vision.*"};
    training.dims = {{"seq", 128}, {"tokens.1", 2 * SizeExpr::batch()}};
    const CostTable costs = complete_costs(graph, cluster, CostTable({}), training.micro_batches);
    PlanFile file =
        make_plan_file(graph, cluster, training, plan, stage_model(graph, cluster, costs, training, plan));
    file.model = "models/two.pt2";
    file.planner = "by hand";
    file.seed = 0xffffffffffffffff;
    file.cost_file = "costs.json";
    file.cost_hash = costs.hash();
    file.implementations = {{"A100", "winograd", {"a", "b"}}};
    file.notes = {"a note"};
    return file;
  }
};

TEST(PlanFile, ReadsBackAndResolvesToThePlan) {
  const SavedExample example;
  const PlanFile file = example.file();
  const PlanFile read = parse_plan_file(print_plan_file(file), "plan.json");
  EXPECT_EQ(read, file);
  EXPECT_EQ(resolve_plan(read, example.graph), example.plan);
  EXPECT_EQ(print_plan_file(read), print_plan_file(file));
}

TEST(PlanFile, RemembersOnWhatItsCostsWereMeasured) {
  PlanFile file = SavedExample().file();
  file.measured = MeasuredOn{"A machine, 2 cores", 3, {80, 40, microseconds(900)}};
  const std::string text = print_plan_file(file);
  EXPECT_THAT(text, HasSubstr(R"("machine": "A machine, 2 cores")"));
  EXPECT_THAT(text, HasSubstr(R"("spread_per_mille": 80)"));
  EXPECT_THAT(text, HasSubstr(R"("device_spread_per_mille": 40)"));
  EXPECT_THAT(text, HasSubstr(R"("first_action_ns": 900000)"));
  EXPECT_EQ(parse_plan_file(text, "plan.json"), file);
}

TEST(PlanFile, StagesAreRunsOfNames) {
  const PlanFile file = SavedExample().file();
  ASSERT_EQ(file.stages.size(), 2u);
  EXPECT_THAT(file.stages[0].operators, ::testing::ElementsAre(::testing::Pair("m", "d")));
  EXPECT_THAT(file.stages[1].operators,
              ::testing::ElementsAre(::testing::Pair("m", "m"), ::testing::Pair("e", "loss")));
  EXPECT_THAT(file.stages[0].recompute, ::testing::ElementsAre("c"));
}

TEST(PlanFile, AnotherModelIsRefusedByItsFirstDifferentOperator) {
  const PlanFile file = SavedExample().file();
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = kGraph;
    text.replace(text.find(from), from.size(), to);
    const Graph other = parse_graph(text);
    return [&file, other] { resolve_plan(file, other); };
  };
  EXPECT_THAT(refusal(with("c = relu(a)", "c = gelu(a)")),
              AllOf(HasSubstr("operator 'c' (number 2)"), HasSubstr("plan again")));
  EXPECT_THAT(refusal(with("w = parameter(w) : f32[16,16]", "w = parameter(w) : f32[16,17]")),
              HasSubstr("operator 'a'"));
  EXPECT_THAT(refusal(with("return loss", "more = relu(loss) : f32[]\nreturn loss, more")),
              HasSubstr("it has 7 operators, not 6"));
  EXPECT_THAT(refusal(with("parameter(w)", "parameter(v)")), HasSubstr("its tensors or parameters differ"));
}

TEST(PlanFile, NamesThatAreNotThereAndBrokenRulesAreNamed) {
  const SavedExample example;
  const auto resolved = [&](auto change) {
    PlanFile file = example.file();
    change(file);
    return [&example, file] { resolve_plan(file, example.graph); };
  };
  EXPECT_THAT(refusal(resolved([](PlanFile& f) { f.stages[0].operators[0].second = "z"; })),
              HasSubstr("stage 'front': operator 'z' is not in the model"));
  EXPECT_THAT(
      refusal(resolved([](PlanFile& f) { std::swap(f.stages[1].operators[0], f.stages[1].operators[1]); })),
      HasSubstr("not in the model's order"));
  EXPECT_THAT(refusal(resolved([](PlanFile& f) { f.stages[1].operators[1].first = "d"; })),
              HasSubstr("'d' stands in two stages"));
  EXPECT_THAT(refusal(resolved([](PlanFile& f) { f.stages[0].recompute = {"e"}; })),
              HasSubstr("breaks a rule: recompute"));
}

TEST(PlanFile, ErrorsNameThePlaceAndWhatWouldBeRight) {
  const std::string good = print_plan_file(SavedExample().file());
  const auto with = [&](auto change) {
    Json json = parse_json(good, "p");
    change(json);
    return [text = print_json(json)] { parse_plan_file(text, "plan.json"); };
  };
  EXPECT_THAT(refusal([] { parse_plan_file("{", "plan.json"); }), HasSubstr("plan.json: not JSON"));
  EXPECT_THAT(refusal(with([](Json& j) { j["format"] = "espalier.plan/3"; })),
              HasSubstr("this program reads 'espalier.plan/2'"));
  EXPECT_THAT(refusal(with([](Json& j) { j["staged"]["orders"]["rule"] = "2f2b"; })),
              HasSubstr("staged.orders.rule: '2f2b' is not known; expected 1f1b or gpipe"));
  EXPECT_THAT(refusal(with([](Json& j) { j["staged"]["orders"]["lists"] = Json::object(); })),
              HasSubstr("stand beside a rule"));
  EXPECT_THAT(refusal(with([](Json& j) { j["staged"]["schedule"] = "1f1b"; })),
              HasSubstr("stands beside 'schedule'"));
  EXPECT_THAT(refusal(with([](Json& j) {
                j["staged"]["orders"] = Json{{"lists", {{"gpu:0", "2F 2X"}}}};
              })),
              HasSubstr("staged.orders.lists.gpu:0: 'X'"));
  EXPECT_THAT(refusal(with([](Json& j) {
                j["staged"]["orders"] = Json{{"lists", {{"gpu:9", "2F"}}}};
              })),
              HasSubstr("staged.orders.lists.gpu:9: is no device"));
  EXPECT_THAT(refusal(with([](Json& j) { j["staged"]["orders"]["rule"] = "1f1b,k=2/1/1"; })),
              HasSubstr("k is given for 3 stages of 2"));
  EXPECT_THAT(refusal(with([](Json& j) { j["expansion"] = "xy"; })), HasSubstr("expansion"));
  EXPECT_THAT(refusal(with([](Json& j) { j["sed"] = 1; })), HasSubstr("did you mean 'seed'?"));
  EXPECT_THAT(refusal(with([](Json& j) { j.erase("seed"); })), HasSubstr("'seed' is missing"));
  EXPECT_THAT(refusal(with([](Json& j) { j["seed"] = -1; })), HasSubstr("plan.json: seed"));
  EXPECT_THAT(refusal(with([](Json& j) { j["model"] = "/m.pt2"; })), HasSubstr("relative to this file"));
  EXPECT_THAT(refusal(with([](Json& j) { j["costs"]["machine"] = "one"; })),
              HasSubstr("costs: 'threads' is missing"));
  EXPECT_THAT(
      refusal(with([](Json& j) {
        j["costs"] = Json{{"file", ""}, {"hash", "0000000000000000"}, {"machine", ""}, {"threads", 0}};
      })),
      HasSubstr("costs.threads"));
  EXPECT_THAT(refusal(with([](Json& j) {
                j["costs"] = Json{{"file", ""},
                                  {"hash", "0000000000000000"},
                                  {"machine", ""},
                                  {"threads", 1},
                                  {"first_action_ns", std::int64_t{1} << 60}};
              })),
              HasSubstr("costs.first_action_ns"));
  EXPECT_THAT(refusal(with([](Json& j) { j["fingerprint"] = "12"; })), HasSubstr("16 hexadecimal"));
  EXPECT_THAT(refusal(with([](Json& j) { j["operators"] = "12zz"; })), HasSubstr("operators"));
  EXPECT_THAT(refusal(with([](Json& j) { j["training"]["batch"] = 15; })), HasSubstr("micro_batches[0]"));
  EXPECT_THAT(refusal(with([](Json& j) { j["training"]["batch"] = 32; })),
              HasSubstr("4 micro-batches of 4 are not the batch 32"));
  EXPECT_THAT(refusal(with([](Json& j) { j["training"]["optimizer"]["schedule"]["shape"] = "step"; })),
              HasSubstr("expected constant, linear or cosine"));
  EXPECT_THAT(refusal(with([](Json& j) { j["training"]["optimizer"]["kind"] = "lion"; })),
              HasSubstr("expected sgd, adam or adamw"));
  EXPECT_THAT(refusal(with([](Json& j) { j["stages"].erase(1); })), HasSubstr("1 stages, but 2"));
  EXPECT_THAT(refusal(with([](Json& j) { j["stages"][1]["name"] = "z"; })),
              HasSubstr("stages[1]: was edited since its times and memory were computed"));
  EXPECT_THAT(refusal(with([](Json& j) { j["staged"]["stages"][0]["in_flight"] = 99; })),
              HasSubstr("in-flight limit 99"));
  EXPECT_THAT(refusal(with([](Json& j) { j["staged"]["stages"][0]["memory"]["savd"] = 1; })),
              HasSubstr("'savd' is not known"));
  EXPECT_THAT(refusal(with([](Json& j) { j["staged"]["stages"][0]["replicas"][0]["devices"][0] = "tpu:0"; })),
              HasSubstr("'tpu:0', which is no device"));
  EXPECT_THAT(refusal(with([](Json& j) { j["staged"]["crossings"][0]["from"] = "nowhere"; })),
              HasSubstr("'nowhere', which is no stage"));
}

TEST(PlanFile, OrdersReadBackAsRuleAndAsLists) {
  SavedExample example;
  PlanFile rule = example.file();
  rule.staged.orders = parse_order_rule("1f1b,k=2/1,split");
  rule.staged.stages[1].slots = 5;
  rule.staged.stages[1].memory.saved_for_input = rule.staged.stages[1].memory.saved;
  rule.staged.crossings[0].readers[0].saved = rule.staged.crossings[0].readers[0].for_input_only = true;
  rule.expansion = 0x0123456789abcdef;
  EXPECT_EQ(parse_plan_file(print_plan_file(rule), "p"), rule);
  EXPECT_EQ(resolve_plan(rule, example.graph).orders, rule.staged.orders);
  EXPECT_EQ(resolve_plan(rule, example.graph).stages[1].slots, 5u);

  example.plan = parse_plan(
      "batch 16 micro_batch 4 schedule lists tokens free\n"
      "stage front gpu:0 | gpu:2 { m a .. d } recompute { c }\n"
      "stage back gpu:1 { m e loss } slots 3\n"
      "order gpu:0 2F 2B\n"
      "order gpu:1 2(F B) 2F 2B\n"
      "order gpu:2 2(F B)\n",
      example.graph, example.cluster);
  EXPECT_EQ(example.plan.stages[0].in_flight, 2u);
  EXPECT_EQ(
      parse_plan(print_plan(example.plan, example.graph, example.cluster), example.graph, example.cluster),
      example.plan);
  const PlanFile lists = example.file();
  EXPECT_EQ(parse_plan_file(print_plan_file(lists), "p"), lists);
  EXPECT_THAT(print_plan_file(lists), HasSubstr("\"gpu:1\":\"2(F B) 2F 2B\""));
  EXPECT_EQ(resolve_plan(lists, example.graph), example.plan);
}

TEST(PlanFile, OneOfVersion1HasTheRuleOfItsSchedule) {
  Json json = parse_json(print_plan_file(SavedExample().file()), "p");
  json["format"] = "espalier.plan/1";
  json["staged"].erase("orders");
  json["staged"]["schedule"] = "gpipe";
  const PlanFile file = parse_plan_file(print_json(json), "p");
  EXPECT_EQ(to_text(file.staged.orders), "gpipe,edition=1");
  EXPECT_EQ(parse_plan_file(print_plan_file(file), "p"), file);
  EXPECT_EQ(to_text(parse_edited_plan(print_json(json), "p").file.staged.orders), "gpipe");
}

TEST(PlanFile, AnyDocumentGivesAFileOrAnInputError) {
  const SavedExample example;
  const std::string good = print_plan_file(example.file());
  Rng rng(23);
  int accepted = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string text = good;
    for (std::uint64_t n = 1 + rng.below(3); n > 0; --n) {
      const std::size_t at = rng.below(text.size());
      switch (rng.below(4)) {
        case 0:
          text[at] = static_cast<char>(rng.below(256));
          break;
        case 1:
          text[at] = static_cast<char>('0' + rng.below(10));
          break;
        case 2:
          text.erase(at, 1 + rng.below(20));
          break;
        default:
          text.insert(at, text.substr(rng.below(text.size()), rng.below(40)));
      }
    }
    try {
      const PlanFile file = parse_plan_file(text, "plan.json");
      EXPECT_EQ(parse_plan_file(print_plan_file(file), "plan.json"), file);
      ++accepted;
      resolve_plan(file, example.graph);
    } catch (const InputError&) {
    }
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace espalier
