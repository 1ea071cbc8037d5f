#include "espalier/planners/operator_set.h"

#include <algorithm>

namespace espalier {
namespace {

std::vector<OperatorRun> joined(std::vector<OperatorRun> runs) {
  const auto by_first = [](const OperatorRun& a, const OperatorRun& b) { return a.first < b.first; };
  if (!std::is_sorted(runs.begin(), runs.end(), by_first)) std::sort(runs.begin(), runs.end(), by_first);
  std::size_t count = 0;
  for (const OperatorRun& run : runs) {
    if (count > 0 && run.first <= runs[count - 1].last + 1) {
      runs[count - 1].last = std::max(runs[count - 1].last, run.last);
    } else {
      runs[count++] = run;
    }
  }
  runs.resize(count);
  return runs;
}

}  // namespace

OperatorSet::OperatorSet(std::vector<OperatorId> operators) {
  if (!std::is_sorted(operators.begin(), operators.end())) std::sort(operators.begin(), operators.end());
  operators.erase(std::unique(operators.begin(), operators.end()), operators.end());
  append_runs(operators, runs_);
}

OperatorSet::OperatorSet(std::vector<OperatorRun> runs) : runs_(joined(std::move(runs))) {}

std::size_t OperatorSet::size() const {
  std::size_t count = 0;
  for (const OperatorRun& run : runs_) count += run.last - run.first + 1;
  return count;
}

bool OperatorSet::contains(OperatorId op) const {
  const auto behind = std::upper_bound(runs_.begin(), runs_.end(), op.index(),
                                       [](std::size_t id, const OperatorRun& run) { return id < run.first; });
  return behind != runs_.begin() && op.index() <= std::prev(behind)->last;
}

std::vector<OperatorId> OperatorSet::operators() const {
  std::vector<OperatorId> result;
  result.reserve(size());
  for (const OperatorRun& run : runs_) {
    for (std::size_t id = run.first; id <= run.last; ++id) result.push_back(OperatorId(id));
  }
  return result;
}

OperatorSet united(const OperatorSet& a, const OperatorSet& b) {
  std::vector<OperatorRun> runs(a.runs().begin(), a.runs().end());
  runs.insert(runs.end(), b.runs().begin(), b.runs().end());
  return OperatorSet(std::move(runs));
}

OperatorSet without(const OperatorSet& from, const OperatorSet& part) {
  std::vector<OperatorRun> runs;
  auto next = part.runs().begin();
  for (OperatorRun run : from.runs()) {
    while (next != part.runs().end() && next->last < run.first) ++next;
    for (auto at = next; at != part.runs().end() && at->first <= run.last && run.first <= run.last; ++at) {
      if (at->first > run.first) runs.push_back({run.first, at->first - 1});
      run.first = std::max(run.first, at->last + 1);
    }
    if (run.first <= run.last) runs.push_back(run);
  }
  return OperatorSet(std::move(runs));
}

OperatorSet common(const OperatorSet& a, const OperatorSet& b) {
  std::vector<OperatorRun> runs;
  auto other = b.runs().begin();
  for (const OperatorRun& run : a.runs()) {
    while (other != b.runs().end() && other->last < run.first) ++other;
    for (auto at = other; at != b.runs().end() && at->first <= run.last; ++at) {
      runs.push_back({std::max(run.first, at->first), std::min(run.last, at->last)});
    }
  }
  return OperatorSet(std::move(runs));
}

}  // namespace espalier
