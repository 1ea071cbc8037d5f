#include "espalier/runtime_cli/step_watch.h"

#include <utility>

namespace espalier::cli {

using Clock = std::chrono::steady_clock;

StepWatch::StepWatch(std::chrono::nanoseconds interval, std::function<void(const std::string&)> say)
    : interval_(interval), say_(std::move(say)), thread_([this] { watch(); }) {}

StepWatch::~StepWatch() {
  stop();
}

void StepWatch::starts(std::uint64_t step) {
  {
    const std::lock_guard guard(lock_);
    step_ = step;
    ++starts_;
  }
  changed_.notify_all();
}

void StepWatch::stop() {
  {
    const std::lock_guard guard(lock_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StepWatch::watch() {
  std::unique_lock guard(lock_);
  while (!stopped_) {
    const std::uint64_t seen = starts_;
    const auto over = [&] { return stopped_ || starts_ != seen; };
    if (seen == 0) {
      changed_.wait(guard, over);
      continue;
    }
    for (auto began = Clock::now(), due = began + interval_; !changed_.wait_until(guard, due, over);
         due += interval_) {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - began).count();
      say_("step " + std::to_string(step_) + " runs since " + std::to_string(seconds) + " s");
    }
  }
}

}  // namespace espalier::cli
