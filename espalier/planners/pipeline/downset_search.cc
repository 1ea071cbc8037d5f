#include "espalier/planners/pipeline/downset_search.h"

#include <algorithm>
#include <set>

#include "espalier/base/check.h"
#include "espalier/planners/pipeline/capacity.h"
#include "espalier/planners/pipeline/memory_ladder.h"

//   Piper (NeurIPS'21, §4)         here
//   downset D, k devices, s = Σ d  front(D, place): what stands behind D on the devices from place on
//   time of a stage                PlacePrices::step_time, of a whole step
//   in flight ⌈Σ d / d⌉            what 1F1B needs before a rest that holds so many (docs/semantics.md)
//   largest stage, minimised       a front over (bottleneck, held, stages): memory needs the second
//   knapsack over layers' variants ways_of: pieces by bytes per time, as few as fit

namespace espalier::internal {
namespace {

constexpr std::uint64_t kStatesOfNeeds = 20;  // what measuring a stage's memory is worth, about

bool beats(const DownsetTail& a, const DownsetTail& b) {
  return a.bottleneck <= b.bottleneck && a.held <= b.held && a.stages <= b.stages &&
         (!a.pin || a.pin == b.pin);
}

}  // namespace

DownsetSearch::DownsetSearch(const Pieces& pieces, const literal::Downsets& downsets, PlacePrices& prices,
                             DeviceRow& row, const Options& options, Context& context)
    : pieces_(pieces), downsets_(downsets), prices_(prices), row_(row), options_(options), context_(context) {
  const OrderRule& schedule = options.schedule;
  if (!schedule.group.empty()) group_ = *std::min_element(schedule.group.begin(), schedule.group.end());
  const auto slower = [&](DeviceId from, DeviceId to) {
    const Hop& hop = row.table().hops()[row.table().hop_of(from, to)];
    if (hop.hold(mebibytes(1)) > hop_.hold(mebibytes(1))) hop_ = hop;
  };
  if (row.size() > 1) hop_ = row.table().hops()[row.table().hop_of(row[0], row[1])];
  for (std::size_t d = 1; d < row.size(); ++d) slower(row[d - 1], row[d]);
  prepare_pins();
  prepare_work();
  for (const auto& [pinned, work] : pinned_work_) {
    for (std::size_t other = 0; other < row.table().devices(); ++other) {
      if (pinned != DeviceId(other)) slower(pinned, DeviceId(other)), slower(DeviceId(other), pinned);
    }
  }
}

void DownsetSearch::prepare_pins() {
  pin_of_.resize(pieces_.places.size());
  for (std::size_t piece = 0; piece < pieces_.places.size(); ++piece) {
    for (const Places& each : pieces_.places[piece]) {
      for (std::uint32_t place = each.begin; place < each.end; ++place) {
        const auto pin = prices_.line().pin(place);
        if (!pin) continue;
        pin_of_[piece] = pin;
        const std::int64_t work = prices_.compute(row_.table().class_of(*pin), {{place, place + 1}});
        pinned_work_[*pin] += std::max<std::int64_t>(work, 0);
      }
    }
  }
  for (std::size_t set = 0; set < downsets_.size(); ++set) {
    std::int64_t count = 0;
    for (std::size_t piece = 0; piece < pin_of_.size(); ++piece) {
      count += pin_of_[piece] && downsets_.has(set, piece) ? 1 : 0;
    }
    pinned_pieces_.push_back(count);
  }
}

std::vector<DownsetTail> DownsetSearch::run(std::int64_t most) {
  most_ = most;
  prepare_bounds();
  fronts_.assign(downsets_.size() * (row_.size() + 1), {});
  summaries_.assign(fronts_.size(), {});
  last_open_.assign(downsets_.size(), 0);
  plain_times_.assign(row_.classes().size(), {0, stage_number_});
  for (std::size_t p = 0; p <= row_.size(); ++p) front(downsets_.size() - 1, p).push_back({});
  summarize(downsets_.size() - 1);
  std::vector<std::size_t> places;
  for (std::size_t set = downsets_.size() - 1; set-- > 0;) {
    places.clear();
    const std::size_t last_place = set == 0 ? 0 : row_.size();  // plans begin with the first device
    for (std::size_t place = 0; place <= last_place; ++place) {
      if (is_possible(set, place)) places.push_back(place);
    }
    for (std::size_t larger = set + 1; larger < downsets_.size() && !places.empty(); ++larger) {
      if (last_open_[larger] <= places.front()) continue;
      if (!literal::is_subset(downsets_.row(set), downsets_.row(larger), downsets_.words())) continue;
      if (!add_stages(set, larger, places)) return {};
    }
    summarize(set);
  }
  return front(0, 0);
}

void DownsetSearch::summarize(std::size_t set) {
  for (std::size_t place = 0; place <= row_.size(); ++place) {
    const std::vector<DownsetTail>& tails = front(set, place);
    if (tails.empty() || !is_possible(set, place)) continue;
    Summary& summary = summaries_[at(set, place)];
    summary = {tails[0].bottleneck, tails[0].held, tails[0].held, tails[0].stages, true};
    for (const DownsetTail& tail : tails) {
      summary.least_bottleneck = std::min(summary.least_bottleneck, tail.bottleneck);
      summary.least_held = std::min(summary.least_held, tail.held);
      summary.most_held = std::max(summary.most_held, tail.held);
      summary.least_stages = std::min(summary.least_stages, tail.stages);
    }
    last_open_[set] = place + 1;
  }
}

std::vector<DownsetSearch::Stage> DownsetSearch::stages_of(DownsetTail tail) {
  std::vector<Stage> stages;
  std::size_t set = 0, place = 0;
  while (tail.stages > 0) {
    Stage stage{difference(set, tail.to), {}, {}, tail.degree};
    if (tail.way > 0) stage.again = ways_of(set, tail.to, tail.degree)[tail.way];
    const std::size_t devices = tail.pin ? 0 : std::size_t{tail.replicas} * tail.degree;
    stage.devices = tail.pin ? std::vector{*tail.pin} : row_.run(place, place + devices);
    stages.push_back(std::move(stage));
    set = tail.to;
    place += devices;
    tail = DownsetTail(front(set, place)[tail.rest]);
  }
  return stages;
}

PlaceRanges DownsetSearch::difference(std::size_t small, std::size_t large) const {
  PlaceRanges places;
  for (std::size_t item = 0; item < downsets_.items(); ++item) {
    if (!downsets_.has(large, item) || downsets_.has(small, item)) continue;
    for (const Places& each : pieces_.places[item]) append_places(places, each);
  }
  return places;
}

void DownsetSearch::prepare_work() {
  const std::size_t classes = row_.table().classes().size();
  work_.assign(classes, std::vector<std::int64_t>(downsets_.size(), 0));
  lacks_.assign(classes, std::vector<std::uint32_t>(downsets_.size(), 0));
  for (std::uint32_t c = 0; c < classes; ++c) {
    for (std::size_t item = 0; item < downsets_.items(); ++item) {
      const std::int64_t work = prices_.compute_alone(c, pieces_.places[item]);
      for (std::size_t set = 0; set < downsets_.size(); ++set) {
        if (!downsets_.has(set, item)) continue;
        if (work < 0) {
          ++lacks_[c][set];
        } else {
          work_[c][set] += work;
        }
      }
    }
  }
}

// On a device alone on its host; negative where a cell is missing.
std::int64_t DownsetSearch::alone(const Candidate& stage, std::uint32_t compute) const {
  if (lacks_[compute][stage.set] != lacks_[compute][stage.larger]) return -1;
  return work_[compute][stage.larger] - work_[compute][stage.set];
}

// By what devices do alone on their hosts (capacity.h). A device that is pinned may have as many stages as
// there are pinned pieces.
void DownsetSearch::prepare_bounds() {
  const std::size_t places = row_.size() + 1;
  least_before_.assign(downsets_.size() * places, 0);
  least_behind_ = least_before_;
  if (options_.degrees.size() > 1) return;  // a group may need less than a device's share of it
  std::vector<std::vector<std::int64_t>> takes(row_.table().classes().size());
  for (std::uint32_t c = 0; c < takes.size(); ++c) {
    for (const PlaceRanges& piece : pieces_.places) takes[c].push_back(prices_.compute_alone(c, piece));
  }
  const Capacities found = capacities(takes);
  std::vector<std::int64_t> work(downsets_.size(), 0), before(1, 0);  // of a step; capacity of the row
  for (std::size_t set = 0; set < downsets_.size(); ++set) {
    for (std::size_t item = 0; item < downsets_.items(); ++item) {
      if (downsets_.has(set, item)) work[set] += prices_.micro_batches() * found.work[item];
    }
  }
  for (std::size_t d = 0; d < row_.size(); ++d) {
    before.push_back(before.back() + found.of_class[row_.table().class_of(row_[d])]);
  }
  for (std::size_t set = 0; set < downsets_.size(); ++set) {
    const std::int64_t pinned = kWholeCapacity * pinned_pieces_[set],
                       others = kWholeCapacity * pinned_pieces_.back() - pinned;
    for (std::size_t place = 0; place < places; ++place) {
      least_before_[at(set, place)] = least_time(work[set], before[place] + pinned);
      least_behind_[at(set, place)] =
          least_time(work.back() - work[set], before.back() - before[place] + others);
    }
  }
}

// Whether there can be stages on the devices before a place that do what is before a downset in time, and
// behind it likewise.
bool DownsetSearch::is_possible(std::size_t set, std::size_t place) const {
  if (options_.degrees.size() > 1) return true;
  const bool none_before = place == 0 && pinned_pieces_[set] == 0,
             none_behind = place == row_.size() && pinned_pieces_[set] == pinned_pieces_.back();
  return (!none_before || set == 0) && (!none_behind || set + 1 == downsets_.size()) &&
         least_before_[at(set, place)] <= most_ && least_behind_[at(set, place)] <= most_;
}

const RunClass& DownsetSearch::run_class(std::size_t place, std::size_t replicas, std::uint32_t degree) {
  if (degree == 1) return row_.classes()[row_.class_of(place, replicas)];
  const std::uint64_t key = (std::uint64_t{degree} << 42) + (std::uint64_t{place} << 21) + replicas;
  const auto at = group_classes_.lower_bound(key);
  if (at != group_classes_.end() && at->first == key) return at->second;
  return group_classes_.emplace_hint(at, key, class_of_groups(place, replicas, degree))->second;
}

// The i-th devices of the groups add up their gradients in a ring.
RunClass DownsetSearch::class_of_groups(std::size_t place, std::size_t replicas, std::uint32_t degree) const {
  const DeviceTable& table = row_.table();
  const auto count = static_cast<std::int64_t>(replicas);
  const std::int64_t m = prices_.micro_batches();
  RunClass run{
      .replicas = count, .share = (m + count - 1) / count, .loads = {}, .ring = {}, .memory = Bytes::max()};
  std::set<std::uint32_t> ring;
  for (std::size_t r = 0; r < replicas; ++r) {
    for (std::size_t i = 0; i < degree; ++i) {
      const DeviceId device = row_[place + r * degree + i];
      const std::uint32_t compute = table.class_of(device);
      run.memory = std::min(run.memory, table.memory(device));
      if (std::none_of(run.loads.begin(), run.loads.end(),
                       [&](const RunClass::Load& load) { return load.compute == compute; })) {
        run.loads.push_back({compute, m / count + (static_cast<std::int64_t>(r) < m % count ? 1 : 0)});
      }
      if (replicas > 1) ring.insert(table.hop_of(device, row_[place + (r + 1) % replicas * degree + i]));
    }
  }
  std::sort(run.loads.begin(), run.loads.end());
  run.ring.assign(ring.begin(), ring.end());
  return run;
}

bool DownsetSearch::add_stages(std::size_t set, std::size_t larger, const std::vector<std::size_t>& places) {
  std::optional<DeviceId> pinned;
  for (std::size_t item = 0; item < downsets_.items() && !pinned_work_.empty(); ++item) {
    const std::optional<DeviceId>& pin = pin_of_[item];
    if (!pin || !downsets_.has(larger, item) || downsets_.has(set, item)) continue;
    if (pinned && *pinned != *pin) return true;
    pinned = pin;
  }
  for (const std::uint32_t degree : options_.degrees) {
    if (pinned && degree > 1) break;
    Candidate stage{.set = set, .larger = larger, .degree = degree};
    ++stage_number_;
    if (pinned) {
      if (!add_pinned(stage, *pinned, places)) return false;
      continue;
    }
    for (const std::size_t place : places) {
      if (place < row_.size() && !add_at(stage, place)) return false;
    }
  }
  return true;
}

bool DownsetSearch::add_at(Candidate& stage, std::size_t place) {
  const std::size_t degree = stage.degree, last = last_open_[stage.larger];
  const std::size_t longest =
      std::min(static_cast<std::size_t>(prices_.micro_batches()), (row_.size() - place) / degree);
  for (std::size_t r = 1; r <= longest && place + r * degree < last; ++r) {
    if (!summary(stage.larger, place + r * degree).open) continue;
    const RunClass& on = run_class(place, r, stage.degree);
    if (degree == 1) {
      const std::int64_t work = alone(stage, on.loads.front().compute);
      if (work < 0 || on.loads.front().share * work > most_) continue;
    }
    if (!is_ready(stage)) return false;
    if (r > 1 && stage.variant.plain->writes_buffers &&
        prices_.line().problem().written_buffers == WrittenBuffers::kOneReplica) {
      break;
    }
    DownsetTail fresh;
    fresh.to = narrow(stage.larger);
    fresh.replicas = narrow(r);
    fresh.degree = stage.degree;
    const auto plain =
        degree == 1 ? plain_time_on(stage, row_.class_of(place, r)) : plain_time(stage, on, place, 0);
    if (!add_before(stage, on, place, fresh, 0, plain)) return false;
  }
  return true;
}

// On its device alone, wherever that is; it takes none of the row. Other stages there are counted by what is
// pinned; two in a row would be one.
bool DownsetSearch::add_pinned(Candidate& stage, DeviceId device, const std::vector<std::size_t>& places) {
  const RunClass on = row_.classes()[row_.class_of_single(device)];
  std::int64_t own = 0;
  for (const Places& each : difference(stage.set, stage.larger)) {
    for (std::uint32_t place = each.begin; place < each.end; ++place) {
      if (prices_.line().pin(place)) {
        own += std::max<std::int64_t>(prices_.compute(on.loads.front().compute, {{place, place + 1}}), 0);
      }
    }
  }
  const std::int64_t elsewhere = prices_.micro_batches() * (pinned_work_.at(device) - own);
  for (const std::size_t place : places) {
    if (!summary(stage.larger, place).open) continue;
    if (!is_ready(stage)) return false;
    DownsetTail fresh;
    fresh.to = narrow(stage.larger);
    fresh.replicas = 1;
    fresh.pin = device;
    const auto plain = plain_time(stage, on, place, elsewhere);
    if (!add_before(stage, on, place, fresh, elsewhere, plain)) return false;
  }
  return true;
}

bool DownsetSearch::is_ready(Candidate& stage) {
  if (!context_.take_state() || context_.stop()) return false;
  if (!stage.variant.plain) {
    stage.places = difference(stage.set, stage.larger);
    stage.variant.plain = &prices_.needs(stage.places, {.degree = stage.degree});
    stage.variant.ways = {{}};
  }
  return true;
}

std::optional<std::int64_t> DownsetSearch::time_of(Candidate& stage, std::size_t way, const RunClass& on,
                                                   std::size_t place, std::int64_t elsewhere) {
  const auto replicas = static_cast<std::size_t>(on.replicas);
  const std::int64_t group = stage.degree == 1 ? 0 : reduced(stage, way, place, replicas);
  return prices_.step_time(needs(stage, way), on, hop_, elsewhere + on.share * group);
}

std::optional<std::int64_t> DownsetSearch::plain_time(Candidate& stage, const RunClass& on, std::size_t place,
                                                      std::int64_t elsewhere) {
  const auto cannot = [&](const RunClass::Load& load) {
    return stage.variant.plain->compute[load.compute] < 0;
  };
  if (std::any_of(on.loads.begin(), on.loads.end(), cannot)) return std::nullopt;
  return time_of(stage, 0, on, place, elsewhere);
}

std::optional<std::int64_t> DownsetSearch::plain_time_on(Candidate& stage, std::uint32_t run_class) {
  auto& [time, number] = plain_times_[run_class];
  if (number != stage_number_) {
    number = stage_number_;
    time = plain_time(stage, row_.classes()[run_class], 0, 0).value_or(-1);
  }
  return time < 0 ? std::nullopt : std::optional(time);
}

bool DownsetSearch::add_before(Candidate& stage, const RunClass& on, std::size_t place, DownsetTail fresh,
                               std::int64_t elsewhere, std::optional<std::int64_t> plain) {
  if (!plain || *plain > most_) return true;
  const std::size_t end = fresh.pin ? place : place + std::size_t{fresh.replicas} * fresh.degree;
  const std::vector<DownsetTail>& behind = front(stage.larger, end);
  const Summary& all = summary(stage.larger, end);
  const Bytes memory = percent_of(on.memory, options_.memory_percent);
  // A bottleneck below that counts as that: so most ways to go on are alike, and one of them is kept.
  const std::int64_t least = std::max(*plain, least_before_[at(stage.set, place)]);
  // None is new where some answer is as good as any could be, and nothing is to be computed again.
  fresh.bottleneck = std::max(least, all.least_bottleneck);
  fresh.held = on.replicas * in_flight(on, all.least_stages, all.least_held);
  fresh.stages = all.least_stages + 1;
  const auto& known = front(stage.set, place);
  if (stage.variant.plain->memory.memory(in_flight(on, all.least_stages, all.most_held)) <= memory &&
      std::any_of(known.begin(), known.end(), [&](const DownsetTail& each) { return beats(each, fresh); })) {
    return true;
  }
  for (std::size_t rest = 0; rest < behind.size(); ++rest) {
    const DownsetTail& next = behind[rest];
    if (fresh.pin && next.pin == fresh.pin) continue;
    const std::int64_t w = in_flight(on, next.stages, next.held);
    const auto way = way_for(stage, memory, w);
    if (context_.budget_spent) return false;
    if (!way) continue;
    const auto time = *way == 0 ? plain : time_of(stage, *way, on, place, elsewhere);
    if (!time || *time > most_) continue;
    fresh.bottleneck = std::max({*time, next.bottleneck, least_before_[at(stage.set, place)]});
    fresh.held = on.replicas * w;
    fresh.stages = next.stages + 1;
    fresh.way = *way;
    fresh.rest = narrow(rest);
    add(fresh, front(stage.set, place));
  }
  return true;
}

const StageNeeds& DownsetSearch::needs(Candidate& stage, std::size_t way) {
  Variant& variant = stage.variant;
  if (way == 0) return *variant.plain;
  variant.needs.resize(variant.ways.size());
  if (!variant.needs[way]) {
    context_.take_states(kStatesOfNeeds);
    variant.needs[way] = &prices_.needs(stage.places, {.degree = stage.degree, .again = variant.ways[way]});
  }
  return *variant.needs[way];
}

// What is computed again takes longer and longer, and is taken to need less and less.
std::optional<std::uint32_t> DownsetSearch::way_for(Candidate& stage, Bytes memory, std::int64_t in_flight) {
  if (stage.variant.plain->memory.memory(in_flight) <= memory) return 0;
  if (options_.recompute == PiperOptions::Recompute::kNever) return std::nullopt;
  std::vector<PlaceRanges>& ways = stage.variant.ways;
  if (ways.size() == 1) {
    if (!context_.take_state()) return std::nullopt;
    ways = ways_of(stage.set, stage.larger, stage.degree);
  }
  const auto fits = [&](std::size_t way) { return needs(stage, way).memory.memory(in_flight) <= memory; };
  std::size_t first = 1, last = ways.size() - 1;
  if (!fits(last)) return std::nullopt;
  while (first < last) {
    const std::size_t middle = (first + last) / 2;
    if (fits(middle)) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return narrow(last);
}

// Nothing, one piece, two … in the order of bytes freed per time, all of it.
std::vector<PlaceRanges> DownsetSearch::ways_of(std::size_t set, std::size_t larger, std::uint32_t degree) {
  std::vector<PlaceRanges> ways{{}};
  const PlaceRanges all = difference(set, larger);
  if (options_.recompute == PiperOptions::Recompute::kPieces) {
    PlaceRanges again;
    for (const Worth& worth : worth_repeating(degree)) {
      if (!downsets_.has(larger, worth.piece) || downsets_.has(set, worth.piece)) continue;
      for (const Places& each : pieces_.places[worth.piece]) append_places(again, each);
      if (again != all) ways.push_back(again);
    }
  }
  ways.push_back(all);
  return ways;
}

// Those that free anything.
const std::vector<DownsetSearch::Worth>& DownsetSearch::worth_repeating(std::uint32_t degree) {
  __extension__ using Wide = __int128;
  const auto [at, fresh] = worth_repeating_.try_emplace(degree);
  std::vector<Worth>& pieces = at->second;
  if (!fresh) return pieces;
  for (std::uint32_t item = 0; item < downsets_.items(); ++item) {
    const PlaceRanges& places = pieces_.places[item];
    const StageNeeds& plain = prices_.needs(places, {.degree = degree});
    const StageNeeds& again = prices_.needs(places, {.degree = degree, .again = places});
    const std::int64_t bytes = (plain.memory.per_in_flight - again.memory.per_in_flight).count();
    std::int64_t time = 1;
    for (std::size_t c = 0; c < plain.compute.size(); ++c) {
      if (plain.compute[c] >= 0) time = std::max(time, again.compute[c] - plain.compute[c]);
    }
    if (bytes > 0) pieces.push_back({item, bytes, time});
  }
  std::stable_sort(pieces.begin(), pieces.end(), [](const Worth& a, const Worth& b) {
    return static_cast<Wide>(a.bytes) * b.time > static_cast<Wide>(b.bytes) * a.time;
  });
  return pieces;
}

// Of one micro-batch, on the slowest group.
std::int64_t DownsetSearch::reduced(const Candidate& stage, std::size_t way, std::size_t place,
                                    std::size_t replicas) {
  std::int64_t most = 0;
  const StageWay how{.degree = stage.degree, .again = stage.variant.ways[way]};
  for (std::size_t r = 0; r < replicas; ++r) {
    const std::size_t begin = place + r * stage.degree;
    most = std::max(most, prices_.collectives(stage.places, how, row_.run(begin, begin + stage.degree)));
  }
  return most;
}

std::int64_t DownsetSearch::in_flight(const RunClass& on, std::uint32_t stages, std::int64_t held) const {
  if (options_.schedule.kind == ScheduleKind::kGPipe) return on.share;
  return on.in_flight(group_, stages, held);
}

void DownsetSearch::add(const DownsetTail& fresh, std::vector<DownsetTail>& front) {
  if (std::any_of(front.begin(), front.end(), [&](const DownsetTail& each) { return beats(each, fresh); }))
    return;
  std::erase_if(front, [&](const DownsetTail& each) { return beats(fresh, each); });
  front.push_back(fresh);
}

}  // namespace espalier::internal
