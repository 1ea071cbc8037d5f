// What the authors' program calls critical path is the master stage here, as in the paper. Stages are
// numbered from 0. Every partition is written as the places where its stages end.

#include "espalier/planners/literal/autopipe.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/planners/literal/layer_sequence.h"

namespace espalier::literal {
namespace {

using Nanoseconds = std::int64_t;
using StageEnds = std::vector<std::size_t>;
using BlockSums = std::vector<Nanoseconds>;  // over the blocks before each place

struct PairStarts {
  Nanoseconds forward = 0, backward = 0;
};

// A partition's stages: forward and backward of one micro-batch.
struct PartitionTimes {
  std::vector<Nanoseconds> forward, backward;
  std::size_t size() const { return forward.size(); }
  Nanoseconds both(std::size_t s) const { return forward[s] + backward[s]; }
};

// By stage its pairs from 0 on; nobody asks when the forward of pair 0 begins.
std::vector<std::vector<PairStarts>> steady_pairs(const PartitionTimes& of) {
  const std::size_t n = of.size();
  std::vector<std::vector<PairStarts>> pairs(n);
  Nanoseconds start = 0;
  for (const Nanoseconds time : of.forward) start += time;
  for (std::size_t s = n; s-- > 0;) {
    pairs[s].resize(n + s + 1);
    pairs[s][0].backward = start;
    start += of.backward[s];
  }
  for (std::size_t k = 1; k < 2 * n; ++k) {
    for (std::size_t s = 0; s < n; ++s) {
      if (k >= pairs[s].size()) continue;
      Nanoseconds& forward = pairs[s][k].forward;
      forward = pairs[s][k - 1].backward + of.backward[s];
      if (s > 0 && k > 1) forward = std::max(forward, pairs[s - 1][k - 1].forward + of.forward[s - 1]);
    }
    for (std::size_t s = n; s-- > 0;) {
      if (k >= pairs[s].size()) continue;
      Nanoseconds& backward = pairs[s][k].backward;
      backward = pairs[s][k].forward + of.forward[s];
      if (s + 1 < n) backward = std::max(backward, pairs[s + 1][k].backward + of.backward[s + 1]);
    }
  }
  return pairs;
}

std::size_t master_of(const PartitionTimes& of, const std::vector<std::vector<PairStarts>>& pairs) {
  for (std::size_t s = of.size(); s-- > 0;) {
    bool gap = false;
    for (std::size_t k = 1; k < pairs[s].size(); ++k) {
      gap = gap || pairs[s][k].forward != pairs[s][k - 1].backward + of.backward[s] ||
            pairs[s][k].backward != pairs[s][k].forward + of.forward[s];
    }
    if (!gap) return s;
  }
  ESP_CHECK(false, of.size());  // the last stage with the largest f + b has no gap
  return 0;
}

// When the last backward of the master stage begins. start[i] of column j: of the stage i behind the master,
// j backwards before its last.
Nanoseconds last_backward(const PartitionTimes& of, std::size_t master, Nanoseconds last_forward) {
  const std::size_t stages = of.size() - master;
  std::vector<std::vector<Nanoseconds>> start(stages, std::vector<Nanoseconds>(stages, 0));
  for (std::size_t i = 0; i < stages; ++i) {
    last_forward += of.forward[master + i];
    start[i][stages - 1 - i] = last_forward;
  }
  for (std::size_t j = stages - 1; j-- > 0;) {
    for (std::size_t i = stages - 1 - j; i-- > 0;) {
      start[i][j] =
          std::max(start[i][j + 1] + of.backward[master + i], start[i + 1][j] + of.backward[master + i + 1]);
      if (i > 0) start[i][j] = std::max(start[i][j], start[i - 1][j + 1]);
    }
  }
  return start[0][0];
}

AutopipeStep step_of(const PartitionTimes& of) {
  const std::vector<std::vector<PairStarts>> pairs = steady_pairs(of);
  const std::size_t master = master_of(of, pairs);
  Nanoseconds end = last_backward(of, master, pairs[master].back().forward);
  for (std::size_t s = 0; s <= master; ++s) end += of.backward[s];
  return {end, master};
}

class Autopipe {
 public:
  Autopipe(const AutopipeTimes& times, std::uint64_t max_partitions)
      : stages_(times.forward.size()), blocks_(times.forward.front().size()), left_(max_partitions) {
    const auto sums = [](const std::vector<Nanoseconds>& each) {
      BlockSums all{0};
      for (const Nanoseconds time : each) all.push_back(all.back() + time);
      return all;
    };
    for (std::size_t s = 0; s < stages_; ++s) {
      forward_.push_back(sums(times.forward[s]));
      backward_.push_back(sums(times.backward[s]));
    }
  }

  PartitionTimes times_of(const StageEnds& ends) const {
    PartitionTimes of;
    for (std::size_t s = 0; s < stages_; ++s) {
      const std::size_t begin = s == 0 ? 0 : ends[s - 1];
      of.forward.push_back(forward_[s][ends[s]] - forward_[s][begin]);
      of.backward.push_back(backward_[s][ends[s]] - backward_[s][begin]);
    }
    return of;
  }

