#include "espalier/planners/pipeline/checkpointed.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/cost/cost_table.h"
#include "espalier/planners/candidate.h"
#include "espalier/planners/cuts.h"
#include "espalier/planners/pipeline/device_row.h"
#include "espalier/planners/pipeline/memory_ladder.h"

namespace espalier {
namespace {

constexpr std::size_t kPiecesOfADevice = 32;
constexpr std::size_t kMostPieces = 2048;  // unless there are more devices
// What a segment's insides may be, in quarters of the median piece's.
constexpr std::int64_t kQuarters[] = {4, 6, 8, 12, 16, 24, 32};
constexpr std::size_t kReach = 2;  // of neighbouring cuts
// How often the row of devices is gone through: often only where the pipeline would wait, with few
// micro-batches for each device.
constexpr std::int64_t kMostRounds = 4, kMicroBatchesOfADevice = 4;
constexpr std::size_t kMostPlaces = 256;  // in several rounds
constexpr std::int64_t kPartsOfInFlight = 8;
constexpr int kCorrections = 3;
constexpr std::int64_t kGenerousPercent = 125;
constexpr std::int64_t kPrecision = 2048;  // of the bottleneck: 1/2048 of all work

// A tensor that a segment reads from others, or that others read from it, of one micro-batch.
struct Passed {
  TensorId tensor;
  Bytes bytes;
  bool kept = false;            // for backward
  bool gradient = false;        // comes back
  std::size_t last_reader = 0;  // of an output: the last piece
};

// How a segment goes back, for one micro-batch.
struct Way {
  std::vector<Duration> work;  // by KindId, forward and backward, with what is computed again
  Bytes kept;                  // for backward, beside what passes
  Bytes insides;               // while it goes back
  std::vector<Passed> reads, outputs;
};

struct Segment {
  OperatorRun run;
  OperatorSet repeatable;  // of the run
  Bytes state;             // parameters with gradients and optimizer state, buffers
  Way again, whole;
};

// What no micro-batch changes.
struct CutGraph {
  explicit CutGraph(const Graph& graph)
      : crossing(crossing_bytes(graph)), repeatable(repeatable_operators(graph)) {}
  std::vector<std::optional<Bytes>> crossing;  // by gap
  OperatorSet repeatable;
};

// A problem's graph at one micro-batch, in small pieces that follow each other; any of them that do are a
// segment.
class PieceTable {
 public:
  PieceTable(const Problem& problem, const CutGraph& graph, BatchSize micro_batch, std::size_t count)
      : problem_(problem), graph_(graph), micro_batch_(micro_batch), scratch_(StagePrices::make_scratch()) {
    for (std::size_t k = 0; k < problem.cluster.kinds().size(); ++k) kinds_.push_back(KindId(k));
    cut(count);
    segments_.resize(size());
    std::map<TensorId, std::size_t> last;
    for (std::size_t i = 0; i < size() && possible_; ++i) {
      for (const Passed& read : segment(i, 1).again.reads) last[read.tensor] = i;
    }
    for (std::size_t i = 0; i < size() && possible_; ++i) {
      for (Passed& output : segments_[i][0].again.outputs) output.last_reader = last[output.tensor];
    }
  }

  std::size_t size() const { return begins_.size(); }
  bool possible() const { return possible_; }  // no cell of the costs is missing

  // Pieces first … first + count - 1. Not for two threads at a time.
  const Segment& segment(std::size_t first, std::size_t count) const {
    std::vector<Segment>& known = segments_[first];  // of one piece, of two, …
    while (known.size() < count) known.push_back(made({begin(first), begin(first + known.size() + 1) - 1}));
    return known[count - 1];
  }

  Bytes median_insides() const {
    std::vector<Bytes> insides;
    for (std::size_t i = 0; i < size(); ++i) insides.push_back(segment(i, 1).again.insides);
    const auto middle = insides.begin() + static_cast<std::ptrdiff_t>(size() / 2);
    std::nth_element(insides.begin(), middle, insides.end());
    return *middle;
  }

