#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "espalier/graph/structure.h"

namespace espalier {
namespace {

class StructureChecker {
 public:
  StructureChecker(const Structure& s, const Graph& graph, std::span<const Weight> weights)
      : s_(s), graph_(graph), weights_(weights), place_(graph.operators().size()) {}

  std::vector<std::string> run() {
    if (!s_.empty()) check_tree();
    if (violations_.empty()) check_operators();
    if (!violations_.empty()) return violations_;  // the rest follows references
    check_order();
    check_weights();
    check_waits();
    check_skips();
    check_likeness();
    return violations_;
  }

 private:
  using Part = Structure::Part;

  void add(std::string text) { violations_.push_back(std::move(text)); }
  static std::string name(std::size_t part) { return "part " + std::to_string(part); }

  // ---- The tree: preorder, ranges that fit together

  void check_tree() {
    if (s_.parts[0].parent) add("tree: the root has a parent");
    if (s_.parts[0].first_operator != 0 || s_.parts[0].end_operator != s_.operators.size()) {
      add("tree: the root does not hold all operators");
    }
    std::vector<int> listed(s_.parts.size(), 0);
    for (std::size_t p = 0; p < s_.parts.size(); ++p) {
      const Part& part = s_.parts[p];
      if (part.first_child > part.end_child || part.end_child > s_.children.size() ||
          part.first_operator >= part.end_operator || part.end_operator > s_.operators.size()) {
        return add("tree: " + name(p) + " has no operators or leads out of a list");
      }
      const std::size_t count = part.end_child - part.first_child;
      if ((part.kind == PartKind::kLeaf) != (count == 0) || count == 1) {
        add("tree: " + name(p) + " has " + std::to_string(count) + " children");
      }
      std::size_t next = part.first_operator;
      for (std::size_t c = part.first_child; c < part.end_child; ++c) {
        const std::size_t child = s_.children[c].index();
        if (child <= p || child >= s_.parts.size())
          return add("tree: a child of " + name(p) + " is not behind it");
        ++listed[child];
        const Part& below = s_.parts[child];
        if (below.parent != PartId(p)) add("tree: " + name(child) + " has another parent");
        if (below.kind == part.kind) add("tree: " + name(child) + " is of its parent's kind");
        if (below.first_operator != next) add("tree: " + name(child) + " begins elsewhere");
        next = below.end_operator;
      }
      if (count > 0 && next != part.end_operator) add("tree: " + name(p) + " ends elsewhere");
    }
    for (std::size_t p = 1; p < listed.size(); ++p) {
      if (listed[p] != 1) add("tree: " + name(p) + " is not a child once");
    }
  }

  void check_operators() {
    if (s_.carried.size() != s_.operators.size()) return add("operators: carried has another size");
    std::size_t expected = 0;
    for (const Operator& op : graph_.operators()) expected += op.duplicable ? 0 : 1;
    if (expected != s_.operators.size()) add("operators: not those of the graph");
    for (std::size_t i = 0; i < s_.operators.size(); ++i) {
      const OperatorId id = s_.operators[i];
      if (id.index() >= place_.size()) return add("operators: one is not in the graph");
      if (place_[id.index()] || graph_.op(id).duplicable) {
        add("operators: '" + graph_.op(id).name + "' is there twice, or duplicable");
      }
      place_[id.index()] = i;
    }
    leaf_.resize(s_.operators.size());
    for (std::size_t p = 0; p < s_.parts.size(); ++p) {
      const Part& part = s_.parts[p];
      if (part.kind != PartKind::kLeaf) continue;
      for (std::size_t i = part.first_operator; i < part.end_operator; ++i) {
        leaf_[i] = p;
        if (i > part.first_operator && s_.operators[i] < s_.operators[i - 1]) {
          add("operators: those of " + name(p) + " do not ascend");
        }
      }
    }
  }

  // ---- Order

  // The smallest part that holds both places.
  std::size_t holder(std::size_t a, std::size_t b) const {
    std::size_t part = leaf_[a];
    while (b < s_.parts[part].first_operator || b >= s_.parts[part].end_operator) {
      part = s_.parts[part].parent->index();
    }
    return part;
  }
  std::size_t child_at(std::size_t part, std::size_t place) const {
    const auto children = s_.children_of(PartId(part));
    const auto child = std::partition_point(children.begin(), children.end(),
                                            [&](PartId id) { return s_.part(id).end_operator <= place; });
    return static_cast<std::size_t>(child - children.begin());
  }

