#include "espalier/runtime/wire.h"

#include <ATen/ExpandUtils.h>

#include "espalier/base/check.h"

namespace espalier {
namespace {

bool expanded(at::IntArrayRef sizes, const Strides& strides, std::size_t i) {
  return sizes[i] > 1 && strides[i] == 0;
}

// The tensor without its expanded dimensions.
at::Tensor base_of(at::Tensor tensor, const Strides& strides) {
  const std::vector<std::int64_t> sizes = tensor.sizes().vec();
  for (std::size_t i = 0; i < strides.size(); ++i) {
    if (expanded(sizes, strides, i)) tensor = tensor.narrow(static_cast<std::int64_t>(i), 0, 1);
  }
  return tensor;
}

bool is_expanded(at::IntArrayRef sizes, const Strides& strides) {
  for (std::size_t i = 0; i < strides.size(); ++i) {
    if (expanded(sizes, strides, i)) return true;
  }
  return false;
}

}  // namespace

Strides strides_on_wire(const at::Tensor& tensor) {
  Strides strides = tensor.strides().vec();
  if (tensor.is_non_overlapping_and_dense()) return strides;
  if (is_expanded(tensor.sizes(), strides) && base_of(tensor, strides).is_non_overlapping_and_dense()) {
    return strides;
  }
  return at::infer_dense_strides(tensor.sizes(), strides);
}

at::Tensor to_wire(const at::Tensor& given, const Strides& strides) {
  // A conjugate or a negative may be a mark on the memory of another tensor; only memory is sent.
  const at::Tensor tensor = given.resolve_conj().resolve_neg();
  if (is_expanded(tensor.sizes(), strides)) return tensor.contiguous().view({-1});
  if (tensor.strides() == at::IntArrayRef(strides) && tensor.is_non_overlapping_and_dense()) {
    return tensor.as_strided({tensor.numel()}, {1});
  }
  at::Tensor copy = at::empty_strided(tensor.sizes(), strides, tensor.options());
  copy.copy_(tensor);
  return copy.as_strided({tensor.numel()}, {1});
}

at::Tensor from_wire(const at::Tensor& flat, at::IntArrayRef sizes, const Strides& strides) {
  ESP_CHECK(strides.size() == sizes.size());
  if (!is_expanded(sizes, strides)) return flat.as_strided(sizes, strides);
  const at::Tensor base = base_of(flat.view(sizes), strides);
  at::Tensor copy = at::empty_strided(
      base.sizes(),
      [&] {
        Strides dense = strides;
        for (std::size_t i = 0; i < strides.size(); ++i) {
          if (expanded(sizes, strides, i)) dense[i] = 1;  // of size 1: any stride will do
        }
        return dense;
      }(),
      flat.options());
  copy.copy_(base);
  return copy.expand(sizes);
}

at::Tensor copy_on_wire(const at::Tensor& tensor) {
  const Strides strides = strides_on_wire(tensor);
  return from_wire(to_wire(tensor, strides).clone(), tensor.sizes(), strides);
}

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.has_storage() && b.has_storage() &&
         a.storage().is_alias_of(b.storage());
}

}  // namespace espalier
