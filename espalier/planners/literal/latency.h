#pragma once

// The other objective of dnn-partitioning (Tarnawski et al., NeurIPS 2020, section 4), in the model of its
// program: how long one sample takes.
//
// An accelerator's nodes are cut into pieces, so that none has to wait for another one's nodes in its middle:
//
//   piece(v) = of a node on the device: the most over its inputs u of piece(u), one more where u stands
//              elsewhere; at least 1. Of a node elsewhere: the most over its inputs, else 0.
//
// A piece starts when the values that it reads are at the host, loads each source once, runs its nodes one
// after the other and stores each output that others read once. Pieces of one device may overlap in time: the
// authors' program does not count that device as busy. A CPU runs a node as soon as it is ready, on as many
// cores as it takes, and pays for no communication.

#include <cstddef>
#include <string>
#include <vector>

#include "espalier/frontend/published.h"

namespace espalier::literal {

struct LatencyPiece {
  bool accelerator = true;
  std::size_t device = 0;  // in the placement
  double start = 0, end = 0;
  double communication = 0;        // part of it
  std::vector<std::size_t> nodes;  // numbers in the profile, ascending; of a CPU one
  friend bool operator==(const LatencyPiece&, const LatencyPiece&) = default;
};

struct LatencyResult {
  double latency = 0;
  double lack = 0;                   // bytes that accelerators lack together; the authors' program only warns
  std::vector<LatencyPiece> pieces;  // each after those that it waits for
  friend bool operator==(const LatencyResult&, const LatencyResult&) = default;
};

// Throws InputError where nodes form a cycle, a source's edges differ in cost, pieces of several devices wait
// for each other, a node may not run where it stands, and as price_placement does. Numbers of devices are not
// looked at. O(devices · edges + nodes · log nodes).
LatencyResult price_latency(const MsrProfile& profile, const MsrPlacement& placement);

// The longest path, each node where it is quickest: no placement has a smaller latency.
double latency_bound(const MsrProfile& profile);

// What is wrong with a result, by the definition above; empty if nothing is. Shares no code with it.
std::vector<std::string> check_latency(const MsrProfile& profile, const LatencyResult& result);

}  // namespace espalier::literal
