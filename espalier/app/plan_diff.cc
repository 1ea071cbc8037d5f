#include "espalier/app/plan_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "espalier/base/check.h"
#include "espalier/cost/training_times.h"

namespace espalier {
namespace {

std::string devices_of(const Stage& stage, const Cluster& cluster) {
  std::string out;
  for (const Replica& replica : stage.replicas) {
    std::string group;
    for (const DeviceId device : replica.devices)
      group += (group.empty() ? "" : "+") + cluster.device(device).name;
    out += (out.empty() ? "" : " | ") + group;
  }
  return out;
}

// Where each operator stands: "head on cpu:1", of a device alone "cpu:1"; a duplicable one may stand in
// several.
enum class Place : std::uint8_t { kStageAndDevice, kDevice };
std::vector<std::string> places(const PipelinePlan& plan, const Graph& graph, const Cluster& cluster,
                                Place what) {
  std::vector<std::vector<std::string>> found(graph.operators().size());
  for (const Stage& stage : plan.stages) {
    const std::string on = devices_of(stage, cluster);
    for (const OperatorId op : stage.operators) {
      found[op.index()].push_back(what == Place::kDevice ? on : stage.name + " on " + on);
    }
  }
  std::vector<std::string> result;
  for (std::vector<std::string>& all : found) {
    if (what == Place::kDevice) {
      std::sort(all.begin(), all.end());
      all.erase(std::unique(all.begin(), all.end()), all.end());
    }
    result.push_back(fmt::format("{}", fmt::join(all, ", ")));
  }
  return result;
}

PipelinePlan resolve(const OpenedPlan& opened, const Graph& graph) {
  try {
    return resolve_plan(opened.file, graph);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{} and its model {}: {}", opened.path, opened.model, error.what()));
  }
}

class Settings {
 public:
  explicit Settings(std::vector<std::string>& out) : out_(out) {}
  void compare(const std::string& what, const std::string& a, const std::string& b) {
    if (a != b) out_.push_back(fmt::format("{}: {} in a, {} in b", what, a, b));
  }

 private:
  std::vector<std::string>& out_;
};

// Of a device: its steps, each by name, and all of them as people write them.
struct NamedOrder {
  std::vector<std::string> steps;
  std::string text;
};

std::map<std::string, NamedOrder> named_orders(const OpenedPlan& plan) {
  const OrderNames names = order_names(plan.file.staged, plan.cluster);
  const OrderLists all = lists_of(plan.file.staged, plan.schedule);
  std::map<std::string, NamedOrder> result;
  for (std::size_t d = 0; d < all.size(); ++d) {
    if (all[d].empty()) continue;
    NamedOrder& of = result[names.devices[d]];
    for (const Step& step : all[d]) of.steps.push_back(print_order({step}, DeviceId(d), names));
    of.text = print_order(all[d], DeviceId(d), names);
  }
  return result;
}

// Where two orders part that are too long to be read whole.
std::string parting_text(const NamedOrder& a, const NamedOrder& b) {
  const auto [in_a, in_b] = std::mismatch(a.steps.begin(), a.steps.end(), b.steps.begin(), b.steps.end());
  const std::string first = in_a == a.steps.end() ? "the end" : *in_a;
  const std::string other = in_b == b.steps.end() ? "the end" : *in_b;
  return fmt::format("the same for {} of {} steps, then {} in a, {} in b", in_a - a.steps.begin(),
                     a.steps.size(), first, other);
}

// Lines for devices whose lists differ; stages go by name.
void compare_orders(const OpenedPlan& a, const OpenedPlan& b, std::vector<std::string>& out) {
  constexpr std::size_t kReadable = 200;  // characters
  const std::map<std::string, NamedOrder> in_a = named_orders(a), in_b = named_orders(b);
  for (const auto& [device, order] : in_a) {
    const auto found = in_b.find(device);
    if (found == in_b.end() || found->second.steps == order.steps) continue;
    const NamedOrder& other = found->second;
    const bool readable = std::max(order.text.size(), other.text.size()) <= kReadable;
    out.push_back(device + ": " +
                  (readable ? order.text + " in a, " + other.text + " in b" : parting_text(order, other)));
  }
}

std::string after_text(const PipelinePlan& plan, const Stage& stage) {
  std::string out;
  for (const StageId before : stage.after) out += (out.empty() ? "" : " ") + plan.stages[before.index()].name;
  return out.empty() ? "nothing" : out;
}

// Devices by name, those of a first.
class StandingMaker {
 public:
  explicit StandingMaker(const Graph& graph) : operators_(graph.operators().size()) {}

