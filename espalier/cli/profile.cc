#include "espalier/cli/runtime_verbs.h"

namespace espalier::cli {

void add_profile(Program& program) {
  auto flags = std::make_shared<ProfileFlags>();
  CLI::App* verb = add_verb(program, "profile", "measure a model's operators here, on all workers at once",
                            "espalier profile model.pt2 --micro-batch 4,8 -o costs.json");
  verb->add_option("model", flags->job.options.model, "a .pt2 file")->required()->type_name("FILE");
  flags->job.training.add_frozen(verb);
  verb->add_option("-m,--micro-batch", flags->job.micro_batches,
                   "sizes to measure; default: 1, 2, 4, 8 as exported")
      ->delimiter(',')
      ->type_name("N,...")
      ->check(positive());
  verb->add_option("-o,--output", flags->output, "the cost file to write; default: costs.json")
      ->type_name("FILE");
  verb->add_option("--workers", flags->workers,
                   "processes that measure at once; default: one per GPU, else per core")
      ->type_name("N")
      ->check(worker_count());
  verb->add_option("--rounds", flags->rounds, "passes that are measured; default: 20")
      ->type_name("N")
      ->check(positive());
  verb->add_option("--device", flags->device, "cpu, cuda or cuda:1; default: cuda where there is one")
      ->type_name("NAME");
  verb->add_option(
          "--kind", flags->kind,
          "the device kind that the costs are for; default: cpu, or the GPU's name as clusters have it")
      ->type_name("NAME");
  verb->add_option("--threads", flags->job.options.threads, "threads of each worker")
      ->type_name("N")
      ->check(positive());
  execute_when_called(program, verb, &RuntimeVerbs::profile, flags);
}

}  // namespace espalier::cli
