#include "espalier/planners/orders/named_orders.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/planners/orders/search.h"
#include "espalier/planners/orders/zero_bubble.h"
#include "espalier/schedule/dual_pipe_v.h"
#include "espalier/schedule/interleaved.h"
#include "espalier/schedule/v_schedules.h"
#include "espalier/schedule/zero_bubble.h"

namespace espalier {
namespace {

using Maker = NamedOrders::Maker;

constexpr std::array<std::pair<std::string_view, Maker>, 10> kNames{{{"interleaved", Maker::kInterleaved},
                                                                     {"zb-h1", Maker::kZbH1},
                                                                     {"zb-h2", Maker::kZbH2},
                                                                     {"zb-greedy", Maker::kZbGreedy},
                                                                     {"zbv", Maker::kZbV},
                                                                     {"v-half", Maker::kVHalf},
                                                                     {"v-min", Maker::kVMin},
                                                                     {"v-flex", Maker::kVFlex},
                                                                     {"dualpipev", Maker::kDualPipeV},
                                                                     {"search", Maker::kSearch}}};

// "chunks=4" with the key "chunks": 4.
std::optional<std::uint32_t> value_of(std::string_view parameter, std::string_view key) {
  if (parameter.substr(0, key.size()) != key || parameter.substr(key.size(), 1) != "=") return std::nullopt;
  const std::string_view digits = parameter.substr(key.size() + 1);
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 1 || value > 1 << 20) {
    return std::nullopt;
  }
  return value;
}

std::string parameters_of(Maker maker) {
  if (maker == Maker::kInterleaved) return "split, chunks=N";
  if (maker == Maker::kVFlex) return "halves=N, which it needs";
  return maker == Maker::kZbGreedy || maker == Maker::kZbV ? "limit=N" : "none";
}

[[noreturn]] void refuse_parameters(Maker maker, std::string_view text) {
  throw InputError("'" + std::string(text.substr(0, 80)) + "': its parameters are " + parameters_of(maker));
}

void add_parameter(NamedOrders& orders, std::string_view parameter, std::string_view text) {
  if (orders.maker == Maker::kInterleaved) {
    if (parameter == "split" && !orders.split) {
      orders.split = true;
      return;
    }
    if (!orders.chunks && (orders.chunks = value_of(parameter, "chunks"))) return;
  }
  const bool limited = orders.maker == Maker::kZbGreedy || orders.maker == Maker::kZbV;
  if (limited && !orders.limit && (orders.limit = value_of(parameter, "limit"))) return;
  const bool flexible = orders.maker == Maker::kVFlex;
  if (flexible && !orders.halves && (orders.halves = value_of(parameter, "halves"))) return;
  refuse_parameters(orders.maker, text);
}

}  // namespace

std::optional<StageLine::Layout> NamedOrders::layout() const {
  switch (maker) {
    case Maker::kInterleaved:
      return StageLine::Layout::kLoop;
    case Maker::kZbV:
    case Maker::kVHalf:
    case Maker::kVMin:
    case Maker::kVFlex:
    case Maker::kDualPipeV:
      return StageLine::Layout::kV;
    default:
      return std::nullopt;
  }
}

std::string to_text(const NamedOrders& orders) {
  std::string text;
  for (const auto& [name, maker] : kNames) {
    if (maker == orders.maker) text = name;
  }
  if (orders.split) text += ",split";
  if (orders.chunks) text += ",chunks=" + std::to_string(*orders.chunks);
  if (orders.limit) text += ",limit=" + std::to_string(*orders.limit);
  if (orders.halves) text += ",halves=" + std::to_string(*orders.halves);
  return text;
}

std::optional<NamedOrders> parse_named_orders(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(','));
  for (const auto& [known, maker] : kNames) {
    if (known != name) continue;
    NamedOrders orders{.maker = maker};
    for (std::size_t at = name.size(); at < text.size();) {
      const std::size_t end = std::min(text.find(',', at + 1), text.size());
      add_parameter(orders, text.substr(at + 1, end - at - 1), text);
      at = end;
    }
    if (maker == Maker::kVFlex && !orders.halves) refuse_parameters(maker, text);
    return orders;
  }
  return std::nullopt;
}

GeneratedOrders make_orders(const NamedOrders& orders, const StagedModel& model, const Cluster& cluster) {
  const std::size_t devices = cluster.devices().size();
  switch (orders.maker) {
    case Maker::kInterleaved: {
      if (orders.chunks) {
        FoundLine found = find_line(model, StageLine::Layout::kLoop, *orders.chunks);
        if (!found.line) return {{}, std::move(found.why_not)};
      }
      return interleaved(model, devices,
                         orders.split ? OrderRule::Backward::kSplit : OrderRule::Backward::kWhole);
    }
    case Maker::kZbH1:
      return zero_bubble_h1(model, devices);
    case Maker::kZbH2:
      return zero_bubble_h2(model, devices);
    case Maker::kZbGreedy:
      return zero_bubble_greedy(model, cluster, orders.limit);
    case Maker::kZbV:
      return zero_bubble_v(model, cluster, orders.limit);
    case Maker::kVHalf:
      return v_half(model, devices);
    case Maker::kVMin:
      return v_min(model, devices);
    case Maker::kVFlex:
      return v_flex(model, devices, orders.halves.value());
    case Maker::kDualPipeV:
      return dual_pipe_v(model, devices);
    case Maker::kSearch: {
      SearchedOrder found = search_order(model, cluster);
      if (!found.lists) return {{}, "no order that is known for it runs"};
      return {std::move(found.lists), ""};
    }
  }
  ESP_CHECK(false, static_cast<int>(orders.maker));
  return {};
}

}  // namespace espalier
