#include "espalier/planners/joint/search.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <span>
#include <tuple>

#include "espalier/base/shuffle.h"

// Iterated local search (Lourenço, Martin, Stützle, 2003) over whole plans, with a beam in place of one
// incumbent. A round takes the two best plans of the beam that were not left yet, judges the plans one step
// away on all threads, and keeps the best of all. Ranks are made after the round, from numbers dealt before
// it: threads do not count. A plan whose devices have more work than the worst of the beam takes time is not
// judged: its step cannot be shorter than its busiest device's work.
//
// Of the plans that do not fit the fastest are tried again with recomputation on the devices that lack
// memory, where that is fast enough for the beam. So recomputation is proposed where memory binds, whatever
// move led there: a larger micro-batch, fewer devices, a start that does not fit; moves take back what is not
// needed.
//
// Of equal iterations the more even plan ranks first: where two devices are the bottleneck, a step that
// relieves one of them leads on though the iteration stays.

namespace espalier::joint {
namespace {

constexpr std::size_t kLeftAtOnce = 2;
constexpr std::uint64_t kPartOfSizes = 3;   // of the states: 1/2, that sizes climb with by themselves
constexpr std::size_t kTrackWidth = 6;      // plans of the beam of one size
constexpr std::size_t kRoundsOfAShare = 8;  // that a size climbs, at least, unless that leaves too few moves:
constexpr std::size_t kLeastMoves = 24;
constexpr std::size_t kKicked = 8;  // plans for each kick
constexpr std::size_t kRoundsOfAKick = 8;
constexpr std::size_t kLeanerEvery = 5;
constexpr std::int64_t kNearly = 8;  // kicked too: plans of less memory, 1/8 slower than the best at most
constexpr std::size_t kSameMicroBatch = 4;  // plans of the beam with one micro-batch
constexpr std::size_t kPartOfOrders = 8;    // of the moves, where states are short: 1/8
constexpr std::size_t kRecomputed = 8;      // of the plans of a round that do not fit
constexpr std::size_t kHalved = 2;    // of those, that are also tried with their stages cut on their devices
constexpr std::size_t kHalvings = 3;  // at most

struct Member {
  Proposal plan;
  Duration iteration;
  Bytes peak;
  double unevenness = 0;
  std::uint64_t number = 0;
  bool left = false;

  auto rank() const { return std::tuple(iteration, unevenness, peak, number); }
};

struct Beam {
  std::vector<Member> members;  // by rank
  std::set<std::uint64_t> met;  // signatures
  std::size_t width = 0, most_moves = 0;
  std::optional<BatchSize> size = {};  // of all its plans

  bool full() const { return members.size() >= width; }
};

class Search {
 public:
  Search(const Space& space, const SearchOptions& options, Judge& judge, Context& context)
      : space_(space),
        options_(options),
        judge_(judge),
        context_(context),
        tables_(options.guide ? std::optional<FigureTables>(space) : std::nullopt),
        rng_(options.seed),
        states_of_size_(space.sizes().size()) {}

  Searched run(const std::vector<Proposal>& starts) {
    Beam beam{.members = {}, .met = {}, .width = options_.width, .most_moves = options_.most_moves};
    judge_all(fresh(starts, beam), beam);
    if (space_.sizes().size() > 1 && space_.problem().locked.empty()) halve_sizes(starts, beam);
    descend(beam, SIZE_MAX);
    std::size_t in_vain = 0;
    for (std::size_t kick = 0; in_vain < options_.kicks && !beam.members.empty() && goes_on(); ++kick) {
      const Duration before = beam.members.front().iteration;
      kick_from(kicked_plan(kick, beam), beam);
      in_vain = beam.members.front().iteration < before ? 0 : in_vain + 1;
    }
    Searched found{.best = {}, .states_of_size = states_of_size_};
    for (Member& member : beam.members) found.best.push_back(std::move(member.plan));
    return found;
  }

 private:
  bool goes_on(std::optional<BatchSize> size = std::nullopt) const {
    return !context_.stop() && !context_.budget_spent && !limit_reached() && may_improve(size);
  }

  // Whether a plan of this size, or of any, can be faster than the best.
  bool may_improve(std::optional<BatchSize> size) const {
    const std::optional<Duration> best = judge_.best();
    if (!best || options_.bounds.empty()) return true;
    const std::vector<BatchSize>& sizes = space_.sizes();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if ((!size || *size == sizes[i]) && options_.bounds[i] < *best) return true;
    }
    return false;
  }

