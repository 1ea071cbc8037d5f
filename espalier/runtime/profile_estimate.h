#pragma once

// From the samples of a profile to the figures of a cost table: what is measured where stands in
// model_profiler.h. Pure functions. Includes libtorch; runtime/ only.

#include <map>
#include <string>
#include <vector>

#include "espalier/cost/cost_table.h"
#include "espalier/runtime/operator_memory.h"
#include "espalier/runtime/pass_profiler.h"

namespace espalier {

// Passes of one round are measured after each other; their mean is one sample.
constexpr int kPassesOfRound = 3;

// What is known of one micro-batch size; times in nanoseconds.
struct PassSamples {
  explicit PassSamples(std::size_t operators)
      : forward(operators), backward(operators), input_half(operators), weight_half(operators) {}

  // A round: the passes without timestamps, one with, and one with whose backward was in two halves.
  void add(const std::vector<PassTimes>& plain, const PassTimes& stamped, const HalfTimes& halves);
  double last_pass() const { return whole_forward.back() + whole_backward.back(); }

  std::vector<std::vector<double>> forward, backward;  // by operator, then round: with timestamps
  std::vector<std::vector<double>> input_half, weight_half;
  std::vector<double> whole_forward, whole_backward;    // by round: the mean of its passes
  std::vector<double> single_forward, single_backward;  // by pass
};

// What is paid in every step counts with its mean, slow rounds included.
double mean_of_rounds(const std::vector<double>& samples);
// Of small differences between long times, which noise may bring below 0; 0 of none.
double mean_of_differences(const std::vector<double>& samples);

// By operator, all forward times, then all input halves, then all weight halves. Forward and backward times
// are medians, scaled so that they sum up to the mean pass without timestamps; a backward time is parted as
// the medians of its halves are.
std::vector<double> operator_times(const PassSamples& samples);

// A point for each operator class at that size, from operator_times and what each operator keeps.
void add_points(std::map<std::string, CostRow>& rows, const Graph& graph, const std::string& kind,
                BatchSize size, const std::vector<double>& times, const std::vector<OperatorMemory>& memory);

// The relative standard deviation of an action's time; mean over `sizes`. An action is a part of a pass:
// forward and backward apart are nearer to it.
double spread_of_actions(const std::vector<const PassSamples*>& sizes);

// How unequal workers are for a whole step: the variance between them, less what the spread of single actions
// explains. `rounds[size][worker]`: the passes of each round, which together are as long as a short step.
double spread_of_devices(const std::vector<std::vector<std::vector<double>>>& rounds, double of_actions);

}  // namespace espalier
