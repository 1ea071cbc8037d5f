#include "espalier/planners/literal/dapple.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/planners/literal/layer_sequence.h"

namespace espalier::literal {
namespace {

using Counts = std::vector<std::int64_t>;  // devices by machine

std::int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

// Whether all devices of both stand on one machine.
bool on_one_machine(const Counts& a, const Counts& b) {
  std::size_t machines = 0;
  for (std::size_t m = 0; m < a.size(); ++m) machines += a[m] + b[m] > 0 ? 1 : 0;
  return machines <= 1;
}

// Sums over the layers before each place of a sequence, and bytes that cross before it.
struct LayerSums {
  std::vector<double> forward{0}, backward{0}, parameters{0};
  std::vector<double> crossing;

  LayerSums(const PipedreamProfile& profile, const std::vector<std::size_t>& sequence)
      : crossing(sequence.size() + 1, 0) {
    std::vector<std::optional<std::size_t>> place(profile.nodes.size());
    for (std::size_t i = 0; i < sequence.size(); ++i) {
      const PipedreamProfile::Node& node = profile.nodes[sequence[i]];
      place[sequence[i]] = i;
      forward.push_back(forward.back() + node.forward);
      backward.push_back(backward.back() + node.backward);
      parameters.push_back(parameters.back() + node.parameters);
    }
    std::vector<std::size_t> last(sequence.size(), 0);  // reader of each layer
    for (const PipedreamProfile::Edge& edge : profile.edges) {
      if (place[edge.from]) last[*place[edge.from]] = std::max(last[*place[edge.from]], *place[edge.to]);
    }
    for (std::size_t i = 0; i < sequence.size(); ++i) {
      for (std::size_t cut = i + 1; cut <= last[i]; ++cut)
        crossing[cut] += profile.nodes[sequence[i]].activation;
    }
  }
};

struct LayerRun {  // layers [begin, end) on devices
  std::size_t begin = 0, end = 0;
  Counts devices;
};

DappleTime time_of(const std::vector<LayerRun>& stages, const LayerSums& sums, const DappleOptions& options) {
  struct Phase {
    double forward, backward, all_reduce;
  };
  std::vector<Phase> phases;  // stages with messages between them
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const LayerRun& stage = stages[s];
    const auto r = static_cast<double>(total(stage.devices));
    if (s > 0) {
      const Counts& before = stages[s - 1].devices;
      const double bandwidth =
          on_one_machine(before, stage.devices) ? options.inner_bandwidth : options.outer_bandwidth;
      const double pairs = std::min(static_cast<double>(total(before)), r);
      const double message = 1000 * sums.crossing[stage.begin] / (pairs * bandwidth);
      phases.push_back({message, message, 0});
    }
    const double bandwidth =
        on_one_machine(stage.devices, stage.devices) ? options.inner_bandwidth : options.outer_bandwidth;
    const double weights = sums.parameters[stage.end] - sums.parameters[stage.begin];
    phases.push_back({(sums.forward[stage.end] - sums.forward[stage.begin]) / r,
                      (sums.backward[stage.end] - sums.backward[stage.begin]) / r,
                      1000 * 2 * (r - 1) / r * weights / bandwidth});
  }
  const auto rounds = static_cast<double>(options.micro_batches - 1);
  const auto steady = [&](std::size_t s) { return rounds * (phases[s].forward + phases[s].backward); };
  std::size_t pivot = phases.size() - 1;
  double between = 0;  // F + B of the phases between s and the pivot
  for (std::size_t s = pivot; s-- > 0;) {
    if (steady(s) > steady(pivot) + between) {
      pivot = s;
      between = 0;
    } else {
      between += phases[s].forward + phases[s].backward;
    }
  }
  double warm_up = 0, ending = 0, backward = 0;
  for (std::size_t s = 0; s <= pivot; ++s) warm_up += phases[s].forward;
  for (std::size_t s = pivot + 1; s-- > 0;) {
    backward += phases[s].backward;
    ending = std::max(ending, phases[s].all_reduce + backward);
  }
  backward = phases[pivot].backward;
  for (std::size_t s = pivot + 1; s < phases.size(); ++s) {
    backward += phases[s].backward;
    ending = std::max(ending, phases[s].all_reduce - backward);
  }
  return {warm_up + steady(pivot) + ending, pivot / 2};
}

// The devices that each rule takes of those that are free, each way once.
std::vector<Counts> allocations(const Counts& used, std::int64_t wanted, std::int64_t per_machine) {
  std::vector<Counts> ways;
  const auto add = [&](Counts taken) {
    if (std::find(ways.begin(), ways.end(), taken) == ways.end()) ways.push_back(std::move(taken));
  };
  for (const bool fresh_first : {true, false}) {
    Counts taken(used.size(), 0);
    std::int64_t missing = wanted;
    for (const bool fresh : {fresh_first, !fresh_first}) {
      for (std::size_t m = 0; m < used.size(); ++m) {
        if ((used[m] == 0) != fresh) continue;
        taken[m] = std::min(missing, per_machine - used[m]);
        missing -= taken[m];
      }
    }
    add(std::move(taken));
  }
  Counts scattered(used.size(), 0);
  std::int64_t missing = wanted;
  while (missing > 0) {
    for (std::size_t m = 0; m < used.size() && missing > 0; ++m) {
      if (used[m] + scattered[m] == per_machine) continue;
      ++scattered[m];
      --missing;
    }
  }
  add(std::move(scattered));
  return ways;
}

class DappleSearch {
 public:
  DappleSearch(const LayerSums& sums, std::size_t layers, const DappleOptions& options)
      : sums_(sums), layers_(layers), options_(options), best_(layers) {}

