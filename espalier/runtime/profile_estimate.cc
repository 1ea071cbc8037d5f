#include "espalier/runtime/profile_estimate.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "espalier/runtime/statistics.h"

namespace espalier {
namespace {

constexpr double kTrim = 0.05;
constexpr double kRoughTrim = 0.25;

}  // namespace

void PassSamples::add(const std::vector<PassTimes>& plain, const PassTimes& stamped,
                      const HalfTimes& halves) {
  whole_forward.push_back(0);
  whole_backward.push_back(0);
  for (const PassTimes& pass : plain) {
    whole_forward.back() += pass.forward / static_cast<double>(plain.size());
    whole_backward.back() += pass.backward / static_cast<double>(plain.size());
    single_forward.push_back(pass.forward);
    single_backward.push_back(pass.backward);
  }
  for (std::size_t op = 0; op < stamped.forward_of.size(); ++op) {
    forward[op].push_back(stamped.forward_of[op]);
    backward[op].push_back(stamped.backward_of[op]);
    input_half[op].push_back(halves.input[op]);
    weight_half[op].push_back(halves.weight[op]);
  }
}

double mean_of_rounds(const std::vector<double>& samples) {
  return trimmed_mean(samples, kTrim);
}

double mean_of_differences(const std::vector<double>& samples) {
  return samples.empty() ? 0 : trimmed_mean(samples, kRoughTrim);
}

std::vector<double> operator_times(const PassSamples& samples) {
  const std::size_t n = samples.forward.size();
  std::vector<double> times(3 * n);
  const auto scale_into = [&](std::size_t at, const auto& by_operator, const std::vector<double>& whole) {
    double sum = 0;
    for (std::size_t op = 0; op < n; ++op) sum += times[at + op] = median(by_operator[op]);
    for (std::size_t op = 0; op < n && sum > 0; ++op) times[at + op] *= mean_of_rounds(whole) / sum;
  };
  scale_into(0, samples.forward, samples.whole_forward);
  scale_into(n, samples.backward, samples.whole_backward);
  for (std::size_t op = 0; op < n; ++op) {
    const double input = median(samples.input_half[op]), weight = median(samples.weight_half[op]);
    const double share = input + weight > 0 ? weight / (input + weight) : 0;
    times[2 * n + op] = times[n + op] * share;
    times[n + op] *= 1 - share;
  }
  return times;
}

void add_points(std::map<std::string, CostRow>& rows, const Graph& graph, const std::string& kind,
                BatchSize size, const std::vector<double>& times, const std::vector<OperatorMemory>& memory) {
  const std::size_t n = graph.operators().size();
  struct Sum {
    double forward = 0, input = 0, weight = 0;
    std::size_t operators = 0;
    OperatorCost cost;
  };
  std::map<std::string, Sum> classes;
  for (std::size_t i = 0; i < n; ++i) {
    const Operator& op = graph.operators()[i];
    const OperatorMemory& kept = memory[i];
    Sum& sum = classes[op.op_class];
    sum.forward += times[i];
    sum.input += times[n + i];
    sum.weight += times[2 * n + i];
    ++sum.operators;
    sum.cost.saved = merged(sum.cost.saved, kept.saved);
    sum.cost.private_bytes = std::max(sum.cost.private_bytes, kept.private_bytes);
    sum.cost.workspace = std::max(sum.cost.workspace, kept.workspace);
    // Between the halves the gradient that arrived is kept for the weights.
    if (times[n + i] > 0 && times[2 * n + i] > 0 && !op.outputs.empty()) {
      sum.cost.between_halves = graph.tensor(op.outputs[0]).bytes(size);
    }
  }
  for (auto& [name, sum] : classes) {
    const double count = static_cast<double>(sum.operators);
    sum.cost.forward = round_duration(sum.forward / count);
    sum.cost.input_gradient = round_duration(sum.input / count);
    sum.cost.weight_gradient = round_duration(sum.weight / count);
    sum.cost.origin = Origin::kMeasured;
    CostRow& row = rows[name];
    row.op_class = name;
    row.kind = kind;
    row.points.push_back({size, sum.cost});
  }
}

double spread_of_actions(const std::vector<const PassSamples*>& sizes) {
  double sum = 0;
  for (const PassSamples* size : sizes) {
    sum += deviation_within(size->single_forward, kPassesOfRound) +
           deviation_within(size->single_backward, kPassesOfRound);
  }
  return sum / static_cast<double>(2 * sizes.size());
}

double spread_of_devices(const std::vector<std::vector<std::vector<double>>>& rounds, double of_actions) {
  double variance = 0;
  for (const auto& workers : rounds) {
    if (workers.size() < 2) return 0;
    variance += variance_between(workers, kTrim) / static_cast<double>(rounds.size());
  }
  const double explained = of_actions * of_actions / (2 * kPassesOfRound);  // a pass is two actions
  return std::sqrt(std::max(0.0, variance - explained));
}

}  // namespace espalier
