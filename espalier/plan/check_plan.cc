// The checker of plans. It shares no code with planners or the text form.

#include <algorithm>
#include <map>
#include <set>

#include "espalier/base/words.h"
#include "espalier/plan/fragments.h"
#include "espalier/plan/plan.h"

namespace espalier {
namespace {

std::string quoted(const std::string& name) {
  return "'" + name + "'";
}

template <class T>
bool strictly_ascending(const std::vector<T>& items) {
  return std::adjacent_find(items.begin(), items.end(), [](const T& a, const T& b) { return !(a < b); }) ==
         items.end();
}

class PlanChecker {
 public:
  PlanChecker(const Graph& graph, const Cluster& cluster, const PipelinePlan& plan)
      : graph_(graph), cluster_(cluster), plan_(plan), stages_of_(graph.operators().size()) {}

  std::vector<std::string> run() {
    collect();
    find_components();
    named();
    covered();
    ordered();
    data_edges();
    convex();
    devices();
    micro_batches();
    shares();
    in_flight();
    orders();
    colocation();
    recompute();
    return std::move(found_);
  }

 private:
  void violate(const char* rule, std::string text) { found_.push_back(rule + (" " + std::move(text))); }
  std::string stage_name(std::size_t x) const {
    return "stage " + (plan_.stages[x].name.empty() ? std::to_string(x) : quoted(plan_.stages[x].name));
  }
  const std::string& op_name(OperatorId id) const { return graph_.op(id).name; }
  bool known(OperatorId id) const { return id.index() < graph_.operators().size(); }

  // The stages of each operator, ascending, each once; numbers outside the graph are left to `covered`.
  void collect() {
    for (std::size_t x = 0; x < plan_.stages.size(); ++x) {
      for (const OperatorId id : plan_.stages[x].operators) {
        if (!known(id)) continue;
        auto& stages = stages_of_[id.index()];
        if (stages.empty() || stages.back() != x) stages.push_back(x);
      }
    }
  }

  void named() {
    std::set<std::string> names;
    for (std::size_t x = 0; x < plan_.stages.size(); ++x) {
      const std::string& name = plan_.stages[x].name;
      if (name.empty()) violate("named", "stage " + std::to_string(x) + " has no name");
      if (!is_utf8(name)) violate("named", "the name of stage " + std::to_string(x) + " is not UTF-8");
      if (!name.empty() && !names.insert(name).second) {
        violate("named", "two stages are called " + quoted(name));
      }
    }
  }

  void covered() {
    if (plan_.stages.empty()) violate("covered", "the plan has no stage");
    for (std::size_t x = 0; x < plan_.stages.size(); ++x) {
      const std::vector<OperatorId>& operators = plan_.stages[x].operators;
      if (operators.empty()) violate("covered", stage_name(x) + " has no operator");
      for (const OperatorId id : operators) {
        if (known(id)) continue;
        violate("covered", stage_name(x) + " names operator number " + std::to_string(id.index()) +
                               "; the graph has " + std::to_string(graph_.operators().size()));
      }
    }
    for (std::size_t i = 0; i < stages_of_.size(); ++i) {
      const Operator& op = graph_.operators()[i];
      const std::vector<std::size_t>& stages = stages_of_[i];
      if (stages.empty()) violate("covered", "operator " + quoted(op.name) + " stands in no stage");
      if (!op.duplicable && stages.size() > 1) {
        violate("covered", "operator " + quoted(op.name) + " stands in " + stage_name(stages[0]) +
                               " and in " + stage_name(stages[1]));
      }
      if (op.duplicable && !stages.empty()) beside_readers(OperatorId(i));
    }
  }

  void beside_readers(OperatorId id) {
    const std::vector<std::size_t>& own = stages_of_[id.index()];
    for (const TensorId output : graph_.op(id).outputs) {
      for (const OperatorId reader : graph_.readers(output)) {
        for (const std::size_t x : stages_of_[reader.index()]) {
          if (std::binary_search(own.begin(), own.end(), x)) continue;
          violate("covered", "duplicable operator " + quoted(op_name(id)) + " is missing in " +
                                 stage_name(x) + ", where " + quoted(op_name(reader)) + " reads it");
        }
      }
    }
  }

  void ordered() {
    for (std::size_t x = 0; x < plan_.stages.size(); ++x) {
      const Stage& stage = plan_.stages[x];
      if (!strictly_ascending(stage.operators)) {
        violate("ordered", stage_name(x) + ": operators do not ascend, each once");
      }
      if (!strictly_ascending(stage.after)) {
        violate("ordered", stage_name(x) + ": `after` does not ascend, each once");
      }
      for (const StageId before : stage.after) {
        if (before.index() < x) continue;
        violate("ordered", stage_name(x) + " stands after stage number " + std::to_string(before.index()) +
                               "; only smaller numbers may stand there");
      }
    }
  }

