#pragma once

// Schedules of two stages a device, laid in a V, whose memory is chosen (Qi et al., NeurIPS'24, arXiv
// 2405.15362): the first and the last stage stand on one device, and every device holds activations equally
// long. What it holds follows from the lifespan of one micro-batch, its building block (v_blocks.h).
//
// In micro-batches of one stage, of which 1F1B's fullest device would hold 2p (p of two stages):
//   V-Half  about p + 2     V-Min  about 2p/3 + 2     V-Flex  what it may
// (ZB-V holds 2p and fills by time: planners/orders/zero_bubble_v.h.)

#include "espalier/schedule/stage_line.h"

namespace espalier {

// By place of the row, whatever stands there.
LineOrder v_half_order(std::size_t places, std::size_t micro_batches);
LineOrder v_min_order(std::size_t places, std::size_t micro_batches);

GeneratedOrders v_half(const StagedModel& model, std::size_t devices);
GeneratedOrders v_min(const StagedModel& model, std::size_t devices);

// Of all blocks whose passes step from device to device by one to four clocks (five on the way down where it
// is one on the way up, as in the paper), the same number up to some device and another one behind it, the
// one with the shortest span that holds at most `limit` micro-batches of a stage. Idle clocks for p = 4 with
// limits 4 … 8: 11, 8, 5, 3, 0, as published. For p = 8 with 8 … 16: 23, 21, 17, 15, 11, 9, 5, 3, 0, where
// the authors' program has 20, 14 and 8 with 9, 11 and 13: it lays the warm-up and the end anew by a pattern,
// ours only moves starts earlier. O(p³) blocks are looked at, some hundreds for each limit are repeated:
// about a second for p = 8.
GeneratedOrders v_flex(const StagedModel& model, std::size_t devices, std::uint32_t limit);

}  // namespace espalier
