#include "espalier/placement/levels.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <set>
#include <utility>

#include "espalier/plan/fragments.h"

namespace espalier::placement {
namespace {

constexpr std::int64_t kShort =
    10'000;  // kClose: messages may be late that take less than this part of a step

constexpr std::uint32_t kNobody = std::numeric_limits<std::uint32_t>::max();

// What messages ask of the run that a task is in.
struct RunLimits {
  Duration ends_by = Duration::max();  // it ends no later
  Duration begins_from = {};           // and begins no sooner
  bool ends_here = false;              // a message of the task cannot wait at all
  bool begins_here = false;            // the task waits for a message as long as it can
  RunLimits with(const RunLimits& other) const {
    return {std::min(ends_by, other.ends_by), std::max(begins_from, other.begins_from),
            ends_here || other.ends_here, begins_here || other.begins_here};
  }
};

// When the tasks of a run are done that go one way, and what is asked of them.
struct RunPart {
  Duration begin = Duration::max(), end = {};
  RunLimits limits;
  // Their places among the device's tasks that go this way.
  std::size_t first = std::numeric_limits<std::size_t>::max(), last = 0, count = 0;
  RunPart with(const RunPart& other) const {
    return {std::min(begin, other.begin), std::max(end, other.end),   limits.with(other.limits),
            std::min(first, other.first), std::max(last, other.last), count + other.count};
  }
  bool in_time() const { return end <= limits.ends_by && limits.begins_from <= begin; }
  bool in_a_row() const { return count == 0 || last - first + 1 == count; }
};

// An operator's tasks: of a training graph its only one; of a forward graph the smaller is its forward pass.
struct Passes {
  Passes(const Instance& instance, std::size_t operators)
      : forward(operators, kNobody), backward(operators, kNobody) {
    for (std::size_t t = 0; t < instance.tasks(); ++t) {
      const std::size_t op = instance.op[t].index();
      (forward[op] == kNobody ? forward : backward)[op] = narrow(t);
    }
  }
  std::vector<std::uint32_t> forward, backward;  // by operator
};

class RunCutter {
 public:
  RunCutter(const Graph& graph, const Instance& instance, std::span<const DeviceId> assignment,
            const Timeline& timeline, Runs runs)
      : graph_(graph), instance_(instance), assignment_(assignment), timeline_(timeline), runs_are_(runs) {}

  std::optional<std::vector<std::uint32_t>> levels() {
    find_limits();
    find_places();
    run_of_.assign(graph_.operators().size(), kNobody);
    for (std::size_t d = 0; d < timeline_.lists.size(); ++d) cut(timeline_.lists[d]);
    return number_runs();
  }

 private:
  const Operator& op(TaskId task) const { return graph_.op(instance_.op[task.index()]); }
  DeviceId device(TaskId task) const { return assignment_[instance_.unit[task.index()].index()]; }
  Duration begin(TaskId task) const { return timeline_.start[task.index()]; }
  Duration end(TaskId task) const { return timeline_.end[task.index()]; }

  void find_limits() {
    std::map<std::pair<ValueId, DeviceId>, Duration> takes;  // values of no bytes take no time
    for (const Timeline::Message& sent : timeline_.messages) {
      takes[{sent.value, sent.to}] = sent.arrival - sent.start;
    }
    limits_.resize(instance_.tasks());
    for (std::size_t v = 0; v < instance_.values(); ++v) {
      const TaskId producer = instance_.producer[v];
      if (!instance_.here_only.empty() && instance_.here_only[v] != 0) continue;
      for (const TaskId reader : instance_.readers[v]) {
        if (device(reader) == device(producer)) continue;
        const auto at = takes.find({ValueId(v), device(reader)});
        limit(producer, reader, at == takes.end() ? Duration() : at->second);
      }
    }
  }

  void limit(TaskId producer, TaskId reader, Duration takes) {
    const bool may_be_late = runs_are_ == Runs::kLong || takes <= timeline_.evaluated.time / kShort;
    const Duration slack = may_be_late ? begin(reader) - takes - end(producer) : Duration();
    const Duration leaves = end(producer) + std::max(slack, Duration()) / 2;
    RunLimits& sends = limits_[producer.index()];
    RunLimits& reads = limits_[reader.index()];
    sends.ends_by = std::min(sends.ends_by, leaves);
    reads.begins_from = std::max(reads.begins_from, std::min(leaves + takes, begin(reader)));
    sends.ends_here = sends.ends_here || slack <= Duration();
    reads.begins_here = reads.begins_here || slack <= Duration();
  }

