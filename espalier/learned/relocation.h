#pragma once

// A policy that improves a placement move by move, after GiPH (Hu et al., MLSys'23): it sees the graph with
// where all nodes stand now (relocation_graph.h), and scores every move of one node to one other device
// (relocation_net.h). Trained on generated graphs, it serves graphs and clusters that it never saw.
//
//   step     some proposals, each one to eight moves to one device, drawn from the policy's probabilities,
//            from their square and fourth roots, and evenly; all are judged, and the best is taken if it is
//            not worse
//   reward   of a proposal: ln(score before) - ln(score after), or 0 where that is worse, since it is not
//            taken; its advantage is its rank among those of its step
//   update   of some walks of steps on one graph: PPO, a move is an action, clipped by itself
//
// Deviations from GiPH, whose walk takes every move that it draws and discounts what comes later: so it was
// first built here, and a trained policy found hardly more than a fresh one. Here a walk stays near good
// placements and a reward is of its own step (a discount of 0). Nodes are clusters (clusters.h), heard from
// where they stand, in two rounds both ways and in no order, since clusters may read each other. The paper's
// code was not looked at.
//
// The same seed gives the same bytes on one machine, for any number of threads.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/learned/placement_task.h"
#include "espalier/learned/relocation_graph.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

struct RelocationShape {
  std::int64_t width = 24;
  std::int64_t rounds = 2;  // of messages between nodes
  friend bool operator==(const RelocationShape&, const RelocationShape&) = default;
};

class RelocationPolicy {
 public:
  RelocationPolicy(const RelocationShape& shape, std::uint64_t seed);
  // A file that write() made. Throws InputError naming what is wrong.
  static RelocationPolicy read(const std::string& path);
  static RelocationPolicy parse(std::string_view bytes, const std::string& name);
  void write(const std::string& path) const;  // atomic

  RelocationPolicy(RelocationPolicy&&) noexcept;
  RelocationPolicy& operator=(RelocationPolicy&&) noexcept;
  ~RelocationPolicy();

  const RelocationShape& shape() const;
  std::size_t weights() const;     // numbers that it has learnt
  RelocationPolicy clone() const;  // with the same weights, to learn apart

  // nodes × devices: of each move; 0 where there is none, 1 in sum unless there is none at all.
  std::vector<float> probabilities(const RelocationGraph& graph, const RelocationView& view) const;

  struct Parts;  // internal to learned/
  Parts& parts() const { return *parts_; }

 private:
  std::unique_ptr<Parts> parts_;
};

// ---- Learning

struct RelocationLearning {
  std::size_t walks = 4, steps = 12, proposals = 12;  // of an update
  std::size_t epochs = 2;
  std::uint64_t updates = 240;  // over which the learning rate falls
  double learning_rate = 3e-3, last_learning_rate = 3e-4;
  double clip = 0.2;
  double most_norm = 1;  // of a gradient
  std::uint64_t seed = 1;
};

struct RelocationPoint {
  std::uint64_t update = 0;  // from 1
  double gain = 0;           // ln(score of a start / score at the end of its walk), mean over walks
  double better = 0;         // part of the proposals that were better than where they began
};

// A graph to learn on. Refers to the task.
struct RelocationTask {
  explicit RelocationTask(const PlacementTask& of) : task(&of), graph(make_relocation_graph(of)) {}
  const PlacementTask* task;
  RelocationGraph graph;
  // What walks begin near: one of these, or every other time the best that was found, with some nodes
  // elsewhere: none, a few or half of them.
  std::vector<Assignment> starts = {};
};

// Learns in place, tasks in turns. Takes a state for each placement that is judged; ends where the context
// has no more or wants the end. By task the best that fits; none: nothing did.
std::vector<std::optional<Assignment>> learn_relocation(
    RelocationPolicy& policy, std::span<const RelocationTask> tasks, const RelocationLearning& options,
    Context& context, const std::function<void(const RelocationPoint&)>& told = {});

struct RelocationPretraining {
  RelocationShape shape = {};
  std::size_t graphs = 24, clusters = 64;
  std::vector<std::string> without = {};  // families of the zoo that are left out
  RelocationLearning learning = {};
  std::uint64_t seed = 1;
};

// On graphs by draw_workload(seed + i), from their best splits between layers and from one device.
RelocationPolicy pretrain_relocation(const RelocationPretraining& options, Context& context,
                                     const std::function<void(const RelocationPoint&)>& told = {});

// ---- Answers

struct RelocationOptions {
  TaskOptions task = {.tries_orders = true};  // by the order in which the best start is shorter
  const RelocationPolicy* policy = nullptr;   // trained before; null: the one that comes along
  std::vector<Assignment> starts = {};        // empty: those of placers (placer_starts)
  std::size_t proposals = 16;                 // a step
  std::uint64_t steps = 400;                  // 0: as many as the budget pays for
};

// From the best start to the best that was judged and fits; `estimate` is the engine's step. After twelve
// steps in vain it goes on near the best, with 2 % of the nodes elsewhere. Takes a state for each start and
// each proposal, and for going back.
Placed relocate(const PlacerInput& input, const RelocationOptions& options, Context& context);

}  // namespace espalier::placement
