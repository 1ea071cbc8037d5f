#include "espalier/sim/evaluated_memory.h"

namespace espalier::internal {

void add_held_always(const StageMemory& memory, MemoryByCategory& held) {
  held.bytes[static_cast<std::size_t>(MemoryCategory::kParameters)] += memory.parameters;
  held.bytes[static_cast<std::size_t>(MemoryCategory::kGradients)] += memory.gradients;
  held.bytes[static_cast<std::size_t>(MemoryCategory::kOptimizer)] += memory.optimizer_state;
}

void set_peaks(const ListStructure& structure, std::span<const ListPeak> found,
               std::vector<MemoryByCategory>& peak) {
  for (std::size_t lane = 0; lane < found.size(); ++lane) {
    Bytes* bytes = peak[structure.devices[lane].index()].bytes;
    bytes[static_cast<std::size_t>(MemoryCategory::kBuffers)] = Bytes(found[lane].buffers);
    bytes[static_cast<std::size_t>(MemoryCategory::kActivations)] = Bytes(found[lane].activations);
  }
}

void find_overflow(const Cluster& cluster, Evaluation& evaluation) {
  for (std::size_t d = 0; d < evaluation.peak.size(); ++d) {
    if (evaluation.peak[d].total() <= cluster.devices()[d].memory) continue;
    evaluation.overflow = DeviceId(d);
    return;
  }
}

}  // namespace espalier::internal