  // Successive halving (Jamieson, Talwalkar, 2016): each size climbs from all starts brought to it, with an
  // equal part of a round's states; the better half goes on. Plans of a large micro-batch are slow before
  // their stages are few: among those of small ones they would be left before they improve.
  void halve_sizes(const std::vector<Proposal>& starts, Beam& all) {
    std::vector<Beam> tracks;
    for (const BatchSize size : space_.sizes()) {
      if (may_improve(size)) {
        tracks.push_back({.members = {}, .met = {}, .width = kTrackWidth, .most_moves = 0, .size = size});
      }
    }
    std::uint64_t rounds = 0;
    while (std::size_t{1} << rounds < tracks.size()) ++rounds;
    const std::uint64_t left = context_.left();
    while (tracks.size() > 1 && goes_on()) {
      const std::uint64_t share = left / kPartOfSizes / rounds / tracks.size();
      for (Beam& track : tracks) {
        const std::uint64_t before = context_.states;
        limit_ = before + share;
        climb(starts, track, share);
        const auto at = std::lower_bound(space_.sizes().begin(), space_.sizes().end(), *track.size);
        states_of_size_[static_cast<std::size_t>(at - space_.sizes().begin())] += context_.states - before;
      }
      limit_.reset();
      std::stable_sort(tracks.begin(), tracks.end(), [](const Beam& a, const Beam& b) {
        if (a.members.empty() || b.members.empty()) return !a.members.empty();
        return a.members.front().rank() < b.members.front().rank();
      });
      for (std::size_t i = (tracks.size() + 1) / 2; i < tracks.size(); ++i) join(std::move(tracks[i]), all);
      tracks.resize((tracks.size() + 1) / 2);
      std::erase_if(tracks, [&](Beam& track) {
        if (may_improve(*track.size)) return false;
        join(std::move(track), all);
        return true;
      });
    }
    for (Beam& track : tracks) join(std::move(track), all);
    shrink(all);
  }

  // Where the rule may change, with halves of backward too: few moves lead there.
  std::vector<Proposal> brought_to(BatchSize size, const std::vector<Proposal>& starts) const {
    std::vector<Proposal> own;
    for (const Proposal& start : starts) {
      const bool recomputes =
          std::ranges::any_of(start.stages, [](const StageDraft& stage) { return !stage.recompute.empty(); });
      if (recomputes && start.micro_batch != size) continue;
      own.push_back(with_micro_batch(space_, start, size));
      if (options_.orders == OrdersMay::kStay || space_.halves() == Halves::kNever) continue;
      own.push_back(own.back());
      own.back().schedule.backward = OrderRule::Backward::kSplit;
    }
    return own;
  }

  void climb(const std::vector<Proposal>& starts, Beam& track, std::uint64_t share) {
    if (!goes_on(track.size)) return;
    if (track.met.empty()) judge_all(fresh(brought_to(*track.size, starts), track), track);
    if (track.members.empty()) return;
    const std::uint64_t charge = charge_of(space_, track.members.front().plan);
    track.most_moves =
        std::clamp<std::size_t>(share / kRoundsOfAShare / charge, kLeastMoves, options_.most_moves);
    // Of many moves some were judged: as long as states are left, the plans are left again for others.
    for (bool more = true; more && goes_on(track.size);) {
      const std::size_t met = track.met.size();
      for (Member& member : track.members) member.left = false;
      descend(track, SIZE_MAX);
      more = track.met.size() > met;
    }
  }

  static void join(Beam&& track, Beam& all) {
    for (Member& member : track.members) {
      member.left = false;
      all.members.push_back(std::move(member));
    }
    all.met.merge(track.met);
  }

  // Until every plan of the beam was left.
  void descend(Beam& beam, std::size_t rounds) {
    for (std::size_t round = 0; round < rounds && goes_on(beam.size); ++round) {
      std::vector<Proposal> moves;
      std::size_t leaving = 0;
      for (Member& member : beam.members) {
        if (member.left || leaving == kLeftAtOnce) continue;
        member.left = true;
        ++leaving;
        std::vector<Proposal> some =
            fresh(some_of(moves_of(Site(space_, member.plan), options_.orders), member, beam), beam);
        std::ranges::move(some, std::back_inserter(moves));
      }
      if (leaving == 0) return;
      judge_all(std::move(moves), beam);
      context_.report(static_cast<double>(context_.states) / static_cast<double>(context_.budget.max_states));
    }
  }

  // In turn the two best plans, now and then one of those with less memory that are nearly as fast:
  // from them ways lead on that the fastest has no room for.
  Proposal kicked_plan(std::size_t kick, const Beam& beam) const {
    if (kick % kLeanerEvery == kLeanerEvery - 1) {
      std::vector<const Proposal*> leaner;
      for (const auto* entry : pareto_.front()) {
        if (kNearly * entry->price.iteration > (kNearly + 1) * beam.members.front().iteration) break;
        leaner.push_back(&entry->item);
      }
      if (!leaner.empty()) return *leaner[kick / kLeanerEvery % leaner.size()];
    }
    return beam.members[kick % std::min<std::size_t>(2, beam.members.size())].plan;
  }

