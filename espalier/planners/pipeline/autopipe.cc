#include "espalier/planners/pipeline/autopipe.h"

#include "espalier/planners/candidate.h"
#include "espalier/planners/literal/autopipe.h"
#include "espalier/planners/pipeline/device_row.h"
#include "espalier/planners/pipeline/equal_groups.h"

namespace espalier {
namespace {

literal::AutopipeTimes block_times(const GroupedChain& grouped) {
  literal::AutopipeTimes times;
  for (const std::vector<DeviceId>& group : grouped.groups) {
    times.forward.emplace_back();
    times.backward.emplace_back();
    for (std::size_t block = 0; block < grouped.chain.blocks(); ++block) {
      const GroupTimes of = group_times(grouped.chain, group, block, block + 1);
      times.forward.back().push_back(of.forward.count());
      times.backward.back().push_back(of.backward.count());
    }
  }
  return times;
}

}  // namespace

Outcome autopipe(const Problem& problem, const AutopipeOptions& options, Context& context) {
  if (unpinned_devices(problem).size() < problem.cluster.devices().size())
    return {.status = Status::kUnsupported, .why = "planner 'autopipe' does not keep pins"};
  Judge judge(problem, context);
  for_each_grouped_chain(problem, context, [&](const GroupedChain& grouped) {
    if (!context.take_state()) return;
    const literal::AutopipeSearch search =
        literal::autopipe_search(block_times(grouped), options.max_partitions);
    judge.consider(grouped_drafts(grouped, search.ends), grouped.chain.micro_batch(), options.schedule);
  });
  return judge.outcome();
}

}  // namespace espalier
