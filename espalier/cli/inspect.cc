#include "espalier/app/inspect.h"

#include <fmt/format.h>

#include <memory>

#include "espalier/app/module_table.h"
#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/base/words.h"
#include "espalier/cli/verbs.h"

namespace espalier::cli {
namespace {

std::string list(const std::vector<std::string>& items) {
  std::string out;
  for (const std::string& item : items) out += (out.empty() ? "" : ", ") + item;
  return out;
}

std::string count_text(std::int64_t count) {
  if (count >= 1'000'000'000) return fmt::format("{:.3g} billion", static_cast<double>(count) / 1e9);
  if (count >= 1'000'000) return fmt::format("{:.3g} million", static_cast<double>(count) / 1e6);
  return std::to_string(count);
}

void print(Console& console, const PlanningJob& job, const ModelSummary& s) {
  std::ostream& out = console.out();
  out << fmt::format("{}: {} operators, ", s.name, s.operators)
      << (s.opaque ? fmt::format("parameters of {}", to_text(s.parameters))
                   : fmt::format("{} parameters{} in {}", count_text(s.parameter_elements),
                                 s.frozen.count() > 0 ? " to train" : "", to_text(s.parameters)));
  if (s.frozen.count() > 0) {
    out << fmt::format(", {} frozen ones in {}", count_text(s.frozen_elements), to_text(s.frozen));
  }
  if (s.buffers.count() > 0) out << fmt::format(", buffers {}", to_text(s.buffers));
  out << '\n';
  out << "exported for " << batch_text(s.batch) << (s.training_mode ? ", train mode" : ", eval mode") << "; "
      << (s.loss.empty() ? std::string("no loss output") : "loss: output '" + s.loss + "'") << "\n\n";

  out << fmt::format("A micro-batch of {} on one {}\n", s.at.count(), s.device);
  const auto work = [&s](double flops) { return s.opaque ? "" : "  " + flop_text(flops); };
  out << fmt::format("  forward   {:>10}{}\n", to_text(s.forward), work(s.forward_flops));
  out << fmt::format("  backward  {:>10}{}\n", to_text(s.backward), work(s.backward_flops));
  out << fmt::format("  longest dependent path {} of {}: ", to_text(s.critical_path),
                     to_text(s.forward + s.backward))
      << (s.parallelism < 1.05
              ? std::string("hardly anything can run side by side")
              : fmt::format("side by side, its branches could be {:.2f} times as fast", s.parallelism))
      << '\n';
  out << fmt::format("  kept for backward {}", to_text(s.saved));
  if (!s.largest_tensor.empty()) out << "; largest tensor " << s.largest_tensor;
  out << "\n\n";

  out << "What follows what, and what can run side by side ( | ), with shares of the time\n"
      << to_text(s.outline);
  if (s.waits.count > 0) {
    out << fmt::format("  parts wait for more than they read at {} places; {}\n", s.waits.count,
                       s.waits.growth == 0
                           ? "the longest path by work stays as it is"
                           : fmt::format("the longest path by work grows by {:.2g} %", 100 * s.waits.growth));
  }
  out << '\n';
  out << print_text(kind_table(s, 15)) << '\n';
  for (const auto& names : s.ties) out << "tied parameter: " << list(names) << '\n';
  if (!s.random.empty()) out << "draw random numbers: " << list(s.random) << '\n';
  if (!s.mixing.empty()) out << "mix the samples of a batch: " << list(s.mixing) << '\n';
  if (!s.foreign.empty()) out << "not in libtorch: " << list(s.foreign) << '\n';
  if (!s.unknown.empty()) out << "not in the operator table: " << list(s.unknown) << '\n';
  if (s.foreign.empty() && s.unknown.empty()) out << "every operator is supported\n";
  out.flush();
  console.warnings(job.warnings);
  console.notes(job.notes);
}

Json outline_json(const std::vector<Outline::Section>& sections) {
  Json result = Json::array();
  for (const Outline::Section& section : sections) {
    Json branches = Json::array();
    for (const Outline::Branch& branch : section.branches) {
      Json one{{"name", branch.name}, {"share", branch.share}, {"operators", branch.operators}};
      if (!branch.sections.empty()) one["sections"] = outline_json(branch.sections);
      branches.push_back(std::move(one));
    }
    result.push_back({{"branches", std::move(branches)}, {"equal_steps", section.equal_steps}});
  }
  return result;
}

// Parts in preorder. A leaf has the names of its operators, the others the numbers of their children.
Json tree_json(const Graph& graph, const Structure& structure) {
  Json result = Json::array();
  for (std::size_t p = 0; p < structure.parts.size(); ++p) {
    const Structure::Part& part = structure.parts[p];
    Json one{{"kind", part.kind == PartKind::kLeaf     ? "leaf"
                      : part.kind == PartKind::kSeries ? "series"
                                                       : "parallel"},
             {"work", part.work.count()}};
    if (part.like != PartId(p)) one["like"] = part.like.index();
    Json list = Json::array();
    for (const PartId child : structure.children_of(PartId(p))) list.push_back(child.index());
    if (part.kind == PartKind::kLeaf) {
      for (const OperatorId op : structure.operators_of(PartId(p))) list.push_back(graph.op(op).name);
    }
    one[part.kind == PartKind::kLeaf ? "operators" : "children"] = std::move(list);
    result.push_back(std::move(one));
  }
  return result;
}

Json to_json(const PlanningJob& job, const ModelSummary& s) {
  Json inside = Json::array();
  for (const Outline::Inside& entry : s.outline.inside) {
    inside.push_back({{"branches", entry.branches}, {"count", entry.count}});
  }
  Json kinds = Json::array();
  for (const ModelSummary::Kind& kind : s.kinds) {
    kinds.push_back({{"operator", kind.name},
                     {"count", kind.count},
                     {"forward_flops", kind.forward_flops},
                     {"time_ns", kind.time.count()},
                     {"share", kind.share}});
  }
  return {{"model", s.name},
          {"batch", {{"min", s.batch.min.count()}, {"max", s.batch.max.count()}}},
          {"training_mode", s.training_mode},
          {"loss", s.loss.empty() ? Json() : Json(s.loss)},
          {"operators", s.operators},
          {"tensors", s.tensors},
          {"duplicable_operators", s.duplicable},
          {"parameters", s.parameter_elements},
          {"parameter_bytes", s.parameters.count()},
          {"frozen_parameters", s.frozen_elements},
          {"frozen_bytes", s.frozen.count()},
          {"buffer_bytes", s.buffers.count()},
          {"ties", s.ties},
          {"micro_batch", s.at.count()},
          {"device_kind", s.device},
          {"forward_flops", s.forward_flops},
          {"backward_flops", s.backward_flops},
          {"forward_ns", s.forward.count()},
          {"backward_ns", s.backward.count()},
          {"critical_path_ns", s.critical_path.count()},
          {"parallelism", s.parallelism},
          {"saved_bytes", s.saved.count()},
          {"largest_tensor", s.largest_tensor},
          {"structure", outline_json(s.outline.sections)},
          {"inside_layers", std::move(inside)},
          {"waits", {{"places", s.waits.count}, {"growth", s.waits.growth}}},
          {"carried_bytes", s.carried.count()},
          {"tree", tree_json(job.graph, s.structure)},
          {"kinds", std::move(kinds)},
          {"unknown_operators", s.unknown},
          {"foreign_operators", s.foreign},
          {"sample_mixing_operators", s.mixing},
          {"random_operators", s.random},
          {"notes", job.notes},
          {"warnings", job.warnings}};
}

struct InspectFlags {
  JobFlags job;
  std::string modules;  // the depth as typed; empty: none was
  const CLI::Option* modules_option = nullptr;
};

void print_modules(Console& console, const PlanningJob& job, const ModuleRows& modules) {
  std::ostream& out = console.out();
  out << fmt::format("{}: modules as --stages and --pin take them, a micro-batch of {} on one {}\n\n",
                     job.graph.name(), modules.at.count(), modules.device);
  out << print_text(module_table(modules));
  if (!modules.without_module.empty()) {
    constexpr std::size_t kMost = 6;
    std::vector<std::string> first = modules.without_module;
    if (first.size() > kMost) first.resize(kMost);
    out << fmt::format("\n{} operator{} without a module: {}{}\n", modules.without_module.size(),
                       modules.without_module.size() == 1 ? "" : "s", list(first),
                       first.size() < modules.without_module.size() ? ", …" : "");
  }
  out.flush();
  console.warnings(job.warnings);
  console.notes(job.notes);
}

Json modules_json(const PlanningJob& job, const ModuleRows& modules) {
  Json rows = Json::array();
  for (const ModuleRow& row : modules.rows) {
    rows.push_back({{"name", row.name},
                    {"level", row.level},
                    {"operators", row.operators},
                    {"time_ns", row.time.count()},
                    {"share", row.share},
                    {"parameter_bytes", row.parameters.count()},
                    {"memory_bytes", row.memory.count()}});
  }
  return {{"model", job.graph.name()},
          {"micro_batch", modules.at.count()},
          {"device_kind", modules.device},
          {"modules", std::move(rows)},
          {"without_module", modules.without_module},
          {"notes", job.notes},
          {"warnings", job.warnings}};
}

int inspect_modules(Program& program, const InspectFlags& flags) {
  ModuleRowOptions options;
  if (!flags.modules.empty()) {
    try {
      options.depth = static_cast<std::size_t>(parse_integer(flags.modules, 1, 1000));
    } catch (const InputError&) {
      throw InputError("--modules " + flags.modules +
                       ": expected a number of levels, such as 2, or nothing; the model stands before it");
    }
  }
  if (program.console.json) options.alike = ModuleRowOptions::Alike::kOneRowEach;
  const PlanningJob job = prepare_job(flags.job.to_options(program));
  const ModuleRows modules = module_rows(job, options);
  if (program.console.json) {
    print_json_line(program.console, modules_json(job, modules));
  } else {
    print_modules(program.console, job, modules);
  }
  return kDone;
}

}  // namespace

void add_inspect(Program& program) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* verb = add_verb(program, "inspect", "what is in a model: operators, parameters, work, branches",
                            "espalier inspect tests/fixtures/three_branch.pt2");
  flags->job.add_model(verb);
  flags->job.add_planning(verb);
  flags->modules_option =
      verb->add_option("--modules", flags->modules,
                       "the modules instead, with their share of time and memory, by the names that --stages "
                       "and --pin take; DEPTH: levels to show; default: down to the layers")
          ->type_name("[DEPTH]")
          ->expected(0, 1);
  verb->callback([&program, flags] {
    program.chosen = [&program, flags] {
      if (flags->modules_option->count() > 0) return inspect_modules(program, *flags);
      const PlanningJob job = prepare_job(flags->job.to_options(program));
      const ModelSummary summary = inspect(job);
      if (program.console.json) {
        print_json_line(program.console, to_json(job, summary));
      } else {
        print(program.console, job, summary);
      }
      return kDone;
    };
  });
}

}  // namespace espalier::cli
