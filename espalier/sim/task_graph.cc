// Discrete-event simulation without an event for most tasks. A task of an in-order lane, or of none, starts
// the moment the last thing it waits for is known: its time follows from theirs, whatever else goes on. So
// such tasks run eagerly from a work list, each once, and only tasks that compete for something (links, a
// lane by priority) pass through a queue ordered by time.
//
// Why taking the smallest (ready, priority, task) of the tasks with links is right: whatever becomes ready
// later depends on one that is still queued, hence is not ready earlier than that one. Only tasks of equal
// ready time can arrive late, behind a task of zero duration; then the order is that of arrival, and the same
// on every run.
//
// A task that gives way comes through the queue again when it would end if no further task held its links:
// those that do until then are known, since they were ready before. If there are more, it comes again.
//
// Complexity: every edge is visited twice (to count, to release); a queued task costs the logarithm of the
// queue, which holds one message per channel in schedules.

#include "espalier/sim/task_graph.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "espalier/base/check.h"

namespace espalier {
namespace {

// Waiting for links, or for a lane by priority to look at it.
struct Waiting {
  std::int64_t ready;
  std::uint64_t priority;
  TaskIndex task;

  friend bool operator<(const Waiting& a, const Waiting& b) {
    if (a.ready != b.ready) return a.ready < b.ready;
    if (a.priority != b.priority) return a.priority < b.priority;
    return a.task < b.task;
  }
};

// A min-heap with four children a node: half the levels of a binary one, and siblings share a cache line.
template <class T>
class Heap {
 public:
  bool empty() const { return items_.empty(); }
  const T& top() const { return items_.front(); }

  void push(T item) {
    std::size_t i = items_.size();
    items_.push_back(item);
    while (i > 0) {
      const std::size_t parent = (i - 1) / 4;
      if (!(item < items_[parent])) break;
      items_[i] = items_[parent];
      i = parent;
    }
    items_[i] = item;
  }

  T pop() {
    const T result = items_.front();
    const T item = items_.back();
    items_.pop_back();
    const std::size_t size = items_.size();
    if (size == 0) return result;
    std::size_t i = 0;
    for (;;) {
      const std::size_t first = 4 * i + 1;
      if (first >= size) break;
      std::size_t least = first;
      const std::size_t last = std::min(first + 4, size);
      for (std::size_t child = first + 1; child < last; ++child) {
        if (items_[child] < items_[least]) least = child;
      }
      if (!(items_[least] < item)) break;
      items_[i] = items_[least];
      i = least;
    }
    items_[i] = item;
    return result;
  }

 private:
  std::vector<T> items_;
};

struct LaneChoice {  // a lane by priority looks at its ready tasks at `time`
  std::int64_t time;
  std::uint32_t lane;
  friend bool operator<(const LaneChoice& a, const LaneChoice& b) {
    return a.time != b.time ? a.time < b.time : a.lane < b.lane;
  }
};

struct Chosen {  // what a lane by priority takes first among the tasks that are ready
  std::uint64_t priority;
  TaskIndex task;
  friend bool operator<(const Chosen& a, const Chosen& b) {
    return a.priority != b.priority ? a.priority < b.priority : a.task < b.task;
  }
};

struct PriorityLane {
  static constexpr std::int64_t kNever = Duration::max().count();
  std::int64_t free = 0;
  std::int64_t next_choice = kNever;  // the one entry of the queue of choices that counts
  Heap<Waiting> coming;               // known, perhaps ready only later
  Heap<Chosen> ready;
};

class Engine {
 public:
  explicit Engine(const TaskGraph& graph) : graph_(graph) {
    check_shape();
    const std::size_t tasks = graph.size();
    times_.start.resize(tasks);
    times_.end.resize(tasks);
    times_.ready.resize(tasks);
    waits_.assign(tasks, 0);
    cursor_.assign(graph.order_begin.begin(), graph.order_begin.end());
    link_free_.assign(graph.link_count, 0);
    given_way_.resize(graph.link_count);
    for (TaskIndex task = 0; task < tasks; ++task) {
      if (graph.gives_way[task] == 0) continue;
      for (const std::uint32_t link : links_of(task)) given_way_[link].wanted = true;
    }
    priority_lanes_.resize(graph.lane_order.size());
    for (const TaskIndex successor : graph.successors) ++waits_[successor];
    for (std::size_t lane = 0; lane < graph.lane_order.size(); ++lane) {
      for (std::uint32_t i = graph.order_begin[lane]; i < graph.order_begin[lane + 1]; ++i) {
        const TaskIndex task = graph.order[i];
        ESP_CHECK(graph.lane[task] == lane, graph.lane[task], lane, task);
        waits_[task] += i > graph.order_begin[lane] ? 1 : 0;
      }
    }
  }

