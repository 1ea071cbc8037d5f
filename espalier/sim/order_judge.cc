#include "espalier/sim/order_judge.h"

#include <algorithm>

#include "espalier/schedule/rules.h"
#include "espalier/sim/evaluated_memory.h"
#include "espalier/sim/list_builder.h"
#include "espalier/sim/list_engine.h"

namespace espalier {

using internal::ListBuilder;
using internal::ListCosts;
using internal::ListEngine;
using internal::ListStructure;
using internal::RouteTable;

struct OrderJudge::State {
  State(const StagedModel& m, const Cluster& c)
      : cluster(c),
        model(m),
        costs(internal::costs_of(m)),
        routes(c),
        builder(routes, c.devices().size(), c.link_count()),
        constant(c.devices().size()) {
    for (const StagedStage& stage : model.stages) {
      std::uint32_t largest = 1;
      for (const StagedReplica& replica : stage.replicas) {
        largest = std::max(largest, static_cast<std::uint32_t>(replica.micro_batches.size()));
        for (const DeviceId device : replica.devices) {
          internal::add_held_always(stage.memory, constant[device.index()]);
        }
      }
      largest_share.push_back(largest);
    }
  }

  const Cluster& cluster;
  StagedModel model;
  const ListCosts costs;
  RouteTable routes;
  ListBuilder builder;
  ListStructure structure;
  ListEngine engine;
  std::vector<std::uint32_t> largest_share;  // by stage
  std::vector<MemoryByCategory> constant;    // by device: what is held always
  std::uint64_t judged = 0;
};

OrderJudge::OrderJudge(const StagedModel& model, const Cluster& cluster)
    : state_(std::make_unique<State>(model, cluster)) {}
OrderJudge::~OrderJudge() = default;
OrderJudge::OrderJudge(OrderJudge&&) noexcept = default;

std::uint64_t OrderJudge::judged() const {
  return state_->judged;
}

Evaluation OrderJudge::judge(const OrderLists& lists) {
  State& state = *state_;
  ++state.judged;
  const std::vector<std::uint32_t> held = in_flight_of(lists, state.model.stages.size());
  for (std::size_t s = 0; s < held.size(); ++s) {
    state.model.stages[s].in_flight = std::min(held[s], state.largest_share[s]);
  }
  state.model.orders = Orders(lists);
  state.structure.possible = true;
  state.builder.build(state.model, make_lists(state.model, state.cluster.devices().size()), state.structure);
  Evaluation evaluation;
  if (!state.engine.run(state.structure, state.costs)) {
    evaluation.deadlock = true;
    return evaluation;
  }
  evaluation.iteration = Duration(state.engine.iteration());
  evaluation.messages = state.structure.sends.size();
  evaluation.peak = state.constant;
  internal::set_peaks(state.structure, state.engine.measure_memory(), evaluation.peak);
  internal::find_overflow(state.cluster, evaluation);
  return evaluation;
}

}  // namespace espalier