  void data_edges() {
    for (std::size_t x = 0; x < plan_.stages.size(); ++x) {
      const Stage& stage = plan_.stages[x];
      std::set<std::size_t> missing;
      for (const OperatorId id : stage.operators) {
        if (!known(id)) continue;
        for (const TensorId input : graph_.op(id).inputs) {
          const auto producer = graph_.tensor(input).producer;
          if (!producer || graph_.op(*producer).duplicable) continue;
          if (stages_of_[producer->index()].empty()) continue;
          const std::size_t from = stages_of_[producer->index()][0];
          if (from == x || component_[from] == component_[x]) continue;  // convex tells
          if (contains(stage.after, StageId(from)) || !missing.insert(from).second) continue;
          violate("data-edge", quoted(op_name(id)) + " in " + stage_name(x) + " reads " +
                                   quoted(graph_.tensor(input).name) + " of " + stage_name(from) +
                                   ", which is not in its `after`");
        }
      }
    }
  }

  template <class T>
  static bool contains(const std::vector<T>& items, T wanted) {
    return std::find(items.begin(), items.end(), wanted) != items.end();
  }

  // Stages that read from each other, directly or through others: strongly connected components of the stage
  // graph (Sharir, 1981: depth first, then depth first against the edges from the last finished on).
  // Duplicable operators make no edge: a copy stands beside each reader. Others count in their first stage;
  // that they stand in no other is told by `covered`.
  void find_components() {
    const std::size_t count = plan_.stages.size();
    forward_.assign(count, {});
    std::vector<std::vector<std::size_t>> backward(count);
    for (std::size_t v = 0; v < stages_of_.size(); ++v) {
      if (graph_.operators()[v].duplicable || stages_of_[v].empty()) continue;
      const std::size_t to = stages_of_[v][0];
      for (const OperatorId u : graph_.predecessors(OperatorId(v))) {
        if (graph_.op(u).duplicable || stages_of_[u.index()].empty()) continue;
        const std::size_t from = stages_of_[u.index()][0];
        if (from == to) continue;
        forward_[from].emplace_back(to, OperatorId(v));
        backward[to].push_back(from);
      }
    }
    std::vector<std::size_t> finished;
    std::vector<bool> seen(count);
    std::vector<std::pair<std::size_t, std::size_t>> path;  // stage, next edge
    for (std::size_t root = 0; root < count; ++root) {
      if (seen[root]) continue;
      seen[root] = true;
      path.emplace_back(root, 0);
      while (!path.empty()) {
        auto& [x, next] = path.back();
        if (next == forward_[x].size()) {
          finished.push_back(x);
          path.pop_back();
        } else if (const std::size_t y = forward_[x][next++].first; !seen[y]) {
          seen[y] = true;
          path.emplace_back(y, 0);
        }
      }
    }
    component_.assign(count, count);
    std::vector<std::size_t> open;
    for (auto root = finished.rbegin(); root != finished.rend(); ++root) {
      if (component_[*root] != count) continue;
      open.push_back(*root);
      component_[*root] = *root;
      while (!open.empty()) {
        const std::size_t x = open.back();
        open.pop_back();
        for (const std::size_t y : backward[x]) {
          if (component_[y] != count) continue;
          component_[y] = *root;
          open.push_back(y);
        }
      }
    }
  }

  void convex() {
    std::set<std::size_t> told;
    for (std::size_t x = 0; x < plan_.stages.size(); ++x) {
      for (const auto& [y, reader] : forward_[x]) {
        // A cycle goes back somewhere: from a larger number to a smaller one.
        if (y > x || component_[x] != component_[y] || !told.insert(component_[x]).second) continue;
        violate("convex", "a path of operators leaves " + stage_name(y) + " for " + stage_name(x) +
                              " and another returns, to " + quoted(op_name(reader)));
      }
    }
  }

  void devices() {
    for (std::size_t x = 0; x < plan_.stages.size(); ++x) {
      const Stage& stage = plan_.stages[x];
      if (stage.replicas.empty()) violate("devices", stage_name(x) + " has no replica");
      std::set<DeviceId> used;
      for (const Replica& replica : stage.replicas) {
        if (replica.devices.empty()) violate("devices", stage_name(x) + " has a replica without device");
        if (replica.devices.size() != stage.replicas[0].devices.size()) {
          violate("devices", stage_name(x) + " has tensor-parallel groups of different sizes");
        }
        for (const DeviceId device : replica.devices) {
          if (device.index() >= cluster_.devices().size()) {
            violate("devices", stage_name(x) + " names device number " + std::to_string(device.index()) +
                                   "; the cluster has " + std::to_string(cluster_.devices().size()));
          } else if (!used.insert(device).second) {
            violate("devices",
                    stage_name(x) + " names device " + quoted(cluster_.device(device).name) + " twice");
          }
        }
      }
    }
  }

