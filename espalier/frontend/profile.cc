#include "espalier/frontend/profile.h"

#include <algorithm>
#include <queue>

#include "espalier/base/check.h"
#include "espalier/frontend/decode.h"

namespace espalier {
namespace {

// Kahn's algorithm, the node that stands first in the file first.
std::vector<std::size_t> execution_order(const Profile& profile) {
  std::vector<std::vector<std::size_t>> next(profile.nodes.size());
  std::vector<std::size_t> waits(profile.nodes.size());
  for (const ProfileEdge& edge : profile.edges) {
    next[edge.from].push_back(edge.to);
    ++waits[edge.to];
  }
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;
  for (std::size_t i = 0; i < waits.size(); ++i) {
    if (waits[i] == 0) ready.push(i);
  }
  std::vector<std::size_t> order;
  while (!ready.empty()) {
    const std::size_t node = ready.top();
    ready.pop();
    order.push_back(node);
    for (const std::size_t to : next[node]) {
      if (--waits[to] == 0) ready.push(to);
    }
  }
  if (order.size() < waits.size()) {
    // Of what waits for ever, go back along edges until a node repeats: it lies on a cycle.
    std::vector<std::size_t> before(waits.size());
    for (const ProfileEdge& edge : profile.edges) {
      if (waits[edge.from] > 0) before[edge.to] = edge.from;
    }
    std::size_t at = static_cast<std::size_t>(
        std::find_if(waits.begin(), waits.end(), [](std::size_t w) { return w > 0; }) - waits.begin());
    for (std::size_t i = 0; i < waits.size(); ++i) at = before[at];
    throw InputError(profile.file + ": node " + quote(profile.nodes[at].name) +
                     " reads its own output through its edges; expected a graph without cycles");
  }
  return order;
}

constexpr std::size_t kAssumedDevices = 4;
constexpr Bytes kRoomForAll(std::int64_t{1} << 50);

class Builder {
 public:
  explicit Builder(Profile profile) : profile_(std::move(profile)) {}

  BuiltProfile build() {
    if (profile_.nodes.empty()) throw InputError(profile_.file + ": has no nodes");
    parts_.name = profile_.name;
    parts_.batch = {profile_.batch, profile_.batch};
    training_ = std::any_of(profile_.nodes.begin(), profile_.nodes.end(),
                            [](const ProfileNode& node) { return node.role != OperatorRole::kForward; });
    in_edges_.resize(profile_.nodes.size());
    out_edges_.resize(profile_.nodes.size());
    for (std::size_t e = 0; e < profile_.edges.size(); ++e) {
      out_edges_[profile_.edges[e].from].push_back(e);
      in_edges_[profile_.edges[e].to].push_back(e);
    }
    tensor_of_edge_.resize(profile_.edges.size());
    first_output_.resize(profile_.nodes.size());
    const std::vector<std::size_t> sequence = execution_order(profile_);
    std::vector<OperatorId> order(profile_.nodes.size());
    for (std::size_t i = 0; i < sequence.size(); ++i) order[sequence[i]] = OperatorId(i);
    for (const std::size_t node : sequence) add_operator(node, order[node]);
    return {Graph(std::move(parts_)), CostTable(std::move(costs_)), std::move(order)};
  }

 private:
  TensorId add_tensor(Tensor tensor, std::optional<StorageId> shared) {
    const TensorId id(parts_.tensors.size());
    tensor.dtype = DType::kOpaque;
    tensor.storage = shared.value_or(StorageId(storages_));
    if (!shared) ++storages_;
    parts_.tensors.push_back(std::move(tensor));
    return id;
  }

  TensorId add_stored(const ProfileNode& node) {
    const ParameterId parameter(parts_.parameters.size());
    parts_.parameters.push_back({.names = {node.name + ".stored"},
                                 .trainable = node.trainable,
                                 .dtype = DType::kOpaque,
                                 .sizes = {node.stored.count()}});
    return add_tensor({.name = node.name + ".stored",
                       .role = TensorRole::kParameter,
                       .sizes = {SizeExpr(node.stored.count())},
                       .requires_grad = node.trainable && !training_,
                       .parameter = parameter},
                      std::nullopt);
  }

  void add_operator(std::size_t index, OperatorId id) {
    ProfileNode& node = profile_.nodes[index];
    Operator op;
    op.name = node.name;
    op.target = node.target.empty() ? node.name : node.target;
    op.role = node.role;
    op.op_class = node.name;
    op.colocation = node.colocation;
    op.duplicable = node.duplicable;
    bool grad = !training_ && (node.always_grad || (node.trainable && node.stored.count() > 0));
    for (const std::size_t e : in_edges_[index]) {
      op.inputs.push_back(tensor_of_edge_[e]);
      grad = grad || parts_.tensors[tensor_of_edge_[e].index()].requires_grad;
    }
    if (node.stored.count() > 0) op.inputs.push_back(add_stored(node));
    add_outputs(index, id, grad, op);
    for (CostRow& row : node.costs) {
      row.op_class = op.op_class;
      costs_.rows.push_back(std::move(row));
    }
    parts_.operators.push_back(std::move(op));
  }

