// How the time goes (about 1000 events a plan, so every cycle shows, and every wrongly guessed branch more):
//
//  - An entry is complete when its count of missing messages, with its own turn, reaches zero; its time is
//    the latest arrival. So lists run ahead until a message is missing, without a queue.
//  - At most one message of a channel can be on its way to the links, so the queue of those that wait for
//    links (waiting_queue.h) is as short as the channels are few. Time and rank share the 64 bits of a number
//    wherever they fit.
//  - A message whose links nobody else uses never waits for them, and is delivered at once, past the queue.
//    run_tasks, which all messages with links pass through, takes equal times by rank; so past the queue go
//    only messages that take time: nothing follows from one at the very moment at which it went.
//
// The result depends only on what is in the queue whenever its first is taken, and lists run as far as they
// can before that: it is that of run_tasks, whatever the order in which lists are looked at.

#include "espalier/sim/list_engine.h"

#include <algorithm>

namespace espalier::internal {

bool ListEngine::run(const ListStructure& structure, const ListCosts& costs) {
  structure_ = &structure;
  costs_ = &costs;
  if (!structure.possible) return false;
  durations_.assign(costs.durations.begin(), costs.durations.end());
  durations_.resize(structure.work_count.size(), 0);
  for (std::size_t c = 0; c < structure.collectives.size(); ++c) {
    const std::uint32_t action = structure.collectives[c].action;
    if (action != ListCollective::kNoAction) durations_[structure.first_collective + c] = durations_[action];
  }
  price_hops();
  price_collectives();
  begin();
  const std::size_t ranks = structure.sends.size() + structure.collectives.size();
  rank_bits_ = 1;
  while (ranks > std::size_t{1} << rank_bits_) ++rank_bits_;
  const bool packed = times_fit(64 - rank_bits_);
  return structure.endpoints ? (packed ? run_all<true, true>() : run_all<true, false>())
                             : (packed ? run_all<false, true>() : run_all<false, false>());
}

// --- what the figures come to

void ListEngine::price_hops() {
  const ListStructure& structure = *structure_;
  hops_.resize(structure.hops.size());
  for (std::size_t h = 0; h < hops_.size(); ++h) {
    const ListHop& from = structure.hops[h];
    Hop& hop = hops_[h];
    hop = Hop();
    if (from.free) continue;
    const Route& route = *structure.routes[structure.channels[from.channel].route];
    const Bytes bytes(costs_->bytes[from.bytes]);
    hop.hold = route.hold(bytes).count();
    hop.latency = route.latency.count();
    hop.link_count = narrow(route.links.size());
    if (structure.endpoints) {
      hop.send = route.send.of(bytes).count();
      hop.receive = route.receive.of(bytes).count();
    }
    if (structure.channels[from.channel].alone && hop.hold + hop.latency > 0) hop.link_count = 0;
  }
}

// As collective_of has them (schedule.h).
void ListEngine::price_collectives() {
  const ListStructure& structure = *structure_;
  collectives_.assign(structure.collectives.size(), Collective());
  for (std::size_t c = 0; c < collectives_.size(); ++c) {
    const ListCollective& from = structure.collectives[c];
    Collective& collective = collectives_[c];
    if (!from.is_sum()) {
      collective.latency = durations_[from.action];
      continue;
    }
    const Bytes bytes(costs_->bytes[from.bytes]);
    Duration gather, give_back, hold, latency;
    for (std::uint32_t i = from.first_leg; i < from.first_leg + from.legs; ++i) {
      const ListLeg& leg = structure.legs[i];
      const Route& route = *structure.routes[leg.route];
      switch (leg.kind) {
        case ListLeg::Kind::kRing: {
          const auto n = static_cast<std::int64_t>(leg.ring_size);
          const Bytes chunk((bytes.count() + n - 1) / n);
          const std::int64_t steps = 2 * (n - 1);
          const Duration limit((std::int64_t{1} << 62) / steps);
          hold = std::max(hold, std::min(route.hold(chunk), limit) * steps);
          latency = std::max(
              latency,
              std::min(route.latency + route.send.of(chunk) + route.receive.of(chunk), limit) * steps);
          break;
        }
        case ListLeg::Kind::kGather:
          hold += route.hold(bytes);
          gather = std::max(gather, route.send.of(bytes) + route.latency);
          latency += route.receive.of(bytes);
          break;
        case ListLeg::Kind::kReturn:
          hold += route.hold(bytes);
          give_back = std::max(give_back, route.latency + route.receive.of(bytes));
          latency += route.send.of(bytes);
          break;
        case ListLeg::Kind::kArrives:
          gather = std::max(gather, route.latency);
          break;
        case ListLeg::Kind::kLeaves:
          give_back = std::max(give_back, route.latency);
          break;
      }
    }
    collective.hold = hold.count();
    collective.latency = (latency + gather + give_back).count();
  }
}

// Could any time need more than so many bits? At most everything happens one after the other.
bool ListEngine::times_fit(std::uint32_t bits) const {
  double longest = 0;
  for (std::size_t work = 0; work < durations_.size(); ++work) {
    longest += static_cast<double>(durations_[work]) * structure_->work_count[work];
  }
  for (std::size_t h = 0; h < hops_.size(); ++h) {
    const Hop& hop = hops_[h];
    longest +=
        static_cast<double>(hop.hold + hop.latency + hop.send + hop.receive) * structure_->hops[h].count;
  }
  for (const Collective& collective : collectives_) {
    longest += static_cast<double>(collective.hold) + static_cast<double>(collective.latency);
  }
  return longest * 1.001 < static_cast<double>(std::uint64_t{1} << (bits - 1));
}

void ListEngine::begin() {
  const ListStructure& structure = *structure_;
  const std::size_t slots = structure.entries.size(), messages = structure.sends.size();
  ends_.assign(slots + 2, kNever);
  ends_[structure.always()] = 0;
  ready_.assign(slots, 0);
  waits_.assign(structure.waits.begin(), structure.waits.end());
  arrival_.resize(messages);
  if (structure.endpoints) sent_.resize(messages);
  link_free_.assign(structure.link_count, 0);
  begin_sum_links();
  lanes_.resize(structure.devices.size());
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    lanes_[lane] = {0, structure.lane_begin[lane], structure.lane_begin[lane + 1],
                    structure.sums_begin[lane]};
  }
  sums_.assign(structure.sums.size(), Sum());
  for (std::size_t i = 1; i < sums_.size(); ++i) {
    sums_[i].waits += structure.sums[i].lane == structure.sums[i - 1].lane ? 1 : 0;
  }
  channels_.resize(structure.channels.size());
  for (std::size_t c = 0; c < channels_.size(); ++c) {
    const ListChannel& from = structure.channels[c];
    const ListMessage& first = structure.messages[from.first];
    const std::vector<LinkIndex>& links = structure.routes[from.route]->links;
    Channel& channel = channels_[c];
    channel = {first.producer, first.release, from.first, from.to, 0, {0, 0}, links.data()};
    if (!links.empty()) {
      channel.two_links[0] = links[0];
      channel.two_links[1] = links[links.size() > 1 ? 1 : 0];
    }
  }
  iteration_ = 0;
  unfinished_ = lanes_.size() + structure.sum_count;
  runnable_.clear();
  due_.clear();
}

