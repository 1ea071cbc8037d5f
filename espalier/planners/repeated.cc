#include "espalier/planners/repeated.h"

#include <algorithm>
#include <utility>

namespace espalier {
namespace {

// Whether some stage must have one replica.
bool has_lone_writer(const Problem& problem) {
  if (problem.written_buffers == WrittenBuffers::kReplicated) return false;
  for (std::size_t op = 0; op < problem.graph.operators().size(); ++op) {
    if (writes_buffer(problem.graph, OperatorId(op))) return true;
  }
  return false;
}

}  // namespace

bool may_be_divided(const Problem& problem) {
  return !problem.start && problem.locked.empty() && problem.pins.empty() && !has_lone_writer(problem);
}

std::optional<Training> training_of_part(const Training& training, std::size_t parts) {
  const auto count = static_cast<std::int64_t>(parts);
  if (training.batch.count() % count != 0) return std::nullopt;
  Training part = training;
  part.batch = BatchSize(training.batch.count() / count);
  std::erase_if(part.micro_batches, [&](BatchSize size) { return part.batch.count() % size.count() != 0; });
  if (part.micro_batches.empty()) return std::nullopt;
  return part;
}

PipelinePlan repeated(const PipelinePlan& plan, const EqualParts& parts) {
  PipelinePlan whole = plan;
  const std::size_t copies = parts.copies.size();
  whole.batch = BatchSize(plan.batch.count() * static_cast<std::int64_t>(copies));
  for (Stage& stage : whole.stages) {
    const std::vector<Replica> replicas = std::exchange(stage.replicas, {});
    for (const Replica& replica : replicas) {
      for (std::size_t c = 0; c < copies; ++c) {
        Replica copy = replica;
        for (DeviceId& device : copy.devices) device = parts.copies[c][device.index()];
        for (std::uint32_t& j : copy.micro_batches) j = narrow(copies * j + c);
        stage.replicas.push_back(std::move(copy));
      }
    }
  }
  return whole;
}

PlansOfParts plans_of_parts(const Problem& problem, const EqualParts& parts,
                            const std::function<Outcome(const Problem&)>& plan) {
  const std::optional<Training> training = training_of_part(problem.training, parts.copies.size());
  if (!training) return {};
  const Outcome found = plan({.graph = problem.graph,
                              .cluster = parts.part,
                              .costs = problem.costs,
                              .training = *training,
                              .written_buffers = problem.written_buffers,
                              .order = problem.order});
  PlansOfParts result{.plans = {}, .stats = found.stats};
  const auto add = [&](const PipelinePlan& of_part) {
    if (of_part.orders.rule()) result.plans.push_back(repeated(of_part, parts));
  };
  if (const PipelinePlan* of_part = found.pipeline()) add(*of_part);
  for (const PipelinePlan& other : found.of_other_sizes) add(other);
  for (const OtherChoice& choice : found.choices) add(choice.plan);
  return result;
}

}  // namespace espalier
