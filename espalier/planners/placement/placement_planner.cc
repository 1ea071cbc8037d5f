#include "espalier/planners/placement/placement_planner.h"

#include <algorithm>
#include <array>

#include "espalier/placement/levels.h"
#include "espalier/plan/fragments.h"
#include "espalier/planners/candidate.h"
#include "espalier/planners/placement/ranks.h"

namespace espalier::placement {
namespace {

// How much of a device's memory a placer is told, in sixteenths. Beyond 8 times nothing is gained: the judge
// counts parameters and their state in full as well.
constexpr std::array<std::int64_t, 6> kSixteenths = {16, 24, 32, 48, 64, 128};
constexpr int kTightenings = 4;

// Units of pinned operators may stand on their pin alone. Says which pin cannot be kept, if there is one.
std::optional<std::string> keep_pins(const Problem& problem, Instance& instance) {
  if (problem.pins.empty()) return std::nullopt;
  const std::vector<std::optional<DeviceId>> pinned = resolve_pins(problem.graph, problem.pins);
  std::vector<std::optional<DeviceId>> of_unit(instance.units());
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    const std::optional<DeviceId> device = pinned[instance.op[t].index()];
    if (!device) continue;
    std::optional<DeviceId>& known = of_unit[instance.unit[t].index()];
    const std::span<const DeviceId> allowed = instance.allowed[instance.unit[t].index()];
    const bool may = std::binary_search(allowed.begin(), allowed.end(), *device);
    if (!may || (known && *known != *device)) {
      return describe_pin(problem.graph, problem.cluster, problem.pins, instance.op[t]) +
             (may ? ": another pin wants what must stand beside it elsewhere" : ", where it cannot run");
    }
    known = device;
  }
  Lists<DeviceId> allowed;
  for (std::size_t u = 0; u < instance.units(); ++u) {
    if (of_unit[u]) {
      allowed.items.push_back(*of_unit[u]);
    } else {
      allowed.items.insert(allowed.items.end(), instance.allowed[u].begin(), instance.allowed[u].end());
    }
    allowed.close();
  }
  instance.allowed = std::move(allowed);
  return std::nullopt;
}

// By device; empty where the cluster has none.
std::vector<double> prices_of(const Cluster& cluster) {
  std::vector<double> prices;
  for (const Device& device : cluster.devices()) {
    if (device.price_per_hour) prices.push_back(*device.price_per_hour);
  }
  return prices;
}

// With the devices' names; the placer's own words where it does not say which lack memory.
std::string why_text(const Problem& problem, const Placed& placed) {
  if (placed.lacks.empty()) return placed.why;
  std::string text = "nothing fits that this placer finds: the closest lacks ";
  for (std::size_t i = 0; i < placed.lacks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + to_text(placed.lacks[i].bytes) + " on " +
            problem.cluster.device(placed.lacks[i].device).name;
  }
  return text;
}

// As it is and cut into levels by each of the orders: what the simulator says of one that fits, if any does.
Verdict consider(Judge& judge, const Problem& problem, const Instance& instance, const Assignment& assignment,
                 const std::vector<DeviceOrders>& orders, std::optional<Duration> estimate) {
  const Placement placement = placement_of(instance, problem.graph, assignment);
  Verdict verdict = judge.consider(Plan(placement), estimate);
  for (const Placement& cut : with_levels(problem.graph, instance, placement, orders)) {
    const Verdict other = judge.consider(Plan(cut), estimate);
    if (other.fits()) verdict = other;
  }
  return verdict;
}

}  // namespace

std::vector<Placement> with_levels(const Graph& graph, const Instance& instance, const Placement& placement,
                                   std::span<const DeviceOrders> orders) {
  std::vector<Placement> results;
  const std::optional<Assignment> assignment = assignment_of(instance, graph, placement);
  if (!assignment) return results;
  for (const DeviceOrders& by : orders) {
    const Timeline line = timeline(Engine(instance, Rules(), by), *assignment);
    for (const Runs runs : {Runs::kLong, Runs::kClose}) {
      std::optional<std::vector<std::uint32_t>> levels = levels_of(graph, instance, *assignment, line, runs);
      if (!levels) continue;
      Placement cut{placement.device, *std::move(levels)};
      const BatchSize whole(1);  // fragments are the same for any batch
      cut.orders = orders_of(graph, fragments_of(graph, cut, whole), instance, line);
      if (std::find(results.begin(), results.end(), cut) == results.end()) results.push_back(std::move(cut));
    }
  }
  return results;
}

Outcome plan_by_placer(const Problem& problem, const Placer& placer, const PlacementPlannerOptions& options,
                       Context& context) {
  const Training& training = problem.training;
  const BatchSize size = training.micro_batches.empty() ? training.batch : training.micro_batches.back();
  Instance instance =
      make_instance(problem.graph, problem.cluster, problem.costs, training, {.micro_batch = size});
  if (const std::optional<std::string> broken = keep_pins(problem, instance)) {
    return {.status = Status::kInfeasible, .why = *broken};
  }
  const std::vector<Bytes> memory = instance.memory;
  const std::vector<DeviceOrders> usual = usual_orders(instance);
  Judge judge(problem, context);
  std::optional<std::string> why;  // of the first answer without an assignment
  for (const std::int64_t sixteenths : kSixteenths) {
    for (std::size_t d = 0; d < memory.size(); ++d) instance.memory[d] = memory[d] / 16 * sixteenths;
    for (int i = 0; i < kTightenings && !context.stop(); ++i) {
      const Placed placed = placer.place(
          {problem.graph, instance, options.order, options.seed, prices_of(problem.cluster)}, context);
      if (placed.unsupported) return {.status = Status::kUnsupported, .why = placed.why};
      if (!placed.assignment) {
        if (!why) why = why_text(problem, placed);
        break;
      }
      const std::optional<Duration> estimate = size == training.batch ? placed.estimate : std::nullopt;
      std::vector<DeviceOrders> orders = usual;
      const std::vector<std::uint32_t>& own = placed.orders.priority;
      if (!own.empty() && own != usual.front().priority) orders.insert(orders.begin(), placed.orders);
      const Verdict verdict = consider(judge, problem, instance, *placed.assignment, orders, estimate);
      // The placer looked at operators of one micro-batch; as fragments, or in a row, others may do better.
      for (const Assignment& other : placed.others) {
        if (context.stop()) break;
        consider(judge, problem, instance, other, usual, std::nullopt);
      }
      if (verdict.ruling != Verdict::Ruling::kTooMuchMemory) {
        Outcome outcome = judge.outcome();
        if (outcome.status == Status::kFeasible && outcome.why.empty()) outcome.why = placed.why;
        return outcome;
      }
      for (const Excess& excess : verdict.excess) {
        Bytes& told = instance.memory[excess.device.index()];
        told = std::max(Bytes(), told - Bytes(excess.by.count() / 16 * sixteenths + 1));
      }
    }
  }
  Outcome outcome = judge.outcome();
  if (outcome.status == Status::kInfeasible && !outcome.closest && why) outcome.why = *why;
  return outcome;
}

}  // namespace espalier::placement
