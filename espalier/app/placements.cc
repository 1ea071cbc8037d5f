#include "espalier/app/placements.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/plan/placement_rules.h"
#include "espalier/planners/placement/placement_planner.h"
#include "espalier/planners/placement/ranks.h"
#include "espalier/schedule/order_file.h"
#include "espalier/schedule/schedule.h"

namespace espalier {
namespace {

constexpr std::string_view kPlacementPlanner = "placement";

void require_pins(const PlanningJob& job, const Placement& placement) {
  if (job.pins.empty()) return;
  const std::vector<std::optional<DeviceId>> pinned = resolve_pins(job.graph, job.pins);
  for (std::size_t i = 0; i < pinned.size(); ++i) {
    const Operator& op = job.graph.operators()[i];
    if (!pinned[i] || *pinned[i] == placement.device[i] || op.duplicable) continue;
    throw InputError(fmt::format("the placement has operator '{}' on {}, where --pin wants it on {}", op.name,
                                 job.cluster.device(placement.device[i]).name,
                                 job.cluster.device(*pinned[i]).name));
  }
}

// Throws where lists do not fit these fragments with these costs.
void require_order(const PlanningJob& job, const PipelinePlan& plan, bool is_placement,
                   const std::string& where) {
  const StagedModel staged = is_placement
                                 ? stage_placement(job.graph, job.cluster, job.costs, job.training, plan)
                                 : stage_model(job.graph, job.cluster, job.costs, job.training, plan);
  std::vector<std::string> problems;
  if (is_placement) problems = check_fragment_orders(staged, job.cluster);
  if (problems.empty()) {
    problems = check_schedule(staged, make_schedule(staged, job.cluster.devices().size()));
  }
  if (!problems.empty()) throw InputError(where + ": its order cannot run: " + problems.front());
}

// The plan on the devices of the same names; their lists as well.
PipelinePlan on_cluster(PipelinePlan plan, const Cluster& from, const Cluster& to, const std::string& path) {
  std::vector<DeviceId> moved;
  const auto other = [&](DeviceId device) {
    const std::string& name = from.device(device).name;
    const std::optional<DeviceId> found = to.find_device(name);
    if (!found) {
      throw InputError(
          fmt::format("{}: has stages on {}, and the cluster has no such device; its first is {}", path, name,
                      to.devices().front().name));
    }
    return *found;
  };
  for (Stage& stage : plan.stages) {
    for (Replica& replica : stage.replicas) {
      for (DeviceId& device : replica.devices) device = other(device);
    }
  }
  if (const OrderLists* lists = plan.orders.lists()) {
    OrderLists renamed(to.devices().size());
    for (std::size_t d = 0; d < lists->size(); ++d) {
      if (!(*lists)[d].empty()) renamed[other(DeviceId(d)).index()] = (*lists)[d];
    }
    plan.orders = Orders(std::move(renamed));
  }
  return plan;
}

bool is_plan_file(const std::string& text) {
  const std::size_t format = text.substr(0, 4096).find("\"format\"");
  return format != std::string::npos && text.substr(format, 64).find("espalier.plan/") != std::string::npos;
}

Judged judge_plan_text(const PlanningJob& job, const std::string& text, const std::string& path) {
  const PlanFile file = parse_plan_file(text, path);
  if (file.training.batch != job.training.batch) {
    throw InputError(fmt::format("{}: is a plan for a batch of {}, not {} (--batch {})", path,
                                 file.training.batch.count(), job.training.batch.count(),
                                 file.training.batch.count()));
  }
  PipelinePlan plan;
  try {
    plan = resolve_plan(file, job.graph);
  } catch (const InputError& error) {
    throw InputError(path + ": " + error.what());
  }
  plan = on_cluster(std::move(plan), Cluster(file.cluster), job.cluster, path);
  std::vector<BatchSize> sizes;
  for (const Stage& stage : plan.stages) sizes.push_back(stage.micro_batch);
  const PlanningJob sized = with_sizes(job, sizes);
  require_order(sized, plan, file.placement.has_value(), path);
  if (!file.placement) return judge(sized, plan);
  const Placement placement =
      resolve_placement(file.placement->operators, job.graph, job.cluster, path + ": placement.");
  return judge_fragments(sized, placement, std::move(plan));
}

}  // namespace

PlanningJob with_sizes(PlanningJob job, const std::vector<BatchSize>& sizes) {
  std::vector<BatchSize>& all = job.training.micro_batches;
  const std::size_t before = all.size();
  all.insert(all.end(), sizes.begin(), sizes.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  if (all.size() > before) {
    job.costs = complete_costs(job.graph, job.cluster, std::move(job.costs), all, job.training.precision);
  }
  return job;
}

Planned plan_placement(const PlanningJob& job, const Placement& placement, const ChosenOrders& schedule) {
  require_pins(job, placement);
  FragmentOptions options{job.training.largest_micro_batch(), schedule.rule, job.cluster.devices().size()};
  PipelinePlan plan = fragments_of(job.graph, placement, job.training.batch, options);
  if (schedule.for_one_plan()) {
    const StagedModel staged = stage_placement(job.graph, job.cluster, job.costs, job.training, plan);
    options.orders = orders_for(schedule, staged, job.cluster);
    plan = fragments_of(job.graph, placement, job.training.batch, options);
  }
  require_order(job, plan, true, schedule.for_one_plan() ? schedule.where() : "--placement");
  Planned planned{
      .planner = std::string(kPlacementPlanner), .outcome = {}, .judged = {}, .shortage = {}, .warnings = {}};
  planned.warnings = semantic_warnings(job.graph, plan);
  planned.judged = judge_fragments(job, placement, std::move(plan));
  planned.outcome.status = planned.judged->overflow ? Status::kInfeasible : Status::kFeasible;
  planned.outcome.plan = placement;
  return planned;
}

Planned plan_given_placement(const PlanningJob& job, const Placement& placement,
                             const ChosenOrders& schedule) {
  Planned plain = plan_placement(job, placement, schedule);
  if (!placement.orders.empty() || !schedule.is_open() || !plain.judged) return plain;
  const placement::Instance instance = placement::make_instance(
      job.graph, job.cluster, job.costs, job.training, {.micro_batch = job.training.largest_micro_batch()});
  const auto step = [&](const Judged& judged) {
    return judged.trace.iteration + placement::unmeasured_actions(judged.plan, job.cluster, job.costs);
  };
  Planned best = std::move(plain);
  for (const Placement& leveled :
       placement::with_levels(job.graph, instance, placement, placement::usual_orders(instance))) {
    Planned cut = plan_placement(job, leveled, schedule);
    if (!cut.judged || cut.judged->overflow) continue;
    const bool faster = step(*cut.judged) < step(*best.judged);
    if (faster || best.judged->overflow) best = std::move(cut);
  }
  return best;
}

Judged judge_file(const PlanningJob& job, const std::string& path) {
  const std::string text = read_file(path);
  if (is_plan_file(text)) return judge_plan_text(job, text, path);
  const PlacedByRules placed = parse_placement_file(text, path, job.graph, job.cluster);
  return judge_fragments(
      job, placed.placement,
      fragments_of(job.graph, placed.placement, job.training.batch,
                   {job.training.largest_micro_batch(), Orders(), job.cluster.devices().size()}));
}

Table placement_table(const PlanningJob& job, const Judged& judged) {
  Table table{{{"device", "device"},
               {"operators", "operators"},
               {"fragments", "fragments"},
               {"modules", "modules"},
               {"forward", "forward"},
               {"backward", "backward"},
               {"work_share", "work"},
               {"weights", "weights + opt"},
               {"sent", "sent"}},
              {}};
  struct OfDevice {
    std::vector<OperatorId> operators;
    std::int64_t fragments = 0;
    Duration forward, backward;
    Bytes weights, sent;
  };
  std::map<DeviceId, OfDevice> devices;
  Duration whole;
  for (std::size_t x = 0; x < judged.staged.stages.size(); ++x) {
    const StagedStage& stage = judged.staged.stages[x];
    const StageTimes& times = stage.replicas[0].times;
    OfDevice& of = devices[stage.replicas[0].devices[0]];
    for (const OperatorId op : judged.plan.stages[x].operators) of.operators.push_back(op);
    ++of.fragments;
    of.forward += times.forward;
    of.backward += times.backward();
    of.weights += stage.memory.parameters + stage.memory.buffers + stage.memory.gradients +
                  stage.memory.optimizer_state;
    whole += times.forward + times.backward();
  }
  for (const Span& span : judged.trace.spans) {
    if (span.kind == SpanKind::kTransfer) devices[span.device].sent += span.bytes;
  }
  for (auto& [device, of] : devices) {
    std::sort(of.operators.begin(), of.operators.end());
    of.operators.erase(std::unique(of.operators.begin(), of.operators.end()), of.operators.end());
    table.rows.push_back({job.cluster.device(device).name, static_cast<std::int64_t>(of.operators.size()),
                          of.fragments, module_text(job.graph, of.operators, 40), of.forward, of.backward,
                          Percentage{ratio(of.forward + of.backward, whole)}, of.weights, of.sent});
  }
  return table;
}

std::string placement_text(const StagedModel& fragments, std::size_t operators) {
  const std::size_t count = fragments.stages.size();
  return fmt::format("{} operator{} in {} fragment{}, depth {}", operators, operators == 1 ? "" : "s", count,
                     count == 1 ? "" : "s", pipeline_depth(fragments));
}

}  // namespace espalier
