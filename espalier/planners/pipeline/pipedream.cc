#include "espalier/planners/pipeline/pipedream.h"

#include <algorithm>
#include <deque>
#include <iterator>

#include "espalier/planners/candidate.h"
#include "espalier/planners/pipeline/ahead_of_sums.h"
#include "espalier/planners/pipeline/chain_split.h"

// Known bad case: a graph whose branches are equal towers. Any chain order makes stages wait for branches
// that do not feed them.

namespace espalier {
namespace {

using Order = PipeDreamOptions::Order;

std::deque<Linearization> linearizations(const Problem& problem, Order order) {
  std::vector<std::vector<OperatorId>> orders;
  const auto add = [&](std::vector<OperatorId> fresh) {
    if (std::find(orders.begin(), orders.end(), fresh) == orders.end()) orders.push_back(std::move(fresh));
  };
  const bool all = order == Order::kAll, both = all || order == Order::kBoth;
  if (both || order == Order::kGraph) add(chain_order(problem.graph));
  if (both || order == Order::kDepthFirst) add(branch_by_branch_order(problem.graph));
  if (all || order == Order::kBreadthFirst) add(layer_by_layer_order(problem.graph));
  if (!problem.pins.empty()) add(pin_by_pin_order(problem.graph, problem.pins));
  std::deque<Linearization> lines;
  for (std::vector<OperatorId>& each : orders) lines.emplace_back(problem, std::move(each));
  return lines;
}

std::vector<Proposal> joined(std::vector<std::vector<Proposal>> lists) {
  std::vector<Proposal> all;
  for (std::vector<Proposal>& each : lists) {
    all.insert(all.end(), std::make_move_iterator(each.begin()), std::make_move_iterator(each.end()));
  }
  return all;
}

}  // namespace

Outcome pipedream(const Problem& problem, const PipeDreamOptions& options, Context& context) {
  using Keep = SplitOptions::Keep;
  Judge judge(problem, context);
  const DeviceTable table(problem);
  const std::vector<DeviceId> devices = unpinned_devices(problem);
  const std::deque<Linearization> lines = linearizations(problem, options.order);
  const SplitOptions split_options{
      .keep = options.choice == PipeDreamOptions::Choice::kBottleneck ? Keep::kLeastBottleneck : Keep::kFront,
      .schedule = options.schedule,
      .most_replicas = options.most_replicas};
  const std::vector<BatchSize> micro_batches = usable_micro_batches(problem);
  std::vector<std::vector<Proposal>> found(micro_batches.size() * lines.size());
  const auto search = [&](const Linearization& line, BatchSize micro_batch, const auto& splits, Context& own,
                          std::vector<Proposal>& into) {
    const std::int64_t m = problem.training.batch.count() / micro_batch.count();
    const Chain chain(line, micro_batch);
    for (const std::vector<DeviceId>& row : device_rows(problem.cluster, devices, chain.times_by_kind())) {
      for (const ChainSplit& split : splits(chain, table, row, m, split_options, own)) {
        std::vector<StageDraft> drafts = drafts_of(chain, split, table);
        for (std::size_t s = 1; s < drafts.size(); ++s) drafts[s].after = {s - 1};
        into.push_back({std::move(drafts), micro_batch, options.schedule, split.bottleneck});
      }
    }
  };
  context.for_each(found.size(), [&](std::size_t number, Context& own) {
    search(lines[number % lines.size()], micro_batches[number / lines.size()], min_max_splits, own,
           found[number]);
  });
  std::vector<Proposal> proposals = joined(std::move(found));
  if (proposals.empty() && !context.budget_spent) {
    found.assign(lines.size(), {});
    context.for_each(found.size(), [&](std::size_t number, Context& own) {
      search(lines[number], micro_batches.front(), closest_splits, own, found[number]);
    });
    proposals = joined(std::move(found));
    context.budget_spent = false;  // what comes closest is no answer that a larger budget would change
  }
  judge.consider_each(proposals.size(), [&](std::size_t number, Context&) { return proposals[number]; });
  if (options.choice != PipeDreamOptions::Choice::kBottleneck)
    let_best_go_ahead_of_sums(problem, judge, context);
  return judge.outcome();
}

}  // namespace espalier
