#include "testing/random_instances.h"

#include <algorithm>
#include <set>

#include "espalier/cost/kept_tensors.h"
#include "espalier/graph/expand_backward.h"
#include "testing/random_graphs.h"

namespace espalier::testing {

using placement::Assignment;
using placement::DeviceOrders;
using placement::Instance;
using placement::Lists;
using placement::Pass;
using placement::Rules;
using placement::TaskId;

namespace {

// Small numbers, so that ties are common; all kinds but that of the first device lack some classes.
CostTable random_costs(Rng& rng, const Graph& graph, const Cluster& cluster, bool zero_times) {
  const auto small = [&](std::uint64_t bound) { return static_cast<std::int64_t>(rng.below(bound)); };
  const auto time = [&] {
    return nanoseconds(zero_times ? std::max<std::int64_t>(0, small(9) - 2) : 1 + small(20));
  };
  CostTableParts parts;
  std::set<std::string> seen;
  for (const Operator& op : graph.operators()) {
    if (!seen.insert(op.op_class).second) continue;
    for (std::size_t k = 0; k < cluster.kinds().size(); ++k) {
      if (KindId(k) != cluster.devices()[0].kind && rng.below(16) == 0) continue;
      OperatorCost cost;
      cost.forward = time();
      cost.input_gradient = time();
      cost.weight_gradient = time();
      cost.workspace = Bytes(small(50));
      cost.private_bytes = Bytes(rng.below(2) == 0 ? 0 : small(40));
      for (std::uint32_t i = 0; i < op.inputs.size(); ++i) {
        if (rng.below(2) == 0) cost.saved.push_back({SavedTensor::Side::kInput, i});
      }
      if (rng.below(3) == 0 && !op.outputs.empty()) cost.saved.push_back({SavedTensor::Side::kOutput, 0});
      parts.rows.push_back({op.op_class, cluster.kinds()[k].name, {}, {{BatchSize(1), cost}}});
    }
  }
  return CostTable(std::move(parts));
}

}  // namespace

Instance random_instance(Rng& rng, const RandomInstanceOptions& options) {
  RandomGraphOptions shape;
  shape.operators = options.operators;
  shape.mutations = rng.below(2) == 0;
  shape.duplicables = options.duplicables;
  shape.one_class_each = true;
  shape.batch_dependent = false;
  RandomClusterOptions devices;
  devices.max_devices = options.max_devices;
  devices.endpoint_costs = options.endpoints;
  Graph graph = random_graph(rng, shape);
  const Cluster cluster = random_cluster(rng, devices);
  const std::optional<TensorId> loss = graph.loss();
  if (options.training_graph && loss && graph.tensor(*loss).requires_grad) {
    ExpandOptions expand;
    expand.colocation =
        rng.below(2) == 0 ? ExpandOptions::Colocation::kFree : ExpandOptions::Colocation::kWithForward;
    graph = expand_backward(graph, expand);
  }
  const CostTable costs = random_costs(rng, graph, cluster, options.zero_times);
  Training training;
  training.batch = BatchSize(1);
  return placement::make_instance(graph, cluster, costs, training, {});
}

Assignment random_assignment(Rng& rng, const Instance& instance) {
  Assignment assignment;
  for (std::size_t unit = 0; unit < instance.units(); ++unit) {
    const auto allowed = instance.allowed[unit];
    assignment.push_back(allowed[rng.below(allowed.size())]);
  }
  return assignment;
}

Instance draw(const Sketch& sketch) {
  Instance made;
  std::vector<std::vector<TaskId>> readers(sketch.tasks.size());
  for (std::size_t i = 0; i < sketch.tasks.size(); ++i) {
    const Sketch::Task& task = sketch.tasks[i];
    made.unit.emplace_back(i);
    made.op.emplace_back(i);
    made.pass.push_back(Pass::kForward);
    made.time.push_back(nanoseconds(task.time));
    made.workspace.push_back({});
    made.produces.items.emplace_back(i);
    made.produces.close();
    for (const std::size_t from : task.reads) {
      made.reads.items.emplace_back(from);
      readers[from].emplace_back(i);
    }
    made.reads.close();
    made.duplicates.close();
    made.producer.emplace_back(i);
    made.bytes.emplace_back(task.bytes);
    made.tasks_of.items.emplace_back(i);
    made.tasks_of.close();
    made.resident.close();
    for (std::size_t d = 0; d < sketch.devices; ++d) made.allowed.items.emplace_back(d);
    made.allowed.close();
  }
  for (const std::vector<TaskId>& all : readers) {
    made.readers.items.insert(made.readers.items.end(), all.begin(), all.end());
    made.readers.close();
  }
  made.kind.assign(sketch.devices, KindId(0));
  made.memory.assign(sketch.devices, sketch.memory);
  made.kinds = 1;
  made.links = 2 * sketch.devices;
  for (std::size_t from = 0; from < sketch.devices; ++from) {
    for (std::size_t to = 0; to < sketch.devices; ++to) {
      Route way;
      if (from != to) {
        way.links = {narrow(2 * from), narrow(2 * to + 1)};
        way.bandwidth = sketch.bandwidth;
        way.latency = sketch.latency;
      }
      made.ways.push_back(way);
    }
  }
  return made;
}

std::vector<Rules> all_rules() {
  std::vector<Rules> result;
  for (const auto order : {Rules::Order::kFirstReady, Rules::Order::kPriority, Rules::Order::kListed}) {
    for (const auto sends : {Rules::Sends::kRoutes, Rules::Sends::kSenderBus, Rules::Sends::kUnlimited}) {
      for (const auto copies : {Rules::Copies::kOneEach, Rules::Copies::kOneForAll}) {
        for (const auto memory : {Rules::Memory::kLive, Rules::Memory::kAllHeld}) {
          Rules rules;
          rules.order = order;
          rules.sends = sends;
          rules.copies = copies;
          rules.memory = memory;
          result.push_back(rules);
          rules.busy_after = nanoseconds(2);
          rules.bus_busy_after = nanoseconds(3);
          rules.bandwidth = 2'000'000'000;
          result.push_back(rules);
        }
      }
    }
  }
  return result;
}

DeviceOrders random_orders(Rng& rng, const Instance& instance, const Rules& rules,
                           const Assignment& assignment) {
  DeviceOrders orders;
  if (rules.order == Rules::Order::kPriority && rng.below(3) > 0) {
    for (std::size_t task = 0; task < instance.tasks(); ++task) {
      orders.priority.push_back(narrow(rng.below(instance.tasks())));
    }
  }
  if (rules.order == Rules::Order::kListed) {
    for (std::size_t d = 0; d < instance.devices(); ++d) {
      for (std::size_t task = 0; task < instance.tasks(); ++task) {
        if (assignment[instance.unit[task].index()] == DeviceId(d)) orders.lists.items.emplace_back(task);
      }
      orders.lists.close();
    }
  }
  return orders;
}

}  // namespace espalier::testing