  // The best plan; none where too many would have to be priced.
  std::optional<std::vector<LayerRun>> run() {
    const Counts nothing(static_cast<std::size_t>(options_.machines), 0);
    std::vector<LayerRun> best = whole_plan({}, 0, nothing);
    double least = time_of(best, sums_, options_).milliseconds;
    best_[0][nothing] = {least, {}};
    for (std::size_t done = 0; done < layers_; ++done) {
      for (const auto& [used, beginning] : best_[done]) {
        if (beginning.time < least) {
          least = beginning.time;
          best = whole_plan(beginning.stages, done, used);
        }
        if (!extend(done, used, beginning.stages)) return std::nullopt;
      }
    }
    return best;
  }
  std::uint64_t plans() const { return plans_; }

 private:
  struct Beginning {
    double time = 0;  // of the plan that it is judged by
    std::vector<LayerRun> stages;
  };

  // All layers behind it as one stage on all devices that are left.
  std::vector<LayerRun> whole_plan(std::vector<LayerRun> stages, std::size_t done, const Counts& used) const {
    Counts rest;
    for (const std::int64_t each : used) rest.push_back(options_.devices_per_machine - each);
    stages.push_back({done, layers_, std::move(rest)});
    return stages;
  }

  // One stage more; layers and devices stay for one behind it.
  bool extend(std::size_t done, const Counts& used, const std::vector<LayerRun>& stages) {
    const std::int64_t left = options_.devices_per_machine * options_.machines - total(used);
    for (std::int64_t wanted = 1; wanted < left; ++wanted) {
      for (const Counts& taken : allocations(used, wanted, options_.devices_per_machine)) {
        Counts now = used;
        for (std::size_t m = 0; m < now.size(); ++m) now[m] += taken[m];
        for (std::size_t end = done + 1; end < layers_; ++end) {
          if (++plans_ > options_.max_plans) return false;
          std::vector<LayerRun> longer = stages;
          longer.push_back({done, end, taken});
          const double time = time_of(whole_plan(longer, end, now), sums_, options_).milliseconds;
          const auto [at, fresh] = best_[end].try_emplace(now);
          if (fresh || time < at->second.time) at->second = {time, std::move(longer)};
        }
      }
    }
    return true;
  }

  const LayerSums& sums_;
  const std::size_t layers_;
  const DappleOptions& options_;
  std::vector<std::map<Counts, Beginning>> best_;  // by layers done
  std::uint64_t plans_ = 0;
};

void refuse_options(const DappleOptions& options) {
  if (options.devices_per_machine < 1 || options.machines < 1 || options.micro_batches < 1 ||
      options.inner_bandwidth <= 0 || options.outer_bandwidth <= 0) {
    throw InputError("dapple: devices, machines, micro-batches and bandwidths are positive");
  }
}

}  // namespace

DappleTime dapple_time(const PipedreamProfile& profile, const std::vector<DappleStage>& stages,
                       const DappleOptions& options) {
  std::vector<std::size_t> sequence;
  std::vector<LayerRun> segments;
  for (const DappleStage& stage : stages) {
    segments.push_back({sequence.size(), sequence.size() + stage.nodes.size(), stage.devices});
    sequence.insert(sequence.end(), stage.nodes.begin(), stage.nodes.end());
  }
  return time_of(segments, LayerSums(profile, sequence), options);
}

DappleResult dapple(const PipedreamProfile& profile, const DappleOptions& options) {
  refuse_options(options);
  const std::vector<std::size_t> sequence = layer_sequence(profile);
  if (sequence.empty()) throw InputError(profile.file + ": there is no layer to place");
  const LayerSums sums(profile, sequence);
  DappleSearch search(sums, sequence.size(), options);
  const auto best = search.run();
  DappleResult result;
  result.plans = search.plans();
  result.one_device =
      static_cast<double>(options.micro_batches) * (sums.forward.back() + sums.backward.back());
  if (!best) {
    result.why = "more than " + std::to_string(options.max_plans) + " plans";
    return result;
  }
  for (const LayerRun& segment : *best) {
    result.stages.push_back({{sequence.begin() + static_cast<std::ptrdiff_t>(segment.begin),
                              sequence.begin() + static_cast<std::ptrdiff_t>(segment.end)},
                             segment.devices});
  }
  const DappleTime time = dapple_time(profile, result.stages, options);
  result.time = time.milliseconds;
  result.pivot = time.pivot;
  return result;
}

std::vector<std::string> check_dapple(const PipedreamProfile& profile, const DappleOptions& options,
                                      const DappleResult& result) {
  std::vector<std::string> problems;
  if (!result.found()) return problems;
  Counts used(static_cast<std::size_t>(options.machines), 0);
  std::vector<std::size_t> sequence;
  for (const DappleStage& stage : result.stages) {
    if (stage.nodes.empty()) problems.push_back("stages: one is empty");
    if (total(stage.devices) < 1) problems.push_back("devices: a stage has none");
    for (std::size_t m = 0; m < used.size(); ++m) used[m] += stage.devices[m];
    sequence.insert(sequence.end(), stage.nodes.begin(), stage.nodes.end());
  }
  if (sequence != layer_sequence(profile)) problems.push_back("stages: they are not the sequence of layers");
  for (const std::int64_t each : used) {
    if (each != options.devices_per_machine)
      problems.push_back("devices: a machine has " + std::to_string(each));
  }
  const double time = dapple_time(profile, result.stages, options).milliseconds;
  if (std::abs(time - result.time) > 1e-9 * time) problems.push_back("time: it is " + std::to_string(time));
  return problems;
}

}  // namespace espalier::literal
