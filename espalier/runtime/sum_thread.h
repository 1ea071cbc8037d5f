#pragma once

// The thread in which a device's sums of gradients go on beside its list: one after the other, in the order
// in which they were begun (docs/semantics.md, time).

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace espalier {

class SumThread {
 public:
  // `failed` is told why a sum failed, in the thread: others must not wait for it. It must not throw.
  explicit SumThread(std::function<void(const std::string& reason)> failed);
  SumThread(const SumThread&) = delete;
  SumThread& operator=(const SumThread&) = delete;
  ~SumThread();  // waits for what was begun

  // Carries out `sum` once all begun before are over. Never blocks; the first call starts the thread.
  void begin(std::function<void()> sum);

  // Waits until the first `count` of all sums begun are over. Throws what the first failed one threw; no sum
  // behind that one is carried out.
  void await(std::size_t count);

  std::size_t begun() const { return begun_; }

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::size_t begun_ = 0;
};

}  // namespace espalier
