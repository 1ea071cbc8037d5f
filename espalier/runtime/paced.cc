// A plan's messages and times on real workers, without its arithmetic.

#include <memory>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/runtime/agreement.h"
#include "espalier/runtime/measured_trace.h"
#include "espalier/runtime/paced_device.h"
#include "espalier/runtime/runtime.h"
#include "espalier/runtime/scheduler_hints.h"
#include "espalier/runtime/thread_team.h"
#include "espalier/runtime/workers.h"
#include "espalier/schedule/order_file.h"

namespace espalier {
namespace {

// All that a plan says without its model.
PlannedJob job_without_model(const PlanFile& file, const Cluster& cluster) {
  PlannedJob job;
  job.staged = file.staged;
  job.schedule = schedule_of(file, "the plan");
  require_runnable(job.staged);
  for (const Device& device : cluster.devices()) {
    job.device_names.push_back(device.name);
    job.device_memory.push_back(device.memory);
  }
  return job;
}

class PacedRun {
 public:
  PacedRun(const PlannedJob& job, const Cluster& cluster, Workers& workers, const PacedOptions& options)
      : job_(job), workers_(workers), options_(options) {
    for (const DeviceId device : local_devices(*workers.transport, job.schedule.devices.size())) {
      if (job.schedule.devices[device.index()].empty()) continue;
      devices_.push_back(
          std::make_unique<PacedDevice>(job, cluster, *workers.transport, device, options.slower));
    }
    threads_ = std::make_unique<ThreadTeam>(devices_.size());
  }

  PacedResult run() {
    PacedResult result;
    for (std::uint64_t step = 0; step < options_.steps; ++step) {
      const std::string number = std::to_string(step + 1);
      wait_for_all(workers_, "the start of step " + number);
      const Clock::time_point start = Clock::now();
      StepOutcome outcome = paced_step();
      wait_for_all(workers_, "the end of step " + number);
      const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start);
      result.steps.emplace_back(time.count());
      if (step + 1 == options_.steps) result.trace = gather_trace(workers_, job_, std::move(outcome), start);
    }
    wait_for_all(workers_, "the end of the run");
    return result;
  }

 private:
  StepOutcome paced_step() {
    std::vector<StepOutcome> outcomes(devices_.size());
    run_devices(*threads_, *workers_.transport, [&](std::size_t i) {
      const ShortTurns turns(options_.world.scheduler_hints);
      devices_[i]->begin();
      devices_[i]->run(DeviceLoop::Part::kAll);
      outcomes[i] = devices_[i]->finish();
    });
    StepOutcome all;
    for (StepOutcome& outcome : outcomes) {
      all.spans.insert(all.spans.end(), outcome.spans.begin(), outcome.spans.end());
      all.memory.insert(all.memory.end(), outcome.memory.begin(), outcome.memory.end());
    }
    return all;
  }

  const PlannedJob& job_;
  Workers& workers_;
  const PacedOptions& options_;
  std::vector<std::unique_ptr<PacedDevice>> devices_;
  std::unique_ptr<ThreadTeam> threads_;
};

}  // namespace

PacedResult run_paced(const PlanFile& plan, const PacedOptions& options) {
  if (!(options.slower > 0)) throw InputError("a paced run counts each time more than 0 times");
  const Cluster cluster(plan.cluster);
  const PlannedJob job = job_without_model(plan, cluster);
  Workers workers = join_workers(
      options.world, job,
      {.timeout = options.timeout, .facts = paced_facts(plan, options), .on_stuck = options.on_stuck});
  PacedResult result;
  guarded(workers, [&] { result = PacedRun(job, cluster, workers, options).run(); });
  return result;
}

}  // namespace espalier
