#pragma once

// More micro-batches in flight for what comes before a replicated stage. The rule 1F1B lets a stage be as far
// ahead as the pipeline behind it needs; a replicated stage is then done with its last micro-batch when all
// others nearly are, and everybody waits for its sum of gradients. Where the stages before it go further
// ahead, it is done earlier, and its sum goes on beside what they still go back through.

#include <cstdint>
#include <optional>

#include "espalier/planners/candidate.h"

namespace espalier {

// What a stage adds to a simulated step: forward, backward and a message each, of each micro-batch.
inline std::uint64_t tasks_of_stage(BatchSize batch, BatchSize micro_batch) {
  return 4 * static_cast<std::uint64_t>(batch.count() / micro_batch.count());
}

// Judges `plan`, which takes `fastest`, with eight more in flight for all stages that hold more than a
// replicated one (on a path to it stages hold more and more), and eight more again as long as that is faster
// and fits; for each number that replicated stages hold. Nothing is tried
// where the order is not 1F1B's. Ends where the steps that were simulated have `most_tasks` in all, and
// returns how many they had (tasks_of_stage).
std::uint64_t go_ahead_of_sums(const Problem& problem, const PipelinePlan& plan, Duration fastest,
                               std::optional<Duration> estimate, std::uint64_t most_tasks, Judge& judge,
                               const Context& context);

// The same of the best plan that the judge has, with a quarter as many tasks as the budget has states.
void let_best_go_ahead_of_sums(const Problem& problem, Judge& judge, const Context& context);

}  // namespace espalier
