// Simulated annealing of the largest load (objective: Tarnawski et al., NeurIPS 2020, section 5.1, without
// contiguity).
//
// The largest load alone says nothing about all changes that do not touch the fullest device. So the energy
// is Σ over devices of (load / best)^p, with p doubled from phase to phase: at first all loads count, at last
// hardly any but the largest. Bytes that a device lacks count as load.
//
// Bad cases: items so large that memory admits few placements; then one item at a time hardly moves.

#include "espalier/planners/literal/max_load_search.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "espalier/base/rng.h"
#include "espalier/planners/literal/free_placement.h"
#include "espalier/planners/placement/moves.h"

namespace espalier::literal {
namespace {

constexpr std::uint64_t kSwapEvery = 4, kClusterEvery = 8, kMostOfCluster = 64;

// Of the temperature: what is worse by more has a chance below 10^-8 and is left out without a draw.
constexpr double kHopeless = 20;

constexpr double kOvercharge = 8;  // of the best load, where a device lacks as much as it has

double power(double x, unsigned exponent) {  // of two
  for (; exponent > 1; exponent /= 2) x *= x;
  return x;
}

struct FreeFound {
  double max_load = std::numeric_limits<double>::infinity();
  std::vector<std::uint32_t> place = {};
};

class Annealer {
 public:
  Annealer(const FreeItems& graph, const FreeMachine& machine, std::vector<std::uint32_t> start, Rng rng)
      : graph_(graph), machine_(machine), now_(graph, machine, std::move(start)), rng_(rng) {
    note();
  }

  // One cooling.
  void run(unsigned exponent, double hot, std::uint64_t moves, Context& context) {
    exponent_ = exponent;
    scale_ = found_.place.empty() ? now_.largest() : found_.max_load;
    if (!(scale_ > 0)) scale_ = 1;
    now_.count();
    energy_ = 0;
    terms_.resize(machine_.devices());
    for (std::size_t d = 0; d < terms_.size(); ++d)
      energy_ += terms_[d] = term(d, now_.load(d), now_.bytes(d));
    for (std::uint64_t i = 0; i < moves && context.take_state(); ++i) {
      if (i % 4096 == 0 && context.stop()) return;
      const double left = 1 - static_cast<double>(i) / static_cast<double>(moves);
      step(hot * left * left * exponent);
    }
  }

  void restart(const std::vector<std::uint32_t>& place) { now_.reset(place); }
  const FreeFound& found() const { return found_; }

 private:
  double term(std::size_t device, double load, double bytes) const {
    double full = load / scale_;
    if (now_.accelerator(device) && bytes > machine_.memory)
      full += kOvercharge * (0.02 + (bytes - machine_.memory) / std::max(1.0, machine_.memory));
    return power(full, exponent_);
  }

  // Another device for an item: as a rule one where an item stands that it shares an output with.
  std::size_t other_device(std::size_t item) {
    const std::size_t from = now_.place()[item];
    const std::vector<std::uint32_t>& outputs = graph_.items[item].outputs;
    std::size_t to = from;
    if (!outputs.empty() && rng_.below(4) != 0) {
      const std::vector<std::uint32_t>& beside = graph_.outputs[outputs[rng_.below(outputs.size())]].items;
      to = now_.place()[beside[rng_.below(beside.size())]];
    }
    return to == from ? rng_.below(machine_.devices()) : to;
  }

  void step(double temperature) {
    const std::size_t item = rng_.below(graph_.items.size());
    if (rng_.below(kSwapEvery) == 0) return step_of_swap(item, temperature);
    const std::size_t from = now_.place()[item], to = other_device(item);
    if (to == from || !now_.may_stand(item, to)) return;
    if (rng_.below(kClusterEvery) == 0) return step_of_cluster(item, to, temperature);
    const FreePlacement::Effect effect = now_.effect(item, to);
    const double out = term(from, effect.from_load, effect.from_bytes);
    const double in = term(to, effect.to_load, effect.to_bytes);
    const double after = energy_ - terms_[from] - terms_[to] + out + in;
    if (!kept(after, temperature)) return;
    now_.move(item, to, effect);
    terms_[from] = out, terms_[to] = in;
    energy_ = std::accumulate(terms_.begin(), terms_.end(), 0.0);
    note();
  }

  // All that hangs together on the item's device by outputs at least as dear as one of its own.
  void step_of_cluster(std::size_t item, std::size_t to, double temperature) {
    const std::vector<std::uint32_t>& outputs = graph_.items[item].outputs;
    if (outputs.empty()) return;
    const std::size_t from = now_.place()[item];
    const double dear = graph_.outputs[outputs[rng_.below(outputs.size())]].cost;
    const FreePlacement::Effect before = now_.loads(from, to);
    const std::size_t most = 2 + rng_.below(kMostOfCluster);
    cluster_.clear();
    const auto add = [&](std::uint32_t next) {
      cluster_.push_back(next);
      now_.shift(next, to);
    };
    add(static_cast<std::uint32_t>(item));
    for (std::size_t i = 0; i < cluster_.size() && cluster_.size() < most; ++i) {
      for (const std::uint32_t o : graph_.items[cluster_[i]].outputs) {
        if (graph_.outputs[o].cost < dear) continue;
        for (const std::uint32_t next : graph_.outputs[o].items) {
          if (now_.place()[next] == from && now_.may_stand(next, to) && cluster_.size() < most) add(next);
        }
      }
    }
    if (stays(from, to, temperature)) return;
    for (const std::uint32_t moved : cluster_) now_.stand(moved, from);
    now_.set_loads(from, to, before);
  }

