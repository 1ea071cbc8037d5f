// When receives are posted, and what receive slots hold.

#include <algorithm>

#include "espalier/sim/list_builder.h"

namespace espalier::internal {

// Receive slots: the i-th micro-batch of an edge (crossing, reader, device) takes the one that the
// n-th before it gives back, of n.
void ListBuilder::find_slots() {
  struct ReceiveSlot {
    std::uint32_t messages = 0, release = 0, taken_from = 0;
  };
  std::vector<std::uint32_t> table_begin;  // by reader
  std::uint32_t size = 0;
  for (const Crossing& crossing : model_->crossings) {
    for (const Crossing::Reader& reader : crossing.readers) {
      const std::uint32_t first = first_seat_[reader.stage.index()],
                          end = first_seat_[reader.stage.index() + 1];
      table_begin.push_back(size - seats_[first].places / kPlaces);
      size += ((end < seats_.size() ? seats_[end].places : narrow(places_.size())) - seats_[first].places) /
              kPlaces;
    }
  }
  std::vector<ReceiveSlot> slots(size);
  const auto slot_of = [&](const BuiltMessage& built) -> ReceiveSlot& {
    const std::uint32_t places =
        places_on(built.to, built.message.reader, built.message.consumer_micro_batch);
    return slots[table_begin[built.reader] + places / kPlaces];
  };
  for (const BuiltMessage& built : built_) {
    if (!built.forward()) continue;
    ReceiveSlot& slot = slot_of(built);
    ++slot.messages;
    const Crossing& crossing = model_->crossings[built.message.crossing];
    slot.release = std::max(slot.release, last_use(built.to, crossing, samples_of(built.message)));
  }
  std::vector<ReceiveSlot*> edge;  // its micro-batches, ascending
  for (std::uint32_t c = 0; c < model_->crossings.size(); ++c) {
    for (std::uint32_t r = first_reader_[c]; r < first_reader_[c + 1]; ++r) {
      const std::size_t stage = model_->crossings[c].readers[r - first_reader_[c]].stage.index();
      const std::size_t ahead = model_->stages[stage].receive_slots();
      for (std::uint32_t s = first_seat_[stage]; s < first_seat_[stage + 1]; ++s) {
        const std::uint32_t end = s + 1 < seats_.size() ? seats_[s + 1].places : narrow(places_.size());
        edge.clear();
        for (std::uint32_t places = seats_[s].places; places < end; places += kPlaces) {
          ReceiveSlot& slot = slots[table_begin[r] + places / kPlaces];
          if (slot.messages > 0) edge.push_back(&slot);
        }
        std::uint32_t from_start = 0;
        for (std::size_t i = 0; i < edge.size(); ++i) {
          const bool later = i + ahead < edge.size();
          if (i < ahead) {
            edge[i]->taken_from = out_->always();
            from_start += edge[i]->messages;
          }
          if (later) edge[i + ahead]->taken_from = edge[i]->release;
          const std::int32_t next = later ? static_cast<std::int32_t>(edge[i + ahead]->messages) : 0;
          add_term(edge[i]->release, ListTerm::When::kEndBuffers, out_->layout.bytes(r),
                   next - static_cast<std::int32_t>(edge[i]->messages));
        }
        if (from_start > 0) {
          initial_.push_back(
              {lane_of_[seats_[s].device.index()],
               {ListTerm::When::kEndBuffers, out_->layout.bytes(r), static_cast<std::int32_t>(from_start)}});
        }
      }
    }
  }
  for (BuiltMessage& built : built_) {
    if (built.forward()) built.release = slot_of(built).taken_from;
  }
}

// What lanes hold from the start: receive slots and the buffers of their stages.
void ListBuilder::list_initial() {
  for (const Seat& seat : seats_) {
    initial_.push_back(
        {lane_of_[seat.device.index()],
         {ListTerm::When::kEndBuffers, out_->layout.of_stage(seat.stage, ListLayout::kBuffers), 1}});
  }
  std::vector<std::uint32_t>& begin = out_->initial_begin;
  begin.assign(out_->devices.size() + 2, 0);
  for (const LaneTerm& each : initial_) ++begin[each.lane + 2];
  begin_buckets(begin);
  out_->initial.resize(initial_.size());
  for (const LaneTerm& each : initial_) out_->initial[begin[each.lane + 1]++] = each.term;
  begin.pop_back();
}

// The receive of a gradient is posted at the end of F of its micro-batch, which is no wait: the reader's F,
// and so its gradient, waited for what that F sent.

}  // namespace espalier::internal
