#include "espalier/sim/task_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <string>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using testing::refusal;

// One task as the tests write it; flattened by `flat`.
struct PlainTask {
  std::string name;
  std::int64_t duration = 0, delay = 0;
  std::optional<std::size_t> lane;
  std::uint64_t priority = 0;
  std::vector<std::uint32_t> links;
  std::vector<std::size_t> after;
};
struct PlainGraph {
  std::vector<PlainTask> tasks;
  std::vector<LaneOrder> lanes;
  std::uint32_t links = 0;
};

TaskGraph flat(const PlainGraph& plain) {
  TaskGraph graph;
  std::vector<std::vector<TaskIndex>> successors(plain.tasks.size()), order(plain.lanes.size());
  graph.link_begin.push_back(0);
  for (std::size_t i = 0; i < plain.tasks.size(); ++i) {
    const PlainTask& task = plain.tasks[i];
    graph.duration.push_back(Duration(task.duration));
    graph.delay.push_back(Duration(task.delay));
    graph.lane.push_back(task.lane ? static_cast<std::uint32_t>(*task.lane) : TaskGraph::kNoLane);
    graph.priority.push_back(task.priority);
    graph.links.insert(graph.links.end(), task.links.begin(), task.links.end());
    graph.link_begin.push_back(static_cast<std::uint32_t>(graph.links.size()));
    for (const std::size_t before : task.after) successors[before].push_back(static_cast<TaskIndex>(i));
    if (task.lane && plain.lanes[*task.lane] == LaneOrder::kInOrder) {
      order[*task.lane].push_back(static_cast<TaskIndex>(i));
    }
  }
  const auto pack = [](const auto& rows, auto& begin, auto& items) {
    begin.push_back(0);
    for (const auto& row : rows) {
      items.insert(items.end(), row.begin(), row.end());
      begin.push_back(static_cast<std::uint32_t>(items.size()));
    }
  };
  pack(successors, graph.successor_begin, graph.successors);
  pack(order, graph.order_begin, graph.order);
  graph.lane_order = plain.lanes;
  graph.link_count = plain.links;
  return graph;
}

// Lines "name duration [delay=1] [in=lane] [by=lane] [priority=1] [on=link,link] [after=task,task]"; `in`
// names an in-order lane, `by` one by priority.
PlainGraph read(const std::string& text) {
  PlainGraph graph;
  std::map<std::string, std::size_t> tasks, lanes, links;
  const auto split = [](const std::string& list) {
    std::vector<std::string> parts;
    std::istringstream stream(list);
    for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
    return parts;
  };
  std::istringstream names(text), lines(text);
  for (std::string line; std::getline(names, line);) {
    tasks.emplace(line.substr(0, line.find(' ')), tasks.size());
  }
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    PlainTask task;
    words >> task.name >> task.duration;
    for (std::string word; words >> word;) {
      const std::string key = word.substr(0, word.find('=')), value = word.substr(word.find('=') + 1);
      if (key == "delay") task.delay = std::stoll(value);
      if (key == "priority") task.priority = std::stoull(value);
      if (key == "in" || key == "by") {
        const auto [at, added] = lanes.emplace(value, lanes.size());
        if (added) graph.lanes.push_back(key == "in" ? LaneOrder::kInOrder : LaneOrder::kByPriority);
        task.lane = at->second;
      }
      for (const std::string& part : split(value)) {
        if (key == "on") {
          task.links.push_back(static_cast<std::uint32_t>(links.emplace(part, links.size()).first->second));
        }
        if (key == "after") task.after.push_back(tasks.at(part));
      }
    }
    graph.tasks.push_back(task);
  }
  graph.links = static_cast<std::uint32_t>(links.size());
  return graph;
}

std::string run(const std::string& text) {
  const PlainGraph plain = read(text);
  const TaskTimes times = run_tasks(flat(plain));
  std::ostringstream out;
  for (std::size_t i = 0; i < plain.tasks.size(); ++i) {
    const std::int64_t start = times.start[i].count();
    out << plain.tasks[i].name << ' ' << start << '-' << start + plain.tasks[i].duration << '\n';
  }
  out << "makespan " << times.makespan.count();
  return out.str();
}

TEST(RunTasks, AnInOrderLaneWaitsForItsNextTaskThoughAnotherIsReady) {
  EXPECT_EQ(run("a 3\n"
                "x 2 in=gpu after=a\n"
                "y 1 in=gpu\n"),
            "a 0-3\nx 3-5\ny 5-6\nmakespan 6");
}

