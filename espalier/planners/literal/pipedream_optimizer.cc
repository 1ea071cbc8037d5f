// PipeDream's hierarchical dynamic program over antichains (Narayanan et al., SOSP 2019, section 3.1).
//
//   paper                  here
//   A^k(i → j, m)          Level::time(i, j, m): states i … j on m + 1 devices of level k
//   T^k(i → j, m)          the times that a level is given: sums for the innermost, else A of the level below
//   B_k                    PipedreamLevel::bandwidth
//
// How we deviate: nothing that a figure shows. The outermost level is asked from the first state only, so its
// table has S·m entries instead of S²·m; ties end with the lowest split instead of with an address.
//
// Bad cases: wide graphs, whose antichains explode; inner levels, cubic in the states.

#include "espalier/planners/literal/pipedream_optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "espalier/base/check.h"
#include "espalier/planners/literal/antichains.h"

namespace espalier::literal {
namespace {

constexpr double kNoTime = std::numeric_limits<double>::infinity();  // the authors' None

// What the states up to j have more than those up to i − 1; nothing where j comes before i.
class StateSums {
 public:
  StateSums(const PipedreamProfile& profile, const AntichainStates& states) {
    for (const AntichainState& state : states.states) {
      double time = 0, activations = 0, parameters = 0, output = 0;
      for (std::size_t i = 0; i < state.nodes.size(); ++i) {
        if (!state.nodes[i]) continue;
        time += (profile.nodes[i].forward + profile.nodes[i].backward) / 1000;
        activations += profile.nodes[i].activation;
        parameters += profile.nodes[i].parameters;
      }
      for (const std::size_t member : state.members) output += profile.nodes[member].activation;
      time_.push_back(time), activations_.push_back(activations), parameters_.push_back(parameters);
      output_.push_back(output);
    }
  }
  std::size_t states() const { return time_.size(); }
  double time(std::size_t i, std::size_t j) const { return difference(time_, i, j); }
  double activations(std::size_t i, std::size_t j) const { return difference(activations_, i, j); }
  double parameters(std::size_t i, std::size_t j) const { return difference(parameters_, i, j); }
  double output(std::size_t j) const { return output_[j]; }

 private:
  static double difference(const std::vector<double>& sums, std::size_t i, std::size_t j) {
    return i == 0 ? sums[j] : sums[j] - sums[i - 1];
  }
  std::vector<double> time_, activations_, parameters_, output_;
};

struct Split {
  std::uint32_t after = 0;  // the last state before the last stage
  std::uint32_t left = 0;   // devices − 1 for the states up to it
  std::uint32_t replicas = 0;
  bool whole = true;  // no split: one stage on all devices
};

// A level's table. `rows` is S at inner levels, 1 at the outermost.
struct Level {
  std::size_t states = 0, devices = 1, rows = 1;
  std::vector<double> times;
  std::vector<Split> splits;

  std::size_t at(std::size_t i, std::size_t j, std::size_t m) const { return (i * states + j) * devices + m; }
  double time(std::size_t i, std::size_t j) const { return times[at(i, j, devices - 1)]; }
};

class LevelSearch {
 public:
  LevelSearch(const StateSums& sums, const AntichainStates& states, const PipedreamOptions& options)
      : sums_(sums), states_(states), options_(options) {}

  // `inner`: the level below, or null.
  Level solve(std::size_t number, const Level* inner, std::size_t rows) {
    const PipedreamLevel& wires = options_.levels[number];
    bandwidth_ = wires.bandwidth;
    Level level;
    level.states = sums_.states();
    level.devices = static_cast<std::size_t>(wires.devices);
    level.rows = rows;
    level.times.assign(rows * level.states * level.devices, kNoTime);
    level.splits.resize(level.times.size());
    const double within = number == 0 ? 1 : static_cast<double>(options_.levels[number - 1].devices);
    fill_whole(level, inner, within);
    for (std::size_t i = 0; i < rows; ++i) {
      std::vector<bool> reached(level.states);  // before state i − 1: no stage from i on ends there
      if (i > 0) {
        for (const std::uint32_t k : states_.before[i - 1]) reached[k] = true;
      }
      for (std::size_t j = i + 1; j < level.states; ++j) {
        for (const std::uint32_t k : states_.before[j]) {
          if (k >= i && !reached[k]) offer(level, inner, i, j, k);
        }
      }
    }
    return level;
  }

