// Peak memory of each lane's device, from recorded ends (the intervals: trace.h, "What a device holds").
//
// Memory only grows when one of the device's own entries starts or ends, or one of its sums arrives; what
// others cause (a message that arrived) only shrinks it. So the walk over the list, with the sums between,
// suffices, and what arrivals and the ends of sums free is applied when a sample is looked at. A sample
// counts when the clock moves on, so that changes of one instant add up.

#include <algorithm>

#include "espalier/sim/list_engine.h"

namespace espalier::internal {

void ListEngine::price_usual() {
  const ListStructure& structure = *structure_;
  usual_.assign(structure.usual_begin.size() - 1, {});
  for (std::size_t s = 0; s < usual_.size(); ++s) {
    Usual& sums = usual_[s];
    for (std::uint32_t i = structure.usual_begin[s]; i < structure.usual_begin[s + 1]; ++i) {
      const ListUsual& usual = structure.usual[i];
      const bool starts = usual.term.when == ListTerm::When::kStartActivations;
      const bool buffers = usual.term.when == ListTerm::When::kEndBuffers;
      std::int64_t& sum = usual.at == ListUsual::At::kForward ? sums.forward_buffers
                          : usual.at == ListUsual::At::kLast  ? sums.last_end
                          : starts                            ? sums.backward_start
                          : buffers                           ? sums.backward_buffers
                                                              : sums.backward_end;
      sum += costs_->bytes[usual.term.figure] * usual.term.times;
    }
  }
  if (!structure.hops_free) return;
  hop_frees_.resize(structure.hops.size());
  for (std::size_t h = 0; h < hop_frees_.size(); ++h) {
    const ListHop& hop = structure.hops[h];
    hop_frees_[h] = {hop.frees == ListHop::kNothing ? 0 : costs_->bytes[hop.frees], hop.ends_group};
  }
}

void ListEngine::price_changes() {
  price_usual();
  const ListStructure& structure = *structure_;
  const ListLayout& layout = structure.layout;
  const std::vector<std::int64_t>& bytes = costs_->bytes;
  changes_.resize(structure.changes.size());
  for (std::size_t c = 0; c < changes_.size(); ++c) {
    const ListChange& from = structure.changes[c];
    const auto of = [&](ListLayout::Figure figure) { return bytes[layout.of_stage(from.stage, figure)]; };
    Change change;
    const Usual& usual = usual_[from.stage];
    const bool again = from.kind == ActionKind::kRecompute;
    if (from.kind == ActionKind::kForward || again) {
      change.start_activations = of(again ? ListLayout::kRecomputed : ListLayout::kSaved);
      if (!again) {
        for (std::uint32_t i = structure.crossings_begin[from.stage];
             i < structure.crossings_begin[from.stage + 1]; ++i) {
          change.start_activations += bytes[layout.output(i)];
        }
        change.end_buffers = usual.forward_buffers;
      }
      change.start_activations += of(ListLayout::kForwardWorkspace);
      change.end_activations = -of(ListLayout::kForwardWorkspace);
    } else if (from.kind < ActionKind::kAllReduce) {
      change.start_activations = of(ListLayout::kBackwardWorkspace);
      change.end_activations = -of(ListLayout::kBackwardWorkspace);
      const std::int64_t kept = of(ListLayout::kSaved) + of(ListLayout::kRecomputed);
      const std::int64_t for_input = of(ListLayout::kSavedForInput) + of(ListLayout::kRecomputedForInput);
      const std::int64_t between = of(ListLayout::kBetweenHalves);
      change.end_activations += from.kind == ActionKind::kBackward        ? -kept
                                : from.kind == ActionKind::kInputGradient ? between - for_input
                                                                          : for_input - kept - between;
      if (from.kind != ActionKind::kWeightGradient) {
        change.start_activations += usual.backward_start;
        change.end_buffers = usual.backward_buffers;
        change.end_activations += usual.backward_end;
      }
      if (from.kind != ActionKind::kInputGradient) change.end_activations += usual.last_end;
    } else if (from.kind == ActionKind::kUpdate) {
      change.start_activations = of(ListLayout::kUpdateWorkspace);
      change.end_activations = -of(ListLayout::kUpdateWorkspace);
    }
    for (std::uint32_t i = from.first_term; i < from.first_term + from.terms; ++i) {
      const ListTerm& term = structure.terms[i];
      const std::int64_t sum = bytes[term.figure] * term.times;
      (term.when == ListTerm::When::kStartActivations ? change.start_activations
       : term.when == ListTerm::When::kEndActivations ? change.end_activations
                                                      : change.end_buffers) += sum;
    }
    changes_[c] = change;
  }
}

std::span<const ListPeak> ListEngine::measure_memory() {
  price_changes();
  peaks_.resize(lanes_.size());
  for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) peaks_[lane] = peak_of(lane);
  return peaks_;
}

