#include "espalier/runtime/sum_thread.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace espalier {

struct SumThread::State {
  std::function<void(const std::string&)> failed;
  std::mutex lock;
  std::condition_variable changed;
  std::deque<std::function<void()>> waiting;
  std::size_t over = 0;
  std::exception_ptr error;
  bool closing = false;
  std::thread thread;

  void serve() {
    std::unique_lock guard(lock);
    while (true) {
      changed.wait(guard, [&] { return closing || !waiting.empty(); });
      if (waiting.empty()) return;
      const std::function<void()> sum = std::move(waiting.front());
      waiting.pop_front();
      const bool skipped = error != nullptr;
      guard.unlock();
      const std::exception_ptr mine = skipped ? nullptr : carried_out(sum);
      guard.lock();
      if (mine) error = mine;
      ++over;
      changed.notify_all();
    }
  }

  std::exception_ptr carried_out(const std::function<void()>& sum) const {
    try {
      sum();
      return nullptr;
    } catch (const std::exception& problem) {
      failed(problem.what());
      return std::current_exception();
    }
  }
};

SumThread::SumThread(std::function<void(const std::string&)> failed) : state_(std::make_unique<State>()) {
  state_->failed = std::move(failed);
}

SumThread::~SumThread() {
  if (!state_->thread.joinable()) return;
  {
    const std::lock_guard guard(state_->lock);
    state_->closing = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

void SumThread::begin(std::function<void()> sum) {
  if (!state_->thread.joinable()) {
    state_->thread = std::thread([state = state_.get()] { state->serve(); });
  }
  {
    const std::lock_guard guard(state_->lock);
    state_->waiting.push_back(std::move(sum));
  }
  ++begun_;
  state_->changed.notify_all();
}

void SumThread::await(std::size_t count) {
  std::unique_lock guard(state_->lock);
  state_->changed.wait(guard, [&] { return state_->over >= count || state_->error; });
  if (state_->error) std::rethrow_exception(state_->error);
}

}  // namespace espalier
