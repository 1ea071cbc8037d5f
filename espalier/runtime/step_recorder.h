#pragma once

// What a device measures in a step: a span for each action, collective and message, and its memory after each
// action. Includes libtorch; runtime/ only.

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "espalier/runtime/device_view.h"
#include "espalier/runtime/memory_meter.h"
#include "espalier/runtime/torch_device.h"

namespace espalier {

Bytes bytes_of(const at::Tensor& tensor);

class StepRecorder {
 public:
  // `view` and the meter, which counts what the device allocates, must outlive it.
  StepRecorder(const DeviceView& view, MemoryMeter& meter)
      : view_(view), meter_(meter), clock_(view.computes_on()) {}

  // What the device's stages hold; before the first step.
  void watch(const Holding& holding) { holdings_.push_back({&holding}); }

  void start_step();
  // When the device has done all that came before.
  Clock::time_point now() const { return clock_.now(); }
  // An action that ends now, with the memory at its peak and at its end.
  void action(const Action& action, Clock::time_point start);
  // A sum of gradients that is over.
  void sum(const Action& action, Clock::time_point start, Clock::time_point end);
  // From here on another thread may write the holding's gradients: they count as they are now. Until
  // `summed`.
  void summing(const Holding& holding);
  void summed(const Holding& holding);
  // A message that arrived: `waiter` is the first action that consumes it.
  void received(const Message& message, DeviceId from, const Action& waiter, Bytes bytes,
                Clock::time_point posted, Clock::time_point arrived);
  // A message whose send is complete: `producer` is the action that sent it.
  void sent(const Message& message, DeviceId to, const Action& producer, Bytes bytes,
            Clock::time_point posted, Clock::time_point completed);

  // Moves spans and samples into the outcome.
  void hand_over(StepOutcome& outcome);

 private:
  Span message_span(const Message& message, DeviceId peer, const Action& action, Bytes bytes) const;
  void measure_holdings();
  void sample_memory(Clock::time_point when, Bytes live);

  const DeviceView& view_;
  MemoryMeter& meter_;
  DeviceClock clock_;
  struct Watched {
    const Holding* holding = nullptr;
    int sums = 0;  // that go on
    Bytes parameters = {}, gradients = {}, state = {}, buffers = {};
  };
  static void measure(Watched& watched);
  Watched& watched(const Holding& holding);
  std::vector<Watched> holdings_;
  std::vector<Span> spans_;
  std::vector<MemorySample> samples_;
  MemoryByCategory held_;  // what the stages hold beside activations
  Bytes last_live_;        // of the last sample
};

}  // namespace espalier
