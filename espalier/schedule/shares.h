#pragma once

// Who works on which samples: the arithmetic of micro-batches of possibly unequal sizes, for make_schedule
// and with_channels. (The checkers have their own.)

#include <algorithm>
#include <cstdint>
#include <vector>

#include "espalier/plan/staged_model.h"

namespace espalier {

// Micro-batches [begin, end) of a stage with `theirs` micro-batches that share samples with micro-batch j of
// one with `ours`.
struct MicroBatchRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};
inline MicroBatchRange overlapping(std::uint32_t j, std::uint32_t ours, std::uint32_t theirs) {
  if (ours == theirs) return {j, j + 1};  // nearly always: no division
  const std::uint64_t from = std::uint64_t{j} * theirs;
  const std::uint64_t to = (std::uint64_t{j} + 1) * theirs;
  return {static_cast<std::uint32_t>(from / ours),
          std::min(theirs, static_cast<std::uint32_t>((to + ours - 1) / ours))};
}

// Which replica of a stage takes a micro-batch, and as how many-th of its share.
struct Owner {
  std::uint32_t replica = 0;
  std::uint32_t rank = 0;
};
using Owners = std::vector<std::vector<Owner>>;  // by stage, by micro-batch

inline Owners owners_of(const StagedModel& model) {
  Owners owners(model.stages.size());
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    const StagedStage& stage = model.stages[s];
    owners[s].resize(stage.micro_batches);
    for (std::uint32_t r = 0; r < stage.replicas.size(); ++r) {
      const std::vector<std::uint32_t>& share = stage.replicas[r].micro_batches;
      for (std::uint32_t rank = 0; rank < share.size(); ++rank) owners[s].at(share[rank]) = {r, rank};
    }
  }
  return owners;
}

// Are these micro-batches those that round_robin gives a replica?
inline bool is_round_robin(const std::vector<std::uint32_t>& share, std::uint32_t micro_batches,
                           std::size_t replica, std::size_t replicas) {
  if (share.size() != (micro_batches + replicas - 1 - replica) / replicas) return false;
  for (std::size_t i = 0; i < share.size(); ++i) {
    if (share[i] != i * replicas + replica) return false;
  }
  return true;
}

inline bool contains(const std::vector<DeviceId>& devices, DeviceId device) {
  return std::find(devices.begin(), devices.end(), device) != devices.end();
}
inline bool share_a_device(const std::vector<DeviceId>& a, const std::vector<DeviceId>& b) {
  return std::any_of(a.begin(), a.end(), [&](DeviceId device) { return contains(b, device); });
}

// Does anything travel back from this reader: a gradient, or a returning token?
inline bool flows_back(const Crossing& crossing, const Crossing::Reader& reader) {
  return crossing.returns && (crossing.token || reader.gradient > Bytes());
}

}  // namespace espalier
