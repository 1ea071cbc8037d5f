#include "espalier/planners/literal/bapipe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/planners/literal/layer_sequence.h"

namespace espalier::literal {
namespace {

constexpr double kNoPartition = std::numeric_limits<double>::infinity();

// The same where only cuts with messages of at most `longest` are allowed.
std::optional<std::vector<std::size_t>> partition_within(const BapipeBorders& borders,
                                                         const BapipeBlocks& blocks, double longest) {
  const std::size_t n = borders.messages.size() - 1;
  const auto allowed = [&](std::size_t cut) {
    return cut == 0 || cut == n || borders.messages[cut] <= longest;
  };
  struct Best {
    double largest = kNoPartition;
    std::size_t begin = 0;  // of the last stage
  };
  // best[s][end]: of blocks before `end` on the first s stages.
  std::vector<std::vector<Best>> best(borders.stages + 1, std::vector<Best>(n + 1));
  best[0][0].largest = 0;
  for (std::size_t s = 1; s <= borders.stages; ++s) {
    for (std::size_t end = s; end <= n; ++end) {
      if (!allowed(end)) continue;
      for (std::size_t begin = s - 1; begin < end; ++begin) {
        const double before = best[s - 1][begin].largest;
        if (before >= best[s][end].largest) continue;
        const std::optional<double> own = blocks(s - 1, begin, end);
        if (own && std::max(before, *own) < best[s][end].largest)
          best[s][end] = {std::max(before, *own), begin};
      }
    }
  }
  if (best[borders.stages][n].largest == kNoPartition) return std::nullopt;
  std::vector<std::size_t> ends(borders.stages);
  std::size_t end = n;
  for (std::size_t s = borders.stages; s > 0; --s) {
    ends[s - 1] = end;
    end = best[s][end].begin;
  }
  return ends;
}

// What bapipe and its checker need of a profile; each adds up on its own.
struct Layers {
  std::vector<std::size_t> sequence;
  std::vector<double> forward, backward, weights, outputs;  // by place
  std::vector<double> crossing;                             // bytes, by cut
};

Layers layers_of(const PipedreamProfile& profile) {
  Layers layers{layer_sequence(profile), {}, {}, {}, {}, {}};
  const std::vector<std::size_t>& sequence = layers.sequence;
  std::vector<std::optional<std::size_t>> place(profile.nodes.size());
  for (std::size_t i = 0; i < sequence.size(); ++i) {
    const PipedreamProfile::Node& node = profile.nodes[sequence[i]];
    place[sequence[i]] = i;
    layers.forward.push_back(node.forward);
    layers.backward.push_back(node.backward);
    layers.weights.push_back(node.parameters);
    layers.outputs.push_back(node.activation);
  }
  std::vector<std::size_t> last(sequence.size(), 0);  // reader of each layer
  for (const PipedreamProfile::Edge& edge : profile.edges) {
    if (place[edge.from]) last[*place[edge.from]] = std::max(last[*place[edge.from]], *place[edge.to]);
  }
  layers.crossing.assign(sequence.size() + 1, 0);
  for (std::size_t i = 0; i < sequence.size(); ++i) {
    for (std::size_t cut = i + 1; cut <= last[i]; ++cut) layers.crossing[cut] += layers.outputs[i];
  }
  return layers;
}

double sum(const std::vector<double>& of, std::size_t begin, std::size_t end) {
  double all = 0;
  for (std::size_t i = begin; i < end; ++i) all += of[i];
  return all;
}

double stage_bytes(const Layers& layers, BapipeSchedule schedule, const BapipeOptions& options,
                   std::size_t stage, std::size_t begin, std::size_t end) {
  const std::int64_t in_flight =
      bapipe_in_flight(schedule, static_cast<std::size_t>(options.devices), stage, options.micro_batches);
  return 2 * sum(layers.weights, begin, end) +
         static_cast<double>(in_flight) * sum(layers.outputs, begin, end);
}

std::vector<BapipeStage> cut_stages(const Layers& layers, const std::vector<std::size_t>& ends,
                                    BapipeSchedule schedule, const BapipeOptions& options) {
  std::vector<BapipeStage> stages;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    BapipeStage stage;
    for (std::size_t i = begin; i < end; ++i) stage.nodes.push_back(layers.sequence[i]);
    stage.times = {sum(layers.forward, begin, end), sum(layers.backward, begin, end),
                   end == layers.sequence.size() ? 0 : 1000 * layers.crossing[end] / options.bandwidth};
    stage.bytes = stage_bytes(layers, schedule, options, stages.size(), begin, end);
    stages.push_back(std::move(stage));
    begin = end;
  }
  return stages;
}

std::vector<BapipeStageTimes> times_of(const std::vector<BapipeStage>& stages) {
  std::vector<BapipeStageTimes> times;
  for (const BapipeStage& stage : stages) times.push_back(stage.times);
  return times;
}

void refuse_options(const BapipeOptions& options) {
  if (options.devices < 1 || options.micro_batches < 1 || options.bandwidth <= 0 ||
      (options.memory && *options.memory <= 0)) {
    throw InputError("bapipe: devices, micro-batches, bandwidth and memory are positive");
  }
}

}  // namespace

