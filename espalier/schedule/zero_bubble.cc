#include "espalier/schedule/zero_bubble.h"

#include <algorithm>

#include "espalier/schedule/interleaved.h"

namespace espalier {

GeneratedOrders zero_bubble_h1(const StagedModel& model, std::size_t devices) {
  FoundLine found = find_line(model, StageLine::Layout::kLoop, 1);
  if (!found.line) return {{}, std::move(found.why_not)};
  return interleaved(model, devices, OrderRule::Backward::kSplit);
}

GeneratedOrders zero_bubble_h2(const StagedModel& model, std::size_t devices) {
  FoundLine found = find_line(model, StageLine::Layout::kLoop, 1);
  if (!found.line) return {{}, std::move(found.why_not)};
  const std::size_t p = found.line->places(), m = found.line->micro_batches;
  LineOrder order(p);
  for (std::size_t place = 0; place < p; ++place) {
    std::vector<LineStep>& list = order[place];
    std::size_t forwards = std::min(m, 2 * (p - place) - 1);
    const std::size_t delay = std::min(m, 2 * place);
    list.assign(forwards, {ActionKind::kForward, 0});
    for (std::size_t i = 0; i < m; ++i) {
      list.push_back({ActionKind::kInputGradient, 0});
      if (i >= delay) list.push_back({ActionKind::kWeightGradient, 0});
      if (forwards++ < m) list.push_back({ActionKind::kForward, 0});
    }
    list.insert(list.end(), delay, {ActionKind::kWeightGradient, 0});
  }
  return {lists_on_devices(*found.line, model, devices, order), ""};
}

}  // namespace espalier
