#pragma once

// Schedules that are made for one plan, by name: what `--schedule` takes beside rules and files.
//
//     interleaved  interleaved,split  interleaved,chunks=2  zb-h1  zb-h2  zb-greedy  zb-greedy,limit=8
//     zbv  zbv,limit=4  v-half  v-min  v-flex,halves=9  dualpipev  search

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "espalier/cluster/cluster.h"
#include "espalier/schedule/stage_line.h"

namespace espalier {

struct NamedOrders {
  enum class Maker : std::uint8_t {
    kInterleaved,
    kZbH1,
    kZbH2,
    kZbGreedy,
    kZbV,
    kVHalf,
    kVMin,
    kVFlex,
    kDualPipeV,
    kSearch,
  } maker = Maker::kInterleaved;
  bool split = false;                        // interleaved
  std::optional<std::uint32_t> chunks = {};  // interleaved: stages of each device; none: as the plan has them
  std::optional<std::uint32_t> limit = {};  // zb-greedy, zbv: micro-batches that a device holds; none: memory
  std::optional<std::uint32_t> halves =
      {};  // v-flex: micro-batches of one of its two stages that a device holds
  friend bool operator==(const NamedOrders&, const NamedOrders&) = default;

  // What plans they are made for, where that is a line of several stages a device.
  std::optional<StageLine::Layout> layout() const;
  // Whether they are made for chains of stages on one device each; else for any plan.
  bool needs_line() const { return maker != Maker::kSearch; }
};
std::string to_text(const NamedOrders& orders);

// Nothing if the text does not begin with such a name. Throws InputError "'zbv,k=2': …".
std::optional<NamedOrders> parse_named_orders(std::string_view text);

// Deterministic. What it takes: the makers' headers; search_order with its own budget.
GeneratedOrders make_orders(const NamedOrders& orders, const StagedModel& model, const Cluster& cluster);

}  // namespace espalier
