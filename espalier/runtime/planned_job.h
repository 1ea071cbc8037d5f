#pragma once

// A plan with all that executing it takes, as a value: no program, no parameters, no libtorch.

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
};

// Throws InputError where the plan is for another model, or asks for what the runtime cannot do.
PlannedJob planned_job(const PlanFile& file, const Graph& graph);

// Throws InputError where a legal plan asks for what the runtime cannot do: micro-batches of unequal sizes,
// tensor-parallel groups. Any other it runs, in every order that check_schedule accepts.
void require_runnable(const StagedModel& model);

// Everything on one device, one micro-batch after the other: the reference.
PlannedJob one_stage_job(const Graph& graph, BatchSize batch, BatchSize micro_batch);

// The devices that have something to do, ascending.
std::vector<DeviceId> devices_with_work(const Schedule& schedule);

}  // namespace espalier