void ListEngine::begin_sum_links() {
  const ListStructure& structure = *structure_;
  waiting_sums_.clear();
  sum_link_of_.assign(structure.collective_links.empty() ? 0 : structure.link_count, kNobody);
  std::uint32_t count = 0;
  for (const LinkIndex link : structure.collective_links) {
    if (sum_link_of_[link] == kNobody) sum_link_of_[link] = count++;
  }
  sum_links_.resize(count);
  for (SumLink& link : sum_links_) {
    link.sum = kNobody;
    link.messages.clear();
  }
}

// --- the run

template <bool kEndpoints, bool kPacked>
bool ListEngine::run_all() {
  packed_queue_.clear();
  queue_.clear();
  const std::size_t messages = structure_->sends.size();
  for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    if (--waits_[lanes_[lane].slot] == 0) runnable_.push_back(lane);
  }
  for (;;) {
    while (!runnable_.empty() || !due_.empty()) {
      std::vector<std::uint32_t>& from = runnable_.empty() ? due_ : runnable_;
      const std::uint32_t next = from.back();
      from.pop_back();
      if (&from == &runnable_) {
        advance<kEndpoints, kPacked>(next);
      } else {
        end_sum<kPacked>(next, collectives_[next].ready + collectives_[next].hold);
      }
    }
    Waiting next;
    if (!take_first<kPacked>(next)) break;
    if (next.rank >= messages) {
      look_at_sum<kPacked>(narrow(next.rank - messages), next.ready);
      continue;
    }
    Channel& channel = channels_[structure_->sends[next.rank].channel];
    deliver(channel, next.ready);
    post<kEndpoints, kPacked>(channel);
  }
  return unfinished_ == 0;
}

