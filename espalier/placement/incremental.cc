// A move changes nothing before the first instant at which a task that it moves can be noticed: the end of
// the first task that gives it something, when a value is sent elsewhere than before. (What it gives, what it
// holds, its place in a queue come later. What is held all step is counted apart.) So a look begins at the
// last snapshot before that instant; up to there the evaluation of the assignment is that of the move.
//
//   evaluation of the assignment   ├────┼────┼────┼────┼────┤   snapshots every so many tasks
//   first notice of the move                   x
//   look                                     ├──────────┄       ends, or is cut off
//
// take() keeps the snapshots before that instant, and of the ends of tasks knows only those before it: what
// ended later still ends then at the earliest. Only when several looks have come since is the rest worked out
// again, from the last snapshot that is left. So a search that takes each move makes few snapshots.
//
// How we fall short: a look does not notice that the step has become the same again.

#include <algorithm>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/placement/simulation.h"

namespace espalier::placement {

using internal::BaseRecord;
using internal::kNever;
using internal::NoRecord;
using internal::Snapshot;
using internal::Time;

namespace {

constexpr std::size_t kSnapshots = 12;  // of an evaluation
constexpr std::uint32_t kPatience = 3;  // looks before the rest is worked out again
constexpr std::size_t kFewTasks = 64;   // below, each look is a full evaluation

}  // namespace

struct Incremental::State {
  const Engine* engine;
  const internal::Tables* tables;
  Assignment assignment, looked_at;
  Evaluated evaluated, seen;
  Scratch scratch;
  BaseRecord base;
  Time known = 0;           // ends of tasks in `base` before it are true, others are not before it
  Time noticed = 0;         // by the last look: nothing changed before it
  std::uint32_t looks = 0;  // since the last take

  bool resumes() const { return tables->rules.order != Rules::Order::kListed && tables->tasks >= kFewTasks; }

  // The last snapshot at which nothing had happened at `time` or later.
  const Snapshot* before(Time time) const {
    const auto at = std::partition_point(base.snapshots.begin(), base.snapshots.end(),
                                         [&](const Snapshot& one) { return one.clock.now < time; });
    return at == base.snapshots.begin() ? nullptr : &*std::prev(at);
  }

  // Works out the assignment's evaluation from the last snapshot on, with ends and snapshots.
  void work_out(internal::State& room) {
    base.end.resize(tables->tasks);
    base.step = std::max<std::size_t>(1, tables->tasks / kSnapshots);
    base.snapshots.reserve(2 * kSnapshots + 2);  // `from` stays where it is
    base.from = base.snapshots.empty() ? nullptr : &base.snapshots.back();
    evaluated = internal::simulate(*tables, assignment, room, kNever, base);
    known = kNever;
  }

  Time first_notice(std::span<const Move> moves) const {
    Time first = known;
    for (const Move& move : moves) {
      if (assignment[move.unit.index()] == move.device) continue;
      for (const TaskId task : tables->instance.tasks_of[move.unit.index()]) {
        first = std::min(first, first_given(task, std::nullopt));
        if (!tables->here_only.empty()) first = std::min(first, first_free_of(task));
      }
    }
    return first;
  }

  // The end of the first task, `but` one, that gives the task something.
  Time first_given(TaskId task, std::optional<TaskId> but) const {
    Time first = kNever;
    for (const ValueId value : tables->instance.reads[task.index()]) {
      const TaskId giver = tables->instance.producer[value.index()];
      if (giver != but) first = std::min(first, base.end[giver.index()]);
    }
    return first == kNever ? 0 : first;
  }

  // Who waits for the task on its device alone may not have to any more, and be ready before the task is.
  Time first_free_of(TaskId task) const {
    Time first = kNever;
    for (const ValueId value : tables->instance.produces[task.index()]) {
      if (!tables->value_rows[value.index()].here_only) continue;
      for (const TaskId reader : tables->instance.readers[value.index()]) {
        first = std::min(first, first_given(reader, task));
      }
    }
    return first;
  }
};

Incremental::Incremental(const Engine& engine, Assignment start)
    : state_(std::make_unique<State>(
          State{&engine, engine.prepared_.get(), std::move(start), {}, {}, {}, Scratch(), {}})) {
  State& s = *state_;
  s.evaluated = engine.evaluate(s.assignment, s.scratch);
  s.looked_at = s.assignment;
  s.seen = s.evaluated;
}
Incremental::~Incremental() = default;

const Assignment& Incremental::assignment() const {
  return state_->assignment;
}
const Evaluated& Incremental::evaluated() const {
  return state_->evaluated;
}

Evaluated Incremental::look(std::span<const Move> moves, Duration limit) {
  State& s = *state_;
  s.looked_at = s.assignment;
  for (const Move& move : moves) s.looked_at[move.unit.index()] = move.device;
  NoRecord record;
  if (s.resumes()) {
    internal::State& room = *s.scratch.state_;
    if (++s.looks == kPatience && s.known != kNever) s.work_out(room);
    s.noticed = s.base.end.empty() ? 0 : s.first_notice(moves);
    record.from = s.before(s.noticed);
  }
  s.seen = internal::simulate(*s.tables, s.looked_at, *s.scratch.state_, limit.count(), record);
  return s.seen;
}

void Incremental::take() {
  State& s = *state_;
  ESP_CHECK(!s.seen.cut_off);
  s.assignment = s.looked_at;
  s.evaluated = s.seen;
  if (!s.resumes()) return;
  const Snapshot* const last = s.before(s.noticed);
  s.base.snapshots.resize(last ? static_cast<std::size_t>(last - s.base.snapshots.data()) + 1 : 0);
  s.known = std::min(s.known, s.noticed);
  s.looks = 0;
}

}  // namespace espalier::placement