  void micro_batches() {
    const std::int64_t batch = plan_.batch.count();
    std::int64_t total = 0;
    if (batch < 1) violate("micro-batch", "the batch is " + std::to_string(batch) + "; expected at least 1");
    for (std::size_t x = 0; x < plan_.stages.size(); ++x) {
      const std::int64_t size = plan_.stages[x].micro_batch.count();
      const std::string text = stage_name(x) + ": micro-batch " + std::to_string(size);
      if (size < 1) {
        violate("micro-batch", text + " is not positive");
        continue;
      }
      if (batch >= 1 && batch % size != 0) {
        violate("micro-batch", text + " does not divide the batch " + std::to_string(batch));
      }
      if (batch / size > kMaxMicroBatches) {
        violate("micro-batch", text + " makes " + std::to_string(batch / size) +
                                   " of the batch; expected at most " + std::to_string(kMaxMicroBatches));
      }
      total += std::min(batch / size, kMaxMicroBatches + 1);
      const BatchRange range = graph_.batch();
      if (size < range.min.count() || size > range.max.count()) {
        violate("micro-batch", text + " is outside the graph's batch range " +
                                   std::to_string(range.min.count()) + ".." +
                                   std::to_string(range.max.count()));
      }
      for (const StageId before : plan_.stages[x].after) {
        if (before.index() >= plan_.stages.size()) continue;
        const std::int64_t other = plan_.stages[before.index()].micro_batch.count();
        if (other < 1 || size % other == 0 || other % size == 0) continue;
        violate("micro-batch", text + " and " + std::to_string(other) + " of " + stage_name(before.index()) +
                                   " do not divide one another");
      }
    }
    if (total > kMaxMicroBatchesOfAllStages) {
      violate("micro-batch", "the stages have " + std::to_string(total) +
                                 " micro-batches together; expected at most " +
                                 std::to_string(kMaxMicroBatchesOfAllStages));
    }
  }

  void shares() {
    for (std::size_t x = 0; x < plan_.stages.size(); ++x) {
      const Stage& stage = plan_.stages[x];
      const std::uint32_t count = plan_.micro_batches(StageId(x));
      if (count > kMaxMicroBatches) continue;  // micro-batch tells
      std::vector<bool> taken(count);
      std::uint32_t number = 0;
      for (const Replica& replica : stage.replicas) {
        if (replica.micro_batches.empty())
          violate("shares", stage_name(x) + " has a replica without micro-batch");
        if (!strictly_ascending(replica.micro_batches)) {
          violate("shares", stage_name(x) + ": the micro-batches of a replica do not ascend");
        }
        for (const std::uint32_t j : replica.micro_batches) {
          if (j >= count) {
            violate("shares", stage_name(x) + " takes micro-batch " + std::to_string(j) + " of " +
                                  std::to_string(count));
          } else if (taken[j]) {
            violate("shares", stage_name(x) + " takes micro-batch " + std::to_string(j) + " twice");
          } else {
            taken[j] = true;
            ++number;
          }
        }
      }
      if (!stage.replicas.empty() && number != count) {
        violate("shares", stage_name(x) + " takes " + std::to_string(number) + " of " +
                              std::to_string(count) + " micro-batches");
      }
    }
  }

  void in_flight() {
    for (std::size_t x = 0; x < plan_.stages.size(); ++x) {
      const Stage& stage = plan_.stages[x];
      std::size_t largest = 0;
      for (const Replica& replica : stage.replicas) largest = std::max(largest, replica.micro_batches.size());
      if (stage.slots == 0U) violate("in-flight", stage_name(x) + " has no receive slot");
      if (stage.in_flight >= 1 && (largest == 0 || stage.in_flight <= largest)) continue;
      violate("in-flight", stage_name(x) + ": limit " + std::to_string(stage.in_flight) +
                               "; expected 1 to the largest share, " + std::to_string(largest));
    }
  }

  // Whether lists can run is a question of the staged model: check_schedule.
  void orders() {
    if (const OrderRule* rule = plan_.orders.rule()) {
      if (rule->group.size() > 1 && rule->group.size() != plan_.stages.size()) {
        violate("orders", "k is given for " + std::to_string(rule->group.size()) + " stages of " +
                              std::to_string(plan_.stages.size()));
      }
      if (contains(rule->group, 0U)) violate("orders", "k is 0; expected 1 or more");
      return;
    }
    const OrderLists& lists = *plan_.orders.lists();
    if (lists.size() != cluster_.devices().size()) {
      violate("orders", "there are lists for " + std::to_string(lists.size()) + " devices of " +
                            std::to_string(cluster_.devices().size()));
    }
    for (const std::vector<Step>& list : lists) {
      for (const Step& step : list) {
        if (step.kind == ActionKind::kTieSum || step.stage().index() < plan_.stages.size()) continue;
        return violate("orders", "a list names stage number " + std::to_string(step.stage().index()) +
                                     ", which does not exist");
      }
    }
  }

