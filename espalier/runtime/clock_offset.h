#pragma once

// How the clocks of two hosts compare. Each host counts its steady clock from its own start, so times of two
// hosts can be compared only after one asked the other what time it is (Cristian, Distributed Computing 3,
// 1989). Needs no libtorch.
//
//   asks at `asked` ──▶ `received` │ theirs
//        `returned` ◀── `answered` │
//
// The answer was given between `asked` and `returned`, so the offset is known to half of the way there and
// back. Of several questions the one with the shortest way tells most.

#include <span>
#include <string>

#include "espalier/base/units.h"

namespace espalier {

struct ClockQuestion {
  Duration asked, returned;     // by the clock of who asks
  Duration received, answered;  // by the other clock
};

// The other clock shows between offset - uncertainty and offset + uncertainty more than that of who asks.
struct ClockOffset {
  Duration offset;
  Duration uncertainty;
  friend bool operator==(const ClockOffset&, const ClockOffset&) = default;
};
ClockOffset estimate_offset(std::span<const ClockQuestion> questions);  // at least one

// Names the steady clock that this process reads: the kernel's start (boot id) and time namespace. Containers
// on one kernel share it. Where the kernel does not tell, `host` names it.
std::string name_of_clock(const std::string& host);

}  // namespace espalier
