#include "testing/reference_simulator.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "espalier/base/check.h"

namespace espalier::testing {
namespace {

using Time = std::int64_t;

// A stage's micro-batch; a half of its work is an Action.
struct Work {
  std::size_t stage;
  std::uint32_t micro_batch;
};

struct InFlight {  // a message and what is known about it so far
  std::size_t channel;
  Message message;
  DeviceId from, to;
  Bytes bytes;
  std::set<std::uint32_t> samples;
  std::optional<Time> produced, posted, start, arrival;
  bool received = false;  // its receive endpoint has run
};

class Reference {
 public:
  Reference(const StagedModel& model, const Cluster& cluster, const Schedule& schedule,
            const ReferenceOptions& options)
      : model_(model), cluster_(cluster), schedule_(schedule), options_(options) {
    for (const StagedStage& stage : model.stages) batch_ = std::lcm(batch_, stage.micro_batches);
    for (std::size_t c = 0; c < schedule.channels.size(); ++c) {
      const Channel& channel = schedule.channels[c];
      for (const Message& message : channel.messages) {
        InFlight flight{c, message, channel.from, channel.to, {}, {}, {}, {}, {}, {}};
        const std::size_t producer = model.crossings[message.crossing].from.index();
        for (const std::uint32_t sample : samples({producer, message.producer_micro_batch})) {
          if (samples({message.reader.index(), message.consumer_micro_batch}).count(sample)) {
            flight.samples.insert(sample);
          }
        }
        const Crossing::Reader& reader =
            *std::find_if(model.crossings[message.crossing].readers.begin(),
                          model.crossings[message.crossing].readers.end(),
                          [&](const auto& r) { return r.stage == message.reader; });
        flight.bytes = is_forward(message) ? reader.bytes : reader.gradient;
        flights_.push_back(std::move(flight));
      }
    }
    for (std::size_t d = 0; d < schedule.devices.size(); ++d) {
      for (std::size_t i = 0; i < schedule.devices[d].size(); ++i) place_[{d, schedule.devices[d][i]}] = i;
    }
    lists_.resize(schedule.devices.size());
  }

  Trace run() {
    instants_.insert(0);
    while (!instants_.empty()) {
      const Time next = *instants_.begin();
      advance_sums(next - now_);
      now_ = next;
      instants_.erase(instants_.begin());
      do {
        while (step_all()) {
        }
      } while (serve_one() || begin_or_end_a_sum());
      for (const auto& [action, sum] : gatherings_) {
        if (is_under_way(sum) && !stands_still(action)) instants_.insert(now_ + sum.left);
      }
    }
    for (std::size_t d = 0; d < lists_.size(); ++d) {
      if (lists_[d].next != schedule_.devices[d].size() || !lists_[d].sums.empty()) {
        throw InternalError("reference simulation: device " + std::to_string(d) + " is stuck");
      }
    }
    return finish();
  }

 private:
  struct List {  // a device on its way through its actions
    std::size_t next = 0;
    Time free = 0;
    std::vector<std::size_t> to_send;  // flights whose send endpoint is to run now
    std::vector<Action> sums;          // that the list has come to and that are not over, in order
    bool in_sum = false;               // the first of them has begun to wait for the other members
    Time sum_free = 0;                 // when the one before them was over
  };
  struct Gathering {
    std::map<std::size_t, Time> arrived;  // device → when
    std::optional<Time> start;
    Time left = 0;  // to do, once it has begun
    bool over = false;
  };

  static bool is_forward(const Message& message) { return message.direction == Message::Direction::kForward; }
  static bool is_collective(const Action& action) {
    return action.kind == ActionKind::kAllReduce || action.kind == ActionKind::kTieSum;
  }
  bool is_free(const InFlight& flight) const {
    return model_.tokens == TokenRule::kFree && model_.crossings[flight.message.crossing].token;
  }

