#pragma once

// Who holds a device's memory at its peak: modules of the model, with the source line that made the most of
// it. For people who look for what to make smaller.

#include <string>
#include <vector>

#include "espalier/app/planning.h"
#include "espalier/report/table.h"

namespace espalier {

struct MemoryHolder {
  // "encoder.norm"; of several that differ in numbers alone, "encoder.layers.*.linear1 (12)". Operators
  // without a module go by their own name.
  std::string module;
  std::string source;  // "model.py:12", of the operator that holds most; empty if unknown
  Bytes parameters;    // frozen ones and buffers too; each where it is first read
  Bytes training;      // their gradients and what the optimizer keeps for them
  Bytes kept;          // tensors kept for backward, of all micro-batches in flight
  Bytes total() const { return parameters + training + kept; }
  friend bool operator==(const MemoryHolder&, const MemoryHolder&) = default;
};

struct MemoryAccount {
  DeviceId device;
  Bytes peak, has;
  Duration at;                        // of the step
  std::vector<MemoryHolder> holders;  // most first
  Bytes rest;                         // what is received and sent, workspace, what recomputation holds
};

// Of one device of a plan: the sum of all is its peak. Micro-batches in flight are those at that time.
// O(operators of the device · log + spans).
MemoryAccount memory_account(const PlanningJob& job, const Judged& judged, DeviceId device);

// At most so many rows, then one for the other modules and one for the rest.
Table memory_account_table(const MemoryAccount& account, std::size_t most);

}  // namespace espalier
