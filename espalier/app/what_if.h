#pragma once

// What another cluster would give, and so what holds a plan back: the job is changed (cluster_change.h) and
// planned again, as it was planned before.

#include <optional>
#include <string>
#include <vector>

#include "espalier/app/planning.h"
#include "espalier/report/table.h"

namespace espalier {

struct WhatIf {
  std::string change;  // as --what-if takes it
  std::string text;    // for people: "1 GiB more on each device"
  std::string binds;   // what holds the plan back if this helps most: "memory"; empty: not asked for that
  Status status = Status::kInfeasible;
  std::optional<Duration> iteration;  // simulated, of a plan that fits
  std::string planner;                // whose plan is best
};

// Throws InputError for a change that means nothing for the job.
void check_changes(const PlanningJob& job, const std::vector<WhatIf>& asked);

// Plans again for each change, on as many threads as the search has, each from `now`, the plan without
// changes, where there is one that fits and `auto` plans: then a quarter of the budget does, and a change for
// the better is not slower for want of search.
std::vector<WhatIf> what_if(const PlanningJob& job, const std::vector<WhatIf>& asked,
                            const PlanOptions& options, const Planned* now = nullptr);

// The changes that tell what binds: 1 GiB more on each device, one more like the last, all links twice as
// fast, the busiest device twice as fast. The last two need several devices with links, and a plan.
std::vector<WhatIf> usual_changes(const PlanningJob& job, const Planned& planned);

// "memory: with 1 GiB more on each device 1.31x as fast"; where no change gives 2 % or more, it says so. Of
// changes that were asked with `binds`.
std::string binding_text(const std::vector<WhatIf>& changes, std::optional<Duration> now);

// `now`: the iteration without changes; none: nothing fits.
Table what_if_table(const std::vector<WhatIf>& changes, std::optional<Duration> now);

}  // namespace espalier
