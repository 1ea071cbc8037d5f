#pragma once

// DAPPLE's planner (Fan et al., "DAPPLE: A Pipelined Data Parallel Approach for Training Large Models",
// PPoPP 2021, arXiv 2007.01045, section 4): a chain of stages with replicas, ranked by the time of a whole
// synchronous step instead of the slowest stage.
//
// A layer's figures are those of one micro-batch. A stage s of r replicas splits each micro-batch among them:
// F_s = forward / r, B_s = backward / r. What passes between two stages is a stage of its own (F = B = the
// time of the message). With M micro-batches a step takes
//
//   warm-up  Σ F_s up to Q     steady  (M − 1)·(F_Q + B_Q)
//   ending   the largest over s of AR_s + Σ B_a, a = s … Q     (s up to Q)
//                                  AR_s − Σ B_a, a = Q … s     (s behind Q)
//
// where the pivot Q is the last stage, or an earlier one s whose (M − 1)·(F_s + B_s) is more than the pivot's
// and all F + B between them. AR_s = 2·(r − 1)/r · weights / bandwidth.
//
// Which devices a stage gets is one of three rules, machine by machine:
//   fresh first     machines that nobody uses, then the others: a stage stays on one machine
//   append first    machines in use, then fresh ones: no gaps
//   scatter first   one device of each machine in turn: heavy transfers leave over all of them
//
// What the paper leaves open is ours: a message of b bytes between r and r' replicas takes
// b / (min(r, r')·bandwidth); the bandwidth is the inner one where all devices concerned are on one machine.
// Memory is not looked at, as in the authors' search.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "espalier/frontend/published.h"

namespace espalier::literal {

struct DappleOptions {
  std::int64_t devices_per_machine = 1, machines = 1;
  double inner_bandwidth = 25e9, outer_bandwidth = 1e9;  // bytes per second
  std::int64_t micro_batches = 8;
  std::uint64_t max_plans = 5'000'000;  // that are priced
};

struct DappleStage {
  std::vector<std::size_t> nodes;     // numbers in the profile, in the order of the sequence
  std::vector<std::int64_t> devices;  // how many on each machine
  friend bool operator==(const DappleStage&, const DappleStage&) = default;
};

struct DappleResult {
  std::vector<DappleStage> stages;
  double time = 0;        // of a step, ms
  double one_device = 0;  // the same work on one device, ms
  std::size_t pivot = 0;  // of the stages
  std::uint64_t plans = 0;
  std::string why;  // no answer: the reason; else empty
  bool found() const { return why.empty(); }
};

// A step of these stages, by the formulas above; a pivot that is a message counts as the stage before it.
struct DappleTime {
  double milliseconds = 0;
  std::size_t pivot = 0;
};
DappleTime dapple_time(const PipedreamProfile& profile, const std::vector<DappleStage>& stages,
                       const DappleOptions& options);

// The profile's nodes as a sequence (layer_sequence.h). For each number of layers placed and devices used on
// each machine the best beginning of a plan is kept, judged with all other layers as one stage on all other
// devices; the answer is the best of those whole plans. A heuristic: the best beginning need not be the best
// plan's. O(layers² · (devices per machine + 1)^machines · devices) plans; no answer above max_plans. Throws
// InputError for a graph with a cycle, and options that are not positive.
DappleResult dapple(const PipedreamProfile& profile, const DappleOptions& options);

// What is wrong with a result, from the profile alone; empty if nothing is.
std::vector<std::string> check_dapple(const PipedreamProfile& profile, const DappleOptions& options,
                                      const DappleResult& result);

}  // namespace espalier::literal
