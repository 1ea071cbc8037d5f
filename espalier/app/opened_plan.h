#pragma once

// A plan file read back: simulated from the file alone, and again with other orders or costs.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "espalier/app/chosen_orders.h"
#include "espalier/app/planning_job.h"
#include "espalier/bound/bound.h"
#include "espalier/plan/plan_file.h"
#include "espalier/report/gantt.h"
#include "espalier/schedule/schedule.h"
#include "espalier/trace/trace.h"

namespace espalier {

// A plan file read back, with the model it names.
struct OpenedPlan {
  PlanFile file;
  std::string path;
  std::string model;  // path of the model from here; empty if the plan names none
  Cluster cluster;
  Schedule schedule;
  Trace trace;  // simulated from the file alone
  Bound stages_bound;

  Duration expected() const;  // as in Judged; takes some dozen simulations where the spread was measured
};
OpenedPlan open_plan(const std::string& path);

// One line if the plan has stages on device kinds that are not what a run on this machine computes on: its
// times were predicted for other devices, so a measured step cannot be compared with them.
std::vector<std::string> device_kind_warnings(const OpenedPlan& opened, const Machine& machine);

// The same plan with other orders, and the in-flight limits that go with them. Throws InputError where they
// do not fit it.
OpenedPlan with_orders(const OpenedPlan& opened, const ChosenOrders& orders);

// Its orders as a schedule file of that name: PyTorch's where it ends in .csv, else a list for each device.
// Throws InputError where PyTorch's cannot say them.
std::string orders_text(const OpenedPlan& opened, const std::string& path);

// The same plan, stages and orders kept, predicted from another cost file: its staged model is derived again.
// The link that a cost file brings is used where the plan's devices are one host. Throws InputError where the
// model is gone or has changed, or where the costs know none of the plan's device kinds.
OpenedPlan with_costs(const OpenedPlan& opened, const std::string& cost_file);

// How the plan's model was read: which parameters are frozen, how large its open sizes are.
ImportOptions as_planned(const OpenedPlan& opened);

// A plan's model and costs as it was made with them; the costs are complete for `sizes`. Else why there are
// none: "<who> needs the model, which is not at 'm.json'".
struct ModelAndCosts {
  Graph graph;
  CostTable costs;
};
std::variant<ModelAndCosts, std::string> model_and_costs(const OpenedPlan& opened, const std::string& who,
                                                         const std::vector<BatchSize>& sizes);

// Whether no device holds more than it has, at any time.
bool fits(const Trace& trace);

// The bound for any plan (for any that fits, if this one does), which needs the model and the costs; nothing,
// with the reason in `why_not`, if they are not there any more.
struct BoundOrReason {
  std::optional<Bound> bound;
  std::string why_not;
};
BoundOrReason any_plan_bound(const OpenedPlan& opened);

// Pictures of a placement operator by operator: the engine's step (placement/engine.h) with each device
// taking first what is longest from the end, as searches judge placements.
struct OperatorPictures {
  Duration step;
  std::string chrome;  // Chrome trace
  std::string svg;
  std::string gantt;  // text
};
struct OperatorPictureOptions {  // which of them are made
  bool chrome = false;
  bool svg = false;
  std::optional<GanttOptions> gantt = {};
};

// All that they are made of; refers to what it is given. `costs` are complete for the micro-batch.
struct PlacedOperators {
  const Graph& graph;
  const Cluster& cluster;
  const CostTable& costs;
  const Training& training;
  const Placement& placement;
  BatchSize micro_batch;
  std::string title;
};

// None where the placement divides operators that one step computes together.
std::optional<OperatorPictures> operator_pictures(const PlacedOperators& placed,
                                                  const OperatorPictureOptions& options);

// Of a plan file; else why there are none: it has stages in place of a placement, its model or costs are gone
// or have changed, or it divides operators as above.
std::variant<OperatorPictures, std::string> operator_pictures(const OpenedPlan& opened,
                                                              const OperatorPictureOptions& options);

// Whether one pass over these operators is the step: a placement that takes the batch at once, in orders that
// are a rule or go forward by level and back.
bool is_one_pass(const StagedModel& fragments);

}  // namespace espalier
