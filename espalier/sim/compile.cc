// From a Schedule to a TaskGraph (the rules: simulate.h for time, trace.h for memory).
//
// Each device's list becomes one in-order lane with its endpoints in place, each channel another. What is
// left as edges: message to consumer, producer to message, slots, collectives, and joins: a storage that is
// held until the latest of several ends gets one empty task that waits for all of them.
//
// Lookup: a table per (device, stage) gives the place of F, R, B or I, and W of a micro-batch in the device's
// list. Micro-batches of two stages share samples if their ranges overlap; with m_p and m_c micro-batches a
// step, [p / m_p, (p + 1) / m_p) and [c / m_c, (c + 1) / m_c), compared in integers.

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "espalier/base/check.h"
#include "espalier/sim/simulate.h"

namespace espalier {
namespace {

using When = TaskGraph::MemoryDelta::When;
using Source = CompiledSchedule::Source;
using Sent = CompiledSchedule::Sent;

constexpr std::uint32_t kAbsent = 0xffffffff;  // in the tables below only

std::uint32_t account(std::size_t device, MemoryCategory category) {
  return static_cast<std::uint32_t>(device * kMemoryCategories + static_cast<std::size_t>(category));
}

// Where a stage's actions stand in one device's list, by micro-batch.
struct Places {
  StageId stage;
  std::vector<std::uint32_t> forward, recompute, backward, weights;  // backward: B or I

  std::uint32_t last_backward(std::uint32_t micro_batch) const {  // W, or B where it is not split
    return weights[micro_batch] != kAbsent ? weights[micro_batch] : backward[micro_batch];
  }
  // What is saved is needed until here.
  std::uint32_t last_need(std::uint32_t micro_batch, bool for_input_only) const {
    return for_input_only ? backward[micro_batch] : last_backward(micro_batch);
  }
};

struct SampleRange {  // [begin, end) / unit of the batch
  std::uint64_t begin, end, unit;
  bool overlaps(std::uint64_t micro_batch, std::uint64_t micro_batches) const {
    return micro_batch * unit < end * micro_batches && (micro_batch + 1) * unit > begin * micro_batches;
  }
};

class Compiler {
 public:
  Compiler(const StagedModel& model, const Cluster& cluster, const Schedule& schedule)
      : model_(model), cluster_(cluster), schedule_(schedule), devices_(cluster.devices().size()) {
    ESP_CHECK(schedule.devices.size() == devices_, schedule.devices.size(), devices_);
  }

  CompiledSchedule run() {
    find_places();
    find_messages();
    TaskGraph& graph = out_.tasks;
    graph.initial.assign(devices_ * kMemoryCategories, Bytes());
    graph.link_begin.push_back(0);
    graph.order_begin.push_back(0);
    graph.link_count = static_cast<std::uint32_t>(cluster_.link_count());
    for (std::size_t device = 0; device < devices_; ++device) add_device(device);
    add_channels();
    add_collectives();
    add_meetings();
    connect_messages();
    hold_slots();
    for (std::size_t device = 0; device < devices_; ++device) {
      hold_stages(device);
      hold_actions(device);
    }
    hold_outputs();
    hold_gradients();
    pack_edges();
    return std::move(out_);
  }

 private:
  // --- what stands where

  void find_places() {
    places_.resize(devices_);
    place_of_.assign(devices_, std::vector<std::uint32_t>(model_.stages.size(), kAbsent));
    for (std::size_t device = 0; device < devices_; ++device) {
      const auto& actions = schedule_.devices[device];
      for (std::uint32_t position = 0; position < actions.size(); ++position) {
        const Action& action = actions[position];
        if (action.kind >= ActionKind::kAllReduce) continue;
        Places& places = places_of(device, action.stage());
        (action.kind == ActionKind::kForward          ? places.forward
         : action.kind == ActionKind::kRecompute      ? places.recompute
         : action.kind == ActionKind::kWeightGradient ? places.weights
                                                      : places.backward)[action.micro_batch] = position;
      }
    }
  }