  // All of them, one after the other, by KindId.
  std::vector<Duration> work() const {
    std::vector<Duration> sum(kinds_.size());
    for (std::size_t i = 0; i < size(); ++i) {
      for (std::size_t kind = 0; kind < sum.size(); ++kind) sum[kind] += segment(i, 1).again.work[kind];
    }
    return sum;
  }

 private:
  struct Gap {
    std::uint32_t at = 0;  // the first operator behind it
    Duration before;
  };

  std::uint32_t begin(std::size_t piece) const {
    return piece < size() ? begins_[piece] : narrow(problem_.graph.operators().size());
  }

  // Near each equal share of the work, no further than half a share, at the gap where fewest bytes cross; not
  // where half as many again cross as at a neighbour: within a layer that is wider inside.
  void cut(std::size_t count) {
    const std::vector<std::optional<Bytes>>& crossing = graph_.crossing;
    const KindCosts costs(problem_.graph, problem_.cluster.kinds().front(), problem_.costs, micro_batch_);
    std::vector<Gap> gaps;
    Duration all;
    for (std::uint32_t op = 0; op < problem_.graph.operators().size(); ++op) {
      if (problem_.graph.operators()[op].duplicable) continue;
      if (all > Duration() && crossing[op]) gaps.push_back({op, all});
      const OperatorCost* cost = costs.of(OperatorId(op));
      all += cost ? cost->forward + cost->backward() : Duration();
    }
    const double share = static_cast<double>(all.count()) / static_cast<double>(count);
    const auto shares = [&](double number) { return Duration(static_cast<std::int64_t>(number * share)); };
    begins_ = {0};
    auto from = gaps.begin();
    for (std::size_t i = 1; i < count; ++i) {
      const Duration end = shares(static_cast<double>(i) + 0.5), middle = shares(static_cast<double>(i));
      const auto until = std::find_if(from, gaps.end(), [&](const Gap& gap) { return gap.before > end; });
      const auto rank = [&](const Gap& gap) {
        return std::tuple(*crossing[gap.at], std::abs(gap.before.count() - middle.count()));
      };
      const auto best =
          std::min_element(from, until, [&](const Gap& a, const Gap& b) { return rank(a) < rank(b); });
      if (best != until && best->before < all) begins_.push_back(best->at);
      from = until;
    }
    const std::vector<std::uint32_t> near = begins_;
    std::size_t place = 0;
    std::erase_if(begins_, [&](std::uint32_t at) {
      const std::size_t i = place++;
      for (std::size_t j = std::max(i, kReach + 1) - kReach; j < std::min(near.size(), i + kReach + 1); ++j) {
        if (i > 0 && 2 * *crossing[at] > 3 * *crossing[near[j]]) return true;
      }
      return false;
    });
  }

  Segment made(OperatorRun run) const {
    const OperatorSet operators(std::vector{run});
    Segment segment{run, common(operators, graph_.repeatable), {}, {}, {}};
    price(operators, {}, segment, segment.whole);
    price(operators, segment.repeatable.runs(), segment, segment.again);
    return segment;
  }

  void price(const OperatorSet& operators, std::span<const OperatorRun> again, Segment& segment,
             Way& way) const {
    const StagePrices& prices = problem_.oracle->prices();
    const StagePrice price = prices.price(
        {.operators = operators.runs(), .recompute = again, .micro_batch = micro_batch_, .kinds = kinds_},
        *scratch_);
    if (price.forbidden) possible_ = false;
    if (!possible_) return;
    const StageMemory& memory = price.memory;
    segment.state = memory.parameters + memory.buffers + memory.gradients + memory.optimizer_state;
    for (const StagePrice::Times& times : price.times) {
      way.work.push_back(times.forward + times.input_gradient + times.weight_gradient + times.recompute);
    }
    way.kept = memory.saved;
    Bytes gradients, sent;
    for (const StagePrice::Received& each : price.received) {
      const Bytes bytes = prices.tensor_bytes(each.tensor, micro_batch_, *scratch_);
      way.reads.push_back({each.tensor, bytes, each.saved, each.gradient});
      if (each.gradient) gradients += bytes;
    }
    for (const StagePrice::Output& each : price.outputs) {
      way.outputs.push_back(
          {each.tensor, each.bytes, each.saved, problem_.graph.tensor(each.tensor).requires_grad});
      if (!each.saved) sent += each.bytes;
    }
    way.insides = std::max({sent + memory.forward_workspace, memory.recomputed + memory.forward_workspace,
                            gradients + memory.recomputed + memory.backward_workspace});
  }

