#include "espalier/graph/structure.h"

#include <algorithm>
#include <numeric>

#include "espalier/base/check.h"
#include "espalier/graph/part_likeness.h"
#include "espalier/graph/structure_core.h"

namespace espalier {
namespace {

using internal::Core;
using internal::FullTree;

// Parts of the tree in preorder, with children, operators and weights.
class Layout {
 public:
  Layout(const FullTree& tree, const Contraction& nodes, const Core& core, std::span<const Weight> weights)
      : tree_(tree), nodes_(nodes), core_(core), weights_(weights), part_of_(tree.nodes.size()) {
    add(tree.root, std::nullopt);
  }

  Structure take() { return std::move(result_); }
  PartId part_of(std::uint32_t node) const { return *part_of_[node]; }

 private:
  // As deep as the tree, which max_depth bounds.
  PartId add(std::uint32_t node, std::optional<PartId> parent) {
    const PartId id(result_.parts.size());
    part_of_[node] = id;
    result_.parts.push_back({.kind = tree_.nodes[node].kind, .parent = parent});
    Structure::Part part = result_.parts.back();
    part.first_operator = narrow(result_.operators.size());
    part.like = id;
    if (part.kind == PartKind::kLeaf) {
      add_leaf(tree_.nodes[node], part);
      part.first_child = part.end_child = narrow(result_.children.size());
    } else {
      const std::vector<std::uint32_t>& children = tree_.nodes[node].children;
      part.first_child = narrow(result_.children.size());
      part.end_child = part.first_child + narrow(children.size());
      result_.children.resize(part.end_child);
      for (std::size_t c = 0; c < children.size(); ++c) {
        const PartId child = add(children[c], id);
        result_.children[part.first_child + c] = child;
        const Structure::Part& done = result_.parts[child.index()];
        part.work += done.work;
        part.length =
            part.kind == PartKind::kSeries ? part.length + done.length : std::max(part.length, done.length);
      }
    }
    part.end_operator = narrow(result_.operators.size());
    result_.parts[id.index()] = part;
    return id;
  }

  void add_leaf(const FullTree::Node& leaf, Structure::Part& part) {
    std::vector<std::pair<OperatorId, char>> members;
    for (const std::uint32_t v : leaf.members) {
      for (const OperatorId op : nodes_.nodes[v]) {
        members.emplace_back(op, core_.leaf_of[v] ? 0 : 1);
        part.work += weights_[op.index()];
      }
      if (core_.leaf_of[v]) part.length += core_.dag.weights[*core_.leaf_of[v]];
    }
    std::sort(members.begin(), members.end());
    for (const auto& [op, carried] : members) {
      result_.operators.push_back(op);
      result_.carried.push_back(carried);
    }
  }

  const FullTree& tree_;
  const Contraction& nodes_;
  const Core& core_;
  std::span<const Weight> weights_;
  Structure result_;
  std::vector<std::optional<PartId>> part_of_;
};

// The operators of a node that stays in the core: one for a wait to name.
std::vector<OperatorId> operators_of_leaves(const std::vector<std::uint32_t>& leaves, const Core& core,
                                            const Contraction& nodes) {
  std::vector<OperatorId> result;
  for (const std::uint32_t leaf : leaves) {
    const auto& members = nodes.nodes[core.node_of[leaf]];
    result.insert(result.end(), members.begin(), members.end());
  }
  std::sort(result.begin(), result.end());
  return result;
}

// Where two leaves part ways: the part that holds both, and the places of the children that they are in.
struct Parting {
  PartId part;
  std::uint32_t a, b;
};

class Ancestors {
 public:
  explicit Ancestors(const Structure& structure)
      : structure_(structure), depth_(structure.parts.size(), 0), place_(structure.parts.size(), 0) {
    for (std::size_t p = 0; p < structure.parts.size(); ++p) {
      const auto children = structure.children_of(PartId(p));
      for (std::size_t c = 0; c < children.size(); ++c) {
        depth_[children[c].index()] = depth_[p] + 1;
        place_[children[c].index()] = narrow(c);
      }
    }
  }

  Parting parting(PartId a, PartId b) const {
    ESP_CHECK(a != b);
    PartId below_a = a, below_b = b;
    while (a != b) {
      if (depth_[a.index()] >= depth_[b.index()]) {
        below_a = a;
        a = *structure_.part(a).parent;
      } else {
        below_b = b;
        b = *structure_.part(b).parent;
      }
    }
    return {a, place_[below_a.index()], place_[below_b.index()]};
  }

