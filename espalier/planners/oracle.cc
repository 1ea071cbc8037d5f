#include "espalier/planners/oracle.h"

#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace espalier {

struct Oracle::State {
  State(const Graph& g, const Cluster& c, const CostTable& t, const Training& tr)
      : graph(g), cluster(c), costs(t), training(tr) {}

  const Graph& graph;
  const Cluster& cluster;
  const CostTable& costs;
  const Training training;
  std::once_flag evaluator_made, rules_made;
  std::optional<Evaluator> evaluator;
  std::optional<DraftRules> rules;
  std::mutex mutex;  // guards what follows
  std::vector<Scratch> free;
};

Oracle::Oracle(const Graph& graph, const Cluster& cluster, const CostTable& costs, const Training& training)
    : state_(std::make_unique<State>(graph, cluster, costs, training)) {}
Oracle::~Oracle() = default;

const Evaluator& Oracle::evaluator() const {
  State& state = *state_;
  std::call_once(state.evaluator_made,
                 [&] { state.evaluator.emplace(state.graph, state.cluster, state.costs, state.training); });
  return *state.evaluator;
}

const DraftRules& Oracle::rules() const {
  std::call_once(state_->rules_made, [&] { state_->rules.emplace(state_->graph); });
  return *state_->rules;
}

Oracle::Scratch Oracle::take() const {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->free.empty()) {
      Scratch scratch = std::move(state_->free.back());
      state_->free.pop_back();
      return scratch;
    }
  }
  return Evaluator::make_scratch();
}

void Oracle::give(Scratch scratch) const {
  const std::lock_guard lock(state_->mutex);
  state_->free.push_back(std::move(scratch));
}

}  // namespace espalier
