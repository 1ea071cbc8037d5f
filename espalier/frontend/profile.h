#pragma once

// What the published profiles have in common: nodes with costs, edges with bytes. Internal to the frontend.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "espalier/base/json.h"
#include "espalier/frontend/imported.h"

namespace espalier {

inline constexpr const char* kProfiledKind = "profiled";  // the device kind of a file that names none
inline constexpr double kMostProfiledBytes = 1e15;
inline constexpr std::int64_t kMaxProfiledId = std::int64_t{1} << 53;

struct ProfileNode {
  std::string name = {};    // of the operator: unique, without spaces
  std::string target = {};  // what the file calls it
  OperatorRole role = OperatorRole::kForward;
  Bytes stored = {};         // weights, or what the file says it occupies
  bool trainable = false;    // the weights take part in training
  bool always_grad = false;  // its output requires a gradient whatever it reads
  bool duplicable = false;
  std::optional<Bytes> output = {};         // of its output; else its edges say
  std::optional<std::size_t> part_of = {};  // its output is a part of that node's output
  std::optional<std::uint32_t> colocation = {};
  std::vector<CostRow> costs = {};  // op_class is filled in here
};

struct ProfileEdge {
  std::size_t from = 0;
  std::size_t to = 0;
  Bytes bytes;
};

enum class EdgeTensors : std::uint8_t {
  kShared,   // edges of one source with equal bytes carry one tensor
  kPerEdge,  // each edge carries its own
};

struct Profile {
  std::string file;
  std::string name;
  BatchSize batch{1};
  EdgeTensors tensors = EdgeTensors::kShared;
  std::vector<ProfileNode> nodes;
  std::vector<ProfileEdge> edges;
};

// The nodes of a file that numbers them as it likes.
class NodeNumbers {
 public:
  // The next node has the number that stands at `id`, which is given back. Throws InputError at `id` if
  // another node has it.
  std::int64_t add(const JsonCursor& id);
  // Throws InputError at `id` if no node has that number.
  std::size_t at(const JsonCursor& id) const;

 private:
  std::unordered_map<std::int64_t, std::size_t> node_;
};

// A graph of opaque tensors in an order that the edges allow (of several, the file's), and its costs. A
// gradient flows from trainable weights on, but for a profile that holds its backward half. `order[n]` is the
// operator of node n. Throws InputError if the edges form a cycle, naming a node on it.
struct BuiltProfile {
  Graph graph;
  CostTable costs;
  std::vector<OperatorId> order;
};
BuiltProfile build_profile(Profile profile);

// `devices` of one kind, "<kind>:0" …, joined by one network.
Cluster flat_cluster(const std::string& kind, std::size_t devices, Bytes memory, std::int64_t bandwidth,
                     bool contention = true);

// The costs of a task that takes the same time on every device.
CostRow task_time(Duration time);

// Files that say how long a message takes, and not its bytes: it has those that take so long at this rate, a
// nanosecond each.
inline constexpr std::int64_t kTimedBytesPerSecond = 1'000'000'000;
inline Bytes bytes_that_take(Duration time) {
  return Bytes(time.count());
}

// Tasks of a file that names no machine. Where messages are timed, devices are assumed between which they
// take those times, whatever else is under way, and a warning says so.
Imported task_graph_of(Profile profile, bool timed);

// "dir/gnmt.json" → "gnmt"
std::string file_stem(const std::string& file);

}  // namespace espalier
