#include "espalier/app/chosen_orders.h"

#include <filesystem>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/schedule/order_file.h"
#include "espalier/schedule/pytorch_csv.h"

namespace espalier {

namespace fs = std::filesystem;

std::string ChosenOrders::where() const {
  return file ? file->path : "--schedule " + (named ? to_text(*named) : to_text(rule));
}

ChosenOrders choose_orders(const std::string& text) {
  const bool is_rule = parse_schedule_kind(text.substr(0, text.find(','))).has_value();
  std::error_code ignored;
  try {
    if (std::optional<NamedOrders> named = parse_named_orders(text))
      return {.rule = {}, .named = named, .asked = true};
    if (is_rule || !fs::exists(text, ignored)) return {.rule = parse_order_rule(text), .asked = true};
  } catch (const InputError& error) {
    throw InputError(std::string("--schedule ") + error.what() +
                     (is_rule ? "" : " (`espalier planners` lists all), or a schedule file"));
  }
  return {.rule = {}, .file = ChosenOrders::File{text, read_file(text)}, .asked = true};
}

Orders orders_for(const ChosenOrders& chosen, const StagedModel& model, const Cluster& cluster) {
  if (chosen.file) {
    const auto& [path, text] = *chosen.file;
    if (fs::path(path).extension() == ".csv") return Orders(parse_pytorch_csv(text, path, model, cluster));
    return parse_order_file(text, path, model, cluster);
  }
  if (!chosen.named) return Orders(chosen.rule);
  GeneratedOrders made = make_orders(*chosen.named, model, cluster);
  if (!made.lists) throw InputError(chosen.where() + ": " + made.why_not);
  return Orders(std::move(*made.lists));
}

}  // namespace espalier
