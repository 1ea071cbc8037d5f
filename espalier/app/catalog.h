#pragma once

// What the program contains, by name. A new planner is one line in catalog.cc.

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/graph/orders.h"
#include "espalier/planners/automatic.h"
#include "espalier/planners/planner.h"

namespace espalier {

struct PlannerEntry {
  std::string name;
  std::string source;   // the paper or system it follows
  std::string decides;  // one line
  std::string shape;    // "chain", "graph", "one device", "placement": the plans it can find
  std::function<Outcome(const Problem&, const OrderRule&, Context&)> plan;
  std::uint32_t shares = 0;   // of a budget that it has with others; 0: it takes no states
  bool asked_by_auto = true;  // and shown by `compare` unless told which, as auto is
  bool learned = false;       // needs libtorch: whoever has it passes it on (LearnedPlanner), `plan` refuses
};

inline constexpr std::string_view kAutomatic = "auto";
inline constexpr std::string_view kLocalSearch = "local-search";  // of placements
// In the order in which they are shown and compared; kAutomatic, which begins with the others, last.
const std::vector<PlannerEntry>& planner_catalog();

// The policy that places operators (learned/gdp.h), and the search that begins with its answer too.
inline constexpr std::string_view kGdp = "gdp", kGdpSearch = "gdp-search";
// A fresh policy that learns the model that it is given, and what it is compared with, which does too
// (learned/hdp.h, learned/cross_entropy.h, learned/placeto.h).
inline constexpr std::string_view kGdpOne = "gdp-one";
inline constexpr std::string_view kHdp = "hdp", kCrossEntropy = "cross-entropy", kPlacetoPlanner = "placeto";
// A policy that improves what placers find (learned/relocation.h).
inline constexpr std::string_view kGiph = "giph";

// Placers of the order study that need libtorch (placement::placeto_by_name).
inline constexpr std::array<std::string_view, 5> kLearnedOrdered{
    kPlacetoPlanner, "placeto-graphsage", "placeto-p-gnn", "placeto-literature", "placeto-flipped"};
// How placeto may see where nodes lie (placement::PlacetoEmbedding).
inline constexpr std::array<std::string_view, 3> kPlacetoEmbeddings{"message-passing", "graphsage", "p-gnn"};

// The planner of plans with several stages a device (planners/pipeline/looped.h).
inline constexpr std::string_view kLooped = "looped";

// Throws InputError with the nearest name.
const PlannerEntry& find_planner(std::string_view name);

// Those that "auto" asks, with that schedule.
std::vector<NamedPlanner> named_planners(const OrderRule& schedule);

struct ScheduleEntry {
  std::string text;  // as --schedule takes it
  std::string source;
  std::string what;
};
const std::vector<ScheduleEntry>& schedule_catalog();

// Orders in which placers walk a graph (graph/orders.h).
struct OrderEntry {
  TraversalOrder order;
  std::string what;
};
const std::vector<OrderEntry>& order_catalog();

// Throws InputError with the nearest name.
TraversalOrder find_order(std::string_view name);

}  // namespace espalier
