#include "espalier/learned/policy_input.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <numeric>
#include <string_view>

#include "espalier/base/rng.h"
#include "espalier/planners/placement/list_clock.h"
#include "espalier/planners/placement/placer.h"
#include "espalier/planners/placement/ranks.h"
#include "espalier/planners/placement/simple.h"

namespace espalier::placement {
namespace {

float log1p_of(double value, double scale) {
  return static_cast<float>(std::log1p(std::max(0.0, value)) / scale);
}

double count_of(Duration time) {
  return static_cast<double>(time.count());
}
double count_of(Bytes bytes) {
  return static_cast<double>(bytes.count());
}

// "aten.mm" of "aten.mm.default": one type for all overloads. FNV-1a, the same on any machine.
std::uint32_t type_of(std::string_view target) {
  if (const std::size_t dot = target.rfind('.'); dot != std::string_view::npos && dot > 0)
    target = target.substr(0, dot);
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : target) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return static_cast<std::uint32_t>(mix64(hash) % kOperatorTypes);
}

// A number in [0, 1] as waves, so that small differences are seen (Vaswani et al., NeurIPS'17, §3.5).
void append_waves(std::vector<float>& row, double position) {
  for (std::size_t k = 0; k < kOctaves; ++k) {
    const double angle = std::numbers::pi * static_cast<double>(1 << k) * position;
    row.push_back(static_cast<float>(std::sin(angle)));
    row.push_back(static_cast<float>(std::cos(angle)));
  }
}

class InputBuilder {
 public:
  InputBuilder(const Instance& instance, const Graph& graph, const Clusters& clusters)
      : instance_(instance), graph_(graph), clusters_(clusters), mean_(instance) {
    made_.nodes = clusters.count;
    made_.devices = instance.devices();
  }

  PolicyInput build(TraversalOrder order) && {
    measure_nodes();
    connect_nodes();
    type_nodes();
    order_nodes(order);
    place_layers();
    describe_devices();
    compare_devices();
    write_numbers();
    return std::move(made_);
  }

 private:
  std::uint32_t node_of(TaskId task) const { return clusters_.of_unit[instance_.unit[task.index()].index()]; }

  struct NodeSums {
    double time = 0, out = 0, in = 0, resident = 0, held = 0, message = 0, level = 0, slack = 0;
    double first_level = 1;
    double tasks = 0, givers = 0, takers = 0;
  };

  void measure_nodes() {
    sums_.resize(made_.nodes);
    const std::vector<Duration> up = upward_ranks(instance_, mean_), down = downward_ranks(instance_, mean_);
    for (std::size_t t = 0; t < instance_.tasks(); ++t)
      longest_ = std::max(longest_, count_of(up[t] + down[t]));
    for (std::size_t t = 0; t < instance_.tasks(); ++t) {
      NodeSums& sums = sums_[node_of(TaskId(t))];
      const double time = count_of(mean_.time[t]) + 1;
      const double level = count_of(down[t]) / longest_;
      sums.time += time;
      sums.tasks += 1;
      sums.level += time * level;
      sums.slack += time * count_of(up[t] + down[t]) / longest_;
      sums.first_level = std::min(sums.first_level, level);
      work_ += time;
    }
    for (std::size_t v = 0; v < instance_.values(); ++v) {
      const std::uint32_t from = node_of(instance_.producer[v]);
      const double bytes = count_of(instance_.bytes[v]);
      sums_[from].held += bytes;
      bool leaves = false;
      std::vector<std::uint32_t> to;
      for (const TaskId reader : instance_.readers[v]) {
        if (node_of(reader) != from) to.push_back(node_of(reader));
      }
      std::sort(to.begin(), to.end());
      to.erase(std::unique(to.begin(), to.end()), to.end());
      for (const std::uint32_t node : to) {
        sums_[node].in += bytes;
        leaves = true;
      }
      if (!leaves) continue;
      sums_[from].out += bytes;
      sums_[from].message += count_of(mean_.message[v]);
      messages_ += count_of(mean_.message[v]);
    }
    for (std::size_t u = 0; u < instance_.units(); ++u) {
      for (const std::uint32_t resident : instance_.resident[u])
        sums_[clusters_.of_unit[u]].resident += count_of(instance_.resident_bytes[resident]);
    }
    made_.work.reserve(made_.nodes);
    for (const NodeSums& sums : sums_) made_.work.push_back(static_cast<float>(sums.time / work_));
  }

