#pragma once

// Parts of a linearization, each cut over a run of a row of devices: what planners ask that try many ways to
// deal devices to parts. Equal questions are answered once: runs of equal devices with equal links between
// them are alike, and so are parts whose blocks cost the same, such as equal branches.

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "espalier/planners/candidate.h"
#include "espalier/planners/pipeline/chain_split.h"

namespace espalier {

struct Places {  // of a linearization: [begin, end)
  std::uint32_t begin = 0, end = 0;
  bool empty() const { return begin == end; }
  friend auto operator<=>(const Places&, const Places&) = default;
};

// What all operators of the line take, forward and backward, by KindId.
std::vector<Duration> whole_times(const Linearization& line, const OperatorCosts& costs);

class PartSplits {
 public:
  // Keeps references to line, table and costs; they hold at this micro-batch.
  PartSplits(const Linearization& line, const DeviceTable& table, std::vector<DeviceId> row,
             BatchSize micro_batch, const OperatorCosts& costs, SplitOptions options);
  // From now on over another row of as many devices of each kind: parts keep their numbers, and what is known
  // of them and of their splits over runs of devices that both rows have.
  void take_row(std::vector<DeviceId> row);

  BatchSize micro_batch() const { return micro_batch_; }
  std::size_t devices() const { return row_.size(); }
  // Of one micro-batch, in the mean over the row's devices.
  Duration work(const Places& places) const;

  // A part that holds all of these: a number to ask with.
  std::size_t part(std::vector<Places> places);
  // The same for places one by one, ascending.
  std::size_t part_of(std::vector<std::uint32_t> members);
  Duration work_of_part(std::size_t part) const { return parts_[part].work; }
  std::size_t pinned_devices(std::size_t part) const { return parts_[part].pinned; }
  std::size_t least_devices(std::size_t part) const { return parts_[part].pinned > 0 ? 0 : 1; }
  // Some device of the part is busy at least this long in a step, if the part has so many of the row's.
  Duration least_busy(std::size_t part, std::size_t devices) const;

  struct Question {
    std::size_t part = 0;
    std::size_t first = 0, count = 0;  // the row's devices [first, first + count)
  };
  // The splits of a part over some of the row's devices that are worth a try: min_max_splits. Empty if none
  // fits. The run may stand for another that is like it: drafts() puts that right.
  const std::vector<ChainSplit>& splits(const Question& question, Context& context);
  // Answers several at a time, on all threads, with equal shares of the budget. No bottleneck above `limit`
  // is looked for, here and in later calls, which may lower it; what was found before may have one.
  void answer(const std::vector<Question>& questions, Duration limit, Context& context);
  // The stages of one of them.
  std::vector<StageDraft> drafts(const Question& question, const ChainSplit& split);

 private:
  struct Part {
    std::vector<std::uint32_t> members;
    Duration work;     // mean over the row
    Duration fastest;  // on the fastest kind
    std::size_t pinned = 0;
    std::optional<Chain> chain = {};
    std::optional<std::size_t> like = {};  // the first part whose chain is like this one's
  };
  using Run = std::vector<DeviceId>;
  using Key = std::pair<std::size_t, std::size_t>;  // the first part like it, the first run like it
  Key key_of(const Question& question);
  std::vector<ChainSplit> solve(const Key& key, Context& context) const;
  const Chain& chain_of(std::size_t part);
  std::size_t first_like(std::size_t part);
  // The first run that is like this one of the row, or is this one.
  std::size_t run_like(const Question& question, bool must_be_it);
  bool alike(const Run& a, const Run& b) const;

  const Linearization& line_;
  const DeviceTable& table_;
  std::vector<DeviceId> row_;
  BatchSize micro_batch_;
  SplitOptions options_;
  std::vector<std::vector<Duration>> before_;  // by kind with devices in the row or a pin; by place
  std::vector<std::int64_t> devices_of_kind_;  // by those kinds
  std::deque<Part> parts_;
  std::map<std::vector<std::uint32_t>, std::size_t> numbers_;
  std::vector<Run> runs_;  // that differ, of any row
  std::map<Key, std::vector<ChainSplit>> splits_;
};

}  // namespace espalier
