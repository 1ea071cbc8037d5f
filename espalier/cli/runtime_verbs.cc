#include "espalier/cli/runtime_verbs.h"

#include <algorithm>

#include "espalier/app/catalog.h"
#include "espalier/base/check.h"
#include "espalier/base/files.h"

namespace espalier::cli {

void LearnedFlags::add(CLI::App* verb) {
  verb->add_flag("--learned", guided,
                 "planner auto, local-search or gdp-search: a net that has seen other models says what is "
                 "tried first");
  verb->add_option(
          "--policy", policy,
          "what `espalier learn` wrote, for --learned or planner gdp or giph; default: what comes along")
      ->type_name("FILE");
  verb->add_option("--fine-tune", fine_tune,
                   "planner gdp: learn this model for so many updates first; default: 0")
      ->type_name("N")
      ->group("");  // `espalier planners` tells of it, beside the planner that takes it
  verb->add_option("--embedding", embedding,
                   "planner placeto: message-passing (the default), graphsage or p-gnn")
      ->type_name("NAME")
      ->check(CLI::IsMember(std::vector<std::string>(kPlacetoEmbeddings.begin(), kPlacetoEmbeddings.end())))
      ->group("");  // likewise
}

namespace {

bool has_policy(std::span<const std::string> planners) {
  return std::any_of(planners.begin(), planners.end(),
                     [](const std::string& name) { return name == kGdp || name == kGdpSearch; });
}

bool takes_policy(std::span<const std::string> planners) {
  return has_policy(planners) || std::find(planners.begin(), planners.end(), kGiph) != planners.end();
}

}  // namespace

LearnedPlanner learned_planner(Program& program, const std::string& verb,
                               std::span<const std::string> planners, const LearnedFlags& flags) {
  const bool asked = std::any_of(planners.begin(), planners.end(),
                                 [](const std::string& name) { return find_planner(name).learned; });
  if (flags.fine_tune > 0 && !has_policy(planners)) {
    throw InputError("--fine-tune: is for --planner gdp, which is not asked for");
  }
  if (!flags.policy.empty() && !flags.guided && !takes_policy(planners)) {
    throw InputError("--policy: is for --planner gdp, giph or --learned, which are not asked for");
  }
  if (!flags.embedding.empty() &&
      std::find(planners.begin(), planners.end(), kPlacetoPlanner) == planners.end())
    throw InputError("--embedding: is for --planner placeto, which is not asked for");
  if (!asked) return {};
  if (program.runtime == nullptr) hand_over(verb, program.arguments);
  return program.runtime->learned(planners, flags);
}

namespace {

// The guide of a file; without one that which is part of the program, which nobody deletes.
template <class Guide>
std::shared_ptr<const Guide> read_or_usual(const std::string& file, const Guide& (*usual)()) {
  if (!file.empty()) return std::make_shared<Guide>(Guide::parse(read_file(file), file));
  return {std::shared_ptr<void>(), &usual()};
}

}  // namespace

ChosenGuides chosen_guides(std::span<const std::string> planners, const LearnedFlags& flags) {
  if (!flags.guided) return {};
  const auto asked_for = [&](std::string_view name) {
    return std::find(planners.begin(), planners.end(), name) != planners.end();
  };
  const bool plans = planners.empty() || asked_for(kAutomatic), placements = asked_for(kLocalSearch);
  if (!plans && !placements && !asked_for(kGdpSearch))
    throw InputError("--learned: is for --planner auto, local-search or gdp-search, which are not asked for");
  ChosenGuides chosen;
  const bool own = !flags.policy.empty() && !takes_policy(planners);
  if (own && plans && placements)
    throw InputError("--policy: one file cannot guide auto and local-search; ask for one of them");
  const std::string file = own ? flags.policy : "";
  if (plans) chosen.plans = read_or_usual(file, joint::usual_guide);
  if (placements) chosen.placements = read_or_usual(file, placement::usual_proposals);
  return chosen;
}

LearnedOrdered learned_ordered(Program& program, std::string_view placer) {
  if (program.runtime == nullptr) hand_over("orders --placer " + std::string(placer), program.arguments);
  return program.runtime->ordered(placer);
}

void ExecutionFlags::add_inputs(CLI::App* verb) {
  verb->add_option("plan", plan, "a plan file")->required()->type_name("FILE");
  verb->add_option("-s,--schedule", schedule, "with these orders instead: a rule or name, or a schedule file")
      ->type_name("RULE|FILE");
  verb->add_option("--data", data, "one tensor per input, safetensors; default: made up from the seed")
      ->type_name("FILE");
}

void ExecutionFlags::add_workers(CLI::App* verb) {
  verb->add_option("--workers", workers, "processes on this host; default: one per device in use")
      ->type_name("N")
      ->check(worker_count());
  verb->add_option("--device", device, "cpu, cuda or cuda:1; default: cuda where there is one")
      ->type_name("NAME");
  verb->add_option("--threads", threads, "threads of each device")->type_name("N")->check(positive());
}

}  // namespace espalier::cli