  void connect_nodes() {
    // Both ways of each edge; time of messages that go this way.
    std::map<std::pair<std::uint32_t, std::uint32_t>, double> edges;
    for (std::size_t v = 0; v < instance_.values(); ++v) {
      const std::uint32_t from = node_of(instance_.producer[v]);
      std::vector<std::uint32_t> to;
      for (const TaskId reader : instance_.readers[v]) {
        if (node_of(reader) != from) to.push_back(node_of(reader));
      }
      std::sort(to.begin(), to.end());
      to.erase(std::unique(to.begin(), to.end()), to.end());
      for (const std::uint32_t node : to) edges[{from, node}] += count_of(mean_.message[v]);
    }
    std::vector<std::pair<std::uint32_t, std::uint32_t>> backward;
    for (const auto& [edge, time] : edges) {
      sums_[edge.first].takers += 1;
      sums_[edge.second].givers += 1;
      backward.emplace_back(edge.second, edge.first);
    }
    for (const auto& edge : backward) edges.try_emplace(edge, 0);
    auto edge = edges.begin();
    for (std::uint32_t node = 0; node < made_.nodes; ++node) {
      for (; edge != edges.end() && edge->first.first == node; ++edge) {
        made_.neighbours.items.push_back(edge->first.second);
        made_.given.push_back(static_cast<float>(edge->second / work_));
      }
      made_.neighbours.close();
    }
  }

  void type_nodes() {
    std::vector<std::map<std::uint32_t, double>> share(made_.nodes);
    std::map<std::string_view, std::uint32_t> known;
    for (std::size_t t = 0; t < instance_.tasks(); ++t) {
      const std::string_view target = graph_.op(instance_.op[t]).target;
      const auto [entry, is_new] = known.emplace(target, 0);
      if (is_new) entry->second = type_of(target);
      const std::uint32_t node = node_of(TaskId(t));
      share[node][entry->second] += (count_of(mean_.time[t]) + 1) / sums_[node].time;
    }
    for (const std::map<std::uint32_t, double>& of_node : share) {
      for (const auto& [type, part] : of_node) {
        made_.types.items.push_back(type);
        made_.type_share.push_back(static_cast<float>(part));
      }
      made_.types.close();
    }
  }

  void order_nodes(TraversalOrder order) {
    const std::vector<UnitId> units = units_in_order(instance_, traversal_order(graph_, order));
    std::vector<double> sum(made_.nodes), members(made_.nodes);
    for (std::size_t i = 0; i < units.size(); ++i) {
      sum[clusters_.of_unit[units[i].index()]] += static_cast<double>(i);
      members[clusters_.of_unit[units[i].index()]] += 1;
    }
    made_.order.resize(made_.nodes);
    std::iota(made_.order.begin(), made_.order.end(), std::uint32_t{0});
    const auto place = [&](std::uint32_t node) { return sum[node] / std::max(1.0, members[node]); };
    std::stable_sort(made_.order.begin(), made_.order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return place(a) < place(b); });
    position_.resize(made_.nodes);
    for (std::size_t i = 0; i < made_.nodes; ++i) {
      position_[made_.order[i]] = static_cast<double>(i) / static_cast<double>(made_.nodes);
    }
  }

  // Where each node's layer begins and ends along the network, as a person sees it who cuts between layers:
  // by the work, and by the bytes, of the layers before it.
  void place_layers() {
    const std::vector<std::uint32_t> layer = layers_of(instance_, graph_);
    const std::size_t layers = layer.empty() ? 0 : *std::max_element(layer.begin(), layer.end()) + 1;
    std::vector<double> work(layers), bytes(layers);
    for (std::size_t u = 0; u < instance_.units(); ++u) {
      for (const TaskId task : instance_.tasks_of[u]) {
        work[layer[u]] += count_of(mean_.time[task.index()]) + 1;
        for (const ValueId value : instance_.produces[task.index()])
          bytes[layer[u]] += count_of(instance_.bytes[value.index()]);
      }
      for (const std::uint32_t resident : instance_.resident[u])
        bytes[layer[u]] += count_of(instance_.resident_bytes[resident]);
    }
    const auto middles = [](const std::vector<double>& sizes) {
      const double all = std::accumulate(sizes.begin(), sizes.end(), 1e-9);
      std::vector<double> places;
      double before = 0;
      for (const double size : sizes) {
        places.push_back((before + size / 2) / all);
        before += size;
      }
      return places;
    };
    const std::vector<double> by_work = middles(work), by_bytes = middles(bytes);
    made_.layer.resize(made_.nodes);
    for (std::size_t u = instance_.units(); u-- > 0;) made_.layer[clusters_.of_unit[u]] = layer[u];
    layers_.resize(made_.nodes);
    std::vector<double> units(made_.nodes);
    for (std::size_t u = 0; u < instance_.units(); ++u) {
      const std::uint32_t node = clusters_.of_unit[u];
      layers_[node].by_work += by_work[layer[u]];
      layers_[node].by_bytes += by_bytes[layer[u]];
      layers_[node].work += work[layer[u]] / work_;
      layers_[node].bytes += bytes[layer[u]] / (std::accumulate(bytes.begin(), bytes.end(), 1e-9));
      units[node] += 1;
    }
    for (std::size_t n = 0; n < made_.nodes; ++n) {
      layers_[n].by_work /= units[n];
      layers_[n].by_bytes /= units[n];
      layers_[n].work /= units[n];
      layers_[n].bytes /= units[n];
    }
  }

