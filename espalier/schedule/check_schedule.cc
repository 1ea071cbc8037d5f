// The checker of schedules. It shares no code with make_schedule and with_channels.
//
// Deadlock: a graph whose nodes are actions (one node for all devices of a replica, or of a collective) and
// messages; an edge says "cannot start, or be posted, before". Kahn's algorithm removes what can run; a cycle
// is found in the rest by walking predecessors, then shortened by a breadth-first search. O(actions +
// messages
// + edges).

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "espalier/base/check.h"
#include "espalier/schedule/dependencies.h"
#include "espalier/schedule/names.h"
#include "espalier/schedule/schedule.h"

namespace espalier {
namespace {

using Violations = std::vector<std::string>;

std::string device_text(DeviceId device) {
  return "dev" + std::to_string(device.index());
}

class Checker {
 public:
  Checker(const StagedModel& model, const Schedule& schedule)
      : model_(model), schedule_(schedule), only_(only_stages(model, schedule.devices.size())) {}

  Violations run() {
    complete();
    if (found_.empty()) place();
    if (!found_.empty()) return std::move(found_);
    order();
    in_flight();
    const std::size_t before = found_.size();
    messages();
    if (found_.size() > before) return std::move(found_);
    facts_ = schedule_facts(model_, schedule_);
    channel();
    deadlock();
    return std::move(found_);
  }

 private:
  void report(const char* rule, const std::string& text) {
    found_.push_back(std::string(rule) + ": " + text);
  }
  std::string name(const Action& action) const { return action_name(model_, action, StageName::kShown); }
  std::string name(const ActionPlace& place) const {
    const Action& action = schedule_.devices[place.device.index()][place.position];
    const std::optional<StageId> only = only_[place.device.index()];
    const bool plain = only && action.is_of(*only);
    return device_text(place.device) + ":" +
           action_name(model_, action, plain ? StageName::kLeftOut : StageName::kShown);
  }
  std::string name(const SentMessage& sent) const {
    const Message& m = sent.message;
    const bool forward = m.direction == Message::Direction::kForward;
    const bool known = m.crossing < model_.crossings.size() && m.reader.index() < model_.stages.size();
    return (forward ? "forward of '" : "gradient of '") +
           (known ? model_.crossings[m.crossing].tensor : "#" + std::to_string(m.crossing)) + "' (reader " +
           (known ? model_.stages[m.reader.index()].name : "#" + std::to_string(m.reader.index())) +
           ", micro-batches " + std::to_string(m.producer_micro_batch) + " and " +
           std::to_string(m.consumer_micro_batch) + ") from " + device_text(sent.from) + " to " +
           device_text(sent.to);
  }

  // How often each action stands on a device, at most.
  int times(const Action& action) const {
    const auto found = devices_of_.find(action);
    if (found == devices_of_.end()) return 0;
    int most = 0;
    for (const auto& [device, count] : found->second) most = std::max(most, count);
    return most;
  }
  void once(const Action& action) {
    const int count = times(action);
    if (count == 0) report("complete", name(action) + " is missing");
    if (count > 1) report("complete", name(action) + " stands " + std::to_string(count) + " times");
  }

  void complete() {
    for (std::size_t d = 0; d < schedule_.devices.size(); ++d) {
      for (const Action& action : schedule_.devices[d]) ++devices_of_[action][DeviceId(d)];
    }
    for (const auto& [action, devices] : devices_of_) {
      if (expected_devices(model_, action).empty()) {
        report("complete", name(action) + " is no action of this plan");
      }
    }
    for (std::size_t s = 0; s < model_.stages.size(); ++s) {
      const StagedStage& stage = model_.stages[s];
      for (std::uint32_t j = 0; j < stage.micro_batches; ++j) {
        once({ActionKind::kForward, StageId(s), j});
        if (recomputes(stage)) once({ActionKind::kRecompute, StageId(s), j});
        backward_once(StageId(s), j);
      }
      if (reduces(stage)) once({ActionKind::kAllReduce, StageId(s), 0});
      if (updates(stage)) once({ActionKind::kUpdate, StageId(s), 0});
    }
    for (std::size_t t = 0; t < model_.ties.size(); ++t) once(Action(TieId(t)));
  }

