#include "espalier/base/thread_pool.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace espalier {

struct ThreadPool::State {
  // One call of for_each. Who calls works on its own batch, and while others still have numbers of it on what
  // these have opened: no wait is longer for that. Nobody waits in a circle: who waits does so for numbers
  // that began after all that it has under way.
  struct Batch {
    const std::function<void(std::size_t)>& f;
    std::size_t count;
    const Batch* within;      // a number of which opened it; null for none
    std::size_t next = 0;     // the first number that has not begun
    std::size_t running = 0;  // numbers that have begun and not ended
    std::size_t failed_at = 0;
    std::exception_ptr error = nullptr;  // of the smallest number that has failed
  };

  std::mutex mutex;               // guards all of this, and the open batches
  std::condition_variable begun;  // a batch, for helpers
  std::condition_variable ended;  // all of a batch, or one begun, for those who wait
  std::vector<Batch*> open;       // with numbers that have not begun, the latest last
  bool over = false;
  std::vector<std::thread> helpers;
  static thread_local const Batch* mine;  // a number of which this thread has under way

  void close(Batch& batch) { std::erase(open, &batch); }

  // Works on one number of an open batch, unlocked meanwhile.
  void work(Batch& batch, std::unique_lock<std::mutex>& lock) {
    const std::size_t number = batch.next++;
    if (batch.next == batch.count) close(batch);
    ++batch.running;
    lock.unlock();
    const Batch* const before = std::exchange(mine, &batch);
    std::exception_ptr error;
    try {
      batch.f(number);
    } catch (...) {
      error = std::current_exception();
    }
    mine = before;
    lock.lock();
    if (error && (!batch.error || number < batch.failed_at)) {
      batch.error = error;
      batch.failed_at = number;
      batch.next = batch.count;
      close(batch);
    }
    if (--batch.running == 0 && batch.next == batch.count) ended.notify_all();
  }

  // The latest open one that a number of this batch has opened, or one within that; null for none.
  Batch* open_within(const Batch& batch) const {
    for (std::size_t i = open.size(); i-- > 0;) {
      for (const Batch* each = open[i]->within; each; each = each->within) {
        if (each == &batch) return open[i];
      }
    }
    return nullptr;
  }

  void help() {
    std::unique_lock lock(mutex);
    while (true) {
      begun.wait(lock, [&] { return over || !open.empty(); });
      if (over) return;
      work(*open.back(), lock);
    }
  }
};

thread_local const ThreadPool::State::Batch* ThreadPool::State::mine = nullptr;

ThreadPool::ThreadPool(std::size_t threads) : state_(std::make_unique<State>()) {
  for (std::size_t t = 1; t < threads; ++t) state_->helpers.emplace_back([this] { state_->help(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->over = true;
  }
  state_->begun.notify_all();
  for (std::thread& helper : state_->helpers) helper.join();
}

std::size_t ThreadPool::threads() const {
  return state_->helpers.size() + 1;
}

void ThreadPool::for_each(std::size_t count, const std::function<void(std::size_t)>& f) {
  if (count < 2 || state_->helpers.empty()) {
    for (std::size_t i = 0; i < count; ++i) f(i);
    return;
  }
  State::Batch batch{f, count, State::mine};
  std::unique_lock lock(state_->mutex);
  state_->open.push_back(&batch);
  state_->begun.notify_all();
  state_->ended.notify_all();
  while (batch.next < batch.count) state_->work(batch, lock);
  while (batch.running > 0) {
    if (State::Batch* const inner = state_->open_within(batch)) {
      state_->work(*inner, lock);
    } else {
      state_->ended.wait(lock);
    }
  }
  lock.unlock();
  if (batch.error) std::rethrow_exception(batch.error);
}

void on_threads(ThreadPool* pool, std::size_t count, const std::function<void(std::size_t)>& f) {
  if (pool) return pool->for_each(count, f);
  for (std::size_t i = 0; i < count; ++i) f(i);
}

}  // namespace espalier