  TaskTimes run() {
    const std::size_t tasks = graph_.size();
    for (std::size_t task = 0; task < tasks; ++task) {
      if (waits_[task] == 0) {
        waits_[task] = kReleased;
        released_.push_back(static_cast<TaskIndex>(task));
        run_released();
      }
    }
    for (;;) {
      if (!transfers_.empty() && (choices_.empty() || transfers_.top().ready <= choices_.top().time)) {
        dispatch(transfers_.pop());
      } else if (!choices_.empty()) {
        choose(choices_.pop());
      } else {
        break;
      }
      run_released();
    }
    if (done_ != tasks) fail_on_cycle();
    times_.makespan = Duration(makespan_);
    return std::move(times_);
  }

 private:
  static constexpr std::uint32_t kReleased = 0xffffffff;
  static constexpr TaskIndex kNobody = 0xffffffff;

  struct Interval {
    std::int64_t begin, end;
    friend bool operator<(const Interval& a, const Interval& b) { return a.begin < b.begin; }
  };

  // A task that gives way, under way: until `accounted` it is known when it stood still, `left` is to do.
  struct Yielding {
    std::int64_t accounted = 0, left = 0;
    std::vector<Interval> others;  // that hold its links, not accounted yet
  };
  struct GivenWay {              // on a link
    bool wanted = false;         // by tasks that give way
    TaskIndex holder = kNobody;  // of them
    std::vector<Interval> others;
  };

  void check_shape() const {
    const std::size_t tasks = graph_.size(), lanes = graph_.lane_order.size();
    ESP_CHECK(tasks < kReleased, tasks);
    ESP_CHECK(graph_.delay.size() == tasks && graph_.lane.size() == tasks &&
                  graph_.priority.size() == tasks && graph_.gives_way.size() == tasks,
              tasks, graph_.delay.size(), graph_.lane.size(), graph_.priority.size(),
              graph_.gives_way.size());
    ESP_CHECK(graph_.link_begin.size() == tasks + 1 && graph_.successor_begin.size() == tasks + 1, tasks,
              graph_.link_begin.size(), graph_.successor_begin.size());
    ESP_CHECK(graph_.order_begin.size() == lanes + 1, lanes, graph_.order_begin.size());
  }

  bool has_links(TaskIndex task) const { return graph_.link_begin[task] != graph_.link_begin[task + 1]; }
  std::span<const std::uint32_t> links_of(TaskIndex task) const {
    return {graph_.links.data() + graph_.link_begin[task],
            graph_.link_begin[task + 1] - graph_.link_begin[task]};
  }

  // Runs what needs no queue until only queued tasks are left.
  void run_released() {
    while (!released_.empty()) {
      const TaskIndex task = released_.back();
      released_.pop_back();
      const std::int64_t ready = times_.ready[task].count();
      if (has_links(task)) {
        transfers_.push({ready, graph_.priority[task], task});
        continue;
      }
      const std::uint32_t lane = graph_.lane[task];
      if (lane != TaskGraph::kNoLane && graph_.lane_order[lane] == LaneOrder::kByPriority) {
        priority_lanes_[lane].coming.push({ready, graph_.priority[task], task});
        plan_choice(lane);
        continue;
      }
      finish(task, ready, ready + graph_.duration[task].count());
    }
  }