// What is held after everything up to `now`, except frees not yet applied.
struct ListEngine::Held {
  ListEngine& engine;
  std::vector<Freed>& freed;            // ascending from freed_head
  std::uint32_t sum = 0, last_sum = 0;  // of the lane: those that have not arrived
  std::uint32_t open_sum = 0;           // and from here those whose room has not been given back
  std::size_t freed_head = 0;
  std::int64_t buffers = 0, activations = 0;
  Time now = 0;
  bool grew = true;  // at this instant; if not, its sample cannot be a new peak
  std::int64_t most = -1;
  ListPeak peak = {};

  void move_to(Time time) {
    if (time == now) return;
    if (grew && buffers + activations > most) look();
    grew = false;
    now = time;
  }

  std::int64_t room_of(std::uint32_t number) const {
    const ListSum& from = engine.structure_->sums[number];
    return engine.costs_->bytes[from.figure] * from.times;
  }

  // With the sums that arrive by then.
  void pass_to(Time time) {
    for (; sum < last_sum && engine.sums_[sum].arrival <= time; ++sum) {
      move_to(engine.sums_[sum].arrival);
      buffers += room_of(sum);
      grew = true;
    }
    move_to(time);
  }

  void look() {
    while (freed_head < freed.size() && freed[freed_head].time <= now) {
      activations -= freed[freed_head++].bytes;
    }
    const ListStructure& structure = *engine.structure_;
    while (open_sum < sum && engine.ends_[structure.sums[open_sum].slot] <= now) {
      buffers -= room_of(open_sum++);
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

ListPeak ListEngine::peak_of(std::uint32_t lane) {
  const ListStructure& structure = *structure_;
  const std::vector<std::int64_t>& bytes = costs_->bytes;
  freed_.clear();
  Held held{*this, freed_, structure.sums_begin[lane], structure.sums_begin[lane + 1],
            structure.sums_begin[lane]};
  for (std::uint32_t i = structure.initial_begin[lane]; i < structure.initial_begin[lane + 1]; ++i) {
    held.buffers += bytes[structure.initial[i].figure] * structure.initial[i].times;
  }
  for (std::uint32_t slot = structure.lane_begin[lane]; slot < structure.lane_begin[lane + 1]; ++slot) {
    const ListEntry& entry = structure.entries[slot];
    const Change& change = changes_[entry.change];
    if (is_sum(entry)) continue;
    const Time end = ends_[slot];
    if (change.start_activations != 0) {
      held.pass_to(end - durations_[entry.work]);
      held.activations += change.start_activations;
      held.grew = true;
    }
    held.pass_to(end);
    held.activations += change.end_activations;
    held.buffers += change.end_buffers;
    held.grew = held.grew || change.end_activations + change.end_buffers > 0;
    if (structure.hops_free) {
      Time time = end;
      for (std::uint32_t rank = structure.sends_begin[slot]; rank < structure.sends_begin[slot + 1]; ++rank) {
        const HopFree& free = hop_frees_[structure.sends[rank].hop];
        time = std::max(time, arrival_[rank]);
        if (!free.ends_group) continue;
        if (free.bytes > 0) held.free_later(time, free.bytes);
        time = end;
      }
    }
    if (structure.frees.empty()) continue;
    for (std::uint32_t i = structure.frees_begin[slot]; i < structure.frees_begin[slot + 1]; ++i) {
      const ListFree& free = structure.frees[i];
      Time time = end;
      for (std::uint32_t rank = free.first; rank < free.first + free.count; ++rank) {
        time = std::max(time, arrival_[rank]);
      }
      held.free_later(time, bytes[free.figure]);
    }
  }
  held.pass_to(iteration_);
  held.look();
  return held.peak;
}

}  // namespace espalier::internal
