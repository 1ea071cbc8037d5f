#pragma once

// The pieces that a device takes, one after the other, in segments whose insides have some size at most.
// Segments from some one on are whole, the others are computed again. Memory is counted as the simulator
// will: what comes from other devices waits in slots, one more than micro-batches are in flight.

#include <cstdint>
#include <set>
#include <vector>

#include "espalier/planners/pipeline/piece_table.h"

namespace espalier {

class SegmentFilling {
 public:
  struct Device {
    Bytes memory;
    KindId kind;
    std::int64_t in_flight;
  };
  // From that piece on. Refers to the table. `insides`: of a segment of several pieces, at most.
  SegmentFilling(const PieceTable& pieces, Bytes insides, std::size_t begin, const Device& device)
      : pieces_(pieces), most_insides_(insides), end_(begin), device_(device) {}

  std::size_t end() const { return end_; }
  const std::vector<std::size_t>& segments() const { return begins_; }  // where each begins

  // Takes the next piece, unless the device has too little memory for it or more to do than the limit.
  bool take(Duration limit);

  // Which segments are whole: those from this one on, as many as memory allows.
  struct Split {
    std::size_t first_whole = 0;
    Duration work;
    Bytes need;
  };
  Split with_whole_ones() const;

 private:
  struct Held {
    Duration work;
    Bytes state, kept, slots, insides;
    std::set<TensorId> tensors;  // of those that pass, that `kept` and `slots` have
  };

  void add(const Segment& segment, Held& held) const;
  void add(const SegmentWay& way, Held& held) const;
  bool is_elsewhere(TensorId tensor) const;
  Bytes need(const Held& held) const;

  const PieceTable& pieces_;
  Bytes most_insides_;
  std::size_t end_;
  std::vector<std::size_t> begins_;  // of its segments
  Device device_;
  Held held_;                          // where all are computed again
  Held closed_;                        // likewise, without the segment that the next piece joins
  std::vector<PassedTensor> leaving_;  // what its pieces pass on
};

}  // namespace espalier
