#include "espalier/planners/placement/clusters.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/planners/placement/list_clock.h"

namespace espalier::placement {
namespace {

struct ClusterEdge {
  std::uint32_t a = 0, b = 0;
  double message = 0;  // how long the messages between them take
};

enum class Parts : std::uint8_t { kSame, kAny };  // of whoever joins

// The clusters of a round: their sizes and the messages between them.
class Round {
 public:
  Round(const Instance& instance, const ClusterOptions& options) : instance_(instance), mean_(instance) {
    const std::size_t units = instance.units();
    of_unit_.resize(units);
    std::iota(of_unit_.begin(), of_unit_.end(), std::uint32_t{0});
    measure_units();
    double work = 0;
    for (const double time : time_) work += time;
    most_time_ = work * options.most_time / static_cast<double>(options.clusters);
    const Bytes least = *std::min_element(instance.memory.begin(), instance.memory.end());
    most_memory_ = static_cast<double>(least.count()) * options.most_memory;
    most_bound_ = work * options.most_bound / static_cast<double>(instance.devices());
    part_ = options.parts.empty() ? std::vector<std::uint32_t>(instance.units()) : options.parts;
    collect_edges();
  }

  std::size_t count() const { return time_.size(); }

  // Joins units whose messages take longer than what both compute: nobody gains who parts them. The steps in
  // time of a recurrent layer each send a gradient of all its weights to one of them: they come together, in
  // their order, in as many pieces as the cap asks for.
  void join_bound() {
    begin_joining();
    std::vector<std::vector<std::uint32_t>> bound(count());
    for (const ClusterEdge& edge : edges_) {
      if (edge.message <= time_[edge.a] + time_[edge.b] || part_[edge.a] != part_[edge.b]) continue;
      bound[edge.a].push_back(edge.b);
      bound[edge.b].push_back(edge.a);
    }
    std::vector<std::uint32_t> hubs(count());
    std::iota(hubs.begin(), hubs.end(), std::uint32_t{0});
    std::stable_sort(hubs.begin(), hubs.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return bound[a].size() > bound[b].size(); });
    for (const std::uint32_t hub : hubs) {
      std::uint32_t piece = hub;
      std::sort(bound[hub].begin(), bound[hub].end());
      for (const std::uint32_t leaf : bound[hub]) {
        if (root(leaf) != leaf || joined_[leaf]) continue;  // has come to another hub
        if (!join(piece, leaf, most_bound_)) piece = leaf;
      }
    }
    renumber();
  }

  // Joins clusters along their heaviest edges until `wanted` are left; false where none could join.
  bool join_along_edges(std::size_t wanted, Parts parts) {
    sort_by_rating();
    begin_joining();
    for (const std::uint32_t e : order_) {
      if (left_ <= wanted) break;
      // One join a round for each: so sizes grow evenly, as in a matching, but a hub takes many.
      if (joined_[edges_[e].a] && joined_[edges_[e].b]) continue;
      if (parts == Parts::kSame && part_[edges_[e].a] != part_[edges_[e].b]) continue;
      join(edges_[e].a, edges_[e].b, most_time_);
    }
    return renumber();
  }

  // The same for those that stand behind one another by their first tasks.
  bool join_neighbours(std::size_t wanted, Parts parts) {
    begin_joining();
    std::map<std::uint32_t, std::uint32_t> last;  // by part
    for (std::uint32_t c = 0; c < count() && left_ > wanted; ++c) {
      const auto [before, is_first] = last.emplace(parts == Parts::kSame ? part_[c] : 0, c);
      if (is_first) continue;
      if (!joined_[before->second]) join(before->second, c, most_time_);
      before->second = c;
    }
    return renumber();
  }

  Clusters clusters() && { return {std::move(of_unit_), time_.size()}; }

