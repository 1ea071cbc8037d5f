#pragma once

// The placers of Baechi (Jeon et al., SoCC'20): list scheduling that knows each device's memory.
//
//   m_topo  fills the devices in turn, in an order of the graph, each up to an even share of the memory
//   m_etf   of all ready tasks and devices with room the pair that starts first (Hwang, Chow, Anger, Lee,
//           SIAM J. Comput.'89)
//   m_sct   the same with favourite children: a device waits a little for the child of what it just ran
//           (Hanen, Munier, small communication times; ETFA'95)
//
// They fit wherever repair (repair.h) finds a way to. Received tensors count in memory, which Baechi leaves
// out.

#include <optional>
#include <span>
#include <vector>

#include "espalier/placement/engine.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

// `order`: each unit once (units_in_order). O(tasks + reads), without repair.
Placed m_topo(const Instance& instance, std::span<const UnitId> order);

struct EtfOptions {
  Rules::Sends sends = Rules::Sends::kRoutes;
};

// d devices. O(tasks · d · log + reads · d).
Placed m_etf(const Instance& instance, const EtfOptions& options = {});

struct SctOptions {
  Rules::Sends sends = Rules::Sends::kRoutes;
  std::size_t max_edges = 2'000;  // of the linear program; with more, favourites are chosen greedily
};

// m_etf's, beside the linear program.
Placed m_sct(const Instance& instance, const SctOptions& options = {});

// The favourite child of each task, if it has one; a task is the favourite of one other at most. By linear
// program: x_ij = 0 where j is i's favourite, relaxed to [0, 1], those below 1/2 rounded down; least makespan
// w where
//   s_i + p_i + c_ij · x_ij ≤ s_j,  s_i + p_i ≤ w,
//   Σ_j x_ij ≥ |children(i)| - 1,  Σ_i x_ij ≥ |parents(j)| - 1
// Greedily: edges by the longest way through them, each where neither end has one yet.
using Favourites = std::vector<std::optional<TaskId>>;
enum class FavouriteRule : std::uint8_t { kLinearProgram, kGreedy };
Favourites favourite_children(const Instance& instance, FavouriteRule rule);

}  // namespace espalier::placement