  std::set<std::uint32_t> samples(Work work) const {
    const std::uint32_t size = batch_ / model_.stages[work.stage].micro_batches;
    std::set<std::uint32_t> result;
    for (std::uint32_t i = 0; i < size; ++i) result.insert(work.micro_batch * size + i);
    return result;
  }
  std::uint32_t micro_batch_of(std::size_t stage, std::uint32_t sample) const {
    return sample / (batch_ / model_.stages[stage].micro_batches);
  }
  // Who computes this sample in this stage.
  const std::vector<DeviceId>& owners(std::size_t stage, std::uint32_t sample) const {
    const std::uint32_t wanted = micro_batch_of(stage, sample);
    for (const StagedReplica& replica : model_.stages[stage].replicas) {
      for (const std::uint32_t micro_batch : replica.micro_batches) {
        if (micro_batch == wanted) return replica.devices;
      }
    }
    throw InternalError("nobody owns the sample");
  }
  static bool has(const std::vector<DeviceId>& devices, std::size_t device) {
    return std::find(devices.begin(), devices.end(), DeviceId(device)) != devices.end();
  }
  bool sends_back(const Crossing& crossing, const Crossing::Reader& reader) const {
    return crossing.returns && (crossing.token || reader.gradient > Bytes());
  }

  // When an action of one of these kinds for this sample ended on a device; nothing if it has not by now.
  std::optional<Time> ended(std::size_t device, std::initializer_list<ActionKind> kinds, std::size_t stage,
                            std::uint32_t sample) const {
    for (const ActionKind kind : kinds) {
      const auto at = times_.find({device, {kind, StageId(stage), micro_batch_of(stage, sample)}});
      if (at != times_.end() && at->second.second <= now_) return at->second.second;
    }
    return std::nullopt;
  }

  // --- one instant

  bool step_all() {
    bool moved = false;
    for (std::size_t d = 0; d < lists_.size(); ++d) moved = step_device(d) || moved;
    for (std::size_t c = 0; c < schedule_.channels.size(); ++c) moved = step_channel(c) || moved;
    return moved;
  }

  bool step_device(std::size_t d) {
    List& list = lists_[d];
    if (!list.sums.empty() && !list.in_sum && list.sum_free <= now_) {
      gatherings_[list.sums.front()].arrived[d] = now_;
      list.in_sum = true;
      return true;
    }
    if (list.free > now_) return false;
    if (!list.to_send.empty()) {
      InFlight& flight = flights_[list.to_send.front()];
      list.to_send.erase(list.to_send.begin());
      const Duration cost = cluster_.route(flight.from, flight.to).send.of(flight.bytes);
      occupy(d, cost);
      flight.produced = list.free;
      span(SpanKind::kSendEndpoint, d, Stream::kCompute, last_action_[d], now_, list.free, &flight,
           flight.to);
      return true;
    }
    if (list.next == schedule_.devices[d].size()) return false;
    const Action& action = schedule_.devices[d][list.next];
    if (is_collective(action)) {
      list.sums.push_back(action);
      ++list.next;
      return true;
    }
    if (InFlight* flight = to_receive(d, action)) {
      if (!flight->arrival || *flight->arrival > now_) return false;
      occupy(d, cluster_.route(flight->from, flight->to).receive.of(flight->bytes));
      flight->received = true;
      span(SpanKind::kReceiveEndpoint, d, Stream::kCompute, action, now_, list.free, flight, flight->from);
      return true;
    }
    const std::vector<std::size_t> together = members(d, action);
    for (const std::size_t member : together) {
      if (!is_ready(member, action)) return false;
    }
    for (const std::size_t member : together) {
      occupy(member, time_of(member, action));
      times_[{member, action}] = {now_, lists_[member].free};
      last_action_[member] = action;
      span(SpanKind::kAction, member, Stream::kCompute, action, now_, lists_[member].free, nullptr, {});
      ++lists_[member].next;
      produce(member, lists_[member].free);
    }
    return true;
  }

  // The message whose receive endpoint an action waits for next; null if none is left.
  InFlight* to_receive(std::size_t d, const Action& action) {
    for (InFlight* flight : consumed_by(d, action)) {
      const Duration cost = cluster_.route(flight->from, flight->to).receive.of(flight->bytes);
      if (!flight->received && cost != Duration() && !is_free(*flight)) return flight;
    }
    return nullptr;
  }

  // The devices that run an action together: those of a tensor-parallel group. An update each runs alone.
  std::vector<std::size_t> members(std::size_t d, const Action& action) const {
    std::vector<std::size_t> together;
    if (action.kind == ActionKind::kUpdate) return {d};
    for (const StagedReplica& replica : model_.stages[action.stage().index()].replicas) {
      if (!has(replica.devices, d)) continue;
      for (const DeviceId device : replica.devices) together.push_back(device.index());
    }
    return together;
  }

