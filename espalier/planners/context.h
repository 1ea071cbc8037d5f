#pragma once

// What a search may use, who may end it, and whom it tells how far it is.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "espalier/base/thread_pool.h"
#include "espalier/base/units.h"

namespace espalier {

// Work, not seconds, so that results repeat. It is that of a whole call: where several planners or several
// parts of a search share it, each has its share before any begins.
struct Budget {
  std::uint64_t max_states = 30'000'000;
};

struct SearchStats {
  std::uint64_t states = 0;       // explored, in the planner's own sense
  std::uint64_t evaluations = 0;  // plans judged
  SearchStats& operator+=(const SearchStats& other) {
    states += other.states;
    evaluations += other.evaluations;
    return *this;
  }
  friend bool operator==(const SearchStats&, const SearchStats&) = default;
};

// How far a call is: for people. Counts lag behind.
struct SearchProgress {
  double fraction = 0;                // of its planners' work, as they see it
  std::string_view planner;           // that spoke last
  std::optional<Duration> best;       // iteration time of the fastest plan so far that fits
  std::optional<Duration> bound;      // that no plan beats, where it is known
  SearchStats stats;                  // of all planners so far
  std::optional<double> gap() const;  // best / bound - 1
};

// Gathers what the planners of a call say, from any thread, and passes it on to one listener at a time.
class SearchWatch {
 public:
  using Listener = std::function<void(const SearchProgress&)>;
  explicit SearchWatch(Listener listener);
  ~SearchWatch();

  // No plan is faster: the listener is told from now on.
  void bounded(Duration bound);

  // The listener is told when a planner speaks, when a plan is faster than all before, and now and then while
  // work is counted.
  void speak(std::string_view planner, double weight, double fraction);  // of `weight`: its part of the call
  void found(Duration iteration);
  void count(const SearchStats& more);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What a planner is given. A copy shares pool, watch and end with the original.
struct Context {
  Budget budget = {};
  ThreadPool* pool = nullptr;                    // none: all in the caller's thread
  const std::atomic<bool>* cancelled = nullptr;  // may be null
  SearchWatch* watch = nullptr;                  // may be null
  std::string_view planner = {};                 // as the watch calls it
  double weight = 1;                             // its part of the call
  std::uint64_t states = 0;                      // looked at so far
  bool budget_spent = false;                     // a search wanted to look at more

  std::uint64_t left() const { return budget.max_states > states ? budget.max_states - states : 0; }
  // Counts one more state; false once the budget is spent.
  bool take_state() { return take_states(1); }
  // The same for several at once: all or none.
  bool take_states(std::uint64_t count) {
    if (states + count > budget.max_states) budget_spent = true;
    if (budget_spent) return false;
    if (watch && states / kCountedAtOnce < (states + count) / kCountedAtOnce) {
      watch->count({.states = (states + count) / kCountedAtOnce * kCountedAtOnce -
                              states / kCountedAtOnce * kCountedAtOnce});
    }
    states += count;
    return true;
  }
  static constexpr std::uint64_t kCountedAtOnce = 1 << 16;
  // Somebody wants the search to end: it returns the best that it has.
  bool stop() const { return cancelled && cancelled->load(std::memory_order_relaxed); }
  void report(double fraction) const {
    if (watch) watch->speak(planner, weight, fraction);
  }

  // Calls f(0) … f(count - 1), each once, on all threads of the pool. Each has a context of its own, whose
  // budget is an equal share of what is left here; what it takes is added here at the end, in the order of
  // the numbers. So nothing depends on how many threads there are, where each f keeps its results in a place
  // of its own. Once the search is to end, numbers that have not begun are left out.
  void for_each(std::size_t count, const std::function<void(std::size_t, Context&)>& f);
  // What it gives out, for work that stops and goes on.
  std::vector<Context> parts(std::size_t count) const;
};

}  // namespace espalier
