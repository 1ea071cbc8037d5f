#pragma once

// The states of PipeDream's optimizer: antichains of a profile's graph. Internal to pipedream_optimizer.cc.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "espalier/frontend/published.h"

namespace espalier::literal {

using NodeSet = std::vector<bool>;

// The profile's graph less its `Input…` sources and the `__getitem__…` sinks that are left then.
struct PlacedGraph {
  std::vector<bool> kept;                         // by node of the profile
  std::vector<std::vector<std::size_t>> readers;  // kept ones, in the order of the file's edges
  std::vector<NodeSet> predecessors, successors;  // all, not only the next
  std::size_t first_source = 0;                   // of the file's order
};
// Throws InputError if there is a cycle or nothing is left.
PlacedGraph placed_graph(const PipedreamProfile& profile);

// An antichain with the predecessors of its members whose outputs that member's predecessors do not use up:
// each p before a member a that has a reader which is neither a nor before a. The members stand last.
std::vector<std::size_t> augmented(const PlacedGraph& graph, const std::vector<std::size_t>& antichain);

struct AntichainState {
  std::vector<std::size_t> members;  // augmented
  NodeSet nodes;                     // members and all before them
};
struct AntichainStates {
  std::vector<AntichainState> states;              // in a topological order of their graph
  std::vector<std::vector<std::uint32_t>> before;  // by state, ascending: from which it can be reached
};
// From {first source} on: a member x of an augmented antichain is replaced by a reader of it that comes
// before no other member; members that come before others are dropped. Nothing where there are more than
// `max_states`.
std::optional<AntichainStates> antichain_states(const PlacedGraph& graph, std::size_t max_states);

}  // namespace espalier::literal
