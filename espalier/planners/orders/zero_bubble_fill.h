#pragma once

// The heuristic of Zero Bubble (Qi et al., ICLR'24, arXiv 2401.10241, §3.1): orders of F, I and W for a chain
// of one stage a device, made by filling time under a limit of memory.
//
// Before the first backward: as many forwards as fit before it could come, in time and memory. Then,
// micro-batch by micro-batch, one forward and one I on each device, and W
//   - before an F or I that memory has no room for,
//   - while one fits before the next F or I could begin,
//   - and once more where it would not quite fit, if otherwise this device would idle longer than any has so
//   far.
// Three choices are open, so eight orders are made. They count time as the simulator does but for shared
// links.

#include <optional>
#include <vector>

#include "espalier/planners/orders/line_costs.h"

namespace espalier {

struct FillRules {
  bool late_forwards = false;    // before the first I also a forward that it would have to wait for
  bool backwards_first = false;  // no forward where it would keep the next place's gradient waiting
  bool always_fill = false;      // the W that does not quite fit even if idle time would cost nothing

  friend bool operator==(const FillRules&, const FillRules&) = default;
};

struct FilledOrder {
  LineOrder order;
  Duration span;  // from the first start to the last end on the device where that is longest
};

// None if memory has no room for a forward that must come. O(places · micro-batches).
std::optional<FilledOrder> zero_bubble_fill(const StageLine& line, const LineCosts& costs,
                                            const FillRules& rules);

// Adds an order that there is and that does not stand there yet.
void add_new(std::optional<FilledOrder> fill, std::vector<FilledOrder>& fills);

// With all rules, each order once, in the order of the rules.
std::vector<FilledOrder> zero_bubble_fills(const StageLine& line, const LineCosts& costs);

}  // namespace espalier
