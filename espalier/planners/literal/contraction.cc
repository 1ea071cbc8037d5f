#include "espalier/planners/literal/contraction.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>

#include "espalier/base/check.h"

namespace espalier::literal {
namespace {

constexpr std::size_t kMostNodes = 20'000;  // squares of it are stored
constexpr double kIdleTime = 1e-6;          // below it an item takes no time
constexpr double kSameCost = 1e-6;          // costs of a source's edges may differ by it
constexpr std::int64_t kFreshColour =
    2147483647 - 12345678;  // nodes without colour are numbered down from it

using ClassEdges = std::set<std::pair<std::uint32_t, std::uint32_t>>;

std::string node_text(const MsrProfile& profile, std::size_t node) {
  return profile.file + ": node " + std::to_string(profile.nodes[node].id);
}

void refuse_cycles(const MsrProfile& profile) {
  ItemLists before(profile.nodes.size());
  for (const MsrProfile::Edge& edge : profile.edges)
    before[edge.to].push_back(static_cast<std::uint32_t>(edge.from));
  const std::vector<std::uint32_t> order = topological_order(before);
  if (order.size() == profile.nodes.size()) return;
  std::vector<bool> sorted(profile.nodes.size());
  for (const std::uint32_t node : order) sorted[node] = true;
  // Of what is left, each node has an edge from another that is left: going back leads onto a cycle.
  std::size_t node =
      static_cast<std::size_t>(std::find(sorted.begin(), sorted.end(), false) - sorted.begin());
  for (std::size_t step = 0; step < sorted.size(); ++step) {
    node =
        *std::find_if(before[node].begin(), before[node].end(), [&](std::uint32_t v) { return !sorted[v]; });
  }
  throw InputError(node_text(profile, node) + " reads its own output through its edges; expected no cycles");
}

class Contraction {
 public:
  explicit Contraction(const MsrProfile& profile)
      : profile_(profile), parent_(), cost_(profile.nodes.size()) {}

  ContractedGraph contract() {
    fuse();
    describe_classes();
    absorb_idle();
    return number_items();
  }

  // By node, without what is idle joined to others.
  std::vector<std::uint32_t> fused_classes() {
    fuse();
    std::vector<std::optional<std::uint32_t>> number(key_.size());
    std::vector<std::uint32_t> of_node;
    std::uint32_t count = 0;
    for (const std::uint32_t c : class_) {
      if (!number[root(c)]) number[root(c)] = count++;
      of_node.push_back(*number[root(c)]);
    }
    return of_node;
  }

 private:
  void fuse() {
    if (profile_.nodes.empty()) throw InputError(profile_.file + ": has no nodes");
    if (profile_.nodes.size() > kMostNodes)
      throw InputError(profile_.file + ": has more than " + std::to_string(kMostNodes) +
                       " nodes, which is the most");
    refuse_cycles(profile_);
    find_classes();
    read_edges();
    fuse_cycles();
  }

  std::uint32_t root(std::uint32_t c) {
    while (parent_[c] != c) c = parent_[c] = parent_[parent_[c]];
    return c;
  }

  // Classes are numbered by their first nodes.
  void find_classes() {
    std::map<std::int64_t, std::uint32_t> of_colour;
    std::int64_t fresh = kFreshColour;
    for (const MsrProfile::Node& node : profile_.nodes) {
      const auto next = static_cast<std::uint32_t>(key_.size());
      const std::uint32_t c = node.colour ? of_colour.emplace(*node.colour, next).first->second : next;
      if (c == next) key_.push_back(node.colour ? *node.colour : --fresh);
      class_.push_back(c);
    }
    parent_.resize(key_.size());
    std::iota(parent_.begin(), parent_.end(), 0U);
  }

