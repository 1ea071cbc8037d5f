#pragma once

// ZB-V (Qi et al., ICLR'24, arXiv 2401.10241, §6): two stages a device, laid in a V, filled by time under a
// limit of memory. The last stage stands on the first device, so the first gradient is back after p forwards
// down and p up; with F = I = W and free messages no device idles between its first and last action, holding
// what 1F1B's fullest device holds.
//
// A micro-batch passes the row four times: F down, F up, I down, I up. First each device takes the forwards
// that fit before the first ones come up again; then, in rounds, an I and a forward, of the pass that has
// come further;
// W
//   - before an I or F that memory has no room for,
//   - while one fits before the next I or F could begin,
//   - and once more where it would not quite fit, if otherwise this device would idle longer than allowed.
// What is allowed: what any device has idled so far; then again, what the device may have because the fullest
// idled more in the run before, as long as that helps.

#include <optional>
#include <vector>

#include "espalier/planners/orders/zero_bubble_fill.h"

namespace espalier {

struct FillVRules {
  bool fill_before_forwards = true;     // the W that does not quite fit, before F
  bool fill_before_inputs_down = true;  // the same before I on its way down; on its way up always
};

// The line must have two chunks in a V. None if memory has no room for what must come.
std::optional<FilledOrder> zero_bubble_v_fill(const StageLine& line, const LineCosts& costs,
                                              const FillVRules& rules);

// With all rules, each order once, in the order of the rules.
std::vector<FilledOrder> zero_bubble_v_fills(const StageLine& line, const LineCosts& costs);

}  // namespace espalier
