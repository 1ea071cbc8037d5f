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
  bool gives_way = false;
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
    graph.gives_way.push_back(task.gives_way ? 1 : 0);
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

// Lines "name duration [delay=1] [in=lane] [by=lane] [priority=1] [on=link,link] [gives-way]
// [after=task,task]"; `in` names an in-order lane, `by` one by priority.
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
      if (key == "gives-way") task.gives_way = true;
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
    out << plain.tasks[i].name << ' ' << times.start[i].count() << '-' << times.end[i].count() << '\n';
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

TEST(RunTasks, ATaskThatGivesWayStandsStillWhileAnotherHoldsALinkOfIt) {
  // a is there first, b comes at 3 on another link, c at 9, when the sum would be over but for a and b.
  EXPECT_EQ(run("p 3\n"
                "q 9\n"
                "sum 6 on=up,down gives-way\n"
                "a 2 on=up\n"
                "b 2 on=down after=p\n"
                "c 3 on=up after=q\n"),
            "p 0-3\nq 0-9\nsum 0-13\na 0-2\nb 3-5\nc 9-12\nmakespan 13");
  // Both links are busy at once from 2 to 3: it waits once.
  EXPECT_EQ(run("p 2\n"
                "sum 4 on=up,down gives-way\n"
                "a 3 on=up\n"
                "b 3 on=down after=p\n"),
            "p 0-2\nsum 0-9\na 0-3\nb 2-5\nmakespan 9");
}

TEST(RunTasks, OfTasksThatGiveWayTheFirstComeHoldsItsLinks) {
  // The second waits for the first, the third for the second, which wants `down` since 1.
  EXPECT_EQ(run("p 1\n"
                "q 2\n"
                "first 4 on=up gives-way\n"
                "second 2 on=up,down gives-way after=p\n"
                "third 1 on=down gives-way after=q\n"
                "x 1 on=down after=q\n"),
            "p 0-1\nq 0-2\nfirst 0-4\nsecond 4-6\nthird 6-7\nx 2-3\nmakespan 7");
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
class Stepping {
 public:
  using Time = std::int64_t;
  explicit Stepping(const PlainGraph& graph)
      : graph_(graph),
        start(graph.tasks.size()),
        end(graph.tasks.size()),
        left_(graph.tasks.size()),
        link_free_(graph.links, 0) {
    while (std::any_of(end.begin(), end.end(), [](const auto& time) { return !time; })) {
      while (run_plain() || run_links() || choose()) {
      }
      for (std::size_t i = 0; i < end.size(); ++i) {
        if (is_under_way(i) && !stands_still(i)) --left_[i];
      }
      ++now_;
    }
  }

 private:
  const PlainGraph& graph_;

 public:
  std::vector<std::optional<Time>> start, end;

 private:
  const PlainTask& task(std::size_t i) const { return graph_.tasks[i]; }
  bool by_priority(std::size_t lane) const { return graph_.lanes[lane] == LaneOrder::kByPriority; }
  bool is_under_way(std::size_t i) const { return task(i).gives_way && start[i] && !end[i]; }

  // When its dependencies and in-order lane allow it, if that is known.
  std::optional<Time> ready(std::size_t i) const {
    Time time = 0;
    for (const std::size_t before : task(i).after) {
      if (!end[before]) return std::nullopt;
      time = std::max(time, *end[before] + task(before).delay);
    }
    if (task(i).lane && !by_priority(*task(i).lane)) {
      for (std::size_t j = 0; j < i; ++j) {
        if (task(j).lane != task(i).lane) continue;
        if (!end[j]) return std::nullopt;
        time = std::max(time, *end[j]);
      }
    }
    return time;
  }
  bool is_ready(std::size_t i) const { return !start[i] && ready(i) && *ready(i) <= now_; }

  void run(std::size_t i, Time at) {
    start[i] = at;
    end[i] = at + task(i).duration;
  }

  bool run_plain() {
    bool some = false;
    for (std::size_t i = 0; i < end.size(); ++i) {
      if (!task(i).links.empty() || (task(i).lane && by_priority(*task(i).lane)) || !is_ready(i)) continue;
      run(i, *ready(i));
      some = true;
    }
    return some;
  }

  bool shares_a_link(std::size_t i, std::size_t j) const {
    const std::vector<std::uint32_t>& other = task(j).links;
    return std::any_of(task(i).links.begin(), task(i).links.end(), [&](std::uint32_t link) {
      return std::find(other.begin(), other.end(), link) != other.end();
    });
  }
  bool stands_still(std::size_t i) const {
    for (std::size_t j = 0; j < end.size(); ++j) {
      if (task(j).gives_way || !start[j] || *start[j] > now_ || *end[j] <= now_) continue;
      if (shares_a_link(i, j)) return true;
    }
    return false;
  }

  // Of those with links that come, or that gave way and are done, the first.
  bool run_links() {
    std::optional<std::size_t> first;
    const auto key = [&](std::size_t i) {
      return std::pair(is_under_way(i) ? now_ : *ready(i), task(i).priority);
    };
    for (std::size_t i = 0; i < end.size(); ++i) {
      if (task(i).links.empty() || std::count(waiting_.begin(), waiting_.end(), i) > 0) continue;
      if (!is_ready(i) && !(is_under_way(i) && left_[i] == 0)) continue;
      if (!first || key(i) < key(*first)) first = i;
    }
    if (!first) return false;
    if (!task(*first).gives_way) {
      Time at = *ready(*first);
      for (const std::uint32_t link : task(*first).links) at = std::max(at, link_free_[link]);
      for (const std::uint32_t link : task(*first).links) link_free_[link] = at + task(*first).duration;
      run(*first, at);
      return true;
    }
    if (start[*first]) {
      end[*first] = now_;
    } else {
      waiting_.push_back(*first);
    }
    for (auto at = waiting_.begin(); at != waiting_.end();) {
      bool waits = std::any_of(waiting_.begin(), at, [&](std::size_t j) { return shares_a_link(*at, j); });
      for (std::size_t j = 0; j < end.size(); ++j) {
        waits = waits || (is_under_way(j) && shares_a_link(*at, j));
      }
      if (waits) {
        ++at;
        continue;
      }
      start[*at] = now_;
      left_[*at] = task(*at).duration;
      at = waiting_.erase(at);
    }
    return true;
  }

  bool choose() {
    for (std::size_t lane = 0; lane < graph_.lanes.size(); ++lane) {
      if (!by_priority(lane)) continue;
      std::optional<std::size_t> first;
      bool is_free = true;
      for (std::size_t i = 0; i < end.size(); ++i) {
        if (task(i).lane != lane) continue;
        is_free = is_free && (!end[i] || *end[i] <= now_);
        if (is_ready(i) && (!first || task(i).priority < task(*first).priority)) first = i;
      }
      if (!first || !is_free) continue;
      run(*first, now_);
      return true;
    }
    return false;
  }

  std::vector<Time> left_;
  std::vector<Time> link_free_;       // of those that do not give way
  std::vector<std::size_t> waiting_;  // that give way: for their like
  Time now_ = 0;
};

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
      task.gives_way = !task.lane && !task.links.empty() && rng.below(2) == 0;
      graph.tasks.push_back(task);
    }
    const TaskTimes times = run_tasks(flat(graph));
    const Stepping expected(graph);
    for (std::size_t i = 0; i < tasks; ++i) {
      ASSERT_EQ(times.start[i].count(), expected.start[i]) << "seed " << seed << " task " << i;
      ASSERT_EQ(times.end[i].count(), expected.end[i]) << "seed " << seed << " task " << i;
    }
  }
}

}  // namespace
}  // namespace espalier