  bool is_ready(std::size_t d, const Action& action) {
    const List& list = lists_[d];
    return list.free <= now_ && list.to_send.empty() && list.next < schedule_.devices[d].size() &&
           schedule_.devices[d][list.next] == action && to_receive(d, action) == nullptr &&
           inputs_are_here(d, action) && sums_are_over(d, action);
  }

  // An update reads what the sums of its stage give that stand before it.
  bool sums_are_over(std::size_t d, const Action& update) const {
    if (update.kind != ActionKind::kUpdate) return true;
    const std::vector<Action>& list = schedule_.devices[d];
    for (std::size_t i = 0; i < lists_[d].next; ++i) {
      if (!is_collective(list[i])) continue;
      const bool tie = list[i].kind == ActionKind::kTieSum;
      const std::vector<StageId> stages =
          tie ? model_.ties[list[i].tie().index()].stages : std::vector<StageId>{list[i].stage()};
      if (std::find(stages.begin(), stages.end(), update.stage()) == stages.end()) continue;
      const std::optional<Time> end = end_of(d, list[i]);
      if (!end || *end > now_) return false;
    }
    return true;
  }

  void occupy(std::size_t d, Duration time) {
    lists_[d].free = now_ + time.count();
    instants_.insert(lists_[d].free);
  }

  Duration time_of(std::size_t d, const Action& action) const {
    for (const StagedReplica& replica : model_.stages[action.stage().index()].replicas) {
      if (!has(replica.devices, d)) continue;
      if (action.kind == ActionKind::kForward) return replica.times.forward;
      if (action.kind == ActionKind::kRecompute) return replica.times.recompute;
      if (action.kind == ActionKind::kUpdate) return replica.times.update;
      const Duration overhead = replica.times.overhead;
      if (action.kind == ActionKind::kInputGradient) return overhead + replica.times.input_gradient;
      if (action.kind == ActionKind::kWeightGradient) return overhead + replica.times.weight_gradient;
      return overhead + replica.times.input_gradient + replica.times.weight_gradient;
    }
    throw InternalError("an action on a device without its stage");
  }

  // The messages whose samples this action is the first to use, in the order of their receive endpoints.
  std::vector<InFlight*> consumed_by(std::size_t d, const Action& action) {
    std::vector<InFlight*> result;
    const bool forward = action.kind == ActionKind::kForward;
    if (!forward && action.kind != ActionKind::kBackward && action.kind != ActionKind::kInputGradient)
      return {};
    const std::set<std::uint32_t> used = samples({action.stage().index(), action.micro_batch});
    for (InFlight& flight : flights_) {
      const Crossing& crossing = model_.crossings[flight.message.crossing];
      if (flight.to.index() != d || is_forward(flight.message) != forward) continue;
      const bool reads = std::any_of(crossing.readers.begin(), crossing.readers.end(),
                                     [&](const auto& reader) { return reader.stage == action.stage(); });
      if (forward ? !reads : crossing.from != action.stage()) continue;
      if (std::any_of(flight.samples.begin(), flight.samples.end(),
                      [&](auto s) { return used.count(s) > 0; })) {
        result.push_back(&flight);
      }
    }
    std::sort(result.begin(), result.end(), [](const InFlight* a, const InFlight* b) {
      return std::tie(a->message, a->from) < std::tie(b->message, b->from);
    });
    return result;
  }

  // Has everything that carries this sample from one of these arrived? (With unequal micro-batches two
  // messages may.)
  bool arrived(const std::vector<DeviceId>& from, std::size_t to, Message::Direction direction,
               std::size_t crossing, std::uint32_t sample) const {
    bool any = false;
    for (const InFlight& flight : flights_) {
      if (!has(from, flight.from.index())) continue;
      if (flight.to.index() != to || flight.message.direction != direction) continue;
      if (flight.message.crossing != crossing || !flight.samples.count(sample)) continue;
      if (!flight.arrival || *flight.arrival > now_) return false;
      any = true;
    }
    return any;
  }

