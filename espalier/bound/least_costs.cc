#include "espalier/bound/least_costs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "espalier/cost/training_times.h"

namespace espalier::internal {
namespace {

// Rates by kind, of an update as of all else, are those of a device of speed 1 divided by its speed.
void find_update_rates(const Cluster& cluster, const CostTable& table, const Training& training,
                       LeastCosts& found) {
  for (const DeviceKind& kind : cluster.kinds()) {
    found.update_rate.push_back(0);
    found.update_fixed.push_back(0);
    for (const KindOverhead::Update& update : table.overhead(kind.name).updates) {
      if (update.optimizer != training.optimizer.kind) continue;
      found.update_rate.back() = static_cast<double>(update.picoseconds_per_byte) / 1000 / kind.speed;
      found.update_fixed.back() = nanoseconds_of(update.fixed) / kind.speed;
      break;
    }
  }
}

Way make_way(const Graph& graph, const DeviceKind& kind, const CostTable& costs, BatchSize size,
             std::int64_t count, std::uint32_t degree) {
  Way way;
  way.size = size;
  way.count = count;
  way.degree = degree;
  way.overhead = at_speed(costs.overhead(kind.name).per_action, kind);
  const KindCosts at(graph, kind, costs, size, {degree, false});
  way.times.resize(graph.operators().size());
  for (std::size_t i = 0; i < way.times.size(); ++i) {
    if (const OperatorCost* cost = at.of(OperatorId(i))) {
      way.times[i] = {cost->forward, cost->input_gradient, cost->weight_gradient};
    }
  }
  return way;
}

void find_updates(const Graph& graph, LeastCosts& found) {
  if (is_training_graph(graph.operators())) return;  // there updates are operators
  std::vector<std::vector<std::uint32_t>> readers(graph.parameters().size());
  for (std::uint32_t i = 0; i < graph.operators().size(); ++i) {
    for (const TensorId input : graph.operators()[i].inputs) {
      const auto parameter = graph.tensor(input).parameter;
      if (!parameter || !graph.parameter(*parameter).trainable) continue;
      std::vector<std::uint32_t>& list = readers[parameter->index()];
      if (list.empty() || list.back() != i) list.push_back(i);
    }
  }
  for (std::size_t p = 0; p < readers.size(); ++p) {
    if (readers[p].empty()) continue;
    const auto bytes = static_cast<double>(graph.parameters()[p].bytes().count());
    if (readers[p].size() == 1) {
      found.own_bytes[readers[p].front()] += bytes;
    } else {
      found.shared.push_back(bytes);
    }
    found.updated.push_back(bytes);
  }
}

bool has_backward(const Graph& graph, const Operator& op) {
  return std::any_of(op.outputs.begin(), op.outputs.end(),
                     [&](TensorId id) { return graph.tensor(id).requires_grad; });
}

// Producers to whose backward pass this operator's leads: those from whom it has a tensor that wants a
// gradient, of which something is sent.
template <class Visit>
void for_producers(const Graph& graph, std::size_t op, Visit visit) {
  const Operator& reader = graph.op(OperatorId(op));
  const bool returns = has_backward(graph, reader);
  for (const TensorId input : reader.inputs) {
    const Tensor& tensor = graph.tensor(input);
    if (!tensor.producer) continue;
    visit(tensor.producer->index(), returns && tensor.requires_grad && tensor.bytes(BatchSize(1)) > Bytes());
  }
}

}  // namespace

LeastCosts least_costs(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                       const Training& training, std::span<const BatchSize> sizes) {
  LeastCosts found;
  const std::size_t n = graph.operators().size();
  found.least.resize(n);
  found.own_bytes.assign(n, 0);
  found.used.assign(cluster.kinds().size(), 0);
  for (const Device& device : cluster.devices()) found.used[device.kind.index()] = 1;
  find_update_rates(cluster, costs, training, found);
  const std::vector<std::uint32_t> groups = tensor_parallel_degrees(costs, cluster.devices().size());
  found.largest_degree = groups.back();
  for (const BatchSize size : sizes) {
    for (const std::uint32_t degree : groups) {
      for (std::size_t k = 0; k < cluster.kinds().size(); ++k) {
        if (!found.used[k]) continue;
        found.ways.push_back(
            make_way(graph, cluster.kinds()[k], costs, size, training.batch.count() / size.count(), degree));
        found.ways.back().kind = k;
      }
    }
  }
  found.find_least();
  find_updates(graph, found);
  return found;
}

// A device rounds its update by less than a nanosecond.
double update_of(double nanoseconds_per_byte, double fixed, double bytes) {
  const double time = bytes * nanoseconds_per_byte + fixed;
  return time == std::floor(time) && nanoseconds_per_byte == 0 ? time : std::max(0.0, time - 1);
}

void LeastCosts::find_least() {
  for (std::size_t i = 0; i < least.size(); ++i) {
    std::optional<OperatorTimes> own;
    for (const Way& way : ways) {
      const std::optional<OperatorTimes>& times = way.times[i];
      if (!times) continue;
      if (!own) own = times;
      own->forward = std::min(own->forward, times->forward);
      own->input = std::min(own->input, times->input);
      own->weight = std::min(own->weight, times->weight);
    }
    if (own) {
      least[i] = *own;
    } else {
      runs = false;
    }
  }
}

double LeastCosts::least_of_used(const std::vector<double>& by_kind) const {
  double lowest = std::numeric_limits<double>::max();
  for (std::size_t k = 0; k < used.size(); ++k) {
    if (used[k]) lowest = std::min(lowest, by_kind[k]);
  }
  return lowest;
}

// Forward: head(w) ≥ head(v) + forward(v) for a reader w of v. Back: I(v) comes after I(w), if that sends it
// a gradient, and after F(v). `back` is the longest chain from the end of F(v) to the start of I(v).
//
// A duplicable operator has a copy beside each reader. What is before a copy is before all; what is after one
// need not be after another, so nothing is.
Chains chains_of(const Graph& graph, const LeastCosts& costs) {
  const std::size_t n = graph.operators().size();
  Chains chains{std::vector<Duration>(n), std::vector<Duration>(n), std::vector<Duration>(n),
                std::vector<Duration>(n), std::vector<Duration>(n), Duration()};
  std::vector<Duration> back(n);
  const double rate = costs.least_of_used(costs.update_rate), fixed = costs.least_of_used(costs.update_fixed);
  for (std::size_t i = 0; i < n; ++i) {
    if (costs.own_bytes[i] == 0) continue;
    const double bytes = costs.own_bytes[i] / costs.largest_degree;
    chains.own_update[i] = Duration(static_cast<std::int64_t>(update_of(rate, fixed, bytes)));
  }
  for (std::size_t i = 0; i < n; ++i) {
    const OperatorTimes& own = costs.least[i];
    chains.tail_input[i] = own.weight + chains.own_update[i];
    for_producers(graph, i, [&](std::size_t p, bool returns) {
      chains.head[i] = std::max(chains.head[i], chains.head[p] + costs.least[p].forward);
      if (returns) {
        chains.tail_input[i] = std::max(chains.tail_input[i], costs.least[p].input + chains.tail_input[p]);
      }
    });
  }
  for (std::size_t i = n; i-- > 0;) {  // readers before producers
    const OperatorTimes& own = costs.least[i];
    const bool duplicable = graph.op(OperatorId(i)).duplicable;
    if (duplicable) chains.tail_forward[i] = Duration();
    chains.ready[i] = std::max(chains.ready[i], chains.head[i] + own.forward);
    if (!duplicable) {
      chains.tail_forward[i] = std::max(chains.tail_forward[i], back[i] + own.input + chains.tail_input[i]);
    }
    for_producers(graph, i, [&](std::size_t p, bool returns) {
      chains.tail_forward[p] = std::max(chains.tail_forward[p], own.forward + chains.tail_forward[i]);
      if (!returns) return;
      back[p] = std::max(back[p], own.forward + back[i] + own.input);
      chains.ready[p] = std::max(chains.ready[p], chains.ready[i] + own.input);
    });
    chains.longest = std::max(chains.longest, chains.head[i] + own.forward + chains.tail_forward[i]);
  }
  return chains;
}

// --- rings

namespace {

constexpr std::size_t kFewDevices = 256;  // of whose routes all are looked at

struct Pair {
  std::int64_t bandwidth;  // unlimited: the largest number there is
  Duration latency;
  std::size_t a, b;
};

// For r = 0 … devices: the value of the pair with which, in this order, some r devices hang together.
template <class Value>
std::vector<Value> joined(std::size_t devices, const std::vector<Pair>& ordered, Value Pair::*value,
                          Value none) {
  std::vector<Value> by_members(devices + 1, none);
  std::vector<std::size_t> root(devices), size(devices, 1);
  std::iota(root.begin(), root.end(), std::size_t{0});
  const auto find = [&](std::size_t x) {
    while (root[x] != x) x = root[x] = root[root[x]];
    return x;
  };
  std::size_t reached = 1;
  for (const Pair& pair : ordered) {
    const std::size_t a = find(pair.a), b = find(pair.b);
    if (a == b) continue;
    root[b] = a;
    size[a] += size[b];
    while (reached < size[a]) by_members[++reached] = pair.*value;
  }
  return by_members;
}

}  // namespace

Rings::Rings(const Cluster& cluster) {
  const std::size_t devices = cluster.devices().size();
  constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
  by_members_.resize(devices + 1);
  if (devices > kFewDevices) {  // the widest of all links for any ring
    std::int64_t widest = 0;
    for (const Group& group : cluster.groups())
      widest = std::max(widest, group.bandwidth.value_or(kUnlimited));
    for (const NamedLink& link : cluster.links()) widest = std::max(widest, link.bandwidth);
    for (Links& links : by_members_) {
      if (widest != kUnlimited) links.bandwidth = widest;
    }
    find_ranges();
    return;
  }
  std::vector<Pair> pairs;
  for (std::size_t a = 0; a < devices; ++a) {
    for (std::size_t b = 0; b < devices; ++b) {
      if (a == b) continue;
      const Route route = cluster.route(DeviceId(a), DeviceId(b));
      pairs.push_back({route.bandwidth.value_or(kUnlimited), route.latency, a, b});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& a, const Pair& b) { return a.bandwidth > b.bandwidth; });
  const std::vector<std::int64_t> widths = joined(devices, pairs, &Pair::bandwidth, kUnlimited);
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& a, const Pair& b) { return a.latency < b.latency; });
  const std::vector<Duration> latencies = joined(devices, pairs, &Pair::latency, Duration());
  for (std::size_t r = 2; r <= devices; ++r) {
    if (widths[r] != kUnlimited) by_members_[r].bandwidth = widths[r];
    by_members_[r].latency = latencies[r];
  }
  find_ranges();
}

void Rings::find_ranges() {
  ranges_ = {{}};
  for (std::size_t r = 2; r < by_members_.size(); ++r) {
    const auto& bandwidth = by_members_[r].bandwidth;
    const double per_byte = bandwidth ? 1e9 / static_cast<double>(*bandwidth) : 0;
    if (r == 2 || per_byte != ranges_.back().per_byte) {
      ranges_.push_back({static_cast<double>(r), 0, per_byte});
    }
    ranges_.back().most = static_cast<double>(r);
  }
}

double Rings::time(std::size_t members, std::int64_t bytes) const {
  const Links& links = by_members_[members];
  const auto n = static_cast<std::int64_t>(members);
  const Bytes chunk((bytes + n - 1) / n);
  const Duration hold = links.bandwidth ? transfer_time(chunk, *links.bandwidth) : Duration();
  return 2 * static_cast<double>(n - 1) * static_cast<double>((hold + links.latency).count());
}

}  // namespace espalier::internal
