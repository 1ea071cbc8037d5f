#pragma once

// This machine's rates in about a second, for plans of models that nobody profiled. No libtorch in sight.

#include <cstdint>
#include <string>

#include "espalier/cost/calibration.h"
#include "espalier/runtime/runtime.h"

namespace espalier {

// Two workers measure at once, since a core beside a busy one is slower; a single worker measures no link.
// Collective; the same on every worker but for rounding, complete on rank 0. Times are medians of short
// repeated pieces: a linear layer, a sum of tensors, a small training step whose operators do next to
// nothing, updates of the three optimizers, and messages between the workers (LinkProfiler).
Calibration calibrate(const World& world, std::uint32_t threads);

std::string torch_version();  // "2.13.0": what a calibration depends on

}  // namespace espalier
