#include "espalier/planners/joint/parts.h"

#include <algorithm>
#include <tuple>

#include "espalier/base/check.h"
#include "espalier/base/union_find.h"

namespace espalier::joint {
namespace {

constexpr std::size_t kMostPieces = 8;

struct Cut {
  std::uint32_t gap = 0;  // operators below it, and from it on
  Duration before;        // work below it
};

OperatorSet below(const OperatorSet& set, std::uint32_t gap) {
  std::vector<OperatorRun> runs;
  for (const OperatorRun& run : set.runs()) {
    if (run.first >= gap) break;
    runs.push_back({run.first, std::min(run.last, gap - 1)});
  }
  return OperatorSet(std::move(runs));
}

// Every place where both sides have an operator of their own and no group is torn.
std::vector<Cut> cuts_of(const Space& space, const OperatorSet& stage, KindId kind, BatchSize micro_batch) {
  std::vector<Cut> cuts;
  Duration before;
  bool begun = false;
  for (const OperatorRun& run : stage.runs()) {
    for (std::uint32_t op = run.first; op <= run.last; ++op) {
      if (!space.is_own(op)) continue;
      if (begun && space.crossing(op)) cuts.push_back({op, before});
      before += space.work(OperatorRun{op, op}, kind, micro_batch);
      begun = true;
    }
  }
  return cuts;
}

// Of many cuts the first and the last that leave work on both sides, and between them those where fewest
// bytes cross within a third of some shares.
std::vector<Cut> chosen(const Space& space, const std::vector<Cut>& cuts, Duration all) {
  std::vector<Cut> result;
  const auto works = [&](const Cut& cut) { return cut.before > Duration() && cut.before < all; };
  const auto first = std::find_if(cuts.begin(), cuts.end(), works);
  if (first == cuts.end()) return result;
  result.push_back(*first);
  result.push_back(*std::find_if(cuts.rbegin(), cuts.rend(), works));
  constexpr int kShares[] = {4, 8, 16, 24, 32, 40, 48, 56, 60};  // of 64
  for (const int share : kShares) {
    const std::int64_t wanted = all.count() / 64 * share;
    const std::int64_t reach = all.count() / 64 * std::min(share, 64 - share) / 3;
    const Cut* best = nullptr;
    const auto rank = [&](const Cut& cut) {
      return std::tuple(*space.crossing(cut.gap), std::abs(cut.before.count() - wanted));
    };
    for (const Cut& cut : cuts) {
      if (!works(cut) || std::abs(cut.before.count() - wanted) > reach) continue;
      if (!best || rank(cut) < rank(*best)) best = &cut;
    }
    if (best) result.push_back(*best);
  }
  std::sort(result.begin(), result.end(), [](const Cut& a, const Cut& b) { return a.gap < b.gap; });
  result.erase(
      std::unique(result.begin(), result.end(), [](const Cut& a, const Cut& b) { return a.gap == b.gap; }),
      result.end());
  return result;
}

// Operators of the stage that hang together, each set ascending; by their first operator.
std::vector<OperatorSet> pieces_of(const Space& space, const OperatorSet& stage) {
  const std::vector<OperatorId> operators = stage.operators();
  const auto place = [&](std::uint32_t op) {
    const auto at = std::lower_bound(operators.begin(), operators.end(), OperatorId(op));
    const bool here = at != operators.end() && at->index() == op;
    return here ? std::optional(static_cast<std::size_t>(at - operators.begin())) : std::nullopt;
  };
  UnionFind sets(operators.size());
  const auto links = space.links();
  for (const OperatorRun& run : stage.runs()) {
    auto at = std::lower_bound(links.begin(), links.end(), run.first,
                               [](const Link& link, std::uint32_t op) { return link.from < op; });
    for (; at != links.end() && at->from <= run.last; ++at) {
      const auto to = place(at->to);
      if (!to) continue;
      sets.join(narrow(*place(at->from)), narrow(*to));
    }
  }
  std::vector<std::vector<OperatorId>> members(operators.size());
  for (std::size_t i = 0; i < operators.size(); ++i) {
    if (space.is_own(operators[i].index())) members[sets.find(narrow(i))].push_back(operators[i]);
  }
  std::vector<OperatorSet> pieces;
  for (std::vector<OperatorId>& piece : members) {
    if (!piece.empty()) pieces.emplace_back(std::move(piece));
  }
  return pieces;
}

}  // namespace

std::vector<Part> parts_of(const Space& space, const OperatorSet& stage, KindId kind, BatchSize micro_batch) {
  std::vector<Cut> cuts = cuts_of(space, stage, kind, micro_batch);
  if (cuts.size() >= kAllCuts) cuts = chosen(space, cuts, space.work(stage, kind, micro_batch));
  std::vector<Part> parts;
  for (const Cut& cut : cuts) {
    OperatorSet beginning = below(stage, cut.gap);
    OperatorSet end = without(stage, beginning);
    parts.push_back({Part::Side::kBeginning, std::move(beginning)});
    parts.push_back({Part::Side::kEnd, std::move(end)});
  }
  const std::vector<OperatorSet> pieces = pieces_of(space, stage);
  for (std::size_t p = 0; p < pieces.size() && pieces.size() > 1 && p < kMostPieces; ++p) {
    parts.push_back({Part::Side::kPiece, pieces[p]});
  }
  return parts;
}

}  // namespace espalier::joint
