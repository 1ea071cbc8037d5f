#include "espalier/graph/region.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/base/ids.h"

namespace espalier::internal {

Regions::Regions(const WeightedDag& dag)
    : dag_(dag),
      member_(dag.weights.size(), 0),
      open_(dag.weights.size(), 0),
      ends_(dag.weights.size(), 0),
      pending_(dag.weights.size(), 0),
      parent_(dag.weights.size(), 0),
      count_(dag.weights.size(), 0),
      segment_(dag.weights.size(), 0),
      source_(dag.weights.size(), 0),
      sink_(dag.weights.size(), 0),
      end_(dag.weights.size(), 0),
      path_(dag.weights.size(), 0) {}

const std::vector<std::uint32_t>& Regions::before(std::uint32_t node, Direction direction) const {
  return direction == Direction::kForward ? dag_.predecessors[node] : dag_.successors[node];
}
const std::vector<std::uint32_t>& Regions::after(std::uint32_t node, Direction direction) const {
  return direction == Direction::kForward ? dag_.successors[node] : dag_.predecessors[node];
}

void Regions::enter(const Region& region) {
  ++region_;
  for (const std::uint32_t v : region) member_[v] = region_;
}

std::uint32_t Regions::root_of(std::uint32_t node) {
  while (parent_[node] != node) node = parent_[node] = parent_[parent_[node]];
  return node;
}

std::vector<Region> Regions::components(const Region& region) {
  enter(region);
  for (const std::uint32_t v : region) parent_[v] = v;
  for (const std::uint32_t v : region) {
    for (const std::uint32_t p : dag_.predecessors[v]) {
      if (!inside(p)) continue;
      const std::uint32_t a = root_of(v), b = root_of(p);
      parent_[std::max(a, b)] = std::min(a, b);  // the root is the first node
    }
  }
  std::vector<Region> result;
  for (const std::uint32_t v : region) {
    const std::uint32_t root = root_of(v);
    if (root == v) {
      count_[v] = narrow(result.size());
      result.emplace_back();
    }
    result[count_[root]].push_back(v);
  }
  return result;
}

// Any legal order passes every cut of a series. Behind a prefix of it there is one exactly if each sink of
// the prefix has an edge to each source of the rest: what is between a sink and a source could stand in
// neither.
std::vector<Region> Regions::series_parts(const Region& region) {
  enter(region);
  std::uint64_t sources = 0, sinks = 0,
                edges = 0;  // edges: from a sink of the prefix to a source of the rest
  for (const std::uint32_t v : region) {
    sink_[v] = 0;
    count_[v] = 0;  // predecessors in the rest
    for (const std::uint32_t p : dag_.predecessors[v]) count_[v] += inside(p) ? 1 : 0;
    source_[v] = count_[v] == 0 ? 1 : 0;
    sources += count_[v] == 0 ? 1 : 0;
  }
  std::vector<Region> result(1);
  for (const std::uint32_t v : region) {
    source_[v] = 0;
    --sources;
    for (const std::uint32_t p : dag_.predecessors[v]) {
      if (!inside(p) || sink_[p] == 0) continue;
      --edges;  // p → v
      sink_[p] = 0;
      --sinks;
      for (const std::uint32_t w : dag_.successors[p]) edges -= inside(w) && source_[w] != 0 ? 1 : 0;
    }
    sink_[v] = 1;
    ++sinks;
    for (const std::uint32_t w : dag_.successors[v]) {
      if (!inside(w) || --count_[w] != 0) continue;
      source_[w] = 1;
      ++sources;
      for (const std::uint32_t p : dag_.predecessors[w]) edges += inside(p) && sink_[p] != 0 ? 1 : 0;
    }
    result.back().push_back(v);
    if (sources > 0 && edges == sinks * sources) result.emplace_back();
  }
  return result;
}

Weight Regions::length(const Region& region) {
  enter(region);
  std::int64_t longest = 0;
  for (const std::uint32_t v : region) {
    std::int64_t start = 0;
    for (const std::uint32_t p : dag_.predecessors[v]) start = std::max(start, inside(p) ? path_[p] : 0);
    path_[v] = start + dag_.weights[v].count();
    longest = std::max(longest, path_[v]);
  }
  return Weight(longest);
}

Weight Regions::work(const Region& region) const {
  Weight sum;
  for (const std::uint32_t v : region) sum += dag_.weights[v];
  return sum;
}

std::vector<Region> Regions::antichains(const Region& region) {
  enter(region);
  std::vector<Region> result;
  for (const std::uint32_t v : region) {
    count_[v] = 0;
    for (const std::uint32_t p : dag_.predecessors[v]) {
      if (inside(p)) count_[v] = std::max(count_[v], count_[p] + 1);
    }
    if (count_[v] >= result.size()) result.resize(count_[v] + 1);
    result[count_[v]].push_back(v);
  }
  return result;
}

// Whether all of the components that a node joins come before it, and nothing else follows them.
bool Regions::is_clean(std::uint32_t node, Direction direction) {
  std::vector<std::uint32_t> roots;
  std::uint64_t edges = 0, last = 0;
  for (const std::uint32_t p : before(node, direction)) {
    if (!inside(p) || open_[p] != open_part_) continue;
    roots.push_back(root_of(p));
    ++edges;
    last += sink_[p] != 0 ? 1 : 0;
  }
  std::sort(roots.begin(), roots.end());
  roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
  for (const std::uint32_t root : roots) {
    edges -= pending_[root];
    last -= ends_[root];
  }
  return edges == 0 && last == 0;  // neither can be more than there are
}

// Takes a node into the open part.
void Regions::open(std::uint32_t node, Direction direction) {
  std::uint32_t root = node;
  parent_[node] = node;
  open_[node] = open_part_;
  sink_[node] = 1;
  ends_[node] = 1;
  pending_[node] = 0;
  for (const std::uint32_t w : after(node, direction)) pending_[node] += inside(w) ? 1 : 0;
  for (const std::uint32_t p : before(node, direction)) {
    if (!inside(p) || open_[p] != open_part_) continue;
    const std::uint32_t other = root_of(p);
    --pending_[other];
    if (sink_[p] != 0) sink_[p] = 0, --ends_[other];
    if (other == root) continue;
    parent_[root] = other;
    ends_[other] += ends_[root];
    pending_[other] += pending_[root];
    root = other;
  }
}

// Nodes are taken by the middle of the latest time at which they can run, a legal order. A node that begins
// the next part takes along, once, what the time of its start leaves more behind than before.
std::vector<Region> Regions::sweep(const Region& region, Direction direction, Joins joins) {
  enter(region);
  Region order = region;
  if (direction == Direction::kBackward) std::reverse(order.begin(), order.end());
  std::int64_t length = 0;
  for (auto v = order.rbegin(); v != order.rend(); ++v) {
    std::int64_t rest = 0;
    for (const std::uint32_t w : after(*v, direction)) rest = std::max(rest, inside(w) ? path_[w] : 0);
    path_[*v] = rest + dag_.weights[*v].count();
    length = std::max(length, path_[*v]);
  }
  const auto twice_start = [&](std::uint32_t v) { return 2 * (length - path_[v]); };
  const auto twice_middle = [&](std::uint32_t v) { return twice_start(v) + dag_.weights[v].count(); };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return twice_middle(a) < twice_middle(b); });

  for (const std::uint32_t v : order) count_[v] = 0;  // 1: was moved to the next part
  std::vector<Region> parts(1);
  ++open_part_;
  std::vector<std::uint32_t> waiting(order.rbegin(), order.rend());  // the last one is next
  while (!waiting.empty()) {
    const std::uint32_t v = waiting.back();
    std::optional<std::uint32_t> component;
    bool cuts = false;
    for (const std::uint32_t p : before(v, direction)) {
      if (!inside(p) || open_[p] != open_part_) continue;
      const std::uint32_t root = root_of(p);
      cuts = cuts || (component && *component != root);
      component = root;
    }
    if (cuts && joins == Joins::kFirstUncleanCuts && parts.size() == 1) cuts = !is_clean(v, direction);
    if (cuts) {
      Region& part = parts.back();
      while (part.size() > 1 && twice_middle(part.back()) > twice_start(v) && count_[part.back()] == 0) {
        count_[part.back()] = 1;
        waiting.push_back(part.back());
        open_[part.back()] = 0;
        part.pop_back();
      }
      parts.emplace_back();
      ++open_part_;
      continue;
    }
    waiting.pop_back();
    open(v, direction);
    parts.back().push_back(v);
  }
  for (Region& part : parts) std::sort(part.begin(), part.end());
  return parts;
}