  std::uint64_t splits() const { return splits_; }

 private:
  double stage_time(const Level* inner, std::size_t i, std::size_t j) const {
    return inner ? inner->time(i, j) : sums_.time(i, j);
  }

  bool lacks_memory(const Level& level, std::size_t i, std::size_t j, std::size_t m,
                    std::size_t replicas) const {
    if (!options_.memory) return false;
    const std::size_t behind = level.devices - (m + 1), rounds = (behind + replicas - 1) / replicas;
    const auto in_flight = static_cast<double>(rounds);
    return in_flight * (sums_.activations(i, j) + sums_.parameters(i, j)) > *options_.memory;
  }

  void fill_whole(Level& level, const Level* inner, double within) const {
    for (std::size_t i = 0; i < level.rows; ++i) {
      for (std::size_t j = i; j < level.states; ++j) {
        const double time = stage_time(inner, i, j);
        if (time == kNoTime) continue;
        for (std::size_t m = 0; m < (options_.straight ? 1 : level.devices); ++m) {
          if (lacks_memory(level, i, j, m, m + 1)) continue;
          const auto replicas = static_cast<double>(m + 1);
          const double reduce =
              4 * static_cast<double>(m) * sums_.parameters(i, j) / (bandwidth_ * replicas) / within;
          level.times[level.at(i, j, m)] = (time + reduce) / replicas;
          level.splits[level.at(i, j, m)].replicas = static_cast<std::uint32_t>(m + 1);
        }
      }
    }
  }

  // States i … j, of which those behind k are the last stage.
  void offer(Level& level, const Level* inner, std::size_t i, std::size_t j, std::size_t k) {
    const double time = stage_time(inner, k + 1, j);
    if (time == kNoTime) return;
    const double parameters = sums_.parameters(k + 1, j);
    const std::size_t most = options_.straight ? 1 : level.devices - 1;
    for (std::size_t replicas = 1; replicas <= std::min(most, level.devices - 1); ++replicas) {
      const auto r = static_cast<double>(replicas);
      double last = (time + 4 * (r - 1) * parameters / (bandwidth_ * r)) / r;
      if (options_.compression) {
        const double scale = 2 / (bandwidth_ * r) / *options_.compression;
        last = std::max(last, sums_.output(k) * scale);
        if (j + 1 < level.states) last = std::max(last, sums_.output(j) * scale);
      }
      for (std::size_t m = replicas; m < level.devices; ++m) {
        ++splits_;
        const std::size_t here = level.at(i, j, m);
        const double before = level.times[level.at(i, k, m - replicas)];
        const double slowest = std::max(before, last);
        if (slowest >= level.times[here] || lacks_memory(level, k + 1, j, m, replicas)) continue;
        level.times[here] = slowest;
        level.splits[here] = {static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(m - replicas),
                              static_cast<std::uint32_t>(replicas), false};
      }
    }
  }

