#pragma once

// The verbs that compute: in a build without libtorch they say how to make one that has it.

#include "espalier/cli/verbs.h"

namespace espalier::cli {

// Throws InputError: this build cannot, and what to do.
[[noreturn]] void needs_runtime(const std::string& verb);

// What verbs that execute a plan share.
struct ExecutionFlags {
  std::string plan, schedule, data, device;
  std::uint32_t threads = 1;
  int workers = 0;  // 0: one per device that has a stage

  void add_inputs(CLI::App* verb);   // the plan, --schedule, --data
  void add_workers(CLI::App* verb);  // --workers, --device, --threads
  // Throws InputError, also for a plan that was made from no file, or that the runtime cannot run.
  OpenedPlan open() const;
  OpenedPlan open_without_model() const;  // for a run that computes nothing
  int workers_for(const PlanFile& file) const;
};

// Where the plan is for other kinds of devices than those that these flags make it run on; else none.
std::vector<std::string> device_warnings(const Program& program, const OpenedPlan& opened,
                                         const ExecutionFlags& flags);

}  // namespace espalier::cli