  void backward_once(StageId stage, std::uint32_t j) {
    const Action whole{ActionKind::kBackward, stage, j};
    const Action input{ActionKind::kInputGradient, stage, j};
    const Action weight{ActionKind::kWeightGradient, stage, j};
    if (times(input) == 0 && times(weight) == 0) return once(whole);
    if (times(whole) != 0) report("complete", name(whole) + " stands beside one of its halves");
    once(input);
    once(weight);
  }

  void place() {
    for (const auto& [action, devices] : devices_of_) {
      const std::vector<DeviceId> expected = expected_devices(model_, action);
      for (const DeviceId device : expected) {
        if (!devices.count(device)) {
          report("place", name(action) + " does not stand on " + device_text(device));
        }
      }
      for (const auto& [device, count] : devices) {
        if (!std::binary_search(expected.begin(), expected.end(), device)) {
          report("place",
                 name(action) + " stands on " + device_text(device) + ", which does not take that share");
        }
      }
    }
  }

  // Rank of an action within its micro-batch: F, R, B or I, W.
  static int rank(ActionKind kind) {
    switch (kind) {
      case ActionKind::kForward:
        return 0;
      case ActionKind::kRecompute:
        return 1;
      case ActionKind::kBackward:
      case ActionKind::kInputGradient:
        return 2;
      case ActionKind::kWeightGradient:
        return 3;
      default:
        return 4;
    }
  }

  void order() {
    for (std::size_t d = 0; d < schedule_.devices.size(); ++d) {
      std::set<StageId> stages;
      for (const Action& action : schedule_.devices[d]) {
        if (action.kind == ActionKind::kForward) stages.insert(action.stage());
      }
      for (const StageId stage : stages) order_of(DeviceId(d), stage);
    }
  }

  void order_of(DeviceId device, StageId stage) {
    std::map<std::uint32_t, Action> last;  // by micro-batch
    std::optional<Action> last_end;
    std::optional<Action> last_of[4];  // by rank: each ascends
    const auto refuse = [&](const Action& later, const Action& earlier) {
      report("order", name(later) + " stands after " + name(earlier) + " on " + device_text(device));
    };
    for (const Action& action : schedule_.devices[device.index()]) {
      if (!concerns(model_, action, stage)) continue;
      const int r = rank(action.kind);
      if (r == 4) {  // A, T, U: the enumeration has them in this order
        if (last_end && action.kind < last_end->kind) refuse(action, *last_end);
        last_end = action;
        continue;
      }
      if (last_end) refuse(action, *last_end);
      const auto [entry, fresh] = last.emplace(action.micro_batch, action);
      if (!fresh && rank(entry->second.kind) > r) refuse(action, entry->second);
      entry->second = action;
      std::optional<Action>& previous = last_of[r];
      if (previous && previous->micro_batch > action.micro_batch) refuse(action, *previous);
      previous = action;
    }
  }

  void in_flight() {
    for (std::size_t d = 0; d < schedule_.devices.size(); ++d) {
      std::map<StageId, std::uint32_t> held;
      std::set<StageId> reported;
      for (const Action& action : schedule_.devices[d]) {
        if (rank(action.kind) == 4) continue;
        std::uint32_t& here = held[action.stage()];
        if (action.kind == ActionKind::kForward) ++here;
        const bool ends = action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightGradient;
        if (ends && here > 0) --here;
        const StagedStage& stage = model_.stages[action.stage().index()];
        if (here > stage.in_flight && reported.insert(action.stage()).second) {
          report("in-flight", name(action) + " on " + device_text(DeviceId(d)) + " is number " +
                                  std::to_string(here) + " of stage " + stage.name + ", whose limit is " +
                                  std::to_string(stage.in_flight));
        }
      }
    }
  }

