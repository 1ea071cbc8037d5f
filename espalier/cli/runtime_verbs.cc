#include "espalier/cli/runtime_verbs.h"

namespace espalier::cli {

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
