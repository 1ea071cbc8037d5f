#pragma once

// The workload of most tests of policies: two towers and a head, some hundred operators, on two devices; at
// best both towers side by side.

#include "espalier/learned/workload.h"

namespace espalier::placement {

inline const Workload& two_towers() {
  static const Workload kWorkload =
      make_workload({"towers", "mmt", {{"branches", 2}, {"layers", 1}}, BatchSize(16), "2xP100-16GB", {}});
  return kWorkload;
}

}  // namespace espalier::placement
