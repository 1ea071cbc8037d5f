#include "espalier/planners/pipeline/graphpipe_neighbours.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace espalier::internal {
namespace {

constexpr std::size_t kSlowest = 3;        // step times whose stages are changed
constexpr std::size_t kJoins = 4;          // stages whose beginning is taken off: those with most feeders
constexpr std::int64_t kLightPercent = 5;  // of a stage's work

std::size_t idle_devices(const PipePlan& plan, const DeviceRow& row) {
  std::size_t used = 0;
  for (const PipeStage& stage : plan.stages) used += stage.replicas;
  return row.size() - used;
}

void stand_in_a_row(PipePlan& plan) {
  std::size_t next = 0;
  for (PipeStage& stage : plan.stages) {
    stage.begin = next;
    next += stage.replicas;
  }
}

// How many stages each stage reads from.
std::vector<std::size_t> feeders(const PipePlan& plan, const Linearization& line) {
  const Graph& graph = line.problem().graph;
  std::vector<std::optional<std::size_t>> stage_of(graph.operators().size());
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const Places& each : plan.stages[s].places) {
      for (std::uint32_t place = each.begin; place < each.end; ++place) stage_of[line[place].index()] = s;
    }
  }
  std::vector<std::set<std::size_t>> sets(plan.stages.size());
  for (std::size_t op = 0; op < stage_of.size(); ++op) {
    if (!stage_of[op]) continue;
    for (const OperatorId before : graph.predecessors(OperatorId(op))) {
      const auto& from = stage_of[before.index()];
      if (from && from != stage_of[op]) sets[*stage_of[op]].insert(*from);
    }
  }
  std::vector<std::size_t> counts;
  for (const auto& set : sets) counts.push_back(set.size());
  return counts;
}

// Unpinned stages that several others feed, those with most feeders.
std::vector<std::size_t> joins(const PipePlan& plan, const Linearization& line) {
  const std::vector<std::size_t> fed = feeders(plan, line);
  std::vector<std::size_t> stages;
  for (std::size_t s = 0; s < fed.size(); ++s) {
    if (fed[s] > 1 && !plan.stages[s].pinned) stages.push_back(s);
  }
  std::stable_sort(stages.begin(), stages.end(),
                   [&](std::size_t a, std::size_t b) { return fed[a] > fed[b]; });
  stages.resize(std::min(stages.size(), kJoins));
  return stages;
}

// Work before each place of the stage, and of all; of a device alone on its host.
std::vector<std::int64_t> work_before(const PipeStage& stage, const PlacePrices& prices) {
  std::vector<std::int64_t> before{0};
  for (const Places& each : stage.places) {
    for (std::uint32_t place = each.begin; place < each.end; ++place) {
      before.push_back(before.back() + prices.compute_alone(0, {{place, place + 1}}));
    }
  }
  return before;
}

// The first `count` places, and the others.
std::pair<PlaceRanges, PlaceRanges> cut_at(const PipeStage& stage, std::size_t count) {
  std::pair<PlaceRanges, PlaceRanges> parts;
  std::size_t done = 0;
  for (const Places& each : stage.places) {
    for (std::uint32_t place = each.begin; place < each.end; ++place) {
      append_places(done++ < count ? parts.first : parts.second, {place, place + 1});
    }
  }
  return parts;
}

// Cuts a stage in two behind so many places, each part with replicas of its own.
struct Replicas {
  std::size_t first = 1, rest = 1;
};
void cut_stage(PipePlan& plan, std::size_t s, std::size_t places, Replicas replicas, const PipeSize& size) {
  const std::vector<std::int64_t> before = work_before(plan.stages[s], size.prices);
  const auto scaled = [&](std::int64_t time, std::int64_t work, std::size_t now) {
    const double part = static_cast<double>(work) / static_cast<double>(before.back());
    const double share =
        static_cast<double>(size.share(now)) / static_cast<double>(size.share(plan.stages[s].replicas));
    return static_cast<std::int64_t>(static_cast<double>(time) * part * share);
  };
  PipeStage first = plan.stages[s], rest = plan.stages[s];
  std::tie(first.places, rest.places) = cut_at(plan.stages[s], places);
  first.replicas = replicas.first;
  first.time = scaled(first.time, before[places], replicas.first);
  rest.replicas = replicas.rest;
  rest.time = scaled(rest.time, before.back() - before[places], replicas.rest);
  plan.stages[s] = std::move(rest);
  plan.stages.insert(plan.stages.begin() + static_cast<std::ptrdiff_t>(s), std::move(first));
}

// Where its light beginning ends, in places; 0 where it has none, or nothing else.
std::size_t light_beginning(const PipeStage& stage, const PlacePrices& prices) {
  const std::vector<std::int64_t> before = work_before(stage, prices);
  std::size_t places = 0;
  while (places + 1 < before.size() && 100 * before[places + 1] <= kLightPercent * before.back()) ++places;
  return places + 1 < before.size() ? places : 0;
}

