#pragma once

// Sums of parameter gradients over devices: A among the replicas of a stage, T among the stages that hold
// copies of a tied parameter. Collective among those devices. Includes libtorch; runtime/ only.

#include <map>
#include <span>

#include "espalier/plan/staged_model.h"
#include "espalier/runtime/session.h"
#include "espalier/runtime/transport.h"

namespace espalier {

// A: every member ends with the same bits. `holding` is this device's copy of the stage.
void sum_over_replicas(Transport& transport, DeviceId self, std::span<const StagedReplica> replicas,
                       Holding& holding);

// T: the first device of each stage that holds a copy has a part, and who has a copy of each stage has all
// parts. They are added up in stage order. `holdings`: this device's, by stage.
void sum_over_copies(Transport& transport, DeviceId self, const StagedModel& staged, const Tie& tie,
                     ParameterId parameter, const std::map<StageId, Holding*>& holdings);

}  // namespace espalier
