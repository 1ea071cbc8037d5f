#pragma once

// PipeDream's optimizer ("PipeDream: Generalized Pipeline Parallelism for DNN Training", Narayanan et al.,
// SOSP 2019, section 3.1), in the model of its published program, traps included (docs/peers.md).
//
// States are the antichains of the profile's graph that are reachable from its first source, each with the
// nodes before it whose outputs are still needed ("augmented"); a state stands for all nodes up to it, its
// output for the activations of the augmented antichain. A stage is what a later state has more than an
// earlier one from which it can be reached. `Input…` sources and `__getitem__…` sinks are dropped first.
//
// Devices form levels, innermost first, each with a bandwidth b (bytes/s). With W bytes of weights and r
// replicas a stage takes, in seconds per mini-batch,
//
//   (T + 4·(r − 1)·W/(b·r)) / r,   T = Σ (forward + backward)/1000, or the level below's time of that stage
//
// and where transfers are charged at least 2·(bytes in)/(b·r) and 2·(bytes out)/(b·r). The first stage pays
// no transfer. A level with one stage alone divides its all-reduce once more, by the devices of the level
// below.
//
// Objective: the slowest stage, with all devices of every level in use.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "espalier/frontend/published.h"

namespace espalier::literal {

struct PipedreamLevel {
  std::int64_t devices = 1;  // of this level, each of them all of the level below
  double bandwidth = 1e9;    // bytes per second
};

struct PipedreamOptions {
  std::vector<PipedreamLevel> levels = {};  // innermost first; at least one
  // Divides activations on their way between stages. Nothing: such transfers are not charged at all, which
  // is how the authors' program runs unless asked.
  std::optional<double> compression = 1;
  // Bytes of a device. The authors' rule: (activations + weights of a stage)·⌈(devices behind it)/replicas⌉,
  // which is nothing for the last stage.
  std::optional<double> memory = {};
  bool straight = false;            // no stage is replicated
  std::size_t max_states = 10'000;  // antichains
};

struct PipedreamStage {
  std::vector<std::size_t> nodes;      // numbers in the profile, ascending
  std::vector<std::int64_t> replicas;  // by level, innermost first
  std::vector<std::size_t> segment;    // by level: which of the level's stages it is a part of
  friend bool operator==(const PipedreamStage&, const PipedreamStage&) = default;
};

struct PipedreamResult {
  double time = 0;           // seconds per mini-batch: of the slowest stage
  double one_device = 0;     // of all nodes on one device
  double data_parallel = 0;  // of all nodes, replicated on all devices
  std::vector<PipedreamStage> stages;
  std::vector<std::size_t> unplaced;  // nodes that no state holds, dropped ones too
  std::string why;                    // no answer: the reason; else empty

  std::size_t states = 0;
  std::uint64_t splits = 0;  // looked at: state, split, replicas
  bool found() const { return why.empty(); }
};

// A[j][m] = the least over k before j and r ≤ m of max(A[k][m − r], time of the stage between on r): O(S²·m²)
// at the outermost level, O(S³·m²) at the others, which need it from every state on. Throws InputError for
// levels without devices or bandwidth, a graph with a cycle, and one without a node left.
PipedreamResult pipedream_optimizer(const PipedreamProfile& profile, const PipedreamOptions& options);

// What is wrong with a result, by the definition above and from the profile alone; empty if nothing is.
std::vector<std::string> check_pipedream_optimizer(const PipedreamProfile& profile,
                                                   const PipedreamOptions& options,
                                                   const PipedreamResult& result);

}  // namespace espalier::literal
