#pragma once

// V-Half and V-Min (Qi et al., NeurIPS'24, arXiv 2405.15362): two stages a device, laid in a V, so that the
// first and the last stage stand on one device and every device holds activations equally long. What a device
// holds follows from the lifespan of one micro-batch, its building block; the same block is started every six
// clocks (F, I, W of both stages), and what is left is squeezed into the gaps as far as the memory of the
// middle allows.
//
// In half-stages of one micro-batch, where 1F1B's fullest device holds 2p and a device has two stages of half
// the size each:
//   V-Half  about p + 2     V-Min  about 2p/3 + 2
// (schedule/ gives no ZB-V, which holds 2p and fills by time: planners/orders/zero_bubble_v.h.)
//
// O(p² · m) and, for the squeezing of both ends, O(p² · m) for each micro-batch at an end.

#include "espalier/schedule/stage_line.h"

namespace espalier {

GeneratedOrders v_half(const StagedModel& model, std::size_t devices);
GeneratedOrders v_min(const StagedModel& model, std::size_t devices);

}  // namespace espalier