  const Problem& problem_;
  const CutGraph& graph_;
  BatchSize micro_batch_;
  std::vector<KindId> kinds_;
  std::vector<std::uint32_t> begins_;  // of each piece, in operators
  std::unique_ptr<StagePrices::Scratch, void (*)(StagePrices::Scratch*)> scratch_;
  mutable bool possible_ = true;
  mutable std::vector<std::vector<Segment>> segments_;  // by first piece and pieces
};

// The pieces that a device takes, one after the other, in segments whose insides have some size at most.
// Segments from some one on are whole, the others are computed again. What comes from other devices waits in
// slots, one more than micro-batches are in flight.
class Filling {
 public:
  struct Device {
    Bytes memory;
    KindId kind;
    std::int64_t in_flight;
  };
  Filling(const PieceTable& pieces, Bytes insides, std::size_t begin, const Device& device)
      : pieces_(pieces), most_insides_(insides), end_(begin), device_(device) {}

  std::size_t end() const { return end_; }
  const std::vector<std::size_t>& segments() const { return begins_; }  // where each begins

  // Takes the next piece, unless the device has too little memory for it or more to do than the limit.
  bool take(Duration limit) {
    if (end_ == pieces_.size()) return false;
    const std::vector<Passed>& outputs = pieces_.segment(end_, 1).again.outputs;
    const std::size_t begun = begins_.size();
    const Held before = held_, closed_before = closed_;
    if (begins_.empty() ||
        pieces_.segment(begins_.back(), end_ + 1 - begins_.back()).again.insides > most_insides_) {
      closed_ = held_;
      begins_.push_back(end_);
    }
    held_ = closed_;
    add(pieces_.segment(begins_.back(), ++end_ - begins_.back()), held_);
    leaving_.insert(leaving_.end(), outputs.begin(), outputs.end());
    if (need(held_) <= device_.memory && (held_.work <= limit || with_whole_ones().work <= limit))
      return true;
    leaving_.resize(leaving_.size() - outputs.size());
    begins_.resize(begun);
    held_ = before;
    closed_ = closed_before;
    --end_;
    return false;
  }

  // Which segments are whole: those from this one on, as many as memory allows.
  struct Split {
    std::size_t first_whole = 0;
    Duration work;
    Bytes need;
  };
  Split with_whole_ones() const {
    Split split{begins_.size(), held_.work, need(held_)};
    std::size_t end = end_;
    for (Held held = held_; split.first_whole > 0;) {
      const std::size_t first = begins_[split.first_whole - 1];
      const Segment& segment = pieces_.segment(first, end - first);
      held.kept -= std::min(held.kept, segment.again.kept);
      held.work -= segment.again.work[device_.kind.index()];
      add(segment.whole, held);
      if (need(held) > device_.memory) break;
      split = {split.first_whole - 1, held.work, need(held)};
      end = first;
    }
    return split;
  }

 private:
  struct Held {
    Duration work;
    Bytes state, kept, slots, insides;
    std::set<TensorId> tensors;  // of those that pass, that `kept` and `slots` have
  };

  void add(const Segment& segment, Held& held) const {
    held.state += segment.state;
    add(segment.again, held);
  }
  void add(const Way& way, Held& held) const {
    held.work += way.work[device_.kind.index()];
    held.kept += way.kept;
    held.insides = std::max(held.insides, way.insides);
    for (const Passed& read : way.reads) {
      const bool elsewhere = is_elsewhere(read.tensor);
      if ((!read.kept && !elsewhere) || !held.tensors.insert(read.tensor).second) continue;
      (elsewhere ? held.slots : held.kept) += read.bytes;
    }
    for (const Passed& output : way.outputs) {
      if (output.kept && held.tensors.insert(output.tensor).second) held.kept += output.bytes;
    }
  }

