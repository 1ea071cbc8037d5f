#pragma once

// Work spread over devices, and when of a step they can do it. Internal to bounds.

#include <vector>

#include "espalier/bound/least_costs.h"

namespace espalier::internal {

// The beginning of a step up to `before`, and its last `after`. Nanoseconds.
struct Window {
  double before = 0, after = 0;
  // What of a pass can be in either, where so much must come before it and behind it.
  double of(double pass, double head, double tail) const;
};

class Spread {
 public:
  explicit Spread(const Known& known);

  // The least time in which the devices do what must be done between the two parts of the window.
  double between(Window window) const;

  // Times of a device of this kind count so much; of all devices together: 0 where some device does
  // everything in no time.
  double weight(std::size_t kind) const { return weight_[kind]; }
  double all() const { return all_; }
  bool one_kind() const { return one_kind_; }

 private:
  double load(const Way& way, std::size_t op) const;
  void weigh();
  double of_operator(std::size_t op, Window window) const;
  double of_way(const Way& way, std::size_t op, Window window) const;
  double of_update(double bytes, Window window) const;

  const Known& known_;
  const LeastCosts& costs_;
  bool one_kind_ = true;
  std::vector<double> weight_;  // by kind
  double all_ = 0;
  double once_ = 0;  // what some stage takes beside
};

struct SpreadTime {
  double time = 0;        // of a step
  double fill_drain = 0;  // of that
};
SpreadTime spread_time(const Known& known, const Spread& work);

}  // namespace espalier::internal