// Of a part's components, those that do not follow the end of the part before have been moved already. They
// move on to the last series parts of the heaviest component that take as long as they do; the parts before
// are split off.
std::vector<Region> Regions::split_off_moved(const Region& segment, std::uint32_t index,
                                             Direction direction) {
  const std::vector<Region> all = components(segment);
  if (index == 0 || all.size() == 1) return {segment};
  std::size_t heaviest = 0;
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (work(all[i]) > work(all[heaviest])) heaviest = i;
  }
  Weight needed;
  Region moved;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i == heaviest) continue;
    for (const std::uint32_t v : all[i]) {
      for (const std::uint32_t p : before(v, direction)) {
        if (segment_[p] == index - 1 && end_[p] != 0) return {segment};
      }
    }
    needed = std::max(needed, length(all[i]));
    moved.insert(moved.end(), all[i].begin(), all[i].end());
  }
  std::vector<Region> parts = series_parts(all[heaviest]);
  if (direction == Direction::kBackward) std::reverse(parts.begin(), parts.end());
  Weight beside;
  std::size_t first = parts.size();
  while (first > 0 && (beside < needed || first == parts.size())) beside += length(parts[--first]);
  if (first == 0) return {segment};
  std::vector<Region> result(2);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Region& to = result[i < first ? 0 : 1];
    to.insert(to.end(), parts[i].begin(), parts[i].end());
  }
  result[1].insert(result[1].end(), moved.begin(), moved.end());
  for (Region& part : result) std::sort(part.begin(), part.end());
  return result;
}

std::vector<Region> Regions::barriers(const Region& region, Direction direction, Joins joins) {
  const std::vector<Region> swept = sweep(region, direction, joins);
  constexpr std::uint32_t kOutside = 0xffffffff;
  for (const std::uint32_t v : region) {
    for (const std::uint32_t p : before(v, direction)) segment_[p] = kOutside;
  }
  for (std::size_t i = 0; i < swept.size(); ++i) {
    for (const std::uint32_t v : swept[i]) segment_[v] = narrow(i);
  }
  for (const std::uint32_t v : region) {
    const auto& next = after(v, direction);
    end_[v] = std::none_of(next.begin(), next.end(),
                           [&](std::uint32_t w) { return inside(w) && segment_[w] == segment_[v]; });
  }
  std::vector<Region> result;
  for (std::size_t i = 0; i < swept.size(); ++i) {
    for (Region& part : split_off_moved(swept[i], narrow(i), direction)) {
      result.push_back(std::move(part));
    }
  }
  if (direction == Direction::kBackward) std::reverse(result.begin(), result.end());
  return result;
}

}  // namespace espalier::internal
