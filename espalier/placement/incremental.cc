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
// All this is for rules with endpoints. Elsewhere a look runs for the step's time alone and only where it
// differs (step_time.h); devices that may overflow are counted from the finished times (step_memory.h), which
// are noted from the first time on that one may. take() runs there once more and notes it.

#include <algorithm>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/placement/step_memory.h"

namespace espalier::placement {

using internal::BaseRecord;
using internal::changed_step_time;
using internal::kNever;
using internal::NoRecord;
using internal::Recording;
using internal::Snapshot;
using internal::StepBase;
using internal::StepChange;
using internal::StepTime;
using internal::Time;

namespace {

constexpr std::size_t kSnapshots = 12;  // of an evaluation
constexpr std::uint32_t kPatience = 3;  // looks before the rest is worked out again
constexpr std::size_t kFewTasks = 64;   // below, each look is a full evaluation

}  // namespace

namespace internal {

// The step of an assignment, and what each device holds at most if it held all at once: looks that go on from
// there.
class QuickLook {
 public:
  QuickLook(const internal::Tables& tables, const internal::StepTables& step, const StepEnd& end)
      : t_(tables), step_(step), end_(end), memory_(tables) {}

  bool ready() const { return !base_.device.empty(); }

  void start(const Assignment& assignment) {
    for (std::size_t task = 0; task < t_.tasks; ++task) {
      base_.device.push_back(static_cast<std::uint16_t>(assignment[t_.task_rows[task].unit].index()));
    }
    base_.position.assign(t_.tasks, 0xffffffff);
    base_.start.assign(t_.devices, {});
    for (std::uint32_t task = 0; task < t_.tasks; ++task) {
      base_.start[base_.device[task]].left += internal::time_with_rest(t_, task, base_.device[task]);
    }
    change_.critical.assign(t_.values, 0);
    change_.mark = 1;
    change_.from_start = true;
    changed_step_time(t_, step_, base_, change_, room_, kNever, Recording::kYes);
    held_.assign(t_.devices, step_.most_workspace);
    stands_.assign(t_.instance.resident_bytes.size() * t_.devices, 0);
    end_.clear(copies_);
    for (std::size_t unit = 0; unit < assignment.size(); ++unit)
      hold_unit(narrow(unit), assignment[unit].index());
    for (std::uint32_t value = 0; value < t_.values; ++value) hold_copies(value, 1, held_);
  }

  // The units stand elsewhere than before; each is named once or more.
  Evaluated look(std::span<const Incremental::Move> moves, const Assignment& to, Time limit) {
    begin_change(moves, to);
    const Duration ending = end_of_step();
    const std::optional<Duration> left = before_ending(Duration(limit), ending);
    Evaluated seen{.cut_off = true};
    if (left) {
      StepTime step = changed_step_time(t_, step_, base_, change_, room_, left->count(), Recording::kNo);
      if (!step.cut_off && !fits() && !room_.notes_times) {
        undo_change();
        note_times();
        begin_change(moves, to);
        step = changed_step_time(t_, step_, base_, change_, room_, left->count(), Recording::kNo);
      }
      seen = with_ending(evaluated(step), ending);
    }
    undo_change();
    return seen;
  }

  // The same becomes the step that looks start from. How long it takes.
  Duration take(std::span<const Incremental::Move> moves, const Assignment& to) {
    begin_change(moves, to);
    const Duration ending = end_of_step();
    if (change_.moved.empty()) return Duration(base_.time) + ending;
    const StepTime step = changed_step_time(t_, step_, base_, change_, room_, kNever, Recording::kYes);
    if (room_.notes_times) internal::take_times(t_, room_, base_);
    held_ = held_after_;
    return Duration(step.time) + ending;
  }

 private:
  struct UnitMove {
    std::uint32_t unit = 0, from = 0, to = 0;
  };

  Duration end_of_step() { return end_.nothing() ? Duration() : end_.time(copies_); }
  bool fits() const { return internal::holds_all(t_.instance, held_after_); }

  Evaluated evaluated(const StepTime& step) {
    if (step.cut_off) return {.cut_off = true};
    Evaluated seen{.time = Duration(step.time)};
    for (std::uint32_t d = 0; d < t_.devices; ++d) {
      const std::int64_t memory = t_.instance.memory[d].count();
      if (held_after_[d] <= memory) continue;
      std::int64_t peak = memory_.peak(internal::FinishedTimes(room_, base_), base_.device, d);
      for (std::size_t resident = 0; resident < t_.instance.resident_bytes.size(); ++resident) {
        if (stands_[resident * t_.devices + d] != 0) peak += t_.instance.resident_bytes[resident].count();
      }
      if (peak <= memory) continue;
      seen.fits = false;
      seen.lack += Bytes(peak - memory);
    }
    return seen;
  }

