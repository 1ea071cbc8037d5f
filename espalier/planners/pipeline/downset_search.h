#pragma once

// Piper's dynamic program over chains of downsets (piper.h), for one micro-batch size, one row of devices and
// one cut of the graph into pieces.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "espalier/planners/literal/downsets.h"
#include "espalier/planners/pipeline/graphpipe_prices.h"
#include "espalier/planners/pipeline/piper.h"

namespace espalier::internal {

// The pieces of a graph, and what each needs before it.
struct Pieces {
  std::vector<PlaceRanges> places;
  literal::ItemLists before;
};

// The pieces of a tree, without its forks. One that holds operators of two pins, or pinned ones beside others
// that have work, is cut where that changes.
Pieces pieces_of(const PipeTree& tree, const Linearization& line, std::span<const Weight> before);

// A way to plan what stands behind a downset.
struct DownsetTail {
  std::int64_t bottleneck = 0;
  std::int64_t held = 0;  // micro-batches in flight of its first stage, over the replicas
  std::uint32_t stages = 0;
  std::uint32_t to = 0;  // the downset behind its first stage
  std::uint32_t replicas = 0, degree = 1;
  std::uint32_t way = 0;             // of the first stage: into ways()
  std::uint32_t rest = 0;            // in the front behind that
  std::optional<DeviceId> pin = {};  // where the first stage stands, which then takes none of the row
};

class DownsetSearch {
 public:
  struct Options {
    OrderRule schedule;
    PiperOptions::Recompute recompute = PiperOptions::Recompute::kPieces;
    std::vector<std::uint32_t> degrees = {1};  // of tensor parallelism, ascending
    std::int64_t memory_percent = 100;         // of each device's memory that stages may take
  };
  struct Stage {
    PlaceRanges places, again;
    std::vector<DeviceId> devices;
    std::uint32_t degree = 1;
  };

  // Refers to all of them.
  DownsetSearch(const Pieces& pieces, const literal::Downsets& downsets, PlacePrices& prices, DeviceRow& row,
                const Options& options, Context& context);

  // The front of whole plans with no stage above `most`; nothing if the budget ends.
  std::vector<DownsetTail> run(std::int64_t most);

  std::vector<Stage> stages_of(DownsetTail tail);

 private:
  // A stage at one degree.
  struct Variant {
    const StageNeeds* plain = nullptr;
    std::vector<PlaceRanges> ways;              // what is computed again: nothing first, longer and longer
    std::vector<const StageNeeds*> needs = {};  // by way, where they were asked for
  };
  struct Worth {  // of computing a piece again
    std::uint32_t piece;
    std::int64_t bytes, time;
  };
  struct Candidate {  // a stage that is looked at
    std::size_t set = 0, larger = 0;
    std::uint32_t degree = 1;
    PlaceRanges places = {};  // once it is ready
    Variant variant = {};
  };
  // What a front holds at least and at most; `open` if plans may go on there.
  struct Summary {
    std::int64_t least_bottleneck = 0, least_held = 0, most_held = 0;
    std::uint32_t least_stages = 0;
    bool open = false;
  };

  std::size_t at(std::size_t set, std::size_t place) const { return set * (row_.size() + 1) + place; }
  std::vector<DownsetTail>& front(std::size_t set, std::size_t place) { return fronts_[at(set, place)]; }
  const Summary& summary(std::size_t set, std::size_t place) const { return summaries_[at(set, place)]; }
  const RunClass& run_class(std::size_t place, std::size_t replicas, std::uint32_t degree);
  RunClass class_of_groups(std::size_t place, std::size_t replicas, std::uint32_t degree) const;

  PlaceRanges difference(std::size_t small, std::size_t large) const;
  void prepare_work();
  void prepare_bounds();
  void summarize(std::size_t set);
  bool is_possible(std::size_t set, std::size_t place) const;
  void prepare_pins();

  // `places`: where a stage in front of the larger one may begin.
  bool add_stages(std::size_t set, std::size_t larger, const std::vector<std::size_t>& places);
  bool add_at(Candidate& stage, std::size_t place);
  bool add_pinned(Candidate& stage, DeviceId device, const std::vector<std::size_t>& places);
  // Adds the stage before each rest behind it. `elsewhere`: of a step, on its device. `plain`: its time,
  // where nothing is computed again; none if it cannot stand there.
  bool add_before(Candidate& stage, const RunClass& on, std::size_t place, DownsetTail fresh,
                  std::int64_t elsewhere, std::optional<std::int64_t> plain);
  std::optional<std::int64_t> time_of(Candidate& stage, std::size_t way, const RunClass& on,
                                      std::size_t place, std::int64_t elsewhere);
  std::optional<std::int64_t> plain_time(Candidate& stage, const RunClass& on, std::size_t place,
                                         std::int64_t elsewhere);
  // The same for a run of single devices, remembered for this stage.
  std::optional<std::int64_t> plain_time_on(Candidate& stage, std::uint32_t run_class);
  bool is_ready(Candidate& stage);
  // The first way that fits with so many micro-batches in flight; none if no way does, or the budget ends.
  std::optional<std::uint32_t> way_for(Candidate& stage, Bytes memory, std::int64_t in_flight);
  const StageNeeds& needs(Candidate& stage, std::size_t way);
  std::vector<PlaceRanges> ways_of(std::size_t set, std::size_t larger, std::uint32_t degree);
  const std::vector<Worth>& worth_repeating(std::uint32_t degree);
  std::int64_t alone(const Candidate& stage, std::uint32_t compute) const;
  std::int64_t reduced(const Candidate& stage, std::size_t way, std::size_t place, std::size_t replicas);
  std::int64_t in_flight(const RunClass& on, std::uint32_t stages, std::int64_t held) const;
  static void add(const DownsetTail& fresh, std::vector<DownsetTail>& front);

  const Pieces& pieces_;
  const literal::Downsets& downsets_;
  PlacePrices& prices_;
  DeviceRow& row_;
  const Options& options_;
  Context& context_;
  Hop hop_;  // the slowest between neighbours; with pins, between any devices
  std::int64_t group_ = 1, most_ = 0;
  std::vector<std::vector<std::int64_t>> work_;    // by compute class, downset: alone on its host
  std::vector<std::vector<std::uint32_t>> lacks_;  // the same: pieces without a cell
  // By downset, place: no bottleneck before it, or behind it, is less.
  std::vector<std::int64_t> least_before_, least_behind_;
  std::vector<std::int64_t> pinned_pieces_;      // by downset: how many stages on pinned devices there may be
  std::vector<std::optional<DeviceId>> pin_of_;  // by piece
  std::map<DeviceId, std::int64_t> pinned_work_;  // of a micro-batch, of all that is pinned there
  std::vector<std::vector<DownsetTail>> fronts_;  // by downset, place
  std::vector<Summary> summaries_;                // the same, of downsets whose fronts are whole
  std::vector<std::size_t> last_open_;            // by downset: the last place where it is open, and one
  // By run class: what a stage takes there, negative where it cannot stand, and the number of that stage.
  std::vector<std::pair<std::int64_t, std::uint64_t>> plain_times_;
  std::uint64_t stage_number_ = 0;
  std::map<std::uint64_t, RunClass> group_classes_;              // by degree, place, replicas
  std::map<std::uint32_t, std::vector<Worth>> worth_repeating_;  // by degree: most bytes per time first
};

}  // namespace espalier::internal
