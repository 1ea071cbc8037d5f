#pragma once

// A second simulator of placements, written from the rules alone and slow: all that goes on is looked through
// at every instant. Shares no code with the engine.

#include "espalier/placement/engine.h"

namespace espalier::testing {

// Times, messages and lists; peaks and what follows from them stay empty (check_timeline computes them
// again). A deadlock is said in `evaluated`.
placement::Timeline reference_timeline(const placement::Instance& instance, const placement::Rules& rules,
                                       const placement::DeviceOrders& orders,
                                       std::span<const DeviceId> assignment);

}  // namespace espalier::testing
