#include "espalier/app/planning_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "espalier/app/plan_start.h"
#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/base/spelling.h"
#include "espalier/base/words.h"
#include "espalier/cluster/json.h"
#include "espalier/cluster/text.h"
#include "espalier/cost/json.h"
#include "espalier/cost/text.h"
#include "espalier/plan/placement_rules.h"

namespace espalier {
namespace {

constexpr std::int64_t kDefaultMicroBatches = 8;
constexpr std::size_t kMostSizes = 6;

bool begins_with_brace(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  return first != std::string::npos && text[first] == '{';
}

// A cluster by its short form, not `local` and not a file.
bool is_short_form(const std::string& cluster) {
  std::error_code ignored;
  return !names_local(cluster) && !std::filesystem::is_regular_file(cluster, ignored);
}

constexpr std::string_view kLocalWorkers = "local:";  // --cluster local:4
constexpr std::string_view kOwnDevices = "file:";     // --cluster file:8

// The number behind such a prefix.
std::int64_t count_behind(std::string_view prefix, const std::string& cluster, const char* of, int such) {
  try {
    return parse_integer(std::string_view(cluster).substr(prefix.size()), 1, 4096);
  } catch (const InputError&) {
    throw InputError(fmt::format("--cluster {}: expected a number of {} after '{}', such as {}{}", cluster,
                                 of, prefix, prefix, such));
  }
}

bool names_own_devices(const std::string& cluster) {
  return cluster.starts_with(kOwnDevices);
}

// So many of the model file's own devices, which are alike.
Cluster own_devices(const Imported& model, const std::string& cluster) {
  const std::int64_t count = count_behind(kOwnDevices, cluster, "devices", 8);
  if (!model.cluster) {
    throw InputError(fmt::format(
        "--cluster {}: the model's file brings no devices; expected such as local:2 or 8xV100-16GB@100Gb",
        cluster));
  }
  ClusterParts parts = model.cluster->parts();
  const Device one = parts.devices.front();
  const bool alike = std::all_of(parts.devices.begin(), parts.devices.end(), [&](const Device& each) {
    Device renamed = each;
    renamed.name = one.name;
    return renamed == one;
  });
  if (!alike || !parts.links.empty()) {
    throw InputError(fmt::format(
        "--cluster {}: the devices of the model's file are not alike; expected a cluster file", cluster));
  }
  const std::string name = one.name.substr(0, one.name.rfind(':'));
  parts.devices.clear();
  for (std::int64_t d = 0; d < count; ++d) {
    parts.devices.push_back(one);
    parts.devices.back().name = fmt::format("{}:{}", name, d);
  }
  return Cluster(std::move(parts));
}

// A placement as dnn-partitioning publishes them.
bool is_published_placement(const std::string& text, const std::string& path) {
  if (!begins_with_brace(text)) return false;
  const Json json = parse_json(text, path);
  const JsonCursor root(json, path);
  return root.has("fpgas") && root.at("fpgas").json().is_array();
}

// Rules, or a published placement.
void read_placement(const std::string& path, PlanningJob& job) {
  const std::string text = read_file(path);
  if (is_published_placement(text, path)) {
    job.placement = import_msr_placement(text, path, job.graph, job.cluster);
    const std::vector<std::string> violations = check_placement(job.graph, job.cluster, *job.placement);
    if (!violations.empty()) throw InputError(path + ": " + violations.front());
    return;
  }
  PlacedByRules placed = parse_placement_file(text, path, job.graph, job.cluster);
  job.placement = std::move(placed.placement);
  job.notes.insert(job.notes.end(), placed.notes.begin(), placed.notes.end());
}

}  // namespace

void check_micro_batch(const Graph& graph, BatchSize size) {
  const BatchRange range = graph.batch();
  if (range.min <= size && size <= range.max) return;
  throw InputError(
      fmt::format("--micro-batch {}: the model was exported for {}{}", size.count(), batch_text(range),
                  range.fixed() ? " only (export it with a dynamic batch for other sizes)" : ""));
}

namespace {

// Refuses sizes that cannot be run, naming what would be right.
void check_batch(const Graph& graph, BatchSize batch, const std::vector<BatchSize>& micro_batches) {
  if (batch < BatchSize(1)) throw InputError(fmt::format("--batch {}: expected at least 1", batch.count()));
  const BatchRange range = graph.batch();
  for (const BatchSize size : micro_batches) {
    if (size < BatchSize(1) || batch.count() % size.count() != 0) {
      throw InputError(
          fmt::format("--micro-batch {}: does not divide the batch of {}", size.count(), batch.count()));
    }
    check_micro_batch(graph, size);
  }
  if (micro_batches.empty()) {
    const std::int64_t fitting =
        std::max<std::int64_t>(batch.count() / range.min.count(), 1) * range.min.count();
    throw InputError(
        fmt::format("--batch {}: no micro-batch of {}, for which the model was exported, divides it; "
                    "--batch {} would do",
                    batch.count(), batch_text(range), fitting));
  }
}

// Where a smaller micro-batch would train something else, the whole batch is the only one.
void keep_the_batch_whole(const Graph& graph, Training& training, std::vector<std::string>& notes) {
  const std::vector<OperatorId> mixing = operators_that_need_the_whole_batch(graph);
  if (mixing.empty() || graph.batch().fixed()) return;
  const Operator& first = graph.op(mixing.front());
  const std::string where =
      fmt::format("'{}'{}", first.name, first.source.empty() ? "" : " (" + first.source + ")");
  if (graph.batch().max < training.batch) {
    throw InputError(fmt::format(
        "--batch {}: {} relates the samples of a batch to each other, and the model was exported for "
        "at most {}; --micro-batch names a smaller one, which trains something else",
        training.batch.count(), where, graph.batch().max.count()));
  }
  training.micro_batches = {training.batch};
  notes.push_back(
      fmt::format("micro-batch: the whole batch of {}, because {} relates its samples to each other "
                  "(--micro-batch names a smaller one, which trains something else)",
                  training.batch.count(), where));
}

Cluster with_rates_of(const Cluster& cluster, const Calibration& calibration) {
  ClusterParts parts = cluster.parts();
  for (DeviceKind& kind : parts.kinds) {
    kind.flops_f32 = kind.flops_f16 = calibration.flops_f32;
    kind.flops_tf32 = kind.flops_bf16 = std::nullopt;
    kind.memory_bandwidth = calibration.memory_bandwidth;
    kind.launch_overhead = calibration.launch_overhead;
  }
  return Cluster(std::move(parts));
}

// Refuses patterns that name no parameter: a misspelt one would change training in silence.
void check_patterns(const Graph& graph, const Optimizer& optimizer) {
  for (const std::string& pattern : optimizer.no_decay) {
    const bool found =
        std::any_of(graph.parameters().begin(), graph.parameters().end(), [&](const Parameter& parameter) {
          return std::any_of(parameter.names.begin(), parameter.names.end(),
                             [&](const std::string& name) { return matches_pattern(pattern, name); });
        });
    if (found) continue;
    throw InputError(fmt::format(
        "--no-decay '{}' matches no parameter{}", pattern,
        graph.parameters().empty() ? "" : fmt::format(", such as '{}'", graph.parameters()[0].names[0])));
  }
}

// Which share of a pass on the first device was never measured.
double analytic_share(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                      BatchSize micro_batch) {
  const OperatorCosts resolved(graph, cluster, costs, micro_batch);
  Duration all, analytic;
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    const OperatorCost& cost = resolved.of(OperatorId(i), cluster.devices().front().kind);
    all += cost.forward + cost.backward();
    if (cost.origin == Origin::kAnalytic) analytic += cost.forward + cost.backward();
  }
  return ratio(analytic, all);
}

// The first kind of the cluster that a table knows nothing about.
std::optional<std::string> uncovered(const CostTable& costs, const Cluster& cluster) {
  const std::vector<CostRow>& rows = costs.parts().rows;
  if (rows.empty()) return std::nullopt;
  for (const DeviceKind& kind : cluster.kinds()) {
    if (std::none_of(rows.begin(), rows.end(), [&kind](const CostRow& row) { return row.kind == kind.name; }))
      return kind.name;
  }
  return std::nullopt;
}

void warn_of_operators(const Graph& graph, std::vector<std::string>& warnings) {
  std::map<std::string, std::pair<int, const Operator*>> unknown;
  for (const Operator& op : graph.operators()) {
    if (op.known) continue;
    auto& [count, first] = unknown[op.target];
    if (count++ == 0) first = &op;
  }
  for (const auto& [target, found] : unknown) {
    warnings.push_back(
        fmt::format("operator {} is not in the operator table ({}; first '{}'{}): it is assumed to "
                    "share memory with its inputs",
                    target, found.first == 1 ? "1 use" : fmt::format("{} uses", found.first),
                    found.second->name, found.second->source.empty() ? "" : ", " + found.second->source));
  }
}

}  // namespace

