#include "espalier/runtime/watchdog.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "espalier/base/check.h"
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

// What a worker writes: "17", or "17 saving model.safetensors" while it is busy.
std::string beat_text(std::uint64_t count, const std::string& busy) {
  return std::to_string(count) + (busy.empty() ? "" : " " + busy);
}
bool says_busy(const std::string& beat) {
  return beat.find(' ') != std::string::npos;
}

}  // namespace

// Two threads: one talks to the store and may hang in it, the other only looks at clocks. The state outlives
// a talker that hangs.
struct Watchdog::State {
  explicit State(WatchdogOptions o) : options(std::move(o)), parent(::getppid()) {
    ESP_CHECK(options.world.rank < options.workers.size(), options.world.rank, options.workers.size());
    last_answer = now();
    for (std::size_t i = 0; i < options.workers.size(); ++i) beats.push_back({"", now()});
    try {
      store = open_store(options.world, options.silence, StoreRole::kClient);
      store->set(key("beat", options.world.rank), to_bytes("0"));
    } catch (const std::exception& error) {
      throw WorkerError(unreachable() + ": " + reason_of(error));
    }
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
  std::string busy;         // what this worker is busy with
  bool news = false;        // busy has changed since it was last published
  std::string alarm;
  Time alarm_time;
  bool told_stuck = false;
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
    wake.wait_for(guard, span(options.beat), [&] { return closing || news || !own_failure.empty(); });
    return !closing;
  }

  void talk() {
    try {
      for (std::uint64_t count = 1;; ++count) {
        const bool staying = sleep();
        publish_failure();
        store->set(key("beat", options.world.rank), to_bytes(staying ? next_beat(count) : kLeft));
        if (!staying) break;
        read_others();
        const std::lock_guard guard(lock);
        last_answer = now();
        look_for_busy();
      }
    } catch (const std::exception&) {
      raise(unreachable());
    }
    const std::lock_guard guard(lock);
    talker_done = true;
    wake.notify_all();
  }

  std::string next_beat(std::uint64_t count) {
    const std::lock_guard guard(lock);
    news = false;
    return beat_text(count, busy);
  }

  // With `lock` held.
  void look_for_busy() {
    if (!options.somebody_busy) return;
    bool found = !busy.empty();
    for (const Beat& beat : beats) found = found || says_busy(beat.value);
    options.somebody_busy->store(found);
  }

  void is_busy_with(const std::string& work) {
    {
      const std::lock_guard guard(lock);
      busy = work;
      news = true;
      look_for_busy();
    }
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
      }
      tell_if_stuck();
      if (now() - last > span(options.silence) / 2) start_to_count();
      last = now();
      if (const std::string reason = trouble(); !reason.empty()) raise(reason);
    }
  }

  // Compute, or the store, did not come back in time.
  void tell_if_stuck() {
    std::string reason;
    {
      const std::lock_guard guard(lock);
      if (told_stuck || alarm.empty() || now() - alarm_time <= span(options.grace)) return;
      told_stuck = true;
      reason = alarm;
    }
    if (options.stuck) options.stuck(reason);
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
  }
  state_->wake.notify_all();
  std::unique_lock guard(state_->lock);
  const bool left =
      state_->wake.wait_for(guard, span(state_->options.silence), [&] { return state_->talker_done; });
  state_->talker_done = true;
  guard.unlock();
  state_->wake.notify_all();
  state_->looker.join();
  if (state_->options.somebody_busy) state_->options.somebody_busy->store(false);
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

Busy::Busy(Watchdog* watchdog, const std::string& work) : watchdog_(watchdog) {
  ESP_CHECK(!work.empty());
  if (watchdog_ != nullptr) watchdog_->state_->is_busy_with(work);
}

Busy::~Busy() {
  if (watchdog_ != nullptr) watchdog_->state_->is_busy_with("");
}

}  // namespace espalier