// The cut that divides its work most evenly, in places; 0 where all its work is in one.
std::size_t middle(const PipeStage& stage, const PlacePrices& prices) {
  const std::vector<std::int64_t> before = work_before(stage, prices);
  std::size_t best = 0;
  std::int64_t least = before.back();
  for (std::size_t cut = 1; cut + 1 < before.size(); ++cut) {
    const std::int64_t larger = std::max(before[cut], before.back() - before[cut]);
    if (larger >= least) continue;
    least = larger;
    best = cut;
  }
  return best;
}

std::size_t more_replicas(const PipeStage& stage, const PipeSize& size) {
  const auto next = std::upper_bound(size.degrees.begin(), size.degrees.end(), stage.replicas);
  return next == size.degrees.end() ? stage.replicas : *next;
}

// The largest step times of stages, each once.
std::vector<std::int64_t> slowest_times(const PipePlan& plan) {
  std::set<std::int64_t, std::greater<>> times;
  for (const PipeStage& stage : plan.stages) times.insert(stage.time);
  std::vector<std::int64_t> result(times.begin(), times.end());
  result.resize(std::min(result.size(), kSlowest));
  return result;
}

// The stages of one step time with more replicas, or cut, as far as devices go; none if nothing changed.
enum class Change { kReplicas, kCut, kReplicasShared };
std::optional<PipePlan> changed_together(const PipePlan& plan, std::int64_t time, Change change,
                                         std::size_t idle, const PipeSize& size) {
  PipePlan changed = plan;
  bool any = false;
  for (std::size_t s = 0; s < changed.stages.size(); ++s) {
    PipeStage& stage = changed.stages[s];
    if (stage.pinned || stage.time != time) continue;
    if (change == Change::kReplicas) {
      const std::size_t now = stage.replicas, next = more_replicas(stage, size);
      if (next == now || next - now > idle) continue;
      idle -= next - now;
      stage.time = stage.time / size.share(now) * size.share(next);
      stage.replicas = next;
    } else {
      const std::size_t places = middle(stage, size.prices);
      const bool shared = change == Change::kReplicasShared;
      const std::size_t replicas = shared ? stage.replicas / 2 : std::min(stage.replicas, idle);
      if (places == 0 || replicas == 0) continue;
      if (!shared) idle -= replicas;
      const std::size_t rest = stage.replicas - (shared ? replicas : 0);
      cut_stage(changed, s++, places, {replicas, rest}, size);  // both parts are done
    }
    any = true;
  }
  if (!any) return std::nullopt;
  stand_in_a_row(changed);
  return changed;
}

// The plan with fewer replicas of the stage that takes least with them: devices for the others.
std::optional<PipePlan> with_a_donor(const PipePlan& plan, const PipeSize& size) {
  std::optional<std::size_t> donor;
  std::size_t replicas = 0;
  std::int64_t least = 0;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const PipeStage& stage = plan.stages[s];
    const auto at = std::lower_bound(size.degrees.begin(), size.degrees.end(), stage.replicas);
    if (stage.pinned || at == size.degrees.begin()) continue;
    const std::int64_t time = stage.time / size.share(stage.replicas) * size.share(*(at - 1));
    if (donor && time >= least) continue;
    donor = s;
    least = time;
    replicas = *(at - 1);
  }
  if (!donor) return std::nullopt;
  PipePlan changed = plan;
  changed.stages[*donor].replicas = replicas;
  changed.stages[*donor].time = least;
  return changed;
}

void add_changes(const PipePlan& plan, const PipeSize& size, std::vector<PipePlan>& result) {
  const std::size_t idle = idle_devices(plan, size.row);
  for (const std::size_t s : idle > 0 ? joins(plan, size.prices.line()) : std::vector<std::size_t>()) {
    const std::size_t places = light_beginning(plan.stages[s], size.prices);
    if (places == 0) continue;
    PipePlan changed = plan;
    cut_stage(changed, s, places, {1, plan.stages[s].replicas}, size);
    stand_in_a_row(changed);
    result.push_back(std::move(changed));
  }
  for (const std::int64_t time : slowest_times(plan)) {
    for (const Change change : {Change::kReplicas, Change::kCut, Change::kReplicasShared}) {
      if (auto changed = changed_together(plan, time, change, idle, size))
        result.push_back(*std::move(changed));
    }
  }
}

}  // namespace

std::vector<PipePlan> neighbours(const PipePlan& plan, const PipeSize& size) {
  std::vector<PipePlan> result;
  add_changes(plan, size, result);
  if (const auto donated = with_a_donor(plan, size)) add_changes(*donated, size, result);
  return result;
}

}  // namespace espalier::internal