std::string batch_text(const BatchRange& range) {
  constexpr std::int64_t kNoLimit = std::int64_t{1} << 20;  // what frontends write for an open range
  if (range.fixed()) return fmt::format("{} sample{}", range.min.count(), range.min.count() == 1 ? "" : "s");
  if (range.max.count() >= kNoLimit)
    return fmt::format("{} sample{} or more", range.min.count(), range.min.count() == 1 ? "" : "s");
  return fmt::format("{} to {} samples", range.min.count(), range.max.count());
}

Cluster with_measured_link(const Cluster& cluster, const MeasuredLink& link) {
  ClusterParts parts = cluster.parts();
  for (Group& group : parts.groups) {
    group.bandwidth = link.bandwidth;
    group.latency = link.latency;
    group.send = link.send;
    group.receive = link.receive;
  }
  return Cluster(std::move(parts));
}

bool names_local(const std::string& cluster) {
  return cluster == "local" || cluster.starts_with(kLocalWorkers);
}

void refuse_precision_of_costs(Precision precision, const std::string& cost_file) {
  if (precision == Precision::kF32) return;
  throw InputError(
      fmt::format("--precision {}: {} was measured in the model's own types; --precision is for the "
                  "analytic model, without --costs",
                  to_text(precision), cost_file));
}

