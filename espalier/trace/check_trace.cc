// The checker of traces; it shares no code with the simulator. Rules say "not before": messages, channel,
// links, collective and slots each forbid one kind of haste; `eager` alone forbids waiting without a cause,
// by comparing each start with the latest of what it waits for. Together they pin a simulated trace down.
//
// Links: all messages that held links, in the order in which they became ready, are served again, and apart
// from them all sums; whatever started before its links were free, or after something that became ready
// later, broke the rule. A sum takes as long as it holds its links without a message on one of them, and what
// those take.

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "espalier/base/check.h"
#include "espalier/schedule/names.h"
#include "espalier/trace/timeline.h"
#include "espalier/trace/trace.h"

namespace espalier {
namespace {

// The largest ± of notes that begin with "clock offset", twice: times of two hosts may be off by that much.
Duration clock_slack(const Trace& trace) {
  Duration largest;
  for (const std::string& note : trace.notes) {
    const std::size_t sign = note.find("±");
    if (note.rfind("clock offset", 0) != 0 || sign == std::string::npos) continue;
    std::string text = note.substr(sign + std::string_view("±").size());
    text = text.substr(0, text.find_first_of(" ,;"));
    largest = std::max(largest, std::min(parse_duration(text), Duration(std::int64_t{1} << 60)));
  }
  return 2 * largest;
}

class TraceChecker {
 public:
  TraceChecker(const StagedModel& model, const Cluster& cluster, const Schedule& schedule, const Trace& trace)
      : model_(model),
        cluster_(cluster),
        schedule_(schedule),
        trace_(trace),
        simulated_(trace.origin == Trace::Origin::kSimulated),
        slack_(simulated_ ? Duration() : clock_slack(trace)) {}

  std::vector<std::string> run() {
    sorted();
    if (found_.empty()) legal_schedule();
    if (!found_.empty()) return std::move(found_);
    facts_ = schedule_facts(model_, schedule_);
    match_actions();
    match_messages();
    if (!found_.empty()) return std::move(found_);
    build_lanes();
    not_overlapping();
    message_times();
    channel();
    collective();
    slots();
    if (simulated_) {
      durations();
      groups();
      links();
      eager();
      memory();
    }
    iteration();
    return std::move(found_);
  }

 private:
  // --- words

  void report(const char* rule, const std::string& text) {
    found_.push_back(std::string(rule) + ": " + text);
  }
  std::string name(DeviceId device) const {
    const std::size_t d = device.index();
    return d < trace_.devices.size() ? trace_.devices[d] : "device #" + std::to_string(d);
  }
  std::string name(const Span& span) const {
    std::string text = name(span.device) + ":" + span_name(trace_, span);
    if (!span.message) return text;
    const bool forward = span.message->direction == Message::Direction::kForward;
    text += std::string(forward ? " forward" : " gradient") + " #" + std::to_string(span.message->crossing);
    if (span.peer) {
      const bool receives = span.kind == SpanKind::kReceiveWait || span.kind == SpanKind::kReceiveEndpoint;
      text += (receives ? " from " : " to ") + name(*span.peer);
    }
    return text;
  }
  static std::string at(Duration time) { return to_exact_text(time); }

  // --- what is there

  void sorted() {
    const std::size_t devices = schedule_.devices.size();
    for (std::size_t i = 0; i < trace_.spans.size(); ++i) {
      const Span& span = trace_.spans[i];
      if (span.device.index() >= devices || (span.peer && span.peer->index() >= devices)) {
        report("sorted", name(span) + " is on no device of the schedule");
      }
      if (span.start < Duration() || span.end < span.start || span.end > trace_.iteration) {
        report("sorted", name(span) + " lasts from " + at(span.start) + " to " + at(span.end) +
                             " in an iteration of " + at(trace_.iteration));
      }
      if (i == 0) continue;
      const Span& last = trace_.spans[i - 1];
      if (std::tie(span.device, span.stream, span.start, span.end) <
          std::tie(last.device, last.stream, last.start, last.end)) {
        report("sorted", name(span) + " stands after " + name(last));
      }
    }
    for (std::size_t i = 0; i < trace_.memory.size(); ++i) {
      const MemorySample& sample = trace_.memory[i];
      if (sample.device.index() >= devices || sample.time < Duration() || sample.time > trace_.iteration) {
        report("sorted", "the memory sample of " + name(sample.device) + " at " + at(sample.time) +
                             " is outside the iteration");
      }
      if (i == 0) continue;
      const MemorySample& last = trace_.memory[i - 1];
      if (std::tie(last.device, last.time) >= std::tie(sample.device, sample.time)) {
        report("sorted", "the memory sample of " + name(sample.device) + " at " + at(sample.time) +
                             " does not stand after the one before it");
      }
    }
  }