  bool is_elsewhere(TensorId tensor) const {
    return std::ranges::none_of(leaving_, [&](const Passed& output) { return output.tensor == tensor; });
  }

  Bytes need(const Held& held) const {
    Bytes gradients;  // that come back
    for (const Passed& output : leaving_) {
      if (output.gradient && output.last_reader >= end_) gradients += output.bytes;
    }
    const std::int64_t w = device_.in_flight;
    return held.state + w * (held.kept + gradients) + (w + 1) * held.slots + held.insides;
  }

  const PieceTable& pieces_;
  Bytes most_insides_;
  std::size_t end_;
  std::vector<std::size_t> begins_;  // of its segments
  Device device_;
  Held held_;                    // where all are computed again
  Held closed_;                  // likewise, without the segment that the next piece joins
  std::vector<Passed> leaving_;  // what its pieces pass on
};

// Devices in a row, or in several rounds of it: a chain in rounds fills and drains faster, with more in
// flight (the interleaved pipeline of Megatron: Narayanan et al., SC'21, §2.2).
struct Loop {
  std::int64_t rounds = 1;
  std::vector<DeviceId> places;
};

// How long segments are, on which devices, and what may be in flight: chains that are tried one after
// the other, with fewer in flight or on less memory, until one fits.
struct Lane {
  Bytes insides;  // of a segment, at most
  const Loop* loop;
  std::int64_t most_in_flight;   // now
  std::vector<Bytes> memory;     // by DeviceId, that segments may take
  std::vector<Bytes> need = {};  // likewise, that those judged last take, as they are counted here
  int corrections = 0;           // with so many in flight
  bool generous = false;         // memory is more than there is: what is counted may be too much
  bool apart = false;            // whole segments that follow each other stay stages of their own
  bool open = true;

  std::int64_t in_flight(std::size_t place) const {
    return std::min(most_in_flight, static_cast<std::int64_t>(loop->places.size() - place));
  }
  // One segment goes back at a time: a device's places share its room.
  Bytes of_a_place(DeviceId device) const {
    const Bytes all = memory[device.index()];
    const Bytes shared = std::min(all, insides);
    return Bytes((all - shared).count() / loop->rounds) + shared;
  }
  void count(Bytes of_place, DeviceId device) {
    Bytes& sum = need[device.index()];
    sum += sum > Bytes() ? of_place - std::min(of_place, insides) : of_place;
  }
};

// One size of micro-batch.
class Chains {
 public:
  Chains(const Problem& problem, const CutGraph& graph, BatchSize micro_batch, const OrderRule& schedule,
         Judge& judge, Context& context)
      : problem_(problem),
        micro_batch_(micro_batch),
        micro_batches_(problem.training.batch.count() / micro_batch.count()),
        schedule_(schedule),
        judge_(judge),
        context_(context),
        pieces_(problem, graph, micro_batch,
                std::min(kPiecesOfADevice * problem.cluster.devices().size(),
                         std::max(kMostPieces, problem.cluster.devices().size()))) {
    for (const Device& device : problem.cluster.devices()) memory_.push_back(device.memory);
  }

  void judge_all() {
    if (!pieces_.possible()) return;
    const std::vector<Duration> work = pieces_.work();
    longest_ = *std::ranges::max_element(work);
    const std::vector<std::vector<DeviceId>> rows =
        device_rows(problem_.cluster, unpinned_devices(problem_), work);
    std::vector<Loop> loops;
    for (const std::vector<DeviceId>& row : rows) {
      Loop loop{.places = row};
      loops.push_back(loop);
      const bool waits = micro_batches_ <= kMicroBatchesOfADevice * std::int64_t{narrow(row.size())};
      while (waits && ++loop.rounds <= kMostRounds && loop.places.size() + row.size() <= kMostPlaces) {
        loop.places.insert(loop.places.end(), row.begin(), row.end());
        loops.push_back(loop);
      }
    }
    std::vector<Lane> lanes;
    const std::int64_t quarter = pieces_.median_insides().count() / 4;
    for (const std::int64_t quarters : kQuarters) {
      const Bytes insides(quarter * quarters);
      for (const Loop& loop : loops) {
        lanes.push_back({.insides = insides, .loop = &loop, .most_in_flight = most(loop), .memory = memory_});
      }
    }
    bool judged = false;
    while (judge_next(lanes)) judged = true;
    if (!judged && !context_.stop()) judge_closest(lanes.front());
  }

