#pragma once

// Threads that do one piece of work after the other together.

#include <cstddef>
#include <functional>
#include <memory>

namespace espalier {

class ThreadTeam {
 public:
  // Starts a thread for each member; a single member works in the thread that calls run().
  explicit ThreadTeam(std::size_t members);
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;
  ~ThreadTeam();

  // Calls work(0) … work(members - 1), each always in the same thread, and returns when all have returned.
  // `work` must not throw. One caller at a time.
  void run(const std::function<void(std::size_t)>& work);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace espalier
