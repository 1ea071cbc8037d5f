#include "espalier/app/module_table.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "espalier/base/check.h"
#include "espalier/cost/cost_table.h"
#include "espalier/graph/module_names.h"
#include "espalier/sim/stage_price.h"

namespace espalier {
namespace {

constexpr std::size_t kRuns = 10;  // of operators without modules

// The number at the end of a module's path, where its last part is one.
std::optional<std::int64_t> number_at_end(std::string_view path) {
  const std::size_t cut = path.find_last_of("./");
  const std::string_view last = cut == std::string_view::npos ? path : path.substr(cut + 1);
  if (last.empty() || last.size() > 9 || last.find_first_not_of("0123456789") != std::string_view::npos)
    return std::nullopt;
  return std::stoll(std::string(last));
}

// Of a name that ends in a number of at most nine digits; else 0.
std::size_t digits_at_end(std::string_view name) {
  const std::size_t end = name.find_last_not_of("0123456789");
  const std::size_t digits = end == std::string_view::npos ? 0 : name.size() - end - 1;
  return digits > 9 ? 0 : digits;
}

std::string_view last_part(std::string_view path) {
  const std::size_t cut = path.find_last_of("./");
  return cut == std::string_view::npos || cut == 0 ? path : path.substr(cut + 1);
}

class ModuleRowWriter {
 public:
  ModuleRowWriter(const PlanningJob& job, const ModuleRowOptions& options)
      : job_(job),
        options_(options),
        names_(job.graph),
        at_(job.training.micro_batches.front()),
        kind_(job.cluster.devices().front().kind),
        prices_(job.graph, job.cluster, job.costs, job.training),
        scratch_(StagePrices::make_scratch()) {
    const OperatorCosts costs(job.graph, job.cluster, job.costs, at_);
    for (std::size_t i = 0; i < job.graph.operators().size(); ++i) {
      const OperatorCost& cost = costs.of(OperatorId(i), kind_);
      times_.push_back(cost.forward + cost.backward());
      all_ += times_.back();
    }
    find_likeness();
  }

  ModuleRows write() {
    ModuleRows result;
    result.at = at_;
    result.device = job_.cluster.kind(kind_).name;
    if (names_.modules().empty()) return write_numbered(std::move(result));
    for (const OperatorId op : names_.without_module())
      result.without_module.push_back(job_.graph.op(op).name);
    std::vector<std::uint32_t> outer(names_.outermost().begin(), names_.outermost().end());
    std::size_t below = 0;  // levels that all have in common
    for (const std::vector<std::uint32_t>* at = &outer; at->size() == 1 && !is_leaf(at->front());) {
      const Module& only = names_.modules()[at->front()];
      ++below;
      if (!only.own.empty()) break;
      at = &only.modules;
    }
    deepest_ = options_.depth ? *options_.depth + below : std::numeric_limits<std::size_t>::max();
    const std::vector<Siblings> together(1, outer);
    add_level(together, "", 1, result.rows);
    return result;
  }

 private:
  using Siblings = std::vector<std::uint32_t>;

  // Operators by what stands before the number at the end of their names.
  ModuleRows write_numbered(ModuleRows result) {
    std::vector<std::pair<std::string, std::vector<OperatorId>>> stems;  // by first operator
    std::map<std::string, std::size_t> place;
    for (const OperatorId op : names_.without_module()) {
      const std::string& name = job_.graph.op(op).name;
      const std::string stem = name.substr(0, name.size() - digits_at_end(name));
      const auto [it, fresh] = place.emplace(stem.size() < name.size() ? stem : name, stems.size());
      if (fresh) stems.push_back({it->first, {}});
      stems[it->second].second.push_back(op);
    }
    const auto number = [&](OperatorId op) {
      const std::string& name = job_.graph.op(op).name;
      const std::size_t digits = digits_at_end(name);
      return digits == 0 ? 0 : std::stoll(name.substr(name.size() - digits));
    };
    for (const auto& entry : stems) {
      const std::string& stem = entry.first;
      const std::vector<OperatorId>& operators = entry.second;
      if (operators.size() == 1) {
        result.without_module.push_back(job_.graph.op(operators.front()).name);
        continue;
      }
      const auto add = [&](std::span<const OperatorId> some, std::size_t level) {
        const auto [least, most] = std::minmax_element(
            some.begin(), some.end(), [&](OperatorId a, OperatorId b) { return number(a) < number(b); });
        const std::string name =
            stem + "[" + std::to_string(number(*least)) + "-" + std::to_string(number(*most)) + "]";
        result.rows.push_back(row(name, level, {some.begin(), some.end()}));
        return result.rows.back().time;
      };
      const Duration all = add(operators, 1);
      const bool ascend = std::is_sorted(operators.begin(), operators.end(),
                                         [&](OperatorId a, OperatorId b) { return number(a) < number(b); });
      if (!ascend || operators.size() < 2 * kRuns) continue;
      Duration before;
      std::size_t begin = 0, run = 1;
      for (std::size_t i = 0; i < operators.size(); ++i) {
        before += times_[operators[i].index()];
        const bool last = i + 1 == operators.size();
        if (!last && ratio(before, all) * kRuns < static_cast<double>(run)) continue;
        add(std::span(operators).subspan(begin, i + 1 - begin), 2);
        begin = i + 1;
        while (ratio(before, all) * kRuns >= static_cast<double>(run) && run < kRuns) ++run;
      }
    }
    return result;
  }

  bool is_leaf(std::uint32_t module) const { return names_.modules()[module].modules.empty(); }

