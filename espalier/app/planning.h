#pragma once

// Planning: plain values that the command line prints, and tests and bindings use. judged.h has what judges a
// plan, comparison.h several planners side by side.

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/app/catalog.h"
#include "espalier/app/chosen_orders.h"
#include "espalier/app/judged.h"
#include "espalier/app/planning_job.h"
#include "espalier/plan/plan_file.h"
#include "espalier/planners/joint/guide.h"
#include "espalier/planners/placement/proposal_guide.h"
#include "espalier/planners/shortage.h"
#include "espalier/report/table.h"
#include "espalier/trace/trace.h"

namespace espalier {

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
  // For a question beside a plan, the job's start: `auto` asks few planners beside it, and there is no bound
  // but 0.
  bool brief = false;
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

// One row per stage, for people: modules, devices, operators, time share, memory. Lists of over 40 characters
// are shortened: "embed and 15 more", "gpu:0 … gpu:7 (8)".
Table stage_table(const PlanningJob& job, const Judged& judged);
// One row per device, or for these: peak by category, capacity, fits.
Table memory_table(const Trace& trace);
Table memory_table(const Trace& trace, std::span<const DeviceId> devices);

// The modules of a stage's operators, shortest text: "encoder.layers.0-3, head".
std::string module_text(const Graph& graph, const std::vector<OperatorId>& operators, std::size_t width);

}  // namespace espalier
