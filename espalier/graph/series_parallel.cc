// An order taken apart from above: components are branches, cuts that everything passes are a series. What
// has neither (a tangle) is cut where that lengthens the heaviest path least. Valdes, Tarjan and Lawler
// (SICOMP'82) recognise series-parallel orders from below in linear time, but need the transitive reduction,
// which nobody knows how to find in linear time for any dag; from above it is not needed.
//
// Known bad cases: parts nested deeper than max_depth get waits that they do not need.

#include "espalier/graph/series_parallel.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/base/ids.h"
#include "espalier/graph/region.h"

namespace espalier {
namespace {

using internal::Direction;
using internal::Joins;
using internal::Region;
using internal::Regions;
using Node = SeriesParallelTree::Node;

class Builder {
 public:
  Builder(const WeightedDag& dag, const SeriesParallelOptions& options) : options_(options), regions_(dag) {}

  std::uint32_t build(const Region& region, std::size_t depth) {
    if (region.size() == 1) return add({.kind = PartKind::kLeaf, .leaf = region.front()});
    if (depth > options_.max_depth) return levels(region);
    std::vector<Region> parts = regions_.components(region);
    if (parts.size() > 1) return branches(region, parts, depth);
    parts = regions_.series_parts(region);
    return series(parts.size() > 1 ? parts : tangle(region), depth);
  }

  std::vector<Node> take_nodes() { return std::move(nodes_); }

 private:
  std::uint32_t add(Node node) {
    nodes_.push_back(std::move(node));
    return narrow(nodes_.size() - 1);
  }

  // Of a child of the same kind its own children are taken; the child itself is dropped later.
  void append(std::vector<std::uint32_t>& children, std::uint32_t child, PartKind kind) {
    const Node& node = nodes_[child];
    if (node.kind == kind) {
      children.insert(children.end(), node.children.begin(), node.children.end());
    } else {
      children.push_back(child);
    }
  }

  std::uint32_t series(const std::vector<Region>& parts, std::size_t depth) {
    Node node{.kind = PartKind::kSeries};
    for (const Region& part : parts) append(node.children, build(part, depth + 1), PartKind::kSeries);
    return node.children.size() == 1 ? node.children.front() : add(std::move(node));
  }

  std::uint32_t parallel(const std::vector<Region>& parts, std::size_t depth) {
    Node node{.kind = PartKind::kParallel};
    for (const Region& part : parts) append(node.children, build(part, depth + 1), PartKind::kParallel);
    return add(std::move(node));
  }

  std::uint32_t levels(const Region& region) {
    Node result{.kind = PartKind::kSeries};
    for (const Region& level : regions_.antichains(region)) {
      Node side_by_side{.kind = PartKind::kParallel};
      for (const std::uint32_t v : level) {
        side_by_side.children.push_back(add({.kind = PartKind::kLeaf, .leaf = v}));
      }
      const bool alone = level.size() == 1;
      result.children.push_back(alone ? side_by_side.children.front() : add(std::move(side_by_side)));
    }
    return result.children.size() == 1 ? result.children.front() : add(std::move(result));
  }

  Weight growth(const Region& region, const std::vector<Region>& parts) {
    Weight sum;
    for (const Region& part : parts) sum += regions_.length(part);
    return sum - regions_.length(region);
  }

  // The parts of a connected region that is no series. It has several sources and several sinks, so both
  // directions cut it. Late is what people expect of a decoder, and a fiftieth may be paid for it.
  std::vector<Region> tangle(const Region& region) {
    constexpr std::int64_t kBearable = 50;
    std::vector<Region> late = regions_.barriers(region, Direction::kForward, Joins::kFirstUncleanCuts);
    const Weight late_growth = growth(region, late);
    if (late_growth > regions_.length(region) / kBearable) {
      std::vector<Region> early = regions_.barriers(region, Direction::kBackward, Joins::kFirstUncleanCuts);
      if (growth(region, early) < late_growth) late = std::move(early);
    }
    ESP_CHECK(late.size() > 1, region.size());
    return late;
  }

  std::uint32_t branches(const Region& region, const std::vector<Region>& parts, std::size_t depth) {
    if (options_.staircases == Staircases::kFlattened) {
      if (const auto steps = staircase(region, parts)) return series(*steps, depth);
    }
    return parallel(parts, depth);
  }