  // Only compute waits for tensors: is every sample of every tensor that the action reads on the device?
  bool inputs_are_here(std::size_t d, const Action& action) const {
    const std::size_t stage = action.stage().index();
    const bool forward = action.kind == ActionKind::kForward;
    if (!forward && action.kind != ActionKind::kBackward && action.kind != ActionKind::kInputGradient)
      return true;
    for (const std::uint32_t sample : samples({stage, action.micro_batch})) {
      const std::vector<DeviceId>& here = owners(stage, sample);
      const std::size_t rank = std::find(here.begin(), here.end(), DeviceId(d)) - here.begin();
      for (std::size_t c = 0; c < model_.crossings.size(); ++c) {
        const Crossing& crossing = model_.crossings[c];
        for (const Crossing::Reader& reader : crossing.readers) {
          if (forward && reader.stage.index() == stage) {
            const std::vector<DeviceId>& there = owners(crossing.from.index(), sample);
            if (has(there, d) ? !ended(d, {ActionKind::kForward}, crossing.from.index(), sample)
                              // whoever of the group sends it: one message serves all readers on the device
                              : !arrived(there, d, Message::Direction::kForward, c, sample)) {
              return false;
            }
          }
          if (!forward && crossing.from.index() == stage && sends_back(crossing, reader)) {
            const std::vector<DeviceId>& there = owners(reader.stage.index(), sample);
            if (has(there, d)
                    ? !ended(d, {ActionKind::kBackward, ActionKind::kInputGradient}, reader.stage.index(),
                             sample)
                    : !arrived({there[rank % there.size()]}, d, Message::Direction::kBackward, c, sample)) {
              return false;
            }
          }
        }
      }
    }
    return true;
  }

  // The actions on the sending device that a message is made of.
  std::vector<Action> producers(const InFlight& flight) const {
    const Crossing& crossing = model_.crossings[flight.message.crossing];
    if (is_forward(flight.message)) {
      return {{ActionKind::kForward, crossing.from, flight.message.producer_micro_batch}};
    }
    std::set<Action> result;
    for (const Crossing::Reader& reader : crossing.readers) {
      if (!sends_back(crossing, reader)) continue;
      for (const std::uint32_t sample : flight.samples) {
        if (!has(owners(reader.stage.index(), sample), flight.from.index())) continue;
        for (const ActionKind kind : {ActionKind::kBackward, ActionKind::kInputGradient}) {
          const Action action{kind, reader.stage, micro_batch_of(reader.stage.index(), sample)};
          if (place_.count({flight.from.index(), action})) result.insert(action);
        }
      }
    }
    return {result.begin(), result.end()};
  }

  // Messages that the action just started on `d` completes: free to go at `end`, or after an endpoint.
  void produce(std::size_t d, Time end) {
    std::vector<std::size_t> made;
    for (std::size_t i = 0; i < flights_.size(); ++i) {
      const InFlight& flight = flights_[i];
      if (flight.from.index() != d || made_.count(i)) continue;
      const std::vector<Action> actions = producers(flight);
      if (std::all_of(actions.begin(), actions.end(), [&](const Action& a) {
            return times_.count({d, a});
          })) {
        made.push_back(i);
      }
    }
    std::sort(made.begin(), made.end(), [&](std::size_t a, std::size_t b) {
      return std::tie(flights_[a].message, flights_[a].to) < std::tie(flights_[b].message, flights_[b].to);
    });
    for (const std::size_t i : made) {
      made_.insert(i);
      made_at_[i] = lists_[d].next - 1;
      InFlight& flight = flights_[i];
      if (is_free(flight) || cluster_.route(flight.from, flight.to).send.of(flight.bytes) == Duration()) {
        flight.produced = end;
      } else {
        lists_[d].to_send.push_back(i);
      }
    }
  }

  // --- messages

  bool receive_is_posted(const InFlight& flight) const {
    const Crossing& crossing = model_.crossings[flight.message.crossing];
    const std::size_t d = flight.to.index();
    if (!is_forward(flight.message)) {
      return ended(d, {ActionKind::kForward}, crossing.from.index(), *flight.samples.begin()).has_value();
    }
    const std::vector<std::uint32_t> line = line_of(flight);
    const std::size_t at =
        std::find(line.begin(), line.end(), flight.message.consumer_micro_batch) - line.begin();
    const std::size_t slots = slots_of(flight.message.reader);
    if (at < slots) return true;
    const std::optional<Time> release = release_of(flight, line[at - slots]);
    return release && *release <= now_;
  }

  std::size_t slots_of(StageId reader) const {
    const StagedStage& stage = model_.stages[reader.index()];
    return stage.slots ? *stage.slots : stage.in_flight + options_.slots_beyond_limit;
  }