 private:
  std::int64_t most(const Loop& loop) const {
    return std::min(micro_batches_, static_cast<std::int64_t>(loop.places.size()));
  }

  // Judges the next chain of each lane; false if there was none.
  bool judge_next(std::vector<Lane>& lanes) {
    std::vector<Proposal> plans;
    std::vector<Lane*> of;
    for (Lane& lane : lanes) {
      if (!lane.open || context_.stop()) continue;
      std::optional<Proposal> plan = proposal(lane);
      while (!plan && make_easier(lane)) plan = proposal(lane);
      if (!plan) continue;
      if (std::ranges::find(plans, *plan) != plans.end()) {  // segments may be as long as they like
        lane.open = false;
        continue;
      }
      if (!context_.take_states(plan->stages.size() * static_cast<std::size_t>(micro_batches_))) break;
      plans.push_back(*std::move(plan));
      of.push_back(&lane);
    }
    const std::vector<std::optional<Verdict>> verdicts = judge_.consider_all(plans);
    for (std::size_t i = 0; i < verdicts.size(); ++i) {
      const bool lacks = verdicts[i] && verdicts[i]->ruling == Verdict::Ruling::kTooMuchMemory;
      of[i]->open = lacks && (!judge_.best() || verdicts[i]->iteration < *judge_.best());
      if (of[i]->open) correct(*of[i], *verdicts[i]);
    }
    return !plans.empty();
  }

  // After a chain that takes too much: stages stay apart, devices take less, or fewer are in flight.
  void correct(Lane& lane, const Verdict& verdict) const {
    if (!std::exchange(lane.apart, true)) return;
    if (lane.corrections++ == kCorrections) {
      make_easier(lane);
      return;
    }
    for (const Excess& excess : verdict.excess) {
      const std::size_t d = excess.device.index();
      lane.memory[d] = lane.need[d] - std::min(lane.need[d], excess.by);
    }
  }

  // Where no chain is left to try: with a quarter more memory, then with fewer in flight; false, and the lane
  // is closed, where one is.
  bool make_easier(Lane& lane) const {
    lane.corrections = 0;
    lane.memory = memory_;
    if (std::exchange(lane.generous, !lane.generous)) {
      const std::int64_t step = std::max<std::int64_t>(most(*lane.loop) / kPartsOfInFlight, 1);
      lane.open = lane.most_in_flight > 1;
      lane.most_in_flight = std::max<std::int64_t>(lane.most_in_flight - step, 1);
    } else {
      for (Bytes& memory : lane.memory) memory = percent_of(memory, kGenerousPercent);
    }
    return lane.open;
  }

  // Where no chain finds room: with as much more memory as one needs.
  void judge_closest(Lane lane) {
    lane.most_in_flight = 1;
    for (const std::int64_t percent : kMemoryPercents) {
      for (std::size_t d = 0; d < memory_.size(); ++d) lane.memory[d] = percent_of(memory_[d], percent);
      if (const std::optional<Proposal> plan = proposal(lane)) {
        judge_.consider(*plan);
        return;
      }
    }
  }

  // What each device takes, by place in the row, if it has room and no more to do than the limit.
  std::optional<std::vector<Filling>> filled(const Lane& lane, Duration limit) const {
    std::vector<Filling> fillings;
    std::size_t next = 0;
    for (std::size_t place = 0; place < lane.loop->places.size(); ++place) {
      const DeviceId device = lane.loop->places[place];
      Filling filling(pieces_, lane.insides, next,
                      {.memory = lane.of_a_place(device),
                       .kind = problem_.cluster.device(device).kind,
                       .in_flight = lane.in_flight(place)});
      while (filling.take(limit)) next = filling.end();
      fillings.push_back(std::move(filling));
    }
    return next == pieces_.size() ? std::optional(std::move(fillings)) : std::nullopt;
  }

