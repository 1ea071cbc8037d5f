// Training by a plan, and the reference on one process: from a start (the model's own values, a file of
// weights, a checkpoint) to the end.

#include <memory>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/runtime/agreement.h"
#include "espalier/runtime/checkpoint.h"
#include "espalier/runtime/checkpoint_folder.h"
#include "espalier/runtime/checkpointing.h"
#include "espalier/runtime/evaluation.h"
#include "espalier/runtime/measured_trace.h"
#include "espalier/runtime/record.h"
#include "espalier/runtime/runtime.h"
#include "espalier/runtime/tensor_file.h"
#include "espalier/runtime/torch_device.h"
#include "espalier/runtime/trainer.h"
#include "espalier/runtime/weights_file.h"
#include "espalier/runtime/whole_state.h"
#include "espalier/runtime/workers.h"

namespace espalier {
namespace {

// What training starts with.
struct Start {
  std::shared_ptr<const StateSource> source;  // null: the model's own values
  std::uint64_t steps_done = 0;
  std::uint64_t seed = 0;
  DataStart data;
  std::vector<std::string> notes;
};

// The sample that comes next, if the data are those of the checkpoint; else their next epoch begins.
DataStart data_after(const CheckpointManifest& manifest, const std::string& path,
                     const ExportedProgram& exported, std::vector<std::string>& notes) {
  DataStart start{.step = manifest.step, .at = manifest.data};
  if (path.empty() || !manifest.data.samples) {
    if (path.empty() != !manifest.data.samples)
      notes.push_back("the data are others than the checkpoint's: they start from their beginning");
    if (path.empty() != !manifest.data.samples) start.at = {.seed = manifest.data.seed};
    return start;
  }
  const auto samples = static_cast<std::uint64_t>(SampleFile(path, exported).samples());
  if (samples == *manifest.data.samples) return start;
  notes.push_back(path + ": has " + std::to_string(samples) + " samples, the checkpoint's data had " +
                  std::to_string(*manifest.data.samples) + ": an epoch of them starts now");
  start.at = {.seed = manifest.data.seed, .samples = samples, .epoch = manifest.data.epoch + 1};
  return start;
}

Start resumed(const PlanFile& file, const LoadedModel& model, const RunOptions& options) {
  const auto checkpoint = std::make_shared<Checkpoint>(options.resume, model.graph());
  const CheckpointManifest& manifest = checkpoint->manifest();
  check_optimizer(manifest, file.training.optimizer, checkpoint->path());
  Start start{
      .source = checkpoint, .steps_done = manifest.step, .seed = manifest.seed, .data = {}, .notes = {}};
  start.notes.push_back("resumed " + checkpoint->path() + " after step " + std::to_string(manifest.step));
  for (const std::string& change : training_changes(manifest, file.training)) start.notes.push_back(change);
  if (file.seed != manifest.seed) {
    start.notes.push_back("seed " + std::to_string(manifest.seed) + " of the checkpoint, not the plan's " +
                          std::to_string(file.seed));
  }
  start.data = data_after(manifest, options.data, model.exported, start.notes);
  return start;
}

Start start_of(const PlanFile& file, const LoadedModel& model, const RunOptions& options) {
  const bool may_be_empty = options.checkpoints && options.checkpoints->folder == options.resume;
  const bool nothing_there = may_be_empty && !find_checkpoint(options.resume);
  if (!options.resume.empty() && !nothing_there) return resumed(file, model, options);
  Start start{.source = nullptr,
              .steps_done = 0,
              .seed = file.seed,
              .data = from_the_beginning(file.seed),
              .notes = {}};
  if (nothing_there) start.notes.push_back(options.resume + ": holds no checkpoint yet: training starts");
  if (!options.load.empty()) {
    const auto weights = std::make_shared<WeightsFile>(options.load, model.graph(), options.missing);
    start.notes.insert(start.notes.end(), weights->notes().begin(), weights->notes().end());
    start.source = weights;
  }
  return start;
}

// Not first after the steps.
void check_savable(const Graph& graph) {
  for (const Parameter& parameter : graph.parameters())
    safetensors_type(torch_type(parameter.dtype), graph.name() + ": '" + parameter.names[0] + "'");
}

CheckpointManifest manifest_about(const PlanFile& file, const Start& start) {
  CheckpointManifest about;
  about.seed = start.seed;
  about.training = file.training;
  return about;
}

// What every worker does once all have met.
class Run {
 public:
  Run(const PlanFile& file, const LoadedModel& model, const PlannedJob& planned, Workers& workers,
      const RunOptions& options)
      : options_(options),
        model_(model),
        planned_(planned),
        workers_(workers),
        reports_(workers.transport->rank() == 0),
        start_(start_of(file, model, options)),
        data_(data_of_run(options.data, model.exported, planned.plan.batch, start_.data)),
        trainer_(model, planned, *data_, *workers.transport,
                 {.device = device_of_worker(options.device, options.world),
                  .optimizer = file.training.optimizer,
                  .seed = start_.seed,
                  .start = start_.source,
                  .steps_done = start_.steps_done,
                  .executor = {.threads = options.threads, .keep_gradients = !options.record.empty()}}) {
    if (options_.checkpoints) {
      checkpoints_.emplace(*options_.checkpoints, workers_, trainer_.executor(), trainer_.session(),
                           manifest_about(file, start_));
    }
    if (!options_.evaluation_data.empty()) {
      evaluation_.emplace(model_, planned_, options_.evaluation_data, workers_, trainer_.session(),
                          device_of_worker(options_.device, options_.world), options_.threads);
    }
  }

