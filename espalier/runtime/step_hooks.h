#pragma once

// Where tests reach into a step: each function sees what a device is about to use and may replace it.
// Production passes none. Calls come from the threads of several devices at once. Includes libtorch; runtime/
// only.

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "espalier/runtime/session.h"
#include "espalier/schedule/schedule.h"

namespace espalier {

struct StepOutcome;

class StepHooks {
 public:
  virtual ~StepHooks() = default;

  // Carries out the action. `holding`: of the action's stage; null for T.
  virtual void around(const Action&, Holding*, const std::function<void()>& action) { action(); }

  // Of F: the micro-batch whose samples it reads, and what it received from other stages.
  virtual std::uint32_t samples_of(const Action& forward) { return forward.micro_batch; }
  virtual void received(const Action&, std::vector<at::Tensor>&) {}

  virtual RandomKey key(const Action&, const RandomKey& key) { return key; }
  virtual double loss_scale(const Action&, double scale) { return scale; }

  // What the device reports of the step.
  virtual void finished(StepOutcome&) {}
};

}  // namespace espalier
