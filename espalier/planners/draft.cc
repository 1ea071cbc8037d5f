#include "espalier/planners/draft.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <queue>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/graph/part_names.h"

namespace espalier {
namespace internal {

// Ranges of operators, and which of them span a cut: begin before it and end there or later. Every kStride-th
// cut has its list; the others are that list and what began since.
class Spans {
 public:
  struct Range {
    std::uint32_t first = 0, last = 0;
    std::uint32_t what = 0;
  };

  Spans() = default;
  Spans(std::vector<Range> ranges, std::size_t operators) : ranges_(std::move(ranges)) {
    std::erase_if(ranges_, [](const Range& range) { return range.first == range.last; });
    std::stable_sort(ranges_.begin(), ranges_.end(),
                     [](const Range& a, const Range& b) { return a.first < b.first; });
    std::vector<std::uint32_t> open;
    std::uint32_t next = 0;
    for (std::size_t cut = 0; cut <= operators; ++cut) {
      while (next < ranges_.size() && ranges_[next].first < cut) ++next;
      begun_before_.push_back(next);
      if (cut % kStride != 0) continue;
      for (std::uint32_t i = begun_before_[cut < kStride ? 0 : cut - kStride]; i < next; ++i)
        open.push_back(i);
      std::erase_if(open, [&](std::uint32_t i) { return ranges_[i].last < cut; });
      listed_begin_.push_back(narrow(listed_.size()));
      listed_.insert(listed_.end(), open.begin(), open.end());
    }
    listed_begin_.push_back(narrow(listed_.size()));
  }

  template <class Visit>  // void(const Range&)
  void at(std::size_t cut, Visit visit) const {
    const std::size_t near = cut / kStride;
    for (std::uint32_t i = listed_begin_[near]; i < listed_begin_[near + 1]; ++i) {
      if (ranges_[listed_[i]].last >= cut) visit(ranges_[listed_[i]]);
    }
    for (std::uint32_t i = begun_before_[near * kStride]; i < begun_before_[cut]; ++i) {
      if (ranges_[i].last >= cut) visit(ranges_[i]);
    }
  }

