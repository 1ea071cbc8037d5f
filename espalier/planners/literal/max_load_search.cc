// Simulated annealing of the largest load (objective: Tarnawski et al., NeurIPS 2020, section 5.1, without
// contiguity).
//
// An output, with all items that make or read it, costs each accelerator that holds some of these items but
// not all. So a change of one item's device from a to b changes the loads of a and b only: of an output that
// more than a and b touch, the others pay before and after.
//
//   held[output][device]   items of it there; spread[output]: devices that hold some
//   a pays before iff spread > 1, and after iff it still holds some
//   b pays before iff it held some already, and after iff spread > 1 then
//
// The largest load alone says nothing about all changes that do not touch the fullest device. So the energy
// is Σ over devices of (load / best)^p, with p doubled from phase to phase: at first all loads count, at last
// hardly any but the largest. Bytes that a device lacks count as load.
//
// Bad cases: items so large that memory admits few placements; then one item at a time hardly moves.

#include "espalier/planners/literal/max_load_search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/planners/placement/moves.h"

namespace espalier::literal {
namespace {

constexpr std::uint64_t kSwapEvery = 4, kClusterEvery = 8, kMostOfCluster = 64;

// Of the temperature: what is worse by more has a chance below 10^-8 and is left out without a draw.
constexpr double kHopeless = 20;

constexpr double kOvercharge = 8;  // of the best load, where a device lacks as much as it has

// Nodes by colour, and the outputs that several items touch.
struct FreeItems {
  struct Item {
    double cpu = 0, accelerator = 0, bytes = 0;
    bool cpu_only = false;
    std::vector<std::uint32_t> outputs = {};
  };
  struct Output {
    double cost = 0;
    std::vector<std::uint32_t> items;  // at least two, ascending
  };
  std::vector<Item> items;
  std::vector<Output> outputs;
  std::vector<std::uint32_t> item_of;  // by node
};

FreeItems items_by_colour(const MsrProfile& profile) {
  FreeItems result;
  std::unordered_map<std::int64_t, std::uint32_t> of_colour;
  for (const MsrProfile::Node& node : profile.nodes) {
    auto item = static_cast<std::uint32_t>(result.items.size());
    if (node.colour) item = of_colour.emplace(*node.colour, item).first->second;
    if (item == result.items.size()) result.items.emplace_back();
    FreeItems::Item& all = result.items[item];
    all.cpu += node.cpu;
    all.accelerator += node.accelerator;
    all.bytes += node.bytes;
    all.cpu_only = all.cpu_only || !node.on_accelerator;
    result.item_of.push_back(item);
  }
  std::vector<std::vector<std::uint32_t>> touch(profile.nodes.size());
  const std::vector<double> cost = output_costs(profile);
  for (const MsrProfile::Edge& edge : profile.edges) {
    touch[edge.from].push_back(result.item_of[edge.to]);
  }
  std::map<std::vector<std::uint32_t>, std::uint32_t> of_items;  // outputs of the same items are one
  for (std::size_t node = 0; node < touch.size(); ++node) {
    std::vector<std::uint32_t>& items = touch[node];
    items.push_back(result.item_of[node]);
    std::sort(items.begin(), items.end());
    items.erase(std::unique(items.begin(), items.end()), items.end());
    if (items.size() < 2 || cost[node] == 0) continue;
    const auto [at, fresh] = of_items.emplace(items, static_cast<std::uint32_t>(result.outputs.size()));
    if (fresh) result.outputs.push_back({0, items});
    result.outputs[at->second].cost += cost[node];
  }
  for (std::uint32_t o = 0; o < result.outputs.size(); ++o) {
    for (const std::uint32_t item : result.outputs[o].items) result.items[item].outputs.push_back(o);
  }
  return result;
}

struct FreeMachine {
  std::size_t accelerators = 0, cpus = 0;
  double memory = 0;
  std::size_t devices() const { return accelerators + cpus; }
};

FreeMachine free_machine(const MsrProfile& profile, const MaxLoadOptions& options) {
  const std::int64_t accelerators = options.accelerators.value_or(profile.accelerators);
  const std::int64_t cpus = options.cpus.value_or(profile.cpus);
  if (accelerators < 0 || cpus < 0 || accelerators + cpus == 0 || accelerators + cpus > 10'000) {
    throw InputError(profile.file + ": " + std::to_string(accelerators) + " accelerators and " +
                     std::to_string(cpus) + " CPUs; expected from 1 to 10000 devices");
  }
  const double memory = options.memory.value_or(profile.memory);
  if (!(memory >= 0)) throw InputError(profile.file + ": expected the memory of an accelerator in bytes");
  return {static_cast<std::size_t>(accelerators), static_cast<std::size_t>(cpus), memory};
}

double power(double x, unsigned exponent) {  // of two
  for (; exponent > 1; exponent /= 2) x *= x;
  return x;
}

// A placement with its loads, changed item by item.
class FreePlacement {
 public:
  FreePlacement(const FreeItems& graph, const FreeMachine& machine, std::vector<std::uint32_t> place)
      : graph_(graph), machine_(machine), devices_(machine.devices()), place_(std::move(place)) {
    count();
  }

  const std::vector<std::uint32_t>& place() const { return place_; }
  bool accelerator(std::size_t device) const { return device < machine_.accelerators; }
  bool may_stand(std::size_t item, std::size_t device) const {
    return !graph_.items[item].cpu_only || !accelerator(device);
  }
  double load(std::size_t device) const { return load_[device]; }
  double bytes(std::size_t device) const { return bytes_[device]; }

  void reset(const std::vector<std::uint32_t>& place) {
    place_ = place;
    count();
  }