  void messages() {
    std::vector<SentMessage> sent;
    for (std::size_t c = 0; c < schedule_.channels.size(); ++c) {
      const Channel& channel = schedule_.channels[c];
      const std::string ends = device_text(channel.from) + " to " + device_text(channel.to);
      if (channel.messages.empty()) report("messages", "the channel from " + ends + " is empty");
      if (c > 0) {
        const Channel& before = schedule_.channels[c - 1];
        if (std::pair(before.from, before.to) >= std::pair(channel.from, channel.to)) {
          report("messages", "the channel from " + ends + " stands after " + device_text(before.from) +
                                 " to " + device_text(before.to));
        }
      }
      for (const Message& message : channel.messages) sent.push_back({channel.from, channel.to, message});
    }
    std::sort(sent.begin(), sent.end());
    for (std::size_t i = 1; i < sent.size(); ++i) {
      if (sent[i] == sent[i - 1]) report("messages", name(sent[i]) + " travels twice");
    }
    sent.erase(std::unique(sent.begin(), sent.end()), sent.end());
    const std::vector<SentMessage> expected = expected_messages(model_);
    Violations missing;
    std::vector<SentMessage> difference;
    std::set_difference(expected.begin(), expected.end(), sent.begin(), sent.end(),
                        std::back_inserter(difference));
    for (const SentMessage& message : difference) report("messages", name(message) + " is missing");
    difference.clear();
    std::set_difference(sent.begin(), sent.end(), expected.begin(), expected.end(),
                        std::back_inserter(difference));
    for (const SentMessage& message : difference) report("messages", name(message) + " is not needed");
  }

  void channel() {
    for (std::size_t i = 1; i < facts_.messages.size(); ++i) {
      const MessageFacts& a = facts_.messages[i - 1];
      const MessageFacts& b = facts_.messages[i];
      if (a.channel != b.channel) continue;
      const std::pair key_a(a.producers.back().position, a.sent.message);
      const std::pair key_b(b.producers.back().position, b.sent.message);
      if (key_a > key_b) report("channel", name(b.sent) + " stands after " + name(a.sent));
    }
  }

  void deadlock();

  const StagedModel& model_;
  const Schedule& schedule_;
  std::vector<std::optional<StageId>> only_;
  std::map<Action, std::map<DeviceId, int>> devices_of_;
  ScheduleFacts facts_;
  Violations found_;
};

// Nodes: actions first, then messages.
class WaitGraph {
 public:
  WaitGraph(const StagedModel& model, const Schedule& schedule, const ScheduleFacts& facts)
      : schedule_(schedule) {
    number_actions(model);
    actions_ = places_.size();
    successors_.resize(actions_ + facts.messages.size());
    predecessors_.resize(successors_.size());
    for (std::size_t d = 0; d < node_.size(); ++d) follow_list(d);
    for (const auto& [producer, consumer] : facts.local) edge(node(producer), node(consumer));
    for (const auto& [sum, waiter] : facts.sums) edge(node(sum), node(waiter));
    for (std::size_t m = 0; m < facts.messages.size(); ++m) {
      const MessageFacts& message = facts.messages[m];
      const std::size_t here = actions_ + m;
      if (m > 0 && facts.messages[m - 1].channel == message.channel) edge(here - 1, here);
      for (const ActionPlace& producer : message.producers) edge(node(producer), here);
      for (const ActionPlace& consumer : message.consumers) edge(here, node(consumer));
      if (message.receiver_forward) edge(node(*message.receiver_forward), here);
      if (!message.slot || !facts.slots[*message.slot].before) continue;
      const SlotFacts& before = facts.slots[*facts.slots[*message.slot].before];
      for (const ActionPlace& release : before.released_by) edge(node(release), here);
    }
  }

  // The actions of a cycle in which each waits for the one before it, first = last; empty if there is none.
  std::vector<ActionPlace> cycle() const {
    std::vector<bool> left = cannot_run();
    const auto start = static_cast<std::size_t>(std::find(left.begin(), left.end(), true) - left.begin());
    if (start == left.size()) return {};
    std::vector<ActionPlace> actions;
    for (const std::size_t n : shortest_cycle(on_a_cycle(start, left), left)) {
      if (n < actions_) actions.push_back(places_[n]);
    }
    std::rotate(actions.begin(), std::min_element(actions.begin(), actions.end()), actions.end());
    actions.push_back(actions.front());
    return actions;
  }

