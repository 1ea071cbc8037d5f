#pragma once

// The best of several orders of one staged model, as the simulator sees them.

#include <optional>

#include "espalier/sim/order_judge.h"

namespace espalier {

// How much the devices lack together; none where the order fits.
Bytes lack_of(const Evaluation& evaluation, const Cluster& cluster);

class BestOrder {
 public:
  // Refers to both.
  BestOrder(OrderJudge& judge, const Cluster& cluster) : judge_(judge), cluster_(cluster) {}

  // Judges the lists, which must keep the rules of check_schedule apart from `deadlock`, and keeps them if
  // they are better: those that run, then those that lack less memory, then the faster; of equals the first.
  const Evaluation& consider(const OrderLists& lists);

  const std::optional<OrderLists>& lists() const { return lists_; }  // none: all deadlock
  const Evaluation& evaluation() const { return evaluation_; }       // of `lists`
  Bytes lack() const { return lack_; }

 private:
  OrderJudge& judge_;
  const Cluster& cluster_;
  std::optional<OrderLists> lists_;
  Evaluation evaluation_, last_;
  Bytes lack_;
};

}  // namespace espalier
