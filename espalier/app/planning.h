#pragma once

// Planning, judging and comparing: plain values that the command line prints, and tests and bindings use.

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/app/catalog.h"
#include "espalier/app/chosen_orders.h"
#include "espalier/app/planning_job.h"
#include "espalier/app/step_price.h"
#include "espalier/bound/bound.h"
#include "espalier/plan/plan_file.h"
#include "espalier/planners/joint/guide.h"
#include "espalier/planners/placement/proposal_guide.h"
#include "espalier/planners/shortage.h"
#include "espalier/report/table.h"
#include "espalier/trace/trace.h"

namespace espalier {

// A plan with the simulator's verdict.
struct Judged {
  PipelinePlan plan;  // of a placement: its fragments
  std::optional<Placement> placement = {};
  StagedModel staged;
  Trace trace;
  Duration expected;  // mean iteration under the measured spread of action times (sim/expected.h); else the
                      // trace's
  Bound stages_bound;
  Bound any_bound;  // for any plan of the narrowest scope that this one is in
  double bubble = 0;
  std::vector<MemoryByCategory> peak;  // by device
  std::optional<DeviceId> overflow;    // the first device that holds more than it has
  Bytes overflow_by;

  double gap() const;  // iteration / any_bound - 1: at most this much is left to win in that scope
};

// The plan must obey check_plan. O(operators + actions · log).
Judged judge(const PlanningJob& job, const PipelinePlan& plan);
// The fragments of a placement (fragments_of), which check_placement accepts.
Judged judge_fragments(const PlanningJob& job, const Placement& placement, PipelinePlan fragments);

// How a search runs; nothing of it changes what is found, unless somebody ends the search.
struct SearchOptions {
  std::size_t threads = 1;
  SearchWatch::Listener progress = {};           // may be empty
  const std::atomic<bool>* cancelled = nullptr;  // may be null: once true, the best so far is the answer
};

// The planners of the catalog that need libtorch, by name, from a program that has it.
using LearnedPlanner = std::function<Outcome(std::string_view name, const Problem&, Context&)>;

// What stands for a planner where the stages are those that people chose (PlanningJob::stages).
inline constexpr std::string_view kByHand = "stages";

// What searches try first (--learned): nets that have seen other models. Null: what each search has by
// itself.
struct Guides {
  const joint::MoveGuide* plans = nullptr;               // of auto (JointOptions::guide)
  const placement::ProposalGuide* placements = nullptr;  // of kLocalSearch (PlacerInput::guide)
};

struct PlanOptions {
  std::string planner{kAutomatic};  // or kByHand
  ChosenOrders schedule = {};
  Budget budget = {};
  SearchOptions search = {};
  bool remedies =
      true;  // where nothing fits, what would do is looked for, by planning up to eight times again
  std::size_t pick = 0;  // of Outcome::choices, from 1, in place of the fastest
  LearnedPlanner learned = {};
  Guides guides = {};
};

struct Planned {
  std::string planner;
  Outcome outcome;
  std::optional<Judged> judged;       // if there is a plan
  std::optional<Shortage> shortage;   // if nothing fits
  std::vector<std::string> warnings;  // semantic_warnings: what differs from one process
  // In place of the job's, where some operators take lighter implementations than the fastest
  // (cost/implementations.h): where nothing fits without, as few as do, and where that is faster than to
  // recompute.
  std::optional<CostTable> costs = {};
};

// Which implementations a plan has, where the costs know several.
std::vector<NamedImplementation> implementations_of(const PlanningJob& job, const Planned& planned);

// A placement that the job was given is judged, whatever the planner (app/placements.h).
// Throws InputError if there is no such planner; InternalError if a planner breaks a rule of check_plan. A
// plan that does not keep the pins, or that the orders of a schedule file do not fit, is refused as
// kUnsupported. Where memory binds and operators have lighter implementations, some of them take these: it
// plans again, O(log classes) times.
Planned plan_model(const PlanningJob& job, const PlanOptions& options);

// The plan as a file in `folder` (paths inside are relative to it).
PlanFile plan_file(const PlanningJob& job, const Planned& planned, const std::string& folder);

// One row of a comparison.
struct ComparedPlan {
  std::string planner;           // or a file's path
  bool data_edges_only = false;  // the row above, its stage edges without data dropped, its orders kept
  Status status = Status::kInfeasible;
  std::string why;
  std::size_t stages = 0;
  std::size_t depth = 0;  // stages on the longest path
  std::string replicas;   // devices of each stage: "2+1+1"
  std::size_t devices = 0;
  BatchSize micro_batch;
  std::uint32_t micro_batches = 0;
  Orders schedule;
  std::optional<Duration> iteration;  // simulated
  double bubble = 0;
  Bytes peak;  // of the fullest device
  bool fits = true;
  std::optional<Duration> estimate;  // the planner's own
  double gap = 0;                    // to the bound for any plan of its scope
  std::optional<StepPrice> price;    // where the cluster has prices
  SearchStats stats;
  Duration planning_time;  // zero without a clock; planners run side by side
  std::optional<Judged> judged;
};

struct CompareOptions {
  std::vector<std::string> planners =
      {};                               // empty: those that auto asks, and auto; before them a split by hand
  std::vector<std::string> files = {};  // plans to judge beside theirs (judge_file of app/placements.h)
  ChosenOrders schedule = {};
  // None: so much that auto, if it is asked, has what it has in plan_model; else that of one planner.
  std::optional<Budget> budget = {};
  std::function<Duration()> clock = {};  // for planning times, from any thread; may be empty
  SearchOptions search = {};
  LearnedPlanner learned = {};
  Guides guides = {};
};

struct Comparison {
  std::vector<ComparedPlan> rows;
  Bound any_bound;                  // for any plan of the narrowest scope that all rows are in
  std::optional<std::size_t> best;  // the fastest row that fits and whose stage edges mean what they say
  bool interrupted = false;         // somebody ended the search
  std::optional<Shortage> shortage = {};  // where nothing fits: of the closest plan of all
};
// The budget is dealt to the planners beforehand, as automatic() does.
Comparison compare_planners(const PlanningJob& job, const CompareOptions& options);

// The row whose samples cost least of those that may be the best; none where the cluster has no prices.
std::optional<std::size_t> cheapest(const Comparison& comparison);

// All columns; those that are shown where nobody chooses: prices only where a row has one. People read long
// lists of replicas as their range, "1 to 16"; machines get all of them.
enum class TableReaders : std::uint8_t { kPeople, kMachines };
Table comparison_table(const Comparison& comparison, TableReaders readers);
std::vector<std::string> usual_columns(const Comparison& comparison);

// One row per stage, for people: modules, devices, operators, time share, memory. Lists of over 40 characters
// are shortened: "embed and 15 more", "gpu:0 … gpu:7 (8)".
Table stage_table(const PlanningJob& job, const Judged& judged);
// One row per device, or for these: peak by category, capacity, fits.
Table memory_table(const Trace& trace);
Table memory_table(const Trace& trace, std::span<const DeviceId> devices);

// "2+1" for a stage on two devices and one on one.
std::string replica_text(const StagedModel& model);
std::size_t pipeline_depth(const StagedModel& model);

// The modules of a stage's operators, shortest text: "encoder.layers.0-3, head".
std::string module_text(const Graph& graph, const std::vector<OperatorId>& operators, std::size_t width);

}  // namespace espalier