  struct Effect {
    double from_load, to_load, from_bytes, to_bytes;
  };
  Effect effect(std::size_t item, std::size_t to) const {
    const FreeItems::Item& moved = graph_.items[item];
    const std::size_t from = place_[item];
    double out = 0, in = 0;
    for (const std::uint32_t o : moved.outputs) {
      const std::uint32_t* const held = held_.data() + o * devices_;
      const double cost = graph_.outputs[o].cost;
      const std::uint32_t after = spread_[o] - (held[from] == 1 ? 1 : 0) + (held[to] == 0 ? 1 : 0);
      out += cost * ((held[from] > 1 ? 1 : 0) - (spread_[o] > 1 ? 1 : 0));
      in += cost * ((after > 1 ? 1 : 0) - (held[to] > 0 ? 1 : 0));
    }
    const auto time = [&](std::size_t device) { return accelerator(device) ? moved.accelerator : moved.cpu; };
    return {load_[from] - time(from) + (accelerator(from) ? out : 0),
            load_[to] + time(to) + (accelerator(to) ? in : 0), bytes_[from] - moved.bytes,
            bytes_[to] + moved.bytes};
  }
  void move(std::size_t item, std::size_t to, const Effect& effect) {
    const std::size_t from = place_[item];
    stand(item, to);
    load_[from] = effect.from_load, load_[to] = effect.to_load;
    bytes_[from] = effect.from_bytes, bytes_[to] = effect.to_bytes;
  }

  // What two devices hold, to go back to once their items have moved back (stand).
  Effect loads(std::size_t from, std::size_t to) const {
    return {load_[from], load_[to], bytes_[from], bytes_[to]};
  }
  void set_loads(std::size_t from, std::size_t to, const Effect& loads) {
    load_[from] = loads.from_load, load_[to] = loads.to_load;
    bytes_[from] = loads.from_bytes, bytes_[to] = loads.to_bytes;
  }
  // The item alone: loads stay as they are.
  void stand(std::size_t item, std::size_t to) {
    const std::size_t from = place_[item];
    for (const std::uint32_t o : graph_.items[item].outputs) {
      std::uint32_t* const held = held_.data() + o * devices_;
      if (--held[from] == 0) --spread_[o];
      if (held[to]++ == 0) ++spread_[o];
    }
    place_[item] = static_cast<std::uint32_t>(to);
  }
  // effect and move in one pass.
  void shift(std::size_t item, std::size_t to) {
    const FreeItems::Item& moved = graph_.items[item];
    const std::size_t from = place_[item];
    double out = 0, in = 0;
    for (const std::uint32_t o : moved.outputs) {
      std::uint32_t* const held = held_.data() + o * devices_;
      const double cost = graph_.outputs[o].cost;
      const std::uint32_t before = spread_[o];
      const std::uint32_t after = before - (held[from] == 1 ? 1 : 0) + (held[to] == 0 ? 1 : 0);
      out += cost * ((held[from] > 1 ? 1 : 0) - (before > 1 ? 1 : 0));
      in += cost * ((after > 1 ? 1 : 0) - (held[to] > 0 ? 1 : 0));
      --held[from], ++held[to];
      spread_[o] = after;
    }
    place_[item] = static_cast<std::uint32_t>(to);
    load_[from] += (accelerator(from) ? out - moved.accelerator : -moved.cpu);
    load_[to] += (accelerator(to) ? in + moved.accelerator : moved.cpu);
    bytes_[from] -= moved.bytes, bytes_[to] += moved.bytes;
  }

  // Everything again from the placement: what many small changes rounded is gone.
  void count() {
    load_.assign(devices_, 0), bytes_.assign(devices_, 0);
    held_.assign(graph_.outputs.size() * devices_, 0), spread_.assign(graph_.outputs.size(), 0);
    for (std::size_t i = 0; i < place_.size(); ++i) {
      const FreeItems::Item& item = graph_.items[i];
      load_[place_[i]] += accelerator(place_[i]) ? item.accelerator : item.cpu;
      bytes_[place_[i]] += item.bytes;
      for (const std::uint32_t o : item.outputs) {
        if (held_[o * devices_ + place_[i]]++ == 0) ++spread_[o];
      }
    }
    for (std::size_t o = 0; o < spread_.size(); ++o) {
      for (std::size_t d = 0; d < machine_.accelerators && spread_[o] > 1; ++d)
        load_[d] += held_[o * devices_ + d] > 0 ? graph_.outputs[o].cost : 0;
    }
  }

  double largest() const { return *std::max_element(load_.begin(), load_.end()); }
  bool fits() const {
    for (std::size_t d = 0; d < machine_.accelerators; ++d) {
      if (bytes_[d] > machine_.memory) return false;
    }
    return true;
  }

 private:
  const FreeItems& graph_;
  const FreeMachine& machine_;
  std::size_t devices_;
  std::vector<std::uint32_t> place_;
  std::vector<double> load_, bytes_;   // by device
  std::vector<std::uint32_t> held_;    // by output and device
  std::vector<std::uint32_t> spread_;  // by output
};

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
  MsrPlacement placement;
  placement.file = profile.file;
  for (std::size_t d = 0; d < machine.devices(); ++d)
    placement.devices.push_back({.accelerator = d < machine.accelerators, .nodes = {}});
  for (std::size_t node = 0; node < profile.nodes.size(); ++node)
    placement.devices[best.place[graph.item_of[node]]].nodes.push_back(profile.nodes[node].id);
  MaxLoadResult priced = price_placement(profile, placement, options.machine);
  priced.items = result.items;
  return priced;
}

}  // namespace espalier::literal
