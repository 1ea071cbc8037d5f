#include "espalier/planners/pipeline/v_chains.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "espalier/planners/orders/zero_bubble_v.h"
#include "espalier/schedule/v_schedules.h"

namespace espalier {
namespace {

constexpr std::array<std::int64_t, 2> kQuartersOfInsides{4, 8};  // of the median piece's, in a segment
constexpr int kSteps = 20;  // of bisection over the longest device's time
constexpr int kTimesCutAnew = 2;
// Orders for more places, or with more micro-batches, take longer to make than a search may.
constexpr std::size_t kLongestRow = 64, kMostMicroBatches = 1024;

// --- orders

// Of 2p parts of a V, from the first on its way down to the last on its way up, the one at a place.
std::size_t part_of(std::size_t p, std::size_t place, std::size_t way) {
  return way == 0 ? place : 2 * p - 1 - place;
}

// What each place of a row does, and how many micro-batches each part of the V then has in flight.
struct Pattern {
  LineOrder order;
  std::vector<std::uint32_t> in_flight;
};

Pattern pattern_of(LineOrder order) {
  const std::size_t p = order.size();
  OrderLists of_parts(p);  // each as a stage
  for (std::size_t place = 0; place < p; ++place) {
    for (const LineStep& step : order[place]) {
      of_parts[place].emplace_back(step.kind, StageId(part_of(p, place, step.chunk)));
    }
  }
  return {std::move(order), in_flight_of(of_parts, 2 * p)};
}

// ZB-V for parts that are alike, as if a device had room for so many micro-batches of a part.
std::optional<LineOrder> filled_order(std::size_t p, std::size_t micro_batches, std::int64_t room) {
  StageLine line{.layout = StageLine::Layout::kV, .devices = {}, .chunks = 2};
  for (std::size_t d = 0; d < p; ++d) line.devices.push_back(DeviceId(d));
  line.micro_batches = narrow(micro_batches);
  const std::vector<Duration> clock(2 * p, milliseconds(1)), nothing(2 * p);
  const LineCosts costs{.forward = clock,
                        .input = clock,
                        .weights = clock,
                        .arrives = nothing,
                        .returns = nothing,
                        .taken = std::vector<Bytes>(2 * p, Bytes(1)),
                        .freed = std::vector<Bytes>(2 * p),
                        .room = std::vector<Bytes>(p, Bytes(room))};
  std::optional<FilledOrder> filled = zero_bubble_v_fill(line, costs, {});
  return filled ? std::optional(std::move(filled->order)) : std::nullopt;
}

std::vector<Pattern> patterns_for(std::size_t p, std::size_t micro_batches) {
  std::vector<Pattern> patterns;
  const auto all = static_cast<std::int64_t>(2 * p);
  for (const std::int64_t room : {all, all - all / 4}) {
    if (auto order = filled_order(p, micro_batches, room)) patterns.push_back(pattern_of(*std::move(order)));
  }
  patterns.push_back(pattern_of(v_half_order(p, micro_batches)));
  patterns.push_back(pattern_of(v_min_order(p, micro_batches)));
  return patterns;
}

// --- memory

// What pieces, and borders between them, hold of a micro-batch. A tensor that several pieces keep counts
// where it is kept first.
class PieceSums {
 public:
  struct Piece {
    Bytes state, kept, kept_again;  // `again`: where it is computed again
    Bytes insides, insides_again;   // while it goes back
  };
  struct Border {
    Bytes crossing;     // tensors, each once
    Bytes gradients;    // that come back
    Bytes kept_behind;  // of what crosses: kept by pieces behind, and by none before
  };

