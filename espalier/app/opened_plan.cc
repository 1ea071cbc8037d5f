#include "espalier/app/opened_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/frontend/zip.h"
#include "espalier/plan/fragments.h"
#include "espalier/planners/placement/ranks.h"
#include "espalier/report/placement_picture.h"
#include "espalier/schedule/order_file.h"
#include "espalier/schedule/pytorch_csv.h"
#include "espalier/sim/expected.h"
#include "espalier/sim/simulate.h"

namespace espalier {

namespace fs = std::filesystem;

OpenedPlan open_plan(const std::string& path) {
  const std::string text = read_file(path);
  if (is_archive(text)) {
    throw InputError(path + ": is an archive, not a plan; `espalier plan` makes a plan of a model");
  }
  PlanFile file = parse_plan_file(text, path);
  Cluster cluster(file.cluster);
  Schedule schedule = schedule_of(file, path);
  Trace trace = simulate(file.staged, cluster, schedule);
  Bound stages = stages_bound(file.staged, cluster);
  std::string model;
  if (!file.model.empty()) model = (fs::path(path).parent_path() / file.model).lexically_normal().string();
  return OpenedPlan{.file = std::move(file),
                    .path = path,
                    .model = std::move(model),
                    .cluster = std::move(cluster),
                    .schedule = std::move(schedule),
                    .trace = std::move(trace),
                    .stages_bound = std::move(stages)};
}

Duration OpenedPlan::expected() const {
  return file.measured ? expected_iteration(file.staged, cluster, schedule, file.measured->scatter)
                       : trace.iteration;
}

std::vector<std::string> device_kind_warnings(const OpenedPlan& opened, const Machine& machine) {
  std::map<std::string, std::set<DeviceId>> elsewhere;  // devices by kind
  for (const StagedStage& stage : opened.file.staged.stages) {
    for (const StagedReplica& replica : stage.replicas) {
      for (const DeviceId device : replica.devices) {
        const std::string& kind = opened.cluster.kind_of(device).name;
        const bool here = machine.runs_on == "cuda" ? kind != "cpu" : kind == machine.runs_on;
        if (!here) elsewhere[kind].insert(device);
      }
    }
  }
  if (elsewhere.empty()) return {};
  std::string kinds;
  for (const auto& [kind, devices] : elsewhere) {
    kinds += fmt::format("{}{} x {}", kinds.empty() ? "" : " and ", devices.size(), kind);
  }
  return {
      fmt::format("{} is a plan for {}, but this runs on {}: it computes the same, and the predicted time "
                  "says nothing about it",
                  opened.path, kinds, machine.runs_on)};
}

OpenedPlan with_orders(const OpenedPlan& opened, const ChosenOrders& orders) {
  OpenedPlan again = opened;
  Orders chosen = orders_for(orders, opened.file.staged, opened.cluster);
  const std::string where = orders.where();
  again.file.staged = with_orders(std::move(again.file.staged), std::move(chosen));
  again.file.expansion.reset();
  std::vector<std::string> problems = check_staged_model(again.file.staged, again.cluster);
  if (!problems.empty()) throw InputError(where + ": " + problems.front());
  again.schedule = make_schedule(again.file.staged, again.cluster.devices().size());
  if (again.file.placement) problems = check_fragment_orders(again.file.staged, again.cluster);
  if (problems.empty()) problems = check_schedule(again.file.staged, again.schedule);
  if (!problems.empty()) throw InputError(where + ": " + problems.front());
  again.trace = simulate(again.file.staged, again.cluster, again.schedule);
  again.stages_bound = stages_bound(again.file.staged, again.cluster);
  return again;
}

std::string orders_text(const OpenedPlan& opened, const std::string& path) {
  const StagedModel& model = opened.file.staged;
  if (fs::path(path).extension() == ".csv") return print_pytorch_csv(model, opened.schedule);
  return print_order_lists(lists_of(model, opened.schedule), order_names(model, opened.cluster));
}

ImportOptions as_planned(const OpenedPlan& opened) {
  return {.frozen = opened.file.training.frozen, .dims = opened.file.training.dims};
}

OpenedPlan with_costs(const OpenedPlan& opened, const std::string& cost_file) {
  std::error_code ignored;
  if (opened.model.empty() || !fs::exists(opened.model, ignored)) {
    throw InputError(opened.path + ": other costs need the model, which is not at '" + opened.model + "'");
  }
  refuse_precision_of_costs(opened.file.training.precision, cost_file);
  const Imported imported = import_file(opened.model, as_planned(opened));
  const PipelinePlan plan = resolve_plan(opened.file, imported.graph);
  CostTable costs = load_costs(cost_file);
  const std::vector<CostRow>& rows = costs.parts().rows;
  const auto known = [&](const DeviceKind& kind) {
    return std::any_of(rows.begin(), rows.end(), [&](const CostRow& row) { return row.kind == kind.name; });
  };
  if (std::none_of(opened.cluster.kinds().begin(), opened.cluster.kinds().end(), known)) {
    throw InputError(fmt::format("{}: has no costs for '{}', on which {} runs", cost_file,
                                 opened.cluster.kinds().front().name, opened.path));
  }
  OpenedPlan again = opened;
  again.file.cost_file = path_from(fs::path(opened.path).parent_path().string(), cost_file);
  again.file.cost_hash = costs.hash();
  again.file.measured.reset();
  const bool one_host = opened.cluster.groups().size() == 1;
  if (one_host && costs.parts().link) {
    const KindOverhead overhead = costs.overhead(opened.cluster.kinds().front().name);
    again.file.measured = MeasuredOn{costs.parts().machine, costs.parts().threads, overhead.scatter};
    again.cluster = with_measured_link(opened.cluster, *costs.parts().link);
    again.file.cluster = again.cluster.parts();
  }
  std::vector<BatchSize> sizes = opened.file.training.micro_batches;
  for (const Stage& stage : plan.stages) sizes.push_back(stage.micro_batch);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  costs = complete_costs(imported.graph, again.cluster, std::move(costs), sizes);
  const Training& training = opened.file.training;
  again.file.staged = opened.file.placement
                          ? stage_placement(imported.graph, again.cluster, costs, training, plan)
                          : stage_model(imported.graph, again.cluster, costs, training, plan);
  // The same orders, though what recomputes or updates depends on costs.
  StagedModel listed = again.file.staged;
  listed.orders = Orders(lists_of(opened.file.staged, opened.schedule));
  again.schedule = make_schedule(listed, again.cluster.devices().size());
  const std::vector<std::string> problems = check_schedule(again.file.staged, again.schedule);
  if (!problems.empty()) {
    throw InputError(fmt::format("{}: with the costs of {} its orders cannot run: {}", opened.path, cost_file,
                                 problems.front()));
  }
  again.file.expansion.reset();
  again.trace = simulate(again.file.staged, again.cluster, again.schedule);
  again.stages_bound = stages_bound(again.file.staged, again.cluster);
  return again;
}

std::variant<ModelAndCosts, std::string> model_and_costs(const OpenedPlan& opened, const std::string& who,
                                                         const std::vector<BatchSize>& sizes) {
  std::error_code ignored;
  if (opened.model.empty() || !fs::exists(opened.model, ignored)) {
    return who + " needs the model, which is not at '" + opened.model + "'";
  }
  try {
    ImportOptions options = as_planned(opened);
    Imported imported = import_file(opened.model, options);
    if (opened.file.cost_file.empty() && imported.costs && imported.costs->hash() != opened.file.cost_hash) {
      options.repair = Repair::kLiteral;
      imported = import_file(opened.model, options);
    }
    const Precision precision = opened.file.training.precision;
    imported.graph = with_precision(imported.graph, precision);
    if (imported.graph.fingerprint() != opened.file.fingerprint) {
      return who + " needs the model; '" + opened.model + "' has changed since";
    }
    const std::string& cost_file = opened.file.cost_file;
    CostTable costs = own_costs(imported, opened.cluster);
    if (!cost_file.empty()) costs = load_costs((fs::path(opened.path).parent_path() / cost_file).string());
    const bool changed = !cost_file.empty()
                             ? costs.hash() != opened.file.cost_hash
                             : imported.costs && imported.costs->hash() != opened.file.cost_hash;
    if (changed) {
      return who + " needs the costs; '" + (cost_file.empty() ? opened.model : cost_file) +
             "' has changed since";
    }
    costs = complete_costs(imported.graph, opened.cluster, std::move(costs), sizes, precision);
    return ModelAndCosts{std::move(imported.graph), std::move(costs)};
  } catch (const InputError& error) {
    return who + " needs the model: " + error.what();
  }
}

bool fits(const Trace& trace) {
  const std::vector<MemoryByCategory> peaks = peak_memory(trace);
  for (std::size_t d = 0; d < peaks.size(); ++d) {
    if (peaks[d].total() > trace.capacity[d]) return false;
  }
  return true;
}

BoundOrReason any_plan_bound(const OpenedPlan& opened) {
  const std::string who = "the bound for any plan";
  const Training& training = opened.file.training;
  const auto found = model_and_costs(opened, who, training.micro_batches);
  if (const auto* why = std::get_if<std::string>(&found)) return {{}, *why};
  const auto& [graph, costs] = std::get<ModelAndCosts>(found);
  try {
    const Bound::Scope scope = scope_of(resolve_plan(opened.file, graph), training);
    const Bound::Plans plans = fits(opened.trace) ? Bound::Plans::kThatFit : Bound::Plans::kAll;
    return {plan_bound(graph, opened.cluster, costs, training, scope, plans), ""};
  } catch (const InputError& error) {
    return {{}, who + " needs the model: " + error.what()};
  }
}

std::optional<OperatorPictures> operator_pictures(const PlacedOperators& placed,
                                                  const OperatorPictureOptions& options) {
  const placement::Instance instance = placement::make_instance(
      placed.graph, placed.cluster, placed.costs, placed.training, {.micro_batch = placed.micro_batch});
  const std::optional<placement::Assignment> assignment =
      placement::assignment_of(instance, placed.graph, placed.placement);
  if (!assignment) return std::nullopt;
  const placement::Rules rules;
  std::optional<placement::Timeline> best;  // devices run by what is faster, as plans are made
  for (const placement::Engine& engine :
       placement::engines_by(instance, rules, placement::usual_orders(instance))) {
    placement::Timeline line = placement::timeline(engine, *assignment);
    if (!best || line.evaluated.time < best->evaluated.time) best = std::move(line);
  }
  const placement::Timeline& line = *best;
  const PlacementPicture picture{placed.graph, placed.cluster, instance,    rules,
                                 *assignment,  line,           placed.title};
  OperatorPictures result;
  result.step = line.evaluated.time;
  if (options.chrome) result.chrome = chrome_placement(picture);
  if (options.svg) result.svg = svg_placement(picture);
  if (options.gantt) result.gantt = text_placement(picture, *options.gantt);
  return result;
}

std::variant<OperatorPictures, std::string> operator_pictures(const OpenedPlan& opened,
                                                              const OperatorPictureOptions& options) {
  if (!opened.file.placement) {
    return opened.path +
           ": has stages; pictures of single operators are of placements, which `espalier plan "
           "--planner m-etf` makes, for example";
  }
  const BatchSize size = opened.file.placement->micro_batch;
  const auto found = model_and_costs(opened, opened.path + ": a picture of single operators", {size});
  if (const auto* why = std::get_if<std::string>(&found)) return *why;
  const auto& [graph, costs] = std::get<ModelAndCosts>(found);
  const Placement placement = resolve_placement(opened.file.placement->operators, graph, opened.cluster,
                                                opened.path + ": placement.");
  std::optional<OperatorPictures> pictures =
      operator_pictures({graph, opened.cluster, costs, opened.file.training, placement, size,
                         opened.file.planner + ", " + opened.path},
                        options);
  if (pictures) return *std::move(pictures);
  return opened.path +
         ": its placement divides operators that must stand together, so no single step can be drawn";
}

namespace {

// Forward passes by level, then backward passes.
bool is_forward_and_back(const std::vector<Step>& list) {
  const auto back = std::find_if(list.begin(), list.end(),
                                 [](const Step& step) { return step.kind != ActionKind::kForward; });
  const auto later = [](const Step& a, const Step& b) { return a.target() >= b.target(); };
  return std::adjacent_find(list.begin(), back, later) == back &&
         std::all_of(back, list.end(), [](const Step& step) { return step.kind == ActionKind::kBackward; });
}

}  // namespace

bool is_one_pass(const StagedModel& fragments) {
  const OrderLists* lists = fragments.orders.lists();
  const bool simple = !lists || std::all_of(lists->begin(), lists->end(), is_forward_and_back);
  return simple && fragments.stages.front().micro_batches == 1;
}

}  // namespace espalier