  void add_outputs(std::size_t index, OperatorId id, bool grad, Operator& op) {
    const ProfileNode& node = profile_.nodes[index];
    const auto add = [&](Bytes bytes) {
      std::optional<StorageId> shared;
      if (node.part_of) shared = parts_.tensors[first_output_[*node.part_of].index()].storage;
      const std::string suffix = op.outputs.empty() ? "" : "." + std::to_string(op.outputs.size());
      op.outputs.push_back(add_tensor({.name = node.name + suffix,
                                       .sizes = {SizeExpr(bytes.count())},
                                       .requires_grad = grad,
                                       .producer = id},
                                      shared));
      return op.outputs.back();
    };
    if (node.output) {
      const TensorId only = add(*node.output);
      for (const std::size_t e : out_edges_[index]) tensor_of_edge_[e] = only;
    } else {
      std::vector<std::pair<Bytes, TensorId>> made;
      for (const std::size_t e : out_edges_[index]) {
        const Bytes bytes = profile_.edges[e].bytes;
        const auto same =
            std::find_if(made.begin(), made.end(), [&](const auto& m) { return m.first == bytes; });
        const bool reuse = profile_.tensors == EdgeTensors::kShared && same != made.end();
        tensor_of_edge_[e] = reuse ? same->second : add(bytes);
        if (!reuse) made.emplace_back(bytes, tensor_of_edge_[e]);
      }
      if (made.empty()) add(Bytes(0));
    }
    first_output_[index] = op.outputs.front();
    if (out_edges_[index].empty()) parts_.outputs.push_back(op.outputs.front());
  }

  Profile profile_;
  GraphParts parts_;
  CostTableParts costs_;
  std::size_t storages_ = 0;
  bool training_ = false;  // the profile holds a backward half: nothing is left to autograd
  std::vector<std::vector<std::size_t>> in_edges_, out_edges_;
  std::vector<TensorId> tensor_of_edge_;
  std::vector<TensorId> first_output_;
};

}  // namespace

std::int64_t NodeNumbers::add(const JsonCursor& id) {
  const std::int64_t number = id.integer(-kMaxProfiledId, kMaxProfiledId);
  if (!node_.emplace(number, node_.size()).second) {
    id.fail("is " + std::to_string(number) + ", which another node has");
  }
  return number;
}

std::size_t NodeNumbers::at(const JsonCursor& id) const {
  const auto found = node_.find(id.integer(-kMaxProfiledId, kMaxProfiledId));
  if (found == node_.end()) id.fail("is not the id of a node");
  return found->second;
}

BuiltProfile build_profile(Profile profile) {
  const std::string file = profile.file;
  try {
    return Builder(std::move(profile)).build();
  } catch (const InputError& error) {  // only to name the file
    const std::string text = error.what();
    throw InputError(text.starts_with(file) ? text : file + ": " + text);
  }
}

Cluster flat_cluster(const std::string& kind, std::size_t devices, Bytes memory, std::int64_t bandwidth,
                     bool contention) {
  ClusterParts parts;
  // No rates are published. They are needed only where a cost is missing, and a profile lacks none.
  parts.kinds.push_back({.name = kind,
                         .memory = memory,
                         .flops_f32 = 1e12,
                         .flops_f16 = 1e12,
                         .memory_bandwidth = 1'000'000'000'000});
  Group network;
  network.name = "network";
  network.bandwidth = bandwidth;
  network.contention = contention;
  parts.groups.push_back(network);
  for (std::size_t i = 0; i < devices; ++i) {
    Device device;
    device.name = kind + ":" + std::to_string(i);
    device.memory = memory;
    parts.devices.push_back(device);
  }
  return Cluster(std::move(parts));
}

CostRow task_time(Duration time) {
  OperatorCost cost;
  cost.forward = time;
  cost.origin = Origin::kProfile;
  CostRow row;
  row.kind = kProfiledKind;
  row.points.push_back({BatchSize(1), cost});
  return row;
}

Imported task_graph_of(Profile profile, bool timed) {
  BuiltProfile built = build_profile(std::move(profile));
  Imported result{.graph = std::move(built.graph)};
  result.costs = std::move(built.costs);
  result.batch = BatchSize(1);
  if (timed) {
    result.cluster = flat_cluster(kProfiledKind, kAssumedDevices, kRoomForAll, kTimedBytesPerSecond, false);
    result.warnings.push_back("the file names no machine: without --cluster, " +
                              std::to_string(kAssumedDevices) +
                              " devices are assumed between which messages take the file's times "
                              "(--cluster file:8: eight of them)");
  }
  return result;
}

std::string file_stem(const std::string& file) {
  const auto slash = file.rfind('/');
  const std::string base = slash == std::string::npos ? file : file.substr(slash + 1);
  const auto dot = base.rfind('.');
  return one_line(dot == std::string::npos || dot == 0 ? base : base.substr(0, dot));
}

CostTable costs_on(const CostTable& profile, const Cluster& cluster) {
  CostTableParts parts = profile.parts();
  if (parts.rows.empty()) return profile;
  const std::string source = parts.rows.front().kind;
  const std::vector<CostRow> rows = parts.rows;
  for (const DeviceKind& kind : cluster.kinds()) {
    const bool known =
        std::any_of(rows.begin(), rows.end(), [&](const CostRow& row) { return row.kind == kind.name; });
    if (known) continue;
    for (const CostRow& row : rows) {
      if (row.kind != source) continue;
      parts.rows.push_back(row);
      parts.rows.back().kind = kind.name;
    }
  }
  return CostTable(std::move(parts));
}

}  // namespace espalier
