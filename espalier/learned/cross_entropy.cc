#include "espalier/learned/cross_entropy.h"

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/learned/best_so_far.h"
#include "espalier/learned/gdp.h"
#include "espalier/learned/order_trial.h"

namespace espalier::placement {
namespace {

// Nodes × devices; a node's devices are those that it may stand on, all alike at first.
class ProbabilityTable {
 public:
  ProbabilityTable(const PolicyInput& input, double least) : input_(input), rows_(input.allowed.size()) {
    for (std::size_t n = 0; n < input.nodes; ++n) {
      const double possible = static_cast<double>(possible_devices(n));
      for (std::size_t d = 0; d < input.devices; ++d) {
        if (input.allowed[at(n, d)] != 0) rows_[at(n, d)] = static_cast<float>(1 / possible);
      }
    }
    least_ = std::min(least, 1 / static_cast<double>(input.devices));
  }

  const std::vector<float>& rows() const { return rows_; }

  void move_towards(std::span<const Sample* const> elite, double smoothing) {
    std::vector<double> part(rows_.size());
    for (const Sample* sample : elite) {
      for (std::size_t n = 0; n < input_.nodes; ++n)
        part[at(n, sample->devices[n].index())] += 1 / static_cast<double>(elite.size());
    }
    for (std::size_t n = 0; n < input_.nodes; ++n) {
      double sum = 0;
      for (std::size_t d = 0; d < input_.devices; ++d) {
        if (input_.allowed[at(n, d)] == 0) continue;
        double& moved = part[at(n, d)];
        moved = std::max(least_, (1 - smoothing) * static_cast<double>(rows_[at(n, d)]) + smoothing * moved);
        sum += moved;
      }
      for (std::size_t d = 0; d < input_.devices; ++d)
        rows_[at(n, d)] = static_cast<float>(part[at(n, d)] / sum);
    }
  }

  double certainty() const {
    double sum = 0;
    for (std::size_t n = 0; n < input_.nodes; ++n) {
      const auto row = std::span(rows_).subspan(at(n, 0), input_.devices);
      sum += static_cast<double>(*std::max_element(row.begin(), row.end()));
    }
    return sum / static_cast<double>(input_.nodes);
  }

 private:
  std::size_t at(std::size_t node, std::size_t device) const { return node * input_.devices + device; }
  std::ptrdiff_t possible_devices(std::size_t node) const {
    const auto row = input_.allowed.begin() + static_cast<std::ptrdiff_t>(at(node, 0));
    return static_cast<std::ptrdiff_t>(input_.devices) -
           std::count(row, row + static_cast<std::ptrdiff_t>(input_.devices), 0);
  }

  const PolicyInput& input_;
  std::vector<float> rows_;
  double least_ = 0;
};

// The least scores of the samples and of the best so far, the first of equals.
std::vector<const Sample*> elite_of(const PlacementTask& task, std::span<const Sample> samples,
                                    const std::optional<Sample>& best, std::size_t count) {
  std::vector<std::pair<double, const Sample*>> all;
  if (best) all.emplace_back(score(task, best->evaluated), &*best);
  for (const Sample& sample : samples) all.emplace_back(score(task, sample.evaluated), &sample);
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<const Sample*> elite;
  for (std::size_t i = 0; i < std::min(count, all.size()); ++i) elite.push_back(all[i].second);
  return elite;
}

Placed learn_table(const PlacementTask& task, const CrossEntropyOptions& options, std::uint64_t iterations,
                   std::uint64_t seed, Context& context) {
  const std::uint64_t states = context.states;
  ProbabilityTable table(task.input(), options.least);
  BestSoFar seen;
  for (std::uint64_t i = 0; i < iterations && !context.stop(); ++i) {
    const std::size_t count =
        std::min<std::uint64_t>(options.samples, std::max<std::uint64_t>(1, context.left()));
    if (!context.take_states(count)) break;
    const std::vector<Sample> samples =
        judge(task, draw(table.rows(), task.input().devices, count, stream_key(seed, {8, i})), Repairs::kNone,
              context.pool);
    const std::vector<const Sample*> elite = elite_of(task, samples, seen.best(), options.elite);
    const double worst = score(task, elite.back()->evaluated);
    table.move_towards(elite, options.smoothing);
    for (const Sample& sample : samples) seen.see(sample);
    if (options.told) {
      options.told({context.states - states, seen.best() ? score(task, seen.best()->evaluated) : 0, worst,
                    table.certainty()});
    }
    context.report(static_cast<double>(i + 1) / static_cast<double>(iterations));
  }
  return seen.answer(task, context);
}

}  // namespace

Placed cross_entropy(const PlacerInput& input, const CrossEntropyOptions& options, Context& context) {
  ESP_CHECK(options.samples > 0 && options.elite > 0, options.samples, options.elite);
  const auto learn = [&](const TaskOptions& by, double part, Context& own) {
    const PlacementTask task(input.graph, input.instance, by);
    return learn_table(task, options, part_of(options.iterations, part), input.seed, own);
  };
  return by_better_order(input.instance, task_options(input, options.task), context, learn);
}

}  // namespace espalier::placement
