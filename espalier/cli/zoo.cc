#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>

#include "espalier/app/training_graph.h"
#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/cli/verbs.h"
#include "espalier/graph/json.h"
#include "espalier/graph/text.h"
#include "espalier/report/table_json.h"
#include "espalier/zoo/zoo.h"

namespace espalier::cli {
namespace {

struct ZooFlags {
  std::string name;
  bool list = false;
  bool training = false;
  std::string output;
  std::map<std::string, std::int64_t> values;  // of all settings, as CLI11 fills them in
  CLI::App* verb = nullptr;
};

std::set<std::string> all_settings() {
  std::set<std::string> names;
  for (const ZooModel& model : zoo_models()) {
    for (const ZooSetting& setting : model.settings) names.insert(setting.name);
  }
  return names;
}

// All models, or the one of this name.
int list_models(Console& console, const std::string& name) {
  Table models{{{"model", "model"}, {"what", "what"}, {"source", "source"}}, {}};
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
    for (const ZooSetting& setting : model.settings) {
      settings.rows.push_back(
          {model.name, "--" + setting.name, setting.usual, setting.least, setting.most, setting.what});
    }
  }
  if (console.json) {
    print_json_line(console,
                    {{"models", espalier::to_json(models)}, {"settings", espalier::to_json(settings)}});
  } else {
    console.out() << print_text(models) << '\n' << print_text(settings);
  }
  return kDone;
}

std::int64_t trained_elements(const Graph& graph) {
  std::int64_t sum = 0;
  for (const Parameter& parameter : graph.parameters()) {
    if (parameter.trainable) sum += parameter.elements();
  }
  return sum;
}

int zoo(Program& program, const ZooFlags& flags) {
  Console& console = program.console;
  if (flags.list) {
    if (!flags.name.empty()) find_zoo_model(flags.name);
    return list_models(console, flags.name);
  }
  if (flags.name.empty())
    throw InputError("zoo: expected the name of a model (`espalier zoo --list` lists all)");
  find_zoo_model(flags.name);  // what is misspelt is told first
  if (flags.output.empty())
    throw InputError("zoo: -o names the file to write, such as -o " + flags.name + ".json");
  check_outputs({{"--output", flags.output}}, {});
  ZooValues given;
  for (const auto& [name, value] : flags.values) {
    if (flags.verb->count("--" + name) > 0) given.emplace(name, value);
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
  verb->callback([&program, flags] { program.chosen = [&program, flags] { return zoo(program, *flags); }; });
}

}  // namespace espalier::cli
