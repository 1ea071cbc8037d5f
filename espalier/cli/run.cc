#include "espalier/cli/runtime_verbs.h"

namespace espalier::cli {

void add_run(Program& program) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* verb =
      add_verb(program, "run", "train by a plan, on workers that it starts itself (or torchrun did)",
               "espalier run plan.json --data train.safetensors --steps 100 --save trained.safetensors");
  flags->execution.add_inputs(verb);
  verb->add_option("--steps", flags->steps, "steps in all, also those before a resumed one; default: 10")
      ->type_name("N")
      ->check(positive());
  verb->add_option("--load", flags->load, "weights to start from: safetensors, or a folder of the hub's")
      ->type_name("FILE");
  verb->add_flag("--load-partial", flags->load_partial, "what it lacks starts with the model's values");
  verb->add_option("--evaluation-data", flags->evaluation_data, "samples to evaluate on, not to train on")
      ->type_name("FILE");
  verb->add_option("--evaluate-every", flags->evaluate_every,
                   "steps, and before the first; default: after the last")
      ->type_name("N")
      ->check(positive());
  verb->add_option("--checkpoints", flags->checkpoints, "write checkpoints there; the last at the end")
      ->type_name("FOLDER");
  verb->add_option("--save-every", flags->save_every, "steps from one checkpoint to the next")
      ->type_name("N")
      ->check(positive());
  verb->add_option("--keep", flags->keep, "checkpoints that stay; default: all")
      ->type_name("N")
      ->check(positive());
  verb->add_option("--resume", flags->resume, "go on from a checkpoint, or from the newest of a folder")
      ->type_name("FOLDER");
  verb->add_option("--save", flags->save, "write the parameters after the last step")->type_name("FILE");
  verb->add_option("--record", flags->record,
                   "a folder for every step's batch, gradients and parameters: what espalier_parity.py reads")
      ->type_name("FOLDER");
  verb->add_option("--log", flags->log, "every figure as JSON lines; appended with --resume")
      ->type_name("FILE");
  verb->add_flag("--paced", flags->paced, "compute nothing: real messages, and the plan's times asleep");
  verb->add_option("--slower", flags->slower, "with --paced: each of the plan's times so many times")
      ->type_name("X")
      ->check(positive());
  flags->training.add_rate(verb);
  flags->execution.add_workers(verb);
  verb->add_option("--timeout", flags->timeout, "longest wait for a message, in seconds")
      ->type_name("S")
      ->check(positive());
  flags->outputs.add(verb, "--trace");
  execute_when_called(program, verb, &RuntimeVerbs::run, flags);
}

}  // namespace espalier::cli