  Places& places_of(std::size_t device, StageId stage) {
    std::uint32_t& place = place_of_[device][stage.index()];
    if (place != kAbsent) return places_[device][place];
    place = static_cast<std::uint32_t>(places_[device].size());
    const std::vector<std::uint32_t> none(model_.stages[stage.index()].micro_batches, kAbsent);
    return places_[device].emplace_back(Places{stage, none, none, none, none});
  }

  // Null where the stage does nothing there.
  const Places* find_place(std::size_t device, StageId stage) const {
    const std::uint32_t place = place_of_[device][stage.index()];
    return place == kAbsent ? nullptr : &places_[device][place];
  }

  SampleRange samples(const Message& message) const {
    const std::uint64_t producers =
        model_.stages[model_.crossings[message.crossing].from.index()].micro_batches;
    const std::uint64_t readers = model_.stages[message.reader.index()].micro_batches;
    const std::uint64_t p = message.producer_micro_batch, c = message.consumer_micro_batch;
    return {std::max(p * readers, c * producers), std::min((p + 1) * readers, (c + 1) * producers),
            producers * readers};
  }

  // Calls visit(places, reader, micro_batch) for the stages on a device that read these samples of a
  // crossing.
  template <class Visit>
  void for_readers(std::size_t device, const Crossing& crossing, SampleRange range, Visit visit) {
    for (const Crossing::Reader& reader : crossing.readers) {
      const Places* places = find_place(device, reader.stage);
      if (!places) continue;
      const std::uint32_t count = model_.stages[reader.stage.index()].micro_batches;
      for (std::uint64_t k = range.begin * count / range.unit;
           k < count && k * range.unit < range.end * count; ++k) {
        if (places->forward[k] != kAbsent && range.overlaps(k, count))
          visit(*places, reader, static_cast<std::uint32_t>(k));
      }
    }
  }

  void find_messages() {
    for (const Channel& channel : schedule_.channels) {
      for (const Message& message : channel.messages) {
        const Crossing& crossing = model_.crossings[message.crossing];
        Sent sent{message, channel.from, channel.to, kAbsent, kAbsent, Bytes()};
        const bool forward = message.direction == Message::Direction::kForward;
        const std::size_t producer_device = (forward ? channel.from : channel.to).index();
        const Places& producer = places_of(producer_device, crossing.from);
        const std::uint32_t p = message.producer_micro_batch;
        (forward ? sent.from_position : sent.to_position) =
            forward ? producer.forward[p] : producer.backward[p];
        for_readers((forward ? channel.to : channel.from).index(), crossing, samples(message),
                    [&](const Places& places, const Crossing::Reader& local, std::uint32_t k) {
                      if (forward) {
                        sent.to_position = std::min(sent.to_position, places.forward[k]);
                      } else if (flows_back(crossing, local) &&
                                 (sent.from_position == kAbsent || sent.from_position < places.backward[k])) {
                        sent.from_position = places.backward[k];
                      }
                    });
        ESP_CHECK(sent.from_position != kAbsent && sent.to_position != kAbsent, message.crossing, p);
        const Crossing::Reader& reader = reader_of(message);
        sent.bytes = forward ? reader.bytes : reader.gradient;
        out_.messages.push_back(sent);
      }
    }
    sends_at_.resize(devices_);
    receives_at_.resize(devices_);
    for (std::uint32_t i = 0; i < out_.messages.size(); ++i) {
      const Sent& sent = out_.messages[i];
      sends_at_[sent.from.index()].push_back({sent.from_position, sent.message, sent.to, i});
      receives_at_[sent.to.index()].push_back({sent.to_position, sent.message, sent.from, i});
    }
    for (std::size_t device = 0; device < devices_; ++device) {
      std::sort(sends_at_[device].begin(), sends_at_[device].end());
      std::sort(receives_at_[device].begin(), receives_at_[device].end());
    }
  }

