#pragma once

// What a staged model takes in one order after another: for whoever searches orders, where stages and costs
// stay as they are. Equal to the full simulation to the nanosecond and byte, by test; some microseconds for
// each device plus some tens of nanoseconds for each action and message.

#include <memory>

#include "espalier/plan/staged_model.h"
#include "espalier/sim/evaluator.h"

namespace espalier {

class OrderJudge {
 public:
  // Keeps a reference to the cluster; the model is copied.
  OrderJudge(const StagedModel& model, const Cluster& cluster);
  ~OrderJudge();
  OrderJudge(OrderJudge&&) noexcept;

  // The lists must keep the rules of check_schedule apart from `deadlock`, which is a verdict. In-flight
  // limits are what they hold. Not for two threads at a time.
  Evaluation judge(const OrderLists& lists);

  std::uint64_t judged() const;  // orders so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace espalier