 private:
  // One node for an action on all devices that run it together.
  void number_actions(const StagedModel& model) {
    std::map<std::pair<Action, DeviceId>, std::size_t> by_leader;
    for (std::size_t d = 0; d < schedule_.devices.size(); ++d) {
      std::vector<std::size_t> nodes;
      for (std::uint32_t i = 0; i < schedule_.devices[d].size(); ++i) {
        const Action& action = schedule_.devices[d][i];
        const bool alone = action.kind == ActionKind::kUpdate;
        const DeviceId leader = alone ? DeviceId(d) : expected_devices(model, action).front();
        const auto [entry, fresh] = by_leader.emplace(std::pair(action, leader), places_.size());
        if (fresh) places_.push_back({DeviceId(d), i});
        nodes.push_back(entry->second);
      }
      node_.push_back(std::move(nodes));
    }
  }
  // A sum waits for the list, the list does not wait for a sum.
  void follow_list(std::size_t device) {
    std::optional<std::size_t> before;
    for (std::size_t i = 0; i < node_[device].size(); ++i) {
      if (before) edge(*before, node_[device][i]);
      if (!is_sum(schedule_.devices[device][i].kind)) before = node_[device][i];
    }
  }
  std::size_t node(const ActionPlace& place) const { return node_[place.device.index()][place.position]; }
  void edge(std::size_t from, std::size_t to) {
    successors_[from].push_back(to);
    predecessors_[to].push_back(from);
  }

  std::vector<bool> cannot_run() const {
    std::vector<std::size_t> waits(successors_.size());
    std::vector<std::size_t> ready;
    for (std::size_t n = 0; n < waits.size(); ++n) {
      waits[n] = predecessors_[n].size();
      if (waits[n] == 0) ready.push_back(n);
    }
    std::vector<bool> left(waits.size(), true);
    while (!ready.empty()) {
      const std::size_t n = ready.back();
      ready.pop_back();
      left[n] = false;
      for (const std::size_t next : successors_[n]) {
        if (--waits[next] == 0) ready.push_back(next);
      }
    }
    return left;
  }

  // Every node that is left has a predecessor that is left: walking back must meet a node again.
  std::size_t on_a_cycle(std::size_t at, const std::vector<bool>& left) const {
    std::vector<bool> seen(left.size(), false);
    while (!seen[at]) {
      seen[at] = true;
      at = *std::find_if(predecessors_[at].begin(), predecessors_[at].end(),
                         [&](std::size_t n) { return left[n]; });
    }
    return at;
  }

  std::vector<std::size_t> shortest_cycle(std::size_t through, const std::vector<bool>& left) const {
    std::vector<std::size_t> parent(left.size(), left.size());
    std::vector<std::size_t> queue{through};
    for (std::size_t i = 0; i < queue.size(); ++i) {
      for (const std::size_t next : successors_[queue[i]]) {
        if (next == through) {
          std::vector<std::size_t> cycle;
          for (std::size_t n = queue[i]; n != through; n = parent[n]) cycle.push_back(n);
          cycle.push_back(through);
          std::reverse(cycle.begin(), cycle.end());
          return cycle;
        }
        if (!left[next] || parent[next] != left.size()) continue;
        parent[next] = queue[i];
        queue.push_back(next);
      }
    }
    ESP_CHECK(false, through);
    return {};
  }

  const Schedule& schedule_;
  std::vector<std::vector<std::size_t>> node_;  // by device and position
  std::vector<ActionPlace> places_;             // by action node: its first device
  std::size_t actions_ = 0;
  std::vector<std::vector<std::size_t>> successors_;
  std::vector<std::vector<std::size_t>> predecessors_;
};

void Checker::deadlock() {
  const std::vector<ActionPlace> cycle = WaitGraph(model_, schedule_, facts_).cycle();
  if (cycle.empty()) return;
  std::string text;
  for (const ActionPlace& place : cycle) text += (text.empty() ? "" : " → ") + name(place);
  report("deadlock", text + " (each waits for the one before it)");
}

}  // namespace

std::vector<std::string> check_schedule(const StagedModel& model, const Schedule& schedule) {
  return Checker(model, schedule).run();
}

}  // namespace espalier
