#pragma once

// What a bound may suppose of each operator, where a plan may choose its micro-batch, the kind of its
// devices and how many of them share it. Internal to bounds.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "espalier/cost/cost_table.h"
#include "espalier/plan/training.h"

namespace espalier::internal {

struct OperatorTimes {  // of one micro-batch
  Duration forward, input, weight;
};

// What an operator's micro-batch holds from the start of its forward pass to `until`, at least.
struct Kept {
  Duration until;
  double bytes = 0;  // on each of the devices of a group
};

// One of the ways in which a stage may run its operators.
struct Way {
  BatchSize size;                                   // of its micro-batch
  std::int64_t count = 1;                           // micro-batches in a batch
  std::uint32_t degree = 1;                         // devices in a group
  std::size_t kind = 0;                             // of all of them; of a mixed group that of any
  Duration overhead;                                // of an action
  std::vector<std::optional<OperatorTimes>> times;  // by operator; none: it cannot run so
  std::vector<std::vector<Kept>> kept;              // by operator (kept_memory.h); empty: nothing counts
};

struct LeastCosts {
  std::vector<Way> ways;             // by (micro-batch, degree, kind)
  std::vector<OperatorTimes> least;  // by operator, each part of it by itself
  std::vector<double> updated;       // bytes of each parameter that gets an update
  std::vector<double> shared;        // likewise, of those that several operators read
  std::vector<double> own_bytes;     // by operator: of those that nobody else reads
  std::vector<double> update_rate;   // by kind: nanoseconds a byte of parameters
  std::vector<double> update_fixed;  // by kind: of each update beside
  std::vector<char> used;            // by kind: some device is of it
  std::uint32_t largest_degree = 1;
  bool runs = true;   // some way can run each operator
  void find_least();  // from `ways`
  double least_of_used(const std::vector<double>& by_kind) const;
};

LeastCosts least_costs(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                       const Training& training, std::span<const BatchSize> sizes);

// An update of so many bytes, rounded down: without what is fixed, those of any set of parameters together
// are no more than the update of a stage that holds them.
double update_of(double nanoseconds_per_byte, double fixed, double bytes);

// What must come before and after, in time, of an operator's passes of one micro-batch: lengths of chains of
// operators, each at its least, from the start of the step and to its end. An action runs its operators one
// behind the other, so that this holds within actions too.
struct Chains {
  std::vector<Duration> head;          // before the forward pass
  std::vector<Duration> ready;         // before the input half
  std::vector<Duration> tail_forward;  // after the forward pass
  std::vector<Duration> tail_input;    // after the input half: own weight half and update, or others'
  std::vector<Duration> own_update;    // after the weight half
  Duration longest;
};
Chains chains_of(const Graph& graph, const LeastCosts& costs);

// The least that an all-reduce among r devices can take, by r: over the widest links that join so many.
class Rings {
 public:
  explicit Rings(const Cluster& cluster);
  // Time of the sum; 2 ≤ members ≤ devices. Nanoseconds.
  double time(std::size_t members, std::int64_t bytes) const;
  // Numbers of members that hang together by links of one width.
  struct Range {
    double fewest = 1, most = 1;
    double per_byte = 0;  // nanoseconds, at least; none for one member alone
  };
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  struct Links {
    std::optional<std::int64_t> bandwidth;  // none: unlimited
    Duration latency;
  };
  void find_ranges();
  std::vector<Links> by_members_;
  std::vector<Range> ranges_;  // ascending, all there are
};

// The room that there is for what a plan that fits must hold (kept_memory.h).
struct Room {
  std::vector<double> bytes;  // by kind, of all its devices together; empty: memory does not count
  std::vector<double> state;  // by operator: a copy of its own parameters, with all that goes with it
  double per_parameter = 0;   // bytes that go with each byte of a trainable parameter, that one among them
  bool leaves_out = false;    // ways that an operator has no room for
  std::optional<OperatorId> nowhere = {};  // the first operator that has room in none
};

// What is known of plans with micro-batches of some sizes.
struct Known {
  const Graph& graph;
  const Cluster& cluster;
  LeastCosts costs;
  Chains chains;
  Rings rings;
  Room room;
};

inline double nanoseconds_of(Duration time) {
  return static_cast<double>(time.count());
}

}  // namespace espalier::internal
