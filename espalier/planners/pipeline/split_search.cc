#include "espalier/planners/pipeline/split_search.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/planners/pipeline/capacity.h"
#include "espalier/planners/pipeline/memory_ladder.h"

// Problem. Cuts 0 … C of a chain, devices 0 … D-1 in a row, m micro-batches. Cut the chain into contiguous
// stages, give each a run of devices, or the device that it is pinned to; minimise the largest time per step.
//
//   PipeDream (SOSP'19, §3.1)        here
//   A(j, m), best for 1…j on m       runs_from_[i][d], pinned_from_[i][d]: answers for what is behind cut i
//   T(i→j, m), stage time            stage_time
//   2·a_i/B, activation traffic      link_holds_ × share, a term of the maximum of its own
//
// How we deviate. (1) From the end to the start, because the in-flight count of a stage, hence its memory,
// depends on what follows it (docs/semantics.md, in-flight): with r replicas before a rest that holds s
// micro-batches, w = ⌈(r + s)/r⌉. (2) Each state keeps all answers that are not worse in all of (bottleneck,
// stages, s). (3) Devices may differ, runs follow the row, and devices may be left out: so a state names the
// device where its first stage begins, and what may follow a device (`after_run_`) remembers the link there.
// (4) Weights are not stashed; the all-reduce is paid once per step. (5) Skip tensors are charged at every
// cut they cross, though they travel once. (6) Pinned stages take no device of the row.
//
// What makes it fast: stage times by class of runs, not by run; and bounds. A bottleneck below what the work
// before a state needs on the devices before it counts as that much, so most answers of a state are equal and
// one of them is kept; a state that needs more than splits known before is left out. Both keep what is best.

