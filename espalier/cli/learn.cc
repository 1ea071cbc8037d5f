#include <fmt/format.h>

#include <array>
#include <memory>

#include "espalier/base/check.h"
#include "espalier/cli/runtime_verbs.h"

namespace espalier::cli {
namespace {

// Which actions take an option. Those that are not here are of the model that finetune and apply read.
struct TakenBy {
  std::string_view option, actions;
};
constexpr std::string_view kOfModel = "finetune and apply";
constexpr std::array kTakenBy = {
    TakenBy{"action", ""},
    TakenBy{"--help", ""},
    TakenBy{"--json", ""},
    TakenBy{"--no-color", ""},
    TakenBy{"model", "finetune, apply and curve"},
    TakenBy{"others", "finetune"},
    TakenBy{"--jobs", "pretrain, finetune, apply, guide, proposals and relocation"},
    TakenBy{"--seed", "pretrain, finetune, apply, guide, proposals and relocation"},
    TakenBy{"--device", "pretrain, finetune and apply"},
    TakenBy{"--policy", kOfModel},
    TakenBy{"--contrast", "pretrain and finetune"},
    TakenBy{"--updates", "pretrain, finetune, guide, proposals and relocation"},
    TakenBy{"--checkpoint", "pretrain and finetune"},
    TakenBy{"--output", "pretrain, finetune, guide, proposals and relocation"},
    TakenBy{"--graphs", "pretrain, guide, proposals and relocation"},
    TakenBy{"--without", "pretrain, guide, proposals and relocation"},
    TakenBy{"--looks", "pretrain"},
    TakenBy{"--width", "pretrain"},
    TakenBy{"--segment", "pretrain"},
    TakenBy{"--attention-layers", "pretrain"},
    TakenBy{"--refinements", "pretrain"},
    TakenBy{"--spectral", "pretrain"},
    TakenBy{"--gate", "pretrain"},
    TakenBy{"--coarsening", "pretrain"},
    TakenBy{"--priorities", "pretrain"},
    TakenBy{"--told-order", "pretrain"},
    TakenBy{"--rounds", "pretrain"},
    TakenBy{"--samples", "apply"},
    TakenBy{"--svg", "curve"},
};

void refuse_options_of_others(const CLI::App& verb, const LearnFlags& flags) {
  for (const CLI::Option* option : verb.get_options()) {
    if (option->count() == 0) continue;
    const std::vector<std::string>& long_names = option->get_lnames();
    const std::string name = long_names.empty() ? option->get_name() : "--" + long_names.front();
    std::string_view actions = kOfModel;
    for (const TakenBy& each : kTakenBy) {
      if (each.option == name) actions = each.actions;
    }
    if (actions.empty() || actions.find(flags.action) != std::string_view::npos) continue;
    const std::string what = name == "model"    ? "a file ('" + flags.job.options.model + "')"
                             : name == "others" ? "a second file ('" + flags.others.front() + "')"
                                                : name;
    throw InputError(fmt::format("learn {}: {} is for {}", flags.action, what, actions));
  }
}

}  // namespace

void add_learn(Program& program) {
  auto flags = std::make_shared<LearnFlags>();
  CLI::App* verb = add_verb(program, "learn", "train a policy that places operators, and ask it",
                            "espalier learn apply tests/fixtures/three_branch.pt2 --cluster 4xV100-16GB");
  verb->add_option(
          "action", flags->action,
          "pretrain (on generated graphs), finetune (on one model or several), apply (what a policy answers, "
          "beside other placers), curve (of a checkpoint), guide (which steps the search of "
          "pipelines judges first), proposals (which moves the search of placements judges), "
          "relocation (which moves planner giph makes)")
      ->required()
      ->type_name("ACTION")
      ->check(CLI::IsMember({"pretrain", "finetune", "apply", "curve", "guide", "proposals", "relocation"}));
  verb->add_option("model", flags->job.options.model, "finetune and apply: a model; curve: a checkpoint")
      ->type_name("FILE");
  verb->add_option("others", flags->others, "finetune: more models, which the policy learns in turn")
      ->type_name("FILE");
  flags->job.add_reading(verb);
  flags->job.add_planning(verb);
  verb->add_option("-j,--jobs", flags->search.jobs, "threads; the result is the same; default: one per core")
      ->type_name("N")
      ->check(worker_count());
  verb->add_option("--policy", flags->learned.policy,
                   "the policy to begin with; default: the one that comes along")
      ->type_name("FILE");
  verb->add_option("--graphs", flags->graphs,
                   "pretrain, guide, proposals, relocation: graphs to draw; default: 400, relocation: 24")
      ->type_name("N")
      ->check(positive());
  verb->add_option(
          "--without", flags->without,
          "pretrain, guide, proposals, relocation: models of the zoo to leave out, such as gnmt,rnnlm")
      ->delimiter(',')
      ->type_name("NAME,…");
  verb->add_option("--looks", flags->looks,
                   "pretrain: placements that a search may look at for each graph's target; default: 6000")
      ->type_name("N")
      ->check(positive());
  verb->add_option("--contrast", flags->contrast,
                   "pretrain, finetune: epochs in which the net learns to tell graphs from shuffled ones "
                   "before it places any; default: 0")
      ->type_name("N");
  const auto add_size = [verb](const char* name, std::optional<std::int64_t>& size, const char* what,
                               int least, int most) {
    verb->add_option(name, size, what)->type_name("N")->check(CLI::Range(least, most));
  };
  add_size("--width", flags->width, "pretrain: of the net's layers, a multiple of 4; default: 64", 4, 1024);
  add_size("--segment", flags->segment,
           "pretrain: nodes that attend to each other and to the segment before; default: 128", 1, 4096);
  add_size("--attention-layers", flags->attention_layers, "pretrain: 0 leaves attention out; default: 1", 0,
           8);
  add_size("--refinements", flags->refinements,
           "pretrain: passes that see what the pass before said (GO); default: 0", 0, 8);
  add_size("--spectral", flags->spectral,
           "pretrain: eigenvectors of the graph among the numbers of a node; default: 0", 0, 64);
  verb->add_option("--gate", flags->gate,
                   "pretrain: superposition by each node (GDP), by the graph (GO) or none; default: graph")
      ->type_name("NAME")
      ->check(CLI::IsMember({"none", "node", "graph"}));
  verb->add_option("--coarsening", flags->coarsening,
                   "pretrain: groups that are placed as one: none, learned (HSDAG: the net scores edges that "
                   "nodes keep) or random (drawn, never learnt); default: none")
      ->type_name("NAME")
      ->check(CLI::IsMember({"none", "learned", "random"}).description(""));  // said in the line above
  add_size("--priorities", flags->priorities,
           "pretrain: levels of schedule priority (GO) that the net gives nodes; default: 0", 0, 64);
  verb->add_flag("--told-order", flags->told_order,
                 "pretrain: the net learns each graph with devices that run by upward rank and in the order "
                 "of the graph, and is told which; default: the latter alone");
  verb->add_option("--rounds", flags->rounds, "pretrain: rounds of imitating the targets; default: 60")
      ->type_name("N");
  verb->add_option("--updates", flags->updates,
                   "updates of the net; default: 3000, finetune: 50, guide, proposals: 8000, relocation: 240")
      ->type_name("N");
  verb->add_option("--samples", flags->samples, "placements to draw of what the policy answers; default: 32")
      ->type_name("N")
      ->check(positive());
  verb->add_option("--seed", flags->seed, "of graphs, weights and draws; default: 1")->type_name("N");
  verb->add_option("--checkpoint", flags->checkpoint,
                   "pretrain, finetune: a file that is kept up to date, and gone on from where it is there")
      ->type_name("FILE");
  verb->add_option("--device", flags->device, "where the net computes: cpu, cuda or cuda:1; default: cpu")
      ->type_name("NAME");
  verb->add_option("-o,--output", flags->output,
                   "pretrain, finetune, guide, proposals, relocation: the file to write")
      ->type_name("FILE");
  verb->add_option("--svg", flags->svg, "curve: the picture to write")->type_name("FILE");
  execute_when_called(program, verb, &RuntimeVerbs::learn, flags, refuse_options_of_others);
}

}  // namespace espalier::cli
