#include <algorithm>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/planners/pipeline/graphpipe_search.h"

// From tables to stages: each entry says its first step, and which entry is behind it.

namespace espalier::internal {

PipeStage PipeSearch::stage_of(PlaceRanges places, std::size_t size, std::size_t position,
                               std::size_t replicas) {
  PipeSize& of = *sizes_[size];
  const StageNeeds& of_stage = of.prices.needs(places);
  PipeStage stage;
  stage.size = size;
  stage.begin = position;
  stage.replicas = replicas;
  std::uint32_t run_class = 0;
  if (replicas == 0) {
    ESP_CHECK(of_stage.pin.device.has_value());
    stage.pinned = of_stage.pin.device;
    run_class = of.row.class_of_single(*stage.pinned);
    stage.time = pinned_time(places, of_stage, size);
  } else {
    run_class = class_of(size, place_of(position), replicas);
    stage.time = time(of_stage, size, run_class);
  }
  stage.micro_batch_time = of.prices.micro_batch_time(of_stage, of.row.classes()[run_class]);
  stage.places = std::move(places);
  return stage;
}

std::int64_t PipeSearch::extract(const RunTable& table, const Spot& spot, std::int64_t behind,
                                 std::vector<PipeStage>& stages) {
  if (spot.item == table.end) return behind;
  Spot here = spot;
  here.devices = std::min(here.devices, table.rows[here.item].high);
  while (true) {
    const Entry& entry = at(table, here.item, here.size, here.position, here.devices);
    ESP_CHECK(entry.fits(), here.item, here.devices);
    if (entry.step != Step::kLeaveLast && entry.step != Step::kLeaveFirst) {
      return extract_step(table, here, entry, Cuts(), behind, stages);
    }
    if (entry.step == Step::kLeaveFirst) ++here.position;
    --here.devices;
  }
}

std::int64_t PipeSearch::extract_step(const RunTable& table, const Spot& spot, const Entry& entry, Cuts cuts,
                                      std::int64_t behind, std::vector<PipeStage>& stages) {
  const PipeItem& own = tree_.runs[spot.actual].items[spot.item];
  const std::size_t r = entry.replicas;
  if (entry.step == Step::kStage) {
    PipeStage stage = stage_of(tree_.places(spot.actual, spot.item, entry.next), spot.size, spot.position, r);
    const std::int64_t time = stage.micro_batch_time;
    stages.push_back(std::move(stage));
    return time + extract(table, {spot.actual, entry.next, entry.next_size, spot.position + r, entry.behind},
                          behind, stages);
  }
  if (entry.step == Step::kForkFront) {
    const std::uint32_t fork = *tree_.runs[spot.actual].items[entry.next].fork;
    PlaceRanges places = tree_.places(spot.actual, spot.item, entry.next);
    for (const Places& each : tree_.places(tree_.forks[fork].branches[entry.branch], 0, entry.cut)) {
      append_places(places, each);
    }
    PipeStage stage = stage_of(std::move(places), spot.size, spot.position, r);
    const std::int64_t time = stage.micro_batch_time;
    stages.push_back(std::move(stage));
    const Row& row = *front_rows_.at({&table, entry.next, entry.branch, entry.cut});
    Spot next{spot.actual, entry.next, entry.next_size, spot.position + r,
              std::min<std::size_t>(entry.behind, row.high)};
    const Cuts front{.front = entry.branch, .front_cut = entry.cut};
    while (true) {
      const Entry& step = row.entries[(next.size * positions() + place_of(next.position)) * row.width +
                                      next.devices - row.low];
      ESP_CHECK(step.fits(), next.devices);
      if (step.step != Step::kLeaveLast && step.step != Step::kLeaveFirst) {
        return time + extract_step(table, next, step, front, behind, stages);
      }
      if (step.step == Step::kLeaveFirst) ++next.position;
      --next.devices;
    }
  }
  ESP_CHECK(entry.step == Step::kFork || entry.step == Step::kForkTail);
  // What stands behind the fork comes last, but says what holds before it.
  const std::size_t before = spot.devices - entry.behind;
  const std::size_t next_devices = entry.behind - r;
  After after = table.after;
  if (entry.next < table.end) {
    after = {at(table, entry.next, entry.next_size, spot.position + before + r, next_devices).samples,
             entry.next_size};
  }
  std::vector<PipeStage> rest;
  std::int64_t latency =
      extract(table, {spot.actual, entry.next, entry.next_size, spot.position + before + r, next_devices},
              behind, rest);
  if (entry.step == Step::kForkTail) {
    const std::int64_t w = in_flight(entry.size, r, after.samples, after.size);
    after = {held(entry.size, r, w), entry.size};
    cuts.tail = entry.branch;
    cuts.tail_cut = entry.cut;
    const std::uint32_t branch = tree_.forks[*own.fork].branches[entry.branch];
    PlaceRanges places = tree_.places(branch, entry.cut, tree_.runs[branch].items.size());
    for (const Places& each : tree_.places(spot.actual, spot.item + 1, entry.next)) {
      append_places(places, each);
    }
    PipeStage stage = stage_of(std::move(places), entry.size, spot.position + before, r);
    latency += stage.micro_batch_time;
    rest.insert(rest.begin(), std::move(stage));
  }
  const std::uint32_t fork = *tree_.runs[table.run].items[spot.item].fork;
  const ForkTable& of_fork = *fork_tables_.at({fork, cuts, after, spot.size});
  Spot front = spot;
  front.devices = before;
  const std::int64_t whole = extract_fork(of_fork, *own.fork, after, front, latency, stages);
  stages.insert(stages.end(), std::make_move_iterator(rest.begin()), std::make_move_iterator(rest.end()));
  return whole;
}

std::int64_t PipeSearch::extract_fork(const ForkTable& fork, std::uint32_t actual_fork, After after,
                                      const Spot& spot, std::int64_t behind, std::vector<PipeStage>& stages) {
  const PipeFork& actual_of = tree_.forks[actual_fork];
  std::size_t position = spot.position, devices = std::min(spot.devices, fork.high);
  std::int64_t heaviest = behind;
  for (std::size_t state = 0; state + 1 < fork.shape->states();) {
    const ForkEntry& entry = fork.entries[fork_cell(fork, state, position, devices)];
    ESP_CHECK(entry.samples >= 0, state, devices);
    const ForkShape::Transition& way = fork.shape->ways[state][entry.transition];
    const RunTable& run = *run_tables_.at({way.run, way.end, after});
    std::vector<std::uint16_t> members;
    for (const std::uint16_t member : way.members) members.push_back(fork.shape->segments[member].branch);
    const std::uint32_t actual =
        members.size() == 1 ? actual_of.branches[members.front()] : actual_of.groups.at(members);
    heaviest = std::max(
        heaviest, extract(run, {actual, way.begin, spot.size, position, entry.devices}, behind, stages));
    position += entry.devices;
    devices -= std::min<std::size_t>(devices, entry.devices);
    state = way.to;
  }
  return heaviest;
}

}  // namespace espalier::internal
