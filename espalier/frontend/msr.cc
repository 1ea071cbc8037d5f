// The JSON of msr-fiddle/dnn-partitioning (Tarnawski et al., NeurIPS'20).
//
// Published oddities, and what becomes of them:
// - `cost` of an edge is the time of its source's output between accelerator and host memory, equal on all
//   out-edges: one tensor per source, its bytes from cost × 2^31 bytes/s. The edges' own `size` is only
//   informative and wrong in places.
// - `cost` is in milliseconds, but in seconds in the throughput layer graphs, beside latencies in
//   milliseconds: where most costs × 2^31 equal the sizes, they are seconds, and are repaired.
// - `size` of a node is all that it occupies. What its output does not take becomes a stored block.
// - Training graphs hold their backward half as nodes of their own (role kBackward), each with its time as
// the
//   input half of a backward. They are simulated, not run; nothing is folded.

#include <algorithm>
#include <unordered_map>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/frontend/decode.h"
#include "espalier/frontend/imported.h"
#include "espalier/frontend/profile.h"
#include "espalier/frontend/published.h"

namespace espalier {
namespace {

constexpr double kBandwidth = 2147483648.0;  // 2^31 bytes per second
constexpr double kMostMilliseconds = 1e12;
constexpr std::int64_t kMostDevices = 10'000;
constexpr const char* kAccelerator = "accelerator";
constexpr const char* kCpu = "cpu";

// True and false are written as 1 and 0 in some files.
bool truth(const JsonCursor& value) {
  return value.json().is_boolean() ? value.boolean() : value.integer(0, 1) == 1;
}

class MsrImporter {
 public:
  MsrImporter(const MsrProfile& published, const ImportOptions& options)
      : published_(published), options_(options) {
    profile_.file = published.file;
    profile_.name = file_stem(published.file);
  }

  Imported make() {
    add_nodes();
    find_unit();
    set_output_bytes();
    Cluster machine = cluster();
    BuiltProfile built = build_profile(std::move(profile_));
    Imported result{.graph = std::move(built.graph)};
    result.costs = std::move(built.costs);
    result.cluster = std::move(machine);
    result.warnings = std::move(warnings_);
    return result;
  }

 private:
  void add_nodes() {
    for (std::size_t i = 0; i < published_.nodes.size(); ++i) {
      const MsrProfile::Node& in = published_.nodes[i];
      ProfileNode node;
      node.name = "n" + std::to_string(in.id);
      node.target = in.name;
      node.role = in.backward ? OperatorRole::kBackward : OperatorRole::kForward;
      node.stored = round_bytes(in.bytes);
      if (in.colour) {
        node.colocation =
            colours_.emplace(*in.colour, static_cast<std::uint32_t>(colours_.size())).first->second;
      }
      if (!in.on_accelerator) {
        throw InputError(published_.file + ": nodes[" + std::to_string(i) +
                         "].supportedOnFpga: is false; operators that only a CPU can run are not supported");
      }
      for (const auto& [kind, milliseconds] :
           {std::pair(kAccelerator, in.accelerator), std::pair(kCpu, in.cpu)}) {
        CostRow row;
        row.kind = kind;
        OperatorCost cost;
        (in.backward ? cost.input_gradient : cost.forward) = round_duration(milliseconds * 1e6);
        cost.origin = Origin::kProfile;
        row.points.push_back({BatchSize(1), cost});
        node.costs.push_back(std::move(row));
      }
      profile_.nodes.push_back(std::move(node));
    }
  }

  void find_unit() {
    std::size_t seconds = 0, milliseconds = 0;
    for (const MsrProfile::Edge& edge : published_.edges) {
      if (edge.cost <= 0 || edge.bytes <= 0) continue;
      const double ratio = edge.cost * kBandwidth / edge.bytes;
      if (ratio > 0.5 && ratio < 2) ++seconds;
      if (ratio > 500 && ratio < 2000) ++milliseconds;
    }
    if (options_.repair == Repair::kRepair && seconds > milliseconds) {
      scale_ = 1000;
      warnings_.push_back(
          "communication costs are in seconds beside times in milliseconds (cost = size / 2^31): read as "
          "seconds");
    }
  }