  void describe_devices() {
    const std::size_t devices = made_.devices;
    std::vector<double> all_there(devices), far(devices);
    for (std::size_t t = 0; t < instance_.tasks(); ++t) {
      for (std::size_t d = 0; d < devices; ++d)
        all_there[d] += count_of(instance_.time_on(TaskId(t), DeviceId(d)));
    }
    constexpr Bytes kTypical(1 << 20);
    double mean_memory = 0, mean_time = 0, mean_far = 0;
    for (std::size_t d = 0; d < devices; ++d) {
      for (std::size_t e = 0; e < devices; ++e) {
        if (e != d) far[d] += count_of(message_time(instance_.way(DeviceId(d), DeviceId(e)), kTypical));
      }
      mean_memory += count_of(instance_.memory[d]) / static_cast<double>(devices);
      mean_time += all_there[d] / static_cast<double>(devices);
      mean_far += far[d] / static_cast<double>(devices);
    }
    mean_memory_ = std::max(mean_memory, 1.0);
    made_.equal_to.resize(devices);
    double all_speed = 0, speed_before = 0;
    for (std::size_t d = 0; d < devices; ++d) all_speed += 1 / (all_there[d] + 1);
    std::vector<std::size_t> place(devices), equals(devices);
    for (std::size_t d = 0; d < devices; ++d) {
      std::size_t like = d;
      for (std::size_t e = d; e-- > 0;) {
        if (are_alike(d, e, kTypical)) like = e;
      }
      made_.equal_to[d] = narrow(like);
      place[d] = equals[like]++;
    }
    for (std::size_t d = 0; d < devices; ++d) {
      std::vector<float>& row = made_.device_numbers;
      const double size = static_cast<double>(equals[made_.equal_to[d]]);
      const double among = (static_cast<double>(place[d]) + 0.5) / size;
      // Where its part of the network would lie if devices took parts by their speed, one after the other.
      const double speed = 1 / (all_there[d] + 1) / all_speed;
      const double index = speed_before + speed / 2;
      speed_before += speed;
      row.push_back(static_cast<float>(std::log((count_of(instance_.memory[d]) + 1) / mean_memory_)));
      row.push_back(static_cast<float>(std::log((mean_time + 1) / (all_there[d] + 1))));
      row.push_back(static_cast<float>(std::log((far[d] + 1) / (mean_far + 1))));
      row.push_back(static_cast<float>(std::log2(static_cast<double>(devices)) / 4));
      row.push_back(static_cast<float>(among));
      row.push_back(static_cast<float>(index));
      for (std::size_t bit = 0; bit < 4; ++bit) row.push_back((d >> bit & 1) != 0 ? 1.0F : -1.0F);
      append_waves(row, index);
    }
  }

  // Whether a placement stays the same one where two devices change their names.
  bool are_alike(std::size_t d, std::size_t e, Bytes bytes) const {
    if (instance_.kind[e] != instance_.kind[d] || instance_.memory[e] != instance_.memory[d]) return false;
    const auto time = [&](std::size_t a, std::size_t b) {
      return message_time(instance_.way(DeviceId(a), DeviceId(b)), bytes);
    };
    for (std::size_t f = 0; f < made_.devices; ++f) {
      if (f == d || f == e) continue;
      if (time(d, f) != time(e, f) || time(f, d) != time(f, e)) return false;
    }
    return time(d, e) == time(e, d);
  }

  void compare_devices() {
    const std::size_t devices = made_.devices;
    std::vector<double> there(made_.nodes * devices);
    for (std::size_t t = 0; t < instance_.tasks(); ++t) {
      for (std::size_t d = 0; d < devices; ++d)
        there[node_of(TaskId(t)) * devices + d] += count_of(instance_.time_on(TaskId(t), DeviceId(d))) + 1;
    }
    made_.slowness.resize(there.size());
    made_.allowed.resize(there.size());
    for (std::size_t n = 0; n < made_.nodes; ++n) {
      for (std::size_t d = 0; d < devices; ++d) {
        made_.slowness[n * devices + d] =
            static_cast<float>(std::log(there[n * devices + d] / sums_[n].time));
      }
    }
    for (std::size_t u = 0; u < instance_.units(); ++u) {
      for (const DeviceId device : instance_.allowed[u])
        made_.allowed[clusters_.of_unit[u] * devices + device.index()] = 1;
    }
  }

