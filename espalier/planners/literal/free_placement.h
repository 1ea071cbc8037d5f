#pragma once

// Placements of a profile's colours (or what else stands together) on devices, changed item by item: what
// searches of the largest load (max_load.h) over arbitrary placements share.
//
// An output, with all items that make or read it, costs each accelerator that holds some of these items but
// not all. So a change of one item's device from a to b changes the loads of a and b only: of an output that
// more than a and b touch, the others pay before and after.
//
//   held[output][device]   items of it there; spread[output]: devices that hold some
//   a pays before iff spread > 1, and after iff it still holds some
//   b pays before iff it held some already, and after iff spread > 1 then

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "espalier/frontend/published.h"
#include "espalier/planners/literal/max_load.h"

namespace espalier::literal {

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

// Nodes with one number stand together; numbers are dense. Throws InputError where two edges of a source
// differ in cost.
FreeItems free_items(const MsrProfile& profile, std::vector<std::uint32_t> item_of);
FreeItems items_by_colour(const MsrProfile& profile);

struct FreeMachine {
  std::size_t accelerators = 0, cpus = 0;
  double memory = 0;
  std::size_t devices() const { return accelerators + cpus; }
};

// Throws InputError where there is no device, or too many, or no memory.
FreeMachine free_machine(const MsrProfile& profile, const MaxLoadOptions& options);

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

// The result of a placement of items, priced by the definition (price_placement).
MaxLoadResult priced_items(const MsrProfile& profile, const MaxLoadOptions& options, const FreeItems& graph,
                           const FreeMachine& machine, const std::vector<std::uint32_t>& place);

}  // namespace espalier::literal
