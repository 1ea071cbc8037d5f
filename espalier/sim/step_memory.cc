// Peak memory of one device of a step (the intervals: trace.h, "What a device holds"), from recorded starts.
//
// Memory only grows when one of the device's own actions starts or ends; what others cause (a message that
// arrived) only shrinks it. So the walk over the device's actions suffices, and what arrivals free is applied
// when a sample is looked at. Arrivals on one channel ascend: such frees need no sorting, only a place each.

#include <algorithm>

#include "espalier/sim/step_simulation.h"

namespace espalier::internal {

// What is held after everything up to `now`, except frees not yet applied. A sample counts when the clock
// moves on, so that changes of one instant add up.
struct StepSimulation::Held {
  Stream* const streams;
  const std::size_t stream_count;
  std::vector<Freed>& freed;
  const std::uint32_t step, last;  // of the streams' micro-batches
  std::size_t freed_head = 0;
  std::int64_t buffers = 0, activations = 0;
  Time now = 0;
  bool grew = true;  // at this instant; if not, its sample cannot be a new peak
  std::int64_t most = -1;
  StepPeak peak{};

  void move_to(Time time) {
    if (time == now) return;
    if (grew && buffers + activations > most) look();
    grew = false;
    now = time;
  }

  void look() {
    for (std::size_t i = 0; i < stream_count; ++i) {
      // Mostly none or one: a step without a branch, then a loop that hardly ever runs.
      Stream& stream = streams[i];
      const bool gone = stream.arrival[stream.at] <= now;
      activations -= gone ? stream.bytes : 0;
      stream.at = std::min(stream.at + (gone ? step : 0), last);
      while (stream.arrival[stream.at] <= now) {
        activations -= stream.bytes;
        stream.at = std::min(stream.at + step, last);
      }
    }
    while (freed_head < freed.size() && freed[freed_head].time <= now) {
      activations -= freed[freed_head++].bytes;
    }
    if (buffers + activations > most) {
      most = buffers + activations;
      peak = {buffers, activations};
    }
  }

