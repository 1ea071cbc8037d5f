// What StepSimulation needs to know before it starts: units, channels with their hops, what is looked at
// after an action, ties, links that only one channel uses. A few hundred steps a plan.

#include <algorithm>
#include <numeric>

#include "espalier/sim/step_simulation.h"

namespace espalier::internal {
namespace {

constexpr std::uint32_t kUnset = 0xffffffff;

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

void StepSimulation::make_units() {
  const StepInput& input = *input_;
  units_.assign(input.units.size(), Unit());
  std::uint32_t base = 0;
  for (std::uint32_t i = 0; i < units_.size(); ++i) {
    const StepUnit& from = input.units[i];
    const StepStage& stage = input.stages[from.stage];
    Unit& unit = units_[i];
    unit.duration[kForward] = from.forward;
    unit.duration[kBackward] = from.backward;
    unit.recompute = from.recompute;
    unit.stage = from.stage;
    unit.replica = i - stage.first_unit;
    unit.count = (micro_batches_ + stage.replicas - 1 - unit.replica) / stage.replicas;
    unit.limit = std::min(stage.limit, unit.count);
    unit.base = base;
    base += 2 * unit.count;
  }
  slots_.resize(base + 2);
  slots_[base] = slots_[base + 1] = Slot();
  never_ = base;
  always_ = base + 1;
  slots_[always_].end = 0;
  recompute_start_.resize(base / 2);
}

void StepSimulation::find_pairs() {
  const StepInput& input = *input_;
  const std::size_t stages = input.stages.size();
  edges_out_begin_.assign(stages + 1, 0);
  edges_in_begin_.assign(stages + 2, 0);
  crossings_begin_.assign(stages + 1, 0);
  pair_of_stage_.assign(stages, kUnset);
  pair_of_edge_.resize(input.edges.size());
  pairs_.clear();
  for (std::uint32_t e = 0; e < input.edges.size(); ++e) {
    const StepEdge& edge = input.edges[e];
    ++edges_out_begin_[edge.from + 1];
    ++edges_in_begin_[edge.to + 2];
    std::uint32_t& pair = pair_of_stage_[edge.to];  // from the same stage, or from an earlier one
    if (pair == kUnset || pairs_[pair].from != edge.from) {
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
  for (const StepCrossing& crossing : input.crossings) {
    ++crossings_begin_[input.edges[crossing.first_edge].from + 1];
  }
  for (std::size_t s = 0; s < stages; ++s) crossings_begin_[s + 1] += crossings_begin_[s];
}

void StepSimulation::make_channels() {
  const StepInput& input = *input_;
  channels_.clear();
  hops_.clear();
  channel_index_.clear();
  link_free_.assign(input.link_count, 0);
  for (Pair& pair : pairs_) {
    pair.channel = static_cast<std::uint32_t>(channel_index_.size());
    for (std::uint32_t rx = 0; rx < input.stages[pair.from].replicas; ++rx) {
      for (std::uint32_t ry = 0; ry < input.stages[pair.to].replicas; ++ry) add_channel(pair, rx, ry);
    }
  }
  hops_.push_back({});  // one behind the last: a channel without hops points at it and reads its zeros
  const std::size_t messages = 2 * input.edges.size() * (micro_batches_ + 1);
  arrival_.resize(messages);
  for (std::size_t last = micro_batches_; last < messages; last += micro_batches_ + 1)
    arrival_[last] = kNever;
  if (input.endpoints) endpoints_.resize(messages);
}

// Both units take micro-batches j with j ≡ rx mod replicas of x and j ≡ ry mod those of y: none, or every
// lcm-th.
void StepSimulation::add_channel(const Pair& pair, std::uint32_t rx, std::uint32_t ry) {
  const StepInput& input = *input_;
  const StepStage& x = input.stages[pair.from];
  const StepStage& y = input.stages[pair.to];
  const std::uint32_t step = x.replicas == y.replicas ? x.replicas : std::lcm(x.replicas, y.replicas);
  std::uint32_t first = rx;
  if (y.replicas > 1) {
    while (first < micro_batches_ && first < step && first % y.replicas != ry) first += x.replicas;
  }
  if (first >= micro_batches_ || first >= step) {
    channel_index_.push_back(kUnset);
    return;
  }
  channel_index_.push_back(static_cast<std::uint32_t>(channels_.size()));
  const std::uint32_t unit_x = x.first_unit + rx, unit_y = y.first_unit + ry;
  const std::uint32_t device_x = input.units[unit_x].device, device_y = input.units[unit_y].device;
  Channel forward;
  forward.left = (micro_batches_ - first + step - 1) / step;
  forward.micro_batch = first;
  forward.step = step;
  forward.from = unit_x;
  forward.from_slot = units_[unit_x].slot(first / x.replicas, kForward);
  forward.from_step = 2 * (step / x.replicas);
  forward.to = unit_y;
  forward.to_slot = units_[unit_y].slot(first / y.replicas, kForward);
  forward.to_step = 2 * (step / y.replicas);
  forward.slots_back = 2 * y.slots;
  forward.first_release = units_[unit_y].slot(y.slots, kForward);
  Channel back = forward;
  std::swap(back.from, back.to);
  std::swap(back.from_slot, back.to_slot);
  std::swap(back.from_step, back.to_step);
  ++back.from_slot;
  ++back.to_slot;
  back.first_release = kUnset;  // posted at the end of F, long ago
  back.direction = kBackward;
  add_hops(pair, forward, input.routes->of(device_x, device_y));
  channels_.push_back(forward);
  add_hops(pair, back, input.routes->of(device_y, device_x));
  channels_.push_back(back);
}

void StepSimulation::add_hops(const Pair& pair, Channel& channel, const Route& route) {
  channel.links = route.links.data();
  if (!route.links.empty()) {
    channel.two_links[0] = route.links[0];
    channel.two_links[1] = route.links[route.links.size() > 1 ? 1 : 0];
  }
  channel.hop = channel.first_hop = static_cast<std::uint32_t>(hops_.size());
  for (std::uint32_t i = pair.edge; i < pair.edge + pair.edges; ++i) {
    const StepEdge& edge = input_->edges[pair_edges_[i]];
    if (channel.direction == kBackward && !edge.returns) continue;
    Hop hop;
    hop.edge = pair_edges_[i];
    hop.row = row(hop.edge, channel.direction);
    hop.saved = edge.saved ? 1 : 0;
    if (!edge.free) {
      const Bytes bytes(channel.direction == kForward ? edge.bytes : edge.gradient);
      hop.hold = route.hold(bytes).count();
      hop.latency = route.latency.count();
      hop.link_count = static_cast<std::uint32_t>(route.links.size());
      if (input_->endpoints) {
        hop.send = route.send.of(bytes).count();
        hop.receive = route.receive.of(bytes).count();
      }
    }
    hops_.push_back(hop);
  }
  channel.last_hop = static_cast<std::uint32_t>(hops_.size());
  if (channel.first_hop == channel.last_hop) channel.left = 0;
}

void StepSimulation::make_slots() {
  for (const Unit& unit : units_) {
    Slot forward, backward;
    backward.missing = 1;
    forward.missing = 1 + edges_in_begin_[unit.stage + 1] - edges_in_begin_[unit.stage];
    for (std::uint32_t e = edges_out_begin_[unit.stage]; e < edges_out_begin_[unit.stage + 1]; ++e) {
      backward.missing += input_->edges[e].returns ? 1 : 0;
    }
    for (std::uint32_t slot = unit.base; slot < unit.base + 2 * unit.count; slot += 2) {
      slots_[slot] = forward;
      slots_[slot + 1] = backward;
    }
  }
}

// After a forward its messages may go, after a backward its gradients; and either gives back the receive
// slots of what nobody needs longer.
void StepSimulation::list_posts() {
  const auto for_posts = [&](auto visit) {
    for (std::uint32_t c = 0; c < channels_.size(); ++c) {
      const Channel& channel = channels_[c];
      if (channel.left == 0) continue;
      visit(channel.from, channel.direction, c);
      if (channel.direction == kBackward) continue;
      bool after[2] = {false, false};
      for (std::uint32_t hop = channel.first_hop; hop < channel.last_hop; ++hop)
        after[hops_[hop].saved] = true;
      if (after[0]) visit(channel.to, std::uint32_t{kForward}, c);
      if (after[1]) visit(channel.to, std::uint32_t{kBackward}, c);
    }
  };
  for_posts([&](std::uint32_t unit, std::uint32_t direction, std::uint32_t) {
    ++units_[unit].posts_end[direction];
  });
  std::uint32_t first = 0;
  for (Unit& unit : units_) {
    for (const std::uint32_t direction : {kForward, kBackward}) {
      const std::uint32_t count = unit.posts_end[direction];
      unit.posts[direction] = unit.posts_end[direction] = first;
      first += count;
    }
  }
  posts_.resize(first);
  for_posts([&](std::uint32_t unit, std::uint32_t direction, std::uint32_t channel) {
    posts_[units_[unit].posts_end[direction]++] = channel;
  });
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

void StepSimulation::lay_out_ties() {
  const StepInput& input = *input_;
  const auto bits_for = [](std::size_t numbers) {  // 0 … numbers - 1
    std::uint32_t bits = 1;
    while (numbers > std::size_t{1} << bits) ++bits;
    return bits;
  };
  std::uint32_t device = 0;
  for (const StepUnit& unit : input.units) device = std::max(device, unit.device);
  ties_.edge = bits_for(channels_.size() + input.collectives.size());
  ties_.position = ties_.edge + bits_for(input.edges.size());
  ties_.device = ties_.position + bits_for(2 * std::size_t{micro_batches_} + input.collectives.size());
  ties_.collective = ties_.device + bits_for(std::size_t{device} + 1);
  ties_.bits = ties_.collective + 1;
  ties_.who = (std::uint64_t{1} << ties_.edge) - 1;
  for (std::uint32_t c = 0; c < channels_.size(); ++c) {
    const std::uint64_t from = input.units[channels_[c].from].device;
    for (std::uint32_t hop = channels_[c].first_hop; hop < channels_[c].last_hop; ++hop) {
      hops_[hop].tie = from << ties_.device | std::uint64_t{hops_[hop].edge} << ties_.edge | c;
    }
  }
}

// Could any time need more than so many bits? At most everything happens one after the other.
bool StepSimulation::times_fit(std::uint32_t bits) const {
  double longest = 0;
  const auto add = [&](Time time, std::uint32_t times) {
    longest += static_cast<double>(time) * static_cast<double>(times);
  };
  for (const Unit& unit : units_) add(unit.duration[0] + unit.duration[1] + unit.recompute, unit.count);
  for (const Channel& channel : channels_) {
    for (std::uint32_t hop = channel.first_hop; hop < channel.last_hop; ++hop) {
      add(hops_[hop].hold, channel.left);
      add(hops_[hop].latency + hops_[hop].send + hops_[hop].receive, channel.left);
    }
  }
  for (const StepCollective& collective : input_->collectives)
    add(collective.hold, 1), add(collective.latency, 1);
  return longest * 1.001 < static_cast<double>(std::uint64_t{1} << (bits - 1));
}

void StepSimulation::spare_lone_links() {
  link_users_.assign(input_->link_count, 0);
  for (const std::uint32_t link : input_->collective_links) ++link_users_[link];
  const auto links_of = [&](const Channel& channel) {
    std::uint32_t count = 0;
    for (std::uint32_t hop = channel.first_hop; hop < channel.last_hop; ++hop) {
      count = std::max(count, hops_[hop].link_count);
    }
    return count;
  };
  for (const Channel& channel : channels_) {
    const std::uint32_t count = links_of(channel);
    for (std::uint32_t i = 0; i < count; ++i) ++link_users_[channel.links[i]];
  }
  for (const Channel& channel : channels_) {
    const bool lone = std::all_of(channel.links, channel.links + links_of(channel),
                                  [&](LinkIndex link) { return link_users_[link] == 1; });
    if (!lone) continue;
    for (std::uint32_t hop = channel.first_hop; hop < channel.last_hop; ++hop) hops_[hop].link_count = 0;
  }
}

// The hop that carries an edge's message of a micro-batch.
const StepSimulation::Hop& StepSimulation::hop_of(std::uint32_t edge, std::uint32_t direction,
                                                  std::uint32_t micro_batch) const {
  const Pair& pair = pairs_[pair_of_edge_[edge]];
  const std::uint32_t x = input_->stages[pair.from].replicas, y = input_->stages[pair.to].replicas;
  const std::uint32_t both = channel_index_[pair.channel + (micro_batch % x) * y + micro_batch % y];
  std::uint32_t hop = channels_[both + direction].first_hop;
  while (hops_[hop].edge != edge) ++hop;
  return hops_[hop];
}

}  // namespace espalier::internal
