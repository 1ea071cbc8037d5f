#pragma once

// The orders in which a placer may walk a graph (the traversal-order study, arXiv 2201.09676): one move for
// each operator, in one of these sequences. The study ran them on networkx graphs, so each is defined by what
// networkx does; "insertion order" of nodes is the operators' numbering here, that of an operator's
// successors is ascending, and an edge is one of Graph::successors (each once, mutation order included).
//
//   alpha              by name, as bytes
//   topo_lifo          Kahn's algorithm with a stack: all sources are pushed in insertion order, a successor
//                      is pushed when its last predecessor is taken (networkx up to 2.5, `topological_sort`)
//   topo_generations   Kahn's algorithm with a queue: by depth, within one depth in the order of discovery,
//                      which is not the numbering (networkx from 2.6 on; the same call)
//   reversed_topo      topo_lifo backwards; the study's version of networkx had that one
//   dfs_preorder       depth first from every operator not seen yet, in insertion order and not from sources
//                      only; an operator is emitted when it is entered. Not topological in general
//   dfs_postorder      the same walk, emitted when it is left: a topological order backwards
//   bfs                a whole breadth-first search from each source, sources by name; put end to end, first
//                      occurrences kept. Neither a search from all sources at once nor topological
//   lexico_topo        Kahn's algorithm, the smallest name first
//   random             one shuffle for a seed
//   random_per_episode another shuffle for each episode
//   in_turn            not of the study: topo_generations in the first episode, then alpha, topo_lifo,
//                      reversed_topo, bfs, dfs_preorder, lexico_topo, dfs_postorder, a shuffle, and from the
//                      start again. What one order makes of a graph and what the next one makes of it have
//                      little to do with each other, so a few different ones beat the best of them. Those
//                      that differ most come first (bench/traversal_orders)
//
// Today's chains use three more, legal execution orders all: graph_order, depth_first_order and
// breadth_first_order (algorithms.h). depth_first_order is topo_lifo with the stack filled from the other
// end; breadth_first_order is topo_generations sorted by number within a depth.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "espalier/base/ids.h"
#include "espalier/graph/graph.h"

namespace espalier {

enum class TraversalOrder : std::uint8_t {
  kAlpha,
  kTopoLifo,
  kTopoGenerations,
  kReversedTopo,
  kDfsPreorder,
  kDfsPostorder,
  kBfs,
  kLexicoTopo,
  kRandom,
  kRandomPerEpisode,
  kInTurn,
};

std::span<const TraversalOrder> traversal_orders();  // all of them, as listed above
std::string_view to_text(TraversalOrder order);      // "topo_lifo"
std::optional<TraversalOrder> parse_traversal_order(std::string_view text);
bool changes_by_episode(TraversalOrder order);  // random_per_episode and in_turn

// What an order may depend on: the seed where shuffles are drawn, the episode where it changes by that.
struct OrderDraw {
  std::uint64_t seed = 0;
  std::uint64_t episode = 0;
};

// Every operator once. O((n + e) + n · log n), names compared in the latter.
std::vector<OperatorId> traversal_order(const Graph& graph, TraversalOrder order, OrderDraw draw = {});

// The walk behind the depth-first orders, and behind branch_by_branch_order (planners/pipeline/chain.h):
// from each start that was not reached before, neighbours ascending. What no start reaches is left out.
// O(n + e), without recursion.
enum class Along : std::uint8_t { kSuccessors, kPredecessors };
enum class Emit : std::uint8_t { kOnEntry, kOnExit };
std::vector<OperatorId> depth_first_walk(const Graph& graph, std::span<const OperatorId> starts, Along along,
                                         Emit emit);

}  // namespace espalier
