#pragma once

// The dynamic program behind min_max_splits, for one set of cuts (chain_split.h says what it solves).

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "espalier/planners/pipeline/chain_split.h"

namespace espalier::internal {

class SplitSearch {
 public:
  // Refers to all of them.
  SplitSearch(const Chain& chain, DeviceRow& row, const SplitOptions& options, Context& context);

  // The front over stages that begin and end at `cuts` (of the chain, ascending, the first and the last cut
  // among them). Splits that `known` beats strictly are left out. Nothing if the budget ends.
  std::vector<ChainSplit> solve(std::vector<std::size_t> cuts, const std::vector<ChainSplit>& known);

 private:
  using Time = std::int64_t;  // nanoseconds
  static constexpr Time kNever = std::numeric_limits<Time>::max();
  static constexpr Time kUnknown = -1;

  // An answer for the blocks from a cut on: its first stage, and the rest behind it.
  struct Answer {
    Time bottleneck = 0;
    std::uint32_t held = 0;  // replicas × micro-batches in flight of the first stage
    std::uint32_t rest = 0;  // in rests_
    std::uint16_t stages = 0;
    std::uint16_t cut = 0;             // where the first stage ends
    std::uint16_t begin = 0, end = 0;  // its devices in the row; equal: it is pinned
  };
  // An answer as one way to go on from a device: with the link to its first stage.
  struct Rest {
    Time bottleneck = 0;
    Time hold = 0;  // of the link, for a micro-batch
    std::uint32_t held = 0;
    std::uint32_t answer = 0;  // in answers_
    std::uint16_t stages = 0;
  };
  struct List {  // in answers_
    std::uint32_t begin = 0, end = 0;
  };
  // Rests of a list with so many stages.
  struct RestGroup {
    std::uint32_t begin = 0, end = 0;  // of their bottlenecks, ascending, in rest_bottlenecks_
    std::uint32_t least_held = 0;
    std::uint16_t stages = 0;
  };
  struct RestList {  // in rests_, and in rest_groups_ by ascending stages
    std::uint32_t begin = 0, end = 0;
    std::uint32_t first_group = 0, last_group = 0;  // exclusive
    std::uint32_t most_held = 0;
    Time most_hold = 0;
    bool empty() const { return begin == end; }
  };
  // What the rests of a list come to behind one stage.
  struct Prospect {
    std::uint64_t within = 0;   // so many are within the limits, as far as bottlenecks tell
    Time least_limit = kNever;  // of those
    bool has_news = false;      // whether an answer before one of them may be beaten by none in front_
  };
  struct Link {
    std::uint32_t forward = 0, backward = 0;  // hops
    friend bool operator==(const Link&, const Link&) = default;
  };
  struct FirstStage {  // that a transition adds
    std::size_t cut = 0;
    std::size_t begin = 0, end = 0;
    std::uint32_t run_class = 0;
  };

  std::size_t at(std::size_t cut, std::size_t device) const { return cut * (row_.size() + 1) + device; }
  std::size_t last_cut() const { return cuts_.size() - 1; }
  // Rests behind one device are neighbours.
  std::size_t rests_at(std::size_t device, std::size_t cut) const { return device * cuts_.size() + cut; }

  void prepare(std::vector<std::size_t> cuts, const std::vector<ChainSplit>& known);
  void prepare_pins();
  void prepare_costs();
  void prepare_bounds();
  std::uint16_t link(DeviceId from, DeviceId to);
  void solve_cut(std::size_t cut);
  void solve_runs(std::size_t cut, std::size_t device);
  void solve_pinned(std::size_t cut, std::size_t device);
  void extend(std::size_t cut, const FirstStage& stage, const RestList& list, Time elsewhere, Time least);
  // Whether an answer in front_ is as good as any with at least those figures.
  bool is_beaten(Time bottleneck, std::size_t stages, std::int64_t held);
  // `limits`: by stages of the rest.
  Prospect prospect(const RestList& list, const RunClass& run, Time time, const Time* limits);
  void clear_front(Time least);
  void keep(const Answer& fresh);
  List store_front();
  void connect(std::size_t cut);
  void add_rests(std::size_t cut, List answers, std::uint16_t link);
  RestList store_rests();
  std::vector<ChainSplit> front();
  ChainSplit split_of(const Answer& answer) const;