 private:
  const Structure& structure_;
  std::vector<std::uint32_t> depth_, place_;
};

std::vector<Structure::Skip> skips_of(const Structure& structure, const Graph& graph) {
  const Ancestors ancestors(structure);
  const auto leaf = leaf_of_operators(structure, graph);
  std::vector<Structure::Skip> skips;
  for (std::size_t t = 0; t < graph.tensors().size(); ++t) {
    const auto producer = graph.tensor(TensorId(t)).producer;
    if (!producer || !leaf[producer->index()]) continue;
    const std::size_t first = skips.size();
    for (const OperatorId reader : graph.readers(TensorId(t))) {
      const auto from = *leaf[producer->index()], to = *leaf[reader.index()];
      if (from == to) continue;
      const Parting where = ancestors.parting(from, to);
      if (where.b <= where.a + 1) continue;
      const auto same = std::find_if(skips.begin() + static_cast<std::ptrdiff_t>(first), skips.end(),
                                     [&](const Structure::Skip& s) { return s.series == where.part; });
      if (same == skips.end()) {
        skips.push_back({where.part, where.a, where.b, TensorId(t)});
      } else {
        same->to = std::max(same->to, where.b);
      }
    }
  }
  std::stable_sort(skips.begin(), skips.end(),
                   [](const Structure::Skip& a, const Structure::Skip& b) { return a.series < b.series; });
  return skips;
}

}  // namespace

Structure make_structure(const Graph& graph, std::span<const Weight> weights,
                         const StructureOptions& options) {
  ESP_CHECK(weights.size() == graph.operators().size(), weights.size());
  ESP_CHECK(options.carried_per_mille < 1000, options.carried_per_mille);
  std::vector<OperatorId> stay;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!graph.operators()[i].duplicable) stay.emplace_back(i);
  }
  if (stay.empty()) return {};
  const Contraction nodes = contract_colocation(graph, stay);
  const std::size_t n = nodes.nodes.size();
  std::vector<Weight> node_weights(n);
  for (const OperatorId op : stay) node_weights[*nodes.node_of[op.index()]] += weights[op.index()];
  std::vector<char> needed(n, 0), decides(n, 0);
  for (const OperatorId op : backbone(graph)) needed[*nodes.node_of[op.index()]] = 1;
  if (std::find(needed.begin(), needed.end(), 1) == needed.end()) needed.assign(n, 1);
  std::vector<Weight> deciding;
  for (std::size_t v = 0; v < n; ++v) {
    if (needed[v] != 0) deciding.push_back(node_weights[v]);
  }
  const auto light = internal::carried_up_to(deciding, options.carried_per_mille);
  const bool weightless =
      std::all_of(deciding.begin(), deciding.end(), [](Weight w) { return w == Weight(); });
  for (std::size_t v = 0; v < n; ++v) {
    decides[v] = needed[v] != 0 && (weightless || !light || node_weights[v] > *light) ? 1 : 0;
  }
  if (weightless) node_weights.assign(n, Weight(1));

  const Core core = internal::make_core(nodes, node_weights, decides, needed);
  const SeriesParallelTree tree = series_parallel(core.dag, options.form);
  const FullTree full = internal::with_carried(tree, nodes, core);
  Layout layout(full, nodes, core, weights);
  Structure result = layout.take();
  result.longest_path = tree.longest_path;
  for (const SeriesParallelTree::Wait& wait : tree.waits) {
    result.waits.push_back({.series = layout.part_of(full.number[wait.series]),
                            .position = full.position[wait.series][wait.position],
                            .from = operators_of_leaves(wait.from, core, nodes),
                            .to = operators_of_leaves(wait.to, core, nodes),
                            .pairs = wait.pairs});
  }
  std::sort(result.waits.begin(), result.waits.end(), [](const Structure::Wait& a, const Structure::Wait& b) {
    return std::pair(a.series, a.position) < std::pair(b.series, b.position);
  });
  result.skips = skips_of(result, graph);
  internal::find_likeness(result, graph, weights);
  return result;
}

std::vector<Bytes> carried_over(const Structure& structure, const Graph& graph, PartId series,
                                BatchSize batch) {
  std::vector<Bytes> result(structure.children_of(series).size());
  const auto mine =
      std::equal_range(structure.skips.begin(), structure.skips.end(), Structure::Skip{series, 0, 0, {}},
                       [](const auto& a, const auto& b) { return a.series < b.series; });
  std::vector<Bytes> change(result.size() + 1);
  for (auto skip = mine.first; skip != mine.second; ++skip) {
    const Bytes bytes = graph.tensor(skip->tensor).bytes(batch);
    change[skip->from + 1] += bytes;
    change[skip->to] -= bytes;
  }
  std::partial_sum(change.begin(), change.end() - 1, result.begin());
  return result;
}

std::vector<std::optional<PartId>> leaf_of_operators(const Structure& structure, const Graph& graph) {
  std::vector<std::optional<PartId>> result(graph.operators().size());
  for (std::size_t p = 0; p < structure.parts.size(); ++p) {
    if (structure.parts[p].kind != PartKind::kLeaf) continue;
    for (const OperatorId op : structure.operators_of(PartId(p))) result[op.index()] = PartId(p);
  }
  return result;
}

namespace {

void print_part(const Structure& structure, const Graph& graph, PartId id, std::string& out) {
  const Structure::Part& part = structure.part(id);
  if (part.kind == PartKind::kLeaf) {
    for (int round = 0; round < 2; ++round) {  // what decides, then what is carried
      for (std::size_t i = part.first_operator; i < part.end_operator; ++i) {
        if ((structure.carried[i] != 0) != (round == 1)) continue;
        const bool first = out.empty() || out.back() == '(' || out.back() == ' ';
        out += (first ? "" : "+") + graph.op(structure.operators[i]).name;
      }
    }
    return;
  }
  out += part.kind == PartKind::kSeries ? "series(" : "parallel(";
  for (const PartId child : structure.children_of(id)) {
    if (child != structure.children_of(id).front()) out += ", ";
    print_part(structure, graph, child, out);
  }
  out += ")";
}

}  // namespace

std::string to_text(const Structure& structure, const Graph& graph) {
  std::string out;
  if (!structure.empty()) print_part(structure, graph, PartId(0), out);
  return out;
}

}  // namespace espalier