  static bool flows_back(const Crossing& crossing, const Crossing::Reader& reader) {
    return crossing.returns && (crossing.token || reader.gradient != Bytes());
  }

  const Crossing::Reader& reader_of(const Message& message) const {
    const auto& readers = model_.crossings[message.crossing].readers;
    const auto at = std::find_if(readers.begin(), readers.end(),
                                 [&](const auto& reader) { return reader.stage == message.reader; });
    ESP_CHECK(at != readers.end(), message.crossing, message.reader);
    return *at;
  }

  bool is_free(const Message& message) const {
    return model_.crossings[message.crossing].token && model_.tokens == TokenRule::kFree;
  }

  // --- tasks

  TaskIndex add_task(Source source, Duration duration, std::uint32_t lane, Duration delay = {},
                     std::uint64_t priority = 0) {
    TaskGraph& graph = out_.tasks;
    const auto task = static_cast<TaskIndex>(graph.size());
    graph.duration.push_back(duration);
    graph.delay.push_back(delay);
    graph.lane.push_back(lane);
    graph.priority.push_back(priority);
    graph.link_begin.push_back(graph.link_begin.back());
    graph.gives_way.push_back(0);
    out_.sources.push_back(source);
    if (lane != TaskGraph::kNoLane) graph.order.push_back(task);
    return task;
  }

  void hold_links(const std::vector<LinkIndex>& links) {  // by the task added last
    out_.tasks.links.insert(out_.tasks.links.end(), links.begin(), links.end());
    out_.tasks.link_begin.back() = static_cast<std::uint32_t>(out_.tasks.links.size());
  }

  void end_lane() {
    out_.tasks.lane_order.push_back(LaneOrder::kInOrder);
    out_.tasks.order_begin.push_back(static_cast<std::uint32_t>(out_.tasks.order.size()));
  }

  void edge(TaskIndex before, TaskIndex after) { edges_.push_back({before, after}); }

  Duration time_of(std::size_t device, const Action& action) const {
    const auto& replicas = model_.stages[action.stage().index()].replicas;
    const auto at = std::find_if(replicas.begin(), replicas.end(), [&](const StagedReplica& replica) {
      return std::find(replica.devices.begin(), replica.devices.end(), DeviceId(device)) !=
             replica.devices.end();
    });
    ESP_CHECK(at != replicas.end(), device, action.stage());
    const StageTimes& times = at->times;
    switch (action.kind) {
      case ActionKind::kForward:
        return times.forward;
      case ActionKind::kBackward:
        return times.backward();
      case ActionKind::kInputGradient:
        return times.input_half();
      case ActionKind::kWeightGradient:
        return times.weight_half();
      case ActionKind::kRecompute:
        return times.recompute;
      case ActionKind::kUpdate:
        return times.update;
      case ActionKind::kAllReduce:
      case ActionKind::kTieSum:
        break;
    }
    return Duration();
  }

