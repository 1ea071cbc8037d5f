#pragma once

// One probe of GraphPipe's partitioner: is there a plan with every stage at most so long, and which of them
// holds the fewest samples in flight at its sources? A dynamic program over runs, forks and devices.
//
// Planning goes from the loss to the inputs (arXiv 2406.17145, §4): how many samples a stage holds, and so
// its memory, depends on all that follows it. What follows a part of the tree is known by one figure, the
// samples that it holds in flight (and their micro-batch): the key of a table. A table has an entry for each
// place in its run and each number of devices.
//
//     single     [i … j) on r devices, then what is best from j on with the others
//     series     the same, step by step
//     parallel   devices dealt to branches; the larger count holds at a common source
//     joined     the end of a branch with what follows the join, or what precedes a fork with the beginning
//                of a branch, as one stage

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "espalier/planners/context.h"
#include "espalier/planners/pipeline/graphpipe_prices.h"
#include "espalier/planners/pipeline/graphpipe_tree.h"

namespace espalier::internal {

// A micro-batch size with all that depends on it.
struct PipeSize {
  // Refers to the prices, which several may share.
  PipeSize(PlacePrices& of_size, const std::vector<DeviceId>& devices, bool powers_of_two,
           std::size_t most_replicas = kMaxMicroBatches);

  std::int64_t samples() const { return prices.micro_batch().count(); }
  std::int64_t share(std::size_t replicas) const { return shares_[replicas]; }  // of a replica, at most

  PlacePrices& prices;
  DeviceRow row;
  std::vector<std::size_t> degrees;  // numbers of replicas, ascending

 private:
  std::vector<std::int64_t> shares_;  // by replicas
};

// A stage of an answer.
struct PipeStage {
  PlaceRanges places;
  std::size_t size = 0;                 // its micro-batch, among the sizes
  std::size_t begin = 0, replicas = 0;  // its devices in the row
  std::optional<DeviceId> pinned = {};  // in their place
  std::int64_t time = 0;                // of a step, ns
  std::int64_t micro_batch_time = 0;
  friend bool operator==(const PipeStage&, const PipeStage&) = default;
};

struct PipePlan {
  std::vector<PipeStage> stages;  // inputs first
  std::int64_t bottleneck = 0;    // ns of a step
  std::int64_t samples = 0;       // in flight at the sources, at most
  std::int64_t depth = 0;         // stages on the longest path of the tree
  std::int64_t latency = 0;       // one micro-batch along the heaviest path
  // Bottleneck and the rest of the path: what a step takes if nobody waits.
  std::int64_t estimate() const;
};

struct PipeSearchOptions {
  OrderRule schedule;
  // Runs and branches of at most so many items are searched without the shortcut that a shorter stage in the
  // same place never costs more: exact whatever messages and sums cost.
  std::size_t exact_items = 10;
  std::size_t most_joined_branches = 4;  // of a fork: that are tried for joined stages
  // What stages may use of a device's memory; none: as much as they like.
  std::optional<std::int64_t> memory_per_mille = 1000;
};

class PipeSearch {
 public:
  enum class Prefer : std::uint8_t { kFewSamples, kShallow };

  // Refers to all of them. Sizes have one batch, one row of devices and one linearization. The tree's work is
  // what a step computes at least, in nanoseconds.
  PipeSearch(const PipeTree& tree, std::vector<std::unique_ptr<PipeSize>>& sizes,
             const PipeSearchOptions& options, Context& context);

  // The best plan whose stages all take at most that long; none if there is none, or the search is to end.
  std::optional<PipePlan> probe(std::int64_t most, Prefer prefer);

  // No plan's bottleneck is below this.
  std::int64_t least_possible() const;
  // Step times of stages that probes have met, each once or more.
  const std::vector<std::int64_t>& times() const { return times_; }
  std::size_t devices() const { return devices_; }  // of the row
  bool ended() const { return context_.budget_spent || context_.stop(); }

 private:
  static constexpr std::int64_t kUnknown = -1, kNever = std::numeric_limits<std::int64_t>::max();
  static constexpr std::uint16_t kNobody = 0xffff;

