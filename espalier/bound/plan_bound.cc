// Any plan within a scope (proofs, with numbers: docs/bounds.md).
//
//   chain        the longest chain of one micro-batch, there and back
//   work         for weights y_d ≥ 0 of the devices, Σ y_d · T ≥ Σ_op min over ways of what it adds: a
//   device's
//                load is at most T (weak duality of the assignment problem on unrelated machines, Lenstra,
//                Shmoys, Tardos, 1990). y_d is proportional to the speed at which d would do everything; of
//                devices of one kind it is 1
//   fill, drain  of that work only so much can be done before x and in the last y of the step, so that
//                Σ y_d · (T - x - y) ≥ the rest (energetic reasoning: Erschler, Lopez, Thuriot, 1991)
//   one place    an operator's micro-batches are shared by r replicas, r - 1 of them paid for by a sum of its
//                gradients; the busiest replica has a head, its share, the sum, an update and a tail
//
// Each holds for all plans, so the largest does. Where all stages have one micro-batch, it is taken for each
// size, and the least of them holds.

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "espalier/base/check.h"
#include "espalier/bound/bound.h"
#include "espalier/bound/crowding.h"
#include "espalier/bound/kept_memory.h"
#include "espalier/bound/least_costs.h"
#include "espalier/bound/one_place.h"
#include "espalier/bound/spread.h"

namespace espalier {
namespace {

using internal::Chains;
using internal::crowded_time;
using internal::Known;
using internal::LeastCosts;
using internal::nanoseconds_of;
using internal::OnePlace;
using internal::Rings;
using internal::Room;
using internal::Spread;
using internal::spread_time;
using internal::SpreadTime;

std::string devices_text(std::size_t devices) {
  return std::to_string(devices) + (devices == 1 ? " device" : " devices");
}

// "their 122.0 GiB"
std::string room_text(const Known& known) {
  Bytes room;
  for (const Device& device : known.cluster.devices()) room += device.memory;
  return "their " + to_text(room);
}

// What is known of micro-batches of these sizes, each stage with any of them; none if no plan has them.
struct Sized {
  std::optional<Known> known;
  std::optional<OperatorId> without_room;  // why no plan that fits has them
};

Sized sized(const Graph& graph, const Cluster& cluster, const CostTable& costs, const Training& training,
            Bound::Plans plans, std::span<const BatchSize> sizes) {
  LeastCosts least = internal::least_costs(graph, cluster, costs, training, sizes);
  if (sizes.empty() || !least.runs) return {};
  Chains chains = internal::chains_of(graph, least);
  Room room;
  if (plans == Bound::Plans::kThatFit) {
    room = internal::find_kept(graph, cluster, costs, training, sizes, chains, least);
  }
  if (room.leaves_out) {
    least.find_least();
    if (!least.runs) return {std::nullopt, room.nowhere};
    chains = internal::chains_of(graph, least);
  }
  return {Known{graph, cluster, std::move(least), std::move(chains), Rings(cluster), std::move(room)}, {}};
}

Bound bound_of(const Known& known) {
  const std::string devices = devices_text(known.cluster.devices().size());
  Bound bound;
  bound.time = known.chains.longest;
  bound.why = "one micro-batch along the longest path and back";
  const Spread work(known);
  const SpreadTime shares = spread_time(known, work);
  const Duration time = round_duration(std::ceil(shares.time));
  const Duration idle = round_duration(std::floor(shares.fill_drain));
  if (time > bound.time || (time == bound.time && idle == Duration())) {
    bound.time = time;
    bound.why = "all work spread over " + devices;
    if (idle > Duration()) bound.why += ", " + to_text(idle) + " of it to fill and drain them";
    const Duration memory = round_duration(std::floor(shares.memory));
    if (memory > Duration())
      bound.why += ", " + to_text(memory) + " of it since " + room_text(known) + " hold no more at once";
  }
  if (const Duration crowded = crowded_time(known, work, bound.time); crowded > bound.time) {
    bound.time = crowded;
    bound.why = "where few operators can run side by side, " + devices + " cannot all be busy";
  }
  const OnePlace place(known);
  for (std::size_t i = 0; i < known.graph.operators().size(); ++i) {
    if (place.fits(i, nanoseconds_of(bound.time))) continue;
    bound.time = round_duration(place.least(i, nanoseconds_of(bound.time)));
    bound.why =
        "'" + known.graph.op(OperatorId(i)).name + "' has all its passes and its update in few places";
  }
  const double with_replicas =
      internal::replicated_time(known, work, shares.window, nanoseconds_of(bound.time));
  if (round_duration(with_replicas) > bound.time) {
    bound.time = round_duration(with_replicas);
    bound.why = "all work spread over " + devices + ", with the replicas that so short a step needs";
  }
  return bound;
}

// ", in micro-batches of 64 ('loss' with 128 needs more memory than any device has)"
std::string size_text(const Graph& graph, std::span<const BatchSize> sizes, std::span<const Sized> found,
                      std::size_t chosen) {
  if (sizes.size() == 1) return "";
  std::string text = ", in micro-batches of " + std::to_string(sizes[chosen].count());
  const auto large = std::find_if(found.begin(), found.end(),
                                  [](const Sized& each) { return each.without_room.has_value(); });
  if (large == found.end()) return text;
  const auto place = static_cast<std::size_t>(large - found.begin());
  return text + " ('" + graph.op(*large->without_room).name + "' with " +
         std::to_string(sizes[place].count()) + " needs more memory than any device has)";
}

// The least over the sizes. One whose work alone takes as long as the bound of another is not looked at.
std::optional<Bound> bound_of_one_size(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                                       const Training& training, Bound::Plans plans) {
  const std::vector<BatchSize>& sizes = training.micro_batches;
  std::vector<std::pair<double, std::size_t>> by_work;
  std::vector<Sized> found;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    found.push_back(sized(graph, cluster, costs, training, plans, std::span(sizes).subspan(i, 1)));
    if (found[i].known) by_work.push_back({Spread(*found[i].known).between({}), i});
  }
  std::sort(by_work.begin(), by_work.end());
  std::optional<Bound> best;
  for (const auto& [work, i] : by_work) {
    if (best && work * (1 - 1e-9) >= nanoseconds_of(best->time)) break;
    Bound bound = bound_of(*found[i].known);
    if (best && best->time <= bound.time) continue;
    best = std::move(bound);
    best->why += size_text(graph, sizes, found, i);
  }
  return best;
}

// Sizes that a plan of this batch may have.
std::vector<BatchSize> divisors(const Graph& graph, BatchSize batch) {
  std::vector<BatchSize> sizes;
  const BatchRange range = graph.batch();
  for (std::int64_t count = 1; count <= std::min(batch.count(), kMaxMicroBatches); ++count) {
    if (batch.count() % count != 0) continue;
    const BatchSize size(batch.count() / count);
    if (size >= range.min && size <= range.max) sizes.push_back(size);
  }
  return sizes;
}

}  // namespace