  void add_device(std::size_t device) {
    const auto lane = static_cast<std::uint32_t>(device);
    const auto& actions = schedule_.devices[device];
    auto& tasks = action_task_.emplace_back(actions.size());
    sender_task_.resize(out_.messages.size(), kAbsent);
    receiver_task_.resize(out_.messages.size(), kAbsent);
    auto send = sends_at_[device].begin();
    auto receive = receives_at_[device].begin();
    for (std::uint32_t position = 0; position < actions.size(); ++position) {
      for (; receive != receives_at_[device].end() && receive->position == position; ++receive) {
        const Sent& sent = out_.messages[receive->index];
        const Duration cost = cluster_.route(sent.from, sent.to).receive.of(sent.bytes);
        if (cost == Duration() || is_free(sent.message)) continue;
        receiver_task_[receive->index] =
            add_task({Source::Kind::kReceiveEndpoint, DeviceId(device), receive->index}, cost, lane);
      }
      const Action& action = actions[position];
      if (is_sum(action.kind)) {
        tasks[position] = add_member(device, position);
        continue;
      }
      const std::optional<TaskIndex> before = last_of_lane();
      const TaskIndex task =
          add_task({Source::Kind::kAction, DeviceId(device), position}, time_of(device, action), lane);
      tasks[position] = task;
      if (in_group(device, action)) {
        Meeting& meeting = meetings_[action];
        meeting.tasks.push_back(task);
        if (before) meeting.before.push_back(*before);
      }
      for (; send != sends_at_[device].end() && send->position == position; ++send) {
        const Sent& sent = out_.messages[send->index];
        const Duration cost = cluster_.route(sent.from, sent.to).send.of(sent.bytes);
        if (cost == Duration() || is_free(sent.message)) continue;
        sender_task_[send->index] =
            add_task({Source::Kind::kSendEndpoint, DeviceId(device), send->index}, cost, lane);
      }
    }
    end_lane();
  }

  // The task that stands last in the lane that is being filled.
  std::optional<TaskIndex> last_of_lane() const {
    const TaskGraph& graph = out_.tasks;
    if (graph.order.size() == graph.order_begin.back()) return std::nullopt;
    return graph.order.back();
  }

  // A sum goes on beside the lane: its member arrives after what stands before it and after the device's sum
  // before it. What reads it comes later in the list, and waits for the end (await_sums).
  TaskIndex add_member(std::size_t device, std::uint32_t position) {
    const std::optional<TaskIndex> before = last_of_lane();
    ESP_CHECK(before.has_value(), device, position);  // its stage's actions stand there
    const TaskIndex task =
        add_task({Source::Kind::kMember, DeviceId(device), position}, Duration(), TaskGraph::kNoLane);
    edge(*before, task);
    Members& members = collectives_[schedule_.devices[device][position]];
    if (members.tasks.empty()) members.first = {device, position};
    members.tasks.push_back(task);
    return task;
  }

  void add_channels() {
    std::vector<std::uint64_t> rank(out_.messages.size());
    std::uint64_t next = 0;
    for (const auto& sends : sends_at_) {  // by (device, position, Message, destination)
      for (const Place& place : sends) rank[place.index] = next++;
    }
    std::uint32_t index = 0;
    for (const Channel& channel : schedule_.channels) {
      const Route route = cluster_.route(channel.from, channel.to);
      for (std::size_t i = 0; i < channel.messages.size(); ++i, ++index) {
        const bool free = is_free(channel.messages[i]);
        message_task_.push_back(add_task({Source::Kind::kMessage, channel.from, index},
                                         free ? Duration() : route.hold(out_.messages[index].bytes),
                                         static_cast<std::uint32_t>(out_.tasks.lane_order.size()),
                                         free ? Duration() : route.latency, rank[index]));
        if (!free) hold_links(route.links);
      }
      end_lane();
    }
  }

  void add_collectives() {
    std::vector<std::pair<std::pair<std::size_t, std::uint32_t>, const Members*>> ordered;
    for (const auto& [key, members] : collectives_) ordered.push_back({members.first, &members});
    std::sort(ordered.begin(), ordered.end());
    std::uint64_t priority = out_.messages.size();
    for (const auto& [first, members] : ordered) {
      const Action& action = schedule_.devices[first.first][first.second];
      const Collective cost = collective_of(model_, cluster_, action);
      ESP_CHECK(cost.members.size() == members->tasks.size(), cost.members.size(), members->tasks.size());
      const TaskIndex task = add_task({Source::Kind::kCollective, DeviceId(first.first), first.second},
                                      cost.hold, TaskGraph::kNoLane, cost.latency, priority++);
      hold_links(cost.links);
      out_.tasks.gives_way[task] = cost.links.empty() ? 0 : 1;
      for (const TaskIndex member : members->tasks) {
        out_.sources[member].collective = task;
        edge(member, task);
      }
    }
    for (std::size_t device = 0; device < devices_; ++device) await_sums(device);
  }