  // From now on runs note times, and the base has its own.
  void note_times() {
    room_.notes_times = true;
    change_.moved.clear();
    change_.noticed.clear();
    change_.from_start = true;
    base_.snapshots.clear();
    changed_step_time(t_, step_, base_, change_, room_, kNever, Recording::kYes);
    internal::take_times(t_, room_, base_);
  }

  void undo_change() {
    for (const StepChange::Task& moved : change_.moved) base_.device[moved.task] = moved.from;
    for (const UnitMove& unit : units_) move_residents(unit.unit, unit.to, unit.from, nullptr);
  }

  void hold_unit(std::uint32_t unit, std::size_t device) {
    held_[device] += step_.unit_bytes[unit];
    for (const std::uint32_t resident : t_.instance.resident[unit]) {
      if (stands_[resident * t_.devices + device]++ == 0) {
        end_.add(copies_, resident, narrow(device));
        held_[device] += t_.instance.resident_bytes[resident].count();
      }
    }
  }

  void move_residents(std::uint32_t unit, std::uint32_t from, std::uint32_t to,
                      std::vector<std::int64_t>* held) {
    for (const std::uint32_t resident : t_.instance.resident[unit]) {
      const std::int64_t bytes = t_.instance.resident_bytes[resident].count();
      std::uint32_t* const stands = &stands_[resident * t_.devices];
      if (--stands[from] == 0) {
        end_.remove(copies_, resident, from);
        if (held) (*held)[from] -= bytes;
      }
      if (stands[to]++ == 0) {
        end_.add(copies_, resident, to);
        if (held) (*held)[to] += bytes;
      }
    }
  }

  // Copies of the value, wherever it is sent.
  void hold_copies(std::uint32_t value, std::int64_t times, std::vector<std::int64_t>& held) const {
    const internal::ValueRow& row = t_.value_rows[value];
    if (row.here_only) return;
    std::uint64_t to = 0;
    for (const TaskId reader : t_.instance.readers[value])
      to |= std::uint64_t{1} << base_.device[reader.index()];
    to &= ~(std::uint64_t{1} << base_.device[row.producer]);
    for (; to != 0; to &= to - 1) held[static_cast<std::size_t>(__builtin_ctzll(to))] += times * row.bytes;
  }

  void begin_change(std::span<const Incremental::Move> moves, const Assignment& to) {
    change_.moved.clear();
    change_.noticed.clear();
    change_.from_start = false;
    if (++change_.mark == 0) {
      std::fill(change_.critical.begin(), change_.critical.end(), 0);
      change_.mark = 1;
    }
    units_.clear();
    values_.clear();
    held_after_ = held_;
    for (const Incremental::Move& move : moves) take_unit(narrow(move.unit.index()), to);
    for (const StepChange::Task& moved : change_.moved) {
      base_.device[moved.task] = moved.from;
      for (const ValueId value : t_.instance.reads[moved.task]) note_value(narrow(value.index()));
      for (const ValueId value : t_.instance.produces[moved.task]) note_value(narrow(value.index()));
    }
    for (const std::uint32_t value : values_) hold_copies(value, -1, held_after_);
    for (const StepChange::Task& moved : change_.moved) base_.device[moved.task] = moved.to;
    for (const std::uint32_t value : values_) hold_copies(value, 1, held_after_);
    for (const StepChange::Task& moved : change_.moved) {
      notice(moved.task);
      for (const ValueId value : t_.instance.produces[moved.task]) {
        if (!t_.value_rows[value.index()].here_only) continue;
        for (const TaskId reader : t_.instance.readers[value.index()]) notice(narrow(reader.index()));
      }
    }
    std::sort(change_.noticed.begin(), change_.noticed.end());
  }

  void take_unit(std::uint32_t unit, const Assignment& to) {
    const auto tasks = t_.instance.tasks_of[unit];
    const std::uint32_t from = base_.device[tasks.front().index()], device = narrow(to[unit].index());
    if (from == device) return;
    units_.push_back({unit, from, device});
    for (const TaskId task : tasks) {
      change_.moved.push_back(
          {narrow(task.index()), static_cast<std::uint16_t>(from), static_cast<std::uint16_t>(device)});
      base_.device[task.index()] = static_cast<std::uint16_t>(device);
    }
    held_after_[from] -= step_.unit_bytes[unit];
    held_after_[device] += step_.unit_bytes[unit];
    move_residents(unit, from, device, &held_after_);
  }

