#pragma once

// What planners ask of a graph's structure. Every function is pure and deterministic; n = operators,
// e = edges (predecessors, mutation order included).

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "espalier/base/ids.h"
#include "espalier/base/units.h"
#include "espalier/graph/graph.h"

namespace espalier {

// ---- Paths

// depth[i] = most edges on a path from an operator without predecessors to i. O(n + e).
std::vector<std::uint32_t> depths(const Graph& graph);

// Longest path by the operators' weights (not negative): before i, without i; and from i to the end, with i.
// In the placement literature: t-level and b-level. O(n + e).
std::vector<Duration> top_levels(const Graph& graph, std::span<const Duration> weights);
std::vector<Duration> bottom_levels(const Graph& graph, std::span<const Duration> weights);

struct CriticalPath {
  Duration length;
  std::vector<OperatorId> operators;  // a heaviest path, from its first to its last; the one of smallest ids
};
CriticalPath critical_path(const Graph& graph, std::span<const Duration> weights);

// ---- Reachability

// Which operators lead to which. Below the limit a bit per pair: n²/16 bytes, built in O(n·e/64), answers in
// O(1). Above it nothing is stored, and each answer searches the operators between the two, O(n + e). Refers
// to the graph, which must outlive it. Any number of threads may ask.
class Reachability {
 public:
  struct Options {
    Bytes max_memory = mebibytes(256);  // 65 000 operators
  };
  explicit Reachability(const Graph& graph) : Reachability(graph, Options()) {}
  Reachability(const Graph& graph, Options options);

  // Whether a path leads from one to the other; every operator reaches itself.
  bool reaches(OperatorId from, OperatorId to) const;
  bool independent(OperatorId a, OperatorId b) const { return !reaches(a, b) && !reaches(b, a); }
  bool stored() const { return !begin_.empty(); }

 private:
  bool search(OperatorId from, OperatorId to) const;

  const Graph* graph_;
  std::vector<std::size_t> begin_;   // first word of row i; bit j of the row is at word j/64 - i/64
  std::vector<std::uint64_t> bits_;  // row i: what i reaches, from word i/64 on
};

// Whether no path leaves the set and comes back, which is what lets a stage run as one piece. The set is
// ascending. A path that leaves through a duplicable operator does not count: each stage has its own copy.
// O(edges of the operators between the set's first and last).
bool is_convex(const Graph& graph, std::span<const OperatorId> set);

// ---- Legal execution orders of all operators. O((n + e) · log n) at most.

std::vector<OperatorId> graph_order(const Graph& graph);          // by id
std::vector<OperatorId> depth_first_order(const Graph& graph);    // goes down a branch as far as it can
std::vector<OperatorId> breadth_first_order(const Graph& graph);  // by depth, then id

// Whether each operator stands exactly once and behind its predecessors.
bool is_legal_order(const Graph& graph, std::span<const OperatorId> order);

// Where a chain planner may cut an order for the price of one tensor: positions p such that exactly one
// tensor is produced at or before order[p] and read behind it. Outputs of duplicable operators do not count
// (they are computed on both sides), nor do inputs, parameters and constants. No cut parts a colocation
// group. O(n + e).
std::vector<std::size_t> single_tensor_cuts(const Graph& graph, std::span<const OperatorId> order);

// ---- Colocation

// Operators that must stand together, as one node each. With `convex`, a node also holds what lies on paths
// between its operators, and the contracted graph has no cycle: what a pipeline needs, whose stages are
// convex. Without it a node is just the group, and there may be cycles: what a placement needs. O((n + e) ·
// log n).
struct ContractOptions {
  bool convex = true;
};
struct Contraction {
  std::vector<std::vector<OperatorId>> nodes;         // ascending each; in a legal order, by first operator
  std::vector<std::optional<std::uint32_t>> node_of;  // by operator; none outside the subset
  std::vector<std::vector<std::uint32_t>> predecessors, successors;  // of nodes; ascending, each once
};
Contraction contract_colocation(const Graph& graph, std::span<const OperatorId> subset,
                                const ContractOptions& options = {});

// ---- Series and parallel parts

// The operators that decide the structure: those that lead to the loss (all, if there is none), those
// colocated with them and what these need; without duplicables. Ascending. What is left out hangs off at the
// side and never leads back: running statistics, further outputs. O(n + e).
std::vector<OperatorId> backbone(const Graph& graph);

// A set of operators falls into segments, one after the other; every path passes them in this order. In the
// picture a, d and e are articulation points: whatever is before them comes before, whatever is behind comes
// behind.
//
//        b1 ─ b2            serial    a
//   a <           > d ─ e   branches  b1 b2 | c
//        ─── c ──           serial    d e
//
// kSerial    a run of articulation points, in one branch.
// kBranches  what lies between two articulation points, before the first or behind the last: its
//            connected components, which are independent of each other. One branch only: it stands
//            beside a direct edge, such as a residual connection.
// kTangle    the whole set, which has neither an articulation point nor a second component.
// To go on inside a branch, decompose it; a tangle cannot be taken apart.
enum class SegmentKind : std::uint8_t { kSerial, kBranches, kTangle };
struct Segment {
  SegmentKind kind = SegmentKind::kSerial;
  std::vector<std::vector<OperatorId>> branches;  // ascending each; by first operator
  friend bool operator==(const Segment&, const Segment&) = default;
};

// Of an ascending set, normally backbone(graph) or a branch. Operators outside it are as if they were not
// there; colocated operators of the set stay together (convex contraction), so that every branch may be a
// stage. O((n + e) · log n).
std::vector<Segment> decompose(const Graph& graph, std::span<const OperatorId> set);

// Completes stages made from backbone(graph): duplicables are copied into every set that needs them (those
// that nobody in a set reads go into the last set), side operators join the last set that they read from.
// `sets` are disjoint, not empty, cover the backbone and stand in an order in which edges lead forward only;
// so they do afterwards. Sets come back ascending. O((n + e) · log n + copies).
std::vector<std::vector<OperatorId>> attach_remaining(const Graph& graph,
                                                      std::vector<std::vector<OperatorId>> sets);

}  // namespace espalier
