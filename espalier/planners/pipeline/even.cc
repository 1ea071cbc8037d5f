#include "espalier/planners/pipeline/even.h"

#include <algorithm>

#include "espalier/planners/candidate.h"
#include "espalier/planners/pipeline/chain.h"

namespace espalier {
namespace {

// The cuts of `stages` stages over the blocks: strictly ascending, from 0 to blocks.
std::vector<std::size_t> even_cuts(const Chain& chain, KindId kind, EvenOptions::Balance balance,
                                   std::size_t stages) {
  const std::size_t n = chain.blocks();
  const auto share = [&](std::size_t block) {
    return balance == EvenOptions::Balance::kTime
               ? (chain.work(kind, 0, block) - chain.work(kind, 0, 0)).count()
               : chain.trainable(0, block).count();
  };
  std::vector<std::size_t> cuts{0};
  for (std::size_t k = 1; k < stages; ++k) {
    // The cut whose running share is closest to k/stages, leaving a block for each stage to come.
    const double goal = static_cast<double>(share(n)) * static_cast<double>(k) / static_cast<double>(stages);
    std::size_t best = cuts.back() + 1;
    for (std::size_t cut = best; cut + (stages - k) <= n; ++cut) {
      const auto distance = [&](std::size_t c) { return std::abs(static_cast<double>(share(c)) - goal); };
      if (distance(cut) < distance(best)) best = cut;
    }
    cuts.push_back(best);
  }
  cuts.push_back(n);
  return cuts;
}

}  // namespace

Outcome even(const Problem& problem, const EvenOptions& options, Context& context) {
  Judge judge(problem);
  for (const BatchSize micro_batch : usable_micro_batches(problem)) {
    if (context.stop()) break;
    const Chain chain(problem, chain_order(problem.graph), micro_batch);
    const std::size_t stages = std::min(chain.blocks(), problem.cluster.devices().size());
    const std::vector<std::size_t> cuts =
        even_cuts(chain, problem.cluster.devices().front().kind, options.balance, stages);
    std::vector<StageDraft> drafts;
    for (std::size_t s = 0; s < stages; ++s) {
      StageDraft draft{chain.operators(cuts[s], cuts[s + 1]), {DeviceId(s)}, {}};
      if (s > 0) draft.after = {s - 1};
      drafts.push_back(std::move(draft));
    }
    judge.consider(drafts, micro_batch, options.schedule);
  }
  return judge.outcome(context);
}

}  // namespace espalier
