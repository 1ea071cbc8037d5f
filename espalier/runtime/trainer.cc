#include "espalier/runtime/trainer.h"

#include <cmath>
#include <vector>

namespace espalier {

Trainer::Trainer(const LoadedModel& model, const PlannedJob& planned, const DataSource& data,
                 Transport& transport, const TrainerOptions& options)
    : planned_(planned),
      program_(model.exported, planned.plan.stages.at(0).micro_batch, options.device),
      session_(model.exported, model.file.bytes(), options.optimizer, options.seed, options.device),
      job_(make_job(program_, planned_)) {
  if (!options.load.empty()) session_.load(options.load);
  executor_ = std::make_unique<Executor>(job_, session_, data, transport, options.executor);
}

TimedStep timed_step(Workers& workers, Trainer& trainer, const std::atomic<bool>* stop) {
  const std::uint64_t step = trainer.session().step();
  const std::uint32_t micro_batches = trainer.planned().plan.micro_batches(StageId(0));
  wait_for_all(workers, "the start of step " + std::to_string(step + 1));
  TimedStep timed;
  timed.start = Clock::now();
  timed.outcome = trainer.executor().step();
  // Losses are summed in micro-batch order, whoever computed them, as one process sums them.
  std::vector<double> mine(std::size_t{micro_batches} * 2 + 2, 0.0);
  for (const auto& [j, loss] : timed.outcome.losses) mine[2 * j] = loss, mine[2 * j + 1] = 1;
  mine[mine.size() - 2] = timed.outcome.gradient_norm_squared;
  mine.back() = stop != nullptr && stop->load() ? 1 : 0;
  const auto all = wait_for_all(workers, "the end of step " + std::to_string(step + 1), mine);
  const auto end = Clock::now();
  double loss = 0, norm = 0;
  for (std::uint32_t j = 0; j < micro_batches; ++j) {
    for (const auto& worker : all) {
      if (worker[2 * j + 1] == 0) continue;
      loss += worker[2 * j];
      break;
    }
  }
  for (const auto& worker : all) {
    norm += worker[worker.size() - 2];
    timed.stop = timed.stop || worker.back() != 0;
  }
  timed.report.step = step;
  timed.report.loss = loss / micro_batches;
  timed.report.gradient_norm = std::sqrt(norm);
  timed.report.time =
      Duration(std::chrono::duration_cast<std::chrono::nanoseconds>(end - timed.start).count());
  timed.report.samples = trainer.planned().plan.batch;
  return timed;
}

}  // namespace espalier
