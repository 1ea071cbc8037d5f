#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>

#include "espalier/app/training_graph.h"
#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/base/spelling.h"
#include "espalier/cli/verbs.h"
#include "espalier/cluster/json.h"
#include "espalier/cost/json.h"
#include "espalier/graph/json.h"
#include "espalier/graph/text.h"
#include "espalier/report/table_json.h"
#include "espalier/zoo/task_families.h"
#include "espalier/zoo/zoo.h"

namespace espalier::cli {
namespace {

struct ZooFlags {
  std::string name;
  bool list = false;
  bool training = false;
  std::string output, costs, cluster;
  std::map<std::string, std::int64_t> values;  // of all settings, as CLI11 fills them in
  CLI::App* verb = nullptr;
};

std::set<std::string> all_settings() {
  std::set<std::string> names;
  for (const ZooModel& model : zoo_models()) {
    for (const ZooSetting& setting : model.settings) names.insert(setting.name);
  }
  for (const TaskFamily& family : task_families()) {
    for (const ZooSetting& setting : family.settings) names.insert(setting.name);
  }
  return names;
}

void add_settings(Table& table, const std::string& model, const std::vector<ZooSetting>& settings) {
  for (const ZooSetting& setting : settings) {
    table.rows.push_back(
        {model, "--" + setting.name, setting.usual, setting.least, setting.most, setting.what});
  }
}

// All models and families, or the one of this name.
int list_models(Console& console, const std::string& name) {
  Table models{{{"model", "model"}, {"what", "what"}, {"source", "source"}}, {}};
  Table families{{{"family", "family of task graphs"}, {"what", "what"}, {"source", "source"}}, {}};
  Table settings{{{"model", "model"},
                  {"setting", "setting"},
                  {"usual", "usual"},
                  {"least", "least"},
                  {"most", "most"},
                  {"what", "what"}},
                 {}};
  for (const ZooModel& model : zoo_models()) {
    if (!name.empty() && model.name != name) continue;
    models.rows.push_back({model.name, model.what, model.source});
    add_settings(settings, model.name, model.settings);
  }
  for (const TaskFamily& family : task_families()) {
    if (!name.empty() && family.name != name) continue;
    families.rows.push_back({family.name, family.what, family.source});
    add_settings(settings, family.name, family.settings);
  }
  if (console.json) {
    print_json_line(console, {{"models", espalier::to_json(models)},
                              {"families", espalier::to_json(families)},
                              {"settings", espalier::to_json(settings)}});
    return kDone;
  }
  if (!models.rows.empty()) console.out() << print_text(models) << '\n';
  if (!families.rows.empty()) console.out() << print_text(families) << '\n';
  console.out() << print_text(settings);
  return kDone;
}

std::int64_t trained_elements(const Graph& graph) {
  std::int64_t sum = 0;
  for (const Parameter& parameter : graph.parameters()) {
    if (parameter.trainable) sum += parameter.elements();
  }
  return sum;
}

// The family of that name; none: it is a model. Throws InputError where it is neither.
const TaskFamily* family_or_model(const std::string& name) {
  if (const TaskFamily* family = find_task_family(name)) return family;
  std::vector<std::string_view> names;
  for (const TaskFamily& family : task_families()) names.push_back(family.name);
  for (const ZooModel& model : zoo_models()) names.push_back(model.name);
  const auto nearest = nearest_word(name, names);
  if (nearest && find_task_family(*nearest)) {
    throw InputError("there is no model '" + name.substr(0, 40) + "' in the zoo; did you mean '" +
                     std::string(*nearest) + "'? (`espalier zoo --list` lists all)");
  }
  find_zoo_model(name);
  return nullptr;
}

int write_family(Console& console, const ZooFlags& flags, const TaskFamily& family, const ZooValues& given) {
  if (flags.training) {
    throw InputError("zoo: --training is for models; the tasks of " + family.name +
                     " have what backward passes they have");
  }
  const Imported model = build_task_family(family, given);
  const bool text = flags.output.ends_with(".txt");
  write_file_atomically(flags.output,
                        text ? print_graph(model.graph) : print_json(graph_to_json(model.graph)));
  if (!flags.costs.empty()) write_file_atomically(flags.costs, print_json(costs_to_json(*model.costs)));
  if (!flags.cluster.empty())
    write_file_atomically(flags.cluster, print_json(cluster_to_json(*model.cluster)));
  std::size_t edges = 0;
  for (std::size_t i = 0; i < model.graph.operators().size(); ++i)
    edges += model.graph.successors(OperatorId(i)).size();
  const std::size_t tasks = model.graph.operators().size(), devices = model.cluster->devices().size();
  if (console.json) {
    print_json_line(console, {{"model", model.graph.name()},
                              {"operators", tasks},
                              {"edges", edges},
                              {"devices", devices},
                              {"output", flags.output},
                              {"costs", flags.costs},
                              {"cluster", flags.cluster}});
    return kDone;
  }
  console.out() << fmt::format("{}: {} tasks, {} edges, {} devices\n", model.graph.name(), tasks, edges,
                               devices);
  for (const std::string& file : {flags.output, flags.costs, flags.cluster}) {
    if (!file.empty()) console.out() << "wrote " << file << '\n';
  }
  if (flags.costs.empty() || flags.cluster.empty())
    console.notes(
        {"--costs and --cluster write the tasks' times and the devices, which the graph does not have"});
  return kDone;
}

int zoo(Program& program, const ZooFlags& flags) {
  Console& console = program.console;
  if (flags.list) {
    if (!flags.name.empty()) family_or_model(flags.name);
    return list_models(console, flags.name);
  }
  if (flags.name.empty())
    throw InputError("zoo: expected the name of a model (`espalier zoo --list` lists all)");
  const TaskFamily* family = family_or_model(flags.name);  // what is misspelt is told first
  if (flags.output.empty())
    throw InputError("zoo: -o names the file to write, such as -o " + flags.name + ".json");
  check_outputs({{"--output", flags.output}, {"--costs", flags.costs}, {"--cluster", flags.cluster}}, {});
  ZooValues given;
  for (const auto& [name, value] : flags.values) {
    if (flags.verb->count("--" + name) > 0) given.emplace(name, value);
  }
  if (family) return write_family(console, flags, *family, given);
  if (!flags.costs.empty() || !flags.cluster.empty()) {
    throw InputError("zoo: --costs and --cluster are for families of task graphs; " + flags.name +
                     " has no times of its own");
  }
  const Graph forward = build_zoo_model(flags.name, given);
  const Graph graph = flags.training ? training_graph(forward) : forward;
  const bool text = flags.output.ends_with(".txt");
  write_file_atomically(flags.output, text ? print_graph(graph) : print_json(graph_to_json(graph)));
  std::map<OperatorRole, std::int64_t> roles;
  for (const Operator& op : graph.operators()) ++roles[op.role];
  if (console.json) {
    print_json_line(console, {{"model", graph.name()},
                              {"operators", graph.operators().size()},
                              {"forward", roles[OperatorRole::kForward]},
                              {"backward", roles[OperatorRole::kBackward]},
                              {"updates", roles[OperatorRole::kUpdate]},
                              {"parameters", trained_elements(graph)},
                              {"output", flags.output}});
    return kDone;
  }
  console.out() << fmt::format("{}: {} operators", graph.name(), graph.operators().size());
  if (flags.training) {
    console.out() << fmt::format(" ({} forward, {} backward, {} updates)", roles[OperatorRole::kForward],
                                 roles[OperatorRole::kBackward], roles[OperatorRole::kUpdate]);
  }
  console.out() << fmt::format(", {} parameters\nwrote {}\n", trained_elements(graph), flags.output);
  return kDone;
}

}  // namespace

void add_zoo(Program& program) {
  auto flags = std::make_shared<ZooFlags>();
  CLI::App* verb = add_verb(program, "zoo", "models of the literature as graphs, at any size",
                            "espalier zoo gnmt --layers 4 -o gnmt.json");
  flags->verb = verb;
  verb->add_option("model", flags->name, "see --list")->type_name("NAME");
  verb->add_flag("--list", flags->list,
                 "every model and its settings, such as --layers N; with NAME, of that one");
  for (const std::string& name : all_settings()) {  // sixty: --list tells what they are
    verb->add_option("--" + name, flags->values[name])->group("");
  }
  verb->add_flag("--training", flags->training, "with backward and update operators, for placements");
  verb->add_option("-o,--output", flags->output, "the graph to write: JSON, or text as FILE.txt")
      ->type_name("FILE");
  verb->add_option("--costs", flags->costs, "of a family of task graphs: the tasks' times to write")
      ->type_name("FILE");
  verb->add_option("--cluster", flags->cluster, "of a family of task graphs: its devices to write")
      ->type_name("FILE");
  verb->callback([&program, flags] { program.chosen = [&program, flags] { return zoo(program, *flags); }; });
}

}  // namespace espalier::cli