  std::size_t heaviest_of(const std::vector<Region>& parts) {
    std::size_t heaviest = 0;
    for (std::size_t i = 1; i < parts.size(); ++i) {
      if (regions_.work(parts[i]) > regions_.work(parts[heaviest])) heaviest = i;
    }
    return heaviest;
  }

  // Whether the series in `part` begins (kBackward: ends) with branches of which the heaviest begins so, too.
  bool has_two_steps(const Region& part, Direction direction) {
    Region step = part;
    for (int steps = 0; steps < 2; ++steps) {
      const std::vector<Region> parts = regions_.series_parts(step);
      const Region& end = direction == Direction::kForward ? parts.front() : parts.back();
      const std::vector<Region> beside = regions_.components(end);
      if (parts.size() == 1 || beside.size() == 1) return false;
      step = beside[heaviest_of(beside)];
    }
    return true;
  }

  // A staircase: light branches beside a series that begins or ends with a staircase.
  std::optional<std::vector<Region>> staircase(const Region& region, const std::vector<Region>& parts) {
    const Region& heaviest = parts[heaviest_of(parts)];
    const Weight all = regions_.work(region), most = regions_.work(heaviest);
    constexpr std::int64_t kLight = 4;  // the others together weigh at most a quarter of it
    if ((all - most) * kLight > most) return std::nullopt;
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      if (!has_two_steps(heaviest, direction)) continue;
      std::vector<Region> flat = regions_.barriers(region, direction, Joins::kAllCut);
      if (flat.size() > 1 && growth(region, flat) == Weight()) return flat;
    }
    return std::nullopt;
  }

  const SeriesParallelOptions& options_;
  Regions regions_;
  std::vector<Node> nodes_;
};

// What is appended to a list of children leaves its own node behind; these are dropped here, and the others
// keep their order.
void drop_unused(SeriesParallelTree& tree) {
  std::vector<char> used(tree.nodes.size(), 0);
  used[tree.root] = 1;
  for (std::size_t i = tree.nodes.size(); i-- > 0;) {
    if (used[i] == 0) continue;
    for (const std::uint32_t child : tree.nodes[i].children) used[child] = 1;
  }
  std::vector<std::uint32_t> number(tree.nodes.size(), 0);
  std::vector<Node> kept;
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
    if (used[i] == 0) continue;
    number[i] = narrow(kept.size());
    for (std::uint32_t& child : tree.nodes[i].children) child = number[child];
    kept.push_back(std::move(tree.nodes[i]));
  }
  tree.root = number[tree.root];
  tree.nodes = std::move(kept);
}

// The nodes of a part that nothing in it leads to (first) or that lead to nothing in it.
enum class End : std::uint8_t { kFirst, kLast };
void collect_ends(const SeriesParallelTree& tree, std::uint32_t node, End end,
                  std::vector<std::uint32_t>& to) {
  const Node& part = tree.nodes[node];
  if (part.kind == PartKind::kLeaf) {
    to.push_back(part.leaf);
  } else if (part.kind == PartKind::kSeries) {
    collect_ends(tree, end == End::kFirst ? part.children.front() : part.children.back(), end, to);
  } else {
    for (const std::uint32_t child : part.children) collect_ends(tree, child, end, to);
  }
}

// Each node is a last one of exactly one child of a series that has a next child, so all this is linear.
std::vector<SeriesParallelTree::Wait> waits_of(const WeightedDag& dag, const SeriesParallelTree& tree) {
  std::vector<SeriesParallelTree::Wait> waits;
  std::vector<std::uint32_t> is_first(dag.weights.size(), 0), is_last(dag.weights.size(), 0);
  std::uint32_t round = 0;
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
    const Node& node = tree.nodes[i];
    if (node.kind != PartKind::kSeries) continue;
    for (std::size_t position = 1; position < node.children.size(); ++position) {
      ++round;
      std::vector<std::uint32_t> last, first;
      collect_ends(tree, node.children[position - 1], End::kLast, last);
      collect_ends(tree, node.children[position], End::kFirst, first);
      for (const std::uint32_t v : last) is_last[v] = round;
      for (const std::uint32_t v : first) is_first[v] = round;
      SeriesParallelTree::Wait wait{.series = narrow(i), .position = narrow(position), .from = {}, .to = {}};
      wait.pairs = static_cast<std::uint64_t>(last.size()) * first.size();
      const auto neighbours = [](const std::vector<std::uint32_t>& list,
                                 const std::vector<std::uint32_t>& marked, std::uint32_t mark) {
        return static_cast<std::uint64_t>(
            std::count_if(list.begin(), list.end(), [&](std::uint32_t v) { return marked[v] == mark; }));
      };
      for (const std::uint32_t v : last) {
        const std::uint64_t edges = neighbours(dag.successors[v], is_first, round);
        wait.pairs -= edges;
        if (edges < first.size()) wait.from.push_back(v);
      }
      if (wait.pairs == 0) continue;
      for (const std::uint32_t v : first) {
        if (neighbours(dag.predecessors[v], is_last, round) < last.size()) wait.to.push_back(v);
      }
      std::sort(wait.from.begin(), wait.from.end());
      std::sort(wait.to.begin(), wait.to.end());
      waits.push_back(std::move(wait));
    }
  }
  return waits;
}