  AutopipeSearch run() {
    fill_largest();
    std::set<StageEnds> seen;
    std::deque<StageEnds> waiting{balanced(blocks_, stages_)};
    while (!waiting.empty()) {
      const StageEnds ends = std::move(waiting.front());
      waiting.pop_front();
      const std::optional<AutopipeStep> step = price(ends);
      if (!step) break;
      keep(ends, *step);
      relieve_behind(ends, step->master);
      if (step->master == 0) continue;
      for (std::optional<StageEnds> moved : {to_front(ends, step->master), to_back(ends, step->master)}) {
        if (moved && seen.insert(*moved).second) waiting.push_back(std::move(*moved));
      }
    }
    return std::move(best_);
  }

 private:
  Nanoseconds block(std::size_t stage, std::size_t number) const {
    return forward_[stage][number + 1] - forward_[stage][number] + backward_[stage][number + 1] -
           backward_[stage][number];
  }

  // Nothing where the limit is reached.
  std::optional<AutopipeStep> price(const StageEnds& ends) {
    if (best_.priced == left_) {
      best_.complete = false;
      return std::nullopt;
    }
    ++best_.priced;
    return step_of(times_of(ends));
  }
  void keep(const StageEnds& ends, const AutopipeStep& step) {
    if (!best_.ends.empty() && step.nanoseconds >= best_.step.nanoseconds) return;
    best_.ends = ends;
    best_.step = step;
  }

  // largest_[stages][blocks]: the least largest f + b of so many blocks on the first stages.
  void fill_largest() {
    largest_.assign(stages_ + 1, std::vector<Nanoseconds>(blocks_ + 1, kNever));
    largest_[0][0] = 0;
    for (std::size_t s = 1; s <= stages_; ++s) {
      for (std::size_t end = s; end <= blocks_; ++end) {
        for (std::size_t begin = s - 1; begin < end; ++begin) {
          largest_[s][end] = std::min(largest_[s][end], largest(s, begin, end));
        }
      }
    }
  }
  Nanoseconds largest(std::size_t stages, std::size_t begin, std::size_t end) const {
    const std::size_t last = stages - 1;
    const Nanoseconds own =
        forward_[last][end] - forward_[last][begin] + backward_[last][end] - backward_[last][begin];
    return std::max(largest_[last][begin], own);
  }
  StageEnds balanced(std::size_t blocks, std::size_t stages) const {
    StageEnds ends(stages);
    for (std::size_t s = stages; s > 0; --s) {
      ends[s - 1] = blocks;
      std::size_t begin = s - 1;
      while (largest(s, begin, blocks) != largest_[s][blocks]) ++begin;
      blocks = begin;
    }
    return ends;
  }

  // Moves blocks of the stages behind the master to stages nearer to it.
  void relieve_behind(StageEnds ends, std::size_t master) {
    Nanoseconds gap = 0;
    std::size_t last = master + 1;
    while (true) {
      const std::optional<AutopipeStep> step = price(ends);
      if (!step || (last < stages_ && step->master != master)) return;
      keep(ends, *step);
      if (last == stages_) return;
      const PartitionTimes of = times_of(ends);
      const auto held = [&](std::size_t until) {
        Nanoseconds sum = 0;
        for (std::size_t s = master + 1; s <= until; ++s) sum += of.both(s);
        return sum;
      };
      const auto room = [&](std::size_t until) {
        return static_cast<Nanoseconds>(until - master) * of.backward[master] + gap;
      };
      if (held(last) <= room(last)) {
        ++last;
        continue;
      }
      std::size_t taker = master + 1;
      while (taker < last && (ends[taker + 1] - ends[taker] == 1 ||
                              of.both(master) <= of.both(taker) + block(taker, ends[taker]))) {
        ++taker;
      }
      if (taker == last) return;
      ++ends[taker];
      gap += std::max<Nanoseconds>(0, held(taker) - room(taker));
      last = taker + 1;
    }
  }

  std::optional<StageEnds> to_front(const StageEnds& ends, std::size_t master) const {
    if (ends[master] - ends[master - 1] == 1) return std::nullopt;
    StageEnds moved = balanced(ends[master - 1] + 1, master);
    moved.insert(moved.end(), ends.begin() + static_cast<std::ptrdiff_t>(master), ends.end());
    return moved;
  }
  std::optional<StageEnds> to_back(const StageEnds& ends, std::size_t master) const {
    if (master + 1 == stages_ || ends[master] == master + 1) return std::nullopt;
    StageEnds moved = balanced(ends[master] - 1, master + 1);
    moved.insert(moved.end(), ends.begin() + static_cast<std::ptrdiff_t>(master) + 1, ends.end());
    if (step_of(times_of(moved)).master > master) return std::nullopt;
    return moved;
  }