  void legal_schedule() {
    for (const std::string& line : check_schedule(model_, schedule_)) {
      report("actions", "the schedule itself is not legal: " + line);
    }
  }

  void match_actions() {
    const ActionIndex index(schedule_);
    for (const auto& list : schedule_.devices) timeline_.actions.emplace_back(list.size(), nullptr);
    for (const Span& span : trace_.spans) {
      if (span.kind != SpanKind::kAction && span.kind != SpanKind::kCollective) continue;
      const auto position = index.find(span.device, span.action);
      const bool collective = is_sum(span.action.kind);
      if (!position) {
        report("actions", name(span) + " is not in the schedule of its device");
      } else if (span.kind != (collective ? SpanKind::kCollective : SpanKind::kAction) ||
                 span.stream != (collective ? Stream::kCollective : Stream::kCompute)) {
        report("actions", name(span) + " is on a stream that is not its own");
      } else {
        const Span*& place = timeline_.actions[span.device.index()][*position];
        if (place != nullptr) report("actions", name(span) + " stands twice");
        place = &span;
      }
    }
    for (std::size_t d = 0; d < schedule_.devices.size(); ++d) {
      for (std::size_t i = 0; i < schedule_.devices[d].size(); ++i) {
        if (timeline_.actions[d][i] != nullptr) continue;
        report("actions", action_name(model_, schedule_.devices[d][i], StageName::kShown) +
                              " is missing on " + name(DeviceId(d)));
      }
    }
  }

  void match_messages() {
    std::map<SentMessage, std::size_t> of;
    for (std::size_t m = 0; m < facts_.messages.size(); ++m) of.emplace(facts_.messages[m].sent, m);
    timeline_.messages.resize(facts_.messages.size());
    for (const Span& span : trace_.spans) {
      if (span.kind == SpanKind::kAction || span.kind == SpanKind::kCollective) continue;
      match_message(span, of);
    }
    for (std::size_t m = 0; m < facts_.messages.size(); ++m) {
      const Timeline::MessageSpans& spans = timeline_.messages[m];
      const std::string message = "message " + std::to_string(m) + " of the schedule, from " +
                                  name(facts_.messages[m].sent.from) + " to " +
                                  name(facts_.messages[m].sent.to) + ",";
      if (spans.transfer == nullptr) report("messages", message + " has no transfer");
      if (!simulated_ && spans.receive_wait == nullptr) report("messages", message + " has no receive");
    }
  }

  void match_message(const Span& span, const std::map<SentMessage, std::size_t>& of) {
    const bool receives = span.kind == SpanKind::kReceiveWait || span.kind == SpanKind::kReceiveEndpoint;
    const bool endpoint = span.kind == SpanKind::kSendEndpoint || span.kind == SpanKind::kReceiveEndpoint;
    const Stream stream = endpoint ? Stream::kCompute : receives ? Stream::kReceive : Stream::kSend;
    if (!span.message || !span.peer || span.stream != stream ||
        (simulated_ ? span.kind == SpanKind::kReceiveWait : endpoint)) {
      return report("messages", name(span) + " is no span of a message on this stream");
    }
    const auto found =
        of.find({receives ? *span.peer : span.device, receives ? span.device : *span.peer, *span.message});
    if (found == of.end()) return report("messages", name(span) + " is not in the schedule");
    const MessageFacts& facts = facts_.messages[found->second];
    Timeline::MessageSpans& spans = timeline_.messages[found->second];
    const Span*& place = span.kind == SpanKind::kTransfer          ? spans.transfer
                         : span.kind == SpanKind::kSendEndpoint    ? spans.send_endpoint
                         : span.kind == SpanKind::kReceiveEndpoint ? spans.receive_endpoint
                                                                   : spans.receive_wait;
    if (place != nullptr) report("messages", name(span) + " stands twice");
    place = &span;
    const ActionPlace& action = receives ? facts.consumers.front() : facts.producers.back();
    if (simulated_ && span.action != schedule_.devices[action.device.index()][action.position]) {
      report("messages", name(span) + " names an action that does not send or receive it");
    }
    if (simulated_ && span.bytes != facts.bytes) {
      report("messages",
             name(span) + " carries " + to_exact_text(span.bytes) + ", not " + to_exact_text(facts.bytes));
    }
    if (simulated_ && span.kind == SpanKind::kTransfer && !span.posted) {
      report("messages", name(span) + " does not say when it was posted");
    }
  }

