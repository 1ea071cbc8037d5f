#pragma once

// Which devices a printed picture shows where there are too many to read: one of each run of neighbours that
// do the same stages, the one of the largest figure (busiest, fullest); of more runs than there is room for,
// those of the largest figures. Machine output shows all devices and never asks.

#include <span>
#include <string>
#include <vector>

#include "espalier/trace/trace.h"

namespace espalier {

constexpr std::size_t kMostPrintedDevices = 32;

struct DeviceSelection {
  std::vector<DeviceId> shown, hidden;  // each ascending; together the candidates
};

// `candidates` ascend; `figure` is by DeviceId, at least zero. Up to `most` candidates are shown as they are.
// Ties end with the smaller device. O(spans · log spans + devices · log devices).
DeviceSelection select_devices(const Trace& trace, std::span<const DeviceId> candidates,
                               std::span<const double> figure, std::size_t most = kMostPrintedDevices);

// Of all devices, by the share of its memory that each holds at its peak.
DeviceSelection fullest_devices(const Trace& trace);

// "480 more devices hold 3.10 GiB to 9.20 GiB at their peak, at most 58 % of their memory\n"; nothing if none
// is hidden.
std::string hidden_memory_text(const Trace& trace, std::span<const DeviceId> hidden);

}  // namespace espalier
