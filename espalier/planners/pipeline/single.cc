#include "espalier/planners/pipeline/single.h"

#include "espalier/planners/candidate.h"
#include "espalier/planners/pipeline/chain.h"

namespace espalier {

Outcome single(const Problem& problem, const SingleOptions& options, Context& context) {
  Judge judge(problem);
  const std::vector<OperatorId> everything = chain_order(problem.graph);
  std::vector<char> seen(problem.cluster.kinds().size(), 0);
  for (std::size_t d = 0; d < problem.cluster.devices().size() && !context.stop(); ++d) {
    // Devices of one kind and memory differ in nothing here; a pin may still ask for a later one.
    const Device& device = problem.cluster.devices()[d];
    if (problem.pins.empty() && seen[device.kind.index()] &&
        device.memory == problem.cluster.kind(device.kind).memory)
      continue;
    seen[device.kind.index()] = 1;
    for (const BatchSize micro_batch : usable_micro_batches(problem)) {
      judge.consider({{.operators = everything, .devices = {DeviceId(d)}, .after = {}}}, micro_batch,
                     options.schedule);
    }
  }
  return judge.outcome();
}

}  // namespace espalier
