#pragma once

// Graphs and clusters for property tests: random ones, and all small ones. Everything passes check_graph or
// check_cluster. Same Rng state, same result. print_graph shows what failed.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/base/rng.h"
#include "espalier/cluster/cluster.h"
#include "espalier/graph/graph.h"

namespace espalier::testing {

enum class GraphShape : std::uint8_t {
  kDag,             // each operator reads some earlier ones
  kSeriesParallel,  // chains and branches that join again, nested
};

struct RandomGraphOptions {
  std::size_t operators = 12;  // at least 1; loss and duplicables come on top
  GraphShape shape = GraphShape::kDag;
  std::size_t max_inputs = 3;       // activations that one operator reads (kDag)
  bool parameters = true;           // most operators read one
  bool ties = true;                 // some parameters are read twice, some have two names
  bool views = true;                // some outputs share memory with an input
  bool mutations = false;           // some operators write their input, or a buffer: colocation groups
  bool duplicables = true;          // masks and the like, read by one or several others
  bool unread_duplicables = false;  // some that read others, and nobody reads
  bool non_gradient = true;         // some tensors are integers or need no gradient
  bool several_outputs = true;      // some operators give two tensors
  bool batch_dependent = true;      // sizes with b, b*b, (b+1)//2, and some without b; otherwise f32[b]
  bool loss = true;                 // one operator that reads what nobody else reads
  bool one_class_each = false;      // op_class = name, so that every operator may have its own cost
  BatchSize max_batch{1024};        // batches 1 .. max_batch
};
Graph random_graph(Rng& rng, const RandomGraphOptions& options = {});

// Every DAG of 1 to `nodes` operators (at most 5: 1 + 2 + 8 + 64 + 1024 of them), up to the names of nodes:
// each set of edges i → j with i < j. Operator "n<i>" gives f32[b]; those without predecessor read the input
// "x", each reads a parameter of its own, and op_class = name.
std::vector<Graph> all_small_graphs(std::size_t nodes);

struct RandomClusterOptions {
  std::size_t max_devices = 5;
  std::size_t max_hosts = 3;
  std::size_t max_kinds = 2;   // devices of one kind are equal but for their memory
  bool contention = true;      // some groups carry one transfer at a time
  bool endpoint_costs = true;  // some sends and receives cost compute time
  bool own_memory = true;      // some devices have less memory than their kind
};
Cluster random_cluster(Rng& rng, const RandomClusterOptions& options = {});

}  // namespace espalier::testing
