#include "espalier/runtime/thread_team.h"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace espalier {

struct ThreadTeam::State {
  std::mutex lock;
  std::condition_variable changed;
  const std::function<void(std::size_t)>* work = nullptr;
  std::uint64_t round = 0;  // counts the pieces of work
  std::size_t busy = 0;     // members that have not done the round's work
  bool closing = false;
  std::size_t members = 0;
  std::vector<std::thread> threads;

  void serve(std::size_t member) {
    std::uint64_t done = 0;
    std::unique_lock guard(lock);
    while (true) {
      changed.wait(guard, [&] { return closing || round != done; });
      if (closing) return;
      done = round;
      const auto& mine = *work;
      guard.unlock();
      mine(member);
      guard.lock();
      if (--busy == 0) changed.notify_all();
    }
  }
};

ThreadTeam::ThreadTeam(std::size_t members) : state_(std::make_unique<State>()) {
  state_->members = members;
  if (members < 2) return;
  for (std::size_t member = 0; member < members; ++member) {
    state_->threads.emplace_back([state = state_.get(), member] { state->serve(member); });
  }
}

ThreadTeam::~ThreadTeam() {
  {
    const std::lock_guard guard(state_->lock);
    state_->closing = true;
  }
  state_->changed.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

void ThreadTeam::run(const std::function<void(std::size_t)>& work) {
  if (state_->threads.empty()) {
    for (std::size_t member = 0; member < state_->members; ++member) work(member);
    return;
  }
  std::unique_lock guard(state_->lock);
  state_->work = &work;
  state_->busy = state_->members;
  ++state_->round;
  state_->changed.notify_all();
  state_->changed.wait(guard, [&] { return state_->busy == 0; });
}

}  // namespace espalier
