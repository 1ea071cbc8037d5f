#include "espalier/runtime/trainer.h"

#include <set>
#include <utility>
#include <vector>

namespace espalier {

Optimizer with_schedule_end(Optimizer optimizer, std::uint64_t steps) {
  const bool ends = optimizer.schedule.shape != LearningRateSchedule::Shape::kConstant;
  if (ends && optimizer.schedule.steps == 0) optimizer.schedule.steps = steps;
  return optimizer;
}

namespace {

std::vector<std::unique_ptr<const Program>> programs_of(const LoadedModel& model, const PipelinePlan& plan,
                                                        const TrainerOptions& options) {
  const ExportedProgram& exported = model.program_with_values(options.start.get());
  std::set<BatchSize> sizes;
  for (const Stage& stage : plan.stages) sizes.insert(stage.micro_batch);
  std::vector<std::unique_ptr<const Program>> programs;
  for (const BatchSize size : sizes) {
    programs.push_back(std::make_unique<const Program>(exported, size, options.device));
  }
  return programs;
}

std::vector<const Program*> pointers(const std::vector<std::unique_ptr<const Program>>& programs) {
  std::vector<const Program*> pointers;
  for (const auto& program : programs) pointers.push_back(program.get());
  return pointers;
}

}  // namespace

Trainer::Trainer(const LoadedModel& model, const PlannedJob& planned, const DataSource& data,
                 Transport& transport, const TrainerOptions& options)
    : planned_(planned),
      programs_(programs_of(model, planned.plan, options)),
      session_(model.exported, model.file.bytes(), options.optimizer, options.seed, options.device),
      job_(make_job(pointers(programs_), planned_)) {
  session_.start_from(options.start, options.steps_done);
  executor_ = std::make_unique<Executor>(job_, session_, data, transport, options.executor);
}

TimedStep timed_step(Workers& workers, Trainer& trainer, const std::atomic<bool>* stop) {
  const std::uint64_t step = trainer.session().step();
  const PipelinePlan& plan = trainer.planned().plan;
  const std::uint32_t micro_batches = plan.micro_batches(loss_stage(trainer.session().graph(), plan));
  wait_for_all(workers, "the start of step " + std::to_string(step + 1));
  TimedStep timed;
  timed.start = Clock::now();
  timed.outcome = trainer.executor().step();
  // Losses are summed in micro-batch order, whoever computed them, as one process sums them.
  const std::size_t head = std::size_t{micro_batches} * 2 + 1;
  std::vector<double> mine(head, 0.0);
  for (const auto& [j, loss] : timed.outcome.losses) mine[2 * j] = loss, mine[2 * j + 1] = 1;
  mine.back() = stop != nullptr && stop->load() ? 1 : 0;
  const std::vector<double> squares =
      by_parameter(trainer.session().graph().parameters().size(), timed.outcome.squares);
  mine.insert(mine.end(), squares.begin(), squares.end());
  auto all = wait_for_all(workers, "the end of step " + std::to_string(step + 1), mine);
  const auto end = Clock::now();
  double loss = 0;
  for (std::uint32_t j = 0; j < micro_batches; ++j) {
    for (const auto& worker : all) {
      if (worker[2 * j + 1] == 0) continue;
      loss += worker[2 * j];
      break;
    }
  }
  for (auto& worker : all) {
    timed.stop = timed.stop || worker[head - 1] != 0;
    worker.erase(worker.begin(), worker.begin() + static_cast<std::ptrdiff_t>(head));
  }
  timed.report.step = step;
  timed.report.loss = loss / micro_batches;
  timed.report.gradient_norm = norm_of_all(all);
  timed.report.time =
      Duration(std::chrono::duration_cast<std::chrono::nanoseconds>(end - timed.start).count());
  timed.report.samples = plan.batch;
  return timed;
}

}  // namespace espalier
