#pragma once

// The profile of a run of operators, without a walk over them: the usual stage of a chain, new each time.
//
// Most storages of a run are born and die inside it, and what those need is the same in every stage that
// holds them whole: sums over them are differences of prefix sums, peaks are largest values of a range of one
// table for the whole graph. Only storages that span one of the two cuts are looked at one by one: the
// run does not count them, so they are taken out of the table again.
//
//     operators      0 1 2 3 4 5 6 7 8 9        run 3 … 6
//     inside               4─────6              prefix sums, range maximum
//     spans cut 3    . 1───────5                received if the run reads it; taken out of 3 … 5
//     spans cut 7          . 5───────9          output; taken out of 5 … 6
//
// Some storages are not that simple (several tensors share them across a cut, or what a duplicable operator
// makes leaves the run): such runs are declined, and ProfileTables walks. For one kind of device, no operator
// or all of them recomputed. Equal to ProfileTables::profile, by test, but for the order of `received`.

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/sim/stage_profile.h"

namespace espalier::internal {

// The largest value of a range, by blocks and a sparse table over them. O(n) room, O(1) a question.
class RangeMaximum {
 public:
  RangeMaximum() = default;
  explicit RangeMaximum(std::vector<std::int64_t> values);
  std::int64_t of(std::size_t first, std::size_t last) const;  // both included

 private:
  static constexpr std::size_t kBlock = 8;
  std::vector<std::int64_t> values_;
  std::vector<std::vector<std::int64_t>> blocks_;  // [k][i]: of 2^k blocks from i
};

class RunTables {
 public:
  // Keeps references to both.
  RunTables(const Graph& graph, const ProfileTables& tables, std::size_t micro_batches, std::size_t kinds);

  enum class Recompute : std::uint8_t { kNone, kAll };
  struct Run {
    std::uint32_t first = 0, last = 0;  // operators, both included
    Recompute recompute = Recompute::kNone;
    std::size_t micro_batch = 0, kind = 0;  // index among the allowed; of all its devices
  };
  struct Change {
    std::uint32_t position = 0;
    std::int64_t bytes = 0;
  };
  struct Scratch {
    std::vector<Change> forward, backward;
  };

  // False if the run needs a walk; then `result` holds nothing of use. About the cuts' widths in time.
  bool profile(const Run& run, Scratch& scratch, StageProfile& result) const;

 private:
  // Tensors that share a storage, as far as operators hand it on from an input to an output.
  struct Storage {
    std::uint32_t tensor = 0;        // the first
    std::uint32_t first = 0;         // operator that makes it
    std::uint32_t last = 0;          // the last that has to do with it
    std::uint32_t gradient_end = 0;  // its gradient lives from `first` to here
    bool gradient = false;
    bool odd = false;         // several tensors, or somebody else's memory
    bool duplicable = false;  // whoever reads it makes its own
    bool counted = false;     // it is no state's or input's memory
  };
  struct Input {  // of the graph
    std::uint32_t tensor = 0, first = 0, last = 0;
    bool odd = false;
  };
  struct StateRead {  // of a parameter, buffer or constant that several operators read, or that is shared
    std::uint32_t tensor = 0;
    std::uint32_t previous = 0;  // 1 + the operator that read it before; 0: none
  };
  struct Before {  // sums over all smaller operators, or all storages that begin or end before
    std::int64_t private_bytes = 0, between_halves = 0, kept_begun = 0, kept_ended = 0;
    std::int64_t parameters = 0, buffers = 0;  // that one operator reads
  };
  struct Costs {  // at one micro-batch and kind
    std::vector<Before> before;
    std::vector<bool> kept;             // by storage: if all its operators are in one stage
    RangeMaximum forward[2], backward;  // by Recompute: what lives and what the operator needs itself
  };
  struct Links;
  struct Work;

  void find_storages(const Graph& graph);
  void list_spanning();
  Costs costs_for(std::size_t micro_batch, std::size_t kind) const;
  template <class Visit>
  bool for_spanning(std::uint32_t cut, Visit visit) const;
  bool keeps(const ProfileTables::Costs& costs, std::uint32_t op, std::uint32_t tensor) const;
  bool trainable(std::uint32_t tensor) const;

  const Graph& graph_;
  const ProfileTables& tables_;
  std::size_t kinds_;
  bool usable_ = true;
  std::vector<Storage> storages_;             // ascending `first`
  std::vector<std::uint32_t> storage_begin_;  // by operator: the first that it makes
  std::vector<std::uint32_t> storage_of_;     // by tensor; kNone for inputs and state
  std::uint32_t stride_ = 16;                 // operators between the cuts whose storages are listed
  std::vector<std::uint32_t> listed_, listed_begin_;
  std::vector<Input> inputs_;
  std::vector<std::uint32_t> single_reads_, single_begin_;  // state tensors, by operator
  std::vector<StateRead> reads_;
  std::vector<std::uint32_t> reads_begin_;  // by operator
  std::vector<Costs> costs_;                // by micro-batch, then kind
};

}  // namespace espalier::internal
