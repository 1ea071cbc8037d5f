#pragma once

// Placement instances for property tests: random ones made from random graphs (both kinds of graphs, views,
// mutations, ties, duplicables, several kinds of devices), and small ones drawn by hand. All pass
// check_instance. Same Rng state, same result.

#include <cstdint>
#include <vector>

#include "espalier/base/rng.h"
#include "espalier/placement/engine.h"

namespace espalier::testing {

struct RandomInstanceOptions {
  std::size_t operators = 10;
  std::size_t max_devices = 4;
  bool training_graph = false;  // expand_backward of a random graph
  bool zero_times = true;       // some tasks take no time
  bool endpoints = true;        // some messages cost time of devices
  bool duplicables = true;
};
placement::Instance random_instance(Rng& rng, const RandomInstanceOptions& options = {});

// Any allowed device for each unit.
placement::Assignment random_assignment(Rng& rng, const placement::Instance& instance);

// Tasks of one kind, each a unit that gives one value, on equal devices, each with a link out and one in.
struct Sketch {
  struct Task {
    std::int64_t time = 0;           // nanoseconds
    std::int64_t bytes = 0;          // of its value
    std::vector<std::size_t> reads;  // tasks
  };
  std::vector<Task> tasks;
  std::size_t devices = 2;
  std::int64_t bandwidth = 1'000'000'000;  // a byte a nanosecond
  Duration latency = {};
  Bytes memory = Bytes(1'000);
};
placement::Instance draw(const Sketch& sketch);

// All mixes of orders, sends, copies and memory, with and without busy times and a bandwidth for all.
std::vector<placement::Rules> all_rules();

// Orders that make sense with the rules: random priorities, or lists in the order of tasks.
placement::DeviceOrders random_orders(Rng& rng, const placement::Instance& instance,
                                      const placement::Rules& rules, const placement::Assignment& assignment);

}  // namespace espalier::testing
