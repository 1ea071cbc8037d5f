#include "espalier/runtime/gradient_sums.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <vector>

#include "espalier/base/check.h"

namespace espalier {
namespace {

// In host memory, one-dimensional; zeros where none flowed.
at::Tensor flat_gradient(const Variable& variable) {
  const at::Tensor gradient = variable.value.grad();
  const at::Tensor value = gradient.defined() ? gradient.detach() : at::zeros_like(variable.value);
  return value.resolve_conj().resolve_neg().reshape({-1}).cpu();
}

void set_gradient(Variable& variable, const at::Tensor& flat) {
  at::Tensor& gradient = variable.value.mutable_grad();
  if (!gradient.defined()) gradient = at::empty_like(variable.value, at::MemoryFormat::Preserve).detach();
  gradient.copy_(flat.view(variable.value.sizes()));
}

}  // namespace

// One bucket for all gradients of a type, and for each a mark that says whether it has one at all: torch's
// optimizers leave a parameter without gradient alone.
void sum_over_replicas(Transport& transport, DeviceId self, std::span<const StagedReplica> replicas,
                       Holding& holding) {
  std::vector<DeviceId> members;
  for (const StagedReplica& replica : replicas) members.push_back(replica.devices.at(0));
  std::map<at::ScalarType, std::vector<Variable*>> by_type;
  for (Variable& variable : holding.parameters) by_type[variable.value.scalar_type()].push_back(&variable);
  for (const auto& [type, variables] : by_type) {
    std::vector<at::Tensor> flat;
    for (const Variable* variable : variables) {
      flat.push_back(flat_gradient(*variable));
      flat.push_back(at::full({1}, variable->value.grad().defined() ? 1.0 : 0.0, type));
    }
    at::Tensor bucket = at::cat(flat);
    flat.clear();
    all_reduce(transport, self, members, bucket);
    std::int64_t offset = 0;
    for (Variable* variable : variables) {
      const std::int64_t elements = variable->value.numel();
      if (at::real(bucket[offset + elements]).item<double>() > 0) {
        set_gradient(*variable, bucket.narrow(0, offset, elements));
      }
      offset += elements + 1;
    }
  }
}

void sum_over_copies(Transport& transport, DeviceId self, const StagedModel& staged, const Tie& tie,
                     ParameterId parameter, const std::map<StageId, Holding*>& holdings) {
  OrderedSum sum;
  std::set<DeviceId> members;
  for (const StageId stage : tie.stages) {
    const auto& replicas = staged.stages[stage.index()].replicas;
    sum.sources.push_back(replicas.at(0).devices.at(0));
    for (const StagedReplica& replica : replicas) members.insert(replica.devices.at(0));
  }
  sum.members.assign(members.begin(), members.end());
  std::copy_if(members.begin(), members.end(), std::back_inserter(sum.alone),
               [&](DeviceId member) { return has_all_copies(staged, tie, member); });
  const bool alone = std::count(sum.alone.begin(), sum.alone.end(), self) > 0;
  std::vector<Variable*> mine;  // this device's copies
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < tie.stages.size(); ++i) {
    parts.emplace_back();
    const auto holding = holdings.find(tie.stages[i]);
    if (holding == holdings.end()) continue;
    for (Variable& variable : holding->second->parameters) {
      if (variable.id != parameter) continue;
      mine.push_back(&variable);
      if (alone || sum.sources[i] == self) parts.back() = flat_gradient(variable);
    }
  }
  ESP_CHECK(!mine.empty(), tie.parameter);
  const at::Tensor& like = mine.front()->value;
  const at::Tensor total = sum_in_order(transport, self, sum, parts, like.scalar_type(), like.numel());
  for (Variable* variable : mine) set_gradient(*variable, total);
}

}  // namespace espalier