  void find_places() {
    place_.resize(instance_.tasks());
    for (std::size_t d = 0; d < timeline_.lists.size(); ++d) {
      std::size_t forward = 0, backward = 0;
      for (const TaskId task : timeline_.lists[d])
        place_[task.index()] = instance_.pass[task.index()] == Pass::kForward ? forward++ : backward++;
    }
  }

  RunPart part(TaskId task) const {
    const std::size_t place = place_[task.index()];
    return {begin(task), end(task), limits_[task.index()], place, place, 1};
  }

  // One device's tasks in their order, mirrors left out.
  void cut(std::span<const TaskId> tasks) {
    RunPart forward, backward;
    std::set<std::uint32_t> ties;  // the run's colocation groups
    bool open = false;
    for (const TaskId task : tasks) {
      const std::size_t at = instance_.op[task.index()].index();
      if (passes_.forward[at] != task.index()) continue;
      RunPart own = part(task), own_mirror;
      if (passes_.backward[at] != kNobody) own_mirror = part(TaskId(passes_.backward[at]));
      const RunPart both = forward.with(own), both_mirrors = backward.with(own_mirror);
      const bool joins = open && !forward.limits.ends_here && !own.limits.begins_here && both.in_time() &&
                         both_mirrors.in_time() && (runs_are_ == Runs::kLong || both_mirrors.in_a_row());
      const bool tied = open && op(task).colocation && ties.contains(*op(task).colocation);
      if (!joins && !tied) {
        forward = own;
        backward = own_mirror;
        ties.clear();
        previous_.push_back(open ? runs_ - 1 : kNobody);
        ++runs_;
      } else {
        forward = both;
        backward = both_mirrors;
      }
      open = true;
      if (!training_graph_ && op(task).colocation) ties.insert(*op(task).colocation);
      run_of_[at] = runs_ - 1;
    }
  }

  // The longest way to each run, by what must come first and by its device's order.
  std::optional<std::vector<std::uint32_t>> number_runs() const {
    std::vector<std::vector<std::uint32_t>> next(runs_);
    std::vector<std::uint32_t> waits(runs_, 0), level(runs_, 0);
    const auto follow = [&](std::uint32_t before, std::uint32_t behind) {
      next[before].push_back(behind);
      ++waits[behind];
    };
    for (std::uint32_t r = 0; r < runs_; ++r) {
      if (previous_[r] != kNobody) follow(previous_[r], r);
    }
    for (std::size_t v = 0; v < run_of_.size(); ++v) {
      if (run_of_[v] == kNobody) continue;
      for (const OperatorId u : graph_.predecessors(OperatorId(v))) {
        const std::uint32_t before = run_of_[u.index()];
        if (before == kNobody || before == run_of_[v] || !must_wait(OperatorId(v), u)) continue;
        follow(before, run_of_[v]);
      }
    }
    std::vector<std::uint32_t> ready;
    for (std::uint32_t r = 0; r < runs_; ++r) {
      if (waits[r] == 0) ready.push_back(r);
    }
    for (std::size_t i = 0; i < ready.size(); ++i) {
      for (const std::uint32_t behind : next[ready[i]]) {
        level[behind] = std::max(level[behind], level[ready[i]] + 1);
        if (--waits[behind] == 0) ready.push_back(behind);
      }
    }
    if (ready.size() < runs_) return std::nullopt;
    std::vector<std::uint32_t> result(run_of_.size(), 0);
    for (std::size_t v = 0; v < run_of_.size(); ++v) {
      if (run_of_[v] != kNobody) result[v] = level[run_of_[v]];
    }
    return result;
  }

  bool must_wait(OperatorId v, OperatorId u) const {
    return device_of(u) == device_of(v) || waits_across_devices(graph_, v, u);
  }
  DeviceId device_of(OperatorId id) const { return device(TaskId(passes_.forward[id.index()])); }