  void check_order() {
    std::map<std::uint32_t, std::size_t> groups;
    for (std::size_t i = 0; i < s_.operators.size(); ++i) {
      const OperatorId id = s_.operators[i];
      for (const OperatorId p : graph_.predecessors(id)) {
        if (graph_.op(p).duplicable) continue;
        const std::size_t before = *place_[p.index()];
        const bool beside = s_.parts[holder(before, i)].kind == PartKind::kParallel;
        if (beside || before > i) {
          add("order: '" + graph_.op(id).name + "' stands " + (beside ? "beside" : "before") + " '" +
              graph_.op(p).name + "', which it needs");
        }
      }
      if (const auto group = graph_.op(id).colocation) {
        if (groups.try_emplace(*group, leaf_[i]).first->second != leaf_[i]) {
          add("order: colocation group " + std::to_string(*group) + " is in two leaves");
        }
      }
    }
  }

  // ---- Weights

  // Strongly connected components, if all operators of a set in `together` lead to each other (Kosaraju).
  std::vector<std::size_t> components(const std::vector<std::vector<std::size_t>>& together) const {
    const std::size_t n = s_.operators.size();
    std::vector<std::vector<std::size_t>> forward(n), backward(n);
    const auto edge = [&](std::size_t a, std::size_t b) {
      forward[a].push_back(b), backward[b].push_back(a);
    };
    for (std::size_t i = 0; i < n; ++i) {
      for (const OperatorId p : graph_.predecessors(s_.operators[i])) {
        if (!graph_.op(p).duplicable) edge(*place_[p.index()], i);
      }
    }
    for (const auto& set : together) {
      for (std::size_t k = 0; k < set.size(); ++k) edge(set[k], set[(k + 1) % set.size()]);
    }
    std::vector<std::size_t> finished, component(n, n);
    std::vector<char> seen(n, 0);
    for (std::size_t root = 0; root < n; ++root) {
      std::vector<std::pair<std::size_t, std::size_t>> stack;
      if (seen[root] == 0) seen[root] = 1, stack.emplace_back(root, 0);
      while (!stack.empty()) {
        const std::size_t v = stack.back().first;
        if (stack.back().second == forward[v].size()) {
          finished.push_back(v);
          stack.pop_back();
          continue;
        }
        const std::size_t w = forward[v][stack.back().second++];
        if (seen[w] == 0) seen[w] = 1, stack.emplace_back(w, 0);
      }
    }
    std::size_t count = 0;  // components in a legal order
    for (auto root = finished.rbegin(); root != finished.rend(); ++root) {
      if (component[*root] != n) continue;
      std::vector<std::size_t> stack{*root};
      component[*root] = count;
      while (!stack.empty()) {
        const std::size_t v = stack.back();
        stack.pop_back();
        for (const std::size_t w : backward[v]) {
          if (component[w] == n) component[w] = count, stack.push_back(w);
        }
      }
      ++count;
    }
    return component;
  }

  void check_weights() {
    std::vector<std::vector<std::size_t>> deciding(s_.parts.size());  // places, by leaf
    std::map<std::uint32_t, std::vector<std::size_t>> groups;
    Weight all;
    for (std::size_t i = 0; i < s_.operators.size(); ++i) {
      if (s_.carried[i] == 0) deciding[leaf_[i]].push_back(i), all += weight(i);
      if (const auto group = graph_.op(s_.operators[i]).colocation) groups[*group].push_back(i);
    }
    for (std::size_t p = s_.parts.size(); p-- > 0;) {
      const Part& part = s_.parts[p];
      Weight work, length;
      for (std::size_t i = part.first_operator; i < part.end_operator; ++i) work += weight(i);
      if (part.kind == PartKind::kLeaf) length = leaf_length(deciding[p], all);
      for (const PartId child : s_.children_of(PartId(p))) {
        const Weight one = s_.part(child).length;
        length = part.kind == PartKind::kSeries ? length + one : std::max(length, one);
      }
      if (work != part.work) add("weights: the work of " + name(p) + " is another");
      if (length != part.length) add("weights: the length of " + name(p) + " is another");
    }
    std::vector<std::vector<std::size_t>> together = deciding;
    for (auto& [group, places] : groups) together.push_back(std::move(places));
    const std::vector<std::size_t> component = components(together);
    std::vector<Weight> own(component.size()), path(component.size());
    for (std::size_t p = 0; p < deciding.size(); ++p) {
      if (!deciding[p].empty()) own[component[deciding[p].front()]] += leaf_length(deciding[p], all);
    }
    std::vector<std::vector<std::size_t>> members(component.size());
    for (std::size_t i = 0; i < component.size(); ++i) members[component[i]].push_back(i);
    Weight longest;
    for (std::size_t c = 0; c < members.size(); ++c) {
      for (const std::size_t i : members[c]) {
        for (const OperatorId p : graph_.predecessors(s_.operators[i])) {
          if (graph_.op(p).duplicable) continue;
          const std::size_t other = component[*place_[p.index()]];
          if (other != c) path[c] = std::max(path[c], path[other]);
        }
      }
      path[c] += own[c];
      longest = std::max(longest, path[c]);
    }
    if (longest != s_.longest_path) add("weights: the longest path is another");
    if (!s_.empty() && s_.growth() < Weight()) add("weights: the tree is shorter than the graph");
  }

