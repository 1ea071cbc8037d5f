#pragma once

// Executes a Schedule: each device of this worker runs its list of actions in order; sends are posted when
// their producer ends, receives as soon as a slot is free, and only compute waits (docs/semantics.md, time).
// Includes libtorch; runtime/ only.

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "espalier/runtime/data.h"
#include "espalier/runtime/gradient_norm.h"
#include "espalier/runtime/output_record.h"
#include "espalier/runtime/output_sums.h"
#include "espalier/runtime/planned_job.h"
#include "espalier/runtime/session.h"
#include "espalier/runtime/step_hooks.h"
#include "espalier/runtime/transport.h"
#include "espalier/schedule/schedule.h"
#include "espalier/trace/trace.h"

namespace espalier {

// What is executed; all parts must outlive the executor.
struct Job {
  std::vector<const Program*> programs;  // by StageId: at its micro-batch
  const PipelinePlan& plan;
  const StagedModel& staged;
  const Schedule& schedule;
  const std::vector<std::string>& device_names;
  // By ParameterId: the lowest stage that reads it and its first device; none where no operator does.
  std::vector<std::optional<std::pair<StageId, DeviceId>>> owners;
  StateCopies copies = StateCopies::kOfEachStage;
  const Graph& graph() const { return programs.at(0)->graph(); }
};

// `programs`: of one model, one for each size of the plan's micro-batches. Throws InputError where the plan
// asks for what the runtime cannot do (require_runnable), or the model has no loss.
Job make_job(const std::vector<const Program*>& programs, const PlannedJob& planned);

struct ExecutorOptions {
  std::uint32_t threads = 1;
  enum class Purpose : std::uint8_t {
    kTrain,
    kEvaluate  // forward alone, of a job made for it (evaluation.h); StepOutcome::output_sums is filled
  } purpose = Purpose::kTrain;
  enum class Record : std::uint8_t {
    kNothing,
    kOutputs
  } record = Record::kNothing;  // for verify's second look
  bool keep_gradients = false;  // StepOutcome::gradients is filled
  bool update = true;           // false: U leaves the parameters alone
  StepHooks* hooks = nullptr;   // of tests; must outlive the executor
};

struct StepOutcome {                                     // of this worker
  std::vector<std::pair<std::uint32_t, double>> losses;  // by micro-batch, where the loss was computed here
  SquaresOfParameters squares;  // of the gradients of parameters owned here, before they are clipped
  std::vector<Span> spans;      // times are Clock times since its epoch
  std::vector<MemorySample> memory;
  std::map<ParameterId, at::Tensor> gradients;  // of the parameters owned here, if asked for
  std::vector<OutputRecord> outputs;
  std::vector<OutputSum> output_sums;
};

class Executor {
 public:
  Executor(const Job& job, Session& session, const DataSource& data, Transport& transport,
           const ExecutorOptions& options);
  ~Executor();

  // One step, the session's next. Returns when this worker's devices are done; an error in one device aborts
  // the transport and is rethrown. Where the optimizer clips, it is collective: the workers exchange the
  // squares of their gradients before the updates.
  StepOutcome step();

  // The device that owns a parameter or buffer; none if no operator reads it.
  std::optional<DeviceId> owner(ParameterId id) const;

  // The owner's copy, with the optimizer's state; null if that device is another worker's or nobody owns it.
  const Variable* held(ParameterId id) const;

  // Its value there: undefined if that device is another worker's, the initial value if nobody owns it.
  at::Tensor owned(ParameterId id) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace espalier