  void read_edges() {
    std::vector<bool> forward(key_.size());
    for (std::size_t i = 0; i < class_.size(); ++i) {
      if (!profile_.nodes[i].backward) forward[class_[i]] = true;
    }
    read_by_backward_.resize(key_.size());
    std::vector<bool> seen(profile_.nodes.size());
    for (const MsrProfile::Edge& edge : profile_.edges) {
      if (seen[edge.from] && std::abs(cost_[edge.from] - edge.cost) > kSameCost) {
        throw InputError(node_text(profile_, edge.from) +
                         " has edges of different cost; expected the cost of its output on all of them");
      }
      if (!seen[edge.from]) cost_[edge.from] = edge.cost;
      seen[edge.from] = true;
      const bool from_backward = profile_.nodes[edge.from].backward,
                 to_backward = profile_.nodes[edge.to].backward;
      const std::uint32_t from = class_[edge.from], to = class_[edge.to];
      if (from_backward && !to_backward)
        throw InputError(node_text(profile_, edge.from) + " is backward and is read by a forward node");
      if (!from_backward && to_backward) read_by_backward_[from] = true;
      if (from == to) continue;
      if (!to_backward) edges_.emplace(from, to);
      if (from_backward && !(forward[from] && forward[to])) mirrored_.emplace(to, from);
    }
  }

  // Strongly connected classes, by two depth-first searches (Kosaraju).
  void fuse_cycles() {
    std::vector<std::vector<std::uint32_t>> after(key_.size()), before(key_.size());
    for (const ClassEdges* edges : {&edges_, &mirrored_}) {
      for (const auto& [from, to] : *edges) after[from].push_back(to), before[to].push_back(from);
    }
    std::vector<std::uint32_t> finished;
    std::vector<std::size_t> next(key_.size());
    std::vector<bool> seen(key_.size());
    for (std::uint32_t start = 0; start < key_.size(); ++start) {
      if (seen[start]) continue;
      std::vector<std::uint32_t> path{start};
      seen[start] = true;
      while (!path.empty()) {
        const std::uint32_t c = path.back();
        if (next[c] == after[c].size()) {
          finished.push_back(c);
          path.pop_back();
        } else if (const std::uint32_t other = after[c][next[c]++]; !seen[other]) {
          seen[other] = true;
          path.push_back(other);
        }
      }
    }
    std::vector<bool> taken(key_.size());
    for (auto start = finished.rbegin(); start != finished.rend(); ++start) {
      if (taken[*start]) continue;
      std::vector<std::uint32_t> open{*start};
      taken[*start] = true;
      while (!open.empty()) {
        const std::uint32_t c = open.back();
        open.pop_back();
        parent_[c] = *start;
        for (const std::uint32_t other : before[c]) {
          if (!taken[other]) taken[other] = true, open.push_back(other);
        }
      }
    }
    for (ClassEdges* edges : {&edges_, &mirrored_}) {
      ClassEdges fused;
      for (const auto& [from, to] : *edges) {
        if (root(from) != root(to)) fused.emplace(root(from), root(to));
      }
      *edges = std::move(fused);
    }
  }

  struct Times {
    double cpu = 0, accelerator = 0, backward = 0;
  };

  void describe_classes() {
    times_.resize(key_.size());
    for (std::size_t i = 0; i < class_.size(); ++i) {
      const MsrProfile::Node& node = profile_.nodes[i];
      Times& times = times_[root(class_[i])];
      if (node.backward) {
        times.backward += node.cpu + node.accelerator;
      } else {
        times.cpu += node.cpu;
        times.accelerator += node.accelerator;
      }
    }
    for (std::uint32_t c = 0; c < key_.size(); ++c) {
      if (read_by_backward_[c]) read_by_backward_[root(c)] = true;
    }
  }

  void absorb_idle() {
    // Neighbours over forward edges; an edge that is also mirrored counts twice.
    std::vector<std::multiset<std::uint32_t>> neighbours(key_.size());
    for (const ClassEdges* edges : {&edges_, &mirrored_}) {
      for (const auto& [from, to] : *edges) neighbours[from].insert(to), neighbours[to].insert(from);
    }
    std::deque<std::uint32_t> open;
    for (std::uint32_t c = 0; c < key_.size(); ++c) {
      if (root(c) == c) open.push_back(c);
    }
    while (!open.empty()) {
      const std::uint32_t c = open.front();
      open.pop_front();
      const Times& times = times_[c];
      const bool idle = times.cpu < kIdleTime && times.accelerator < kIdleTime && times.backward < kIdleTime;
      if (root(c) != c || !idle || read_by_backward_[c] || neighbours[c].size() != 1) continue;
      const std::uint32_t into = *neighbours[c].begin();
      neighbours[into].erase(neighbours[into].find(c));
      neighbours[c].clear();
      parent_[c] = into;
      times_[into].cpu += times.cpu;
      times_[into].accelerator += times.accelerator;
      times_[into].backward += times.backward;
      open.push_back(into);
    }
  }

