#pragma once

// A walk from assignment to assignment, and the searches that lead it: accept if not worse, tabu search,
// large neighbourhoods. (annealing.h and descent.h have the others.)
//
// An assignment's score is its step time where it fits. Where it does not, the score is larger, the more the
// more the devices lack: so a search may pass through overfull assignments, and is drawn out of them. The
// charge grows while a walk stays overfull and shrinks while it fits (strategic oscillation: Glover, 1977).
// Only assignments that fit are results.

#include <cstdint>
#include <optional>
#include <span>

#include "espalier/placement/engine.h"
#include "espalier/planners/context.h"
#include "espalier/planners/placement/moves.h"

namespace espalier::placement {

// An assignment that fits, and its step.
struct FittingAssignment {
  Assignment assignment;
  Duration time;
};

// One walk. Each assignment that is looked at takes a state of the context; once it has no more, or somebody
// wants the end, nothing moves any longer.
class Walk {
 public:
  Walk(const Engine& engine, const Neighbourhood& around, Assignment start, Context& context);

  const Engine& engine() const { return engine_; }
  const Neighbourhood& around() const { return around_; }
  const Assignment& at() const { return incremental_.assignment(); }
  const Evaluated& evaluated() const { return incremental_.evaluated(); }
  Duration score() const { return score_; }
  Duration score_of(const Evaluated& evaluated) const;
  double charge() const { return charge_; }  // for what devices lack; 1 in the beginning

  bool goes_on() const { return !context_.stop() && context_.states < until_; }
  // The walk goes on for so many states.
  void allow(std::uint64_t states);
  std::uint64_t states() const { return context_.states; }
  double share_left() const;  // of what allow() gave

  // What the change leads to; nothing where its score is above `most`, or the walk has ended.
  std::optional<Duration> look(std::span<const Incremental::Move> change, Duration most);
  // Makes what look() last saw.
  void take();
  // look and take.
  bool offer(std::span<const Incremental::Move> change, Duration most);
  // Back, or anywhere else, whatever it costs; takes a state.
  void go_to(const Assignment& assignment);

  // A state for work other than a look; false where the walk has ended.
  bool count_one() { return goes_on() && context_.take_state(); }

  const std::optional<FittingAssignment>& best() const { return best_; }
  // The best in this walk's own scores, though it may not fit.
  const Assignment& nearest() const { return best_ ? best_->assignment : nearest_; }

 private:
  void settle();  // after each assignment that it stands at

  const Engine& engine_;
  const Neighbourhood& around_;
  Context& context_;
  Incremental incremental_;
  std::uint64_t until_, began_ = 0;
  Bytes memory_ = {};  // of all devices
  double charge_ = 1;
  int overfull_ = 0;  // looks in a row
  Duration score_ = {}, seen_ = {};
  std::optional<FittingAssignment> best_;
  Assignment nearest_;
  std::optional<Bytes> least_lack_;
};

// Kinds of changes by what they gained of late. All keep a part of the tries.
class KindChoice {
 public:
  explicit KindChoice(std::size_t kinds) : weight_(kinds, 1.0) {}
  std::size_t draw(Rng& rng) const;
  void learn(std::size_t kind, bool gained);

 private:
  std::vector<double> weight_;
};

// The most units that a change of a walk moves.
std::size_t largest_change(const Neighbourhood& around);

// Random changes, each kept unless it is worse: of equal ones too, which lead over plateaus (rejecting them
// costs 1-4 %). Kinds of changes that gain more are tried more.
void accept_if_not_worse(Walk& walk, Rng& rng);

// The best of a few changes each time, though it be worse; a unit that moved stays for a while (Glover,
// 1989).
void tabu_search(Walk& walk, Rng& rng);

// Some units around each other lose their places and get them back one by one, each where the step is
// shortest; kept unless it is worse (Shaw, 1998).
void large_neighbourhood(Walk& walk, Rng& rng);

}  // namespace espalier::placement