  explicit PieceSums(const PieceTable& table) : table_(table), borders_(table.size() + 1) {
    std::map<TensorId, std::size_t> first_kept, first_kept_again;
    for (std::size_t i = 0; i < table.size(); ++i) {
      const Segment& piece = table.segment(i, 1);
      pieces_.push_back(
          {piece.state, piece.whole.kept, piece.again.kept, piece.whole.insides, piece.again.insides});
      add_kept(piece.whole.reads, i, first_kept, pieces_.back().kept);
      add_kept(piece.whole.outputs, i, first_kept, pieces_.back().kept);
      add_kept(piece.again.reads, i, first_kept_again, pieces_.back().kept_again);
    }
    kept_before_.emplace_back();
    for (const Piece& piece : pieces_) {
      const Kept& before = kept_before_.back();
      kept_before_.push_back({before.state + piece.state, before.kept + piece.kept,
                              before.gain + std::max(Bytes(), piece.kept - piece.kept_again)});
    }
    for (std::size_t i = 0; i < table.size(); ++i) {
      for (const PassedTensor& output : table.segment(i, 1).again.outputs) {
        const auto kept = first_kept.find(output.tensor);
        for (std::size_t b = i + 1; b <= output.last_reader; ++b) {
          borders_[b].crossing += output.bytes;
          if (output.gradient) borders_[b].gradients += output.bytes;
          if (kept != first_kept.end() && kept->second >= b) borders_[b].kept_behind += output.bytes;
        }
      }
    }
  }

  const PieceTable& table() const { return table_; }
  std::size_t size() const { return pieces_.size(); }
  const Piece& piece(std::size_t i) const { return pieces_[i]; }
  Duration work(std::size_t i, KindId kind) const { return table_.segment(i, 1).whole.work(kind); }
  Duration again(std::size_t i, KindId kind) const {
    return table_.segment(i, 1).again.times[kind.index()].recompute;
  }

  struct Kept {  // of pieces, each once
    Bytes state, kept;
    Bytes gain;  // of kept: what those of them save together that keep less where they are computed again
  };
  Kept kept(std::size_t begin, std::size_t end) const {
    const Kept &first = kept_before_[begin], &last = kept_before_[end];
    return {last.state - first.state, last.kept - first.kept, last.gain - first.gain};
  }

  // What comes from other devices waits in slots, one more than micro-batches are in flight, and is not kept
  // a second time.
  Bytes of_borders(std::size_t begin, std::size_t end, std::int64_t in_flight) const {
    const Border &before = borders_[begin], &behind = borders_[end];
    return before.crossing + in_flight * (before.crossing - before.kept_behind + behind.gradients);
  }

 private:
  static void add_kept(const std::vector<PassedTensor>& tensors, std::size_t piece,
                       std::map<TensorId, std::size_t>& first, Bytes& kept) {
    for (const PassedTensor& each : tensors) {
      if (each.kept && first.emplace(each.tensor, piece).second) kept += each.bytes;
    }
  }

  const PieceTable& table_;
  std::vector<Piece> pieces_;
  std::vector<Kept> kept_before_;  // each piece, and of all
  std::vector<Border> borders_;    // before each piece, and behind the last
};

// --- cutting

// Pieces begin … end - 1.
struct PieceRun {
  std::size_t begin = 0, end = 0;
};

// The two runs of a device, and which of their pieces are computed again.
struct Share {
  std::array<PieceRun, 2> runs;         // on the way down, and up
  std::vector<std::size_t> again = {};  // ascending
  Duration plain = {}, work = {};       // without and with these
  Duration apart = {};                  // by which one run takes longer, without
  Bytes need = {};

  bool is_again(std::size_t piece) const { return std::ranges::binary_search(again, piece); }
};

// A row of devices, an order, and the insides that a segment may have which is computed again.
class VChain {
 public:
  VChain(const Problem& problem, const PieceSums& sums, const std::vector<DeviceId>& row,
         const Pattern& pattern, Bytes insides)
      : problem_(problem), sums_(sums), row_(row), pattern_(pattern), most_insides_(insides) {
    for (const Device& device : problem.cluster.devices()) memory_.push_back(device.memory);
    for (const DeviceId device : row) {
      std::vector<Duration>& before = work_before_[problem.cluster.device(device).kind];
      if (!before.empty()) continue;
      before.emplace_back();
      for (std::size_t i = 0; i < sums.size(); ++i) {
        before.push_back(before.back() + sums.work(i, problem.cluster.device(device).kind));
      }
    }
  }

  // By place of the row, so that the longest work is least; nothing if there is no room, or not within the
  // limit.
  std::optional<std::vector<Share>> shares(std::optional<Duration> limit) const {
    Duration most = limit ? *limit : all_on_one_device();
    std::optional<std::vector<Share>> best = shares_within(most);
    Duration least;
    for (int step = 0; best && step < kSteps; ++step) {
      const Duration middle = least + (most - least) / 2;
      std::optional<std::vector<Share>> found = shares_within(middle);
      (found ? most : least) = middle;
      if (found) best = std::move(found);
    }
    return best;
  }