TEST(RunTasks, ALaneByPriorityTakesTheSmallestOfThoseThatAreReady) {
  // At 0 only b is ready; at 4 c (priority 1) has come and goes before a (2); d is never preferred early.
  EXPECT_EQ(run("t 1\n"
                "u 2\n"
                "a 2 by=gpu priority=2 after=t\n"
                "b 4 by=gpu priority=9\n"
                "c 5 by=gpu priority=1 after=u\n"
                "d 1 by=gpu priority=0 after=c\n"),
            "t 0-1\nu 0-2\na 10-12\nb 0-4\nc 4-9\nd 9-10\nmakespan 12");
}

TEST(RunTasks, TransfersThatShareALinkAreServedFirstComeFirstServed) {
  // b comes at 1 and a at 2, so a waits till b has left the link at 4, although its priority is smaller.
  EXPECT_EQ(run("p 2\n"
                "q 1\n"
                "a 3 on=wire priority=0 after=p\n"
                "b 3 on=wire priority=1 after=q\n"),
            "p 0-2\nq 0-1\na 4-7\nb 1-4\nmakespan 7");
}

TEST(RunTasks, TransfersThatComeTogetherGoByPriorityThenByNumber) {
  EXPECT_EQ(run("a 3 on=wire priority=1\n"
                "b 3 on=wire priority=0\n"
                "c 3 on=wire priority=1\n"),
            "a 3-6\nb 0-3\nc 6-9\nmakespan 9");
}

TEST(RunTasks, ATransferHoldsAllItsLinksAndAWaitingOneReservesThem) {
  // b needs both links and gets its turn second: it starts at 4, when `up` is free. c came after b, so `down`
  // is b's until 6, though it lies idle before 4.
  EXPECT_EQ(run("a 4 on=up\n"
                "b 2 on=up,down\n"
                "c 1 on=down\n"),
            "a 0-4\nb 4-6\nc 6-7\nmakespan 7");
}

TEST(RunTasks, LatencyDelaysSuccessorsButNotTheChannel) {
  EXPECT_EQ(run("a 2 delay=5 on=wire in=channel\n"
                "b 2 delay=5 on=wire in=channel\n"
                "x 1 after=a\n"
                "y 1 after=b\n"),
            "a 0-2\nb 2-4\nx 7-8\ny 9-10\nmakespan 10");
}

TEST(RunTasks, ReadyIsWhenTheLastDependencyAndTheLaneAllowedIt) {
  const PlainGraph plain = read(
      "a 2 on=wire\n"
      "b 2 on=wire\n"
      "c 5 in=gpu\n"
      "d 1 in=gpu after=a\n");
  EXPECT_THAT(run_tasks(flat(plain)).ready,
              ::testing::ElementsAre(Duration(0), Duration(0), Duration(0), Duration(5)));
}

TEST(RunTasks, ACycleIsOurBugAndNamesItsTasks) {
  EXPECT_THAT(
      refusal<InternalError>([] { run("a 1\nb 1 after=a,d\nc 1 after=b\nd 1 after=c\ne 1 after=d\n"); }),
      HasSubstr("task 2 after 1 after 3 after 2; 4 of 5 tasks cannot run"));
  EXPECT_EQ(run("y 1 after=x\nx 1\n"), "y 1-2\nx 0-1\nmakespan 2");
  // A lane's order is a dependency too: y stands behind x, which waits for it.
  EXPECT_THAT(refusal<InternalError>([] { run("x 1 in=gpu after=y\ny 1 in=gpu\n"); }),
              HasSubstr("task 0 after 1 after 0; 2 of 2 tasks cannot run"));
}

