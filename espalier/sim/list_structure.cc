// Lists, messages and what they wait for. Every table is filled by counting, then in order, so that the work
// is a few steps an action and a message.

#include "espalier/sim/list_structure.h"

#include <algorithm>
#include <tuple>

#include "espalier/sim/list_builder.h"

namespace espalier::internal {
namespace {

bool is_collective(ActionKind kind) {
  return kind == ActionKind::kAllReduce || kind == ActionKind::kTieSum;
}

// counts[i + 1] says how many there are at i: turns them into where i begins.
void accumulate(std::vector<std::uint32_t>& counts) {
  for (std::size_t i = 1; i < counts.size(); ++i) counts[i] += counts[i - 1];
}

}  // namespace

ListStructure make_list_structure(const StagedModel& model, const Schedule& schedule, RouteTable& routes,
                                  std::size_t link_count) {
  return ListBuilder(model, schedule, routes, link_count).build();
}

ListBuilder::ListBuilder(const StagedModel& model, const Schedule& schedule, RouteTable& routes,
                         std::size_t link_count)
    : model_(model), schedule_(schedule), routes_(routes) {
  out_.layout = layout_of(model);
  out_.first_collective = out_.layout.replicas * ListLayout::kWorks;
  out_.link_count = link_count;
  for (const StagedStage& stage : model.stages) {
    equal_counts_ = equal_counts_ && stage.micro_batches == model.stages[0].micro_batches;
  }
  first_reader_.push_back(0);
  out_.crossings_begin.assign(model.stages.size() + 1, 0);
  for (const Crossing& crossing : model.crossings) {
    first_reader_.push_back(first_reader_.back() + narrow(crossing.readers.size()));
    ++out_.crossings_begin[crossing.from.index() + 1];
  }
  accumulate(out_.crossings_begin);
}

ListStructure ListBuilder::build() {
  number_lanes();
  seat_stages();
  fill_lists();
  find_messages();
  rank_messages();
  find_slots();
  post_backward();
  lay_out_messages();
  add_collectives();
  find_lone_channels();
  list_posts();
  list_receives();
  check_groups();
  check_local_order();
  change_outputs();
  change_gradients();
  list_frees();
  number_changes();
  return std::move(out_);
}

// --- lists

void ListBuilder::number_lanes() {
  lane_of_.assign(schedule_.devices.size(), kNone);
  out_.lane_begin.push_back(0);
  for (std::size_t device = 0; device < schedule_.devices.size(); ++device) {
    const std::size_t size = schedule_.devices[device].size();
    if (size == 0) continue;
    lane_of_[device] = narrow(out_.devices.size());
    out_.devices.push_back(DeviceId(device));
    out_.lane_begin.push_back(out_.lane_begin.back() + narrow(size));
  }
  out_.entries.resize(out_.lane_begin.back());
  out_.waits.assign(out_.entries.size(), 1);
}

void ListBuilder::seat_stages() {
  std::uint32_t replica_index = 0, places = 0;
  for (std::size_t s = 0; s < model_.stages.size(); ++s) {
    const StagedStage& stage = model_.stages[s];
    owner_begin_.push_back(narrow(seat_of_.size()));
    seat_of_.resize(seat_of_.size() + stage.micro_batches, kNone);
    share_rank_.resize(seat_of_.size(), 0);
    first_seat_.push_back(narrow(seats_.size()));
    for (const StagedReplica& replica : stage.replicas) {
      for (std::uint32_t rank = 0; rank < replica.micro_batches.size(); ++rank) {
        const std::size_t at = owner_begin_.back() + replica.micro_batches[rank];
        seat_of_.at(at) = narrow(seats_.size());
        share_rank_[at] = rank;
      }
      for (const DeviceId device : replica.devices) {
        seats_.push_back({narrow(s), replica_index, device, places});
        places += narrow(replica.micro_batches.size()) * kPlaces;
      }
      ++replica_index;
    }
  }
  first_seat_.push_back(narrow(seats_.size()));
  places_.assign(places, kNone);
}

// Of a micro-batch of a stage on a device: where its slots stand in places_; kNone if it is not there.
std::uint32_t ListBuilder::places_on(DeviceId device, StageId stage, std::uint32_t micro_batch) const {
  const std::size_t at = owner_begin_[stage.index()] + micro_batch;
  const std::uint32_t first = seat_of_[at];
  for (std::uint32_t seat = first; seat < seats_.size() && seats_[seat].replica == seats_[first].replica;
       ++seat) {
    if (seats_[seat].device == device) return seats_[seat].places + share_rank_[at] * kPlaces;
  }
  return kNone;
}

void ListBuilder::fill_lists() {
  std::vector<std::uint32_t> of_subject[2];  // collectives: by stage, by tie
  of_subject[0].assign(model_.stages.size(), kNone);
  of_subject[1].assign(model_.ties.size(), kNone);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> members;  // collective, lane
  std::uint32_t slot = 0;
  out_.changes.reserve(out_.entries.size());
  for (std::uint32_t lane = 0; lane < out_.devices.size(); ++lane) {
    const DeviceId device = out_.devices[lane];
    for (const Action& action : schedule_.devices[device.index()]) {
      ListEntry& entry = out_.entries[slot];
      if (is_collective(action.kind)) {
        const std::size_t subject = action.target();  // a stage or a tie
        std::uint32_t& found = of_subject[action.kind == ActionKind::kTieSum ? 1 : 0].at(subject);
        if (found == kNone) {
          found = narrow(found_collectives_.size());
          found_collectives_.push_back({action.kind, subject, slot});
        }
        members.push_back({found, lane});
        entry.work = out_.first_collective + found;
        out_.changes.push_back({0, ActionKind::kUpdate, 0, 0});
      } else if (action.kind == ActionKind::kUpdate) {
        std::uint32_t seat = first_seat_[action.stage().index()];
        while (seats_[seat].device != device) ++seat;
        entry.work = ListLayout::work(seats_[seat].replica, action.kind);
        out_.changes.push_back({0, ActionKind::kUpdate, 0, 0});
      } else {
        const std::uint32_t places = places_on(device, action.stage(), action.micro_batch);
        ESP_CHECK(places != kNone, device, action.stage(), action.micro_batch);
        const Place which = action.kind == ActionKind::kForward          ? kForwardPlace
                            : action.kind == ActionKind::kRecompute      ? kRecomputePlace
                            : action.kind == ActionKind::kWeightGradient ? kWeightsPlace
                                                                         : kBackwardPlace;
        places_[places + which] = slot;
        const std::size_t owner = owner_begin_[action.stage().index()] + action.micro_batch;
        entry.work = ListLayout::work(seats_[seat_of_[owner]].replica, action.kind);
        out_.changes.push_back({narrow(action.stage().index()), action.kind, 0, 0});
      }
      ++slot;
    }
  }
  out_.collectives.resize(found_collectives_.size());
  out_.work_count.assign(out_.first_collective + out_.collectives.size(), 0);
  for (const ListEntry& entry : out_.entries) ++out_.work_count[entry.work];
  std::stable_sort(members.begin(), members.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [collective, lane] : members) {
    ListCollective& entry = out_.collectives[collective];
    if (entry.members++ == 0) entry.first_member = narrow(out_.members.size());
    out_.members.push_back(lane);
  }
}

// --- messages

ListBuilder::Samples ListBuilder::samples_of(const Message& message) const {
  const std::uint64_t p = message.producer_micro_batch, c = message.consumer_micro_batch;
  if (equal_counts_) return {p, p + 1, micro_batches(message.reader)};
  const std::uint64_t producers = micro_batches(model_.crossings[message.crossing].from);
  const std::uint64_t readers = micro_batches(message.reader);
  return {std::max(p * readers, c * producers), std::min((p + 1) * readers, (c + 1) * producers),
          producers * readers};
}

void ListBuilder::find_messages() {
  std::size_t count = 0;
  for (const Channel& channel : schedule_.channels) count += channel.messages.size();
  built_.reserve(count);
  for (std::uint32_t c = 0; c < schedule_.channels.size(); ++c) {
    const Channel& channel = schedule_.channels[c];
    for (const Message& message : channel.messages) {
      built_.push_back({message, channel.from, channel.to, c, kNone, kNone, out_.always(), 0, 0});
      find_ends(built_.back());
    }
  }
}

// The last action that produces a message, and the first that consumes it.
void ListBuilder::find_ends(BuiltMessage& built) const {
  const Message& message = built.message;
  const Crossing& crossing = model_.crossings[message.crossing];
  const Samples samples = samples_of(message);
  const DeviceId producer_device = built.forward() ? built.from : built.to;
  const std::uint32_t producer = places_on(producer_device, crossing.from, message.producer_micro_batch);
  ESP_CHECK(producer != kNone, message.crossing, message.producer_micro_batch);
  built.reader = first_reader_[message.crossing];
  while (crossing.readers[built.reader - first_reader_[message.crossing]].stage != message.reader)
    ++built.reader;
  if (built.forward()) {
    built.producer = place(producer, kForwardPlace);
    for_readers(built.to, crossing, samples, [&](const Use& use) {
      built.consumer = std::min(built.consumer, place(use.places, kForwardPlace));
    });
  } else {
    built.consumer = place(producer, kBackwardPlace);
    for_readers(built.from, crossing, samples, [&](const Use& use) {
      if (!flows_back(crossing, *use.reader)) return;
      const std::uint32_t slot = place(use.places, kBackwardPlace);
      if (built.producer == kNone || slot > built.producer) built.producer = slot;
    });
  }
  ESP_CHECK(built.producer != kNone && built.consumer != kNone, message.crossing);
}

// By source device, position there, Message, destination.
void ListBuilder::rank_messages() {
  std::vector<std::uint32_t>& begin = out_.sends_begin;
  begin.assign(out_.entries.size() + 2, 0);
  for (const BuiltMessage& built : built_) ++begin[built.producer + 2];
  accumulate(begin);
  by_rank_.resize(built_.size());
  for (std::uint32_t i = 0; i < built_.size(); ++i) by_rank_[begin[built_[i].producer + 1]++] = i;
  begin.pop_back();
  const auto sent_before = [&](std::uint32_t a, std::uint32_t b) {
    const BuiltMessage &x = built_[a], &y = built_[b];
    return std::tie(x.message, x.to) < std::tie(y.message, y.to);
  };
  for (std::size_t slot = 0; slot < out_.entries.size(); ++slot) {
    const auto first = by_rank_.begin() + begin[slot], last = by_rank_.begin() + begin[slot + 1];
    if (last - first > 1 && !std::is_sorted(first, last, sent_before)) std::sort(first, last, sent_before);
  }
  for (std::uint32_t rank = 0; rank < by_rank_.size(); ++rank) built_[by_rank_[rank]].rank = rank;
}

void ListBuilder::lay_out_messages() {
  out_.messages.reserve(built_.size() + schedule_.channels.size());
  out_.channel_of_rank.resize(built_.size());
  out_.message_of_rank.resize(built_.size());
  std::size_t at = 0;
  std::vector<std::uint32_t> keys;  // of the channel's hops: reader and direction
  for (std::uint32_t c = 0; c < schedule_.channels.size(); ++c) {
    const Channel& channel = schedule_.channels[c];
    const std::uint32_t first_hop = narrow(out_.hops.size());
    const std::uint32_t way = route(channel.from, channel.to);
    const Route& costs = *out_.routes[way];
    out_.endpoints = out_.endpoints || costs.send != EndpointCost() || costs.receive != EndpointCost();
    out_.channels.push_back({narrow(out_.messages.size()), narrow(channel.messages.size()),
                             lane_of_[channel.to.index()], way, false});
    keys.clear();
    std::size_t last = 0;
    for (std::size_t i = 0; i < channel.messages.size(); ++i, ++at) {
      const BuiltMessage& built = built_[at];
      const std::uint32_t key = 2 * built.reader + (built.forward() ? 0 : 1);
      if (++last >= keys.size() || keys[last] != key) {  // not the one after the last
        last = static_cast<std::size_t>(std::find(keys.begin(), keys.end(), key) - keys.begin());
      }
      if (last == keys.size()) {
        keys.push_back(key);
        const bool free = model_.crossings[built.message.crossing].token && model_.tokens == TokenRule::kFree;
        out_.hops.push_back({c, out_.layout.bytes(built.reader) + (built.forward() ? 0 : 1), 0, free});
      }
      const std::uint32_t hop = first_hop + narrow(last);
      ++out_.hops[hop].count;
      ++out_.waits[built.consumer];
      out_.channel_of_rank[built.rank] = c;
      out_.message_of_rank[built.rank] = narrow(out_.messages.size());
      out_.messages.push_back({built.producer, built.release, built.consumer, hop, built.rank});
    }
    out_.messages.push_back({out_.never(), out_.always(), 0, first_hop, 0});
  }
}

// Channels that may have something to send once a slot has ended.
void ListBuilder::list_posts() {
  const std::size_t slots = out_.entries.size();
  std::vector<std::uint32_t> seen;
  const auto for_posts = [&](auto visit) {
    seen.assign(slots + 2, kNone);
    for (std::uint32_t c = 0; c < out_.channels.size(); ++c) {
      const ListChannel& channel = out_.channels[c];
      for (std::uint32_t m = channel.first; m < channel.first + channel.count; ++m) {
        for (const std::uint32_t slot : {out_.messages[m].producer, out_.messages[m].release}) {
          if (slot >= slots || seen[slot] == c) continue;
          seen[slot] = c;
          visit(slot, c);
        }
      }
    }
  };
  out_.posts_begin.assign(slots + 2, 0);
  for_posts([&](std::uint32_t slot, std::uint32_t) { ++out_.posts_begin[slot + 2]; });
  accumulate(out_.posts_begin);
  out_.posts.resize(out_.posts_begin.back());
  for_posts(
      [&](std::uint32_t slot, std::uint32_t channel) { out_.posts[out_.posts_begin[slot + 1]++] = channel; });
  out_.posts_begin.pop_back();
}

void ListBuilder::list_receives() {
  if (!out_.endpoints) return;
  std::vector<std::uint32_t>& begin = out_.receives_begin;
  begin.assign(out_.entries.size() + 2, 0);
  for (const BuiltMessage& built : built_) ++begin[built.consumer + 2];
  accumulate(begin);
  std::vector<std::uint32_t> order(built_.size());
  for (std::uint32_t i = 0; i < built_.size(); ++i) order[begin[built_[i].consumer + 1]++] = i;
  begin.pop_back();
  for (std::size_t slot = 0; slot < out_.entries.size(); ++slot) {
    std::sort(order.begin() + begin[slot], order.begin() + begin[slot + 1],
              [&](std::uint32_t a, std::uint32_t b) {
                const BuiltMessage &x = built_[a], &y = built_[b];
                return std::tie(x.message, x.from) < std::tie(y.message, y.from);
              });
  }
  out_.receives.reserve(order.size());
  for (const std::uint32_t i : order) out_.receives.push_back(out_.message_of_rank[built_[i].rank]);
}

// The devices of a tensor-parallel group run an action together, though each has its own list here: orders
// that differ so that some would wait in a circle run in these lists and not in truth.
void ListBuilder::check_groups() {
  const bool groups = std::any_of(model_.stages.begin(), model_.stages.end(), [](const StagedStage& stage) {
    return stage.replicas[0].devices.size() > 1;
  });
  if (groups) out_.possible = check_schedule(model_, schedule_).empty();
}

// What stays on a device needs no message; its order alone must be right.
void ListBuilder::check_local_order() {
  for (const Crossing& crossing : model_.crossings) {
    const std::size_t from = crossing.from.index();
    for (std::uint32_t j = 0; j < model_.stages[from].micro_batches; ++j) {
      const std::uint32_t first = seat_of_[owner_begin_[from] + j];
      for (std::uint32_t s = first; s < seats_.size() && seats_[s].replica == seats_[first].replica; ++s) {
        const std::uint32_t made = places_on(seats_[s].device, crossing.from, j);
        for_readers(seats_[s].device, crossing, {j, j + 1, micro_batches(crossing.from)},
                    [&](const Use& use) {
                      const bool forward = place(made, kForwardPlace) < place(use.places, kForwardPlace);
                      const bool backward = !flows_back(crossing, *use.reader) ||
                                            place(use.places, kBackwardPlace) < place(made, kBackwardPlace);
                      out_.possible = out_.possible && forward && backward;
                    });
      }
    }
  }
}

}  // namespace espalier::internal