  enum class Step : std::uint8_t { kNone, kStage, kLeaveLast, kLeaveFirst, kFork, kForkTail, kForkFront };
  // What follows a segment: samples in flight there, at which micro-batch. None at the end.
  struct After {
    std::int64_t samples = 0;
    std::uint8_t size = 0;
    friend auto operator<=>(const After&, const After&) = default;
  };
  struct Entry {
    std::int64_t samples = -1;  // in flight at the source; negative: nothing fits
    std::uint32_t depth = 0;
    std::uint32_t behind = 0;  // devices of what follows the first step
    Step step = Step::kNone;
    std::uint8_t size = 0;           // of the joined stage
    std::uint8_t next_size = 0;      // of what follows it
    std::uint16_t replicas = 0;      // of the stage that the step adds
    std::uint16_t next = 0;          // item behind the step
    std::uint16_t branch = kNobody;  // of the joined stage, in the fork
    std::uint16_t cut = 0;           // where the joined stage cuts that branch
    bool fits() const { return samples >= 0; }
  };
  // Entries for numbers of devices lo … hi; fewer do not fit, more are of no use.
  struct Row {
    std::size_t low = 0, high = 0, width = 0;  // width 0: nothing fits
    std::vector<Entry> entries;                // by source's size, position, devices
  };
  struct RunTable {
    std::uint32_t run = 0;
    std::size_t end = 0;
    After after;
    std::vector<Row> rows;  // by first item
  };
  // A branch's items from `front_cut` on are left, or those before `tail_cut`.
  struct Cuts {
    std::uint16_t front = kNobody, front_cut = 0;
    std::uint16_t tail = kNobody, tail_cut = 0;
    friend auto operator<=>(const Cuts&, const Cuts&) = default;
  };
  struct ForkEntry {
    std::int64_t samples = -1;
    std::uint32_t depth = 0;
    std::uint32_t devices = 0;  // of the transition
    std::uint16_t transition = 0;
  };
  // A fork with those cuts: what is the same for every target and whatever follows.
  struct ForkShape {
    struct Segment {
      std::uint16_t branch = 0;  // of the fork
      std::uint32_t run = 0;     // that it is like
      std::uint32_t actual = 0;  // its own
      std::size_t begin = 0, end = 0;
      bool whole = false;
    };
    struct Transition {
      std::uint16_t to = 0;                // state
      std::vector<std::uint16_t> members;  // segments; one: as it is, several: a group
      std::uint32_t run = 0;               // that is planned for them
      std::size_t begin = 0, end = 0;      // items of it
    };
    std::vector<Segment> segments;
    std::vector<std::vector<Transition>> ways;  // by state; the last has none
    std::vector<Weight> work_left;              // by state
    std::vector<char> reached;                  // by state: from the first
    std::size_t states() const { return ways.size(); }
  };
  struct ForkTable {
    const ForkShape* shape = nullptr;
    std::size_t low = 0, high = 0;
    std::vector<ForkEntry> entries;  // by state, position, devices 0 … high; none: nothing fits
  };
  struct NextValue {
    std::int64_t samples = 0;
    std::uint32_t depth = 0, devices = 0;
    std::uint8_t size = 0;
  };
  struct RunPrices {
    std::vector<const StageNeeds*> needs;                // by first item, item behind
    std::vector<std::int64_t> times;                     // the same, by class of devices
    std::vector<std::vector<std::int64_t>> work_before;  // by compute class, item; alone on the host
  };

  std::size_t place_of(std::size_t position) const { return alike_ ? 0 : position; }
  std::size_t positions() const { return alike_ ? 1 : devices_ + 1; }
  std::size_t room(std::size_t position) const { return alike_ ? devices_ : devices_ - position; }
  bool better(std::int64_t samples, std::uint32_t depth, std::int64_t than_samples,
              std::uint32_t than_depth) const {
    return prefer_ == Prefer::kFewSamples ? std::pair(samples, depth) < std::pair(than_samples, than_depth)
                                          : std::pair(depth, samples) < std::pair(than_depth, than_samples);
  }
  bool improves(std::int64_t samples, std::uint32_t depth, const Entry& than) const {
    return !than.fits() || better(samples, depth, than.samples, than.depth);
  }

  // Devices that so much work needs at least, at the target.
  std::size_t least_devices(Weight work) const;
  std::size_t most_devices(Weight work) const {
    return devices_ - std::min(devices_, least_devices(tree_.work() - work));
  }

  const Entry& at(const RunTable& table, std::size_t item, std::size_t size, std::size_t position,
                  std::size_t devices) const;
  Entry* cell(Row& row, std::size_t size, std::size_t position, std::size_t devices) const;
  Row make_row(Weight work) const;
  Weight work_of(std::uint32_t run, std::size_t begin, std::size_t end) const;

