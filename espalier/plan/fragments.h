#pragma once

// A placement as stages, so that all that takes stages takes placements too: fragments (docs/semantics.md,
// placements).
//
// The fragment of an operator is (device, level). An operator's level is the largest over its inputs of their
// producers' levels, one more where the producer stands on another device. Operators that must run before it
// because one of the two writes memory of the other count like producers, except that an update waits for no
// reader on another device, which has a copy.
//
//   gpu:0   a ── b ──────── e        level 0: {a b} on gpu:0, {f} on gpu:1
//                 \        /         level 1: {c d} on gpu:1
//   gpu:1    f ─── c ── d            level 2: {e} on gpu:0
//
// A placement may have levels of its own that rise no less: fragments are then smaller, since one level
// becomes several. Messages leave earlier, and an operator waits for less that it does not need
// (placement/levels.h finds such levels from a timeline).
//
// Edges between fragments never lead to a lower level, and none stays on a level but within one fragment. So
// the fragments, by (level, device), are a plan of convex stages, except that a colocation group, which has
// one device, may stand in several of them; they run in the graph's order then. A duplicable operator stands
// beside each of its readers, wherever the placement has it; without readers it stands there at level 0.

#include <optional>
#include <string>
#include <vector>

#include "espalier/plan/staged_model.h"

namespace espalier {

// Whether v waits for its predecessor u on another device. An update does only where it reads what u gives:
// of a reader of its parameter elsewhere, which has a copy, it is independent.
bool waits_across_devices(const Graph& graph, OperatorId v, OperatorId u);

struct FragmentOptions {
  std::optional<BatchSize> micro_batch = {};  // none: the whole batch, so one
  Orders orders = {};                         // lists name fragments by their place in the plan
  std::size_t devices = 0;  // of the cluster: so many lists where levels make them; 0: those that are used
};

// By device: the forward passes of its fragments by level, then the backward passes from the last level to
// the first. What a placement with levels does with one micro-batch, unless it is told another order.
OrderLists orders_by_level(const PipelinePlan& fragments, std::size_t devices);

// One stage for each fragment, by (level, device): one replica on its device that takes all micro-batches,
// nothing recomputed. `after` holds the fragments of producers and of whoever else must come first. Limits
// are in_flight_limits', with one micro-batch there is one receive slot. Names are part_names'. The placement
// must pass check_placement, the micro-batch divide the batch. O(operators + edges, times log).
PipelinePlan fragments_of(const Graph& graph, const Placement& placement, BatchSize batch,
                          const FragmentOptions& options = {});

// The rules of such a plan, worked out again from the definition; each violation is one line that begins with
// the rule's name:
//   named        fragments have names, each once
//   devices      one replica of one device of the cluster, with all micro-batches; nothing is recomputed
//   covered      every operator that is not duplicable stands in one fragment, on its device; a duplicable
//                one beside each reader and nowhere else, or without readers once on its device
//   level        two such operators share a fragment exactly if they share device and level
//   ordered      `after` is complete, has nothing else, and names smaller fragments; operators ascend
//   micro-batch  one size, which divides the batch and lies in the graph's range
std::vector<std::string> check_fragments(const Graph& graph, const Cluster& cluster,
                                         const Placement& placement, const PipelinePlan& plan);

// stage_model for fragments: those of one device share one copy of each parameter and buffer. The lowest that
// reads it counts it, updates it and takes part in its tie. In a training graph, B does nothing and takes no
// time. Throws InputError as stage_model does.
StagedModel stage_placement(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                            const Training& training, const PipelinePlan& fragments);

// What lists of a placement must obey beside check_schedule's rules, since a device has one copy of each
// parameter: T and U stand behind every F and B (I, W) of their device. One line for the first that does not.
std::vector<std::string> check_fragment_orders(const StagedModel& model, const Cluster& cluster);

// The operators' cells that the costs lack, on the kind of device where a copy of them stands: the first.
struct MissingCell {
  OperatorId op;
  KindId kind;
  friend bool operator==(const MissingCell&, const MissingCell&) = default;
};
std::optional<MissingCell> missing_cell(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                                        const PipelinePlan& fragments);

}  // namespace espalier