 private:
  static constexpr std::size_t kStride = 16;
  std::vector<Range> ranges_;                // ascending first
  std::vector<std::uint32_t> begun_before_;  // by cut
  std::vector<std::uint32_t> listed_, listed_begin_;
};

struct OwnedRun {
  OperatorRun run;
  std::size_t draft;
};

}  // namespace internal

namespace {

using internal::OwnedRun;
using internal::Spans;

bool any_in(std::span<const std::uint32_t> ascending, const OperatorRun& run) {
  const auto at = std::lower_bound(ascending.begin(), ascending.end(), run.first);
  return at != ascending.end() && *at <= run.last;
}

// The run that an operator stands in; null if none.
const OperatorRun* run_of(std::span<const OperatorRun> runs, std::uint32_t op) {
  const auto behind = std::upper_bound(
      runs.begin(), runs.end(), op, [](std::uint32_t id, const OperatorRun& run) { return id < run.first; });
  return behind != runs.begin() && op <= std::prev(behind)->last ? &*std::prev(behind) : nullptr;
}

// Drafts in topological order, the smaller index first where free; empty if there is a cycle.
std::vector<std::size_t> in_order(const std::vector<std::vector<std::size_t>>& before) {
  std::vector<std::size_t> missing(before.size()), order;
  std::vector<std::vector<std::size_t>> behind(before.size());
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;
  for (std::size_t d = 0; d < before.size(); ++d) {
    missing[d] = before[d].size();
    for (const std::size_t b : before[d]) behind[b].push_back(d);
    if (missing[d] == 0) ready.push(d);
  }
  while (!ready.empty()) {
    const std::size_t d = ready.top();
    ready.pop();
    order.push_back(d);
    for (const std::size_t b : behind[d]) {
      if (--missing[b] == 0) ready.push(b);
    }
  }
  if (order.size() < before.size()) order.clear();
  return order;
}

std::vector<Replica> replicas_of(const StageDraft& draft, std::uint32_t micro_batches) {
  ESP_CHECK(draft.degree > 0 && draft.devices.size() % draft.degree == 0, draft.devices.size(), draft.degree);
  const std::size_t groups = draft.replicas();
  const auto group_of = [&](std::size_t r) {
    return std::vector<DeviceId>(draft.group(r).begin(), draft.group(r).end());
  };
  std::vector<Replica> replicas;
  if (draft.weights.empty()) {
    const std::size_t count = std::min<std::size_t>(groups, micro_batches);
    for (std::size_t r = 0; r < count; ++r) {
      replicas.push_back({group_of(r), round_robin(micro_batches, r, count)});
    }
    return replicas;
  }
  ESP_CHECK(draft.weights.size() == groups, draft.weights.size(), groups);
  std::vector<std::vector<std::uint32_t>> shares = deal_micro_batches(micro_batches, draft.weights);
  for (std::size_t r = 0; r < shares.size(); ++r) {
    if (!shares[r].empty()) replicas.push_back({group_of(r), std::move(shares[r])});
  }
  return replicas;
}

// What is in both.
std::vector<OperatorRun> common_runs(std::span<const OperatorRun> a, std::span<const OperatorRun> b) {
  std::vector<OperatorRun> common;
  for (auto mine = a.begin(), other = b.begin(); mine != a.end() && other != b.end();) {
    const OperatorRun both{std::max(mine->first, other->first), std::min(mine->last, other->last)};
    if (both.first <= both.last) common.push_back(both);
    if (mine->last < other->last) {
      ++mine;
    } else {
      ++other;
    }
  }
  return common;
}

}  // namespace

// Replicas of one weight take turns, so of each weight only the next in turn is asked.
std::vector<std::vector<std::uint32_t>> deal_micro_batches(std::uint32_t micro_batches,
                                                           std::span<const std::uint32_t> weights) {
  struct Turn {
    std::uint32_t weight = 0;
    std::vector<std::size_t> replicas = {};  // ascending
    std::size_t at = 0;                      // of these, the next
    std::uint64_t with_it = 1;               // micro-batches that it would have
  };
  std::vector<Turn> turns;
  for (std::size_t r = 0; r < weights.size(); ++r) {
    const auto of_weight = [&](const Turn& turn) { return turn.weight == weights[r]; };
    auto turn = std::find_if(turns.begin(), turns.end(), of_weight);
    if (turn == turns.end()) turn = turns.insert(turn, {.weight = weights[r]});
    turn->replicas.push_back(r);
  }
  std::vector<std::vector<std::uint32_t>> shares(weights.size());
  for (std::uint32_t j = 0; j < micro_batches; ++j) {
    Turn* least = &turns.front();
    for (Turn& turn : turns) {
      const std::uint64_t mine = turn.with_it * least->weight, others = least->with_it * turn.weight;
      if (mine < others || (mine == others && turn.replicas[turn.at] < least->replicas[least->at])) {
        least = &turn;
      }
    }
    shares[least->replicas[least->at]].push_back(j);
    if (++least->at == least->replicas.size()) {
      least->at = 0;
      ++least->with_it;
    }
  }
  return shares;
}

std::vector<std::uint32_t> share_sizes(std::uint32_t micro_batches, std::span<const std::uint32_t> weights) {
  if (std::accumulate(weights.begin(), weights.end(), std::uint64_t{0}) == micro_batches) {
    return {weights.begin(), weights.end()};
  }
  std::vector<std::uint32_t> sizes;
  for (const auto& share : deal_micro_batches(micro_batches, weights)) sizes.push_back(narrow(share.size()));
  return sizes;
}

std::size_t add_replicas(std::vector<EqualReplicas>& groups, Duration time, std::int64_t count) {
  auto group = std::ranges::find(groups, time, &EqualReplicas::time);
  if (group == groups.end()) group = groups.insert(group, {.count = 0, .time = time});
  group->count += count;
  return static_cast<std::size_t>(group - groups.begin());
}

void deal_evenly(std::int64_t micro_batches, std::span<EqualReplicas> groups) {
  const auto done_by = [](const EqualReplicas& group, std::int64_t end) {
    return std::max<std::int64_t>(1, end / std::max<std::int64_t>(1, group.time.count()));
  };
  const auto dealt = [&](std::int64_t end) {
    std::int64_t sum = 0;
    for (const EqualReplicas& group : groups) sum += group.count * done_by(group, end);
    return sum;
  };
  std::int64_t longest = 1;
  for (const EqualReplicas& group : groups) longest = std::max(longest, group.time.count());
  std::int64_t too_early = -1, end = micro_batches * longest;
  while (too_early + 1 < end) {
    const std::int64_t middle = too_early + (end - too_early) / 2;
    (dealt(middle) < micro_batches ? too_early : end) = middle;
  }
  std::int64_t left = dealt(end) - micro_batches;  // what those that end last do too much
  for (EqualReplicas& group : groups) {
    group.most = done_by(group, end);
    const bool ends_last = group.most > done_by(group, end - 1);
    const std::int64_t less = ends_last ? std::min(left, group.count) : 0;
    left -= less;
    group.with_most = group.count - less;
    if (group.with_most > 0) continue;
    --group.most;
    group.with_most = group.count;
  }
}

std::vector<std::uint32_t> even_shares(std::int64_t micro_batches, std::span<const Duration> times) {
  std::vector<EqualReplicas> groups;
  std::vector<std::pair<std::size_t, std::int64_t>>
      places;  // of each replica: its group, and its place there
  for (const Duration time : times) {
    const std::size_t group = add_replicas(groups, time, 1);
    places.emplace_back(group, groups[group].count - 1);
  }
  if (groups.size() < 2) return {};
  deal_evenly(micro_batches, groups);
  std::vector<std::uint32_t> shares;
  for (const auto& [group, place] : places) {
    shares.push_back(static_cast<std::uint32_t>(groups[group].share(place)));
  }
  return shares;
}

// Operators that are not duplicable are called own: a stage holds them alone.
struct DraftRules::State {
  explicit State(const Graph& g);