  // A device's sums run one after the other; an update waits for the last one that its stage is in.
  void await_sums(std::size_t device) {
    const auto& actions = schedule_.devices[device];
    std::map<StageId, TaskIndex> of_stage;
    std::optional<TaskIndex> last;
    for (std::size_t position = 0; position < actions.size(); ++position) {
      const Action& action = actions[position];
      const TaskIndex task = action_task_[device][position];
      if (action.kind == ActionKind::kUpdate) {
        const auto sum = of_stage.find(action.stage());
        if (sum != of_stage.end()) edge(sum->second, task);
      }
      if (!is_sum(action.kind)) continue;
      if (last) edge(*last, task);
      last = out_.sources[task].collective;
      if (action.kind == ActionKind::kAllReduce) {
        of_stage[action.stage()] = *last;
      } else {
        for (const StageId stage : model_.ties[action.tie().index()].stages) of_stage[stage] = *last;
      }
    }
  }

  // The devices of a tensor-parallel group start an action together, when the last has all that it waits for:
  // what each would wait for their meeting does. An update each runs alone.
  bool in_group(std::size_t device, const Action& action) const {
    if (action.kind == ActionKind::kUpdate) return false;
    const auto& replicas = model_.stages[action.stage().index()].replicas;
    return std::any_of(replicas.begin(), replicas.end(), [&](const StagedReplica& replica) {
      return replica.devices.size() > 1 && std::find(replica.devices.begin(), replica.devices.end(),
                                                     DeviceId(device)) != replica.devices.end();
    });
  }

  void add_meetings() {
    for (auto& [action, meeting] : meetings_) {
      meeting.task = add_task({Source::Kind::kJoin, DeviceId(0), 0}, Duration(), TaskGraph::kNoLane);
      for (const TaskIndex before : meeting.before) edge(before, meeting.task);
      for (const TaskIndex member : meeting.tasks) edge(meeting.task, member);
    }
  }

  // What a message to this action waits for.
  TaskIndex start_of(DeviceId device, std::uint32_t position) const {
    const auto meeting = meetings_.find(schedule_.devices[device.index()][position]);
    return meeting != meetings_.end() ? meeting->second.task : action_task_[device.index()][position];
  }

  void connect_messages() {
    for (std::uint32_t i = 0; i < out_.messages.size(); ++i) {
      const Sent& sent = out_.messages[i];
      const TaskIndex sender = sender_task_[i], receiver = receiver_task_[i];
      edge(sender != kAbsent ? sender : action_task_[sent.from.index()][sent.from_position],
           message_task_[i]);
      edge(message_task_[i], receiver != kAbsent ? receiver : start_of(sent.to, sent.to_position));
      if (sent.message.direction == Message::Direction::kBackward) {
        const Crossing& crossing = model_.crossings[sent.message.crossing];
        const Places& places = places_of(sent.to.index(), crossing.from);
        edge(action_task_[sent.to.index()][places.forward[sent.message.producer_micro_batch]],
             message_task_[i]);
      }
    }
  }

  // --- memory

  void change(TaskIndex task, When when, std::size_t device, MemoryCategory category, Bytes bytes) {
    if (bytes != Bytes()) out_.tasks.memory.push_back({task, when, account(device, category), bytes});
  }
  void hold(std::size_t device, MemoryCategory category, Bytes bytes, TaskIndex from, When from_when,
            TaskIndex until, When until_when) {
    change(from, from_when, device, category, bytes);
    change(until, until_when, device, category, -bytes);
  }

