#include "espalier/runtime/wire.h"

#include <algorithm>

#include "espalier/base/check.h"

namespace espalier {
namespace {

bool expanded(at::IntArrayRef sizes, const Layout& layout, std::size_t i) {
  return sizes[i] > 1 && layout[i] == 0;
}

// The tensor without its expanded dimensions.
at::Tensor base_of(at::Tensor tensor, const Layout& layout) {
  const std::vector<std::int64_t> sizes = tensor.sizes().vec();
  for (std::size_t i = 0; i < layout.size(); ++i) {
    if (expanded(sizes, layout, i)) tensor = tensor.narrow(static_cast<std::int64_t>(i), 0, 1);
  }
  return tensor;
}

bool is_expanded(at::IntArrayRef sizes, const Layout& layout) {
  for (std::size_t i = 0; i < layout.size(); ++i) {
    if (expanded(sizes, layout, i)) return true;
  }
  return false;
}

}  // namespace

Layout layout_of(const at::Tensor& tensor) {
  const Layout strides = tensor.strides().vec();
  if (tensor.is_non_overlapping_and_dense()) return strides;
  if (is_expanded(tensor.sizes(), strides) && base_of(tensor, strides).is_non_overlapping_and_dense()) {
    return strides;
  }
  Layout dense(strides.size(), 1);
  for (std::size_t i = dense.size(); i > 1; --i) {
    dense[i - 2] = dense[i - 1] * std::max<std::int64_t>(tensor.size(static_cast<std::int64_t>(i - 1)), 1);
  }
  return dense;
}

at::Tensor to_wire(const at::Tensor& tensor, const Layout& layout) {
  if (is_expanded(tensor.sizes(), layout)) return tensor.contiguous().view({-1});
  if (tensor.strides() == at::IntArrayRef(layout) && tensor.is_non_overlapping_and_dense()) {
    return tensor.as_strided({tensor.numel()}, {1});
  }
  at::Tensor copy = at::empty_strided(tensor.sizes(), layout, tensor.options());
  copy.copy_(tensor);
  return copy.as_strided({tensor.numel()}, {1});
}

at::Tensor from_wire(const at::Tensor& flat, at::IntArrayRef sizes, const Layout& layout) {
  ESP_CHECK(layout.size() == sizes.size());
  if (!is_expanded(sizes, layout)) return flat.as_strided(sizes, layout);
  const at::Tensor base = base_of(flat.view(sizes), layout);
  at::Tensor copy = at::empty_strided(
      base.sizes(),
      [&] {
        Layout strides = layout;
        for (std::size_t i = 0; i < strides.size(); ++i) {
          if (expanded(sizes, layout, i)) strides[i] = 1;  // of size 1: any stride will do
        }
        return strides;
      }(),
      flat.options());
  copy.copy_(base);
  return copy.expand(sizes);
}

}  // namespace espalier
