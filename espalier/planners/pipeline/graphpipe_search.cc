#include "espalier/planners/pipeline/graphpipe_search.h"

#include <algorithm>
#include <utility>

#include "espalier/base/check.h"

// Problem. A tree of runs and forks, D devices in a row, a target t. Cover the tree with stages whose step
// times are at most t, on disjoint runs of devices; every stage must hold what its successors make it hold in
// flight. Minimise the samples in flight at the sources.
//
//   GraphPipe (arXiv 2406.17145, §4)            here
//   (i, k, b) of what follows the sink          After: samples in flight, micro-batch; k comes with the rule
//   (k, b) of the stage at the source           the table's size
//   d devices                                   the entry, from low to high
//   target TPS t                                most_, a step's time instead of a sample's
//   memoised in-flight count at the source      Entry::samples
//   single, series                              add_stages
//   parallel                                    add_forks, fork_table (graphpipe_forks.cc)
//   the node that two halves share              add_tails, add_fronts: one stage on both sides of a fork
//
// How we deviate. (1) One table for all numbers of devices at once. (2) A part needs at least its work / t
// devices, and at most what the rest leaves: entries outside are not looked at, which at a tight target
// leaves few. (3) A stage as long as fits t is best in its place where shorter ones cost no less: so for each
// start, number of replicas and devices one end is looked at, not all. Small parts are searched without that.
// (4) Equal branches share their tables. (5) Where devices differ, an entry names the place in the row too.
// (6) More replicas hold no less (least_held): none are added to a stage that ends all with fewer, nor to the
// same stage on both sides of a join; and no fork is planned whose place in a row is as good already.
//
// Complexity of a probe: for each table (a run, or its beginning, before one figure of samples) items ×
// devices in question × numbers of replicas.