  // --- the order on a device

  // Spans that occupy a device one after the other: its actions, each with its endpoints around it. Its sums
  // go on beside them.
  void build_lanes() {
    struct Around {
      std::vector<const Span*> receives, sends;
    };
    std::map<ActionPlace, Around> around;
    for (std::size_t m = 0; m < facts_.messages.size(); ++m) {
      const Timeline::MessageSpans& spans = timeline_.messages[m];
      if (spans.receive_endpoint)
        around[facts_.messages[m].consumers.front()].receives.push_back(spans.receive_endpoint);
      if (spans.send_endpoint)
        around[facts_.messages[m].producers.back()].sends.push_back(spans.send_endpoint);
    }
    lanes_.resize(schedule_.devices.size());
    for (std::size_t d = 0; d < lanes_.size(); ++d) {
      for (std::uint32_t i = 0; i < schedule_.devices[d].size(); ++i) {
        Around& here = around[{DeviceId(d), i}];
        for (auto* spans : {&here.receives, &here.sends}) {
          std::sort(spans->begin(), spans->end(),
                    [](const Span* a, const Span* b) { return a->start < b->start; });
        }
        if (is_sum(schedule_.devices[d][i].kind)) {
          const Duration before = lanes_[d].empty() ? Duration() : lanes_[d].back()->end;
          timeline_.sum_reached.emplace(ActionPlace{DeviceId(d), i}, before);
          continue;
        }
        lanes_[d].insert(lanes_[d].end(), here.receives.begin(), here.receives.end());
        lanes_[d].push_back(timeline_.actions[d][i]);
        lanes_[d].insert(lanes_[d].end(), here.sends.begin(), here.sends.end());
      }
    }
  }

  void not_overlapping() {
    for (const auto& lane : lanes_) {
      for (std::size_t i = 1; i < lane.size(); ++i) not_before_end(*lane[i], *lane[i - 1]);
    }
    for (const auto& [sum, waiter] : facts_.sums) {
      // That a sum does not start too early is a rule of its own.
      const bool sums = timeline_.at(waiter).kind == SpanKind::kCollective;
      if (!simulated_ || !sums) not_before_end(timeline_.at(waiter), timeline_.at(sum));
    }
  }
  void not_before_end(const Span& span, const Span& before) {
    if (span.start >= before.end) return;
    report("actions", name(span) + " starts at " + at(span.start) + ", before " + name(before) + " ends at " +
                          at(before.end));
  }

  // --- messages

  bool is_free(const Message& message) const {
    return model_.crossings[message.crossing].token && model_.tokens == TokenRule::kFree;
  }
  Route route(std::size_t m) const {
    const SentMessage& sent = facts_.messages[m].sent;
    return is_free(sent.message) ? Route() : cluster_.route(sent.from, sent.to);
  }
  Duration left_wire(std::size_t m) const {
    return timeline_.messages[m].transfer->start + route(m).hold(facts_.messages[m].bytes);
  }
  // When the sender had it ready.
  Duration produced(std::size_t m) const {
    const Span* endpoint = timeline_.messages[m].send_endpoint;
    return endpoint ? endpoint->end : timeline_.end_of(facts_.messages[m].producers);
  }
  // When the receiver's buffer was there.
  Duration receive_posted(std::size_t m) const {
    const MessageFacts& facts = facts_.messages[m];
    if (facts.receiver_forward) return timeline_.at(*facts.receiver_forward).end;
    const auto before = facts_.slots[*facts.slot].before;
    return before ? timeline_.end_of(facts_.slots[*before].released_by) : Duration();
  }
  Duration sent_at(std::size_t m) const {
    const Span& transfer = *timeline_.messages[m].transfer;
    return simulated_ ? std::min(*transfer.posted, transfer.start) : transfer.start;
  }
  Duration arrived(std::size_t m) const {
    return simulated_ ? timeline_.messages[m].transfer->end : timeline_.messages[m].receive_wait->end;
  }

