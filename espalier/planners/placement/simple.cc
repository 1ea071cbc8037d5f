#include "espalier/planners/placement/simple.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>

#include "espalier/base/rng.h"
#include "espalier/planners/placement/list_state.h"
#include "espalier/planners/placement/memory_ledger.h"

namespace espalier::placement {
namespace {

constexpr std::size_t kMostLayers = 512;

Duration unit_time(const Instance& instance, std::size_t unit, DeviceId device) {
  Duration sum;
  for (const TaskId task : instance.tasks_of[unit]) sum += instance.time_on(task, device);
  return sum;
}

// "encoder.layers.3" of "encoder.layers.3.attn.linear", "head" of "head.norm".
std::string_view layer_path(std::string_view path) {
  std::size_t begin = 0;
  while (begin < path.size()) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    const auto digit = [](char c) { return '0' <= c && c <= '9'; };
    if (!part.empty() && std::all_of(part.begin(), part.end(), digit)) return path.substr(0, end);
    begin = end + 1;
  }
  return path.substr(0, path.find('.'));
}

// One assignment with random devices; nothing where a unit has no room.
std::optional<Assignment> random_assignment(const Instance& instance, Rng& rng) {
  MemoryLedger ledger(instance);
  std::vector<std::uint32_t> order(instance.units());
  std::iota(order.begin(), order.end(), std::uint32_t{0});
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  Assignment assignment(instance.units());
  for (const std::uint32_t u : order) {
    std::vector<DeviceId> fitting;
    for (const DeviceId device : instance.allowed[u]) {
      if (ledger.fits(UnitId(u), device)) fitting.push_back(device);
    }
    if (fitting.empty()) return std::nullopt;
    assignment[u] = fitting[rng.below(fitting.size())];
    ledger.place(UnitId(u), assignment[u]);
  }
  return assignment;
}

// The units of layers first … last on a device, and whether they may stand there and fit.
class LayerRuns {
 public:
  LayerRuns(const Instance& instance, std::span<const std::uint32_t> layer) : instance_(instance) {
    const std::size_t layers = *std::max_element(layer.begin(), layer.end()) + 1U;
    units_.resize(layers);
    for (std::size_t u = 0; u < layer.size(); ++u) units_[layer[u]].push_back(UnitId(u));
    fits_until_.assign(layers * instance.devices(), 0);
    MemoryLedger ledger(instance);
    for (std::size_t d = 0; d < instance.devices(); ++d) {
      // The end of what fits grows with the begin: two hands.
      std::size_t end = 0;
      for (std::size_t begin = 0; begin < layers; ++begin) {
        while (end < layers && add(ledger, end, DeviceId(d))) ++end;
        fits_until_[begin * instance.devices() + d] = end;
        if (end == begin) {
          ++end;
        } else {
          for (const UnitId unit : units_[begin]) ledger.remove(unit);
        }
      }
      for (const std::vector<UnitId>& some : units_) {
        work_.push_back({});
        for (const UnitId unit : some) work_.back() += unit_time(instance, unit.index(), DeviceId(d));
      }
    }
  }

  std::size_t layers() const { return units_.size(); }
  const std::vector<UnitId>& units(std::size_t layer) const { return units_[layer]; }
  Duration work(std::size_t layer, std::size_t device) const { return work_[device * layers() + layer]; }
  // One behind the last layer that fits with all from `begin` on.
  std::size_t fits_until(std::size_t begin, std::size_t device) const {
    return fits_until_[begin * instance_.devices() + device];
  }

 private:
  // Adds a layer if it may stand there and fits; else leaves the ledger as it was.
  bool add(MemoryLedger& ledger, std::size_t layer, DeviceId device) {
    std::size_t added = 0;
    for (const UnitId unit : units_[layer]) {
      const std::span<const DeviceId> allowed = instance_.allowed[unit.index()];
      if (!std::binary_search(allowed.begin(), allowed.end(), device) || !ledger.fits(unit, device)) break;
      ledger.place(unit, device);
      ++added;
    }
    if (added == units_[layer].size()) return true;
    for (std::size_t i = 0; i < added; ++i) ledger.remove(units_[layer][i]);
    return false;
  }