// Runs a lane, whose next entry has all that it waits for, until one has not.
template <bool kEndpoints, bool kPacked>
void ListEngine::advance(std::uint32_t index) {
  Lane& lane = lanes_[index];
  const ListStructure& structure = *structure_;
  do {
    const std::uint32_t slot = lane.slot;
    const std::uint32_t work = structure.entries[slot].work;
    const Time start =
        kEndpoints ? start_after_endpoints(slot, lane.free) : std::max(lane.free, ready_[slot]);
    if (work >= structure.first_collective) {
      const std::uint32_t meeting = work - structure.first_collective;
      if (!structure.collectives[meeting].is_sum()) {
        return meet<kEndpoints, kPacked>(meeting, start);
      }
      arrive<kPacked>(lane.next_sum++, lane.free);
      continue;
    }
    end_entry<kEndpoints, kPacked>(slot, lane, start + durations_[work]);
  } while (goes_on(lane));
}

// What follows from the end of an entry.
template <bool kEndpoints, bool kPacked>
inline void ListEngine::end_entry(std::uint32_t slot, Lane& lane, Time end) {
  const ListStructure& structure = *structure_;
  ends_[slot] = end;
  lane.free = end;
  if constexpr (kEndpoints) run_send_endpoints(slot, lane);
  {
    std::uint32_t before = structure.never();  // of several messages on a channel the first looks at it
    const ListSend* const last = structure.sends.data() + structure.sends_begin[slot + 1];
    for (const ListSend* sent = structure.sends.data() + structure.sends_begin[slot]; sent != last; ++sent) {
      if (sent->channel == before) continue;
      before = sent->channel;
      post<kEndpoints, kPacked>(channels_[before]);
    }
    const std::uint32_t* const end_of_posts = structure.posts.data() + structure.posts_begin[slot + 1];
    for (const std::uint32_t* c = structure.posts.data() + structure.posts_begin[slot]; c != end_of_posts;
         ++c) {
      post<kEndpoints, kPacked>(channels_[*c]);
    }
  }
}

// To the lane's next entry: may it start?
inline bool ListEngine::goes_on(Lane& lane) {
  if (++lane.slot == lane.end) {
    iteration_ = std::max(iteration_, lane.free);
    --unfinished_;
    return false;
  }
  return --waits_[lane.slot] == 0;
}

// Receive endpoints occupy the device one after the other, each once its message is there.
Time ListEngine::start_after_endpoints(std::uint32_t slot, Time lane) {
  const ListStructure& structure = *structure_;
  for (std::uint32_t i = structure.receives_begin[slot]; i < structure.receives_begin[slot + 1]; ++i) {
    const std::uint32_t rank = structure.receives[i];
    const Time receive = hops_[structure.sends[rank].hop].receive;
    if (receive > 0) lane = std::max(lane, arrival_[rank]) + receive;
  }
  return std::max(lane, ready_[slot]);
}

void ListEngine::run_send_endpoints(std::uint32_t slot, Lane& lane) {
  const ListStructure& structure = *structure_;
  const Time end = lane.free;
  for (std::uint32_t rank = structure.sends_begin[slot]; rank < structure.sends_begin[slot + 1]; ++rank) {
    const Time send = hops_[structure.sends[rank].hop].send;
    lane.free += send;
    sent_[rank] = send > 0 ? lane.free : end;
  }
}

