// Operators without weight are taken out of the order without changing it between the others: their
// predecessors lead to their successors directly. Where that would make many edges out of few (five or more
// before them, two or more behind), they stay.

#include "espalier/graph/structure_core.h"

#include <algorithm>
#include <numeric>

#include "espalier/base/check.h"

namespace espalier::internal {

std::optional<Weight> carried_up_to(std::span<const Weight> weights, std::uint32_t per_mille) {
  std::vector<Weight> sorted(weights.begin(), weights.end());
  std::sort(sorted.begin(), sorted.end());
  Weight all;
  for (const Weight w : sorted) {
    ESP_CHECK(w >= Weight() && w <= Weight(std::int64_t{1} << 62) - all, w);
    all += w;
  }
  if (all == Weight()) return std::nullopt;
  const std::int64_t limit = all.count() / 1000 * per_mille + all.count() % 1000 * per_mille / 1000;
  std::optional<Weight> most;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    sum += sorted[i].count();
    if (sum > limit) break;
    if (i + 1 == sorted.size() || sorted[i + 1] > sorted[i]) most = sorted[i];
  }
  return most;
}

Core make_core(const Contraction& nodes, std::span<const Weight> weights, std::span<const char> decides,
               std::span<const char> needed) {
  constexpr std::size_t kFew = 4;
  const std::size_t n = nodes.nodes.size();
  Core core;
  core.leaf_of.resize(n);
  std::vector<std::vector<std::uint32_t>> origin(n);  // of a node that is taken out: what comes before it
  for (std::size_t v = 0; v < n; ++v) {
    if (needed[v] == 0) continue;
    std::vector<std::uint32_t> before;
    for (const std::uint32_t p : nodes.predecessors[v]) {
      if (core.leaf_of[p]) {
        before.push_back(*core.leaf_of[p]);
        continue;
      }
      if (nodes.successors[p].size() == 1 && origin[p].size() > before.size()) std::swap(before, origin[p]);
      before.insert(before.end(), origin[p].begin(), origin[p].end());
    }
    const std::size_t readers = nodes.successors[v].size();
    if (decides[v] == 0 && readers <= 1) {  // sorted where they arrive: long lists are handed on once
      origin[v] = std::move(before);
      continue;
    }
    std::sort(before.begin(), before.end());
    before.erase(std::unique(before.begin(), before.end()), before.end());
    if (decides[v] == 0 && before.size() <= kFew) {
      origin[v] = std::move(before);
      continue;
    }
    core.leaf_of[v] = narrow(core.node_of.size());
    core.node_of.push_back(narrow(v));
    for (const std::uint32_t p : before) core.dag.successors[p].push_back(*core.leaf_of[v]);
    core.dag.predecessors.push_back(std::move(before));
    core.dag.successors.emplace_back();
    core.dag.weights.push_back(weights[v]);
  }
  return core;
}

namespace {

// A place in a SeriesParallelTree: a leaf, or before or behind a parallel node, whose parent is a series.
struct Place {
  std::uint32_t node = 0;
  enum class Side : std::uint8_t { kBefore, kAt, kBehind } side = Side::kAt;
  friend bool operator==(const Place&, const Place&) = default;
};

class Places {
 public:
  explicit Places(const SeriesParallelTree& tree)
      : tree_(tree), up_(tree.nodes.size()), depth_(tree.nodes.size(), 0) {
    for (std::size_t i = tree.nodes.size(); i-- > 0;) {  // parents stand behind their children
      const auto& children = tree.nodes[i].children;
      for (std::size_t c = 0; c < children.size(); ++c) {
        up_[children[c]] = Up{narrow(i), narrow(c)};
        depth_[children[c]] = depth_[i] + 1;
      }
    }
  }

  enum class Choice : std::uint8_t { kEarlier, kLater };
  // The earlier (later) of two places, or the nearest that is before (behind) both.
  Place meet(Place a, Place b, Choice choice) const {
    if (a == b) return a;
    std::uint32_t x = a.node, y = b.node;
    std::uint32_t below_x = x, below_y = y;  // the last ones before x and y meet
    while (x != y) {
      if (depth_[x] >= depth_[y]) {
        below_x = x;
        x = up_[x]->parent;
      } else {
        below_y = y;
        y = up_[y]->parent;
      }
    }
    if (x == a.node || x == b.node) return beside(a, b, x, choice);
    if (tree_.nodes[x].kind == PartKind::kParallel) {
      return choice == Choice::kLater ? behind(x) : before(x);
    }
    const bool a_first = up_[below_x]->position < up_[below_y]->position;
    return a_first == (choice == Choice::kEarlier) ? a : b;
  }

 private:
  struct Up {
    std::uint32_t parent, position;
  };

  // One of the two is before or behind the parallel node x; the other one too, or it is within x.
  Place beside(Place a, Place b, std::uint32_t x, Choice choice) const {
    const auto when = [&](Place p) { return p.node == x ? static_cast<int>(p.side) : 1; };
    ESP_CHECK(when(a) != when(b), x);
    return (when(a) < when(b)) == (choice == Choice::kEarlier) ? a : b;
  }

