#include "espalier/schedule/unit_time.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/schedule/shares.h"

namespace espalier {
namespace {

using Next = Progress::Next;

class UnitTimeSimulation {
 public:
  UnitTimeSimulation(const StagedModel& model, std::size_t devices)
      : model_(model),
        replicas_(beginnings(model)),
        slots_follow_saved_(model.orders.rule()->edition == OrderRule::Edition::kFirst),
        busy_until_(devices, 0),
        into_(model.stages.size()),
        out_(model.stages.size()) {
    find_owners();
    find_edges();
    is_woken_.resize(replicas_.size());
    for (std::uint32_t r = 0; r < replicas_.size(); ++r) wake(r);
  }

  UnitTimeOrder run(Choice choice) {
    UnitTimeOrder result;
    std::size_t actions = 0;
    for (const Progress& replica : replicas_) actions += (replica.split ? 3U : 2U) * replica.share();
    result.started.reserve(actions);
    std::size_t before = 0;
    do {
      before = result.started.size();
      awake_.swap(woken_);
      woken_.clear();
      for (const std::uint32_t r : awake_) is_woken_[r] = 0;
      for (const Next next : {Next::kBackward, Next::kForward, Next::kWeights}) {
        find_ready(next, choice);
        for (const Ready& ready : ready_) start(ready.replica, next, result.started);
      }
      ++clock_;
    } while (result.started.size() > before);
    result.completed = std::all_of(replicas_.begin(), replicas_.end(),
                                   [](const Progress& replica) { return replica.finished(); });
    for (const Progress& replica : replicas_) append_pattern(replica, result.started);
    return result;
  }

 private:
  using Clock = std::uint32_t;
  static constexpr Clock kNever = std::numeric_limits<Clock>::max();
  using Clocks = std::vector<Clock>;  // by place: of a stage's micro-batch

  struct Edge {  // a reader of a crossing
    const Crossing* crossing = nullptr;
    const Crossing::Reader* reader = nullptr;
    std::size_t from = 0, to = 0;                              // stages
    std::uint32_t first_of_crossing = 0, end_of_crossing = 0;  // its readers, in edges_
  };
  struct Ready {
    std::uint32_t micro_batch = 0, of = 1;  // of so many
    std::uint32_t stage = 0, replica = 0;
    friend bool operator<(const Ready& a, const Ready& b) {
      const std::uint64_t x = std::uint64_t{a.micro_batch} * b.of, y = std::uint64_t{b.micro_batch} * a.of;
      if (x != y) return x < y;
      return a.stage != b.stage ? a.stage > b.stage : a.replica < b.replica;
    }
  };

  void find_owners() {
    for (const StagedStage& stage : model_.stages) {
      first_of_.push_back(owners_.size());
      owners_.resize(owners_.size() + stage.micro_batches);
    }
    for (std::uint32_t r = 0; r < replicas_.size(); ++r) {
      const std::vector<std::uint32_t>& share = replicas_[r].replica->micro_batches;
      for (std::uint32_t rank = 0; rank < share.size(); ++rank) {
        owners_.at(first_of_[replicas_[r].stage.index()] + share[rank]) = {r, rank};
      }
    }
    for (Clocks* when : {&forward_done_, &backward_done_, &end_done_}) when->assign(owners_.size(), kNever);
  }

  void find_edges() {
    for (const Crossing& crossing : model_.crossings) {
      const std::uint32_t first = narrow(edges_.size()), end = narrow(first + crossing.readers.size());
      for (const Crossing::Reader& reader : crossing.readers) {
        edges_.push_back({&crossing, &reader, crossing.from.index(), reader.stage.index(), first, end});
      }
    }
    for (std::uint32_t e = 0; e < edges_.size(); ++e) {
      out_[edges_[e].from].push_back(e);
      into_[edges_[e].to].push_back(e);
    }
  }

  // What a replica may do changes when it, a micro-batch that it reads from or sends to, or one that holds
  // the slot of a tensor that it sends or reads has done something: only then is it looked at, one clock
  // later, and where its device was busy. So a model of 50,000 fragments costs what its crossings cost, not
  // the square of its fragments.
  void wake(std::uint32_t replica) {
    if (is_woken_[replica] != 0) return;
    is_woken_[replica] = 1;
    woken_.push_back(replica);
  }
  // Those of a stage that share samples with micro-batch j of another.
  void wake_sharing(std::size_t stage, std::uint32_t j, std::size_t with) {
    const auto range = overlapping(j, count(with), count(stage));
    for (std::uint32_t k = range.begin; k < range.end; ++k) wake(owner(stage, k).replica);
  }

  void wake_for(std::uint32_t r, Next next, std::uint32_t j) {
    wake(r);
    const Progress& replica = replicas_[r];
    const std::size_t stage = replica.stage.index();
    const bool forward = next == Next::kForward;
    const bool frees = forward ? slots_follow_saved_ : next == Next::kWeights || !replica.split;
    if (frees || !forward) {
      for (const std::uint32_t e : into_[stage]) {
        if (!forward) wake_sharing(edges_[e].from, j, stage);
        if (frees) wake_for_slots(edges_[e], *replica.replica, j);
      }
    }
    if (!forward) return;
    for (const std::uint32_t e : out_[stage]) wake_sharing(edges_[e].to, j, stage);
  }