  void message_times() {
    for (std::size_t m = 0; m < facts_.messages.size(); ++m) {
      const Timeline::MessageSpans& spans = timeline_.messages[m];
      if (sent_at(m) < produced(m)) {
        report("messages", name(*spans.transfer) + " is sent at " + at(sent_at(m)) +
                               ", before it is there at " + at(produced(m)));
      }
      if (!simulated_ && arrived(m) + slack_ < spans.transfer->start) {
        report("messages", name(*spans.receive_wait) + " is received at " + at(arrived(m)) +
                               ", before it is sent at " + at(spans.transfer->start));
      }
      const auto not_before_arrival = [&](const Span& span) {
        if (span.start >= arrived(m)) return;
        report("messages", name(span) + " starts at " + at(span.start) + ", before " + name(*spans.transfer) +
                               " arrives at " + at(arrived(m)));
      };
      if (spans.receive_endpoint) not_before_arrival(*spans.receive_endpoint);
      for (const ActionPlace& consumer : facts_.messages[m].consumers)
        not_before_arrival(timeline_.at(consumer));
    }
  }

  bool follows_in_channel(std::size_t m) const {
    return m > 0 && facts_.messages[m].channel == facts_.messages[m - 1].channel;
  }

  void channel() {
    for (std::size_t m = 1; m < facts_.messages.size(); ++m) {
      if (!follows_in_channel(m)) continue;
      const Timeline::MessageSpans& last = timeline_.messages[m - 1];
      const Timeline::MessageSpans& next = timeline_.messages[m];
      const Duration earliest = simulated_ ? left_wire(m - 1) : last.transfer->start;
      if (sent_at(m) < earliest) {
        report("channel", name(*next.transfer) + " is sent at " + at(sent_at(m)) + ", before " +
                              at(earliest) + ", when the message before it " +
                              (simulated_ ? "left the wire" : "was sent"));
      }
      if (!simulated_ && arrived(m) < arrived(m - 1)) {
        report("channel", name(*next.receive_wait) + " is received at " + at(arrived(m)) +
                              ", before the message before it at " + at(arrived(m - 1)));
      }
    }
  }

  void slots() {
    for (std::size_t m = 0; m < facts_.messages.size(); ++m) {
      const Duration at_receiver = simulated_ ? sent_at(m) : arrived(m);
      if (at_receiver >= receive_posted(m)) continue;
      report("slots", name(*timeline_.messages[m].transfer) + (simulated_ ? " is sent at " : " arrives at ") +
                          at(at_receiver) + ", before its receive is posted at " + at(receive_posted(m)));
    }
  }

  // --- collectives

  struct CollectiveSpans {
    std::vector<const Span*> members;
    Duration arrived;  // of the last member
  };
  std::map<Action, CollectiveSpans> collectives() const {
    std::map<Action, CollectiveSpans> result;
    for (const auto& [place, reached] : timeline_.sum_reached) {
      const Span& span = timeline_.at(place);
      CollectiveSpans& spans = result[span.action];
      spans.members.push_back(&span);
      const Duration here = simulated_ ? timeline_.sum_arrival(facts_, place) : span.start;
      spans.arrived = std::max(spans.arrived, here);
    }
    return result;
  }

  void collective() {
    if (!simulated_) {
      for (const auto& [place, reached] : timeline_.sum_reached) {
        const Span& span = timeline_.at(place);
        if (span.start >= reached) continue;
        report("collective", name(span) + " starts at " + at(span.start) +
                                 ", before what stands before it ends at " + at(reached));
      }
    }
    for (const auto& [action, spans] : collectives()) {
      const Span& first = *spans.members.front();
      for (const Span* span : spans.members) {
        if (!simulated_) {
          if (span->end + slack_ >= spans.arrived) continue;
          report("collective", name(*span) + " ends at " + at(span->end) +
                                   ", before the last member arrives at " + at(spans.arrived));
          continue;
        }
        const bool tie = action.kind == ActionKind::kTieSum;
        const Bytes bytes =
            tie ? model_.ties[action.tie().index()].bytes : model_.stages[action.stage().index()].reduced;
        if (span->start != first.start || span->end != first.end || span->posted != first.posted ||
            span->bytes != bytes || !span->posted) {
          report("collective", name(*span) + " differs from the other members' or in its bytes");
        } else if (std::min(*span->posted, span->start) < spans.arrived) {
          report("collective", name(*span) + " starts at " + at(std::min(*span->posted, span->start)) +
                                   ", before the last member arrives at " + at(spans.arrived));
        }
      }
    }
  }