  const Instance& instance_;
  std::vector<std::vector<UnitId>> units_;  // by layer
  std::vector<std::size_t> fits_until_;     // by layer and device
  std::vector<Duration> work_;              // by device and layer
};

enum class CutMemory : std::uint8_t { kRespected, kIgnored };

// Where each device's layers end, with the least work on the busiest device; nothing where no cut fits.
std::optional<std::vector<std::size_t>> best_cut(const LayerRuns& runs, std::size_t devices,
                                                 CutMemory memory) {
  const std::size_t layers = runs.layers();
  constexpr Duration kNone = Duration::max();
  // best[d][l]: the first l layers on the first d devices.
  std::vector<std::vector<Duration>> best(devices + 1, std::vector<Duration>(layers + 1, kNone));
  std::vector<std::vector<std::size_t>> from(devices + 1, std::vector<std::size_t>(layers + 1));
  best[0][0] = {};
  for (std::size_t d = 0; d < devices; ++d) {
    for (std::size_t begin = 0; begin <= layers; ++begin) {
      if (best[d][begin] == kNone) continue;
      const std::size_t last =
          begin == layers || memory == CutMemory::kIgnored ? layers : runs.fits_until(begin, d);
      Duration work;
      for (std::size_t end = begin; end <= last; ++end) {
        const Duration most = std::max(best[d][begin], work);
        if (most < best[d + 1][end]) {
          best[d + 1][end] = most;
          from[d + 1][end] = begin;
        }
        if (end < last) work += runs.work(end, d);
      }
    }
  }
  if (best[devices][layers] == kNone) return std::nullopt;
  std::vector<std::size_t> ends(devices);
  std::size_t end = layers;
  for (std::size_t d = devices; d > 0; --d) {
    ends[d - 1] = end;
    end = from[d][end];
  }
  return ends;
}

}  // namespace

Placed one_device(const Instance& instance) {
  std::optional<std::pair<Duration, DeviceId>> best;
  Placed none;
  for (std::size_t d = 0; d < instance.devices(); ++d) {
    MemoryLedger ledger(instance);
    Duration time;
    std::size_t barred = 0;
    for (std::size_t u = 0; u < instance.units(); ++u) {
      const std::span<const DeviceId> allowed = instance.allowed[u];
      barred += std::binary_search(allowed.begin(), allowed.end(), DeviceId(d)) ? 0 : 1;
      ledger.place(UnitId(u), DeviceId(d));
      time += unit_time(instance, u, DeviceId(d));
    }
    if (barred > 0) continue;
    const Bytes lack = ledger.lack();
    if (lack.count() > 0) {
      none.lacks.push_back({DeviceId(d), lack});
    } else if (!best || std::pair(time, DeviceId(d)) < *best) {
      best = {time, DeviceId(d)};
    }
  }
  if (best) return placed_by(instance, Assignment(instance.units(), best->second));
  none.why = none.lacks.empty() ? "no device may run everything" : "no device holds everything";
  return none;
}

Placed round_robin_units(const Instance& instance, std::span<const UnitId> order) {
  MemoryLedger ledger(instance);
  Assignment assignment(instance.units());
  std::size_t next = 0;
  for (const UnitId unit : order) {
    const std::span<const DeviceId> allowed = instance.allowed[unit.index()];
    std::optional<DeviceId> chosen;
    for (std::size_t i = 0; i < instance.devices() && !chosen; ++i) {
      const DeviceId device((next + i) % instance.devices());
      const bool may = std::binary_search(allowed.begin(), allowed.end(), device);
      if (may && ledger.fits(unit, device)) chosen = device;
    }
    assignment[unit.index()] = chosen.value_or(allowed.front());
    ledger.place(unit, assignment[unit.index()]);
    ++next;
  }
  return placed_by(instance, std::move(assignment));
}

