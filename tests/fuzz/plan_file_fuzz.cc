#include "espalier/bound/bound.h"
#include "espalier/plan/plan_file.h"
#include "espalier/sim/simulate.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

namespace {

// A step of more actions and messages takes too long for a fuzzer.
bool is_small(const StagedModel& model) {
  std::size_t work = model.ties.size();
  for (const StagedStage& stage : model.stages) {
    for (const StagedReplica& replica : stage.replicas) {
      work += replica.micro_batches.size() * replica.devices.size();
    }
    for (const Crossing& crossing : model.crossings) work += crossing.readers.size() * stage.micro_batches;
  }
  return work <= 500;
}

// What `simulate` does with a plan: each number it comes to is checked, and nothing overflows.
void simulate_plan(const PlanFile& file) {
  const Cluster cluster(file.cluster);
  if (cluster.devices().size() > 64 || !is_small(file.staged)) return;
  const Schedule schedule = make_schedule(file.staged, cluster.devices().size());
  if (!check_schedule(file.staged, schedule).empty()) return;  // limits that wait in a circle: refused
  const Trace trace = simulate(file.staged, cluster, schedule);
  require(check_trace(file.staged, cluster, schedule, trace).empty());
  require(stages_bound(file.staged, cluster).time <= trace.iteration);
}

}  // namespace

ESPALIER_FUZZ_TARGET(plan_file) {
  return accepts_or_refuses(
      data, size, [](std::string_view text) { return parse_plan_file(text, "f"); },
      [](const PlanFile& file) {
        require(parse_plan_file(print_plan_file(file), "f") == file);
        simulate_plan(file);
      });
}