  std::vector<std::vector<std::uint32_t>> of(const PipelinePlan& plan, const Cluster& cluster) {
    std::vector<std::uint32_t> numbers;
    for (const Device& device : cluster.devices()) {
      const auto [at, added] = numbers_.emplace(device.name, narrow(result.names.size()));
      if (added) {
        result.names.push_back(device.name);
        result.kinds.push_back(cluster.kind(device.kind).name);
      }
      numbers.push_back(at->second);
    }
    std::vector<std::vector<std::uint32_t>> devices(operators_);
    for (const Stage& stage : plan.stages) {
      for (const OperatorId op : stage.operators) {
        for (const Replica& replica : stage.replicas) {
          for (const DeviceId device : replica.devices)
            devices[op.index()].push_back(numbers[device.index()]);
        }
      }
    }
    for (std::vector<std::uint32_t>& all : devices) {
      std::sort(all.begin(), all.end());
      all.erase(std::unique(all.begin(), all.end()), all.end());
    }
    return devices;
  }

  Standing result;

 private:
  std::size_t operators_;
  std::map<std::string, std::uint32_t> numbers_;
};

// By operator: on the first device that it stands on.
std::vector<Duration> work_of(const OpenedPlan& opened, const PipelinePlan& plan, const Graph& graph,
                              const CostTable& costs) {
  std::vector<std::optional<KindId>> kind_of(graph.operators().size());
  std::set<KindId> kinds;
  for (const Stage& stage : plan.stages) {
    const KindId kind = opened.cluster.device(stage.replicas.front().devices.front()).kind;
    kinds.insert(kind);
    for (const OperatorId op : stage.operators) {
      if (!kind_of[op.index()]) kind_of[op.index()] = kind;
    }
  }
  std::vector<Duration> work(graph.operators().size());
  for (const KindId kind : kinds) {
    const KindCosts of_kind(graph, opened.cluster.kind(kind), costs, work_size(opened));
    const std::vector<Duration> times =
        operator_durations(graph, opened.cluster, costs, of_kind, kind, opened.file.training.optimizer.kind);
    for (std::size_t i = 0; i < work.size(); ++i) {
      if (kind_of[i] == kind) work[i] = times[i];
    }
  }
  return work;
}

Bytes bytes_sent(const Trace& trace) {
  Bytes sent;
  for (const Span& span : trace.spans) {
    if (span.kind == SpanKind::kTransfer) sent += span.bytes;
  }
  return sent;
}

std::vector<PlanDifference::Memory> memory_of_both(const OpenedPlan& a, const OpenedPlan& b) {
  std::vector<PlanDifference::Memory> result;
  std::map<std::string, std::size_t> at;
  const auto row = [&](const std::string& device) -> PlanDifference::Memory& {
    const auto [found, added] = at.emplace(device, result.size());
    if (added) result.push_back({device, {}, {}});
    return result[found->second];
  };
  const std::vector<MemoryByCategory> peaks_a = peak_memory(a.trace), peaks_b = peak_memory(b.trace);
  for (std::size_t d = 0; d < peaks_a.size(); ++d) row(a.trace.devices[d]).a = peaks_a[d].total();
  for (std::size_t d = 0; d < peaks_b.size(); ++d) row(b.trace.devices[d]).b = peaks_b[d].total();
  result.erase(
      std::remove_if(result.begin(), result.end(),
                     [](const PlanDifference::Memory& m) { return m.a == Bytes() && m.b == Bytes(); }),
      result.end());
  return result;
}

struct ResolvedPlan {
  const OpenedPlan& opened;
  const PipelinePlan& plan;
};

std::optional<MovedWork> work_between(const ResolvedPlan& a, const ResolvedPlan& b, const Graph& graph,
                                      const CostTable& costs) {
  StandingMaker maker(graph);
  maker.result.a = maker.of(a.plan, a.opened.cluster);
  maker.result.b = maker.of(b.plan, b.opened.cluster);
  if (maker.result.a == maker.result.b) return std::nullopt;
  return moved_work(graph, maker.result, work_of(a.opened, a.plan, graph, costs));
}

}  // namespace

BatchSize work_size(const OpenedPlan& opened) {
  return opened.file.placement ? opened.file.placement->micro_batch : opened.file.stages.front().micro_batch;
}

PlanDifference diff_plans(const OpenedPlan& a, const OpenedPlan& b, const Graph& graph,
                          const CostTable* costs) {
  if (a.file.fingerprint != b.file.fingerprint) {
    throw InputError(fmt::format("{} and {} are plans of different models", a.path, b.path));
  }
  const PipelinePlan plan_a = resolve(a, graph), plan_b = resolve(b, graph);
  PlanDifference result;
  result.iteration_a = a.trace.iteration;
  result.iteration_b = b.trace.iteration;

  Settings settings(result.settings);
  settings.compare("planner", a.file.planner, b.file.planner);
  settings.compare("batch", std::to_string(plan_a.batch.count()), std::to_string(plan_b.batch.count()));
  settings.compare("schedule", to_text(plan_a.orders), to_text(plan_b.orders));
  settings.compare("stage edges", std::string(to_text(plan_a.tokens)), std::string(to_text(plan_b.tokens)));
  settings.compare("optimizer", std::string(to_text(a.file.training.optimizer.kind)),
                   std::string(to_text(b.file.training.optimizer.kind)));
  settings.compare("learning rate", fmt::format("{:g}", a.file.training.optimizer.learning_rate),
                   fmt::format("{:g}", b.file.training.optimizer.learning_rate));
  settings.compare("seed", std::to_string(a.file.seed), std::to_string(b.file.seed));
  settings.compare("costs", a.file.cost_file.empty() ? "none given" : a.file.cost_file,
                   b.file.cost_file.empty() ? "none given" : b.file.cost_file);
  if (a.file.cluster != b.file.cluster) result.settings.push_back("cluster: not the same");

  result.messages_a = bytes_sent(a.trace);
  result.messages_b = bytes_sent(b.trace);
  result.memory = memory_of_both(a, b);
  if (costs) result.work = work_between({a, plan_a}, {b, plan_b}, graph, *costs);

  const bool placement_a = a.file.placement.has_value(), placement_b = b.file.placement.has_value();
  const auto kind = [](bool placement) { return std::string(placement ? "a placement" : "stages"); };
  settings.compare("plan", kind(placement_a), kind(placement_b));
  const bool placement = placement_a || placement_b;
  if (placement_a && placement_b) {
    settings.compare("micro-batch", std::to_string(a.file.placement->micro_batch.count()),
                     std::to_string(b.file.placement->micro_batch.count()));
  }
  const Place what = placement ? Place::kDevice : Place::kStageAndDevice;
  const std::vector<std::string> places_a = places(plan_a, graph, a.cluster, what);
  const std::vector<std::string> places_b = places(plan_b, graph, b.cluster, what);
  for (std::size_t i = 0; i < places_a.size();) {
    std::size_t j = i + 1;
    while (j < places_a.size() && places_a[j] == places_a[i] && places_b[j] == places_b[i]) ++j;
    if (places_a[i] != places_b[i]) {
      const std::string& first = graph.op(OperatorId(i)).name;
      result.moved.push_back({j - i == 1 ? first : first + " .. " + graph.op(OperatorId(j - 1)).name, j - i,
                              places_a[i], places_b[i]});
    }
    i = j;
  }

  if (placement) {  // fragments follow from where operators stand; so do their orders, unless they are given
    if (plan_a.orders.lists() && plan_b.orders.lists()) compare_orders(a, b, result.orders);
    return result;
  }
  std::map<std::string, const Stage*> by_name;
  for (const Stage& stage : plan_b.stages) by_name[stage.name] = &stage;
  Settings stages(result.stages);
  for (const Stage& stage : plan_a.stages) {
    const auto found = by_name.find(stage.name);
    if (found == by_name.end()) continue;  // its operators moved: said above
    const Stage& other = *found->second;
    stages.compare(stage.name + ": micro-batch", std::to_string(stage.micro_batch.count()),
                   std::to_string(other.micro_batch.count()));
    stages.compare(stage.name + ": in flight", std::to_string(stage.in_flight),
                   std::to_string(other.in_flight));
    stages.compare(stage.name + ": after", after_text(plan_a, stage), after_text(plan_b, other));
    stages.compare(stage.name + ": recomputed operators", std::to_string(stage.recompute.size()),
                   std::to_string(other.recompute.size()));
  }
  compare_orders(a, b, result.orders);
  return result;
}

}  // namespace espalier
