#pragma once

// A plan with its figures, flat: what stage_model says, without names and without a walk over operators. The
// evaluator's way from a PipelinePlan to the list engine.
//
// It is in two parts: `shape` is all that decides which actions and messages there are, in which order, and
// what is held from when to when: two plans of equal shape have one ListStructure. `costs` are the figures.

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "espalier/sim/list_structure.h"
#include "espalier/sim/stage_price.h"

namespace espalier::internal {

// What a problem knows of its devices, made once.
struct DeviceFacts {
  DeviceFacts(const Cluster& cluster, const CostTable& costs, const Training& training);

  const Cluster& cluster;
  Optimizer optimizer;
  std::vector<KindOverhead> overheads;  // by kind
  std::vector<Duration> per_action;     // by kind
};

class FlatPlan {
 public:
  FlatPlan(const Graph& graph, const DeviceFacts& facts, const StagePrices& prices);

  // Reads a plan that passes check_plan. False if it needs a cell that the cost table lacks: see forbidden().
  // Its stages' operators are those of `runs`, by stage, where that is not empty; their own lists are then
  // not looked at. O(stages' runs and borders, micro-batches, crossings).
  bool read(const PipelinePlan& plan, std::span<const StageRuns> runs = {});

  const std::vector<std::uint32_t>& shape() const { return shape_; }
  const ListCosts& costs() const { return costs_; }
  const std::vector<StageMemory>& memory() const { return memory_; }  // by stage
  const std::optional<ForbiddenCell>& forbidden() const { return forbidden_; }

  // The plan's StagedModel but for names, from the last plan read: what schedules are made of. It overwrites
  // one that is there already, without a new allocation where sizes fit.
  void write_model(const PipelinePlan& plan, StagedModel& model) const;

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;

  struct Output {
    TensorId tensor;
    std::uint32_t stage = 0;
    Bytes bytes;
    bool saved = false, for_input = false;
  };
  struct Edge {  // a crossing's reader
    std::uint32_t crossing = 0, from = 0, to = 0;
    Bytes bytes, gradient;
    bool saved = false, for_input = false;
  };
  struct CrossingEdges {
    std::uint32_t from = 0, first = 0, count = 0;
    Bytes output;
    bool saved = false, for_input = false, token = false, returns = false;
  };
  struct Tie {
    ParameterId parameter;
    std::uint32_t first = 0, stages = 0;  // in held_
  };

  void ask_ahead(const PipelinePlan& plan, std::span<const StageRuns> runs);
  void list_runs(const Stage& stage);
  void list_runs(const StageRuns& runs);
  StageQuestion question_of(const Stage& stage, std::size_t index) const;
  bool add_stage(const PipelinePlan& plan, std::size_t index);
  void prefetch(const PipelinePlan& plan) const;
  void find_hosts(const PipelinePlan& plan);
  void collect_kinds(const Stage& stage);
  StageTimes times_of(const Replica& replica, const StageQuestion& question, const StagePrice& price);
  void add_edges(const PipelinePlan& plan);
  void number_crossings();
  void add_ties();
  void fill_costs();
  void fill_shape(const PipelinePlan& plan);
  void add_orders(const Orders& orders);
  void add_share(const Stage& stage, std::uint32_t micro_batches);

  const Graph& graph_;
  const DeviceFacts& facts_;
  const StagePrices& prices_;
  std::unique_ptr<StagePrices::Scratch, void (*)(StagePrices::Scratch*)> scratch_;
  std::optional<ForbiddenCell> forbidden_;
  std::vector<std::uint32_t> shape_;
  ListCosts costs_;

  TokenRule tokens_ = TokenRule::kBothWays;
  std::vector<std::uint32_t> hosting_;  // by device: of the last plan read that uses it
  std::uint32_t plan_ = 0;
  std::vector<std::uint32_t> busy_in_group_;  // by group
  std::vector<KindId> kinds_;                 // of the stage at hand
  struct Asked {                              // of a stage, in runs_
    std::uint32_t first = 0, count = 0, first_again = 0, count_again = 0;
  };
  std::vector<OperatorRun> runs_;  // of all stages, and of what they recompute
  std::vector<Asked> asked_;       // by stage
  std::vector<KindId> all_kinds_;  // by stage
  std::vector<std::uint32_t> kinds_begin_;
  std::vector<StageMemory> memory_;           // by stage
  std::vector<std::size_t> replicas_;         // by stage
  std::vector<StageTimes> times_;             // by stage and replica
  std::vector<Output> outputs_;               // ascending (stage, tensor)
  std::vector<std::uint32_t> outputs_begin_;  // by stage
  std::vector<StagePrice::Received> received_;
  std::vector<std::uint32_t> received_begin_;  // by stage
  std::vector<std::uint32_t> output_of_;       // by tensor: index into outputs_, of this plan's crossings
  std::vector<std::uint8_t> sends_token_;      // by stage
  std::vector<std::uint32_t> fed_by_;          // by stage: the last reader that gets a tensor from it
  std::vector<std::uint32_t> tokens_before_;   // by stage
  std::vector<Edge> unsorted_, edges_;         // by reader; by crossing
  std::vector<CrossingEdges> crossings_;
  std::vector<std::pair<ParameterId, std::uint32_t>> held_;  // (shared parameter, stage)
  std::vector<Tie> ties_;
};

}  // namespace espalier::internal
