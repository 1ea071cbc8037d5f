#include <algorithm>
#include <set>
#include <string>

#include "espalier/sim/task_graph_text.h"

namespace espalier {
namespace {

class Checker {
 public:
  explicit Checker(const TaskGraph& graph) : graph_(graph) {}

  std::vector<std::string> run() {
    shape();
    if (!found_.empty()) return std::move(found_);
    range();
    if (!found_.empty()) return std::move(found_);
    links();
    lanes();
    acyclic();
    return std::move(found_);
  }

 private:
  void violate(const std::string& text) { found_.push_back(text); }
  static std::string task(std::size_t i) { return "task " + std::to_string(i); }

  void divides(const char* name, const std::vector<std::uint32_t>& begin, std::size_t parts,
               std::size_t whole) {
    if (begin.size() != parts + 1 || begin.front() != 0 || begin.back() != whole ||
        !std::is_sorted(begin.begin(), begin.end())) {
      violate(std::string("shape ") + name + " does not divide " + std::to_string(whole) + " entries into " +
              std::to_string(parts));
    }
  }

  void shape() {
    const std::size_t tasks = graph_.duration.size();
    if (graph_.delay.size() != tasks || graph_.lane.size() != tasks || graph_.priority.size() != tasks ||
        graph_.gives_way.size() != tasks) {
      violate("shape delay, lane, priority or gives_way is not of " + std::to_string(tasks) + " tasks");
    }
    divides("link_begin", graph_.link_begin, tasks, graph_.links.size());
    divides("successor_begin", graph_.successor_begin, tasks, graph_.successors.size());
    divides("order_begin", graph_.order_begin, graph_.lane_order.size(), graph_.order.size());
  }

  void range() {
    const std::size_t tasks = graph_.size();
    const auto missing = [&](const char* what, std::uint32_t id) {
      violate(std::string("range there is no ") + what + " " + std::to_string(id));
    };
    for (std::size_t i = 0; i < tasks; ++i) {
      if (graph_.duration[i] < Duration() || graph_.delay[i] < Duration())
        violate("range " + task(i) + " has a negative time");
      if (graph_.lane[i] != TaskGraph::kNoLane && graph_.lane[i] >= graph_.lane_order.size())
        missing("lane", graph_.lane[i]);
    }
    for (const std::uint32_t link : graph_.links) {
      if (link >= graph_.link_count) missing("link", link);
    }
    for (const TaskIndex i : graph_.successors) {
      if (i >= tasks) missing("task", i);
    }
    for (const TaskIndex i : graph_.order) {
      if (i >= tasks) missing("task", i);
    }
    for (const TaskGraph::MemoryDelta& delta : graph_.memory) {
      if (delta.task >= tasks) missing("task", delta.task);
      if (delta.account >= graph_.initial.size()) missing("account", delta.account);
    }
    for (const Bytes bytes : graph_.initial) {
      if (bytes < Bytes()) violate("range an account begins below zero");
    }
  }

  void links() {
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      const auto begin = graph_.links.begin() + graph_.link_begin[i],
                 end = graph_.links.begin() + graph_.link_begin[i + 1];
      if (std::set(begin, end).size() != static_cast<std::size_t>(end - begin))
        violate("links " + task(i) + " holds a link twice");
      if (graph_.gives_way[i] != 0 && (begin == end || graph_.lane[i] != TaskGraph::kNoLane))
        violate("links " + task(i) + " gives way, and has no links or stands in a lane");
    }
  }

  void lanes() {
    std::vector<int> listed(graph_.size(), 0);
    for (std::size_t lane = 0; lane < graph_.lane_order.size(); ++lane) {
      const std::uint32_t begin = graph_.order_begin[lane], end = graph_.order_begin[lane + 1];
      if (graph_.lane_order[lane] == LaneOrder::kByPriority && begin != end)
        violate("lanes lane " + std::to_string(lane) + " goes by priority but lists tasks");
      for (std::uint32_t k = begin; k < end; ++k) {
        ++listed[graph_.order[k]];
        if (graph_.lane[graph_.order[k]] != lane)
          violate("lanes lane " + std::to_string(lane) + " lists " + task(graph_.order[k]) +
                  ", which is not in it");
      }
    }
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      if (graph_.lane[i] == TaskGraph::kNoLane) continue;
      const bool in_order = graph_.lane_order[graph_.lane[i]] == LaneOrder::kInOrder;
      if (in_order && listed[i] != 1)
        violate("lanes " + task(i) + " is listed " + std::to_string(listed[i]) + " times by its lane");
      if (!in_order && graph_.link_begin[i] != graph_.link_begin[i + 1])
        violate("lanes " + task(i) + " holds links in a lane by priority");
    }
  }

  // Takes away what waits for nothing until nothing is left.
  void acyclic() {
    const std::size_t tasks = graph_.size();
    std::vector<std::vector<TaskIndex>> next(tasks);
    std::vector<std::size_t> waits(tasks, 0);
    const auto edge = [&](std::size_t from, TaskIndex to) {
      next[from].push_back(to);
      ++waits[to];
    };
    for (std::size_t i = 0; i < tasks; ++i) {
      for (std::uint32_t k = graph_.successor_begin[i]; k < graph_.successor_begin[i + 1]; ++k)
        edge(i, graph_.successors[k]);
    }
    for (std::size_t lane = 0; lane < graph_.lane_order.size(); ++lane) {
      for (std::uint32_t k = graph_.order_begin[lane] + 1; k < graph_.order_begin[lane + 1]; ++k)
        edge(graph_.order[k - 1], graph_.order[k]);
    }
    std::vector<TaskIndex> free;
    for (std::size_t i = 0; i < tasks; ++i) {
      if (waits[i] == 0) free.push_back(static_cast<TaskIndex>(i));
    }
    std::size_t done = 0;
    for (; done < free.size(); ++done) {
      for (const TaskIndex to : next[free[done]]) {
        if (--waits[to] == 0) free.push_back(to);
      }
    }
    if (done == tasks) return;
    const auto first = std::find_if(waits.begin(), waits.end(), [](std::size_t n) { return n > 0; });
    violate("acyclic " + std::to_string(tasks - done) +
            " tasks wait in a circle or behind one, the first is " +
            task(static_cast<std::size_t>(first - waits.begin())));
  }

  const TaskGraph& graph_;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> check_task_graph(const TaskGraph& graph) {
  return Checker(graph).run();
}

}  // namespace espalier
