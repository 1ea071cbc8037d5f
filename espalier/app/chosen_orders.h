#pragma once

#include <optional>
#include <string>

#include "espalier/plan/orders.h"

namespace espalier {

// Orders as a user names them: a rule, or the text of a schedule file (schedule/order_file.h), which means
// something for a plan with its stages and devices only.
struct ChosenOrders {
  OrderRule rule = {};  // what planners judge by
  struct File {
    std::string path;
    std::string text;
  };
  std::optional<File> file = {};
};
// A rule's text or a file's path. Throws InputError where it is neither.
ChosenOrders choose_orders(const std::string& text);

}  // namespace espalier
