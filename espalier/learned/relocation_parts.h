#pragma once

// What relocation.h's policy is made of, and how it walks: relocation.cc has both and answers,
// relocation_learning.cc learns. Includes libtorch; learned/ only.

#include <functional>
#include <vector>

#include "espalier/base/rng.h"
#include "espalier/base/thread_pool.h"
#include "espalier/learned/relocation.h"
#include "espalier/learned/relocation_net.h"

namespace espalier::placement {

struct RelocationPolicy::Parts {
  RelocationNet net;
};

// Moves that are made together, of different nodes to one device; a move is node · devices + device.
using MoveSet = std::vector<std::size_t>;

struct RelocationStep {
  RelocationView view;  // before
  double before = 0;    // score
  std::vector<MoveSet> proposals;
  std::vector<std::vector<double>> log_probability;  // of the moves, as they were drawn
  std::vector<double> scores;                        // by proposal
};

// Where a walk is. Refers to what it is given; for one thread at a time.
class RelocationWalk {
 public:
  RelocationWalk(const PlacementTask& task, const RelocationGraph& graph, Assignment start);

  const Assignment& assignment() const { return assignment_; }
  const RelocationView& view() const { return view_; }
  double score() const { return score_; }
  bool can_move() const;  // there is a move that was not tried alone from here

  // Draws up to `count` proposals (fewer where there are no more moves), judges them, and goes to the best if
  // it is not worse. `seen` hears of each placement that was judged.
  RelocationStep step(const RelocationNet& net, const RelocationEdges& edges, std::size_t count, Rng& rng,
                      ThreadPool* pool, const std::function<void(const Assignment&, const Evaluated&)>& seen);

 private:
  void arrive(Assignment assignment);

  const PlacementTask& task_;
  const RelocationGraph& graph_;
  Assignment assignment_;
  RelocationView view_;  // whose moves are those that were not tried
  double score_ = 0;
};

// The assignment with each node, by that chance, on a device that is drawn.
Assignment shaken(const PlacementTask& task, const RelocationGraph& graph, Assignment assignment,
                  double chance, Rng& rng);

}  // namespace espalier::placement
