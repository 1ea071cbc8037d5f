#pragma once

// HDP (Mirhoseini et al., "A Hierarchical Model for Device Placement", ICLR'18) as a placer, the learned
// placement that GDP is compared with: a grouper gives each node a group, a sequence-to-sequence placer each
// group a device (hdp_net.h), and both learn one graph together by REINFORCE (Williams, Mach. Learn. 1992).
//
//   update   rollouts: a grouping drawn node by node, groups described (grouping.h), devices drawn group by
//            group, the placement judged by the operator engine
//            one step up Σ advantage · (ln p(grouping) + ln p(devices))
//
// Two ways to train it. The published one is that of the paper's public code: reward √seconds, 10 (100 s)
// for what does not fit, less its moving mean; Adam from 0.1; noise on the logits. The tuned one, the
// default, has what GDP has here (learner.h): the advantage is a rollout's rank, what does not fit has a
// graded price, Adam from 3e-3 to 3e-4, tables beside the nets; and groups that begin as runs of neighbours.
//
// Deviations: nodes are clusters (clusters.h), or units where `contracted` is off, never single operators
// that must stand together; one noise serves the groupings of all rollouts of an update; the code keeps its
// placer's last devices after 500 updates while groupings go on, which is left out; a node goes to the next
// device that it may stand on where it may not stand on its group's.

#include <cstdint>
#include <functional>

#include "espalier/learned/grouping.h"
#include "espalier/learned/learner.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

enum class HdpTraining : std::uint8_t { kTuned, kPublished };

enum class GroupStart : std::uint8_t {
  kEven,    // a node's groups are about equally probable
  kLayers,  // those where it lies among the nodes, by layer and order, are far more so
};

struct HdpOptions {
  TaskOptions task = {.tries_orders = true};
  bool contracted = true;  // nodes are clusters; else units
  std::size_t groups = 0;  // at most; 0: usual_groups
  std::size_t grouper_width = 64;
  std::size_t placer_width = 64;  // even
  HdpTraining training = HdpTraining::kTuned;
  GroupFeatures features = GroupFeatures::kMeans;
  GroupStart start = GroupStart::kLayers;
  double logit_bound = 0;    // devices' logits are b · tanh(logit); 0: as they are
  bool tables = true;        // logits of each node's groups and each group's devices learn beside the nets
  bool repeat_best = false;  // the best so far takes part in each update as one more rollout
  std::size_t rollouts = 8;  // an update
  std::uint64_t updates = 800;
  // Tuned: falls to the last over all updates. Published: × 0.95 every 50 updates after 400.
  double learning_rate = 3e-3, last_learning_rate = 3e-4;
  // Called after each update; may be empty.
  std::function<void(const LearningPoint&)> told = {};
};

// As public code has it: units, uniform groups, an LSTM of 512, Adam 0.1. It has one rollout an update; there
// are four here, as the paper has several controllers, and since an update of 512 takes long.
HdpOptions published_hdp();

// 20 for each device, 256 at most.
std::size_t usual_groups(std::size_t devices);

// The best that was judged and fits, or the reason why nothing does (best_so_far.h). `estimate` is the
// engine's step. Takes a state for each simulator call and ends with the updates or with the budget. The same
// bytes for the same seed on one machine, for any number of pool threads. An update is
// O(nodes · groups + rollouts · (evaluation + edges + groups² · width + groups · width²)).
Placed hdp(const PlacerInput& input, const HdpOptions& options, Context& context);

}  // namespace espalier::placement
