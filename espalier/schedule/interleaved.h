#pragma once

// Interleaved 1F1B (Narayanan et al., SC'21, arXiv 2104.04473, §2.2): v stages a device, laid in a loop, each
// a v-th as long. The pipeline fills v times as fast, for v times as many messages.
//
// Micro-batches go in rounds of one for each device (of m / ⌊m/p⌋ where p does not divide m): a device runs
// the round through its first stage, then through its second, …; backwards from the last stage to the first.
// After (v-1) rounds and two forwards for each place to come it takes forward and backward in turn.
//
//     p = 2, v = 2, m = 4; stages a c on the first device, b d on the second
//     dev0  Fa Fa Fc Fc Fa Bc Fa Bc Fc Ba Fc Ba Bc Bc Ba Ba
//     dev1  Fb Fb Fd Bd Fd Bd Fb Bb Fb Bb Fd Bd Fd Bd Bb Bb
//
// With equal stages and free messages, forward f and backward b of a whole device a micro-batch, the step
// takes (m + (p-1)/v)·(f + b): a bubble of (p-1) / (v·m + p-1). The first device holds p·(1 + (p-1)/(p·v))
// micro-batches.

#include "espalier/schedule/stage_line.h"

namespace espalier {

// kWhole is Megatron's order. kSplit has I in place of B, one forward less for each place to come, and W
// behind the backward of `place` pairs before: for v = 1 this is ZB-H1 (schedule/zero_bubble.h).
GeneratedOrders interleaved(const StagedModel& model, std::size_t devices,
                            OrderRule::Backward backward = OrderRule::Backward::kWhole);

}  // namespace espalier