  // --- exact times

  Duration staged_time(DeviceId device, const Action& action) const {
    for (const StagedReplica& replica : model_.stages[action.stage().index()].replicas) {
      if (std::find(replica.devices.begin(), replica.devices.end(), device) == replica.devices.end())
        continue;
      switch (action.kind) {
        case ActionKind::kForward:
          return replica.times.forward;
        case ActionKind::kBackward:
          return replica.times.input_gradient + replica.times.weight_gradient + replica.times.overhead;
        case ActionKind::kInputGradient:
          return replica.times.input_gradient + replica.times.overhead;
        case ActionKind::kWeightGradient:
          return replica.times.weight_gradient + replica.times.overhead;
        case ActionKind::kRecompute:
          return replica.times.recompute;
        default:
          return replica.times.update;
      }
    }
    ESP_CHECK(false, device, action.stage());
    return {};
  }

  void durations() {
    for (std::size_t d = 0; d < timeline_.actions.size(); ++d) {
      for (const Span* span : timeline_.actions[d]) {
        if (is_sum(span->action.kind)) continue;
        takes(*span, staged_time(DeviceId(d), span->action));
      }
    }
    for (std::size_t m = 0; m < facts_.messages.size(); ++m) {
      const Timeline::MessageSpans& spans = timeline_.messages[m];
      const Route r = route(m);
      const std::pair<const Span*, Duration> endpoints[] = {
          {spans.send_endpoint, r.send.of(facts_.messages[m].bytes)},
          {spans.receive_endpoint, r.receive.of(facts_.messages[m].bytes)}};
      for (const auto& [span, expected] : endpoints) {
        if (span) {
          takes(*span, expected);
        } else if (expected > Duration()) {
          report("duration", name(*spans.transfer) + " lacks an endpoint of " + at(expected));
        }
      }
    }
  }
  void takes(const Span& span, Duration expected) {
    if (span.end - span.start == expected) return;
    report("duration", name(span) + " takes " + at(span.end - span.start) + ", not " + at(expected));
  }

  // An action of a tensor-parallel group, whose devices run it together: it and the group's first device.
  using Together = std::pair<Action, DeviceId>;
  std::optional<Together> together(const Span& span) const {
    if (span.kind != SpanKind::kAction || once_per_step(span.action.kind)) return std::nullopt;
    for (const StagedReplica& replica : model_.stages[span.action.stage().index()].replicas) {
      if (replica.devices.size() < 2) continue;
      if (std::count(replica.devices.begin(), replica.devices.end(), span.device) > 0) {
        return Together(span.action, replica.devices.front());
      }
    }
    return std::nullopt;
  }

  void groups() {
    std::map<Together, const Span*> first;
    for (const auto& lane : lanes_) {
      for (const Span* span : lane) {
        const auto group = together(*span);
        if (!group) continue;
        const Span& other = *first.try_emplace(*group, span).first->second;
        if (span->start == other.start) continue;
        report("actions",
               name(*span) + " starts at " + at(span->start) + ", its group at " + at(other.start));
      }
    }
  }

  struct Held {  // what holds links
    const Span* span = nullptr;
    Duration ready;
    Duration hold;
    Duration latency;
    std::vector<LinkIndex> links;
  };

  std::vector<Held> messages_on_links() const {
    std::vector<Held> held;
    for (std::size_t m = 0; m < facts_.messages.size(); ++m) {
      const Span& span = *timeline_.messages[m].transfer;
      const Route r = route(m);
      held.push_back({&span, *span.posted, r.hold(facts_.messages[m].bytes), r.latency, r.links});
    }
    return by_turn(std::move(held));
  }

