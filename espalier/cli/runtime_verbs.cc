#include "espalier/cli/runtime_verbs.h"

#include <algorithm>

#include "espalier/app/catalog.h"
#include "espalier/base/check.h"

namespace espalier::cli {

void LearnedFlags::add(CLI::App* verb) {
  verb->add_option("--policy", policy,
                   "planner gdp: a policy of `espalier learn`; default: the one that comes along")
      ->type_name("FILE");
  verb->add_option("--fine-tune", fine_tune,
                   "planner gdp: learn this model for so many updates first; default: 0")
      ->type_name("N");
  verb->add_option("--embedding", embedding,
                   "planner placeto: message-passing (the default), graphsage or p-gnn")
      ->type_name("NAME")
      ->check(CLI::IsMember(std::vector<std::string>(kPlacetoEmbeddings.begin(), kPlacetoEmbeddings.end())))
      ->group("");  // `espalier planners` tells of it, beside the one planner that takes it
}

LearnedPlanner learned_planner(Program& program, const std::string& verb,
                               std::span<const std::string> planners, const LearnedFlags& flags) {
  const bool asked = std::any_of(planners.begin(), planners.end(),
                                 [](const std::string& name) { return find_planner(name).learned; });
  const bool of_policy = std::any_of(planners.begin(), planners.end(), [](const std::string& name) {
    return name == kGdp || name == kGdpSearch;
  });
  if (!of_policy && (!flags.policy.empty() || flags.fine_tune > 0)) {
    throw InputError(std::string(flags.policy.empty() ? "--fine-tune" : "--policy") +
                     ": is for --planner gdp, which is not asked for");
  }
  if (!flags.embedding.empty() &&
      std::find(planners.begin(), planners.end(), kPlacetoPlanner) == planners.end())
    throw InputError("--embedding: is for --planner placeto, which is not asked for");
  if (!asked) return {};
  if (program.runtime == nullptr) hand_over(verb, program.arguments);
  return program.runtime->learned(flags);
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
