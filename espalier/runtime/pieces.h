#pragma once

// Tensors that come in pieces, each with some of the samples, where stages have micro-batches of different
// sizes. Where they have one size, each is one piece, and nothing here copies or adds anything. Includes
// libtorch; runtime/ only.

#include <ATen/ATen.h>

#include <vector>

#include "espalier/runtime/device_view.h"

namespace espalier {

struct Piece {
  StageId reader;  // of a gradient: in whose name it comes; gradients are added up in this order
  SampleRange samples;
  at::Tensor value;
};

// One tensor with the samples `wanted`, which the pieces cover; where several have a sample, they are equal.
at::Tensor joined(const DeviceView& view, std::uint32_t crossing, const std::vector<Piece>& pieces,
                  const SampleRange& wanted);

// The sum of the pieces, sample by sample, in pieces that do not overlap, each in the name of its lowest
// reader. Samples that no piece has are left out. The bits do not depend on the order of the pieces.
std::vector<Piece> added_up(const DeviceView& view, std::uint32_t crossing, const std::vector<Piece>& pieces,
                            const SampleRange& wanted);

}  // namespace espalier