  RunResult run() {
    tell_before_the_first_step();
    if (options_.evaluate_every > 0 && steps_done() == 0) evaluate();
    while (steps_done() < options_.steps && !result_.interrupted) {
      step();
      const bool last = steps_done() == options_.steps || result_.interrupted;
      const bool evaluates = options_.evaluate_every > 0 && steps_done() % options_.evaluate_every == 0;
      if (evaluates || last) evaluate();
      if (checkpoints_ && !last) checkpoints_->after_step(data_->position(steps_done()));
    }
    if (checkpoints_ && !result_.steps.empty()) checkpoints_->finish(data_->position(steps_done()));
    if (!options_.save.empty()) save_state(options_.save, workers_, model_.graph(), trainer_.executor());
    wait_for_all(workers_, "the end of the run");  // nobody leaves while another still needs it
    return std::move(result_);
  }

 private:
  std::uint64_t steps_done() { return trainer_.session().step(); }

  void tell_before_the_first_step() {
    result_.first_step = start_.steps_done;
    result_.dropped_samples = data_->dropped_samples();
    if (!reports_) return;
    if (options_.on_note) {
      for (const std::string& note : start_.notes) options_.on_note(note);
      if (result_.dropped_samples > 0) {
        options_.on_note(std::to_string(result_.dropped_samples) +
                         " samples of each epoch do not fill a batch and are left out, others each time");
      }
    }
    if (options_.on_start) options_.on_start(start_.steps_done);
  }

  void step() {
    const DataPosition place = data_->position(steps_done());
    const double rate = trainer_.session().optimizer_of_step().learning_rate;
    TimedStep timed = timed_step(workers_, trainer_, options_.stop);
    timed.report.learning_rate = rate;
    if (place.samples) timed.report.epoch = place.epoch;
    result_.steps.push_back(timed.report);
    result_.interrupted = timed.stop;
    if (reports_ && options_.on_step) options_.on_step(timed.report);
    if (!options_.record.empty())
      record_step(options_.record, workers_, model_.exported, *data_, trainer_.executor(), timed);
    const bool last = steps_done() == options_.steps || timed.stop;
    if (options_.trace == TraceSteps::kNone || (options_.trace == TraceSteps::kLast && !last)) return;
    result_.trace = gather_trace(workers_, planned_, std::move(timed.outcome), timed.start);
    if (result_.trace && options_.on_trace) options_.on_trace(timed.report, *result_.trace);
  }

  void evaluate() {
    if (!evaluation_) return;
    result_.evaluations.push_back(evaluation_->run());
    result_.evaluations.back().step = steps_done();
    if (reports_ && options_.on_evaluation) options_.on_evaluation(result_.evaluations.back());
  }

  const RunOptions& options_;
  const LoadedModel& model_;
  const PlannedJob& planned_;
  Workers& workers_;
  bool reports_;
  Start start_;
  std::unique_ptr<DataSource> data_;
  Trainer trainer_;
  std::optional<Checkpointing> checkpoints_;
  std::optional<ModelEvaluation> evaluation_;
  RunResult result_;
};

}  // namespace

RunResult run_plan(const PlanFile& plan, const std::string& model_path, const RunOptions& options) {
  PlanFile file = plan;
  file.training.optimizer = with_schedule_end(file.training.optimizer, options.steps);
  const LoadedModel model(model_path, file.training.frozen);
  if (options.checkpoints || !options.save.empty()) check_savable(model.graph());
  const PlannedJob planned = planned_job(file, model.graph());
  Workers workers = join_workers(options.world, planned,
                                 {.timeout = options.timeout,
                                  .facts = run_facts(file, model_path, options),
                                  .on_stuck = options.on_stuck});
  RunResult result;
  guarded(workers, [&] { result = Run(file, model, planned, workers, options).run(); });
  return result;
}

RunResult run_reference(const std::string& model_path, const ReferenceOptions& options) {
  const LoadedModel model(model_path);
  const PlannedJob planned = one_stage_job(model.graph(), options.batch, options.micro_batch);
  Workers workers = join_workers({}, planned, {});
  const auto data =
      data_of_run(options.data, model.exported, options.batch, from_the_beginning(options.seed));
  std::shared_ptr<const StateSource> start;
  if (!options.load.empty())
    start = std::make_shared<WeightsFile>(options.load, model.graph(), MissingNames::kRefused);
  Trainer trainer(model, planned, *data, *workers.transport,
                  {.device = device_of_worker(options.device, {}),
                   .optimizer = with_schedule_end(options.optimizer, options.steps),
                   .seed = options.seed,
                   .start = start,
                   .steps_done = 0,
                   .executor = {.threads = options.threads}});
  RunResult result;
  result.dropped_samples = data->dropped_samples();
  for (std::uint64_t step = 0; step < options.steps; ++step) {
    const TimedStep timed = timed_step(workers, trainer);
    result.steps.push_back(timed.report);
    if (options.on_step) options.on_step(timed.report);
  }
  if (!options.save.empty()) save_state(options.save, workers, model.graph(), trainer.executor());
  return result;
}

}  // namespace espalier
