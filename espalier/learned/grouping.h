#pragma once

// Nodes in groups that HDP draws anew for each placement, and what its placer is told of them.
//
//   a group's row   types of operators | sizes | values to and from each group | means
//                   each of the first three divided by its largest number + 1
//
// Source: Mirhoseini et al., ICLR'18, §3, and its public code (TensorFlow's hierarchical_controller.py).
// Deviations: types by hash (policy_input.h), an operator counts by its part of the node's work; sizes are
// the groups' parts of all work, bytes produced and residents, not sums of dimensions of output shapes, which
// a graph of other layouts does not have; each of the three parts has a largest number of its own.

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/base/thread_pool.h"
#include "espalier/learned/placement_task.h"

namespace espalier::placement {

// A group for each node.
using Grouping = std::vector<std::uint32_t>;

enum class GroupFeatures : std::uint8_t {
  kPublished,  // types, sizes, values
  kMeans,      // and the mean of what the grouper knows of the nodes, by their work, and sizes as logarithms
};

// Refers to the task; any number of threads may ask it.
class GroupDescriber {
 public:
  GroupDescriber(const PlacementTask& task, std::size_t groups, GroupFeatures features);

  std::size_t groups() const { return groups_; }
  std::size_t width() const;  // of a row

  // groups × width(). O(types of nodes + edges + groups²).
  std::vector<float> describe(const Grouping& grouping) const;
  // Of several, one after the other, on all threads of the pool (none: the caller's).
  std::vector<float> describe_all(std::span<const Grouping> groupings, ThreadPool* pool) const;

 private:
  static constexpr std::size_t kSizes = 3;  // work, bytes produced, residents
  struct Edge {
    std::uint32_t from, to;
    float values;
  };
  void write_counts(const Grouping& grouping, std::span<float> rows) const;
  void write_means(const Grouping& grouping, std::span<float> rows) const;

  const PolicyInput& input_;
  std::size_t groups_;
  GroupFeatures features_;
  std::vector<float> operators_;  // by node
  std::vector<float> sizes_;      // nodes × kSizes: parts of all, times groups
  std::vector<Edge> edges_;       // between nodes, ascending
};

// Groups drawn node by node from rows of probabilities, nodes × groups. The same for the same seed.
std::vector<Grouping> draw_groupings(std::span<const float> probability, std::size_t groups,
                                     std::size_t count, std::uint64_t seed, ThreadPool* pool);

// Nodes in a line by layer, then in the order of the input: each one's place in [0, 1).
std::vector<double> places_by_layer(const PolicyInput& input);

}  // namespace espalier::placement
