#pragma once

// One device of a paced run (run_paced, runtime.h): it waits and tells as in training, but sleeps where it
// would compute. Runs in one thread, and its sums of gradients in another. Includes libtorch; runtime/ only.
//
// An action ends the plan's time after it could start: when the one before it had to be over and its inputs
// were there. It does not count from the moment at which the device woke up, so being late does not add up.
// Messages carry as many bytes as the plan says. Sums of gradients are not sent: their members meet, and then
// take the time that the cost model gives them.

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <mutex>

#include "espalier/cluster/cluster.h"
#include "espalier/runtime/device_loop.h"
#include "espalier/runtime/executor.h"
#include "espalier/runtime/planned_job.h"

namespace espalier {

class PacedDevice final : public DeviceLoop {
 public:
  // Every time of the plan counts `slower` times. `job`, `cluster` and `transport` must outlive it.
  PacedDevice(const PlannedJob& job, const Cluster& cluster, Transport& transport, DeviceId device,
              double slower);
  ~PacedDevice() override { end_sums(); }

  // A step is begin(), run(), finish().
  void begin();
  StepOutcome finish();

 private:
  void perform(const Action& action) override;
  std::function<void()> sum_of(const Action& action) override;
  void summed(const Action& sum) override;
  void meet(const Action& sum, Clock::time_point reached);  // in the thread of sums
  void await_inputs(const Action& action);
  void send_outputs(const Action& action);
  void send_gradient(std::uint32_t crossing, const Share& share, const Outbox::ValueOf& value_of);
  Duration time_of(const Action& action) const;
  // The plan's time, as long as it takes here.
  Clock::duration paced(Duration time) const;

  const StagedModel& staged_;
  const Cluster& cluster_;
  Transport& transport_;
  double slower_;
  at::Tensor bytes_;        // what messages carry the beginning of
  Clock::time_point free_;  // when the device has done what came before, had it never been late

  // The thread of sums writes them.
  Clock::time_point sum_free_;                    // when the sums before are over, had it never been late
  std::map<Action, Clock::time_point> sum_ends_;  // of this step
  std::mutex sum_ends_lock_;
};

}  // namespace espalier
