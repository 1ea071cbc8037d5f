#pragma once

// What a schedule or a plan is read against: two stages on two devices, two micro-batches.

#include "espalier/plan/staged_model.h"

namespace espalier {

inline StagedModel chain_of_two() {
  StagedModel model;
  for (std::size_t i = 0; i < 2; ++i) {
    StagedStage stage;
    stage.name = i == 0 ? "a" : "b";
    stage.micro_batches = 2;
    StagedReplica replica;
    replica.devices = {DeviceId(i)};
    replica.micro_batches = {0, 1};
    stage.replicas = {replica};
    stage.in_flight = 2;
    if (i == 1) stage.after = {StageId(0)};
    model.stages.push_back(stage);
  }
  Crossing crossing;
  crossing.tensor = "y";
  crossing.from = StageId(0);
  crossing.readers = {{.stage = StageId(1), .saved = true, .bytes = Bytes(8), .gradient = Bytes(8)}};
  crossing.output = Bytes(8);
  model.crossings = {crossing};
  return model;
}

}  // namespace espalier