  ContractedGraph number_items() {
    ContractedGraph result;
    std::vector<std::optional<std::uint32_t>> number(key_.size());
    std::vector<std::int64_t> key;
    for (std::size_t i = 0; i < class_.size(); ++i) {
      const std::uint32_t c = root(class_[i]);
      if (!number[c]) {
        number[c] = static_cast<std::uint32_t>(result.items.size());
        result.items.emplace_back();
        key.push_back(key_[c]);
      }
      result.item_of.push_back(*number[c]);
      ContractedGraph::Item& item = result.items[*number[c]];
      const MsrProfile::Node& node = profile_.nodes[i];
      item.cpu += node.cpu;
      item.accelerator += node.accelerator;
      item.bytes += node.bytes;
      item.cpu_only = item.cpu_only || !node.on_accelerator;
    }
    result.before.resize(result.items.size());
    // after[v]: over mirrored edges, then over edges, each by colour of the reader.
    std::vector<std::vector<std::pair<std::int64_t, std::uint32_t>>> after(result.items.size());
    for (const ClassEdges* edges : {&mirrored_, &edges_}) {
      std::vector<std::size_t> begin;
      for (const auto& list : after) begin.push_back(list.size());
      ClassEdges among;
      for (const auto& [from, to] : *edges) {
        const std::uint32_t a = *number[root(from)], b = *number[root(to)];
        if (a != b && among.emplace(a, b).second) after[a].emplace_back(key[b], b);
      }
      for (std::size_t v = 0; v < after.size(); ++v)
        std::sort(after[v].begin() + static_cast<std::ptrdiff_t>(begin[v]), after[v].end());
    }
    for (std::uint32_t v = 0; v < after.size(); ++v) {
      for (const auto& [colour, reader] : after[v]) result.before[reader].push_back(v);
    }
    result.order = depth_first(after);
    add_outputs(result);
    return result;
  }

  static std::vector<std::uint32_t> depth_first(
      const std::vector<std::vector<std::pair<std::int64_t, std::uint32_t>>>& after) {
    std::vector<std::size_t> waits(after.size());
    for (const auto& list : after) {
      for (const auto& [colour, reader] : list) ++waits[reader];
    }
    std::vector<std::uint32_t> ready, order;
    for (std::uint32_t v = static_cast<std::uint32_t>(after.size()); v-- > 0;) {
      if (waits[v] == 0) ready.push_back(v);
    }
    while (!ready.empty()) {
      const std::uint32_t v = ready.back();
      ready.pop_back();
      order.push_back(v);
      for (const auto& [colour, reader] : after[v]) {
        if (--waits[reader] == 0) ready.push_back(reader);
      }
    }
    ESP_CHECK(order.size() == after.size(), order.size(), after.size());
    return order;
  }

  void add_outputs(ContractedGraph& result) const {
    std::vector<std::vector<std::uint32_t>> touching(profile_.nodes.size());
    for (const MsrProfile::Edge& edge : profile_.edges) {
      touching[edge.from].push_back(result.item_of[edge.from]);
      touching[edge.from].push_back(result.item_of[edge.to]);
    }
    for (std::size_t source = 0; source < touching.size(); ++source) {
      std::vector<std::uint32_t>& items = touching[source];
      std::sort(items.begin(), items.end());
      items.erase(std::unique(items.begin(), items.end()), items.end());
      if (items.size() > 1 && cost_[source] > 0) result.outputs.push_back({cost_[source], std::move(items)});
    }
  }

  const MsrProfile& profile_;
  std::vector<std::int64_t> key_;       // by class: its colour, which orders DPL's edges
  std::vector<std::uint32_t> class_;    // by node
  std::vector<std::uint32_t> parent_;   // by class: what it joined
  std::vector<double> cost_;            // by node, of its output
  std::vector<bool> read_by_backward_;  // by class: a backward node reads one of its forward nodes
  std::vector<Times> times_;
  ClassEdges edges_, mirrored_;
};

}  // namespace

ContractedGraph contract(const MsrProfile& profile) {
  return Contraction(profile).contract();
}

std::vector<std::uint32_t> fused_colours(const MsrProfile& profile) {
  return Contraction(profile).fused_classes();
}

}  // namespace espalier::literal