  // With the least limit.
  std::optional<std::vector<Filling>> evenly_filled(const Lane& lane) const {
    Duration most = longest_;
    std::optional<std::vector<Filling>> best = filled(lane, most);
    Duration least;
    for (const Duration precision = most / kPrecision; best && most - least > precision;) {
      const Duration middle = least + (most - least) / 2;
      std::optional<std::vector<Filling>> fillings = filled(lane, middle);
      (fillings ? most : least) = middle;
      if (fillings) best = std::move(fillings);
    }
    return best;
  }

  std::optional<Proposal> proposal(Lane& lane) const {
    const auto fillings = evenly_filled(lane);
    if (!fillings) return std::nullopt;
    lane.need.assign(memory_.size(), Bytes());
    Proposal plan{.stages = {}, .micro_batch = micro_batch_, .schedule = schedule_};
    std::vector<std::int64_t> in_flight;  // by stage
    for (std::size_t place = 0; place < fillings->size(); ++place) {
      const Filling& filling = (*fillings)[place];
      const std::vector<std::size_t>& segments = filling.segments();
      const auto [first_whole, work, need] = filling.with_whole_ones();
      lane.count(need, lane.loop->places[place]);
      const std::size_t stages = lane.apart ? segments.size() : std::min(segments.size(), first_whole + 1);
      for (std::size_t i = 0; i < stages; ++i) {
        const bool again = i < first_whole;
        const bool to_the_end = i + 1 == segments.size() || (!again && !lane.apart);
        const std::size_t end = to_the_end ? filling.end() : segments[i + 1];
        plan.stages.push_back(stage(segments[i], end, lane.loop->places[place], again));
        in_flight.push_back(lane.in_flight(place));
      }
    }
    const std::optional<RunPlan> complete = problem_.oracle->rules().complete(
        plan.stages, problem_.training.batch, micro_batch_, Orders(schedule_));
    if (!complete) return std::nullopt;
    const std::vector<std::uint32_t> limits = in_flight_limits(complete->frame);
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      const std::int64_t more = in_flight[s] - std::int64_t{limits[s]};
      plan.stages[s].more_in_flight = static_cast<std::int32_t>(std::min<std::int64_t>(more, 0));
    }
    return plan;
  }

  StageDraft stage(std::size_t first, std::size_t end, DeviceId device, bool again) const {
    StageDraft stage;
    std::vector<OperatorRun> runs, repeatable;
    for (std::size_t piece = first; piece < end; ++piece) {
      const Segment& segment = pieces_.segment(piece, 1);
      runs.push_back(segment.run);
      repeatable.insert(repeatable.end(), segment.repeatable.runs().begin(), segment.repeatable.runs().end());
    }
    stage.operators = OperatorSet(std::move(runs));
    stage.devices = {device};
    if (again) stage.recompute = OperatorSet(std::move(repeatable));
    return stage;
  }

  const Problem& problem_;
  BatchSize micro_batch_;
  std::int64_t micro_batches_;
  const OrderRule& schedule_;
  Judge& judge_;
  Context& context_;
  PieceTable pieces_;
  Duration longest_;           // all pieces on the slowest kind of device
  std::vector<Bytes> memory_;  // by DeviceId
};

}  // namespace

Outcome checkpointed(const Problem& problem, const CheckpointedOptions& options, Context& context) {
  if (unpinned_devices(problem).size() < problem.cluster.devices().size())
    return {.status = Status::kUnsupported, .why = "planner 'checkpointed' does not keep pins"};
  Judge judge(problem, context);
  const CutGraph graph(problem.graph);
  for (const BatchSize size : usable_micro_batches(problem)) {
    Chains(problem, graph, size, options.schedule, judge, context).judge_all();
  }
  return judge.outcome();
}

}  // namespace espalier
