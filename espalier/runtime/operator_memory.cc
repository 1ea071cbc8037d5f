#include "espalier/runtime/operator_memory.h"

#include <algorithm>
#include <set>

namespace espalier {
namespace {

const void* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

bool has_counts(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage();
}

}  // namespace

MemoryObserver::MemoryObserver(const Graph& graph, MemoryMeter& meter)
    : graph_(graph), nodes_(graph), meter_(meter), memory_(graph.operators().size()) {}

void MemoryObserver::before(OperatorId id, const Tensors& tensors) {
  before_.clear();
  for (const TensorId in : graph_.op(id).inputs) {
    const at::Tensor& tensor = tensors[in.index()];
    if (tensor.defined()) before_[in] = {tensor.use_count(), tensor.storage().use_count()};
  }
  begin();
}

void MemoryObserver::after(OperatorId id, const Tensors& tensors) {
  OperatorMemory& memory = memory_[id.index()];
  const Bytes live = meter_.live();
  end(memory);
  const Operator& op = graph_.op(id);
  memory.private_bytes = std::max(Bytes(), live - live_ - fresh_bytes(op, tensors));
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const TensorRole role = graph_.tensor(op.inputs[i]).role;
    if (role != TensorRole::kActivation && role != TensorRole::kInput) continue;
    if (keeps_input(op, op.inputs[i], tensors)) {
      memory.saved.push_back({SavedTensor::Side::kInput, static_cast<std::uint32_t>(i)});
    }
  }
  for (std::size_t i = 0; i < op.outputs.size(); ++i) {
    if (keeps_output(op, op.outputs[i], tensors)) {
      memory.saved.push_back({SavedTensor::Side::kOutput, static_cast<std::uint32_t>(i)});
    }
  }
  nodes_.watch(id, tensors, [this, id] {
    end_backward();
    running_ = id;
    begin();
  });
}

void MemoryObserver::end_backward() {
  if (running_) end(memory_[running_->index()]);
  running_.reset();
}

void MemoryObserver::begin() {
  meter_.restart_peak();
  live_ = meter_.live();
}

void MemoryObserver::end(OperatorMemory& memory) {
  memory.workspace = std::max(memory.workspace, meter_.restart_peak() - std::max(meter_.live(), live_));
}

Bytes MemoryObserver::fresh_bytes(const Operator& op, const Tensors& tensors) const {
  std::set<const void*> old, fresh;
  for (const auto& [in, references] : before_) old.insert(storage_of(tensors[in.index()]));
  Bytes bytes;
  for (const TensorId out : op.outputs) {
    const at::Tensor& tensor = tensors[out.index()];
    if (!has_counts(tensor) || old.contains(storage_of(tensor))) continue;
    if (fresh.insert(storage_of(tensor)).second) {
      bytes += Bytes(static_cast<std::int64_t>(tensor.storage().nbytes()));
    }
  }
  return bytes;
}

bool MemoryObserver::keeps_input(const Operator& op, TensorId in, const Tensors& tensors) const {
  const auto found = before_.find(in);
  const at::Tensor& tensor = tensors[in.index()];
  if (found == before_.end() || !has_counts(tensor)) return false;
  std::size_t same = 0, views = 0;  // outputs that are this tensor, or others on its storage
  for (const TensorId out : op.outputs) {
    const at::Tensor& output = tensors[out.index()];
    if (!has_counts(output) || storage_of(output) != storage_of(tensor)) continue;
    (output.is_same(tensor) ? same : views) += 1;
  }
  if (same > 0) return false;  // in place: seen at the output
  const std::size_t references = tensor.use_count() - found->second.tensor;
  const std::size_t on_storage = tensor.storage().use_count() - found->second.storage;
  return on_storage > views || (views == 0 && references > 0);
}

bool MemoryObserver::keeps_output(const Operator& op, TensorId out, const Tensors& tensors) const {
  const at::Tensor& tensor = tensors[out.index()];
  if (!has_counts(tensor)) return false;
  std::size_t before = 0;
  std::set<const void*> holders;  // tensors on the storage that are no saved ones
  for (const auto& [in, references] : before_) {
    const at::Tensor& input = tensors[in.index()];
    if (storage_of(input) != storage_of(tensor)) continue;
    if (!input.is_same(tensor)) return false;  // a view
    before = references.storage;
  }
  for (const TensorId other : op.outputs) {
    const at::Tensor& output = tensors[other.index()];
    if (!has_counts(output) || storage_of(output) != storage_of(tensor)) continue;
    holders.insert(output.unsafeGetTensorImpl());
    if (output.is_view()) holders.insert(output._base().unsafeGetTensorImpl());
  }
  return tensor.storage().use_count() > (before > 0 ? before : holders.size());
}

}  // namespace espalier
