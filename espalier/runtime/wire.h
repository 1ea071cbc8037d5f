#pragma once

// A tensor as a flat run of elements and back, with the same strides: kernels may add in another order where
// strides differ, and a plan must compute what one process computes. Includes libtorch; runtime/ only.

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace espalier {

// The strides to restore. Where a tensor is not dense, those of a dense one take their place; a stride of 0
// (an expanded dimension, as gradients of sums have) is restored too.
using Strides = std::vector<std::int64_t>;
Strides strides_on_wire(const at::Tensor& tensor);

// One-dimensional and contiguous, always sizes.numel() elements. Shares memory where the tensor has that
// strides, is dense, and is no conjugate or negative still to be computed.
at::Tensor to_wire(const at::Tensor& tensor, const Strides& strides);
at::Tensor from_wire(const at::Tensor& flat, at::IntArrayRef sizes, const Strides& strides);

// A tensor in memory of its own, with the strides that it has after a way over the wire.
at::Tensor copy_on_wire(const at::Tensor& tensor);

// Both are defined and lie in one storage.
bool share_memory(const at::Tensor& a, const at::Tensor& b);

}  // namespace espalier