  // The reader's micro-batches that get a message of this edge, ascending.
  std::vector<std::uint32_t> line_of(const InFlight& flight) const {
    std::set<std::uint32_t> line;
    for (const InFlight& other : flights_) {
      if (same_edge(flight, other)) line.insert(other.message.consumer_micro_batch);
    }
    return {line.begin(), line.end()};
  }
  static bool same_edge(const InFlight& a, const InFlight& b) {
    return is_forward(a.message) && is_forward(b.message) && a.message.crossing == b.message.crossing &&
           a.message.reader == b.message.reader && a.to == b.to;
  }

  // When the slot of the edge's `micro_batch` is given back, once everything that uses it has been timed.
  std::optional<Time> release_of(const InFlight& edge, std::uint32_t micro_batch) const {
    const Crossing& crossing = model_.crossings[edge.message.crossing];
    Time latest = 0;
    for (const InFlight& flight : flights_) {
      if (!same_edge(edge, flight) || flight.message.consumer_micro_batch != micro_batch) continue;
      for (const std::uint32_t sample : flight.samples) {
        for (const Crossing::Reader& reader : crossing.readers) {
          if (!has(owners(reader.stage.index(), sample), edge.to.index())) continue;
          const std::optional<Time> use = last_use(edge.to.index(), reader, sample);
          if (!use) return std::nullopt;
          latest = std::max(latest, *use);
        }
      }
    }
    return latest;
  }

  std::optional<Time> last_use(std::size_t d, const Crossing::Reader& reader, std::uint32_t sample) const {
    const std::uint32_t k = micro_batch_of(reader.stage.index(), sample);
    if (!reader.saved) return end_of(d, {ActionKind::kForward, reader.stage, k});
    return reader.for_input_only ? end_of_input_half(d, reader.stage, k)
                                 : end_of_backward(d, reader.stage, k);
  }
  std::optional<Time> end_of(std::size_t d, const Action& action) const {
    const auto at = times_.find({d, action});
    return at == times_.end() ? std::nullopt : std::optional(at->second.second);
  }
  std::optional<Time> end_of_backward(std::size_t d, StageId stage, std::uint32_t k) const {
    const bool split = place_.count({d, {ActionKind::kWeightGradient, stage, k}}) > 0;
    return end_of(d, {split ? ActionKind::kWeightGradient : ActionKind::kBackward, stage, k});
  }

  std::optional<Time> end_of_input_half(std::size_t d, StageId stage, std::uint32_t k) const {
    const bool split = place_.count({d, {ActionKind::kInputGradient, stage, k}}) > 0;
    return end_of(d, {split ? ActionKind::kInputGradient : ActionKind::kBackward, stage, k});
  }

  bool step_channel(std::size_t c) {
    for (std::size_t i = 0; i < flights_.size(); ++i) {
      InFlight& flight = flights_[i];
      if (flight.channel != c || flight.posted) continue;
      if (!flight.produced || *flight.produced > now_ || wire_free_[c] > now_ || !receive_is_posted(flight)) {
        return false;
      }
      flight.posted = now_;
      if (is_free(flight)) {
        flight.start = flight.arrival = now_;
      } else if (cluster_.route(flight.from, flight.to).links.empty()) {
        send(flight, now_);
      } else {
        wire_free_[c] = Duration::max().count();  // known once it is served
        waiting_.insert(i);
      }
      return true;
    }
    return false;
  }

  void send(InFlight& flight, Time start) {
    const Route route = cluster_.route(flight.from, flight.to);
    flight.start = start;
    wire_free_[flight.channel] = start + route.hold(flight.bytes).count();
    flight.arrival = wire_free_[flight.channel] + route.latency.count();
    instants_.insert(start);
    instants_.insert(wire_free_[flight.channel]);
    instants_.insert(*flight.arrival);
  }

  // Serves the message that waits longest for links; of equals, by (source, place of the action, message,
  // destination).
  bool serve_one() {
    std::optional<std::size_t> first;
    const auto key = [&](std::size_t i) {
      const InFlight& flight = flights_[i];
      return std::tuple(*flight.posted, flight.from, made_at_.at(i), flight.message, flight.to);
    };
    for (const std::size_t i : waiting_) {
      if (!first || key(i) < key(*first)) first = i;
    }
    if (!first) return false;
    InFlight& flight = flights_[*first];
    const Route route = cluster_.route(flight.from, flight.to);
    send(flight, hold(route.links, *flight.posted, route.hold(flight.bytes)));
    waiting_.erase(*first);
    return true;
  }

  static Time posted(const Gathering& gathering) {
    Time latest = 0;
    for (const auto& [device, time] : gathering.arrived) latest = std::max(latest, time);
    return latest;
  }