  // With lists. `split_again`: what is computed again goes back in halves, too.
  Proposal proposal(const std::vector<Share>& shares, bool split_again) const {
    Proposal plan{.stages = {}, .micro_batch = sums_.table().micro_batch(), .schedule = {}};
    std::vector<PieceRun> stages;  // of each part of the V
    std::vector<char> in_halves;   // by stage
    for (std::size_t part = 0; part < 2 * row_.size(); ++part) {
      const std::size_t way = part < row_.size() ? 0 : 1;
      const std::size_t d = way == 0 ? part : 2 * row_.size() - 1 - part, first = plan.stages.size();
      const PieceRun pieces = shares[d].runs[way];
      for (std::size_t at = pieces.begin; at < pieces.end;) {
        const PieceRun run{at, stage_end(shares[d], at, pieces.end)};
        plan.stages.push_back(stage_of(shares[d], run, row_[d]));
        in_halves.push_back(has_weights(run) && sums_.table().halves_are_known() &&
                            (split_again || plan.stages.back().recompute.empty()));
        at = run.end;
      }
      stages.push_back({first, plan.stages.size()});
    }
    plan.lists = lists_of(stages, in_halves);
    return plan;
  }

  // Devices that had too little memory for these shares have less from now on.
  void correct(const std::vector<Share>& shares, const Verdict& verdict) {
    for (const Excess& excess : verdict.excess) {
      const auto d = static_cast<std::size_t>(std::ranges::find(row_, excess.device) - row_.begin());
      memory_[excess.device.index()] = shares[d].need - std::min(shares[d].need, excess.by);
    }
  }

 private:
  KindId kind(std::size_t d) const { return problem_.cluster.device(row_[d]).kind; }

  // No share takes longer: every piece where it takes longest, and again.
  Duration all_on_one_device() const {
    Duration all;
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      Duration longest;
      for (std::size_t d = 0; d < row_.size(); ++d) {
        longest = std::max(longest, sums_.work(i, kind(d)) + sums_.again(i, kind(d)));
      }
      all += longest;
    }
    return all;
  }

  std::int64_t in_flight(std::size_t d, std::size_t way) const {
    return pattern_.in_flight[part_of(row_.size(), d, way)];
  }

  // What a device may compute again, the most bytes for its time first.
  struct Item {
    std::size_t piece;
    Bytes gain, insides;
    Duration time;
    bool is_worth_more(const Item& other) const {
      return static_cast<double>(gain.count()) * (nanoseconds_of(other.time) + 1) >
             static_cast<double>(other.gain.count()) * (nanoseconds_of(time) + 1);
    }
    static double nanoseconds_of(Duration time) { return static_cast<double>(time.count()); }
  };

  // Of the pieces that are computed again: of one segment of them.
  Bytes insides_of(Bytes sum, Bytes largest) const { return std::min(sum, std::max(most_insides_, largest)); }

  // These runs on the device at place d, if it has room and no more to do than the limit.
  std::optional<Share> share_within(std::size_t d, PieceRun down, PieceRun up, Duration limit) const {
    Share share{.runs = {down, up}};
    const std::vector<Duration>& before = work_before_.at(kind(d));
    const std::array<Duration, 2> work{before[down.end] - before[down.begin],
                                       before[up.end] - before[up.begin]};
    share.plain = share.work = work[0] + work[1];
    share.apart = std::max(work[0], work[1]) - std::min(work[0], work[1]);
    if (share.plain > limit) return std::nullopt;
    Bytes insides, gains;  // where all is computed again that helps
    for (const std::size_t way : {0U, 1U}) {
      const PieceRun run = share.runs[way];
      const std::int64_t w = in_flight(d, way);
      const PieceSums::Kept kept = sums_.kept(run.begin, run.end);
      share.need += sums_.of_borders(run.begin, run.end, w) + kept.state + w * kept.kept;
      gains += w * kept.gain;
      for (std::size_t i = run.begin; i < run.end; ++i) insides = std::max(insides, sums_.piece(i).insides);
    }
    if (share.need - gains + insides > memory_[row_[d].index()]) return std::nullopt;
    make_room(d, insides, share);
    if (share.need > memory_[row_[d].index()] || share.work > limit) return std::nullopt;
    return share;
  }

