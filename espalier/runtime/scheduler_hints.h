#pragma once

// What a worker asks of the operating system's scheduler. Each request shortens waits and changes no result;
// a kernel that refuses one leaves the run slower and otherwise the same. World::scheduler_hints switches all
// of them off. docs/benchmarks.md ("Where messages lost time") tells what each is worth.

#include <cstdint>
#include <memory>

#include "espalier/runtime/runtime.h"

namespace espalier {

// While it lives, its thread takes short turns on its core.
//
// Since Linux 6.12 a thread may ask for a length of turn. A thread of short turns goes before a busy thread
// of longer turns at once; without the request it waits until that one's turn ends, some 4 ms. A thread
// inherits the length from the thread that starts it. Threads of the transport do little at a time, and
// others wait for them: they take short turns.
//
// Gloo's thread never waits for the lock of a connection: it looks again and again. If it interrupts a thread
// that holds the lock, it keeps the core until its turn ends with the next tick, again some 4 ms. A thread
// that posts therefore takes turns as short as Gloo's thread, which then does not interrupt it.
class ShortTurns {
 public:
  explicit ShortTurns(SchedulerHints hints);
  ShortTurns(const ShortTurns&) = delete;
  ShortTurns& operator=(const ShortTurns&) = delete;
  ~ShortTurns();

 private:
  SchedulerHints hints_;
};

// Keeps this worker's core awake while a thread waits for a message.
//
// A virtual machine's core that has nothing to do is given to others, and some milliseconds pass until it is
// back. A thread of the idle class, which every other thread interrupts at once, spins meanwhile, for at most
// 100 ms of one wait.
class Awake {
 public:
  explicit Awake(SchedulerHints hints);
  Awake(const Awake&) = delete;
  Awake& operator=(const Awake&) = delete;
  ~Awake();

  class Wait {  // one wait, while it lives
   public:
    explicit Wait(Awake& awake);
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;
    ~Wait();

   private:
    Awake& awake_;
  };

 private:
  struct Spinner;
  std::unique_ptr<Spinner> spinner_;  // null without hints
};

}  // namespace espalier
