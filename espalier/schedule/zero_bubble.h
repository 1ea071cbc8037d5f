#pragma once

// The handmade zero-bubble schedules of Qi et al., ICLR'24 (arXiv 2401.10241, §2): backward in two halves, of
// which W has nobody waiting for it, so it fills what would be a bubble. One stage a device, a chain of p.
//
// Closed forms for stages of equal times F, I, W and free messages; a device's span is the time from its
// first action to its last one, and the bubble what of it is idle on the device with the longest:
//   1F1B   (p-1)·(F + I + W) idle, p micro-batches on the first device
//   ZB-H1  (p-1)·(F + I - W), at most p on every device: as much as 1F1B's fullest
//   ZB-H2  (p-1)·(F + I - 2W), 2p - 1 on the first
// With F = I = W, H2 has no bubble (from 2p - 1 micro-batches on). A step that ends with a barrier cannot see
// that: its last device waits for p - 1 forwards before it begins, and it has as much to do as the first.

#include "espalier/schedule/stage_line.h"

namespace espalier {

//     p = 3, m = 4
//     dev0  F F F I W F I W I W I W
//     dev1  F F I F I W F I W I W W
//     dev2  F I F I F I W F I W W W
GeneratedOrders zero_bubble_h1(const StagedModel& model, std::size_t devices);

// Place i begins with 2(p - i) - 1 forwards; then I and forward in turn, W behind I once 2i of them wait.
//
//     p = 3, m = 6
//     dev0  F F F F F I W F I W I W I W I W I W
//     dev1  F F F I F I F I W F I W I W I W W W
//     dev2  F I F I F I F I F I W F I W W W W W
GeneratedOrders zero_bubble_h2(const StagedModel& model, std::size_t devices);

}  // namespace espalier
