#pragma once

// Which operator a node of the backward graph belongs to. Includes libtorch; runtime/ only.

#include <functional>
#include <unordered_set>

#include "espalier/runtime/program.h"

namespace espalier {

// Follows one forward pass. Nodes without a next edge (accumulators, entries) belong to no operator: what
// they do counts for the node before them.
class BackwardNodes {
 public:
  explicit BackwardNodes(const Graph& graph) : graph_(graph) {}

  // To be called when the operator has returned: backward then calls `starts` whenever it is about to run a
  // node that the operator added.
  void watch(OperatorId op, const Tensors& tensors, const std::function<void()>& starts);

 private:
  const Graph& graph_;
  std::unordered_set<const void*> known_;
};

}  // namespace espalier
