// The figures of a StagedModel in the places that a structure's layout says.

#include "espalier/sim/list_structure.h"

namespace espalier::internal {

ListLayout layout_of(const StagedModel& model) {
  ListLayout layout;
  layout.stages = narrow(model.stages.size());
  layout.crossings = narrow(model.crossings.size());
  layout.ties = narrow(model.ties.size());
  for (const Crossing& crossing : model.crossings) layout.readers += narrow(crossing.readers.size());
  for (const StagedStage& stage : model.stages) layout.replicas += narrow(stage.replicas.size());
  return layout;
}

std::array<Bytes, ListLayout::kFigures> figures_of(const StageMemory& memory, Bytes reduced,
                                                   std::size_t replicas) {
  return {memory.saved,
          memory.recomputed,
          memory.between_halves,
          memory.forward_workspace,
          memory.backward_workspace,
          memory.buffers,
          reduced,
          memory.saved_for_input,
          memory.recomputed_for_input,
          memory.update_workspace,
          all_reduce_scratch(reduced, replicas)};
}

std::array<Duration, ListLayout::kWorks> works_of(const StageTimes& times) {
  return {times.forward,       times.backward(), times.input_half(),
          times.weight_half(), times.recompute,  times.update};
}

ListCosts costs_of(const StagedModel& model) {
  const ListLayout layout = layout_of(model);
  ListCosts costs;
  costs.durations.reserve(std::size_t{layout.replicas} * ListLayout::kWorks);
  costs.bytes.resize(layout.size());
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    const StagedStage& stage = model.stages[s];
    const auto figures = figures_of(stage.memory, stage.reduced, stage.replicas.size());
    for (std::uint32_t i = 0; i < ListLayout::kFigures; ++i) {
      costs.bytes[layout.of_stage(s, static_cast<ListLayout::Figure>(i))] = figures[i].count();
    }
    for (const StagedReplica& replica : model.stages[s].replicas) {
      for (const Duration time : works_of(replica.times)) costs.durations.push_back(time.count());
    }
  }
  std::size_t reader = 0;
  for (std::size_t c = 0; c < model.crossings.size(); ++c) {
    costs.bytes[layout.output(c)] = model.crossings[c].output.count();
    for (const Crossing::Reader& each : model.crossings[c].readers) {
      costs.bytes[layout.bytes(reader)] = each.bytes.count();
      costs.bytes[layout.gradient(reader++)] = each.gradient.count();
    }
  }
  for (std::size_t t = 0; t < model.ties.size(); ++t)
    costs.bytes[layout.tie(t)] = model.ties[t].bytes.count();
  return costs;
}

std::size_t bytes_of(const ListStructure& s) {
  const auto bytes = [](const auto&... vectors) { return (std::span(vectors).size_bytes() + ...); };
  return sizeof s + bytes(s.work_count, s.devices, s.lane_begin, s.entries, s.waits, s.posts_begin,
                          s.sends_begin, s.receives_begin, s.frees_begin, s.posts, s.receives, s.frees,
                          s.channels, s.hops, s.messages, s.sends, s.routes, s.collectives, s.legs, s.members,
                          s.sums, s.sums_begin, s.sum_updates, s.collective_links, s.changes, s.terms,
                          s.initial, s.crossings_begin, s.usual, s.usual_begin);
}

}  // namespace espalier::internal
