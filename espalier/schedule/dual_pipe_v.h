#pragma once

// DualPipeV (DeepSeek, github.com/deepseek-ai/DualPipe, 2025: DualPipe cut in half): two stages a device,
// laid in a V, where in the steady state each forward stands beside a backward of the other stage, so that
// one's messages go while the other computes. Here the two stand one after the other, forward first.
//
// It takes at least 2p micro-batches and holds up to 2p + 1 of a stage. With F, I, W of one stage, F&B of
// such a pair and B = I + W, published for equal stages: (p-1)·(F&B + B - 3W) idle on a device.

#include "espalier/schedule/stage_line.h"

namespace espalier {

GeneratedOrders dual_pipe_v(const StagedModel& model, std::size_t devices);

}  // namespace espalier