  // The last place on a device at which these samples of a crossing are used by its local readers.
  std::uint32_t last_use(std::size_t device, const Crossing& crossing, SampleRange range) {
    std::uint32_t last = kAbsent;
    for_readers(device, crossing, range,
                [&](const Places& places, const Crossing::Reader& reader, std::uint32_t k) {
                  const std::uint32_t use =
                      reader.saved ? places.last_need(k, reader.for_input_only) : places.forward[k];
                  last = last == kAbsent ? use : std::max(last, use);
                });
    return last;
  }

  // Receive slots of forward messages: time and memory.
  void hold_slots() {
    struct Slot {
      std::uint32_t micro_batch = 0;
      std::uint32_t release = 0;  // position
      Bytes bytes;
      std::vector<TaskIndex> messages;
    };
    std::map<std::tuple<std::uint32_t, StageId, DeviceId>, std::vector<std::uint32_t>> edges;
    for (std::uint32_t i = 0; i < out_.messages.size(); ++i) {
      const Sent& sent = out_.messages[i];
      if (sent.message.direction == Message::Direction::kForward) {
        edges[{sent.message.crossing, sent.message.reader, sent.to}].push_back(i);
      }
    }
    for (auto& [key, indices] : edges) {
      const auto& [crossing, reader, device_id] = key;
      const std::size_t device = device_id.index();
      std::stable_sort(indices.begin(), indices.end(), [&](std::uint32_t a, std::uint32_t b) {
        return out_.messages[a].message.consumer_micro_batch < out_.messages[b].message.consumer_micro_batch;
      });
      std::vector<Slot> slots;
      for (const std::uint32_t i : indices) {
        const Sent& sent = out_.messages[i];
        const std::uint32_t micro_batch = sent.message.consumer_micro_batch;
        if (slots.empty() || slots.back().micro_batch != micro_batch)
          slots.push_back({micro_batch, 0, {}, {}});
        Slot& slot = slots.back();
        slot.release =
            std::max(slot.release, last_use(device, model_.crossings[crossing], samples(sent.message)));
        slot.bytes += sent.bytes;
        slot.messages.push_back(message_task_[i]);
      }
      const std::size_t ahead = model_.stages[reader.index()].receive_slots();
      for (std::size_t i = 0; i < slots.size(); ++i) {
        const TaskIndex release = action_task_[device][slots[i].release];
        change(release, When::kEnd, device, MemoryCategory::kBuffers, -slots[i].bytes);
        if (i < ahead) {
          out_.tasks.initial[account(device, MemoryCategory::kBuffers)] += slots[i].bytes;
        } else {
          const TaskIndex given_back = action_task_[device][slots[i - ahead].release];
          change(given_back, When::kEnd, device, MemoryCategory::kBuffers, slots[i].bytes);
          for (const TaskIndex message : slots[i].messages) edge(given_back, message);
        }
      }
    }
  }

  void hold_stages(std::size_t device) {
    for (const StagedStage& stage : model_.stages) {
      for (const StagedReplica& replica : stage.replicas) {
        for (const DeviceId member : replica.devices) {
          if (member.index() != device) continue;
          auto& initial = out_.tasks.initial;
          initial[account(device, MemoryCategory::kParameters)] += stage.memory.parameters;
          initial[account(device, MemoryCategory::kGradients)] += stage.memory.gradients;
          initial[account(device, MemoryCategory::kOptimizer)] += stage.memory.optimizer_state;
          initial[account(device, MemoryCategory::kBuffers)] += stage.memory.buffers;
        }
      }
    }
  }

