#pragma once

// Notices that another worker, the meeting place or the launcher is gone or stands still, and ends this
// process's waits with a message that names it. Works under any launcher: each worker writes a beat into the
// store twice a second and reads the beats of the others.
//
// - worker 1 is killed, its beats stop: "worker 1 (cpu:1) has been silent for 5.1 s";
// - worker 0 is stopped, and with it the store that it hosts: "the meeting place … does not answer";
// - an operator throws, failed() publishes it: "worker 1 (cpu:1) failed: operator 'conv1' …";
// - the launcher is killed, the parent process changes: "the launcher (process 4711) is gone".
//
// A run that is stopped as a whole (Ctrl-Z, a sleeping computer) goes on afterwards: a process that stood
// still cannot know how long the others were silent, so it starts to count again.
//
// A worker that works alone for long (saving, the reference of verify) says so with its beats (Busy), and the
// others' waits for messages do not run out meanwhile.

#include <atomic>
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
  Duration grace = milliseconds(3'000);    // from the alarm until this process's compute should have returned

  // Ends this process's waits. Called once, from another thread.
  std::function<void(const std::string& reason)> abort = {};
  // Its compute has not returned within the grace. Called once, from another thread. May be empty: a library
  // does not end the program that calls it.
  std::function<void(const std::string& reason)> stuck = {};
  // Set while some worker says that it is busy. May be null.
  std::shared_ptr<std::atomic<bool>> somebody_busy = {};
};

class Watchdog {
 public:
  // The store must be up. Throws WorkerError if it does not answer.
  explicit Watchdog(WatchdogOptions options);
  // Says goodbye: the others no longer expect beats. To be destroyed before the transport.
  ~Watchdog();

  // Tells the others why this worker stops. Takes two beats; never throws.
  void failed(const std::string& reason) noexcept;

  // The alarm, if there was one.
  std::string alarm() const;

 private:
  friend class Busy;
  struct State;
  std::shared_ptr<State> state_;
};

// While it lives, the other workers know that this one is busy with `work` ("saving model.safetensors"). One
// at a time. Does nothing without a watchdog: one process waits for nobody.
class Busy {
 public:
  Busy(Watchdog* watchdog, const std::string& work);
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  ~Busy();

 private:
  Watchdog* watchdog_;
};

}  // namespace espalier