  // As many pieces are computed again as memory asks for; `need` gets what is held while they go back.
  void make_room(std::size_t d, Bytes insides, Share& share) const {
    const Bytes memory = memory_[row_[d].index()];
    if (share.need + insides <= memory) {
      share.need += insides;
      return;
    }
    std::vector<Item> items;
    for (const std::size_t way : {0U, 1U}) {
      for (std::size_t i = share.runs[way].begin; i < share.runs[way].end; ++i) {
        const PieceSums::Piece& piece = sums_.piece(i);
        if (piece.kept_again >= piece.kept) continue;
        items.push_back({i, in_flight(d, way) * (piece.kept - piece.kept_again), piece.insides_again,
                         sums_.again(i, kind(d))});
      }
    }
    std::ranges::stable_sort(items, [](const Item& a, const Item& b) { return a.is_worth_more(b); });
    Bytes sum, largest;
    for (const Item& item : items) {
      if (share.need + std::max(insides, insides_of(sum, largest)) <= memory) break;
      share.need -= item.gain;
      share.work += item.time;
      sum += item.insides;
      largest = std::max(largest, item.insides);
      share.again.push_back(item.piece);
    }
    std::ranges::sort(share.again);
    share.need += std::max(insides, insides_of(sum, largest));
  }

  // Of the pieces of `left` a device takes some from both ends, at most so many: for each number on the way
  // down the most on the way up.
  std::vector<Share> shares_of(std::size_t d, PieceRun left, std::size_t most, Duration limit) const {
    const auto share = [&](std::size_t down, std::size_t up) {
      return share_within(d, {left.begin, left.begin + down}, {left.end - up, left.end}, limit);
    };
    std::vector<Share> shares;
    std::size_t up = 1;
    for (std::size_t more = most; up < more - 1;) {  // the most beside one
      const std::size_t middle = (up + more) / 2;
      (share(1, middle) ? up : more) = middle;
    }
    for (std::size_t down = 1; down < most; ++down) {
      up = std::min(up, most - down);
      std::optional<Share> found = share(down, up);
      while (!found && --up > 0) found = share(down, up);
      if (!found) break;
      shares.push_back(*std::move(found));
    }
    return shares;
  }

  // From the first device on each takes from both ends of what is left as much as the limit allows, about
  // equally long runs; the last one all.
  std::optional<std::vector<Share>> shares_within(Duration limit) const {
    const auto shorter_apart = [](const Share& a, const Share& b) { return a.apart < b.apart; };
    std::vector<Share> chosen;
    PieceRun left{0, sums_.size()};
    for (std::size_t d = 0; d < row_.size(); ++d) {
      const bool last = d + 1 == row_.size();
      std::vector<Share> some;
      if (last) {
        for (std::size_t cut = left.begin + 1; cut < left.end; ++cut) {
          auto share = share_within(d, {left.begin, cut}, {cut, left.end}, limit);
          if (share) some.push_back(*std::move(share));
        }
      } else {
        const std::size_t for_others = 2 * (row_.size() - 1 - d);
        some = shares_of(d, left, left.end - left.begin - for_others, limit);
        Duration most;
        for (const Share& each : some) most = std::max(most, each.plain);
        const Duration piece = std::max(sums_.work(left.begin, kind(d)), sums_.work(left.end - 1, kind(d)));
        std::erase_if(some, [&](const Share& each) { return each.plain + piece / 2 < most; });
      }
      if (some.empty()) return std::nullopt;
      chosen.push_back(*std::ranges::min_element(some, shorter_apart));
      left = {chosen.back().runs[0].end, chosen.back().runs[1].begin};
    }
    return chosen;
  }

  // A stage ends where what it computes again would have more insides than a segment may.
  std::size_t stage_end(const Share& share, std::size_t begin, std::size_t end) const {
    Bytes insides;
    bool again = false;
    for (std::size_t i = begin; i < end; ++i) {
      if (!share.is_again(i)) continue;
      insides += sums_.piece(i).insides_again;
      if (again && insides > most_insides_) return i;
      again = true;
    }
    return end;
  }

  StageDraft stage_of(const Share& share, PieceRun run, DeviceId device) const {
    return sums_.table().stage(run.begin, run.end, device,
                               [&](std::size_t piece) { return share.is_again(piece); });
  }