  // Two items of different devices change places.
  void step_of_swap(std::size_t item, double temperature) {
    const std::size_t other = rng_.below(graph_.items.size());
    const std::size_t from = now_.place()[item], to = now_.place()[other];
    if (from == to || !now_.may_stand(item, to) || !now_.may_stand(other, from)) return;
    const FreePlacement::Effect before = now_.loads(from, to);
    now_.shift(item, to);
    now_.shift(other, from);
    if (stays(from, to, temperature)) return;
    now_.stand(other, to);
    now_.stand(item, from);
    now_.set_loads(from, to, before);
  }

  // Whether the loads of two devices, which changed, are kept.
  bool stays(std::size_t from, std::size_t to, double temperature) {
    const double out = term(from, now_.load(from), now_.bytes(from));
    const double in = term(to, now_.load(to), now_.bytes(to));
    const double after = energy_ - terms_[from] - terms_[to] + out + in;
    if (!kept(after, temperature)) return false;
    terms_[from] = out, terms_[to] = in;
    energy_ = std::accumulate(terms_.begin(), terms_.end(), 0.0);
    note();
    return true;
  }

  bool kept(double after, double temperature) {
    if (after <= energy_) return true;
    if (after > energy_ * (1 + kHopeless * temperature)) return false;
    return after <= energy_ * (1 + temperature * placement::exponential(rng_));
  }

  void note() {
    const double largest = now_.largest();
    if (largest < found_.max_load * (1 - 1e-12) && now_.fits()) found_ = {largest, now_.place()};
  }

  const FreeItems& graph_;
  const FreeMachine& machine_;
  FreePlacement now_;
  Rng rng_;
  unsigned exponent_ = 8;
  double scale_ = 1, energy_ = 0;
  std::vector<double> terms_;  // by device
  std::vector<std::uint32_t> cluster_;
  FreeFound found_;
};

// Runs of items by number over the accelerators, by time.
std::vector<std::uint32_t> runs_of_items(const FreeItems& graph, const FreeMachine& machine) {
  double all = 0, done = 0;
  for (const FreeItems::Item& item : graph.items) all += item.accelerator;
  std::vector<std::uint32_t> place;
  for (const FreeItems::Item& item : graph.items) {
    const std::size_t devices = std::max<std::size_t>(1, machine.accelerators);
    const double middle = all > 0 ? (done + item.accelerator / 2) / all : 0;
    const auto run = std::min(devices - 1, static_cast<std::size_t>(middle * static_cast<double>(devices)));
    place.push_back(static_cast<std::uint32_t>(item.cpu_only ? machine.accelerators : run));
    done += item.accelerator;
  }
  return place;
}

// DPL's placement, where it finds one.
std::optional<std::vector<std::uint32_t>> linear_start(const MsrProfile& profile,
                                                       const MaxLoadOptions& options, const FreeItems& graph,
                                                       const FreeMachine& machine) {
  MaxLoadOptions linear = options;
  linear.space = MaxLoadSpace::kLinear;
  const MaxLoadResult result = max_load(profile, linear);
  if (!result.found()) return std::nullopt;
  std::vector<std::uint32_t> place(graph.items.size());
  std::size_t accelerator = 0, cpu = machine.accelerators;
  for (const MaxLoadDevice& device : result.devices) {
    const auto number = static_cast<std::uint32_t>(device.accelerator ? accelerator++ : cpu++);
    for (const std::size_t node : device.nodes) place[graph.item_of[node]] = number;
  }
  return place;
}

struct Cooling {
  unsigned exponent;
  double hot;
  double share;
};
constexpr double kCooler = 0.25;  // where the start is good already
constexpr Cooling kCoolings[] = {{4, 0.1, 0.3}, {8, 0.05, 0.3}, {16, 0.02, 0.2}, {32, 0.01, 0.2}};

}  // namespace

MaxLoadResult max_load_search(const MsrProfile& profile, const MaxLoadSearchOptions& options,
                              Context& context) {
  const FreeMachine machine = free_machine(profile, options.machine);
  const FreeItems graph = items_by_colour(profile);
  MaxLoadResult result;
  result.items = graph.items.size();
  const bool needs_cpu = std::any_of(graph.items.begin(), graph.items.end(),
                                     [](const FreeItems::Item& item) { return item.cpu_only; });
  if (needs_cpu && machine.cpus == 0) {
    result.why = "a node runs on CPUs only, and there is none";
    return result;
  }
  const std::vector<std::uint32_t> runs = runs_of_items(graph, machine);
  const std::vector<std::uint32_t> linear =
      linear_start(profile, options.machine, graph, machine).value_or(runs);
  std::vector<FreeFound> found(std::max<std::size_t>(1, options.chains));
  context.for_each(found.size(), [&](std::size_t c, Context& mine) {
    const bool from_linear = c % 2 == 0;
    Annealer annealer(graph, machine, from_linear ? linear : runs, Rng(stream_key(options.seed, {c})));
    const auto all = static_cast<double>(mine.budget.max_states);
    for (const Cooling& cooling : kCoolings) {
      annealer.run(cooling.exponent, from_linear ? cooling.hot * kCooler : cooling.hot,
                   static_cast<std::uint64_t>(all * cooling.share), mine);
      if (!annealer.found().place.empty()) annealer.restart(annealer.found().place);
    }
    found[c] = annealer.found();
  });
  const FreeFound& best =
      *std::min_element(found.begin(), found.end(),
                        [](const FreeFound& a, const FreeFound& b) { return a.max_load < b.max_load; });
  if (best.place.empty()) {
    result.why = "no placement was found that fits " + std::to_string(machine.accelerators) +
                 " accelerators and " + std::to_string(machine.cpus) + " CPUs";
    return result;
  }
  return priced_items(profile, options.machine, graph, machine, best.place);
}

}  // namespace espalier::literal
