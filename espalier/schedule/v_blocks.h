#pragma once

// Building blocks (Qi et al., NeurIPS'24, arXiv 2405.15362): where the four passes of one micro-batch start
// on each device of a V, in clocks of one unit. The next micro-batch starts kBlockPeriod clocks later, so a
// device holds as many as the block's lifespans say; then both ends are squeezed within that memory.

#include <array>
#include <cstdint>
#include <vector>

#include "espalier/schedule/stage_line.h"

namespace espalier::internal {

using Clock = std::int64_t;
inline constexpr Clock kBlockPeriod = 6;  // F, I and W of two stages

// F down the devices (chunk 0), F up (chunk 1), I down (chunk 1), I up (chunk 0).
using Block = std::array<Clock, 4>;

// No two starts of all micro-batches meet on the device.
bool fits_period(const Block& block);

// Micro-batches, of both stages together, that the fullest device holds where the blocks are repeated and
// nothing is squeezed; each W comes as early as its device is free. O(places · micro-batches).
std::int64_t held_by(const std::vector<Block>& blocks, std::size_t micro_batches);

struct RepeatedBlocks {
  LineOrder order;
  std::int64_t held = 0;  // on the fullest device
  Clock span = 0;         // of the device with the longest, from its first start to its last end
};

// `blocks` by place; each must fit the period. O(places² · micro-batches) and for each start at an end
// O(places · micro-batches).
RepeatedBlocks repeat_blocks(const std::vector<Block>& blocks, std::size_t micro_batches);

}  // namespace espalier::internal