 private:
  void measure_units() {
    time_.resize(instance_.units());
    memory_.resize(instance_.units());
    first_unit_.resize(instance_.units());
    // What several units hold (weights that all steps in time read) is each one's in part, or no layer would
    // ever come together.
    std::vector<double> holders(instance_.resident_bytes.size());
    for (const std::uint32_t resident : instance_.resident.items) holders[resident] += 1;
    for (std::uint32_t u = 0; u < instance_.units(); ++u) {
      first_unit_[u] = u;
      for (const TaskId task : instance_.tasks_of[u]) {
        time_[u] += static_cast<double>(mean_.time[task.index()].count());
        for (const ValueId value : instance_.produces[task.index()])
          memory_[u] += static_cast<double>(instance_.bytes[value.index()].count());
      }
      for (const std::uint32_t resident : instance_.resident[u])
        memory_[u] += static_cast<double>(instance_.resident_bytes[resident].count()) / holders[resident];
    }
  }

  void collect_edges() {
    for (std::size_t v = 0; v < instance_.values(); ++v) {
      const std::uint32_t from = narrow(instance_.unit[instance_.producer[v].index()].index());
      for (const TaskId reader : instance_.readers[v]) {
        const std::uint32_t to = narrow(instance_.unit[reader.index()].index());
        if (from == to) continue;
        const double message = static_cast<double>(mean_.message[v].count());
        edges_.push_back({std::min(from, to), std::max(from, to), message});
      }
    }
    merge_edges();
  }

  void merge_edges() {
    std::sort(edges_.begin(), edges_.end(), [](const ClusterEdge& x, const ClusterEdge& y) {
      return std::pair(x.a, x.b) < std::pair(y.a, y.b);
    });
    std::size_t kept = 0;
    for (const ClusterEdge& edge : edges_) {
      if (kept > 0 && edges_[kept - 1].a == edge.a && edges_[kept - 1].b == edge.b) {
        edges_[kept - 1].message += edge.message;
      } else {
        edges_[kept++] = edge;
      }
    }
    edges_.resize(kept);
  }

  void sort_by_rating() {
    std::vector<double> rating;
    rating.reserve(edges_.size());
    const double little = most_time_ / 64 + 1;
    for (const ClusterEdge& edge : edges_)
      rating.push_back(edge.message / (time_[edge.a] + time_[edge.b] + little));
    order_.resize(edges_.size());
    std::iota(order_.begin(), order_.end(), std::uint32_t{0});
    std::sort(order_.begin(), order_.end(), [&](std::uint32_t x, std::uint32_t y) {
      return rating[x] != rating[y] ? rating[x] > rating[y] : x < y;
    });
  }

  void begin_joining() {
    parent_.resize(count());
    std::iota(parent_.begin(), parent_.end(), std::uint32_t{0});
    joined_.assign(count(), false);
    left_ = count();
  }

  std::uint32_t root(std::uint32_t c) {
    while (parent_[c] != c) c = parent_[c] = parent_[parent_[c]];
    return c;
  }

  bool join(std::uint32_t a, std::uint32_t b, double most_time) {
    const std::uint32_t x = root(a), y = root(b);
    if (x == y || time_[x] + time_[y] > most_time || memory_[x] + memory_[y] > most_memory_) return false;
    const auto allowed = [&](std::uint32_t c) { return instance_.allowed[first_unit_[c]]; };
    if (!std::equal(allowed(x).begin(), allowed(x).end(), allowed(y).begin(), allowed(y).end())) return false;
    const auto [low, high] = std::minmax(x, y);
    parent_[high] = low;
    time_[low] += time_[high];
    memory_[low] += memory_[high];
    joined_[a] = joined_[b] = true;
    --left_;
    return true;
  }

  bool renumber() {
    const std::size_t before = count();
    std::vector<std::uint32_t> number(before);
    std::size_t next = 0;
    for (std::uint32_t c = 0; c < before;
         ++c) {  // roots are the smallest of theirs: numbered before the rest
      if (root(c) != c) {
        number[c] = number[root(c)];
        continue;
      }
      number[c] = narrow(next);
      time_[next] = time_[c];
      memory_[next] = memory_[c];
      first_unit_[next] = first_unit_[c];
      part_[next] = part_[c];
      ++next;
    }
    time_.resize(next);
    memory_.resize(next);
    first_unit_.resize(next);
    part_.resize(next);
    for (std::uint32_t& cluster : of_unit_) cluster = number[cluster];
    for (ClusterEdge& edge : edges_) {
      const auto [low, high] = std::minmax(number[edge.a], number[edge.b]);
      edge.a = low;
      edge.b = high;
    }
    std::erase_if(edges_, [](const ClusterEdge& edge) { return edge.a == edge.b; });
    merge_edges();
    return next < before;
  }

