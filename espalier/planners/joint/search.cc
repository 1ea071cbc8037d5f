#include "espalier/planners/joint/search.h"

#include <algorithm>
#include <set>
#include <tuple>

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
constexpr std::size_t kKicked = 8;  // plans for each kick
constexpr std::size_t kRoundsOfAKick = 8;
constexpr std::size_t kSameMicroBatch = 4;  // plans of the beam with one micro-batch
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

  bool full() const { return members.size() >= width; }
};

class Search {
 public:
  Search(const Space& space, const SearchOptions& options, Judge& judge, Context& context)
      : space_(space), options_(options), judge_(judge), context_(context), rng_(options.seed) {}

  std::vector<Proposal> run(const std::vector<Proposal>& starts) {
    Beam beam{.members = {}, .met = {}, .width = options_.width, .most_moves = options_.most_moves};
    judge_all(fresh(starts, beam), beam);
    descend(beam, SIZE_MAX);
    std::size_t in_vain = 0;
    for (std::size_t kick = 0; in_vain < options_.kicks && !beam.members.empty() && goes_on(); ++kick) {
      const Duration before = beam.members.front().iteration;
      kick_from(beam.members[kick % std::min<std::size_t>(2, beam.members.size())].plan, beam);
      in_vain = beam.members.front().iteration < before ? 0 : in_vain + 1;
    }
    std::vector<Proposal> best;
    for (Member& member : beam.members) best.push_back(std::move(member.plan));
    return best;
  }

 private:
  bool goes_on() const {
    const std::optional<Duration> best = judge_.best();
    return !context_.stop() && !context_.budget_spent &&
           !(best && options_.bound && *best <= *options_.bound);
  }

  // Until every plan of the beam was left.
  void descend(Beam& beam, std::size_t rounds) {
    for (std::size_t round = 0; round < rounds && goes_on(); ++round) {
      std::vector<Proposal> moves;
      std::size_t leaving = 0;
      for (Member& member : beam.members) {
        if (member.left || leaving == kLeftAtOnce) continue;
        member.left = true;
        ++leaving;
        std::vector<Proposal> some =
            some_of(fresh(moves_of(Site(space_, member.plan), options_.orders), beam), beam);
        moves.insert(moves.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
      }
      if (leaving == 0) return;
      judge_all(std::move(moves), beam);
      context_.report(static_cast<double>(context_.states) / static_cast<double>(context_.budget.max_states));
    }
  }

  // A few random steps from a plan, and down from there.
  void kick_from(const Proposal& plan, Beam& beam) {
    Beam side{.members = {}, .met = {}, .width = 2, .most_moves = options_.most_moves / 3};
    std::vector<Proposal> kicked;
    for (std::size_t i = 0; i < kKicked; ++i) {
      Proposal at = plan;
      for (std::uint64_t steps = 2 + rng_.below(3); steps > 0; --steps) {
        std::vector<Proposal> moves = moves_of(Site(space_, at, rng_), options_.orders);
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

  // Those with the least busy devices, and as many again at random up to the number that may be judged.
  std::vector<Proposal> some_of(std::vector<Proposal> plans, const Beam& beam) {
    struct Rated {
      Duration most;
      double unevenness;
      std::size_t number;
    };
    std::vector<Rated> rated;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const Load load = load_of(space_, plans[i]);
      if (beam.full() && load.most() >= beam.members.back().iteration) continue;
      rated.push_back({load.most(), load.unevenness(), i});
    }
    std::sort(rated.begin(), rated.end(), [](const Rated& a, const Rated& b) {
      return std::tuple(a.most, a.unevenness, a.number) < std::tuple(b.most, b.unevenness, b.number);
    });
    const std::size_t surely = 2 * beam.most_moves / 3;
    for (std::size_t i = surely; i < rated.size(); ++i) {
      std::swap(rated[i], rated[i + rng_.below(rated.size() - i)]);
    }
    rated.resize(std::min(rated.size(), beam.most_moves));
    std::vector<Proposal> result;
    for (const Rated& each : rated) result.push_back(std::move(plans[each.number]));
    return result;
  }

  void judge_all(std::vector<Proposal> plans, Beam& beam) {
    add_those_that_fit(judged(plans), plans, beam);
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
    while (count < plans.size() && context_.take_states(charge_of(space_, plans[count]))) ++count;
    return judge_.consider_all(std::span(plans).first(count));
  }

  void add(Proposal plan, const Verdict& verdict, Beam& beam) {
    const double unevenness = load_of(space_, plan).unevenness();
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
  Rng rng_;
  struct Lacking {
    Proposal plan;
    Verdict verdict;
  };
  std::vector<Lacking> lacking_;  // what did not fit and was fast enough, of those judged last
  std::uint64_t numbers_ = 0;
};

}  // namespace

std::vector<Proposal> search(const Space& space, const std::vector<Proposal>& starts,
                             const SearchOptions& options, Judge& judge, Context& context) {
  return Search(space, options, judge, context).run(starts);
}

}  // namespace espalier::joint