namespace espalier::internal {
namespace {

// On a thousand devices a state has thousands of answers: these count as states too.
constexpr std::uint64_t kComparedForAState = 128;

}  // namespace

SplitSearch::SplitSearch(const Chain& chain, DeviceRow& row, const SplitOptions& options, Context& context)
    : chain_(chain),
      row_(row),
      options_(options),
      context_(context),
      micro_batches_(row.micro_batches()),
      links_(1) {
  if (!options.schedule.group.empty()) {
    group_ = *std::min_element(options.schedule.group.begin(), options.schedule.group.end());
  }
  std::set<DeviceId> pinned;
  for (std::size_t b = 0; b < chain.blocks(); ++b) {
    torn_ = torn_ || chain.pin(b).torn;
    if (chain.pin(b).device) pinned.insert(*chain.pin(b).device);
  }
  pinned_.assign(pinned.begin(), pinned.end());
  for (const DeviceId device : pinned_) pinned_class_.push_back(row.class_of_single(device));
  std::vector<Bytes> memories;
  for (const RunClass& run : row.classes()) {
    const auto at = std::find(memories.begin(), memories.end(), run.memory);
    memory_of_.push_back(narrow(static_cast<std::size_t>(at - memories.begin())));
    if (at == memories.end()) memories.push_back(run.memory);
  }
  memories_ = memories.size();
  for (std::size_t from = 0; from < row.size(); ++from) {
    for (std::size_t to = 0; to < row.size(); ++to) row_links_.push_back(link(row[from], row[to]));
    for (const DeviceId to : pinned_) links_to_pin_.push_back(link(row[from], to));
  }
  for (const DeviceId from : pinned_) {
    for (std::size_t to = 0; to < row.size(); ++to) pin_links_.push_back(link(from, row[to]));
    for (const DeviceId to : pinned_) pin_to_pin_links_.push_back(link(from, to));
  }
  for (std::size_t d = 0; d + 1 < row.size(); ++d) {
    const auto links = [&](std::size_t of) {
      return row_links_.begin() + static_cast<std::ptrdiff_t>(of * row.size());
    };
    const auto pins = [&](std::size_t of) {
      return links_to_pin_.begin() + static_cast<std::ptrdiff_t>(of * pinned_.size());
    };
    const auto behind = static_cast<std::ptrdiff_t>(d + 2), all = static_cast<std::ptrdiff_t>(row.size());
    links_repeat_.push_back(
        (behind >= all || std::equal(links(d) + behind, links(d) + all, links(d + 1) + behind)) &&
        std::equal(pins(d), pins(d + 1), pins(d + 1)));
  }
}

std::uint16_t SplitSearch::link(DeviceId from, DeviceId to) {
  const Link wanted{row_.table().hop_of(from, to), row_.table().hop_of(to, from)};
  const auto place =
      static_cast<std::size_t>(std::find(links_.begin() + 1, links_.end(), wanted) - links_.begin());
  if (place == links_.size()) links_.push_back(wanted);
  return static_cast<std::uint16_t>(place);
}

void SplitSearch::prepare(std::vector<std::size_t> cuts, const std::vector<ChainSplit>& known) {
  cuts_ = std::move(cuts);
  ESP_CHECK(cuts_.size() >= 2 && last_cut() < 0xffff && row_.size() < 0xffff, cuts_.size(), row_.size());
  limits_.assign(last_cut() + 2, options_.limit.count());
  const bool least = options_.keep == SplitOptions::Keep::kLeastBottleneck;
  for (const ChainSplit& split : known) {
    for (std::size_t s = least ? 0 : split.stages.size(); s < limits_.size(); ++s) {
      limits_[s] = std::min(limits_[s], split.bottleneck.count());
    }
  }
  answers_.clear();
  rests_.clear();
  rest_groups_.clear();
  rest_bottlenecks_.clear();
  const std::size_t states = (last_cut() + 1) * (row_.size() + 1);
  for (auto* lists : {&runs_from_, &pinned_from_}) lists->assign(states, List());
  for (auto* lists : {&after_run_, &after_pinned_}) lists->assign(states, RestList());
  first_rest_.assign(row_.size() + 1, last_cut());
  times_.resize(row_.classes().size() * cuts_.size());
  times_of_.assign(row_.classes().size(), last_cut());
  too_long_.resize(row_.classes().size());
  in_flight_.resize(memories_ * cuts_.size());
  in_flight_of_.assign(memories_, last_cut());
  prepare_pins();
  prepare_costs();
  prepare_bounds();
}

void SplitSearch::prepare_pins() {
  const std::size_t n = last_cut();
  pin_of_.assign(n, std::nullopt);
  next_pinned_.assign(n + 1, n);
  pin_before_.assign(n + 1, std::nullopt);
  pinned_work_.assign(pinned_.size(), std::vector<Time>(n + 1, 0));
  for (std::size_t c = 0; c < n; ++c) {
    for (std::size_t b = cuts_[c]; b < cuts_[c + 1]; ++b) {
      if (!chain_.pin(b).device) continue;
      const auto at = std::lower_bound(pinned_.begin(), pinned_.end(), *chain_.pin(b).device);
      const auto mine = static_cast<std::size_t>(at - pinned_.begin());
      torn_ = torn_ || (pin_of_[c] && *pin_of_[c] != mine);
      pin_of_[c] = mine;
      const std::uint32_t compute = row_.classes()[pinned_class_[mine]].loads.front().compute;
      const ComputeClass& of = row_.table().classes()[compute];
      pinned_work_[mine][c + 1] += chain_.work(of.kind, of.crowd, b, b + 1).count();
    }
    for (auto& before : pinned_work_) before[c + 1] += before[c];
    pin_before_[c + 1] = pin_of_[c] ? pin_of_[c] : pin_before_[c];
  }
  for (std::size_t c = n; c-- > 0;) next_pinned_[c] = pin_of_[c] ? c : next_pinned_[c + 1];
}

void SplitSearch::prepare_costs() {
  const std::size_t n = last_cut() + 1;
  link_holds_.assign(links_.size() * n, 0);
  for (std::size_t l = 1; l < links_.size(); ++l) {
    const Hop &there = row_.table().hops()[links_[l].forward],
              &back = row_.table().hops()[links_[l].backward];
    for (std::size_t c = 1; c + 1 < n; ++c) {
      link_holds_[l * n + c] =
          std::max(there.hold(chain_.forward_bytes(cuts_[c])), back.hold(chain_.backward_bytes(cuts_[c])))
              .count();
    }
  }
  work_.clear();
  messages_before_.clear();
  messages_behind_.clear();
  for (const ComputeClass& compute : row_.table().classes()) {
    for (std::size_t c = 0; c < n; ++c) {
      work_.push_back(chain_.work_before(compute.kind, compute.crowd, cuts_[c]).count());
      const Bytes forward = chain_.forward_bytes(cuts_[c]), backward = chain_.backward_bytes(cuts_[c]);
      const bool first = c == 0, last = c + 1 == n;
      messages_before_.push_back(first ? 0
                                       : (compute.receive.of(forward) + compute.send.of(backward)).count());
      messages_behind_.push_back(last ? 0
                                      : (compute.send.of(forward) + compute.receive.of(backward)).count());
    }
  }
  writer_behind_.assign(n, n);
  for (std::size_t c = n - 1; c-- > 0;) {
    writer_behind_[c] = chain_.writes_buffers(cuts_[c], cuts_[c + 1]) ? c + 1 : writer_behind_[c + 1];
  }
}

// What the blocks before a cut need on the devices of the row before another and in so many pinned stages as
// there can be, one for each run of segments of one pin: all their work (capacity.h), and the longest segment
// on as many replicas as can be.
void SplitSearch::prepare_bounds() {
  std::vector<std::uint32_t> computes;
  for (std::size_t d = 0; d < row_.size(); ++d) computes.push_back(row_.table().class_of(row_[d]));
  for (const DeviceId device : pinned_) computes.push_back(row_.table().class_of(device));
  std::sort(computes.begin(), computes.end());
  computes.erase(std::unique(computes.begin(), computes.end()), computes.end());
  std::vector<std::vector<Time>> takes;  // by those, segment
  for (const std::uint32_t compute : computes) {
    std::vector<Time>& times = takes.emplace_back();
    for (std::size_t c = 0; c < last_cut(); ++c) times.push_back(work(compute, c + 1) - work(compute, c));
  }
  const Capacities found = capacities(takes);
  std::vector<std::int64_t> of_row(1, 0);  // of the devices before one
  for (std::size_t d = 0; d < row_.size(); ++d) {
    const auto at = std::lower_bound(computes.begin(), computes.end(), row_.table().class_of(row_[d]));
    of_row.push_back(of_row.back() + found.of_class[static_cast<std::size_t>(at - computes.begin())]);
  }
  bound_before_.assign((last_cut() + 1) * (row_.size() + 1), 0);
  Time sum = 0, longest = 0, pinned_stages = 0;
  for (std::size_t c = 1; c <= last_cut(); ++c) {
    pinned_stages += pin_of_[c - 1] && (c == 1 || pin_of_[c - 2] != pin_of_[c - 1]) ? 1 : 0;
    sum += found.work[c - 1];
    longest = std::max(longest, found.work[c - 1]);
    for (std::size_t d = 0; d <= row_.size(); ++d) {
      if (d == 0 && pinned_stages == 0) {
        bound_before_[at(c, d)] = kNever;
        continue;
      }
      const Time replicas = std::min(std::max<Time>(static_cast<Time>(d), 1), micro_batches_);
      const Time share = (micro_batches_ + replicas - 1) / replicas;
      bound_before_[at(c, d)] = std::max(
          least_time(micro_batches_ * sum, of_row[d] + kWholeCapacity * pinned_stages), share * longest);
    }
  }
}

std::vector<ChainSplit> SplitSearch::solve(std::vector<std::size_t> cuts,
                                           const std::vector<ChainSplit>& known) {
  prepare(std::move(cuts), known);
  if (torn_ || row_.size() + pinned_.size() == 0) return {};
  rests_.push_back(Rest());  // the end: nothing is left
  rest_groups_.push_back({.begin = 0, .end = 1});
  rest_bottlenecks_.push_back(0);
  for (std::size_t d = 0; d <= row_.size(); ++d) {
    after_run_[rests_at(d, last_cut())] =
        after_pinned_[rests_at(d, last_cut())] = {.begin = 0, .end = 1, .first_group = 0, .last_group = 1};
  }
  for (std::size_t cut = last_cut(); cut-- > 0;) {
    solve_cut(cut);
    if (context_.budget_spent || context_.stop()) return {};
    if (cut > 0) connect(cut);
  }
  return front();
}

void SplitSearch::solve_cut(std::size_t cut) {
  for (std::size_t d = 0; d < row_.size(); ++d) solve_runs(cut, d);
  if (next_pinned_[cut] == last_cut()) return;
  for (std::size_t d = 0; d <= row_.size(); ++d) solve_pinned(cut, d);
}

void SplitSearch::solve_runs(std::size_t cut, std::size_t device) {
  const Time least = bound_before(cut, device), most = limit(1 + (cut > 0 ? 1 : 0));
  if (least > most) return;
  clear_front(least);
  const bool one_replica = chain_.line().problem().written_buffers == WrittenBuffers::kOneReplica;
  const std::size_t most_replicas = std::min(row_.size() - device, row_.longest_run());
  for (std::size_t replicas = 1; replicas <= most_replicas; ++replicas) {
    if (!context_.take_state()) return;
    const std::size_t end = device + replicas;
    const std::uint32_t run_class = row_.class_of(device, replicas);
    const RunClass::Load& load = row_.classes()[run_class].loads.front();
    const Time* const takes = work_.data() + load.compute * cuts_.size();
    const Time longest = most - load.share * row_.table().classes()[load.compute].actions.count();
    std::size_t last = next_pinned_[cut];
    if (one_replica && replicas > 1) last = std::min(last, writer_behind_[cut] - 1);
    const std::size_t& first_too_long = too_long(cut, run_class);  // falls on the way
    for (std::size_t next = std::max(cut + 1, first_rest_[end]); next <= last && next < first_too_long;
         ++next) {
      if (load.share * (takes[next] - takes[cut]) > longest) break;  // and so are all longer stages
      const RestList& rest = after_run_[rests_at(end, next)];
      if (!rest.empty()) extend(cut, {next, device, end, run_class}, rest, 0, least);
    }
    if (!context_.take_states(std::exchange(compared_, 0) / kComparedForAState)) return;
  }
  runs_from_[at(cut, device)] = store_front();
}

void SplitSearch::solve_pinned(std::size_t cut, std::size_t device) {
  const Time least = bound_before(cut, device);
  if (least > limit(1 + (cut > 0 ? 1 : 0)) || !context_.take_state()) return;
  clear_front(least);
  const std::size_t mine = *pin_of_[next_pinned_[cut]];
  const std::vector<Time>& work_of_pin = pinned_work_[mine];
  for (std::size_t next = next_pinned_[cut] + 1; next <= last_cut(); ++next) {
    if (pin_of_[next - 1] && *pin_of_[next - 1] != mine) break;
    const Time elsewhere =
        micro_batches_ * (work_of_pin[last_cut()] - (work_of_pin[next] - work_of_pin[cut]));
    extend(cut, {next, device, device, pinned_class_[mine]}, after_pinned_[rests_at(device, next)], elsewhere,
           least);
  }
  pinned_from_[at(cut, device)] = store_front();
}

void SplitSearch::extend(std::size_t cut, const FirstStage& stage, const RestList& list, Time elsewhere,
                         Time least) {
  const std::size_t next = stage.cut;
  Time time = stage_time(cut, next, stage.run_class);
  if (time == kNever || time + elsewhere > limit(cut, next)) return;
  time = std::max(time + elsewhere, least);
  const RunClass& run = row_.classes()[stage.run_class];
  const std::int64_t most = most_in_flight(cut, next, stage.run_class);
  if (most < 1) return;
  // Of all splits with so many stages in the rest; a rest has no more than there are cuts.
  const Time* const limits = limits_.data() + 1 + (cut > 0 ? 1 : 0);
  const Prospect all = prospect(list, run, time, limits);
  if (all.within == 0) return;
  // Most often nothing is new, and neither links nor memory leave any out: then they are counted only.
  if (!all.has_news && run.share * list.most_hold <= all.least_limit &&
      in_flight(run, 1, list.most_held) <= most) {
    compared_ += all.within * (1 + front_.size());
    return;
  }
  for (std::uint32_t i = list.begin; i < list.end; ++i) {
    const Rest& rest = rests_[i];
    const Time bottleneck = std::max({time, rest.bottleneck, run.share * rest.hold});
    if (bottleneck > limits[rest.stages]) continue;
    const std::int64_t held = in_flight(run, rest.stages, rest.held);
    if (held > most) continue;
    keep({.bottleneck = bottleneck,
          .held = static_cast<std::uint32_t>(run.replicas * held),
          .rest = i,
          .stages = static_cast<std::uint16_t>(rest.stages + 1),
          .cut = static_cast<std::uint16_t>(next),
          .begin = static_cast<std::uint16_t>(stage.begin),
          .end = static_cast<std::uint16_t>(stage.end)});
  }
}

SplitSearch::Prospect SplitSearch::prospect(const RestList& list, const RunClass& run, Time time,
                                            const Time* limits) {
  Prospect all;
  for (std::uint32_t g = list.first_group; g < list.last_group; ++g) {
    const RestGroup& group = rest_groups_[g];
    const Time most = limits[group.stages];
    if (time > most) break;  // and so it is for more stages
    const Time* const first = rest_bottlenecks_.data() + group.begin;
    const Time* last = rest_bottlenecks_.data() + group.end;
    while (last != first && *(last - 1) > most) --last;
    if (last == first) continue;
    all.within += static_cast<std::uint64_t>(last - first);
    all.least_limit = most;
    if (all.has_news) continue;
    const std::size_t stages = group.stages + std::size_t{1};
    const std::int64_t held = run.replicas * in_flight(run, group.stages, group.least_held);
    all.has_news = least_held_[stages] > held && !is_beaten(std::max(time, *first), stages, held);
  }
  return all;
}

void SplitSearch::clear_front(Time least) {
  front_.clear();
  least_ = least;
  least_held_.assign(last_cut() + 2, std::numeric_limits<std::int64_t>::max());
}

bool SplitSearch::is_beaten(Time bottleneck, std::size_t stages, std::int64_t held) {
  const auto beats = [&](const Answer& a) {
    return a.bottleneck <= bottleneck && a.stages <= stages && a.held <= held;
  };
  if (beater_ < front_.size() && beats(front_[beater_])) return true;
  for (std::size_t i = 0; i < front_.size(); ++i) {
    if (!beats(front_[i])) continue;
    beater_ = i;
    return true;
  }
  return false;
}

void SplitSearch::keep(const Answer& fresh) {
  compared_ += 1 + front_.size();
  if (least_held_[fresh.stages] <= fresh.held) return;
  if (is_beaten(fresh.bottleneck, fresh.stages, fresh.held)) return;
  for (std::size_t s = fresh.stages; s < least_held_.size() && fresh.bottleneck <= least_; ++s) {
    least_held_[s] = std::min<std::int64_t>(least_held_[s], fresh.held);
  }
  std::erase_if(front_, [&](const Answer& a) {
    return fresh.bottleneck <= a.bottleneck && fresh.stages <= a.stages && fresh.held <= a.held;
  });
  front_.push_back(fresh);
}

SplitSearch::List SplitSearch::store_front() {
  const List list{narrow(answers_.size()), narrow(answers_.size() + front_.size())};
  answers_.insert(answers_.end(), front_.begin(), front_.end());
  return list;
}

// What may follow at this cut, by the device before it and the devices that are left.
void SplitSearch::connect(std::size_t cut) {
  // The device of a pinned stage that begins here; where there is none, there are no such answers either.
  const std::size_t pin_here = next_pinned_[cut] < last_cut() ? *pin_of_[next_pinned_[cut]] : 0;
  for (std::size_t free = row_.size(); free > 0; --free) {  // the run before ends with device free - 1
    const std::size_t from = free - 1;
    if (free == row_.size() || links_repeat_[from] == 0) {
      rest_front_.clear();
      is_stored_ = false;
      for (std::size_t d = free; d < row_.size(); ++d) {
        add_rests(cut, runs_from_[at(cut, d)], row_links_[from * row_.size() + d]);
      }
    } else {
      add_rests(cut, runs_from_[at(cut, free)], row_links_[from * row_.size() + free]);
    }
    if (!pinned_.empty()) {
      add_rests(cut, pinned_from_[at(cut, free)], links_to_pin_[from * pinned_.size() + pin_here]);
    }
    after_run_[rests_at(free, cut)] = store_rests();
    if (!rest_front_.empty()) first_rest_[free] = cut;
  }
  if (!pin_before_[cut]) return;
  const std::size_t from = *pin_before_[cut];
  rest_front_.clear();
  is_stored_ = false;
  for (std::size_t free = row_.size() + 1; free-- > 0;) {
    if (free < row_.size()) {
      add_rests(cut, runs_from_[at(cut, free)], pin_links_[from * row_.size() + free]);
    }
    if (from != pin_here) {
      add_rests(cut, pinned_from_[at(cut, free)], pin_to_pin_links_[from * pinned_.size() + pin_here]);
    }
    after_pinned_[rests_at(free, cut)] = store_rests();
  }
}

void SplitSearch::add_rests(std::size_t cut, List answers, std::uint16_t link) {
  const Time hold = link_holds_[link * cuts_.size() + cut];
  const auto beats = [](const Rest& a, const Rest& b) {
    return a.bottleneck <= b.bottleneck && a.stages <= b.stages && a.held <= b.held && a.hold <= b.hold;
  };
  for (std::uint32_t i = answers.begin; i < answers.end; ++i) {
    const Answer& answer = answers_[i];
    const Rest fresh{answer.bottleneck, hold, answer.held, i, answer.stages};
    if (std::any_of(rest_front_.begin(), rest_front_.end(), [&](const Rest& a) { return beats(a, fresh); })) {
      continue;
    }
    std::erase_if(rest_front_, [&](const Rest& a) { return beats(fresh, a); });
    rest_front_.push_back(fresh);
    is_stored_ = false;
  }
}

SplitSearch::RestList SplitSearch::store_rests() {
  if (is_stored_) return stored_;
  RestList list{.begin = narrow(rests_.size()),
                .end = narrow(rests_.size() + rest_front_.size()),
                .first_group = narrow(rest_groups_.size())};
  by_stages_ = rest_front_;
  std::sort(by_stages_.begin(), by_stages_.end(), [](const Rest& a, const Rest& b) {
    return std::tuple(a.stages, a.bottleneck) < std::tuple(b.stages, b.bottleneck);
  });
  for (const Rest& rest : by_stages_) {
    if (rest_groups_.size() == list.first_group || rest_groups_.back().stages != rest.stages) {
      const std::uint32_t begin = narrow(rest_bottlenecks_.size());
      rest_groups_.push_back({begin, begin, rest.held, rest.stages});
    }
    RestGroup& group = rest_groups_.back();
    ++group.end;
    group.least_held = std::min(group.least_held, rest.held);
    rest_bottlenecks_.push_back(rest.bottleneck);
    list.most_held = std::max(list.most_held, rest.held);
    list.most_hold = std::max(list.most_hold, rest.hold);
  }
  list.last_group = narrow(rest_groups_.size());
  rests_.insert(rests_.end(), rest_front_.begin(), rest_front_.end());
  is_stored_ = true;
  return stored_ = list;
}

std::vector<ChainSplit> SplitSearch::front() {
  std::vector<Answer> found;
  const auto add = [&](List list) {
    found.insert(found.end(), answers_.begin() + list.begin, answers_.begin() + list.end);
  };
  for (std::size_t d = 0; d < row_.size(); ++d) add(runs_from_[at(0, d)]);
  add(pinned_from_[at(0, 0)]);
  std::stable_sort(found.begin(), found.end(), [](const Answer& a, const Answer& b) {
    return std::tuple(a.bottleneck, a.stages) < std::tuple(b.bottleneck, b.stages);
  });
  std::vector<ChainSplit> splits;
  for (const Answer& answer : found) {
    if (!splits.empty() && answer.stages >= splits.back().stages.size()) continue;
    splits.push_back(split_of(answer));
    if (options_.keep == SplitOptions::Keep::kLeastBottleneck) break;
  }
  return splits;
}

ChainSplit SplitSearch::split_of(const Answer& answer) const {
  ChainSplit split;
  split.bottleneck = Duration(answer.bottleneck);
  std::size_t cut = 0;
  for (const Answer* a = &answer;; a = &answers_[rests_[a->rest].answer]) {
    std::vector<DeviceId> devices = row_.run(a->begin, a->end);
    if (devices.empty()) devices = {pinned_[*pin_of_[next_pinned_[cut]]]};
    split.stages.push_back({cuts_[cut], cuts_[a->cut], std::move(devices)});
    cut = a->cut;
    if (cut == last_cut()) return split;
  }
}

std::size_t& SplitSearch::too_long(std::size_t cut, std::uint32_t run_class) {
  if (times_of_[run_class] != cut) {
    times_of_[run_class] = cut;
    too_long_[run_class] = cuts_.size();
    Time* const known = times_.data() + run_class * cuts_.size();
    std::fill(known + cut, known + cuts_.size(), kUnknown);
  }
  return too_long_[run_class];
}

SplitSearch::Time SplitSearch::stage_time(std::size_t cut, std::size_t next, std::uint32_t run_class) {
  std::size_t& first_too_long = too_long(cut, run_class);
  Time& known = times_[run_class * cuts_.size() + next];
  if (known == kUnknown) known = new_stage_time(cut, next, row_.classes()[run_class], first_too_long);
  return known;
}

// All but what the stage sends on is the same or more in a longer stage: work, parameters, what it receives.
SplitSearch::Time SplitSearch::new_stage_time(std::size_t cut, std::size_t next, const RunClass& run,
                                              std::size_t& first_too_long) const {
  const DeviceTable& table = row_.table();
  const Time most = limit(1 + (cut > 0 ? 1 : 0));
  const auto received_and_done = [&](const RunClass::Load& load) {
    const std::size_t base = load.compute * cuts_.size();
    return load.share * (work_[base + next] - work_[base + cut] + messages_before_[base + cut] +
                         table.classes()[load.compute].actions.count());
  };
  for (const RunClass::Load& load : run.loads) {
    const bool can = chain_.can_run(table.classes()[load.compute].kind, cuts_[cut], cuts_[next]);
    if (can && received_and_done(load) <= most) continue;
    first_too_long = next;
    return kNever;
  }
  const Bytes trainable = chain_.price(cuts_[cut], cuts_[next]).trainable;
  Time time = 0, least_of_longer = 0;
  for (const RunClass::Load& load : run.loads) {
    const Time all =
        received_and_done(load) + table.update(table.classes()[load.compute].kind, trainable).count();
    least_of_longer = std::max(least_of_longer, all);
    time = std::max(time, all + load.share * messages_behind_[load.compute * cuts_.size() + next]);
  }
  const Time sum = run.all_reduce(table, trainable).count();
  if (least_of_longer + sum > most) first_too_long = next;
  return time + sum;
}

std::int64_t SplitSearch::most_in_flight(std::size_t cut, std::size_t next, std::uint32_t run_class) {
  const std::uint32_t memory = memory_of_[run_class];
  std::int64_t* const known = in_flight_.data() + memory * cuts_.size();
  if (in_flight_of_[memory] != cut) {
    in_flight_of_[memory] = cut;
    std::fill(known + cut, known + cuts_.size(), kUnknown);
  }
  if (known[next] != kUnknown) return known[next];
  const BlockPrice& price = chain_.price(cuts_[cut], cuts_[next]);
  const Bytes usable = percent_of(row_.classes()[run_class].memory, options_.memory_percent);
  const std::int64_t left = (usable - price.base).count(), each = price.per_in_flight.count();
  return known[next] = left < 0 ? 0 : each <= 0 ? micro_batches_ : left / each;
}

std::int64_t SplitSearch::in_flight(const RunClass& run, std::size_t stages, std::uint32_t held) const {
  if (options_.schedule.kind == ScheduleKind::kGPipe) return run.share;
  return run.in_flight(group_, stages, held);
}

}  // namespace espalier::internal
