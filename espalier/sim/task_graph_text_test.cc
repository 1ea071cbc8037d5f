#include "espalier/sim/task_graph_text.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/base/rng.h"
#include "espalier/sim/simulate.h"
#include "espalier/sim/task_graph_json.h"
#include "testing/refusal.h"
#include "testing/worked_example.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;
using ::testing::StartsWith;

constexpr const char* kText =
    "links 3\n"
    "lane in-order 2 0\n"
    "lane by-priority\n"
    "account 64\n"
    "account 0\n"
    "task 2ms delay 500us lane 0 priority 18446744073709551615 links 0 2 then 1\n"
    "task 0ns lane 1\n"
    "task 1us lane 0 then 0 1\n"
    "task 5ns gives-way links 1\n"
    "memory 0 start 1 64\n"
    "memory 2 end 0 -64\n"
    "memory 3 arrival 0 1\n";

TEST(TaskGraphText, ReadsBackFromBothForms) {
  const TaskGraph graph = parse_task_graph(kText);
  EXPECT_THAT(check_task_graph(graph), IsEmpty());
  EXPECT_EQ(print_task_graph(graph), kText);
  EXPECT_EQ(task_graph_from_json(task_graph_to_json(graph), "g"), graph);
  EXPECT_EQ(task_graph_from_json(parse_json(print_json(task_graph_to_json(graph)), "g"), "g"), graph);
  EXPECT_THAT(run_tasks(graph).start,
              ElementsAre(Duration(1000), Duration(2'501'000), Duration(0), Duration(0)));
}

TEST(TaskGraphText, WhatASchedulesCompilerMakesReadsBackAndIsLegal) {
  for (const auto which : {testing::WorkedExample::kGraphPipeline, testing::WorkedExample::kChain}) {
    const testing::WorkedExampleParts parts = testing::worked_example(which);
    const Schedule schedule = make_schedule(parts.model, parts.cluster.devices().size());
    const TaskGraph graph = compile(parts.model, parts.cluster, schedule).tasks;
    EXPECT_THAT(check_task_graph(graph), IsEmpty());
    EXPECT_EQ(parse_task_graph(print_task_graph(graph)), graph);
    EXPECT_EQ(task_graph_from_json(task_graph_to_json(graph), "g"), graph);
  }
}

TEST(TaskGraphText, ErrorsNameTheLine) {
  const auto read = [](const char* text) { return [text] { parse_task_graph(text); }; };
  EXPECT_THAT(refusal(read("links 1\ntsk 1ms\n")), HasSubstr("line 2: 'tsk' is not known"));
  EXPECT_THAT(refusal(read("task\n")), HasSubstr("line 1: expected a duration"));
  EXPECT_THAT(refusal(read("task 1ms lane\n")), HasSubstr("expected a lane at the end"));
  EXPECT_THAT(refusal(read("task 1ms lane -1\n")), HasSubstr("'-1'"));
  EXPECT_THAT(refusal(read("task 1ms priority x\n")), HasSubstr("'x' is no priority"));
  EXPECT_THAT(refusal(read("task 1ms when 2\n")),
              HasSubstr("expected delay, lane, priority, gives-way, links or then"));
  EXPECT_THAT(refusal(read("lane sorted\n")), HasSubstr("expected in-order or by-priority"));
  EXPECT_THAT(refusal(read("lane in-order 1 x\n")), HasSubstr("'x' is not expected here"));
  EXPECT_THAT(refusal(read("memory 0 later 0 1\n")), HasSubstr("expected start, end or arrival"));
  EXPECT_THAT(refusal(read("account 99999999999999999999\n")), HasSubstr("line 1"));
  EXPECT_THAT(refusal(read("task -10us\n")), HasSubstr("line 1: '-10us' is negative"));
  EXPECT_THAT(refusal(read("task 1ms delay -1ns\n")), HasSubstr("line 1: '-1ns' is negative"));
}

