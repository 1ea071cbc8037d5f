#include "espalier/app/chosen_orders.h"

#include <filesystem>

#include "espalier/base/check.h"
#include "espalier/base/files.h"

namespace espalier {

namespace fs = std::filesystem;

ChosenOrders choose_orders(const std::string& text) {
  const bool is_rule = parse_schedule_kind(text.substr(0, text.find(','))).has_value();
  std::error_code ignored;
  try {
    if (is_rule || !fs::exists(text, ignored)) return {.rule = parse_order_rule(text)};
  } catch (const InputError& error) {
    throw InputError(std::string("--schedule ") + error.what() +
                     (is_rule ? "" : ", their parameters (`espalier planners`), or a schedule file"));
  }
  return {.rule = {}, .file = ChosenOrders::File{text, read_file(text)}};
}

}  // namespace espalier
