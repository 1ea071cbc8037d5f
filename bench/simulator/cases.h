#pragma once

// The plans that the evaluator is timed with: 8 stages × 32 micro-batches at random cuts of a graph of
// layers, each case with something that plans may have.

#include <string>
#include <vector>

#include "espalier/base/rng.h"
#include "espalier/cost/cost_table.h"
#include "espalier/plan/plan.h"
#include "espalier/schedule/schedule.h"

namespace espalier::bench {

enum class Case {
  kChain,       // one tensor from layer to layer
  kSkips,       // a skip over every second layer
  kShared,      // 8 stages on 4 devices, each device two that are not neighbours
  kSplit,       // lists: I, and W one backward later
  kTwoAtATime,  // two backwards, two forwards
  kUnequal,     // micro-batches of 4 and 8 samples in turn
  kReplicas,    // two replicas each, on 16 devices
  kRecompute,   // all recomputed
  kEndpoints,   // messages take compute time at both ends
  kFar,         // every eighth layer reads a mask that each stage makes for itself
  kOwnShapes    // two replicas each on any two of 8 devices, with any shares: no two plans have one shape
};
inline constexpr Case kCases[] = {Case::kChain,      Case::kSkips,   Case::kShared,   Case::kSplit,
                                  Case::kTwoAtATime, Case::kUnequal, Case::kReplicas, Case::kRecompute,
                                  Case::kEndpoints,  Case::kFar,     Case::kOwnShapes};
std::string name_of(Case which);

Cluster one_switch(std::size_t devices, EndpointCost ends = {});

// A chain of layers; each has a weight and keeps its input.
struct Layers {
  Graph graph;
  CostTable costs;
};
Layers layered_graph(std::size_t operators, Case which, Rng& rng);

Training training();

struct Problem {
  Layers layers;
  Cluster cluster;
  Training training;
};
Problem make_problem(Case which, std::size_t operators, std::size_t stages, Rng& rng);

PipelinePlan random_cuts(const Problem& problem, Case which, std::size_t stages, Rng& rng);

}  // namespace espalier::bench
