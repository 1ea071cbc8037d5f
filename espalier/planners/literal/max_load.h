#pragma once

// The planners of "Efficient Algorithms for Device Placement of DNN Graph Operators" (Tarnawski,
// Phanishayee, Devanur, Mahajan, Nina Paravecino; NeurIPS 2020, section 5: throughput), in the model of
// their program: DP, exact over all downsets, and DPL, along one linear order.
//
// Machine: k accelerators with one memory limit, and CPUs without any. Every node stands on one device, all
// nodes of a colour on the same. Figures keep the file's units: times in ms, memory in bytes, and
// communication in whatever the file's `cost` is, which is seconds in the published throughput layer graphs.
//
// Load of a device = time of its nodes + for an accelerator, cost(u) of each source u whose output crosses
// its border: once if it holds u and anybody else reads it, once if it reads a u of another device. A CPU is
// at the memory through which all goes, and pays nothing. Forward and backward count together.
//
// Objective: the largest load, least over placements whose forward parts, device after device, form a chain
// of downsets; backward nodes stand with the forward nodes of their colour. It is the time per sample of a
// full pipeline.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "espalier/frontend/published.h"

namespace espalier::literal {

enum class MaxLoadSpace : std::uint8_t {
  kLinear,    // DPL: prefixes of one depth-first topological order
  kDownsets,  // DP: all downsets
  kAnywhere,  // any node on any device (max_load_search.h)
};

struct MaxLoadOptions {
  MaxLoadSpace space = MaxLoadSpace::kDownsets;
  std::optional<std::int64_t> accelerators = {}, cpus = {};  // instead of the file's
  std::optional<double> memory = {};                         // bytes per accelerator, instead of the file's
  std::size_t max_downsets = 60'000;                         // the authors' limit
};

struct MaxLoadDevice {
  bool accelerator = true;
  double load = 0;
  double communication = 0;  // part of it
  double bytes = 0;
  std::vector<std::size_t> nodes;  // numbers in the profile, ascending
  friend bool operator==(const MaxLoadDevice&, const MaxLoadDevice&) = default;
};

struct MaxLoadResult {
  double max_load = 0;                 // largest of the devices' loads
  std::vector<MaxLoadDevice> devices;  // those in use, from inputs to outputs
  std::string why;                     // no answer: the reason; else empty

  std::size_t items = 0;     // after contraction: colours, cycles, nodes without time
  std::size_t downsets = 0;  // of the items
  std::uint64_t pairs = 0;   // of nested downsets that were priced
  bool found() const { return why.empty(); }
};

// Contracts as the authors do, then takes pairs of nested downsets D' ⊂ D in order of D's time:
// best[D][c][a] = min over D' of max(best[D'] with one device less, load of D − D'). Pairs that cannot be
// part of a placement below DPL's max-load are never priced. The space is not kAnywhere. O(downsets² · items
// / 64) bit operations and O(pairs · (border + k·ℓ)); 16 bytes per downset and (c, a). Throws InputError
// where two edges of a source differ in cost, where edges form a cycle or lead from backward to forward
// nodes, naming the node.
MaxLoadResult max_load(const MsrProfile& profile, const MaxLoadOptions& options = {});

// A given placement in the same model, priced by the definition; no chain of downsets is asked for, and
// memory is not looked at, as in the authors' program. Nodes that it leaves out stand with their colour.
// Throws InputError where a node is not the profile's, stands twice or nowhere, a colour is divided, or a
// device is not there.
MaxLoadResult price_placement(const MsrProfile& profile, const MsrPlacement& placement,
                              const MaxLoadOptions& options = {});

// By node its device in the placement; nodes that it leaves out stand with their colour. Throws InputError as
// price_placement says.
std::vector<std::size_t> places_in(const MsrProfile& profile, const MsrPlacement& placement);

// By node the cost of its output, 0 where nobody reads it. Throws InputError where its edges differ in cost.
std::vector<double> output_costs(const MsrProfile& profile);

// What is wrong with a planner's result, by the definition above and from the profile alone; empty if nothing
// is. Whether a chain of downsets is asked for, the space says. O(nodes + edges) of hash tables.
std::vector<std::string> check_max_load(const MsrProfile& profile, const MaxLoadOptions& options,
                                        const MaxLoadResult& result);

}  // namespace espalier::literal
