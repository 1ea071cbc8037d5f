#pragma once

// Parts of a WeightedDag, as series_parallel looks at them. A region is a set of nodes, ascending, that no
// path leaves and comes back to; edges that lead out of it do not count.

#include <cstdint>
#include <vector>

#include "espalier/graph/series_parallel.h"

namespace espalier::internal {

using Region = std::vector<std::uint32_t>;

// A node that joins components of an open part begins the next part. With kFirstUncleanCuts the first part
// goes on where it can: behind a node that all of these components come before and that alone follows them.
enum class Joins : std::uint8_t { kAllCut, kFirstUncleanCuts };

// Time from the first node to the last, or the other way round, with all edges turned.
enum class Direction : std::uint8_t { kForward, kBackward };

// Questions about regions of one dag. Scratch is kept between them, so one thread uses it. All take
// O(nodes + edges) of the region, `barriers` O((nodes + edges) · log nodes).
class Regions {
 public:
  explicit Regions(const WeightedDag& dag);

  // Weakly connected, by first node.
  std::vector<Region> components(const Region& region);

  // The finest parts such that everything in one comes before everything in the next.
  std::vector<Region> series_parts(const Region& region);

  // The heaviest path.
  Weight length(const Region& region);
  Weight work(const Region& region) const;

  // Parts one behind the other, in the order of the dag, although not everything in one comes before
  // everything in the next. Nodes are taken up as late as the heaviest path allows (in kBackward: as early),
  // and a part ends where the next node would join two of its components (see Joins). What had to move anyway
  // moves on to where it costs nothing and leaves most of its neighbour alone. One part if there is one
  // source (in kBackward: one sink).
  std::vector<Region> barriers(const Region& region, Direction direction, Joins joins);

  // By the number of edges before it: parts without an edge inside.
  std::vector<Region> antichains(const Region& region);

 private:
  const std::vector<std::uint32_t>& before(std::uint32_t node, Direction direction) const;
  const std::vector<std::uint32_t>& after(std::uint32_t node, Direction direction) const;
  void enter(const Region& region);
  bool inside(std::uint32_t node) const { return member_[node] == region_; }
  std::uint32_t root_of(std::uint32_t node);
  bool is_clean(std::uint32_t node, Direction direction);
  void open(std::uint32_t node, Direction direction);
  std::vector<Region> sweep(const Region& region, Direction direction, Joins joins);
  std::vector<Region> split_off_moved(const Region& segment, std::uint32_t index, Direction direction);

  const WeightedDag& dag_;
  std::uint32_t region_ = 0;           // number of the region that `enter` was called for last
  std::vector<std::uint32_t> member_;  // by node: the region it was last in
  std::vector<std::uint32_t> open_;    // by node: the open part that it is in (sweep)
  std::uint32_t open_part_ = 0;
  std::vector<std::uint32_t> ends_, pending_;  // of an open component: its last nodes, edges out of the part
  std::vector<std::uint32_t> parent_, count_, segment_;
  std::vector<char> source_, sink_, end_;
  std::vector<std::int64_t> path_;
};

}  // namespace espalier::internal