// A device of a group is there; the last sets the action off.
template <bool kEndpoints, bool kPacked>
void ListEngine::meet(std::uint32_t index, Time time) {
  Collective& group = collectives_[index];
  const ListCollective& from = structure_->collectives[index];
  group.ready = std::max(group.ready, time);
  if (++group.arrived < from.members) return;
  for (std::uint32_t i = from.first_member; i < from.first_member + from.members; ++i) {
    const std::uint32_t member = structure_->members[i];
    Lane& lane = lanes_[member];
    end_entry<kEndpoints, kPacked>(lane.slot, lane, group.ready + group.latency);
    if (goes_on(lane)) runnable_.push_back(member);
  }
}

// One of the things that a sum waits for on a lane has happened. The last of all on the last lane sets it
// off.
template <bool kPacked>
void ListEngine::arrive(std::uint32_t sum, Time time) {
  sums_[sum].arrival = std::max(sums_[sum].arrival, time);
  if (--sums_[sum].waits > 0) return;
  const std::uint32_t index = structure_->sums[sum].collective;
  const ListCollective& from = structure_->collectives[index];
  Collective& collective = collectives_[index];
  collective.ready = std::max(collective.ready, sums_[sum].arrival);
  if (++collective.arrived < from.members) return;
  if (from.links == 0) {
    due_.push_back(index);
  } else {
    enqueue<kPacked>(collective.ready, from.rank);
  }
}

// A sum is in the queue when its members are there, and once it has begun when it would end if no other
// message held its links: those that do until then are known, since they were ready before.
template <bool kPacked>
void ListEngine::look_at_sum(std::uint32_t index, Time time) {
  Collective& sum = collectives_[index];
  if (sum.accounted == kNever) {
    waiting_sums_.push_back(index);
    begin_sums<kPacked>(time);
    return;
  }
  std::sort(sum.messages.begin(), sum.messages.end());
  auto next = sum.messages.begin();
  for (; next != sum.messages.end(); ++next) {
    const Time until = std::max(next->begin, sum.accounted);
    if (until >= sum.accounted + sum.hold) break;
    if (next->end <= sum.accounted) continue;
    sum.hold -= until - sum.accounted;
    sum.accounted = next->end;
  }
  sum.messages.erase(sum.messages.begin(), next);
  const Time left = sum.accounted + sum.hold;
  if (left > time) {
    enqueue<kPacked>(left, structure_->collectives[index].rank);
    return;
  }
  for (const LinkIndex link : links_of(index)) sum_links_[sum_link_of_[link]].sum = kNobody;
  end_sum<kPacked>(index, left);
  begin_sums<kPacked>(left);
}

// Those of the waiting sums whose links neither a sum holds nor one wants that has waited longer.
template <bool kPacked>
void ListEngine::begin_sums(Time time) {
  std::size_t kept = 0;
  for (const std::uint32_t index : std::span(waiting_sums_)) {
    const std::span<const LinkIndex> links = links_of(index);
    const auto is_taken = [&](LinkIndex link) {
      if (sum_links_[sum_link_of_[link]].sum != kNobody) return true;
      return std::any_of(waiting_sums_.begin(), waiting_sums_.begin() + static_cast<std::ptrdiff_t>(kept),
                         [&](std::uint32_t other) {
                           const std::span<const LinkIndex> wanted = links_of(other);
                           return std::binary_search(wanted.begin(), wanted.end(), link);
                         });
    };
    if (std::any_of(links.begin(), links.end(), is_taken)) {
      waiting_sums_[kept++] = index;
      continue;
    }
    Collective& sum = collectives_[index];
    sum.accounted = time;
    for (const LinkIndex link : links) {
      SumLink& held = sum_links_[sum_link_of_[link]];
      held.sum = index;
      for (auto last = held.messages.rbegin(); last != held.messages.rend() && last->end > time; ++last) {
        sum.messages.push_back(*last);
      }
    }
    enqueue<kPacked>(time + sum.hold, structure_->collectives[index].rank);
  }
  waiting_sums_.resize(kept);
}