  // Of the stage between two cuts on a class of runs; kNever where no split could have it. At a cut the first
  // `next` where that and all longer ones are above the limits, as far as known; cuts_.size() if none is.
  Time stage_time(std::size_t cut, std::size_t next, std::uint32_t run_class);
  std::size_t& too_long(std::size_t cut, std::uint32_t run_class);
  Time new_stage_time(std::size_t cut, std::size_t next, const RunClass& run,
                      std::size_t& first_too_long) const;
  std::int64_t most_in_flight(std::size_t cut, std::size_t next, std::uint32_t run_class);
  std::int64_t in_flight(const RunClass& run, std::size_t stages, std::uint32_t held) const;
  Time work(std::uint32_t compute, std::size_t cut) const { return work_[compute * cuts_.size() + cut]; }
  Time bound_before(std::size_t cut, std::size_t devices) const { return bound_before_[at(cut, devices)]; }
  // Splits with that many stages and a larger bottleneck are beaten.
  Time limit(std::size_t stages) const { return limits_[std::min(stages, limits_.size() - 1)]; }
  Time limit(std::size_t cut, std::size_t next) const {
    return limit(1 + (cut > 0 ? 1 : 0) + (next < last_cut() ? 1 : 0));
  }

  const Chain& chain_;
  DeviceRow& row_;
  const SplitOptions& options_;
  Context& context_;
  const std::int64_t micro_batches_;
  std::int64_t group_ = 1;  // k of 1F1B

  std::vector<std::size_t> cuts_;
  std::vector<Time> limits_;        // by stages
  std::vector<Time> bound_before_;  // by cut, devices of the row before: no split's bottleneck is below
  std::vector<std::size_t> writer_behind_;               // by cut: the first cut behind a writer of buffers
  std::vector<Time> work_;                               // by compute class, cut: of a micro-batch before it
  std::vector<Time> messages_before_, messages_behind_;  // the same: endpoints of a micro-batch

  std::vector<Link> links_;                      // 0: nothing between
  std::vector<Time> link_holds_;                 // by link, cut
  std::vector<std::uint16_t> row_links_;         // by device, device: from the first to the second
  std::vector<char> links_repeat_;               // by device: it has the next one's links to all behind that
  std::vector<std::uint16_t> pin_links_;         // by pinned device, device
  std::vector<std::uint16_t> links_to_pin_;      // by device, pinned device
  std::vector<std::uint16_t> pin_to_pin_links_;  // by pinned device, pinned device

  // Pins. A segment lies between neighbouring cuts.
  std::vector<DeviceId> pinned_;                        // each once, ascending
  std::vector<std::uint32_t> pinned_class_;             // as a run
  std::vector<std::optional<std::size_t>> pin_of_;      // by segment, in pinned_
  bool torn_ = false;                                   // some segment has two
  std::vector<std::size_t> next_pinned_;                // by cut: the first such segment; else last_cut()
  std::vector<std::optional<std::size_t>> pin_before_;  // by cut, in pinned_
  std::vector<std::vector<Time>> pinned_work_;          // by pinned device, cut: of its segments before

  std::vector<Answer> answers_;
  std::vector<Rest> rests_;
  std::vector<RestGroup> rest_groups_;
  std::vector<Time> rest_bottlenecks_;
  std::vector<List> runs_from_;          // by cut, device: answers whose first stage begins there
  std::vector<List> pinned_from_;        // by cut, device: answers that begin pinned, the row free from there
  std::vector<RestList> after_run_;      // by device, cut: rests behind a run that ends before it
  std::vector<RestList> after_pinned_;   // behind the device that is pinned before the cut
  std::vector<std::size_t> first_rest_;  // by device: the first cut with a rest in after_run_

  std::vector<Answer> front_;
  std::size_t beater_ = 0;                // in front_: one that beat another lately
  Time least_ = 0;                        // no bottleneck in front_ is below that
  std::vector<std::int64_t> least_held_;  // by stages: of answers in front_ at that with no more stages
  std::uint64_t compared_ = 0;            // answers, since states were last counted
  std::vector<Rest> rest_front_;
  std::vector<Rest> by_stages_;  // the same, sorted
  RestList stored_;              // what rest_front_ is stored as, if it has not changed since
  bool is_stored_ = false;
  // Of one cut, by run class or memory and by cut behind; negative: not known yet.
  std::vector<Time> times_;
  std::vector<std::int64_t> in_flight_;
  std::vector<std::size_t> times_of_, in_flight_of_;  // by run class, by memory: that cut
  std::vector<std::size_t> too_long_;                 // by run class
  std::vector<std::uint32_t> memory_of_;              // by run class: which of those
  std::size_t memories_ = 0;                          // that differ
};

}  // namespace espalier::internal
