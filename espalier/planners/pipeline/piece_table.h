#pragma once

// A problem's graph at one micro-batch, in small pieces that follow each other in its own order; any of them
// that do are a segment, which is kept whole or computed again when it goes back. What chains are made of
// where memory binds (checkpointed.h, v_chains.h).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "espalier/planners/oracle.h"
#include "espalier/planners/planner.h"

namespace espalier {

// A tensor that a segment reads from others, or that others read from it, of one micro-batch.
struct PassedTensor {
  TensorId tensor;
  Bytes bytes;
  bool kept = false;            // for backward
  bool gradient = false;        // comes back
  std::size_t last_reader = 0;  // of an output: the last piece
};

// How a segment goes back, for one micro-batch.
struct SegmentWay {
  std::vector<StagePrice::Times> times;  // by KindId
  Bytes kept;                            // for backward, beside what passes
  Bytes insides;                         // while it goes back
  std::vector<PassedTensor> reads, outputs;

  // Forward and backward, with what is computed again.
  Duration work(KindId kind) const;
};

struct Segment {
  OperatorRun run;
  OperatorSet repeatable;    // of the run
  Bytes state;               // parameters with gradients and optimizer state, buffers
  bool has_weights = false;  // backward has a half for them
  SegmentWay again, whole;
};

// What no micro-batch changes.
struct CutGraph {
  explicit CutGraph(const Graph& graph);
  std::vector<std::optional<Bytes>> crossing;  // by gap
  OperatorSet repeatable;
};

class PieceTable {
 public:
  // kNarrow: not where half as many bytes again cross as two cuts away, within a layer that is wider inside.
  enum class Cuts : std::uint8_t { kAll, kNarrow };
  // Refers to both. `count` pieces at most, each cut near an equal share of the work, no further than half a
  // share, at the gap where fewest bytes cross.
  PieceTable(const Problem& problem, const CutGraph& graph, BatchSize micro_batch, std::size_t count,
             Cuts cuts);

  std::size_t size() const { return begins_.size(); }
  bool possible() const { return possible_; }  // no cell of the costs is missing
  bool leaves_cuts_out() const { return leaves_cuts_out_; }
  BatchSize micro_batch() const { return micro_batch_; }
  // What the halves of backward take, which published profiles do not tell.
  bool halves_are_known() const { return halves_are_known_; }

  // Pieces first … first + count - 1. Priced when it is asked for first. Not for two threads at a time.
  const Segment& segment(std::size_t first, std::size_t count) const;

  // These pieces on a device, as a stage that computes some of them again.
  StageDraft stage(std::size_t first, std::size_t end, DeviceId device,
                   const std::function<bool(std::size_t)>& is_again) const;

  Bytes median_insides() const;
  // All pieces computed again, one after the other, by KindId.
  std::vector<Duration> work() const;

 private:
  std::uint32_t begin(std::size_t piece) const;
  void cut(std::size_t count);
  void leave_wide_cuts_out();
  Segment made(OperatorRun run) const;
  void price(const OperatorSet& operators, std::span<const OperatorRun> again, Segment& segment,
             SegmentWay& way) const;

  const Problem& problem_;
  const CutGraph& graph_;
  BatchSize micro_batch_;
  std::vector<KindId> kinds_;
  std::vector<std::uint32_t> begins_;  // of each piece, in operators
  std::unique_ptr<StagePrices::Scratch, void (*)(StagePrices::Scratch*)> scratch_;
  bool halves_are_known_ = true, leaves_cuts_out_ = false;
  mutable bool possible_ = true;
  mutable std::vector<std::vector<Segment>> segments_;  // by first piece and pieces
};

}  // namespace espalier
