#include "espalier/schedule/interleaved.h"

#include <algorithm>

namespace espalier {

GeneratedOrders interleaved(const StagedModel& model, std::size_t devices, OrderRule::Backward backward) {
  FoundLine found = find_line(model, StageLine::Layout::kLoop);
  if (!found.line) return {{}, std::move(found.why_not)};
  const StageLine& line = *found.line;
  const std::size_t p = line.places(), v = line.chunks, m = line.micro_batches;
  const std::size_t rounds = v == 1 ? 1 : std::max<std::size_t>(1, m / p);
  if (m % rounds != 0) {
    return {{},
            std::to_string(m) + " micro-batches do not make " + std::to_string(rounds) +
                " equal rounds of at least " + std::to_string(p) + ", one for each device"};
  }
  const std::size_t round = m / rounds, all = m * v;
  const bool split = backward == OrderRule::Backward::kSplit;
  const std::size_t for_each_place = v > 1 && !split ? 2 : 1;
  const auto backward_chunk = [&](std::size_t i) { return v - 1 - i / round % v; };

  LineOrder order(p);
  for (std::size_t place = 0; place < p; ++place) {
    std::vector<LineStep>& list = order[place];
    const std::size_t warm_up = std::min(all, (v - 1) * round + for_each_place * (p - 1 - place));
    std::size_t forwards = 0, weights = 0;
    const auto forward = [&] { list.push_back({ActionKind::kForward, forwards++ / round % v}); };
    const auto weight = [&] { list.push_back({ActionKind::kWeightGradient, backward_chunk(weights++)}); };
    while (forwards < warm_up) forward();
    for (std::size_t i = 0; i < all; ++i) {
      if (forwards < all) forward();
      list.push_back({split ? ActionKind::kInputGradient : ActionKind::kBackward, backward_chunk(i)});
      if (split && i >= place) weight();
    }
    while (split && weights < all) weight();
  }
  return {lists_on_devices(line, model, devices, order), ""};
}

}  // namespace espalier
