#include <algorithm>
#include <tuple>

#include "espalier/planners/linear_program.h"
#include "espalier/planners/placement/baechi.h"
#include "espalier/planners/placement/ranks.h"

// symbol of the paper          name here
//   p_i, c_ij                  MeanCosts::time, FavouriteEdge::message
//   x_ij, s_i, w               columns of the program
//
// How we deviate: times are means over devices; tasks that stand together anyhow have no message and no
// favourite between them; a pair joined by several values has the longest message of them. Several values of
// one task to different children are edges of their own, as in the paper.

namespace espalier::placement {
namespace {

struct FavouriteEdge {
  TaskId from, to;
  Duration message;
};

// Pairs that may stand apart, by producer and reader.
std::vector<FavouriteEdge> edges_between(const Instance& instance, const MeanCosts& mean) {
  std::vector<FavouriteEdge> edges;
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    for (const ValueId value : instance.produces[t]) {
      for (const TaskId reader : instance.readers[value.index()]) {
        edges.push_back({TaskId(t), reader, mean.message[value.index()]});
      }
    }
  }
  std::sort(edges.begin(), edges.end(), [](const FavouriteEdge& a, const FavouriteEdge& b) {
    return std::tuple(a.from, a.to, -a.message) < std::tuple(b.from, b.to, -b.message);
  });
  const auto same = [](const FavouriteEdge& a, const FavouriteEdge& b) {
    return a.from == b.from && a.to == b.to;
  };
  edges.erase(std::unique(edges.begin(), edges.end(), same), edges.end());
  return edges;
}

bool may_be_favourite(const Instance& instance, const FavouriteEdge& edge) {
  return instance.unit[edge.from.index()] != instance.unit[edge.to.index()];
}

Favourites greedy_favourites(const Instance& instance, const MeanCosts& mean,
                             std::vector<FavouriteEdge> edges) {
  const std::vector<Duration> up = upward_ranks(instance, mean), down = downward_ranks(instance, mean);
  const auto way = [&](const FavouriteEdge& edge) {
    return down[edge.from.index()] + mean.time[edge.from.index()] + edge.message + up[edge.to.index()];
  };
  std::sort(edges.begin(), edges.end(), [&](const FavouriteEdge& a, const FavouriteEdge& b) {
    return std::tuple(-way(a), -a.message, a.from, a.to) < std::tuple(-way(b), -b.message, b.from, b.to);
  });
  Favourites favourite(instance.tasks());
  std::vector<bool> taken(instance.tasks());
  for (const FavouriteEdge& edge : edges) {
    if (!may_be_favourite(instance, edge) || favourite[edge.from.index()] || taken[edge.to.index()]) continue;
    favourite[edge.from.index()] = edge.to;
    taken[edge.to.index()] = true;
  }
  return favourite;
}

// Columns: x by edge, then s by task, then w. Times are in units of the longest way, so that all figures lie
// near 1.
LinearProgram program_of(const Instance& instance, const MeanCosts& mean,
                         const std::vector<FavouriteEdge>& edges, double unit) {
  const auto scaled = [&](Duration time) { return static_cast<double>(time.count()) / unit; };
  LinearProgram program;
  for (const FavouriteEdge& edge : edges) {
    const bool may = may_be_favourite(instance, edge);
    program.add_column({.cost = 0, .lower = 0, .upper = may ? 1.0 : 0.0});
  }
  const std::size_t first_start = edges.size(), width = edges.size() + instance.tasks();
  for (std::size_t t = 0; t < instance.tasks(); ++t) program.add_column({});
  program.add_column({.cost = 1});
  for (std::size_t e = 0; e < edges.size(); ++e) {
    const std::uint32_t row = program.add_row({.lower = scaled(mean.time[edges[e].from.index()])});
    program.entries.push_back({row, narrow(first_start + edges[e].to.index()), 1});
    program.entries.push_back({row, narrow(first_start + edges[e].from.index()), -1});
    program.entries.push_back({row, narrow(e), -scaled(edges[e].message)});
  }
  std::vector<std::vector<std::uint32_t>> of_parent(instance.tasks()), of_child(instance.tasks());
  for (std::size_t e = 0; e < edges.size(); ++e) {
    if (!may_be_favourite(instance, edges[e])) continue;
    of_parent[edges[e].from.index()].push_back(narrow(e));
    of_child[edges[e].to.index()].push_back(narrow(e));
  }
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    const std::uint32_t row = program.add_row({.lower = scaled(mean.time[t])});
    program.entries.push_back({row, narrow(width), 1});
    program.entries.push_back({row, narrow(first_start + t), -1});
    for (const std::vector<std::uint32_t>* some : {&of_parent[t], &of_child[t]}) {
      if (some->empty()) continue;
      const std::uint32_t one = program.add_row({.lower = static_cast<double>(some->size()) - 1});
      for (const std::uint32_t e : *some) program.entries.push_back({one, e, 1});
    }
  }
  return program;
}

}  // namespace

Favourites favourite_children(const Instance& instance, FavouriteRule rule) {
  const MeanCosts mean(instance);
  std::vector<FavouriteEdge> edges = edges_between(instance, mean);
  if (rule == FavouriteRule::kGreedy) return greedy_favourites(instance, mean, std::move(edges));
  Duration longest(1);
  for (const Duration rank : upward_ranks(instance, mean)) longest = std::max(longest, rank);
  const std::optional<LinearSolution> solution =
      solve(program_of(instance, mean, edges, static_cast<double>(longest.count())));
  if (!solution) return greedy_favourites(instance, mean, std::move(edges));
  Favourites favourite(instance.tasks());
  std::vector<bool> taken(instance.tasks());
  for (std::size_t e = 0; e < edges.size(); ++e) {
    // Two x of one row cannot both lie below 1/2; rounding of the solver is kept out by the margin.
    if (!may_be_favourite(instance, edges[e]) || solution->x[e] > 0.5 - 1e-6) continue;
    if (favourite[edges[e].from.index()] || taken[edges[e].to.index()]) continue;
    favourite[edges[e].from.index()] = edges[e].to;
    taken[edges[e].to.index()] = true;
  }
  return favourite;
}

}  // namespace espalier::placement
