#include "espalier/schedule/unit_time.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "espalier/schedule/shares.h"

namespace espalier {
namespace {

using Next = Progress::Next;

class UnitTimeSimulation {
 public:
  UnitTimeSimulation(const StagedModel& model, std::size_t devices)
      : model_(model),
        replicas_(beginnings(model)),
        owners_(owners_of(model)),
        slots_follow_saved_(model.orders.rule()->edition == OrderRule::Edition::kFirst),
        busy_until_(devices, 0) {
    std::size_t micro_batches = 0;
    for (const StagedStage& stage : model.stages) {
      first_of_.push_back(micro_batches);
      micro_batches += stage.micro_batches;
    }
    for (Clocks* when : {&forward_done_, &backward_done_, &end_done_}) when->assign(micro_batches, kNever);
    reads_.resize(model.stages.size());
    sends_.resize(model.stages.size());
    for (const Crossing& crossing : model.crossings) {
      sends_[crossing.from.index()].push_back(&crossing);
      for (const Crossing::Reader& reader : crossing.readers)
        reads_[reader.stage.index()].push_back(&crossing);
    }
    of_stage_.resize(model.stages.size());
    is_woken_.resize(replicas_.size());
    for (std::uint32_t r = 0; r < replicas_.size(); ++r) {
      of_stage_[replicas_[r].stage.index()].push_back(r);
      wake(r);
    }
  }

  UnitTimeOrder run(Choice choice) {
    UnitTimeOrder result;
    std::size_t before = 0;
    do {
      before = result.started.size();
      awake_ = std::exchange(woken_, {});
      std::sort(awake_.begin(), awake_.end());
      for (const std::uint32_t r : awake_) is_woken_[r] = 0;
      for (const Next next : {Next::kBackward, Next::kForward, Next::kWeights}) {
        find_ready(next, choice);
        for (Progress* replica : ready_) start(*replica, next, result.started);
      }
      ++clock_;
    } while (result.started.size() > before);
    result.completed = std::all_of(replicas_.begin(), replicas_.end(),
                                   [](const Progress& replica) { return replica.finished(); });
    for (const Progress& replica : replicas_) append_pattern(replica, result.started);
    return result;
  }

 private:
  static constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
  using Clocks = std::vector<std::size_t>;  // by place: of a stage's micro-batch

  // What a replica may do changes when it, a micro-batch that it reads from or a stage that it sends to has
  // done something: only then is it looked at, one clock later, and where its device was busy. So a model of
  // 50,000 fragments costs what its crossings cost, not the square of its fragments.
  void wake(std::uint32_t replica) {
    if (is_woken_[replica] != 0) return;
    is_woken_[replica] = 1;
    woken_.push_back(replica);
  }
  void wake_all(StageId stage) {
    for (const std::uint32_t replica : of_stage_[stage.index()]) wake(replica);
  }
  // A forward pass feeds its readers. What frees a slot may let any replica go on that sends to the stage.
  void wake_for(const Progress& replica, Next next, std::uint32_t j) {
    wake(number_of(replica));
    if (next != Next::kForward || slots_follow_saved_) {
      for (const Crossing* crossing : reads_[replica.stage.index()]) wake_all(crossing->from);
    }
    if (next != Next::kForward) return;
    for (const Crossing* crossing : sends_[replica.stage.index()]) {
      for (const Crossing::Reader& reader : crossing->readers) {
        const auto range = overlapping(j, count(replica.stage), count(reader.stage));
        for (std::uint32_t k = range.begin; k < range.end; ++k) {
          wake(of_stage_[reader.stage.index()][owners_[reader.stage.index()][k].replica]);
        }
      }
    }
  }
  std::uint32_t number_of(const Progress& replica) const {
    return static_cast<std::uint32_t>(&replica - replicas_.data());
  }

  // Replicas whose next action of this sort could start now, the most urgent first.
  void find_ready(Next next, Choice choice) {
    ready_.clear();
    for (const std::uint32_t r : awake_) {
      Progress& replica = replicas_[r];
      if (replica.finished()) continue;
      const bool allowed = choice == Choice::kPattern ? replica.in_pattern() == next : replica.may(next);
      const bool forwards_are_left = replica.forwards < replica.share();
      const bool too_early = choice == Choice::kForwardsFirst && next == Next::kBackward && forwards_are_left;
      if (!allowed || too_early) continue;
      if (is_ready(replica, next)) ready_.push_back(&replica);
    }
    std::sort(ready_.begin(), ready_.end(), [&](const Progress* a, const Progress* b) {
      const std::uint64_t x = std::uint64_t{a->action(next).micro_batch} * count(b->stage);
      const std::uint64_t y = std::uint64_t{b->action(next).micro_batch} * count(a->stage);
      if (x != y) return x < y;
      return a->stage != b->stage ? a->stage > b->stage : a < b;
    });
  }

