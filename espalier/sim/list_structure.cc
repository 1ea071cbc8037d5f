// Lists, messages and what they wait for. Every table is filled by counting, then in order, so that the work
// is a few steps an action and a message.

#include "espalier/sim/list_structure.h"

#include <algorithm>
#include <tuple>

#include "espalier/schedule/rules.h"
#include "espalier/sim/list_builder.h"

namespace espalier::internal {

ListStructure make_list_structure(const StagedModel& model, const Schedule& schedule, RouteTable& routes,
                                  std::size_t link_count) {
  ListStructure structure;
  ListBuilder(routes, schedule.devices.size(), link_count).build(model, schedule.devices, structure);
  return structure;
}

void ListBuilder::build(const StagedModel& model, ListStructure& out) {
  begin(model, out);
  if (!is_regular() || !patterns_suffice(model, device_count_)) {
    return build(model, make_lists(model, device_count_), out);
  }
  seat_stages();
  write_patterns();
  count_work();
  write_regular_messages();
  finish();
}

void ListBuilder::build(const StagedModel& model, const std::vector<std::vector<Action>>& lists,
                        ListStructure& out, Way way) {
  begin(model, out);
  const bool regular = way == Way::kShortest && is_regular();
  seat_stages();
  fill_lists(lists);
  count_work();
  if (regular) {
    write_regular_messages();
  } else {
    write_all_messages(lists, way);
  }
  finish();
}

void ListBuilder::begin(const StagedModel& model, ListStructure& out) {
  model_ = &model;
  out_ = &out;
  out.layout = layout_of(model);
  out.endpoints = out.hops_free = false;
  out.possible = true;
  out.first_collective = out.layout.replicas * ListLayout::kWorks;
  out.link_count = link_count_;
  out.devices.clear();
  out.lane_begin.assign(1, 0);
  out.entries.clear();
  out.receives_begin.clear();
  out.receives.clear();
  out.channels.clear();
  out.hops.clear();
  out.routes.clear();
  out.collectives.clear();
  out.legs.clear();
  out.members.clear();
  out.collective_links.clear();
  out.usual.clear();
  out.usual_begin.assign(model.stages.size() + 1, 0);
  equal_counts_ = true;
  for (const StagedStage& stage : model.stages) {
    equal_counts_ = equal_counts_ && stage.micro_batches == model.stages[0].micro_batches;
  }
  first_reader_.assign(1, 0);
  out.crossings_begin.assign(model.stages.size() + 1, 0);
  for (const Crossing& crossing : model.crossings) {
    first_reader_.push_back(first_reader_.back() + narrow(crossing.readers.size()));
    ++out.crossings_begin[crossing.from.index() + 1];
  }
  begin_buckets(out.crossings_begin);
  raw_changes_.clear();
  found_collectives_.clear();
  collective_of_stage_.assign(model.stages.size(), kNone);
  collective_of_tie_.assign(model.ties.size(), kNone);
  members_.clear();
  meeting_of_.clear();
  releases_.clear();
  initial_.clear();
  slot_terms_.clear();
  slot_frees_.clear();
  lane_of_.assign(device_count_, kNone);
}

void ListBuilder::finish() {
  add_sums();
  add_collectives();
  find_lone_channels();
  list_posts();
  list_initial();
  list_frees();
  number_changes();
}

// --- lists

void ListBuilder::seat_stages() {
  std::uint32_t replica_index = 0, places = 0;
  owner_begin_.clear();
  first_seat_.clear();
  seats_.clear();
  std::size_t owners = 0;
  for (const StagedStage& stage : model_->stages) owners += stage.micro_batches;
  seat_of_.assign(owners, kNone);
  share_rank_.assign(owners, 0);
  place_at_.resize(owners);
  owners = 0;
  for (std::size_t s = 0; s < model_->stages.size(); ++s) {
    const StagedStage& stage = model_->stages[s];
    owner_begin_.push_back(narrow(owners));
    first_seat_.push_back(narrow(seats_.size()));
    for (const StagedReplica& replica : stage.replicas) {
      for (std::uint32_t rank = 0; rank < replica.micro_batches.size(); ++rank) {
        const std::size_t at = owners + replica.micro_batches[rank];
        seat_of_.at(at) = narrow(seats_.size());
        share_rank_[at] = rank;
        place_at_[at] = places + rank * kPlaces;
      }
      for (const DeviceId device : replica.devices) {
        seats_.push_back({narrow(s), replica_index, device, places});
        places += narrow(replica.micro_batches.size()) * kPlaces;
      }
      ++replica_index;
    }
    owners += stage.micro_batches;
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

void ListBuilder::begin_lane(DeviceId device) {
  lane_of_[device.index()] = narrow(out_->devices.size());
  out_->devices.push_back(device);
}

void ListBuilder::add_entry(ActionKind kind, std::uint32_t stage, std::uint32_t work) {
  out_->entries.push_back({work, 0});
  raw_changes_.push_back({kind, stage});
}

void ListBuilder::add_collective(ActionKind kind, std::size_t subject) {
  std::uint32_t& found =
      (kind == ActionKind::kTieSum ? collective_of_tie_ : collective_of_stage_).at(subject);
  if (found == kNone) {
    found = narrow(found_collectives_.size());
    found_collectives_.push_back({kind, subject});
  }
  members_.push_back({found, narrow(out_->devices.size() - 1), narrow(out_->entries.size())});
  add_entry(kind, 0, out_->first_collective + found);
}

// A group's devices run an action together.
void ListBuilder::add_meeting(const Action& action, const Seat& seat, std::uint32_t place) {
  if (meeting_of_.empty()) meeting_of_.assign(places_.size(), kNone);
  std::uint32_t& found = meeting_of_[place];
  if (found == kNone) {
    found = narrow(found_collectives_.size());
    found_collectives_.push_back({action.kind, ListLayout::work(seat.replica, action.kind)});
  }
  members_.push_back({found, narrow(out_->devices.size() - 1), narrow(out_->entries.size())});
  add_entry(action.kind, seat.stage, out_->first_collective + found);
}

void ListBuilder::fill_lists(const std::vector<std::vector<Action>>& lists) {
  for (std::size_t d = 0; d < lists.size(); ++d) {
    if (lists[d].empty()) continue;
    const DeviceId device(d);
    begin_lane(device);
    for (const Action& action : lists[d]) {
      if (is_sum(action.kind)) {
        add_collective(action.kind, action.target());
        continue;
      }
      const std::size_t stage = action.stage().index();
      if (action.kind == ActionKind::kUpdate) {
        std::uint32_t seat = first_seat_[stage];
        while (seats_[seat].device != device) ++seat;
        add_entry(action.kind, narrow(stage), ListLayout::work(seats_[seat].replica, action.kind));
        continue;
      }
      const std::uint32_t places = places_on(device, action.stage(), action.micro_batch);
      ESP_CHECK(places != kNone, device, action.stage(), action.micro_batch);
      const Place which = action.kind == ActionKind::kForward          ? kForwardPlace
                          : action.kind == ActionKind::kRecompute      ? kRecomputePlace
                          : action.kind == ActionKind::kWeightGradient ? kWeightsPlace
                                                                       : kBackwardPlace;
      places_[places + which] = narrow(out_->entries.size());
      const std::size_t owner = owner_begin_[stage] + action.micro_batch;
      const Seat& seat = seats_[seat_of_[owner]];
      if (model_->stages[stage].replicas[0].devices.size() > 1) {
        add_meeting(action, seat, place_at_[owner] + which);
      } else {
        add_entry(action.kind, narrow(stage), ListLayout::work(seat.replica, action.kind));
      }
    }
    out_->lane_begin.push_back(narrow(out_->entries.size()));
  }
}

void ListBuilder::count_work() {
  out_->waits.assign(out_->entries.size(), 1);
  out_->collectives.assign(found_collectives_.size(), {});
  out_->work_count.assign(out_->first_collective + out_->collectives.size(), 0);
  for (const ListEntry& entry : out_->entries) ++out_->work_count[entry.work];
}

std::uint32_t ListBuilder::new_channel(DeviceId from, DeviceId to) {
  const std::uint32_t way = route(from, to);
  const Route& costs = *out_->routes[way];
  out_->endpoints = out_->endpoints || costs.send != EndpointCost() || costs.receive != EndpointCost();
  out_->channels.push_back({0, 0, lane_of_[to.index()], way, false});
  return narrow(out_->channels.size() - 1);
}

// --- messages, all but the short way

void ListBuilder::write_all_messages(const std::vector<std::vector<Action>>& lists, Way way) {
  if (way != Way::kByChannels && has_one_size()) {
    find_messages(lists);
  } else {
    find_messages(with_channels(*model_, lists));
    rank_messages();
  }
  find_slots();
  lay_out_messages();
  list_releases();
  list_receives();
  check_local_order();
  change_outputs();
  change_gradients();
}

ListBuilder::Samples ListBuilder::samples_of(const Message& message) const {
  const std::uint64_t p = message.producer_micro_batch, c = message.consumer_micro_batch;
  if (equal_counts_) return {p, p + 1, micro_batches(message.reader)};
  const std::uint64_t producers = micro_batches(model_->crossings[message.crossing].from);
  const std::uint64_t readers = micro_batches(message.reader);
  return {std::max(p * readers, c * producers), std::min((p + 1) * readers, (c + 1) * producers),
          producers * readers};
}

void ListBuilder::find_messages(const Schedule& schedule) {
  built_.clear();
  built_channels_.clear();
  for (std::uint32_t c = 0; c < schedule.channels.size(); ++c) {
    const Channel& channel = schedule.channels[c];
    built_channels_.push_back({channel.from, channel.to, narrow(channel.messages.size())});
    for (const Message& message : channel.messages) {
      built_.push_back({message, channel.from, channel.to, c, kNone, kNone, out_->always(), 0, 0});
      find_ends(built_.back());
    }
  }
}

// The last action that produces a message, and the first that consumes it.
void ListBuilder::find_ends(BuiltMessage& built) const {
  const Message& message = built.message;
  const Crossing& crossing = model_->crossings[message.crossing];
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
  std::vector<std::uint32_t>& begin = out_->sends_begin;
  begin.assign(out_->entries.size() + 2, 0);
  for (const BuiltMessage& built : built_) ++begin[built.producer + 2];
  begin_buckets(begin);
  by_rank_.resize(built_.size());
  for (std::uint32_t i = 0; i < built_.size(); ++i) by_rank_[begin[built_[i].producer + 1]++] = i;
  begin.pop_back();
  const auto sent_before = [&](std::uint32_t a, std::uint32_t b) {
    const BuiltMessage &x = built_[a], &y = built_[b];
    return std::tie(x.message, x.to) < std::tie(y.message, y.to);
  };
  for (std::size_t slot = 0; slot < out_->entries.size(); ++slot) {
    const auto first = by_rank_.begin() + begin[slot], last = by_rank_.begin() + begin[slot + 1];
    if (last - first > 1 && !std::is_sorted(first, last, sent_before)) std::sort(first, last, sent_before);
  }
  for (std::uint32_t rank = 0; rank < by_rank_.size(); ++rank) built_[by_rank_[rank]].rank = rank;
}

void ListBuilder::lay_out_messages() {
  out_->messages.clear();
  out_->sends.resize(built_.size());
  std::size_t at = 0;
  std::vector<std::uint32_t> keys;  // of the channel's hops: reader and direction
  for (const BuiltChannel& channel : built_channels_) {
    const std::uint32_t first_hop = narrow(out_->hops.size()), c = new_channel(channel.from, channel.to);
    out_->channels[c].first = narrow(out_->messages.size());
    out_->channels[c].count = channel.count;
    keys.clear();
    std::size_t last = 0;
    for (std::size_t i = 0; i < channel.count; ++i, ++at) {
      const BuiltMessage& built = built_[at];
      const std::uint32_t key = 2 * built.reader + (built.forward() ? 0 : 1);
      if (++last >= keys.size() || keys[last] != key) {  // not the one after the last
        last = static_cast<std::size_t>(std::find(keys.begin(), keys.end(), key) - keys.begin());
      }
      if (last == keys.size()) {
        keys.push_back(key);
        ListHop hop;
        hop.channel = c;
        hop.bytes = out_->layout.bytes(built.reader) + (built.forward() ? 0 : 1);
        hop.free = model_->crossings[built.message.crossing].token && model_->tokens == TokenRule::kFree;
        out_->hops.push_back(hop);
      }
      const std::uint32_t hop = first_hop + narrow(last);
      ++out_->hops[hop].count;
      ++out_->waits[built.consumer];
      out_->sends[built.rank] = {c, hop};
      out_->messages.push_back({built.producer, built.release, built.consumer, hop, built.rank});
    }
    out_->messages.push_back({out_->never(), out_->always(), 0, first_hop, 0});
  }
}

void ListBuilder::list_releases() {
  for (const BuiltMessage& built : built_) {
    if (built.release < out_->entries.size()) {
      releases_.push_back({built.release, out_->sends[built.rank].channel});
    }
  }
}

// Channels that may have something to send once a slot has ended, beside those that it sends on itself.
void ListBuilder::list_posts() {
  std::vector<std::uint32_t>& begin = out_->posts_begin;
  begin.assign(out_->entries.size() + 2, 0);
  std::uint32_t* const first = begin.data() + 1;
  for (const Release& release : releases_) ++first[release.slot + 1];
  begin_buckets(begin);
  out_->posts.resize(releases_.size());
  std::uint32_t* const posts = out_->posts.data();
  for (const Release& release : releases_) posts[first[release.slot]++] = release.channel;
  begin.pop_back();
}

void ListBuilder::list_receives() {
  if (!out_->endpoints) return;
  std::vector<std::uint32_t>& begin = out_->receives_begin;
  begin.assign(out_->entries.size() + 2, 0);
  for (const BuiltMessage& built : built_) ++begin[built.consumer + 2];
  begin_buckets(begin);
  order_.resize(built_.size());
  for (std::uint32_t i = 0; i < built_.size(); ++i) order_[begin[built_[i].consumer + 1]++] = i;
  begin.pop_back();
  for (std::size_t slot = 0; slot < out_->entries.size(); ++slot) {
    std::sort(order_.begin() + begin[slot], order_.begin() + begin[slot + 1],
              [&](std::uint32_t a, std::uint32_t b) {
                const BuiltMessage &x = built_[a], &y = built_[b];
                return std::tie(x.message, x.from) < std::tie(y.message, y.from);
              });
  }
  for (const std::uint32_t i : order_) out_->receives.push_back(built_[i].rank);
}

// What stays on a device needs no message; its order alone must be right.
void ListBuilder::check_local_order() {
  for (const Crossing& crossing : model_->crossings) {
    const std::size_t from = crossing.from.index();
    for (std::uint32_t j = 0; j < model_->stages[from].micro_batches; ++j) {
      const std::uint32_t first = seat_of_[owner_begin_[from] + j];
      for (std::uint32_t s = first; s < seats_.size() && seats_[s].replica == seats_[first].replica; ++s) {
        const std::uint32_t made = places_on(seats_[s].device, crossing.from, j);
        for_readers(seats_[s].device, crossing, {j, j + 1, micro_batches(crossing.from)},
                    [&](const Use& use) {
                      const bool forward = place(made, kForwardPlace) < place(use.places, kForwardPlace);
                      const bool backward = !flows_back(crossing, *use.reader) ||
                                            place(use.places, kBackwardPlace) < place(made, kBackwardPlace);
                      out_->possible = out_->possible && forward && backward;
                    });
      }
    }
  }
}

}  // namespace espalier::internal
