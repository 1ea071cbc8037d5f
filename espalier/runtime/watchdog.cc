#include "espalier/runtime/watchdog.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>

#include "espalier/runtime/launcher.h"
#include "espalier/runtime/store.h"

namespace espalier {
namespace {

using Time = std::chrono::steady_clock::time_point;

Time now() {
  return std::chrono::steady_clock::now();
}
std::chrono::nanoseconds span(Duration duration) {
  return std::chrono::nanoseconds(duration.count());
}

std::vector<std::uint8_t> to_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}
std::string to_string(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

constexpr const char* kLeft = "left";

}  // namespace

// Two threads: one talks to the store and may hang in it, the other only looks at clocks.
struct Watchdog::State {
  explicit State(WatchdogOptions o)
      : options(std::move(o)),
        parent(::getppid()),
        store(open_store(options.world, options.silence, StoreRole::kClient)) {
    last_answer = now();
    for (std::size_t i = 0; i < options.workers.size(); ++i) beats.push_back({"", now()});
    store->set(key("beat", options.world.rank), to_bytes("0"));
  }

  struct Beat {
    std::string value;
    Time changed;
  };

  WatchdogOptions options;
  pid_t parent;
  c10::intrusive_ptr<c10d::Store> store;

  std::mutex lock;
  std::condition_variable wake;
  bool closing = false;
  bool talker_done = false;
  std::string own_failure;  // to be published
  std::string alarm;
  Time alarm_time;
  Time last_answer;
  std::vector<Beat> beats;
  std::thread talker, looker;

  static std::string key(const char* what, std::size_t rank) {
    return std::string("watch/") + what + "/" + std::to_string(rank);
  }

  void raise(const std::string& reason) {
    {
      const std::lock_guard guard(lock);
      if (!alarm.empty() || closing) return;
      alarm = reason;
      alarm_time = now();
    }
    wake.notify_all();
    if (options.abort) options.abort(reason);
  }

  // Sleeps one beat; false when it is time to leave.
  bool sleep() {
    std::unique_lock guard(lock);
    wake.wait_for(guard, span(options.beat), [&] { return closing || !own_failure.empty(); });
    return !closing;
  }

  void talk() {
    try {
      for (std::uint64_t count = 1;; ++count) {
        const bool staying = sleep();
        publish_failure();
        store->set(key("beat", options.world.rank), to_bytes(staying ? std::to_string(count) : kLeft));
        if (!staying) break;
        read_others();
        const std::lock_guard guard(lock);
        last_answer = now();
      }
    } catch (const std::exception&) {
      raise(unreachable());
    }
    const std::lock_guard guard(lock);
    talker_done = true;
    wake.notify_all();
  }

  void publish_failure() {
    std::string reason;
    {
      const std::lock_guard guard(lock);
      reason = std::exchange(own_failure, "");
    }
    if (!reason.empty()) store->set(key("failed", options.world.rank), to_bytes(reason));
  }

  void read_others() {
    for (std::size_t rank = 0; rank < options.workers.size(); ++rank) {
      if (rank == options.world.rank) continue;
      if (store->check({key("failed", rank)})) {
        raise(options.workers[rank] + " failed: " + to_string(store->get(key("failed", rank))));
        return;
      }
      if (!store->check({key("beat", rank)})) continue;
      const std::string value = to_string(store->get(key("beat", rank)));
      const std::lock_guard guard(lock);
      if (value != beats[rank].value || value == kLeft) beats[rank] = {value, now()};
    }
  }

  std::string unreachable() const {
    return "the meeting place at " + options.world.address + ":" + std::to_string(options.world.port) +
           " does not answer; " + (options.world.agent_store ? "torchrun" : options.workers.front()) +
           " hosts it";
  }

  // What is wrong at this moment, if anything.
  std::string trouble() {
    if (::getppid() != parent) return "the launcher (process " + std::to_string(parent) + ") is gone";
    const std::lock_guard guard(lock);
    const Time latest = now();
    const auto seconds = [&](Time since) {
      return to_text(Duration(std::chrono::duration_cast<std::chrono::nanoseconds>(latest - since).count()));
    };
    if (latest - last_answer > span(options.silence)) return unreachable();
    for (std::size_t rank = 0; rank < beats.size(); ++rank) {
      if (rank == options.world.rank || latest - beats[rank].changed <= span(options.silence)) continue;
      return options.workers[rank] + " has been silent for " + seconds(beats[rank].changed) +
             "; it was killed or stopped";
    }
    return "";
  }

  void start_to_count() {
    const std::lock_guard guard(lock);
    last_answer = now();
    for (Beat& beat : beats) beat.changed = last_answer;
  }

  void look() {
    Time last = now();
    while (true) {
      {
        std::unique_lock guard(lock);
        wake.wait_for(guard, span(options.beat) / 2, [&] { return closing && talker_done; });
        if (closing && talker_done) return;
        const bool late = !alarm.empty() && now() - alarm_time > span(options.grace);
        if (late) end_process();
      }
      if (now() - last > span(options.silence) / 2) start_to_count();
      last = now();
      if (const std::string reason = trouble(); !reason.empty()) raise(reason);
    }
  }

  // Compute or the store did not come back in time. Nothing is half written: files are renamed into place
  // when complete.
  [[noreturn]] void end_process() {
    const std::string line = "worker " + std::to_string(options.world.rank) + " stops: " + alarm;
    write_error_file(line);
    std::fprintf(stderr, "espalier: %s\n", line.c_str());
    std::fflush(stderr);
    ::_exit(1);
  }
};

Watchdog::Watchdog(WatchdogOptions options) : state_(std::make_shared<State>(std::move(options))) {
  state_->talker = std::thread([s = state_] { s->talk(); });
  state_->looker = std::thread([s = state_] { s->look(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard guard(state_->lock);
    state_->closing = true;
    if (state_->alarm.empty()) state_->alarm_time = now();
  }
  state_->wake.notify_all();
  std::unique_lock guard(state_->lock);
  const bool left =
      state_->wake.wait_for(guard, span(state_->options.silence), [&] { return state_->talker_done; });
  state_->talker_done = true;
  guard.unlock();
  state_->wake.notify_all();
  state_->looker.join();
  // A talker that hangs in a dead store is left behind; the state it needs lives on with it.
  left ? state_->talker.join() : state_->talker.detach();
}

void Watchdog::failed(const std::string& reason) noexcept {
  try {
    {
      const std::lock_guard guard(state_->lock);
      if (!state_->alarm.empty()) return;  // the others know already, or caused it
      state_->own_failure = reason;
    }
    state_->wake.notify_all();
    // It reaches the store at once and the others with their next beat; this process may host the store.
    std::this_thread::sleep_for(2 * span(state_->options.beat));
  } catch (...) {
  }
}

std::string Watchdog::alarm() const {
  const std::lock_guard guard(state_->lock);
  return state_->alarm;
}

}  // namespace espalier