  Weight weight(std::size_t place) const { return weights_[s_.operators[place].index()]; }
  Weight leaf_length(const std::vector<std::size_t>& deciding, Weight all) const {
    if (all == Weight()) return Weight(deciding.empty() ? 0 : 1);
    Weight sum;
    for (const std::size_t i : deciding) sum += weight(i);
    return sum;
  }

  // ---- Waits and skips

  void check_waits() {
    if (s_.waits.empty() && !s_.empty() && s_.growth() != Weight()) add("waits: none, and yet a longer path");
    for (std::size_t w = 0; w < s_.waits.size(); ++w) {
      const Structure::Wait& wait = s_.waits[w];
      const std::string where = "waits: number " + std::to_string(w);
      if (wait.series.index() >= s_.parts.size() || s_.part(wait.series).kind != PartKind::kSeries ||
          wait.position == 0 || wait.position >= s_.children_of(wait.series).size()) {
        add(where + " is at no child of a series");
        continue;
      }
      if (w > 0 && std::pair(wait.series, wait.position) <=
                       std::pair(s_.waits[w - 1].series, s_.waits[w - 1].position)) {
        add(where + " is out of order");
      }
      const PartId child = s_.children_of(wait.series)[wait.position];
      const Part &to = s_.part(child), &series = s_.part(wait.series);
      const auto stand = [&](const std::vector<OperatorId>& list, std::size_t first, std::size_t end) {
        return !list.empty() && std::all_of(list.begin(), list.end(), [&](OperatorId id) {
          const auto place = id.index() < place_.size() ? place_[id.index()] : std::nullopt;
          return place && *place >= first && *place < end;
        });
      };
      if (!stand(wait.from, series.first_operator, to.first_operator) ||
          !stand(wait.to, to.first_operator, to.end_operator)) {
        add(where + " names operators that stand elsewhere");
      }
      if (wait.pairs == 0 || wait.pairs > wait.from.size() * wait.to.size()) add(where + " counts wrongly");
    }
  }

  void check_skips() {
    std::map<std::pair<PartId, TensorId>, std::pair<std::size_t, std::size_t>> expected;
    for (std::size_t i = 0; i < s_.operators.size(); ++i) {
      for (const TensorId t : graph_.op(s_.operators[i]).inputs) {
        const auto producer = graph_.tensor(t).producer;
        if (!producer || !place_[producer->index()]) continue;
        const std::size_t from = *place_[producer->index()], part = holder(from, i);
        if (s_.parts[part].kind != PartKind::kSeries) continue;
        const std::size_t first = child_at(part, from), last = child_at(part, i);
        if (last < first + 2) continue;
        auto& range = expected.try_emplace({PartId(part), t}, first, last).first->second;
        range.second = std::max(range.second, last);
      }
    }
    std::vector<Structure::Skip> all;
    for (const auto& [key, range] : expected) {
      all.push_back({key.first, narrow(range.first), narrow(range.second), key.second});
    }
    if (all != s_.skips) add("skips: not those of the graph");
  }

  // ---- Likeness: the two parts side by side

  void check_likeness() {
    for (std::size_t p = 0; p < s_.parts.size(); ++p) {
      const PartId like = s_.parts[p].like;
      if (like.index() > p) {
        add("like: " + name(p) + " is like a later one");
      } else if (like.index() < p) {
        const Part& other = s_.part(like);
        if (other.like != like) add("like: " + name(p) + " is like one that is not the first");
        if (other.hash != s_.parts[p].hash) add("like: " + name(p) + " has another hash");
        if (!alike(s_.parts[p], other) || !same_shape(PartId(p), like)) {
          add("like: " + name(p) + " computes something else than " + name(like.index()));
        }
      }
    }
  }

  bool same_shape(PartId a, PartId b) const {
    const auto of_a = s_.children_of(a), of_b = s_.children_of(b);
    const Part &x = s_.part(a), &y = s_.part(b);
    if (x.kind != y.kind || of_a.size() != of_b.size()) return false;
    if (x.end_operator - x.first_operator != y.end_operator - y.first_operator) return false;
    for (std::size_t c = 0; c < of_a.size(); ++c) {
      if (!same_shape(of_a[c], of_b[c])) return false;
    }
    return true;
  }

