// The short way of regular plans (list_builder.h). Nothing is looked for or sorted: messages of an edge, from
// one stage to another that reads it, differ in their micro-batch alone.
//
//     edge x → y, x on two replicas, y on one     micro-batch   0   1   2   3   4
//     period 2: a hop for j = 0, 2, 4, …          hop           a   b   a   b   a
//     and one for j = 1, 3, …                     in channel    0   0   1   1   2
//
// All edges between two stages have the same period and the same channels; on a channel the messages of one
// micro-batch stand by crossing, as they do among all that an action sends.

#include <algorithm>
#include <numeric>

#include "espalier/schedule/rules.h"
#include "espalier/sim/list_builder.h"

namespace espalier::internal {

bool ListBuilder::is_regular() {
  if (!equal_counts_) return false;
  seat_on_.assign(device_count_, kNone);
  std::uint32_t seat = 0;
  for (const StagedStage& stage : model_->stages) {
    for (std::size_t r = 0; r < stage.replicas.size(); ++r) {
      const StagedReplica& replica = stage.replicas[r];
      if (replica.devices.size() != 1) return false;
      std::uint32_t& here = seat_on_[replica.devices[0].index()];
      if (here != kNone) return false;
      here = seat++;
      if (!is_round_robin(replica.micro_batches, stage.micro_batches, r, stage.replicas.size())) return false;
    }
  }
  return true;
}

// The lists of a rule, each replica's pattern and the ends of the step.
void ListBuilder::write_patterns() {
  const std::size_t stages = model_->stages.size();
  if (ends_of_step_.size() < stages) ends_of_step_.resize(stages);
  for (std::size_t s = 0; s < stages; ++s) ends_of_step_[s].clear();
  for_ends_of_step(
      *model_, [&](const Action& action, StageId stage) { ends_of_step_[stage.index()].push_back(action); });
  const std::vector<Progress> patterns = beginnings(*model_);
  std::size_t entries = 0;
  for (const Progress& pattern : patterns) {
    entries += 3 * pattern.share() + ends_of_step_[pattern.stage.index()].size();
  }
  out_->entries.reserve(entries);
  raw_changes_.reserve(entries);
  for (std::size_t d = 0; d < device_count_; ++d) {
    if (seat_on_[d] == kNone) continue;
    begin_lane(DeviceId(d));
    const Seat& seat = seats_[seat_on_[d]];
    const bool again = recomputes(model_->stages[seat.stage]);
    Progress pattern = patterns[seat_on_[d]];
    const auto add = [&](ActionKind kind, Place which, std::size_t rank) {
      places_[seat.places + narrow(rank) * kPlaces + which] = narrow(out_->entries.size());
      add_entry(kind, seat.stage, ListLayout::work(seat.replica, kind));
    };
    while (!pattern.finished()) {
      const Progress::Next next = pattern.in_pattern();
      if (next == Progress::Next::kForward) {
        add(ActionKind::kForward, kForwardPlace, pattern.forwards);
      } else {
        if (again) add(ActionKind::kRecompute, kRecomputePlace, pattern.backwards);
        add(ActionKind::kBackward, kBackwardPlace, pattern.backwards);
      }
      pattern.advance(next);
    }
    for (const Action& action : ends_of_step_[seat.stage]) {
      if (action.kind == ActionKind::kUpdate) {
        add_entry(action.kind, seat.stage, ListLayout::work(seat.replica, action.kind));
      } else {
        add_collective(action.kind, action.target());
      }
    }
    out_->lane_begin.push_back(narrow(out_->entries.size()));
  }
}

void ListBuilder::write_regular_messages() {
  find_edges();
  count_sends();
  channel_from_.assign(seats_.size(), kNone);
  channel_next_.clear();
  channel_hops_.clear();
  hop_place_.clear();
  const std::uint32_t micro_batches = model_->stages.empty() ? 0 : model_->stages[0].micro_batches;
  for (RegularEdge& edge : edges_) add_hops(edge, micro_batches);
  std::uint32_t first = 0;
  for (ListChannel& channel : out_->channels) {
    channel.first = first;
    first += channel.count + 1;
  }
  out_->messages.resize(first);
  for (const ListChannel& channel : out_->channels) {
    out_->messages[channel.first + channel.count] = {out_->never(), out_->always(), 0, 0, 0};
  }
  for (const RegularEdge& edge : edges_) {
    write_messages(edge);
    write_slots(edge);
  }
  if (out_->endpoints) list_regular_receives();
  add_usual_changes();
}

// All readers of crossings, by (crossing, reader): so they stand in what an action sends, too.
void ListBuilder::find_edges() {
  const std::size_t stages = model_->stages.size();
  edges_.clear();
  forward_sends_.assign(stages, 0);
  backward_sends_.assign(stages, 0);
  for (std::uint32_t c = 0; c < model_->crossings.size(); ++c) {
    const Crossing& crossing = model_->crossings[c];
    for (const Crossing::Reader& reader : crossing.readers) {
      RegularEdge edge;
      edge.reader = &reader;
      edge.crossing = c;
      edge.from = narrow(crossing.from.index());
      edge.to = narrow(reader.stage.index());
      edge.number = narrow(edges_.size());
      edge.returns = flows_back(crossing, reader);
      edge.forward_place = forward_sends_[edge.from]++;
      if (edge.returns) edge.backward_place = backward_sends_[edge.to]++;
      edge.period = narrow(
          std::lcm(model_->stages[edge.from].replicas.size(), model_->stages[edge.to].replicas.size()));
      edges_.push_back(edge);
    }
  }
}

// Ranks: by list, entry, place among what the entry sends.
void ListBuilder::count_sends() {
  std::vector<std::uint32_t>& begin = out_->sends_begin;
  const std::size_t slots = out_->entries.size();
  begin.resize(slots + 1);
  std::uint32_t* at = begin.data();
  std::uint32_t count = 0;
  for (const RawChange& what : raw_changes_) {
    *at++ = count;
    if (what.kind == ActionKind::kForward) count += forward_sends_[what.stage];
    if (what.kind == ActionKind::kBackward || what.kind == ActionKind::kInputGradient) {
      count += backward_sends_[what.stage];
    }
  }
  *at = count;
  out_->sends.resize(count);
}

std::uint32_t ListBuilder::channel_between(std::uint32_t from_seat, std::uint32_t to_seat) {
  const std::uint32_t to = lane_of_[seats_[to_seat].device.index()];
  for (std::uint32_t c = channel_from_[from_seat]; c != kNone; c = channel_next_[c]) {
    if (out_->channels[c].to == to) return c;
  }
  const std::uint32_t made = new_channel(seats_[from_seat].device, seats_[to_seat].device);
  channel_next_.push_back(channel_from_[from_seat]);
  channel_from_[from_seat] = made;
  channel_hops_.push_back(0);
  return made;
}

void ListBuilder::add_hops(RegularEdge& edge, std::uint32_t micro_batches) {
  const bool free = model_->crossings[edge.crossing].token && model_->tokens == TokenRule::kFree;
  const std::uint32_t senders = first_seat_[edge.from + 1] - first_seat_[edge.from];
  const std::uint32_t readers = first_seat_[edge.to + 1] - first_seat_[edge.to];
  edge.hops = std::min(edge.period, micro_batches);
  const auto add = [&](std::uint32_t from, std::uint32_t to, std::uint32_t bytes, std::uint32_t count) {
    ListHop hop;
    hop.channel = channel_between(from, to);
    hop.bytes = bytes;
    hop.count = count;
    hop.free = free;
    out_->channels[hop.channel].count += count;
    hop_place_.push_back(channel_hops_[hop.channel]++);
    out_->hops.push_back(hop);
  };
  edge.first_hop = narrow(out_->hops.size());
  for (std::uint32_t q = 0; q < edge.hops; ++q) {
    add(first_seat_[edge.from] + q % senders, first_seat_[edge.to] + q % readers,
        out_->layout.bytes(edge.number), (micro_batches - q + edge.period - 1) / edge.period);
  }
  edge.first_hop_back = narrow(out_->hops.size());
  for (std::uint32_t q = 0; q < edge.hops && edge.returns; ++q) {
    add(first_seat_[edge.to] + q % readers, first_seat_[edge.from] + q % senders,
        out_->layout.gradient(edge.number), (micro_batches - q + edge.period - 1) / edge.period);
  }
}

void ListBuilder::write_messages(const RegularEdge& edge) {
  // Where the tables stand, known to the compiler to stay there: this is where most of the time goes.
  const std::uint32_t* const places = places_.data();
  const std::uint32_t* const sender = place_at_.data() + owner_begin_[edge.from];
  const std::uint32_t* const reader = place_at_.data() + owner_begin_[edge.to];
  const std::uint32_t* const rank_there = share_rank_.data() + owner_begin_[edge.to];
  const std::uint32_t* const sends_begin = out_->sends_begin.data();
  ListMessage* const messages = out_->messages.data();
  ListSend* const sends = out_->sends.data();
  std::uint32_t* const waits = out_->waits.data();
  const std::uint32_t readers = first_seat_[edge.to + 1] - first_seat_[edge.to];
  const std::uint32_t ahead = model_->stages[edge.to].receive_slots(), always = out_->always();
  const std::uint32_t micro_batches = model_->stages[0].micro_batches, period = edge.period;
  for (std::uint32_t q = 0; q < edge.hops; ++q) {
    std::uint32_t hop = edge.first_hop + q, channel = out_->hops[hop].channel, step = channel_hops_[channel];
    ListMessage* message = messages + out_->channels[channel].first + hop_place_[hop];
    const auto write = [&](std::uint32_t sent, std::uint32_t producer, std::uint32_t release,
                           std::uint32_t consumer) {
      const std::uint32_t rank = sends_begin[producer] + sent;
      *message = {producer, release, consumer, hop, rank};
      sends[rank] = {channel, hop};
      ++waits[consumer];
      message += step;
    };
    for (std::uint32_t j = q; j < micro_batches; j += period) {
      std::uint32_t release = always;
      if (rank_there[j] >= ahead) {
        release = last_need(reader[j - ahead * readers], *edge.reader);
        releases_.push_back({release, channel});
      }
      write(edge.forward_place, places[sender[j] + kForwardPlace], release,
            places[reader[j] + kForwardPlace]);
    }
    if (!edge.returns) continue;
    hop = edge.first_hop_back + q;
    channel = out_->hops[hop].channel;
    step = channel_hops_[channel];
    message = messages + out_->channels[channel].first + hop_place_[hop];
    for (std::uint32_t j = q; j < micro_batches; j += period) {
      write(edge.backward_place, places[reader[j] + kBackwardPlace], always,
            places[sender[j] + kBackwardPlace]);
    }
  }
}

// What receive slots hold: as many as the stage has from the start; each goes when nothing comes into it
// again.
void ListBuilder::write_slots(const RegularEdge& edge) {
  const std::uint32_t ahead = model_->stages[edge.to].receive_slots(),
                      bytes = out_->layout.bytes(edge.number);
  for (std::uint32_t s = first_seat_[edge.to]; s < first_seat_[edge.to + 1]; ++s) {
    const std::uint32_t share =
        narrow(model_->stages[edge.to].replicas[s - first_seat_[edge.to]].micro_batches.size());
    const std::uint32_t held = std::min(ahead, share);
    initial_.push_back({lane_of_[seats_[s].device.index()],
                        {ListTerm::When::kEndBuffers, bytes, static_cast<std::int32_t>(held)}});
    for (std::uint32_t i = share - held; i < share; ++i) {
      add_term(last_need(seats_[s].places + i * kPlaces, *edge.reader), ListTerm::When::kEndBuffers, bytes,
               -1);
    }
  }
}

// By (Message, sender): the message's direction, crossing and reader. A forward waits for one message of each
// crossing that it reads, a backward for one of each reader.
void ListBuilder::list_regular_receives() {
  std::vector<std::uint32_t>& begin = out_->receives_begin;
  begin.assign(out_->entries.size() + 2, 0);
  for (const ListChannel& channel : out_->channels) {
    for (std::uint32_t m = channel.first; m < channel.first + channel.count; ++m) {
      ++begin[out_->messages[m].consumer + 2];
    }
  }
  begin_buckets(begin);
  out_->receives.resize(out_->sends.size());
  for (const RegularEdge& edge : edges_) {
    for (std::uint32_t h = edge.first_hop; h < edge.first_hop_back + (edge.returns ? edge.hops : 0); ++h) {
      const ListChannel& channel = out_->channels[out_->hops[h].channel];
      std::uint32_t m = channel.first + hop_place_[h];
      for (std::uint32_t i = 0; i < out_->hops[h].count; ++i) {
        const ListMessage& message = out_->messages[m];
        out_->receives[begin[message.consumer + 1]++] = message.rank;
        m += channel_hops_[out_->hops[h].channel];
      }
    }
  }
  begin.pop_back();
}

// What every micro-batch does alike (list_changes.cc).
void ListBuilder::add_usual_changes() {
  using At = ListUsual::At;
  using When = ListTerm::When;
  out_->hops_free = true;
  std::vector<std::pair<std::uint32_t, ListUsual>>& found = usual_;
  found.clear();
  const auto add = [&](std::uint32_t stage, At at, When when, std::uint32_t figure, std::int32_t times) {
    found.push_back({stage, {at, {when, figure, times}}});
  };
  for (std::size_t e = 0; e < edges_.size();) {
    const Crossing& crossing = model_->crossings[edges_[e].crossing];
    const std::size_t last = e + crossing.readers.size() - 1;
    const std::uint32_t output = out_->layout.output(edges_[e].crossing), from = edges_[e].from;
    const bool all_return = std::all_of(edges_.begin() + static_cast<std::ptrdiff_t>(e),
                                        edges_.begin() + static_cast<std::ptrdiff_t>(last) + 1,
                                        [](const RegularEdge& edge) { return edge.returns; });
    const bool by_hop = !crossing.saved_by_producer && !crossing.token;
    if (crossing.saved_by_producer && !crossing.token) {
      if (all_return) {  // then all of it has arrived before
        add(from, crossing.for_input_only ? At::kBackward : At::kLast, When::kEndActivations, output, -1);
      } else {
        free_saved_output(edges_[e], narrow(last - e + 1));
      }
    }
    for (; e <= last; ++e) {
      const RegularEdge& edge = edges_[e];
      for (std::uint32_t h = edge.first_hop; h < edge.first_hop + edge.hops; ++h) {
        out_->hops[h].ends_group = e == last;
        if (e == last && by_hop) out_->hops[h].frees = output;
      }
      if (!edge.returns || crossing.token) continue;
      const std::uint32_t gradient = out_->layout.gradient(edge.number);
      add(from, At::kForward, When::kEndBuffers, gradient, 1);
      add(from, At::kBackward, When::kEndBuffers, gradient, -1);
      add(edge.to, At::kBackward, When::kStartActivations, gradient, 1);
      for (std::uint32_t h = edge.first_hop_back; h < edge.first_hop_back + edge.hops; ++h) {
        out_->hops[h].frees = gradient;
      }
    }
  }
  for (const auto& [stage, usual] : found) ++out_->usual_begin[stage + 1];
  begin_buckets(out_->usual_begin);
  out_->usual.resize(found.size());
  std::vector<std::uint32_t>& at = order_;
  at.assign(out_->usual_begin.begin(), out_->usual_begin.end());
  for (const auto& [stage, usual] : found) out_->usual[at[stage]++] = usual;
}

// An output that its producer keeps, of which some reader returns nothing.
void ListBuilder::free_saved_output(const RegularEdge& edge, std::uint32_t readers) {
  const Crossing& crossing = model_->crossings[edge.crossing];
  for (std::uint32_t j = 0; j < model_->stages[edge.from].micro_batches; ++j) {
    const std::uint32_t places = place_at_[owner_begin_[edge.from] + j];
    slot_frees_.push_back({last_need(places, crossing.for_input_only),
                           {out_->layout.output(edge.crossing),
                            out_->sends_begin[place(places, kForwardPlace)] + edge.forward_place, readers}});
  }
}

}  // namespace espalier::internal