std::string_view to_text(BapipeSchedule schedule) {
  switch (schedule) {
    case BapipeSchedule::k1F1BAs:
      return "1F1B-AS";
    case BapipeSchedule::kFbpAs:
      return "FBP-AS";
    case BapipeSchedule::k1F1BSno:
      return "1F1B-SNO";
    case BapipeSchedule::k1F1BSo:
      break;
  }
  return "1F1B-SO";
}

std::vector<BapipeSchedule> bapipe_schedules(bool streaming) {
  if (streaming) return {BapipeSchedule::k1F1BAs, BapipeSchedule::kFbpAs};
  return {BapipeSchedule::k1F1BSno, BapipeSchedule::k1F1BSo};
}

std::int64_t bapipe_in_flight(BapipeSchedule schedule, std::size_t stages, std::size_t stage,
                              std::int64_t micro_batches) {
  const auto behind = static_cast<std::int64_t>(stages - stage) - 1;
  const bool twice = schedule == BapipeSchedule::kFbpAs || schedule == BapipeSchedule::k1F1BSo;
  return std::min(micro_batches, (twice ? 2 * behind : behind) + 1);
}

double bapipe_step(BapipeSchedule schedule, const std::vector<BapipeStageTimes>& stages,
                   std::int64_t micro_batches) {
  const auto n = static_cast<double>(stages.size()), m = static_cast<double>(micro_batches);
  double slot = 0, longest = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto& [forward, backward, behind] = stages[s];
    const double message = std::max(s > 0 ? stages[s - 1].message : 0, behind);
    longest = std::max(longest, message);
    double own = forward + backward;
    if (schedule == BapipeSchedule::kFbpAs) own = std::max(own, message);
    if (schedule == BapipeSchedule::k1F1BAs || schedule == BapipeSchedule::k1F1BSo)
      own = std::max(forward, message) + std::max(backward, message);
    slot = std::max(slot, own);
  }
  const double waits = schedule == BapipeSchedule::k1F1BSno  ? m + n - 2
                       : schedule == BapipeSchedule::k1F1BSo ? n - 1
                                                             : 0;
  return (m + n - 1) * slot + waits * 2 * longest;
}

std::optional<std::vector<std::size_t>> bapipe_partition(const BapipeBorders& borders,
                                                         const BapipeBlocks& blocks) {
  std::vector<double> longer;  // messages than a share, ascending
  for (std::size_t cut = 1; cut + 1 < borders.messages.size(); ++cut) {
    if (borders.messages[cut] > borders.share) longer.push_back(borders.messages[cut]);
  }
  std::sort(longer.begin(), longer.end());
  longer.erase(std::unique(longer.begin(), longer.end()), longer.end());
  if (!longer.empty() && !partition_within(borders, blocks, longer.back())) return std::nullopt;
  // More cuts only add partitions: the least message that allows one, by bisection.
  if (auto ends = partition_within(borders, blocks, borders.share); ends || longer.empty()) return ends;
  std::size_t low = 0, high = longer.size() - 1;
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (partition_within(borders, blocks, longer[middle])) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return partition_within(borders, blocks, longer[high]);
}