Placed random_best(const Instance& instance, const RandomOptions& options, Context& context) {
  const Engine engine(instance, options.rules);
  Scratch scratch;
  Rng rng(options.seed);
  std::optional<Assignment> best;
  Duration least = Duration::max();
  SearchStats stats;
  for (std::uint32_t i = 0; i < options.samples && !context.stop() && context.take_state(); ++i) {
    ++stats.states;
    std::optional<Assignment> drawn = random_assignment(instance, rng);
    if (!drawn) continue;
    ++stats.evaluations;
    const Evaluated evaluated = engine.evaluate(*drawn, scratch, least);
    if (evaluated.cut_off || evaluated.deadlock || least <= evaluated.time) continue;
    least = evaluated.time;
    best = std::move(drawn);
  }
  if (!best) {  // none had room: any, repaired
    best.emplace();
    for (std::size_t u = 0; u < instance.units(); ++u) {
      best->push_back(instance.allowed[u][rng.below(instance.allowed[u].size())]);
    }
  }
  Placed placed = placed_by(instance, std::move(*best));
  if (least < Duration::max()) placed.estimate = least;
  placed.stats += stats;
  return placed;
}

Placed human_expert(const Instance& instance, std::span<const std::uint32_t> layer) {
  if (instance.units() == 0) return placed_by(instance, {});
  const LayerRuns runs(instance, layer);
  auto ends = best_cut(runs, instance.devices(), CutMemory::kRespected);
  if (!ends) ends = best_cut(runs, instance.devices(), CutMemory::kIgnored);
  Assignment assignment(instance.units());
  std::size_t device = 0;
  for (std::size_t l = 0; l < runs.layers(); ++l) {
    while ((*ends)[device] <= l) ++device;
    for (const UnitId unit : runs.units(l)) {
      const std::span<const DeviceId> allowed = instance.allowed[unit.index()];
      const bool may = std::binary_search(allowed.begin(), allowed.end(), DeviceId(device));
      assignment[unit.index()] = may ? DeviceId(device) : allowed.front();
    }
  }
  return placed_by(instance, std::move(assignment));
}

std::vector<std::uint32_t> layers_of(const Instance& instance, const Graph& graph) {
  std::map<std::string_view, std::uint32_t> numbers;
  std::vector<std::uint32_t> layer(instance.units());
  std::uint32_t layers = 0;
  std::vector<Duration> work;
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    const std::size_t unit = instance.unit[t].index();
    const bool first = instance.tasks_of[unit].front() == TaskId(t);
    if (first) {
      const std::string& path = graph.op(instance.op[t]).module_path;
      std::uint32_t number = layers;
      if (!path.empty()) number = numbers.emplace(layer_path(path), layers).first->second;
      if (number == layers) {
        ++layers;
        work.emplace_back();
      }
      layer[unit] = number;
    }
    work[layer[unit]] += instance.time_on(TaskId(t), instance.allowed[unit].front());
  }
  if (layers <= kMostLayers) return layer;
  Duration sum, before;
  for (const Duration each : work) sum += each;
  std::vector<std::uint32_t> joined(layers);
  std::uint32_t last = 0;
  for (std::uint32_t l = 0; l < layers; ++l) {
    const double share = sum.count() > 0 ? ratio(before, sum) : static_cast<double>(l) / layers;
    const auto wanted =
        std::min<std::uint32_t>(static_cast<std::uint32_t>(share * kMostLayers), kMostLayers - 1);
    last = l == 0 ? 0 : std::min(std::max(last, wanted), last + 1);
    joined[l] = last;
    before += work[l];
  }
  for (std::uint32_t& each : layer) each = joined[each];
  return layer;
}

}  // namespace espalier::placement