// A sum has left its links.
template <bool kPacked>
void ListEngine::end_sum(std::uint32_t index, Time left) {
  const ListStructure& structure = *structure_;
  const ListCollective& collective = structure.collectives[index];
  const Time end = left + collectives_[index].latency;
  iteration_ = std::max(iteration_, end);
  --unfinished_;
  for (std::uint32_t i = collective.first_member; i < collective.first_member + collective.members; ++i) {
    const std::uint32_t number = structure.members[i];
    const ListSum& sum = structure.sums[number];
    ends_[sum.slot] = end;
    for (std::uint32_t u = sum.first_update; u < sum.first_update + sum.updates; ++u) {
      const std::uint32_t update = structure.sum_updates[u];
      ready_[update] = std::max(ready_[update], end);
      if (--waits_[update] == 0) runnable_.push_back(sum.lane);
    }
    if (number + 1 < structure.sums_begin[sum.lane + 1]) arrive<kPacked>(number + 1, end);
  }
}

void ListEngine::note_for_sums(const Channel& channel, std::uint32_t links, Interval held) {
  for (std::uint32_t i = 0; i < links; ++i) {
    const std::uint32_t number = sum_link_of_[channel.links[i]];
    if (number == kNobody) continue;
    SumLink& link = sum_links_[number];
    link.messages.push_back(held);
    if (link.sum != kNobody) collectives_[link.sum].messages.push_back(held);
  }
}

// Sends what a channel may send: its producer is done, its slot is free, the message before it has left.
template <bool kEndpoints, bool kPacked>
inline void ListEngine::post(Channel& channel) {
  for (;;) {
    Time ready = std::max(ends_[channel.producer], ends_[channel.release]);
    if (ready == kNever) return;
    const ListMessage& message = structure_->messages[channel.message];
    if constexpr (kEndpoints) ready = std::max(ends_[channel.release], sent_[message.rank]);
    ready = std::max(ready, channel.wire_free);
    if (hops_[message.hop].link_count > 0) {
      enqueue<kPacked>(ready, message.rank);
      channel.producer = structure_->never();  // until it is delivered
      return;
    }
    deliver(channel, ready);
  }
}

// The channel's first message goes over the wire; the channel turns to its next.
inline void ListEngine::deliver(Channel& channel, Time ready) {
  const ListMessage& message = structure_->messages[channel.message];
  const Hop& hop = hops_[message.hop];
  Time start = ready;
  if (hop.link_count > 0) {
    Time& first = link_free_[channel.two_links[0]];
    Time& second = link_free_[channel.two_links[1]];
    start = std::max(start, std::max(first, second));
    for (std::uint32_t i = 2; i < hop.link_count; ++i) start = std::max(start, link_free_[channel.links[i]]);
    first = second = start + hop.hold;
    for (std::uint32_t i = 2; i < hop.link_count; ++i) link_free_[channel.links[i]] = start + hop.hold;
    if (!sum_links_.empty()) note_for_sums(channel, hop.link_count, {start, start + hop.hold});
  }
  channel.wire_free = start + hop.hold;
  const Time arrival = channel.wire_free + hop.latency;
  arrival_[message.rank] = arrival;
  ready_[message.consumer] = std::max(ready_[message.consumer], arrival);
  if (--waits_[message.consumer] == 0) runnable_.push_back(channel.to);
  const ListMessage& next = structure_->messages[++channel.message];
  channel.producer = next.producer;
  channel.release = next.release;
}

template <bool kPacked>
inline void ListEngine::enqueue(Time ready, std::uint64_t rank) {
  if constexpr (kPacked) {
    packed_queue_.push(static_cast<std::uint64_t>(ready) << rank_bits_ | rank);
  } else {
    queue_.push({ready, rank});
  }
}

template <bool kPacked>
inline bool ListEngine::take_first(Waiting& first) {
  if constexpr (kPacked) {
    if (packed_queue_.empty()) return false;
    const std::uint64_t key = packed_queue_.pop();
    first = {static_cast<Time>(key >> rank_bits_), key & ((std::uint64_t{1} << rank_bits_) - 1)};
  } else {
    if (queue_.empty()) return false;
    first = queue_.pop();
  }
  return true;
}

}  // namespace espalier::internal
