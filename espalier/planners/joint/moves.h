#pragma once

// Plans one step away from a plan: what the joint search tries. A move says what changes and nothing else;
// whether the result is legal, fits and is faster, the judge says.

#include <optional>
#include <span>
#include <vector>

#include "espalier/base/rng.h"
#include "espalier/planners/joint/parts.h"
#include "espalier/planners/joint/space.h"

namespace espalier::joint {

// Whether a plan's orders may become another rule than the one that was asked for.
enum class OrdersMay : std::uint8_t { kStay, kChange };

// A plan with what guides its moves.
struct Site {
  Site(const Space& space, const Proposal& plan);
  // With a stage or two and a few devices drawn: moves from anywhere, and few of them.
  Site(const Space& space, const Proposal& plan, Rng& rng);

  const Space& space;
  const Proposal& plan;
  Load load;
  Neighbours neighbours;
  std::vector<std::size_t> stages;  // that may change, those on the busiest device first
  std::vector<DeviceId> free;       // that no locked stage has, the least busy first
  std::vector<DeviceId> devices;    // of these, that may take something: of idle equal ones the first

  KindId kind_of(const StageDraft& stage) const;  // of its first device
  std::vector<Part> parts(std::size_t stage) const;
  bool any_fixed = false;  // locked stages, which stay as they are
  bool is_fixed(std::size_t stage) const { return !plan.stages[stage].locked_as.empty(); }
};

// How many of a site's stages and devices a family of moves looks at.
inline constexpr std::size_t kSources = 8;
inline constexpr std::size_t kTargets = 4;
inline constexpr std::int32_t kMostMore = 16;  // micro-batches in flight than the rule gives, or fewer

// As many fewer as leave each stage, whatever the rule gives it, with one in flight; -kMostMore at most.
std::int32_t fewest_in_flight(const Space& space, const Proposal& plan);

// A part of a stage joins a neighbour: along an edge, so that both stay convex.
std::vector<Proposal> border_moves(const Site& site);
// A part of a stage, or all of it, becomes a stage on another device, whatever else stands there; a part also
// on the stage's own devices, where it may wait while the rest goes on.
std::vector<Proposal> part_moves(const Site& site);
// Two stages become one, on the devices of either or of both.
std::vector<Proposal> merge_moves(const Site& site);
// A stage with replicas becomes two, each on some of its devices.
std::vector<Proposal> split_moves(const Site& site);
// Devices join a stage, leave it, change places with those of another; whole hosts change places.
std::vector<Proposal> device_moves(const Site& site);
// A stage, or all of them, in tensor-parallel groups of the next size for which there are cells, up or down.
std::vector<Proposal> group_moves(const Site& site);
// Another micro-batch, more or fewer in flight, no stage edges that carry no data, and, where orders may
// change, another rule: k, all forwards first, backward in halves.
std::vector<Proposal> order_moves(const Site& site, OrdersMay may);
// A stage that recomputes does so no longer, or keeps what a beginning or an end of it saves.
std::vector<Proposal> recompute_moves(const Site& site);

// What a plan that does not fit could recompute: all of every stage on the devices that lack memory, with as
// many micro-batches in flight there and with as few as a move may ask for. And the same with each of these
// stages cut in two on its devices, up to `halvings` times: a stage that is recomputed as a whole holds all
// of it again in its backward, two hold a half each (Chen et al., arXiv 1604.06174: segments).
std::vector<Proposal> with_recomputation(const Space& space, const Proposal& plan,
                                         const std::vector<Excess>& excess, std::size_t halvings);

// All of them, each once, none that is the plan itself.
struct Moves {
  std::vector<Proposal> all;
  std::size_t orders_begin = 0, orders_end = 0;  // those of order_moves
};
Moves moves_of(const Site& site, OrdersMay may);

// --- what they are made of

// In tensor-parallel groups no larger than before, of a size that divides its devices, with shares by speed
// where these are of several kinds.
StageDraft settled(const Space& space, StageDraft stage, BatchSize micro_batch);
// So many devices of `first`'s kind beside it, those of its host first, then the least busy, none of `but`;
// nothing where there are fewer.
std::optional<std::vector<DeviceId>> devices_beside(const Site& site, DeviceId first,
                                                    std::span<const DeviceId> but, std::size_t count);
// What a replica of the stage would be with a device that the stage does not have.
std::optional<std::vector<DeviceId>> group_with(const Site& site, const StageDraft& stage, DeviceId first);
// The same stages with another micro-batch: shares are dealt anew.
Proposal with_micro_batch(const Space& space, Proposal plan, BatchSize micro_batch);
// What a stage computes from where it first reads from another stage becomes a stage of its own on the same
// devices, where that is little: the head behind several branches, which in the stage of one of them lets
// that branch wait for the others. Nothing where no stage has such an end.
std::optional<Proposal> with_light_joins_apart(const Space& space, const Proposal& plan);
// Without one stage: `after` of the others no longer names it.
Proposal without_stage(Proposal plan, std::size_t stage);

}  // namespace espalier::joint
