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
  // directions cut it. Late is what people expect of a decoder.
  std::vector<Region> tangle(const Region& region) {
    std::vector<Region> late = regions_.barriers(region, Direction::kForward);
    const Weight late_growth = growth(region, late);
    if (late_growth != Weight()) {
      std::vector<Region> early = regions_.barriers(region, Direction::kBackward);
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

  // A staircase: light branches beside a series that begins (or ends) with branches itself.
  std::optional<std::vector<Region>> staircase(const Region& region, const std::vector<Region>& parts) {
    std::size_t heaviest = 0;
    Weight all, most;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Weight work = regions_.work(parts[i]);
      all += work;
      if (work > most) most = work, heaviest = i;
    }
    constexpr std::int64_t kLight = 4;  // the others together weigh at most a quarter of it
    if ((all - most) * kLight > most) return std::nullopt;
    const std::vector<Region> steps = regions_.series_parts(parts[heaviest]);
    if (steps.size() == 1) return std::nullopt;
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      const Region& end = direction == Direction::kForward ? steps.front() : steps.back();
      if (regions_.components(end).size() == 1) continue;
      std::vector<Region> flat = regions_.barriers(region, direction);
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

}  // namespace

SeriesParallelTree series_parallel(const WeightedDag& dag, const SeriesParallelOptions& options) {
  const std::size_t n = dag.weights.size();
  ESP_CHECK(dag.predecessors.size() == n && dag.successors.size() == n, n);
  SeriesParallelTree tree;
  if (n == 0) return tree;
  Region all(n);
  std::iota(all.begin(), all.end(), 0U);
  Builder builder(dag, options);
  tree.root = builder.build(all, 0);
  tree.nodes = builder.take_nodes();
  drop_unused(tree);
  tree.waits = waits_of(dag, tree);
  tree.length = tree_length(dag, tree);
  tree.longest_path = Regions(dag).length(all);
  return tree;
}

}  // namespace espalier