  void free_later(Time time, std::int64_t bytes) {
    std::size_t at = freed.size();
    freed.push_back({time, bytes});
    for (; at > freed_head && time < freed[at - 1].time; --at) freed[at] = freed[at - 1];
    freed[at] = {time, bytes};
  }
};

void StepSimulation::measure_memory(std::uint32_t index) {
  const Unit& unit = units_[index];
  const Totals totals = add_up(unit);
  const bool streams_only = sorted_outputs_.empty() && sorted_gradients_.empty() &&
                            !input_->stages[unit.stage].recomputes && unit.duration[kForward] > 0 &&
                            unit.duration[kBackward] > 0;
  peaks_[index] = streams_only ? peak_of_streams(unit, totals) : peak_in_general(unit, totals);
}

// What stage totals come to, and which frees are streams. The others, where the peer has several replicas or
// several readers share an output, are worked out per micro-batch.
StepSimulation::Totals StepSimulation::add_up(const Unit& unit) {
  const StepInput& input = *input_;
  const auto slow = [&](std::uint32_t stage_index) { return input.stages[stage_index].replicas > 1; };
  Totals totals;
  streams_.clear();
  sorted_outputs_.clear();
  sorted_gradients_.clear();
  for (std::uint32_t c = crossings_begin_[unit.stage]; c < crossings_begin_[unit.stage + 1]; ++c) {
    const StepCrossing& crossing = input.crossings[c];
    bool all_return = true;
    for (std::uint32_t e = crossing.first_edge; e < crossing.first_edge + crossing.edges; ++e) {
      totals.gradients_in += input.edges[e].returns ? input.edges[e].gradient : 0;
      all_return = all_return && input.edges[e].returns;
    }
    if (crossing.output == 0) continue;
    totals.outputs += crossing.output;
    if (crossing.saved && all_return) {
      totals.kept_outputs += crossing.output;  // sent long before its gradients came back
    } else if (!crossing.saved && crossing.edges == 1 && !slow(input.edges[crossing.first_edge].to)) {
      streams_.push_back(
          {arrival_.data() + row(crossing.first_edge, kForward), crossing.output, unit.replica});
    } else {
      sorted_outputs_.push_back(c);
    }
  }
  totals.output_streams = streams_.size();
  for (std::uint32_t i = edges_in_begin_[unit.stage]; i < edges_in_begin_[unit.stage + 1]; ++i) {
    const StepEdge& edge = input.edges[edges_in_[i]];
    totals.slots_after[edge.saved ? kBackward : kForward] += edge.bytes;
    if (!edge.returns || edge.gradient == 0) continue;
    totals.gradients_out += edge.gradient;
    if (slow(edge.from)) {
      sorted_gradients_.push_back(edges_in_[i]);
    } else {
      streams_.push_back({arrival_.data() + row(edges_in_[i], kBackward), edge.gradient, unit.replica});
    }
  }
  return totals;
}

// Where all that arrivals free are streams and every action takes time: a sample is a sum of what the order
// of actions alone decides and of what is on its way then. That is what the action itself will send, and
// mostly nothing else, which the arrival of the last before it tells.
StepPeak StepSimulation::peak_of_streams(const Unit& unit, const Totals& totals) const {
  const StepStage& stage = input_->stages[unit.stage];
  const std::uint32_t step = stage.replicas;
  const Stream* const outputs_end = streams_.data() + totals.output_streams;
  const Stream* const gradients_end = streams_.data() + streams_.size();
  std::int64_t buffers = stage.buffers + std::min(unit.count, stage.slots) *
                                             (totals.slots_after[kForward] + totals.slots_after[kBackward]);
  std::int64_t activations = 0, most = -1;  // activations: without what is on its way
  StepPeak peak;
  std::uint32_t sent[2] = {unit.replica, unit.replica};  // in streams: the next that F and B will send
  const auto on_the_way = [&](const Stream& stream, std::uint32_t next, Time now) {
    std::int64_t bytes = 0;
    for (; next >= step && stream.arrival[next - step] > now; next -= step) bytes += stream.bytes;
    return bytes;
  };
  const auto look = [&](std::int64_t held, Time now) __attribute__((always_inline)) {
    const Stream* stream = streams_.data();
    for (; stream != outputs_end; ++stream) held += on_the_way(*stream, sent[kForward], now);
    for (; stream != gradients_end; ++stream) held += on_the_way(*stream, sent[kBackward], now);
    if (buffers + held > most) {
      most = buffers + held;
      peak = {buffers, held};
    }
  };
  const std::uint32_t last_slots = unit.count - std::min(unit.count, stage.slots);  // from this rank on
  const auto given_back = [&](std::uint32_t rank, Direction direction) {
    return rank >= last_slots ? totals.slots_after[direction] : 0;
  };
  const Slot* slot[2] = {slots_.data() + unit.slot(0, kForward), slots_.data() + unit.slot(0, kBackward)};
  std::uint32_t forwards = 0, backwards = 0;
  const auto forward = [&]() __attribute__((always_inline)) {
    const Time end = slot[kForward]->end;
    slot[kForward] += 2;
    look(activations + stage.saved + totals.outputs + stage.forward_workspace, end - unit.duration[kForward]);
    activations += stage.saved + totals.kept_outputs;
    buffers += totals.gradients_in - given_back(forwards++, kForward);
    sent[kForward] += step;
    if (totals.gradients_in > stage.forward_workspace) look(activations, end);
  };
  const auto backward = [&]() __attribute__((always_inline)) {
    const Time end = slot[kBackward]->end;
    slot[kBackward] += 2;
    look(activations + totals.gradients_out + stage.backward_workspace, end - unit.duration[kBackward]);
    activations -= stage.saved + totals.kept_outputs;
    buffers -= totals.gradients_in + given_back(backwards++, kBackward);
    sent[kBackward] += step;
  };
  while (forwards < unit.limit) forward();
  while (forwards < unit.count) {
    backward();
    forward();
  }
  while (backwards < unit.count) backward();
  return peak;
}

StepPeak StepSimulation::peak_in_general(const Unit& unit, const Totals& totals) {
  const StepInput& input = *input_;
  const StepStage& stage = input.stages[unit.stage];
  const std::int64_t outputs = totals.outputs, kept_outputs = totals.kept_outputs;
  const std::int64_t gradients_in = totals.gradients_in, gradients_out = totals.gradients_out;
  const auto& slots_after = totals.slots_after;
  freed_.clear();
  Held held{
      streams_.data(), streams_.size(), freed_, stage.replicas, micro_batches_, 0, 0, 0, 0, true, -1, {}};
  held.buffers =
      stage.buffers + std::min(unit.count, stage.slots) * (slots_after[kForward] + slots_after[kBackward]);
  const auto free_output = [&](std::uint32_t c, std::uint32_t j, Time end) {
    const StepCrossing& crossing = input.crossings[c];
    for (std::uint32_t e = crossing.first_edge; e < crossing.first_edge + crossing.edges; ++e) {
      end = std::max(end, arrival_[row(e, kForward) + j]);
    }
    held.free_later(end, crossing.output);
  };
  const std::int64_t forward_start = stage.saved + outputs + stage.forward_workspace;
  const std::int64_t backward_start = stage.backward_workspace + gradients_out;
  const std::int64_t backward_end = stage.saved + stage.recomputed + stage.backward_workspace + kept_outputs;
  const auto given_back = [&](std::uint32_t rank, Direction direction) {
    return rank + stage.slots >= unit.count ? slots_after[direction] : 0;
  };
  const auto forward = [&](std::uint32_t rank) __attribute__((always_inline)) {
    const Time end = slots_[unit.slot(rank, kForward)].end;
    held.move_to(end - unit.duration[kForward]);
    held.activations += forward_start;
    held.grew = true;
    for (const std::uint32_t c : sorted_outputs_) {
      if (!input.crossings[c].saved) free_output(c, micro_batch_of(unit, rank), end);
    }
    held.move_to(end);
    held.activations -= stage.forward_workspace;
    held.buffers += gradients_in - given_back(rank, kForward);
    held.grew |= gradients_in > stage.forward_workspace;
  };
  const auto backward = [&](std::uint32_t rank) __attribute__((always_inline)) {
    const std::uint32_t at = unit.slot(rank, kBackward);
    const Time end = slots_[at].end;
    if (stage.recomputes) {
      held.move_to(recompute_start_[at / 2]);
      held.activations += stage.recomputed + stage.forward_workspace;
      held.grew = true;
      held.move_to(recompute_start_[at / 2] + unit.recompute);
      held.activations -= stage.forward_workspace;
    }
    held.move_to(end - unit.duration[kBackward]);
    held.activations += backward_start;
    held.grew = true;
    const std::uint32_t j = micro_batch_of(unit, rank);
    for (const std::uint32_t e : sorted_gradients_) {
      held.free_later(arrival_[row(e, kBackward) + j], input.edges[e].gradient);
    }
    for (const std::uint32_t c : sorted_outputs_) {
      if (input.crossings[c].saved) free_output(c, j, end);
    }
    held.move_to(end);
    held.activations -= backward_end;
    held.buffers -= gradients_in + given_back(rank, kBackward);
  };
  // As advance() goes: some forwards, then backward and forward in turn, then the other backwards.
  std::uint32_t forwards = 0, backwards = 0;
  while (forwards < unit.limit) forward(forwards++);
  while (forwards < unit.count) {
    backward(backwards++);
    forward(forwards++);
  }
  while (backwards < unit.count) backward(backwards++);
  held.look();
  return held.peak;
}

}  // namespace espalier::internal