  bool is_ready(const Progress& replica, Next next) {
    const Action action = replica.action(next);
    switch (next) {
      case Next::kForward:
        return forward_ready(*replica.replica, action);
      case Next::kBackward:
        return backward_ready(action);
      case Next::kWeights:
        break;
    }
    return done(backward_done_, action.stage(), action.micro_batch);
  }

  void start(Progress& replica, Next next, std::vector<StartedAction>& started) {
    const std::vector<DeviceId>& devices = replica.replica->devices;
    if (std::any_of(devices.begin(), devices.end(),
                    [&](DeviceId device) { return busy_until_[device.index()] > clock_; })) {
      wake(number_of(replica));
      return;
    }
    for (const DeviceId device : devices) busy_until_[device.index()] = clock_ + 1;
    const Action action = replica.action(next);
    const auto set = [&](Clocks& when) { when[place(action.stage(), action.micro_batch)] = clock_ + 1; };
    if (next == Next::kForward) set(forward_done_);
    if (next == Next::kBackward) set(backward_done_);
    if (next == Next::kWeights || (next == Next::kBackward && !replica.split)) set(end_done_);
    started.push_back({replica.replica, action});
    replica.advance(next);
    wake_for(replica, next, action.micro_batch);
  }

  bool done(const Clocks& when, StageId stage, std::uint32_t j) const {
    return when[place(stage, j)] <= clock_;
  }
  std::size_t place(StageId stage, std::uint32_t j) const { return first_of_[stage.index()] + j; }
  std::uint32_t count(StageId stage) const { return model_.stages[stage.index()].micro_batches; }
  const StagedReplica& replica_of(StageId stage, std::uint32_t j) const {
    return model_.stages[stage.index()].replicas[owners_[stage.index()][j].replica];
  }

  bool forward_ready(const StagedReplica& replica, const Action& action) {
    for (const Crossing* crossing : reads_[action.stage().index()]) {
      const auto range = overlapping(action.micro_batch, count(action.stage()), count(crossing->from));
      for (std::uint32_t j = range.begin; j < range.end; ++j) {
        if (!done(forward_done_, crossing->from, j)) return false;
        if (!edge_on_.empty() && !has_left(*crossing, j, action)) return false;
      }
    }
    for (const Crossing* crossing : sends_[action.stage().index()]) {
      for (const Crossing::Reader& reader : crossing->readers) {
        const auto range = overlapping(action.micro_batch, count(action.stage()), count(reader.stage));
        for (std::uint32_t k = range.begin; k < range.end; ++k) {
          if (!slot_free(replica, *crossing, reader, k) && !may_wait(replica, *crossing, reader, k))
            return false;
        }
      }
    }
    return true;
  }

  // Has the message from micro-batch j to this forward pass left, if it had to wait for its slot?
  bool has_left(const Crossing& crossing, std::uint32_t j, const Action& action) const {
    const auto reader =
        std::find_if(crossing.readers.begin(), crossing.readers.end(),
                     [&](const Crossing::Reader& each) { return each.stage == action.stage(); });
    return slot_free(replica_of(crossing.from, j), crossing, *reader, action.micro_batch);
  }

  bool backward_ready(const Action& action) const {
    if (!done(forward_done_, action.stage(), action.micro_batch)) return false;
    for (const Crossing* crossing : sends_[action.stage().index()]) {
      for (const Crossing::Reader& reader : crossing->readers) {
        if (!flows_back(*crossing, reader)) continue;
        const auto range = overlapping(action.micro_batch, count(action.stage()), count(reader.stage));
        for (std::uint32_t k = range.begin; k < range.end; ++k) {
          if (!done(backward_done_, reader.stage, k)) return false;
        }
      }
    }
    return true;
  }

