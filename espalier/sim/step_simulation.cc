// How the time goes (about 1000 events a plan, so every cycle shows):
//
//  - A replica's list is never written down. Of its state only the counts of forwards and backwards done are
//    kept; which comes next follows from them.
//  - An input is complete when its count of missing messages reaches zero; its time is the latest arrival.
//  - At most one message of a channel can be on its way to the links, so the queue of those that wait for
//    links is as short as the channels are few. It is kept sorted: a new one is usually the latest, hence
//    goes in near the end, and taking the first is free.
//  - A channel whose links nobody else uses never waits for them and is served at once, without the queue.
//  - Peaks are found in a second pass per device, over the recorded starts: memory only grows when one of the
//    device's own actions starts or ends, and what others cause (an arrival) only shrinks it.

#include "espalier/sim/step_simulation.h"

#include <algorithm>
#include <numeric>

namespace espalier::internal {
namespace {

constexpr std::uint32_t kNone = 0xffffffff;
constexpr std::uint32_t kNotWaiting = 0xfffffffe;
constexpr std::uint64_t kCollective = std::uint64_t{1} << 63;  // ties: after all messages

std::uint64_t tie_of(std::uint32_t device, std::uint32_t crossing, std::uint32_t reader) {
  return std::uint64_t{device} << 48 | std::uint64_t{crossing} << 14 | reader;
}
std::uint64_t tie_of_position(std::uint32_t position) {
  return std::uint64_t{position} << 28;
}

}  // namespace

RouteTable::RouteTable(const Cluster& cluster) : cluster_(&cluster), devices_(cluster.devices().size()) {
  if (devices_ > kMaxDense) return;
  for (std::size_t from = 0; from < devices_; ++from) {
    for (std::size_t to = 0; to < devices_; ++to) {
      dense_.push_back(cluster.route(DeviceId(from), DeviceId(to)));
    }
  }
}

const Route& RouteTable::met(std::uint32_t from, std::uint32_t to) {
  const auto [at, added] = met_.try_emplace(std::uint64_t{from} << 32 | to);
  if (added) at->second = cluster_->route(DeviceId(from), DeviceId(to));
  return at->second;
}

bool StepSimulation::run(const StepInput& input) {
  input_ = &input;
  micro_batches_ = input.micro_batches;
  make_units();
  find_pairs();
  make_channels();
  make_tails();
  spare_lone_links();
  if (!(input.endpoints ? run_all<true>() : run_all<false>())) return false;
  peaks_.resize(units_.size());
  for (std::uint32_t unit = 0; unit < units_.size(); ++unit) measure_memory(unit);
  return true;
}

// --- what there is

void StepSimulation::make_units() {
  const StepInput& input = *input_;
  units_.assign(input.units.size(), Unit());
  std::uint32_t base = 0;
  for (std::uint32_t i = 0; i < units_.size(); ++i) {
    const StepUnit& from = input.units[i];
    const StepStage& stage = input.stages[from.stage];
    Unit& unit = units_[i];
    unit.forward = from.forward;
    unit.backward = from.backward;
    unit.recompute = from.recompute;
    unit.stage = from.stage;
    unit.replica = i - stage.first_unit;
    unit.count = (micro_batches_ + stage.replicas - 1 - unit.replica) / stage.replicas;
    unit.limit = std::min(stage.limit, unit.count);
    unit.base = base;
    base += unit.count;
  }
  forward_start_.resize(base);
  backward_start_.resize(base);
  recompute_start_.resize(base);
}

void StepSimulation::find_pairs() {
  const StepInput& input = *input_;
  const std::size_t stages = input.stages.size();
  edges_out_begin_.assign(stages + 1, 0);
  edges_in_begin_.assign(stages + 2, 0);
  crossings_begin_.assign(stages + 1, 0);
  pair_of_stage_.assign(stages, kNone);
  pair_of_edge_.resize(input.edges.size());
  pairs_.clear();
  for (std::uint32_t e = 0; e < input.edges.size(); ++e) {
    const StepEdge& edge = input.edges[e];
    ++edges_out_begin_[edge.from + 1];
    ++edges_in_begin_[edge.to + 2];
    std::uint32_t& pair = pair_of_stage_[edge.to];  // from the same stage, or from an earlier one
    if (pair == kNone || pairs_[pair].from != edge.from) {
      pair = static_cast<std::uint32_t>(pairs_.size());
      pairs_.push_back({edge.from, edge.to, 0, 0, 0});
    }
    pair_of_edge_[e] = pair;
    ++pairs_[pair].edges;
  }
  std::uint32_t first = 0;
  for (Pair& pair : pairs_) {
    pair.edge = first;
    first += pair.edges;
    pair.edges = 0;
  }
  pair_edges_.resize(input.edges.size());
  edges_in_.resize(input.edges.size());
  for (std::size_t s = 0; s < stages; ++s) {
    edges_out_begin_[s + 1] += edges_out_begin_[s];
    edges_in_begin_[s + 2] += edges_in_begin_[s + 1];
  }
  for (std::uint32_t e = 0; e < input.edges.size(); ++e) {
    Pair& pair = pairs_[pair_of_edge_[e]];
    pair_edges_[pair.edge + pair.edges++] = e;
    edges_in_[edges_in_begin_[input.edges[e].to + 1]++] = e;
  }
  for (std::uint32_t c = 0; c < input.crossings.size(); ++c) {
    ++crossings_begin_[input.edges[input.crossings[c].first_edge].from + 1];
  }
  for (std::size_t s = 0; s < stages; ++s) crossings_begin_[s + 1] += crossings_begin_[s];
}

void StepSimulation::make_channels() {
  const StepInput& input = *input_;
  channels_.clear();
  hops_.clear();
  channel_index_.clear();
  link_free_.assign(input.link_count, 0);
  inputs_.assign(2 * forward_start_.size(), Input());
  for (Pair& pair : pairs_) {
    pair.channel = static_cast<std::uint32_t>(channel_index_.size());
    for (std::uint32_t rx = 0; rx < input.stages[pair.from].replicas; ++rx) {
      for (std::uint32_t ry = 0; ry < input.stages[pair.to].replicas; ++ry) add_channel(pair, rx, ry);
    }
  }
  // Channels by unit: count, then fill.
  for (std::uint32_t c = 0; c < channels_.size(); c += 2) {
    ++units_[channels_[c].x].out_end;
    ++units_[channels_[c].y].in_end;
  }
  std::uint32_t out = 0, in = 0;
  for (Unit& unit : units_) {
    unit.out = out;
    unit.in = in;
    out += unit.out_end;
    in += unit.in_end;
    unit.out_end = unit.out;
    unit.in_end = unit.in;
  }
  out_.resize(out);
  in_.resize(in);
  for (std::uint32_t c = 0; c < channels_.size(); c += 2) {
    Unit& x = units_[channels_[c].x];
    Unit& y = units_[channels_[c].y];
    out_[x.out_end++] = c;
    in_[y.in_end++] = c;
  }
  for (Unit& unit : units_) {
    std::uint32_t forward = 0, backward = 0;
    for (std::uint32_t i = edges_in_begin_[unit.stage]; i < edges_in_begin_[unit.stage + 1]; ++i) {
      ++forward;
      const bool saved = input.edges[edges_in_[i]].saved;
      (saved ? unit.gives_back_after_backward : unit.gives_back_after_forward) = true;
    }
    for (std::uint32_t e = edges_out_begin_[unit.stage]; e < edges_out_begin_[unit.stage + 1]; ++e) {
      backward += input.edges[e].returns ? 1 : 0;
    }
    for (std::uint32_t i = unit.base; i < unit.base + unit.count; ++i) {
      inputs_[2 * i].missing = forward;
      inputs_[2 * i + 1].missing = backward;
    }
  }
  messages_.resize(2 * input.edges.size() * micro_batches_);
}

// Both units take micro-batches j with j ≡ rx mod replicas of x and j ≡ ry mod those of y: none, or every
// lcm-th.
void StepSimulation::add_channel(const Pair& pair, std::uint32_t rx, std::uint32_t ry) {
  const StepInput& input = *input_;
  const StepStage& x = input.stages[pair.from];
  const StepStage& y = input.stages[pair.to];
  std::uint32_t first = rx;
  const std::uint32_t step = x.replicas == y.replicas ? x.replicas : std::lcm(x.replicas, y.replicas);
  if (y.replicas > 1) {
    while (first < micro_batches_ && first < step && first % y.replicas != ry) first += x.replicas;
  }
  if (first >= micro_batches_ || first >= step) {
    channel_index_.push_back(kNone);
    return;
  }
  channel_index_.push_back(static_cast<std::uint32_t>(channels_.size()));
  Channel channel;
  channel.left = (micro_batches_ - first + step - 1) / step;
  channel.micro_batch = first;
  channel.rank_x = first / x.replicas;
  channel.rank_y = first / y.replicas;
  channel.step = step;
  channel.step_x = step / x.replicas;
  channel.step_y = step / y.replicas;
  channel.x = x.first_unit + rx;
  channel.y = y.first_unit + ry;
  channel.slots = y.slots;
  const std::uint32_t device_x = input.units[channel.x].device, device_y = input.units[channel.y].device;
  for (const bool forward : {true, false}) {
    Channel way = channel;
    const std::uint32_t from = forward ? device_x : device_y, to = forward ? device_y : device_x;
    const Route& route = input.routes->of(from, to);
    way.links = route.links.data();
    way.link_count = static_cast<std::uint32_t>(route.links.size());
    add_hops(pair, way, route, forward, from);
    if (way.first_hop == way.last_hop) way.left = 0;
    channels_.push_back(way);
  }
}

void StepSimulation::add_hops(const Pair& pair, Channel& channel, const Route& route, bool forward,
                              std::uint32_t device) {
  channel.hop = channel.first_hop = static_cast<std::uint32_t>(hops_.size());
  for (std::uint32_t i = pair.edge; i < pair.edge + pair.edges; ++i) {
    const StepEdge& edge = input_->edges[pair_edges_[i]];
    if (!forward && !edge.returns) continue;
    Hop hop;
    hop.edge = pair_edges_[i];
    hop.free = edge.free;
    hop.saved = edge.saved;
    hop.tie = tie_of(device, edge.crossing, edge.to);
    if (!edge.free) {
      const Bytes bytes(forward ? edge.bytes : edge.gradient);
      hop.hold = route.hold(bytes).count();
      hop.latency = route.latency.count();
      if (input_->endpoints) {
        hop.send = route.send.of(bytes).count();
        hop.receive = route.receive.of(bytes).count();
      }
    }
    hops_.push_back(hop);
  }
  channel.last_hop = static_cast<std::uint32_t>(hops_.size());
}

void StepSimulation::make_tails() {
  const StepInput& input = *input_;
  gatherings_.assign(input.collectives.size(), Gathering());
  tail_begin_.assign(units_.size() + 2, 0);
  tail_.resize(input.collective_members.size());
  for (const std::uint32_t member : input.collective_members) ++tail_begin_[member + 2];
  for (std::size_t u = 0; u < units_.size(); ++u) tail_begin_[u + 2] += tail_begin_[u + 1];
  for (std::uint32_t c = 0; c < input.collectives.size(); ++c) {
    const StepCollective& collective = input.collectives[c];
    for (std::uint32_t i = 0; i < collective.members; ++i) {
      const std::uint32_t member = input.collective_members[collective.first_member + i];
      if (input.units[member].device == collective.lowest_device) {
        gatherings_[c].position = tail_begin_[member + 1] - tail_begin_[member];
      }
      tail_[tail_begin_[member + 1]++] = c;
    }
  }
}

void StepSimulation::spare_lone_links() {
  link_users_.assign(input_->link_count, 0);
  for (const std::uint32_t link : input_->collective_links) ++link_users_[link];
  for (const Channel& channel : channels_) {
    if (channel.left == 0) continue;
    for (std::uint32_t i = 0; i < channel.link_count; ++i) ++link_users_[channel.links[i]];
  }
  for (Channel& channel : channels_) {
    const bool lone = std::all_of(channel.links, channel.links + channel.link_count,
                                  [&](LinkIndex link) { return link_users_[link] == 1; });
    if (lone) channel.link_count = 0;
  }
}

std::uint32_t StepSimulation::channel_of(std::uint32_t edge, std::uint32_t micro_batch) const {
  const Pair& pair = pairs_[pair_of_edge_[edge]];
  const std::uint32_t x = input_->stages[pair.from].replicas, y = input_->stages[pair.to].replicas;
  return channel_index_[pair.channel + (micro_batch % x) * y + micro_batch % y];
}

// --- time

template <bool kEndpoints>
bool StepSimulation::run_all() {
  queue_.clear();
  queue_head_ = 0;
  runnable_.clear();
  iteration_ = 0;
  unfinished_ = units_.size();
  for (std::uint32_t unit = 0; unit < units_.size(); ++unit) {
    units_[unit].waits = kNotWaiting;
    runnable_.push_back(unit);
  }
  for (;;) {
    while (!runnable_.empty()) {
      const std::uint32_t unit = runnable_.back();
      runnable_.pop_back();
      advance<kEndpoints>(unit);
    }
    if (queue_head_ == queue_.size()) break;
    const Waiting next = queue_[queue_head_++];
    if (next.channel >= channels_.size()) {
      run_collective(next.channel - static_cast<std::uint32_t>(channels_.size()), next.ready);
      continue;
    }
    Channel& channel = channels_[next.channel];
    channel.queued = false;
    if (next.channel % 2 == 0) {
      deliver<kEndpoints, true>(channel, next.ready);
      post_forward<kEndpoints>(next.channel);
    } else {
      deliver<kEndpoints, false>(channel, next.ready);
      post_backward<kEndpoints>(next.channel);
    }
  }
  return unfinished_ == 0;
}

// Runs a unit until it waits for something.
template <bool kEndpoints>
void StepSimulation::advance(std::uint32_t index) {
  Unit& unit = units_[index];
  for (;;) {
    if (unit.forwards < unit.count && unit.forwards < unit.limit + unit.backwards) {
      const std::uint32_t input = 2 * (unit.base + unit.forwards);
      if (inputs_[input].missing > 0) {
        unit.waits = input;
        return;
      }
      run_forward<kEndpoints>(unit);
    } else if (unit.backwards < unit.count) {
      const std::uint32_t input = 2 * (unit.base + unit.backwards) + 1;
      if (inputs_[input].missing > 0) {
        unit.waits = input;
        return;
      }
      run_backward<kEndpoints>(unit);
    } else {
      run_tail(index);
      return;
    }
  }
}

template <bool kEndpoints>
void StepSimulation::run_forward(Unit& unit) {
  const std::uint32_t rank = unit.forwards, at = unit.base + rank;
  Time start = std::max(unit.lane, inputs_[2 * at].ready);
  if constexpr (kEndpoints) {
    const std::uint32_t j = micro_batch_of(unit, rank);
    Time lane = unit.lane, ready = 0;
    for (std::uint32_t i = edges_in_begin_[unit.stage]; i < edges_in_begin_[unit.stage + 1]; ++i) {
      const Message& received = message(edges_in_[i], true, j);
      if (received.receive > 0) {
        lane = std::max(lane, received.arrival) + received.receive;
      } else {
        ready = std::max(ready, received.arrival);
      }
    }
    start = std::max(lane, ready);
  }
  forward_start_[at] = start;
  unit.lane = start + unit.forward;
  ++unit.forwards;
  if constexpr (kEndpoints) {
    const std::uint32_t j = micro_batch_of(unit, rank);
    const Time end = unit.lane;
    for (std::uint32_t e = edges_out_begin_[unit.stage]; e < edges_out_begin_[unit.stage + 1]; ++e) {
      const Channel& channel = channels_[channel_of(e, j)];
      std::uint32_t hop = channel.first_hop;
      while (hops_[hop].edge != e) ++hop;
      unit.lane += hops_[hop].send;
      message(e, true, j).sent = hops_[hop].send > 0 ? unit.lane : end;
    }
  }
  for (std::uint32_t i = unit.out; i < unit.out_end; ++i) post_forward<kEndpoints>(out_[i]);
  if (unit.gives_back_after_forward) {
    for (std::uint32_t i = unit.in; i < unit.in_end; ++i) post_forward<kEndpoints>(in_[i]);
  }
}

template <bool kEndpoints>
void StepSimulation::run_backward(Unit& unit) {
  const std::uint32_t rank = unit.backwards, at = unit.base + rank;
  recompute_start_[at] = unit.lane;
  Time start = std::max(unit.lane + unit.recompute, inputs_[2 * at + 1].ready);
  if constexpr (kEndpoints) {
    const std::uint32_t j = micro_batch_of(unit, rank);
    Time lane = unit.lane + unit.recompute, ready = 0;
    for (std::uint32_t e = edges_out_begin_[unit.stage]; e < edges_out_begin_[unit.stage + 1]; ++e) {
      if (!input_->edges[e].returns) continue;
      const Message& received = message(e, false, j);
      if (received.receive > 0) {
        lane = std::max(lane, received.arrival) + received.receive;
      } else {
        ready = std::max(ready, received.arrival);
      }
    }
    start = std::max(lane, ready);
  }
  backward_start_[at] = start;
  unit.lane = start + unit.backward;
  ++unit.backwards;
  if constexpr (kEndpoints) {
    const std::uint32_t j = micro_batch_of(unit, rank);
    const Time end = unit.lane;
    for (std::uint32_t i = edges_in_begin_[unit.stage]; i < edges_in_begin_[unit.stage + 1]; ++i) {
      const std::uint32_t e = edges_in_[i];
      if (!input_->edges[e].returns) continue;
      const Channel& channel = channels_[channel_of(e, j) + 1];
      std::uint32_t hop = channel.first_hop;
      while (hops_[hop].edge != e) ++hop;
      unit.lane += hops_[hop].send;
      message(e, false, j).sent = hops_[hop].send > 0 ? unit.lane : end;
    }
  }
  for (std::uint32_t i = unit.in; i < unit.in_end; ++i) {
    post_backward<kEndpoints>(in_[i] + 1);
    if (unit.gives_back_after_backward) post_forward<kEndpoints>(in_[i]);
  }
}

// Collectives in order, then the update.
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
      enqueue({gathering.ready,
               kCollective | std::uint64_t{collective.lowest_device} << 32 | gathering.position,
               static_cast<std::uint32_t>(channels_.size()) + c});
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
template <bool kEndpoints>
void StepSimulation::post_forward(std::uint32_t index) {
  Channel& channel = channels_[index];
  if (channel.queued) return;
  while (channel.left > 0) {
    const Unit& x = units_[channel.x];
    if (x.forwards <= channel.rank_x) return;
    const Hop& hop = hops_[channel.hop];
    Time ready = kEndpoints ? message(hop.edge, true, channel.micro_batch).sent
                            : forward_start_[x.base + channel.rank_x] + x.forward;
    ready = std::max(ready, channel.wire_free);
    if (channel.rank_y >= channel.slots) {
      const Unit& y = units_[channel.y];
      const std::uint32_t before = channel.rank_y - channel.slots;
      if ((hop.saved ? y.backwards : y.forwards) <= before) return;
      ready = std::max(ready, hop.saved ? backward_start_[y.base + before] + y.backward
                                        : forward_start_[y.base + before] + y.forward);
    }
    if (channel.link_count > 0 && !hop.free) {
      const std::uint32_t rank = channel.rank_x;
      channel.queued = true;
      enqueue({ready, hop.tie + tie_of_position(rank < x.limit ? rank : 2 * rank - x.limit + 1), index});
      return;
    }
    deliver<kEndpoints, true>(channel, ready);
  }
}

template <bool kEndpoints>
void StepSimulation::post_backward(std::uint32_t index) {
  Channel& channel = channels_[index];
  if (channel.queued) return;
  while (channel.left > 0) {
    const Unit& y = units_[channel.y];
    if (y.backwards <= channel.rank_y) return;
    const Hop& hop = hops_[channel.hop];
    Time ready = kEndpoints ? message(hop.edge, false, channel.micro_batch).sent
                            : backward_start_[y.base + channel.rank_y] + y.backward;
    ready = std::max(ready, channel.wire_free);
    if (channel.link_count > 0 && !hop.free) {
      const std::uint32_t rank = channel.rank_y;
      channel.queued = true;
      enqueue({ready, hop.tie + tie_of_position(y.limit + rank + std::min(rank, y.count - y.limit)), index});
      return;
    }
    deliver<kEndpoints, false>(channel, ready);
  }
}

// The channel's first message goes over the wire; the channel turns to its next.
template <bool kEndpoints, bool kForward>
void StepSimulation::deliver(Channel& channel, Time ready) {
  const Hop& hop = hops_[channel.hop];
  Time start = ready;
  if (!hop.free) {
    for (std::uint32_t i = 0; i < channel.link_count; ++i) {
      start = std::max(start, link_free_[channel.links[i]]);
    }
  }
  const Time end = start + hop.hold;
  if (!hop.free) {
    for (std::uint32_t i = 0; i < channel.link_count; ++i) link_free_[channel.links[i]] = end;
  }
  channel.wire_free = end;
  const Time arrival = end + hop.latency;
  Message& sent = message(hop.edge, kForward, channel.micro_batch);
  sent.arrival = arrival;
  if constexpr (kEndpoints) sent.receive = hop.receive;

  const std::uint32_t receiver = kForward ? channel.y : channel.x;
  Unit& unit = units_[receiver];
  const std::uint32_t at =
      2 * (unit.base + (kForward ? channel.rank_y : channel.rank_x)) + (kForward ? 0 : 1);
  Input& input = inputs_[at];
  input.ready = std::max(input.ready, arrival);
  if (--input.missing == 0 && unit.waits == at) {
    unit.waits = kNotWaiting;
    runnable_.push_back(receiver);
  }
  if (++channel.hop == channel.last_hop) {
    channel.hop = channel.first_hop;
    channel.micro_batch += channel.step;
    channel.rank_x += channel.step_x;
    channel.rank_y += channel.step_y;
    --channel.left;
  }
}

void StepSimulation::enqueue(const Waiting& waiting) {
  if (queue_head_ == queue_.size()) {
    queue_.clear();
    queue_head_ = 0;
  }
  std::size_t at = queue_.size();
  queue_.push_back(waiting);
  while (at > queue_head_ && waiting < queue_[at - 1]) {
    queue_[at] = queue_[at - 1];
    --at;
  }
  queue_[at] = waiting;
}

// --- memory

void StepSimulation::free_later(Time time, std::int64_t bytes) {
  if (freed_head_ == freed_.size()) {
    freed_.clear();
    freed_head_ = 0;
  }
  std::size_t at = freed_.size();
  freed_.push_back({time, bytes});
  while (at > freed_head_ && time < freed_[at - 1].time) {
    freed_[at] = freed_[at - 1];
    --at;
  }
  freed_[at] = {time, bytes};
}

// Walks the unit's actions once more. `held` is what it holds after everything up to `now`, except frees that
// are still in the queue; a sample counts when the clock moves on, so that changes of one instant add up.
void StepSimulation::measure_memory(std::uint32_t index) {
  const StepInput& input = *input_;
  const Unit& unit = units_[index];
  const StepStage& stage = input.stages[unit.stage];
  const std::uint32_t out = edges_out_begin_[unit.stage], out_end = edges_out_begin_[unit.stage + 1];
  const std::uint32_t in = edges_in_begin_[unit.stage], in_end = edges_in_begin_[unit.stage + 1];
  const std::uint32_t first_crossing = crossings_begin_[unit.stage];
  const std::uint32_t last_crossing = crossings_begin_[unit.stage + 1];

  std::int64_t outputs = 0, kept_outputs = 0, gradients_in = 0, gradients_out = 0;
  std::int64_t slots_after_forward = 0, slots_after_backward = 0;
  for (std::uint32_t e = out; e < out_end; ++e)
    gradients_in += input.edges[e].returns ? input.edges[e].gradient : 0;
  for (std::uint32_t i = in; i < in_end; ++i) {
    const StepEdge& edge = input.edges[edges_in_[i]];
    gradients_out += edge.returns ? edge.gradient : 0;
    (edge.saved ? slots_after_backward : slots_after_forward) += edge.bytes;
  }
  // A crossing that is kept until B and whose readers all send something back has arrived by then.
  const auto ends_with_backward = [&](const StepCrossing& crossing) {
    if (!crossing.saved) return false;
    for (std::uint32_t e = crossing.first_edge; e < crossing.first_edge + crossing.edges; ++e) {
      if (!input.edges[e].returns) return false;
    }
    return true;
  };
  for (std::uint32_t c = first_crossing; c < last_crossing; ++c) {
    outputs += input.crossings[c].output;
    if (ends_with_backward(input.crossings[c])) kept_outputs += input.crossings[c].output;
  }

  freed_.clear();
  freed_head_ = 0;
  Time now = 0;
  std::int64_t activations = 0;
  std::int64_t buffers =
      stage.buffers + std::min(unit.count, stage.slots) * (slots_after_forward + slots_after_backward);
  StepPeak peak{buffers, 0};
  std::int64_t most = -1;
  const auto look = [&] {
    while (freed_head_ < freed_.size() && freed_[freed_head_].time <= now) {
      activations -= freed_[freed_head_++].bytes;
    }
    if (buffers + activations > most) {
      most = buffers + activations;
      peak = {buffers, activations};
    }
  };
  const auto move_to = [&](Time time) {
    if (time == now) return;
    look();
    now = time;
  };

  std::uint32_t forwards = 0, backwards = 0;
  while (backwards < unit.count) {
    const bool forward = forwards < unit.count && forwards < unit.limit + backwards;
    const std::uint32_t rank = forward ? forwards++ : backwards++;
    const std::uint32_t at = unit.base + rank, j = micro_batch_of(unit, rank);
    const bool last_of_slot = rank + stage.slots >= unit.count;
    if (forward) {
      move_to(forward_start_[at]);
      const Time end = forward_start_[at] + unit.forward;
      activations += stage.saved + outputs + stage.forward_workspace;
      for (std::uint32_t c = first_crossing; kept_outputs < outputs && c < last_crossing; ++c) {
        const StepCrossing& crossing = input.crossings[c];
        if (crossing.output == 0 || crossing.saved) continue;
        Time until = end;
        for (std::uint32_t e = crossing.first_edge; e < crossing.first_edge + crossing.edges; ++e) {
          until = std::max(until, message(e, true, j).arrival);
        }
        free_later(until, crossing.output);
      }
      move_to(end);
      activations -= stage.forward_workspace;
      buffers += gradients_in - (last_of_slot ? slots_after_forward : 0);
      continue;
    }
    if (stage.recomputes) {
      move_to(recompute_start_[at]);
      activations += stage.recomputed + stage.forward_workspace;
      move_to(recompute_start_[at] + unit.recompute);
      activations -= stage.forward_workspace;
    }
    move_to(backward_start_[at]);
    const Time end = backward_start_[at] + unit.backward;
    activations += stage.backward_workspace + gradients_out;
    for (std::uint32_t i = in; gradients_out > 0 && i < in_end; ++i) {
      const StepEdge& edge = input.edges[edges_in_[i]];
      if (edge.returns && edge.gradient > 0)
        free_later(message(edges_in_[i], false, j).arrival, edge.gradient);
    }
    for (std::uint32_t c = first_crossing; kept_outputs < outputs && c < last_crossing; ++c) {
      const StepCrossing& crossing = input.crossings[c];
      if (crossing.output == 0 || !crossing.saved || ends_with_backward(crossing)) continue;
      Time until = end;
      for (std::uint32_t e = crossing.first_edge; e < crossing.first_edge + crossing.edges; ++e) {
        until = std::max(until, message(e, true, j).arrival);
      }
      free_later(until, crossing.output);
    }
    move_to(end);
    activations -= stage.saved + stage.recomputed + stage.backward_workspace + kept_outputs;
    buffers -= gradients_in + (last_of_slot ? slots_after_backward : 0);
  }
  look();
  peaks_[index] = peak;
}

}  // namespace espalier::internal
