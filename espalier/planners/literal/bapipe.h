#pragma once

// BaPipe (Zhao et al., "BaPipe: Exploration of Balanced Pipeline Parallelism for DNN Training", arXiv
// 2012.12544): a chain of layers on n devices, balanced by compute, adjusted where messages take too long or
// memory lacks, in that one of its schedules of which closed forms say that it is the fastest that fits.
//
// From the paper: that order of steps, the four schedules, and what sets them apart. Two are for devices that
// compute while a message is still coming in (FPGAs), two for those that do not (GPUs). Without its text at
// hand the formulas are our reading. With M micro-batches, stages s = 1 … n, F_s, B_s of one micro-batch, C_s
// the longer message at its borders, one way, and C the longest of all:
//
//   schedule   a slot                              a step                     in flight at s
//   1F1B-AS    max over s of max(F, C) + max(B, C) (M + n − 1)·slot           n − s + 1
//   FBP-AS     max over s of max(F + B, C)         (M + n − 1)·slot           2(n − s) + 1
//   1F1B-SNO   max over s of F + B                 (M + n − 1)·slot +         n − s + 1
//              (messages not overlapped)           (M + n − 2)·2C
//   1F1B-SO    as 1F1B-AS                          (M + n − 1)·slot +         2(n − s) + 1
//              (overlapped)                        (n − 1)·2C
//
// FBP-AS goes forward and backward side by side, each on a part of the device; 1F1B-SO starts twice as many
// micro-batches, so that one is on its way while another is computed. No stage holds more than M. A stage
// holds twice its weights (their gradients) and, of each micro-batch in flight, its layers' outputs.
//
// A partition for a schedule: the least largest F + B of those that fit and cut at borders whose message
// takes no longer than the share Σ(F + B)/n of a stage; layers between others stay together. Where there is
// none, the least longer message that allows one is allowed. The paper moves layers to get there; ours is the
// best there is, by dynamic program. Of equal ones that with the longest last stage, and so on.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/frontend/published.h"

namespace espalier::literal {

enum class BapipeSchedule : std::uint8_t { k1F1BAs, kFbpAs, k1F1BSno, k1F1BSo };
std::string_view to_text(BapipeSchedule schedule);  // "1F1B-AS", "FBP-AS", "1F1B-SNO", "1F1B-SO"
std::vector<BapipeSchedule> bapipe_schedules(bool streaming);

// Micro-batches that a stage (from 0) of so many holds.
std::int64_t bapipe_in_flight(BapipeSchedule schedule, std::size_t stages, std::size_t stage,
                              std::int64_t micro_batches);

struct BapipeStageTimes {
  double forward = 0, backward = 0;
  double message = 0;  // at the border behind it, one way; of the last stage nothing
};
// A step, in the unit of the times.
double bapipe_step(BapipeSchedule schedule, const std::vector<BapipeStageTimes>& stages,
                   std::int64_t micro_batches);

struct BapipeOptions {
  std::int64_t devices = 1;
  double bandwidth = 1e9;             // bytes per second
  std::optional<double> memory = {};  // bytes of a device; none: no limit
  std::int64_t micro_batches = 8;
  bool streaming = false;  // devices compute while a message comes in
};

struct BapipeStage {
  std::vector<std::size_t> nodes;  // numbers in the profile, in the order of the sequence
  BapipeStageTimes times;          // ms
  double bytes = 0;
};
struct BapipeResult {
  std::vector<BapipeStage> stages;
  BapipeSchedule schedule = BapipeSchedule::k1F1BSno;
  double time = 0;        // of a step, ms
  double one_device = 0;  // the same work on one device, ms
  std::string why;        // no answer: the reason; else empty
  bool found() const { return why.empty(); }
};

// The layers' figures are those of one micro-batch, as a sequence (layer_sequence.h). Of schedules with equal
// steps the one that is named first. O(devices · layers²) for each schedule and each allowed message. Throws
// InputError for a graph with a cycle, and options that are not positive.
BapipeResult bapipe(const PipedreamProfile& profile, const BapipeOptions& options);

// What is wrong with a result, from the profile alone; empty if nothing is.
std::vector<std::string> check_bapipe(const PipedreamProfile& profile, const BapipeOptions& options,
                                      const BapipeResult& result);

// The partition above, for whoever knows what stages cost.
struct BapipeBorders {
  std::size_t stages = 1;
  std::vector<double> messages;  // by cut, from 0 to the number of blocks; those at the ends do not count
  double share = 0;              // of a stage: messages that take no longer are no reason to join
};
// F + B of blocks [begin, end) as a stage; nothing where they do not fit.
using BapipeBlocks =
    std::function<std::optional<double>(std::size_t stage, std::size_t begin, std::size_t end)>;
// By where the stages end, ascending, the last the number of blocks. Nothing where no partition fits. Asks
// O(stages · blocks²) times for each message that has to be allowed.
std::optional<std::vector<std::size_t>> bapipe_partition(const BapipeBorders& borders,
                                                         const BapipeBlocks& blocks);

}  // namespace espalier::literal
