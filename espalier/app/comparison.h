#pragma once

// Planners and plan files side by side.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "espalier/app/planning.h"
#include "espalier/app/step_price.h"
#include "espalier/report/table.h"

namespace espalier {

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

}  // namespace espalier