  void hold_actions(std::size_t device) {
    constexpr MemoryCategory kind = MemoryCategory::kActivations;
    const auto& actions = schedule_.devices[device];
    for (std::uint32_t position = 0; position < actions.size(); ++position) {
      const Action& action = actions[position];
      if (action.kind >= ActionKind::kAllReduce) {
        hold_at_the_end(device, position);
        continue;
      }
      const StageMemory& memory = model_.stages[action.stage().index()].memory;
      const TaskIndex task = action_task_[device][position];
      const Places& places = places_of(device, action.stage());
      const TaskIndex last = action_task_[device][places.last_backward(action.micro_batch)];
      const TaskIndex input = action_task_[device][places.backward[action.micro_batch]];
      const bool forward = action.kind == ActionKind::kForward || action.kind == ActionKind::kRecompute;
      hold(device, kind, forward ? memory.forward_workspace : memory.backward_workspace, task, When::kStart,
           task, When::kEnd);
      if (action.kind == ActionKind::kForward) {
        hold(device, kind, memory.saved - memory.saved_for_input, task, When::kStart, last, When::kEnd);
        hold(device, kind, memory.saved_for_input, task, When::kStart, input, When::kEnd);
      } else if (action.kind == ActionKind::kRecompute) {
        hold(device, kind, memory.recomputed - memory.recomputed_for_input, task, When::kStart, last,
             When::kEnd);
        hold(device, kind, memory.recomputed_for_input, task, When::kStart, input, When::kEnd);
      } else if (action.kind == ActionKind::kInputGradient) {
        hold(device, kind, memory.between_halves, task, When::kEnd, last, When::kEnd);
      }
    }
  }

  // Of A, T and U.
  void hold_at_the_end(std::size_t device, std::uint32_t position) {
    const Action& action = schedule_.devices[device][position];
    const TaskIndex task = action_task_[device][position];
    if (action.kind == ActionKind::kUpdate) {
      hold(device, MemoryCategory::kActivations,
           model_.stages[action.stage().index()].memory.update_workspace, task, When::kStart, task,
           When::kEnd);
      return;
    }
    Bytes scratch;
    if (action.kind == ActionKind::kAllReduce) {
      const StagedStage& stage = model_.stages[action.stage().index()];
      scratch = all_reduce_scratch(stage.reduced, stage.replicas.size());
    } else {
      scratch = tied_sum_scratch(model_, model_.ties[action.tie().index()], DeviceId(device));
    }
    hold(device, MemoryCategory::kBuffers, scratch, task, When::kStart, out_.sources[task].collective,
         When::kArrival);
  }

  // A crossing's output, until nobody on its device needs it.
  void hold_outputs() {
    std::map<std::tuple<std::uint32_t, std::uint32_t, DeviceId>, std::vector<TaskIndex>> transfers;
    for (std::uint32_t i = 0; i < out_.messages.size(); ++i) {
      const Sent& sent = out_.messages[i];
      if (sent.message.direction == Message::Direction::kForward) {
        transfers[{sent.message.crossing, sent.message.producer_micro_batch, sent.from}].push_back(
            message_task_[i]);
      }
    }
    for (std::uint32_t c = 0; c < model_.crossings.size(); ++c) {
      const Crossing& crossing = model_.crossings[c];
      if (crossing.output == Bytes()) continue;
      const std::uint64_t count = model_.stages[crossing.from.index()].micro_batches;
      for (std::size_t device = 0; device < devices_; ++device) {
        const Places* places = find_place(device, crossing.from);
        if (!places) continue;
        for (std::uint32_t k = 0; k < count; ++k) {
          if (places->forward[k] == kAbsent) continue;
          std::uint32_t local = last_use(device, crossing, {k, k + 1, count});
          if (local == kAbsent) local = places->forward[k];
          if (crossing.saved_by_producer)
            local = std::max(local, places->last_need(k, crossing.for_input_only));
          const auto sent = transfers.find({c, k, DeviceId(device)});
          hold_output(device, crossing.output, action_task_[device][places->forward[k]],
                      action_task_[device][local],
                      sent == transfers.end() ? std::vector<TaskIndex>() : sent->second);
        }
      }
    }
  }

