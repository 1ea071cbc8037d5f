// Equal stages, after the planner of PipeDream-2BW as Piper's program has it (Tarnawski et al., NeurIPS 2021,
// section 5).

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "espalier/planners/literal/piper_model.h"

namespace espalier::literal {
namespace {

enum class Ends : std::uint8_t { kJoin, kApart };  // layers before and behind those that are shared out
enum class Recompute : std::uint8_t { kNone, kAll };

constexpr std::string_view kTransformer = "ParallelTransformerLayer";

// Kahn's algorithm with a stack: of the layers that are ready, the one that became so last.
std::vector<std::size_t> stacked_order(const PiperModel& model) {
  std::vector<std::size_t> waits(model.after.size()), ready, order;
  for (const std::vector<std::uint32_t>& readers : model.after) {
    for (const std::uint32_t reader : readers) ++waits[reader];
  }
  for (std::size_t v = 0; v < waits.size(); ++v) {
    if (waits[v] == 0) ready.push_back(v);
  }
  while (!ready.empty()) {
    order.push_back(ready.back());
    ready.pop_back();
    for (const std::uint32_t reader : model.after[order.back()]) {
      if (--waits[reader] == 0) ready.push_back(reader);
    }
  }
  return order;
}

class EqualSplit {
 public:
  EqualSplit(const PiperProfile& profile, const PiperOptions& options)
      : options_(options), model_(piper_model(profile, options)) {
    const std::vector<std::size_t> order = stacked_order(model_);
    const auto counts = [&](std::size_t v) { return profile.nodes[v].name == kTransformer; };
    const bool transformers = std::any_of(order.begin(), order.end(), counts);
    std::vector<bool> before(order.size());  // leads to a layer that counts
    for (auto v = order.rbegin(); v != order.rend(); ++v) {
      const std::vector<std::uint32_t>& readers = model_.after[*v];
      before[*v] = counts(*v) || std::any_of(readers.begin(), readers.end(),
                                             [&](std::uint32_t reader) { return before[reader]; });
    }
    for (const std::size_t v : order)
      (!transformers || counts(v) ? split_ : before[v] ? head_ : tail_).push_back(v);
  }

  PiperResult best() {
    for (const Ends ends : {Ends::kJoin, Ends::kApart}) {
      if (ends == Ends::kApart && head_.empty() && tail_.empty()) break;
      const std::int64_t extra = ends == Ends::kApart ? 2 : 0;
      const auto layers = static_cast<std::int64_t>(split_.size());
      for (std::int64_t count = 1; count <= layers && count + extra <= model_.devices; ++count) {
        const std::vector<std::vector<std::size_t>> parts =
            equal_parts(static_cast<std::size_t>(count), ends);
        for (const std::uint32_t d : model_.replicas) try_degrees(parts, d);
      }
    }
    if (best_.stages.empty()) best_.why = "no equal split fits";
    return std::move(best_);
  }

 private:
  std::vector<std::vector<std::size_t>> equal_parts(std::size_t count, Ends ends) const {
    std::vector<std::vector<std::size_t>> parts(count);
    const std::size_t each = split_.size() / count, longer = split_.size() % count;
    std::size_t next = 0;
    for (std::size_t p = 0; p < count; ++p) {
      const std::size_t size = each + (p + longer >= count ? 1 : 0);
      for (std::size_t i = 0; i < size; ++i) parts[p].push_back(split_[next++]);
    }
    if (ends == Ends::kApart) {
      parts.insert(parts.begin(), std::vector<std::size_t>());
      parts.emplace_back();
    }
    parts.front().insert(parts.front().end(), head_.begin(), head_.end());
    parts.back().insert(parts.back().end(), tail_.begin(), tail_.end());
    for (std::vector<std::size_t>& part : parts) std::sort(part.begin(), part.end());
    return parts;
  }

  void try_degrees(const std::vector<std::vector<std::size_t>>& parts, std::uint32_t d) {
    const std::int64_t replicas = static_cast<std::int64_t>(parts.size()) * std::int64_t{d};
    if (replicas > model_.most_s) return;
    for (std::size_t degree = 0; degree < model_.degrees.size(); ++degree) {
      if (replicas * model_.degrees[degree] > model_.devices || !model_.layers[degree][0].listed) continue;
      try_plan(parts, degree, d, Recompute::kNone);
      if (options_.recompute) try_plan(parts, degree, d, Recompute::kAll);
    }
  }

  // The layer's way with or without recomputation; null if it is not listed.
  static const LayerWays::Way* way(const LayerWays& ways, Recompute choice) {
    const bool recompute = choice == Recompute::kAll;
    if (ways.listed && ways.fast.recompute == recompute) return &ways.fast;
    return ways.other && ways.other->recompute == recompute ? &*ways.other : nullptr;
  }

  void try_plan(const std::vector<std::vector<std::size_t>>& parts, std::size_t degree, std::uint32_t d,
                Recompute recompute) {
    PiperResult plan;
    std::vector<std::size_t> part_of(model_.after.size());
    for (std::size_t p = 0; p < parts.size(); ++p) {
      for (const std::size_t v : parts[p]) part_of[v] = p;
    }
    for (std::size_t p = 0; p < parts.size(); ++p) {
      PiperStage stage;
      stage.tensor = model_.degrees[degree];
      stage.data = d;
      stage.in_flight = static_cast<std::int64_t>(parts.size() - p);
      double compute = 0, parameters = 0, border = 0;
      for (const std::size_t v : parts[p]) {
        const LayerWays::Way* const chosen = way(model_.layers[degree][v], recompute);
        if (!chosen) return;
        compute += chosen->time;
        parameters += model_.layers[degree][v].parameters;
        stage.bytes += chosen->bytes(static_cast<double>(stage.in_flight));
        for (const BorderEdge& edge : model_.edges[v])
          border += part_of[edge.peer] == p ? 0 : edge.bytes[degree];
      }
      stage.time = model_.stage_time(compute, border, parameters, d);
      if (stage.bytes > model_.memory) return;
      if (!best_.stages.empty() && stage.time >= best_.time_per_sample) return;
      plan.time_per_sample = std::max(plan.time_per_sample, stage.time);
      plan.devices += std::int64_t{stage.tensor} * std::int64_t{stage.data};
      stage.nodes = parts[p];
      if (recompute == Recompute::kAll) stage.recomputed = parts[p];
      plan.stages.push_back(std::move(stage));
    }
    best_ = std::move(plan);
  }

  PiperOptions options_;
  PiperModel model_;
  std::vector<std::size_t> split_, head_, tail_;  // layers that are shared out, before and behind them
  PiperResult best_;
};

}  // namespace

PiperResult piper_equal_split(const PiperProfile& profile, const PiperOptions& options) {
  return EqualSplit(profile, options).best();
}

}  // namespace espalier::literal