Bound plan_bound(const Graph& graph, const Cluster& cluster, const CostTable& costs, const Training& training,
                 Bound::Scope scope, Bound::Plans plans) {
  ESP_CHECK(scope != Bound::Scope::kTheseStages);
  Bound none{.scope = scope, .time = Duration(), .why = "nothing to do"};
  if (graph.operators().empty()) return none;
  std::optional<Bound> best;
  if (scope == Bound::Scope::kOneSize) {
    best = bound_of_one_size(graph, cluster, costs, training, plans);
  } else {
    const bool any = scope == Bound::Scope::kAnyPlan;
    const std::vector<BatchSize> sizes = any ? divisors(graph, training.batch) : training.micro_batches;
    const Sized found = sized(graph, cluster, costs, training, plans, sizes);
    if (found.known) best = bound_of(*found.known);
  }
  if (!best && plans == Bound::Plans::kThatFit) {  // none fits
    return plan_bound(graph, cluster, costs, training, scope, Bound::Plans::kAll);
  }
  if (!best) return none;
  best->scope = scope;
  return *best;
}

Bound::Scope scope_of(const PipelinePlan& plan, const Training& training) {
  bool one = true;
  for (const Stage& stage : plan.stages) {
    const std::vector<BatchSize>& offered = training.micro_batches;
    if (std::find(offered.begin(), offered.end(), stage.micro_batch) == offered.end()) {
      return Bound::Scope::kAnyPlan;
    }
    one &= stage.micro_batch == plan.stages.front().micro_batch;
  }
  return one ? Bound::Scope::kOneSize : Bound::Scope::kOfferedSizes;
}

Bound any_plan_bound(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                     const Training& training) {
  return plan_bound(graph, cluster, costs, training, Bound::Scope::kAnyPlan);
}

}  // namespace espalier
