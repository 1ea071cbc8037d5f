#include <algorithm>
#include <memory>

#include "espalier/base/check.h"
#include "espalier/cli/runtime_program.h"
#include "espalier/cli/verbs.h"
#include "espalier/cli/workers.h"

namespace espalier::cli {

void add_launch(Program& program) {
  struct Flags {
    int workers = 0;
    std::vector<std::string> command;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = add_verb(program, "launch", "start workers on this host, each with a verb of its own",
                            "espalier launch -n 2 -- run plan.json --steps 10");
  verb->add_option("-n,--workers", flags->workers, "how many")
      ->required()
      ->type_name("N")
      ->check(worker_count());
  verb->add_option("command", flags->command, "run, verify or profile, and its arguments, after --")
      ->required();
  verb->callback([&program, flags] {
    program.chosen = [&program, flags]() -> int {
      const std::string& called = flags->command.front();
      if (called != "run" && called != "verify" && called != "profile") {
        throw InputError("launch: '" + called +
                         "' does not work in several processes; run, verify and profile do");
      }
      if (program.runtime == nullptr) hand_over("launch", program.arguments);
      return start_workers(program, flags->workers, flags->command);
    };
  });
}

}  // namespace espalier::cli