  const StateSums& sums_;
  const AntichainStates& states_;
  const PipedreamOptions& options_;
  double bandwidth_ = 1;
  std::uint64_t splits_ = 0;
};

// States first … last of a level's stage.
struct Segment {
  std::size_t first = 0, last = 0;
  std::vector<std::int64_t> replicas;  // outermost first
  std::vector<std::size_t> numbers;    // likewise
};

std::vector<Segment> split_segment(const Level& level, const Segment& whole, std::size_t& number) {
  std::vector<Segment> result;
  std::size_t last = whole.last, m = level.devices - 1;
  while (true) {
    const Split& split = level.splits[level.at(whole.first, last, m)];
    Segment part = whole;
    part.last = last;
    part.first = split.whole ? whole.first : split.after + 1;
    part.replicas.push_back(split.replicas);
    result.push_back(std::move(part));
    if (split.whole) break;
    last = split.after;
    m = split.left;
  }
  std::reverse(result.begin(), result.end());
  for (Segment& part : result) part.numbers.push_back(number++);
  return result;
}

double replicated_everywhere(const PipedreamOptions& options, double time, double parameters) {
  double within = 1;
  for (const PipedreamLevel& level : options.levels) {
    const auto devices = static_cast<double>(level.devices);
    time = (time + 4 * (devices - 1) * parameters / (level.bandwidth * devices) / within) / devices;
    within = devices;
  }
  return time;
}

void refuse_levels(const PipedreamProfile& profile, const PipedreamOptions& options) {
  if (options.levels.empty()) throw InputError(profile.file + ": expected devices of at least one level");
  for (const PipedreamLevel& level : options.levels) {
    if (level.devices < 1 || level.devices > 4096 || !(level.bandwidth > 0))
      throw InputError(profile.file + ": expected 1 to 4096 devices at each level, and a bandwidth above 0");
  }
  if (options.compression && !(*options.compression > 0))
    throw InputError(profile.file + ": expected a compression of activations above 0");
}

}  // namespace

PipedreamResult pipedream_optimizer(const PipedreamProfile& profile, const PipedreamOptions& options) {
  refuse_levels(profile, options);
  const PlacedGraph graph = placed_graph(profile);
  PipedreamResult result;
  const std::optional<AntichainStates> states = antichain_states(graph, options.max_states);
  if (!states) {
    result.why = "the graph has more than " + std::to_string(options.max_states) + " antichains";
    return result;
  }
  const StateSums sums(profile, *states);
  const std::size_t count = sums.states();
  result.states = count;
  result.one_device = sums.time(0, count - 1);
  result.data_parallel = replicated_everywhere(options, result.one_device, sums.parameters(0, count - 1));
  LevelSearch search(sums, *states, options);
  std::vector<Level> levels;
  for (std::size_t l = 0; l < options.levels.size(); ++l) {
    const bool outermost = l + 1 == options.levels.size();
    levels.push_back(search.solve(l, l == 0 ? nullptr : &levels[l - 1], outermost ? 1 : count));
  }
  result.splits = search.splits();
  result.time = levels.back().time(0, count - 1);
  if (result.time == kNoTime) {
    result.why = "no split into stages fits the memory";
    return result;
  }
  std::vector<Segment> segments{{0, count - 1, {}, {}}};
  for (std::size_t l = levels.size(); l-- > 0;) {
    std::vector<Segment> parts;
    std::size_t number = 0;
    for (const Segment& segment : segments) {
      for (Segment& part : split_segment(levels[l], segment, number)) parts.push_back(std::move(part));
    }
    segments = std::move(parts);
  }
  NodeSet placed(profile.nodes.size());
  for (const Segment& segment : segments) {
    PipedreamStage stage;
    const NodeSet& nodes = states->states[segment.last].nodes;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (!nodes[i] || placed[i]) continue;
      placed[i] = true;
      stage.nodes.push_back(i);
    }
    stage.replicas.assign(segment.replicas.rbegin(), segment.replicas.rend());
    stage.segment.assign(segment.numbers.rbegin(), segment.numbers.rend());
    result.stages.push_back(std::move(stage));
  }
  for (std::size_t i = 0; i < placed.size(); ++i) {
    if (!placed[i]) result.unplaced.push_back(i);
  }
  return result;
}

namespace {

// Recomputes a result's time from its stages' nodes.
class PipedreamAudit {
 public:
  PipedreamAudit(const PipedreamProfile& profile, const PipedreamOptions& options,
                 const PipedreamResult& result)
      : profile_(profile), options_(options), result_(result), graph_(placed_graph(profile)) {}

  std::vector<std::string> wrong;

  double level_time(std::size_t level, std::size_t begin, std::size_t end) {
    const double b = options_.levels[level].bandwidth;
    const double within = level == 0 ? 1 : static_cast<double>(options_.levels[level - 1].devices);
    double slowest = 0;
    std::int64_t devices = 0;
    for (std::size_t first = begin, next = begin; first < end; first = next) {
      while (next < end && result_.stages[next].segment[level] == result_.stages[first].segment[level])
        ++next;
      const std::int64_t replicas = result_.stages[first].replicas[level];
      devices += replicas;
      const auto r = static_cast<double>(replicas);
      const double time = level == 0 ? compute(first, next) : level_time(level - 1, first, next);
      const double reduce = 4 * (r - 1) * weights(first, next) / (b * r);
      double stage = (time + reduce / (first == begin ? within : 1)) / r;
      if (options_.compression && first != begin) {
        stage = std::max(stage, 2 * output(first) / (b * r) / *options_.compression);
        if (next < result_.stages.size())
          stage = std::max(stage, 2 * output(next) / (b * r) / *options_.compression);
      }
      slowest = std::max(slowest, stage);
    }
    if (devices != options_.levels[level].devices)
      wrong.emplace_back("a level does not use all of its devices");
    return slowest;
  }

