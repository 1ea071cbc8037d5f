#pragma once

// What a policy that improves placements (relocation.h) sees of one: for each node and device the option that
// the node stands there. After GiPH's gpNet (MLSys'23), with options as rows and, for each edge of the graph
// of clusters, the way from where the neighbour stands now to each device where the node might.
//
//   node a on device 0 ─▶ node b on device 1, three devices
//
//   options of b   b0 b1 b2     each hears of a0, with what the message takes from 0 to 0, 1, 2
//   options of a   a0 a1 a2     each hears of b1, with what the message takes from 0, 1, 2 to 1
//
// All numbers are relative: times to the step, bytes to the memory of a device, so that one policy serves
// graphs and clusters that it never saw.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/learned/placement_task.h"

namespace espalier::placement {

inline constexpr std::size_t kOptionNumbers = 18;
inline constexpr std::size_t kEdgeNumbers = 2;

// Between clusters; values that pass the same way are one edge.
struct RelocationGraph {
  struct Edge {
    std::uint32_t from = 0, to = 0;
    Bytes bytes;  // of all values that pass
    friend bool operator==(const Edge&, const Edge&) = default;
  };
  std::size_t nodes = 0, devices = 0;
  std::vector<Edge> edges;             // by reader, then by who gives; each pair once
  std::vector<std::uint32_t> of_read;  // by value and reader, as the instance has them: the edge, or kInside
  std::vector<Duration> time;          // nodes × devices: of all tasks of the node
  std::vector<Bytes> resident;         // by node: what its units hold all step, shared things once for each
  std::vector<std::vector<UnitId>> units;  // by node
  static constexpr std::uint32_t kInside = 0xffffffff;
};

// O(tasks · devices + reads · log reads).
RelocationGraph make_relocation_graph(const PlacementTask& task);

// A placement as the policy sees it.
struct RelocationView {
  Evaluated evaluated;
  std::vector<std::uint32_t> stands;  // by node: its device
  std::vector<char> moves;            // nodes × devices: may go there, and does not stand there
  std::vector<float> numbers;         // nodes × devices × kOptionNumbers
  // edges × devices × kEdgeNumbers: the message and how long its reader waited after it was given; of
  // `arrive` for each device of the reader, of `leave` for each device of who gives it.
  std::vector<float> arrive, leave;
};

// One evaluation. `stands`: by node, where most of its work is (devices_of_clusters). O(evaluation + (tasks +
// edges) · devices).
RelocationView view_placement(const PlacementTask& task, const RelocationGraph& graph,
                              std::span<const DeviceId> assignment);

}  // namespace espalier::placement
