#pragma once

// A joint choice of stages, devices, replicas, shares, micro-batch and samples in flight, judged by
// simulation from the first step to the last: what other planners found, improved (docs/planners/joint.md).

#include <cstddef>
#include <string>
#include <vector>

#include "espalier/planners/automatic.h"
#include "espalier/planners/joint/guide.h"
#include "espalier/planners/joint/moves.h"

namespace espalier {

struct JointOptions {
  // kChange: nobody asked for a rule. Then rules are moves like others, and where lists of orders for the
  // fastest plans are faster still, the plan carries them if it may (Problem::lists, joint/order_lists.h).
  joint::OrdersMay orders = joint::OrdersMay::kStay;
  // A cluster of equal parts is planned part by part too (planners/repeated.h), unless something must stay on
  // one of its devices: by these planners, for parts of that many devices at least.
  std::vector<std::string> of_parts = {"pipedream", "graphpipe"};
  std::size_t least_of_a_part = 8;
  // Which steps the search judges first where there are many (joint/search.h); none: those whose busiest
  // device has least to do.
  const joint::MoveGuide* guide = nullptr;
};

// Runs all planners, each with a 32nd of the budget (all of it up to 200,000 states, or 3,000 for each
// device), and improves their plans with a quarter: never slower than the fastest of them (fastest_of). Where
// the cluster is equal parts (cluster/equal_parts.h), plans of a part, found in the same way with a quarter
// of the budget, are done by all parts and improved likewise. Where none of them has a plan that fits, the
// search begins with those that came closest, and finds one if recomputation makes them fit; else their
// outcome. Stages may share devices, hold parts of several branches, have replicas with unequal shares where
// devices differ; operators of a colocation group stay together, pins are kept, and stages that write buffers
// have no replicas unless the problem allows it.
Outcome joint_search(const Problem& problem, const std::vector<NamedPlanner>& planners,
                     const JointOptions& options, Context& context);

// The same from one outcome: its plan, or the closest one, improved, its locked stages as they are.
Outcome improved(const Problem& problem, Outcome found, const JointOptions& options, Context& context);

}  // namespace espalier
