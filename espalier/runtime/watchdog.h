#pragma once

// Notices that another worker, the meeting place or the launcher is gone or stands still, and ends this
// process's waits with a message that names it. Works under any launcher: workers write a beat into the store
// twice a second and read the others'.
//
// - worker 1 is killed, its beat stops: "worker 1 (cpu:1) has been silent for 5.1 s";
// - worker 0 is stopped, and the store with it: "the meeting place … does not answer; worker 0 hosts it";
// - an operator throws, failed() publishes it: "worker 1 (cpu:1) failed: operator 'conv1' …";
// - the launcher is killed, the parent changes: "the launcher (process 4711) is gone".
//
// Who was stopped and goes on cannot know how long the others were silent: it starts to count again. So a run
// that was stopped as a whole (Ctrl-Z, a sleeping computer) goes on.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "espalier/runtime/runtime.h"

namespace espalier {

struct WatchdogOptions {
  World world;
  std::vector<std::string> workers;  // "worker 1 (cpu:1)", by rank
  Duration beat = milliseconds(500);
  Duration silence = milliseconds(5'000);  // longer without a beat is a failure
  Duration grace =
      milliseconds(3'000);  // from the alarm until the process is ended, should its compute not return
  std::function<void(const std::string&)>
      abort;  // ends this process's waits; called once, from another thread
};

class Watchdog {
 public:
  // The store must be up. Throws WorkerError if it does not answer.
  explicit Watchdog(WatchdogOptions options);
  // Says goodbye: the others no longer expect beats. To be destroyed before the transport.
  ~Watchdog();

  // Tells the others why this worker stops. Returns at once; never throws.
  void failed(const std::string& reason) noexcept;

  // The alarm, if there was one.
  std::string alarm() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace espalier