  static constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();
  const std::size_t stages_, blocks_;
  const std::uint64_t left_;
  std::vector<BlockSums> forward_, backward_;  // by stage
  std::vector<std::vector<Nanoseconds>> largest_;
  AutopipeSearch best_;
};

AutopipeTimes times_of_layers(const PipedreamProfile& profile, const std::vector<std::size_t>& sequence,
                              std::size_t stages) {
  std::vector<Nanoseconds> forward, backward;
  for (const std::size_t node : sequence) {
    forward.push_back(std::llround(profile.nodes[node].forward * 1e6));
    backward.push_back(std::llround(profile.nodes[node].backward * 1e6));
  }
  return {std::vector(stages, forward), std::vector(stages, backward)};
}

double milliseconds_of(Nanoseconds time) {
  return static_cast<double>(time) / 1e6;
}

// 1F1B of twice as many micro-batches as stages, action by action: rounds over the stages, each as far as it
// can go.
Nanoseconds carried_out(const std::vector<Nanoseconds>& forward, const std::vector<Nanoseconds>& backward) {
  const std::size_t n = forward.size(), m = 2 * n;
  std::vector<std::vector<Nanoseconds>> forwards(n), backwards(n);  // ends, by micro-batch
  std::vector<Nanoseconds> free(n, 0);
  while (backwards[0].size() < m) {
    for (std::size_t s = 0; s < n; ++s) {
      while (backwards[s].size() < m) {
        const std::size_t f = forwards[s].size(), b = backwards[s].size();
        const bool goes_forward = f < m && f <= b + (n - 1 - s);
        Nanoseconds start = free[s];
        if (goes_forward) {
          if (s > 0 && forwards[s - 1].size() <= f) break;
          if (s > 0) start = std::max(start, forwards[s - 1][f]);
          forwards[s].push_back(free[s] = start + forward[s]);
        } else {
          if (s + 1 < n && backwards[s + 1].size() <= b) break;
          if (s + 1 < n) start = std::max(start, backwards[s + 1][b]);
          backwards[s].push_back(free[s] = start + backward[s]);
        }
      }
    }
  }
  return *std::max_element(free.begin(), free.end());
}

}  // namespace

AutopipeStep autopipe_step(const AutopipeTimes& times, const std::vector<std::size_t>& ends) {
  return step_of(Autopipe(times, 0).times_of(ends));
}

AutopipeSearch autopipe_search(const AutopipeTimes& times, std::uint64_t max_partitions) {
  return Autopipe(times, max_partitions).run();
}

AutopipeResult autopipe(const PipedreamProfile& profile, std::size_t stages, std::uint64_t max_partitions) {
  const std::vector<std::size_t> sequence = layer_sequence(profile);
  AutopipeResult result;
  if (stages == 0 || sequence.size() < stages) {
    result.why =
        std::to_string(sequence.size()) + " layers cannot be cut into " + std::to_string(stages) + " stages";
    return result;
  }
  const AutopipeTimes times = times_of_layers(profile, sequence, stages);
  const AutopipeSearch search = autopipe_search(times, max_partitions);
  result.partitions = search.priced;
  if (!search.complete) {
    result.why = "more than " + std::to_string(max_partitions) + " partitions";
    return result;
  }
  result.time = milliseconds_of(search.step.nanoseconds);
  result.master = search.step.master;
  std::size_t begin = 0;
  for (const std::size_t end : search.ends) {
    AutopipeStage& stage = result.stages.emplace_back();
    for (; begin < end; ++begin) {
      stage.nodes.push_back(sequence[begin]);
      stage.forward += profile.nodes[sequence[begin]].forward;
      stage.backward += profile.nodes[sequence[begin]].backward;
    }
    result.one_device += 2 * static_cast<double>(stages) * (stage.forward + stage.backward);
  }
  return result;
}

std::vector<std::string> check_autopipe(const PipedreamProfile& profile, std::size_t stages,
                                        const AutopipeResult& result) {
  std::vector<std::string> problems;
  if (!result.found()) return problems;
  std::vector<std::size_t> sequence;
  StageEnds ends;
  std::vector<Nanoseconds> forward, backward;
  for (const AutopipeStage& stage : result.stages) {
    if (stage.nodes.empty()) return {"stages: one is empty"};
    forward.push_back(0);
    backward.push_back(0);
    for (const std::size_t node : stage.nodes) {
      forward.back() += std::llround(profile.nodes[node].forward * 1e6);
      backward.back() += std::llround(profile.nodes[node].backward * 1e6);
      sequence.push_back(node);
    }
    ends.push_back(sequence.size());
  }
  if (sequence != layer_sequence(profile)) return {"stages: they are not the sequence of layers"};
  if (result.stages.size() != stages) return {"stages: there are " + std::to_string(result.stages.size())};
  const AutopipeStep step = autopipe_step(times_of_layers(profile, sequence, stages), ends);
  const auto is = [&](double ours, double theirs) { return std::abs(ours - theirs) <= 1e-9 * theirs; };
  if (!is(result.time, milliseconds_of(step.nanoseconds)) || result.master != step.master)
    problems.push_back("time: it is " + std::to_string(milliseconds_of(step.nanoseconds)));
  if (step.nanoseconds > carried_out(forward, backward))
    problems.emplace_back("time: the actions take less one by one");
  return problems;
}

}  // namespace espalier::literal