TEST(TaskGraphJson, ErrorsNameThePlace) {
  const auto with = [](auto change) {
    Json json = task_graph_to_json(parse_task_graph(kText));
    change(json);
    return [json] { task_graph_from_json(json, "g"); };
  };
  EXPECT_THAT(refusal(with([](Json& j) { j["format"] = "x"; })), HasSubstr("espalier.task_graph/1"));
  EXPECT_THAT(refusal(with([](Json& j) { j["lanes"][0]["order"] = "x"; })),
              HasSubstr("g: lanes[0].order: is not known"));
  EXPECT_THAT(refusal(with([](Json& j) { j["tasks"][0]["priority"] = -1; })),
              HasSubstr("g: tasks[0].priority"));
  EXPECT_THAT(refusal(with([](Json& j) { j["tasks"][0]["duration_ns"] = -1; })),
              HasSubstr("g: tasks[0].duration_ns"));
  EXPECT_THAT(refusal(with([](Json& j) { j["memory"][0]["when"] = "x"; })), HasSubstr("g: memory[0].when"));
  EXPECT_THAT(refusal(with([](Json& j) { j["tasks"][0]["than"] = 1; })), HasSubstr("did you mean 'then'?"));
}

TEST(CheckTaskGraph, EveryRuleHasItsFault) {
  const auto faults = [](auto change) {
    TaskGraph graph = parse_task_graph(kText);
    change(graph);
    return check_task_graph(graph);
  };
  using G = TaskGraph;
  const auto one = [](const char* text) { return ElementsAre(StartsWith(text)); };
  EXPECT_THAT(faults([](G& g) { g.delay.pop_back(); }), one("shape delay"));
  EXPECT_THAT(faults([](G& g) { g.link_begin.pop_back(); }), one("shape link_begin"));
  EXPECT_THAT(faults([](G& g) { g.successor_begin[0] = 1; }), one("shape successor_begin"));
  EXPECT_THAT(faults([](G& g) { g.order_begin[1] = 3; }), one("shape order_begin"));
  EXPECT_THAT(faults([](G& g) { g.gives_way.pop_back(); }), one("shape delay, lane, priority or gives_way"));
  EXPECT_THAT(faults([](G& g) { g.duration[0] = Duration(-1); }), one("range task 0 has a negative time"));
  EXPECT_THAT(faults([](G& g) { g.lane[3] = 2; }), one("range there is no lane 2"));
  EXPECT_THAT(faults([](G& g) { g.link_count = 2; }), one("range there is no link 2"));
  EXPECT_THAT(faults([](G& g) { g.successors[0] = 4; }), one("range there is no task 4"));
  EXPECT_THAT(faults([](G& g) { g.order[0] = 4; }), one("range there is no task 4"));
  EXPECT_THAT(faults([](G& g) { g.memory[0].task = 4; }), one("range there is no task 4"));
  EXPECT_THAT(faults([](G& g) { g.memory[0].account = 2; }), one("range there is no account 2"));
  EXPECT_THAT(faults([](G& g) { g.initial[0] = Bytes(-1); }), one("range an account begins below zero"));
  EXPECT_THAT(faults([](G& g) { g.links[1] = 0; }), one("links task 0 holds a link twice"));
  EXPECT_THAT(faults([](G& g) { g.gives_way[3] = 0, g.lane[3] = 0; }), one("lanes task 3 is listed 0 times"));
  EXPECT_THAT(faults([](G& g) { g.gives_way[3] = 0, g.lane[3] = 1; }), one("lanes task 3 holds links"));
  EXPECT_THAT(faults([](G& g) { g.gives_way[1] = 1; }), one("links task 1 gives way"));
  EXPECT_THAT(faults([](G& g) { g.lane[2] = TaskGraph::kNoLane; }), one("lanes lane 0 lists task 2"));
  EXPECT_THAT(faults([](G& g) {
                g.lane_order[0] = LaneOrder::kByPriority, g.link_begin = {0, 0, 0, 0, 3};
              }),
              one("lanes lane 0 goes by priority"));
  // Its lane puts task 0 behind task 2; so must not its dependencies.
  EXPECT_THAT(faults([](G& g) { std::swap(g.order[0], g.order[1]); }), one("acyclic 3 tasks"));
}

TEST(TaskGraphText, DamagedTextGivesAGraphOrAnInputError) {
  Rng rng(3);
  int accepted = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = kText;
    text[rng.below(text.size())] = " 0123456789-\nabcdlmost"[rng.below(22)];
    try {
      const TaskGraph graph = parse_task_graph(text);
      ++accepted;
      check_task_graph(graph);
      EXPECT_EQ(parse_task_graph(print_task_graph(graph)), graph) << text;
    } catch (const InputError&) {
    }
  }
  EXPECT_GT(accepted, 300);
}

}  // namespace
}  // namespace espalier