namespace espalier::internal {
namespace {

constexpr std::int64_t kLacking = std::int64_t{1} << 40;  // work that no device does
constexpr std::size_t kCutsTried = 2;                     // of a long branch, for a joined stage

constexpr std::size_t kAnyDegree = 16;  // more replicas: powers of two, and three times as many

bool is_power_of_two(std::size_t n) {
  return (n & (n - 1)) == 0;
}

}  // namespace

PipeSize::PipeSize(PlacePrices& of_size, const std::vector<DeviceId>& devices, bool powers_of_two,
                   std::size_t most_replicas)
    : prices(of_size), row(of_size.table(), devices, of_size.micro_batches(), most_replicas) {
  const std::int64_t m = prices.micro_batches();
  std::int64_t share = 0;
  shares_.push_back(m);
  for (std::size_t r = 1; r <= row.longest_run(); ++r) {
    const auto replicas = static_cast<std::int64_t>(r);
    const std::int64_t mine = (m + replicas - 1) / replicas;
    const bool round = r <= kAnyDegree || is_power_of_two(r) || (r % 3 == 0 && is_power_of_two(r / 3));
    if (powers_of_two ? is_power_of_two(r) && m % replicas == 0 : mine != share && round)
      degrees.push_back(r);
    share = mine;
    shares_.push_back(mine);
  }
  if (row.longest_run() == 0) shares_.push_back(m);  // a pinned stage
}

std::int64_t PipePlan::estimate() const {
  std::int64_t most = 0;
  for (const PipeStage& stage : stages) most = std::max(most, stage.time - stage.micro_batch_time);
  return std::max(bottleneck, most + latency);
}

PipeSearch::PipeSearch(const PipeTree& tree, std::vector<std::unique_ptr<PipeSize>>& sizes,
                       const PipeSearchOptions& options, Context& context)
    : tree_(tree), sizes_(sizes), options_(options), context_(context), devices_(sizes.front()->row.size()) {
  const DeviceRow& row = sizes.front()->row;
  const DeviceTable& table = row.table();
  const Linearization& line = sizes.front()->prices.line();
  for (std::size_t d = 1; d < devices_; ++d) {
    alike_ = alike_ && table.class_of(row[d]) == table.class_of(row[0]) &&
             table.memory(row[d]) == table.memory(row[0]);
    const Hop& hop = table.hops()[table.hop_of(row[d - 1], row[d])];
    if (d == 1 || hop.hold(mebibytes(1)) > hop_.hold(mebibytes(1))) hop_ = hop;
  }
  for (std::size_t place = 0; place < line.size(); ++place) {
    const auto pin = line.pin(place);
    if (pin) pinned_work_before_[*pin];
  }
  has_pins_ = !pinned_work_before_.empty();
  for (auto& [device, before] : pinned_work_before_) {
    before.push_back(0);
    for (std::uint32_t place = 0; place < line.size(); ++place) {
      const std::int64_t work = line.pin(place) == device ? sizes.front()->prices.compute(
                                                                table.class_of(device), {{place, place + 1}})
                                                          : 0;
      before.push_back(before.back() + std::max<std::int64_t>(work, 0));
    }
  }
  if (!options.schedule.group.empty()) {
    group_ = *std::min_element(options.schedule.group.begin(), options.schedule.group.end());
  }
  run_prices_.resize(tree.runs.size() * sizes.size());
}

std::int64_t PipeSearch::least_possible() const {
  if (has_pins_ || devices_ == 0) return 1;
  return std::max<std::int64_t>(1, tree_.work().count() / static_cast<std::int64_t>(devices_));
}

std::optional<PipePlan> PipeSearch::probe(std::int64_t most, Prefer prefer) {
  most_ = most;
  prefer_ = prefer;
  std::optional<PipePlan> plan = best_plan();
  run_tables_.clear();  // now: many searches wait between their probes
  front_rows_.clear();
  fork_tables_.clear();
  return plan;
}

std::optional<PipePlan> PipeSearch::best_plan() {
  const RunTable& table = run_table(0, tree_.runs.front().items.size(), After());
  if (ended()) return std::nullopt;
  std::size_t best_size = 0;
  const Entry* best = nullptr;
  for (std::size_t s = 0; s < sizes_.size(); ++s) {
    const Entry& entry = at(table, 0, s, 0, devices_);
    if (entry.fits() && (!best || better(entry.samples, entry.depth, best->samples, best->depth))) {
      best = &entry;
      best_size = s;
    }
  }
  if (!best) return std::nullopt;
  PipePlan plan;
  plan.samples = best->samples;
  plan.depth = best->depth;
  plan.latency = extract(table, {.size = best_size, .devices = devices_}, 0, plan.stages);
  for (const PipeStage& stage : plan.stages) plan.bottleneck = std::max(plan.bottleneck, stage.time);
  return plan;
}

std::size_t PipeSearch::least_devices(Weight work) const {
  if (has_pins_) return 0;
  const std::int64_t whole = work.count() / most_;
  const std::int64_t least = whole + (work.count() % most_ != 0 ? 1 : 0);
  return static_cast<std::size_t>(std::min<std::int64_t>(least, 1 << 20));
}

Weight PipeSearch::work_of(std::uint32_t run, std::size_t begin, std::size_t end) const {
  Weight sum;
  for (std::size_t i = begin; i < end; ++i) sum += tree_.runs[run].items[i].work;
  return sum;
}

PipeSearch::Row PipeSearch::make_row(Weight work) const {
  Row row;
  row.low = least_devices(work);
  row.high = has_pins_ ? devices_ : most_devices(work);
  if (row.low > row.high) return row;
  row.width = row.high - row.low + 1;
  row.entries.resize(sizes_.size() * positions() * row.width);
  return row;
}

const PipeSearch::Entry& PipeSearch::at(const RunTable& table, std::size_t item, std::size_t size,
                                        std::size_t position, std::size_t devices) const {
  static const Entry kNothing;
  const Row& row = table.rows[item];
  if (row.width == 0 || devices < row.low) return kNothing;
  const std::size_t n = std::min(devices, row.high);
  return row.entries[(size * positions() + place_of(position)) * row.width + n - row.low];
}

PipeSearch::Entry* PipeSearch::cell(Row& row, std::size_t size, std::size_t position,
                                    std::size_t devices) const {
  if (row.width == 0 || devices < row.low || devices > row.high) return nullptr;
  return &row.entries[(size * positions() + position) * row.width + devices - row.low];
}

const PipeSearch::RunTable& PipeSearch::run_table(std::uint32_t run, std::size_t end, After after) {
  std::unique_ptr<RunTable>& known = run_tables_[{run, end, after}];
  if (known) return *known;
  known = std::make_unique<RunTable>();
  RunTable& table = *known;
  table.run = run;
  table.end = end;
  table.after = after;
  table.rows.resize(end);
  Weight work;
  for (std::size_t item = end; item-- > 0 && !ended();) {
    work += tree_.runs[run].items[item].work;
    table.rows[item] = make_row(work);
    Row& row = table.rows[item];
    if (row.width == 0) continue;  // with what the others need at least; a stage with some of them may fit
    add_stages(table, item);
    if (has_pins_) add_pinned_stages(table, item);
    if (tree_.runs[run].items[item].fork) {
      add_forks(table, row, item, Cuts());
    } else {
      add_fronts(table, item);
    }
    leave_devices_out(row);
  }
  return table;
}

// More devices are never worse: one at either end of the run may stay idle.
void PipeSearch::leave_devices_out(Row& row) const {
  for (std::size_t n = row.low + 1; n <= row.high; ++n) {
    for (std::size_t s = 0; s < sizes_.size(); ++s) {
      for (std::size_t p = 0; p < positions(); ++p) {
        if (n > room(p)) continue;
        Entry& entry = *cell(row, s, p, n);
        const Entry last = *cell(row, s, p, n - 1);
        if (last.fits() && improves(last.samples, last.depth, entry)) {
          entry = last;
          entry.step = Step::kLeaveLast;
        }
        if (alike_) continue;
        const Entry first = *cell(row, s, p + 1, n - 1);
        if (first.fits() && improves(first.samples, first.depth, entry)) {
          entry = first;
          entry.step = Step::kLeaveFirst;
        }
      }
    }
  }
}

std::int64_t PipeSearch::in_flight(std::size_t size, std::size_t replicas, std::int64_t next_samples,
                                   std::size_t next_size) const {
  const std::int64_t b = sizes_[size]->samples();
  const auto r = static_cast<std::int64_t>(replicas);
  const std::int64_t share = sizes_[size]->share(replicas);
  const std::int64_t b_next = sizes_[next_size]->samples();
  if (next_samples > 0 && b != b_next && b % b_next != 0 && b_next % b != 0) return 0;
  if (options_.schedule.kind == ScheduleKind::kGPipe) return share;
  if (next_samples == 0) return std::min(share, group_);
  return std::min(share, std::max(group_, in_flight_before(r, group_, b, next_samples, b_next)));
}

bool PipeSearch::may_stand(const StageNeeds& needs, std::size_t size, std::size_t replicas,
                           std::uint32_t run_class, std::int64_t in_flight) const {
  if (in_flight < 1 || needs.pin.torn || needs.pin.device) return false;
  const Problem& problem = sizes_[size]->prices.line().problem();
  if (replicas > 1 && needs.writes_buffers && problem.written_buffers == WrittenBuffers::kOneReplica) {
    return false;
  }
  return fits(needs.memory.memory(in_flight), sizes_[size]->row.classes()[run_class].memory);
}

PipeSearch::RunPrices& PipeSearch::prices_of(std::uint32_t run, std::size_t size) {
  RunPrices& prices = run_prices_[run * sizes_.size() + size];
  if (!prices.needs.empty()) return prices;
  const std::size_t ranges = (tree_.runs[run].items.size() + 1) * (tree_.runs[run].items.size() + 1);
  prices.needs.assign(ranges, nullptr);
  return prices;
}

const StageNeeds& PipeSearch::needs(std::uint32_t run, std::size_t size, std::size_t begin, std::size_t end) {
  const std::size_t items = tree_.runs[run].items.size();
  const StageNeeds*& known = prices_of(run, size).needs[begin * (items + 1) + end];
  if (!known) known = &sizes_[size]->prices.needs(tree_.places(run, begin, end));
  return *known;
}

std::int64_t PipeSearch::time(std::uint32_t run, std::size_t size, std::size_t begin, std::size_t end,
                              std::uint32_t run_class) {
  RunPrices& prices = prices_of(run, size);
  const std::size_t items = tree_.runs[run].items.size(), classes = sizes_[size]->row.classes().size();
  // Rows of many equal devices have many classes of runs, but few of them at one place.
  const std::size_t slots = alike_ ? sizes_[size]->degrees.size() : classes;
  if (prices.times.empty()) prices.times.assign((items + 1) * (items + 1) * slots, kUnknown);
  std::size_t slot = run_class;
  if (alike_) {
    const auto replicas = static_cast<std::size_t>(sizes_[size]->row.classes()[run_class].replicas);
    const std::vector<std::size_t>& degrees = sizes_[size]->degrees;
    slot = static_cast<std::size_t>(std::lower_bound(degrees.begin(), degrees.end(), replicas) -
                                    degrees.begin());
  }
  std::int64_t& known = prices.times[(begin * (items + 1) + end) * slots + slot];
  if (known == kUnknown) known = time(needs(run, size, begin, end), size, run_class);
  return known;
}

std::int64_t PipeSearch::time(const StageNeeds& needs, std::size_t size, std::uint32_t run_class) {
  const auto [at, fresh] = other_times_.try_emplace({&needs, run_class}, kNever);
  if (!fresh) return at->second;
  const PipeSize& of = *sizes_[size];
  const auto time = of.prices.step_time(needs, of.row.classes()[run_class], hop_);
  if (!time) return kNever;
  times_.push_back(*time);
  return at->second = *time;
}

std::int64_t PipeSearch::pinned_time(const PlaceRanges& places, const StageNeeds& needs, std::size_t size) {
  PipeSize& of = *sizes_[size];
  const std::vector<std::int64_t>& before = pinned_work_before_.at(*needs.pin.device);
  std::int64_t elsewhere = before.back();
  for (const Places& each : places) elsewhere -= before[each.end] - before[each.begin];
  const std::uint32_t run_class = of.row.class_of_single(*needs.pin.device);
  const auto time = of.prices.step_time(needs, of.row.classes()[run_class], hop_,
                                        sizes_.front()->prices.micro_batches() * elsewhere);
  if (time) times_.push_back(*time);
  return time.value_or(kNever);
}

const std::vector<std::int64_t>& PipeSearch::work_before(std::uint32_t run, std::size_t size,
                                                         std::uint32_t compute_class) {
  RunPrices& prices = prices_of(run, size);
  prices.work_before.resize(sizes_[size]->row.table().classes().size());
  std::vector<std::int64_t>& before = prices.work_before[compute_class];
  if (!before.empty()) return before;
  before.push_back(0);
  for (const PipeItem& item : tree_.runs[run].items) {
    const std::int64_t work = sizes_[size]->prices.compute_alone(compute_class, item.places);
    before.push_back(before.back() + (work < 0 ? kLacking : work));
  }
  return before;
}

std::size_t PipeSearch::farthest(std::uint32_t run, std::size_t size, std::size_t begin, std::size_t end,
                                 std::uint32_t run_class) {
  const RunClass& on = sizes_[size]->row.classes()[run_class];
  const std::vector<std::int64_t>& before = work_before(run, size, on.loads.front().compute);
  const auto first = before.begin() + static_cast<std::ptrdiff_t>(begin + 1);
  const auto last = before.begin() + static_cast<std::ptrdiff_t>(end + 1);
  const auto beyond = std::partition_point(
      first, last, [&](std::int64_t sum) { return within(size, on, sum - before[begin]); });
  return static_cast<std::size_t>(beyond - before.begin()) - 1;
}

// What a stage that ends there may hold in flight: nothing if it is above the target.
std::int64_t PipeSearch::most_in_flight(const RunTable& table, const Start& start, End& end) {
  if (end.most_in_flight != kUnknown) return end.most_in_flight;
  end.most_in_flight = 0;
  if (time(table.run, start.size, start.item, end.item, start.run_class) > most_) return 0;
  const StageNeeds& of_stage = needs(table.run, start.size, start.item, end.item);
  if (!may_stand(of_stage, start.size, start.replicas, start.run_class, 1)) return 0;
  const Bytes memory = sizes_[start.size]->row.classes()[start.run_class].memory;
  return end.most_in_flight =
             options_.memory_per_mille ? of_stage.most_in_flight(usable(memory)) : kMaxMicroBatches;
}

void PipeSearch::add_stages(RunTable& table, std::size_t item) {
  const Row& row = table.rows[item];
  for (std::size_t s = 0; s < sizes_.size(); ++s) {
    wholes_.assign(positions(), kNever);
    for (const std::size_t r : sizes_[s]->degrees) {
      for (std::size_t p = 0; p < positions(); ++p) {
        const std::size_t fewest = std::max(row.low, r), most = std::min(row.high, room(p));
        if (fewest > most || least_held(s, r, table.after.samples) >= wholes_[p]) continue;
        if (!context_.take_state()) return;
        const Start start{item, s, p, r, class_of(s, p, r), fewest, most};
        ends_.clear();
        for (std::size_t j = farthest(table.run, s, item, table.end, start.run_class); j > item; --j) {
          ends_.push_back({j, kUnknown});
        }
        for (std::size_t next_size = 0; next_size < sizes_.size(); ++next_size) {
          add_ends(table, start, next_size);
        }
        if (ends_.empty() || ends_.front().item < table.end) continue;
        const std::int64_t w = in_flight(s, r, table.after.samples, table.after.size);
        if (w >= 1 && w <= ends_.front().most_in_flight) wholes_[p] = std::min(wholes_[p], held(s, r, w));
      }
    }
  }
}

// The ends of a stage for each number of devices, the last one first: all of them, or the first with which
// the rest fits. What holds less behind it holds less itself. A number with which nothing changes is left to
// leave_devices_out.
void PipeSearch::add_ends(RunTable& table, const Start& start, std::size_t next_size) {
  const bool exact = is_exact(table, start.item);
  const std::size_t r = start.replicas;
  std::size_t open = start.most - start.fewest + 1;
  done_.assign(open, 0);
  const auto close = [&](std::size_t n) {
    open -= done_[n - start.fewest] == 0 ? 1 : 0;
    done_[n - start.fewest] = 1;
  };
  for (End& end : ends_) {
    if (open == 0) return;
    if (end.item == table.end) {
      if (next_size > 0) continue;
      const Next nothing{table.after.samples, 0, table.after.size, start.fewest - r};
      if (add_stage(table, start, end, nothing, start.fewest) && !exact) return;
      continue;
    }
    const Row& next_row = table.rows[end.item];
    if (next_row.width == 0) continue;
    const std::size_t first = (next_size * positions() + place_of(start.position + r)) * next_row.width;
    const Entry* const nexts = &next_row.entries[first];  // by devices from low on
    const std::size_t from = std::max(start.fewest, r + next_row.low);
    const std::size_t to = exact ? std::min(start.most, std::max(from, r + next_row.high)) : start.most;
    for (std::size_t n = start.fewest; n < std::min(from, start.most + 1) && !exact; ++n) close(n);
    bool offered = false;  // with one device less
    for (std::size_t n = from; n <= to; ++n) {
      const bool offered_before = std::exchange(offered, done_[n - start.fewest] == 0);
      if (!offered) continue;
      const std::size_t behind = std::min(n - r, next_row.high);
      const Entry& next = nexts[behind - next_row.low];
      if (offered_before && (behind < n - r || next.step == Step::kLeaveLast)) {
        if (done_[n - start.fewest - 1] != 0) close(n);
        continue;
      }
      const bool stands =
          next.fits() && add_stage(table, start, end, {next.samples, next.depth, next_size, n - r}, n);
      if (!exact && (stands || !next.fits())) close(n);
    }
  }
}

// Whether such a stage can be, before what follows it.
bool PipeSearch::add_stage(RunTable& table, const Start& start, End& end, const Next& next, std::size_t n) {
  const std::uint32_t depth = next.depth + 1;
  Entry& entry = *cell(table.rows[start.item], start.size, start.position, n);
  if (is_exact(table, start.item) &&
      !improves(least_held(start.size, start.replicas, next.samples), depth, entry)) {
    return true;
  }
  const std::int64_t w = in_flight(start.size, start.replicas, next.samples, next.size);
  if (w < 1 || w > most_in_flight(table, start, end)) return false;
  const std::int64_t samples = held(start.size, start.replicas, w);
  if (!improves(samples, depth, entry)) return true;
  entry = {.samples = samples,
           .depth = depth,
           .behind = narrow(next.devices),
           .step = Step::kStage,
           .size = static_cast<std::uint8_t>(start.size),
           .next_size = static_cast<std::uint8_t>(end.item == table.end ? 0 : next.size),
           .replicas = static_cast<std::uint16_t>(start.replicas),
           .next = static_cast<std::uint16_t>(end.item)};
  return true;
}

// Stages with pinned operators stand on their device alone and take none of the row.
void PipeSearch::add_pinned_stages(RunTable& table, std::size_t item) {
  Row& row = table.rows[item];
  for (std::size_t s = 0; s < sizes_.size(); ++s) {
    for (std::size_t j = item + 1; j <= table.end; ++j) {
      if (!context_.take_state()) return;
      const StageNeeds& of_stage = needs(table.run, s, item, j);
      if (of_stage.pin.torn || !of_stage.pin.device) continue;
      if (pinned_time(tree_.places(table.run, item, j), of_stage, s) > most_) continue;
      const Bytes memory = sizes_[s]->row.table().memory(*of_stage.pin.device);
      for (std::size_t p = 0; p < positions(); ++p) {
        for (std::size_t n = row.low; n <= std::min(row.high, room(p)); ++n) {
          for (std::size_t next_size = 0; next_size < sizes_.size(); ++next_size) {
            const bool ends = j == table.end;
            if (ends && next_size > 0) break;
            std::int64_t samples = table.after.samples;
            std::uint32_t depth = 1;
            if (!ends) {
              const Entry& next = at(table, j, next_size, p, n);
              if (!next.fits()) continue;
              samples = next.samples;
              depth += next.depth;
            }
            const std::int64_t w = in_flight(s, 1, samples, ends ? table.after.size : next_size);
            Entry& entry = *cell(row, s, p, n);
            if (w < 1 || !fits(of_stage.memory.memory(w), memory)) continue;
            if (!improves(held(s, 1, w), depth, entry)) continue;
            entry = {.samples = held(s, 1, w),
                     .depth = depth,
                     .behind = narrow(n),
                     .step = Step::kStage,
                     .size = static_cast<std::uint8_t>(s),
                     .next_size = static_cast<std::uint8_t>(next_size),
                     .replicas = 0,
                     .next = static_cast<std::uint16_t>(j)};
          }
        }
      }
    }
  }
}

std::vector<PipeSearch::NextValue> PipeSearch::nexts(const RunTable& table, std::size_t item,
                                                     std::size_t position) const {
  std::vector<NextValue> values;
  if (item == table.end) return {{table.after.samples, 0, 0, table.after.size}};
  const Row& row = table.rows[item];
  if (row.width == 0 || position > devices_) return values;
  for (std::size_t s = 0; s < sizes_.size(); ++s) {
    const Entry* last = nullptr;
    for (std::size_t n = row.low; n <= std::min(row.high, room(position)); ++n) {
      const Entry& entry = at(table, item, s, position, n);
      if (!entry.fits()) continue;
      if (last && last->samples == entry.samples && last->depth == entry.depth) continue;
      last = &entry;
      values.push_back({entry.samples, entry.depth, narrow(n), static_cast<std::uint8_t>(s)});
    }
  }
  return values;
}

// What precedes a fork and the beginning of one of its branches as one stage.
void PipeSearch::add_fronts(RunTable& table, std::size_t item) {
  const PipeRun& run = tree_.runs[table.run];
  std::size_t fork_item = item;
  while (fork_item < table.end && !run.items[fork_item].fork) ++fork_item;
  if (fork_item == table.end) return;
  Row& row = table.rows[item];
  const std::uint32_t fork = *run.items[fork_item].fork;
  const PlaceRanges before = tree_.places(table.run, item, fork_item);
  for (const std::uint16_t branch : branches_to_join(fork)) {
    const std::uint32_t actual = tree_.forks[fork].branches[branch];
    for (std::size_t s = 0; s < sizes_.size(); ++s) {
      for (const std::size_t r : sizes_[s]->degrees) {
        for (std::size_t p = 0; p < positions(); ++p) {
          if (r > room(p)) continue;
          const std::uint32_t run_class = class_of(s, p, r);
          for (const std::uint16_t cut : front_cuts(actual, s, run_class, before)) {
            if (!context_.take_state()) return;
            PlaceRanges places = before;
            for (const Places& each : tree_.places(actual, 0, cut)) append_places(places, each);
            const StageNeeds& of_stage = sizes_[s]->prices.needs(places);
            if (time(of_stage, s, run_class) > most_) continue;
            const Row& behind = front_row(table, fork_item, branch, cut);
            if (behind.width == 0) continue;
            for (std::size_t n = std::max(row.low, r + behind.low); n <= std::min(row.high, room(p)); ++n) {
              for (std::size_t next_size = 0; next_size < sizes_.size(); ++next_size) {
                const Entry& next =
                    behind.entries[(next_size * positions() + place_of(p + r)) * behind.width +
                                   std::min(n - r, behind.high) - behind.low];
                if (!next.fits()) continue;
                const std::int64_t w = in_flight(s, r, next.samples, next_size);
                Entry& entry = *cell(row, s, p, n);
                if (w < 1 || !improves(held(s, r, w), next.depth + 1, entry)) continue;
                if (!may_stand(of_stage, s, r, run_class, w)) continue;
                entry = {.samples = held(s, r, w),
                         .depth = next.depth + 1,
                         .behind = narrow(n - r),
                         .step = Step::kForkFront,
                         .size = static_cast<std::uint8_t>(s),
                         .next_size = static_cast<std::uint8_t>(next_size),
                         .replicas = static_cast<std::uint16_t>(r),
                         .next = static_cast<std::uint16_t>(fork_item),
                         .branch = branch,
                         .cut = cut};
              }
            }
          }
        }
      }
    }
  }
}

// A fork without the beginning of one branch, and all that follows it.
const PipeSearch::Row& PipeSearch::front_row(RunTable& table, std::size_t fork_item, std::uint16_t branch,
                                             std::uint16_t cut) {
  std::unique_ptr<Row>& known = front_rows_[{&table, fork_item, branch, cut}];
  if (known) return *known;
  const PipeRun& run = tree_.runs[table.run];
  Weight work = work_of(table.run, fork_item, table.end);
  work -= work_of(tree_.forks[*run.items[fork_item].fork].branches[branch], 0, cut);
  known = std::make_unique<Row>(make_row(work));
  if (known->width > 0) {
    add_forks(table, *known, fork_item, {.front = branch, .front_cut = cut});
    leave_devices_out(*known);
  }
  return *known;
}

std::vector<std::uint16_t> PipeSearch::front_cuts(std::uint32_t run, std::size_t size,
                                                  std::uint32_t run_class, const PlaceRanges& before) {
  const RunClass& on = sizes_[size]->row.classes()[run_class];
  const std::uint32_t compute = on.loads.front().compute;
  const std::vector<std::int64_t>& work = work_before(run, size, compute);
  const std::int64_t fixed = sizes_[size]->prices.compute_alone(compute, before);
  std::vector<std::uint16_t> cuts;
  if (fixed < 0) return cuts;
  for (std::size_t c = work.size() - 1; c > 0; --c) {
    if (within(size, on, fixed + work[c])) cuts.push_back(static_cast<std::uint16_t>(c));
  }
  if (work.size() > options_.exact_items + 1 && cuts.size() > kCutsTried) cuts.resize(kCutsTried);
  return cuts;
}

// Cuts behind which the end of a branch, with what follows the join, may be a stage within the target: the
// earliest first.
std::vector<PipeSearch::Tail> PipeSearch::tails(std::uint32_t run, std::uint16_t least, std::size_t size,
                                                std::uint32_t run_class, std::int64_t behind) {
  const RunClass& on = sizes_[size]->row.classes()[run_class];
  const std::vector<std::int64_t>& work = work_before(run, size, on.loads.front().compute);
  std::vector<Tail> tails;
  for (std::size_t c = least; c + 1 < work.size(); ++c) {
    if (within(size, on, behind + work.back() - work[c])) tails.push_back({static_cast<std::uint16_t>(c)});
  }
  return tails;
}

// Those of them that may be a stage with so many in flight: all, or of a long branch the first.
std::vector<std::uint16_t> PipeSearch::tail_cuts(std::vector<Tail>& tails, std::uint32_t run,
                                                 std::size_t size, std::uint32_t run_class,
                                                 const PlaceRanges& behind, std::int64_t in_flight) {
  const std::size_t items = tree_.runs[run].items.size();
  std::vector<std::uint16_t> cuts;
  for (Tail& tail : tails) {
    if (!tail.needs) {
      PlaceRanges places = tree_.places(run, tail.cut, items);
      for (const Places& each : behind) append_places(places, each);
      tail.needs = &sizes_[size]->prices.needs(places);
      tail.in_time = time(*tail.needs, size, run_class) <= most_;
    }
    if (!tail.in_time) continue;
    const auto replicas = static_cast<std::size_t>(sizes_[size]->row.classes()[run_class].replicas);
    if (!may_stand(*tail.needs, size, replicas, run_class, in_flight)) continue;
    cuts.push_back(tail.cut);
    if (items > options_.exact_items) break;
  }
  return cuts;
}

}  // namespace espalier::internal