  // A mapping both ways, which grows as the parts are read.
  template <class Key>
  class Pairs {
   public:
    bool match(Key a, Key b) {
      return there_.try_emplace(a, b).first->second == b && back_.try_emplace(b, a).first->second == a;
    }

   private:
    std::map<Key, Key> there_, back_;
  };

  bool alike(const Part& a, const Part& b) const {
    Pairs<TensorId> tensors;
    Pairs<StorageId> storages;
    Pairs<std::uint32_t> groups;
    if (a.end_operator - a.first_operator != b.end_operator - b.first_operator) return false;
    for (std::size_t i = 0; a.first_operator + i < a.end_operator; ++i) {
      const std::size_t at_a = a.first_operator + i, at_b = b.first_operator + i;
      const Operator &x = graph_.op(s_.operators[at_a]), &y = graph_.op(s_.operators[at_b]);
      if (x.op_class != y.op_class || x.target != y.target || x.role != y.role || x.random != y.random ||
          x.mixes_samples != y.mixes_samples || x.known != y.known || weight(at_a) != weight(at_b) ||
          s_.carried[at_a] != s_.carried[at_b] || x.inputs.size() != y.inputs.size() ||
          x.outputs.size() != y.outputs.size() || x.mutates.size() != y.mutates.size() ||
          x.colocation.has_value() != y.colocation.has_value()) {
        return false;
      }
      if (x.colocation && !groups.match(*x.colocation, *y.colocation)) return false;
      for (std::size_t k = 0; k < x.outputs.size() + x.inputs.size() + x.mutates.size(); ++k) {
        const auto pick = [&](const Operator& op) {
          if (k < op.outputs.size()) return op.outputs[k];
          const std::size_t rest = k - op.outputs.size();
          return rest < op.inputs.size() ? op.inputs[rest] : op.mutates[rest - op.inputs.size()];
        };
        const TensorId t = pick(x), u = pick(y);
        const Tensor &one = graph_.tensor(t), &two = graph_.tensor(u);
        if (!tensors.match(t, u) || !storages.match(one.storage, two.storage)) return false;
        if (one.dtype != two.dtype || one.sizes != two.sizes || one.role != two.role ||
            one.requires_grad != two.requires_grad || inside(a, t) != inside(b, u)) {
          return false;
        }
        if (inside(a, t) ? seen_outside(a, t) != seen_outside(b, u)
                         : one.parameter.has_value() && shared(a, one.storage) != shared(b, two.storage)) {
          return false;
        }
      }
    }
    return true;
  }

  bool holds(const Part& part, OperatorId id) const {
    const auto place = place_[id.index()];
    return place && *place >= part.first_operator && *place < part.end_operator;
  }
  bool inside(const Part& part, TensorId t) const {
    return graph_.tensor(t).producer && holds(part, *graph_.tensor(t).producer);
  }
  std::pair<bool, int> seen_outside(const Part& part, TensorId t) const {
    const auto readers = graph_.readers(t);
    const auto outputs = graph_.outputs();
    const bool output = std::find(outputs.begin(), outputs.end(), t) != outputs.end();
    return {std::any_of(readers.begin(), readers.end(), [&](OperatorId r) { return !holds(part, r); }),
            output ? 1 + (graph_.loss() == t ? 1 : 0) : 0};
  }
  bool shared(const Part& part, StorageId storage) const {
    for (const OperatorId reader : readers_of_storage()[storage.index()]) {
      if (!holds(part, reader)) return true;
    }
    return false;
  }
  const std::vector<std::vector<OperatorId>>& readers_of_storage() const {
    if (storage_readers_.empty()) {
      storage_readers_.resize(graph_.storage_count());
      for (const OperatorId id : s_.operators) {
        for (const TensorId t : graph_.op(id).inputs) {
          storage_readers_[graph_.tensor(t).storage.index()].push_back(id);
        }
      }
    }
    return storage_readers_;
  }

  const Structure& s_;
  const Graph& graph_;
  std::span<const Weight> weights_;
  std::vector<std::optional<std::size_t>> place_;  // by operator: in s_.operators
  std::vector<std::size_t> leaf_;                  // by place
  mutable std::vector<std::vector<OperatorId>> storage_readers_;
  std::vector<std::string> violations_;
};

}  // namespace

std::vector<std::string> check_structure(const Structure& structure, const Graph& graph,
                                         std::span<const Weight> weights) {
  return StructureChecker(structure, graph, weights).run();
}

}  // namespace espalier
