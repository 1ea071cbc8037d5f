#include "espalier/planners/orders/zero_bubble.h"

#include <algorithm>

#include "espalier/planners/orders/best_order.h"
#include "espalier/planners/orders/zero_bubble_fill.h"
#include "espalier/planners/orders/zero_bubble_v.h"

namespace espalier {
namespace {

// The room that line_costs leaves counts no slot twice and no message on its way, so an order may hold more
// than it said. Then the devices that lack something get less room, at most so often.
constexpr int kTries = 8;

using Fills = std::vector<FilledOrder> (*)(const StageLine&, const LineCosts&);

GeneratedOrders fastest(const StagedModel& model, const Cluster& cluster, const StageLine& line,
                        std::optional<std::uint32_t> limit, Fills fills) {
  const std::size_t devices = cluster.devices().size();
  OrderJudge judge(model, cluster);
  BestOrder best(judge, cluster);
  LineCosts costs = line_costs(model, cluster, line, limit);
  for (int i = 0; i < kTries; ++i) {
    std::vector<Bytes> lacks(line.places());
    for (const FilledOrder& fill : fills(line, costs)) {
      const Evaluation& found = best.consider(lists_on_devices(line, model, devices, fill.order));
      for (std::size_t place = 0; place < line.places() && found.can_run(); ++place) {
        const DeviceId device = line.devices[place];
        const Bytes needs = found.peak[device.index()].total(), has = cluster.device(device).memory;
        lacks[place] = std::max(lacks[place], needs - std::min(needs, has));
      }
    }
    bool all_fit = true;
    for (std::size_t place = 0; place < line.places(); ++place) {
      all_fit &= lacks[place] == Bytes();
      costs.room[place] -= std::min(costs.room[place], lacks[place]);
    }
    if (all_fit || limit) break;
  }
  if (!best.lists()) return {{}, "the devices' memory has no room for more than one micro-batch"};
  return {best.lists(), ""};
}

}  // namespace

GeneratedOrders zero_bubble_greedy(const StagedModel& model, const Cluster& cluster,
                                   std::optional<std::uint32_t> limit) {
  FoundLine found = find_line(model, StageLine::Layout::kLoop, 1);
  if (!found.line) return {{}, std::move(found.why_not)};
  return fastest(model, cluster, *found.line, limit, zero_bubble_fills);
}

GeneratedOrders zero_bubble_v(const StagedModel& model, const Cluster& cluster,
                              std::optional<std::uint32_t> limit) {
  FoundLine found = find_line(model, StageLine::Layout::kV, 2);
  if (!found.line) return {{}, std::move(found.why_not)};
  return fastest(model, cluster, *found.line, limit, zero_bubble_v_fills);
}

}  // namespace espalier