BapipeResult bapipe(const PipedreamProfile& profile, const BapipeOptions& options) {
  refuse_options(options);
  const Layers layers = layers_of(profile);
  const std::size_t n = layers.sequence.size();
  BapipeResult result;
  if (n < static_cast<std::size_t>(options.devices)) {
    result.why =
        std::to_string(n) + " layers cannot be cut into " + std::to_string(options.devices) + " stages";
    return result;
  }
  const double work = sum(layers.forward, 0, n) + sum(layers.backward, 0, n);
  BapipeBorders borders{static_cast<std::size_t>(options.devices), {}, 0};
  borders.share = work / static_cast<double>(options.devices);
  for (const double bytes : layers.crossing) borders.messages.push_back(1000 * bytes / options.bandwidth);
  for (const BapipeSchedule schedule : bapipe_schedules(options.streaming)) {
    const auto ends = bapipe_partition(
        borders, [&](std::size_t stage, std::size_t begin, std::size_t end) -> std::optional<double> {
          if (options.memory && stage_bytes(layers, schedule, options, stage, begin, end) > *options.memory)
            return std::nullopt;
          return sum(layers.forward, begin, end) + sum(layers.backward, begin, end);
        });
    if (!ends) continue;
    std::vector<BapipeStage> stages = cut_stages(layers, *ends, schedule, options);
    const double time = bapipe_step(schedule, times_of(stages), options.micro_batches);
    if (!result.stages.empty() && time >= result.time) continue;
    result.stages = std::move(stages);
    result.schedule = schedule;
    result.time = time;
  }
  result.one_device = static_cast<double>(options.micro_batches) * work;
  if (result.stages.empty()) result.why = "no partition fits into the memory of the devices";
  return result;
}

std::vector<std::string> check_bapipe(const PipedreamProfile& profile, const BapipeOptions& options,
                                      const BapipeResult& result) {
  std::vector<std::string> problems;
  if (!result.found()) return problems;
  std::vector<std::optional<std::size_t>> stage_of(profile.nodes.size());
  std::vector<std::size_t> sequence;
  for (std::size_t s = 0; s < result.stages.size(); ++s) {
    if (result.stages[s].nodes.empty()) problems.emplace_back("stages: one is empty");
    for (const std::size_t node : result.stages[s].nodes) stage_of[node] = s;
    sequence.insert(sequence.end(), result.stages[s].nodes.begin(), result.stages[s].nodes.end());
  }
  if (sequence != layer_sequence(profile)) return {"stages: they are not the sequence of layers"};
  if (result.stages.size() != static_cast<std::size_t>(options.devices))
    problems.emplace_back("stages: not one for each device");
  const auto is = [](double ours, double theirs) {
    return std::abs(ours - theirs) <= 1e-9 * std::max(1.0, std::abs(theirs));
  };
  std::vector<std::size_t> last(profile.nodes.size(), 0);  // stage that reads each node
  for (const PipedreamProfile::Edge& edge : profile.edges) {
    if (stage_of[edge.to]) last[edge.from] = std::max(last[edge.from], *stage_of[edge.to]);
  }
  for (std::size_t s = 0; s < result.stages.size(); ++s) {
    const BapipeStage& stage = result.stages[s];
    double forward = 0, backward = 0, weights = 0, outputs = 0, crossing = 0;
    for (const std::size_t node : stage.nodes) {
      forward += profile.nodes[node].forward;
      backward += profile.nodes[node].backward;
      weights += profile.nodes[node].parameters;
      outputs += profile.nodes[node].activation;
    }
    for (std::size_t node = 0; node < profile.nodes.size(); ++node) {
      if (stage_of[node] && *stage_of[node] <= s && last[node] > s)
        crossing += profile.nodes[node].activation;
    }
    const auto in_flight = static_cast<double>(
        bapipe_in_flight(result.schedule, result.stages.size(), s, options.micro_batches));
    if (!is(stage.times.forward, forward) || !is(stage.times.backward, backward) ||
        !is(stage.times.message, 1000 * crossing / options.bandwidth))
      problems.push_back("times: those of stage " + std::to_string(s));
    if (!is(stage.bytes, 2 * weights + in_flight * outputs))
      problems.push_back("bytes: those of stage " + std::to_string(s));
    if (options.memory && stage.bytes > *options.memory)
      problems.push_back("bytes: stage " + std::to_string(s) + " does not fit");
  }
  if (!is(result.time, bapipe_step(result.schedule, times_of(result.stages), options.micro_batches)))
    problems.emplace_back("time: not that of its schedule");
  return problems;
}

}  // namespace espalier::literal