  // Who waits for a slot that micro-batch j of the edge's reader had: those that take it next on its devices.
  void wake_for_slots(const Edge& edge, const StagedReplica& replica, std::uint32_t j) {
    for (std::uint32_t e = edge.first_of_crossing; e < edge.end_of_crossing; ++e) {
      const Edge& other = edges_[e];
      const std::uint32_t slots = model_.stages[other.to].receive_slots();
      const auto range = overlapping(j, count(edge.to), count(other.to));
      for (std::uint32_t l = range.begin; l < range.end; ++l) {
        const Owner& holder = owner(other.to, l);
        const StagedReplica& receiver = *replicas_[holder.replica].replica;
        const std::size_t next = std::size_t{holder.rank} + slots;
        if (next >= receiver.micro_batches.size()) continue;
        if (!share_a_device(receiver.devices, replica.devices)) continue;
        wake(holder.replica);
        wake_sharing(other.from, receiver.micro_batches[next], other.to);
      }
    }
  }

  // Replicas whose next action of this sort could start now, the most urgent first.
  void find_ready(Next next, Choice choice) {
    ready_.clear();
    for (const std::uint32_t r : awake_) {
      const Progress& replica = replicas_[r];
      if (replica.finished()) continue;
      const bool allowed = choice == Choice::kPattern ? replica.in_pattern() == next : replica.may(next);
      const bool forwards_are_left = replica.forwards < replica.share();
      const bool too_early = choice == Choice::kForwardsFirst && next == Next::kBackward && forwards_are_left;
      if (!allowed || too_early) continue;
      if (is_busy(*replica.replica)) {
        wake(r);
      } else if (const Action action = replica.action(next); is_ready(replica, next, action)) {
        const std::size_t stage = replica.stage.index();
        ready_.push_back({action.micro_batch, count(stage), narrow(stage), r});
      }
    }
    std::sort(ready_.begin(), ready_.end());
  }

  bool is_busy(const StagedReplica& replica) const {
    return std::any_of(replica.devices.begin(), replica.devices.end(),
                       [&](DeviceId device) { return busy_until_[device.index()] > clock_; });
  }

  bool is_ready(const Progress& replica, Next next, const Action& action) {
    switch (next) {
      case Next::kForward:
        return forward_ready(*replica.replica, action);
      case Next::kBackward:
        return backward_ready(action);
      case Next::kWeights:
        break;
    }
    return done(backward_done_, action.stage().index(), action.micro_batch);
  }

  void start(std::uint32_t r, Next next, std::vector<StartedAction>& started) {
    Progress& replica = replicas_[r];
    if (is_busy(*replica.replica)) return wake(r);
    for (const DeviceId device : replica.replica->devices) busy_until_[device.index()] = clock_ + 1;
    const Action action = replica.action(next);
    const std::size_t at = place(action.stage().index(), action.micro_batch);
    if (next == Next::kForward) forward_done_[at] = clock_ + 1;
    if (next == Next::kBackward) backward_done_[at] = clock_ + 1;
    if (next == Next::kWeights || (next == Next::kBackward && !replica.split)) end_done_[at] = clock_ + 1;
    started.push_back({replica.replica, action});
    replica.advance(next);
    wake_for(r, next, action.micro_batch);
  }

  bool done(const Clocks& when, std::size_t stage, std::uint32_t j) const {
    return when[place(stage, j)] <= clock_;
  }
  std::size_t place(std::size_t stage, std::uint32_t j) const { return first_of_[stage] + j; }
  std::uint32_t count(std::size_t stage) const { return model_.stages[stage].micro_batches; }
  const Owner& owner(std::size_t stage, std::uint32_t j) const { return owners_[place(stage, j)]; }
  const StagedReplica& replica_of(std::size_t stage, std::uint32_t j) const {
    return *replicas_[owner(stage, j).replica].replica;
  }

  bool forward_ready(const StagedReplica& replica, const Action& action) {
    const std::size_t stage = action.stage().index();
    for (const std::uint32_t e : into_[stage]) {
      const Edge& edge = edges_[e];
      const auto range = overlapping(action.micro_batch, count(stage), count(edge.from));
      for (std::uint32_t j = range.begin; j < range.end; ++j) {
        if (!done(forward_done_, edge.from, j)) return false;
        // If its message had to wait for its slot, it has left once the slot is free.
        if (!edge_on_.empty() && !slot_free(replica_of(edge.from, j), edge, action.micro_batch)) return false;
      }
    }
    for (const std::uint32_t e : out_[stage]) {
      const Edge& edge = edges_[e];
      const auto range = overlapping(action.micro_batch, count(stage), count(edge.to));
      for (std::uint32_t k = range.begin; k < range.end; ++k) {
        if (!slot_free(replica, edge, k) && !may_wait(replica, edge, k)) return false;
      }
    }
    return true;
  }