Weight tree_length(const WeightedDag& dag, const SeriesParallelTree& tree) {
  std::vector<Weight> length(tree.nodes.size());
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
    const Node& node = tree.nodes[i];
    if (node.kind == PartKind::kLeaf) length[i] = dag.weights[node.leaf];
    for (const std::uint32_t child : node.children) {
      length[i] =
          node.kind == PartKind::kSeries ? length[i] + length[child] : std::max(length[i], length[child]);
    }
  }
  return length[tree.root];
}

// Without most of the edges that longer paths make needless. A spanning forest gives each node its
// predecessor behind the most edges as its parent; an edge to what another successor is an ancestor of in
// the forest goes. O(n + e · log e). Which joins are clean is seen better without them.
WeightedDag without_needless_edges(const WeightedDag& dag) {
  const std::size_t n = dag.weights.size();
  std::vector<std::uint32_t> depth(n, 0), size(n, 1), first(n, 0), next(n, 0);
  std::vector<std::optional<std::uint32_t>> parent(n);
  for (std::size_t v = 0; v < n; ++v) {
    for (const std::uint32_t p : dag.predecessors[v]) {
      if (depth[p] + 1 <= depth[v]) continue;
      depth[v] = depth[p] + 1;
      parent[v] = p;
    }
  }
  for (std::size_t v = n; v-- > 0;) {
    if (parent[v]) size[*parent[v]] += size[v];
  }
  std::uint32_t roots = 0;  // numbers in preorder: v's descendants are those in [first, first + size)
  for (std::size_t v = 0; v < n; ++v) {
    std::uint32_t& place = parent[v] ? next[*parent[v]] : roots;
    first[v] = place;
    place += size[v];
    next[v] = first[v] + 1;
  }
  WeightedDag result;
  result.weights = dag.weights;
  result.predecessors.resize(n), result.successors.resize(n);
  for (std::size_t v = 0; v < n; ++v) {
    std::vector<std::uint32_t> successors = dag.successors[v];
    std::sort(successors.begin(), successors.end(),
              [&](std::uint32_t a, std::uint32_t b) { return first[a] < first[b]; });
    std::uint32_t covered = 0;  // ends of the successors' descendants so far
    for (const std::uint32_t w : successors) {
      if (first[w] < covered) continue;
      covered = first[w] + size[w];
      result.successors[v].push_back(w);
    }
    std::sort(result.successors[v].begin(), result.successors[v].end());
    for (const std::uint32_t w : result.successors[v]) result.predecessors[w].push_back(narrow(v));
  }
  return result;
}

}  // namespace

SeriesParallelTree series_parallel(const WeightedDag& dag, const SeriesParallelOptions& options) {
  const std::size_t n = dag.weights.size();
  ESP_CHECK(dag.predecessors.size() == n && dag.successors.size() == n, n);
  SeriesParallelTree tree;
  if (n == 0) return tree;
  Region all(n);
  std::iota(all.begin(), all.end(), 0U);
  const WeightedDag lean = without_needless_edges(dag);
  Builder builder(lean, options);
  tree.root = builder.build(all, 0);
  tree.nodes = builder.take_nodes();
  drop_unused(tree);
  tree.waits = waits_of(dag, tree);
  tree.length = tree_length(dag, tree);
  tree.longest_path = Regions(dag).length(all);
  return tree;
}

}  // namespace espalier
