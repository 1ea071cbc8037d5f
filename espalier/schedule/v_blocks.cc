// The problem: p devices, m micro-batches, each of which passes the row of devices four times, in clocks of
// one unit; W whenever its device is free.
//
//   squeeze   walks all starts in order of time, those before the steady state and those after it, and moves
//             each to the first free clock at which it may start and the device holds no more than the
//             fullest device of the plain repetition holds
//   compact   starts everything as early as the order of each device and the passes allow
//
// Twice: first with W placed in the free clocks, one for all I together; then with W left out, and placed
// again.

#include "espalier/schedule/v_blocks.h"

#include <algorithm>
#include <array>
#include <tuple>

namespace espalier::internal {
namespace {

enum Pass : std::size_t { kForwardDown, kForwardUp, kInputDown, kInputUp, kPasses };
constexpr std::size_t kWeights = kPasses;  // row of W

constexpr bool goes_down(std::size_t pass) {
  return pass % 2 == 0;
}

// Starts on one device, by pass and micro-batch; the last row is W, of both chunks, in the order of the I.
using Starts = std::array<std::vector<Clock>, kPasses + 1>;
using Row = std::vector<Starts>;  // by place

Clock end_of(const Starts& starts) {
  Clock end = 0;
  for (const std::vector<Clock>& row : starts) end = row.empty() ? end : std::max(end, row.back() + 1);
  return end;
}

// What stands at each clock; nothing: kPasses + 1.
std::vector<std::size_t> timeline(const Starts& starts) {
  std::vector<std::size_t> what(static_cast<std::size_t>(end_of(starts)), kPasses + 1);
  for (std::size_t pass = 0; pass < starts.size(); ++pass) {
    for (const Clock clock : starts[pass]) what[static_cast<std::size_t>(clock)] = pass;
  }
  return what;
}

// W for each I that has been, in every clock that is free.
void place_weights(Starts& starts) {
  std::size_t waiting = 0;
  Clock clock = 0;
  starts[kWeights].clear();
  for (const std::size_t pass : timeline(starts)) {
    if (pass == kInputDown || pass == kInputUp) ++waiting;
    if (pass > kPasses && waiting > 0) {
      starts[kWeights].push_back(clock);
      --waiting;
    }
    ++clock;
  }
  for (; waiting > 0; --waiting) starts[kWeights].push_back(clock++);
}

// Micro-batches that the device holds at most, of both stages together. Without W, as if each came in the
// first free clock.
std::int64_t most_held(const Starts& starts) {
  const bool placed = !starts[kWeights].empty();
  std::int64_t held = 0, most = 0, waiting = 0;
  for (const std::size_t pass : timeline(starts)) {
    if (pass == kForwardDown || pass == kForwardUp) most = std::max(most, ++held);
    if (pass == kInputDown || pass == kInputUp) ++waiting;
    if (pass == kWeights || (!placed && pass > kPasses && waiting > 0)) {
      --held;
      --waiting;
    }
  }
  return most;
}

struct Start {
  Clock clock = 0;
  std::size_t place = 0, pass = 0, number = 0;
};

std::vector<Start> in_order(const Row& row) {
  std::vector<Start> starts;
  for (std::size_t place = 0; place < row.size(); ++place) {
    for (std::size_t pass = 0; pass < row[place].size(); ++pass) {
      for (std::size_t i = 0; i < row[place][pass].size(); ++i) {
        starts.push_back({row[place][pass][i], place, pass, i});
      }
    }
  }
  std::sort(starts.begin(), starts.end(), [](const Start& a, const Start& b) {
    return std::tie(a.clock, a.place, a.pass, a.number) < std::tie(b.clock, b.place, b.pass, b.number);
  });
  return starts;
}

// The first clock at which it may start for those that it waits for.
Clock earliest(const Row& row, const Start& start) {
  Clock after = -1;
  const Starts& own = row[start.place];
  if (start.pass == kWeights) {
    // The I with as many before it: I's clocks ascend, so it is the least split of the two rows.
    std::vector<Clock> inputs = own[kInputDown];
    inputs.insert(inputs.end(), own[kInputUp].begin(), own[kInputUp].end());
    std::nth_element(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(start.number),
                     inputs.end());
    after = inputs[start.number];
  } else {
    const bool down = goes_down(start.pass);
    if (down ? start.place > 0 : start.place + 1 < row.size()) {
      after = row[down ? start.place - 1 : start.place + 1][start.pass][start.number];
    }
    if (start.pass > 0) after = std::max(after, own[start.pass - 1][start.number]);
  }
  if (start.number > 0) after = std::max(after, own[start.pass][start.number - 1]);
  return after + 1;
}

void compact(Row& row) {
  std::vector<Clock> free(row.size(), 0);
  for (const Start& start : in_order(row)) {
    const Clock clock = std::max(free[start.place], start.pass == kWeights ? 0 : earliest(row, start));
    row[start.place][start.pass][start.number] = clock;
    free[start.place] = clock + 1;
  }
}

// Both ends with W; only the last one without.
void squeeze(Row& row) {
  const bool weights = !row.front()[kWeights].empty();
  std::int64_t limit = 0;
  std::vector<std::vector<char>> taken;  // by place and clock
  for (const Starts& starts : row) {
    limit = std::max(limit, most_held(starts));
    taken.emplace_back(static_cast<std::size_t>(end_of(starts)), false);
  }
  const std::size_t last = row.front()[kForwardDown].size() - 1;
  enum class Phase { kWarmUp, kSteady, kCoolDown } phase = Phase::kWarmUp;
  for (const Start& start : in_order(row)) {
    Clock& clock = row[start.place][start.pass][start.number];
    if (phase == Phase::kWarmUp && start.pass == kInputUp && start.place == 0) phase = Phase::kSteady;
    const bool moves = phase == Phase::kCoolDown || (phase == Phase::kWarmUp && weights);
    if (phase == Phase::kSteady && start.pass == kForwardDown && start.number == last)
      phase = Phase::kCoolDown;
    for (Clock early = moves ? earliest(row, start) : start.clock; early < start.clock; ++early) {
      if (taken[start.place][static_cast<std::size_t>(early)]) continue;
      clock = early;
      if (most_held(row[start.place]) <= limit) break;
      clock = start.clock;
    }
    taken[start.place][static_cast<std::size_t>(clock)] = true;
  }
}

std::size_t chunk_of(std::size_t pass) {
  return pass == kForwardUp || pass == kInputDown ? 1 : 0;
}

// The steps of a device whose W have no place yet: each W in the first free clock, of chunk 1 first.
std::vector<LineStep> steps_of(Starts starts) {
  starts[kWeights].clear();
  std::vector<LineStep> steps;
  std::size_t waiting[2] = {0, 0};
  const auto weight = [&] {
    const std::size_t chunk = waiting[1] > 0 ? 1 : 0;
    if (waiting[chunk] == 0) return;
    --waiting[chunk];
    steps.push_back({ActionKind::kWeightGradient, chunk});
  };
  for (const std::size_t pass : timeline(starts)) {
    if (pass > kPasses) {
      weight();
      continue;
    }
    const bool input = pass == kInputDown || pass == kInputUp;
    if (input) ++waiting[chunk_of(pass)];
    steps.push_back({input ? ActionKind::kInputGradient : ActionKind::kForward, chunk_of(pass)});
  }
  while (waiting[0] + waiting[1] > 0) weight();
  return steps;
}

Row repeated(const std::vector<Block>& blocks, std::size_t micro_batches) {
  Row row(blocks.size());
  for (std::size_t place = 0; place < blocks.size(); ++place) {
    for (std::size_t pass = 0; pass < kPasses; ++pass) {
      for (std::size_t i = 0; i < micro_batches; ++i) {
        row[place][pass].push_back(blocks[place][pass] + kBlockPeriod * static_cast<Clock>(i));
      }
    }
    place_weights(row[place]);
  }
  return row;
}

std::int64_t most_held(const Row& row) {
  std::int64_t most = 0;
  for (const Starts& starts : row) most = std::max(most, most_held(starts));
  return most;
}

std::int64_t most_held(const std::vector<LineStep>& steps) {
  std::int64_t held = 0, most = 0;
  for (const LineStep& step : steps) {
    if (step.kind == ActionKind::kForward) most = std::max(most, ++held);
    if (step.kind == ActionKind::kWeightGradient) --held;
  }
  return most;
}

}  // namespace

bool fits_period(const Block& block) {
  for (std::size_t a = 0; a < block.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      if ((block[a] - block[b]) % kBlockPeriod == 0) return false;
    }
  }
  return true;
}

std::int64_t held_by(const std::vector<Block>& blocks, std::size_t micro_batches) {
  return most_held(repeated(blocks, micro_batches));
}

RepeatedBlocks repeat_blocks(const std::vector<Block>& blocks, std::size_t micro_batches) {
  Row row = repeated(blocks, micro_batches);
  squeeze(row);
  compact(row);
  for (Starts& starts : row) starts[kWeights].clear();
  squeeze(row);
  for (Starts& starts : row) place_weights(starts);
  compact(row);
  RepeatedBlocks result;
  for (const Starts& starts : row) {
    result.order.push_back(steps_of(starts));
    result.held = std::max(result.held, most_held(result.order.back()));
    result.span = std::max(result.span, end_of(starts) - starts[kForwardDown].front());
  }
  return result;
}

}  // namespace espalier::internal
