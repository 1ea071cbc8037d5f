#pragma once

// What Piper's planner and its baselines see of a profile: ways by degree, border bytes, limits. Internal to
// them.

#include <cstdint>
#include <optional>
#include <vector>

#include "espalier/frontend/published.h"
#include "espalier/planners/literal/downsets.h"
#include "espalier/planners/literal/piper.h"

namespace espalier::literal {

// A layer at one degree.
struct LayerWays {
  struct Way {
    double time = 0, per_micro_batch = 0, fixed = 0;
    bool recompute = false;
    double bytes(double y) const { return per_micro_batch * y + fixed; }
  };
  bool listed = false;
  Way fast;                  // the fastest; of equals the plain one
  std::optional<Way> other;  // what it may be swapped for
  double parameters = 0;
};

struct BorderEdge {
  std::uint32_t peer = 0;
  std::vector<double> bytes;  // by degree: what it costs the stage if the peer is not in it
};

struct PiperModel {
  std::int64_t devices = 1, micro_batches = 1;
  double memory = 0, bandwidth = 0;
  std::vector<std::uint32_t> degrees;          // of tensor parallelism, ascending
  std::vector<std::uint32_t> replicas;         // degrees of data parallelism, ascending
  std::vector<std::vector<LayerWays>> layers;  // by degree and layer
  std::vector<std::vector<BorderEdge>> edges;  // by layer, incoming then outgoing
  ItemLists after;                             // by layer: its readers, which stand in a downset before it
  std::int64_t most_s = 1;
  std::vector<double> work;   // by layer: the least device time
  std::vector<double> bytes;  // by layer: the least device bytes with one micro-batch in flight

  double stage_time(double compute, double border, double parameters, std::uint32_t d) const {
    const double n = d;
    const double exchanged = border / n + 4 * (n - 1) * parameters / n / static_cast<double>(micro_batches);
    return exchanged / bandwidth + compute / n;
  }
};

// Throws InputError as piper does.
PiperModel piper_model(const PiperProfile& profile, const PiperOptions& options);

}  // namespace espalier::literal
