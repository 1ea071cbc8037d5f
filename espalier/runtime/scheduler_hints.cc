#include "espalier/runtime/scheduler_hints.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace espalier {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::nanoseconds kShortTurns = std::chrono::microseconds(300);
constexpr std::chrono::nanoseconds kUsualTurns{0};
constexpr std::chrono::milliseconds kAwake{100};

// Older kernels take no notice.
void ask_for_turns(std::chrono::nanoseconds length) {
  struct {  // sched_attr of Linux 3.14
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime, deadline, period;
  } attributes{};
  attributes.size = sizeof(attributes);
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime = static_cast<std::uint64_t>(length.count());
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ShortTurns::ShortTurns(SchedulerHints hints) : hints_(hints) {
  if (hints_ == SchedulerHints::kGiven) ask_for_turns(kShortTurns);
}

ShortTurns::~ShortTurns() {
  if (hints_ == SchedulerHints::kGiven) ask_for_turns(kUsualTurns);
}

struct Awake::Spinner {
  std::mutex lock;
  std::condition_variable changed;
  std::uint64_t turn = 0;  // counts waits, with lock
  bool closing = false;    // with lock
  std::atomic<int> waiting{0};
  std::thread thread{[this] { run(); }};

  void run() {
    const sched_param none{};
    if (sched_setscheduler(0, SCHED_IDLE, &none) != 0) return;
    std::uint64_t seen = 0;
    while (true) {
      {
        std::unique_lock guard(lock);
        changed.wait(guard, [&] { return closing || turn != seen; });
        if (closing) return;
        seen = turn;
      }
      const auto until = SteadyClock::now() + kAwake;
      while (waiting.load(std::memory_order_relaxed) > 0 && SteadyClock::now() < until) {
        for (int i = 0; i < 64; ++i) relax();
      }
    }
  }
};

Awake::Awake(SchedulerHints hints)
    : spinner_(hints == SchedulerHints::kGiven ? std::make_unique<Spinner>() : nullptr) {}

Awake::~Awake() {
  if (!spinner_) return;
  {
    const std::lock_guard guard(spinner_->lock);
    spinner_->closing = true;
    spinner_->waiting = 0;
  }
  spinner_->changed.notify_one();
  spinner_->thread.join();
}

Awake::Wait::Wait(Awake& awake) : awake_(awake) {
  Spinner* const spinner = awake_.spinner_.get();
  if (spinner == nullptr) return;
  {
    const std::lock_guard guard(spinner->lock);
    ++spinner->turn;
    if (spinner->waiting.fetch_add(1) > 0) return;
  }
  spinner->changed.notify_one();
}

Awake::Wait::~Wait() {
  if (awake_.spinner_) awake_.spinner_->waiting.fetch_sub(1);
}

}  // namespace espalier