  // A few random steps from a plan, and down from there.
  void kick_from(const Proposal& plan, Beam& beam) {
    Beam side{.members = {}, .met = {}, .width = 2, .most_moves = options_.most_moves / 3};
    std::vector<Proposal> kicked;
    for (std::size_t i = 0; i < kKicked; ++i) {
      Proposal at = plan;
      for (std::uint64_t steps = 2 + rng_.below(3); steps > 0; --steps) {
        std::vector<Proposal> moves = moves_of(Site(space_, at, rng_), options_.orders).all;
        if (moves.empty()) break;
        at = std::move(moves[rng_.below(moves.size())]);
      }
      kicked.push_back(std::move(at));
    }
    judge_all(fresh(std::move(kicked), side), side);
    descend(side, kRoundsOfAKick);
    for (Member& member : side.members) {
      if (beam.met.insert(signature_of(member.plan)).second) {
        member.left = false;
        beam.members.push_back(std::move(member));
      }
    }
    shrink(beam);
    descend(beam, kRoundsOfAKick);
  }

  static std::vector<Proposal> fresh(std::vector<Proposal> plans, Beam& beam) {
    std::erase_if(plans, [&](const Proposal& plan) { return !beam.met.insert(signature_of(plan)).second; });
    return plans;
  }

  // Of those that were not met as many as may be judged: the most promising, and half as many drawn from the
  // rest. Moves of orders leave all loads as they are and would be the last: where not all are judged and
  // states are left for a few rounds only, some of these are drawn besides.
  std::vector<Proposal> some_of(Moves near, const Member& left, const Beam& beam) {
    const auto is_known = [&](const Proposal& each) {
      return (beam.size && each.micro_batch != *beam.size) || beam.met.contains(signature_of(each));
    };
    const auto begin = near.all.begin() + static_cast<std::ptrdiff_t>(near.orders_begin);
    const auto end = near.all.begin() + static_cast<std::ptrdiff_t>(near.orders_end);
    std::vector<Proposal> drawn;
    std::size_t most = beam.most_moves;
    const auto is_short = [&] {
      return kRoundsOfAShare * most * charge_of(space_, near.all.front()) > context_.left();
    };
    if (near.all.size() > most && is_short()) {
      std::remove_copy_if(begin, end, std::back_inserter(drawn), is_known);
      draw(drawn, most / kPartOfOrders);
      near.all.erase(begin, end);
      most -= drawn.size();
    }
    std::erase_if(near.all, is_known);
    std::vector<Proposal> result = promising(std::move(near.all), most, left, beam);
    std::ranges::move(drawn, std::back_inserter(result));
    return result;
  }

  // So many of them.
  void draw(std::vector<Proposal>& plans, std::size_t most) {
    draw_to_front(std::span(plans), most, rng_);
    if (plans.size() > most) plans.resize(most);
  }

  // How promising a plan is; less is more.
  struct Rated {
    double first = 0, second = 0;
    std::size_t number = 0;
  };

  // The most promising, and half as many drawn from the rest, up to `most`: those with the least busy
  // devices, or those that the guide rates highest.
  std::vector<Proposal> promising(std::vector<Proposal> plans, std::size_t most, const Member& left,
                                  const Beam& beam) {
    std::vector<Rated> rated;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const Load load = load_of(space_, plans[i]);
      if (beam.full() && load.most() >= beam.members.back().iteration) continue;
      rated.push_back({static_cast<double>(load.most().count()), load.unevenness(), i});
    }
    if (tables_ && rated.size() > most) rate_by_guide(plans, left, rated);
    std::sort(rated.begin(), rated.end(), [](const Rated& a, const Rated& b) {
      return std::tuple(a.first, a.second, a.number) < std::tuple(b.first, b.second, b.number);
    });
    const std::size_t surely = std::min(2 * most / 3, rated.size());
    draw_to_front(std::span(rated).subspan(surely), rated.size(), rng_);
    rated.resize(std::min(rated.size(), most));
    std::vector<Proposal> result;
    for (const Rated& each : rated) result.push_back(std::move(plans[each.number]));
    return result;
  }