  void dispatch(const Waiting& transfer) {
    const TaskIndex task = transfer.task;
    if (graph_.gives_way[task] != 0) {
      const auto at = under_way_.find(task);
      if (at == under_way_.end()) {
        waiting_.push_back(task);
        begin_yielding(transfer.ready);
      } else {
        look_at(at->first, at->second, transfer.ready);
      }
      return;
    }
    std::int64_t start = transfer.ready;
    const std::span<const std::uint32_t> links = links_of(task);
    for (const std::uint32_t link : links) start = std::max(start, link_free_[link]);
    const std::int64_t free = start + graph_.duration[task].count();
    for (const std::uint32_t link : links) {
      link_free_[link] = free;
      GivenWay& here = given_way_[link];
      if (here.wanted) here.others.push_back({start, free});
      if (here.holder != kNobody) under_way_.at(here.holder).others.push_back({start, free});
    }
    finish(task, start, free);
  }

  // Those that wait and whose links none of their like holds, or wants that has waited longer.
  void begin_yielding(std::int64_t time) {
    std::vector<TaskIndex> kept;
    std::set<std::uint32_t> wanted;
    for (const TaskIndex task : waiting_) {
      const std::span<const std::uint32_t> links = links_of(task);
      const bool waits = std::any_of(links.begin(), links.end(), [&](std::uint32_t link) {
        return given_way_[link].holder != kNobody || wanted.contains(link);
      });
      if (waits) {
        wanted.insert(links.begin(), links.end());
        kept.push_back(task);
        continue;
      }
      Yielding& yielding = under_way_[task];
      yielding = {time, graph_.duration[task].count(), {}};
      for (const std::uint32_t link : links) {
        GivenWay& here = given_way_[link];
        here.holder = task;
        for (auto last = here.others.rbegin(); last != here.others.rend() && last->end > time; ++last) {
          yielding.others.push_back(*last);
        }
      }
      times_.start[task] = Duration(time);
      transfers_.push({time + yielding.left, graph_.priority[task], task});
    }
    waiting_ = std::move(kept);
  }

  // At the time at which it ends unless it stands still longer than was known.
  void look_at(TaskIndex task, Yielding& yielding, std::int64_t time) {
    std::sort(yielding.others.begin(), yielding.others.end());
    auto next = yielding.others.begin();
    for (; next != yielding.others.end(); ++next) {
      const std::int64_t until = std::max(next->begin, yielding.accounted);
      if (until >= yielding.accounted + yielding.left) break;
      if (next->end <= yielding.accounted) continue;
      yielding.left -= until - yielding.accounted;
      yielding.accounted = next->end;
    }
    yielding.others.erase(yielding.others.begin(), next);
    const std::int64_t end = yielding.accounted + yielding.left;
    if (end > time) {
      transfers_.push({end, graph_.priority[task], task});
      return;
    }
    for (const std::uint32_t link : links_of(task)) given_way_[link].holder = kNobody;
    under_way_.erase(task);
    finish(task, times_.start[task].count(), end);
    begin_yielding(end);
  }

  void plan_choice(std::uint32_t index) {
    PriorityLane& lane = priority_lanes_[index];
    if (lane.ready.empty() && lane.coming.empty()) return;
    const std::int64_t time = lane.ready.empty() ? std::max(lane.free, lane.coming.top().ready) : lane.free;
    if (time < lane.next_choice) {
      lane.next_choice = time;
      choices_.push({time, index});
    }
  }

  void choose(const LaneChoice& choice) {
    PriorityLane& lane = priority_lanes_[choice.lane];
    if (choice.time != lane.next_choice) return;  // an earlier choice took its place
    lane.next_choice = PriorityLane::kNever;
    while (!lane.coming.empty() && lane.coming.top().ready <= choice.time) {
      const Waiting waiting = lane.coming.pop();
      lane.ready.push({waiting.priority, waiting.task});
    }
    const TaskIndex task = lane.ready.pop().task;
    lane.free = choice.time + graph_.duration[task].count();
    finish(task, choice.time, lane.free);
    plan_choice(choice.lane);
  }

