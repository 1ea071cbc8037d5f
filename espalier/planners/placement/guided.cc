#include "espalier/planners/placement/guided.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "espalier/planners/placement/descent.h"

namespace espalier::placement {
namespace {

constexpr std::size_t kUsualCluster = 8;
constexpr std::uint64_t kLooksOfPath = 8;  // least number between two paths
constexpr std::size_t kProposals = 64;     // changes that are rated for one that is judged
constexpr std::uint64_t kOneIsAny = 4;     // one look in so many is at any change

// The same for the same moves in any order.
std::uint64_t key_of(const Change& change) {
  std::uint64_t key = 0;
  for (const Incremental::Move& move : change)
    key += mix64((std::uint64_t{move.unit.index()} << 32 | move.device.index()) + 1);
  return key;
}

}  // namespace

void ChangeSource::see(std::span<const TaskId> path, std::span<const DeviceId> at) {
  path_.assign(path.begin(), path.end());
  borders_.clear();
  for (std::size_t i = 1; i < path_.size(); ++i) {
    if (at[unit(i - 1).index()] != at[unit(i).index()]) borders_.push_back(i);
  }
}

Change ChangeSource::draw(std::span<const DeviceId> at, std::size_t kind, Rng& rng) const {
  if (kind < kMoveKinds) return random_change(around_, at, static_cast<MoveKind>(kind), most_, rng);
  const std::size_t of_path = kind - kMoveKinds;
  return draw_from_path(at, of_path < 2, of_path % 2 == 1, rng);
}

Change ChangeSource::draw_from_path(std::span<const DeviceId> at, bool across, bool cluster, Rng& rng) const {
  if (path_.empty() || (across && borders_.empty())) return {};
  UnitId moved;
  DeviceId to;
  if (across) {
    const std::size_t border = borders_[rng.below(borders_.size())];
    moved = unit(border);
    UnitId beside = unit(border - 1);
    if (rng.below(2) == 0) std::swap(moved, beside);
    to = at[beside.index()];
  } else {
    moved = unit(rng.below(path_.size()));
    const std::span<const DeviceId> allowed = around_.instance().allowed[moved.index()];
    to = allowed[rng.below(allowed.size())];
  }
  if (!cluster) return all_to(around_, at, std::span(&moved, 1), to);
  std::size_t most = 2 + rng.below(kUsualCluster);
  while (rng.below(4) == 0) most *= 2;
  most = std::min(most, most_);
  return all_to(around_, at, cluster_around(around_, at, moved, most), to);
}

namespace {

// Changes as they are drawn.
class RandomChanges {
 public:
  static constexpr std::uint64_t kMostEmpty = 1'000;  // in a row, until there is nothing to change
  RandomChanges(Walk& walk, Rng& rng) : walk_(walk), rng_(rng), source_(walk.around()) {}

  // What the path is now; false where the walk has ended.
  bool see() {
    if (!walk_.count_one()) return false;
    const Timeline now = timeline(walk_.engine(), walk_.at());
    source_.see(critical_tasks(walk_.around().instance(), walk_.at(), now), walk_.at());
    return true;
  }

  Change draw() {
    kind_ = kinds_.draw(rng_);
    Change change = source_.draw(walk_.at(), kind_, rng_);
    if (change.empty()) kinds_.learn(kind_, false);
    return change;
  }

  // What became of the last one.
  void hear(bool /*taken*/, bool gained) { kinds_.learn(kind_, gained); }
  void moved_away() {}

 private:
  Walk& walk_;
  Rng& rng_;
  ChangeSource source_;
  KindChoice kinds_{ChangeSource::kKinds};
  std::size_t kind_ = 0;
};

// Of many that are drawn the one that a guide rates highest, none twice while the assignment stays.
class ProposedChanges {
 public:
  static constexpr std::uint64_t kMostEmpty = 1'000 / kProposals;
  ProposedChanges(Walk& walk, Rng& rng, const ProposalGuide& guide)
      : walk_(walk), rng_(rng), guide_(guide), source_(walk.around()) {}

  bool see() {
    if (!walk_.count_one()) return false;
    view_.emplace(walk_.around(), walk_.engine(), walk_.at());
    source_.see(view_->path(), walk_.at());
    return true;
  }

  Change draw() {
    // The guide has seen what changes are worth while memory that devices lack costs little.
    const bool dear = !walk_.evaluated().fits && walk_.charge() > 1;
    const bool any = rng_.below(kOneIsAny) == 0 || dear;
    Change chosen;
    float highest = 0;
    for (std::size_t drawn = 0; drawn < kProposals; ++drawn) {
      const std::size_t kind = kinds_.draw(rng_);
      Change change = source_.draw(walk_.at(), kind, rng_);
      if (change.empty()) continue;
      const std::uint64_t key = key_of(change);
      if (judged_.contains(key)) continue;
      const float rate = any ? 0 : guide_.rate(view_->of(walk_.at(), change, kind));
      if (!chosen.empty() && rate <= highest) continue;
      chosen = std::move(change);
      kind_ = kind, key_ = key, highest = rate;
      if (any) break;
    }
    return chosen;
  }

  void hear(bool taken, bool gained) {
    kinds_.learn(kind_, gained);
    judged_.insert(key_);
    if (taken) judged_.clear();
  }
  void moved_away() { judged_.clear(); }

 private:
  Walk& walk_;
  Rng& rng_;
  const ProposalGuide& guide_;
  ChangeSource source_;
  KindChoice kinds_{ChangeSource::kKinds};
  std::optional<StepView> view_;
  std::size_t kind_ = 0;
  std::uint64_t key_ = 0;
  std::unordered_set<std::uint64_t> judged_;  // since the assignment changed
};

template <class Changes>
void accept_changes(Walk& walk, Rng& rng, std::uint64_t patience, Changes changes) {
  if (!changes.see()) return;
  std::uint64_t empty = 0, looks = 0, in_vain = 0;
  bool moved = false;
  while (walk.goes_on() && empty < Changes::kMostEmpty) {
    const bool stuck = in_vain > patience;
    if (stuck) {
      kick(walk, rng);
      changes.moved_away();
      in_vain = 0;
    }
    if (stuck || (moved && looks >= kLooksOfPath)) {
      if (!changes.see()) return;
      looks = 0, moved = false;
    }
    const Change change = changes.draw();
    empty = change.empty() ? empty + 1 : 0;
    if (change.empty()) continue;
    const Duration before = walk.score();
    const bool taken = walk.offer(change, before), gained = taken && walk.score() < before;
    ++looks;
    in_vain = gained ? 0 : in_vain + 1;
    moved = moved || taken;
    changes.hear(taken, gained);
  }
}

}  // namespace

void guided_accept(Walk& walk, Rng& rng, std::uint64_t patience) {
  accept_changes(walk, rng, patience, RandomChanges(walk, rng));
}

void proposed_accept(Walk& walk, Rng& rng, const ProposalGuide& guide, std::uint64_t patience) {
  accept_changes(walk, rng, patience, ProposedChanges(walk, rng, guide));
}

}  // namespace espalier::placement
