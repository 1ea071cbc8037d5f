#pragma once

// Sets of storages that may be the same memory: a storage by itself, joined with others through operators
// that the operator table does not know (their outputs may alias their inputs). Mutation order and colocation
// are both decided on these sets.

#include <cstdint>
#include <vector>

#include "espalier/graph/graph.h"

namespace espalier {

class AliasSets {
 public:
  // All ids in `parts` are in range. O(parts).
  explicit AliasSets(const GraphParts& parts);

  std::size_t count() const { return mutated_.size(); }  // set numbers are < count(); not all are used
  std::uint32_t of(TensorId tensor) const { return set_of_tensor_[tensor.index()]; }
  bool mutated(std::uint32_t set) const { return mutated_[set] != 0; }
  bool any_mutated() const { return any_mutated_; }

  // Whether the set holds a parameter or a buffer.
  bool lives_on(std::uint32_t set) const { return lives_on_[set] != 0; }

  // The sets of an operator's inputs and outputs, ascending, each once.
  std::vector<std::uint32_t> touched_by(const Operator& op) const;
  bool mutates(const Operator& op, std::uint32_t set) const;

 private:
  std::vector<std::uint32_t> set_of_tensor_;
  std::vector<char> mutated_, lives_on_;
  bool any_mutated_ = false;
};

}  // namespace espalier
