#include "espalier/runtime/backward_nodes.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <memory>
#include <utility>
#include <vector>

namespace espalier {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

class StartHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit StartHook(std::function<void()> starts) : starts_(std::move(starts)) {}
  variable_list operator()(const variable_list& gradients) override {
    starts_();
    return gradients;
  }

 private:
  std::function<void()> starts_;
};

}  // namespace

void BackwardNodes::watch(OperatorId op, const Tensors& tensors, const std::function<void()>& starts) {
  std::vector<Node*> open;
  const auto reach = [&](Node* node) {
    if (node != nullptr && node->num_outputs() > 0 && known_.insert(node).second) open.push_back(node);
  };
  for (const TensorId id : graph_.op(op).outputs) {
    const at::Tensor& tensor = tensors[id.index()];
    if (tensor.defined() && tensor.requires_grad()) reach(tensor.grad_fn().get());
  }
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    node->add_pre_hook(std::make_unique<StartHook>(starts));
    for (const auto& edge : node->next_edges()) reach(edge.function.get());
  }
}

}  // namespace espalier
