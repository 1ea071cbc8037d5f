#pragma once

// What placements are judged by, as flat numbers: tasks, the values that pass between them, what is held, the
// devices and the ways between them. Made once from graph, cluster and costs; engine, bounds and placers ask
// nothing else, however many millions of placements they look at.
//
// A task runs once a step. An operator of a training graph is one task. An operator of a forward graph is
// one, or two where it has a backward pass, which reads the gradients of what it produced and gives those of
// what it read; backward runs where forward ran.
//
// A unit is what a placement decides: the tasks that stand together. Tasks share one where their operators
// are of one colocation group, forward with its backward, and whoever else the maker is told to keep together
// (groups of an expert, clusters of a coarsening). A placement of an instance is one device for each unit.
//
// A value is what a task passes to others: one storage, counted once on each device that holds it. Order
// alone (a mutation after earlier readers) is a value of no bytes.
//
//   a ─ v0 ─┬─ b        tasks a b c, values v0 {a → b c} and v1 {b → c}; with b elsewhere than a and c,
//           └─ c ─ …    v0 is sent to b's device once and v1 comes back
//
// What is held all step (parameters, gradients, optimizer state, buffers, constants, inputs of the model,
// what duplicable operators give) are residents: each once on every device that has a unit which touches it.
//
// Duplicable operators are no tasks: each device runs a copy of its own right before the first of its tasks
// that reads one, directly or through others.
//
// Views: a value may share memory with a resident, or with a value that its producer reads or gives
// (`within`). It takes nothing of its own where it is produced, and that one stays there as long as it does.
// A copy that was sent is memory of its own. So a mutation gives a value of its own, as it left the memory,
// to those who read it later.
//
// An order may hold on one device alone (`here_only`): an update writes its parameter after the readers that
// stand with it, while a reader elsewhere has a copy and is not waited for.
//
// How graphs become instances, and what differs from fragments: docs/semantics.md, placements, operators one
// by one.
//
// Invariants (check_instance lists violations):
// - tasks are numbered in a legal order of execution: a value's readers are larger than its producer;
// - `within` leads to smaller values, read or given by the task that gives the value;
// - values that are `here_only` have no bytes;
// - every list by offsets ascends, names what is there, and has each entry once;
// - every unit has a task and at least one device where all its tasks may stand;
// - times and bytes are at least zero, and their sums over all tasks stay below 2^62.
// It never changes once built; any number of threads may read it.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "espalier/cluster/cluster.h"
#include "espalier/cost/cost_table.h"
#include "espalier/graph/graph.h"
#include "espalier/plan/plan.h"

namespace espalier::placement {

using TaskId = Id<struct PlacedTaskTag>;
using UnitId = Id<struct PlacementUnitTag>;
using ValueId = Id<struct PlacedValueTag>;

// Lists of all i in one flat vector: those of i are items[begin[i]] … items[begin[i + 1] - 1].
template <class T>
struct Lists {
  std::vector<std::uint32_t> begin = {0};
  std::vector<T> items;
  std::size_t size() const { return begin.size() - 1; }
  std::span<const T> operator[](std::size_t i) const {
    return std::span(items).subspan(begin[i], begin[i + 1] - begin[i]);
  }
  void close() { begin.push_back(narrow(items.size())); }  // ends the list that was being filled
  friend bool operator==(const Lists&, const Lists&) = default;
};

// What a task of a graph is of its operator.
enum class Pass : std::uint8_t { kForward, kBackward };

struct Instance {
  // --- tasks
  std::vector<UnitId> unit;              // by task
  std::vector<OperatorId> op;            // by task: its operator, where the instance is of a graph
  std::vector<Pass> pass;                // by task
  std::vector<Duration> time;            // by task and kind, kinds together: time[task * kinds + kind]
  std::vector<Bytes> workspace;          // by task: while it runs
  Lists<ValueId> produces;               // by task
  Lists<ValueId> reads;                  // by task, ascending
  Lists<std::uint32_t> duplicates;       // by task: the copies that must have run on its device, ascending
  std::vector<Duration> duplicate_time;  // by duplicable operator and kind, as `time`

  // --- values
  std::vector<TaskId> producer;  // by value
  std::vector<Bytes> bytes;      // by value: of a message, and of a copy that was received
  Lists<TaskId> readers;         // by value, ascending
  // By value; empty: of all as said in brackets.
  std::vector<Bytes> own_bytes = {};  // what it takes where it is produced (its bytes)
  std::vector<ValueId> within = {};   // the value whose memory it shares; itself: none (itself)
  std::vector<char> here_only = {};   // not 0 if readers on other devices do not wait for it (0)

  // --- units
  Lists<TaskId> tasks_of;         // by unit, ascending
  Lists<std::uint32_t> resident;  // by unit: what it holds all step, ascending
  std::vector<Bytes> resident_bytes;
  Lists<DeviceId> allowed;  // by unit: where it may stand, ascending

  // --- trainable parameters of a forward graph, which the end of the step sums and updates (step_end.h)
  std::vector<std::uint32_t> trained = {};  // the residents that they are, ascending
  std::vector<Bytes> trained_bytes = {};    // of each one's gradient
  std::vector<Duration> update_time = {};   // of each one and kind, as `time`
  std::vector<Duration> update_fixed = {};  // by kind: once for all updates of a device

  // --- devices
  std::vector<KindId> kind;   // by device
  std::vector<Bytes> memory;  // by device
  std::vector<Route> ways;    // by pair: ways[from * devices + to]; nothing on the diagonal
  std::size_t kinds = 0, links = 0;

  std::size_t tasks() const { return unit.size(); }
  std::size_t values() const { return producer.size(); }
  std::size_t units() const { return tasks_of.size(); }
  std::size_t devices() const { return kind.size(); }
  Duration time_on(TaskId task, DeviceId device) const {
    return time[task.index() * kinds + kind[device.index()].index()];
  }
  Duration update_of(std::size_t parameter, DeviceId device) const {
    return update_time[parameter * kinds + kind[device.index()].index()];
  }
  const Route& way(DeviceId from, DeviceId to) const { return ways[from.index() * devices() + to.index()]; }
  friend bool operator==(const Instance&, const Instance&) = default;
};

// One device for each unit.
using Assignment = std::vector<DeviceId>;

struct InstanceOptions {
  BatchSize micro_batch{1};  // the whole batch as a rule: one pass a step
  // By operator: operators of one number share a unit, beside those that must. Empty: nobody else does.
  std::vector<std::uint32_t> together = {};
};

// The instance of a graph on a cluster. Costs of a forward graph's passes are OperatorCosts' forward and
// backward; of a training graph's tasks operator_durations'. An update's gradient and state are residents of
// its parameter's unit. A device whose kind lacks the cell of a task is not among its unit's allowed ones.
// Throws InputError naming the operator whose unit no device can run. O(graph · kinds + devices²).
Instance make_instance(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                       const Training& training, const InstanceOptions& options);

// From units to operators and back. A duplicable operator stands with its first reader. The assignment of a
// placement exists where operators of a unit stand together; else nothing.
Placement placement_of(const Instance& instance, const Graph& graph, const Assignment& assignment);
std::optional<Assignment> assignment_of(const Instance& instance, const Graph& graph,
                                        const Placement& placement);

// Every broken invariant, one line each; empty if there is none. Shares no code with make_instance.
std::vector<std::string> check_instance(const Instance& instance);

}  // namespace espalier::placement
