#include "espalier/planners/pipeline/single.h"

#include <set>

#include "espalier/planners/candidate.h"
#include "espalier/planners/pipeline/chain.h"

namespace espalier {

Outcome single(const Problem& problem, const SingleOptions& options, Context& context) {
  Judge judge(problem);
  const std::vector<OperatorId> everything = chain_order(problem.graph);
  std::set<std::pair<KindId, Bytes>> seen;
  for (std::size_t d = 0; d < problem.cluster.devices().size() && !context.stop(); ++d) {
    // Devices of one kind and memory differ in nothing here; a pin may still ask for a later one.
    const Device& device = problem.cluster.devices()[d];
    if (!seen.insert({device.kind, device.memory}).second && problem.pins.empty()) continue;
    for (const BatchSize micro_batch : usable_micro_batches(problem)) {
      judge.consider({{.operators = everything, .devices = {DeviceId(d)}, .after = {}}}, micro_batch,
                     options.schedule);
    }
  }
  return judge.outcome(context);
}

}  // namespace espalier