  using Runs = std::vector<OperatorRun>;
  Runs own_runs(const OperatorSet& set) const;
  std::vector<OwnedRun> owners(const std::vector<Runs>& drafts) const;
  void add_data_edges(const Runs& mine, std::size_t draft, const std::vector<OwnedRun>& owned,
                      std::vector<std::size_t>& before) const;
  Runs with_duplicables(const Runs& own, bool is_last) const;
  bool is_read_by(std::uint32_t duplicable, const Runs& own) const;

  const Graph& graph;
  std::vector<std::uint32_t> own;         // ascending
  std::vector<std::uint32_t> own_before;  // by operator, one more
  std::vector<std::uint32_t> writers;     // of buffers, ascending
  Spans readings;                         // from an own operator to its last reader; `what` is the operator
  std::vector<std::vector<std::uint32_t>> reader_sets;  // of duplicables: own operators, ascending
  std::vector<std::uint32_t> readers_of;                // by operator: a duplicable's index into reader_sets
  Spans duplicables;                               // from a duplicable to its last reader; `what` likewise
  std::vector<std::uint32_t> unread;               // duplicables that no own operator needs, ascending
  std::vector<std::uint32_t> for_unread;           // these and all that they read, ascending
  std::vector<std::vector<std::uint32_t>> groups;  // colocated own operators, two or more, ascending
  Spans group_spans;                               // `what`: the index into groups
};

DraftRules::State::State(const Graph& g) : graph(g) {
  const std::size_t n = g.operators().size();
  std::vector<Spans::Range> read;
  std::map<std::uint32_t, std::vector<std::uint32_t>> colocated;
  for (std::uint32_t i = 0; i < n; ++i) {
    const Operator& op = g.operators()[i];
    own_before.push_back(narrow(own.size()));
    if (op.duplicable) continue;
    own.push_back(i);
    if (writes_buffer(g, OperatorId(i))) writers.push_back(i);
    if (op.colocation) colocated[*op.colocation].push_back(i);
    const auto readers = g.successors(OperatorId(i));
    if (!readers.empty()) read.push_back({i, narrow(readers.back().index()), i});
  }
  own_before.push_back(narrow(own.size()));
  readings = Spans(std::move(read), n);

  std::map<std::vector<std::uint32_t>, std::uint32_t> sets;  // equal ones are one
  std::vector<Spans::Range> needed;
  readers_of.assign(n, 0);
  for (std::size_t i = n; i-- > 0;) {
    if (!g.operators()[i].duplicable) continue;
    std::vector<std::uint32_t> readers;
    std::vector<std::uint32_t> met;  // reader sets that are in it already
    for (const OperatorId reader : g.successors(OperatorId(i))) {
      if (!g.op(reader).duplicable) {
        readers.push_back(narrow(reader.index()));
        continue;
      }
      const std::uint32_t set = readers_of[reader.index()];
      if (std::find(met.begin(), met.end(), set) != met.end()) continue;
      met.push_back(set);
      readers.insert(readers.end(), reader_sets[set].begin(), reader_sets[set].end());
    }
    std::sort(readers.begin(), readers.end());
    readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
    if (readers.empty()) {
      unread.push_back(narrow(i));
    } else {
      needed.push_back({narrow(i), readers.back(), narrow(i)});
    }
    const auto [at, fresh] = sets.try_emplace(std::move(readers), narrow(reader_sets.size()));
    if (fresh) reader_sets.push_back(at->first);
    readers_of[i] = at->second;
  }
  std::reverse(unread.begin(), unread.end());
  for_unread = unread;
  std::vector<bool> is_in(n, false);
  for (const std::uint32_t op : unread) is_in[op] = true;
  for (std::size_t i = 0; i < for_unread.size(); ++i) {
    for (const OperatorId source : g.predecessors(OperatorId(for_unread[i]))) {
      if (!is_in[source.index()]) for_unread.push_back(narrow(source.index()));
      is_in[source.index()] = true;
    }
  }
  std::sort(for_unread.begin(), for_unread.end());
  duplicables = Spans(std::move(needed), n);

  std::vector<Spans::Range> together;
  for (auto& [number, members] : colocated) {
    if (members.size() < 2) continue;
    together.push_back({members.front(), members.back(), narrow(groups.size())});
    groups.push_back(std::move(members));
  }
  group_spans = Spans(std::move(together), n);
}

// From own operator to own operator; what lies between two of a run may be duplicable.
DraftRules::State::Runs DraftRules::State::own_runs(const OperatorSet& set) const {
  Runs runs;
  for (const OperatorRun& run : set.runs()) {
    const std::uint32_t begin = own_before[run.first], end = own_before[run.last + 1];
    if (begin == end) continue;
    if (!runs.empty() && own_before[runs.back().last] + 1 == begin) {
      runs.back().last = own[end - 1];
    } else {
      runs.push_back({own[begin], own[end - 1]});
    }
  }
  return runs;
}

std::vector<OwnedRun> DraftRules::State::owners(const std::vector<Runs>& drafts) const {
  std::vector<OwnedRun> owned;
  for (std::size_t d = 0; d < drafts.size(); ++d) {
    for (const OperatorRun& run : drafts[d]) owned.push_back({run, d});
  }
  std::sort(owned.begin(), owned.end(),
            [](const OwnedRun& a, const OwnedRun& b) { return a.run.first < b.run.first; });
  std::size_t covered = 0;
  for (const OwnedRun& each : owned) {
    ESP_CHECK(own_before[each.run.first] == covered, each.draft, graph.operators()[each.run.first].name,
              covered < own.size() ? graph.operators()[own[covered]].name : "all are covered");
    covered = own_before[each.run.last] + 1;
  }
  ESP_CHECK(covered == own.size(), covered, own.size());
  return owned;
}

void DraftRules::State::add_data_edges(const Runs& mine, std::size_t draft,
                                       const std::vector<OwnedRun>& owned,
                                       std::vector<std::size_t>& before) const {
  for (const OperatorRun& run : mine) {
    readings.at(run.first, [&](const Spans::Range& range) {
      const auto readers = graph.successors(OperatorId(range.what));
      const auto at = std::lower_bound(readers.begin(), readers.end(), OperatorId(run.first));
      if (at == readers.end() || at->index() > run.last) return;
      const auto behind =
          std::upper_bound(owned.begin(), owned.end(), range.what,
                           [](std::uint32_t op, const OwnedRun& each) { return op < each.run.first; });
      const std::size_t from = std::prev(behind)->draft;
      if (from != draft) before.push_back(from);
    });
  }
}

bool DraftRules::State::is_read_by(std::uint32_t duplicable, const Runs& mine) const {
  const std::vector<std::uint32_t>& readers = reader_sets[readers_of[duplicable]];
  if (readers.size() < mine.size()) {
    return std::any_of(readers.begin(), readers.end(),
                       [&](std::uint32_t reader) { return run_of(mine, reader) != nullptr; });
  }
  return std::any_of(mine.begin(), mine.end(), [&](const OperatorRun& run) { return any_in(readers, run); });
}

// Inside a run stand duplicables too. One whose readers all stand in that run belongs there; the others span
// a border of it, or have no reader.
DraftRules::State::Runs DraftRules::State::with_duplicables(const Runs& mine, bool is_last) const {
  std::vector<std::uint32_t> spanning, outside;
  for (const OperatorRun& run : mine) {
    for (const std::uint32_t cut : {run.first, run.last + 1}) {
      duplicables.at(cut, [&](const Spans::Range& range) { spanning.push_back(range.what); });
    }
    if (is_last) continue;
    const auto begin = std::lower_bound(unread.begin(), unread.end(), run.first);
    outside.insert(outside.end(), begin, std::upper_bound(begin, unread.end(), run.last));
  }
  std::sort(spanning.begin(), spanning.end());
  spanning.erase(std::unique(spanning.begin(), spanning.end()), spanning.end());
  Runs runs;
  for (const std::uint32_t op : spanning) {
    const bool read = is_read_by(op, mine), inside = run_of(mine, op) != nullptr;
    if (read && !inside) runs.push_back({op, op});
    const bool for_others = is_last && std::binary_search(for_unread.begin(), for_unread.end(), op);
    if (!read && inside && !for_others) outside.push_back(op);
  }
  if (is_last) {  // what nobody reads stands there, with what it reads
    for (const std::uint32_t op : for_unread) runs.push_back({op, op});
  }
  if (runs.empty() && outside.empty()) return mine;
  std::sort(outside.begin(), outside.end());
  for (const OperatorRun& run : mine) {
    std::uint32_t first = run.first;
    for (auto at = std::lower_bound(outside.begin(), outside.end(), run.first);
         at != outside.end() && *at < run.last; ++at) {
      if (*at > first) runs.push_back({first, *at - 1});
      first = *at + 1;
    }
    runs.push_back({first, run.last});
  }
  const OperatorSet joined(std::move(runs));
  return {joined.runs().begin(), joined.runs().end()};
}

DraftRules::DraftRules(const Graph& graph) : state_(std::make_unique<State>(graph)) {}
DraftRules::~DraftRules() = default;
DraftRules::DraftRules(DraftRules&&) noexcept = default;

std::optional<RunPlan> DraftRules::complete(std::span<const StageDraft> drafts, BatchSize batch,
                                            BatchSize micro_batch, const Orders& orders) const {
  std::vector<State::Runs> own;
  for (const StageDraft& draft : drafts) own.push_back(state_->own_runs(draft.operators));
  const std::vector<OwnedRun> owned = state_->owners(own);
  std::vector<std::vector<std::size_t>> before(drafts.size());
  for (std::size_t d = 0; d < drafts.size(); ++d) {
    before[d] = drafts[d].after;
    state_->add_data_edges(own[d], d, owned, before[d]);
    std::sort(before[d].begin(), before[d].end());
    before[d].erase(std::unique(before[d].begin(), before[d].end()), before[d].end());
  }
  const std::vector<std::size_t> order = in_order(before);
  if (order.size() != drafts.size()) return std::nullopt;
  std::vector<std::size_t> place(drafts.size());
  for (std::size_t s = 0; s < order.size(); ++s) place[order[s]] = s;

  RunPlan plan;
  plan.frame.batch = batch;
  plan.frame.orders = orders;
  const auto micro_batches = static_cast<std::uint32_t>(batch.count() / micro_batch.count());
  for (const std::size_t d : order) {
    const StageDraft& draft = drafts[d];
    Stage stage;
    stage.replicas = replicas_of(draft, micro_batches);
    for (const std::size_t p : before[d]) stage.after.push_back(StageId(place[p]));
    std::sort(stage.after.begin(), stage.after.end());
    stage.micro_batch = micro_batch;
    stage.name = draft.locked_as;
    plan.frame.stages.push_back(std::move(stage));
    State::Runs runs = state_->with_duplicables(own[d], plan.runs.size() + 1 == drafts.size());
    State::Runs again = common_runs(runs, draft.recompute.runs());
    plan.runs.push_back({std::move(runs), std::move(again)});
  }
  const std::vector<std::uint32_t> limits = in_flight_limits(plan.frame);
  for (std::size_t s = 0; s < limits.size(); ++s) {
    Stage& stage = plan.frame.stages[s];
    const std::int64_t wanted = std::int64_t{limits[s]} + drafts[order[s]].more_in_flight;
    stage.in_flight = static_cast<std::uint32_t>(std::clamp<std::int64_t>(wanted, 1, stage.largest_share()));
  }
  return plan;
}

std::optional<OperatorId> DraftRules::first_torn(std::span<const OperatorRun> stage) const {
  std::optional<std::uint32_t> torn;
  const auto look = [&](const Spans::Range& range) {
    std::optional<std::uint32_t> here;
    bool elsewhere = false;
    for (const std::uint32_t op : state_->groups[range.what]) {
      const bool inside = run_of(stage, op) != nullptr;
      if (inside && !here) here = op;
      elsewhere = elsewhere || !inside;
    }
    if (here && elsewhere && (!torn || *here < *torn)) torn = here;
  };
  for (const OperatorRun& run : stage) {
    state_->group_spans.at(run.first, look);
    state_->group_spans.at(std::size_t{run.last} + 1, look);
  }
  return torn ? std::optional(OperatorId(*torn)) : std::nullopt;
}

std::optional<OperatorId> DraftRules::first_writer(std::span<const OperatorRun> stage) const {
  for (const OperatorRun& run : stage) {
    const auto at = std::lower_bound(state_->writers.begin(), state_->writers.end(), run.first);
    if (at != state_->writers.end() && *at <= run.last) return OperatorId(*at);
  }
  return std::nullopt;
}

PinTable::PinTable(const Graph& graph, const std::vector<std::optional<DeviceId>>& pins) {
  for (std::uint32_t i = 0; i < pins.size(); ++i) {
    if (pins[i] && !graph.operators()[i].duplicable) pinned_.push_back({i, *pins[i], pinned_.size()});
  }
  for (std::size_t i = pinned_.size(); i-- > 1;) {
    if (pinned_[i - 1].device == pinned_[i].device) pinned_[i - 1].same_until = pinned_[i].same_until;
  }
}

std::optional<OperatorId> PinTable::first_broken(std::span<const OperatorRun> stage,
                                                 std::span<const DeviceId> devices) const {
  if (pinned_.empty()) return std::nullopt;
  for (const OperatorRun& run : stage) {
    auto at = std::lower_bound(pinned_.begin(), pinned_.end(), run.first,
                               [](const Pinned& pinned, std::uint32_t op) { return pinned.op < op; });
    if (at == pinned_.end() || at->op > run.last) continue;
    if (devices.size() != 1 || devices.front() != at->device) return OperatorId(at->op);
    at = pinned_.begin() + static_cast<std::ptrdiff_t>(at->same_until) + 1;
    if (at != pinned_.end() && at->op <= run.last) return OperatorId(at->op);
  }
  return std::nullopt;
}

PipelinePlan spelled_out(const Graph& graph, const RunPlan& plan) {
  PipelinePlan result = plan.frame;
  std::vector<std::vector<OperatorId>> sets;
  std::vector<std::string> given;
  for (std::size_t s = 0; s < result.stages.size(); ++s) {
    Stage& stage = result.stages[s];
    stage.operators = OperatorSet(plan.runs[s].operators).operators();
    stage.recompute = OperatorSet(plan.runs[s].recompute).operators();
    sets.push_back(stage.operators);
    given.push_back(stage.name);
  }
  const std::vector<std::string> names = part_names(graph, sets, given);
  for (std::size_t s = 0; s < names.size(); ++s) result.stages[s].name = names[s];
  return result;
}

std::optional<PipelinePlan> complete_plan(const Graph& graph, std::span<const StageDraft> drafts,
                                          BatchSize batch, BatchSize micro_batch, const OrderRule& schedule) {
  const auto plan = DraftRules(graph).complete(drafts, batch, micro_batch, schedule);
  return plan ? std::optional(spelled_out(graph, *plan)) : std::nullopt;
}

}  // namespace espalier