Cluster load_cluster(const std::string& name, const LocalMachine& machine) {
  if (names_local(name)) {
    LocalMachine local = machine;
    if (name != "local") {
      const std::int64_t total = local.memory_each.count() * local.devices;
      local.devices = static_cast<int>(count_behind(kLocalWorkers, name, "workers", 2));
      local.memory_each = Bytes(total / local.devices);
    }
    return local_cluster(local);
  }
  std::error_code ignored;
  if (std::filesystem::is_regular_file(name, ignored)) {
    const std::string text = read_file(name);
    if (begins_with_brace(text)) return cluster_from_json(parse_json(text, name), name);
    try {
      return parse_cluster_lines(text);
    } catch (const InputError& error) {
      throw InputError(name + ": " + error.what());
    }
  }
  if (name.find('/') != std::string::npos || name.find(".json") != std::string::npos) {
    throw InputError(fmt::format("--cluster {}: there is no such file", name));
  }
  return parse_cluster(name);
}

CostTable load_costs(const std::string& path) {
  const std::string text = read_file(path);
  if (begins_with_brace(text)) return costs_from_json(parse_json(text, path), path);
  try {
    return parse_costs(text);
  } catch (const InputError& error) {
    throw InputError(path + ": " + error.what());
  }
}

CostTable own_costs(const Imported& model, const Cluster& cluster) {
  return model.costs ? costs_on(*model.costs, cluster) : CostTable(CostTableParts{});
}

std::vector<std::string> measurement_warnings(const std::string& costs, const MeasuredOn& measured,
                                              const std::string& machine,
                                              std::optional<std::uint32_t> threads) {
  std::vector<std::string> warnings;
  if (threads && *threads != measured.threads) {
    warnings.push_back(fmt::format("{} was measured with {} thread{} for each worker, the run will use {}",
                                   costs, measured.threads, measured.threads == 1 ? "" : "s", *threads));
  }
  if (!machine.empty() && !measured.machine.empty() && machine != measured.machine) {
    warnings.push_back(fmt::format("{} was measured on another machine: '{}', this one is '{}'", costs,
                                   measured.machine, machine));
  }
  return warnings;
}

BatchSize default_batch(const Graph& graph, std::size_t devices) {
  return std::max(kDefaultMicroBatches, static_cast<std::int64_t>(devices)) * graph.batch().min;
}

