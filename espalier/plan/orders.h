#pragma once

// In which order each device carries out a plan's actions: a rule with parameters, or a list for each device.
//
// A list names no micro-batches: of a stage the F on a device ascend, and so do its B and I together, its R
// and its W. So the n-th F belongs to the n-th micro-batch of the device's share, the n-th B or I as well,
// the n-th W to the n-th that was split into I and W. What a list leaves out as a whole is added where rules
// put it: R of a stage before each of its B or I, and an A, T or U that no list has at the end.
//
// Text: a rule is "gpipe", "1f1b", "1f1b,k=2", "1f1b,k=4/2/1", "1f1b,split"; a list is "3F 29(B F) 3B", on a
// device with several stages "2(img:F) txt:F …", a tie "T0". Both read back.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "espalier/base/words.h"
#include "espalier/plan/action.h"

namespace espalier {

enum class ScheduleKind : std::uint8_t { kGPipe, kOneFOneB };
std::string_view to_text(ScheduleKind kind);  // "gpipe", "1f1b"
std::optional<ScheduleKind> parse_schedule_kind(std::string_view text);

// What they mean, action by action: schedule/schedule.h.
struct OrderRule {
  ScheduleKind kind = ScheduleKind::kOneFOneB;

  // 1F1B: k of each stage, or one k for all; none: 1. A replica that is full takes k backwards, then k
  // forwards (kFkB: Ada-Grouper, arXiv 2303.01675).
  std::vector<std::uint32_t> group = {};

  // kSplit: the halves of backward are two actions, I as early as B would be, W when nothing else can run
  // (Qi et al., arXiv 2401.10241). A stage without weights keeps B.
  enum class Backward : std::uint8_t { kWhole, kSplit } backward = Backward::kWhole;

  // How a device with several stages, or limits that grow along an edge, count receive slots while the order
  // is made, and where the device's sums of gradients begin. kFirst: as plan files of version 1, a tensor
  // that is not saved frees its slot after F, so that the order depends on costs, and A come last. kSecond:
  // each slot is taken to the end of B, so it does not, forwards whose message holds up no other need no slot
  // to begin, and A comes right behind the last backward of its stage.
  enum class Edition : std::uint8_t { kFirst = 1, kSecond } edition = Edition::kSecond;

  // NOLINTNEXTLINE(google-explicit-constructor): a kind is the rule without parameters.
  OrderRule(ScheduleKind of = ScheduleKind::kOneFOneB) : kind(of) {}
  friend bool operator==(const OrderRule&, const OrderRule&) = default;

  std::uint32_t group_of(StageId stage) const {  // at least 1
    if (group.size() == 1) return group[0];
    return stage.index() < group.size() ? group[stage.index()] : 1;
  }
  // GPipe or 1F1B as they are, neither grouped nor split.
  bool is_plain() const { return group.empty() && backward == Backward::kWhole; }
};
std::string to_text(const OrderRule& rule);
// Throws InputError: "'1f1b,k=0': …".
OrderRule parse_order_rule(std::string_view text);

using OrderLists = std::vector<std::vector<Step>>;  // by DeviceId

class Orders {
 public:
  Orders() = default;
  Orders(ScheduleKind kind) : value_(OrderRule(kind)) {}  // NOLINT(google-explicit-constructor)
  Orders(OrderRule rule) : value_(std::move(rule)) {}     // NOLINT(google-explicit-constructor)
  explicit Orders(OrderLists lists) : value_(std::move(lists)) {}

  const OrderRule* rule() const { return std::get_if<OrderRule>(&value_); }  // null: lists
  const OrderLists* lists() const { return std::get_if<OrderLists>(&value_); }
  bool has_kind(ScheduleKind kind) const { return rule() != nullptr && rule()->kind == kind; }

  friend bool operator==(const Orders&, const Orders&) = default;

 private:
  std::variant<OrderRule, OrderLists> value_;
};
std::string to_text(const Orders& orders);  // the rule's text, or "lists"

// How many micro-batches of each stage a device has between the start of F and the end of B (of W where it is
// split) at most, by the lists; at least 1. What a rule takes from limits, a list decides itself.
std::vector<std::uint32_t> in_flight_of(const OrderLists& lists, std::size_t stages);

// What lists are written with.
struct OrderNames {
  std::vector<std::string> stages;
  std::vector<std::string> devices;
  std::vector<std::optional<StageId>> only;  // by device: its stage, if it has exactly one
  std::size_t ties = 0;
  std::size_t most_steps = 0;  // of one list
};
std::string print_order(const std::vector<Step>& list, DeviceId device, const OrderNames& names);
// Throws InputError "<where>: …". Words are those of split_words with punctuation "()".
std::vector<Step> parse_order(const std::vector<Word>& words, DeviceId device, const OrderNames& names,
                              const std::string& where);
std::vector<Step> parse_order(std::string_view text, DeviceId device, const OrderNames& names,
                              const std::string& where);

// A line "gpu0  3F 29(B F) 3B" for each device that has a list. '#' begins a comment.
std::string print_order_lists(const OrderLists& lists, const OrderNames& names);
OrderLists parse_order_lists(std::string_view text, const OrderNames& names);

}  // namespace espalier