  // May a message to the reader's micro-batch k be posted: has the micro-batch as many before it as there are
  // slots been released by all stages on the receiving device?
  bool slot_free(const StagedReplica& sender, const Crossing& crossing, const Crossing::Reader& reader,
                 std::uint32_t k) const {
    const StagedReplica& receiver = replica_of(reader.stage, k);
    if (receiver.devices == sender.devices) return true;
    const std::uint32_t slots = model_.stages[reader.stage.index()].receive_slots();
    const std::uint32_t rank = owners_[reader.stage.index()][k].rank;
    if (rank < slots) return true;
    const std::uint32_t earlier = receiver.micro_batches[rank - slots];
    for (const Crossing::Reader& other : crossing.readers) {
      const auto range = overlapping(earlier, count(reader.stage), count(other.stage));
      const bool after_forward = slots_follow_saved_ && !other.saved;
      for (std::uint32_t l = range.begin; l < range.end; ++l) {
        if (!share_a_device(replica_of(other.stage, l).devices, receiver.devices)) continue;
        if (!done(after_forward ? forward_done_ : end_done_, other.stage, l)) return false;
      }
    }
    return true;
  }

  // May a message to the reader's micro-batch k wait at its sender? It holds up what follows it on its
  // channel: only where that is for this reader as well, and waits for later slots.
  bool may_wait(const StagedReplica& sender, const Crossing& crossing, const Crossing::Reader& reader,
                std::uint32_t k) {
    if (slots_follow_saved_) return false;
    if (edge_on_.empty()) find_edges();
    const std::uint64_t edge = edge_of(crossing.from, reader.stage);
    for (const DeviceId to : replica_of(reader.stage, k).devices) {
      for (const DeviceId from : sender.devices) {
        if (from != to && edge_on(from, to) != edge) return false;
      }
    }
    return true;
  }

  static constexpr std::uint64_t kNoEdge = 0xffffffffffffffff, kSeveral = 0xfffffffffffffffe;
  static std::uint64_t edge_of(StageId from, StageId reader) {
    return std::uint64_t{from.index()} << 32 | reader.index();
  }
  std::uint64_t& edge_on(DeviceId from, DeviceId to) {
    return edge_on_[from.index() * busy_until_.size() + to.index()];
  }
  void find_edges() {
    edge_on_.assign(busy_until_.size() * busy_until_.size(), kNoEdge);
    const auto mark = [&](const StagedReplica& sender, const StagedReplica& receiver, std::uint64_t edge) {
      for (const DeviceId from : sender.devices) {
        for (const DeviceId to : receiver.devices) {
          std::uint64_t& known = edge_on(from, to);
          known = known == kNoEdge || known == edge ? edge : kSeveral;
        }
      }
    };
    for (const Crossing& crossing : model_.crossings) {
      for (const Crossing::Reader& reader : crossing.readers) {
        for (const StagedReplica& sender : model_.stages[crossing.from.index()].replicas) {
          for (const StagedReplica& receiver : model_.stages[reader.stage.index()].replicas) {
            mark(sender, receiver, edge_of(crossing.from, reader.stage));
            if (flows_back(crossing, reader)) mark(receiver, sender, kSeveral);
          }
        }
      }
    }
  }

  const StagedModel& model_;
  std::vector<Progress> replicas_;
  Owners owners_;
  const bool slots_follow_saved_;
  std::vector<std::size_t> busy_until_;             // by device
  std::vector<std::size_t> first_of_;               // by stage: the place of its micro-batch 0
  Clocks forward_done_, backward_done_, end_done_;  // of F; of B or I; of B or W
  std::vector<Progress*> ready_;
  std::vector<std::vector<const Crossing*>> reads_;  // by stage
  std::vector<std::vector<const Crossing*>> sends_;
  std::vector<std::vector<std::uint32_t>> of_stage_;  // replicas
  std::vector<std::uint32_t> awake_, woken_;          // replicas to look at now, ascending; at the next clock
  std::vector<char> is_woken_;                        // by replica
  // By two devices: the only stage and reader whose tensors go from one to the other; found when a message
  // has to wait.
  std::vector<std::uint64_t> edge_on_;
  std::size_t clock_ = 0;
};

}  // namespace

UnitTimeOrder unit_time_order(const StagedModel& model, std::size_t devices, Choice choice) {
  return UnitTimeSimulation(model, devices).run(choice);
}

}  // namespace espalier