  // Equal numbers for modules with the same parts, operators and parameters inside.
  void find_likeness() {
    using Likeness = std::tuple<std::size_t, Bytes, std::vector<std::pair<std::string, std::size_t>>>;
    std::map<Likeness, std::size_t> seen;
    likeness_.resize(names_.modules().size());
    for (std::size_t m = likeness_.size(); m-- > 0;) {
      const Module& module = names_.modules()[m];
      Bytes parameters;
      for (const OperatorId op : module.own) {
        for (const TensorId input : job_.graph.op(op).inputs) {
          const auto parameter = job_.graph.tensor(input).parameter;
          if (parameter) parameters += job_.graph.parameter(*parameter).bytes();
        }
      }
      std::vector<std::pair<std::string, std::size_t>> inside;
      for (const std::uint32_t child : module.modules) {
        inside.emplace_back(last_part(names_.modules()[child].path), likeness_[child]);
      }
      likeness_[m] =
          seen.try_emplace({module.own.size(), parameters, std::move(inside)}, seen.size()).first->second;
    }
  }

  // Rows of modules that stand side by side. `families` has such a list for each of several alike modules,
  // whose name is `prefix`; lists are equally long and alike, place by place.
  void add_level(const std::vector<Siblings>& families, const std::string& prefix, std::size_t level,
                 std::vector<ModuleRow>& rows) {
    const Siblings& first = families.front();
    for (std::size_t begin = 0; begin < first.size();) {
      std::size_t end = begin + 1;
      while (end < first.size() && follow(first[end - 1], first[end])) ++end;
      Siblings members;
      for (const Siblings& family : families) {
        members.insert(members.end(), family.begin() + static_cast<std::ptrdiff_t>(begin),
                       family.begin() + static_cast<std::ptrdiff_t>(end));
      }
      const std::string& path = names_.modules()[first[begin]].path;
      std::string name = path;
      if (!prefix.empty()) name = prefix + separator(path) + std::string(last_part(path));
      if (end - begin > 1) name += "-" + std::string(last_part(names_.modules()[first[end - 1]].path));
      rows.push_back(row_of(name, level, members));
      const bool layers = number_at_end(path).has_value();
      const bool open = options_.depth ? level < deepest_ : !layers && rows.back().share >= 0.05;
      if (open && !is_leaf(members.front())) {
        std::vector<Siblings> inner;
        for (const std::uint32_t member : members) inner.push_back(names_.modules()[member].modules);
        add_level(inner, name, level + 1, rows);
      }
      begin = end;
    }
  }

  std::string separator(const std::string& path) const {
    const std::size_t cut = path.find_last_of("./");
    return cut == std::string::npos ? "." : path.substr(cut, 1);
  }

  // Whether two neighbours share a row.
  bool follow(std::uint32_t a, std::uint32_t b) const {
    if (options_.alike == ModuleRowOptions::Alike::kOneRowEach || likeness_[a] != likeness_[b]) return false;
    const auto x = number_at_end(names_.modules()[a].path), y = number_at_end(names_.modules()[b].path);
    return x && y && *x + 1 == *y;
  }

  ModuleRow row_of(const std::string& name, std::size_t level, const Siblings& members) {
    std::vector<OperatorId> operators;
    for (const std::uint32_t member : members) {
      const std::vector<OperatorId> inside = names_.operators_of(member);
      operators.insert(operators.end(), inside.begin(), inside.end());
    }
    std::sort(operators.begin(), operators.end());
    return row(name, level, std::move(operators));
  }

  // `operators` ascend.
  ModuleRow row(const std::string& name, std::size_t level, std::vector<OperatorId> operators) {
    ModuleRow row{.name = name, .level = level, .operators = operators.size()};
    for (const OperatorId op : operators) row.time += times_[op.index()];
    row.share = ratio(row.time, all_);
    const std::vector<OperatorRun> runs = runs_of(operators);
    const StagePrice& price = prices_.price(
        {.operators = runs, .recompute = {}, .micro_batch = at_, .kinds = std::span(&kind_, 1)}, *scratch_);
    const StageMemory& held = price.memory;
    row.parameters = held.parameters;
    row.memory = held.parameters + held.buffers + held.gradients + held.optimizer_state + held.saved +
                 std::max(held.forward_workspace, held.backward_workspace);
    for (const StagePrice::Output& output : price.outputs) {
      if (output.saved) row.memory += output.bytes;
    }
    for (const StagePrice::Received& received : price.received) {
      row.memory += prices_.tensor_bytes(received.tensor, at_, *scratch_);
    }
    return row;
  }

  const PlanningJob& job_;
  const ModuleRowOptions& options_;
  ModuleNames names_;
  BatchSize at_;
  KindId kind_;
  StagePrices prices_;
  std::unique_ptr<StagePrices::Scratch, void (*)(StagePrices::Scratch*)> scratch_;
  std::vector<Duration> times_;  // by operator
  Duration all_;
  std::vector<std::size_t> likeness_;  // by module
  std::size_t deepest_ = 0;
};

}  // namespace

ModuleRows module_rows(const PlanningJob& job, const ModuleRowOptions& options) {
  return ModuleRowWriter(job, options).write();
}

Table module_table(const ModuleRows& rows) {
  Table table{{{"module", "module"},
               {"operators", "operators"},
               {"time", "time"},
               {"share", "share"},
               {"parameters", "parameters"},
               {"memory", "memory"}},
              {}};
  for (const ModuleRow& row : rows.rows) {
    table.rows.push_back({row.name, static_cast<std::int64_t>(row.operators), row.time, Percentage{row.share},
                          row.parameters, row.memory});
  }
  return table;
}

}  // namespace espalier
