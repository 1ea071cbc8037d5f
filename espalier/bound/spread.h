#pragma once

// Work spread over devices, and when of a step they can do it. Internal to bounds.

#include <optional>
#include <span>
#include <vector>

#include "espalier/bound/least_costs.h"
#include "espalier/bound/one_place.h"

namespace espalier::internal {

// The beginning of a step up to `before`, and its last `after`. Nanoseconds.
struct Window {
  double before = 0, after = 0;
  // By kind: what a byte that a device holds at `before` counts, in the unit of Spread::weight times
  // nanoseconds. Any will do; empty: memory does not count.
  std::vector<double> price = {};
  // What of a pass can be in either, where so much must come before it and behind it.
  double of(double pass, double head, double tail) const;
};

class Spread {
 public:
  explicit Spread(const Known& known);

  // What a step that takes no longer than so many nanoseconds may have: numbers of replicas of each operator,
  // by operator and group of ways (OnePlace).
  struct Replicas {
    double fewest = 1, most = 1;
    friend bool operator==(const Replicas&, const Replicas&) = default;
  };
  using Allowed = std::vector<std::optional<Replicas>>;
  Allowed allowed_within(double step) const;
  Allowed at_most_within(double step) const;  // the same with one at least

  // The least time in which the devices do what must be done between the two parts of the window. With
  // `allowed`: with so many replicas; the largest number where an operator may have none.
  double between(const Window& window, const Allowed* allowed = nullptr) const;

  // Times of a device of this kind count so much; of all devices together: 0 where some device does
  // everything in no time.
  double weight(std::size_t kind) const { return weight_[kind]; }
  double all() const { return all_; }
  bool one_kind() const { return one_kind_; }

  // What is left of n micro-batches on r replicas of one kind: linear in (n, r) but where one of two limits
  // of the replicas is reached, so that for all micro-batches on this kind it is linear between these points.
  struct Point {
    double replicas = 0, left = 0;
  };

 private:
  // Of one micro-batch: all passes, what of them can be before x and in the last y. Of a replica: how long it
  // may be busy before x, its update, and the bytes that each replica more adds to the sum of gradients.
  struct Passes {
    double all = 0, early = 0, late = 0;
    double first = 0, update = 0, summed = 0;
    double state = 0;  // what the memory of a replica's copy of the parameters counts
    friend bool operator==(const Passes&, const Passes&) = default;
  };
  struct Scratch {  // of of_kinds, for one window
    struct Kind {
      Passes each;
      double count = 0, weight = 0;
      friend bool operator==(const Kind&, const Kind&) = default;
    };
    std::vector<Kind> kinds;
    std::vector<Point> points;
    // What was asked last of those with one place: layers of a model are alike where the window ends before
    // or behind them.
    struct Answer {
      std::vector<Kind> kinds;
      Replicas replicas;
      double least = 0;
    };
    std::vector<Answer> answers = std::vector<Answer>(64);
    Answer& answer_for(const Replicas& replicas);
  };

  template <typename F>
  Allowed allowed_by(F replicas) const;  // of operator and group
  double load(const Way& way, std::size_t op) const;
  void weigh();
  void improve_weights();
  double sum_of_weights() const;
  double of_operator(std::size_t op, const Window& window, const Allowed* allowed, Scratch& scratch) const;
  std::size_t groups() const;  // of ways: one micro-batch and degree, one way for each kind
  Passes passes_of(const Way& way, std::size_t op, const Window& window) const;
  void price_memory(const Way& way, std::size_t op, const Window& window, Passes& passes) const;
  template <typename F>
  void for_each_width(const Replicas& replicas, F f) const;
  double of_way(const Way& way, std::size_t op, const Window& window, const Replicas& replicas) const;
  double of_kinds(std::span<const Way> ways, std::size_t op, const Window& window, const Replicas& replicas,
                  Scratch& scratch) const;
  double least_of_kinds(const Window& window, const Replicas& replicas, Scratch& scratch) const;
  double of_update(double bytes, const Window& window) const;

  const Known& known_;
  const LeastCosts& costs_;
  const OnePlace place_;
  std::size_t kinds_ = 1;  // of which there are devices
  bool one_kind_ = true;
  std::vector<double> weight_;  // by kind
  double all_ = 0;
  double once_ = 0;  // what some stage takes beside
};

struct SpreadTime {
  double time = 0;        // of a step
  double fill_drain = 0;  // of that
  double memory = 0;      // of that: since devices have room for few micro-batches and few replicas
  Window window = {};     // that says so
};
SpreadTime spread_time(const Known& known, const Spread& work);

// The longest step that is too short for the replicas that it needs: no plan is faster. At least `time`, a
// bound that is known; not much more than half as much again.
double replicated_time(const Known& known, const Spread& work, const Window& window, double time);

}  // namespace espalier::internal
