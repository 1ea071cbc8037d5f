#include "espalier/planners/pipeline/single.h"

#include <set>
#include <tuple>

#include "espalier/planners/candidate.h"
#include "espalier/planners/pipeline/chain.h"

namespace espalier {
namespace {

// Devices that differ, the first of each sort; with pins those that pins name.
std::vector<DeviceId> devices_to_try(const Problem& problem, const std::vector<OperatorId>& everything) {
  const auto pins = resolve_pins(problem.graph, problem.pins);
  std::set<DeviceId> pinned;
  for (const OperatorId op : everything) {
    if (pins[op.index()]) pinned.insert(*pins[op.index()]);
  }
  if (!pinned.empty()) return {pinned.begin(), pinned.end()};
  std::vector<DeviceId> devices;
  std::set<std::tuple<KindId, Bytes>> seen;
  for (std::size_t d = 0; d < problem.cluster.devices().size(); ++d) {
    const Device& device = problem.cluster.devices()[d];
    if (seen.insert({device.kind, device.memory}).second) devices.push_back(DeviceId(d));
  }
  return devices;
}

}  // namespace

Outcome single(const Problem& problem, const SingleOptions& options, Context& context) {
  Judge judge(problem, context);
  const std::vector<OperatorId> everything = chain_order(problem.graph);
  for (const DeviceId device : devices_to_try(problem, everything)) {
    for (const BatchSize micro_batch : usable_micro_batches(problem)) {
      if (context.stop()) return judge.outcome();
      judge.consider({{.operators = everything, .devices = {device}, .after = {}}}, micro_batch,
                     options.schedule);
    }
  }
  return judge.outcome();
}

}  // namespace espalier
