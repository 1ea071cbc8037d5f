// The placement engine against three others: the slow simulator of the tests for all rules, the engine of
// tasks (sim/task_graph.h) where a task graph can say the rules, and the checker of timelines.

#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "espalier/placement/engine.h"
#include "espalier/sim/task_graph.h"
#include "testing/placement_reference.h"
#include "testing/random_instances.h"
#include "testing/small_cases.h"

namespace espalier::placement {
namespace {

using espalier::testing::all_rules;
using espalier::testing::random_assignment;
using espalier::testing::random_instance;
using espalier::testing::random_orders;
using espalier::testing::RandomInstanceOptions;
using espalier::testing::reference_timeline;
using ::testing::IsEmpty;

std::string text(const Rules& rules) {
  return "order " + std::to_string(static_cast<int>(rules.order)) + " sends " +
         std::to_string(static_cast<int>(rules.sends)) + " copies " +
         std::to_string(static_cast<int>(rules.copies)) + " memory " +
         std::to_string(static_cast<int>(rules.memory)) + (rules.bandwidth ? " busy" : "");
}

// The engine's timeline passes the checker and is the slow simulator's.
void expect_equal_to_reference(const Instance& instance, const Rules& rules, const DeviceOrders& orders,
                               const Assignment& assignment, Scratch& scratch) {
  const Engine engine(instance, rules, orders);
  const Timeline line = timeline(engine, assignment);
  EXPECT_EQ(engine.evaluate(assignment, scratch), line.evaluated);
  const Timeline expected = reference_timeline(instance, rules, orders, assignment);
  EXPECT_EQ(line.evaluated.deadlock, expected.evaluated.deadlock);
  if (line.evaluated.deadlock) return;
  EXPECT_EQ(line.start, expected.start);
  EXPECT_EQ(line.end, expected.end);
  EXPECT_EQ(line.messages, expected.messages);
  EXPECT_EQ(line.lists, expected.lists);
  EXPECT_THAT(check_timeline(instance, rules, assignment, line), IsEmpty());
  const Duration time = line.evaluated.time;
  EXPECT_TRUE(engine.evaluate(assignment, scratch, time).cut_off);
  EXPECT_EQ(engine.evaluate(assignment, scratch, time + nanoseconds(1)), line.evaluated);
}

TEST(PlacementEngine, IsTheSlowSimulatorOnRandomGraphsUnderAllRules) {
  const std::vector<Rules> rules = all_rules();
  Scratch scratch;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    Rng rng(seed);
    RandomInstanceOptions options;
    options.operators = 1 + seed % 12;
    options.training_graph = seed % 3 == 0;
    options.zero_times = seed % 2 == 0;
    options.endpoints = seed % 5 < 3;
    Instance instance = random_instance(rng, options);
    if (seed % 2 == 0) std::fill(instance.memory.begin(), instance.memory.end(), Bytes(1'000'000));
    ASSERT_THAT(check_instance(instance), IsEmpty()) << "seed " << seed;
    for (const Rules& one : rules) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " " + text(one));
      const Assignment assignment = random_assignment(rng, instance);
      expect_equal_to_reference(instance, one, random_orders(rng, instance, one, assignment), assignment,
                                scratch);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// Every DAG of so many tasks, with every assignment to two devices; rules in turn.
void try_all_small(std::size_t tasks, std::size_t step) {
  const std::vector<Rules> rules = all_rules();
  Scratch scratch;
  std::size_t turn = 0;
  for (std::uint32_t edges = 0; edges < 1U << (tasks * (tasks - 1) / 2); ++edges) {
    Rng rng(edges);
    espalier::testing::Sketch sketch;
    std::uint32_t bit = 0;
    for (std::size_t j = 0; j < tasks; ++j) {
      espalier::testing::Sketch::Task task{
          static_cast<std::int64_t>(rng.below(4)), static_cast<std::int64_t>(rng.below(4)), {}};
      for (std::size_t i = 0; i < j; ++i, ++bit) {
        if ((edges >> bit & 1) != 0) task.reads.push_back(i);
      }
      sketch.tasks.push_back(task);
    }
    sketch.latency = nanoseconds(static_cast<std::int64_t>(rng.below(2)));
    const Instance instance = espalier::testing::draw(sketch);
    for (std::uint32_t where = 0; where < 1U << tasks; ++where) {
      Assignment assignment;
      for (std::size_t i = 0; i < tasks; ++i) assignment.emplace_back(where >> i & 1);
      for (std::size_t r = turn++ % step; r < rules.size(); r += step) {
        expect_equal_to_reference(instance, rules[r], random_orders(rng, instance, rules[r], assignment),
                                  assignment, scratch);
        ASSERT_FALSE(::testing::Test::HasFailure())
            << "edges " << edges << " where " << where << " " << text(rules[r]);
      }
    }
  }
}

TEST(PlacementEngine, IsTheSlowSimulatorOnAllGraphsOfUpToFiveTasks) {
  for (std::size_t tasks = 1; tasks <= 3; ++tasks) try_all_small(tasks, 1);
  try_all_small(4, 24);
  try_all_small(5, 72);
}
TEST(LongPlacementEngine, IsTheSlowSimulatorOnAllGraphsOfUpToFiveTasks) {
  try_all_small(4, espalier::testing::kOneIn);
  try_all_small(5, 5 * espalier::testing::kOneIn);
}

// Moves of one or a few units, some taken, with limits around the step: always what a full evaluation says.
void try_moves(std::size_t walks, std::size_t moves, std::size_t operators) {
  const std::vector<Rules> rules = all_rules();
  Scratch scratch;
  for (std::uint64_t walk = 0; walk < walks; ++walk) {
    Rng rng(1'000 + walk);
    RandomInstanceOptions options;
    options.operators = 2 + rng.below(operators);
    options.training_graph = rng.below(2) == 0;
    options.zero_times = rng.below(2) == 0;
    options.endpoints = rng.below(2) == 0;
    Instance instance = random_instance(rng, options);
    // Where memory cannot overflow looks need not count it.
    if (rng.below(3) > 0) std::fill(instance.memory.begin(), instance.memory.end(), Bytes(1'000'000));
    const Rules& chosen = rules[walk % rules.size()];
    const Assignment start = random_assignment(rng, instance);
    const bool listed = chosen.order == Rules::Order::kListed;
    const Engine engine(instance, chosen, random_orders(rng, instance, chosen, start));
    Incremental incremental(engine, start);
    for (std::size_t i = 0; i < moves; ++i) {
      std::vector<Incremental::Move> move;
      Assignment changed = incremental.assignment();
      for (std::size_t k = 0; !listed && k < 1 + i % 3; ++k) {
        const UnitId unit(rng.below(instance.units()));
        const auto allowed = instance.allowed[unit.index()];
        move.push_back({unit, allowed[rng.below(allowed.size())]});
        changed[unit.index()] = move.back().device;
      }
      const Duration now = incremental.evaluated().time;
      const Duration limit = rng.below(3) == 0
                                 ? Duration::max()
                                 : now + nanoseconds(static_cast<std::int64_t>(rng.below(20)) - 5);
      const Evaluated seen = incremental.look(move, limit);
      ASSERT_EQ(seen, engine.evaluate(changed, scratch, limit))
          << "walk " << walk << " move " << i << " " << text(chosen);
      if (seen.cut_off || rng.below(3) > 0) continue;
      incremental.take();
      ASSERT_EQ(incremental.assignment(), changed);
      ASSERT_EQ(incremental.evaluated(), engine.evaluate(changed, scratch));
    }
  }
}
TEST(PlacementEngine, LooksAtMovesAreFullEvaluations) {
  try_moves(400, 40, 80);
}
TEST(LongPlacementEngine, LooksAtAMillionMovesAreFullEvaluations) {
  try_moves(20'000 / espalier::testing::kOneIn, 50, 60);
}

// The same step as a graph of tasks: a device is a lane by priority, or a link (first ready), or a list; a
// message holds links, with its sender's place among equal ones.
TaskTimes as_task_graph(const Instance& instance, const Rules& rules, const DeviceOrders& orders,
                        const Assignment& assignment) {
  const std::size_t tasks = instance.tasks(), devices = instance.devices();
  const bool lanes = rules.order != Rules::Order::kFirstReady;
  TaskGraph graph;
  std::vector<std::vector<TaskIndex>> next(tasks);
  std::vector<std::vector<std::uint32_t>> links(tasks);
  const auto device = [&](TaskId task) { return assignment[instance.unit[task.index()].index()]; };
  for (std::size_t task = 0; task < tasks; ++task) {
    const DeviceId d = device(TaskId(task));
    graph.duration.push_back(instance.time_on(TaskId(task), d));
    graph.gives_way.push_back(0);
    graph.delay.emplace_back();
    graph.lane.push_back(lanes ? narrow(d.index()) : TaskGraph::kNoLane);
    const bool ranked = rules.order == Rules::Order::kPriority && !orders.priority.empty();
    graph.priority.push_back(ranked ? orders.priority[task] : 0);
    if (!lanes) links[task] = {narrow(instance.links + devices + d.index())};
  }
  for (std::size_t v = 0; v < instance.values(); ++v) {
    const TaskId from = instance.producer[v];
    std::map<DeviceId, TaskIndex> messages;
    for (const TaskId reader : instance.readers[v]) {
      const DeviceId to = device(reader);
      if (to == device(from)) {
        next[from.index()].push_back(narrow(reader.index()));
        continue;
      }
      if (!instance.here_only.empty() && instance.here_only[v] != 0) continue;
      messages.try_emplace(to, 0);
    }
    for (auto& [to, message] : messages) {
      message = narrow(graph.duration.size());
      const Route& way = instance.way(device(from), to);
      graph.duration.push_back(way.hold(instance.bytes[v]));
      graph.gives_way.push_back(0);
      graph.delay.push_back(way.latency);
      graph.lane.push_back(TaskGraph::kNoLane);
      graph.priority.push_back(1 + device(from).index());
      next[from.index()].push_back(message);
      next.emplace_back();
      links.emplace_back();
      if (rules.sends == Rules::Sends::kRoutes) links.back() = way.links;
      if (rules.sends == Rules::Sends::kSenderBus)
        links.back() = {narrow(instance.links + device(from).index())};
      for (const TaskId reader : instance.readers[v]) {
        if (device(reader) == to) next[message].push_back(narrow(reader.index()));
      }
    }
  }
  graph.link_begin = graph.successor_begin = graph.order_begin = {0};
  for (std::size_t task = 0; task < next.size(); ++task) {
    graph.successors.insert(graph.successors.end(), next[task].begin(), next[task].end());
    graph.successor_begin.push_back(narrow(graph.successors.size()));
    graph.links.insert(graph.links.end(), links[task].begin(), links[task].end());
    graph.link_begin.push_back(narrow(graph.links.size()));
  }
  for (std::size_t d = 0; lanes && d < devices; ++d) {
    const bool listed = rules.order == Rules::Order::kListed;
    graph.lane_order.push_back(listed ? LaneOrder::kInOrder : LaneOrder::kByPriority);
    for (std::size_t i = 0; listed && i < orders.lists[d].size(); ++i) {
      graph.order.push_back(narrow(orders.lists[d][i].index()));
    }
    graph.order_begin.push_back(narrow(graph.order.size()));
  }
  graph.link_count = narrow(instance.links + 2 * devices);
  return run_tasks(graph);
}

TEST(PlacementEngine, IsTheEngineOfTasksWhereThatCanSayTheRules) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    RandomInstanceOptions options;
    options.operators = 1 + seed % 40;
    options.training_graph = seed % 2 == 0;
    options.zero_times = options.endpoints = options.duplicables = false;
    const Instance instance = random_instance(rng, options);
    for (const Rules& rules : all_rules()) {
      if (rules.copies != Rules::Copies::kOneEach || rules.bandwidth) continue;
      const Assignment assignment = random_assignment(rng, instance);
      const DeviceOrders orders = random_orders(rng, instance, rules, assignment);
      const TaskTimes expected = as_task_graph(instance, rules, orders, assignment);
      const Timeline line = timeline(Engine(instance, rules, orders), assignment);
      for (std::size_t task = 0; task < instance.tasks(); ++task) {
        ASSERT_EQ(line.start[task], expected.start[task])
            << "seed " << seed << " task " << task << " " << text(rules);
      }
    }
  }
}

}  // namespace
}  // namespace espalier::placement
