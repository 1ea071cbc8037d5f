#pragma once

// Piper: "Multidimensional Planner for DNN Parallelization" (Tarnawski, Narayanan, Phanishayee; NeurIPS 2021,
// sections 3 and 4), in the model of its program: contiguous stages, each with a degree t of tensor
// parallelism and d of data parallelism, each layer plain or recomputed.
//
// Figures keep the file's units: `timePerSample` as it stands (seconds in bert32a100.json, milliseconds in
// gnmt.json, which is literal mode's point), bytes, and bytes per second.
//
// With N micro-batches in a batch and bandwidth b, a stage S on t·d devices takes
//
//   Σ time/d  +  Σ over border edges 2·(bytes of the edge + of the layer's way at it)/(d·b)
//             +  Σ 4·(d − 1)/d · parameters/(N·b)
//
// and needs Σ A·y + B bytes on each device, y = ⌈Σ of d from this stage to the last / d⌉ micro-batches in
// flight. t must be listed by all layers of S, d divides N, Σ t·d ≤ devices and Σ d ≤ min(N, devices).
//
// Objective: the longest stage time, which is the time per sample ("TPS") of a full pipeline, least over
// chains of downsets with their degrees. Ways are chosen by the authors' heuristic: all plain (the fastest)
// if that fits, else recompute layers in order of time per byte saved until it does.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "espalier/frontend/published.h"

namespace espalier::literal {

struct PiperOptions {
  std::optional<std::int64_t> devices = {}, micro_batches = {};  // instead of the file's
  std::optional<double> memory = {}, bandwidth = {};             // bytes, bytes per second
  // The authors' baselines leave out one of these.
  bool data_parallel = true, tensor_parallel = true, recompute = true;
  std::size_t max_downsets = 40'000;  // the authors' limit
};

struct PiperStage {
  std::uint32_t tensor = 1, data = 1;
  std::int64_t in_flight = 1;           // micro-batches
  double time = 0;                      // per sample
  double bytes = 0;                     // on each device
  std::vector<std::size_t> nodes;       // numbers in the profile, ascending
  std::vector<std::size_t> recomputed;  // of them
  friend bool operator==(const PiperStage&, const PiperStage&) = default;
};

struct PiperResult {
  double time_per_sample = 0;
  std::vector<PiperStage> stages;  // from inputs to outputs
  std::int64_t devices = 0;        // in use
  std::string why;                 // no answer: the reason; else empty

  std::size_t downsets = 0;
  std::uint64_t pairs = 0;     // of nested downsets looked at as stages, over all thresholds
  std::uint64_t searches = 0;  // thresholds tried
  bool found() const { return why.empty(); }
};

// Asks for thresholds T whether a plan with TPS ≤ T exists, along one linear order first, then over all
// downsets. For a T each downset keeps its Pareto front of (Σ d, devices), so that neither dimension is a
// table. O(pairs · (|S| log |S| + degrees · front)) for a T. A stage's time is taken as non-decreasing in y,
// as the authors' search takes it. Throws InputError where degrees or figures are beyond the model: naming
// the layer whose two ways differ in parameters or exchanged bytes, whose edge lacks such bytes or that reads
// itself.
PiperResult piper(const PiperProfile& profile, const PiperOptions& options = {});

// The authors' baseline after PipeDream-2BW's planner: stages of equally many layers, the last ones a layer
// longer, all with one (d, t), all recomputed or none; the best of all such plans. Equally many layers named
// "ParallelTransformerLayer", where a profile has such: what comes before them joins the first stage and what
// comes behind the last, or each stands alone. Degrees t are those of the file's first layer. O(stages ·
// degrees · layers).
PiperResult piper_equal_split(const PiperProfile& profile, const PiperOptions& options = {});

// What is wrong with a result of either, by the definition above and from the profile alone; empty if nothing
// is.
std::vector<std::string> check_piper(const PiperProfile& profile, const PiperOptions& options,
                                     const PiperResult& result);

}  // namespace espalier::literal
