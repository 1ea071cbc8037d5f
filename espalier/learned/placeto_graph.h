#pragma once

// What Placeto's policy knows of an instance before it begins: nodes, who reads from whom, and what of a node
// does not change. Node numbers mean nothing to a policy, but for P-GNN's anchors, which are drawn by them.

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/graph/graph.h"
#include "espalier/placement/engine.h"
#include "espalier/planners/placement/clusters.h"

namespace espalier::placement {

// Invariants: every list by node has `nodes` entries; `sequence` has each node once, and an edge leads from
// an earlier to a later one.
struct PlacetoGraph {
  std::size_t nodes = 0, devices = 0;
  Clusters clusters;                    // units of each node; each unit alone where they are few
  std::vector<TaskId> first;            // by node: its first task
  std::vector<std::uint32_t> sequence;  // nodes by their first tasks
  // By node: from whom it reads and who reads from it, each once, ascending. Where nodes wait for each other
  // (forward and backward in one unit) the edge stays that leads from the earlier first task to the later.
  Lists<std::uint32_t> before, after;
  std::vector<float> cost;    // by node: mean time over devices, divided by the largest
  std::vector<float> output;  // bytes that others read, divided by the largest
  std::vector<char> allowed;  // nodes × devices

  std::size_t features() const { return 5 + devices; }  // of a node, in a state
};

// Instances of more units than `most_nodes` are joined to about as many clusters within layers.
// O(tasks · devices + edges · log).
PlacetoGraph make_placeto_graph(const Graph& graph, const Instance& instance, std::size_t most_nodes);

// Where an episode stands, as the policy sees it: a row of features() for each node, columns divided by their
// largest absolute value. The columns are
//
//   cost   output   already placed in this episode   current   start - start of the current   device …
//
// `start`: of tasks, in the timeline of the placement so far.
void append_features(const PlacetoGraph& graph, std::span<const Duration> start,
                     std::span<const DeviceId> device, std::span<const char> placed, std::uint32_t current,
                     std::vector<float>& rows);

// nodes × 3 × nodes: each node's mean over those that lead to it, those that it leads to, and those beside it
// (neither, nor itself). Rows of nobody are 0. O(nodes²) memory, O(nodes · edges) time.
std::vector<float> pooling_rows(const PlacetoGraph& graph);

// nodes × nodes: each node's mean over its neighbours, whichever way edges lead.
std::vector<float> neighbour_rows(const PlacetoGraph& graph);

// P-GNN's anchor sets (You, Ying, Leskovec, ICML'19): random sets of a half, a quarter, … of all nodes, two
// of each size, and what each node sees of each: the nearest of the set, by edges in either direction, the
// smallest of equals, and 1 / (1 + distance), 0 where no way leads there.
struct Anchors {
  std::size_t sets = 0;
  std::vector<std::uint32_t> nearest;  // nodes × sets
  std::vector<float> closeness;        // nodes × sets
};
Anchors draw_anchors(const PlacetoGraph& graph, std::uint64_t seed);

}  // namespace espalier::placement