 private:
  double compute(std::size_t begin, std::size_t end) const {
    double sum = 0;
    for (std::size_t s = begin; s < end; ++s) {
      for (const std::size_t node : result_.stages[s].nodes)
        sum += (profile_.nodes[node].forward + profile_.nodes[node].backward) / 1000;
    }
    return sum;
  }
  double weights(std::size_t begin, std::size_t end) const {
    double sum = 0;
    for (std::size_t s = begin; s < end; ++s) {
      for (const std::size_t node : result_.stages[s].nodes) sum += profile_.nodes[node].parameters;
    }
    return sum;
  }
  // Of the stages before `end`: the activations of their last nodes and what those have not used up.
  double output(std::size_t end) const {
    NodeSet inside(profile_.nodes.size());
    for (std::size_t s = 0; s < end; ++s) {
      for (const std::size_t node : result_.stages[s].nodes) inside[node] = true;
    }
    std::vector<std::size_t> last;
    for (std::size_t node = 0; node < inside.size(); ++node) {
      const auto& readers = graph_.readers[node];
      if (inside[node] &&
          std::none_of(readers.begin(), readers.end(), [&](std::size_t r) { return inside[r]; }))
        last.push_back(node);
    }
    double bytes = 0;
    for (std::size_t p = 0; p < inside.size(); ++p) {
      bool counts = std::find(last.begin(), last.end(), p) != last.end();
      for (const std::size_t member : last) {
        for (const std::size_t reader : graph_.readers[p]) {
          counts = counts || (graph_.predecessors[member][p] && reader != member &&
                              !graph_.predecessors[member][reader]);
        }
      }
      if (counts) bytes += profile_.nodes[p].activation;
    }
    return bytes;
  }

  const PipedreamProfile& profile_;
  const PipedreamOptions& options_;
  const PipedreamResult& result_;
  PlacedGraph graph_;
};

}  // namespace

std::vector<std::string> check_pipedream_optimizer(const PipedreamProfile& profile,
                                                   const PipedreamOptions& options,
                                                   const PipedreamResult& result) {
  if (!result.found()) return {};
  PipedreamAudit audit(profile, options, result);
  std::vector<int> times_placed(profile.nodes.size());
  std::vector<std::size_t> stage_of(profile.nodes.size());
  for (std::size_t s = 0; s < result.stages.size(); ++s) {
    if (result.stages[s].replicas.size() != options.levels.size() ||
        result.stages[s].segment.size() != options.levels.size())
      return {"a stage does not say its replicas at each level"};
    for (const std::size_t node : result.stages[s].nodes) {
      if (node >= times_placed.size()) return {"a stage names a node that is not there"};
      ++times_placed[node];
      stage_of[node] = s;
    }
  }
  for (const std::size_t node : result.unplaced) {
    if (node >= times_placed.size()) return {"a node that is not there is left out"};
    ++times_placed[node];
    stage_of[node] = result.stages.size();
  }
  if (std::any_of(times_placed.begin(), times_placed.end(), [](int times) { return times != 1; }))
    audit.wrong.emplace_back("a node is not placed exactly once");
  const std::size_t dropped = result.stages.size();
  for (const PipedreamProfile::Edge& edge : profile.edges) {
    const bool both = stage_of[edge.from] != dropped && stage_of[edge.to] != dropped;
    if (both && stage_of[edge.from] > stage_of[edge.to])
      audit.wrong.emplace_back("an edge leads to an earlier stage");
  }
  if (result.stages.empty()) return {"there is no stage"};
  const double time = audit.level_time(options.levels.size() - 1, 0, result.stages.size());
  if (std::abs(time - result.time) > 1e-9 * std::max(time, 1e-9))
    audit.wrong.emplace_back("the time is another");
  return audit.wrong;
}

}  // namespace espalier::literal