  void set_output_bytes() {
    std::vector<double> cost(profile_.nodes.size());
    std::size_t differing = 0;
    std::vector<bool> seen(profile_.nodes.size());
    for (const MsrProfile::Edge& edge : published_.edges) {
      if (seen[edge.from] && cost[edge.from] != edge.cost) ++differing;
      cost[edge.from] = std::max(cost[edge.from], edge.cost);
      seen[edge.from] = true;
      profile_.edges.push_back({edge.from, edge.to, Bytes()});
    }
    if (differing > 0) {
      warnings_.push_back(
          std::to_string(differing) +
          " edges have another cost than their source's other edges: the largest is taken for all");
    }
    for (std::size_t i = 0; i < cost.size(); ++i) {
      ProfileNode& node = profile_.nodes[i];
      node.output = round_bytes(cost[i] * scale_ / 1000 * kBandwidth);
      node.stored = Bytes(std::max<std::int64_t>(0, node.stored.count() - node.output->count()));
    }
  }

  // Accelerators reach host memory over links of 2^31 bytes/s; CPUs are in it.
  Cluster cluster() const {
    const std::int64_t accelerators = published_.accelerators, cpus = published_.cpus;
    const Bytes memory = round_bytes(published_.memory);
    if (accelerators + cpus == 0)
      throw InputError(published_.file + ": has neither accelerators (maxFPGAs) nor CPUs (maxCPUs)");
    ClusterParts parts;
    for (const auto& [kind, bytes] :
         {std::pair(kAccelerator, memory), std::pair(kCpu, Bytes(std::int64_t{1} << 50))}) {
      parts.kinds.push_back({.name = kind,
                             .memory = bytes,
                             .flops_f32 = 1e12,
                             .flops_f16 = 1e12,
                             .memory_bandwidth = 1'000'000'000'000});
    }
    Group host, slots;
    host.name = "host";
    host.contention = false;
    slots.name = "accelerators";
    slots.parent = GroupId(0);
    slots.bandwidth = std::int64_t{1} << 31;
    parts.groups = {host, slots};
    for (std::int64_t i = 0; i < accelerators + cpus; ++i) {
      const bool fast = i < accelerators;
      Device device;
      device.name = (fast ? kAccelerator : kCpu) + (":" + std::to_string(fast ? i : i - accelerators));
      device.kind = KindId(fast ? 0 : 1);
      device.group = GroupId(fast ? 1 : 0);
      device.memory = parts.kinds[device.kind.index()].memory;
      parts.devices.push_back(device);
    }
    return Cluster(std::move(parts));
  }

  const MsrProfile& published_;
  ImportOptions options_;
  Profile profile_;
  std::unordered_map<std::int64_t, std::uint32_t> colours_;
  std::vector<std::string> warnings_;
  double scale_ = 1;
};

}  // namespace

MsrProfile read_msr(std::string_view text, const std::string& file) {
  const Json json = parse_json(text, file);
  const JsonCursor root(json, file);
  MsrProfile result;
  result.file = file;
  result.accelerators = root.at("maxFPGAs").integer(0, kMostDevices);
  result.cpus = root.at("maxCPUs").integer(0, kMostDevices);
  result.memory = root.at("maxSizePerFPGA").number(1, kMostProfiledBytes);
  NodeNumbers numbers;
  const JsonCursor nodes = root.at("nodes");
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const JsonCursor in = nodes.at(i);
    MsrProfile::Node node;
    node.id = numbers.add(in.at("id"));
    node.name = one_line(in.at("name").string());
    node.backward = truth(in.at("isBackwardNode"));
    node.bytes = in.at("size").number(0, kMostProfiledBytes);
    if (in.has("colorClass") && !in.at("colorClass").json().is_null())
      node.colour = in.at("colorClass").integer(-kMaxProfiledId, kMaxProfiledId);
    node.on_accelerator = truth(in.at("supportedOnFpga"));
    node.accelerator = in.at("fpgaLatency").number(0, kMostMilliseconds);
    node.cpu = in.at("cpuLatency").number(0, kMostMilliseconds);
    result.nodes.push_back(std::move(node));
  }
  const JsonCursor edges = root.at("edges");
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const JsonCursor in = edges.at(i);
    result.edges.push_back({numbers.at(in.at("sourceId")), numbers.at(in.at("destId")),
                            in.at("cost").number(0, kMostMilliseconds),
                            in.has("size") ? in.at("size").number(0, kMostProfiledBytes) : 0});
  }
  return result;
}

