#pragma once

// Mistakes that a pipelined trainer can make, planted one at a time by tests: `verify` must catch each and
// name where it shows. Nothing but tests sets one.

#include <cstdint>
#include <string>

#include "espalier/runtime/runtime.h"

namespace espalier {

enum class Fault : std::uint8_t {
  kNone,
  kLostMicroBatch,      // the last micro-batch's gradients are dropped
  kUntied,              // copies of a tied parameter do not add their gradients up
  kWrongSeed,           // random operators of one stage draw from another stream
  kStaleReceive,        // a stage reads the micro-batch before
  kDoubleBufferUpdate,  // BatchNorm's statistics are updated twice
  kUnscaledLoss,        // the sum over micro-batches instead of the mean
  kNoAllReduce,         // replicas keep their own gradients
  kWrongDataOrder,      // one stage reads the samples of another micro-batch
  kNormOfCopies,        // the gradient norm counts each copy of a tied parameter
  kSkippedUpdate,       // one stage does not update its parameters
};

struct FaultPlan {
  Fault fault = Fault::kNone;
  std::uint32_t stage = 0;  // where, for faults of one stage
};

// verify_plan with a mistake in the plan's run; the reference has none.
VerifyResult verify_plan_with(const PlanFile& plan, const std::string& model, const VerifyOptions& options,
                              const FaultPlan& faults);

}  // namespace espalier