  bool has_weights(PieceRun run) const {
    for (std::size_t i = run.begin; i < run.end; ++i) {
      if (sums_.table().segment(i, 1).has_weights) return true;
    }
    return false;
  }

  // A pass of a part of the V is one of each of its stages, forward or back.
  OrderLists lists_of(const std::vector<PieceRun>& stages, const std::vector<char>& in_halves) const {
    OrderLists lists(problem_.cluster.devices().size());
    for (std::size_t d = 0; d < row_.size(); ++d) {
      std::vector<Step>& list = lists[row_[d].index()];
      for (const LineStep& step : pattern_.order[d]) {
        const auto [begin, end] = stages[part_of(row_.size(), d, step.chunk)];
        for (std::size_t i = begin; i < end; ++i) {
          const bool forward = step.kind == ActionKind::kForward;
          const std::size_t stage = forward ? i : begin + end - 1 - i;
          add_pass(step.kind, StageId(stage), in_halves[stage] != 0, list);
        }
      }
    }
    return lists;
  }

  const Problem& problem_;
  const PieceSums& sums_;
  const std::vector<DeviceId>& row_;
  const Pattern& pattern_;
  const Bytes most_insides_;
  std::map<KindId, std::vector<Duration>> work_before_;  // each piece, without what is computed again
  std::vector<Bytes> memory_;                            // by DeviceId, that shares may take
};

// --- judging

struct VLane {
  VChain chain;
  bool open = true;
};

// Judges the chain of each open lane; those that lack memory stay open.
void judge_v_lanes(std::vector<VLane>& lanes, std::int64_t micro_batches, Judge& judge, Context& context) {
  std::vector<Proposal> plans;
  std::vector<std::pair<VLane*, std::vector<Share>>> of;
  std::optional<Duration> limit;  // of a device with a micro-batch: else no step is shorter than the best
  if (judge.best()) limit = nanoseconds((judge.best()->count() - 1) / micro_batches);
  for (VLane& lane : lanes) {
    if (!lane.open || context.stop()) continue;
    lane.open = false;
    std::optional<std::vector<Share>> shares = lane.chain.shares(limit);
    if (!shares) continue;
    for (const bool split_again : {false, true}) {
      Proposal plan = lane.chain.proposal(*shares, split_again);
      if (std::ranges::find(plans, plan) != plans.end()) continue;
      if (!context.take_states(plan.stages.size() * static_cast<std::size_t>(micro_batches))) break;
      plans.push_back(std::move(plan));
      of.emplace_back(&lane, *shares);
    }
  }
  const std::vector<std::optional<Verdict>> verdicts = judge.consider_all(plans);
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    if (!verdicts[i] || verdicts[i]->ruling != Verdict::Ruling::kTooMuchMemory) continue;
    auto& [lane, shares] = of[i];
    lane->open = !judge.best() || verdicts[i]->iteration < *judge.best();
    lane->chain.correct(shares, *verdicts[i]);
  }
}

}  // namespace

void judge_v_chains(const Problem& problem, std::span<const PieceTable* const> tables,
                    const std::vector<std::vector<DeviceId>>& rows, Judge& judge, Context& context) {
  const std::size_t p = rows.front().size();
  const std::int64_t micro_batches = problem.training.batch.count() / tables.front()->micro_batch().count();
  const auto count = static_cast<std::size_t>(micro_batches);
  if (p < 2 || p > kLongestRow || count > kMostMicroBatches) return;
  const std::vector<Pattern> patterns = patterns_for(p, count);
  for (const PieceTable* table : tables) {
    if (!table->possible() || table->size() < 2 * p) continue;
    const PieceSums sums(*table);
    const Bytes median = table->median_insides();
    std::vector<VLane> lanes;
    for (const std::vector<DeviceId>& row : rows) {
      for (const Pattern& pattern : patterns) {
        for (const std::int64_t quarters : kQuartersOfInsides) {
          lanes.push_back({VChain(problem, sums, row, pattern, quarters * (median / 4))});
        }
      }
    }
    for (int round = 0; round <= kTimesCutAnew; ++round) judge_v_lanes(lanes, micro_batches, judge, context);
  }
}

}  // namespace espalier