// The rules of the header, stepped through one nanosecond at a time and with no queue.
std::vector<std::int64_t> step_through(const PlainGraph& graph) {
  const std::size_t tasks = graph.tasks.size();
  std::vector<std::optional<std::int64_t>> start(tasks);
  std::vector<std::int64_t> link_free(graph.links, 0);
  std::size_t started = 0;
  for (std::int64_t now = 0; started < tasks; ++now) {
    // When task i's dependencies and in-order lane allow it, if that is known.
    const auto ready = [&](std::size_t i) -> std::optional<std::int64_t> {
      const PlainTask& task = graph.tasks[i];
      std::int64_t time = 0;
      for (const std::size_t before : task.after) {
        if (!start[before]) return std::nullopt;
        time = std::max(time, *start[before] + graph.tasks[before].duration + graph.tasks[before].delay);
      }
      if (task.lane && graph.lanes[*task.lane] == LaneOrder::kInOrder) {
        for (std::size_t j = 0; j < i; ++j) {
          if (graph.tasks[j].lane != task.lane) continue;
          if (!start[j]) return std::nullopt;
          time = std::max(time, *start[j] + graph.tasks[j].duration);
        }
      }
      return time;
    };
    const auto lane_is_free = [&](std::size_t lane) {
      for (std::size_t j = 0; j < tasks; ++j) {
        if (graph.tasks[j].lane == lane && start[j] && *start[j] + graph.tasks[j].duration > now)
          return false;
      }
      return true;
    };
    for (bool again = true; again;) {
      again = false;
      for (std::size_t i = 0; i < tasks; ++i) {
        const PlainTask& task = graph.tasks[i];
        const bool chosen = task.lane && graph.lanes[*task.lane] == LaneOrder::kByPriority;
        if (start[i] || chosen || !task.links.empty() || !ready(i) || *ready(i) > now) continue;
        start[i] = *ready(i);
        ++started;
        again = true;
      }
      if (again) continue;
      std::optional<std::size_t> first;
      for (std::size_t i = 0; i < tasks; ++i) {
        if (start[i] || graph.tasks[i].links.empty() || !ready(i) || *ready(i) > now) continue;
        if (!first || std::pair(*ready(i), graph.tasks[i].priority) <
                          std::pair(*ready(*first), graph.tasks[*first].priority)) {
          first = i;
        }
      }
      if (first) {
        start[*first] = *ready(*first);
        for (const std::uint32_t link : graph.tasks[*first].links) {
          start[*first] = std::max(*start[*first], link_free[link]);
        }
        for (const std::uint32_t link : graph.tasks[*first].links) {
          link_free[link] = *start[*first] + graph.tasks[*first].duration;
        }
        ++started;
        again = true;
        continue;
      }
      for (std::size_t lane = 0; lane < graph.lanes.size() && !again; ++lane) {
        if (graph.lanes[lane] == LaneOrder::kInOrder || !lane_is_free(lane)) continue;
        for (std::size_t i = 0; i < tasks; ++i) {
          if (graph.tasks[i].lane != lane || start[i] || !ready(i) || *ready(i) > now) continue;
          if (!first || graph.tasks[i].priority < graph.tasks[*first].priority) first = i;
        }
        if (!first) continue;
        start[*first] = now;
        ++started;
        again = true;
      }
    }
  }
  std::vector<std::int64_t> result;
  for (const auto& time : start) result.push_back(*time);
  return result;
}

TEST(RunTasks, EqualsSteppingThroughTimeOnRandomGraphs) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Rng rng(seed);
    PlainGraph graph;
    graph.links = 3;
    graph.lanes.resize(1 + rng.below(3));
    for (LaneOrder& lane : graph.lanes) lane = rng.below(2) ? LaneOrder::kInOrder : LaneOrder::kByPriority;
    const std::size_t tasks = 1 + rng.below(14);
    for (std::size_t i = 0; i < tasks; ++i) {
      PlainTask task;
      task.duration = static_cast<std::int64_t>(rng.below(5));
      task.delay = static_cast<std::int64_t>(rng.below(2) * rng.below(4));
      task.priority = rng.below(3);
      if (rng.below(4)) task.lane = rng.below(graph.lanes.size());
      const bool may_transfer = !task.lane || graph.lanes[*task.lane] == LaneOrder::kInOrder;
      for (std::uint32_t link = 0; may_transfer && link < graph.links; ++link) {
        if (rng.below(3) == 0) task.links.push_back(link);
      }
      for (std::size_t before = 0; before < i; ++before) {
        if (rng.below(4) == 0) task.after.push_back(before);
      }
      graph.tasks.push_back(task);
    }
    const TaskTimes times = run_tasks(flat(graph));
    const std::vector<std::int64_t> expected = step_through(graph);
    for (std::size_t i = 0; i < tasks; ++i) {
      ASSERT_EQ(times.start[i].count(), expected[i]) << "seed " << seed << " task " << i;
    }
  }
}

}  // namespace
}  // namespace espalier
