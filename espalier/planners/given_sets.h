#pragma once

// Sets of operators that somebody wants to have together: the stages of a split by hand, what is pinned to a
// device. What follows from them, and why they may be impossible as stages of a pipeline.

#include <cstdint>
#include <optional>
#include <vector>

#include "espalier/graph/graph.h"

namespace espalier {

using SetIndex = std::uint32_t;
using SetOfOperator = std::vector<std::optional<SetIndex>>;  // by operator; none: in no set

// Operators of one colocation group in two sets.
struct TornGroup {
  OperatorId first, second;  // of sets in that order
  SetIndex first_set = 0, second_set = 0;
  friend bool operator==(const TornGroup&, const TornGroup&) = default;
};

// Sets that read from each other, directly or through operators of no set: as stages they would wait for each
// other for ever.
struct SetCycle {
  SetIndex set = 0, through = 0;
  OperatorId leaves;   // of `set`: what a path leaves it from
  OperatorId returns;  // of `set`: where the path comes back, through `through`
  friend bool operator==(const SetCycle&, const SetCycle&) = default;
};

struct ClosedSets {
  std::optional<TornGroup> torn;  // the first by operators; then all else is empty
  std::optional<SetCycle> cycle;  // the one with the least `set`, then the least `through`
  // With what must join a set: the rest of a colocation group, and what lies on a path from the set back to
  // it. Empty if there is a cycle.
  SetOfOperator set_of;
};

// `sets`: how many. Duplicable operators are in no set, and paths through them do not count.
// O((n + e) · log n).
ClosedSets close_sets(const Graph& graph, SetOfOperator set_of, std::size_t sets);

// Sets that hold everything: what is in none joins one, and no cycle comes of it. An operator joins the set
// that it reads from; if it reads from several, the last of them if all others come before that one, else
// the first set that reads the operator, directly or not. What reads from none joins the first that reads it.
// First and last are meant in the order in which the sets follow each other, that of their numbers where it
// is free; what nobody reads and reads nobody joins the last. Colocation groups join as a whole.
//   a → b, c → b, {a}, {c}: b reads from both, nobody reads it: it joins {c}
// `set_of` as close_sets returns it; at least one set, none of them empty. O((n + e) · log n + n · sets /
// 64).
SetOfOperator join_rest(const Graph& graph, const SetOfOperator& set_of, std::size_t sets);

}  // namespace espalier
