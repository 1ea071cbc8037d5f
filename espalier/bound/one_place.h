#pragma once

// What the replicas of one operator must do. Internal to bounds.
//
// An operator's micro-batches on r replicas. For a replica that takes s of them these come one behind the
// other
//
//   head, s · (F, I, W), sum, update          ready, s · (I, W), sum, update
//   head, s · (F, I), tail                    ready, s · I, tail
//
// since no I is before `ready`, and the last I is followed by `tail`. Each F and each I has the overhead of
// an action that this device pays for no other micro-batch of the operator.

#include <optional>
#include <vector>

#include "espalier/bound/least_costs.h"

namespace espalier::internal {

class OnePlace {
 public:
  explicit OnePlace(const Known& known);

  // Whether the operator's passes can be done within that time, in some way. Nanoseconds.
  bool fits(std::size_t op, double time) const;

  // The fewest replicas with which it fits, by groups of ways (LeastCosts::ways, one for each kind of
  // device); nothing where it does not.
  std::optional<std::size_t> fewest(std::size_t op, double time, std::size_t ways) const;

  // With more replicas than this it does not fit, for each has a micro-batch and waits for the sum of them
  // all. At least 1.
  std::size_t most(std::size_t op, double time, std::size_t ways) const;

  // The least whole time for which it fits; it does not fit `time`.
  double least(std::size_t op, double time) const;

 private:
  std::size_t largest_number(const Way& way) const;  // of replicas
  double sum_of(std::size_t op, const Way& way, std::size_t replicas) const;
  // The most micro-batches that a replica can take.
  double share(const Way& way, std::size_t op, double time, double sum) const;

  const Known& known_;
  const LeastCosts& costs_;
  std::size_t kinds_ = 0;             // of which there are devices
  std::vector<std::size_t> devices_;  // by kind
};

}  // namespace espalier::internal
