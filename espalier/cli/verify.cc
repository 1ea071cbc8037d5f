#include "espalier/cli/runtime_verbs.h"

namespace espalier::cli {

void add_verify(Program& program) {
  auto flags = std::make_shared<VerifyFlags>();
  CLI::App* verb =
      add_verb(program, "verify", "loss and every gradient of a plan against one process (exit 1: not equal)",
               "espalier verify plan.json");
  flags->execution.add_inputs(verb);
  verb->add_option(
          "--steps", flags->steps,
          "gradients are compared after the first, parameters after the first and the last; default: 1")
      ->type_name("N")
      ->check(positive());
  verb->add_option("--tolerance", flags->tolerance,
                   "largest relative difference that counts as equal; default: 1e-5 in "
                   "single precision")
      ->type_name("X")
      ->check(positive());
  flags->execution.add_workers(verb);
  execute_when_called(program, verb, &RuntimeVerbs::verify, flags);
}

}  // namespace espalier::cli
