#include "testing/cut_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "espalier/base/check.h"

namespace espalier::testing {
namespace {

bool recomputable(const Graph& graph, OperatorId id) {
  return graph.op(id).mutates.empty() && !graph.op(id).colocation;
}

}  // namespace

PipelinePlan plan_from_stages(const Graph& graph, const std::vector<std::size_t>& stage_of,
                              const CutOptions& options) {
  const std::size_t stages = *std::max_element(stage_of.begin(), stage_of.end()) + 1;
  std::vector<std::set<OperatorId>> members(stages);
  std::vector<std::set<std::size_t>> stages_with(graph.operators().size());
  // Readers come after what they read, so walking back meets them first.
  for (std::size_t i = graph.operators().size(); i-- > 0;) {
    const OperatorId id(i);
    std::set<std::size_t> places{stage_of[i]};
    if (graph.op(id).duplicable) {
      std::set<std::size_t> readers;
      for (const OperatorId reader : graph.successors(id)) {
        readers.insert(stages_with[reader.index()].begin(), stages_with[reader.index()].end());
      }
      if (!readers.empty()) places = readers;
    }
    for (const std::size_t place : places) members[place].insert(id);
    stages_with[i] = places;
  }
  PipelinePlan plan;
  plan.batch = options.batch;
  plan.orders = options.schedule;
  const auto micro_batches = static_cast<std::uint32_t>(options.batch.count() / options.micro_batch.count());
  for (std::size_t s = 0; s < stages; ++s) {
    Stage stage;
    stage.name = "s" + std::to_string(s);
    stage.operators.assign(members[s].begin(), members[s].end());
    stage.micro_batch = options.micro_batch;
    std::set<StageId> after;
    if (options.chain && s > 0) after.insert(StageId(s - 1));
    for (const OperatorId id : stage.operators) {
      for (const OperatorId producer : graph.predecessors(id)) {
        if (!stages_with[producer.index()].contains(s))
          after.insert(StageId(*stages_with[producer.index()].begin()));
      }
      if (options.recompute && recomputable(graph, id)) stage.recompute.push_back(id);
    }
    stage.after.assign(after.begin(), after.end());
    const std::vector<DeviceId> devices =
        options.devices.empty() ? std::vector{DeviceId(s)} : options.devices.at(s);
    for (std::size_t r = 0; r < devices.size(); ++r) {
      stage.replicas.push_back({{devices[r]}, round_robin(micro_batches, r, devices.size())});
    }
    plan.stages.push_back(std::move(stage));
  }
  const std::vector<std::uint32_t> limits = in_flight_limits(plan);
  for (std::size_t s = 0; s < stages; ++s) plan.stages[s].in_flight = limits[s];
  return plan;
}

PipelinePlan plan_from_cuts(const Graph& graph, std::vector<std::size_t> cuts, const CutOptions& options) {
  std::map<std::uint32_t, std::size_t> last;  // operator of each colocation group
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    if (const auto group = graph.operators()[i].colocation) last[*group] = i;
  }
  std::vector<std::size_t> stage_of(graph.operators().size(), 0);
  std::size_t reach = 0;  // no cut before this operator
  for (std::size_t i = 0, s = 0; i < stage_of.size(); ++i) {
    if (s < cuts.size() && i >= cuts[s] && i >= reach) {
      ++s;
      while (s < cuts.size() && cuts[s] <= i) ++s;
    }
    stage_of[i] = s;
    if (const auto group = graph.operators()[i].colocation) reach = std::max(reach, last[*group] + 1);
  }
  // Close the gaps that skipped cuts left.
  std::map<std::size_t, std::size_t> dense;
  for (const std::size_t s : stage_of) dense.try_emplace(s, dense.size());
  for (std::size_t& s : stage_of) s = dense[s];
  return plan_from_stages(graph, stage_of, options);
}

PipelinePlan random_cut_plan(const Graph& graph, std::size_t stages, const CutOptions& options, Rng& rng) {
  const std::size_t n = graph.operators().size();
  std::vector<std::size_t> own(n + 1);  // operators before each place that only one stage may have
  for (std::size_t i = 0; i < n; ++i) own[i + 1] = own[i] + (graph.operators()[i].duplicable ? 0 : 1);
  ESP_CHECK(own[n] >= stages);
  std::set<std::size_t> cuts;
  const auto leaves_a_stage_empty = [&] {
    std::size_t before = 0;
    for (const std::size_t cut : cuts) {
      if (own[cut] == own[before]) return true;
      before = cut;
    }
    return own[n] == own[before];
  };
  do {
    cuts.clear();
    while (cuts.size() + 1 < stages) cuts.insert(1 + rng.below(n - 1));
  } while (leaves_a_stage_empty());
  return plan_from_cuts(graph, {cuts.begin(), cuts.end()}, options);
}

}  // namespace espalier::testing
