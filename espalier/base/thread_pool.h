#pragma once

// Threads that share the work of one call.

#include <cstddef>
#include <functional>
#include <memory>

namespace espalier {

class ThreadPool {
 public:
  // `threads` with the one that calls for_each: 1 starts none.
  explicit ThreadPool(std::size_t threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  std::size_t threads() const;

  // Calls f(0) … f(count - 1), each once and in this order of beginning, in this thread and in those that
  // have nothing else to do; returns when all have returned. Who waits for others helps them. What they leave
  // in a place of their own by number is the same for any number of threads. f may call for_each again, and
  // several threads may call it at a time. If some throw, numbers that have not begun are left out, and the
  // exception of the smallest is thrown on.
  void for_each(std::size_t count, const std::function<void(std::size_t)>& f);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The same on a pool, or one after the other in this thread where there is none.
void on_threads(ThreadPool* pool, std::size_t count, const std::function<void(std::size_t)>& f);

}  // namespace espalier