Imported import_msr(std::string_view text, const std::string& name, const ImportOptions& options) {
  const MsrProfile published = read_msr(text, name);
  return MsrImporter(published, options).make();
}

MsrPlacement read_msr_placement(std::string_view text, const std::string& file) {
  const Json json = parse_json(text, file);
  const JsonCursor root(json, file);
  MsrPlacement result;
  result.file = file;
  for (const char* key : {"fpgas", "cpus"}) {
    const JsonCursor devices = root.at(key);
    for (std::size_t d = 0; d < devices.size(); ++d) {
      const JsonCursor nodes = devices.at(d).at("nodes");
      MsrPlacement::Device device{.accelerator = key == std::string_view("fpgas")};
      for (std::size_t i = 0; i < nodes.size(); ++i)
        device.nodes.push_back(nodes.at(i).integer(-kMaxProfiledId, kMaxProfiledId));
      result.devices.push_back(std::move(device));
    }
  }
  return result;
}

Placement import_msr_placement(std::string_view text, const std::string& name, const Graph& graph,
                               const Cluster& cluster) {
  const MsrPlacement published = read_msr_placement(text, name);
  std::vector<std::optional<DeviceId>> device(graph.operators().size());
  std::size_t of_kind[2] = {0, 0};
  for (const MsrPlacement::Device& in : published.devices) {
    const std::string number = std::to_string(of_kind[in.accelerator ? 0 : 1]++);
    const std::string device_name = std::string(in.accelerator ? kAccelerator : kCpu) + ":" + number;
    const std::string place = name + ": " + (in.accelerator ? "fpgas[" : "cpus[") + number + "].nodes";
    const std::optional<DeviceId> id = cluster.find_device(device_name);
    if (!id && !in.nodes.empty())
      throw InputError(place + ": places nodes on '" + device_name + "', which the cluster lacks");
    for (std::size_t i = 0; i < in.nodes.size(); ++i) {
      const std::string at = place + "[" + std::to_string(i) + "]";
      const std::optional<OperatorId> op = graph.find_operator("n" + std::to_string(in.nodes[i]));
      if (!op) throw InputError(at + ": is not the id of a node of '" + graph.name() + "'");
      if (device[op->index()]) throw InputError(at + ": is placed twice");
      device[op->index()] = id;
    }
  }
  // A node that is missing goes where the nodes of its colour are.
  std::unordered_map<std::uint32_t, DeviceId> of_colour;
  for (std::size_t i = 0; i < device.size(); ++i) {
    const auto colour = graph.operators()[i].colocation;
    if (device[i] && colour) of_colour.emplace(*colour, *device[i]);
  }
  Placement placement;
  for (std::size_t i = 0; i < device.size(); ++i) {
    const Operator& op = graph.operators()[i];
    if (!device[i] && op.colocation && of_colour.contains(*op.colocation))
      device[i] = of_colour.at(*op.colocation);
    if (!device[i])
      throw InputError(name + ": places neither node '" + op.name.substr(1) + "' nor one of its colour");
    placement.device.push_back(*device[i]);
  }
  return placement;
}

}  // namespace espalier
