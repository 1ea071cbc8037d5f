#pragma once

// A set of operators, as runs of ids that follow each other: what a stage of a chain is, mostly one run. It
// costs what its runs cost, whatever they hold.

#include <initializer_list>
#include <span>
#include <vector>

#include "espalier/sim/stage_price.h"

namespace espalier {

class OperatorSet {
 public:
  OperatorSet() = default;
  // Any order, repeated or not.
  OperatorSet(std::vector<OperatorId> operators);  // NOLINT(google-explicit-constructor): a list is a set
  OperatorSet(std::initializer_list<OperatorId> operators)
      : OperatorSet(std::vector<OperatorId>(operators)) {}
  // Any order; runs may touch or overlap.
  explicit OperatorSet(std::vector<OperatorRun> runs);

  // Ascending, none touching the next.
  std::span<const OperatorRun> runs() const { return runs_; }
  bool empty() const { return runs_.empty(); }
  std::size_t size() const;                   // operators; O(runs)
  bool contains(OperatorId op) const;         // O(log runs)
  std::vector<OperatorId> operators() const;  // ascending; O(operators)

  friend bool operator==(const OperatorSet&, const OperatorSet&) = default;

 private:
  std::vector<OperatorRun> runs_;
};

// O(runs of both).
OperatorSet united(const OperatorSet& a, const OperatorSet& b);
OperatorSet without(const OperatorSet& from, const OperatorSet& part);
OperatorSet common(const OperatorSet& a, const OperatorSet& b);

}  // namespace espalier