  const Graph& graph_;
  const Instance& instance_;
  const std::span<const DeviceId> assignment_;
  const Timeline& timeline_;
  const Runs runs_are_;
  const Passes passes_{instance_, graph_.operators().size()};
  std::vector<RunLimits> limits_;        // by task
  std::vector<std::size_t> place_;       // by task: among those of its device that go the same way
  std::vector<std::uint32_t> run_of_;    // by operator
  std::vector<std::uint32_t> previous_;  // by run: the one before it on its device
  std::uint32_t runs_ = 0;
  const bool training_graph_ = is_training_graph(graph_.operators());  // which nobody runs
};

}  // namespace

std::optional<std::vector<std::uint32_t>> levels_of(const Graph& graph, const Instance& instance,
                                                    std::span<const DeviceId> assignment,
                                                    const Timeline& timeline, Runs runs) {
  return RunCutter(graph, instance, assignment, timeline, runs).levels();
}

namespace {

// What the backward passes of fragments wait for.
class BackwardWaits {
 public:
  BackwardWaits(const Graph& graph, const PipelinePlan& fragments, const Passes& passes)
      : graph_(graph), fragments_(fragments), passes_(passes), next_(fragments.stages.size()) {
    fragment_of_.assign(graph.operators().size(), kNobody);  // a copy has no backward pass
    for (std::size_t x = 0; x < fragments.stages.size(); ++x) {
      for (const OperatorId op : fragments.stages[x].operators) fragment_of_[op.index()] = narrow(x);
    }
    for (std::uint32_t x = 0; x < next_.size(); ++x) add(x);
  }

  // By fragment: whose backward passes wait for its own, each once.
  const std::vector<std::vector<std::uint32_t>>& next() const { return next_; }
  std::vector<std::uint32_t> counts() const {
    std::vector<std::uint32_t> counts(next_.size(), 0);
    for (const std::vector<std::uint32_t>& of : next_) {
      for (const std::uint32_t behind : of) ++counts[behind];
    }
    return counts;
  }

 private:
  // Whom a fragment reads from waits for its gradients; where no tensor crosses, a token does, and returns.
  void add(std::uint32_t x) {
    std::vector<std::uint32_t> gives, gets;  // fragments that it reads from; those that get a gradient
    for (const OperatorId op : fragments_.stages[x].operators) {
      if (graph_.op(op).duplicable) continue;
      for (const TensorId input : graph_.op(op).inputs) {
        const Tensor& tensor = graph_.tensor(input);
        if (!tensor.producer || graph_.op(*tensor.producer).duplicable) continue;
        const std::uint32_t from = fragment_of_[tensor.producer->index()];
        gives.push_back(from);
        if (tensor.requires_grad && passes_.backward[op.index()] != kNobody) gets.push_back(from);
      }
    }
    std::sort(gives.begin(), gives.end());
    for (const StageId before : fragments_.stages[x].after) {
      if (!std::binary_search(gives.begin(), gives.end(), before.index()))
        gets.push_back(narrow(before.index()));
    }
    std::sort(gets.begin(), gets.end());
    gets.erase(std::unique(gets.begin(), gets.end()), gets.end());
    std::erase(gets, x);
    next_[x] = std::move(gets);
  }

  const Graph& graph_;
  const PipelinePlan& fragments_;
  const Passes& passes_;
  std::vector<std::uint32_t> fragment_of_;  // by operator
  std::vector<std::vector<std::uint32_t>> next_;
};

}  // namespace

OrderLists orders_of(const Graph& graph, const PipelinePlan& fragments, const Instance& instance,
                     const Timeline& timeline) {
  const std::size_t count = fragments.stages.size();
  const Passes passes(instance, graph.operators().size());
  const BackwardWaits order(graph, fragments, passes);
  std::vector<Duration> begin(count);  // of backward passes: zero where there are none
  OrderLists lists(instance.devices());
  const auto add = [&](ActionKind kind, std::size_t x) {
    lists[fragments.stages[x].replicas[0].devices[0].index()].emplace_back(kind, StageId(x));
  };
  for (std::size_t x = 0; x < count; ++x) {
    add(ActionKind::kForward, x);
    std::optional<Duration> first;
    for (const OperatorId op : fragments.stages[x].operators) {
      const std::uint32_t task = passes.backward[op.index()];
      if (task != kNobody) first = std::min(first.value_or(Duration::max()), timeline.start[task]);
    }
    begin[x] = first.value_or(Duration());
  }
  using Ready = std::pair<Duration, std::size_t>;  // the later fragment first: counted from the end
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
  std::vector<std::uint32_t> waits = order.counts();
  for (std::size_t x = 0; x < count; ++x) {
    if (waits[x] == 0) ready.emplace(begin[x], count - x);
  }
  while (!ready.empty()) {
    const std::size_t x = count - ready.top().second;
    ready.pop();
    add(ActionKind::kBackward, x);
    for (const std::uint32_t behind : order.next()[x]) {
      if (--waits[behind] == 0) ready.emplace(begin[behind], count - behind);
    }
  }
  return lists;
}

}  // namespace espalier::placement
