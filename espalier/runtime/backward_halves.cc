#include "espalier/runtime/backward_halves.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "espalier/runtime/wire.h"

namespace espalier {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::Node;
using torch::autograd::variable_list;

// What a node is to the two halves.
struct Part {
  std::size_t place = 0;       // of its operator
  bool is_entry = false;       // the piece ends here
  bool is_parameter = false;   // adds to a .grad
  bool is_activation = false;  // of another operator's input, or a root: its gradient is I's work
  bool leads_on = false;       // to such a node: I runs it
};

class Halves {
 public:
  Halves(const edge_list& roots, const edge_list& entries, const std::vector<std::uint64_t>& first_nodes)
      : first_nodes_(first_nodes) {
    for (const Edge& entry : entries) {
      if (entry.is_valid()) parts_[entry.function.get()].is_entry = true;
    }
    for (const Edge& root : roots) {
      visit(root.function.get());
      Part& part = parts_.at(root.function.get());
      part.is_activation = !part.is_parameter;
    }
    mark_activations();
    mark_what_leads_on();
  }

  // I computes the gradient that goes along this edge: to an entry, to another operator, or to a node of the
  // same operator that leads there or is read by another.
  bool followed(const Edge& edge) const {
    if (!edge.is_valid()) return false;
    const Part& part = parts_.at(edge.function.get());
    return part.is_entry || part.is_activation || part.leads_on;
  }
  bool is_parameter(const Edge& edge) const { return parts_.at(edge.function.get()).is_parameter; }

  // The nodes with which W starts, and those that I alone runs.
  struct Shares {
    std::vector<Node*> starts, of_input_half;
  };
  Shares shares() const {
    Shares shares;
    for (Node* const node : nodes_) {
      const Part& part = parts_.at(node);
      if (part.is_parameter || !(part.is_activation || part.leads_on)) continue;
      const bool to_weights = std::any_of(node->next_edges().begin(), node->next_edges().end(),
                                          [&](const Edge& e) { return e.is_valid() && !followed(e); });
      (to_weights ? shares.starts : shares.of_input_half).push_back(node);
    }
    return shares;
  }

 private:
  // Depth first; nodes_ has each node after all that its edges lead to.
  void visit(Node* root) {
    struct Open {
      Node* node = nullptr;
      std::size_t next = 0;
    };
    std::vector<Open> open;
    const auto enter = [&](Node* node) {
      const auto [place, is_new] = parts_.try_emplace(node);
      if (place->second.is_entry || !is_new) return;
      place->second.is_parameter = node->num_outputs() == 0;
      place->second.place = operator_of(*node);
      open.push_back({node, 0});
    };
    enter(root);
    while (!open.empty()) {
      Open& top = open.back();
      if (top.next == top.node->next_edges().size()) {
        nodes_.push_back(top.node);
        open.pop_back();
        continue;
      }
      const Edge& edge = top.node->next_edge(top.next++);
      if (edge.is_valid()) enter(edge.function.get());
    }
  }

  std::size_t operator_of(const Node& node) const {
    const auto behind = std::upper_bound(first_nodes_.begin(), first_nodes_.end(), node.sequence_nr());
    return static_cast<std::size_t>(behind - first_nodes_.begin());
  }

  void mark_activations() {
    for (const Node* const node : nodes_) {
      for (const Edge& edge : node->next_edges()) {
        if (!edge.is_valid()) continue;
        Part& next = parts_.at(edge.function.get());
        if (next.is_entry || next.is_parameter || next.place == parts_.at(node).place) continue;
        next.is_activation = true;
      }
    }
  }

  void mark_what_leads_on() {
    for (const Node* const node : nodes_) {
      const auto& edges = node->next_edges();
      parts_.at(node).leads_on =
          std::any_of(edges.begin(), edges.end(), [&](const Edge& edge) { return followed(edge); });
    }
  }

  const std::vector<std::uint64_t>& first_nodes_;
  std::unordered_map<const Node*, Part> parts_;
  std::vector<Node*> nodes_;
};

// A template because nodes are owned by another pointer type in torch 2.11.
template <class Pointer>
Pointer owner_of(Node* node) {
  return Pointer(node->getptr());
}

}  // namespace

InputHalf run_input_half(edge_list&& roots, variable_list&& gradients, const edge_list& entries,
                         const std::vector<std::uint64_t>& first_nodes) {
  const Halves halves(roots, entries, first_nodes);
  InputHalf result;
  edge_list passed, wanted;
  variable_list passed_gradients;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    const bool now = !halves.is_parameter(roots[i]);
    (now ? passed : result.rest.roots).push_back(std::move(roots[i]));
    (now ? passed_gradients : result.rest.gradients).push_back(std::move(gradients[i]));
  }
  const Halves::Shares shares = halves.shares();
  for (const Edge& entry : entries) {
    if (entry.is_valid()) wanted.push_back(entry);
  }
  for (Node* const node : shares.starts) {
    for (std::uint32_t i = 0; i < node->num_inputs(); ++i) {
      wanted.emplace_back(owner_of<decltype(Edge::function)>(node), i);
    }
  }
  variable_list captured(wanted.size());
  if (!passed.empty() && !wanted.empty()) {
    captured =
        Engine::get_default_engine().execute(passed, passed_gradients, /*keep_graph=*/true,
                                             /*create_graph=*/false, /*accumulate_grad=*/false, wanted);
  }
  std::size_t next = 0;
  for (const Edge& entry : entries) {
    result.entered.push_back(entry.is_valid() ? captured[next++] : at::Tensor());
  }
  for (; next < wanted.size(); ++next) {
    if (!captured[next].defined()) continue;
    result.rest.roots.push_back(std::move(wanted[next]));
    result.rest.gradients.push_back(std::move(captured[next]));
  }
  // A tensor that W needs knows the node that made it, and so all nodes behind: they give up by themselves
  // what they keep.
  for (Node* const node : shares.of_input_half) node->release_variables();
  for (Node* const node : shares.starts) {
    for (Edge& edge : node->next_edges()) {
      if (halves.followed(edge)) edge = Edge();
    }
  }
  return result;
}

void run_weight_half(WeightHalf&& rest, const std::vector<at::Tensor>& parameters) {
  const WeightHalf work = std::move(rest);
  if (work.roots.empty()) return;
  Engine::get_default_engine().execute(work.roots, work.gradients, /*keep_graph=*/false,
                                       /*create_graph=*/false, /*accumulate_grad=*/true);
  std::set<const void*> kept;
  for (const at::Tensor& gradient : work.gradients) {
    if (gradient.has_storage()) kept.insert(gradient.storage().unsafeGetStorageImpl());
  }
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined() || !gradient.has_storage()) continue;
    if (!kept.contains(gradient.storage().unsafeGetStorageImpl())) continue;
    parameter.mutable_grad() = copy_on_wire(gradient);
  }
}

}  // namespace espalier