  // Neighbours that are leaves are places already; between two parallel nodes there is one place.
  Place behind(std::uint32_t parallel) const {
    if (up_[parallel]) {
      const auto& siblings = tree_.nodes[up_[parallel]->parent].children;
      const std::size_t next = up_[parallel]->position + 1U;
      if (next < siblings.size()) {
        const bool leaf = tree_.nodes[siblings[next]].kind == PartKind::kLeaf;
        return {siblings[next], leaf ? Place::Side::kAt : Place::Side::kBefore};
      }
    }
    return {parallel, Place::Side::kBehind};
  }
  Place before(std::uint32_t parallel) const {
    if (up_[parallel] && up_[parallel]->position > 0) {
      const std::uint32_t other = tree_.nodes[up_[parallel]->parent].children[up_[parallel]->position - 1];
      if (tree_.nodes[other].kind == PartKind::kLeaf) return {other, Place::Side::kAt};
    }
    return {parallel, Place::Side::kBefore};
  }

  const SeriesParallelTree& tree_;
  std::vector<std::optional<Up>> up_;
  std::vector<std::uint32_t> depth_;
};

std::vector<Place> places_of(const SeriesParallelTree& tree, const Contraction& nodes, const Core& core) {
  const std::size_t n = nodes.nodes.size();
  const Places places(tree);
  std::vector<std::uint32_t> tree_node(core.node_of.size(), 0);
  std::uint32_t first_leaf = tree.root;
  while (!tree.nodes[first_leaf].children.empty()) first_leaf = tree.nodes[first_leaf].children.front();
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
    if (tree.nodes[i].kind == PartKind::kLeaf) tree_node[tree.nodes[i].leaf] = narrow(i);
  }
  std::vector<std::optional<Place>> latest(n);  // of those that nothing which decides leads to: their place
  std::vector<std::optional<Place>> own(n);
  for (std::size_t v = 0; v < n; ++v) {
    if (core.leaf_of[v]) own[v] = Place{tree_node[*core.leaf_of[v]]};
  }
  for (std::size_t v = n; v-- > 0;) {
    if (own[v]) continue;
    for (const std::uint32_t s : nodes.successors[v]) {
      const auto& other = own[s] ? own[s] : latest[s];
      if (!other) continue;
      latest[v] = latest[v] ? places.meet(*latest[v], *other, Places::Choice::kEarlier) : *other;
    }
  }
  std::vector<char> led_to(n, 0);  // by something that decides
  for (std::size_t v = 0; v < n; ++v) {
    if (core.leaf_of[v]) {
      led_to[v] = 1;
      continue;
    }
    for (const std::uint32_t p : nodes.predecessors[v]) {
      led_to[v] = led_to[v] != 0 || led_to[p] != 0 ? 1 : 0;
      own[v] = own[v] ? places.meet(*own[v], *own[p], Places::Choice::kLater) : *own[p];
    }
    if (led_to[v] == 0 && latest[v]) own[v] = latest[v];
    if (!own[v]) own[v] = Place{first_leaf};
  }
  std::vector<Place> result;
  for (const auto& place : own) result.push_back(*place);
  return result;
}

}  // namespace

FullTree with_carried(const SeriesParallelTree& tree, const Contraction& nodes, const Core& core) {
  FullTree full;
  full.number.resize(tree.nodes.size());
  full.position.resize(tree.nodes.size());
  const std::vector<Place> places = places_of(tree, nodes, core);
  std::vector<std::vector<std::uint32_t>> before(tree.nodes.size()), at(tree.nodes.size()),
      behind(tree.nodes.size());
  for (std::size_t v = 0; v < places.size(); ++v) {
    const Place& place = places[v];
    auto& lists = place.side == Place::Side::kBefore ? before : place.side == Place::Side::kAt ? at : behind;
    lists[place.node].push_back(narrow(v));
  }
  const auto add = [&](FullTree::Node node) {
    full.nodes.push_back(std::move(node));
    return narrow(full.nodes.size() - 1);
  };
  const auto add_leaf = [&](std::vector<std::uint32_t>& members, std::vector<std::uint32_t>& children) {
    if (!members.empty()) children.push_back(add({.members = std::move(members)}));
  };
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) {  // children stand before parents
    FullTree::Node node{.kind = tree.nodes[i].kind, .members = std::move(at[i])};
    for (const std::uint32_t child : tree.nodes[i].children) {
      if (node.kind == PartKind::kSeries) add_leaf(before[child], node.children);
      full.position[i].push_back(narrow(node.children.size()));
      node.children.push_back(full.number[child]);
      if (node.kind == PartKind::kSeries) add_leaf(behind[child], node.children);
    }
    full.number[i] = add(std::move(node));
  }
  full.root = full.number[tree.root];
  if (!before[tree.root].empty() || !behind[tree.root].empty()) {  // the root is parallel
    FullTree::Node node{.kind = PartKind::kSeries};
    add_leaf(before[tree.root], node.children);
    node.children.push_back(full.root);
    add_leaf(behind[tree.root], node.children);
    full.root = add(std::move(node));
  }
  return full;
}

}  // namespace espalier::internal