std::vector<BatchSize> default_micro_batches(const Graph& graph, BatchSize batch, std::size_t devices) {
  std::vector<BatchSize> sizes;  // descending
  std::int64_t limit = std::min(batch, graph.batch().max).count();
  while (limit >= graph.batch().min.count() && limit > 0) {
    while (limit >= graph.batch().min.count() && limit > 0 && batch.count() % limit != 0) --limit;
    if (limit < graph.batch().min.count() || limit == 0) break;
    sizes.push_back(BatchSize(limit));
    limit /= 2;
  }
  while (sizes.size() > kMostSizes) {
    const bool leaves_some_idle = batch.count() / sizes[1].count() < static_cast<std::int64_t>(devices);
    sizes.erase(leaves_some_idle ? sizes.begin() + 1 : sizes.end() - 1);
  }
  std::reverse(sizes.begin(), sizes.end());
  return sizes;
}

PlanningJob prepare_job(const JobOptions& options) {
  // Small files first: what is wrong in them is told before a large model is read.
  const bool counted = names_own_devices(options.cluster);
  const std::string name = options.cluster.empty() || counted ? "local" : options.cluster;
  std::optional<EditedPlan> start;
  if (!options.start.empty()) start = parse_edited_plan(read_file(options.start), options.start);
  const bool start_cluster = start && options.cluster.empty();
  Cluster cluster = start_cluster ? Cluster(start->file.cluster) : load_cluster(name, options.machine.local);
  const std::string cost_file =
      options.costs.empty() && start ? costs_of_start(*start, options.start) : options.costs;
  const bool given = !cost_file.empty();
  CostTable costs = given ? load_costs(cost_file) : CostTable(CostTableParts{});

  ImportOptions import = options.import;
  if (import.frozen.empty() && start) import.frozen = start->file.training.frozen;
  if (import.dims.empty() && start) import.dims = start->file.training.dims;
  Imported imported = import_file(options.model, import);
  const Precision precision =
      options.precision.value_or(start ? start->file.training.precision : Precision::kF32);
  if (given) refuse_precision_of_costs(precision, cost_file);
  if (precision != Precision::kF32) imported.graph = with_precision(imported.graph, precision);
  std::vector<std::string> notes = options.notes, warnings = imported.warnings;
  const Graph& graph = imported.graph;
  if (!start_cluster && is_short_form(name)) {
    notes.push_back(fmt::format("cluster: {} is taken to have {} (a cluster file says otherwise)", name,
                                assumed_links(name)));
  }
  const bool own_cluster = counted || (options.cluster.empty() && !start && imported.cluster);
  if (own_cluster) {
    cluster = counted ? own_devices(imported, options.cluster) : *imported.cluster;
    notes.push_back(counted
                        ? fmt::format("cluster: {} of the model file's own devices", cluster.devices().size())
                        : "cluster: the model file's own");
  }
  Pins pins;
  for (const std::string& pin : options.pins) pins.push_back(parse_pin(pin, cluster));
  resolve_pins(graph, pins);  // one that matches nothing is told before any planning
  for (const std::string& detour : pin_detours(graph, cluster, pins)) {
    warnings.push_back("--pin: " + detour);
  }
  std::vector<HandStage> stages;
  if (!options.stages.empty()) {
    if (start) throw InputError("--stages and --start: both say which stages there are; give one of them");
    stages = parse_hand_split(options.stages, graph, cluster, pins);
    const std::string unnamed = unnamed_text(stages);
    if (!unnamed.empty()) notes.push_back("stages: " + unnamed);
  }
  if (!given) costs = own_costs(imported, cluster);
  std::uint64_t cost_hash = 0;
  if (given) {
    cost_hash = costs.hash();
  } else if (imported.costs) {
    cost_hash = imported.costs->hash();
    if (const auto kind = uncovered(*imported.costs, cluster)) {
      warnings.push_back(fmt::format(
          "the model file's costs are for '{}': '{}' is taken to be as fast (speed= of a kind in a "
          "cluster file says otherwise)",
          imported.costs->parts().rows.front().kind, *kind));
    }
  }
  const bool local = start_cluster ? start->file.measured.has_value() : !own_cluster && names_local(name);
  const std::optional<Calibration>& calibration = options.machine.calibration;
  if (local && !given && !imported.costs && calibration) {
    costs = calibration->costs;
    cluster = with_rates_of(cluster, *calibration);
  }
  std::optional<MeasuredOn> measured;
  if (given && local) {
    const KindOverhead overhead = costs.overhead(cluster.kind_of(DeviceId(0)).name);
    measured = MeasuredOn{costs.parts().machine, costs.parts().threads, overhead.scatter};
    for (std::string& line :
         measurement_warnings(cost_file, *measured, options.machine.description, options.threads)) {
      warnings.push_back(std::move(line));
    }
  }
  if (local && costs.parts().link) cluster = with_measured_link(cluster, *costs.parts().link);

  Training training;
  if (start) training = start->file.training;
  const BatchSize unless_given =
      start ? training.batch : imported.batch.value_or(default_batch(graph, cluster.devices().size()));
  training.batch = options.batch.value_or(unless_given);
  if (!options.batch && !start && imported.batch) {
    notes.push_back(fmt::format("batch: the model file's own, {} (--batch)", training.batch.count()));
  } else if (!options.batch && !start) {
    const std::int64_t count = training.batch.count() / graph.batch().min.count();
    notes.push_back(fmt::format("batch: {} samples, {} micro-batches of {} (--batch)", training.batch.count(),
                                count == 8 ? "eight" : std::to_string(count), graph.batch().min.count()));
  }
  if (start && options.micro_batches.empty()) {
    training.micro_batches = sizes_of_start(start->file);
  } else if (!options.micro_batches.empty()) {
    training.micro_batches = options.micro_batches;
  } else {
    training.micro_batches = default_micro_batches(graph, training.batch, cluster.devices().size());
    keep_the_batch_whole(graph, training, notes);
  }
  std::sort(training.micro_batches.begin(), training.micro_batches.end());
  training.micro_batches.erase(std::unique(training.micro_batches.begin(), training.micro_batches.end()),
                               training.micro_batches.end());
  if (!start || options.optimizer != Optimizer()) training.optimizer = options.optimizer;
  training.precision = precision;
  training.optimizer.master_weights = precision == Precision::kBF16;
  training.frozen = import.frozen;
  training.dims = import.dims;
  check_patterns(graph, training.optimizer);
  check_batch(graph, training.batch, training.micro_batches);

  costs = complete_costs(graph, cluster, std::move(costs), training.micro_batches, precision);
  const double estimated = analytic_share(graph, cluster, costs, training.micro_batches.front());
  if (estimated > 0) {
    notes.push_back(fmt::format("costs: {:.0f} % of the time is an analytic estimate, not measured{}",
                                100 * estimated,
                                !given ? " (`espalier profile` measures; then --costs)" : ""));
    const bool half = std::any_of(graph.tensors().begin(), graph.tensors().end(), [](const Tensor& tensor) {
      return tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16;
    });
    const bool stays = half && precision != Precision::kBF16;
    notes.push_back("precision: " + precision_text(cluster, precision) +
                    (stays ? "; what is bf16 or f16 in the model stays so" : ""));
  }
  if (!graph.loss()) {
    warnings.push_back("the model has no loss output: it can be planned, not trained");
  }
  warn_of_operators(graph, warnings);

  PlanningJob job{.model = options.model,
                  .graph = std::move(imported.graph),
                  .cluster = std::move(cluster),
                  .costs = std::move(costs),
                  .training = std::move(training),
                  .pins = std::move(pins),
                  .seed = start && options.seed == 0 ? start->file.seed : options.seed,
                  .written_buffers = options.written_buffers,
                  .start = {},
                  .locked = {},
                  .stages = std::move(stages),
                  .order = options.order,
                  .cost_file = cost_file,
                  .cost_hash = cost_hash,
                  .measured = std::move(measured),
                  .analytic_share = estimated,
                  .notes = std::move(notes),
                  .warnings = std::move(warnings)};
  if (start) add_start(*start, options.start, job);
  if (!options.placement.empty()) read_placement(options.placement, job);
  return job;
}

}  // namespace espalier
