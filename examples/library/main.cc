// Plans a model for this computer, trains it in this process and writes what it learnt:
//   train model.pt2 data.safetensors trained.safetensors

#include <espalier/app/machine.h>
#include <espalier/app/planning.h>
#include <espalier/base/check.h>
#include <espalier/runtime/runtime.h>

#include <iostream>

int main(int argc, char** argv) try {
  if (argc != 4) throw espalier::InputError("usage: train model.pt2 data.safetensors trained.safetensors");
  espalier::JobOptions wanted;
  wanted.model = argv[1];
  wanted.machine = espalier::this_machine();
  wanted.cluster = "local:2";  // two devices, each a thread of this process
  wanted.optimizer.kind = espalier::OptimizerKind::kAdam;
  wanted.optimizer.learning_rate = 0.01;
  const espalier::PlanningJob job = espalier::prepare_job(wanted);
  const espalier::Planned planned = espalier::plan_model(job, {.planner = "branches"});
  if (!planned.judged) throw espalier::InputError("no plan: " + planned.outcome.why);
  espalier::RunOptions run;
  run.steps = 20;
  run.data = argv[2];
  run.save = argv[3];
  run.on_step = [](const espalier::StepReport& step) { std::cout << step.step << ' ' << step.loss << '\n'; };
  espalier::run_plan(espalier::plan_file(job, planned, "."), job.model, run);
} catch (const std::exception& error) {
  std::cerr << "train: " << error.what() << '\n';
  return 1;
}
