#include "espalier/planners/placement/multilevel.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "espalier/base/rng.h"
#include "espalier/planners/placement/baechi.h"
#include "espalier/planners/placement/coarsening.h"
#include "espalier/planners/placement/heft.h"
#include "espalier/planners/placement/memory_ledger.h"
#include "espalier/planners/placement/ranks.h"
#include "espalier/planners/placement/simple.h"

// Multilevel partitioning as METIS does it (Karypis, Kumar, SISC'98), with the step's time in place of the
// cut: coarsening keeps the direction of edges, and moves are judged by the engine.
//
// Bad cases: a unit that spans the whole graph (weights that all time steps share) never joins another, so
// such graphs stay large; on fine levels the work allows few moves, and what coarse levels got wrong by many
// units stays.

namespace espalier::placement {
namespace {

constexpr std::size_t kDevicesLookedAt = 3;  // for each unit

// What one level's search holds.
class Refinement {
 public:
  Refinement(const Instance& instance, const Rules& rules, Rng& rng)
      : instance_(instance),
        rng_(rng),
        priority_(upward_priorities(instance)),
        engine_(instance, rules, {priority_, {}}) {}

  Evaluated evaluate(const Assignment& assignment) { return engine_.evaluate(assignment, scratch_); }
  const std::vector<std::uint32_t>& priority() const { return priority_; }

  // Moves units to devices of their neighbours while the step gets no longer. At most so many looks.
  Assignment run(Assignment start, std::uint64_t looks, Context& context) {
    MemoryLedger ledger(instance_);
    for (std::size_t u = 0; u < instance_.units(); ++u) ledger.place(UnitId(u), start[u]);
    Incremental incremental(engine_, std::move(start));
    std::vector<std::uint32_t> order(instance_.units());
    std::iota(order.begin(), order.end(), std::uint32_t{0});
    std::uint64_t looked = 0;
    for (bool better = true; better && looked < looks;) {
      better = false;
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng_.below(i)]);
      for (const std::uint32_t u : order) {
        for (const DeviceId device : neighbours(UnitId(u), incremental.assignment())) {
          if (looked++ >= looks || context.stop() || !context.take_state()) return incremental.assignment();
          if (!ledger.fits(UnitId(u), device)) continue;
          const Duration now = incremental.evaluated().time;
          const std::vector<Incremental::Move> move{{UnitId(u), device}};
          const Evaluated then = incremental.look(move, now + nanoseconds(1));
          if (then.cut_off || then.deadlock) continue;
          better = better || then.time < now;
          incremental.take();
          ledger.remove(UnitId(u));
          ledger.place(UnitId(u), device);
          break;
        }
      }
    }
    return incremental.assignment();
  }

 private:
  // The devices of those whom the unit reads or is read by, ascending, but for its own.
  std::vector<DeviceId> neighbours(UnitId unit, const Assignment& assignment) const {
    std::vector<DeviceId> devices;
    const std::span<const DeviceId> allowed = instance_.allowed[unit.index()];
    const auto add = [&](TaskId task) {
      const DeviceId device = assignment[instance_.unit[task.index()].index()];
      if (device == assignment[unit.index()] || devices.size() == kDevicesLookedAt) return;
      if (std::find(devices.begin(), devices.end(), device) != devices.end()) return;
      if (std::binary_search(allowed.begin(), allowed.end(), device)) devices.push_back(device);
    };
    for (const TaskId task : instance_.tasks_of[unit.index()]) {
      for (const ValueId value : instance_.reads[task.index()]) add(instance_.producer[value.index()]);
      for (const ValueId value : instance_.produces[task.index()]) {
        for (const TaskId reader : instance_.readers[value.index()]) add(reader);
      }
    }
    return devices;
  }

  const Instance& instance_;
  Rng& rng_;
  const std::vector<std::uint32_t> priority_;
  const Engine engine_;
  Scratch scratch_;
};

CoarseningLimits limits_of(const Instance& instance) {
  const MeanCosts mean(instance);
  Duration work;
  for (const Duration time : mean.time) work += time;
  const auto devices = static_cast<std::int64_t>(instance.devices());
  const Bytes least = *std::min_element(instance.memory.begin(), instance.memory.end());
  return {work / (4 * devices), least / 4};
}

// The best of several by the engine; nothing where none has an assignment.
std::optional<Assignment> best_of(Refinement& refinement, std::vector<std::optional<Assignment>> choices) {
  std::optional<std::pair<Duration, std::size_t>> best;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (!choices[i]) continue;
    const Evaluated evaluated = refinement.evaluate(*choices[i]);
    if (!evaluated.deadlock && (!best || evaluated.time < best->first)) best = {evaluated.time, i};
  }
  return best ? std::move(choices[best->second]) : std::nullopt;
}

}  // namespace

Placed multilevel(const Instance& instance, const MultilevelOptions& options, Context& context) {
  std::vector<Coarse> levels;
  const CoarseningLimits limits = limits_of(instance);
  const auto finest_of = [&](std::size_t level) -> const Instance& {
    return level == 0 ? instance : levels[level - 1].instance;
  };
  while (finest_of(levels.size()).tasks() > options.coarsest) {
    const std::size_t before = finest_of(levels.size()).tasks();
    Coarse coarse = coarsen(finest_of(levels.size()), limits);
    if (coarse.instance.tasks() > before - before / 10) break;
    levels.push_back(std::move(coarse));
  }
  Rng rng(options.seed);
  const std::uint64_t states = context.states;
  std::optional<Assignment> assignment;
  Placed placed = m_etf(instance);  // says what lacks where nothing fits
  for (std::size_t level = levels.size() + 1; level-- > 0;) {
    const Instance& here = finest_of(level);
    Refinement refinement(here, options.rules, rng);
    std::vector<std::optional<Assignment>> choices;
    if (assignment) choices.push_back(refined(levels[level], *assignment));
    if (level == levels.size()) {
      choices.push_back(m_sct(here).assignment);
      choices.push_back(dpos(here).assignment);
      choices.push_back(peft(here).assignment);
    }
    if (level == levels.size() || level == 0) {
      choices.push_back(level == 0 ? placed.assignment : m_etf(here).assignment);
      choices.push_back(heft(here).assignment);
      choices.push_back(one_device(here).assignment);
    }
    assignment = best_of(refinement, std::move(choices));
    if (!assignment) continue;
    const std::uint64_t looks = options.work / std::max<std::size_t>(here.tasks(), 1);
    assignment = refinement.run(std::move(*assignment), looks, context);
    if (level > 0) continue;
    placed.estimate = refinement.evaluate(*assignment).time;
    placed.orders = {refinement.priority(), {}};
    placed.assignment = assignment;
    placed.why.clear();
    placed.lacks.clear();
  }
  placed.stats.states += context.states - states;
  placed.stats.evaluations += context.states - states;
  return placed;
}

}  // namespace espalier::placement