  void note_value(std::uint32_t value) {
    if (change_.critical[value] == change_.mark) return;
    change_.critical[value] = change_.mark;
    values_.push_back(value);
  }

  // When the task may be ready, or where, changes with an end of those who give it something.
  void notice(std::uint32_t task) {
    bool source = true;
    for (const ValueId value : t_.instance.reads[task]) {
      const std::uint32_t v = narrow(value.index());
      change_.critical[v] = change_.mark;
      change_.noticed.push_back(base_.position[t_.value_rows[v].producer]);
      source = source && t_.value_rows[v].here_only;
    }
    change_.from_start = change_.from_start || source;
  }

  const internal::Tables& t_;
  const internal::StepTables& step_;
  const StepEnd& end_;
  TrainedCopies copies_;
  internal::StepState room_;
  internal::StepMemory memory_;
  StepBase base_;
  StepChange change_;
  std::vector<std::int64_t> held_, held_after_;  // by device
  std::vector<std::uint32_t> stands_;            // by resident and device: units there that hold it
  std::vector<UnitMove> units_;
  std::vector<std::uint32_t> values_;
};

}  // namespace internal

struct Incremental::State {
  const Engine* engine;
  const internal::Tables* tables;
  Assignment assignment;
  Assignment looked_at;  // the assignment after the last look's moves
  Evaluated evaluated, seen;
  Scratch scratch;
  BaseRecord base;
  Time known = 0;           // ends of tasks in `base` before it are true, others are not before it
  Time noticed = 0;         // by the last look: nothing changed before it
  std::uint32_t looks = 0;  // since the last take
  internal::QuickLook quick;
  std::vector<Move> last_moves;  // of the last look

  bool quick_serves() const { return engine->prepared_->step.usable; }
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
    internal::simulate(*tables, assignment, room, kNever, base);
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
          State{&engine,
                engine.prepared_.get(),
                std::move(start),
                {},
                {},
                {},
                Scratch(),
                {},
                0,
                0,
                0,
                internal::QuickLook(*engine.prepared_, engine.prepared_->step, engine.prepared_->end),
                {}})) {
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
  for (const Move& move : s.last_moves) {
    s.looked_at[move.unit.index()] = s.assignment[move.unit.index()];
  }
  s.last_moves.assign(moves.begin(), moves.end());
  for (const Move& move : moves) s.looked_at[move.unit.index()] = move.device;
  if (s.quick_serves()) {
    const bool moved = std::any_of(moves.begin(), moves.end(), [&](const Move& move) {
      return s.looked_at[move.unit.index()] != s.assignment[move.unit.index()];
    });
    if (!moved) {
      s.seen = s.evaluated.time < limit ? s.evaluated : Evaluated{.cut_off = true};
    } else {
      if (!s.quick.ready()) s.quick.start(s.assignment);
      s.seen = s.quick.look(moves, s.looked_at, limit.count());
    }
    return s.seen;
  }
  NoRecord record;
  if (s.resumes()) {
    internal::State& room = *s.scratch.state_;
    if (++s.looks == kPatience && s.known != kNever) s.work_out(room);
    s.noticed = s.base.end.empty() ? 0 : s.first_notice(moves);
    record.from = s.before(s.noticed);
  }
  const StepEnd& end = s.engine->prepared_->end;
  const Duration ending = end.nothing() ? Duration() : end.time(s.looked_at, s.scratch.state_->copies);
  const std::optional<Duration> left = internal::before_ending(limit, ending);
  s.seen = {.cut_off = true};
  if (left) {
    s.seen = internal::with_ending(
        internal::simulate(*s.tables, s.looked_at, *s.scratch.state_, left->count(), record), ending);
  }
  return s.seen;
}

void Incremental::take() {
  State& s = *state_;
  ESP_CHECK(!s.seen.cut_off);
  for (const Move& move : s.last_moves) {
    s.assignment[move.unit.index()] = s.looked_at[move.unit.index()];
  }
  s.evaluated = s.seen;
  if (s.quick.ready()) {
    const Duration step = s.quick.take(s.last_moves, s.assignment);
    ESP_CHECK(step == s.evaluated.time, step.count(), s.evaluated.time.count());
  }
  if (s.quick_serves() || !s.resumes()) return;
  const Snapshot* const last = s.before(s.noticed);
  s.base.snapshots.resize(last ? static_cast<std::size_t>(last - s.base.snapshots.data()) + 1 : 0);
  s.known = std::min(s.known, s.noticed);
  s.looks = 0;
}

}  // namespace espalier::placement