  void rate_by_guide(const std::vector<Proposal>& plans, const Member& left,
                     std::vector<Rated>& rated) const {
    const PlanFigures before = tables_->of(left.plan);
    std::vector<MoveFigures> moves;
    for (const Rated& each : rated) {
      moves.push_back(figures_of(before, left.iteration, tables_->of(plans[each.number])));
    }
    const std::vector<float> rates = options_.guide->rate(moves);
    for (std::size_t i = 0; i < rated.size(); ++i) {
      rated[i].first = -rates[i];
      rated[i].second = 0;
    }
  }

  bool limit_reached() const { return limit_ && context_.states >= *limit_; }

  void judge_all(std::vector<Proposal> plans, Beam& beam) {
    const auto verdicts = judged(plans);
    for (std::size_t i = verdicts.size(); i < plans.size(); ++i) beam.met.erase(signature_of(plans[i]));
    add_those_that_fit(verdicts, plans, beam);
    if (lacking_.empty()) return;
    std::stable_sort(lacking_.begin(), lacking_.end(), [](const Lacking& a, const Lacking& b) {
      return a.verdict.iteration < b.verdict.iteration;
    });
    std::vector<Proposal> again;
    for (std::size_t i = 0; i < lacking_.size() && i < kRecomputed; ++i) {
      for (Proposal& plan : with_recomputation(space_, lacking_[i].plan, lacking_[i].verdict.excess,
                                               i < kHalved ? kHalvings : 0)) {
        if (!beam.full() || load_of(space_, plan).most() < beam.members.back().iteration) {
          again.push_back(std::move(plan));
        }
      }
    }
    again = fresh(std::move(again), beam);
    add_those_that_fit(judged(again), again, beam);
    lacking_.clear();
  }

  void add_those_that_fit(const std::vector<std::optional<Verdict>>& verdicts, std::vector<Proposal>& plans,
                          Beam& beam) {
    lacking_.clear();
    for (std::size_t i = 0; i < verdicts.size(); ++i) {
      if (!verdicts[i]) continue;
      if (verdicts[i]->fits()) {
        add(std::move(plans[i]), *verdicts[i], beam);
      } else if (verdicts[i]->ruling == Verdict::Ruling::kTooMuchMemory &&
                 (!beam.full() || verdicts[i]->iteration < beam.members.back().iteration)) {
        lacking_.push_back({std::move(plans[i]), *verdicts[i]});
      }
    }
    shrink(beam);
  }

  // As many as the budget allows, the first ones.
  std::vector<std::optional<Verdict>> judged(const std::vector<Proposal>& plans) {
    std::size_t count = 0;
    while (count < plans.size() && !limit_reached() &&
           context_.take_states(charge_of(space_, plans[count]))) {
      ++count;
    }
    std::vector<std::optional<Verdict>> verdicts = judge_.consider_all(std::span(plans).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      if (verdicts[i]) context_.take_states(charge_of_messages(space_, plans[i], verdicts[i]->messages));
    }
    return verdicts;
  }

  void add(Proposal plan, const Verdict& verdict, Beam& beam) {
    const double unevenness = load_of(space_, plan).unevenness();
    pareto_.add({verdict.iteration, verdict.peak, 0}, numbers_, [&] { return plan; });
    beam.members.push_back({std::move(plan), verdict.iteration, verdict.peak, unevenness, numbers_++, false});
  }

  // The best by rank, of each micro-batch a few only.
  static void shrink(Beam& beam) {
    std::sort(beam.members.begin(), beam.members.end(),
              [](const Member& a, const Member& b) { return a.rank() < b.rank(); });
    std::vector<Member> kept;
    for (Member& member : beam.members) {
      if (kept.size() == beam.width) break;
      const auto same = std::count_if(kept.begin(), kept.end(), [&](const Member& other) {
        return other.plan.micro_batch == member.plan.micro_batch;
      });
      if (static_cast<std::size_t>(same) < kSameMicroBatch) kept.push_back(std::move(member));
    }
    beam.members = std::move(kept);
  }

  const Space& space_;
  const SearchOptions& options_;
  Judge& judge_;
  Context& context_;
  const std::optional<FigureTables> tables_;  // for the guide
  Rng rng_;
  struct Lacking {
    Proposal plan;
    Verdict verdict;
  };
  std::vector<Lacking> lacking_;  // what did not fit and was fast enough, of those judged last
  std::uint64_t numbers_ = 0;
  ParetoSet<Proposal, std::uint64_t> pareto_;
  std::optional<std::uint64_t> limit_;         // of states, for the beam at hand
  std::vector<std::uint64_t> states_of_size_;  // Searched::states_of_size
};

}  // namespace

Searched search(const Space& space, const std::vector<Proposal>& starts, const SearchOptions& options,
                Judge& judge, Context& context) {
  return Search(space, options, judge, context).run(starts);
}

}  // namespace espalier::joint
