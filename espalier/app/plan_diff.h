#pragma once

// What differs between two plan files of one model.

#include <optional>
#include <string>
#include <vector>

#include "espalier/app/moved_work.h"
#include "espalier/app/opened_plan.h"

namespace espalier {

struct PlanDifference {
  Duration iteration_a, iteration_b;  // simulated
  std::vector<std::string> settings;  // "batch: 16 in a, 32 in b"
  struct Moved {  // operators that stand in another stage or on other devices; with a placement: devices
    std::string operators;  // names, or a run "first .. last"
    std::size_t count = 0;
    std::string from, to;  // "head on cpu:1", with a placement "cpu:1"
  };
  std::vector<Moved> moved;
  std::vector<std::string> stages;  // "head: in flight 2 in a, 1 in b"
  std::vector<std::string> orders;  // of devices that both use: "cpu:0: 2F 2(B F) 2B in a, 4F 4B in b"; of
                                    // long ones where they part
  // By modules and devices, whatever the stages; none where nothing moved or the costs are not known.
  std::optional<MovedWork> work;
  Bytes messages_a, messages_b;  // what the devices send each other in a step
  struct Memory {
    std::string device;
    Bytes a, b;  // at the peak; nothing where the cluster lacks it
  };
  std::vector<Memory> memory;  // of devices that hold something in one of them
  bool same() const { return settings.empty() && moved.empty() && stages.empty() && orders.empty(); }
};

// `graph` is the model that both name; `costs`, if there are any, those of a, complete for work_size(a): they
// say how much work moved. Throws InputError if the plans are of different models.
PlanDifference diff_plans(const OpenedPlan& a, const OpenedPlan& b, const Graph& graph,
                          const CostTable* costs = nullptr);

// The micro-batch by which operators of different stages are weighed.
BatchSize work_size(const OpenedPlan& opened);

}  // namespace espalier
