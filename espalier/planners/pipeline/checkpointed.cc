#include "espalier/planners/pipeline/checkpointed.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "espalier/planners/candidate.h"
#include "espalier/planners/pipeline/device_row.h"
#include "espalier/planners/pipeline/memory_ladder.h"
#include "espalier/planners/pipeline/piece_table.h"
#include "espalier/planners/pipeline/segment_filling.h"
#include "espalier/planners/pipeline/v_chains.h"

namespace espalier {
namespace {

constexpr std::size_t kPiecesOfADevice = 32;
constexpr std::size_t kMostPieces = 2048;  // unless there are more devices
// What a segment's insides may be, in quarters of the median piece's.
constexpr std::int64_t kQuarters[] = {4, 6, 8, 12, 16, 24, 32};
// How often the row of devices is gone through.
constexpr std::int64_t kMostRounds = 4;
// With more micro-batches for each device a pipeline hardly waits: several rounds, or a V where memory is
// plenty, would gain nothing.
constexpr std::int64_t kMostInRounds = 4, kMostInAV = 8;
constexpr std::int64_t kMostStatesInAV = 4096;  // there: more take too long for what they may gain
constexpr std::size_t kMostPlaces = 256;        // in several rounds
constexpr std::int64_t kPartsOfInFlight = 8;
constexpr int kCorrections = 3;
constexpr std::int64_t kGenerousPercent = 125;
constexpr std::int64_t kPrecision = 2048;  // of the bottleneck: 1/2048 of all work

std::size_t most_pieces(const Cluster& cluster) {
  const std::size_t devices = cluster.devices().size();
  return std::min(kPiecesOfADevice * devices, std::max(kMostPieces, devices));
}

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
        graph_(graph),
        pieces_(problem, graph, micro_batch, most_pieces(problem.cluster), PieceTable::Cuts::kNarrow) {
    for (const Device& device : problem.cluster.devices()) memory_.push_back(device.memory);
  }

  void judge_all() {
    if (!pieces_.possible()) return;
    const std::vector<Duration> work = pieces_.work();
    longest_ = *std::ranges::max_element(work);
    const std::vector<std::vector<DeviceId>> rows =
        device_rows(problem_.cluster, unpinned_devices(problem_), work);
    const std::vector<Loop> loops = loops_over(rows);
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
    binds_ |= !judged;
    if (problem_.lists && !context_.stop() && gains_in_a_v(rows.front())) judge_in_a_v(rows);
    if (!judged && !context_.stop()) judge_closest(lanes.front());
  }

 private:
  // Of these pieces, and of smaller ones if there are any.
  void judge_in_a_v(const std::vector<std::vector<DeviceId>>& rows) {
    std::vector<const PieceTable*> tables{&pieces_};
    std::optional<PieceTable> small;
    if (pieces_.leaves_cuts_out()) {
      small.emplace(problem_, graph_, micro_batch_, most_pieces(problem_.cluster), PieceTable::Cuts::kAll);
      tables.push_back(&*small);
    }
    judge_v_chains(problem_, tables, rows, judge_, context_);
  }

  std::vector<Loop> loops_over(const std::vector<std::vector<DeviceId>>& rows) const {
    std::vector<Loop> loops;
    for (const std::vector<DeviceId>& row : rows) {
      Loop loop{.places = row};
      loops.push_back(loop);
      const bool waits = has_at_most(kMostInRounds, row);
      while (waits && ++loop.rounds <= kMostRounds && loop.places.size() + row.size() <= kMostPlaces) {
        loop.places.insert(loop.places.end(), row.begin(), row.end());
        loops.push_back(loop);
      }
    }
    return loops;
  }

  bool gains_in_a_v(const std::vector<DeviceId>& row) const {
    return binds_ ||
           (has_at_most(kMostInAV, row) && 2 * narrow(row.size()) * micro_batches_ <= kMostStatesInAV);
  }

  // Micro-batches for each device.
  bool has_at_most(std::int64_t most, const std::vector<DeviceId>& row) const {
    return micro_batches_ <= most * static_cast<std::int64_t>(row.size());
  }

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
      binds_ |= lacks || std::ranges::any_of(plans[i].stages, [](const StageDraft& stage) {
                  return !stage.recompute.empty();
                });
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
  std::optional<std::vector<SegmentFilling>> filled(const Lane& lane, Duration limit) const {
    std::vector<SegmentFilling> fillings;
    std::size_t next = 0;
    for (std::size_t place = 0; place < lane.loop->places.size(); ++place) {
      const DeviceId device = lane.loop->places[place];
      SegmentFilling filling(pieces_, lane.insides, next,
                             {.memory = lane.of_a_place(device),
                              .kind = problem_.cluster.device(device).kind,
                              .in_flight = lane.in_flight(place)});
      while (filling.take(limit)) next = filling.end();
      fillings.push_back(std::move(filling));
    }
    return next == pieces_.size() ? std::optional(std::move(fillings)) : std::nullopt;
  }

  // With the least limit.
  std::optional<std::vector<SegmentFilling>> evenly_filled(const Lane& lane) const {
    Duration most = longest_;
    std::optional<std::vector<SegmentFilling>> best = filled(lane, most);
    Duration least;
    for (const Duration precision = most / kPrecision; best && most - least > precision;) {
      const Duration middle = least + (most - least) / 2;
      std::optional<std::vector<SegmentFilling>> fillings = filled(lane, middle);
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
      const SegmentFilling& filling = (*fillings)[place];
      const std::vector<std::size_t>& segments = filling.segments();
      const auto [first_whole, work, need] = filling.with_whole_ones();
      lane.count(need, lane.loop->places[place]);
      const std::size_t stages = lane.apart ? segments.size() : std::min(segments.size(), first_whole + 1);
      for (std::size_t i = 0; i < stages; ++i) {
        const bool again = i < first_whole;
        const bool to_the_end = i + 1 == segments.size() || (!again && !lane.apart);
        const std::size_t end = to_the_end ? filling.end() : segments[i + 1];
        plan.stages.push_back(
            pieces_.stage(segments[i], end, lane.loop->places[place], [&](std::size_t) { return again; }));
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

  const Problem& problem_;
  BatchSize micro_batch_;
  std::int64_t micro_batches_;
  const OrderRule& schedule_;
  Judge& judge_;
  Context& context_;
  const CutGraph& graph_;
  PieceTable pieces_;
  Duration longest_;           // all pieces on the slowest kind of device
  std::vector<Bytes> memory_;  // by DeviceId
  bool binds_ = false;         // memory: some chain lacks it, or computes something again
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
