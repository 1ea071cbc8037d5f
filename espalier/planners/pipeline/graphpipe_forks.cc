#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "espalier/base/check.h"
#include "espalier/planners/pipeline/graphpipe_search.h"

// Forks. Each branch is planned by itself, or in a group with others: whole branches one behind the other, as
// one stage or several. Devices are dealt to all of these, one after the other, so that the most samples that
// any source holds are fewest.
//
// Which branches may be a group: any, where there are at most four; else those that follow each other by
// work, heaviest first. A state says which branches are left; for each, a table says what they hold at least
// on n devices:
//
//     state 0: b1 b2 b3 ──{b1}──▶ 1: b2 b3 ──{b2}──▶ 2: b3 ──{b3}──▶ 3
//                       ────────{b1 b2}─────────────▶ 2

namespace espalier::internal {
namespace {

constexpr std::size_t kAnySubset = 4;
constexpr std::size_t kEndsTried = 4;  // of a joined stage, where many items follow the join

}  // namespace

void PipeSearch::add_segments(ForkShape& shape, std::uint32_t fork, const Cuts& cuts) const {
  const std::vector<std::uint32_t>& branches = tree_.forks[fork].branches;
  for (std::size_t each = 0; each < branches.size(); ++each) {
    const auto b = static_cast<std::uint16_t>(each);
    const std::size_t items = tree_.runs[branches[b]].items.size();
    const std::size_t begin = cuts.front == b ? cuts.front_cut : 0;
    const std::size_t end = cuts.tail == b ? cuts.tail_cut : items;
    if (begin >= end) continue;
    shape.segments.push_back(
        {b, tree_.runs[branches[b]].like, branches[b], begin, end, begin == 0 && end == items});
  }
}

// A way begins with the first segment that is left. What follows it: the segments that are left behind it.
void PipeSearch::add_transitions(ForkShape& shape, const PipeFork& fork) const {
  const std::size_t count = shape.segments.size();
  const auto way_of = [&](std::size_t to, const std::vector<std::uint16_t>& members) {
    ForkShape::Transition way{static_cast<std::uint16_t>(to), members, 0, 0, 0};
    if (members.size() == 1) {
      const ForkShape::Segment& segment = shape.segments[members.front()];
      way.run = segment.run;
      way.begin = segment.begin;
      way.end = segment.end;
      return std::optional(way);
    }
    std::vector<std::uint16_t> branches;
    for (const std::uint16_t member : members) {
      if (!shape.segments[member].whole) return std::optional<ForkShape::Transition>();
      branches.push_back(shape.segments[member].branch);
    }
    const auto group = fork.groups.find(branches);
    if (group == fork.groups.end()) return std::optional<ForkShape::Transition>();
    way.run = tree_.runs[group->second].like;
    way.end = tree_.runs[group->second].items.size();
    return std::optional(way);
  };
  const bool subsets = count <= kAnySubset;
  shape.ways.resize(subsets ? (std::size_t{1} << count) : count + 1);
  if (subsets) {  // a state is the set of segments that are done
    const std::size_t all = shape.ways.size() - 1;
    for (std::size_t done = 0; done < all; ++done) {
      std::size_t first = 0;
      while ((done >> first & 1) != 0) ++first;
      for (std::size_t more = 1; more <= all; ++more) {
        if ((more & done) != 0 || (more >> first & 1) == 0) continue;
        std::vector<std::uint16_t> members;
        for (std::size_t b = 0; b < count; ++b) {
          if ((more >> b & 1) != 0) members.push_back(static_cast<std::uint16_t>(b));
        }
        if (auto way = way_of(done | more, members)) shape.ways[done].push_back(*std::move(way));
      }
    }
    return;
  }
  for (std::size_t first = 0; first < count; ++first) {
    std::vector<std::uint16_t> members;
    for (std::size_t b = first; b < count; ++b) {
      members.push_back(static_cast<std::uint16_t>(b));
      auto way = way_of(b + 1, members);
      if (!way) break;
      shape.ways[first].push_back(*std::move(way));
    }
  }
}

const PipeSearch::ForkShape& PipeSearch::fork_shape(std::uint32_t fork, const Cuts& cuts) {
  const auto [at, fresh] = fork_shapes_.try_emplace({fork, cuts});
  ForkShape& shape = at->second;
  if (!fresh) return shape;
  add_segments(shape, fork, cuts);
  add_transitions(shape, tree_.forks[fork]);
  shape.work_left.resize(shape.states());
  for (std::size_t state = shape.states() - 1; state-- > 0;) {
    for (const ForkShape::Transition& way : shape.ways[state]) {
      Weight work = shape.work_left[way.to];
      for (const std::uint16_t member : way.members) {
        const ForkShape::Segment& segment = shape.segments[member];
        work += work_of(segment.run, segment.begin, segment.end);
      }
      shape.work_left[state] = work;
    }
  }
  shape.reached.assign(shape.states(), 0);
  shape.reached.front() = 1;
  for (std::size_t state = 0; state < shape.states(); ++state) {
    for (const ForkShape::Transition& way : shape.ways[state]) shape.reached[way.to] |= shape.reached[state];
  }
  return shape;
}

const PipeSearch::ForkTable& PipeSearch::fork_table(std::uint32_t fork, Cuts cuts, After after,
                                                    std::size_t size) {
  std::unique_ptr<ForkTable>& known = fork_tables_[{fork, cuts, after, size}];
  if (known) return *known;
  known = std::make_unique<ForkTable>();
  ForkTable& table = *known;
  table.shape = &fork_shape(fork, cuts);
  const Weight work = table.shape->work_left.front();
  table.low = least_devices(work);
  table.high = has_pins_ ? devices_ : most_devices(work);
  if (table.low > table.high) {
    table.high = 0;
    table.low = 1;
    return table;
  }
  const std::size_t states = table.shape->states(), of_state = positions() * (table.high + 1);
  table.entries.resize(states * of_state);
  for (std::size_t i = (states - 1) * of_state; i < table.entries.size(); ++i) {
    table.entries[i].samples = after.samples;
  }
  for (std::size_t state = states - 1; state-- > 0 && !ended();) {
    if (table.shape->reached[state] != 0) solve_state(table, state, after, size);
  }
  return table;
}

void PipeSearch::solve_state(ForkTable& table, std::size_t state, After after, std::size_t size) {
  for (std::size_t number = 0; number < table.shape->ways[state].size() && !ended(); ++number) {
    add_way(table, state, static_cast<std::uint16_t>(number), after, size);
  }
}

// Some devices for a branch or a group, the rest for the others.
void PipeSearch::add_way(ForkTable& table, std::size_t state, std::uint16_t number, After after,
                         std::size_t size) {
  const ForkShape::Transition& way = table.shape->ways[state][number];
  const RunTable& run = run_table(way.run, way.end, after);
  if (ended()) return;
  const Row& row = run.rows[way.begin];
  if (row.width == 0) return;
  if (alike_) {
    deal_alike(table, state, number, row, size);
  } else {
    deal_in_a_row(table, state, number, row, size);
  }
}

void PipeSearch::deal_in_a_row(ForkTable& table, std::size_t state, std::uint16_t number, const Row& row,
                               std::size_t size) const {
  const ForkShape::Transition& way = table.shape->ways[state][number];
  const std::size_t least = least_devices(table.shape->work_left[state]);
  const std::size_t least_of_others = least_devices(table.shape->work_left[way.to]);
  for (std::size_t p = 0; p < positions(); ++p) {
    const Entry* const branch = &row.entries[(size * positions() + p) * row.width];  // from row.low on
    for (std::size_t n = std::max(least, row.low + least_of_others); n <= std::min(table.high, room(p));
         ++n) {
      ForkEntry& both = table.entries[fork_cell(table, state, p, n)];
      for (std::size_t a = row.low; a <= std::min(row.high, n - least_of_others); ++a) {
        const ForkEntry& others = table.entries[fork_cell(table, way.to, p + a, n - a)];
        take_better(both, branch[a - row.low], others, a, number);
      }
    }
  }
}

void PipeSearch::take_better(ForkEntry& entry, const Entry& mine, const ForkEntry& others,
                             std::size_t devices, std::uint16_t number) const {
  if (!mine.fits() || others.samples < 0) return;
  const std::int64_t samples = std::max(mine.samples, others.samples);
  const std::uint32_t depth = std::max(mine.depth, others.depth);
  if (entry.samples >= 0 && !better(samples, depth, entry.samples, entry.depth)) return;
  entry = {samples, depth, narrow(devices), number};
}

// Both sides hold less with more devices, so the best deal is where they cross: with one device more in all,
// there or one further.
void PipeSearch::deal_alike(ForkTable& table, std::size_t state, std::uint16_t number, const Row& row,
                            std::size_t size) const {
  const ForkShape::Transition& way = table.shape->ways[state][number];
  const std::size_t least = least_devices(table.shape->work_left[state]);
  const std::size_t least_of_others = least_devices(table.shape->work_left[way.to]);
  const Entry* const branch = &row.entries[size * row.width];  // by devices from row.low on
  const ForkEntry* const rest = &table.entries[fork_cell(table, way.to, 0, 0)];
  ForkEntry* const both = &table.entries[fork_cell(table, state, 0, 0)];
  std::size_t a = row.low;
  for (std::size_t n = std::max(least, row.low + least_of_others); n <= table.high; ++n) {
    const std::size_t most = std::min(row.high, n - least_of_others);
    for (; a < most; ++a) {  // the fewest devices with which the branch is no worse than the others
      const Entry& mine = branch[a - row.low];
      const ForkEntry& others = rest[n - a];
      if (mine.fits() &&
          (others.samples < 0 || !better(others.samples, others.depth, mine.samples, mine.depth))) {
        break;
      }
    }
    take_better(both[n], branch[a - row.low], rest[n - a], a, number);
    if (a > row.low) take_better(both[n], branch[a - 1 - row.low], rest[n - a + 1], a - 1, number);
  }
}

// Puts a fork before what stands at `position` and takes `used` devices.
void PipeSearch::spread(Row& row, const ForkTable& fork, std::size_t size, std::size_t position,
                        const Entry& step, std::uint32_t depth, std::size_t used) const {
  if (fork.entries.empty()) return;
  for (std::size_t n1 = fork.low; n1 <= fork.high; ++n1) {
    if (!alike_ && n1 > position) return;
    const std::size_t p = alike_ ? 0 : position - n1, n = n1 + used;
    if (n > std::min(row.high, room(p))) {
      if (alike_) return;
      continue;
    }
    if (n < row.low) continue;
    const ForkEntry& held = fork.entries[p * (fork.high + 1) + n1];
    Entry& entry = row.entries[(size * positions() + p) * row.width + n - row.low];
    if (held.samples < 0 || !improves(held.samples, held.depth + depth, entry)) continue;
    entry = step;
    entry.samples = held.samples;
    entry.depth = held.depth + depth;
    entry.behind = narrow(used);
  }
}

// Whether a fork may, in its place of a row, before what follows: its sources hold a micro-batch more, where
// it has any.
bool PipeSearch::may_improve(const Row& row, const ForkShape& shape, std::size_t size, std::size_t position,
                             const Next& next) const {
  if (!alike_) return true;
  const bool some = !shape.segments.empty();
  const std::int64_t samples = some ? least_held(size, 1, next.samples) : next.samples;
  const std::size_t least = next.devices + least_devices(shape.work_left.front());
  for (std::size_t n = std::max(row.low, least); n <= row.high; ++n) {
    const Entry& entry = row.entries[(size * positions() + position) * row.width + n - row.low];
    if (improves(samples, next.depth + (some ? 1 : 0), entry)) return true;
  }
  return false;
}

void PipeSearch::add_forks(RunTable& table, Row& row, std::size_t item, Cuts cuts) {
  const std::uint32_t fork = *tree_.runs[table.run].items[item].fork;
  for (std::size_t q = 0; q < positions(); ++q) {
    for (const NextValue& next : nexts(table, item + 1, q)) {
      for (std::size_t s = 0; s < sizes_.size() && !ended(); ++s) {
        const ForkTable& before = fork_table(fork, cuts, {next.samples, next.size}, s);
        const Entry step{
            .step = Step::kFork, .next_size = next.size, .next = static_cast<std::uint16_t>(item + 1)};
        spread(row, before, s, q, step, next.depth, next.devices);
      }
    }
  }
  add_tails(table, row, item, cuts);
}

// One branch of each sort, a few of them; `apart`, which is cut already, is a sort of its own.
std::vector<std::uint16_t> PipeSearch::branches_to_join(std::uint32_t fork, std::uint16_t apart) const {
  const std::vector<std::uint32_t>& branches = tree_.forks[fork].branches;
  std::vector<std::uint16_t> result;
  std::vector<std::uint32_t> met;
  for (std::size_t each = 0; each < branches.size(); ++each) {
    const auto b = static_cast<std::uint16_t>(each);
    const std::uint32_t like = tree_.runs[branches[b]].like;
    if (b != apart && std::find(met.begin(), met.end(), like) != met.end()) continue;
    if (b != apart) met.push_back(like);
    result.push_back(b);
  }
  const std::size_t most = options_.most_joined_branches;
  if (result.size() > most) {  // half of them the heaviest, half the lightest
    result.erase(result.begin() + static_cast<std::ptrdiff_t>((most + 1) / 2),
                 result.end() - static_cast<std::ptrdiff_t>(most / 2));
  }
  return result;
}

// The end of one branch with what follows the join, up to some item, as one stage.
void PipeSearch::add_tails(RunTable& table, Row& row, std::size_t item, Cuts cuts) {
  const PipeRun& run = tree_.runs[table.run];
  const std::uint32_t fork = *run.items[item].fork;
  const bool exact = table.end - item <= options_.exact_items;
  const std::vector<std::uint16_t> joined = branches_to_join(fork, cuts.front);
  std::vector<std::size_t> ends;
  for (std::size_t j = item + 2; j <= table.end; ++j) {
    ends.push_back(j);
  }
  if (!exact && ends.size() > kEndsTried) {
    for (std::size_t i = 1; i < kEndsTried; ++i) ends[i] = ends[i * (ends.size() - 1) / (kEndsTried - 1)];
    ends.resize(kEndsTried);
  }
  // What such a stage holds with fewer replicas, by branch, what follows, cut; devices alike.
  std::map<std::tuple<std::uint16_t, std::size_t, std::uint16_t>, std::int64_t> fewer;
  for (const std::size_t j : ends) {
    const PlaceRanges behind = tree_.places(table.run, item + 1, j);
    for (std::size_t x = 0; x < sizes_.size(); ++x) {
      fewer.clear();
      for (const std::size_t r : sizes_[x]->degrees) {
        for (std::size_t q = 0; q < positions(); ++q) {
          if (r > room(q)) continue;
          const std::uint32_t run_class = class_of(x, q, r);
          const RunClass& on = sizes_[x]->row.classes()[run_class];
          const std::int64_t work = sizes_[x]->prices.compute_alone(on.loads.front().compute, behind);
          if (work < 0 || !within(x, on, work)) continue;
          const std::vector<NextValue> values = nexts(table, j, place_of(q + r));
          for (const std::uint16_t branch : joined) {
            if (!context_.take_state()) return;
            const std::uint32_t actual = tree_.forks[fork].branches[branch];
            const std::uint16_t least = cuts.front == branch ? cuts.front_cut : std::uint16_t{0};
            std::vector<Tail> of_branch = tails(actual, least, x, run_class, work);
            for (std::size_t v = 0; v < values.size(); ++v) {
              const NextValue& next = values[v];
              const std::int64_t w = in_flight(x, r, next.samples, next.size);
              if (w < 1 || next.devices + r > devices_) continue;
              for (const std::uint16_t cut : tail_cuts(of_branch, actual, x, run_class, behind, w)) {
                const std::int64_t holds = held(x, r, w);
                if (alike_) {
                  std::int64_t& held_by_fewer = fewer.try_emplace({branch, v, cut}, kNever).first->second;
                  if (holds >= held_by_fewer) continue;
                  held_by_fewer = holds;
                }
                Cuts both = cuts;
                both.tail = branch;
                both.tail_cut = cut;
                for (std::size_t s = 0; s < sizes_.size() && !ended(); ++s) {
                  const Next tail{holds, next.depth + 1, x, r + next.devices};
                  if (!may_improve(row, fork_shape(fork, both), s, q, tail)) continue;
                  const ForkTable& before = fork_table(fork, both, {holds, static_cast<std::uint8_t>(x)}, s);
                  const Entry step{.step = Step::kForkTail,
                                   .size = static_cast<std::uint8_t>(x),
                                   .next_size = next.size,
                                   .replicas = static_cast<std::uint16_t>(r),
                                   .next = static_cast<std::uint16_t>(j),
                                   .branch = branch,
                                   .cut = cut};
                  spread(row, before, s, q, step, tail.depth, tail.devices);
                }
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace espalier::internal