  void colocation() {
    std::map<std::uint32_t, OperatorId> first;
    std::set<std::uint32_t> told;
    for (std::size_t i = 0; i < stages_of_.size(); ++i) {
      const auto group = graph_.operators()[i].colocation;
      if (!group || stages_of_[i].empty()) continue;
      const OperatorId other = first.try_emplace(*group, OperatorId(i)).first->second;
      if (stages_of_[other.index()] == stages_of_[i] || !told.insert(*group).second) continue;
      violate("colocation", quoted(op_name(other)) + " and " + quoted(graph_.operators()[i].name) +
                                " belong together but stand in different stages");
    }
  }

  void recompute() {
    for (std::size_t x = 0; x < plan_.stages.size(); ++x) {
      const Stage& stage = plan_.stages[x];
      if (!strictly_ascending(stage.recompute)) {
        violate("recompute", stage_name(x) + ": operators to recompute do not ascend, each once");
      }
      const std::set<OperatorId> own(stage.operators.begin(), stage.operators.end());
      for (const OperatorId id : stage.recompute) {
        if (!own.contains(id)) {
          violate("recompute", stage_name(x) + " recomputes operator " +
                                   (known(id) ? quoted(op_name(id)) : std::to_string(id.index())) +
                                   ", which is not its own");
        } else if (known(id) && !graph_.op(id).mutates.empty()) {
          violate("recompute", stage_name(x) + " recomputes " + quoted(op_name(id)) +
                                   ", which writes its input; a second run would write twice");
        }
      }
    }
  }

  const Graph& graph_;
  const Cluster& cluster_;
  const PipelinePlan& plan_;
  std::vector<std::vector<std::size_t>> stages_of_;                       // by operator
  std::vector<std::vector<std::pair<std::size_t, OperatorId>>> forward_;  // by stage: who reads from it
  std::vector<std::size_t> component_;                                    // by stage
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> check_plan(const Graph& graph, const Cluster& cluster, const PipelinePlan& plan) {
  return PlanChecker(graph, cluster, plan).run();
}

namespace {

void check_levels(const Graph& graph, const Placement& placement, std::vector<std::string>& found) {
  const std::vector<std::uint32_t>& level = placement.level;
  if (level.empty()) return;
  if (level.size() != placement.device.size()) {
    found.push_back("level the placement has " + std::to_string(level.size()) + " levels for " +
                    std::to_string(placement.device.size()) + " operators");
    return;
  }
  for (std::size_t v = 0; v < level.size(); ++v) {
    if (graph.operators()[v].duplicable) continue;
    for (const OperatorId u : graph.predecessors(OperatorId(v))) {
      const bool same = placement.device[u.index()] == placement.device[v];
      if (graph.op(u).duplicable || (!same && !waits_across_devices(graph, OperatorId(v), u))) continue;
      if (level[v] >= level[u.index()] + (same ? 0U : 1U)) continue;
      found.push_back("level " + quoted(graph.operators()[v].name) + " is at level " +
                      std::to_string(level[v]) + ", and " + quoted(graph.op(u).name) + " on " +
                      (same ? "its" : "another") + " device, which must come first, at " +
                      std::to_string(level[u.index()]));
    }
  }
}

}  // namespace

std::vector<std::string> check_placement(const Graph& graph, const Cluster& cluster,
                                         const Placement& placement) {
  std::vector<std::string> found;
  const std::size_t count = graph.operators().size();
  if (placement.device.size() != count) {
    found.push_back("covered the placement has " + std::to_string(placement.device.size()) + " devices for " +
                    std::to_string(count) + " operators");
    return found;
  }
  std::map<std::uint32_t, std::size_t> first;
  for (std::size_t i = 0; i < count; ++i) {
    const Operator& op = graph.operators()[i];
    if (placement.device[i].index() >= cluster.devices().size()) {
      found.push_back("devices operator " + quoted(op.name) + " stands on device number " +
                      std::to_string(placement.device[i].index()) + "; the cluster has " +
                      std::to_string(cluster.devices().size()));
    }
    if (!op.colocation) continue;
    const std::size_t other = first.try_emplace(*op.colocation, i).first->second;
    if (placement.device[other] == placement.device[i]) continue;
    found.push_back("colocation " + quoted(graph.operators()[other].name) + " and " + quoted(op.name) +
                    " belong together but stand on different devices");
  }
  check_levels(graph, placement, found);
  return found;
}

}  // namespace espalier
