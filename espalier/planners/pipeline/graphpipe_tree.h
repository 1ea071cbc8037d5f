#pragma once

// A structure as GraphPipe plans it: runs of items, where an item is a piece that is never cut, or a fork
// whose branches are runs again.
//
//     run 0    [a] [b] <fork 0> [head]
//     fork 0     run 1   [i1] [i2] [i3]
//                run 2   [t1] [t2]

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "espalier/graph/structure.h"
#include "espalier/planners/pipeline/part_splits.h"

namespace espalier::internal {

// Places [begin, end) of a linearization, ascending, none touching the next.
using PlaceRanges = std::vector<Places>;
void append_places(PlaceRanges& ranges, const Places& fresh);  // any order: kept ascending and joined

struct PipeItem {
  PlaceRanges places;
  std::optional<std::uint32_t> fork = {};
  Weight work = {};
};
struct PipeRun {
  std::vector<PipeItem> items;
  std::uint32_t like = 0;  // the first run that is the same computation, item by item
  Weight work = {};
};
struct PipeFork {
  std::vector<std::uint32_t> branches;  // runs, two or more; the heaviest first
  // Runs of several branches, one behind the other, by which they are: without forks, in fewer items. All
  // sets where there are at most four branches, else neighbours.
  std::map<std::vector<std::uint16_t>, std::uint32_t> groups;
};
struct PipeTree {
  std::vector<PipeRun> runs;  // the first is the whole graph
  std::vector<PipeFork> forks;
  Weight work() const { return runs.front().work; }

  PlaceRanges places(std::uint32_t run, std::size_t first, std::size_t last) const;  // of items [first, last)
};

struct PipeTreeOptions {
  Weight least_fork = {};  // a parallel part with less work beside its heaviest branch is a piece of its run
  Weight light_branch = {};  // lighter branches, and those without work, join the run of the least loaded one
  enum class Tangles : std::uint8_t {
    kAddedEdges,  // as the structure has them: some parts wait for more than they read
    kConvexCuts,  // a part that holds such waits is one run in the structure's order, cut anywhere
  } tangles = Tangles::kAddedEdges;
  // Branches of a fork beyond so many are dealt to the least loaded of the others, the heaviest first: where
  // there are fewer devices than branches. 0: each is by itself.
  std::size_t tracks = 0;
  std::size_t most_items = 64;  // of a run: the cuts that divide its work most evenly are kept
  std::size_t devices = 1;      // to plan for: where branches have many each, a group of them is one item
  bool share_equal_parts = true;
};

// `before`: work of the places before each place, and of all. O(parts + items).
PipeTree make_pipe_tree(const Structure& structure, std::span<const Weight> before,
                        const PipeTreeOptions& options);

// Whether some wait of the structure asks for more than the graph does: then the two trees differ.
bool has_tangles(const Structure& structure);

}  // namespace espalier::internal