  // --- sums: they hold links against one another, and stand still while a message holds one of theirs

  static bool is_under_way(const Gathering& sum) { return sum.start && !sum.over; }
  std::vector<LinkIndex> links_of(const Action& action) const {
    return collective_of(model_, cluster_, action).links;
  }
  static bool share(const std::vector<LinkIndex>& a, const std::vector<LinkIndex>& b) {
    return std::any_of(a.begin(), a.end(),
                       [&](LinkIndex link) { return std::find(b.begin(), b.end(), link) != b.end(); });
  }

  bool stands_still(const Action& action) const {
    for (const InFlight& flight : flights_) {
      if (!flight.start || *flight.start > now_ || is_free(flight)) continue;
      const Route route = cluster_.route(flight.from, flight.to);
      if (*flight.start + route.hold(flight.bytes).count() <= now_) continue;
      if (share(route.links, links_of(action))) return true;
    }
    return false;
  }

  // All messages come and go at instants, so one that holds a link now holds it until the next.
  void advance_sums(Time by) {
    for (auto& [action, sum] : gatherings_) {
      if (is_under_way(sum) && !stands_still(action)) sum.left -= by;
    }
  }

  // The first by (posted, lowest member, place) of those whose links no other holds or has wanted for longer.
  bool begin_or_end_a_sum() {
    std::map<std::tuple<Time, std::size_t, std::size_t>, Action> gathered;
    std::vector<LinkIndex> taken;
    for (auto& [action, sum] : gatherings_) {
      const std::vector<LinkIndex> links = links_of(action);
      if (is_under_way(sum)) {
        if (sum.left == 0) {
          end(action, sum);
          return true;
        }
        taken.insert(taken.end(), links.begin(), links.end());
      } else if (!sum.start && sum.arrived.size() == collective_of(model_, cluster_, action).members.size()) {
        const std::size_t lowest = sum.arrived.begin()->first;
        gathered.emplace(std::tuple(posted(sum), lowest, place_.at({lowest, action})), action);
      }
    }
    for (const auto& [order, action] : gathered) {
      const std::vector<LinkIndex> links = links_of(action);
      if (!share(links, taken)) {
        Gathering& sum = gatherings_[action];
        sum.start = now_;
        sum.left = collective_of(model_, cluster_, action).hold.count();
        return true;
      }
      taken.insert(taken.end(), links.begin(), links.end());
    }
    return false;
  }

  void end(const Action& action, Gathering& sum) {
    sum.over = true;
    const Collective cost = collective_of(model_, cluster_, action);
    const Time end = now_ + cost.latency.count();
    for (const auto& [d, time] : sum.arrived) {
      Span& collective =
          span(SpanKind::kCollective, d, Stream::kCollective, action, *sum.start, end, nullptr, {});
      collective.posted = Duration(posted(sum));
      collective.bytes = cost.bytes;
      times_[{d, action}] = {*sum.start, end};
      List& list = lists_[d];
      list.sums.erase(list.sums.begin());
      list.in_sum = false;
      list.sum_free = end;
    }
    instants_.insert(end);
  }

  Time hold(const std::vector<LinkIndex>& links, Time ready, Duration time) {
    Time start = ready;
    for (const LinkIndex link : links) start = std::max(start, link_free_[link]);
    for (const LinkIndex link : links) link_free_[link] = start + time.count();
    return start;
  }

  // --- the result

  Span& span(SpanKind kind, std::size_t d, Stream stream, const Action& action, Time start, Time end,
             const InFlight* flight, std::optional<DeviceId> peer) {
    Span result;
    result.device = DeviceId(d);
    result.stream = stream;
    result.kind = kind;
    result.action = action;
    result.start = Duration(start);
    result.end = Duration(end);
    result.peer = peer;
    if (flight) {
      result.message = flight->message;
      result.bytes = flight->bytes;
    }
    trace_.spans.push_back(result);
    return trace_.spans.back();
  }

