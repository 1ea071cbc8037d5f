#pragma once

// Graphs to place by the thousand: training graphs of the zoo's models at any size, on any devices.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "espalier/cluster/cluster.h"
#include "espalier/graph/graph.h"
#include "espalier/placement/instance.h"
#include "espalier/zoo/zoo.h"

namespace espalier::placement {

// A model and who is to run it.
struct WorkloadRecipe {
  std::string name;   // what tables call it
  std::string model;  // of the zoo
  ZooValues values = {};
  BatchSize batch{16};
  std::string cluster = "2xV100-16GB";  // a short form (cluster/text.h)
  // Devices hold so many times an even share of what the fastest one would hold at its peak if it ran
  // everything; nothing: their kind's own memory.
  std::optional<double> memory_share = std::nullopt;
};

struct Workload {
  std::string name;
  Graph graph;  // training graph, backward with forward
  Instance instance;
};

// Costs are the analytic model's. Throws InputError for a model, setting or cluster that there is not.
Workload make_workload(const WorkloadRecipe& recipe);

// The twelve workloads of GDP (arXiv 1910.01578), table 1: RNNLM-2 and 4, GNMT-2, 4 and 8, Transformer-XL-2,
// 4 and 8, Inception-v3, AmoebaNet, WaveNet 2x18 and 4x36, with as many devices as there; sizes that were not
// published are ours. One device does not hold those on four devices and more.
const std::vector<WorkloadRecipe>& gdp_workloads();

// The family of one of them: "rnnlm" of "RNNLM-4".
std::string family_of(const WorkloadRecipe& recipe);

// A recipe drawn from the zoo: families, depths, widths, batches, two to eight devices, alike or not, on fast
// or slow links, with room or without. Graphs of some hundred to `most_operators` operators. The same for the
// same seed. `without`: families that are left out.
WorkloadRecipe draw_workload(std::uint64_t seed, const std::vector<std::string>& without = {});

}  // namespace espalier::placement
