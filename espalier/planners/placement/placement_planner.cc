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
// Fragments keep near their timeline: one that is longer than the shortest, or than the best plan's step, by
// more than this part of it is left.
constexpr std::int64_t kNotWorthCutting = 10;
// On CPUs an action takes 20 us and more when it is measured (docs/decisions.md, fragments).
constexpr Duration kUnmeasuredAction = microseconds(10);

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

// Whether a plan in one micro-batch may be faster than a step, by any of the engines.
bool is_promising(const std::vector<Engine>& engines, const Assignment& assignment,
                  std::optional<Duration> than) {
  return !than || std::any_of(engines.begin(), engines.end(), [&](const Engine& engine) {
    Scratch scratch;
    return engine.evaluate(assignment, scratch).time <= *than + *than / kNotWorthCutting;
  });
}

// Assignments as plans: as they are and cut into levels by each of some orders. The judge knows those chosen.
class FragmentJudge {
 public:
  FragmentJudge(const Problem& problem, const Instance& instance, Context& context)
      : problem_(problem), instance_(instance), chosen_(problem, context), tried_(problem, quiet_) {}

  // What the simulator says of the best that fits; of the placement as it is where none does.
  Verdict consider(const Assignment& assignment, const std::vector<DeviceOrders>& orders,
                   std::optional<Duration> estimate) {
    const Placement placement = placement_of(instance_, problem_.graph, assignment);
    std::vector<Placement> all = with_levels(problem_.graph, instance_, placement, orders);
    all.insert(all.begin(), placement);
    const Placement* chosen = &all.front();
    std::optional<Duration> least;
    for (const Placement& each : all) {
      const std::optional<Duration> step = step_of(each);
      if (!step || (least && *least <= *step)) continue;
      least = step;
      chosen = &each;
    }
    return chosen_.consider(Plan(*chosen), estimate);
  }

  std::optional<Duration> best() const { return chosen_.best(); }

  Outcome outcome() const {
    Outcome outcome = chosen_.outcome();
    outcome.stats.evaluations += tried_.evaluations();
    return outcome;
  }

 private:
  // With what its actions cost that nobody measured; nothing where it does not fit.
  std::optional<Duration> step_of(const Placement& placement) {
    const Verdict verdict = tried_.consider(Plan(placement));
    if (!verdict.fits()) return std::nullopt;
    const PipelinePlan fragments = fragments_of(problem_.graph, placement, problem_.training.batch,
                                                {problem_.training.largest_micro_batch()});
    return verdict.iteration + unmeasured_actions(fragments, problem_.cluster, problem_.costs);
  }

  const Problem& problem_;
  const Instance& instance_;
  Context quiet_;
  Judge chosen_, tried_;
};

}  // namespace

Duration unmeasured_actions(const PipelinePlan& fragments, const Cluster& cluster, const CostTable& costs) {
  std::vector<std::int64_t> actions(cluster.devices().size());
  for (const Stage& stage : fragments.stages) {
    const DeviceId device = stage.replicas[0].devices[0];
    if (costs.overhead(cluster.kind(cluster.device(device).kind).name).per_action != Duration()) continue;
    actions[device.index()] += 2 * static_cast<std::int64_t>(stage.replicas[0].micro_batches.size());
  }
  return kUnmeasuredAction * *std::max_element(actions.begin(), actions.end());
}

std::vector<Placement> with_levels(const Graph& graph, const Instance& instance, const Placement& placement,
                                   std::span<const DeviceOrders> orders) {
  std::vector<Placement> results;
  const std::optional<Assignment> assignment = assignment_of(instance, graph, placement);
  if (!assignment) return results;
  std::vector<Timeline> lines;
  Duration shortest = Duration::max();
  for (const Engine& engine : engines_by(instance, Rules(), orders)) {
    lines.push_back(timeline(engine, *assignment));
    shortest = std::min(shortest, lines.back().evaluated.time);
  }
  for (const Timeline& line : lines) {
    if (line.evaluated.time > shortest + shortest / kNotWorthCutting) continue;
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
  const BatchSize size = problem.training.largest_micro_batch();
  Instance instance =
      make_instance(problem.graph, problem.cluster, problem.costs, training, {.micro_batch = size});
  if (const std::optional<std::string> broken = keep_pins(problem, instance)) {
    return {.status = Status::kInfeasible, .why = *broken};
  }
  const std::vector<Bytes> memory = instance.memory;
  const std::vector<DeviceOrders> usual = usual_orders(instance);
  FragmentJudge judge(problem, instance, context);
  std::optional<std::string> why;  // of the first answer without an assignment
  for (const std::int64_t sixteenths : kSixteenths) {
    for (std::size_t d = 0; d < memory.size(); ++d) instance.memory[d] = memory[d] / 16 * sixteenths;
    for (int i = 0; i < kTightenings && !context.stop(); ++i) {
      const Placed placed = placer.place(
          {problem.graph, instance, options.order, options.seed, prices_of(problem.cluster), options.guide},
          context);
      if (placed.unsupported) return {.status = Status::kUnsupported, .why = placed.why};
      if (!placed.assignment) {
        if (!why) why = why_text(problem, placed);
        break;
      }
      const std::optional<Duration> estimate = size == training.batch ? placed.estimate : std::nullopt;
      std::vector<DeviceOrders> orders = usual;
      const std::vector<std::uint32_t>& own = placed.orders.priority;
      if (!own.empty() && own != usual.front().priority) orders.insert(orders.begin(), placed.orders);
      const Verdict verdict = judge.consider(*placed.assignment, orders, estimate);
      // The placer looked at operators of one micro-batch; as fragments, or in a row, others may do better.
      const std::vector<Engine> engines = engines_by(instance, Rules(), usual);
      for (const Assignment& other : placed.others) {
        if (context.stop()) break;
        if (size == training.batch && !is_promising(engines, other, judge.best())) continue;
        judge.consider(other, usual, std::nullopt);
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