  Trace finish() {
    for (std::size_t i = 0; i < flights_.size(); ++i) {
      const InFlight& flight = flights_[i];
      Span& transfer = span(SpanKind::kTransfer, flight.from.index(), Stream::kSend,
                            schedule_.devices[flight.from.index()][made_at_.at(i)], *flight.start,
                            *flight.arrival, &flight, flight.to);
      transfer.posted = Duration(*flight.posted);
    }
    std::stable_sort(trace_.spans.begin(), trace_.spans.end(), [](const Span& a, const Span& b) {
      return std::tie(a.device, a.stream, a.start, a.end) < std::tie(b.device, b.stream, b.start, b.end);
    });
    for (const Span& each : trace_.spans) trace_.iteration = std::max(trace_.iteration, each.end);
    for (const Device& device : cluster_.devices()) {
      trace_.devices.push_back(device.name);
      trace_.capacity.push_back(device.memory);
    }
    for (const StagedStage& stage : model_.stages) trace_.stages.push_back(stage.name);
    for (const Crossing& crossing : model_.crossings) trace_.tensors.push_back(crossing.tensor);
    for (std::size_t d = 0; d < lists_.size(); ++d) sample_memory(d);
    return std::move(trace_);
  }

  // --- memory: a list of intervals per device, summed anew at each instant

  struct Held {
    MemoryCategory category;
    Bytes bytes;
    Time from, until;
  };
  static constexpr Time kForever = Duration::max().count();

  void sample_memory(std::size_t d) {
    std::vector<Held> held;
    hold_stages(d, held);
    hold_work(d, held);
    hold_messages(d, held);
    std::set<Time> instants{0};
    for (const Held& one : held) {
      instants.insert(one.from);
      if (one.until != kForever) instants.insert(one.until);
    }
    for (const Time instant : instants) {
      MemorySample sample{DeviceId(d), Duration(instant), {}};
      for (const Held& one : held) {
        if (one.from <= instant && instant < one.until) {
          sample.held.bytes[static_cast<std::size_t>(one.category)] += one.bytes;
        }
      }
      const bool same = instant > 0 && trace_.memory.back().held == sample.held;
      if (!same) trace_.memory.push_back(sample);
    }
  }

  void hold_stages(std::size_t d, std::vector<Held>& held) const {
    for (const StagedStage& stage : model_.stages) {
      for (const StagedReplica& replica : stage.replicas) {
        if (!has(replica.devices, d)) continue;
        held.push_back({MemoryCategory::kParameters, stage.memory.parameters, 0, kForever});
        held.push_back({MemoryCategory::kGradients, stage.memory.gradients, 0, kForever});
        held.push_back({MemoryCategory::kOptimizer, stage.memory.optimizer_state, 0, kForever});
        held.push_back({MemoryCategory::kBuffers, stage.memory.buffers, 0, kForever});
      }
    }
  }

  void hold_work(std::size_t d, std::vector<Held>& held) const {
    const MemoryCategory kind = MemoryCategory::kActivations;
    for (const Action& action : schedule_.devices[d]) {
      if (is_collective(action)) {
        hold_collective(d, action, held);
        continue;
      }
      const StageMemory& memory = model_.stages[action.stage().index()].memory;
      if (action.kind == ActionKind::kUpdate) {
        const auto [start, end] = times_.at({d, action});
        held.push_back({kind, memory.update_workspace, start, end});
        continue;
      }
      const auto [start, end] = times_.at({d, action});
      const Time over = *end_of_backward(d, action.stage(), action.micro_batch);
      const Time half = *end_of_input_half(d, action.stage(), action.micro_batch);
      const bool forward = action.kind == ActionKind::kForward || action.kind == ActionKind::kRecompute;
      held.push_back({kind, forward ? memory.forward_workspace : memory.backward_workspace, start, end});
      if (action.kind == ActionKind::kForward) {
        held.push_back({kind, memory.saved_for_input, start, half});
        held.push_back({kind, memory.saved - memory.saved_for_input, start, over});
        for (std::size_t c = 0; c < model_.crossings.size(); ++c) {
          if (model_.crossings[c].from == action.stage()) {
            held.push_back(
                {kind, model_.crossings[c].output, start,
                 output_ends(d, c, action, end, model_.crossings[c].for_input_only ? half : over)});
          }
        }
      }
      if (action.kind == ActionKind::kRecompute) {
        held.push_back({kind, memory.recomputed_for_input, start, half});
        held.push_back({kind, memory.recomputed - memory.recomputed_for_input, start, over});
      }
      if (action.kind == ActionKind::kInputGradient) held.push_back({kind, memory.between_halves, end, over});
    }
  }

