#pragma once

// plan.json: all that simulate, run and verify need. "format": "espalier.plan/2".
//
// Version 2 has orders: a rule, with the hash of the schedule that it stood for when the file was made, or a
// list for each device. A file of version 1 has a kind of schedule in their place; it is read as the rule of
// that kind in its first edition, which expands as it always did, and without a hash.
//
// It names its model by a path relative to itself and by the graph's fingerprint, and carries the cluster,
// the training settings, the seed, the cost file with its hash, the staged model that was used, and the
// stages as runs of operator names in graph order, with a hash of each: stages that were edited since do not
// fit the staged model any more, and reading such a file says so. In place of stages it may have a placement,
// whose fragments (fragments.h) the staged model holds. simulate needs the file alone; run and
// verify open the model too and refuse one whose fingerprint differs, naming the first operator that does:
// the file keeps 16 bits of each operator's own fingerprint for that.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "espalier/plan/named_placement.h"
#include "espalier/plan/staged_model.h"

namespace espalier {

// A PipelinePlan by names, as it stands in the file, before a Graph resolves it.
struct NamedStage {
  std::string name;
  std::vector<std::pair<std::string, std::string>>
      operators;  // runs first..last of the graph's order, inclusive
  std::vector<std::string> recompute;
  BatchSize micro_batch;
  std::vector<std::string> devices = {};  // of each replica; those of a tensor-parallel group joined by '+'
  std::vector<std::string> after = {};    // names of other stages
  bool locked = false;                    // kept when this plan is what planning starts from
  friend bool operator==(const NamedStage&, const NamedStage&) = default;
};

// On what the costs were measured, where the plan is for this very machine (the cluster `local`): elsewhere,
// or with other threads, a run takes another time.
struct MeasuredOn {
  std::string machine;  // "AMD EPYC, 2 cores"; empty: unknown
  std::uint32_t threads = 1;
  ActionScatter scatter = {};
  friend bool operator==(const MeasuredOn&, const MeasuredOn&) = default;
};

// Operators of which the costs have several implementations, in the graph's order, and which one runs them on
// a kind of device (cost/implementations.h).
struct NamedImplementation {
  std::string kind, name;
  std::vector<std::string> operators;
  friend bool operator==(const NamedImplementation&, const NamedImplementation&) = default;
};

struct PlanFile {
  std::string model;  // relative to the plan file's folder; empty if it was made from no file
  std::uint64_t fingerprint = 0;
  std::vector<std::uint16_t> operators;  // of the graph, in order: see operator_fingerprint
  std::string planner;                   // who made it
  ClusterParts cluster;
  Training training;
  std::uint64_t seed = 0;
  std::string cost_file;        // relative as well; empty: analytic or from the model file
  std::uint64_t cost_hash = 0;  // of the table in that file or in the model's; 0: there was none
  std::optional<MeasuredOn> measured;
  std::optional<std::uint64_t>
      expansion;                   // schedule_hash of what a rule stands for; none: nobody filled it in
  std::vector<NamedStage> stages;  // beside staged.stages, same order; none of a placement
  struct Placed {
    NamedPlacement operators;
    BatchSize micro_batch;
    friend bool operator==(const Placed&, const Placed&) = default;
  };
  std::optional<Placed> placement;  // in place of stages
  StagedModel staged;
  std::vector<NamedImplementation> implementations = {};  // by kind and name, ascending
  std::vector<std::string> notes;                         // the planner's reasons and warnings, for people
  friend bool operator==(const PlanFile&, const PlanFile&) = default;
};

// 16 bits of what an operator is: its name, target, class and role, and names, types and sizes of its
// tensors.
std::uint16_t operator_fingerprint(const Graph& graph, OperatorId op);

// A replica's: "gpu:0", of a tensor-parallel group "gpu:0+gpu:1".
std::string devices_name(const Cluster& cluster, const std::vector<DeviceId>& devices);

// All but model, planner, seed, cost file and hash, expansion, and notes, which the caller knows.
PlanFile make_plan_file(const Graph& graph, const Cluster& cluster, const Training& training,
                        const PipelinePlan& plan, StagedModel staged);

// The same for a placement; `staged` is that of its fragments.
PlanFile make_plan_file(const Graph& graph, const Cluster& cluster, const Training& training,
                        const Placement& placement, BatchSize micro_batch, StagedModel staged);

std::string print_plan_file(const PlanFile& file);  // JSON text
PlanFile parse_plan_file(std::string_view text,
                         const std::string& where);  // throws InputError naming the place

// What people may have edited of a plan file, for planning to start from: all but what is derived from the
// stages. `staged` is empty but for its orders, and of those only a rule is read: lists belong to the stages
// as they were.
struct EditedPlan {
  PlanFile file;
  bool had_lists = false;
  std::vector<std::size_t> edited;  // stages that are not what the derived parts were made of; ascending.
                                    // 0: the placement
};
EditedPlan parse_edited_plan(std::string_view text, const std::string& where);  // as parse_plan_file

// A stage of such a plan on a graph and cluster, its `after` and in-flight limit left open and its
// micro-batches dealt round robin. Throws InputError naming the place below `where`: "edited.json:
// stages[2].operators[0]: …".
Stage resolve_stage(const PlanFile& file, std::size_t stage, const Graph& graph, const Cluster& cluster,
                    const std::string& where);

// The plan on its graph. Throws InputError if the fingerprint differs (naming the first operator that does),
// if a name is unknown, or if the plan breaks a rule of check_plan. Of a placement: its fragments.
PipelinePlan resolve_plan(const PlanFile& file, const Graph& graph);

}  // namespace espalier