  const Instance& instance_;
  const MeanCosts mean_;
  std::vector<std::uint32_t> of_unit_;
  std::vector<double> time_, memory_;      // by cluster
  std::vector<std::uint32_t> first_unit_;  // by cluster
  std::vector<std::uint32_t> part_;        // by cluster: that of its first unit
  std::vector<ClusterEdge> edges_;         // by their ends, each pair once
  std::vector<std::uint32_t> order_, parent_;
  std::vector<bool> joined_;
  std::size_t left_ = 0;
  double most_time_ = 0, most_bound_ = 0, most_memory_ = 0;
};

}  // namespace

Clusters cluster_units(const Instance& instance, const ClusterOptions& options) {
  if (options.clusters == 0 || instance.units() <= options.clusters) {
    Clusters alone{std::vector<std::uint32_t>(instance.units()), instance.units()};
    std::iota(alone.of_unit.begin(), alone.of_unit.end(), std::uint32_t{0});
    return alone;
  }
  Round round(instance, options);
  round.join_bound();
  for (const Parts parts : {Parts::kSame, Parts::kAny}) {
    while (round.count() > options.clusters && round.join_along_edges(options.clusters, parts)) {
    }
    while (round.count() > options.clusters && round.join_neighbours(options.clusters, parts)) {
    }
  }
  return std::move(round).clusters();
}

Instance joined_units(const Instance& instance, const Clusters& clusters) {
  std::vector<std::vector<TaskId>> tasks(clusters.count);
  std::vector<std::vector<std::uint32_t>> resident(clusters.count);
  std::vector<std::size_t> last_unit(clusters.count);
  for (std::size_t u = 0; u < instance.units(); ++u) {
    const std::uint32_t cluster = clusters.of_unit[u];
    const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    append(tasks[cluster], instance.tasks_of[u]);
    append(resident[cluster], instance.resident[u]);
    last_unit[cluster] = u;
  }
  Instance joined = instance;
  joined.tasks_of = {};
  joined.resident = {};
  joined.allowed = {};
  const auto add = [](auto& lists, const auto& items) {
    lists.items.insert(lists.items.end(), items.begin(), items.end());
    lists.close();
  };
  for (std::size_t c = 0; c < clusters.count; ++c) {
    std::sort(tasks[c].begin(), tasks[c].end());
    std::sort(resident[c].begin(), resident[c].end());
    resident[c].erase(std::unique(resident[c].begin(), resident[c].end()), resident[c].end());
    add(joined.tasks_of, tasks[c]);
    add(joined.resident, resident[c]);
    add(joined.allowed, instance.allowed[last_unit[c]]);
  }
  for (UnitId& unit : joined.unit) unit = UnitId(clusters.of_unit[unit.index()]);
  return joined;
}

Assignment assignment_of_clusters(const Clusters& clusters, std::span<const DeviceId> device) {
  Assignment assignment;
  assignment.reserve(clusters.of_unit.size());
  for (const std::uint32_t cluster : clusters.of_unit) assignment.push_back(device[cluster]);
  return assignment;
}

std::vector<DeviceId> devices_of_clusters(const Instance& instance, const Clusters& clusters,
                                          std::span<const DeviceId> assignment) {
  ESP_CHECK(assignment.size() == instance.units(), assignment.size(), instance.units());
  std::vector<std::int64_t> work(clusters.count * instance.devices());
  for (std::size_t u = 0; u < instance.units(); ++u) {
    std::int64_t time = 1;
    for (const TaskId task : instance.tasks_of[u]) time += instance.time_on(task, assignment[u]).count();
    work[clusters.of_unit[u] * instance.devices() + assignment[u].index()] += time;
  }
  std::vector<DeviceId> devices;
  for (std::size_t c = 0; c < clusters.count; ++c) {
    const auto row = work.begin() + static_cast<std::ptrdiff_t>(c * instance.devices());
    devices.emplace_back(std::max_element(row, row + static_cast<std::ptrdiff_t>(instance.devices())) - row);
  }
  return devices;
}

}  // namespace espalier::placement
