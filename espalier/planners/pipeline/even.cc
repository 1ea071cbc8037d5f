#include "espalier/planners/pipeline/even.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "espalier/planners/candidate.h"
#include "espalier/planners/pipeline/chain_split.h"

namespace espalier {
namespace {

// What is shared evenly, by block.
class Shares {
 public:
  Shares(const Chain& chain, EvenOptions::Balance balance) : chain_(chain), balance_(balance) {}

  double of(DeviceId device, std::size_t first, std::size_t last) const {
    if (balance_ == EvenOptions::Balance::kParameters) {
      return static_cast<double>(chain_.price(first, last).trainable.count());
    }
    return static_cast<double>(chain_.work(kind(device), Crowd::kAlone, first, last).count());
  }
  // How much of it the device takes beside others.
  double speed(DeviceId device, DeviceId reference) const {
    if (balance_ == EvenOptions::Balance::kParameters || kind(device) == kind(reference)) return 1;
    const double own = of(device, 0, chain_.blocks());
    return own > 0 ? of(reference, 0, chain_.blocks()) / own : 1;
  }

 private:
  KindId kind(DeviceId device) const { return chain_.line().problem().cluster.device(device).kind; }

  const Chain& chain_;
  EvenOptions::Balance balance_;
};

ChainSplit even_split(const Chain& chain, const Shares& shares, const std::vector<DeviceId>& row) {
  const std::size_t n = chain.blocks(), stages = std::min(n, row.size());
  double all = 0;
  for (std::size_t s = 0; s < stages; ++s) all += shares.speed(row[s], row[0]);
  ChainSplit split;
  std::size_t cut = 0;
  double before = 0;
  for (std::size_t s = 0; s < stages; ++s) {
    // The cut whose running share is closest to the goal, leaving a block for each stage to come.
    before += shares.speed(row[s], row[0]);
    const double goal = shares.of(row[s], 0, n) * before / all;
    const auto distance = [&](std::size_t c) { return std::abs(shares.of(row[s], 0, c) - goal); };
    std::size_t best = s + 1 == stages ? n : cut + 1;
    for (std::size_t c = best; c + (stages - s - 1) <= n; ++c) {
      if (distance(c) < distance(best)) best = c;
    }
    split.stages.push_back({cut, best, {row[s]}});
    cut = best;
  }
  return split;
}

// With pins, by dynamic program: best[cut][used devices of the row], the least largest share of what stands
// before the cut.
ChainSplit pinned_split(const Chain& chain, const Shares& shares, const std::vector<DeviceId>& row) {
  struct Step {
    double largest = std::numeric_limits<double>::infinity();
    std::size_t from = 0;
    std::optional<DeviceId> device = {};
    bool of_row = false;
  };
  const std::size_t n = chain.blocks();
  std::vector<std::vector<Step>> best(n + 1, std::vector<Step>(row.size() + 1));
  best[0][0].largest = 0;
  for (std::size_t cut = 0; cut < n; ++cut) {
    for (std::size_t used = 0; used <= row.size(); ++used) {
      const Step here = best[cut][used];
      if (here.largest == std::numeric_limits<double>::infinity()) continue;
      std::optional<DeviceId> pin;
      for (std::size_t next = cut + 1; next <= n; ++next) {
        const BlockPin& block = chain.pin(next - 1);
        if (block.torn || (block.device && pin && *block.device != *pin)) break;
        if (block.device) pin = block.device;
        if (!pin && used == row.size()) continue;
        const DeviceId device = pin ? *pin : row[used];
        const double largest = std::max(here.largest, shares.of(device, cut, next));
        Step& there = best[next][used + (pin ? 0 : 1)];
        if (largest < there.largest) there = {largest, cut, device, !pin};
      }
    }
  }
  const auto last = std::min_element(best[n].begin(), best[n].end(),
                                     [](const Step& a, const Step& b) { return a.largest < b.largest; });
  ChainSplit split;
  if (last->largest == std::numeric_limits<double>::infinity()) return split;
  std::size_t cut = n, used = static_cast<std::size_t>(last - best[n].begin());
  while (cut > 0) {
    const Step& step = best[cut][used];
    split.stages.push_back({step.from, cut, {*step.device}});
    cut = step.from;
    used -= step.of_row ? 1 : 0;
  }
  std::reverse(split.stages.begin(), split.stages.end());
  return split;
}

}  // namespace

Outcome even(const Problem& problem, const EvenOptions& options, Context& context) {
  Judge judge(problem, context);
  const Linearization line(problem, chain_order(problem.graph));
  const std::vector<DeviceId> devices = unpinned_devices(problem);
  const bool pins = devices.size() < problem.cluster.devices().size();
  for (const BatchSize micro_batch : usable_micro_batches(problem)) {
    if (context.stop()) break;
    const Chain chain(line, micro_batch);
    if (chain.blocks() == 0) break;
    const Shares shares(chain, options.balance);
    for (const std::vector<DeviceId>& row : device_rows(problem.cluster, devices, chain.times_by_kind())) {
      const ChainSplit split = pins ? pinned_split(chain, shares, row) : even_split(chain, shares, row);
      if (split.stages.empty()) continue;
      std::vector<StageDraft> drafts = drafts_of(chain, split);
      for (std::size_t s = 1; s < drafts.size(); ++s) drafts[s].after = {s - 1};
      judge.consider(drafts, micro_batch, options.schedule);
    }
  }
  return judge.outcome();
}

}  // namespace espalier
