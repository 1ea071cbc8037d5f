// How the time goes (about 1000 events a plan, so every cycle shows, and every wrongly guessed branch more):
//
//  - A replica's list is never written down. Of its state only the counts of forwards and backwards done are
//    kept; which comes next follows from them.
//  - An input is complete when its count of missing messages reaches zero; its time is the latest arrival.
//  - At most one message of a channel can be on its way to the links, so the queue of those that wait for
//    links is as short as the channels are few. It is kept sorted: the first is known at once, and what
//    follows from it starts while the processor still moves others aside. (Searching an unsorted array
//    without a branch took fewer instructions but a fifth more time: each step then waits for the search
//    before it.) Time and all that breaks ties share the 64 bits of a number wherever they fit.
//  - Links that only one channel uses never make it wait, and a message without others is delivered at once,
//    past the queue.
//  - Peaks are found in a second pass per device (step_memory.cc).

#include "espalier/sim/step_simulation.h"

#include <algorithm>
#include <numeric>

namespace espalier::internal {

bool StepSimulation::run(const StepInput& input) {
  input_ = &input;
  micro_batches_ = input.micro_batches;
  make_units();
  find_pairs();
  make_channels();
  make_slots();
  list_posts();
  make_tails();
  lay_out_ties();
  if (ties_.bits > 63) return false;
  spare_lone_links();
  begin_channels();
  const bool packed = times_fit(64 - ties_.bits);
  const bool done = input.endpoints ? (packed ? run_all<true, true>() : run_all<true, false>())
                                    : (packed ? run_all<false, true>() : run_all<false, false>());
  if (!done) return false;
  peaks_.resize(units_.size());
  for (std::uint32_t unit = 0; unit < units_.size(); ++unit) measure_memory(unit);
  return true;
}

void StepSimulation::begin_channels() {
  for (Channel& channel : channels_) turn_to_next(channel);
}

template <bool kPacked>
void StepSimulation::make_room_to_wait() {
  std::size_t most = input_->collectives.size();
  for (const Channel& channel : channels_) {
    most += std::size_t{channel.left} * (channel.last_hop - channel.first_hop);
  }
  if constexpr (kPacked) {
    if (packed_queue_.size() < most) packed_queue_.resize(most);
  } else {
    if (queue_.size() < most) queue_.resize(most);
  }
  queue_head_ = queue_end_ = 0;
}

template <bool kEndpoints, bool kPacked>
bool StepSimulation::run_all() {
  make_room_to_wait<kPacked>();
  iteration_ = 0;
  unfinished_ = units_.size();
  const auto channels = static_cast<std::uint32_t>(channels_.size());
  runnable_.clear();
  for (std::uint32_t unit = 0; unit < units_.size(); ++unit) {
    if (asks_for_next(units_[unit])) runnable_.push_back(unit);
  }
  for (;;) {
    while (!runnable_.empty()) {
      const std::uint32_t unit = runnable_.back();
      runnable_.pop_back();
      advance<kEndpoints, kPacked>(unit);
    }
    Waiting next;
    if (!take_first<kPacked>(next)) break;
    const auto who = static_cast<std::uint32_t>(next.tie & ties_.who);
    if (who >= channels) {
      run_collective(who - channels, next.ready);
      continue;
    }
    deliver<kEndpoints>(channels_[who], next.ready);
    post<kEndpoints, kPacked>(channels_[who]);
  }
  return unfinished_ == 0;
}

// Runs a unit, whose next action has all that it waits for, until one has not.
template <bool kEndpoints, bool kPacked>
void StepSimulation::advance(std::uint32_t index) {
  Unit& unit = units_[index];
  if (unit.done[kBackward] == unit.count) return run_tail<kPacked>(index);
  for (;;) {
    const std::uint32_t direction = unit.next;
    const std::uint32_t rank = unit.done[direction];
    const std::uint32_t at = unit.slot(rank, direction);
    Slot& slot = slots_[at];
    recompute_start_[at / 2] = unit.lane;  // of a backward; a forward's is overwritten by it
    const Time lane = unit.lane + (direction == kForward ? 0 : unit.recompute);
    const Time start =
        kEndpoints ? start_after_endpoints(unit, rank, direction, lane) : std::max(lane, slot.ready);
    const Time finish = start + unit.duration[direction];
    slot.position = unit.done[kForward] + unit.done[kBackward];
    slot.end = finish;
    unit.lane = finish;
    unit.done[direction] = rank + 1;
    step_on(unit);
    if constexpr (kEndpoints) run_send_endpoints(unit, rank, direction);
    const std::uint32_t* const end = posts_.data() + unit.posts_end[direction];
    for (const std::uint32_t* c = posts_.data() + unit.posts[direction]; c != end; ++c) {
      post<kEndpoints, kPacked>(channels_[*c]);
    }
    if (unit.done[kBackward] == unit.count) return run_tail<kPacked>(index);
    if (!asks_for_next(unit)) return;
  }
}

inline void StepSimulation::step_on(Unit& unit) {
  const std::uint32_t forwards_before = std::min(unit.count, unit.limit + unit.done[kBackward]);
  unit.next = unit.done[kForward] < forwards_before ? kForward : kBackward;
}

// A unit's own arrival at its next action is one more thing that the action waits for.
inline bool StepSimulation::asks_for_next(const Unit& unit) {
  return --slots_[unit.slot(unit.done[unit.next], unit.next)].missing == 0;
}

// Receive endpoints occupy the device one after the other, each once its message is there.
Time StepSimulation::start_after_endpoints(const Unit& unit, std::uint32_t rank, std::uint32_t direction,
                                           Time lane) {
  const std::uint32_t j = micro_batch_of(unit, rank);
  Time ready = 0;
  const auto receive = [&](std::uint32_t edge) {
    const std::uint32_t message = row(edge, direction) + j;
    if (endpoints_[message].receive > 0) {
      lane = std::max(lane, arrival_[message]) + endpoints_[message].receive;
    } else {
      ready = std::max(ready, arrival_[message]);
    }
  };
  if (direction == kForward) {
    for (std::uint32_t i = edges_in_begin_[unit.stage]; i < edges_in_begin_[unit.stage + 1]; ++i) {
      receive(edges_in_[i]);
    }
  } else {
    for (std::uint32_t e = edges_out_begin_[unit.stage]; e < edges_out_begin_[unit.stage + 1]; ++e) {
      if (input_->edges[e].returns) receive(e);
    }
  }
  return std::max(lane, ready);
}

void StepSimulation::run_send_endpoints(Unit& unit, std::uint32_t rank, std::uint32_t direction) {
  const std::uint32_t j = micro_batch_of(unit, rank);
  const Time end = unit.lane;
  const auto send = [&](std::uint32_t edge) {
    const Hop& hop = hop_of(edge, direction, j);
    unit.lane += hop.send;
    endpoints_[hop.row + j].sent = hop.send > 0 ? unit.lane : end;
  };
  if (direction == kForward) {
    for (std::uint32_t e = edges_out_begin_[unit.stage]; e < edges_out_begin_[unit.stage + 1]; ++e) send(e);
  } else {
    for (std::uint32_t i = edges_in_begin_[unit.stage]; i < edges_in_begin_[unit.stage + 1]; ++i) {
      if (input_->edges[edges_in_[i]].returns) send(edges_in_[i]);
    }
  }
}

// Collectives in order, then the update.
template <bool kPacked>
void StepSimulation::run_tail(std::uint32_t index) {
  Unit& unit = units_[index];
  const std::uint32_t place = tail_begin_[index] + unit.tail;
  if (place < tail_begin_[index + 1]) {
    const std::uint32_t c = tail_[place];
    const StepCollective& collective = input_->collectives[c];
    Gathering& gathering = gatherings_[c];
    gathering.ready = std::max(gathering.ready, unit.lane);
    if (++gathering.arrived < collective.members) return;
    if (collective.links == 0) {
      run_collective(c, gathering.ready);
    } else {
      enqueue<kPacked>(gathering.ready, std::uint64_t{1} << ties_.collective |
                                            std::uint64_t{collective.lowest_device} << ties_.device |
                                            std::uint64_t{gathering.position} << ties_.position |
                                            (channels_.size() + c));
    }
    return;
  }
  unit.lane += input_->units[index].update;
  iteration_ = std::max(iteration_, unit.lane);
  --unfinished_;
}

void StepSimulation::run_collective(std::uint32_t index, Time ready) {
  const StepCollective& collective = input_->collectives[index];
  const std::uint32_t* links = input_->collective_links.data() + collective.first_link;
  Time start = ready;
  for (std::uint32_t i = 0; i < collective.links; ++i) start = std::max(start, link_free_[links[i]]);
  const Time end = start + collective.hold;
  for (std::uint32_t i = 0; i < collective.links; ++i) link_free_[links[i]] = end;
  for (std::uint32_t i = 0; i < collective.members; ++i) {
    const std::uint32_t member = input_->collective_members[collective.first_member + i];
    units_[member].lane = end + collective.latency;
    ++units_[member].tail;
    runnable_.push_back(member);
  }
}

// Sends what a channel may send: its producer is done, its slot is free, the message before it has left.
template <bool kEndpoints, bool kPacked>
inline void StepSimulation::post(Channel& channel) {
  for (;;) {
    Time ready = std::max(slots_[channel.producer].end, slots_[channel.release].end);
    if (ready == kNever) return;
    const Hop& hop = hops_[channel.hop];
    if constexpr (kEndpoints)
      ready = std::max(slots_[channel.release].end, endpoints_[hop.row + channel.micro_batch].sent);
    ready = std::max(ready, channel.wire_free);
    if (hop.link_count > 0) {
      enqueue<kPacked>(ready, hop.tie + (std::uint64_t{slots_[channel.producer].position} << ties_.position));
      channel.producer = never_;  // until it is delivered
      return;
    }
    deliver<kEndpoints>(channel, ready);
  }
}

// The channel's first message goes over the wire; the channel turns to its next.
template <bool kEndpoints>
inline void StepSimulation::deliver(Channel& channel, Time ready) {
  const Hop& hop = hops_[channel.hop];
  Time start = ready;
  if (hop.link_count > 0) {
    Time& first = link_free_[channel.two_links[0]];
    Time& second = link_free_[channel.two_links[1]];
    start = std::max(start, std::max(first, second));
    for (std::uint32_t i = 2; i < hop.link_count; ++i) start = std::max(start, link_free_[channel.links[i]]);
    first = second = start + hop.hold;
    for (std::uint32_t i = 2; i < hop.link_count; ++i) link_free_[channel.links[i]] = start + hop.hold;
  }
  const Time end = start + hop.hold;
  channel.wire_free = end;
  const Time arrival = end + hop.latency;
  arrival_[hop.row + channel.micro_batch] = arrival;
  if constexpr (kEndpoints) endpoints_[hop.row + channel.micro_batch].receive = hop.receive;

  Slot& slot = slots_[channel.to_slot];
  slot.ready = std::max(slot.ready, arrival);
  if (--slot.missing == 0) runnable_.push_back(channel.to);
  if (++channel.hop == channel.last_hop) {
    channel.hop = channel.first_hop;
    channel.micro_batch += channel.step;
    channel.from_slot += channel.from_step;
    channel.to_slot += channel.to_step;
    --channel.left;
  }
  turn_to_next(channel);
}

inline void StepSimulation::turn_to_next(Channel& channel) {
  const std::uint32_t release = channel.to_slot - channel.slots_back + hops_[channel.hop].saved;
  channel.producer = channel.left == 0 ? never_ : channel.from_slot;
  const std::uint32_t waits = channel.to_slot >= channel.first_release ? ~std::uint32_t{0} : 0;
  channel.release = always_ ^ ((always_ ^ release) & waits);  // a branch would often be guessed wrong
}

template <class Key>
inline void StepSimulation::insert(std::vector<Key>& queue, Key key) {
  Key* at = queue.data() + queue_end_++;
  const Key* const first = queue.data() + queue_head_;
  for (; at > first && key < at[-1]; --at) *at = at[-1];
  *at = key;
}

template <bool kPacked>
inline void StepSimulation::enqueue(Time ready, std::uint64_t tie) {
  if constexpr (kPacked) {
    insert(packed_queue_, static_cast<std::uint64_t>(ready) << ties_.bits | tie);
  } else {
    insert(queue_, Waiting{ready, tie});
  }
}

template <bool kPacked>
inline bool StepSimulation::take_first(Waiting& first) {
  if (queue_head_ == queue_end_) return false;
  if constexpr (kPacked) {
    const std::uint64_t key = packed_queue_[queue_head_++];
    first = {static_cast<Time>(key >> ties_.bits), key & ties_.who};
  } else {
    first = queue_[queue_head_++];
  }
  return true;
}

}  // namespace espalier::internal
