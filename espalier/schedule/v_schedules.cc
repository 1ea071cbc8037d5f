#include "espalier/schedule/v_schedules.h"

#include <algorithm>
#include <array>
#include <optional>

#include "espalier/schedule/v_blocks.h"

namespace espalier {
namespace {

using internal::Block;
using internal::Clock;
using internal::RepeatedBlocks;

// The paper's own results for half and a third of the memory.
Block half_block(Clock place, Clock p) {
  const Clock shift = p % 2 == 0 ? 3 : 0;
  return {2 * place, 3 * p - place - 2, 3 * p + shift + 2 * place - 1, 6 * p + shift - place - 2};
}
Block min_block(Clock place, Clock p) {
  const Clock shift = p % 3 == 0 ? 2 : 0;
  return {place, 2 * p - place - 1, 2 * p + shift + place, 4 * p + shift - place - 1};
}

LineOrder repeated(std::size_t places, std::size_t micro_batches, Block (*block)(Clock, Clock)) {
  const auto p = static_cast<Clock>(places);
  std::vector<Block> blocks;
  for (Clock place = 0; place < p; ++place) blocks.push_back(block(place, p));
  return internal::repeat_blocks(blocks, micro_batches).order;
}

GeneratedOrders repeated(const StagedModel& model, std::size_t devices, Block (*block)(Clock, Clock)) {
  FoundLine found = find_line(model, StageLine::Layout::kV, 2);
  if (!found.line) return {{}, std::move(found.why_not)};
  const LineOrder order = repeated(found.line->places(), found.line->micro_batches, block);
  return {lists_on_devices(*found.line, model, devices, order), ""};
}

// Clocks from one device to the next, of each pass.
using Steps = std::array<Clock, 4>;

struct BlockShape {
  Steps first = {}, then = {};  // up to device `change`, and behind it
  Clock change = 0;
  std::array<Clock, 3> turns = {};  // from the end of the row, or its beginning, into the next pass

  Clock way(std::size_t pass, Clock place) const {  // from device 0 to `place`
    const Clock before = std::min(place, change);
    return first[pass] * before + then[pass] * (place - before);
  }
};

// By place; nothing if two passes meet on a device or more than `limit` would be held.
std::optional<std::vector<Block>> blocks_of(const BlockShape& shape, Clock p, Clock limit) {
  const Clock last = p - 1;
  Block ends = {};  // starts at device p-1 (passes down) or at device 0 (up)
  ends[0] = shape.way(0, last);
  for (std::size_t pass = 1; pass < 4; ++pass) {
    ends[pass] = ends[pass - 1] + shape.turns[pass - 1] + shape.way(pass, last);
  }
  std::vector<Block> blocks;
  for (Clock place = 0; place < p; ++place) {
    Block block;
    for (std::size_t pass = 0; pass < 4; ++pass) {
      const Clock to_end =
          pass % 2 == 0 ? shape.way(pass, last) - shape.way(pass, place) : shape.way(pass, place);
      block[pass] = ends[pass] - to_end;
    }
    const Clock lifespan = block[3] - block[0] + block[2] - block[1];
    if (!internal::fits_period(block) || lifespan > limit * internal::kBlockPeriod) return std::nullopt;
    blocks.push_back(block);
  }
  return blocks;
}

// Calls f(turns) for all ways to turn.
template <class F>
void for_turns(F f) {
  for (Clock code = 0; code < 216; ++code) {
    f(std::array<Clock, 3>{1 + code / 36, 1 + code / 6 % 6, 1 + code % 6});
  }
}

// Steps with which some block of one pace fits.
std::vector<Steps> usable_steps(Clock p, Clock limit) {
  std::vector<Steps> usable;
  for (Clock code = 0; code < 256; ++code) {
    const Steps steps{1 + code / 64, 1 + code / 16 % 4, 1 + code / 4 % 4, 1 + code % 4};
    bool fits = false;
    for_turns([&](const std::array<Clock, 3>& turns) {
      fits = fits || blocks_of({steps, steps, 0, turns}, p, limit).has_value();
    });
    if (fits) usable.push_back(steps);
  }
  return usable;
}

// The blocks that hold exactly so many, squeezed: the one with the shortest span over few micro-batches.
class BlockSearch {
 public:
  BlockSearch(Clock p, std::size_t micro_batches)
      : p_(p), few_(std::min<std::size_t>(micro_batches, 3 * static_cast<std::size_t>(p))) {}

  std::optional<std::vector<Block>> best(Clock held) {
    best_.reset();
    std::vector<Steps> usable = usable_steps(p_, held);
    // The paper's own paces, whatever a block of one of them alone would hold.
    for (Clock down = 1; down <= 5; ++down) {
      const Steps steps{down, 1, down, 1};
      if (std::find(usable.begin(), usable.end(), steps) == usable.end()) usable.push_back(steps);
    }
    for (const Steps& first : usable) {
      consider({first, first, 0, {}}, held);
      for (const Steps& then : usable) {
        for (Clock change = 1; first != then && change + 1 < p_; ++change)
          consider({first, then, change, {}}, held);
      }
    }
    return best_;
  }

 private:
  void consider(BlockShape shape, Clock held) {
    for_turns([&](const std::array<Clock, 3>& turns) {
      shape.turns = turns;
      std::optional<std::vector<Block>> blocks = blocks_of(shape, p_, held);
      if (!blocks || internal::held_by(*blocks, few_) != held) return;
      const RepeatedBlocks result = internal::repeat_blocks(*blocks, few_);
      if (result.held > held || (best_ && result.span >= span_)) return;
      span_ = result.span;
      best_ = std::move(blocks);
    });
  }

  const Clock p_;
  const std::size_t few_;
  std::optional<std::vector<Block>> best_;
  Clock span_ = 0;
};

}  // namespace

LineOrder v_half_order(std::size_t places, std::size_t micro_batches) {
  return repeated(places, micro_batches, half_block);
}

LineOrder v_min_order(std::size_t places, std::size_t micro_batches) {
  return repeated(places, micro_batches, min_block);
}

GeneratedOrders v_half(const StagedModel& model, std::size_t devices) {
  return repeated(model, devices, half_block);
}

GeneratedOrders v_min(const StagedModel& model, std::size_t devices) {
  return repeated(model, devices, min_block);
}

GeneratedOrders v_flex(const StagedModel& model, std::size_t devices, std::uint32_t limit) {
  FoundLine found = find_line(model, StageLine::Layout::kV, 2);
  if (!found.line) return {{}, std::move(found.why_not)};
  const std::size_t p = found.line->places(), m = found.line->micro_batches;
  BlockSearch search(static_cast<Clock>(p), m);
  for (auto held = static_cast<Clock>(std::min({std::size_t{limit}, 2 * p, 2 * m})); held > 0; --held) {
    const std::optional<std::vector<Block>> blocks = search.best(held);
    if (!blocks) continue;
    const RepeatedBlocks result = internal::repeat_blocks(*blocks, m);
    if (result.held > static_cast<Clock>(limit)) continue;
    return {lists_on_devices(*found.line, model, devices, result.order), ""};
  }
  return {{},
          "no building block holds at most " + std::to_string(limit) +
              " micro-batches of a stage; a third of the memory is " + std::to_string(2 * p / 3 + 2)};
}

}  // namespace espalier
