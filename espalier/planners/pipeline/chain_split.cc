#include "espalier/planners/pipeline/chain_split.h"

#include <algorithm>
#include <numeric>

#include "espalier/planners/pipeline/memory_ladder.h"
#include "espalier/planners/pipeline/split_search.h"

namespace espalier {
namespace {

// Each search has a third of the next one's segments; what it finds bounds that.
constexpr std::size_t kFewestSegments = 6;
constexpr std::size_t kRefinement = 3;

// About `most` segments of equal work, with all cuts at which pins change.
std::vector<std::size_t> coarse_cuts(const Chain& chain, KindId kind, std::size_t most) {
  std::vector<std::size_t> cuts{0};
  const auto share = [&](std::size_t cut) {
    const Duration all = chain.work_before(kind, Crowd::kAlone, chain.blocks());
    return static_cast<std::size_t>(ratio(chain.work_before(kind, Crowd::kAlone, cut), all) *
                                    static_cast<double>(most));
  };
  for (std::size_t cut = 1; cut < chain.blocks(); ++cut) {
    if (chain.pin(cut - 1) != chain.pin(cut) || share(cut) != share(cut + 1)) cuts.push_back(cut);
  }
  cuts.push_back(chain.blocks());
  return cuts;
}

// Of a micro-batch of blocks, on a device of one class.
Duration time_on(const ComputeClass& compute, const Chain& chain, std::size_t first, std::size_t last) {
  return chain.work(compute.kind, compute.crowd, first, last) + compute.actions;
}

}  // namespace

std::vector<ChainSplit> min_max_splits(const Chain& chain, const DeviceTable& table,
                                       const std::vector<DeviceId>& devices, std::int64_t micro_batches,
                                       const SplitOptions& options, Context& context) {
  if (chain.blocks() == 0) return {};
  std::vector<Duration> times;
  for (const ComputeClass& compute : table.classes()) {
    times.push_back(time_on(compute, chain, 0, chain.blocks()));
  }
  DeviceRow row(table, devices, micro_batches, options.most_replicas, times);
  internal::SplitSearch search(chain, row, options, context);
  std::vector<std::size_t> all(chain.blocks() + 1);
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::vector<std::size_t> sizes{chain.blocks()};
  while (sizes.back() / kRefinement >= kFewestSegments) sizes.push_back(sizes.back() / kRefinement);
  std::vector<ChainSplit> known;
  for (std::size_t level = sizes.size(); level-- > 0;) {
    std::vector<ChainSplit> found = search.solve(
        level == 0 ? all : coarse_cuts(chain, table.classes().front().kind, sizes[level]), known);
    if (context.budget_spent || context.stop()) break;
    if (!found.empty()) known = std::move(found);
  }
  return known;
}

std::vector<ChainSplit> closest_splits(const Chain& chain, const DeviceTable& table,
                                       const std::vector<DeviceId>& devices, std::int64_t micro_batches,
                                       SplitOptions options, Context& context) {
  const auto search = [&](std::int64_t percent) {
    options.memory_percent = percent;
    return min_max_splits(chain, table, devices, micro_batches, options, context);
  };
  return closest_by_memory(search, context);
}

std::vector<StageDraft> drafts_of(const Chain& chain, const ChainSplit& split) {
  std::vector<StageDraft> drafts;
  for (const ChainStage& stage : split.stages) {
    drafts.push_back({chain.set(stage.first_block, stage.last_block), stage.devices, {}});
  }
  return drafts;
}

std::vector<StageDraft> drafts_of(const Chain& chain, const ChainSplit& split, const DeviceTable& table) {
  const std::int64_t m = chain.line().problem().training.batch.count() / chain.micro_batch().count();
  std::vector<StageDraft> drafts = drafts_of(chain, split);
  for (std::size_t s = 0; s < drafts.size(); ++s) {
    std::vector<Duration> times;
    for (const DeviceId device : drafts[s].devices) {
      times.push_back(time_on(table.classes()[table.class_of(device)], chain, split.stages[s].first_block,
                              split.stages[s].last_block));
    }
    drafts[s].weights = even_shares(m, times);
  }
  return drafts;
}

}  // namespace espalier
