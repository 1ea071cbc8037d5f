#pragma once

#include <optional>
#include <string>

#include "espalier/cluster/cluster.h"
#include "espalier/plan/orders.h"
#include "espalier/plan/staged_model.h"
#include "espalier/planners/orders/named_orders.h"

namespace espalier {

// Orders as a user names them: a rule; a schedule that is made for one plan, such as zbv; or the text of a
// schedule file (schedule/order_file.h; PyTorch's where its name ends in .csv). The last two mean something
// for a plan with its stages and devices only.
struct ChosenOrders {
  OrderRule rule = {};  // what planners judge by
  struct File {
    std::string path;
    std::string text;
  };
  std::optional<File> file = {};
  std::optional<NamedOrders> named = {};
  bool asked = false;  // by a user, who may mean the default

  bool for_one_plan() const { return file || named; }
  // Nobody asked for anything: the planner `auto` chooses orders, too.
  bool is_open() const { return !asked && !for_one_plan() && rule == OrderRule(); }
  std::string where() const;  // for messages: "orders.txt", "--schedule zbv"
};
// A rule's text, a name or a file's path. Throws InputError where it is none of them.
ChosenOrders choose_orders(const std::string& text);

// What they mean for this plan. Throws InputError "<where>: …" where they do not fit it; lists of a file may
// still break rules: check_schedule.
Orders orders_for(const ChosenOrders& chosen, const StagedModel& model, const Cluster& cluster);

}  // namespace espalier