  std::optional<PipePlan> best_plan();  // at the target
  const RunTable& run_table(std::uint32_t run, std::size_t end, After after);
  bool is_exact(const RunTable& table, std::size_t item) const {
    return has_pins_ || table.end - item <= options_.exact_items;
  }
  struct End {
    std::size_t item = 0;
    std::int64_t most_in_flight = kUnknown;
  };
  // A stage from an item on, but for its end, and how many devices it may have with all that follows.
  struct Start {
    std::size_t item = 0, size = 0, position = 0, replicas = 0;
    std::uint32_t run_class = 0;
    std::size_t fewest = 0, most = 0;
  };
  struct Next {  // what follows a stage
    std::int64_t samples = 0;
    std::uint32_t depth = 0;
    std::size_t size = 0, devices = 0;
  };
  std::int64_t most_in_flight(const RunTable& table, const Start& start, End& end);
  void add_stages(RunTable& table, std::size_t item);
  void add_ends(RunTable& table, const Start& start, std::size_t next_size);
  bool add_stage(RunTable& table, const Start& start, End& end, const Next& next, std::size_t n);
  void add_pinned_stages(RunTable& table, std::size_t item);
  void add_forks(RunTable& table, Row& row, std::size_t item, Cuts cuts);
  void add_tails(RunTable& table, Row& row, std::size_t item, Cuts cuts);
  void add_fronts(RunTable& table, std::size_t item);
  void leave_devices_out(Row& row) const;
  const Row& front_row(RunTable& table, std::size_t fork_item, std::uint16_t branch, std::uint16_t cut);
  void spread(Row& row, const ForkTable& fork, std::size_t size, std::size_t position, const Entry& step,
              std::uint32_t depth, std::size_t used) const;
  bool may_improve(const Row& row, const ForkShape& shape, std::size_t size, std::size_t position,
                   const Next& next) const;
  // Values that may follow at an item, from a position on, by devices: each that is better than with fewer.
  std::vector<NextValue> nexts(const RunTable& table, std::size_t item, std::size_t position) const;

  const ForkTable& fork_table(std::uint32_t fork, Cuts cuts, After after, std::size_t size);
  const ForkShape& fork_shape(std::uint32_t fork, const Cuts& cuts);
  void add_segments(ForkShape& shape, std::uint32_t fork, const Cuts& cuts) const;
  void add_transitions(ForkShape& shape, const PipeFork& fork) const;
  void add_way(ForkTable& table, std::size_t state, std::uint16_t number, After after, std::size_t size);
  void deal_alike(ForkTable& table, std::size_t state, std::uint16_t number, const Row& row,
                  std::size_t size) const;
  void deal_in_a_row(ForkTable& table, std::size_t state, std::uint16_t number, const Row& row,
                     std::size_t size) const;
  void take_better(ForkEntry& entry, const Entry& mine, const ForkEntry& others, std::size_t devices,
                   std::uint16_t number) const;
  std::size_t fork_cell(const ForkTable& table, std::size_t state, std::size_t position,
                        std::size_t devices) const {
    return (state * positions() + place_of(position)) * (table.high + 1) + std::min(devices, table.high);
  }
  void solve_state(ForkTable& table, std::size_t state, After after, std::size_t size);
  std::vector<std::uint16_t> branches_to_join(std::uint32_t fork, std::uint16_t apart = kNobody) const;
  struct Tail {
    std::uint16_t cut = 0;
    bool in_time = false;
    const StageNeeds* needs = nullptr;  // null: not asked yet
  };
  std::vector<Tail> tails(std::uint32_t run, std::uint16_t least, std::size_t size, std::uint32_t run_class,
                          std::int64_t behind);
  std::vector<std::uint16_t> tail_cuts(std::vector<Tail>& tails, std::uint32_t run, std::size_t size,
                                       std::uint32_t run_class, const PlaceRanges& behind,
                                       std::int64_t in_flight);
  std::vector<std::uint16_t> front_cuts(std::uint32_t run, std::size_t size, std::uint32_t run_class,
                                        const PlaceRanges& before);

