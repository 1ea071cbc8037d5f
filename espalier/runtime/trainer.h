#pragma once

// What trains a plan on one worker, put together in the one right order: program, session, job, executor.
// Includes libtorch; runtime/ only.

#include <ATen/ATen.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "espalier/runtime/data.h"
#include "espalier/runtime/executor.h"
#include "espalier/runtime/loaded_model.h"
#include "espalier/runtime/planned_job.h"
#include "espalier/runtime/program.h"
#include "espalier/runtime/session.h"
#include "espalier/runtime/workers.h"

namespace espalier {

struct TrainerOptions {
  at::Device device = at::kCPU;
  Optimizer optimizer = {};
  std::uint64_t seed = 0;
  std::shared_ptr<const StateSource> start = {};  // null: the model's own values
  std::uint64_t steps_done = 0;                   // when those are its values
  ExecutorOptions executor = {};
};

// The same with the end of its schedule filled in: linear and cosine that name none reach 0 with the run.
Optimizer with_schedule_end(Optimizer optimizer, std::uint64_t steps);

class Trainer {
 public:
  // All arguments but the options must outlive it. Throws InputError where the model or the plan cannot be
  // trained.
  Trainer(const LoadedModel& model, const PlannedJob& planned, const DataSource& data, Transport& transport,
          const TrainerOptions& options);

  const PlannedJob& planned() const { return planned_; }
  Session& session() { return session_; }
  Executor& executor() { return *executor_; }

 private:
  const PlannedJob& planned_;
  std::vector<std::unique_ptr<const Program>> programs_;  // one for each size of micro-batches
  Session session_;
  Job job_;
  std::unique_ptr<Executor> executor_;  // made when the session has its values
};

// The session's next step, between two barriers; the same report everywhere. Collective.
struct TimedStep {
  StepReport report;
  StepOutcome outcome;  // of this worker
  Clock::time_point start;
  bool stop = false;  // some worker was asked to
};
TimedStep timed_step(Workers& workers, Trainer& trainer, const std::atomic<bool>* stop = nullptr);

}  // namespace espalier
