#pragma once

// Random task graphs, and task graphs whose difficulty has one source.

#include "espalier/zoo/task_dag.h"

namespace espalier {

// GiPH's applications (MLSys'23), by the generator of Topcuoglu, Hariri, Wu (TPDS'02, §5.1) that it follows:
// a depth drawn around √tasks / shape and widths drawn around √tasks · shape, with `shape` in percent; each
// task but those of the first level reads one task of the level before, and each pair of a task and one of an
// earlier level is an edge with a probability of degree / (earlier tasks). Times and bytes are uniform in
// 1 ± spread (in percent). A single first and a single last task close the graph.
//
//   tasks exactly as said (at least 3); edges at least tasks - 1
struct RandomApplication {
  std::int64_t tasks = 50, shape = 100, degree = 2, spread = 50, seed = 1;
};
TaskDag random_application(const RandomApplication& application);

// GiPH's device networks: every device is a kind of its own, its speed uniform in 1 ± spread, and every pair
// has a link of its own, the same in both directions, with a bandwidth uniform in 1 ± spread of
// kTaskLinkBytesPerSecond and a latency up to `latency` µs.
struct DeviceNetwork {
  std::int64_t devices = 10, spread = 50, latency = 100, seed = 1;
};
Cluster device_network(const DeviceNetwork& network);

// GiPH's constraint: a task may need hardware of some sort, which some devices have. `restricted` percent of
// the tasks do, each of one sort, all sorts alike; `support` percent of the devices have each sort, one at
// least. Rounded to the nearest number; which tasks and devices, the seed draws.
struct SpecialHardware {
  std::int64_t restricted = 0, sorts = 3, support = 50, seed = 1;
};
void need_hardware(TaskDag& graph, const Cluster& cluster, const SpecialHardware& hardware);

// Layers of tasks, each of which reads one to three tasks of the layer before.
//
//   tasks = layers·width, edges from (layers - 1)·width to 3 times that
struct LayeredTasks {
  std::int64_t layers = 12, width = 8, spread = 50, seed = 1;
};
TaskDag layered_tasks(const LayeredTasks& tasks);

// Sections one after the other: a task whose output chains side by side read, and the next section's task,
// which reads all their ends.
//
//   tasks = sections·(branches·length + 1) + 1, edges = sections·branches·(length + 1)
struct ForkJoin {
  std::int64_t sections = 4, branches = 6, length = 4, spread = 50, seed = 1;
};
TaskDag fork_join(const ForkJoin& tasks);

// Look-ups in tables beside a chain of dense layers; one task brings all together, another chain follows
// (DLRM, arXiv 1906.00091; the problem of DreamShard and AutoShard). Tables have from 2¹² to 2²² rows of 16
// to 128 numbers, logarithmically uniform in powers of two, so memory and time of a table have little to do
// with each other: a vector packing problem (two resources), with the network around it.
//
//   tasks = tables + bottom + 1 + top, edges = tables + bottom + top
struct EmbeddingTables {
  std::int64_t tables = 40, bottom = 3, top = 3, seed = 1;
};
TaskDag embedding_tables(const EmbeddingTables& tables);

}  // namespace espalier
