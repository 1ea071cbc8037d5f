#pragma once

// List schedulers of tasks on unequal devices: each task in turn, where its own rule has it end best, with
// gaps filled (ListClock) and memory respected (ListState).
//
//   heft            by upward rank, where it ends first (Topcuoglu, Hariri, Wu, TPDS'02, §4.1)
//   cpop            by the longest way through it; the critical path on the one device that is fastest for it
//                   (the same paper, §4.2)
//   peft            by an optimistic cost table, which says what is left at best from each device: where end
//                   and rest are least (Arabnejad, Barbosa, TPDS'14)
//   heft_lookahead  as HEFT, but where the last of its readers would end first (Bittencourt, Sakellariou,
//                   Madeira, PDP'10, lookahead without priority change)
//   dpos            by upward rank; the critical path fills the device that is fastest for it, then the next;
//                   all else where it ends first (FastT, Yi et al., Middleware'20). FastT's other half,
//                   splitting operators of the critical path, needs other graphs: a placement cannot say it.
//
// The first task of a unit decides for all of it. Messages wait for links, as `sends` says; the papers' have
// none (kUnlimited).

#include "espalier/placement/engine.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

struct ListOptions {
  Rules::Sends sends = Rules::Sends::kRoutes;
};

// d devices. heft, cpop and dpos: O(reads · d + tasks · d · log). peft: the same, and reads · d for its
// table. heft_lookahead: O(reads · d²), of a task's readers the 16 of highest rank.
Placed heft(const Instance& instance, const ListOptions& options = {});
Placed cpop(const Instance& instance, const ListOptions& options = {});
Placed peft(const Instance& instance, const ListOptions& options = {});
Placed heft_lookahead(const Instance& instance, const ListOptions& options = {});
Placed dpos(const Instance& instance, const ListOptions& options = {});

// PEFT's table: what is left at best once a task has ended on a device, table[task * devices + device]. Zero
// where the task may not stand.
std::vector<Duration> optimistic_costs(const Instance& instance);

}  // namespace espalier::placement
