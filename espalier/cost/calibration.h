#pragma once

// What the analytic model needs to know of a machine, measured once in a second or two: with it a step that
// nobody profiled is predicted from this machine's own rates and not from a preset's.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/cost/cost_table.h"

namespace espalier {

struct Calibration {
  // Whose figures they are: other machines, threads or versions have others.
  std::string machine;
  std::uint32_t threads = 1;  // of each worker
  std::string torch_version;
  // As a DeviceKind's, of one worker while another computes beside it.
  double flops_f32 = 0;
  std::int64_t memory_bandwidth = 0;
  Duration launch_overhead;
  CostTable costs{CostTableParts{}};  // of no operator: overheads of the kind cpu, and the link
  friend bool operator==(const Calibration&, const Calibration&) = default;
};

// The one of that machine, threads and version; nothing if there is none.
std::optional<Calibration> find_calibration(const std::vector<Calibration>& calibrations,
                                            std::string_view machine, std::uint32_t threads,
                                            std::string_view torch_version);

// With `fresh` in the place of the one of its machine, threads and version.
std::vector<Calibration> with_calibration(std::vector<Calibration> calibrations, Calibration fresh);

}  // namespace espalier