  void finish(TaskIndex task, std::int64_t start, std::int64_t end) {
    ++done_;
    times_.start[task] = Duration(start);
    times_.end[task] = Duration(end);
    const std::int64_t arrival = end + graph_.delay[task].count();
    makespan_ = std::max(makespan_, arrival);
    for (std::uint32_t i = graph_.successor_begin[task]; i < graph_.successor_begin[task + 1]; ++i) {
      release(graph_.successors[i], arrival);
    }
    const std::uint32_t lane = graph_.lane[task];
    if (lane != TaskGraph::kNoLane && graph_.lane_order[lane] == LaneOrder::kInOrder) {
      const std::uint32_t next = ++cursor_[lane];
      if (next < graph_.order_begin[lane + 1]) release(graph_.order[next], end);
    }
  }

  void release(TaskIndex task, std::int64_t time) {
    times_.ready[task] = std::max(times_.ready[task], Duration(time));
    if (--waits_[task] == 0) {
      waits_[task] = kReleased;
      released_.push_back(task);
    }
  }

  // Every task that did not run waits for another that did not run; walking back must come round.
  [[noreturn]] void fail_on_cycle() const {
    const std::size_t tasks = graph_.size();
    std::vector<TaskIndex> waits_for(tasks, kReleased);
    const auto note = [&](TaskIndex before, TaskIndex after) {
      if (waits_[before] != kReleased && waits_for[after] == kReleased) waits_for[after] = before;
    };
    for (std::size_t task = 0; task < tasks; ++task) {
      for (std::uint32_t i = graph_.successor_begin[task]; i < graph_.successor_begin[task + 1]; ++i) {
        note(static_cast<TaskIndex>(task), graph_.successors[i]);
      }
    }
    for (std::size_t lane = 0; lane < graph_.lane_order.size(); ++lane) {
      for (std::uint32_t i = graph_.order_begin[lane] + 1; i < graph_.order_begin[lane + 1]; ++i) {
        note(graph_.order[i - 1], graph_.order[i]);
      }
    }
    TaskIndex task = 0;
    while (waits_[task] == kReleased) ++task;
    for (std::size_t i = 0; i < tasks; ++i) task = waits_for[task];  // now surely on a cycle
    std::string cycle = std::to_string(task);
    std::size_t shown = 1;
    for (TaskIndex at = waits_for[task]; at != task && shown < 20; at = waits_for[at], ++shown) {
      cycle += " after " + std::to_string(at);
    }
    throw InternalError("task graph has a cycle: task " + cycle + " after " + std::to_string(task) + "; " +
                        std::to_string(tasks - done_) + " of " + std::to_string(tasks) + " tasks cannot run");
  }

  const TaskGraph& graph_;
  TaskTimes times_;
  std::vector<std::uint32_t> waits_;     // by task: dependencies not yet done; kReleased once there are none
  std::vector<std::uint32_t> cursor_;    // by in-order lane: place of its current task in `order`
  std::vector<std::int64_t> link_free_;  // by link: of tasks that do not give way
  std::vector<GivenWay> given_way_;      // by link
  std::map<TaskIndex, Yielding> under_way_;
  std::vector<TaskIndex> waiting_;            // that give way, by ready time: for links that their like hold
  std::vector<PriorityLane> priority_lanes_;  // by lane; in-order lanes leave theirs unused
  std::vector<TaskIndex> released_;
  Heap<Waiting> transfers_;
  Heap<LaneChoice> choices_;
  std::size_t done_ = 0;
  std::int64_t makespan_ = 0;
};

}  // namespace

TaskTimes run_tasks(const TaskGraph& graph) {
  return Engine(graph).run();
}

}  // namespace espalier
