#pragma once

// Planners called for a job, by name and with what a verb asked for; what they found checked and judged.
// plan_model and compare_planners are made of it.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "espalier/app/planning.h"
#include "espalier/base/thread_pool.h"

namespace espalier {

// What PlanOptions and CompareOptions say of their planners.
struct PlannerMeans {
  const ChosenOrders& chosen;
  const LearnedPlanner& learned;
  Guides guides;
  bool brief = false;  // PlanOptions

  template <class Options>
  explicit PlannerMeans(const Options& options)
      : chosen(options.schedule), learned(options.learned), guides(options.guides) {}
  explicit PlannerMeans(const PlanOptions& options)
      : chosen(options.schedule), learned(options.learned), guides(options.guides), brief(options.brief) {}
};

// A planner of the catalog, or the split by hand, for this job; it keeps what it needs of the means.
NamedPlanner planner_for(const PlanningJob& job, const std::string& name, const PlannerMeans& means);

// What a call's planners share.
struct PlannerCall {
  PlannerCall(const PlanningJob& of, const ChosenOrders& orders, const SearchOptions& options,
              bool with_bound = true);

  // Calls the planners, and finds the bound beside them, if it is wanted: the first plans need not wait for
  // it.
  void run(const std::function<void()>& planners);

  // `shares`: of the budget, of all planners that were asked. Of several the one that made the closest plan
  // plans again, beside those that are soon done.
  Shortage explain(NamedPlanner maker, const OrderRule& rule, const std::vector<std::uint32_t>& shares,
                   const Plan& closest) const;

  // What a planner found, checked, with orders made for it if they were chosen, judged.
  Planned checked_and_judged(const std::string& planner, Outcome found, const ChosenOrders& schedule) const;

  const PlanningJob& job;
  const Problem problem;
  const bool wants_bound;
  Bound any_bound;  // of most plans; known after run. 0, of any plan, where it is not wanted
  ThreadPool pool;
  SearchWatch watch;
  Context context;
};

}  // namespace espalier
