#pragma once

// How good the model is now, on data that it is not trained on: forward passes by the plan's own workers,
// over a whole file, once. Includes libtorch; runtime/ only.
//
// Nothing of the training changes: parameters are read, buffers that an operator writes are put back
// afterwards, random numbers and the position in the data are functions of the step, which is put back too.
// Operators evaluate (frontend/evaluation.h): dropout off, BatchNorm by its running statistics.
//
// Samples come in the file's order, in batches as the plan has them, then whole micro-batches, then one of
// the rest, if the model was exported for its size; what is still left is counted, not hidden. The loss is
// the mean over samples; so is each other output of the model, over its elements.

#include <memory>
#include <string>
#include <vector>

#include "espalier/runtime/loaded_model.h"
#include "espalier/runtime/planned_job.h"
#include "espalier/runtime/session.h"
#include "espalier/runtime/workers.h"

namespace espalier {

// The plan's stages, forward only, without replicas' collectives: `micro_batches` of that size.
PlannedJob evaluation_job(const PlannedJob& planned, BatchSize micro_batch, std::uint32_t micro_batches);

// How `samples` are passed through: so many batches, then micro-batches, then one of `rest` samples.
struct EvaluationSizes {
  std::int64_t batches = 0, micro_batches = 0, rest = 0, left_out = 0;
  friend bool operator==(const EvaluationSizes&, const EvaluationSizes&) = default;
};
EvaluationSizes evaluation_sizes(std::int64_t samples, BatchSize batch, BatchSize micro_batch,
                                 const BatchRange& allowed);

class ModelEvaluation {
 public:
  // All must outlive it. Throws InputError where the data do not fit the model.
  ModelEvaluation(const LoadedModel& model, const PlannedJob& planned, const std::string& data,
                  Workers& workers, Session& session, at::Device device, std::uint32_t threads);
  ~ModelEvaluation();

  // Collective; the same everywhere.
  EvaluationReport run();

 private:
  struct Passes;  // of one size

  Workers& workers_;
  Session& session_;
  ExportedProgram program_;
  EvaluationSizes sizes_;
  std::int64_t samples_ = 0;
  std::vector<std::unique_ptr<Passes>> passes_;
};

}  // namespace espalier
