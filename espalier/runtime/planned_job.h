#pragma once

// A plan with all that executing it takes, as a value: no program, no parameters, no libtorch.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "espalier/plan/plan_file.h"
#include "espalier/schedule/schedule.h"

namespace espalier {

struct PlannedJob {
  PipelinePlan plan;
  StagedModel staged;
  Schedule schedule;
  std::vector<std::string> device_names;
  std::vector<Bytes> device_memory;
  StateCopies copies = StateCopies::kOfEachStage;  // of each device: the stages are a placement's fragments
};

// Throws InputError where the plan is for another model, or asks for what the runtime cannot do.
PlannedJob planned_job(const PlanFile& file, const Graph& graph);

// Throws InputError where a legal plan asks for what the runtime cannot do: tensor-parallel groups. Any other
// it runs, in every order that check_schedule accepts.
void require_runnable(const StagedModel& model);

// Throws InputError where stages have micro-batches of different sizes and the model cannot be cut so: an
// operator mixes samples, the program has a fixed batch, or a crossing between two sizes has no dimension
// that is the batch.
void require_cuttable(const Graph& graph, const PipelinePlan& plan, const StagedModel& model);

// The one dimension whose size is the batch; none if there is none, or another depends on the batch, too.
std::optional<std::size_t> sample_dimension(const Tensor& tensor);

// The stage that computes the loss; the first where nobody does.
StageId loss_stage(const Graph& graph, const PipelinePlan& plan);

// Everything on one device, one micro-batch after the other: the reference.
PlannedJob one_stage_job(const Graph& graph, BatchSize batch, BatchSize micro_batch);

// The devices that have something to do, ascending.
std::vector<DeviceId> devices_with_work(const Schedule& schedule);

}  // namespace espalier