  // Micro-batches in flight of each replica; 0 where the sizes do not go together.
  std::int64_t in_flight(std::size_t size, std::size_t replicas, std::int64_t next_samples,
                         std::size_t next_size) const;
  std::int64_t held(std::size_t size, std::size_t replicas, std::int64_t in_flight) const {
    return static_cast<std::int64_t>(replicas) * in_flight * sizes_[size]->samples();
  }
  // A stage of so many replicas holds no less, whatever is between it and what holds that: a part of the
  // batch for each replica more, until it is whole.
  std::int64_t least_held(std::size_t size, std::size_t replicas, std::int64_t after) const {
    const std::int64_t b = sizes_[size]->samples();
    return std::min(sizes_[size]->prices.micro_batches() * b,
                    after + static_cast<std::int64_t>(replicas) * b);
  }
  Bytes usable(Bytes device) const { return device - (1000 - *options_.memory_per_mille) * (device / 1000); }
  bool fits(Bytes needed, Bytes device) const {
    return !options_.memory_per_mille || needed <= usable(device);
  }
  bool may_stand(const StageNeeds& needs, std::size_t size, std::size_t replicas, std::uint32_t run_class,
                 std::int64_t in_flight) const;

  RunPrices& prices_of(std::uint32_t run, std::size_t size);
  const StageNeeds& needs(std::uint32_t run, std::size_t size, std::size_t begin, std::size_t end);
  std::int64_t time(std::uint32_t run, std::size_t size, std::size_t begin, std::size_t end,
                    std::uint32_t run_class);
  std::int64_t time(const StageNeeds& needs, std::size_t size, std::uint32_t run_class);
  std::int64_t pinned_time(const PlaceRanges& places, const StageNeeds& needs, std::size_t size);
  std::uint32_t class_of(std::size_t size, std::size_t position, std::size_t replicas) const {
    return sizes_[size]->row.class_of(position, replicas);
  }
  const std::vector<std::int64_t>& work_before(std::uint32_t run, std::size_t size,
                                               std::uint32_t compute_class);
  // Whether a run of devices computes so much, alone on its host, within the target.
  bool within(std::size_t size, const RunClass& on, std::int64_t alone) const {
    const RunClass::Load& load = on.loads.front();
    return load.share * sizes_[size]->prices.in_company(load.compute, alone) <= most_;
  }
  // The last item behind which a stage from `begin` may end, as far as computing goes.
  std::size_t farthest(std::uint32_t run, std::size_t size, std::size_t begin, std::size_t end,
                       std::uint32_t run_class);

  // From tables to stages (graphpipe_answer.cc). `actual`: the run itself, where the table is of one that it
  // is like. Stages come inputs first; what comes back is the heaviest path from there to the end.
  struct Spot {
    std::uint32_t actual = 0;
    std::size_t item = 0, size = 0, position = 0, devices = 0;
  };
  std::int64_t extract(const RunTable& table, const Spot& spot, std::int64_t behind,
                       std::vector<PipeStage>& stages);
  std::int64_t extract_step(const RunTable& table, const Spot& spot, const Entry& entry, Cuts cuts,
                            std::int64_t behind, std::vector<PipeStage>& stages);
  std::int64_t extract_fork(const ForkTable& fork, std::uint32_t actual_fork, After after, const Spot& spot,
                            std::int64_t behind, std::vector<PipeStage>& stages);
  PipeStage stage_of(PlaceRanges places, std::size_t size, std::size_t position, std::size_t replicas);

  const PipeTree& tree_;
  std::vector<std::unique_ptr<PipeSize>>& sizes_;
  const PipeSearchOptions& options_;
  Context& context_;
  std::size_t devices_;
  bool alike_ = true;  // all devices of the row are: only how many counts
  bool has_pins_ = false;
  std::int64_t group_ = 1;
  Hop hop_;  // the slowest between neighbours of the row
  std::map<DeviceId, std::vector<std::int64_t>> pinned_work_before_;  // by place, of one micro-batch

  std::int64_t most_ = 0;
  Prefer prefer_ = Prefer::kFewSamples;
  std::map<std::tuple<std::uint32_t, std::size_t, After>, std::unique_ptr<RunTable>> run_tables_;
  std::map<std::tuple<const RunTable*, std::size_t, std::uint16_t, std::uint16_t>, std::unique_ptr<Row>>
      front_rows_;
  std::map<std::tuple<std::uint32_t, Cuts, After, std::size_t>, std::unique_ptr<ForkTable>> fork_tables_;
  std::map<std::tuple<std::uint32_t, Cuts>, ForkShape> fork_shapes_;  // of all probes

  std::vector<RunPrices> run_prices_;  // by run, size
  std::map<std::tuple<const StageNeeds*, std::uint32_t>, std::int64_t> other_times_;
  std::vector<std::int64_t> times_;
  std::vector<End> ends_;             // of add_stages, from the last
  std::vector<char> done_;            // of add_ends, by devices
  std::vector<std::int64_t> wholes_;  // of add_stages, by position: what one stage for all that is left holds
};

}  // namespace espalier::internal