  // Its own buffers: from when the device had done what stands before it, and the sums before it.
  void hold_collective(std::size_t d, const Action& action, std::vector<Held>& held) const {
    const Time before = gatherings_.at(action).arrived.at(d);
    const Time end = times_.at({d, action}).second;
    if (action.kind == ActionKind::kTieSum) {
      const Tie& tie = model_.ties[action.tie().index()];
      const bool root = model_.stages[tie.stages[0].index()].replicas[0].devices[0] == DeviceId(d);
      held.push_back({MemoryCategory::kBuffers, (root ? 3 : 1) * tie.bytes, before, end});
      return;
    }
    const StagedStage& stage = model_.stages[action.stage().index()];
    const std::int64_t n = static_cast<std::int64_t>(stage.replicas.size()), all = stage.reduced.count();
    const std::int64_t chunk = all / n + (all % n != 0 ? 1 : 0);
    held.push_back({MemoryCategory::kBuffers, Bytes(all + 2 * chunk), before, end});
  }

  Time output_ends(std::size_t d, std::size_t c, const Action& forward, Time end, Time over) const {
    const Crossing& crossing = model_.crossings[c];
    Time latest = crossing.saved_by_producer ? std::max(end, over) : end;
    for (const InFlight& flight : flights_) {
      if (is_forward(flight.message) && flight.message.crossing == c && flight.from.index() == d &&
          flight.message.producer_micro_batch == forward.micro_batch) {
        latest = std::max(latest, *flight.arrival);
      }
    }
    for (const std::uint32_t sample : samples({forward.stage().index(), forward.micro_batch})) {
      for (const Crossing::Reader& reader : crossing.readers) {
        if (has(owners(reader.stage.index(), sample), d)) {
          latest = std::max(latest, *last_use(d, reader, sample));
        }
      }
    }
    return latest;
  }

  void hold_messages(std::size_t d, std::vector<Held>& held) const {
    for (const InFlight& flight : flights_) {
      const Crossing& crossing = model_.crossings[flight.message.crossing];
      if (is_forward(flight.message)) {
        if (flight.to.index() != d) continue;
        const std::vector<std::uint32_t> line = line_of(flight);
        const std::size_t at =
            std::find(line.begin(), line.end(), flight.message.consumer_micro_batch) - line.begin();
        const std::size_t slots = slots_of(flight.message.reader);
        held.push_back({MemoryCategory::kBuffers, flight.bytes,
                        at < slots ? 0 : *release_of(flight, line[at - slots]),
                        *release_of(flight, line[at])});
        continue;
      }
      const std::uint32_t sample = *flight.samples.begin();
      if (flight.to.index() == d) {
        const std::uint32_t p = flight.message.producer_micro_batch;
        const auto whole = end_of(d, {ActionKind::kBackward, crossing.from, p});
        held.push_back(
            {MemoryCategory::kBuffers, flight.bytes,
             *end_of(d, {ActionKind::kForward, crossing.from, micro_batch_of(crossing.from.index(), sample)}),
             whole ? *whole : *end_of(d, {ActionKind::kInputGradient, crossing.from, p})});
      }
      if (flight.from.index() == d) {
        Time first = kForever;
        for (const Action& action : producers(flight)) first = std::min(first, times_.at({d, action}).first);
        held.push_back({MemoryCategory::kActivations, flight.bytes, first, *flight.arrival});
      }
    }
  }

  const StagedModel& model_;
  const Cluster& cluster_;
  const Schedule& schedule_;
  const ReferenceOptions options_;
  std::uint32_t batch_ = 1;  // samples, as few as tell all micro-batches apart
  Time now_ = 0;
  std::set<Time> instants_;
  std::vector<List> lists_;
  std::vector<InFlight> flights_;
  std::set<std::size_t> waiting_;               // flights posted but not served
  std::set<std::size_t> made_;                  // flights whose producers have all started
  std::map<std::size_t, std::size_t> made_at_;  // place of the last of those
  std::map<std::size_t, Time> wire_free_;       // by channel
  std::map<LinkIndex, Time> link_free_;
  std::map<Action, Gathering> gatherings_;  // A and T
  std::map<std::size_t, Action> last_action_;
  std::map<std::pair<std::size_t, Action>, std::size_t> place_;
  std::map<std::pair<std::size_t, Action>, std::pair<Time, Time>> times_;
  Trace trace_;
};

}  // namespace

Trace reference_simulate(const StagedModel& model, const Cluster& cluster, const Schedule& schedule,
                         const ReferenceOptions& options) {
  return Reference(model, cluster, schedule, options).run();
}

}  // namespace espalier::testing
