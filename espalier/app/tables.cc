// The tables of planning.h.

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "espalier/app/comparison.h"
#include "espalier/app/planning.h"
#include "espalier/base/check.h"

namespace espalier {
namespace {

// "encoder.layers.3" → ("encoder.layers.", 3): a numbered module.
std::optional<std::pair<std::string, int>> numbered(const std::string& module) {
  const auto dot = module.rfind('.');
  const std::string last = dot == std::string::npos ? module : module.substr(dot + 1);
  if (last.empty() || last.size() > 6 || last.find_first_not_of("0123456789") != std::string::npos) return {};
  return std::pair(module.substr(0, module.size() - last.size()), std::stoi(last));
}

std::string prefix_of(const std::string& path, std::size_t parts) {
  std::size_t end = 0;
  for (std::size_t i = 0; i < parts; ++i) {
    end = path.find('.', end + (i > 0 ? 1 : 0));
    if (end == std::string::npos) return path;
  }
  return path.substr(0, end);
}

// Neighbouring modules "x.0", "x.1", "x.2" become "x.0-2".
std::string join_runs(const std::vector<std::string>& modules) {
  std::string out;
  for (std::size_t i = 0; i < modules.size();) {
    std::size_t j = i + 1;
    const auto first = numbered(modules[i]);
    while (first && j < modules.size()) {
      const auto next = numbered(modules[j]);
      if (!next || next->first != first->first || next->second != first->second + static_cast<int>(j - i))
        break;
      ++j;
    }
    out += (out.empty() ? "" : ", ") + modules[i];
    if (j - i > 1) out += '-' + std::to_string(first->second + static_cast<int>(j - i) - 1);
    i = j;
  }
  return out;
}

constexpr std::size_t kCellWidth = 40;  // of a list that people read

// The whole list where it fits, else its first item and how many more there are.
std::string short_list(const std::vector<std::string>& items, std::string_view between) {
  std::string all = fmt::format("{}", fmt::join(items, between));
  if (display_width(all) <= kCellWidth || items.size() < 3) return all;
  return fmt::format("{} and {} more", items.front(), items.size() - 1);
}

// "gpu:0 | gpu:1": replicas, each a group; where that is long and devices follow each other in the cluster,
// the first and the last group and their number: "gpu:0 … gpu:7 (8)".
std::string devices_text(const StagedStage& stage, const Cluster& cluster) {
  std::vector<std::string> names, groups;
  std::vector<DeviceId> devices;
  for (const StagedReplica& replica : stage.replicas) {
    names.clear();
    for (const DeviceId device : replica.devices) names.push_back(cluster.device(device).name);
    groups.push_back(fmt::format("{}", fmt::join(names, "+")));
    devices.insert(devices.end(), replica.devices.begin(), replica.devices.end());
  }
  const bool one_group = groups.size() == 1;
  const std::vector<std::string>& items = one_group ? names : groups;
  const std::string_view between = one_group ? "+" : " | ";
  const bool row = std::adjacent_find(devices.begin(), devices.end(), [](DeviceId a, DeviceId b) {
                     return b.index() != a.index() + 1;
                   }) == devices.end();
  const std::string all = fmt::format("{}", fmt::join(items, between));
  if (!row || items.size() < 3 || display_width(all) <= kCellWidth) return short_list(items, between);
  return fmt::format("{} {} {} ({})", items.front(), one_group ? "+…+" : "…", items.back(), items.size());
}

// "6+3+8" where it is short, else the least and the greatest: "3 to 8".
std::string short_replica_text(const std::string& all) {
  if (all.size() <= kCellWidth) return all;
  int least = std::numeric_limits<int>::max(), greatest = 0;
  for (std::size_t at = 0; at < all.size(); at = std::min(all.find('+', at), all.size() - 1) + 1) {
    const int count = std::stoi(all.substr(at));
    least = std::min(least, count);
    greatest = std::max(greatest, count);
  }
  return least == greatest ? fmt::format("{} each", least) : fmt::format("{} to {}", least, greatest);
}

Bytes per_replica_fixed(const StageMemory& memory) {
  return memory.parameters + memory.buffers + memory.gradients + memory.optimizer_state;
}

}  // namespace

std::string module_text(const Graph& graph, const std::vector<OperatorId>& operators, std::size_t width) {
  // As many parts of the module paths as fit; at least one.
  for (std::size_t parts = 3; parts >= 1; --parts) {
    std::vector<std::string> modules;
    bool outside = false;
    for (const OperatorId id : operators) {
      const Operator& op = graph.op(id);
      if (op.duplicable) continue;
      if (op.module_path.empty()) {
        outside = true;
        continue;
      }
      const std::string module = prefix_of(op.module_path, parts);
      if (std::find(modules.begin(), modules.end(), module) == modules.end()) modules.push_back(module);
    }
    std::string out = join_runs(modules);
    if (out.empty()) {
      const Operator& first = graph.op(operators.front());
      return operators.size() == 1 ? first.name : first.name + " .. " + graph.op(operators.back()).name;
    }
    if (outside) out += ", …";
    if (display_width(out) <= width) return out;
    if (parts == 1) {  // whole names as far as they fit
      const auto cut = out.rfind(", ", width > 3 ? width - 3 : 0);
      return cut == std::string::npos ? out.substr(0, out.find(", ")) + ", …" : out.substr(0, cut) + ", …";
    }
  }
  return "";
}

Table stage_table(const PlanningJob& job, const Judged& judged) {
  Table table{{{"stage", "stage"},
               {"after", "after"},
               {"devices", "devices"},
               {"modules", "modules"},
               {"operators", "operators"},
               {"forward", "forward"},
               {"backward", "backward"},
               {"work_share", "work"},
               {"in_flight", "in flight"},
               {"weights", "weights + opt"},
               {"saved", "kept per micro-batch"}},
              {}};
  const auto recomputes = [](const StagedStage& stage) {
    return stage.replicas.front().times.recompute > Duration();
  };
  const bool any_recomputes = std::ranges::any_of(judged.staged.stages, recomputes);
  if (any_recomputes) table.columns.push_back({"recomputed", "computed again"});
  Duration whole;
  const auto work_of = [](const StagedStage& stage) {
    Duration work;
    for (const StagedReplica& replica : stage.replicas) {
      work += static_cast<std::int64_t>(replica.micro_batches.size()) *
              (replica.times.forward + replica.times.recompute + replica.times.backward());
    }
    return work;
  };
  for (const StagedStage& stage : judged.staged.stages) whole += work_of(stage);
  for (std::size_t s = 0; s < judged.staged.stages.size(); ++s) {
    const StagedStage& stage = judged.staged.stages[s];
    std::vector<std::string> after;
    for (const StageId before : stage.after) after.push_back(judged.staged.stages[before.index()].name);
    const StageTimes& times = stage.replicas.front().times;
    const std::vector<OperatorId>& operators = judged.plan.stages[s].operators;
    table.rows.push_back(
        {stage.name, after.empty() ? Cell() : Cell(short_list(after, " ")), devices_text(stage, job.cluster),
         module_text(job.graph, operators, 40), static_cast<std::int64_t>(operators.size()), times.forward,
         times.backward(), Percentage{ratio(work_of(stage), whole)},
         static_cast<std::int64_t>(stage.in_flight), per_replica_fixed(stage.memory), stage.memory.saved});
    if (any_recomputes) {
      table.rows.back().push_back(recomputes(stage) ? Cell(stage.memory.recomputed) : Cell());
    }
  }
  return table;
}

Table memory_table(const Trace& trace) {
  std::vector<DeviceId> all;
  for (std::size_t d = 0; d < trace.devices.size(); ++d) all.push_back(DeviceId(d));
  return memory_table(trace, all);
}

Table memory_table(const Trace& trace, std::span<const DeviceId> devices) {
  Table table;
  table.columns.push_back({"device", "device"});
  for (std::size_t c = 0; c < kMemoryCategories; ++c) {
    const std::string name(to_text(static_cast<MemoryCategory>(c)));
    table.columns.push_back({name, name});
  }
  table.columns.insert(table.columns.end(), {{"peak", "peak"}, {"capacity", "capacity"}, {"fits", "fits"}});
  const std::vector<MemoryByCategory> peaks = peak_memory(trace);
  for (const DeviceId device : devices) {
    const std::size_t d = device.index();
    std::vector<Cell> row{trace.devices[d]};
    for (const Bytes bytes : peaks[d].bytes) row.push_back(bytes);
    row.insert(row.end(), {peaks[d].total(), trace.capacity[d], peaks[d].total() <= trace.capacity[d]});
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table comparison_table(const Comparison& comparison, TableReaders readers) {
  Table table;
  for (const char* name : {"planner", "stages", "depth", "replicas", "micro_batch", "micro_batches",
                           "iteration", "vs_best", "bubble", "peak", "fits", "estimate", "gap", "planning",
                           "states", "evaluations", "price", "price_million"}) {
    table.columns.push_back({name, name});  // what --columns takes is what people read
  }
  std::optional<Duration> best;
  if (comparison.best) best = comparison.rows[*comparison.best].iteration;
  for (const ComparedPlan& row : comparison.rows) {
    if (!row.iteration) {
      std::vector<Cell> cells(table.columns.size());
      cells[0] = row.planner;
      cells[10] = std::string(to_text(row.status));
      cells[13] = row.planning_time;
      cells[14] = static_cast<std::int64_t>(row.stats.states);
      cells[15] = static_cast<std::int64_t>(row.stats.evaluations);
      table.rows.push_back(std::move(cells));
      continue;
    }
    Cell factor;
    if (best && best->count() > 0) {
      factor = Factor{ratio(*row.iteration, *best)};
    }
    table.rows.push_back(
        {row.data_edges_only ? "  data edges only" : row.planner, static_cast<std::int64_t>(row.stages),
         static_cast<std::int64_t>(row.depth),
         readers == TableReaders::kPeople ? short_replica_text(row.replicas) : row.replicas,
         row.micro_batch.count(), static_cast<std::int64_t>(row.micro_batches), *row.iteration, factor,
         Percentage{row.bubble}, row.peak, row.fits ? "yes" : "NO",
         row.estimate ? Cell(*row.estimate) : Cell(), Percentage{row.gap},
         row.data_edges_only ? Cell() : Cell(row.planning_time),
         row.data_edges_only ? Cell() : Cell(static_cast<std::int64_t>(row.stats.states)),
         row.data_edges_only ? Cell() : Cell(static_cast<std::int64_t>(row.stats.evaluations)),
         row.price ? Cell(row.price->step) : Cell(), row.price ? Cell(row.price->million_samples) : Cell()});
  }
  return table;
}

std::vector<std::string> usual_columns(const Comparison& comparison) {
  const bool priced = std::any_of(comparison.rows.begin(), comparison.rows.end(),
                                  [](const ComparedPlan& row) { return row.price.has_value(); });
  std::vector<std::string> names;
  for (const Table::Column& column : comparison_table({}, TableReaders::kMachines).columns) {
    if (column.key == "states" || column.key == "evaluations") continue;
    if (priced || !column.key.starts_with("price")) names.push_back(column.key);
  }
  return names;
}

}  // namespace espalier
