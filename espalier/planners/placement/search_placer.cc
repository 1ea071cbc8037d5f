#include "espalier/planners/placement/search_placer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "espalier/planners/placement/default_search.h"
#include "espalier/planners/placement/list_clock.h"
#include "espalier/planners/placement/objective_search.h"
#include "espalier/planners/placement/ranks.h"
#include "espalier/planners/placement/simple.h"

namespace espalier::placement {
namespace {

constexpr std::array<std::string_view, 9> kStarts = {
    "one-device", "expert", "m-etf", "m-sct", "heft", "peft", "dpos", "heft-lookahead", "multilevel"};
constexpr std::uint64_t kPartOfStarts = 4;  // of the budget, which placers that search may take
constexpr std::uint64_t kFewestLooks = 200;
constexpr std::uint64_t kObjectiveLooks = 10'000;
constexpr std::array<std::int64_t, 5> kHalvesOfMemory = {3, 4, 6, 8, 16};

}  // namespace

Placed place_in_live_memory(const PlacerInput& input, const Placer& placer, Context& context) {
  Placed placed = placer.place(input, context);
  if (placed.assignment || placed.unsupported) return placed;
  Instance roomy = input.instance;
  for (const std::int64_t halves : kHalvesOfMemory) {
    if (context.stop()) break;
    for (std::size_t d = 0; d < roomy.devices(); ++d) {
      const Bytes half(input.instance.memory[d].count() / 2);
      roomy.memory[d] = std::min(half, Bytes(Bytes::max().count() / halves)) * halves;
    }
    Placed again = placer.place({input.graph, roomy, input.order, input.seed}, context);
    if (again.assignment) return again;
  }
  return placed;
}

std::vector<Assignment> placer_starts(const PlacerInput& input, const Rules& rules, Context& context,
                                      Placed* failed) {
  std::vector<Assignment> starts;
  Context part = context;
  part.states = 0;
  part.budget.max_states = context.left() / kPartOfStarts;
  for (const std::string_view name : kStarts) {
    if (context.stop() && !starts.empty()) break;
    const Placer& placer = find_placer(name);
    Placed placed = rules.memory == Rules::Memory::kLive ? place_in_live_memory(input, placer, part)
                                                         : placer.place(input, part);
    if (placed.assignment) {
      starts.push_back(std::move(*placed.assignment));
    } else if (failed) {
      *failed = std::move(placed);
    }
  }
  context.states += std::min(part.states, part.budget.max_states);
  return starts;
}

Placed search_placer(const PlacerInput& input, const SearchPlacerOptions& options, Context& context) {
  const Instance& instance = input.instance;
  Placed failed;
  PlacementSearchOptions search{.starts = placer_starts(input, options.rules, context, &failed),
                                .levels = search_levels(instance, layers_of(instance, input.graph)),
                                .orders = usual_orders(instance),
                                .guide = input.guide,
                                .seed = input.seed};
  search.starts.insert(search.starts.end(), options.starts.begin(), options.starts.end());
  const bool any = !search.starts.empty();
  const std::uint64_t affordable = options.max_tasks / std::max<std::size_t>(1, instance.tasks());
  const std::uint64_t looks = std::clamp(affordable, kFewestLooks, std::max(kFewestLooks, options.max_looks));
  Context own = context;
  own.budget.max_states = std::min(context.budget.max_states, context.states + looks);
  Placed placed = placement_search(instance, options.rules, search, own);
  context.states = own.states;
  if (!placed.assignment && !any) return failed;
  placed.others = std::move(search.starts);
  return placed;
}

namespace {

// Of an instance's tasks those of the forward pass: also where backward operators are tasks of their own.
std::vector<char> forward_of(const PlacerInput& input) {
  std::vector<char> forward = forward_tasks(input.instance);
  for (std::size_t t = 0; t < forward.size(); ++t) {
    if (input.graph.op(input.instance.op[t]).role != OperatorRole::kForward) forward[t] = 0;
  }
  return forward;
}

std::string value_text(Objective objective, double value) {
  const std::string name = std::string(to_text(objective)) + " ";
  if (objective != Objective::kPrice) return name + to_text(Duration(static_cast<std::int64_t>(value)));
  constexpr int kDigits = 4;
  std::array<char, 32> buffer{};
  const auto [end, error] =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::general, kDigits);
  return name + std::string(buffer.data(), end) + " a step";
}

// The instance with these devices only; none where a unit may stand on none of them.
std::optional<Instance> only_on(const Instance& instance, std::span<const DeviceId> devices) {
  Instance few = instance;
  few.allowed = {};
  for (std::size_t u = 0; u < instance.units(); ++u) {
    const std::size_t before = few.allowed.items.size();
    for (const DeviceId device : instance.allowed[u]) {
      if (std::find(devices.begin(), devices.end(), device) != devices.end())
        few.allowed.items.push_back(device);
    }
    if (few.allowed.items.size() == before) return std::nullopt;
    few.allowed.close();
  }
  return few;
}

// What HEFT finds on the 2, 4, 8, … devices on which all work together costs least: moves alone hardly ever
// empty a device, and only an empty one is free.
std::vector<Assignment> starts_on_few(const PlacerInput& input, Context& context) {
  const Instance& instance = input.instance;
  std::vector<std::pair<double, DeviceId>> devices;
  for (std::size_t d = 0; d < instance.devices(); ++d) {
    double work = 0;
    for (std::size_t t = 0; t < instance.tasks(); ++t)
      work += static_cast<double>(instance.time_on(TaskId(t), DeviceId(d)).count());
    devices.emplace_back(work * input.price_per_hour[d], DeviceId(d));
  }
  std::sort(devices.begin(), devices.end());
  std::vector<DeviceId> cheapest;
  for (const auto& [cost, device] : devices) cheapest.push_back(device);
  std::vector<Assignment> starts;
  for (std::size_t count = 2; count < cheapest.size() && !context.stop(); count *= 2) {
    const std::optional<Instance> few = only_on(instance, std::span(cheapest).first(count));
    if (!few) continue;
    Placed placed = find_placer("heft").place({input.graph, *few, input.order, input.seed}, context);
    if (placed.assignment) starts.push_back(std::move(*placed.assignment));
  }
  return starts;
}

}  // namespace

