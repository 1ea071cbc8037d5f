#include "espalier/schedule/dual_pipe_v.h"

#include <deque>

namespace espalier {
namespace {

// One device's list while it is made. Chunk 0 is on the way down the V, chunk 1 on the way up.
class DualPipePlace {
 public:
  void forward(std::size_t chunk) { steps_.push_back({ActionKind::kForward, chunk}); }
  void backward(std::size_t chunk) { steps_.push_back({ActionKind::kBackward, chunk}); }
  void input(std::size_t chunk) {
    steps_.push_back({ActionKind::kInputGradient, chunk});
    waiting_.push_back(chunk);
  }
  void weight_if_any() {
    if (waiting_.empty()) return;
    steps_.push_back({ActionKind::kWeightGradient, waiting_.front()});
    waiting_.pop_front();
  }
  std::vector<LineStep> take() { return std::move(steps_); }

 private:
  std::vector<LineStep> steps_;
  std::deque<std::size_t> waiting_;  // chunks of the I whose W has not come
};

std::vector<LineStep> dual_pipe_list(std::size_t place, std::size_t p, std::size_t m) {
  DualPipePlace list;
  const std::size_t to_come = p - 1 - place;
  for (std::size_t i = 0; i < 2 * to_come; ++i) list.forward(0);
  for (std::size_t i = 0; i <= place; ++i) {
    list.forward(0);
    list.forward(1);
  }
  for (std::size_t i = 0; i < to_come; ++i) {
    list.input(1);
    list.weight_if_any();
    list.forward(1);
  }
  for (std::size_t i = 0; i < m - 2 * p + place + 1; ++i) {  // steady state
    list.forward(0);
    list.backward(1);
    list.forward(1);
    list.backward(0);
  }
  for (std::size_t i = 0; i < to_come; ++i) {
    list.backward(1);
    list.forward(1);
    list.backward(0);
  }
  // From the middle of what is left on, halves: I first, W where the device would wait.
  bool halves = false;
  const auto backward = [&](std::size_t chunk) { halves ? list.input(chunk) : list.backward(chunk); };
  for (std::size_t i = 0; i <= place; ++i) {
    const bool middle = i == (place + 1) / 2;
    halves |= middle && place % 2 == 1;
    backward(1);
    halves |= middle && place % 2 == 0;
    backward(0);
  }
  for (std::size_t i = 0; i < to_come; ++i) {
    list.weight_if_any();
    backward(0);
  }
  for (std::size_t i = 0; i <= place; ++i) list.weight_if_any();
  return list.take();
}

}  // namespace

GeneratedOrders dual_pipe_v(const StagedModel& model, std::size_t devices) {
  FoundLine found = find_line(model, StageLine::Layout::kV, 2);
  if (!found.line) return {{}, std::move(found.why_not)};
  const std::size_t p = found.line->places(), m = found.line->micro_batches;
  if (m < 2 * p) {
    return {{}, std::to_string(m) + " micro-batches; it needs two for each device, " + std::to_string(2 * p)};
  }
  LineOrder order;
  for (std::size_t place = 0; place < p; ++place) order.push_back(dual_pipe_list(place, p, m));
  return {lists_on_devices(*found.line, model, devices, order), ""};
}

}  // namespace espalier