  std::vector<Held> sums_on_links(const std::vector<Held>& messages) const {
    std::vector<Held> held;
    for (const auto& [action, spans] : collectives()) {
      const Span& span = *spans.members.front();
      const Collective cost = collective_of(model_, cluster_, action);
      const Duration left = left_at(span.start, cost, messages);
      held.push_back({&span, span.posted.value_or(span.start), left - span.start, cost.latency, cost.links});
    }
    return by_turn(std::move(held));
  }

  static std::vector<Held> by_turn(std::vector<Held> held) {
    std::stable_sort(held.begin(), held.end(), [](const Held& a, const Held& b) {
      return std::tie(a.ready, a.span->start, a.hold) < std::tie(b.ready, b.span->start, b.hold);
    });
    return held;
  }

  // When a sum that starts then leaves its links: it stands still while a message holds one of them.
  static Duration left_at(Duration start, const Collective& sum, const std::vector<Held>& messages) {
    std::vector<std::pair<Duration, Duration>> still;
    for (const Held& message : messages) {
      const bool shares = std::any_of(message.links.begin(), message.links.end(), [&](LinkIndex link) {
        return std::find(sum.links.begin(), sum.links.end(), link) != sum.links.end();
      });
      if (shares) still.emplace_back(message.span->start, message.span->start + message.hold);
    }
    std::sort(still.begin(), still.end());
    Duration at = start, to_do = sum.hold;
    for (const auto& [begin, end] : still) {
      if (end <= at) continue;
      if (std::max(begin, at) >= at + to_do) break;
      if (begin > at) to_do -= begin - at;
      at = end;
    }
    return at + to_do;
  }

  void links() {
    const std::vector<Held> messages = messages_on_links();
    served_in_turn(messages);
    served_in_turn(sums_on_links(messages));
  }

  void served_in_turn(const std::vector<Held>& held) {
    struct Last {
      Duration until;
      Duration start;
      const Span* span = nullptr;
    };
    std::map<LinkIndex, Last> last;
    for (const Held& item : held) {
      const Span& span = *item.span;
      if (span.end - span.start != item.hold + item.latency) {
        report("links",
               name(span) + " takes " + at(span.end - span.start) + ", not " + at(item.hold + item.latency));
      }
      for (const LinkIndex link : item.links) {
        Last& before = last[link];
        if (before.span != nullptr && span.start < before.until) {
          const bool overtakes = span.start < before.start;
          report("links", name(span) + (overtakes ? " overtakes " : " shares a link with ") +
                              name(*before.span) + " on " + cluster_.link_name(link));
        }
        before = {std::max(before.until, span.start + item.hold), span.start, &span};
      }
    }
  }

  void not_later(const Span& span, const char* what, Duration time, Duration cause) {
    if (time > cause) report("eager", name(span) + what + at(time) + ", but could at " + at(cause));
  }

  // Nothing starts later than the latest of what it waits for.
  void eager() {
    std::map<const Span*, Duration> inputs;  // the latest arrival that a span on a device waits for
    for (std::size_t m = 0; m < facts_.messages.size(); ++m) {
      const Span* endpoint = timeline_.messages[m].receive_endpoint;
      const Span* first = endpoint ? endpoint : &timeline_.at(facts_.messages[m].consumers.front());
      Duration& latest = inputs[first];
      latest = std::max(latest, arrived(m));
    }
    for (const auto& [sum, waiter] : facts_.sums) {
      Duration& latest = inputs[&timeline_.at(waiter)];
      latest = std::max(latest, timeline_.at(sum).end);
    }
    std::vector<std::pair<const Span*, Duration>> causes;
    std::map<Together, Duration> of_groups;
    for (const auto& lane : lanes_) {
      for (std::size_t i = 0; i < lane.size(); ++i) {
        const Duration free = i == 0 ? Duration() : lane[i - 1]->end;
        const auto input = inputs.find(lane[i]);
        const Duration cause = input == inputs.end() ? free : std::max(free, input->second);
        causes.emplace_back(lane[i], cause);
        if (const auto group = together(*lane[i])) of_groups[*group] = std::max(of_groups[*group], cause);
      }
    }
    for (const auto& [span, cause] : causes) {
      const auto group = together(*span);
      not_later(*span, " starts at ", span->start, group ? of_groups.at(*group) : cause);
    }
    for (std::size_t m = 0; m < facts_.messages.size(); ++m) {
      Duration cause = std::max(produced(m), receive_posted(m));
      if (follows_in_channel(m)) cause = std::max(cause, left_wire(m - 1));
      const Span& transfer = *timeline_.messages[m].transfer;
      not_later(transfer, " is posted at ", *transfer.posted, cause);
    }
    for (const auto& [action, spans] : collectives()) {
      const Span& span = *spans.members.front();
      not_later(span, " is posted at ", span.posted.value_or(span.start), spans.arrived);
    }
    const std::vector<Held> messages = messages_on_links();
    links_in_time(messages);
    links_in_time(sums_on_links(messages));
  }