  void write_numbers() {
    const double devices = static_cast<double>(made_.devices);
    double resident = 0, held = 0;
    for (const NodeSums& sums : sums_) {
      resident += sums.resident;
      held += sums.held;
    }
    for (std::size_t n = 0; n < made_.nodes; ++n) {
      const NodeSums& sums = sums_[n];
      const std::vector<float> row{log1p_of(sums.time / 1e3, 10),
                                   log1p_of(sums.time * devices / work_ * 100, 4),
                                   log1p_of(sums.out / 1e3, 10),
                                   log1p_of(sums.in / 1e3, 10),
                                   log1p_of(sums.resident / 1e3, 15),
                                   log1p_of(sums.resident / mean_memory_ * 100, 4),
                                   log1p_of(sums.held / mean_memory_ * 100, 4),
                                   log1p_of(sums.message / sums.time, 3),
                                   log1p_of(sums.tasks, 5),
                                   log1p_of(sums.takers, 3),
                                   log1p_of(sums.givers, 3),
                                   static_cast<float>(sums.first_level),
                                   static_cast<float>(sums.level / sums.time),
                                   static_cast<float>(sums.slack / sums.time),
                                   log1p_of(messages_ / work_, 3),
                                   static_cast<float>(std::min(2.0, longest_ * devices / work_) / 2),
                                   log1p_of((resident + held) / (mean_memory_ * devices) * 10, 3),
                                   static_cast<float>(std::log2(devices) / 4)};
      made_.numbers.insert(made_.numbers.end(), row.begin(), row.end());
      made_.numbers.push_back(static_cast<float>(layers_[n].by_work));
      made_.numbers.push_back(static_cast<float>(layers_[n].by_bytes));
      made_.numbers.push_back(log1p_of(layers_[n].work * devices, 2));
      made_.numbers.push_back(log1p_of(layers_[n].bytes * devices, 2));
      append_waves(made_.numbers, layers_[n].by_work);
      append_waves(made_.numbers, sums.first_level);
      append_waves(made_.numbers, position_[n]);
    }
  }

  const Instance& instance_;
  const Graph& graph_;
  const Clusters& clusters_;
  const MeanCosts mean_;
  PolicyInput made_;
  std::vector<NodeSums> sums_;  // by node
  struct LayerPlace {
    double by_work = 0, by_bytes = 0;  // of its layer's middle, in [0, 1]
    double work = 0, bytes = 0;        // of its layer, of all
  };
  std::vector<LayerPlace> layers_;  // by node
  std::vector<double> position_;    // by node, in [0, 1): its place in the order
  double longest_ = 1, work_ = 0, messages_ = 0, mean_memory_ = 1;
};

}  // namespace

PolicyInput make_policy_input(const Instance& instance, const Graph& graph, const Clusters& clusters,
                              TraversalOrder order) {
  return InputBuilder(instance, graph, clusters).build(order);
}

std::vector<float> node_weights(const PolicyInput& input) {
  const auto even = static_cast<float>(1.0 / static_cast<double>(input.nodes));
  std::vector<float> weights;
  for (const float work : input.work) weights.push_back((work + even) / 2);
  return weights;
}

std::vector<DeviceId> canonical(const PolicyInput& input, std::span<const DeviceId> of_node) {
  std::vector<double> level(input.devices), work(input.devices);
  for (std::size_t n = 0; n < input.nodes; ++n) {
    const float* numbers = input.numbers.data() + n * kNodeNumbers;
    constexpr std::size_t kMeanLevel = 12;
    level[of_node[n].index()] += static_cast<double>(input.work[n] * numbers[kMeanLevel]);
    work[of_node[n].index()] += static_cast<double>(input.work[n]);
  }
  const auto mean_level = [&](std::size_t d) { return work[d] > 0 ? level[d] / work[d] : 2.0; };
  std::vector<std::uint32_t> renamed(input.devices);
  for (std::size_t first = 0; first < input.devices; ++first) {
    if (input.equal_to[first] != first) continue;
    std::vector<std::uint32_t> equals;
    for (std::size_t d = first; d < input.devices; ++d) {
      if (input.equal_to[d] == first) equals.push_back(narrow(d));
    }
    std::vector<std::uint32_t> by_level = equals;
    std::stable_sort(by_level.begin(), by_level.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return mean_level(a) < mean_level(b); });
    for (std::size_t i = 0; i < equals.size(); ++i) renamed[by_level[i]] = equals[i];
  }
  std::vector<DeviceId> result;
  for (std::size_t n = 0; n < input.nodes; ++n) result.emplace_back(renamed[of_node[n].index()]);
  return result;
}

}  // namespace espalier::placement
