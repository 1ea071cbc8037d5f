// What memory does at each entry (the intervals: trace.h, "What a device holds").
//
// What begins or ends with an entry of the device's own list is a term of that entry's change. Most follow
// from the entry's stage and kind alone and are not written down; the engine adds them:
//
//     F   start  saved, forward workspace, the stage's outputs     end  - forward workspace
//     R   start  recomputed, forward workspace                     end  - forward workspace
//     B   start  backward workspace                                end  - that, saved, recomputed
//     I   start  backward workspace                                end  - that, + between_halves, - what of
//                                                                       saved and recomputed only I needs
//     W   start  backward workspace                                end  - that, the rest of saved and
//                                                                       recomputed, between_halves
//     U   start  update workspace                                  end  - that
//
// Terms are the others: receive slots, gradients, the ends of outputs. What sums need is theirs (ListSum).
// What ends when messages have arrived is a ListFree. Entries with equal stage, kind and terms share a
// change. In a regular plan most terms are the same for all micro-batches, ListUsual of the stage, and what
// ends with a message is said by its hop.

#include <algorithm>

#include "espalier/sim/list_builder.h"

namespace espalier::internal {
namespace {

constexpr std::size_t kKinds = static_cast<std::size_t>(ActionKind::kUpdate) + 1;

}  // namespace

void ListBuilder::add_term(std::uint32_t slot, ListTerm::When when, std::uint32_t figure,
                           std::int32_t times) {
  if (times != 0) slot_terms_.push_back({slot, {when, figure, times}});
}

// The last slot on a device at which these samples of a crossing are used there; kNone: nobody reads them.
std::uint32_t ListBuilder::last_use(DeviceId device, const Crossing& crossing, const Samples& samples) const {
  std::uint32_t last = kNone;
  for_readers(device, crossing, samples, [&](const Use& use) {
    const std::uint32_t slot = last_need(use.places, *use.reader);
    last = last == kNone ? slot : std::max(last, slot);
  });
  return last;
}

// Has every message of the crossing arrived before its producer's B begins? B waits for a gradient from each
// device that reads it, and that for the message.
bool ListBuilder::gradients_come_last(const Crossing& crossing) const {
  const auto alone = [&](StageId stage) {
    return model_->stages[stage.index()].replicas[0].devices.size() == 1;
  };
  return equal_counts_ && alone(crossing.from) &&
         std::all_of(crossing.readers.begin(), crossing.readers.end(), [&](const Crossing::Reader& reader) {
           return flows_back(crossing, reader) && alone(reader.stage);
         });
}

// Outputs begin with F. They end with an entry of the device, or when the last message has arrived as well.
void ListBuilder::change_outputs() {
  for (std::uint32_t c = 0; c < model_->crossings.size(); ++c) {
    const Crossing& crossing = model_->crossings[c];
    if (crossing.token) continue;
    const bool gradients_last = gradients_come_last(crossing);
    const std::uint32_t count = micro_batches(crossing.from);
    const std::size_t stage = crossing.from.index();
    for (std::uint32_t j = 0; j < count; ++j) {
      const std::uint32_t first = seat_of_[owner_begin_[stage] + j];
      for (std::uint32_t s = first; s < seats_.size() && seats_[s].replica == seats_[first].replica; ++s) {
        const std::uint32_t made = places_on(seats_[s].device, crossing.from, j);
        const std::uint32_t forward = place(made, kForwardPlace), backward = place(made, kBackwardPlace);
        std::uint32_t end = last_use(seats_[s].device, crossing, {j, j + 1, count});
        if (end == kNone) end = forward;
        if (crossing.saved_by_producer) end = std::max(end, last_need(made, crossing.for_input_only));
        // What F sends stands in order, a crossing's messages one after the other.
        std::uint32_t rank = out_->sends_begin[forward];
        const std::uint32_t ranks = out_->sends_begin[forward + 1];
        const auto crossing_of = [&](std::uint32_t r) { return built_[by_rank_[r]].message.crossing; };
        while (rank < ranks && crossing_of(rank) != c) ++rank;
        std::uint32_t messages = 0;
        while (rank + messages < ranks && crossing_of(rank + messages) == c) ++messages;
        if (messages == 0 || (gradients_last && end >= backward)) {
          add_term(end, ListTerm::When::kEndActivations, out_->layout.output(c), -1);
        } else {
          slot_frees_.push_back({end, {out_->layout.output(c), rank, messages}});
        }
      }
    }
  }
}

// The receiver's buffer from the end of F to the end of B (of I); the sender's bytes from the start of the
// first reader's B until the message has arrived.
void ListBuilder::change_gradients() {
  for (std::uint32_t rank = 0; rank < by_rank_.size(); ++rank) {
    const BuiltMessage& built = built_[by_rank_[rank]];
    if (built.forward()) continue;
    const Crossing& crossing = model_->crossings[built.message.crossing];
    if (crossing.token) continue;
    const std::uint32_t figure = out_->layout.gradient(built.reader);
    const std::uint32_t receiver = places_on(built.to, crossing.from, built.message.producer_micro_batch);
    add_term(place(receiver, kForwardPlace), ListTerm::When::kEndBuffers, figure, 1);
    add_term(built.consumer, ListTerm::When::kEndBuffers, figure, -1);
    std::uint32_t first = kNone;
    for_readers(built.from, crossing, samples_of(built.message), [&](const Use& use) {
      if (flows_back(crossing, *use.reader)) first = std::min(first, place(use.places, kBackwardPlace));
    });
    add_term(first, ListTerm::When::kStartActivations, figure, 1);
    slot_frees_.push_back({built.producer, {figure, rank, 1}});
  }
}

void ListBuilder::list_frees() {
  std::vector<std::uint32_t>& begin = out_->frees_begin;
  begin.clear();
  out_->frees.clear();
  if (slot_frees_.empty()) return;
  begin.assign(out_->entries.size() + 2, 0);
  for (const SlotFree& each : slot_frees_) ++begin[each.slot + 2];
  begin_buckets(begin);
  out_->frees.resize(slot_frees_.size());
  for (const SlotFree& each : slot_frees_) out_->frees[begin[each.slot + 1]++] = each.free;
  begin.pop_back();
}

// Equal changes get one number. They stand close together: mostly it is the last of the same stage and kind.
void ListBuilder::number_changes() {
  const std::size_t slots = out_->entries.size();
  terms_begin_.assign(slots + 2, 0);
  for (const SlotTerm& each : slot_terms_) ++terms_begin_[each.slot + 2];
  begin_buckets(terms_begin_);
  sorted_terms_.resize(slot_terms_.size());
  for (const SlotTerm& each : slot_terms_) sorted_terms_[terms_begin_[each.slot + 1]++] = each.term;

  std::vector<ListChange>& changes = out_->changes;
  changes.clear();
  out_->terms.clear();
  latest_.assign(2 * model_->stages.size() * kKinds, kNone);  // without terms, with terms
  before_.clear();                                            // by change: the one before it of the same sort
  ListEntry* const entries = out_->entries.data();
  for (std::size_t slot = 0; slot < slots; ++slot) {
    const RawChange raw = raw_changes_[slot];
    const std::size_t count = terms_begin_[slot + 1] - terms_begin_[slot];
    std::uint32_t& head =
        latest_[2 * (raw.stage * kKinds + static_cast<std::size_t>(raw.kind)) + (count > 0 ? 1 : 0)];
    std::uint32_t number = head;
    if (number != kNone && count == 0) {
      entries[slot].change = number;
      continue;
    }
    const auto first = sorted_terms_.begin() + terms_begin_[slot];
    for (; number != kNone; number = before_[number]) {
      const auto theirs = out_->terms.begin() + changes[number].first_term;
      if (changes[number].terms == count &&
          std::equal(first, first + static_cast<std::ptrdiff_t>(count), theirs)) {
        break;
      }
    }
    if (number == kNone) {
      number = narrow(changes.size());
      changes.push_back({raw.stage, raw.kind, narrow(out_->terms.size()), narrow(count)});
      out_->terms.insert(out_->terms.end(), first, first + static_cast<std::ptrdiff_t>(count));
      before_.push_back(head);
      head = number;
    }
    entries[slot].change = number;
  }
}

}  // namespace espalier::internal
