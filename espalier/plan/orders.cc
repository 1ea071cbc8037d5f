#include "espalier/plan/orders.h"

#include <algorithm>

#include "espalier/base/words.h"

namespace espalier {
namespace {

constexpr std::int64_t kMaxGroup = 1 << 20;

std::vector<std::uint32_t> parse_groups(std::string_view text) {
  std::vector<std::uint32_t> groups;
  for (bool more = true; more;) {
    const std::size_t slash = text.find('/');
    groups.push_back(static_cast<std::uint32_t>(parse_integer(text.substr(0, slash), 1, kMaxGroup)));
    more = slash != std::string_view::npos;
    if (more) text.remove_prefix(slash + 1);
  }
  const bool all_one = std::all_of(groups.begin(), groups.end(), [](std::uint32_t k) { return k == 1; });
  if (all_one) groups.clear();
  return groups;
}

void parse_parameter(std::string_view text, OrderRule& rule) {
  if (text == "split") {
    rule.backward = OrderRule::Backward::kSplit;
  } else if (text == "edition=1") {
    rule.edition = OrderRule::Edition::kFirst;
  } else if (text.rfind("k=", 0) == 0 && rule.kind == ScheduleKind::kOneFOneB) {
    rule.group = parse_groups(text.substr(2));
  } else {
    throw InputError("'" + std::string(text.substr(0, 60)) + "' is not known; expected " +
                     (rule.kind == ScheduleKind::kOneFOneB ? "k=N, k=N/N/… or split" : "split"));
  }
}

}  // namespace

std::string_view to_text(ScheduleKind kind) {
  return kind == ScheduleKind::kGPipe ? "gpipe" : "1f1b";
}

std::optional<ScheduleKind> parse_schedule_kind(std::string_view text) {
  for (const ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::kOneFOneB}) {
    if (to_text(kind) == text) return kind;
  }
  return std::nullopt;
}

std::string to_text(const OrderRule& rule) {
  std::string text(to_text(rule.kind));
  for (std::size_t i = 0; i < rule.group.size(); ++i) {
    text += (i == 0 ? ",k=" : "/") + std::to_string(rule.group[i]);
  }
  if (rule.backward == OrderRule::Backward::kSplit) text += ",split";
  if (rule.edition == OrderRule::Edition::kFirst) text += ",edition=1";
  return text;
}

OrderRule parse_order_rule(std::string_view text) {
  const std::string shown = "'" + std::string(text.substr(0, 60)) + "'";
  const auto kind = parse_schedule_kind(text.substr(0, text.find(',')));
  if (!kind) throw InputError(shown + " is not known; expected 1f1b or gpipe");
  OrderRule rule(*kind);
  for (std::size_t comma = text.find(','); comma != std::string_view::npos; comma = text.find(',')) {
    text.remove_prefix(comma + 1);
    try {
      parse_parameter(text.substr(0, text.find(',')), rule);
    } catch (const InputError& error) {
      throw InputError(shown + ": " + error.what());
    }
  }
  return rule;
}

std::string to_text(const Orders& orders) {
  return orders.rule() ? to_text(*orders.rule()) : "lists";
}

std::vector<std::uint32_t> in_flight_of(const OrderLists& lists, std::size_t stages) {
  std::vector<std::uint32_t> most(stages, 1), held(stages);
  for (const std::vector<Step>& list : lists) {
    std::fill(held.begin(), held.end(), 0);
    for (const Step& step : list) {
      if (once_per_step(step.kind) || step.stage().index() >= stages) continue;
      std::uint32_t& here = held[step.stage().index()];
      if (step.kind == ActionKind::kForward) {
        ++here;
        most[step.stage().index()] = std::max(most[step.stage().index()], here);
      } else if (step.kind == ActionKind::kBackward || step.kind == ActionKind::kWeightGradient) {
        if (here > 0) --here;
      }
    }
  }
  return most;
}

}  // namespace espalier