  void hold_output(std::size_t device, Bytes bytes, TaskIndex produced, TaskIndex local,
                   const std::vector<TaskIndex>& transfers) {
    constexpr MemoryCategory kind = MemoryCategory::kActivations;
    if (transfers.empty()) {
      hold(device, kind, bytes, produced, When::kStart, local, When::kEnd);
    } else if (transfers.size() == 1 && local == produced) {
      hold(device, kind, bytes, produced, When::kStart, transfers.front(), When::kArrival);
    } else {
      const TaskIndex join =
          add_task({Source::Kind::kJoin, DeviceId(device), 0}, Duration(), TaskGraph::kNoLane);
      edge(local, join);
      for (const TaskIndex transfer : transfers) edge(transfer, join);
      hold(device, kind, bytes, produced, When::kStart, join, When::kStart);
    }
  }

  void hold_gradients() {
    constexpr MemoryCategory kind = MemoryCategory::kActivations;
    for (std::uint32_t i = 0; i < out_.messages.size(); ++i) {
      const Sent& sent = out_.messages[i];
      if (sent.message.direction == Message::Direction::kForward) continue;
      const Crossing& crossing = model_.crossings[sent.message.crossing];
      const std::size_t from = sent.from.index(), to = sent.to.index();
      const Places& producer = places_of(to, crossing.from);
      hold(to, MemoryCategory::kBuffers, sent.bytes,
           action_task_[to][producer.forward[sent.message.producer_micro_batch]], When::kEnd,
           action_task_[to][sent.to_position], When::kEnd);
      std::uint32_t first = kAbsent;
      for_readers(from, crossing, samples(sent.message),
                  [&](const Places& places, const Crossing::Reader& reader, std::uint32_t k) {
                    if (flows_back(crossing, reader)) first = std::min(first, places.backward[k]);
                  });
      hold(from, kind, sent.bytes, action_task_[from][first], When::kStart, message_task_[i], When::kArrival);
    }
  }

  void pack_edges() {
    TaskGraph& graph = out_.tasks;
    graph.successor_begin.assign(graph.size() + 1, 0);
    for (const auto& [before, after] : edges_) ++graph.successor_begin[before + 1];
    for (std::size_t i = 0; i < graph.size(); ++i) graph.successor_begin[i + 1] += graph.successor_begin[i];
    graph.successors.resize(edges_.size());
    std::vector<std::uint32_t> next(graph.successor_begin.begin(), graph.successor_begin.end() - 1);
    for (const auto& [before, after] : edges_) graph.successors[next[before]++] = after;
  }

  struct Place {  // of a message at one of its ends
    std::uint32_t position;
    Message message;
    DeviceId other;
    std::uint32_t index;
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  struct Members {
    std::pair<std::size_t, std::uint32_t> first;  // lowest member and the position there
    std::vector<TaskIndex> tasks;                 // arrivals
  };
  struct Meeting {  // of a group, before an action
    std::vector<TaskIndex> tasks, before;
    TaskIndex task = 0;
  };

  const StagedModel& model_;
  const Cluster& cluster_;
  const Schedule& schedule_;
  const std::size_t devices_;
  CompiledSchedule out_;
  std::vector<std::vector<Places>> places_;           // by device
  std::vector<std::vector<std::uint32_t>> place_of_;  // by device and stage: which of them, kAbsent: none
  std::vector<std::vector<Place>> sends_at_, receives_at_;  // by device, ascending
  std::vector<std::vector<TaskIndex>> action_task_;         // by device and position
  std::vector<TaskIndex> message_task_;                     // by message
  std::vector<TaskIndex> sender_task_, receiver_task_;      // by message: its endpoints, where they cost
  std::map<Action, Members> collectives_;                   // A and T
  std::map<Action, Meeting> meetings_;                      // of groups
  std::vector<std::pair<TaskIndex, TaskIndex>> edges_;
};

}  // namespace

CompiledSchedule compile(const StagedModel& model, const Cluster& cluster, const Schedule& schedule) {
  return Compiler(model, cluster, schedule).run();
}

}  // namespace espalier