  // Links are served by ready time. Of several that were ready and went on the wire together, one that holds
  // its links for no time may have kept another waiting: they count in any order that explains them all.
  void links_in_time(std::vector<Held> held) {
    std::map<LinkIndex, Duration> free;
    const auto cause = [&](const Held& item) {
      Duration latest = item.ready;
      for (const LinkIndex link : item.links) latest = std::max(latest, free[link]);
      return latest;
    };
    for (auto begin = held.begin(); begin != held.end();) {
      const auto end = std::find_if(begin, held.end(), [&](const Held& item) {
        return item.ready != begin->ready || item.span->start != begin->span->start;
      });
      for (; begin != end; ++begin) {
        const auto explained =
            std::find_if(begin, end, [&](const Held& item) { return item.span->start <= cause(item); });
        if (explained != end) std::rotate(begin, explained, explained + 1);
        not_later(*begin->span, " goes on the wire at ", begin->span->start, cause(*begin));
        for (const LinkIndex link : begin->links)
          free[link] = std::max(free[link], begin->span->start + begin->hold);
      }
    }
  }

  // --- memory and the end

  void memory() {
    const std::vector<MemorySample> expected = held_memory(model_, schedule_, facts_, timeline_);
    for (std::size_t d = 0; d < schedule_.devices.size(); ++d) {
      const std::vector<MemorySample> should = changes_of(expected, DeviceId(d));
      const std::vector<MemorySample> is = changes_of(trace_.memory, DeviceId(d));
      const auto [a, b] = std::mismatch(should.begin(), should.end(), is.begin(), is.end());
      if (a == should.end() && b == is.end()) continue;
      report("memory", name(DeviceId(d)) + " should hold " +
                           (a == should.end() ? "that to the end" : held(*a)) + ", the trace has " +
                           (b == is.end() ? "no sample there" : held(*b)));
    }
  }
  static std::string held(const MemorySample& sample) {
    std::string text;
    for (std::size_t i = 0; i < kMemoryCategories; ++i) {
      if (sample.held.bytes[i] == Bytes()) continue;
      text += (text.empty() ? "" : " + ") + to_exact_text(sample.held.bytes[i]) + " " +
              std::string(to_text(static_cast<MemoryCategory>(i)));
    }
    return (text.empty() ? "nothing" : text) + " from " + to_exact_text(sample.time);
  }
  // A device's samples where what is held changes, from nothing at 0.
  static std::vector<MemorySample> changes_of(const std::vector<MemorySample>& samples, DeviceId device) {
    std::vector<MemorySample> result;
    MemoryByCategory last;
    for (const MemorySample& sample : samples) {
      if (sample.device != device || sample.held == last) continue;
      result.push_back(sample);
      last = sample.held;
    }
    return result;
  }

  void iteration() {
    Duration last;
    for (const Span& span : trace_.spans) last = std::max(last, span.end);
    if (last != trace_.iteration) {
      report("iteration", "is " + at(trace_.iteration) + ", but the last span ends at " + at(last));
    }
  }

  const StagedModel& model_;
  const Cluster& cluster_;
  const Schedule& schedule_;
  const Trace& trace_;
  const bool simulated_;
  const Duration slack_;
  ScheduleFacts facts_;
  Timeline timeline_;
  std::vector<std::vector<const Span*>> lanes_;  // by device
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> check_trace(const StagedModel& model, const Cluster& cluster,
                                     const Schedule& schedule, const Trace& trace) {
  return TraceChecker(model, cluster, schedule, trace).run();
}

}  // namespace espalier
