#pragma once

// What a placer is: a pure function from an instance, options and a work budget to one device for each unit.
//
//   Placed m_etf(const Instance&, const EtfOptions&);
//   Placed random_best(const Instance&, const RandomOptions&, Context&);
//
// What it returns fits: no device holds more than it has, where all that a device's units touch is held all
// step long (Rules::Memory::kAllHeld, memory_ledger.h). Searches and policies count what is held when
// (Rules::Memory::kLive), as the simulator does. Units stand where they are allowed.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/graph/orders.h"
#include "espalier/placement/engine.h"
#include "espalier/placement/instance.h"
#include "espalier/planners/context.h"

namespace espalier::placement {

class ProposalGuide;

// What a device would lack.
struct DeviceLack {
  DeviceId device;
  Bytes bytes;
  friend bool operator==(const DeviceLack&, const DeviceLack&) = default;
};

struct Placed {
  std::optional<Assignment> assignment = {};  // none: nothing that fits was found, `why` says what lacks
  std::optional<Duration> estimate = {};      // of the step: the placer's own figure, if it has one
  DeviceOrders orders = {};                   // what it would have devices run by; empty: it does not say
  std::string why = {};                       // with an assignment: what the placer says of it, if anything
  std::vector<Assignment> others = {};        // worth a look where fragments are judged, not operators
  std::vector<DeviceLack> lacks = {};         // where nothing fits: of the assignment that came closest
  SearchStats stats = {};
  bool unsupported =
      false;  // without an assignment: the instance is too large for this placer, `why` says in what
};

// What all placers are given by whoever calls them by name. Each takes of it what it uses.
struct PlacerInput {
  const Graph& graph;
  const Instance& instance;  // of that graph
  TraversalOrder order = TraversalOrder::kTopoGenerations;
  std::uint64_t seed = 1;
  std::vector<double> price_per_hour = {};  // by device; empty: nobody said what devices cost
  const ProposalGuide* guide = nullptr;     // of the search of placements; null: its changes are random
};

struct Placer {
  std::string name;
  std::string source;   // the paper or system it follows
  std::string decides;  // one line
  std::function<Placed(const PlacerInput&, Context&)> place;
  std::uint32_t shares = 0;  // of a budget that it has with others; 0: it takes no states
};

// All of them, in the order in which they are shown.
const std::vector<Placer>& placement_placers();

// Throws InputError with the nearest name.
const Placer& find_placer(std::string_view name);

// The units in the order in which an order of operators meets them first. O(tasks + operators).
std::vector<UnitId> units_in_order(const Instance& instance, std::span<const OperatorId> operators);

}  // namespace espalier::placement