  bool backward_ready(const Action& action) const {
    const std::size_t stage = action.stage().index();
    if (!done(forward_done_, stage, action.micro_batch)) return false;
    for (const std::uint32_t e : out_[stage]) {
      const Edge& edge = edges_[e];
      if (!flows_back(*edge.crossing, *edge.reader)) continue;
      const auto range = overlapping(action.micro_batch, count(stage), count(edge.to));
      for (std::uint32_t k = range.begin; k < range.end; ++k) {
        if (!done(backward_done_, edge.to, k)) return false;
      }
    }
    return true;
  }

  // May a message to the reader's micro-batch k be posted: has the micro-batch as many before it as there are
  // slots been released by all stages on the receiving device?
  bool slot_free(const StagedReplica& sender, const Edge& edge, std::uint32_t k) const {
    const std::uint32_t slots = model_.stages[edge.to].receive_slots();
    const Owner& own = owner(edge.to, k);
    if (own.rank < slots) return true;
    const StagedReplica& receiver = *replicas_[own.replica].replica;
    if (receiver.devices == sender.devices) return true;
    const std::uint32_t earlier = receiver.micro_batches[own.rank - slots];
    for (std::uint32_t e = edge.first_of_crossing; e < edge.end_of_crossing; ++e) {
      const Edge& other = edges_[e];
      const auto range = overlapping(earlier, count(edge.to), count(other.to));
      const bool after_forward = slots_follow_saved_ && !other.reader->saved;
      for (std::uint32_t l = range.begin; l < range.end; ++l) {
        if (done(after_forward ? forward_done_ : end_done_, other.to, l)) continue;
        if (share_a_device(replica_of(other.to, l).devices, receiver.devices)) return false;
      }
    }
    return true;
  }

  // May a message to the reader's micro-batch k wait at its sender? It holds up what follows it on its
  // channel: only where that is for this reader as well, and waits for later slots.
  bool may_wait(const StagedReplica& sender, const Edge& edge, std::uint32_t k) {
    if (slots_follow_saved_) return false;
    if (edge_on_.empty()) find_edges_on_channels();
    const std::uint64_t number = number_of(edge);
    for (const DeviceId to : replica_of(edge.to, k).devices) {
      for (const DeviceId from : sender.devices) {
        if (from != to && edge_on(from, to) != number) return false;
      }
    }
    return true;
  }

  static constexpr std::uint64_t kNoEdge = 0xffffffffffffffff, kSeveral = 0xfffffffffffffffe;
  static std::uint64_t number_of(const Edge& edge) { return std::uint64_t{edge.from} << 32 | edge.to; }
  std::uint64_t& edge_on(DeviceId from, DeviceId to) {
    return edge_on_[from.index() * busy_until_.size() + to.index()];
  }
  void find_edges_on_channels() {
    edge_on_.assign(busy_until_.size() * busy_until_.size(), kNoEdge);
    const auto mark = [&](const StagedReplica& sender, const StagedReplica& receiver, std::uint64_t edge) {
      for (const DeviceId from : sender.devices) {
        for (const DeviceId to : receiver.devices) {
          std::uint64_t& known = edge_on(from, to);
          known = known == kNoEdge || known == edge ? edge : kSeveral;
        }
      }
    };
    for (const Edge& edge : edges_) {
      const bool back = flows_back(*edge.crossing, *edge.reader);
      for (const StagedReplica& sender : model_.stages[edge.from].replicas) {
        for (const StagedReplica& receiver : model_.stages[edge.to].replicas) {
          mark(sender, receiver, number_of(edge));
          if (back) mark(receiver, sender, kSeveral);
        }
      }
    }
  }

  const StagedModel& model_;
  std::vector<Progress> replicas_;
  const bool slots_follow_saved_;
  Clocks busy_until_;                                   // by device
  std::vector<std::size_t> first_of_;                   // by stage: the place of its micro-batch 0
  std::vector<Owner> owners_;                           // by place; replicas counted through the stages
  Clocks forward_done_, backward_done_, end_done_;      // of F; of B or I; of B or W
  std::vector<Edge> edges_;                             // by crossing and reader
  std::vector<std::vector<std::uint32_t>> into_, out_;  // by stage: edges
  std::vector<Ready> ready_;
  std::vector<std::uint32_t> awake_, woken_;  // replicas to look at now; at the next clock
  std::vector<char> is_woken_;                // by replica
  // By two devices: the only stage and reader whose tensors go from one to the other; found when a message
  // has to wait.
  std::vector<std::uint64_t> edge_on_;
  Clock clock_ = 0;
};

}  // namespace

UnitTimeOrder unit_time_order(const StagedModel& model, std::size_t devices, Choice choice) {
  return UnitTimeSimulation(model, devices).run(choice);
}

}  // namespace espalier