Placed objective_placer(const PlacerInput& input, Objective objective, Context& context) {
  const Instance& instance = input.instance;
  const SearchPlacerOptions limits;
  if (objective == Objective::kPrice && input.price_per_hour.empty()) {
    return {.why =
                "the devices have no prices: expected price_per_hour in the cluster file, such as `kind A100 "
                "preset=A100-80GB price=2.5`",
            .unsupported = true};
  }
  Placed placed;
  std::vector<Assignment> starts = placer_starts(input, limits.rules, context, &placed);
  if (objective == Objective::kPrice) {
    for (Assignment& start : starts_on_few(input, context)) starts.push_back(std::move(start));
  }
  const ObjectiveOptions options{
      .objective = objective, .price_per_hour = input.price_per_hour, .forward = forward_of(input)};
  std::vector<DeviceOrders> orders = usual_orders(instance);
  std::vector<ObjectiveJudge> judges;
  for (const DeviceOrders& by : orders) judges.emplace_back(instance, limits.rules, by, options);
  const bool noisy = objective == Objective::kExpected || objective == Objective::kTail;
  const std::uint64_t evaluations = noisy ? options.noise.samples : 1;  // of a look, none cut off
  const std::uint64_t most = std::max(kFewestLooks, kObjectiveLooks / evaluations);
  const std::uint64_t affordable =
      limits.max_tasks / (evaluations * std::max<std::size_t>(1, instance.tasks()));
  const std::uint64_t looks = std::clamp(affordable, kFewestLooks, most);
  Context own = context;
  own.budget.max_states = std::min(context.budget.max_states, context.states + looks);
  const ObjectivePlaced found = objective_search(judges, starts, input.seed, own);
  context.states = own.states;
  if (!found.assignment) {
    if (starts.empty()) return placed;
    return {.why = found.why};
  }
  const ObjectiveBound bound = objective_bound(instance, limits.rules, options);
  placed = {.assignment = found.assignment,
            .orders = std::move(orders[found.by]),
            .why = value_text(objective, found.value.value)};
  if (bound.value > 0) placed.why += "; no placement is below " + value_text(objective, bound.value);
  placed.stats.states = placed.stats.evaluations = context.states;
  return placed;
}

}  // namespace espalier::placement
